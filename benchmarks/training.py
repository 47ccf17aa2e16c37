"""Stable-Baselines3's PPO on palestra's view of CartPole, against the same PPO on DummyVecEnv.

    python benchmarks/training.py [--json PATH] [--rounds N]

Both learners are built alike (MlpPolicy, batch 2048, 4 epochs, one torch thread, CPU). Two things
are compared per CPU-second: `collect_rollouts` alone, and `learn`, which adds the gradient steps
that no environment can make faster.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from cartpole import CartPole
from measure import Contender, Line, arguments, interleave, ratio, report
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from palestra.views.sb3 import SB3View

STEPS = {64: 64, 256: 32}  # steps a row in one rollout: 4096 and 8192 samples
BATCH = 2048
EPOCHS = 4


def learner(envs: Any, steps: int) -> PPO:
    """PPO that has begun to learn, so that all it needs is set up."""
    ppo = PPO(
        "MlpPolicy", envs, n_steps=steps, batch_size=BATCH, n_epochs=EPOCHS, seed=0, device="cpu"
    )
    ppo.learn(steps * envs.num_envs)
    return ppo


def collecting(name: str, ppo: PPO) -> Contender:
    callback = ppo._init_callback(None)

    def take(count: int) -> float:
        started = time.process_time()
        for _ in range(count):
            ppo.collect_rollouts(ppo.env, callback, ppo.rollout_buffer, ppo.n_steps)
        return time.process_time() - started

    return Contender(name, take, ppo.n_steps * ppo.n_envs)


def learning(name: str, ppo: PPO) -> Contender:
    def take(count: int) -> float:
        started = time.process_time()
        ppo.learn(count * ppo.n_steps * ppo.n_envs, reset_num_timesteps=False)
        return time.process_time() - started

    return Contender(name, take, ppo.n_steps * ppo.n_envs)


def native(rows: int) -> SB3View:
    view = SB3View(CartPole(rows))
    view.seed(0)
    return view


def compare(rounds: int) -> Iterator[Line]:
    bars = {("collect_rollouts", 64): 2.3, ("collect_rollouts", 256): 4.5, ("learn", 64): 1.4}
    for what, contender in (("collect_rollouts", collecting), ("learn", learning)):
        for rows, steps in STEPS.items():
            ours = contender("SB3 view", learner(native(rows), steps))
            dummy = make_vec_env("CartPole-v1", n_envs=rows, seed=0)
            theirs = contender("DummyVecEnv", learner(dummy, steps))
            costs = interleave([ours, theirs], rounds)
            label = f"{what}: SB3 view / DummyVecEnv, {rows} rows"
            yield ratio(label, costs, "SB3 view", "DummyVecEnv", bar=bars.get((what, rows)))


def main() -> None:
    torch.set_num_threads(1)
    given = arguments(__doc__).parse_args()
    lines = list(compare(given.rounds))
    report("PPO on CartPole, samples per CPU-second", lines, given.json)


if __name__ == "__main__":
    main()
