"""Sweeps: every trial once, whatever executes them and whatever is killed in between."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections import Counter as Count
from pathlib import Path

import numpy as np
import pytest

from palestra import store
from palestra import sweep as sweeping
from palestra.config import ConfigError, build, load_config
from palestra.executors import Processes
from palestra.optuna_study import next_points
from palestra.rollout import evaluate
from palestra.safe_files import MalformedFile
from palestra.search_space import configured, grid, random_point, read_space
from palestra.store import RunFolder, RunLocked, RunMismatch
from palestra.sweep import Trial, TrialFailed, read_trials, sweep
from palestra.train import TrainConfig, learning_progress, train

HERE = Path(__file__).parent
TOYS = f"{HERE / 'toys.py'}:"
TINY = {
    "environment": TOYS + "Drift",
    "rows": 8,
    "steps": 128,
    "evaluate_every": 64,
    "evaluation_episodes": 8,
    "hyperparameters": {"n_steps": 8, "batch_size": 32, "policy_kwargs": {"net_arch": [8]}},
}
SPACE = {
    "hyperparameters": {
        "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
        "gamma": [0.9, 0.99],
    }
}
PAIR = {"hyperparameters": {"gamma": [0.9, 0.99]}}


@pytest.fixture(scope="module", autouse=True)
def one_machine():
    """Asking the machine what it is takes longer than most trainings here."""
    known = store.machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "machine", lambda: known)
        yield


def tiny(**changed) -> TrainConfig:
    return TrainConfig(**{**TINY, **changed})


def scores(found) -> list[float | None]:
    return [trial.score for trial in found.trials]


class Killed(BaseException):
    """The process ends here."""


def sweep_until(calls: int, *arguments, **options) -> None:
    """Sweep in this process, and stop in the middle of training number `calls`, from 1."""
    publish = RunFolder.publish
    begun = set()

    def counted(self, name, *rest, **keywords):
        begun.add(self.path)
        path = publish(self, name, *rest, **keywords)
        if len(begun) == calls and name == "step-000000000064":
            raise Killed
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "publish", counted)
        with pytest.raises(Killed):
            sweep(*arguments, **options)


# --- spaces ---------------------------------------------------------------------------------------


def test_a_grid_has_every_combination_once_the_last_key_fastest():
    space = read_space(
        {
            "algorithm": ["ppo", "a2c"],
            "hyperparameters": {
                "gamma": {"low": 0.1, "high": 0.4, "step": 0.1},
                "n_epochs": {"low": 2, "high": 6, "step": 2},
            },
        }
    )
    expected = itertools.product(["ppo", "a2c"], [0.1, 0.2, 0.3, 0.4], [2, 4, 6])
    assert [tuple(point.values()) for point in grid(space)] == list(expected)
    assert list(grid(space)[0]) == [
        "algorithm", "hyperparameters.gamma", "hyperparameters.n_epochs",
    ]  # fmt: skip


def test_a_random_point_is_a_function_of_seed_and_number():
    space = read_space(SPACE)
    points = [random_point(space, 3, number) for number in range(20)]
    assert [random_point(space, 3, number) for number in reversed(range(20))] == points[::-1]
    assert [random_point(space, 4, number) for number in range(20)] != points
    assert len({point["hyperparameters.learning_rate"] for point in points}) == 20
    wider = read_space({**SPACE, "steps": [64, 128]})
    for number, point in enumerate(points):
        assert random_point(wider, 3, number).items() > point.items()


def test_random_points_are_uniform_over_what_the_space_holds():
    space = read_space(
        {
            "a": {"low": 1e-4, "high": 1e-1, "log": True},
            "b": {"low": 1, "high": 4},
            "c": {"low": 0.0, "high": 1.0, "step": 0.25},
            "d": ["x", "y"],
            "e": {"low": 1, "high": 2, "log": True},
            "f": {"low": -1.0, "high": 3.0},
        }
    )
    points = [random_point(space, 0, number) for number in range(4000)]
    column = {key: [point[key] for point in points] for key in space}
    logs = np.log10(column["a"])
    assert np.min(logs) >= -4
    assert np.max(logs) <= -1
    assert abs(np.mean(logs) + 2.5) < 4 * 3 / 12**0.5 / 4000**0.5  # four standard errors
    assert abs(np.mean(column["f"]) - 1.0) < 4 * 4 / 12**0.5 / 4000**0.5
    shares = {
        "b": dict.fromkeys((1, 2, 3, 4), 1 / 4),
        "c": dict.fromkeys((0.0, 0.25, 0.5, 0.75, 1.0), 1 / 5),
        "d": dict.fromkeys(("x", "y"), 1 / 2),
        # log-uniform on (0.5, 2.5), rounded: 1 has ln 3 of ln 5
        "e": {1: math.log(3) / math.log(5), 2: 1 - math.log(3) / math.log(5)},
    }
    for key, share in shares.items():
        counts = Count(column[key])
        assert counts.keys() == share.keys()
        for value, p in share.items():
            assert abs(counts[value] / 4000 - p) < 4 * (p * (1 - p) / 4000) ** 0.5
    assert all(type(value) is int for value in column["b"] + column["e"])


def test_a_point_is_put_at_its_dotted_keys():
    options = {"steps": 1, "hyperparameters": {"gamma": 0.5, "n_steps": 8}}
    point = {
        "hyperparameters.gamma": 0.9,
        "hyperparameters.policy_kwargs.net_arch": [4],
        "steps": 2,
    }
    assert configured(options, point) == {
        "steps": 2,
        "hyperparameters": {"gamma": 0.9, "n_steps": 8, "policy_kwargs": {"net_arch": [4]}},
    }
    assert options["hyperparameters"]["gamma"] == 0.5
    with pytest.raises(ConfigError, match=r"a\.b: a is 3, which has no keys"):
        configured({"a": 3}, {"a.b": 1})


LR = "hyperparameters.learning_rate"
BAD_SPACES = {
    "empty": ({}, "is empty"),
    "a number": ({"steps": 64}, "steps = 64: must be a list of choices, or a table with low"),
    "no choice": ({"steps": []}, r"steps = \[\]: must have one choice or more"),
    "a choice twice": ({"steps": [64, 128, 64]}, "steps: the choice 64 stands there twice"),
    "not finite": ({LR: [float("nan")]}, r"learning_rate = \[nan\]: must be finite numbers"),
    "half a range": ({LR: {"low": 1e-3}}, "learning_rate.high is missing"),
    "typing error": (
        {LR: {"low": 1e-3, "high": 1.0, "stpe": 0.1}},
        r"has 'stpe' \(did you mean 'step'\?\)",
    ),
    "no number": ({LR: {"low": "1e-3", "high": 1.0}}, "low = '1e-3': must be"),
    "infinite": ({LR: {"low": 1.0, "high": float("inf")}}, "high = inf: must be a finite number"),
    "upside down": ({LR: {"low": 1.0, "high": 0.1}}, "low = 1.0 and high = 0.1"),
    "log of 0": ({LR: {"low": 0.0, "high": 0.1, "log": True}}, "low = 0.0: must be positive"),
    "log of no kind": ({LR: {"low": 0.1, "high": 1.0, "log": 10}}, "log = 10: must be true or"),
    "log and step": (
        {LR: {"low": 0.1, "high": 0.2, "log": True, "step": 0.1}},
        "has log and step; allowed one",
    ),
    "no way": ({LR: {"low": 0.0, "high": 1.0, "step": 0.3}}, r"step = 0.3: must lead from low = 0"),
    "backwards": ({LR: {"low": 0.0, "high": 1.0, "step": -0.5}}, r"step = -0.5: must be positive"),
    "halves": (
        {"rows": {"low": 1, "high": 3, "step": 0.5}},
        "step = 0.5: must be a positive whole",
    ),
    "a part and its whole": (
        {"hyperparameters.policy_kwargs": [{}], "hyperparameters.policy_kwargs.net_arch": [[4]]},
        "net_arch is a part of hyperparameters.policy_kwargs",
    ),
    "unknown": ({"stpes": [64]}, r"a training has no 'stpes' \(did you mean 'steps'\?\)"),
    "other episodes": ({"evaluation_seed": [1, 2]}, "all trials are scored on the same episodes"),
    "a lucky seed": ({"seed": [1, 2]}, "seed cannot be varied: the best of several .* is luck"),
    "unknown hyperparameter": (
        {"hyperparameters": {"gama": [0.9]}},
        r"trial 0 \(hyperparameters.gama = 0.9\).*did you mean 'gamma'",
    ),
    "a later point": (
        {"hyperparameters": {"gamma": [0.9, 1.5]}},
        r"trial 1 \(hyperparameters.gamma = 1.5\).*gamma: got 1.5, allowed 0 to 1",
    ),
    "unknown setting": ({"settings": {"horizn": [5, 6]}}, "trial 0 .*horizn"),
    "no table": ({"steps.few": [64]}, "steps is 128, which has no keys"),
}


@pytest.mark.parametrize("name", BAD_SPACES)
def test_a_bad_space_is_refused_before_anything_is_trained(name, tmp_path):
    document, message = BAD_SPACES[name]
    with pytest.raises(ConfigError, match=message):
        sweep(tiny(), document, tmp_path / "run", sampler="grid")
    assert not (tmp_path / "run").exists()


BAD_OPTIONS = {
    "sampler": ({"sampler": "best"}, "sampler: got 'best', allowed grid, random, tpe"),
    "direction": ({"direction": "up"}, "direction: got 'up', allowed max, min"),
    "seed": ({"seed": -1}, "seed: got -1"),
    "trials": ({"trials": 0}, "trials: got 0"),
    "trials of a grid": ({"sampler": "grid", "trials": 3}, "as many trials as points"),
    "parallel": ({"parallel": 2}, "parallel: got 2 with sampler 'random'"),
    "storage": ({"storage": "sqlite://"}, "only 'tpe' has one"),
    "confirm": ({"confirm": -1}, "confirm: got -1"),
    "metric": ({"metric": "distnace"}, r"metric: got 'distnace' \(did you mean 'distance'\?\)"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option_is_refused(name, tmp_path):
    options, message = BAD_OPTIONS[name]
    with pytest.raises(ConfigError, match=message):
        sweep(tiny(), PAIR, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_grid_needs_steps_and_bounds():
    with pytest.raises(ConfigError, match="learning_rate is a range without step"):
        grid(read_space(SPACE))
    with pytest.raises(ConfigError, match="the grid has 10100 points, allowed at most 10000"):
        grid(read_space({"a": {"low": 0, "high": 100, "step": 1}, "b": list(range(100))}))


# --- trials ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A random search in this process."""
    return sweep(tiny(), SPACE, tmp_path_factory.mktemp("sweep") / "run", trials=3, seed=1)


def test_a_trial_is_what_train_makes_of_its_configuration(done, tmp_path):
    space = read_space(SPACE)
    for number, trial in enumerate(done.trials):
        assert (trial.number, trial.status) == (number, "finished")
        assert trial.parameters == random_point(space, 1, number)
    rate = done.trials[2].parameters["hyperparameters.learning_rate"]
    gamma = done.trials[2].parameters["hyperparameters.gamma"]
    config = tiny(
        hyperparameters={**TINY["hyperparameters"], "learning_rate": rate, "gamma": gamma}
    )
    last = train(config, tmp_path / "alone").curve[-1]
    found = done.trials[2]
    assert (found.score, found.low, found.high) == (last["mean"], last["low"], last["high"])
    assert len(set(scores(done))) == 3


def test_the_best_trial_has_the_best_score_and_its_configuration_trains(done, tmp_path):
    assert done.best is max(done.trials, key=lambda trial: trial.score)
    config = build(TrainConfig, load_config(done.folder / "best.toml"))
    assert train(config, tmp_path / "again").curve[-1]["mean"] == done.best.score


def test_the_file_of_trials_is_what_python_returns(done):
    document = json.loads((done.folder / "trials.json").read_bytes())
    assert [Trial(**entry) for entry in document.pop("trials")] == done.trials
    assert document == {
        "schema": "palestra.trials/1",
        "metric": "return",
        "direction": "max",
        "best": done.best.number,
    }
    assert read_trials(RunFolder.open(done.folder)) == done.trials


def test_two_processes_give_the_same_trials(done, tmp_path):
    sweep(tiny(), SPACE, tmp_path / "run", trials=3, seed=1, executor=Processes(workers=2))
    for file in ("trials.json", "best.toml"):
        assert (tmp_path / "run" / file).read_bytes() == (done.folder / file).read_bytes()


def test_a_trial_is_a_policy(done):
    folder = done.folder / "trials" / "0001"
    curve = learning_progress(RunFolder.open(folder).latest("step-"))
    again = evaluate(str(folder), TINY["environment"], episodes=8, seed=1_000_003)
    assert again.mean().estimate == pytest.approx(max(point["mean"] for point in curve), abs=1e-9)


def test_a_metric_of_the_environment_is_scored_with_the_last_policy(tmp_path):
    found = sweep(
        tiny(), PAIR, tmp_path / "run", sampler="grid", metric="distance", direction="min"
    )
    assert found.best is min(found.trials, key=lambda trial: trial.score)
    checkpoint = RunFolder.open(tmp_path / "run" / "trials" / "0001").latest("step-")
    again = evaluate(str(checkpoint), TINY["environment"], episodes=8, seed=1_000_003)
    assert found.trials[1].score == again.mean("distance").estimate


def test_the_first_of_equal_trials_is_the_best(tmp_path):
    same = {"settings": {"horizon": [1]}, "hyperparameters": {"vf_coef": [0.5, 0.5000001]}}
    config = tiny(hyperparameters={**TINY["hyperparameters"], "learning_rate": 0.0})
    for direction in ("max", "min"):
        found = sweep(config, same, tmp_path / direction, sampler="grid", direction=direction)
        assert scores(found)[0] == scores(found)[1]
        assert found.best.number == 0


# --- failures -------------------------------------------------------------------------------------

BREAKING = {
    "environment": TOYS + "Breaking",
    "hyperparameters": {**TINY["hyperparameters"], "n_steps": 4},
}
FAILING = {"settings": {"last": [100, 2, 101]}}


def test_a_trial_that_raises_has_failed_and_the_others_go_on(tmp_path):
    found = sweep(tiny(**BREAKING), FAILING, tmp_path / "run", sampler="grid")
    assert [trial.status for trial in found.trials] == ["finished", "failed", "finished"]
    assert found.trials[1].score is None
    assert found.trials[1].message.startswith("RuntimeError: the motor is off")
    assert found.best.number in (0, 2)
    before = (tmp_path / "run" / "trials.json").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "train", None)  # neither is trained again
        again = sweep(tiny(**BREAKING), FAILING, tmp_path / "run", sampler="grid")
    assert again.trials == found.trials
    assert (tmp_path / "run" / "trials.json").read_bytes() == before


def test_a_strict_sweep_ends_with_the_failure_and_tries_it_again_later(tmp_path):
    with pytest.raises(TrialFailed, match="trial 1: RuntimeError: the motor is off"):
        sweep(tiny(**BREAKING), FAILING, tmp_path / "run", sampler="grid", strict=True)
    status = [t.status for t in read_trials(RunFolder.open(tmp_path / "run"))]
    assert status == ["finished", "waiting", "waiting"]


def test_if_all_fail_there_is_no_best(tmp_path):
    space = {"settings": {"last": [2, 3]}}
    found = sweep(tiny(**BREAKING), space, tmp_path / "run", sampler="grid", confirm=2)
    assert [trial.status for trial in found.trials] == ["failed", "failed"]
    assert (found.best, found.confirmation) == (None, None)
    assert not (tmp_path / "run" / "best.toml").exists()


def test_a_full_disk_is_not_the_fault_of_a_configuration(tmp_path, monkeypatch):
    def full(*_, **__):
        raise store.StoreFailed(28, "no space left")

    monkeypatch.setattr(sweeping, "train", full)
    with pytest.raises(store.StoreFailed):
        sweep(tiny(), PAIR, tmp_path / "run", sampler="grid")


def test_a_score_that_is_not_finite_is_a_failure(tmp_path, monkeypatch):
    point = {"steps": 128, "mean": math.nan, "low": None, "high": None}
    monkeypatch.setattr(sweeping, "_when_free", lambda config, folder: [point])
    found = sweep(tiny(), PAIR, tmp_path / "run", sampler="grid")
    assert found.trials[0].message == "FloatingPointError: return is nan"


@pytest.mark.slow
def test_a_trial_that_kills_its_workers_has_failed_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MARKS", str(tmp_path))
    space = {"settings": {"deadly": [False, True]}}
    config = tiny(environment=f"{HERE / 'faults.py'}:DiesInTraining")
    found = sweep(config, space, tmp_path / "run", sampler="grid", executor=Processes(2))
    assert [trial.status for trial in found.trials] == ["finished", "failed"]
    assert found.trials[1].message.startswith("WorkerDied: trial 1: its worker died in 3 attempts")


# --- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_an_interrupted_sweep_goes_on_and_ends_as_an_unbroken_one(calls, done, tmp_path):
    run = tmp_path / "run"
    sweep_until(calls, tiny(), SPACE, run, trials=3, seed=1)
    trials = read_trials(RunFolder.open(run))
    assert [t.status for t in trials] == ["finished"] * (calls - 1) + ["waiting"] * (4 - calls)

    trained = []

    def counted(config, folder, **named):
        stored = RunFolder.open(folder) if Path(folder).exists() else None
        trained.append((Path(folder).name, stored and stored.latest("step-").name))
        return train(config, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "train", counted)
        sweep(tiny(), SPACE, run, trials=3, seed=1)
    assert trained == [
        (f"{k:04d}", "step-000000000064" if k == calls - 1 else None) for k in range(calls - 1, 3)
    ]
    for file in ("trials.json", "best.toml"):
        assert (run / file).read_bytes() == (done.folder / file).read_bytes()


def test_a_trial_waits_for_the_lock_of_a_host_that_died_but_not_for_one_of_its_own(
    tmp_path, monkeypatch
):
    waited = []
    monkeypatch.setattr(sweeping.time, "sleep", waited.append)

    def locked_by(host, times):
        def attempt(config, folder, **named):
            if len(waited) < times:
                raise RunLocked(Path(folder), 1, host, f"locked by {host}")
            return train(config, folder)

        return attempt

    monkeypatch.setattr(sweeping, "train", locked_by("another", 3))
    found = sweep(tiny(), PAIR, tmp_path / "run", sampler="grid")
    assert [trial.status for trial in found.trials] == ["finished", "finished"]
    assert len(waited) == 3
    monkeypatch.setattr(sweeping, "train", locked_by(socket.gethostname(), 4))
    with pytest.raises(RunLocked):
        sweep(tiny(), PAIR, tmp_path / "other", sampler="grid")
    assert len(waited) == 3


def test_another_sweep_is_refused_in_the_same_folder(done):
    with pytest.raises(RunMismatch, match=r"trials \(3 there, 4 asked\)"):
        sweep(tiny(), SPACE, done.folder, trials=4, seed=1)


SCRIPT = """
import sys
from pathlib import Path
from palestra.config import load_config, build
from palestra.executors import Processes
from palestra.sweep import sweep
from palestra.train import TrainConfig

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    config = build(TrainConfig, load_config(folder / "config.toml"))
    space = load_config(folder / "space.toml")
    workers = int(sys.argv[3])
    executor = Processes(workers) if workers else "in-process"
    sweep(config, space, folder / "run", sampler=sys.argv[2], trials=6, seed=5, executor=executor)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "workers"), [("random", 0), ("random", 2), ("tpe", 2)])
def test_a_sweep_killed_again_and_again_does_every_trial_once(sampler, workers, tmp_path):
    from palestra.config import dump_toml, resolved

    (tmp_path / "config.toml").write_text(dump_toml(resolved(tiny(steps=512))))
    (tmp_path / "space.toml").write_text(dump_toml(SPACE))
    (tmp_path / "program.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "program.py", tmp_path, sampler, str(workers)]
    random = np.random.default_rng(0)
    kills = 0
    while True:
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            code = process.wait(timeout=random.uniform(3.0, 9.0) if kills < 5 else 300.0)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            time.sleep(0.2)
            continue
        assert code == 0
        break
    assert kills > 0
    whole = sweep(tiny(steps=512), SPACE, tmp_path / "whole", sampler=sampler, trials=6, seed=5)
    file = tmp_path / "run" / "trials.json"
    assert file.read_bytes() == (whole.folder / "trials.json").read_bytes()
    assert len(list((tmp_path / "run" / "trials").iterdir())) == 6
    if sampler == "tpe":
        check_study(tmp_path / "run", whole)


@pytest.mark.parametrize(
    "broken",
    [
        b"{}",
        b'{"schema": "palestra.trials/2", "metric": "a", "direction": "max", "best": "none", '
        b'"trials": []}',
        b'{"schema": "palestra.trials/1", "metric": "a", "direction": "max", "best": "none", '
        b'"trials": [{"number": 1, "parameters": {}}]}',
        b'{"schema": "palestra.trials/1", "metric": "a", "direction": "max", "best": "none", '
        b'"trials": [{"number": 0, "parameters": {}, "status": "finished"}]}',
    ],
)
def test_a_broken_file_of_trials_is_named(broken, tmp_path):
    run = tmp_path / "run"
    folder = RunFolder.create_or_resume(run, {"kind": "something"})
    (run / "trials.json").write_bytes(broken)
    with pytest.raises(MalformedFile, match=r"trials\.json"):
        read_trials(folder)


# --- Optuna ---------------------------------------------------------------------------------------


def check_study(run: Path, found, storage: str | None = None) -> None:
    """What Optuna itself reads: every trial once, none running, the same scores and best."""
    import optuna

    storage = storage or f"sqlite:///{run / 'study.sqlite3'}"
    (summary,) = optuna.get_all_study_summaries(storage)
    study = optuna.load_study(study_name=summary.study_name, storage=storage)
    states = optuna.trial.TrialState
    assert [trial.number for trial in study.trials] == [trial.number for trial in found.trials]
    for theirs, ours in zip(study.trials, found.trials, strict=True):
        assert theirs.state == (states.COMPLETE if ours.status == "finished" else states.FAIL)
        assert theirs.params == ours.parameters
        assert (theirs.value if ours.score is not None else None) == ours.score
    assert study.best_trial.number == found.best.number


@pytest.fixture(scope="module")
def estimated(tmp_path_factory):
    """A search by TPE, in batches of two, in this process."""
    run = tmp_path_factory.mktemp("tpe") / "run"
    return sweep(tiny(), SPACE, run, sampler="tpe", trials=5, parallel=2, seed=1)


def test_optuna_reads_the_study(estimated):
    check_study(estimated.folder, estimated)


def test_each_batch_is_drawn_from_the_results_of_those_before(estimated):
    told = [(trial.parameters, trial.score) for trial in estimated.trials]
    for first, stop in ((0, 2), (2, 4), (4, 5)):
        points = next_points(read_space(SPACE), 1, "max", told[:first], stop - first)
        assert points == [point for point, _ in told[first:stop]]


@pytest.mark.slow
def test_tpe_does_not_depend_on_the_number_of_workers(estimated, tmp_path):
    options = {"sampler": "tpe", "trials": 5, "parallel": 2, "seed": 1}
    found = sweep(tiny(), SPACE, tmp_path / "run", **options, executor=Processes(workers=2))
    assert found.trials == estimated.trials


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_a_resumed_study_has_no_running_trials_and_no_doubles(calls, estimated, tmp_path):
    options = {"sampler": "tpe", "trials": 5, "parallel": 2, "seed": 1}
    sweep_until(calls, tiny(), SPACE, tmp_path / "run", **options)
    found = sweep(tiny(), SPACE, tmp_path / "run", **options)
    assert found.trials == estimated.trials
    check_study(tmp_path / "run", found)


def test_a_study_can_stand_in_a_database_elsewhere(estimated, tmp_path):
    storage = f"sqlite:///{tmp_path / 'elsewhere.sqlite3'}"
    options = {"sampler": "tpe", "trials": 5, "parallel": 2, "seed": 1, "storage": storage}
    found = sweep(tiny(), SPACE, tmp_path / "run", **options)
    assert found.trials == estimated.trials
    check_study(tmp_path / "run", found, storage)
    assert not (tmp_path / "run" / "study.sqlite3").exists()


def test_failures_stand_in_the_study_too(tmp_path):
    options = {"sampler": "tpe", "trials": 4, "seed": 1}
    space = {"settings": {"last": [100, 2]}}
    found = sweep(tiny(**BREAKING), space, tmp_path / "run", **options)
    assert {trial.status for trial in found.trials} == {"finished", "failed"}
    check_study(tmp_path / "run", found)


def test_the_order_of_keys_in_a_file_does_not_matter():
    document = {"a": [1, 2, 3], "b": {"low": 0.0, "high": 1.0}}
    other = dict(reversed(document.items()))
    for draw in (
        lambda space: next_points(space, 0, "max", [], 4),
        lambda space: [random_point(space, 0, number) for number in range(4)],
    ):
        assert draw(read_space(document)) == draw(read_space(other))


def test_tpe_goes_where_the_scores_are_good():
    """Uniform points lie (0.7^2 + 0.3^2) / 2 = 0.29 from 0.7 on average, standard deviation 0.2;
    the mean of 48 of them is below 0.17 in one of 30 000 cases."""
    space = read_space({"x": {"low": 0.0, "high": 1.0}, "kind": ["a", [1, 2]]})
    told: list = []
    for _ in range(15):
        for point in next_points(space, 0, "max", told, 4):
            told.append((point, -((point["x"] - 0.7) ** 2)))
    late = [abs(point["x"] - 0.7) for point, _ in told[12:]]
    assert np.mean(late) < 0.17
    assert {json.dumps(point["kind"]) for point, _ in told} == {'"a"', "[1, 2]"}
    assert next_points(space, 0, "max", told[:40], 4) == [point for point, _ in told[40:44]]


# --- the winner's curse ---------------------------------------------------------------------------


def test_the_best_configuration_is_trained_again_with_other_seeds_on_other_episodes(tmp_path):
    config = tiny(seed=3, evaluation_seed=4)
    found = sweep(config, PAIR, tmp_path / "run", sampler="grid", confirm=2)
    confirmation = found.confirmation
    assert confirmation.trial == found.best.number
    assert confirmation.evaluation_seed == 5  # the first that was used for nothing
    assert confirmation.seeds == [6, 7]
    best = build(TrainConfig, load_config(tmp_path / "run" / "best.toml"))
    hyperparameters = best.hyperparameters
    alone = tiny(seed=7, evaluation_seed=5, hyperparameters=hyperparameters)
    score = train(alone, tmp_path / "alone").curve[-1]["mean"]
    assert confirmation.runs[1].score == score
    assert confirmation.mean.estimate == pytest.approx(
        (confirmation.runs[0].score + score) / 2, rel=1e-12
    )
    assert confirmation.mean.low is None  # two runs are too few for an interval
    stored = json.loads((tmp_path / "run" / "confirmation.json").read_bytes())
    assert stored["seeds"] == [6, 7]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        more = sweep(config, PAIR, tmp_path / "run", sampler="grid", confirm=3)  # one is new
    assert more.confirmation.runs[:2] == confirmation.runs
    assert more.confirmation.seeds == [6, 7, 8]
