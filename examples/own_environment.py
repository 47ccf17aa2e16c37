"""A room with a heater: a complete environment."""

import numpy as np
from gymnasium import spaces

from palestra import BatchEnv, kernel
from palestra.streams import normal, uniform

OUTSIDE, WANTED, FUSE = 5.0, 20.0, 30.0  # degrees Celsius
DRAW_START, DRAW_DRAUGHT = 0, 1  # a number for each random draw of a step


@kernel
def warm_up(rows, key, episode, T, energy):
    for row in range(rows.size):
        if rows[row]:
            T[row] = 10.0 + 8.0 * uniform(key[row], episode[row], 0, DRAW_START)
            energy[row] = 0.0


@kernel
def heat(power, live, key, episode, step, T, energy, reward, terminated):
    """One minute: a fiftieth of the excess is lost, the heater adds up to 0.6."""
    for row in range(live.size):
        if live[row]:
            noise = normal(key[row], episode[row], step[row], DRAW_DRAUGHT)
            draught = 0.1 * noise
            T[row] += 0.02 * (OUTSIDE - T[row]) + 0.6 * power[row, 0] + draught
            energy[row] += power[row, 0]
            reward[row] = -abs(T[row] - WANTED)
            terminated[row] = T[row] > FUSE


class Room(BatchEnv):
    """Keep a room at 20 degrees. Action: power, 0 to 1. Observation: degrees."""

    def __init__(self, rows, *, horizon=120):
        super().__init__(rows, horizon=horizon)
        self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Box(-50.0, 50.0, (1,), np.float32)
        self.T, self.energy = np.zeros(rows), np.zeros(rows)

    def begin(self, rows, streams, options):
        warm_up(rows, streams.dynamics, streams.episode, self.T, self.energy)

    def advance(self, actions, live, streams, step):
        s = streams
        heat(
            actions, live, s.dynamics, s.episode, s.step,
            self.T, self.energy, step.reward, step.terminated,
        )  # fmt: skip

    def observe(self, rows, streams, out):
        chosen = self.everyone if rows is None else rows
        out[chosen, 0] = np.clip(self.T[chosen], -50.0, 50.0)

    def metrics(self):
        return {"temperature": self.T.copy(), "energy": self.energy.copy()}

    def snapshot(self, rows):
        return {"T": self.T[rows].copy(), "energy": self.energy[rows].copy()}

    def restore(self, state, rows):
        self.T[rows], self.energy[rows] = state["T"], state["energy"]
