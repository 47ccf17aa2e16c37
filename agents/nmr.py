"""Three agents that count atoms together: align, relax, toggle, trained one after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palestra.envs.nmr.team import AGENTS
from palestra.policy import Policy
from palestra.policy_loading import load_policy
from palestra.train import TrainConfig, Training, train

PPO: dict[str, dict[str, Any]] = {
    role: {
        "n_steps": 32,
        "batch_size": 1024,
        "n_epochs": 8,
        "gamma": 1.0,  # steps differ in length
        "gae_lambda": 0.95,
        "learning_rate": "linear 1e-3",
        "policy_kwargs": {"net_arch": [64, 64], **spread},
    }
    for role, spread in (
        ("align", {"log_std_init": -0.5}),
        ("relax", {"log_std_init": -0.5}),
        ("toggle", {}),
    )
}
ORDER = ("align", "relax", "toggle")
PARTNERS = {
    "toggle": "palestra.controllers.nmr_team:Alternate",
    "relax": "palestra.controllers.nmr_team:FlipBack",
}


class ThreeAgentNMR:
    """The team of "Counting atoms faster": a policy for each role of `NMRTeam`.

    *Align* and *relax* learn first, each with the other role and the turns held; then they are
    frozen and *toggle* learns. Another round fine-tunes all three with the reward they share.

    Attributes:
        policies: by role, whatever `palestra.policy_loading.load_policy` takes.
        trainings: what each stage left, in order.
    """

    def __init__(self, policies: Mapping[str, Any]) -> None:
        self.policies = dict(policies)
        self.trainings: list[Training] = []

    @classmethod
    def train(
        cls,
        folder: str | os.PathLike[str],
        *,
        settings: Mapping[str, Any] | None = None,
        steps: Mapping[str, int] | int = 150_000,
        rounds: int = 1,
        rows: int = 64,
        seed: int = 0,
        partners: Mapping[str, str] | None = None,
        hyperparameters: Mapping[str, Mapping[str, Any]] | None = None,
        progress: bool = False,
    ) -> ThreeAgentNMR:
        """Train the roles in order, `rounds` times; a run folder for each stage.

        Args:
            folder: where the run folders go: `1-align`, `1-relax`, `1-toggle`, `2-align`, ...
            settings: keyword arguments of `NMRTeam`.
            steps: turns of the learning agent in each stage; by role, or for all.
            rounds: how often; 1 or more.
            rows: that advance together.
            seed: of the first stage; each stage takes the next.
            partners: policies that stand in for a role that has not learned yet; None is
                `PARTNERS`.
            hyperparameters: of PPO by role; None is `PPO`.
            progress: show a bar.

        Raises:
            ValueError: rounds below 1.
        """
        if rounds < 1:
            raise ValueError(f"rounds: got {rounds}, allowed 1 or more")
        settings = dict(settings or {})
        team: dict[str, Any] = dict(partners or PARTNERS)
        made: list[Training] = []
        for stage in range(rounds * len(ORDER)):
            role = ORDER[stage % len(ORDER)]
            others = {name: team[name] for name in AGENTS if name != role}
            length = steps if isinstance(steps, int) else steps[role]
            config = TrainConfig(
                environment="palestra.one_agent:OneAgent",
                settings={
                    "environment": "NMRTeam",
                    "agent": role,
                    "others": others,
                    "settings": settings,
                },
                algorithm="ppo",
                hyperparameters=dict((hyperparameters or PPO)[role]),
                steps=length,
                rows=rows,
                seed=seed + stage,
                evaluate_every=max(1, length // 8),
            )
            place = Path(folder) / f"{1 + stage // len(ORDER)}-{role}"
            made.append(train(config, place, progress=progress))
            team[role] = str(made[-1].folder)
        found = cls(team)
        found.trainings = made
        return found

    def team(self, env: Any) -> Policy:
        """The three as one policy for an environment.

        Raises:
            ValueError: a policy does not fit its role.
        """
        return load_policy(self.policies, env)
