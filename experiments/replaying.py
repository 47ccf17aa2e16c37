"""How a recorded episode is shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from palestra.spaces import Tree, leaves
from palestra.trajectories import Trajectory

MOST_STEPS = 24  # beyond them, the middle of an episode is left out


def step_rows(episode: Trajectory) -> list[tuple[Any, ...]]:
    """Rows for a table of steps: number, action, reward, and how the episode ended."""
    count = len(episode)
    shown = list(range(count))
    if count > MOST_STEPS:
        shown = [*range(MOST_STEPS // 2), -1, *range(count - MOST_STEPS // 2, count)]
    return [("...", "", "", "") if step < 0 else _row(episode, step) for step in shown]


def _row(episode: Trajectory, step: int) -> tuple[Any, ...]:
    ends = []
    if np.any(episode.terminated[step]):
        ends.append("terminated")
    if episode.truncated[step]:
        ends.append("truncated")
    return step, _text(episode.actions, step), _text(episode.rewards, step), ", ".join(ends)


def _text(tree: Tree, step: int) -> str:
    parts = []
    for path, leaf in leaves(tree):
        number = np.array2string(leaf[step], precision=4, separator=", ", threshold=8)
        parts.append(f"{path} {number}".strip())
    return "; ".join(" ".join(part.split()) for part in parts)
