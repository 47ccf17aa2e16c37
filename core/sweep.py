"""Sweeps: many training runs, one configuration each, and the best of them.

A sweep is a run folder of run folders::

    run.json               what was asked for
    trials/0007/           an ordinary training run
    trials.json            parameters, score and status of every trial
    best.toml              the configuration of the best one
    study.sqlite3          of the sampler "tpe": the same trials, for Optuna's tools
    confirm/0000/          the best configuration, trained again with another seed
    confirmation.json

Trials are independent pieces of work for an executor. Point i of a grid or of a random search is a
function of space, seed and i; the sampler "tpe" draws in batches of fixed size, from the results of
the batches before. Neither depends on how many workers there are or which of them is quicker.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .config import ConfigError, build, dump_toml, resolved, shown
from .disk import CorruptFile, read_json, to_json
from .executors import Errand, Executor, ItemLost, Work
from .executors import executor as choose_executor
from .optuna_study import StoredStudy, Told, next_points
from .play import table_columns
from .progress import Advance, progress_bar
from .registry import did_you_mean, resolve
from .rollout import evaluate
from .safe_files import MalformedFile
from .search_space import (
    MOST_POINTS,
    Point,
    Space,
    configured,
    grid,
    holds,
    random_point,
    read_space,
)
from .stats import Interval, runs_mean
from .store import HEARTBEAT, LEASE, RunFolder, RunLocked, RunMismatch
from .tracking import check_names
from .train import TrainConfig, algorithm_class, check, files_of, train

SAMPLERS = ("grid", "random", "tpe")
DIRECTIONS = ("max", "min")
TRIALS, BATCH = 20, 4  # unless others are asked for
TRIALS_FILE = "trials.json"
CONFIRMATION_FILE = "confirmation.json"
SCHEMA = "palestra.trials/1"
MESSAGE_LENGTH = 300

FIXED = {  # keys of a training that a space may not vary, and why
    "environment": "scores on several environments cannot be compared",
    "evaluation_seed": "all trials are scored on the same episodes",
    "evaluation_episodes": "all trials are scored on the same episodes",
    "seed": "the best of several training seeds is luck; `confirm` trains the best configuration "
    "with several",
}

# Nothing to do with the configuration of a trial: these end the sweep, which can go on later.
OF_THE_PLACE = (OSError, ImportError, MalformedFile, RunLocked, RunMismatch)


class TrialFailed(RuntimeError):
    """A trial failed in a sweep that is strict; the message says which and how."""


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep.

    Attributes:
        number: from 0.
        parameters: dotted key -> value.
        status: "waiting" until it has a result; "failed" if its training raised.
        score: mean of the metric over the held-out episodes, by the last policy.
        low: of its 95 % interval over episodes; None with too few of them.
        high: likewise.
        message: what a failed one raised.
    """

    number: int
    parameters: dict[str, Any]
    status: Literal["waiting", "finished", "failed"] = "waiting"
    score: float | None = None
    low: float | None = None
    high: float | None = None
    message: str = ""


@dataclass(frozen=True)
class Confirmation:
    """The best configuration, trained again with fresh seeds and scored on fresh episodes.

    Attributes:
        trial: the number of the best trial.
        evaluation_seed: whose episodes.
        seeds: of the trainings.
        runs: a result each; `number` counts them, `parameters` are those of the best trial.
        mean: over the runs that finished, with an interval over runs; None if none did.
    """

    trial: int
    evaluation_seed: int
    seeds: list[int]
    runs: list[Trial]
    mean: Interval | None


@dataclass(frozen=True)
class Sweep:
    """What a sweep left.

    Attributes:
        folder: the run folder.
        trials: in the order of their numbers.
        best: the finished trial with the best score, the first of equals; None if all failed.
        confirmation: if it was asked for.
    """

    folder: Path
    trials: list[Trial]
    best: Trial | None
    confirmation: Confirmation | None


@dataclass(frozen=True)
class _Plan:
    """What was asked for, checked."""

    config: TrainConfig
    space: Space
    sampler: str
    trials: int
    seed: int
    metric: str
    direction: str
    batch: int
    track: tuple[str, ...] = ()

    def points(self, numbers: Sequence[int], told: Sequence[Told]) -> list[Point]:
        """The points of a batch; `told` are those of all batches before."""
        if self.sampler == "grid":
            points = grid(self.space)
            return [points[number] for number in numbers]
        if self.sampler == "random":
            return [random_point(self.space, self.seed, number) for number in numbers]
        return next_points(self.space, self.seed, self.direction, told, len(numbers))

    def batches(self) -> list[range]:
        """The numbers of the trials that are drawn together."""
        firsts = range(0, self.trials, self.batch)
        return [range(first, min(first + self.batch, self.trials)) for first in firsts]

    def configuration(self, point: Point) -> TrainConfig:
        """The training of a point."""
        return build(TrainConfig, configured(resolved(self.config), point))


def sweep(
    config: TrainConfig,
    space: Mapping[str, Any],
    run: str | Path,
    *,
    sampler: str = "random",
    trials: int | None = None,
    seed: int = 0,
    metric: str = "return",
    direction: str = "max",
    parallel: int | None = None,
    storage: str | None = None,
    confirm: int = 0,
    executor: str | Executor = "in-process",
    strict: bool = False,
    progress: bool = False,
    track: Sequence[str] = (),
) -> Sweep:
    """Train many configurations and find the best.

    Called again on the same folder, it goes on: finished and failed trials are not repeated,
    interrupted ones go on from their last checkpoint. The best score of many is too good on
    average, because it was chosen; `confirm` measures by how much.

    Args:
        config: of every trial, but for what the space varies.
        space: see `palestra.search_space`; a document as `load_config` reads it.
        run: the run folder.
        sampler: "grid" (every combination once), "random", or "tpe" (Optuna's tree-structured
            Parzen estimator; needs the `tune` extra).
        trials: how many; 20 unless given. A grid has as many as it has points.
        seed: of the sampler. The trainings have that of `config`.
        metric: "return", or a metric of the environment: what is scored, on the held-out episodes
            of `config`, with the last policy of each trial.
        direction: "max" or "min".
        parallel: of "tpe", how many trials are drawn before results are told, 4 unless given; it
            is part of the result, which the number of workers is not.
        storage: of "tpe", the URL of a database; None takes a SQLite file in the folder.
        confirm: train the best configuration again with so many other seeds, and score these
            runs on other episodes.
        executor: where trials are trained: "in-process", "processes", "ray", "auto", or an
            executor of `palestra.executors`.
        strict: end with the first trial that fails, instead of recording it and going on.
        progress: show a progress bar on stderr.
        track: trackers that get the curve of every trial, as in `palestra.train.train`.

    Raises:
        ConfigError: a space that makes no sense, or a configuration in it that is refused, found
            before anything is trained; with "tpe", where only the first batch is known by then,
            later ones are recorded as failed.
        RunMismatch: the folder holds another sweep.
        RunLocked: another process works on it.
        TrialFailed: with `strict`.
        ImportError: an extra is missing.
    """
    if type(confirm) is not int or confirm < 0:
        raise ConfigError(f"confirm: got {confirm!r}, allowed a whole number of at least 0")
    check_names(track)
    plan = _plan(config, space, sampler, trials, seed, metric, direction, parallel)
    plan = replace(plan, track=tuple(track))
    if storage is not None and sampler != "tpe":
        raise ConfigError(f"storage: got {storage!r} with sampler {sampler!r}; only 'tpe' has one")
    chosen = choose_executor(executor)
    run = Path(run)
    if not (run / "run.json").exists():
        _check_first_batch(plan)
    identity = {
        "kind": "sweep",
        "training": resolved(config),
        "files": files_of(config),
        "space": dict(space),
        "sampler": sampler,
        "trials": plan.trials,
        "seed": seed,
        "metric": metric,
        "direction": direction,
        "parallel": plan.batch,
    }
    folder = RunFolder.create_or_resume(run, identity)
    label = f"{plan.trials} trials on {config.environment}"
    with (
        folder.lock(),
        folder.withdrawn_if_empty(),
        progress_bar(label, plan.trials + confirm, progress) as advance,
    ):
        book = _Book(folder, plan)
        study = None
        if sampler == "tpe":
            digest = hashlib.blake2b(to_json(identity), digest_size=4).hexdigest()
            study = StoredStudy(run, storage, f"{run.name}-{digest}", plan.space, direction)
        for numbers in plan.batches():
            book.draw(numbers)
            tasks = [
                _Task(
                    trial.number,
                    resolved(plan.configuration(trial.parameters)),
                    f"{folder.path / 'trials'}/{trial.number:04d}",
                    f"trial {trial.number}",
                    plan.track,
                )
                for trial in book.trials[numbers.start : numbers.stop]
                if trial.status == "waiting"
            ]
            advance(len(numbers) - len(tasks))
            for task, outcome in _outcomes(chosen, metric, tasks, strict):
                book.record(task.number, outcome)
                advance(1)
            if study is not None:
                study.tell(book.told(numbers.stop))
        best = best_of(book.trials, direction)
        if best is not None:
            best_config = plan.configuration(best.parameters)
            folder.write("best.toml", dump_toml(resolved(best_config)).encode())
        confirmation = None
        if best is not None and confirm:
            confirmation = _confirm(folder, plan, best, confirm, chosen, strict, advance)
    return Sweep(run, book.trials, best, confirmation)


def best_of(trials: Sequence[Trial], direction: str) -> Trial | None:
    """The best of the finished trials, the first of equals; None if none has finished."""
    finished = [trial for trial in trials if trial.score is not None]
    chosen = {"max": max, "min": min}[direction]
    return chosen(finished, key=lambda trial: trial.score or 0.0) if finished else None


def read_trials(folder: RunFolder) -> list[Trial]:
    """The trials of a sweep, as far as it is; none before the first was drawn.

    Raises:
        CorruptFile: `trials.json` is not what a sweep writes.
    """
    file = folder.path / TRIALS_FILE
    if not file.exists():
        return []
    try:
        trials = build(_TrialsFile, read_json(file)).trials
    except ConfigError as problem:
        raise CorruptFile(file, str(problem)) from None
    for number, trial in enumerate(trials):
        if trial.number != number:
            raise CorruptFile(file, f"trials[{number}].number = {trial.number}: must be {number}")
        if (trial.status == "finished") != (trial.score is not None):
            raise CorruptFile(file, f"trials[{number}]: finished ones have a score, others none")
    return trials


def read_confirmation(folder: RunFolder) -> Confirmation | None:
    """The confirmation of a sweep; None if there is none yet.

    Raises:
        CorruptFile: `confirmation.json` is not what a sweep writes.
    """
    file = folder.path / CONFIRMATION_FILE
    if not file.exists():
        return None
    try:
        return build(Confirmation, read_json(file))
    except ConfigError as problem:
        raise CorruptFile(file, str(problem)) from None


@dataclass(frozen=True)
class _TrialsFile:
    """What `trials.json` holds."""

    schema: Literal["palestra.trials/1"]
    metric: str
    direction: str
    best: int | None
    trials: list[Trial]


class _Book:
    """The trials of a sweep, kept on disk: rewritten as a whole with every change."""

    def __init__(self, folder: RunFolder, plan: _Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.trials = [self._ordered(trial) for trial in read_trials(folder)]

    def _ordered(self, trial: Trial) -> Trial:
        """A stored trial with its parameters in the order of the space."""
        if not holds(self.plan.space, trial.parameters):
            file = self.folder.path / TRIALS_FILE
            raise CorruptFile(file, f"trials[{trial.number}].parameters: are not of the space")
        return replace(trial, parameters={key: trial.parameters[key] for key in self.plan.space})

    def draw(self, numbers: range) -> None:
        """Draw the points of a batch, unless they were drawn before."""
        if len(self.trials) >= numbers.stop:
            return
        points = self.plan.points(numbers, self.told(numbers.start))
        self.trials += [Trial(n, point) for n, point in zip(numbers, points, strict=True)]
        self._write()

    def record(self, number: int, outcome: _Outcome) -> None:
        """Note the outcome of a trial."""
        self.trials[number] = replace(self.trials[number], **vars(outcome))
        self._write()

    def told(self, count: int) -> list[Told]:
        """Points and scores of the first trials, of whole batches, which all have ended."""
        return [(trial.parameters, trial.score) for trial in self.trials[:count]]

    def _write(self) -> None:
        best = best_of(self.trials, self.plan.direction)
        document = {
            "schema": SCHEMA,
            "metric": self.plan.metric,
            "direction": self.plan.direction,
            "best": None if best is None else best.number,
            "trials": [asdict(trial) for trial in self.trials],
        }
        self.folder.write(TRIALS_FILE, to_json(document))


# --- what is asked for ----------------------------------------------------------------------------


def _plan(
    config: TrainConfig,
    document: Mapping[str, Any],
    sampler: str,
    trials: int | None,
    seed: int,
    metric: str,
    direction: str,
    parallel: int | None,
) -> _Plan:
    space = read_space(document)
    _check_keys(space)
    if sampler not in SAMPLERS:
        raise ConfigError(f"sampler: got {sampler!r}, allowed {', '.join(SAMPLERS)}")
    if direction not in DIRECTIONS:
        raise ConfigError(f"direction: got {direction!r}, allowed {', '.join(DIRECTIONS)}")
    if type(seed) is not int or not 0 <= seed < 2**64:
        raise ConfigError(f"seed: got {shown(seed)}, allowed a whole number from 0 to 2**64 - 1")
    if sampler == "grid" and trials is not None:
        raise ConfigError(f"trials: got {trials}, but a grid has as many trials as points")
    if sampler != "tpe" and parallel is not None:
        raise ConfigError(
            f"parallel: got {parallel} with sampler {sampler!r}, whose points do not depend on "
            "results; set the number of workers of the executor"
        )
    for name, value in (("trials", trials), ("parallel", parallel)):
        if value is not None and (type(value) is not int or not 1 <= value <= MOST_POINTS):
            raise ConfigError(
                f"{name}: got {value!r}, allowed a whole number from 1 to {MOST_POINTS}"
            )
    if metric != "return":
        env = resolve(config.environment).make(1, wrappers=config.wrappers, **config.settings)
        known = [name for name in table_columns(env) if name != "episode"]
        env.close()
        if metric not in known:
            raise ConfigError(
                f"metric: got {metric!r}{did_you_mean(metric, known)} Allowed: {', '.join(known)}"
            )
    count = len(grid(space)) if sampler == "grid" else trials or TRIALS
    batch = min(parallel or BATCH, count) if sampler == "tpe" else count
    return _Plan(config, space, sampler, count, seed, metric, direction, batch)


def _check_keys(space: Space) -> None:
    known = [name for name in TrainConfig.__dataclass_fields__ if name not in FIXED]
    for key in space:
        name = key.partition(".")[0]
        if name in FIXED:
            raise ConfigError(f"space: {key} cannot be varied: {FIXED[name]}")
        if name not in known:
            raise ConfigError(
                f"space: a training has no {key!r}{did_you_mean(name, known)} It has: "
                f"{', '.join(known)}"
            )


def _check_first_batch(plan: _Plan) -> None:
    """Refuse before the folder exists what no training would take."""
    numbers = plan.batches()[0]
    for number, point in zip(numbers, plan.points(numbers, []), strict=True):
        try:
            check(plan.configuration(point))
        except (TypeError, ValueError) as problem:
            values = ", ".join(f"{key} = {shown(value)}" for key, value in point.items())
            raise ConfigError(f"trial {number} ({values}): {problem}") from problem


# --- trials as work for an executor ---------------------------------------------------------------


@dataclass(frozen=True)
class _Outcome:
    """How a training ended; see `Trial`."""

    status: Literal["finished", "failed"]
    score: float | None = None
    low: float | None = None
    high: float | None = None
    message: str = ""


@dataclass(frozen=True)
class _Task:
    """A training as it travels."""

    number: int
    options: dict[str, Any]
    folder: str
    name: str
    track: tuple[str, ...]


@dataclass(frozen=True)
class _Job:
    """What all trainings of a sweep share: the metric, and where relative paths begin."""

    metric: str
    place: str
    algorithm: str


def _outcomes(
    executor: Executor, metric: str, tasks: Sequence[_Task], strict: bool
) -> Iterator[tuple[_Task, _Outcome]]:
    """The outcome of every task, as they arrive. One that kills its workers has failed."""
    if not tasks:
        return
    job = _Job(metric, os.getcwd(), tasks[0].options["algorithm"])
    work = Work(
        here=lambda task: _train_trial(job, task),
        elsewhere=Errand(_train_elsewhere, _import_learner, job),
        reason="",
        name=lambda task: str(task.name),
    )
    waiting = list(tasks)
    while waiting:
        try:
            for done in executor.map(work, waiting.copy()):
                waiting.remove(done.item)
                yield done.item, _strictly(done.item, done.result, strict)
        except ItemLost as lost:
            waiting.remove(lost.item)
            message = f"{type(lost).__name__}: {lost}"
            yield lost.item, _strictly(lost.item, _Outcome("failed", message=message), strict)


def _strictly(task: _Task, outcome: _Outcome, strict: bool) -> _Outcome:
    if strict and outcome.status == "failed":
        raise TrialFailed(f"{task.name}: {outcome.message}")
    return outcome


def _import_learner(job: _Job) -> None:
    """What takes a worker seconds, before the time limit begins."""
    with contextlib.chdir(job.place):
        algorithm_class(job.algorithm)


def _train_elsewhere(job: _Job, task: _Task) -> _Outcome:
    with contextlib.chdir(job.place):
        return _train_trial(job, task)


def _train_trial(job: _Job, task: _Task) -> _Outcome:
    try:
        config = build(TrainConfig, task.options)
        mean, low, high = _score(config, task, job.metric)
        if not math.isfinite(mean):
            raise FloatingPointError(f"{job.metric} is {mean}")
    except OF_THE_PLACE:
        raise
    except Exception as problem:
        said = " ".join([str(problem), *getattr(problem, "__notes__", ())]).split()
        message = f"{type(problem).__name__}: {' '.join(said)}"
        return _Outcome("failed", message=message[:MESSAGE_LENGTH])
    return _Outcome("finished", mean, low, high)


def _score(
    config: TrainConfig, task: _Task, metric: str
) -> tuple[float, float | None, float | None]:
    """Train, and score the last policy on the held-out episodes: mean, and its interval."""
    last = _when_free(config, task)[-1]
    if metric == "return":
        return last["mean"], last["low"], last["high"]
    found = evaluate(
        str(RunFolder.open(task.folder).latest("step-")),
        config.environment,
        episodes=config.evaluation_episodes,
        seed=config.evaluation_seed,
        settings={**config.settings, "wrappers": config.wrappers},
    ).mean(metric)
    return found.estimate, found.low, found.high


def _when_free(config: TrainConfig, task: _Task) -> list[dict[str, Any]]:
    """Train; after a node of a cluster has died, wait until its lock is void."""
    until = time.monotonic() + LEASE + 2 * HEARTBEAT
    while True:
        try:
            return train(config, task.folder, track=task.track).curve
        except RunLocked as locked:
            if locked.host == socket.gethostname() or time.monotonic() > until:
                raise
            time.sleep(1.0)


# --- the winner's curse ---------------------------------------------------------------------------


def _confirm(
    folder: RunFolder,
    plan: _Plan,
    best: Trial,
    count: int,
    executor: Executor,
    strict: bool,
    advance: Advance,
) -> Confirmation:
    """Train the best configuration again: other seeds, other episodes.

    What was trained before is found finished in its folder.
    """
    config = plan.configuration(best.parameters)
    used = {config.seed, config.evaluation_seed}
    episodes = next(s for s in itertools.count(config.evaluation_seed + 1) if s not in used)
    fresh = (s for s in itertools.count(config.seed + 1) if s not in {*used, episodes})
    seeds = list(itertools.islice(fresh, count))
    tasks = [
        _Task(
            number,
            resolved(replace(config, seed=seed, evaluation_seed=episodes)),
            f"{folder.path / 'confirm'}/{number:04d}",
            f"confirmation {number}",
            plan.track,
        )
        for number, seed in enumerate(seeds)
    ]
    runs = [Trial(number, best.parameters) for number in range(count)]
    for task, outcome in _outcomes(executor, plan.metric, tasks, strict):
        runs[task.number] = replace(runs[task.number], **vars(outcome))
        advance(1)
    scores = [run.score for run in runs if run.score is not None]
    mean = runs_mean(scores) if scores else None
    confirmation = Confirmation(best.number, episodes, seeds, runs, mean)
    folder.write(CONFIRMATION_FILE, to_json(asdict(confirmation)))
    return confirmation
