"""The page of a run folder: `palestra report RUN`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from palestra.claims import Quantity
from palestra.config import ConfigError, build, shown
from palestra.figures import distributions, learning_curve, score_by_value
from palestra.film import Film
from palestra.policy_loading import registered_name
from palestra.registry import UnknownName, is_registered
from palestra.report import Report
from palestra.rollout import Comparison, Evaluation, checked_table
from palestra.run_comparison import compare_runs
from palestra.run_schema import FIELDS
from palestra.safe_files import MalformedFile, UnsafeFile
from palestra.search_space import Range, holds, read_space
from palestra.spaces import Array
from palestra.stats import Interval
from palestra.store import CorruptFile, RunFolder
from palestra.sweep import TRIALS_FILE, Trial, best_of, read_confirmation, read_trials
from palestra.train import learning_progress
from palestra.wrappers import WRAPPERS

from .experiment import find
from .experiment import run as run_experiment

MOST_FRAMES = 200


def write_page(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write `report.html` of a training, a sweep, an evaluation, a comparison or an experiment.

    Args:
        folder: the run folder; of a comparison, the folder that holds its evaluations.
        out: where to write; by default `report.html` in the folder.

    Raises:
        FileNotFoundError: not a run folder.
        MalformedFile: what stands in the folder is not the run that was written here, whole.
        ValueError: a run that is not finished.
    """
    target = Path(out) if out is not None else Path(folder) / "report.html"
    if not (Path(folder) / "run.json").exists() and any(Path(folder).glob("*/run.json")):
        return _comparison_page(Path(folder)).write(target)
    stored = RunFolder.open(folder)
    kind = stored.config.get("kind")
    if kind not in tuple(FIELDS):  # it may be anything, also what has no hash
        raise CorruptFile(
            stored.path / "run.json",
            f"config.kind = {shown(kind)}: must be one of {', '.join(FIELDS)} to have a page",
        )
    if kind == "training":
        return _training_page(stored).write(target)
    if kind == "sweep":
        return _sweep_page(stored).write(target)
    if not stored.finished:
        raise ValueError(f"{folder}: this {kind} is not finished; run its command again first")
    if kind == "evaluation":
        return _evaluation_page(stored).write(target)
    try:
        experiment = build(find(stored.config["experiment"]), stored.config["options"])
    except (UnknownName, ConfigError) as problem:
        raise CorruptFile(stored.path / "run.json", f"config: {problem}") from None
    if problems := stored.verify():  # of its parts, those who read them do the same
        raise CorruptFile(stored.path, "; ".join(problems))
    return run_experiment(experiment, folder).findings.report.write(target)


def _training_page(stored: RunFolder) -> Report:
    config = stored.config
    checkpoint = stored.latest("step-")
    if checkpoint is None:
        raise FileNotFoundError(f"{stored.path}: no checkpoint yet; nothing to show")
    curve = learning_progress(checkpoint)
    last = curve[-1]
    page = Report(
        f"{config['algorithm']} on {config['environment']}",
        subtitle=f"{last['steps']} steps, seed {config['seed']}",
    )
    page.headline([("return at the end", _quantity(last))])
    page.plot(
        f"Return on {config['evaluation_episodes']} held-out episodes",
        *learning_curve(
            {
                config["algorithm"]: [
                    ([p["steps"] for p in curve], [p["mean"] for p in curve]),
                ]
            }
        ),
    )
    columns = ("steps", "return")
    page.table("Evaluations", columns, [(int(p["steps"]), _quantity(p)) for p in curve])
    # a run folder may come from anywhere: code that it names is not run
    if is_registered(config["environment"]) and set(config["wrappers"]) <= set(WRAPPERS):
        try:
            frames = episode_frames(
                config["environment"],
                str(stored.path),
                config["evaluation_seed"],
                {**config["settings"], "wrappers": config["wrappers"]},
            )
        except (TypeError, ValueError) as problem:
            if isinstance(problem, MalformedFile | UnsafeFile):
                raise
            raise CorruptFile(
                stored.path / "run.json", f"its policy cannot be shown: {problem}"
            ) from problem
        if frames:
            page.animation("One held-out episode", frames, fps=10)
    page.facts({**_facts(config), **config["machine"]})
    return page


def _sweep_page(stored: RunFolder) -> Report:
    config = stored.config
    trials = read_trials(stored)
    finished = [trial for trial in trials if trial.score is not None]
    if not finished:
        raise FileNotFoundError(f"{stored.path}: no trial has finished yet; nothing to show")
    try:
        space = read_space(config["space"])
    except ConfigError as problem:
        raise CorruptFile(stored.path / "run.json", str(problem)) from None
    if not all(holds(space, trial.parameters) for trial in trials):
        raise CorruptFile(stored.path / TRIALS_FILE, "its parameters are not of the space")
    best = best_of(trials, config["direction"])
    assert best is not None
    metric = config["metric"]
    page = Report(
        f"Sweep on {config['training'].get('environment')}",
        subtitle=f"{len(finished)} of {config['trials']} trials finished, {config['sampler']}, "
        f"seed {config['seed']}",
    )
    confirmation = read_confirmation(stored)
    rows = [(f"best {metric}, of trial {best.number}", _of_trial(best), CURSE)]
    if confirmation is not None and confirmation.mean is not None:
        note = f"{confirmation.mean.n} other training seeds, other episodes"
        rows.append(("the same configuration again", Quantity.of(confirmation.mean), note))
    page.headline(rows)
    page.table(
        "Trials, with 95 % intervals over episodes",
        ("trial", *space, metric, "status"),
        [
            (
                trial.number,
                *(_cell(trial.parameters[key]) for key in space),
                _of_trial(trial),
                f"{trial.status} {trial.message}",
            )
            for trial in trials
        ],
        CURSE,
    )
    for key, values in space.items():
        picture = score_by_value(
            [trial.parameters[key] for trial in finished],
            [_of_trial(trial) for trial in finished],
            x_label=key,
            y_label=metric,
            log=isinstance(values, Range) and values.log,
            best=finished.index(best),
        )
        page.plot(f"{metric} by {key}", *picture)
    page.facts({**_facts(config), **config["machine"]})
    return page


CURSE = "The best of many scores on the same episodes is too good on average."


def _of_trial(trial: Trial) -> Any:
    if trial.score is None:
        return None
    if trial.low is None or trial.high is None:
        return Quantity(trial.score)
    return Quantity(trial.score, (trial.low, trial.high))


def _cell(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else json.dumps(value)


def _evaluation_page(stored: RunFolder) -> Report:
    import pyarrow as pa

    config = stored.config
    table = checked_table(stored)
    page = Report(
        f"{config['policy']} on {config['environment']}",
        subtitle=f"episodes 0 to {config['episodes'] - 1} of seed {config['seed']}",
    )
    kinds = {name: table.column(name).type for name in table.column_names}
    for name in {"return": None, **kinds}:
        kind = kinds.get(name)
        if kind is None or not pa.types.is_primitive(kind) or pa.types.is_temporal(kind):
            raise CorruptFile(
                stored.path / "episodes", f"column {name!r} must be there and hold numbers"
            )
    played = Evaluation(config["environment"], config["policy"], config["seed"], table)
    means = {name: _shown(mean) for name, mean in played.means().items()}
    page.headline([("return", means["return"], f"mean of {config['episodes']} episodes")])
    rows = list(means.items())
    page.table("Means over episodes, with 95 % intervals", ("what", "mean"), rows)
    returns = {"return": played.column("return")}
    page.plot("Return of every episode", *distributions(returns, x_label="return"))
    _add_episode(page, config)
    page.facts({**_facts(config), **config["machine"]})
    return page


def _comparison_page(folder: Path) -> Report:
    result = compare_runs([folder])
    assert isinstance(result, Comparison)
    played = result.evaluations
    one = next(iter(played.values()))
    page = Report(
        f"{len(played)} policies on {one.environment}",
        subtitle=f"episodes 0 to {one.episodes - 1} of seed {one.seed}, the same for all",
    )
    page.headline([(name, Quantity.of(e.mean()), "return") for name, e in played.items()])
    means = [e.means() for e in played.values()]
    names = list(means[0])
    rows = [[name, *(_shown(m[name]) for m in means)] for name in names]
    page.table("Means over episodes, with 95 % intervals", ("what", *played), rows)
    others = [name for name in played if name != result.reference]
    rows = []
    for name in names:
        if one.column(name).dtype != np.bool_:
            rows.append([name, *(_difference(result, other, name) for other in others)])
    page.table(
        f"Paired differences to {result.reference}, episode by episode",
        ("what", *(f"{other} - {result.reference}" for other in others)),
        rows,
    )
    returns = {name: e.column("return") for name, e in played.items()}
    page.plot("Return of every episode", *distributions(returns, x_label="return"))
    page.facts({"reference": result.reference, "folder": folder.name})
    return page


def _add_episode(page: Report, config: dict[str, Any]) -> None:
    """Episode 0 as an animation, where environment and policy are registered names.

    A run folder may come from anywhere: code that it names is not run.
    """
    policy = config.get("policy_reference")
    wrappers = config["settings"].get("wrappers", ())
    if (
        isinstance(policy, str)
        and registered_name(policy) is not None
        and is_registered(config["environment"])
        and set(wrappers) <= set(WRAPPERS)
        and (frames := episode_frames(
            config["environment"], policy, config["seed"], config["settings"]
        ))
    ):  # fmt: skip
        page.animation("Episode 0", frames, fps=10)


def _shown(mean: Interval | None) -> Quantity | None:
    return None if mean is None else Quantity.of(mean)


def _difference(result: Comparison, name: str, column: str) -> Quantity | None:
    try:
        return Quantity.of(result.difference(name, column).difference)
    except ValueError:
        return None


def episode_frames(
    target: Any, policy: Any, seed: int, settings: dict[str, Any], most: int = MOST_FRAMES
) -> list[Array]:
    """Pictures of episode 0 of a seed under a policy; empty if the environment draws nothing."""
    try:
        film = Film(target, policy, seed=seed, settings=settings, max_steps=most)
        return list(itertools.islice(film.frames(), most))
    except (NotImplementedError, ImportError):
        return []


def _facts(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "machine"}


def _quantity(point: dict[str, Any]) -> Quantity:
    low, high = point["low"], point["high"]
    return Quantity(point["mean"], None if low is None else (low, high))
