"""Runs beside each other: trainings by seed, evaluations by episode. Nothing is played.

Training runs of one configuration that differ in their seed are one learner; each run counts once.
How often a run was evaluated does not make it another learner.
Their curves are read on a common axis: the steps of all of them, as far as the shortest run goes,
with straight lines between the points of a run. Nothing is continued beyond its end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .claims import Quantity
from .registry import Anchors, anchors_of, is_registered, resolve
from .rollout import Comparison, Evaluation
from .saved import Saved, load
from .spaces import Array
from .stats import Interval, probability_of_improvement, runs_iqm, runs_mean

if TYPE_CHECKING:
    from .figures import Picture

CURVE = ("steps", "return_low", "return_high")  # columns of a curve that are no metric
OWN = ("seed", "machine", "files")  # keys of a training that do not make it another learner
LOOKED_AT = ("evaluate_every", "tensorboard")  # nor these, of the algorithms that have a name


@dataclass(frozen=True)
class Learner:
    """The runs of one configuration.

    Attributes:
        name: of the algorithm, and what tells it from the others.
        runs: the training runs, by seed.
        steps: the common axis (T,).
        curves: the metric of each run on it (runs, T).
    """

    name: str
    runs: Mapping[int, Saved]
    steps: Array
    curves: Array

    @property
    def finals(self) -> Array:
        """The metric of each run at the end of the common axis."""
        return self.curves[:, -1]

    @property
    def mean(self) -> Interval:
        """Mean over runs, by the rules of `palestra.stats.runs_mean`."""
        return runs_mean(self.finals)

    @property
    def iqm(self) -> Interval:
        """Interquartile mean over runs, by the rules of `palestra.stats.runs_iqm`."""
        return runs_iqm(self.finals)


@dataclass(frozen=True)
class TrainingComparison:
    """Learners on one environment; the first one is the reference.

    Attributes:
        environment: what they were trained on.
        metric: what is compared.
        learners: in the order in which their runs were given.
    """

    environment: str
    metric: str
    learners: Sequence[Learner]

    @property
    def reference(self) -> Learner:
        """The learner that the others are held against."""
        return self.learners[0]

    def better(self, learner: Learner) -> Interval:
        """Probability that a run of the reference has a lower value than one of the learner."""
        return probability_of_improvement(learner.finals, self.reference.finals)

    @property
    def anchors(self) -> Anchors | None:
        """Those of the environment, where they are about this metric."""
        if not is_registered(self.environment):  # of a run folder, code that it names is not run
            return None
        entry = resolve(self.environment).entry
        found = anchors_of(entry) if entry is not None else None
        return found if found is not None and found.metric == self.metric else None

    def columns(self) -> tuple[str, ...]:
        """Heads of `rows`."""
        shown = ["learner", "runs", "steps", f"{self.metric}, mean", "interquartile mean"]
        if self.anchors is not None:
            shown.append("normalised mean")
        if len(self.learners) > 1:
            shown.append("P(above the first)")
        return tuple(shown)

    def rows(self) -> list[list[Any]]:
        """One row a learner, for a table."""
        found = []
        for learner in self.learners:
            row = [
                learner.name, len(learner.runs), int(learner.steps[-1]),
                Quantity.of(learner.mean), Quantity.of(learner.iqm),
            ]  # fmt: skip
            if self.anchors is not None:
                row.append(Quantity(self.anchors.normalised(learner.mean.estimate)))
            if len(self.learners) > 1:
                same = learner is self.reference
                row.append(None if same else Quantity.of(self.better(learner)))
            found.append(row)
        return found

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        anchors = self.anchors
        return {
            "environment": self.environment,
            "metric": self.metric,
            "reference": self.reference.name,
            "learners": {
                learner.name: {
                    "runs": {str(seed): str(run.path) for seed, run in learner.runs.items()},
                    "finals": learner.finals.tolist(),
                    "mean": vars(learner.mean),
                    "iqm": vars(learner.iqm),
                    "normalised": anchors and anchors.normalised(learner.mean.estimate),
                    "better_than_reference": None
                    if learner is self.reference
                    else vars(self.better(learner)),
                    "steps": learner.steps.tolist(),
                    "curves": learner.curves.tolist(),
                }
                for learner in self.learners
            },
        }

    def picture(self) -> Picture:
        """Every run as a line, and the median of each learner."""
        from .figures import learning_curve

        return learning_curve(
            {
                learner.name: [(learner.steps, curve) for curve in learner.curves]
                for learner in self.learners
            },
            y_label=self.metric,
        )

    def _repr_html_(self) -> str:
        from .notebook import drawn, table_markup

        table = table_markup(f"{self.environment}: training runs", self.columns(), self.rows())
        return table + drawn(self.picture, "learning curves")


def compare_runs(
    folders: Sequence[str | os.PathLike[str]], metric: str = "return"
) -> TrainingComparison | Comparison:
    """Put finished or unfinished runs beside each other.

    Args:
        folders: run folders, all of trainings or all of evaluations; the first is the reference.
        metric: a column of the curves or of the episodes.

    Raises:
        ValueError: runs that cannot be compared: of several kinds, environments, seeds or numbers
            of episodes; one run given twice; a metric that one of them does not have.
        FileNotFoundError: not a run folder.
        CorruptFile: see `palestra.load`.
    """
    runs = [load(folder) for folder in folders]
    if not runs:
        raise ValueError("runs: got none, allowed one or more run folders")
    whole = [part for run in runs for part in (run.runs.values() if _is_group(run) else (run,))]
    places = [run.path.resolve() for run in whole]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"runs: {place} is given twice")
    kinds = {run.kind: run for run in whole}
    if len(kinds) > 1:
        said = ", ".join(f"{run.path} is a {kind}" for kind, run in kinds.items())
        raise ValueError(
            f"runs: {said}; a training run counts once whatever it is evaluated on, so training "
            "runs and evaluations are never compared. Evaluate the trained policies first"
        )
    (kind,) = kinds
    if kind == "training":
        return _trainings(whole, metric)
    if kind == "evaluation":
        return _evaluations(whole, metric)
    raise ValueError(f"runs: {whole[0].path} is a {kind}, allowed trainings or evaluations")


def _is_group(run: Saved) -> bool:
    return run.kind == "comparison"


def _trainings(runs: Sequence[Saved], metric: str) -> TrainingComparison:
    for key in ("environment", "settings"):
        _must_agree(runs, key)
    _must_agree(runs, "files", ("environment", "settings"))
    groups: dict[str, list[Saved]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_what_learns(run), sort_keys=True), []).append(run)
    curves = {id(run): _curve(run, metric) for run in runs}
    start = max(steps[0] for steps, _ in curves.values())
    end = min(steps[-1] for steps, _ in curves.values())
    if start > end:
        raise ValueError("runs: they have no steps in common")
    every = np.unique(np.concatenate([steps for steps, _ in curves.values()]))
    axis = every[(every >= start) & (every <= end)]
    learners = []
    for name, group in zip(_names(list(groups.values())), groups.values(), strict=True):
        seeds = [run.configuration["seed"] for run in group]
        for seed in seeds:
            if seeds.count(seed) > 1:
                raise ValueError(f"runs: two of {name} have the seed {seed}; they are one run")
        on_axis = np.stack([np.interp(axis, *curves[id(run)]) for run in group])
        learners.append(Learner(name, dict(zip(seeds, group, strict=True)), axis, on_axis))
    return TrainingComparison(runs[0].configuration["environment"], metric, learners)


def _curve(run: Saved, metric: str) -> tuple[Array, Array]:
    table = run.metrics
    if table.num_rows == 0:
        raise ValueError(f"{run.path}: has no point of a learning curve yet")
    known = [name for name in table.column_names if name not in CURVE]
    if metric not in known:
        raise ValueError(f"metric: {run.path} has no {metric!r}; it has {', '.join(known)}")
    values = table.column(metric).to_numpy(zero_copy_only=False).astype(np.float64)
    there = np.isfinite(values)
    if not there.any():
        raise ValueError(f"metric: {metric!r} of {run.path} is missing at every step")
    return table.column("steps").to_numpy()[there].astype(np.float64), values[there]


def _names(groups: Sequence[Sequence[Saved]]) -> list[str]:
    """The algorithm, and in brackets the options in which learners of one algorithm differ."""
    flat = [_flat(_what_learns(group[0])) for group in groups]
    names = [str(one["algorithm"]).rpartition(":")[2] for one in flat]
    labels = []
    for name, one in zip(names, flat, strict=True):
        rivals = [other for other, its in zip(flat, names, strict=True) if its == name]
        keys = sorted({key for rival in rivals for key in rival})
        differing = [key for key in keys if any(r.get(key) != one.get(key) for r in rivals)]
        said = ", ".join(f"{key.rpartition('.')[2]} {one.get(key)}" for key in differing)
        labels.append(f"{name} ({said})" if said else name)
    return labels


def _what_learns(run: Saved) -> dict[str, Any]:
    """The configuration that runs of one learner share.

    When a run is evaluated changes nothing that it learns, but for a learner of another make,
    "module:Class": that one is trained in pieces, from evaluation to evaluation.
    """
    config = run.configuration
    left_out = OWN if ":" in config["algorithm"] else (*OWN, *LOOKED_AT)
    return {key: value for key, value in config.items() if key not in left_out}


def _flat(options: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{start}{key}.")
        else:
            found[f"{start}{key}"] = value
    return found


def _evaluations(runs: Sequence[Saved], metric: str) -> Comparison:
    for key in ("environment", "settings", "seed", "episodes"):
        _must_agree(runs, key)
    _must_agree(runs, "files", ("environment", "settings"))
    played: dict[str, Evaluation] = {}
    for run in runs:
        config = run.configuration
        if not run.finished:
            raise ValueError(f"{run.path}: is not finished; run its command again first")
        name = config["policy"] if config["policy"] not in played else run.path.name
        if name in played:
            name = str(run.path)
        table = run.episodes
        if metric not in table.column_names or metric == "episode":
            known = ", ".join(n for n in table.column_names if n != "episode")
            raise ValueError(f"metric: {run.path} has no {metric!r}; it has {known}")
        played[name] = Evaluation(
            config["environment"], name, config["seed"], table, config.get("path", "")
        )
    return Comparison(played, next(iter(played)))


def _must_agree(runs: Sequence[Saved], key: str, only: tuple[str, ...] = ()) -> None:
    """The runs have the same value; of a table, that of the keys that begin so."""

    def value(run: Saved) -> Any:
        found = run.configuration.get(key)
        return {k: v for k, v in (found or {}).items() if k.startswith(only)} if only else found

    first = runs[0]
    for run in runs[1:]:
        if value(run) != value(first):
            raise ValueError(
                f"runs: {key} is {value(first)!r} in {first.path} and {value(run)!r} in "
                f"{run.path}; they cannot be compared"
            )
