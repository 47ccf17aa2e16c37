"""Write the golden policy of the current schema: `python -m tests.core.golden_policy NAME`.

Run once a schema, when it is made. The files that are there must load for ever, so they are
never written again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO

from palestra.policy import Normalisation
from palestra.policy_files import read_policy, save_policy


class Blank(gym.Env):
    observation_space = spaces.Box(-3.0, 3.0, (3,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}


def write(name: str) -> None:
    folder = Path(__file__).parent / "data"
    algorithm = PPO("MlpPolicy", Blank(), seed=0, device="cpu", policy_kwargs={"net_arch": [8, 8]})
    with torch.no_grad():
        algorithm.policy.action_net.weight.normal_(generator=torch.Generator().manual_seed(0))
    mean, variance = np.array([0.5, -0.5, 0.0]), np.array([1.0, 2.0, 0.5])
    normalisation = Normalisation({"": mean}, {"": variance}, epsilon=1e-8, limit=5.0)
    save_policy(algorithm, folder / f"{name}.zip", normalisation)
    x = np.linspace(-3, 3, 24).reshape(8, 3).astype(np.float32)
    actions, _ = read_policy(folder / f"{name}.zip").predict(x)
    np.save(folder / f"{name}-actions.npy", actions)


if __name__ == "__main__":
    write(sys.argv[1])
