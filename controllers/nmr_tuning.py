"""The best classical measurement of each sample: families of shots, searched sample by sample."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.progress import progress_bar
from palestra.registry import resolve
from palestra.rollout import evaluate

from .nmr_shots import BSSFP, DECPMG, CPMGTuned, ShotSequence

Array = npt.NDArray[Any]
TIME = "measurement_time"

ANGLES = np.linspace(0.7, 1.35, 14)  # of the textbook's
CPMG_FACTORS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5)
TRAINS = (0.03, 0.06, 0.1, 0.2, 0.35, 0.6, 1.0)  # of T2
WAITS = (0.4, 0.6, 0.8, 1.0, 1.25, 1.6)


def candidates(env: Any) -> Iterator[tuple[str, ShotSequence]]:
    """Every candidate by its family, for an environment."""
    for angle in ANGLES.tolist():
        yield "bSSFP", BSSFP(env, angle=angle)
    for wait, train in itertools.product(CPMG_FACTORS, CPMG_FACTORS):
        yield "CPMG", CPMGTuned(env, wait=wait, train=train)
    for train, wait in itertools.product(TRAINS, WAITS):
        yield "DE-CPMG", DECPMG(env, wait=wait, train=train)


def tuned_per_sample(
    episodes: int,
    seed: int,
    settings: Mapping[str, Any],
    among: Callable[[Any], Iterator[tuple[str, ShotSequence]]] = candidates,
    *,
    progress: bool = False,
) -> dict[str, Array]:
    """The shortest time of each episode that any member of a family takes.

    The choice is made on the very episode that is scored, magnet and all: no practitioner could do
    as well, so what comes out is a bound on classical measurements rather than one of them.

    Args:
        episodes: how many, 0 to episodes - 1.
        seed: whose.
        settings: keyword arguments of `NMRAbundance`.
        among: the candidates, by family.
        progress: show a bar.

    Returns:
        By family, s, (episodes,).
    """
    env = resolve("NMRAbundance").make(1, **settings)
    found: dict[str, Array] = {}
    members = list(among(env))
    with progress_bar("tuning classical sequences", len(members), progress) as advance:
        for family, policy in members:
            played = evaluate(
                policy, "NMRAbundance", episodes=episodes, seed=seed, settings=settings
            )
            time = played.column(TIME)
            found[family] = np.minimum(found.get(family, np.inf), time)
            advance(1)
    return found
