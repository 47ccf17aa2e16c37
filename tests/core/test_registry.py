"""Targets, the catalogue, plug-ins, and a registration that another process finds."""

import importlib.metadata
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium
import pytest

import palestra
from palestra.batch import BatchEnv
from palestra.gym_batch import GymBatch
from palestra.registry import (
    Anchors,
    UnknownName,
    anchors_of,
    catalogue,
    did_you_mean,
    kebab,
    load_object,
    plugins,
    resolve,
    squash,
)

from .toys import Counter, Drift, OneBuffer

TOYS = Path(__file__).with_name("toys.py")


@pytest.mark.parametrize("name", catalogue())
def test_every_way_to_write_a_name_means_the_same_environment(name):
    entry = catalogue()[name]
    for written in (name, kebab(name), name.lower(), entry.id, f"palestra/{name}"):
        found = resolve(written)
        assert found.entry is entry
        assert (found.name, found.reference) == (name, entry.id)
    assert resolve(entry).entry is entry
    assert resolve(found) is found
    env = found.make(2)
    assert isinstance(env, BatchEnv)
    assert env.rows == 2
    assert type(env).__name__ == name


@pytest.mark.parametrize("name", catalogue())
def test_an_entry_and_its_environment_agree(name):
    entry = catalogue()[name]
    env = resolve(entry).make(1)
    assert bool(env.agents) == entry.agents
    assert (entry.id in gymnasium.registry) == (not entry.agents)
    assert entry.family == type(env).__module__.split(".")[2]
    assert entry.summary
    assert entry.summary[0].islower()
    assert not entry.summary.endswith(".")


def test_kebab_names_read_like_words():
    for name, expected in (
        ("NMRRelax", "nmr-relax"),
        ("CartPole4", "cart-pole4"),
        ("PVTOL", "pvtol"),
        ("ThetaTwoTheta", "theta-two-theta"),
        ("MFG-LQ", "mfg-lq"),
    ):
        assert kebab(name) == expected
        assert squash(kebab(name)) == squash(name)


def test_a_near_miss_is_answered_with_the_right_name():
    for wrong, right in (
        ("NMRRelx", "NMRRelax"),
        ("nmr-relaxx", "nmr-relax"),
        ("palestra/NMRRelex-v0", "NMRRelax"),
        ("CartPole-v11", "CartPole-v1"),
    ):
        with pytest.raises(UnknownName, match="did you mean") as caught:
            resolve(wrong)
        assert squash(right) in squash(str(caught.value))
    with pytest.raises(UnknownName, match="nothing is called 'qqqqqqqq'"):
        resolve("qqqqqqqq")
    with pytest.raises(UnknownName, match=r"the version that ships is 'palestra/NMRRelax-v0'"):
        resolve("palestra/NMRRelax-v7")
    assert did_you_mean("zzz", ["abc"]) == "."


def test_a_file_and_a_module_are_targets():
    found = resolve(f"{TOYS}:Drift")
    assert found.name == "Drift"
    assert found.make(3, gain=0.1, horizon=7).gain == 0.1
    assert load_object(f"{TOYS}:Drift") is load_object(f"{TOYS}:Drift")
    found = resolve("palestra.gym_batch:GymBatch")
    assert isinstance(found.make(1, make="CartPole-v1"), GymBatch)
    assert isinstance(resolve("CartPole-v1").make(1), GymBatch)
    assert resolve("gymnasium:CartPole-v1").name == "CartPole-v1"


def test_objects_are_targets():
    assert resolve(Counter).make(2, length=4).length == 4
    assert isinstance(resolve(OneBuffer).make(2, lasts=3), GymBatch)

    def of_rows(rows, gain):
        return Drift(rows, gain=gain)

    assert resolve(of_rows).make(2, gain=0.2).gain == 0.2
    assert resolve(lambda: OneBuffer()).reference is None
    assert resolve(Counter).reference == f"{Counter.__module__}:Counter"
    for wrong, message in ((3, "expected a BatchEnv class"), (dict, "neither a BatchEnv nor")):
        with pytest.raises(TypeError, match=message):
            resolve(wrong)


def test_what_cannot_be_imported_is_named():
    for target, message in (
        ("no_such_module:Env", "there is no module 'no_such_module'"),
        ("palestra.no_such:Env", "there is no module 'palestra.no_such'"),
        ("no/such/file.py:Env", "there is no file"),
        (f"{TOYS}:Driftt", r"has no 'Driftt' \(did you mean 'Drift'\?\)"),
        (":Env", "expected module:name"),
    ):
        with pytest.raises(ImportError, match=message):
            resolve(target)


def test_a_file_that_fails_is_not_half_loaded(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('not ready')")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not ready"):
            resolve(f"{broken}:Env")
    broken.write_text("import missing_package_of_the_user")
    with pytest.raises(ImportError, match="missing_package_of_the_user"):
        resolve(f"{broken}:Env")


def test_an_unknown_setting_is_answered_with_the_settings_there_are():
    with pytest.raises(TypeError, match=r"Drift has no setting 'gian' \(did you mean 'gain'\?\)"):
        palestra.make(Drift, gian=2)
    with pytest.raises(TypeError, match="It has: horizon, length"):
        palestra.make(Counter, nothing_like_it=2)


def test_make_refuses_unknown_views_and_rows_where_there_is_one():
    with pytest.raises(ValueError, match="view: got 'torch', allowed gym, vector, sb3"):
        palestra.make(Counter, "torch")
    with pytest.raises(ValueError, match="rows: got 4, allowed 1 for view='gym'"):
        palestra.make(Counter, rows=4)
    with pytest.raises(ValueError, match="rows: got 0, allowed an integer of at least 1"):
        palestra.make(Counter, "vector", rows=0)


class FakePoint:
    """An entry point of a distribution that is not installed."""

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value
        self.dist = None

    def load(self):
        return load_object(self.value)


@pytest.fixture
def plugged(monkeypatch):
    points = [
        FakePoint("TheirDrift", f"{TOYS}:Drift"),
        FakePoint("Broken", "no_such_module:Env"),
        FakePoint("nmr_relax", f"{TOYS}:Counter"),
        FakePoint("their-drift", f"{TOYS}:Counter"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)


def test_plugins_are_listed_unloaded_and_the_broken_ones_as_broken(plugged):
    listed = {p.name: p.problem for p in plugins()}
    assert listed["TheirDrift"] == listed["Broken"] == ""
    assert "is taken" in listed["nmr_relax"]
    assert "is taken" in listed["their-drift"]
    loaded = {p.name: p.problem for p in plugins(load=True)}
    assert loaded["TheirDrift"] == ""
    assert loaded["Broken"].startswith("broken: ImportError: there is no module 'no_such_module'")


def test_a_plugin_goes_by_its_name_and_never_hides_a_catalogued_one(plugged):
    assert resolve("their-drift").make(1, gain=0.3).gain == 0.3
    assert resolve("nmr-relax").entry is catalogue()["NMRRelax"]
    with pytest.raises(ImportError, match="no_such_module"):
        resolve("broken")


def test_anchors_put_scores_on_a_scale_from_random_to_the_bound():
    anchors = Anchors("return", "max", 10.0, 40.0, "rule", 50.0, "dual", "palestra anchors X")
    assert anchors.normalised(10.0) == 0.0
    assert anchors.normalised(50.0) == 1.0
    lowest = Anchors("cost", "min", 10.0, 4.0, "rule", None, "", "palestra anchors X")
    assert lowest.normalised(4.0) == 1.0
    assert lowest.normalised(7.0) == 0.5
    for entry in catalogue().values():
        found = anchors_of(entry)
        assert found is None or found.direction in ("max", "min")


def test_registration_imports_no_environment():
    code = """
        import sys, palestra, gymnasium
        assert "palestra/NMRRelax-v0" in gymnasium.registry
        loaded = [m for m in sys.modules if m.startswith("palestra.envs.")]
        assert not loaded, loaded
        spec = gymnasium.spec("palestra/NMRRelax-v0")
        assert isinstance(spec.entry_point, str) and isinstance(spec.vector_entry_point, str)
        assert spec.max_episode_steps is None
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


SCRIPT = """
import multiprocessing
import gymnasium
import numpy as np
import palestra
from palestra.registry import load_object

Drift = load_object("TOYS:Drift")
gymnasium.register("mine/Drift-v0", entry_point=lambda **s: palestra.make(Drift, **s))


def start(number):
    view = gymnasium.make("mine/Drift-v0", gain=0.25)
    return view.reset(seed=3, options={"episode": number})[0].tolist(), view.unwrapped.batch.gain


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(start, range(4)) == [start(number) for number in range(4)]
    print("equal")
"""


def test_an_environment_registered_in_a_script_exists_in_spawned_workers(tmp_path):
    """Issue 26."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("TOYS", str(TOYS)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "equal", done.stderr


def test_a_reference_names_the_environment_in_a_spawned_process():
    references = [f"{TOYS}:Drift", *(e.id for e in catalogue().values() if not e.agents)]
    code = """
        import sys, palestra
        print([palestra.make(name).reset(seed=3)[0].tolist() for name in sys.argv[1:]])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *references],
        capture_output=True,
        text=True,
        check=True,
    )
    here = [palestra.make(name).reset(seed=3)[0].tolist() for name in references]
    assert done.stdout.strip() == str(here)
