"""CartPole, written once: the toy that the speed of the views is measured with.

Barto, Sutton, Anderson, "Neuronlike adaptive elements that can solve difficult learning control
problems", IEEE Trans. SMC 13 (1983); Euler integration, constants and limits as in Gymnasium's
`CartPole-v1`. The starting state is uniform on +-0.05 in each coordinate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from palestra.batch import BatchEnv, Mask, Options, Step
from palestra.kernels import kernel
from palestra.spaces import Array, Tree
from palestra.streams import Streams, uniform

GRAVITY = 9.8  # m/s^2
MASS_POLE = 0.1  # kg
TOTAL_MASS = 1.1  # kg, cart and pole
HALF_LENGTH = 0.5  # m, from the hinge to the centre of the pole
POLE_MOMENT = MASS_POLE * HALF_LENGTH
FORCE = 10.0  # N
TIME_STEP = 0.02  # s
X_LIMIT = 2.4  # m
ANGLE_LIMIT = 12 * 2 * math.pi / 360  # rad
START = 0.05
HORIZON = 500


@kernel
def push(force, x, x_dot, theta, theta_dot):  # type: ignore[no-untyped-def]
    """State of one cart after one Euler step under a force in newtons."""
    sin, cos = math.sin(theta), math.cos(theta)
    temp = (force + POLE_MOMENT * theta_dot * theta_dot * sin) / TOTAL_MASS
    theta_acc = (GRAVITY * sin - cos * temp) / (
        HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * cos * cos / TOTAL_MASS)
    )
    x_acc = temp - POLE_MOMENT * theta_acc * cos / TOTAL_MASS
    return (
        x + TIME_STEP * x_dot,
        x_dot + TIME_STEP * x_acc,
        theta + TIME_STEP * theta_dot,
        theta_dot + TIME_STEP * theta_acc,
    )


@kernel
def fallen(x, theta):  # type: ignore[no-untyped-def]
    return x < -X_LIMIT or x > X_LIMIT or theta < -ANGLE_LIMIT or theta > ANGLE_LIMIT


@kernel(allocates=False)
def start(rows, key, episode, state):  # type: ignore[no-untyped-def]
    for row in range(rows.shape[0]):
        if rows[row]:
            for part in range(4):
                u = uniform(key[row], episode[row], np.uint32(0), part)
                state[row, part] = START * (2.0 * u - 1.0)


@kernel(allocates=False)
def advance_rows(action, live, state, reward, terminated):  # type: ignore[no-untyped-def]
    for row in range(live.shape[0]):
        if live[row]:
            force = FORCE if action[row] == 1 else -FORCE
            x, x_dot, theta, theta_dot = push(
                force, state[row, 0], state[row, 1], state[row, 2], state[row, 3]
            )
            state[row, 0], state[row, 1], state[row, 2], state[row, 3] = x, x_dot, theta, theta_dot
            reward[row] = 1.0
            terminated[row] = fallen(x, theta)


@kernel(allocates=False)
def observe_rows(rows, state, out):  # type: ignore[no-untyped-def]
    for row in range(rows.shape[0]):
        if rows[row]:
            for part in range(4):
                out[row, part] = state[row, part]


@kernel(allocates=False)
def advance_forces(force, live, state, reward, terminated):  # type: ignore[no-untyped-def]
    for row in range(live.shape[0]):
        if live[row]:
            x, x_dot, theta, theta_dot = push(
                FORCE * force[row, 0], state[row, 0], state[row, 1], state[row, 2], state[row, 3]
            )
            state[row, 0], state[row, 1], state[row, 2], state[row, 3] = x, x_dot, theta, theta_dot
            reward[row] = 1.0
            terminated[row] = fallen(x, theta)


class CartPole(BatchEnv):
    """CartPole with two actions: push left (0) or right (1) with 10 N."""

    def __init__(self, rows: int, *, horizon: int | None = HORIZON) -> None:
        super().__init__(rows, horizon=horizon)
        high = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.state = np.zeros((rows, 4))

    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        start(rows, streams.dynamics, streams.episode, self.state)

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        advance_rows(actions, live, self.state, step.reward, step.terminated)

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        if rows is None:
            out[...] = self.state
        else:
            observe_rows(rows, self.state, out)

    def snapshot(self, rows: Mask) -> dict[str, Array]:
        return {"state": self.state[rows]}

    def restore(self, state: dict[str, Array], rows: Mask) -> None:
        self.state[rows] = state["state"]


class CartPoleForce(CartPole):
    """CartPole with a force in [-1, 1], in units of 10 N."""

    def __init__(self, rows: int, *, horizon: int | None = HORIZON) -> None:
        super().__init__(rows, horizon=horizon)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        advance_forces(actions, live, self.state, step.reward, step.terminated)


@kernel(allocates=False)
def bare_step(action, key, episode, stride, step, state, out, reward, terminated, truncated):  # type: ignore[no-untyped-def]
    """The same arithmetic as one loop, with nothing around it: the hardware's reference.

    A row that ended begins its next episode instead of stepping, as in NEXT_STEP.
    """
    for row in range(action.shape[0]):
        if terminated[row] or truncated[row]:
            episode[row] += stride
            step[row] = 0
            for part in range(4):
                u = uniform(key[row], episode[row], np.uint32(0), part)
                state[row, part] = START * (2.0 * u - 1.0)
            reward[row] = 0.0
            terminated[row] = truncated[row] = False
        else:
            step[row] += np.uint32(1)
            force = FORCE if action[row] == 1 else -FORCE
            x, x_dot, theta, theta_dot = push(
                force, state[row, 0], state[row, 1], state[row, 2], state[row, 3]
            )
            state[row, 0], state[row, 1], state[row, 2], state[row, 3] = x, x_dot, theta, theta_dot
            reward[row] = 1.0
            terminated[row] = fallen(x, theta)
            truncated[row] = step[row] >= HORIZON
        for part in range(4):
            out[row, part] = state[row, part]


class BareLoop:
    """`bare_step` over arrays of its own; steps are counted, nothing is checked or copied."""

    def __init__(self, rows: int, key: Array) -> None:
        self.key = key
        self.episode = np.arange(rows, dtype=np.uint64)
        self.stride = np.uint64(rows)
        self.clock = np.zeros(rows, np.uint32)
        self.state = np.zeros((rows, 4))
        self.out = np.zeros((rows, 4), np.float32)
        self.reward = np.zeros(rows)
        self.terminated = np.zeros(rows, np.bool_)
        self.truncated = np.zeros(rows, np.bool_)
        start(np.ones(rows, np.bool_), key, self.episode, self.state)

    def step(self, actions: Array) -> None:
        bare_step(
            actions,
            self.key,
            self.episode,
            self.stride,
            self.clock,
            self.state,
            self.out,
            self.reward,
            self.terminated,
            self.truncated,
        )
