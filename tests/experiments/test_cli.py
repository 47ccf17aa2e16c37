"""The command line: what it prints where, its exit codes, and what it says to mistakes."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import palestra
from palestra import store
from palestra.envs import CATALOGUE
from palestra.experiments import CATALOGUE as EXPERIMENTS
from palestra.experiments import cli
from palestra.registry import catalogue, kebab, resolve
from palestra.rollout import evaluate
from palestra.store import RunFolder

ROOT = Path(__file__).parents[2]
TOYS = f"{ROOT / 'tests' / 'core' / 'toys.py'}:"
DRIFT = TOYS + "Drift"
TINY = [
    "--set", "rows=8", "--set", "evaluate_every=64", "--set", "evaluation_episodes=8",
    "--set", "hyperparameters.n_steps=8", "--set", "hyperparameters.batch_size=32",
    "--set", "hyperparameters.policy_kwargs.net_arch=[8]",
]  # fmt: skip
COMMANDS = (
    "anchors", "check", "cite", "compare", "dataset", "evaluate", "export", "info", "list", "merge",
    "new-env", "replay", "report", "results", "run", "sweep", "train", "verify", "version",
    "warmup", "watch",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_machine():
    """Asking the machine what it is takes longer than most commands here."""
    known = store.machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "machine", lambda: known)
        yield


@pytest.fixture
def palestra_command(capfd, tmp_path, monkeypatch):
    """Run a command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


@pytest.fixture
def document(palestra_command):
    """Run a command with --json: its one document, after checking that it holds."""

    def run(*arguments: str) -> dict:
        code, out, _ = palestra_command(*arguments, "--json")
        assert code == 0

        def refuse(name):
            raise AssertionError(f"{name} is not JSON")

        return json.loads(out, parse_constant=refuse)

    return run


# --- what ships with an environment ---------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_environment_is_cited_in_bibtex(palestra_command, document, name):
    code, out, err = palestra_command("cite", name)
    assert (code, err) == (0, "")
    assert out.startswith("@software{palestra,")
    assert out.count("@") >= 2
    keys = [entry["key"] for entry in document("cite", kebab(name))]
    assert keys[0] == "palestra"
    assert all(f"{{{key}," in out for key in keys)


def test_tuned_options_are_those_of_the_file_and_may_be_overridden(document, tmp_path):
    from palestra.config import load_config
    from palestra.shipped import shelf_of

    changed = ["rows=8", "evaluate_every=128", "evaluation_episodes=8",
               "hyperparameters.batch_size=32"]  # fmt: skip
    small = ["--steps", "256", "--seed", "3", *(f"--set={change}" for change in changed)]
    folder = document("train", "nmr-relax", "--tuned", *small, "--quiet")["folder"]
    config = RunFolder.open(folder).config
    tuned = load_config(shelf_of(resolve("NMRRelax")).tuned_for("ppo"))
    assert config["hyperparameters"] == tuned["hyperparameters"] | {"batch_size": 32}
    assert (config["steps"], config["seed"], config["rows"]) == (256, 3, 8)


def test_tuned_options_that_are_not_there_are_said(palestra_command, tmp_path):
    code, _, err = palestra_command("train", "CartPole-v1", "--tuned")
    assert (code, err) == (2, "palestra: CartPole-v1 has no tuned options for 'ppo'\n")
    code, _, err = palestra_command("train", "--tuned")
    assert (code, err.startswith("palestra: environment: not given")) == (2, True)
    (tmp_path / "a.toml").write_text("steps = 3\n")
    code, _, err = palestra_command("train", "nmr-relax", "--tuned", "--config", "a.toml")
    assert (code, "beside --tuned" in err) == (2, True)


def test_results_need_anchors_and_tuned_options(palestra_command):
    code, _, err = palestra_command("results", "CartPole-v1")
    assert (code, "has no anchors" in err) == (2, True)


def test_results_are_written_by_the_runs(document, tmp_path, monkeypatch):
    """The whole chain, with a shelf and options of its own, so that nothing shipped is touched."""
    from palestra import shipped
    from palestra.experiments import results

    real = shipped.shelf_of(resolve("NMRRelax"))
    (tmp_path / "data" / "tuned").mkdir(parents=True)
    tiny = "steps = 256\nrows = 8\nevaluate_every = 128\nevaluation_episodes = 8\n"
    (tmp_path / "data/tuned/NMRRelax-ppo.toml").write_text(
        tiny + "[hyperparameters]\nn_steps = 8\nbatch_size = 32\n"
    )
    monkeypatch.setattr(results, "shelf_of", lambda t: real._replace(folder=tmp_path / "data"))
    found = document(
        "results", "nmr-relax", "--runs", "2", "--episodes", "64", "--pages", "pages", "--quiet"
    )
    page = (tmp_path / "pages" / "nmr-relax.md").read_text()
    assert page == results.page(found)
    assert json.loads((tmp_path / "pages" / "nmr-relax.json").read_text()) == found
    names = [row["policy"] for row in found["rows"]]
    assert names == ["random", "wait", "deft", "deft-compensated", "ppo, 2 training runs"]
    both = [run["estimate"] for run in found["learned"]["ppo"]]
    assert found["rows"][-1]["estimate"] == pytest.approx(np.mean(both), rel=1e-12)
    assert found["rows"][-1]["low"] is None  # two runs: points only
    deft = evaluate("deft", "NMRRelax", episodes=64, seed=2025).mean("time_to_equilibrium")
    assert found["rows"][2]["estimate"] == deft.estimate
    card = json.loads((tmp_path / "data/pretrained/NMRRelax/card.json").read_text())
    assert card["score"]["estimate"] in both
    again = evaluate(
        tmp_path / "data/pretrained/NMRRelax", "NMRRelax", episodes=64, seed=2025
    ).mean("time_to_equilibrium")
    assert again.estimate == card["score"]["estimate"]
    assert found["shipped"]["seed"] == card["training_seed"] in (10, 11)


# --- runs beside each other -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Trainings of two seeds, and evaluations of two policies on the same episodes."""
    from palestra.train import TrainConfig, train

    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        config = TrainConfig(
            environment="NMRRelax", steps=64, rows=8, evaluate_every=64, evaluation_episodes=8,
            seed=seed, hyperparameters={"n_steps": 8, "batch_size": 32},
        )  # fmt: skip
        train(config, root / f"ppo-{seed}")
    for policy in ("wait", "deft"):
        evaluate(policy, "NMRRelax", episodes=64, seed=7, run=root / policy)
    return root


def test_training_runs_are_compared_and_taken_away(palestra_command, document, two_runs, tmp_path):
    runs = [str(two_runs / f"ppo-{seed}") for seed in (0, 1)]
    found = document("compare", *runs, "--metric", "time_to_equilibrium")
    learner = found["learners"]["ppo"]
    assert learner["mean"]["estimate"] == pytest.approx(np.mean(learner["finals"]), rel=1e-12)
    assert learner["mean"]["low"] is None  # two runs: points only
    anchors = document("info", "nmr-relax")["anchors"]
    above = learner["mean"]["estimate"] - anchors["random"]
    assert learner["normalised"] == above / (anchors["bound"] - anchors["random"])
    assert document("compare", *runs)["learners"]["ppo"]["normalised"] is None  # of the return
    for out in ("table.tex", "table.csv", "table.md"):
        code, text, _ = palestra_command(
            "compare", *runs, "--metric", "time_to_equilibrium", "--out", out, "--plot", "c.svg"
        )
        assert code == 0
        assert "ppo" in text
        assert "ppo" in (tmp_path / out).read_text()
    row = (tmp_path / "table.csv").read_text().splitlines()[1].split(",")
    assert float(row[3]) == learner["mean"]["estimate"]
    assert float(row[-3]) == learner["normalised"]
    assert (tmp_path / "c.svg").read_bytes().startswith(b"<?xml")
    document("compare", *runs, "--metric", "time_to_equilibrium", "--plot", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f'<data value="{learner["mean"]["estimate"]!r}">' in page
    assert "application/json" in page


def test_evaluations_are_compared_without_playing(document, two_runs, tmp_path):
    folders = [str(two_runs / policy) for policy in ("wait", "deft")]
    read = document("compare", *folders, "--metric", "Mz", "--plot", "p.png")
    played = document("compare", "nmr-relax", "wait", "deft", "--episodes", "64", "--seed", "7",
                      "--metric", "Mz", "--out", "t.csv", "--quiet")  # fmt: skip
    assert read["differences"] == played["differences"]
    for policy in ("wait", "deft"):
        assert read["policies"][policy]["means"] == played["policies"][policy]["means"]
        assert read["policies"][policy]["normalised"] == played["policies"][policy]["normalised"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "t.csv").is_dir()


def test_what_cannot_be_compared_ends_with_two(palestra_command, two_runs):
    run, wait = str(two_runs / "ppo-0"), str(two_runs / "wait")
    for arguments, said in (
        ((run, wait), "never compared"),
        ((run, "--episodes", "5"), "--episodes: got 5, but run folders are not played"),
        ((run, "--out", "folder"), "allowed a table: .tex, .csv, .md"),
        ((run, "--plot", "x.gif"), "--plot: got x.gif"),
        (("nmr-relax", "wait", "--out", "t.xls"), "--out: got t.xls"),
        (("nmr-relax",), "policies: got none"),
        ((run, "nothing"), "nothing: not a run folder"),
    ):
        code, _, err = palestra_command("compare", *arguments)
        assert (code, said in err) == (2, True), err


# --- are they what was written? -------------------------------------------------------------------


def test_sound_runs_are_verified_and_damaged_ones_named(palestra_command, two_runs, tmp_path):
    shutil.copytree(two_runs, tmp_path / "runs")
    code, out, _ = palestra_command("verify", "runs")
    assert code == 0
    assert out.count("sound") == 4
    block = tmp_path / "runs" / "deft" / "episodes" / "00000000.parquet"
    block.write_bytes(block.read_bytes() + b" ")
    (weights,) = (tmp_path / "runs" / "ppo-0" / "checkpoints").glob("best-*/weights.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, out, _ = palestra_command("verify", "runs", "--json")
    assert code == 3
    problems = json.loads(out)["problems"]
    assert problems["runs/deft"] == ["episodes/00000000.parquet: SHA-256 differs from the manifest"]
    assert "weights.safetensors differs" in problems["runs/ppo-0"][0]
    assert problems["runs/wait"] == problems["runs/ppo-1"] == []
    (tmp_path / "runs" / "wait" / "run.json").write_text("{")
    assert palestra_command("verify", "runs/wait")[0] == 3
    (tmp_path / "nothing").mkdir()
    code, _, err = palestra_command("verify", "nothing")
    assert (code, "no run folder" in err) == (2, True)


# --- watching -------------------------------------------------------------------------------------


def test_a_video_is_saved_and_said(document, palestra_command, tmp_path):
    found = document("watch", "CartPole-v1", "--save", "film.mp4", "--episodes", "2", "--quiet")
    assert found["video"] == "film.mp4"
    assert found["bytes"] == (tmp_path / "film.mp4").stat().st_size > 1000
    assert found["film"] == "CartPole-v1 under random: episodes 0 to 1 of seed 0"
    code, out, _ = palestra_command("watch", "CartPole-v1", "--save", "film.gif", "--quiet")
    assert code == 0
    assert out.endswith("film.gif: CartPole-v1 under random: episode 0 of seed 0\n")


def test_watch_tells_what_it_has_played(palestra_command, document):
    counter = f"{TOYS}Counter"
    found = document("watch", counter, "--episodes", 2, "--save", "film.gif", "--quiet")
    played = [(e["episode"], e["return"], e["length"], e["count"]) for e in found["episodes"]]
    assert played == [(0, 3.0, 3, 3), (1, 3.0, 3, 3)]
    code, out, err = palestra_command(
        "watch", counter, "--episodes", 7, "--save", "film.mp4", "--quiet"
    )
    assert (code, err) == (0, "")
    assert "the first 6 of 7" in out
    assert "episode 5" in out
    assert "episode 6 " not in out


def test_without_display_terminal_or_file_nothing_can_be_watched(palestra_command, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    code, _, err = palestra_command("watch", "CartPole-v1")
    assert (code, "--save FILE.mp4" in err) == (2, True)
    code, _, err = palestra_command("watch", "CartPole-v1", "--save", "film.avi", "--quiet")
    assert (code, "suffix must be one of .mp4, .gif" in err) == (2, True)


def test_a_recorded_episode_is_saved_as_a_video(document, palestra_command, tmp_path):
    document("evaluate", "CartPole-v1", "--policy", "random", "--episodes", "4", "--seed", "0",
             "--out", "run", "--record", "--quiet")  # fmt: skip
    code, out, _ = palestra_command("replay", "run", "2", "--save", "film.mp4")
    assert (code, out.endswith("video: film.mp4\n")) == (0, True)
    assert document("replay", "run", "2", "--save", "film.mp4")["video"] == "film.mp4"
    assert (tmp_path / "film.mp4").stat().st_size > 1000


# --- help and lists -------------------------------------------------------------------------------


def test_every_command_has_a_help_text(palestra_command):
    assert set(COMMANDS) <= {c.name or c.callback.__name__ for c in cli.app.registered_commands}
    code, out, _ = palestra_command("--help")
    assert code == 0
    for command in cli.app.registered_commands:
        name = command.name or command.callback.__name__
        assert name in out
        code, text, err = palestra_command(name, "--help")
        assert (code, err) == (0, "")
        assert text.startswith(f"Usage: palestra {name}")
        assert command.callback.__doc__.split("\n")[0].split(";")[0] in " ".join(text.split())


def test_without_a_command_the_help_is_shown(palestra_command):
    code, out, err = palestra_command()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: palestra [OPTIONS] COMMAND")


def test_everything_that_there_is_is_listed(palestra_command, document):
    code, out, err = palestra_command("list")
    assert (code, err) == (0, "")
    for entry in CATALOGUE:
        assert entry.id in out
        assert kebab(entry.name) in out
    assert "nmr-relax" in out
    listed = document("list")
    assert [e["id"] for e in listed["environments"]] == [e.id for e in CATALOGUE]
    assert listed["experiments"] == sorted(EXPERIMENTS)
    assert {"random", "wait", "deft"} <= set(listed["policies"])


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Two distributions on the path: one sound, one whose module does not import."""
    place = tmp_path / "site"
    for name, text in (
        ("sound", "from palestra.gym_batch import GymBatch\nEnv = GymBatch\n"),
        ("broken", "import a_library_that_is_not_there\n"),
    ):
        info = place / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}-plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[palestra.envs]\n{name}-env = {name}_mod:Env\n")
        (place / f"{name}_mod.py").write_text(text)
    monkeypatch.syspath_prepend(place)
    importlib.invalidate_caches()
    return place


def test_plugins_are_listed_from_metadata_and_broken_ones_are_shown_by_check(
    palestra_command, plugins, document
):
    code, out, _ = palestra_command("list")
    assert code == 0
    assert "broken-plugin" in out
    assert "a_library_that_is_not_there" not in out
    assert "broken_mod" not in sys.modules
    code, out, _ = palestra_command("list", "--check")
    assert code == 1
    assert "broken: ModuleNotFoundError: No module named 'a_library_that_is_not_there'" in out
    code, out, _ = palestra_command("list", "--check", "--json")
    assert code == 1
    problems = {p["name"]: p["problem"] for p in json.loads(out)["plugins"]}
    assert problems["sound-env"] == ""
    assert "not_there" in problems["broken-env"]
    code, _, err = palestra_command("info", "broken-env")
    assert code == 2
    assert "a_library_that_is_not_there" in err


def test_an_environment_is_described(palestra_command, document):
    for name in ("NMRRelax", "nmr-relax", "palestra/NMRRelax-v0", "palestra/NMRRelax"):
        assert document("info", name)["name"] == "NMRRelax"
    described = document("info", DRIFT, "--set", "gain=0.25", "--set", "horizon=7")
    assert described["horizon"] == 7
    assert described["settings"] == ["horizon", "gain"]
    assert described["metrics"] == ["distance", "crossings"]
    assert described["action_space"] == "Box(-1.0, 1.0, (1,), float32)"
    assert described["doc"].startswith("A noisy integrator")
    assert document("info", "CartPole-v1")["doc"].strip().startswith("## Description")
    code, out, _ = palestra_command("info", DRIFT)
    assert code == 0
    assert "noisy integrator" in out


def test_versions_are_printed_for_a_bug_report(palestra_command, document):
    assert document("version")["libraries"]["palestra"] == palestra.__version__
    code, out, _ = palestra_command("version")
    assert code == 0
    assert f"python: {sys.version.split()[0]}" in out


def test_kernels_are_compiled_ahead_of_time(palestra_command, document):
    code, out, _ = palestra_command("warmup", DRIFT, "nmr-relax")
    assert code == 0
    assert len(out.splitlines()) == 2
    assert document("warmup", DRIFT)["seconds"][DRIFT] < 5


# --- evaluating -----------------------------------------------------------------------------------


def test_an_evaluation_prints_means_with_intervals_and_its_seed(palestra_command, document):
    said = document("evaluate", DRIFT, "--policy", "random", "--episodes", "40", "--seed", "3")
    assert (said["seed"], said["episodes"]) == (3, 40)
    played = evaluate("random", DRIFT, episodes=40, seed=3)
    means = said["policies"]["random"]["means"]
    assert set(means) == set(played.table.column_names) - {"episode"}
    for name, mean in means.items():
        expected = played.mean(name)
        assert (mean["estimate"], mean["low"], mean["high"]) == (
            expected.estimate, expected.low, expected.high,
        )  # fmt: skip
    code, out, _ = palestra_command(
        "evaluate", DRIFT, "--policy", "random", "--episodes", "40", "--seed", "3"
    )
    assert code == 0
    assert "40 episodes of seed 3" in out
    assert f"{played.mean().estimate:.6g}" in out
    unseeded = document("evaluate", DRIFT, "--policy", "random", "--episodes", "5")
    again = document(
        "evaluate", DRIFT, "--policy", "random", "--episodes", "5", "--seed", str(unseeded["seed"])
    )
    assert again == unseeded


def test_settings_width_and_sampling_reach_the_evaluation(document):
    still = document(
        "evaluate", DRIFT, "--policy", "random", "--episodes", "8", "--seed", "1", "--width", "4",
        "--set", "gain=0", "--set", "max_episode_steps=3", "--stochastic", "--out", "run",
    )  # fmt: skip
    assert still["policies"]["random"]["means"]["length"]["estimate"] == 3
    config = RunFolder.open("run").config
    assert (config["width"], config["deterministic"]) == (4, False)
    assert config["settings"] == {"gain": 0, "max_episode_steps": 3}


def test_a_comparison_is_paired(tmp_path, palestra_command, document):
    np.savetxt(tmp_path / "soft.csv", [[0.2, 0.0]], delimiter=",")
    np.savetxt(tmp_path / "hard.csv", [[0.4, 0.0]], delimiter=",")
    arguments = ("compare", DRIFT, "soft.csv", "hard.csv", "--episodes", "60", "--seed", "2")
    said = document(*arguments)
    assert list(said["policies"]) == ["soft", "hard"]
    means = {name: p["means"]["return"]["estimate"] for name, p in said["policies"].items()}
    paired = said["differences"]["hard"]
    assert paired["difference"]["estimate"] == pytest.approx(means["hard"] - means["soft"])
    assert paired["variance_ratio"] > 1
    code, out, _ = palestra_command(*arguments, "--metric", "distance", "--out", "runs")
    assert code == 0
    assert "hard - soft" in out
    assert "variance ratio" in out
    assert sorted(p.name for p in Path("runs").iterdir()) == ["hard", "soft"]


def test_the_normalised_score_stands_between_the_anchors(document):
    """0 is the random policy, 1 the bound (or the best classical policy)."""
    name = next((n for n in catalogue() if document("info", n)["anchors"]), None)
    if name is None:
        pytest.skip("no environment has anchors yet")
    anchors = document("info", name)["anchors"]
    said = document("evaluate", name, "--policy", "random", "--episodes", "200", "--seed", "0")
    policy = said["policies"]["random"]
    best = anchors["bound"] if anchors["bound"] is not None else anchors["classical"]
    score = policy["means"][anchors["metric"]]["estimate"]
    expected = (score - anchors["random"]) / (best - anchors["random"])
    assert policy["normalised"] == pytest.approx(expected)
    assert abs(policy["normalised"]) < 0.2


def test_a_metric_that_is_no_number_in_some_episodes_is_shown_as_such(document, palestra_command):
    metric = ("--set", 'metrics=["nowhere"]', "--episodes", "6", "--seed", "1")
    said = document("evaluate", "CartPole-v1", "--policy", "random", *metric)
    assert said["policies"]["random"]["means"]["nowhere"] is None
    code, out, _ = palestra_command("evaluate", "CartPole-v1", "--policy", "random", *metric)
    assert code == 0
    assert "nowhere" in out


# --- training and reports -------------------------------------------------------------------------


def test_train_evaluate_and_report(palestra_command, document):
    trained = document("train", DRIFT, "--steps", "128", "--seed", "4", *TINY)
    assert trained["folder"] == str(Path("runs") / "drift-ppo-seed4")
    assert [p["steps"] for p in trained["curve"]] == [0, 64, 128]
    again = document("train", DRIFT, "--steps", "128", "--seed", "4", *TINY)
    assert again == trained
    copied = document("train", "--config", f"{trained['folder']}/config.toml", "--out", "copy")
    assert copied["curve"] == trained["curve"]
    code, out, _ = palestra_command("train", DRIFT, "--steps", "128", "--seed", "4", *TINY)
    assert code == 0
    assert "return on held-out episodes" in out
    best = max(p["mean"] for p in trained["curve"])
    played = document(
        "evaluate", DRIFT, "--policy", trained["folder"], "--episodes", "8", "--seed", "1000003",
        "--out", "ev",
    )  # fmt: skip
    (policy,) = played["policies"].values()
    assert policy["means"]["return"]["estimate"] == best
    for folder in (trained["folder"], "ev"):
        assert document("report", folder) == {"report": str(Path(folder) / "report.html")}
        assert "<html" in (Path(folder) / "report.html").read_text(encoding="utf-8")
    code, out, _ = palestra_command("report", "ev", "--out", "page.html")
    assert (code, out.strip()) == (0, "page.html")


SPACE = """
[hyperparameters]
learning_rate = {low = 1e-4, high = 1e-2, log = true}
policy_kwargs.net_arch = [[8], [4, 4]]
"""


def test_sweep_train_the_best_and_report(palestra_command, document):
    Path("space.toml").write_text(SPACE)
    command = (
        "sweep", DRIFT, "--space", "space.toml", "--trials", "2", "--seed", "3", "--confirm", "1",
        "--set", "steps=128", *TINY,
    )  # fmt: skip
    found = document(*command)
    folder = Path("runs") / "drift-ppo-random-seed3"
    assert found["folder"] == str(folder)
    assert [trial["status"] for trial in found["trials"]] == ["finished", "finished"]
    assert found["best"]["score"] == max(trial["score"] for trial in found["trials"])
    assert found["confirmation"]["trial"] == found["best"]["number"]
    assert document(*command) == found

    trained = document("train", "--config", folder / "best.toml", "--out", "best")
    assert trained["curve"][-1]["mean"] == found["best"]["score"]
    code, out, _ = palestra_command(*command)
    assert code == 0
    for text in ("finished (best)", "best of 2, same episodes", "again, seed 1, other episodes"):
        assert text in out
    for run in (folder, folder / "trials" / "0001", folder / "confirm" / "0000"):
        assert document("report", run) == {"report": str(run / "report.html")}
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in ("return by hyperparameters.learning_rate", "too good on average"):
        assert text in page


def test_a_sweep_in_which_all_trials_fail_ends_with_code_1(palestra_command):
    Path("space.toml").write_text("[settings]\nlast = [2, 3]\n")
    command = (
        "sweep", f"{TOYS}Breaking", "--space", "space.toml", "--sampler", "grid",
        "--set", "steps=128", *TINY, "--out", "run",
    )  # fmt: skip
    code, out, _ = palestra_command(*command)
    assert code == 1
    assert "failed: RuntimeError: the motor is off" in out
    code, _, err = palestra_command("report", "run")
    assert (code, "no trial has finished yet" in err) == (2, True)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("trials.json", lambda d: d["trials"][0].update(score=None)),
        ("trials.json", lambda d: d["trials"][0]["parameters"].update({"steps": 64})),
        ("trials.json", lambda d: d["trials"].__setitem__(0, 3)),
        ("run.json", lambda d: d["config"].update(space={"steps": 3})),
        ("run.json", lambda d: d["config"].update(direction="up")),
        ("confirmation.json", lambda d: d.update(seeds="many")),
    ],
)
def test_a_damaged_sweep_is_named_by_its_file(palestra_command, file, change):
    trial = {"number": 0, "parameters": {"steps": 128}, "status": "finished", "score": 1.0}
    documents = {
        "trials.json": {
            "schema": "palestra.trials/1", "metric": "return", "direction": "max", "best": 0,
            "trials": [trial],
        },
        "confirmation.json": {
            "trial": 0, "evaluation_seed": 1, "seeds": [2], "runs": [trial], "mean": None,
        },
    }  # fmt: skip
    RunFolder.create_or_resume(
        "run",
        {
            "kind": "sweep", "training": {}, "space": {"steps": [128]}, "sampler": "grid",
            "trials": 1, "seed": 0, "metric": "return", "direction": "max",
        },
    )  # fmt: skip
    documents["run.json"] = json.loads(Path("run/run.json").read_bytes())
    for name, content in documents.items():
        Path("run", name).write_text(json.dumps(content))
    code, _, err = palestra_command("report", "run")
    assert (code, err) == (0, "")
    change(documents[file])
    Path("run", file).write_text(json.dumps(documents[file]))
    code, _, err = palestra_command("report", "run")
    assert code == 3
    assert file in err


def test_what_stands_on_the_command_line_wins_over_the_file(document):
    Path("train.toml").write_text(
        f'environment = "{DRIFT}"\nsteps = 1000000\nseed = 9\nrows = 8\nevaluate_every = 64\n'
        "evaluation_episodes = 8\n[hyperparameters]\nn_steps = 8\nbatch_size = 32\n"
    )
    said = document("train", "--config", "train.toml", "--steps", "64", "--set", "seed=5")
    assert said["curve"][-1]["steps"] == 64
    assert said["folder"].endswith("drift-ppo-seed5")
    config = RunFolder.open(said["folder"]).config
    assert (config["steps"], config["seed"], config["hyperparameters"]["n_steps"]) == (64, 5, 8)


# --- mistakes -------------------------------------------------------------------------------------

EVALUATE = ("evaluate", DRIFT, "--policy", "random")
HUGE = str(10**400)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("lst",), "No such command 'lst'. Did you mean 'list'?"),
        (("evaluate", DRIFT), "Missing option '--policy'. (see palestra evaluate --help)"),
        ((*EVALUATE, "--episodes", "many"), "--episodes"),
        ((*EVALUATE, "--episods", "3"), "No such option: --episods"),
        ((*EVALUATE, "--episodes", "0"), "episodes: got 0, allowed an integer of at least 1"),
        ((*EVALUATE, "--set", "gian=1"), "no setting 'gian' (did you mean 'gain'?)"),
        ((*EVALUATE, "--set", "gain"), "--set gain: must be key=value"),
        ((*EVALUATE, "--seed", "-1"), "seed: got -1"),
        (("evaluate", DRIFT, "--policy", "randm"), "did you mean 'random'?"),
        (("evaluate", DRIFT, "--policy", "runs/none"), "there is no 'runs/none'"),
        (("info", "nmr-relx"), "nothing is called 'nmr-relx' (did you mean 'nmr-relax'?)"),
        (("info", "palestra/NMRRelax-v7"), "the version that ships is 'palestra/NMRRelax-v0'"),
        (("info", "nowhere.py:Env"), "there is no file"),
        (("info", TOYS + "Drft"), "did you mean 'Drift'?"),
        (("info", "nowhere_at_all:Env"), "there is no module 'nowhere_at_all' to import"),
        (("compare", DRIFT, "random", "--metric", "distanc"), "did you mean 'distance'?"),
        (("train",), "environment: not given"),
        (("train", DRIFT, "--algorithm", "poo"), "algorithm: got 'poo'"),
        (("train", DRIFT, "--set", "rowz=3"), "unknown key 'rowz': did you mean 'rows'?"),
        (("train", DRIFT, "--set", "rows=3.5"), "rows = 3.5: must be a whole number"),
        (("train", DRIFT, "--config", "none.toml"), "none.toml: cannot be read"),
        (
            ("train", DRIFT, "--set", "hyperparameters.gama=1"),
            "PPO has no 'gama' (did you mean 'gamma'?)",
        ),
        (("report", "nowhere"), "nowhere: not a run folder"),
        ((*EVALUATE, "--set", "rows=3"), "rows: got 3 as a setting of Drift, which it is not"),
        ((*EVALUATE, "--set", "wrappers=3"), "wrappers: got 3, allowed a list of names"),
        ((*EVALUATE, "--set", "wrappers=clip-actions"), "wrappers: got 'clip-actions', allowed a"),
        ((*EVALUATE, "--set", 'wrappers=["clip"]'), "wrappers: got 'clip'"),
        (("info", DRIFT, "--set", "rows=3"), "rows: got 3 as a setting of Drift"),
        (("info", "..:x"), "'..' is not the name of a module; allowed names joined by single dots"),
        (("info", "os.:path"), "'os.' is not the name of a module"),
        (("info", "os:..path"), "'os:..path': expected module:name"),
        (("train", DRIFT, "--device", "tpu"), "device: got 'tpu', allowed cpu, cuda, cuda:N, mps"),
        (("train", DRIFT, "--set", "policy=Foo"), "policy: got 'Foo'. Allowed for PPO: auto, Mlp"),
        (
            ("train", DRIFT, "--set", "hyperparameters.gamma=abc"),
            "hyperparameters.gamma: got 'abc', allowed a number",
        ),
        (
            ("train", DRIFT, "--set", f"hyperparameters.gamma={HUGE}"),
            "hyperparameters.gamma: got 1000",
        ),
        (("train", DRIFT, "--set", f"steps={HUGE}"), "must be a whole number of at most 64 bits"),
        (("train", DRIFT, "--set", f"a.b={'[' * 90}{']' * 90}"), "nested too deeply; allowed 62"),
        (("evaluate", "CartPole-v1", "--policy", "deft"), "policy deft: observation space differs"),
        (("train", DRIFT, "--set", "rows=1048577"), "rows: got 1048577, allowed at most 1048576"),
        ((*EVALUATE, "--width", "1048577"), "width: got 1048577, allowed at most 1048576"),
        (("run", "nmr-relx"), "there is no 'nmr-relx' (did you mean 'nmr-relax'?)"),
        (("run", "nmr-relax", "--preset", "smok"), "preset: got 'smok', allowed full, smoke"),
        (("run", "nmr-relax", "--set", "smaple=oil"), "did you mean 'sample'?"),
        (("anchors", DRIFT), "not of the catalogue"),
    ],
    ids=lambda value: " ".join(a for a in value if "/" not in a) if type(value) is tuple else "",
)
def test_a_mistake_gets_one_line_and_exit_code_2(palestra_command, arguments, says):
    code, out, err = palestra_command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("palestra: ")
    assert says in err
    assert len(err.splitlines()) == 1
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_function_that_builds_no_environment_is_refused(palestra_command):
    Path("mine.py").write_text("number = lambda rows: 3\n")
    for command in (("info", "mine.py:number"), ("evaluate", "mine.py:number", *EVALUATE[2:])):
        code, out, err = palestra_command(*command)
        assert (code, out) == (2, "")
        assert "builds an int; a target with rows builds a BatchEnv" in err


def test_a_refused_training_does_not_stand_in_the_way_of_the_corrected_one(palestra_command):
    tiny = ("train", DRIFT, "--steps", "64", *TINY)
    for mistake in ("device=tpu", "policy=Foo", "hyperparameters.gamma=abc", 'wrappers=["no"]'):
        code, _, _ = palestra_command(*tiny, "--set", mistake)
        assert code == 2
    assert palestra_command(*tiny)[0] == 0


def test_a_refused_evaluation_does_not_stand_in_the_way_of_the_corrected_one(palestra_command):
    Path("mine.py").write_text("def f(x):\n    return x\n")
    code, _, err = palestra_command("evaluate", DRIFT, "--policy", "mine.py:f", "--out", "run")
    assert code == 2
    assert "shape" in err
    assert not Path("run").exists()
    assert palestra_command(*EVALUATE, "--episodes", "8", "--out", "run")[0] == 0


def test_a_refused_experiment_does_not_stand_in_the_way_of_the_corrected_one(palestra_command):
    command = ("run", "nmr-relax", "--preset", "smoke", "--out", "run", "--set")
    code, _, err = palestra_command(*command, "hyperparameters.gamma=abc")
    assert code == 2
    assert "hyperparameters.gamma: got 'abc', allowed a number" in err
    assert not Path("run").exists()


def test_a_wrapper_that_makes_no_environment_is_refused(palestra_command):
    code, out, err = palestra_command(*EVALUATE, "--set", 'wrappers=["builtins:str"]')
    assert (code, out) == (2, "")
    assert "wrappers: 'builtins:str' makes a str; a wrapper makes a BatchEnv" in err


def edited(name: str, change) -> None:
    """Change a JSON file that stands there."""
    document = json.loads(Path(name).read_text())
    change(document)
    Path(name).write_text(json.dumps(document))


RUN_MISTAKES = [  # key of the document or of its config, value (None: taken away), what is said
    ("machine", None, "config.machine is missing: must be a table"),
    ("machine", "x", "config.machine = 'x': must be a table"),
    ("kind", None, "config.kind = None: must be one of training, evaluation, experiment"),
    ("kind", ["training"], "config.kind = ['training']: must be one of"),
    ("environment", 3, "config.environment = 3: must be a string"),
    ("seed", "x", "config.seed = 'x': must be a whole number"),
    ("seed", -1, "config.seed = -1: must be from 0 to"),
    ("episodes", {}, "config.episodes = {}: must be a whole number"),
    ("episodes", 0, "config.episodes = 0: must be 1 or more"),
    ("episodes", 8.0, "config.episodes = 8.0: must be a whole number"),
    ("block", None, "config.block is missing: must be a whole number"),
    ("settings", [], "config.settings = []: must be a table"),
    ("schema", "foo", "schema is 'foo', expected 'palestra.run/1'"),
    ("schema", None, "schema is None, expected 'palestra.run/1'"),
    ("schema", "palestra.run/2", "schema 'palestra.run/2' is newer than"),
    ("config", 3, "config = 3: must be a table"),
]


def spoiled(key: str, value) -> None:
    def change(document):
        table = document if key in ("schema", "config") else document["config"]
        table.pop(key) if value is None else table.update({key: value})

    edited("run/run.json", change)


@pytest.mark.parametrize(("key", "value", "says"), RUN_MISTAKES, ids=lambda v: str(v)[:20])
def test_every_reader_of_a_run_names_file_and_field_of_a_malformed_one(
    palestra_command, document, key, value, says
):
    again = (*EVALUATE, "--episodes", "8", "--seed", "1", "--out", "run")
    document(*again)
    spoiled(key, value)
    code, out, err = palestra_command("report", "run")
    assert (code, out) == (3, "")
    assert f"run/run.json: {says}" in err
    if key != "kind":  # then it is a run of somebody else's
        code, out, err = palestra_command(*again)
        assert (code, out) == (3, "")
        assert f"run/run.json: {says}" in err


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("wrappers", 3, "config.wrappers = 3: must be a list, each a string"),
        ("algorithm", None, "config.algorithm is missing: must be a string"),
        ("evaluation_episodes", "many", "config.evaluation_episodes = 'many': must be a whole"),
        ("hyperparameters", 3, "config.hyperparameters = 3: must be a table"),
    ],
)
def test_the_fields_of_a_training_are_named_too(palestra_command, document, key, value, says):
    document("train", "NMRRelax", "--steps", "64", *TINY, "--out", "run")
    spoiled(key, value)
    for command in (("report", "run"), ("evaluate", "NMRRelax", "--policy", "run")):
        code, out, err = palestra_command(*command)
        assert (code, out) == (3, "")
        assert f"run/run.json: {says}" in err


def test_settings_in_a_run_folder_that_no_environment_takes_are_its_fault(
    palestra_command, document
):
    document("train", "NMRRelax", "--steps", "64", *TINY, "--out", "run")
    spoiled("settings", {"smaple": 1})
    code, out, err = palestra_command("report", "run")
    assert (code, out) == (3, "")
    assert "run/run.json: " in err
    assert "no setting 'smaple' (did you mean 'sample'?)" in err


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("experiment", None, "config.experiment is missing: must be a string"),
        ("experiment", "nmr-relx", "did you mean 'nmr-relax'?"),
        ("options", 3, "config.options = 3: must be a table"),
        ("options", {"smaple": "oil"}, "unknown key 'smaple': did you mean 'sample'?"),
        ("options", {"runs": "x"}, "runs = 'x': must be a whole number"),
    ],
)
def test_the_fields_of_an_experiment_are_named_too(palestra_command, key, value, says):
    config = {"kind": "experiment", "experiment": "nmr-relax", "options": {}}
    folder = RunFolder.create_or_resume("run", config)
    with folder.lock():
        folder.finish()
    spoiled(key, value)
    code, out, err = palestra_command("report", "run")
    assert (code, out) == (3, "")
    assert "run/run.json: " in err
    assert says in err


def test_a_missing_best_policy_is_said(palestra_command, document):
    document("train", DRIFT, "--steps", "64", *TINY, "--out", "run")
    (best,) = Path("run/checkpoints").glob("best-*")
    shutil.rmtree(best)
    with pytest.warns(UserWarning, match="best policy .* is missing or damaged; the last"):
        code, _, _ = palestra_command("evaluate", DRIFT, "--policy", "run", "--episodes", "8")
    assert code == 0


def test_a_learned_policy_of_another_environment_names_both_spaces(palestra_command, document):
    document("train", DRIFT, "--steps", "64", *TINY, "--out", "run")
    for target, ours in (("CartPole-v1", "(2,)"), ("Pendulum-v1", "(2,)")):
        code, out, err = palestra_command("evaluate", target, "--policy", "run")
        assert (code, out) == (2, "")
        assert "policy run: observation space differs from the environment's: the policy has" in err
        assert f"{ours}, float32), the environment Box(" in err


def test_a_run_folder_of_another_run_is_refused(palestra_command, document):
    document(*EVALUATE, "--episodes", "8", "--seed", "1", "--out", "run")
    code, _, err = palestra_command(*EVALUATE, "--episodes", "9", "--seed", "1", "--out", "run")
    assert code == 2
    assert "holds another run; these differ: episodes (8 there, 9 asked)" in err


@pytest.mark.parametrize("damaged", ["run.json", "episodes/00000000.parquet"])
def test_damaged_files_have_exit_code_3(palestra_command, document, damaged):
    document(*EVALUATE, "--episodes", "8", "--seed", "1", "--out", "run")
    file = Path("run") / damaged
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    code, out, err = palestra_command("report", "run")
    assert (code, out) == (3, "")
    assert damaged in err


def test_files_that_could_do_harm_have_exit_code_3(palestra_command):
    Path("model.pkl").write_bytes(b"\x80\x04N.")
    code, _, err = palestra_command("evaluate", DRIFT, "--policy", "model.pkl")
    assert code == 3
    assert "never loaded" in err


def test_a_run_that_is_not_finite_has_exit_code_1_and_no_hint_at_our_code(palestra_command):
    Path("mine.py").write_text("def f(x):\n    return x[:, :1] * float('nan')\n")
    code, _, err = palestra_command("evaluate", DRIFT, "--policy", "mine.py:f")
    assert code == 1
    assert "action is nan" in err
    assert "TRACEBACK" not in err


def test_our_own_mistakes_show_where_on_demand(palestra_command, monkeypatch):
    def mistaken():
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("palestra.machine.machine", mistaken)
    code, _, err = palestra_command("version")
    assert code == 1
    assert "ZeroDivisionError: ours" in err
    assert "PALESTRA_TRACEBACK=1" in err
    monkeypatch.setenv("PALESTRA_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["version"])


# --- as a process ---------------------------------------------------------------------------------


def heed_ctrl_c():
    """A suite that runs in the background inherits that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def process(*arguments: str, **keywords):
    return subprocess.Popen(
        [sys.executable, "-m", "palestra", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c if os.name == "posix" else None,
        **keywords,
    )


def test_python_m_palestra_is_the_command_line(tmp_path):
    with process("list", "--json", cwd=tmp_path) as running:
        out, err = running.communicate()
    assert (running.returncode, err) == (0, "")
    assert json.loads(out)["experiments"] == sorted(EXPERIMENTS)
    with process("info", "nmr-relx", cwd=tmp_path) as running:
        out, err = running.communicate()
    assert (running.returncode, out) == (2, "")
    assert "did you mean 'nmr-relax'?" in err


def test_a_warning_is_one_line(tmp_path, palestra_command):
    command = (*EVALUATE, "--episodes", "5", "--seed", "1", "--out", "run", "--json")
    assert palestra_command(*command)[0] == 0
    file = tmp_path / "run" / "run.json"
    document = json.loads(file.read_text())
    document["config"]["machine"]["libc"] = "another libc"
    file.write_text(json.dumps(document))
    (tmp_path / "run" / "manifest.json").unlink()  # it would tell that run.json was edited
    with process(*command, cwd=tmp_path) as running:
        out, err = running.communicate()
    assert json.loads(out)["episodes"] == 5
    assert err.startswith("palestra: run: began on another machine or with other libraries: ")
    assert "another libc" in err
    assert len(err.splitlines()) == 1


def test_progress_goes_to_stderr_and_one_document_to_stdout(tmp_path):
    """Ten-second lines, brought forward: every advance is old enough."""
    script = (
        "import sys; from palestra import progress;"
        "progress._lines.__defaults__ = (0.0,);"
        "from palestra.experiments.cli import main; sys.exit(main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, *EVALUATE, "--episodes", "9", "--seed", "1", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ran.stdout)["episodes"] == 9
    assert "100 % after" in ran.stderr
    quiet = subprocess.run(
        [sys.executable, "-c", script, *EVALUATE, "--episodes", "9", "--seed", "1", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert quiet.stderr == ""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupted_training_says_so_and_the_same_command_goes_on(tmp_path, number, code):
    # long enough to be interrupted, with a checkpoint every 64 steps
    command = ("train", DRIFT, "--steps", "200000", "--out", "run", *TINY)
    with process(*command, "--quiet", cwd=tmp_path) as running:
        until = time.monotonic() + 120
        while len(list(tmp_path.glob("run/checkpoints/step-*"))) < 2:
            assert time.monotonic() < until, running.communicate()
            assert running.poll() is None, running.communicate()
            time.sleep(0.05)
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert running.returncode == code
    assert out == ""
    assert err == "palestra: interrupted; run the same command again to go on\n"
    folder = RunFolder.open(tmp_path / "run")
    assert not list((tmp_path / "run").rglob(".*"))  # neither lock nor temporaries
    stored = json.loads((folder.latest("step-") / "progress.json").read_text())
    script = (  # the same command, with an end in sight
        "import sys; from palestra import train;"
        "sb3 = train._train_sb3;"
        "done = lambda algorithm, config, folder, files, curve, progress, tell:"
        " print(len(curve), bool(files), algorithm.env is not None);"
        "train._train_sb3 = done;"
        "from palestra.experiments.cli import main; sys.exit(main())"
    )
    again = subprocess.run(
        [sys.executable, "-c", script, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.splitlines()[0] == f"{len(stored['curve'])} True True"


def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path):
    with process("list", "--json", cwd=tmp_path) as running:
        running.stdout.close()
        err = running.stderr.read()
        running.wait()
    assert err == ""
    assert running.returncode in (1, 141)


@pytest.mark.slow
def test_the_smoke_of_the_first_experiment_holds(tmp_path):
    start = time.monotonic()
    with process("run", "nmr-relax", "--preset", "smoke", "--json", cwd=tmp_path) as running:
        out, err = running.communicate()
    assert running.returncode == 0, err
    assert time.monotonic() - start < 300  # a minute on two idle cores
    said = json.loads(out)
    assert said["claims"]
    assert all(claim["holds"] is not False for claim in said["claims"])
    assert (tmp_path / said["folder"] / "report.html").is_file()


# --- export ---------------------------------------------------------------------------------------


def test_an_exported_policy_is_evaluated_like_the_original(palestra_command, document, tmp_path):
    (tmp_path / "K.csv").write_text("0.5, 0.01\n")
    code, out, _ = palestra_command("export", DRIFT, "--policy", "K.csv", "--out", "K.onnx")
    assert code == 0
    assert "1020 observations compared" in out
    returns = [
        document("evaluate", DRIFT, "--policy", file, "--episodes", "64", "--seed", "1", "--quiet")
        for file in ("K.csv", "K.onnx")
    ]
    original, exported = (
        d["policies"][file]["means"]["return"]["estimate"]
        for d, file in zip(returns, ("K.csv", "K.onnx"), strict=True)
    )
    assert exported == pytest.approx(original, rel=1e-6)


def test_what_cannot_be_exported_is_said_in_one_line(palestra_command, tmp_path):
    code, out, err = palestra_command("export", DRIFT, "--policy", "random")
    assert (code, out) == (2, "")
    assert "random numbers" in err
    (tmp_path / "bad.onnx").write_bytes(b"rubbish")
    code, _, err = palestra_command("evaluate", DRIFT, "--policy", "bad.onnx", "--episodes", "1")
    assert code == 3
    assert "not an ONNX model" in err


# --- check and new-env ----------------------------------------------------------------------------

BROKEN = f"{ROOT / 'tests' / 'core' / 'broken.py'}:"


def test_a_sound_environment_is_checked_with_exit_code_0(palestra_command):
    code, out, err = palestra_command("check", BROKEN + "Sound", "--strict", "--no-isolate")
    assert (code, err) == (0, "")
    assert "0 errors, 0 warnings" in out
    assert "determinism" in out


def test_an_error_is_named_with_its_program_and_exit_code_1(palestra_command, tmp_path):
    code, out, err = palestra_command("check", BROKEN + "NaNReward")
    assert code == 1
    assert "error: finite (episode 0, step 3, reward)" in err
    program = out[out.index("# error: finite") :]
    assert "np.isfinite" in program
    code, out, _ = palestra_command("check", BROKEN + "NaNReward", "--no-scripts", "--no-isolate")
    assert code == 1
    assert "np.isfinite" not in out


def test_warnings_fail_a_strict_check_only(palestra_command):
    arguments = ("check", BROKEN + "ClosesOnce", "--no-isolate", "--json")
    code, out, _ = palestra_command(*arguments)
    found = json.loads(out)
    assert (code, found["holds"], found["errors"], found["warnings"]) == (0, True, 0, 1)
    finding = next(f for f in found["findings"] if f["level"] == "warning")
    assert finding["check"] == "close"
    assert finding["environment"] == "ClosesOnce"
    code, out, _ = palestra_command(*arguments, "--strict")
    assert (code, json.loads(out)["holds"]) == (1, False)


def test_a_target_that_is_none_is_a_usage_error(palestra_command):
    code, out, err = palestra_command("check", "nmr-relacks")
    assert (code, out) == (2, "")
    assert "did you mean 'nmr-relax'" in err
    assert palestra_command("check", "CartPole-v1", "--time-limit", "0")[0] == 2
    assert palestra_command("check", BROKEN + "SOUND")[0] == 2


def test_a_package_is_written_once(palestra_command, tmp_path):
    code, out, _ = palestra_command("new-env", "WaterTank")
    assert code == 0
    assert "pip install -e water_tank" in out
    code, _, err = palestra_command("new-env", "WaterTank")
    assert code == 2
    assert "water_tank: holds something already" in err
    assert palestra_command("new-env", "class")[0] == 2


# --- what a command may meet ----------------------------------------------------------------------

LEAVING = """
import sys
import numpy as np
from palestra.batch import BatchEnv
from gymnasium import spaces


class Stop(BaseException):
    pass


class Leaves(BatchEnv):
    def __init__(self, rows, how="advance"):
        super().__init__(rows, horizon=5)
        self.observation_space = self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.how = how

    def begin(self, rows, streams, options):
        pass

    def advance(self, actions, live, streams, step):
        if self.how == "own":
            raise Stop("enough")
        if self.how != "never":
            sys.exit(0 if self.how == "zero" else "enough\\nof\\nthis")

    def observe(self, rows, streams, out):
        pass
"""


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("zero", "RuntimeError: code that this command ran called sys.exit(0)"),
        ("text", r"RuntimeError: code that this command ran called sys.exit('enough\nof\nthis')"),
        ("own", "Stop: enough"),
    ],
)
def test_code_that_leaves_the_process_is_an_error(palestra_command, how, says):
    Path("leaves.py").write_text(LEAVING)
    said = ("leaves.py:Leaves", "--set", f"how={how}", "--out", "run")
    code, out, err = palestra_command("evaluate", *said, "--policy", "random")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == f"palestra: {says}"
    if how == "own":  # it may be an interruption, after which the run goes on
        return
    assert not Path("run").exists()
    train = ("train", "leaves.py:Leaves", "--steps", "64", *TINY, "--out", "run", "--set")
    code, out, err = palestra_command(*train, f"settings.how={how}")
    assert (code, out) == (1, "")
    assert says in err
    assert not Path("run").exists()
    assert palestra_command(*train, "settings.how=never")[0] == 0


def test_a_lack_of_memory_is_said_in_one_line(palestra_command):
    Path("mine.py").write_text(
        "import numpy as np\ndef f(x):\n    return np.zeros((10**9, 10**7))\n"
    )
    code, _, err = palestra_command("evaluate", DRIFT, "--policy", "mine.py:f")
    assert code == 1
    assert err.startswith("palestra: out of memory: Unable to allocate ")
    assert len(err.splitlines()) == 1


def test_a_module_that_leaves_the_process_is_an_error(palestra_command):
    Path("leaves.py").write_text("import sys\nsys.exit(0)\n")
    code, out, err = palestra_command("info", "leaves.py:Env")
    assert (code, out) == (1, "")
    assert "sys.exit(0)" in err


def test_an_error_of_several_lines_is_shown_on_one(palestra_command):
    Path("mine.py").write_text("def f(x):\n    raise ValueError('one,\\n   two\\n\\nthree')\n")
    code, _, err = palestra_command("evaluate", DRIFT, "--policy", "mine.py:f")
    assert code == 2
    assert err.splitlines()[0] == "palestra: one, two three"
    Path("mine.py").write_text("def f(x):\n    raise ValueError('word\\n' * 1000)\n")
    _, _, err = palestra_command("evaluate", DRIFT, "--policy", "mine.py:f")
    assert err.splitlines()[0].endswith("word word ...")
    assert len(err.splitlines()[0]) < 1100


SPOKEN = """
import sys
from palestra.experiments import cli
from palestra.experiments.commands.terminal import print_table

cli.app.registered_commands.clear()

@cli.app.command()
def version() -> int:
    print("≤ 1 ≥ −2 ∞ °")
    print_table("⟨title⟩", ("≤",), [("−1 m",)])
    return 0

@cli.app.command()
def other() -> int:
    return 0

sys.exit(cli.main())
"""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_an_encoding_lacks_is_spelled(tmp_path, encoding):
    ran = subprocess.run(
        [sys.executable, "-c", SPOKEN, "version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.decode(encoding).startswith(
        f"<= 1 >= -2 infinity {'°?'[encoding == 'ascii']}"
    )
    assert "-1 m" in ran.stdout.decode(encoding)


@pytest.mark.skipif(os.name != "posix", reason="closes a descriptor by the shell")
def test_a_closed_stdout_is_no_mistake(tmp_path):
    ran = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m palestra list >&-"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"= 3", "not TOML"), (b"name = '\xff'", "not UTF-8"), (b"a = " + b"[" * 9999, "too deeply")],
)
def test_a_file_that_cannot_be_parsed_has_exit_code_3(palestra_command, content, says):
    Path("mine.toml").write_bytes(content)
    for command in (
        ("info", "NMRRelax", "--set", "sample=mine.toml"),
        ("train", DRIFT, "--config", "mine.toml"),
        ("run", "nmr-relax", "--config", "mine.toml"),
    ):
        code, out, err = palestra_command(*command)
        assert (code, out) == (3, "")
        assert err.startswith("palestra: mine.toml: ")
        assert says in err


def test_a_value_that_is_not_allowed_has_exit_code_2_wherever_it_stands(palestra_command):
    Path("mine.toml").write_text("[[species]]\nfraction = 2\nT1 = 1\nT2 = 1\n")
    code, _, err = palestra_command("info", "NMRRelax", "--set", "sample=mine.toml")
    assert code == 2
    assert "species[0].fraction: got 2, allowed 0 to 1" in err
    Path("mine.toml").write_text("stepz = 3\n")
    assert palestra_command("train", DRIFT, "--config", "mine.toml")[0] == 2


def test_a_byte_order_mark_is_skipped_and_a_huge_file_refused(palestra_command):
    species = "[[species]]\nfraction = 1\nT1 = 1\nT2 = 1\n"
    Path("mine.toml").write_text(species, encoding="utf-8-sig")
    assert palestra_command("info", "NMRRelax", "--set", "sample=mine.toml")[0] == 0
    with open("mine.toml", "a") as file:
        file.truncate(2**24 + 1)
    for command in (
        ("info", "NMRRelax", "--set", "sample=mine.toml"),
        ("train", DRIFT, "--config", "mine.toml"),
    ):
        code, _, err = palestra_command(*command)
        assert code == 3
        assert "mine.toml: larger than 16777216 bytes" in err


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("evaluation_seed=2", "seed=0", "runs=3"), "evaluation_seed: got 2, a seed of training"),
        (("evaluation_seed=7", "seed=7", "runs=1"), "evaluation_seed: got 7, a seed of training"),
        (("evaluation_seed=-1",), "evaluation_seed: got -1, allowed 0 <= evaluation_seed < 2**64"),
        (("seed=-1",), "seed: got -1"),
        (("seed=1000002", "runs=2"), "evaluation_seed: 1000003 is the seed of training"),
        (("claimed=0",), "claimed: got 0.0, allowed a number of seconds above 0"),
        (("claimed=-1",), "claimed: got -1.0"),
        (("claimed=inf",), "claimed: got inf"),
    ],
)
def test_options_of_the_experiment_are_refused_before_anything_is_trained(
    palestra_command, settings, says
):
    given = [part for setting in settings for part in ("--set", setting)]
    code, out, err = palestra_command("run", "nmr-relax", *given)
    assert (code, out) == (2, "")
    assert says in err
    assert not Path("runs").exists()


def test_the_seeds_of_a_training_are_refused_by_name(palestra_command):
    code, _, err = palestra_command("train", DRIFT, "--set", "evaluation_seed=-1")
    assert code == 2
    assert "evaluation_seed: got -1, allowed 0 <= evaluation_seed < 2**64" in err


def delete_a_block():
    Path("run/episodes/00000000.parquet").unlink()


def edit_the_seed():
    edited("run/run.json", lambda document: document["config"].update(seed=5))


def add_a_block():
    shutil.copy("run/episodes/00000000.parquet", "run/episodes/00000009.parquet")


def spoil_the_manifest():
    Path("run/manifest.json").write_text("garbage")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (delete_a_block, "episodes/00000000.parquet: in the manifest, but missing"),
        (edit_the_seed, "run.json: SHA-256 differs from the manifest"),
        (add_a_block, "episodes/00000009.parquet: not in the manifest"),
        (spoil_the_manifest, "manifest.json"),
    ],
)
def test_a_report_of_a_damaged_run_is_refused(palestra_command, document, damage, says):
    document(*EVALUATE, "--episodes", "8", "--seed", "1", "--out", "run")
    damage()
    code, out, err = palestra_command("report", "run")
    assert (code, out) == (3, "")
    assert says in err
    assert not Path("run/report.html").exists()


# --- recorded episodes ----------------------------------------------------------------------------


@pytest.fixture
def recorded(palestra_command):
    code, _, err = palestra_command(
        "evaluate", DRIFT, "--policy", "random", "--episodes", "6", "--seed", "3",
        "--out", "steps", "--record", "--quiet",
    )  # fmt: skip
    assert (code, err) == (0, "")


def test_a_recorded_episode_plays_again(recorded, palestra_command, document):
    code, out, _ = palestra_command("replay", "steps", "2", "--environment", DRIFT)
    assert code == 0
    assert "the same, bit for bit" in out
    told = document("replay", "steps", "2", "--environment", DRIFT)
    table = RunFolder.open("steps").read("episodes").to_pylist()[2]
    assert told["same"] is True
    assert told["length"] == told["replayed_steps"] == len(told["rewards"]) == table["length"]
    assert sum(told["rewards"]) == table["return"]


def test_an_edited_environment_ends_with_one_and_says_where(recorded, palestra_command, tmp_path):
    (tmp_path / "edited.py").write_text(
        Path(DRIFT.rpartition(":")[0]).read_text().replace("reward[row] = -x", "reward[row] = x")
    )
    code, out, _ = palestra_command("replay", "steps", "2", "--environment", "edited.py:Drift")
    assert code == 1
    assert "NOT the same: step 0: reward was -" in out
    code, out, _ = palestra_command(
        "replay", "steps", "2", "--environment", "edited.py:Drift", "--json"
    )
    assert (code, json.loads(out)["difference"]["field"]) == (1, "reward")


def test_replay_explains_mistakes(recorded, palestra_command):
    code, _, err = palestra_command("replay", "steps", "6", "--environment", DRIFT)
    assert (code, err) == (2, "palestra: episode: got 6, allowed 0 to 5\n")
    code, _, err = palestra_command("replay", "steps", "0")
    assert code == 2
    assert "--environment" in err
    block = Path("steps/steps/00000000.parquet")
    block.write_bytes(block.read_bytes()[:-40])
    code, _, err = palestra_command("replay", "steps", "0", "--environment", DRIFT)
    assert code == 3
    assert "00000000.parquet" in err


def test_a_recorded_run_becomes_a_dataset(recorded, document, monkeypatch, tmp_path):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    told = document("dataset", "steps", "--out", "toys/drift-v0", "--author", "A")
    dataset = minari.load_dataset("toys/drift-v0")
    assert (told["episodes"], told["steps"]) == (6, dataset.total_steps)
    assert Path(told["folder"]) == tmp_path / "datasets" / "toys" / "drift-v0"
    assert dataset.storage.metadata["author"] == {"A"}
