"""What ships with an environment, measured: a page with table and learning curves, and the trained
policy. Everything on the page is written by the runs that `palestra results ENV` makes.
"""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palestra import __version__
from palestra.config import build, load_config
from palestra.disk import write_atomic
from palestra.figures import learning_curve, static_picture
from palestra.machine import machine
from palestra.policy_files import save_policy
from palestra.registry import Anchors, UnknownName, anchors_of, kebab, resolve
from palestra.rollout import evaluate
from palestra.shipped import CARD, Shelf, shelf_of
from palestra.stats import Interval, runs_mean
from palestra.train import TrainConfig, Training, train

from .measure import classical_policies


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        environment: a catalogued environment with anchors.
        runs: training runs of each tuned algorithm.
        training_seed: of the first; the others follow.
        episodes: held-out episodes of every score.
        seed: whose episodes.
    """

    environment: str
    runs: int = 5
    training_seed: int = 10
    episodes: int = 1024
    seed: int = 2025

    @property
    def command(self) -> str:
        """The command line that runs it."""
        return (
            f"palestra results {self.environment} --runs {self.runs} "
            f"--training-seed {self.training_seed} --episodes {self.episodes} --seed {self.seed}"
        )


def write_results(plan: Plan, pages: Path, work: Path, *, progress: bool = False) -> dict[str, Any]:
    """Train, evaluate, and write page, picture, numbers and the trained policy.

    Args:
        plan: what is run.
        pages: the folder of the page, `<environment>.md`, with `.json` and `.svg` beside it.
        work: the folder of the runs; the same call goes on there.
        progress: show progress bars.

    Returns:
        The numbers, as stored.

    Raises:
        UnknownName: the environment is not of the catalogue, or has no anchors.
        FileNotFoundError: it ships no tuned options.
    """
    target = resolve(plan.environment)
    anchors = anchors_of(target.entry) if target.entry else None
    if target.entry is None or anchors is None:
        raise UnknownName(f"target: {target.name} has no anchors; `palestra anchors` measures them")
    shelf = shelf_of(target)
    if not shelf.tuned():
        raise FileNotFoundError(f"{target.name} ships no tuned options to train with")
    trained = {
        algorithm: [
            train(
                config, work / f"{kebab(target.name)}-{algorithm}-{config.seed}", progress=progress
            )
            for config in _trainings(plan, file)
        ]
        for algorithm, file in shelf.tuned().items()
    }

    def score(policy: str | Path) -> Interval:
        played = evaluate(policy, target, episodes=plan.episodes, seed=plan.seed, progress=progress)
        return played.mean(anchors.metric)

    rows = [
        {"policy": name, "kind": "classical", **asdict(score(name))}
        for name in ("random", *classical_policies(target.entry))
    ]
    learned = {}
    for algorithm, runs in trained.items():
        scores = [score(training.folder) for training in runs]
        seeds = range(plan.training_seed, plan.training_seed + plan.runs)
        learned[algorithm] = [
            {"seed": seed, **asdict(one)} for seed, one in zip(seeds, scores, strict=True)
        ]
        mean = runs_mean([one.estimate for one in scores])
        name = f"{algorithm}, {plan.runs} training runs"
        rows.append({"policy": name, "kind": "learned", **asdict(mean)})
    algorithm, number = _best(trained)
    shipped = _ship(
        plan, shelf, trained[algorithm][number], learned[algorithm][number], anchors, algorithm
    )
    document = {
        "environment": target.entry.id,
        "metric": anchors.metric,
        "direction": anchors.direction,
        "bound": anchors.bound,
        "bound_name": anchors.bound_name,
        "plan": asdict(plan),
        "command": plan.command,
        "shipped": {"algorithm": algorithm, "seed": shipped["training_seed"]},
        "date": shipped["date"],
        "palestra": __version__,
        "processor": machine()["cpu"],
        "rows": rows,
        "learned": learned,
        "curves": {name: [run.curve for run in runs] for name, runs in trained.items()},
    }
    name = kebab(target.name)
    pages.mkdir(parents=True, exist_ok=True)
    write_atomic(pages / f"{name}.json", (json.dumps(document, indent=1) + "\n").encode())
    write_atomic(pages / f"{name}.svg", _picture(document))
    write_atomic(pages / f"{name}.md", page(document).encode())
    return document


def _trainings(plan: Plan, file: Path) -> Iterator[TrainConfig]:
    for seed in range(plan.training_seed, plan.training_seed + plan.runs):
        options = {**load_config(file), "environment": plan.environment, "seed": seed}
        yield build(TrainConfig, options)


def _best(trained: dict[str, list[Training]]) -> tuple[str, int]:
    """The training run that did best on its own held-out episodes, which are not those scored."""
    marks = {
        (algorithm, number): max(point["mean"] for point in run.curve)
        for algorithm, runs in trained.items()
        for number, run in enumerate(runs)
    }
    return max(marks, key=lambda which: marks[which])


def _ship(
    plan: Plan,
    shelf: Shelf,
    training: Training,
    score: dict[str, Any],
    anchors: Anchors,
    algorithm: str,
) -> dict[str, Any]:
    """Put the policy of the best training run on the shelf, with its card."""
    assert shelf.folder is not None
    place = shelf.folder / "pretrained" / shelf.name
    shutil.rmtree(place, ignore_errors=True)
    save_policy(training.policy, place)
    card = {
        "algorithm": algorithm,
        "command": f"palestra train {plan.environment} --tuned --algorithm {algorithm} "
        f"--seed {score['seed']}",
        "chosen": f"the best of {plan.runs} training runs of each algorithm, by the held-out "
        "episodes of training; scored on other episodes",
        "training_seed": score["seed"],
        "steps": training.curve[-1]["steps"],
        "metric": anchors.metric,
        "score": {key: score[key] for key in ("estimate", "low", "high", "n", "rule")},
        "episodes": plan.episodes,
        "seed": plan.seed,
        "anchors": asdict(anchors),
        "normalised": anchors.normalised(score["estimate"]),
        "date": datetime.date.today().isoformat(),
        "palestra": __version__,
        "written_by": plan.command,
    }
    write_atomic(place / CARD, (json.dumps(card, indent=1) + "\n").encode())
    return card


def _picture(document: dict[str, Any]) -> bytes:
    curves = {
        name: [
            (np.array([p["steps"] for p in run]), np.array([p["mean"] for p in run]))
            for run in runs
        ]
        for name, runs in document["curves"].items()
    }
    figure = learning_curve(curves, y_label="return on held-out episodes").figure
    return static_picture(figure, "svg")


def page(document: dict[str, Any]) -> str:
    """The page of the numbers, in Markdown; the best score of the table is bold."""
    name = document["environment"].removeprefix("palestra/").rpartition("-v")[0]
    plan, metric = document["plan"], document["metric"]
    better = "higher" if document["direction"] == "max" else "lower"
    best = (max if better == "higher" else min)(row["estimate"] for row in document["rows"])
    lines = [
        f"# Results: {name}",
        "",
        f"`{metric}`, {better} is better, on {plan['episodes']} held-out episodes of seed "
        f"{plan['seed']}, the same for all. Written by",
        "",
        "<!-- not run: many minutes -->",
        "```console",
        f"$ {document['command']}",
        "```",
        "",
        f"on one {document['processor']}, {document['date']}, palestra {document['palestra']}.",
        "",
        f"| policy | {metric} | 95 % interval |",
        "|---|---|---|",
        *(_row(row["policy"], row, row["estimate"] == best) for row in document["rows"]),
    ]
    if document["bound"] is not None:
        where = f" (`{document['bound_name']}`)" if document["bound_name"] else ""
        lines.append(f"| bound{where}, as its anchors have it | {document['bound']:.4f} | |")
    lines += [
        "",
        "Intervals of classical policies are over episodes; that of a learner is over training "
        "runs, each of which counts once.",
        "",
        "## Training runs",
        "",
        f"![Return on held-out episodes during training]({_stem(document)}.svg)",
        "",
    ]
    for algorithm, runs in document["learned"].items():
        lines += [
            f"`{algorithm}`, with the options that ship with it (`palestra train "
            f"{plan['environment']} --tuned --algorithm {algorithm}`):",
            "",
            f"| training seed | {metric} | 95 % interval over episodes |",
            "|---|---|---|",
            *(_row(str(run["seed"]), run) for run in runs),
            "",
        ]
    shipped = document["shipped"]
    lines += [
        f"The policy of `{shipped['algorithm']}`, seed {shipped['seed']}, ships as `pretrained`: "
        "the best of these by the held-out episodes of training, not by the ones scored here.",
        "",
    ]
    return "\n".join(lines)


def _stem(document: dict[str, Any]) -> str:
    return kebab(document["environment"].removeprefix("palestra/").rpartition("-v")[0])


def _row(name: str, score: dict[str, Any], best: bool = False) -> str:
    cells: Sequence[str] = (name, f"{score['estimate']:.4f}", span(score))
    if best:
        cells = [f"**{cell}**" for cell in cells]
    return f"| {' | '.join(cells)} |"


def span(score: dict[str, Any]) -> str:
    """The interval of a score, or the rule why there is none."""
    if score["low"] is None:
        return str(score["rule"])
    return f"{score['low']:.4f} to {score['high']:.4f}"
