"""Small measurements of an environment: compile its kernels, measure its anchors."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from palestra.batch import Episodes
from palestra.policy import RandomPolicy
from palestra.registry import Anchors, Entry, UnknownName, resolve
from palestra.rollout import evaluate


def compile_kernels(target: Any) -> float:
    """Compile what an environment runs, by playing two steps and a reset.

    Returns:
        Seconds it took; near 0 when the cache holds it all.
    """
    start = time.perf_counter()
    env = resolve(target).make(2)
    episodes = Episodes(env)
    policy = RandomPolicy(env.action_space, env.agents, seed=0)
    episodes.seed(0)
    episodes.begin(env.everyone)
    for _ in range(2):
        masks = episodes.masks()
        actions, _ = policy.predict(episodes.observe(), action_masks=masks)
        episodes.advance(actions)
    env.metrics()
    episodes.begin(np.array([True, False]))
    env.close()
    return time.perf_counter() - start


def classical_policies(entry: Entry) -> tuple[str, ...]:
    """The classical policies that a family names for one of its environments.

    Raises:
        UnknownName: its family declares no anchors for it.
    """
    return tuple(_declared(entry)[1]["classical"])


def _declared(entry: Entry) -> tuple[ModuleType, dict[str, Any]]:
    family = importlib.import_module(entry.entry_point.split(":")[0].rsplit(".", 1)[0])
    declared = getattr(family, "ANCHORS", {}).get(entry.name)
    if declared is None:
        raise UnknownName(f"{family.__name__} declares no ANCHORS for {entry.name}")
    return family, declared


def measure_anchors(
    target: Any, episodes: int, seed: int, *, progress: bool = False
) -> dict[str, Any]:
    """Measure an environment's anchors and store them beside its family's data.

    The family names what to measure in its `ANCHORS`: name of the environment -> metric,
    direction, classical policies, and the bound: a metric of the episode, a number, or None.

    Returns:
        The anchors, as stored.

    Raises:
        UnknownName: the environment is not of the catalogue, or its family declares no anchors.
    """
    found = resolve(target)
    if found.entry is None:
        raise UnknownName(f"target: {found.name} is not of the catalogue, so it has no anchors")
    family, declared = _declared(found.entry)
    metric, direction = declared["metric"], declared["direction"]
    means = {}
    for policy in ("random", *declared["classical"]):
        played = evaluate(policy, found, episodes=episodes, seed=seed, progress=progress)
        means[policy] = float(played.column(metric).mean())
    best = (min if direction == "min" else max)(declared["classical"], key=lambda p: means[p])
    bound = declared["bound"]
    anchors = Anchors(
        metric=metric,
        direction=direction,
        random=means["random"],
        classical=means[best],
        classical_name=best,
        bound=float(played.column(bound).mean()) if isinstance(bound, str) else bound,
        bound_name=bound if isinstance(bound, str) else "",
        command=f"palestra anchors {found.name} --episodes {episodes} --seed {seed}",
    )
    file = Path(str(family.__file__)).parent / "data" / "anchors.json"
    stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    stored[found.name] = vars(anchors)
    file.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return dict(vars(anchors))
