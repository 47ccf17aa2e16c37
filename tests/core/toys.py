"""Small environments whose every number a reader can predict; the tests of the core play them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from palestra.batch import BatchEnv, Mask, Step
from palestra.kernels import kernel
from palestra.spaces import Array, Tree, allocate, copy, leaves, put, take
from palestra.streams import Streams, normal, uniform


class Toy(BatchEnv):
    """A BatchEnv whose state is the arrays named in `state`, each (B, ...)."""

    state: ClassVar[tuple[str, ...]] = ()

    def snapshot(self, rows: Mask) -> dict[str, Array]:
        return {name: getattr(self, name)[rows].copy() for name in self.state}

    def restore(self, state: dict[str, Array], rows: Mask) -> None:
        for name in self.state:
            getattr(self, name)[rows] = state[name]


class Counter(Toy):
    """Observes its own step; every step pays 1; ends after `length` steps (None: never)."""

    state = ("count",)
    option_names = ("start",)

    def __init__(self, rows: int, *, horizon: int | None = None, length: int | None = 3) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Box(0.0, 1e6, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length = length
        self.count = np.zeros(rows, np.int64)

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        self.count[rows] = 0
        for row in np.flatnonzero(rows) if options is not None else ():
            self.count[row] = options[row].get("start", 0)

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        self.count[live] += 1
        step.reward[live] = 1.0
        if self.length is not None:
            step.terminated[live] = self.count[live] >= self.length

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        out[chosen, 0] = self.count[chosen]

    def metrics(self) -> dict[str, Array]:
        return {"count": self.count.copy()}

    def render(self, row: int) -> Array:
        return np.full((4, 6, 3), self.count[row], np.uint8)


class Blind(Counter):
    """A Counter that always observes 0, so that the value of a policy is one number."""

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        out[self.everyone if rows is None else rows] = 0.0


class CoinLength(Counter):
    """Lasts 1 or 100 steps, by a fair coin of the episode; the return is the length."""

    state = ("count", "lasts")

    def __init__(self, rows: int, *, horizon: int | None = None) -> None:
        super().__init__(rows, horizon=horizon)
        self.lasts = np.ones(rows, np.int64)

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        super().begin(rows, streams, options)
        for row in np.flatnonzero(rows):
            coin = uniform(streams.dynamics[row], streams.episode[row], np.uint32(0), 0)
            self.lasts[row] = 100 if coin < 0.5 else 1

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        self.count[live] += 1
        step.reward[live] = 1.0
        step.terminated[live] = self.count[live] >= self.lasts[live]


@kernel
def _perhaps_end(live, key, episode, step, chance, terminated):  # type: ignore[no-untyped-def]
    for row in range(live.shape[0]):
        if live[row]:
            terminated[row] = uniform(key[row], episode[row], step[row], 0) < chance


class GeometricLength(Counter):
    """Ends with probability 0.1 in each step; the return is the length (mean 10, variance 90)."""

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        self.count[live] += 1
        step.reward[live] = 1.0
        _perhaps_end(live, streams.dynamics, streams.episode, streams.step, 0.1, step.terminated)


@kernel
def _drift(live, key, episode, step, action, gain, x, reward, terminated):  # type: ignore[no-untyped-def]
    for row in range(live.shape[0]):
        if live[row]:
            x[row] += gain * action[row, 0] + 0.3 * normal(key[row], episode[row], step[row], 0)
            reward[row] = -x[row] * x[row]
            terminated[row] = abs(x[row]) > 2.0


class Drift(Toy):
    """A noisy integrator x' = x + gain u + 0.3 w with u in [-1, 1]; ends where |x| > 2.

    The observation is x with noise from the observation stream.
    """

    state = ("x", "crossings")

    def __init__(self, rows: int, *, horizon: int | None = 20, gain: float = 0.5) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.gain = gain
        self.x = np.zeros(rows)
        self.crossings = np.zeros(rows, np.int64)

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        for row in np.flatnonzero(rows):
            self.x[row] = streams.generator(row).uniform(-1.0, 1.0)
        self.crossings[rows] = 0

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        before = np.sign(self.x)
        _drift(
            live,
            streams.dynamics,
            streams.episode,
            streams.step,
            actions,
            self.gain,
            self.x,
            step.reward,
            step.terminated,
        )
        self.crossings[live] += (np.sign(self.x) != before)[live]

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        for row in range(self.rows) if rows is None else np.flatnonzero(rows):
            noise = normal(streams.observation[row], streams.episode[row], streams.step[row], 0)
            out[row] = self.x[row] + 0.1 * noise, streams.step[row]

    def metrics(self) -> dict[str, Array]:
        return {"distance": np.abs(self.x), "crossings": self.crossings.copy()}


class Breaking(Drift):
    """Drift that breaks after so many steps, where it has 8 rows, as in training."""

    def __init__(self, rows: int, *, last: int = 2, horizon: int | None = 7):
        super().__init__(rows, horizon=horizon)
        self.left = last

    def advance(self, actions, live, streams, step):
        self.left -= 1
        if self.rows == 8 and self.left < 0:
            raise RuntimeError("the motor is off")
        super().advance(actions, live, streams, step)


class Corridor(Toy):
    """Walk on cells 0..4 to cell 4: left, stay, right; walls are masked, and so is waiting twice.

    `start` is the first action of the Discrete space, to see that masks count from it. Everything
    is legal at the start: Gymnasium's checker steps with an action sampled before the reset.
    """

    state = ("cell", "waited")

    def __init__(self, rows: int, *, horizon: int | None = 12, start: int = 0) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Box(0.0, 4.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3, start=start)
        self.cell = np.zeros(rows, np.int64)
        self.waited = np.zeros(rows, np.bool_)

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        for row in np.flatnonzero(rows):
            self.cell[row] = streams.generator(row).integers(1, 4)
        self.waited[rows] = False

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        move = actions[live] - self.action_space.start - 1
        self.cell[live] += move
        self.waited[live] = move == 0
        assert ((self.cell >= 0) & (self.cell <= 4)).all(), "a masked action came through"
        step.reward[live] = -1.0
        step.terminated[live] = self.cell[live] == 4

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        out[chosen, 0] = self.cell[chosen]
        out[chosen, 1] = self.waited[chosen]

    def action_masks(self, out: Tree) -> None:
        out[:, 0] = self.cell > 0
        out[:, 1] = ~self.waited
        out[:, 2] = self.cell < 4

    def metrics(self) -> dict[str, Array]:
        return {"cell": self.cell.copy()}


class TwoLocks(Toy):
    """MultiDiscrete([3, 2]) with masks: each dial refuses the digit it was last set to.

    The observation is the digits plus 1; 0 is a dial that has not been set. Like `start`, the
    number `first` is where the digits of the action begin.
    """

    state = ("dials",)

    def __init__(self, rows: int, *, horizon: int | None = 10, first: int = 0) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.MultiDiscrete([4, 3])
        self.action_space = spaces.MultiDiscrete([3, 2], start=[first, first])
        self.first = first
        self.dials = np.zeros((rows, 2), np.int64)

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        self.dials[rows] = -1

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        digits = actions[live] - self.first
        assert (digits != self.dials[live]).all(), "a masked action came through"
        self.dials[live] = digits
        step.reward[live] = digits.sum(axis=1)

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        out[chosen] = self.dials[chosen] + 1

    def action_masks(self, out: Tree) -> None:
        out[:, :3] = self.dials[:, :1] != np.arange(3)
        out[:, 3:] = self.dials[:, 1:] != np.arange(2)


class ReachGoal(Toy):
    """Move a point in the unit square to a goal; reward -1 until closer than 0.1. HER-ready."""

    state = ("place", "goal")

    def __init__(self, rows: int, *, horizon: int | None = 10) -> None:
        super().__init__(rows, horizon=horizon)
        square = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            observation=square, achieved_goal=square, desired_goal=square
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.place = np.zeros((rows, 2))
        self.goal = np.zeros((rows, 2))

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        for row in np.flatnonzero(rows):
            self.place[row], self.goal[row] = streams.generator(row).random((2, 2))

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        self.place[live] = np.clip(self.place[live] + 0.2 * actions[live], 0.0, 1.0)
        achieved, desired = self.place.astype(np.float32), self.goal.astype(np.float32)
        step.reward[live] = self.compute_reward(achieved, desired)[live]

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        out["observation"][chosen] = self.place[chosen]
        out["achieved_goal"][chosen] = self.place[chosen]
        out["desired_goal"][chosen] = self.goal[chosen]

    def compute_reward(self, achieved: Array, desired: Array) -> Array:
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.1).astype(np.float64)


def _pieces() -> dict[str, spaces.Space[Any]]:
    return {
        "box": spaces.Box(-2.0, 3.0, (2, 3), np.float32),
        "discrete": spaces.Discrete(3, start=-1),
        "binary": spaces.MultiBinary(4),
        "many": spaces.MultiDiscrete([2, 5], start=[1, 0]),
        "pixels": spaces.Box(0, 255, (2, 2), np.uint8),
    }


ECHOED: dict[str, spaces.Space[Any]] = {
    **_pieces(),
    "dict": spaces.Dict(_pieces()),
    "tuple": spaces.Tuple(tuple(_pieces().values())),
    "nested": spaces.Dict(
        pair=spaces.Tuple(
            (spaces.Discrete(2), spaces.Dict(depth=spaces.Box(0.0, 1.0, (1,), np.float32)))
        ),
        bits=spaces.MultiBinary((2, 2)),
    ),
}


class Echo(Toy):
    """Observes the last action; actions and observations share one space, named by `kind`."""

    def __init__(self, rows: int, *, horizon: int | None = 5, kind: str = "nested") -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = self.action_space = ECHOED[kind]
        self.first = allocate(self.action_space, (rows,))
        self.heard = copy(self.first)

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        for row in np.flatnonzero(rows):
            rng = streams.generator(row)
            put(self.heard, row, legal_actions(self.action_space, rng.random, ()))

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        put(self.heard, live, take(actions, live))
        step.reward[live] = streams.step[live]

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        put(out, chosen, take(self.heard, chosen))

    def snapshot(self, rows: Mask) -> dict[str, Array]:
        return {path: leaf[rows].copy() for path, leaf in leaves(self.heard)}

    def restore(self, state: dict[str, Array], rows: Mask) -> None:
        for path, leaf in leaves(self.heard):
            leaf[rows] = state[path]


class Delivery(Toy):
    """Semi-Markov: a trip lasts a + 1 seconds and a random delay; reward is minus its duration."""

    state = ("trips",)

    def __init__(self, rows: int, *, horizon: int | None = None) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Discrete(4)
        self.action_space = spaces.Discrete(3)
        self.trips = np.zeros(rows, np.int64)

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        self.trips[rows] = 0

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        for row in np.flatnonzero(live):
            step.duration[row] = actions[row] + 1 + streams.generator(row).random()
        self.trips[live] += 1
        step.reward[live] = -step.duration[live]
        step.terminated[live] = self.trips[live] == 3

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        out[chosen] = self.trips[chosen]


class TakeTurns(Toy):
    """Three agents in turn take 1 to 3 stones from a pile; who takes the last one wins.

    An agent that holds five stones or more leaves with -1. Masks: no more than the pile holds;
    agents whose turn it is not may only "take 1" (which is ignored).
    """

    state = ("pile", "held", "gone", "turn")
    agents = ("red", "green", "blue")

    def __init__(self, rows: int, *, horizon: int | None = 30) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Box(0.0, 30.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.pile = np.zeros(rows, np.int64)
        self.held = np.zeros((rows, 3), np.int64)
        self.gone = np.zeros((rows, 3), np.bool_)
        self.turn = np.zeros(rows, np.int64)

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        for row in np.flatnonzero(rows):
            self.pile[row], self.turn[row] = streams.generator(row).integers([10, 0], [20, 3])
        self.held[rows] = 0
        self.gone[rows] = False

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        for row in np.flatnonzero(live):
            agent = self.turn[row]
            taken = actions[row, agent] + 1
            assert 1 <= taken <= self.pile[row], "a masked action came through"
            self.pile[row] -= taken
            self.held[row, agent] += taken
            if self.held[row, agent] >= 5:
                step.reward[row, agent] = -1.0
                self.gone[row, agent] = True
            if self.pile[row] == 0:
                step.reward[row, agent] = 10.0
                self.gone[row] = True
            step.terminated[row] = self.gone[row]
            for ahead in (1, 2, 3):
                following = (agent + ahead) % 3
                if not self.gone[row, following]:
                    self.turn[row] = following
                    break

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        for row in range(self.rows) if rows is None else np.flatnonzero(rows):
            out[row, :, 0] = self.pile[row]
            out[row, :, 1] = self.held[row]
            out[row, :, 2] = self.turn[row] == np.arange(3)

    def acting(self) -> Array:
        return self.turn[:, np.newaxis] == np.arange(3)

    def action_masks(self, out: Tree) -> None:
        out[...] = np.arange(3) == 0
        for row in range(self.rows):
            out[row, self.turn[row]] = np.arange(3) < max(self.pile[row], 1)

    def metrics(self) -> dict[str, Array]:
        return {"winner": np.where(self.pile == 0, self.turn, -1)}


class Swarm(Toy):
    """Three agents at once push themselves along a line; one that passes |x| = 1 leaves."""

    state = ("x",)
    agents = ("a", "b", "c")

    def __init__(self, rows: int, *, horizon: int | None = 15) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.x = np.zeros((rows, 3))

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        for row in np.flatnonzero(rows):
            self.x[row] = streams.generator(row).uniform(-0.5, 0.5, 3)

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        inside = live[:, np.newaxis] & (np.abs(self.x) <= 1.0)
        self.x[inside] += 0.3 * actions[..., 0][inside]
        step.reward[inside] = -np.abs(self.x[inside])
        step.terminated[live] = np.abs(self.x[live]) > 1.0

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        out[chosen, :, 0] = self.x[chosen]
        out[chosen, :, 1] = self.x[chosen].mean(axis=1, keepdims=True)


class Convoy(Toy):
    """A leader with a throttle and a follower with three gears: spaces keyed by the agents."""

    state = ("place",)
    agents = ("leader", "follower")

    def __init__(self, rows: int, *, horizon: int | None = 8) -> None:
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Dict(
            leader=spaces.Box(-100.0, 100.0, (1,), np.float32),
            follower=spaces.Dict(
                gap=spaces.Box(-100.0, 100.0, (1,), np.float32), near=spaces.Discrete(2)
            ),
        )
        self.action_space = spaces.Dict(
            leader=spaces.Box(-1.0, 1.0, (1,), np.float32), follower=spaces.Discrete(3)
        )
        self.place = np.zeros((rows, 2))

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        for row in np.flatnonzero(rows):
            self.place[row] = streams.generator(row).uniform([1.0, 0.0], [2.0, 1.0])

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        self.place[live, 0] += actions["leader"][live, 0]
        self.place[live, 1] += actions["follower"][live] - 1
        gap = self.place[live, 0] - self.place[live, 1]
        step.reward[live, 0] = actions["leader"][live, 0]
        step.reward[live, 1] = -np.abs(gap)
        step.terminated[live, :] = (np.abs(gap) > 4.0)[:, np.newaxis]

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        gap = self.place[chosen, 0] - self.place[chosen, 1]
        out["leader"][chosen, 0] = self.place[chosen, 0]
        out["follower"]["gap"][chosen, 0] = gap
        out["follower"]["near"][chosen] = np.abs(gap) < 1.0


class Duet(Toy):
    """Two agents with masks of different lengths; `short` leaves after two steps.

    Each may not repeat its last action. A `short` that has left may only play 1.
    """

    state = ("last", "count")
    agents = ("short", "long")

    def __init__(self, rows: int, *, horizon: int | None = None) -> None:
        super().__init__(rows, horizon=horizon)
        one = spaces.Box(0.0, 10.0, (2,), np.float32)
        self.observation_space = spaces.Dict(short=one, long=one)
        self.action_space = spaces.Dict(short=spaces.Discrete(2), long=spaces.Discrete(3))
        self.last = np.zeros((rows, 2), np.int64)
        self.count = np.zeros(rows, np.int64)

    def begin(self, rows: Mask, streams: Streams, options: Sequence[Any] | None) -> None:
        self.last[rows] = 0
        self.count[rows] = 0

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        self.count[live] += 1
        self.last[live, 0] = actions["short"][live]
        self.last[live, 1] = actions["long"][live]
        step.reward[live] = self.last[live]
        step.terminated[live, 0] = self.count[live] >= 2
        step.terminated[live, 1] = self.count[live] >= 5

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        chosen = self.everyone if rows is None else rows
        for place, agent in enumerate(self.agents):
            out[agent][chosen, 0] = self.last[chosen, place]
            out[agent][chosen, 1] = self.count[chosen]

    def action_masks(self, out: Tree) -> None:
        out["short"][...] = self.last[:, :1] != np.arange(2)
        out["short"][self.count >= 2] = [False, True]
        out["long"][...] = self.last[:, 1:] != np.arange(3)


class OneBuffer(gymnasium.Env[Array, int]):
    """A plain Gymnasium environment that hands out the one array it keeps writing into."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, lasts: int = 4, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode = render_mode
        self.lasts = lasts
        self.buffer = np.zeros(2, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.buffer[:] = 0.0, self.np_random.uniform(-1.0, 1.0)
        return self.buffer, {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.buffer += 1.0, self.np_random.normal() * (0.1 + 0.1 * action)
        self.buffer[1] = np.clip(self.buffer[1], -10.0, 10.0)
        over = bool(self.buffer[0] >= self.lasts)
        return self.buffer, float(self.buffer[1]), over, False, {"height": float(self.buffer[1])}

    def render(self) -> Array:
        return np.full((3, 5, 3), int(self.buffer[0]), np.uint8)


SINGLE: dict[str, tuple[type[BatchEnv], dict[str, Any]]] = {
    "Counter": (Counter, {}),
    "CoinLength": (CoinLength, {}),
    "GeometricLength": (GeometricLength, {"horizon": 60}),
    "Drift": (Drift, {}),
    "Corridor": (Corridor, {}),
    "CorridorFromMinusOne": (Corridor, {"start": -1}),
    "TwoLocks": (TwoLocks, {}),
    "TwoLocksFromFive": (TwoLocks, {"first": 5}),
    "ReachGoal": (ReachGoal, {}),
    "Delivery": (Delivery, {}),
    **{f"Echo-{kind}": (Echo, {"kind": kind}) for kind in ECHOED},
}
TEAMS: dict[str, tuple[type[BatchEnv], dict[str, Any]]] = {
    "TakeTurns": (TakeTurns, {}),
    "Swarm": (Swarm, {}),
    "Convoy": (Convoy, {}),
    "Duet": (Duet, {}),
}


def build(name: str, rows: int, **settings: Any) -> BatchEnv:
    """A toy by its name in SINGLE or TEAMS."""
    kind, fixed = (SINGLE | TEAMS)[name]
    return kind(rows, **(fixed | settings))


def legal_actions(space: spaces.Space[Any], random: Any, lead: tuple[int, ...]) -> Tree:
    """Actions of a space from `random(shape) -> [0, 1)`; an unbounded Box counts as [-1, 1]."""
    if isinstance(space, spaces.Dict):
        return {name: legal_actions(part, random, lead) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(legal_actions(part, random, lead) for part in space.spaces)
    u = random(lead + tuple(space.shape or ()))
    if isinstance(space, spaces.Box):
        low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
        if space.dtype.kind in "iu":
            return (low + np.floor(u * (high - low + 1.0))).astype(space.dtype)
        low, high = (np.where(np.isfinite(b), b, c) for b, c in ((space.low, -1), (space.high, 1)))
        return np.clip(low + u * (high - low), low, high).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return np.asarray(u < 0.5).astype(space.dtype)
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return (space.start + np.floor(u * count)).astype(space.dtype)
