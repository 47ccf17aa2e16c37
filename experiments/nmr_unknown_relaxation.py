"""Count atoms with relaxation unknown: adapt to what has been measured so far.

A fast measurement confounds abundance with relaxation; a slow one waits for the longest T1 that
there may be. In between, T1 and T2 are estimated along with the abundance, and each shot is chosen
by what the records so far tell. All figures here are Monte Carlo: records with noise, fitted, the
measurement ended by the fit's own error bar, and the estimates held against the truth.

A second part asks for less: T1 and T2 known to 5 %. There a list of shots is found with the Fisher
matrix, and then played with noise like the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from palestra.agents.nmr import PPO as TEAM_PPO
from palestra.agents.nmr import ThreeAgentNMR
from palestra.claims import Claim, Quantity
from palestra.config import ConfigError
from palestra.controllers.nmr_shots import Replay
from palestra.envs.nmr.sample import load_sample
from palestra.figures import distributions, learning_curve
from palestra.machine import machine
from palestra.progress import progress_bar
from palestra.registry import resolve
from palestra.report import Report
from palestra.rollout import Evaluation, evaluate
from palestra.spaces import Array
from palestra.stats import episodes_mean
from palestra.streams import check_seed
from palestra.train import TrainConfig, Training, train

from .experiment import Experiment, Findings
from .measure import compile_kernels
from .nmr_abundance import geometric, log_mean, median_run, training_curve
from .nmr_protocol import played_once

TIME, OVER = "measurement_time", "time_over_bound"
WORST, RULE = "CPMG for the worst case", "Adaptive CPMG"
CLASSICAL = {WORST: "cpmg-worst-case", RULE: "adaptive-cpmg"}
PUBLISHED_SAMPLE = "unknown"
NEARLY = 0.05  # relative standard deviation of T1 and T2 in the second part
MOST_RMSE, MOST_BIAS = 0.055, 0.01

PARTNERS = {
    "toggle": "palestra.controllers.nmr_team:Alternate",
    "relax": "palestra.controllers.nmr_team:Patience",
}
PPO: dict[str, Any] = {
    "n_steps": 32,
    "batch_size": 1024,
    "n_epochs": 8,
    "gamma": 1.0,
    "gae_lambda": 0.95,
    "learning_rate": "linear 1e-3",
    "policy_kwargs": {"net_arch": [64, 64], "log_std_init": -0.7},
}


@dataclass(frozen=True)
class NMRUnknownRelaxationExperiment(Experiment):
    """Options of `nmr-unknown-relaxation`.

    Attributes:
        sample: a preset or the path of a sample file; its prior is what is known of T1 and T2.
        nearly_known: the sample of the second part, whose T1 and T2 are known to 5 %.
        runs: training runs of the single agent, with seeds seed, seed + 1, ...
        steps: shots that it learns from.
        team_steps: turns that each role of the team learns from; empty leaves the team out.
        nearly_steps: shots of the training of the second part.
        rows: rows that advance together in training.
        seed: of training.
        episodes: held-out samples of the table.
        evaluation_seed: whose episodes.
    """

    name: ClassVar[str] = "nmr-unknown-relaxation"
    summary: ClassVar[str] = "time to count atoms when nobody knows how fast the spins relax"
    smoke: ClassVar[Mapping[str, Any]] = {
        "runs": 1,
        "steps": 4_000,
        "team_steps": {},
        "nearly_steps": 20_000,
        "episodes": 32,
    }

    sample: str = PUBLISHED_SAMPLE
    nearly_known: str = "oil"
    runs: int = 3
    steps: int = 200_000
    team_steps: dict[str, int] = field(
        default_factory=lambda: {"align": 60_000, "relax": 80_000, "toggle": 60_000}
    )
    nearly_steps: int = 300_000
    rows: int = 64
    seed: int = 0
    episodes: int = 512
    evaluation_seed: int = 2025

    def __post_init__(self) -> None:
        for name in ("runs", "steps", "nearly_steps", "rows", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: got {getattr(self, name)}, allowed 1 or more")
        if self.team_steps and set(self.team_steps) != set(TEAM_PPO):
            raise ConfigError(
                f"team_steps: got {self.team_steps}, allowed {{}} or one for each of "
                f"{', '.join(TEAM_PPO)}"
            )
        check_seed(self.evaluation_seed, "evaluation_seed")
        if 0 <= self.evaluation_seed - self.seed < self.runs + 3:
            raise ConfigError(
                f"evaluation_seed: got {self.evaluation_seed}, a seed of training; take another"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of the environments of the first part."""
        return {"sample": self.sample, "information": "marginal", "observation": "measured"}

    @property
    def nearly(self) -> dict[str, Any]:
        """Keyword arguments of the second part, but for the observation."""
        sample = load_sample(self.nearly_known)
        task = dataclasses.replace(sample.task, log_T1_sd=NEARLY, log_T2_sd=NEARLY)
        known = dataclasses.replace(sample, task=task)
        return {"sample": dataclasses.asdict(known), "information": "marginal", "horizon": 128}

    def run(self, folder: Path, *, progress: bool) -> Findings:
        """Train, evaluate everything on the same samples, draw the page."""
        with progress_bar("compiling kernels", 1, progress) as advance:
            compile_kernels("NMRAbundance")
            advance(1)
        singles = [
            train(
                self._training(self.settings, self.steps, self.seed + run),
                folder / f"training-{run}",
                progress=progress,
            )
            for run in range(self.runs)
        ]
        played = {
            name: self._evaluate(folder, name, policy, self.settings, progress)
            for name, policy in CLASSICAL.items()
        }
        for run, training in enumerate(singles):
            name = f"PPO, seed {self.seed + run}"
            played[name] = self._evaluate(
                folder, name, str(training.folder), self.settings, progress
            )
        if self.team_steps:
            team = ThreeAgentNMR.train(
                folder / "team",
                settings=self.settings,
                steps=self.team_steps,
                rows=self.rows,
                seed=self.seed,
                partners=PARTNERS,
                progress=progress,
            )
            played["three agents"] = self._evaluate(
                folder, "three agents", team.policies, self.settings, progress, "NMRTeam"
            )
        nearly = self._nearly_known(folder, progress)
        return self._findings(played, nearly, singles)

    def _training(self, settings: dict[str, Any], steps: int, seed: int) -> TrainConfig:
        return TrainConfig(
            environment="NMRAbundance",
            settings=settings,
            algorithm="ppo",
            hyperparameters=dict(PPO),
            steps=steps,
            rows=self.rows,
            seed=seed,
            evaluate_every=max(1, steps // 8),
            evaluation_episodes=64,
        )

    def _evaluate(
        self,
        folder: Path,
        name: str,
        policy: Any,
        settings: Mapping[str, Any],
        progress: bool,
        env: str = "NMRAbundance",
    ) -> Evaluation:
        return evaluate(
            policy,
            env,
            episodes=self.episodes,
            seed=self.evaluation_seed,
            settings=settings,
            run=folder / "evaluations" / name.replace(", ", "-").replace(" ", "-"),
            name=name,
            progress=progress,
        )

    def _nearly_known(self, folder: Path, progress: bool) -> dict[str, Evaluation]:
        """The second part: CPMG + 5 T1, and a list of shots found with the Fisher matrix."""
        oracle = {**self.nearly, "observation": "oracle"}
        noisy = {**self.nearly, "observation": "measured"}
        training = train(
            self._training(oracle, self.nearly_steps, self.seed),
            folder / "training-nearly-known",
            progress=progress,
        )
        shots = played_once(str(training.folder), oracle, self.evaluation_seed).shots(0)
        found = Replay(resolve("NMRAbundance").make(1, **noisy), shots=shots)
        policies: dict[str, Any] = {"CPMG + 5 T1": "cpmg-5t1", "PPO's list of shots": found}
        return {
            name: evaluate(
                policy,
                "NMRAbundance",
                episodes=self.episodes,
                seed=self.evaluation_seed,
                settings=noisy,
                name=name,
                progress=progress,
            )
            for name, policy in policies.items()
        }

    # --------------------------------------------------------------------------------- findings

    def _findings(
        self,
        played: dict[str, Evaluation],
        nearly: dict[str, Evaluation],
        singles: list[Training],
    ) -> Findings:
        rows = [_row(name, e, played[WORST]) for name, e in played.items()]
        second = [_row(name, e, nearly["CPMG + 5 T1"]) for name, e in nearly.items()]
        over = {name: e.column(OVER) for name, e in played.items()}
        single = median_run([n for n in played if n.startswith("PPO")], over)
        claims = self._claims(played, nearly, single)
        page = self._page(played, rows, second, claims, single, singles)
        return Findings(COLUMNS, [*rows, *second], claims, page)

    def _claims(
        self, played: dict[str, Evaluation], nearly: dict[str, Evaluation], single: str
    ) -> list[Claim]:
        published = self.sample == PUBLISHED_SAMPLE and self.steps >= 100_000
        time = {name: math.exp(log_mean(e.column(TIME))) for name, e in played.items()}
        short = {name: math.exp(log_mean(e.column(TIME))) for name, e in nearly.items()}
        list_of_shots = nearly["PPO's list of shots"]
        efficiency = max(
            float(e.column("efficiency").max()) for e in (*played.values(), *nearly.values())
        )
        return [
            Claim(
                f"the rule takes so many times as long as the learned policy ({single})",
                time[RULE] / time[single],
                1.0,
                ">=",
                applicable=published,
            ),
            Claim(
                "the worst case takes so many times as long as the learned policy",
                time[WORST] / time[single],
                1.6,
                ">=",
                applicable=published,
            ),
            Claim(
                "its root-mean-square error",
                _rmse(played[single]),
                MOST_RMSE,
                "<=",
                applicable=published,
            ),
            Claim(
                "its bias, absolute",
                abs(_bias(played[single]).value),
                MOST_BIAS,
                "<=",
                applicable=published,
            ),
            Claim(
                f"T1 and T2 known to {100 * NEARLY:g} %: CPMG + 5 T1 takes so many times as long",
                short["CPMG + 5 T1"] / short["PPO's list of shots"],
                2.0,
                ">=",
                applicable=published,
            ),
            Claim(
                "the root-mean-square error there",
                _rmse(list_of_shots),
                MOST_RMSE,
                "<=",
                applicable=published,
            ),
            Claim("largest efficiency of any episode", efficiency, 1.0, "<="),
        ]

    def _page(
        self,
        played: dict[str, Evaluation],
        rows: list[list[Any]],
        second: list[list[Any]],
        claims: list[Claim],
        single: str,
        singles: list[Training],
    ) -> Report:
        page = Report("nmr-unknown-relaxation", subtitle=f"{self.summary}; sample {self.sample}")
        mean = {name: Quantity.of(e.mean(TIME), "s") for name, e in played.items()}
        bound = float(played[RULE].column("time_bound").mean())
        page.headline(
            [
                ("your protocol", mean[WORST], WORST),
                ("this one", mean[single], single),
                ("the limit", Quantity(bound, None, "s"), "if T1 and T2 were known"),
            ]
        )
        page.text(__doc__ or "")
        page.table(
            f"{self.episodes} held-out samples (seed {self.evaluation_seed}), the same for all",
            COLUMNS,
            rows,
            note="Times are geometric means over samples. Error and bias are of the estimates that "
            "ended each measurement, against the truth.",
        )
        page.table(f"{self.nearly_known}, T1 and T2 known to {100 * NEARLY:g} %", COLUMNS, second)
        page.claims(claims)
        page.section("Learning")
        page.plot(
            "Return on evaluation episodes",
            *learning_curve({"PPO": [training_curve(t) for t in singles]}, y_label="return"),
        )
        page.section("Samples")
        page.plot(
            "Time of every held-out sample",
            *distributions({n: e.column(TIME) for n, e in played.items()}, x_label="seconds"),
        )
        page.section("Are the error bars honest?")
        scaled = {
            name: np.log(e.column("abundance")) / e.column("predicted_error")
            for name, e in played.items()
        }
        page.plot(
            "Error of ln A over its predicted standard deviation: honest ones have spread 1. "
            + "; ".join(f"{n}: {v.std(ddof=1):.2f}" for n, v in scaled.items()),
            *distributions(scaled, x_label="error / predicted standard deviation"),
        )
        page.facts({"options": str(self), **machine()})
        return page


COLUMNS = ("method", "time", "against the first", "RMS error", "bias", "predicted", "targets met")


def _row(name: str, evaluation: Evaluation, first: Evaluation) -> list[Any]:
    time, reference = (math.exp(log_mean(e.column(TIME))) for e in (evaluation, first))
    seconds = geometric(evaluation.column(TIME))
    return [
        name,
        Quantity(seconds.value, seconds.interval, "s"),
        f"{reference / time:.2f} x as fast",
        f"{100 * _rmse(evaluation):.2f} %",
        Quantity(100 * _bias(evaluation).value, _percent(_bias(evaluation).interval), "%"),
        f"{100 * evaluation.column('predicted_error').mean():.2f} %",
        f"{100 * evaluation.column('target_met').mean():.0f} %",
    ]


def _errors(evaluation: Evaluation) -> Array:
    return np.asarray(evaluation.column("abundance") - 1.0)


def _rmse(evaluation: Evaluation) -> float:
    return float(np.sqrt((_errors(evaluation) ** 2).mean()))


def _bias(evaluation: Evaluation) -> Quantity:
    return Quantity.of(episodes_mean(_errors(evaluation)))


def _percent(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (100 * interval[0], 100 * interval[1])
