"""Code that is named by file or module is part of a run: edited or exchanged, it is another run."""

import dataclasses
import sys

import pytest

from palestra.code_identity import code_files, source_file
from palestra.jobs import Job, WorkerDiffers, named_code, set_stage
from palestra.registry import load_object
from palestra.rollout import compare, evaluate
from palestra.store import RunFolder, RunMismatch
from palestra.sweep import sweep
from palestra.train import TrainConfig, train

ENVIRONMENT = '''
import numpy as np
from gymnasium import spaces
from palestra.batch import BatchEnv


class Sum(BatchEnv):
    """Five steps; the reward is the action, times a factor."""

    def __init__(self, rows):
        super().__init__(rows, horizon=5)
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def begin(self, rows, streams, options):
        pass

    def advance(self, actions, live, streams, step):
        step.reward[live] = FACTOR * actions[live, 0]

    def observe(self, rows, streams, out):
        pass
'''
POLICY = """
import numpy as np


class P:
    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return np.full((len(observation), 1), ACTION, np.float32), state
"""
PLAYED = {"episodes": 8, "seed": 1, "block": 4, "width": 4}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_environment(1)
    write_policy("one.py", 0)
    return tmp_path


def write_environment(factor):
    with open("sum.py", "w") as file:
        file.write(ENVIRONMENT.replace("FACTOR", str(factor)))


def write_policy(name, action):
    with open(name, "w") as file:
        file.write(POLICY.replace("ACTION", str(action)))


def play(policy="one.py:P", environment="sum.py:Sum", run="run", **changed):
    return evaluate(policy, environment, run=run, **{**PLAYED, **changed})


def test_an_edited_policy_file_is_another_run(place):
    assert play().mean().estimate == 0
    write_policy("one.py", 1)
    with pytest.raises(RunMismatch) as refused:
        play()
    assert refused.value.keys == ("files.policy",)
    assert play(run="new").mean().estimate == 5


def test_an_unfinished_run_is_not_finished_by_an_edited_policy(place):
    play()
    (place / "run" / "manifest.json").unlink()
    (place / "run" / "episodes" / "00000001.parquet").unlink()
    write_policy("one.py", 1)
    with pytest.raises(RunMismatch, match=r"files\.policy"):
        play()


def test_an_edited_environment_is_another_run_and_the_edit_is_played(place):
    write_policy("one.py", 1)
    assert play().mean().estimate == 5
    write_environment(6)  # within the second, and of the same length
    with pytest.raises(RunMismatch) as refused:
        play()
    assert refused.value.keys == ("files.environment",)
    assert play(run="new").mean().estimate == 30


def test_files_whose_names_differ_by_punctuation_are_two(place):
    write_policy("ctrl_1.py", 0)
    write_policy("ctrl1.py", 1)
    compared = compare(["ctrl_1.py:P", "ctrl1.py:P"], "sum.py:Sum", **PLAYED)
    assert [e.mean().estimate for e in compared.evaluations.values()] == [0, 5]
    play("ctrl_1.py:P")
    with pytest.raises(RunMismatch) as refused:
        play("ctrl1.py:P")
    assert set(refused.value.keys) == {"files.policy", "policy_reference"}


def test_two_policies_under_one_given_name_are_two_runs(place):
    evaluate("wait", "NMRRelax", run="nmr", name="mine", **PLAYED)
    with pytest.raises(RunMismatch, match="policy_reference"):
        evaluate("deft", "NMRRelax", run="nmr", name="mine", **PLAYED)


def test_a_run_goes_on_from_another_folder(place, monkeypatch):
    environment = f"{place / 'sum.py'}:Sum"
    first = play(environment=environment)
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    again = play("../one.py:P", environment, run="../run")
    assert again.table.equals(first.table)


def test_a_policy_of_an_importable_module_is_told_by_its_source(place, monkeypatch):
    monkeypatch.syspath_prepend(str(place))
    write_policy("acting_module.py", 0)
    play("acting_module:P")
    write_policy("acting_module.py", 1)
    with pytest.raises(RunMismatch, match=r"files\.policy"):
        play("acting_module:P")
    sys.modules.pop("acting_module")


def test_the_wrapper_of_an_evaluation_is_told_by_its_file(place):
    wrapper = "from palestra.wrappers import Wrapper\n\n\nclass W(Wrapper):\n    pass\n"
    (place / "wrap.py").write_text(wrapper)
    play(settings={"wrappers": ["wrap.py:W"]})
    (place / "wrap.py").write_text(wrapper + "# edited\n")
    with pytest.raises(RunMismatch, match=r"files\.settings\.wrappers\.0"):
        play(settings={"wrappers": ["wrap.py:W"]})


def tiny_training(environment):
    return TrainConfig(
        environment=environment,
        steps=128,
        rows=4,
        evaluate_every=128,
        evaluation_episodes=4,
        hyperparameters={"n_steps": 8, "batch_size": 32, "n_epochs": 1},
    )


def test_an_edited_environment_is_another_training(place):
    config = tiny_training("sum.py:Sum")
    train(config, "training")
    assert list(RunFolder.open("training").config["files"]) == ["environment"]
    write_environment(6)
    with pytest.raises(RunMismatch, match=r"files\.environment"):
        train(config, "training")


def test_an_edited_environment_of_a_module_is_another_sweep(place, monkeypatch):
    monkeypatch.syspath_prepend(str(place))
    config, space = tiny_training("sum:Sum"), {"hyperparameters": {"gamma": [0.9]}}
    sweep(config, space, "sweep", sampler="grid")
    write_environment(6)
    with pytest.raises(RunMismatch, match=r"files\.environment"):
        sweep(config, space, "sweep", sampler="grid")
    sys.modules.pop("sum")


def test_a_worker_refuses_code_that_was_edited_since_the_run_began(place):
    job = Job("sum.py:Sum", {}, "one.py:P", 4, 1, True, None, True)
    code = named_code(job.environment, job.policy, job.settings)
    assert set(code) == {"environment", "policy"}
    write_policy("one.py", 1)
    with pytest.raises(WorkerDiffers, match=r"^policy: the code is not what it was"):
        set_stage(dataclasses.replace(job, code=code))


def test_only_code_has_a_source_file(place):
    assert source_file("one.py:P") == (place / "one.py").resolve()
    for text in ("deft", "missing.py:P", "no_such_module_at_all:P", "math:sin", "C:/x", "", ":"):
        assert source_file(text) is None
    assert source_file("palestra.policy:RandomPolicy") is None
    assert code_files({"a": {"b": ["one.py:P", "deft"]}, "c": None}).keys() == {"a.b.0"}


def test_a_file_loaded_twice_gives_the_same_class(place):
    assert load_object("one.py:P") is load_object("./one.py:P")
