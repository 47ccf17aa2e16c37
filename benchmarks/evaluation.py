"""Evaluating a Stable-Baselines3 policy: palestra's runner against `evaluate_policy`.

    python benchmarks/evaluation.py [--json PATH] [--rounds N]

The policy is PPO's default network (MLP, 64-64), trained briefly on CartPole. Both sides play
whole episodes with deterministic actions at equal rows; what counts is steps of those episodes
per CPU-second, the runner's set-up, its check of the fast path and its table included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from cartpole import CartPole
from measure import Contender, Line, arguments, interleave, ratio, report
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from palestra.rollout import evaluate
from palestra.views.sb3 import SB3View

EPISODES_A_ROW = 16
TRAINING_STEPS = 32_768


def trained() -> PPO:
    view = SB3View(CartPole(16))
    view.seed(0)
    return PPO("MlpPolicy", view, n_steps=128, seed=0, device="cpu").learn(TRAINING_STEPS)


def playing(name: str, play: Callable[[], int]) -> Contender:
    """A contender whose item is a step: `play` plays a fixed set of episodes, returns the steps.

    The number of steps differs a little between the two sides (other episodes), so each slice is
    scaled to the steps that it played.
    """
    usual = play()

    def take(count: int) -> float:
        started = time.process_time()
        steps = sum(play() for _ in range(count))
        return (time.process_time() - started) * usual * count / steps

    return Contender(name, take, usual)


def compare(rounds: int) -> Iterator[Line]:
    model = trained()
    bars = {(64, True): 10, (64, False): 3, (8, False): 1.6}
    for rows in (8, 64):
        episodes = EPISODES_A_ROW * rows
        dummy = make_vec_env("CartPole-v1", n_envs=rows, seed=0)

        def ours(fast: bool, episodes: int = episodes, rows: int = rows) -> int:
            table = evaluate(model, CartPole, episodes=episodes, seed=1, width=rows, fast=fast)
            return int(table.column("length").sum())

        def theirs(episodes: int = episodes, envs: object = dummy) -> int:
            _, lengths = evaluate_policy(
                model, envs, n_eval_episodes=episodes, return_episode_rewards=True
            )
            return sum(lengths)

        contenders = [
            playing("fast", lambda play=ours: play(True)),
            playing("predict", lambda play=ours: play(False)),
            playing("evaluate_policy", theirs),
        ]
        costs = interleave(contenders, rounds)
        for fast, path in ((True, "fast"), (False, "predict")):
            what = f"evaluate ({path} path) / evaluate_policy, {rows} rows"
            yield ratio(what, costs, path, "evaluate_policy", bar=bars.get((rows, fast)))


def main() -> None:
    torch.set_num_threads(1)
    given = arguments(__doc__).parse_args()
    lines = list(compare(given.rounds))
    report("Evaluation of an MLP policy on CartPole, steps per CPU-second", lines, given.json)


if __name__ == "__main__":
    main()
