"""A run folder gives back what was asked for, or says that it cannot."""

import shutil

import numpy as np
import pytest

import palestra
from palestra.rollout import evaluate
from palestra.store import CorruptFile, RunFolder, RunMismatch

SAMPLE = "[[species]]\nfraction = 1.0\nT1 = {}\nT2 = 0.3\n"
PLAYED = {"episodes": 40, "seed": 1, "block": 16, "width": 8}


def test_an_edited_sample_file_is_another_run(tmp_path):
    sample = tmp_path / "mine.toml"
    sample.write_text(SAMPLE.format(0.6))
    arguments = {"run": tmp_path / "run", "settings": {"sample": str(sample)}, **PLAYED}
    first = evaluate("wait", "NMRRelax", **arguments)
    assert evaluate("wait", "NMRRelax", **arguments).table.equals(first.table)
    sample.write_text(SAMPLE.format(1.8))
    with pytest.raises(RunMismatch, match=r"files\.settings\.sample"):
        evaluate("wait", "NMRRelax", **arguments)


@pytest.fixture
def finished(tmp_path):
    evaluate("wait", "NMRRelax", run=tmp_path / "run", **PLAYED)
    return RunFolder.open(tmp_path / "run")


def again(folder):
    return evaluate("wait", "NMRRelax", run=folder.path, **PLAYED)


def test_a_block_under_a_strange_index_is_noticed(finished):
    shutil.copy(finished.block_path("episodes", 0), finished.block_path("episodes", 99))
    with pytest.raises(CorruptFile, match="not in the manifest"):
        again(finished)


def test_a_block_in_place_of_another_is_noticed_also_without_a_manifest(finished):
    shutil.copy(finished.block_path("episodes", 1), finished.block_path("episodes", 0))
    with pytest.raises(CorruptFile, match="differs from the manifest"):
        again(finished)
    (finished.path / "manifest.json").unlink()
    with pytest.raises(CorruptFile, match="episodes 0 to 39, each once"):
        again(finished)


def test_a_block_of_another_policy_is_noticed(finished, tmp_path):
    evaluate("deft", "NMRRelax", run=tmp_path / "other", **PLAYED)
    other = RunFolder.open(tmp_path / "other")
    shutil.copy(other.block_path("episodes", 0), finished.block_path("episodes", 0))
    with pytest.raises(CorruptFile, match="differs from the manifest"):
        again(finished)


def test_a_policy_that_cannot_be_told_from_another_warns_on_resume(tmp_path):
    class Still:
        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            return np.zeros((len(observation), 3), np.float32), state

    still = Still()
    evaluate(still, "NMRRelax", run=tmp_path / "run", **PLAYED)
    with pytest.warns(UserWarning, match="cannot be told"):
        evaluate(still, "NMRRelax", run=tmp_path / "run", **PLAYED)


@pytest.mark.parametrize("value", [float("nan"), 1.5, True, 0, "3"])
def test_max_episode_steps_is_a_count(value):
    with pytest.raises(ValueError, match="max_episode_steps: got"):
        palestra.make("NMRRelax", max_episode_steps=value)


@pytest.mark.parametrize("name", ["block", "max_steps", "episodes", "width"])
@pytest.mark.parametrize("value", [2.5, True, "a", 0])
def test_counts_of_an_evaluation_are_counts(name, value):
    with pytest.raises(ValueError, match=f"{name}: got"):
        evaluate("wait", "NMRRelax", **{name: value})


@pytest.mark.parametrize("name", ["block", "max_steps", "episodes", "width"])
@pytest.mark.parametrize("value", [2**32, 10**400])
def test_counts_of_an_evaluation_have_an_end(name, value):
    with pytest.raises(ValueError, match=rf"{name}: got a larger number, allowed at most 2\*\*32"):
        evaluate("wait", "NMRRelax", **{name: value})


def test_an_experiment_without_runs_is_refused():
    from palestra.config import ConfigError
    from palestra.experiments.experiment import configure

    with pytest.raises(ConfigError, match="runs: got 0, allowed 1 or more"):
        configure("nmr-relax", settings=["runs=0"])
