# %% [markdown]
# # Your own environment
# An environment is written once, for all rows, and gets every interface. This one is a water tank:
# keep its level at the mark while somebody draws water.

# %%
import numpy as np
from gymnasium import spaces

import palestra


class Tank(palestra.BatchEnv):
    """Keep the level at one metre. Action: inflow, 0 to 1. Observation: level."""

    def __init__(self, rows, *, horizon=100):
        super().__init__(rows, horizon=horizon)
        self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Box(0.0, 2.0, (1,), np.float32)
        self.level = np.zeros(rows)

    def begin(self, rows, streams, options):
        for row in np.flatnonzero(rows):
            self.level[row] = streams.generator(row).uniform(0.5, 1.5)

    def advance(self, actions, live, streams, step):
        for row in np.flatnonzero(live):
            drawn = 0.05 * streams.generator(row).random()
            self.level[row] = np.clip(self.level[row] + 0.05 * actions[row, 0] - drawn, 0, 2)
            step.reward[row] = -abs(self.level[row] - 1)

    def observe(self, rows, streams, out):
        chosen = self.everyone if rows is None else rows
        out[chosen, 0] = self.level[chosen]

    def metrics(self):
        return {"level": self.level.copy()}

    def snapshot(self, rows):
        return {"level": self.level[rows].copy()}

    def restore(self, state, rows):
        self.level[rows] = state["level"]


# %% [markdown]
# `palestra check` looks for what makes environments unusable: it repeats itself, its rows stay
# apart, its spaces are honest, its copies are exact. In a notebook it runs in this process.

# %%
from palestra.check import check

report = check(Tank, isolate=False)
print(f"{len(report.errors)} errors, {len(report.warnings)} warnings")
for finding in report.warnings:
    print(finding.check, "-", finding.message)
assert not report.errors

# %% [markdown]
# Now everything works with it. A function of a batch of observations is a policy:


# %%
def thermostat(observation):
    return (observation < 1).astype(np.float32)


palestra.compare({"random": "random", "two-point": thermostat}, Tank, episodes=200, seed=1)

# %% [markdown]
# The loops over rows are plain Python. `@palestra.kernel` compiles them when speed matters:
# `examples/own_environment.py` does so.
