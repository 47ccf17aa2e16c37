"""What a user does with an environment, done with every one of the catalogue."""

from __future__ import annotations

import json
import re

import pytest

import palestra
from palestra import store
from palestra.experiments import cli
from palestra.registry import catalogue, kebab
from palestra.store import RunFolder

EVERY = sorted(catalogue())
SINGLE = sorted(name for name, entry in catalogue().items() if not entry.agents)
TINY = [
    "--steps=64", "--set=rows=8", "--set=evaluate_every=64", "--set=evaluation_episodes=8",
    "--set=hyperparameters.n_steps=8", "--set=hyperparameters.batch_size=32", "--quiet",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_machine():
    known = store.machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "machine", lambda: known)
        yield


@pytest.fixture
def command(capfd, tmp_path, monkeypatch):
    """Run a command in an empty folder; its JSON document."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> dict:
        capfd.readouterr()
        code = cli.main([*map(str, arguments), "--json"])
        out, err = capfd.readouterr()
        assert code == 0, err
        return json.loads(out)

    return run


@pytest.mark.parametrize("name", EVERY)
def test_evaluate_compare_load_and_report(command, tmp_path, name):
    short = kebab(name)
    played = command("evaluate", short, "--policy", "random", "--episodes", 16, "--seed", 1,
                     "--out", "one", "--quiet")  # fmt: skip
    means = played["policies"]["random"]["means"]
    run = palestra.load("one")
    assert run.episodes.num_rows == 16
    loaded = {row["name"]: row.get("estimate") for row in run.metrics.to_pylist()}
    assert loaded == {key: value and value["estimate"] for key, value in means.items()}
    command("compare", short, "random", "--episodes", 16, "--seed", 1, "--out", "table.tex",
            "--plot", "spread.svg", "--quiet")  # fmt: skip
    assert r"\toprule" in (tmp_path / "table.tex").read_text()
    page = (tmp_path / command("report", "one")["report"]).read_text()
    shown = {float(value) for value in re.findall(r'<data value="([^"]+)">', page)}
    assert {value["estimate"] for value in means.values() if value} <= shown
    listed = command("report", "--all", ".")["runs"]
    assert [row["run"] for row in listed] == ["one"]
    assert listed[0]["score"]["value"] == means["return"]["estimate"]
    markup = palestra.evaluate("random", name, episodes=8, seed=1)._repr_html_()
    assert "<table" in markup
    assert "<img" in markup


@pytest.mark.parametrize("name", SINGLE)
def test_train_track_compare_and_report(command, tmp_path, name):
    folders = []
    for seed in (0, 1):
        folder = f"run-{seed}"
        command("train", kebab(name), "--tuned", f"--seed={seed}", *TINY, "--out", folder,
                "--track", "tensorboard")  # fmt: skip
        assert list((tmp_path / folder / "tracking").glob("events*"))
        folders.append(folder)
    metrics = set(palestra.load("run-0").metrics.column_names)
    environment = palestra.evaluate("random", name, episodes=1, seed=0).table.column_names
    assert set(environment) - {"episode"} <= metrics
    found = command("compare", *folders, "--out", "table.md", "--plot", "curves.svg")
    (learner,) = found["learners"].values()
    assert set(learner["runs"]) == {"0", "1"}
    assert (tmp_path / "curves.svg").stat().st_size > 1000
    page = (tmp_path / command("report", "run-0")["report"]).read_text()
    assert "figure class=player" in page  # an episode of the trained policy
    assert RunFolder.open("run-0").config["environment"] == kebab(name)
