"""A measurement taken apart: its pulse list, how it bears errors of the fields, its error bars."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from palestra.batch import Episodes
from palestra.certificates.nmr import time_bound_certificate
from palestra.controllers.nmr_shots import Replay
from palestra.envs.nmr.abundance import NMRAbundance
from palestra.envs.nmr.robustness import energy_map
from palestra.envs.nmr.sample import Sample, Species, Vary
from palestra.envs.nmr.shots import Shot
from palestra.figures import distributions
from palestra.heat_maps import heat_map
from palestra.policy_loading import load_policy
from palestra.registry import resolve
from palestra.rollout import evaluate
from palestra.spaces import Array
from palestra.store import write_atomic

GRID = 31  # points of a map to either side


def played_once(policy: str, settings: Mapping[str, Any], seed: int) -> NMRAbundance:
    """One row after episode 0 of a seed under a policy."""
    env: Any = resolve("NMRAbundance").make(1, **settings)
    actor = load_policy(policy, env)
    episodes, state = Episodes(env), None
    episodes.reset(seed)
    while not episodes.ended.any():
        actions, state = actor.predict(episodes.observe(), state=state)
        episodes.advance(actions)
    assert isinstance(env, NMRAbundance)
    return env


def write_protocol(folder: Path, env: NMRAbundance) -> None:
    """The pulse list of a row as `protocol.csv`, `.json`, and with hard pulses its certificate."""
    events = env.events(0)
    write_atomic(folder / "protocol.csv", events.to_csv().encode())
    write_atomic(folder / "protocol.json", events.to_json().encode())
    if env.sample.instrument.pulse_model == "hard":
        made = time_bound_certificate(events, env.isochromats(0), float(env.books["N0"][0]))
        made.save(folder / "protocol.cert")


def protocol_map(env: NMRAbundance) -> tuple[str, Any, bytes]:
    """What the pulse list gets from spins at other offsets and fields, over those on resonance."""
    width = float(env.books["width"][0])
    offsets = np.linspace(-2.0, 2.0, GRID) * max(width, 1.0)
    b1 = np.linspace(0.8, 1.2, GRID)
    T1, T2 = float(env.books["T1"][0]), float(env.books["T2"][0])
    energy = energy_map(env.events(0), T1, T2, offsets, b1)
    picture = heat_map(
        offsets,
        b1,
        energy / energy[GRID // 2, GRID // 2],
        x_label="offset (Hz)",
        y_label="transmit field / nominal",
        z_label="signal energy / nominal",
    )
    return ("How the pulse list bears errors of the static and the transmit field", *picture)


def calibration(
    env: NMRAbundance, settings: Mapping[str, Any], seed: int, episodes: int = 400
) -> tuple[str, Any, bytes]:
    """The pulse list played with noise on its own sample, and fitted: errors over error bars.

    The list is played to its end. To stop as soon as the fit is content would favour fits that
    overestimate the abundance: their relative error looks smaller.
    """
    shots: tuple[Shot, ...] = env.shots(0)
    groups, notes = {}, []
    for name, sd in (("T1 and T2 known", 0.0), ("known to 5 %", 0.05)):
        given = {
            **settings,
            "sample": dataclasses.asdict(_own_sample(env, sd)),
            "information": "marginal" if sd else "known",
            "observation": "measured",
            "horizon": len(shots),
            "eps": 1e-6,  # never met: the whole list is played, whatever it seems to have shown
        }
        replay = Replay(resolve("NMRAbundance").make(1, **given), shots=shots)
        found = evaluate(replay, "NMRAbundance", episodes=episodes, seed=seed + 1, settings=given)
        error = np.log(found.column("abundance"))
        groups[name] = error / found.column("predicted_error")
        low, high = _interval_of_sd(groups[name])
        notes.append(
            f"{name}: spread {groups[name].std(ddof=1):.3f} [{low:.3f}, {high:.3f}], mean "
            f"{groups[name].mean():+.3f} ± {2 / math.sqrt(episodes):.3f}, RMSE of ln A "
            f"{100 * np.sqrt((error**2).mean()):.2f} %"
        )
    caption = (
        f"Error of ln A over its predicted standard deviation in {episodes} repetitions with "
        f"noise; honest error bars have spread 1 and mean 0. {'; '.join(notes)}"
    )
    return (caption, *distributions(groups, x_label="error / predicted standard deviation"))


def _own_sample(env: NMRAbundance, sd: float) -> Sample:
    """The sample of the row's episode, with relaxation known to a standard deviation."""
    sample, book = env.sample, env.books[0]
    task = dataclasses.replace(sample.task, log_T1_sd=sd, log_T2_sd=sd, log_b1_sd=0.0)
    if sample.vary == Vary():
        return dataclasses.replace(sample, task=task)
    field = sample.field
    if field.b0_shape != "table":
        field = dataclasses.replace(field, b0_fwhm_hz=float(book["width"]))
    species = (Species(1.0, float(book["T1"]), float(book["T2"])),)
    return dataclasses.replace(sample, species=species, field=field, task=task, vary=Vary())


def _interval_of_sd(values: Array) -> tuple[float, float]:
    """95 % interval of a standard deviation, for normal values."""
    from scipy.stats import chi2

    n, sd = len(values), float(values.std(ddof=1))
    return tuple(sd * math.sqrt((n - 1) / q) for q in chi2.ppf([0.975, 0.025], n - 1))  # type: ignore[return-value]
