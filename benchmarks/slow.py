"""An environment whose steps take a chosen time of the processor."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def spin(turns: int) -> int:
    """Work that only a processor can do."""
    total = 0
    for turn in range(turns):
        total ^= turn
    return total


def turns_for(seconds: float) -> int:
    """How many turns take that long on this machine; the best of a few tries."""
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        spin(20_000)
        best = min(best, time.perf_counter() - start)
    return round(20_000 * seconds / best)


class Spinning(gymnasium.Env[Any, Any]):
    """Ten steps, each of `turns` turns."""

    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Spin."""
        spin(self.turns)
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.count == 10, False, {}
