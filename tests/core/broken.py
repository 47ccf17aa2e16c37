"""Sound environments, and the same with one fault each: what `palestra check` must tell apart.

The first nine and `DivergesLate` are the ones that the checkers of Gymnasium, Stable-Baselines3
and PettingZoo let pass, or most of them.
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from palestra.batch import BatchEnv


class Sound(gymnasium.Env):
    """A noisy number that is pushed up and down; 20 steps an episode. Nothing is wrong with it."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    length = 20

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-30.0, 30.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.render_mode = render_mode
        self.count: int | None = None
        self.x = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.x = self.np_random.uniform(-1.0, 1.0)
        return self.look(), {"x": self.x}

    def step(self, action):
        if self.count is None:
            raise RuntimeError("the episode is over; call reset()")
        self.refuse(action)
        self.count += 1
        self.move(action)
        seen, over = self.look(), self.over()
        reward, info = self.reward(), {"x": self.x}
        if over:
            self.count = None
        return seen, reward, over, False, info

    def refuse(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"action: got {action!r}")

    def move(self, action):
        push = float(np.asarray(action).reshape(-1)[0])
        self.x = float(np.clip(0.9 * self.x + 0.1 * push + 0.1 * self.noise(), -5.0, 5.0))

    def noise(self):
        return self.np_random.normal()

    def over(self):
        return self.count >= self.length

    def reward(self):
        return -abs(self.x)

    def look(self):
        return np.array([self.x, self.count], np.float32)

    def render(self):
        return np.full((4, 6, 3), 100 + int(10 * self.x), np.uint8)


class Chooses(Sound):
    """Sound, with two actions to choose from."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.action_space = spaces.Discrete(2)


class Masked(Sound):
    """Sound, with three actions, of which the last one may not be repeated."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.action_space = spaces.Discrete(3)
        self.last = 0

    def reset(self, *, seed=None, options=None):
        self.last = 0
        return super().reset(seed=seed)

    def action_masks(self):
        return np.arange(3) != self.last

    def refuse(self, action):
        super().refuse(action)
        if action == self.last:
            raise ValueError("action: masked")

    def move(self, action):
        super().move(action)
        self.last = int(action)


# --- the nine that pass the stock checkers --------------------------------------------------------


class GlobalRandomLate(Sound):
    def noise(self):
        return random.random() if self.count >= 4 else super().noise()


class OwnBuffer(Sound):
    def look(self):
        if not hasattr(self, "buffer"):
            self.buffer = np.zeros(2, np.float32)
        self.buffer[:] = self.x, self.count
        return self.buffer


class ClassState(Sound):
    shared: ClassVar[list[float]] = [0.0]

    def reset(self, *, seed=None, options=None):
        self.shared[0] = 0.0
        return super().reset(seed=seed)

    def move(self, action):
        super().move(action)
        self.shared[0] += 0.01
        self.x = float(np.clip(self.x + self.shared[0], -5.0, 5.0))


class NaNObservation(Sound):
    def look(self):
        seen = super().look()
        seen[0] = np.nan if self.count == 13 else seen[0]
        return seen


class NaNReward(Sound):
    def reward(self):
        return float("nan") if self.count == 3 else super().reward()


class OutOfBounds(Sound):
    def look(self):
        return super().look() + np.float32(100.0 * (self.count >= 4))


class SeedsTheGlobal(Sound):
    def reset(self, *, seed=None, options=None):
        if seed is not None:
            np.random.seed(seed)  # noqa: NPY002 - the fault
        return super().reset(seed=seed)


class WritesIntoActions(Sound):
    def move(self, action):
        super().move(action)
        action *= 0.5


class NeverEnds(Sound):
    def over(self):
        return False

    def look(self):
        return np.array([self.x, 0.0], np.float32)


# --- one seed, one course -------------------------------------------------------------------------


class OwnEntropy(Sound):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = np.random.default_rng().uniform(-1.0, 1.0)
        return self.look(), {"x": self.x}


class SurvivesReset(Sound):
    age = 0

    def move(self, action):
        super().move(action)
        self.age += 1
        self.x = float(np.clip(self.x + 1e-3 * self.age, -5.0, 5.0))


class RepeatsItself(Sound):
    first = 0

    def reset(self, *, seed=None, options=None):
        self.first = self.first if seed is None else seed
        return super().reset(seed=self.first)


class HashOrder(Sound):
    def noise(self):
        return (hash("the order of a set of strings") % 1000) / 1000


class DrawsForNothing(Sound):
    """Draws from Python's global generator, without an effect on its course."""

    def move(self, action):
        super().move(action)
        if self.count == 2:
            random.random()


# --- arrays, types, spaces ------------------------------------------------------------------------


class RemembersTheAction(Sound):
    previous = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        self.previous = np.zeros(1, np.float32)
        return super().reset(seed=seed)

    def move(self, action):
        super().move(self.previous)
        self.previous = action


class WrongDtype(Sound):
    def look(self):
        return super().look().astype(np.float64)


class Float64Box(Sound):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)


class RewardIsAnArray(Sound):
    def reward(self):
        return np.array([self.x])


class EndIsANumber(Sound):
    def over(self):
        return int(super().over())


class InfoChangesType(Sound):
    def step(self, action):
        *first, info = super().step(action)
        count = self.count or 0
        return *first, {**info, "n": count if count < 5 else float(count)}


# --- actions --------------------------------------------------------------------------------------


class TakesAnything(Chooses):
    def refuse(self, action):
        pass


class ClipsInSilence(Sound):
    def refuse(self, action):
        if np.shape(action) != (1,) or not np.isfinite(action).all():
            raise ValueError("action")
        np.clip(action, -1.0, 1.0, out=action)

    def move(self, action):
        super().move(np.clip(action, -1.0, 1.0))


class OnlyNumPyIntegers(Chooses):
    def refuse(self, action):
        if not isinstance(action, np.int64):
            raise TypeError("action: allowed np.int64")
        super().refuse(action)


class StepsBeforeReset(Sound):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.count = 0


class StepsAfterTheEnd(Sound):
    def step(self, action):
        if self.count is None and hasattr(self, "begun"):
            self.count = 0
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        self.begun = True
        return super().reset(seed=seed)


class EmptyMask(Masked):
    def action_masks(self):
        return np.zeros(3, bool) if self.count == 6 else super().action_masks()


class MaskIgnored(Masked):
    def refuse(self, action):
        pass


# --- life -----------------------------------------------------------------------------------------


class Raises(Sound):
    def move(self, action):
        if self.count == 7:
            raise ZeroDivisionError("the motor is off")
        super().move(action)


class Hoards(Sound):
    def move(self, action):
        super().move(action)
        self.__dict__.setdefault("kept", []).append([self.x])


class ClosesOnce(Sound):
    def close(self):
        if self.__dict__.get("closed"):
            raise RuntimeError("closed already")
        self.closed = True


class CannotBeCopied(Sound):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.lock = threading.Lock()


class ForgetsInCopies(Sound):
    def __getstate__(self):
        return {**self.__dict__, "x": 0.0}


class DrawsFloats(Sound):
    def render(self):
        return super().render() / 255.0


class DrawingMoves(Sound):
    def render(self):
        self.x = 0.5
        return super().render()


class Hangs(Sound):
    def move(self, action):
        if self.count == 5:
            time.sleep(3600)
        super().move(action)


class EndsTheProcess(Sound):
    def move(self, action):
        if self.count == 5:
            os._exit(9)
        super().move(action)


# --- several agents -------------------------------------------------------------------------------


class SoundTeam(ParallelEnv):
    """Two agents push a number each, for 8 steps."""

    metadata = {"name": "sound_team", "render_modes": []}
    possible_agents = ("a", "b")

    def __init__(self, render_mode=None):
        self.possible_agents = ["a", "b"]
        self.agents = []
        self.render_mode = render_mode
        self.observation_spaces = {a: spaces.Box(-9.0, 9.0, (1,), np.float32) for a in "ab"}
        self.action_spaces = {a: spaces.Discrete(3) for a in "ab"}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.agents, self.count = list(self.possible_agents), 0
        self.x = {a: self.rng.uniform(-1.0, 1.0) for a in self.agents}
        return self.look(), {a: {} for a in self.agents}

    def look(self):
        return {a: np.array([self.x[a]], np.float32) for a in self.agents}

    def step(self, actions):
        if not self.agents:
            raise RuntimeError("the episode is over")
        for agent in self.agents:
            if not self.action_spaces[agent].contains(actions[agent]):
                raise ValueError(f"action of {agent}")
            self.x[agent] = 0.9 * self.x[agent] + 0.1 * (int(actions[agent]) - 1)
        self.count += 1
        self.disturb()
        seen, over = self.look(), self.count >= 8
        everyone = self.agents
        self.agents = [] if over else everyone
        return (
            seen,
            {a: -abs(self.x[a]) for a in everyone},
            dict.fromkeys(everyone, False),
            dict.fromkeys(everyone, over),
            {a: {} for a in everyone},
        )

    def disturb(self):
        pass


class DivergesLate(SoundTeam):
    def disturb(self):
        if self.count >= 3:
            self.x["b"] += 0.1 * random.random()


class TeamNaN(SoundTeam):
    def disturb(self):
        if self.count == 5:
            self.x["a"] = float("nan")


class SoundTurns(AECEnv):
    """Two players take turns to add 1 or 2; whoever reaches 9 wins."""

    metadata = {"name": "sound_turns", "render_modes": [], "is_parallelizable": False}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode
        self.possible_agents = ["p", "q"]
        self.observation_spaces = {a: spaces.Box(0, 20, (1,), np.int64) for a in "pq"}
        self.action_spaces = {a: spaces.Discrete(2) for a in "pq"}
        self.agents = []

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.total = int(self.rng.integers(0, 4))
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {a: {} for a in self.agents}
        self.agent_selection = "p"

    def observe(self, agent):
        return np.array([self.total], np.int64)

    def step(self, action):
        if not self.agents:
            raise RuntimeError("the episode is over")
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        if not self.action_spaces[agent].contains(action):
            raise ValueError(f"action of {agent}")
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.total += int(action) + 1 + self.cheat()
        other = "q" if agent == "p" else "p"
        if self.total >= 9:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = other

    def cheat(self):
        return 0


class CheatsAtTurns(SoundTurns):
    def cheat(self):
        return random.randrange(2) if self.total > 4 else 0


# --- rows -----------------------------------------------------------------------------------------


class SoundRows(BatchEnv):
    """`Sound` as a BatchEnv; some episodes end early."""

    def __init__(self, rows: int, *, horizon: int | None = 20) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Box(-30.0, 30.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.x, self.drift = np.zeros(rows), np.zeros(rows)

    def begin(self, rows, streams, options):
        for row in np.flatnonzero(rows):
            self.x[row] = streams.generator(row).uniform(-1.0, 1.0)
        self.drift[rows] = 0.0

    def advance(self, actions, live, streams, step):
        for row in np.flatnonzero(live):
            noise = streams.generator(row).normal()
            self.drift[row] += 0.01 * noise
            self.x[row] = 0.9 * self.x[row] + 0.1 * actions[row, 0] + 0.1 * noise + self.drift[row]
        step.reward[live] = -np.abs(self.x[live])
        step.terminated[live] = np.abs(self.x[live]) > 1.2

    def observe(self, rows, streams, out):
        chosen = self.everyone if rows is None else rows
        out[chosen, 0] = self.x[chosen]
        out[chosen, 1] = streams.step[chosen]

    def metrics(self):
        return {"x": self.x.copy()}

    def snapshot(self, rows):
        return {"x": self.x[rows].copy(), "drift": self.drift[rows].copy()}

    def restore(self, state, rows):
        self.x[rows], self.drift[rows] = state["x"], state["drift"]

    def render(self, row):
        return np.full((4, 6, 3), 128, np.uint8)


class LooksAtNeighbours(SoundRows):
    def advance(self, actions, live, streams, step):
        super().advance(actions, live, streams, step)
        self.x[live] += 1e-6 * self.x.mean()


class MovesIdleRows(SoundRows):
    def advance(self, actions, live, streams, step):
        super().advance(actions, live, streams, step)
        self.drift += 1e-3 * (streams.step > 0)


class CountsItsRows(SoundRows):
    def begin(self, rows, streams, options):
        super().begin(rows, streams, options)
        self.x[rows] /= self.rows


class ObservesWithEffect(SoundRows):
    def observe(self, rows, streams, out):
        super().observe(rows, streams, out)
        self.x *= 0.999


class KeepsAGenerator(SoundRows):
    def __init__(self, rows, *, horizon=20):
        super().__init__(rows, horizon=horizon)
        self.rng = np.random.default_rng(0)

    def begin(self, rows, streams, options):
        super().begin(rows, streams, options)
        self.x[rows] = self.rng.uniform(-1.0, 1.0, int(rows.sum()))


class CarriesOver(SoundRows):
    def begin(self, rows, streams, options):
        drift = self.drift.copy()
        super().begin(rows, streams, options)
        self.drift[rows] = drift[rows]


class HalfASnapshot(SoundRows):
    def snapshot(self, rows):
        return {"x": self.x[rows].copy(), "drift": np.zeros(int(rows.sum()))}


class LiveSnapshot(SoundRows):
    def snapshot(self, rows):
        return {"x": self.x, "drift": self.drift} if rows.all() else super().snapshot(rows)


class NoSnapshot(SoundRows):
    snapshot = property()
    restore = property()


class TerminatesAtItsHorizon(SoundRows):
    def advance(self, actions, live, streams, step):
        super().advance(actions, live, streams, step)
        if self.horizon is not None:
            step.terminated[live] |= streams.step[live] >= self.horizon


class RowsOutOfBounds(SoundRows):
    def observe(self, rows, streams, out):
        super().observe(rows, streams, out)
        chosen = self.everyone if rows is None else rows
        out[chosen, 1] *= 4.0


class RowsDrawnWrong(SoundRows):
    def render(self, row):
        return np.zeros((4, 6), np.uint8)


class RowsNoMask(SoundRows):
    def __init__(self, rows, *, horizon=20):
        super().__init__(rows, horizon=horizon)
        self.action_space = spaces.Discrete(3)
        self.steps = np.zeros(rows, np.int64)

    def begin(self, rows, streams, options):
        super().begin(rows, streams, options)
        self.steps[rows] = 0

    def advance(self, actions, live, streams, step):
        super().advance(actions[:, np.newaxis] / 3.0, live, streams, step)
        self.steps[live] += 1

    def action_masks(self, out):
        out[...] = (self.steps < 4)[:, np.newaxis]


# --- what is to be found --------------------------------------------------------------------------

SOUND = (Sound, Chooses, Masked, SoundTeam, SoundTurns, SoundRows)


@dataclass(frozen=True)
class Planted:
    """A fault, and the finding that it must lead to."""

    env: type
    check: str
    level: str = "error"
    episode: int | None = None
    step: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        return self.env.__name__


def _planted() -> list[Planted]:
    warning = "warning"
    return [
        Planted(GlobalRandomLate, "determinism", "error", 0, 4, "observation"),
        Planted(OwnBuffer, "aliasing", "error", 0, 0, "observation"),
        Planted(ClassState, "shared-state", "error", 0, 2, "observation"),
        Planted(NaNObservation, "finite", "error", 0, 13, "observation"),
        Planted(NaNReward, "finite", "error", 0, 3, "reward"),
        Planted(OutOfBounds, "honest-spaces", "error", 0, 4, "observation"),
        Planted(SeedsTheGlobal, "global-random", "error", 0, 0, "numpy.random"),
        Planted(WritesIntoActions, "actions-kept", "error", 0, 1, "action"),
        Planted(NeverEnds, "ends", warning, 0, None, "terminated"),
        Planted(DivergesLate, "determinism", "error", 0, 3, "observation/b"),
        Planted(OwnEntropy, "determinism", "error", 0, 0, "observation"),
        Planted(SurvivesReset, "determinism", "error", 0, 1, "observation"),
        Planted(RepeatsItself, "episodes-differ", warning, 1, 0, "observation"),
        Planted(DrawsForNothing, "global-random", "error", 0, 2, "random"),
        Planted(RemembersTheAction, "arrays-owned", warning, 0, 2, "observation"),
        Planted(WrongDtype, "honest-spaces", "error", 0, 0, "observation"),
        Planted(Float64Box, "space-types", warning, None, None, "action"),
        Planted(RewardIsAnArray, "returns", warning, 0, 1, "reward"),
        Planted(EndIsANumber, "returns", warning, 0, 1, "terminated"),
        Planted(InfoChangesType, "info-types", warning, 0, 5, "info/n"),
        Planted(TakesAnything, "bad-actions", warning, 0, 1, "action"),
        Planted(ClipsInSilence, "clipping", warning, 0, 1, "action"),
        Planted(OnlyNumPyIntegers, "action-types", warning, 0, 1, "action"),
        Planted(StepsBeforeReset, "order", warning, 0, 0, "step"),
        Planted(StepsAfterTheEnd, "order", warning, 0, 21, "step"),
        Planted(EmptyMask, "masks", "error", 0, 6, "action_masks"),
        Planted(MaskIgnored, "masks-respected", warning, 0, 1, "action_masks"),
        Planted(Raises, "raises", "error", 0, 7, None),
        Planted(Hoards, "memory", warning, None, None, "memory"),
        Planted(ClosesOnce, "close", warning),
        Planted(CannotBeCopied, "copies", warning),
        Planted(CannotBeCopied, "snapshot", warning),
        Planted(ForgetsInCopies, "copies", warning, 0, 5, "observation"),
        Planted(DrawsFloats, "render", warning, None, None, "rgb_array"),
        Planted(DrawingMoves, "render", warning, None, None, "rgb_array"),
        Planted(TeamNaN, "finite", "error", 0, 5, "observation/a"),
        Planted(CheatsAtTurns, "determinism"),
        Planted(LooksAtNeighbours, "rows", "error", 0, 1, None),
        Planted(MovesIdleRows, "idle-rows", "error"),
        Planted(CountsItsRows, "single-equals-batch", "error", 0, 0, "observation"),
        Planted(ObservesWithEffect, "observe", "error", 0, None, "observation"),
        Planted(KeepsAGenerator, "rows", "error", 0, 0, "observation"),
        Planted(CarriesOver, "determinism", "error", 0, 1, "observation"),
        Planted(HalfASnapshot, "snapshot", "error", 0, None, "observation"),
        Planted(LiveSnapshot, "snapshot", "error", 0, None, "env/x"),
        Planted(NoSnapshot, "snapshot", "error"),
        Planted(TerminatesAtItsHorizon, "limit", "error", 0, 3, "terminated"),
        Planted(RowsOutOfBounds, "honest-spaces", "error", 0, 8, "observation"),
        Planted(RowsDrawnWrong, "render", "error", None, None, "rgb_array"),
        Planted(RowsNoMask, "masks", "error", 0, 4, "action_masks"),
    ]


PLANTED = _planted()
APART = [  # found by processes of their own only
    Planted(HashOrder, "fresh-process", "error", 0, 1, "observation"),
    Planted(Hangs, "hangs", "error", 0, 5, "step"),
    Planted(EndsTheProcess, "raises", "error", 0, 5, None),
]
