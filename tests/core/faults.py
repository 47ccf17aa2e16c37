"""Environments and policies that fail, for the tests of executors. `MARKS` names their folder."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from palestra.batch import BatchEnv, Mask, Step
from palestra.spaces import Tree
from palestra.streams import Streams


def nothing(*_: Any) -> None:
    """What an errand may be."""


def mark(name: str) -> Path:
    path = Path(os.environ["MARKS"]) / name
    path.touch()
    return path


class Walk(BatchEnv):
    """Five steps of the given size; pays where it stands. This file is a target, and alone."""

    def __init__(self, rows: int, *, horizon: int | None = 5) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.place = np.zeros(rows)

    def begin(self, rows: Mask, streams: Streams, options: Any) -> None:
        for row in np.flatnonzero(rows):
            self.place[row] = streams.generator(row).normal()

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        self.place[live] += actions[live, 0]
        step.reward[live] = self.place[live]

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        out[chosen, 0] = self.place[chosen]


class Faulty(Walk):
    """Calls `fail` in every step of episode 17 (or another)."""

    episode = 17

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        super().advance(actions, live, streams, step)
        (rows,) = np.nonzero(live & (streams.episode == self.episode))
        if len(rows):
            self.fail(rows[0], streams, step)

    def fail(self, row: int, streams: Streams, step: Step) -> None:
        raise NotImplementedError


class NaNAtSeven(Faulty):
    episode = 7

    def fail(self, row: int, streams: Streams, step: Step) -> None:
        if streams.step[row] == 2:
            mark(f"nan-{os.getpid()}-{time.monotonic_ns()}")
            step.reward[row] = np.nan


class DiesOnce(Faulty):
    def fail(self, row: int, streams: Streams, step: Step) -> None:
        if not (Path(os.environ["MARKS"]) / "died").exists():
            mark("died")
            os.kill(os.getpid(), signal.SIGKILL)


class Dies(Faulty):
    def begin(self, rows: Mask, streams: Streams, options: Any) -> None:
        super().begin(rows, streams, options)
        if (streams.episode[rows] == 15).any():
            mark(f"begun-15-{os.getpid()}")

    def fail(self, row: int, streams: Streams, step: Step) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Faulty):
    def fail(self, row: int, streams: Streams, step: Step) -> None:
        time.sleep(3600)


class Slow(Walk):
    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        time.sleep(0.01)
        super().advance(actions, live, streams, step)


class Raises:
    """A policy that divides by zero in block 2: where no row plays an episode below 10."""

    def begin(self, rows: Mask, streams: Streams) -> None:
        self.episodes = streams.episode

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        if self.episodes.min() == 10:
            1 // 0  # noqa: B018
        return np.zeros((len(observation), 1), np.float32), state


class Stubborn(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


class RaisesStubbornly:
    """Its exception cannot be built again from its arguments."""

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        raise Stubborn("no", "way")


class DiesInTraining(Walk):
    """If deadly, kills whoever trains in it, where it has 8 rows."""

    def __init__(self, rows: int, *, deadly: bool = False, horizon: int | None = 5) -> None:
        super().__init__(rows, horizon=horizon)
        self.deadly = deadly

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        if self.deadly and self.rows == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        super().advance(actions, live, streams, step)
