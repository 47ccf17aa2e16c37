"""`palestra check`: sound environments pass, and every planted fault is found where it is."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import palestra
from palestra.check import check
from palestra.checks import fuzz
from palestra.checks.finding import ERROR, RULES, WARNING, Finding, Held, Started
from palestra.checks.subject import reference_of
from palestra.global_random import preserved
from palestra.registry import UnknownName, catalogue, resolve

from .broken import APART, PLANTED, SOUND, Planted

FILE = Path(__file__).with_name("broken.py")
ELSEWHERE = ("CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "InvertedPendulum-v5")
TEAMS = ("pettingzoo.classic.rps_v2:parallel_env", "pettingzoo.classic.tictactoe_v3:env")
NEEDS = {"InvertedPendulum-v5": ("mujoco", "imageio"), **dict.fromkeys(TEAMS, ("pygame",))}


@pytest.fixture
def short_fuzz(monkeypatch):
    """As long as the planted faults need."""
    monkeypatch.setattr(fuzz, "STEPS", 300)
    monkeypatch.setattr(fuzz, "EPISODES", 30)
    monkeypatch.setattr(fuzz, "SECONDS", 1.0)


def target(env: type) -> str:
    return f"{FILE}:{env.__name__}"


@pytest.mark.parametrize("env", SOUND, ids=lambda env: env.__name__)
def test_a_sound_environment_has_no_findings(env, short_fuzz):
    report = check(target(env), isolate=False)
    assert report.errors + report.warnings == ()
    assert report.holds(strict=True)
    not_applicable = {f.check for f in report.findings}
    others = {name for name in RULES if name.startswith("stock")}
    assert set(report.held) | not_applicable | others == set(RULES)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: f"{p}-{p.check}")
def test_a_planted_fault_is_found_and_shown(planted: Planted, short_fuzz, tmp_path):
    report = check(target(planted.env), isolate=False)
    found = [f for f in report.findings if matches(f, planted)]
    assert found, f"{planted} is not among:\n{report}"
    assert planted.check not in report.held
    if found[0].script is not None:
        shows(found[0].script, tmp_path)
    else:
        assert planted.check == "memory", "no program shows it"


def matches(finding: Finding, planted: Planted) -> bool:
    wanted = {k: v for k, v in vars(planted).items() if k != "env" and v is not None}
    return all(getattr(finding, name) == value for name, value in wanted.items())


def shows(script: str, folder: Path) -> None:
    """The program ends with the fault."""
    file = folder / "shows.py"
    file.write_text(script, encoding="utf-8")
    # what is raised is its own assertion, or what the environment says; and the process that it
    # is meant for would not have the random state that an earlier one left here
    with preserved(1), pytest.raises(Exception) as seen:  # noqa: PT011
        runpy.run_path(str(file), run_name="__main__")
    assert not isinstance(seen.value, NameError | ImportError | SyntaxError | AttributeError)


def test_there_are_faults_of_many_kinds():
    assert len({p.env for p in PLANTED + APART}) >= 20
    assert len({p.check for p in PLANTED + APART}) >= 20


@pytest.mark.parametrize("planted", APART, ids=str)
def test_what_only_another_process_shows(planted: Planted, tmp_path):
    report = check(target(planted.env), time_limit=2.0)
    found = [f for f in report.errors if matches(f, planted)]
    assert len(found) == 1, str(report)
    script = tmp_path / "shows.py"
    script.write_text(found[0].script, encoding="utf-8")
    with pytest.raises((subprocess.TimeoutExpired, subprocess.CalledProcessError)):
        subprocess.run([sys.executable, script], timeout=6, check=True, capture_output=True)


@pytest.mark.parametrize("name", catalogue())
def test_our_environments_have_no_findings(name):
    report = check(name, isolate=False)
    assert report.errors + report.warnings == ()
    assert report.ours


@pytest.mark.parametrize("name", [*ELSEWHERE, *TEAMS])
def test_well_known_environments_have_no_errors(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log into it
    for library in NEEDS.get(name, ()):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed; the extra that has it is optional")
    report = check(name)
    assert report.errors == (), str(report)
    assert not report.ours
    assert report.kind == dict(zip(TEAMS, ("parallel", "aec"), strict=True)).get(name, "gym")
    assert "fresh-process" in report.held


def test_the_fuzz_says_how_far_it_went(monkeypatch):
    assert check("CartPole-v1", isolate=False).held["honest-spaces"] == "10 000 steps"
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    assert " steps in 0." in check("CartPole-v1", isolate=False).held["honest-spaces"]


def test_findings_are_reported_as_they_are_found(short_fuzz):
    events = []
    report = check(target(PLANTED[0].env), isolate=False, report=events.append)
    starts = [e.check for e in events if isinstance(e, Started)]
    first = next(i for i, e in enumerate(events) if isinstance(e, Finding) and e.level == ERROR)
    assert starts.index("finite") > 0
    assert first < next(i for i, e in enumerate(events) if e == Started("finite"))
    assert [e for e in events if isinstance(e, Finding) and e.level in (ERROR, WARNING)] == [
        *(f for f in report.findings if f.level in (ERROR, WARNING))
    ]
    assert any(isinstance(e, Held) for e in events)


def test_an_environment_that_exists_is_checked_by_its_copies(short_fuzz):
    from .broken import NaNReward, Sound

    assert check(Sound()).errors == ()
    found = check(NaNReward()).errors[0]
    assert (found.check, found.step, found.environment) == ("finite", 3, "NaNReward")
    assert check(gymnasium.make("CartPole-v1"), isolate=False).environment == "CartPole-v1"


def test_classes_functions_and_batch_environments_are_targets(short_fuzz):
    from .broken import Sound, SoundRows, SoundTeam

    assert check(Sound, isolate=False).holds(strict=True)
    assert check(lambda: SoundTeam(), isolate=False).kind == "parallel"
    report = check(SoundRows(3, horizon=15), isolate=False)
    assert report.ours
    assert report.holds(strict=True)


def test_a_class_of_a_file_that_no_path_leads_to_is_named_by_the_file(tmp_path, short_fuzz):
    file = tmp_path / "lonely.py"
    file.write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("lonely_tests.lonely", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        assert reference_of(module.Sound) == f"{file}:Sound"
        assert "fresh-process" in check(module.Sound).held
    finally:
        del sys.modules[spec.name]
    assert reference_of(resolve("nmr-relax").make(1).__class__) == "palestra.envs.nmr.env:NMRRelax"
    assert reference_of(lambda: None) is None


def test_settings_reach_the_environment(short_fuzz):
    assert check(target(SOUND[-1]), settings={"horizon": 7}, isolate=False).errors == ()
    with pytest.raises(TypeError, match="horizn"):
        check(target(SOUND[-1]), settings={"horizn": 7})


def test_what_is_no_environment_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'CartPole-v1'"):
        check("CartPole-v")
    with pytest.raises(ImportError, match="no module"):
        check("a_module_that_is_not_there:Env")
    with pytest.raises(TypeError, match="allowed a target"):
        check(3, isolate=False)
    with pytest.raises(TypeError, match="builds a dict"):
        check(dict, isolate=False)
    with pytest.raises(ValueError, match="time_limit: got 0"):
        check("CartPole-v1", time_limit=0)


def test_one_line_in_anyones_test(short_fuzz):
    from palestra.testing import check as one_line

    assert one_line(target(SOUND[0]), isolate=False, strict=True).environment == "Sound"
    with pytest.raises(AssertionError, match="finite \\(episode 0, step 3, reward\\)"):
        one_line(f"{FILE}:NaNReward", isolate=False)
    only_warned = f"{FILE}:TakesAnything"
    one_line(only_warned, isolate=False)
    with pytest.raises(AssertionError, match="bad-actions"):
        one_line(only_warned, isolate=False, strict=True)


def test_a_check_leaves_the_random_state_of_its_caller_alone(short_fuzz):
    import random

    import numpy as np

    random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    check(f"{FILE}:SeedsTheGlobal", isolate=False)
    check(f"{FILE}:GlobalRandomLate")
    after = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert before == after


def test_palestra_make_views_are_environments_too(short_fuzz):
    view = palestra.make(target(SOUND[-1]))
    assert check(view, isolate=False).errors == ()


def test_a_part_that_does_not_repeat_is_not_compared_any_further(short_fuzz):
    report = check(target(PLANTED[10].env), isolate=False)
    assert [f.check for f in report.errors] == ["determinism"]
    skipped = {f.check: f.message for f in report.findings if f.level == "not applicable"}
    assert "no course repeats" in skipped["shared-state"]
