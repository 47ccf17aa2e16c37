"""Run folders as tables, beside each other, in files for papers and in notebooks."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re

import pyarrow as pa
import pytest

import palestra
from palestra import store
from palestra.claims import Quantity
from palestra.figures import FORMS, learning_curve, static_picture
from palestra.rollout import Comparison, compare, evaluate
from palestra.run_comparison import compare_runs
from palestra.safe_files import MalformedFile
from palestra.saved import load
from palestra.stats import runs_mean
from palestra.sweep import sweep
from palestra.table_files import write_table
from palestra.train import TrainConfig, train

from .toys import Drift

TINY = TrainConfig(
    environment="NMRRelax",
    steps=128,
    rows=8,
    evaluate_every=64,
    evaluation_episodes=8,
    hyperparameters={"n_steps": 8, "batch_size": 32, "policy_kwargs": {"net_arch": [4]}},
)
PLAYED = {"episodes": 16, "seed": 3, "width": 8}


@pytest.fixture(scope="module", autouse=True)
def one_machine():
    known = store.machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "machine", lambda: known)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three seeds, the last of which went on for longer; and one of another learning rate."""
    root = tmp_path_factory.mktemp("trained")
    for seed, steps in ((0, 128), (1, 128), (2, 192)):
        train(dataclasses.replace(TINY, seed=seed, steps=steps), root / f"ppo-{seed}")
    other = {**TINY.hyperparameters, "learning_rate": 0.01}
    train(dataclasses.replace(TINY, hyperparameters=other), root / "quick")
    return root


# --- tables ---------------------------------------------------------------------------------------


def test_a_training_gives_its_curve_with_every_metric(trained):
    run = load(trained / "ppo-0")
    assert (run.kind, run.finished) == ("training", True)
    assert run.configuration["hyperparameters"] == TINY.hyperparameters
    curve = run.metrics
    assert curve.column("steps").to_pylist() == [0, 64, 128]
    played = evaluate(
        trained / "ppo-0" / "checkpoints" / "step-000000000128", "NMRRelax", episodes=8,
        seed=TINY.evaluation_seed,
    )  # fmt: skip
    last = curve.slice(2).to_pylist()[0]
    assert last["return"] == played.mean().estimate
    assert (last["return_low"], last["return_high"]) == (played.mean().low, played.mean().high)
    for name in ("time_to_equilibrium", "Mz", "length", "truncated"):
        assert last[name] == pytest.approx(played.column(name).mean(), rel=1e-12)
    assert run.episodes.num_rows == 0


def test_an_evaluation_gives_its_episodes_and_means(tmp_path):
    played = evaluate("deft", "NMRRelax", run=tmp_path / "run", **PLAYED)
    run = palestra.load(tmp_path / "run")
    assert run.episodes.equals(played.table)
    means = {row["name"]: row for row in run.metrics.to_pylist()}
    assert means.keys() == {*played.table.column_names} - {"episode"}
    assert means["Mz"] == {"name": "Mz", **vars(played.mean("Mz"))}


def test_a_comparison_and_what_holds_one_give_those_of_all(tmp_path):
    both = compare(["wait", "deft"], "NMRRelax", run=tmp_path / "both", **PLAYED)
    run = load(tmp_path / "both")
    assert (run.kind, run.finished, set(run.runs)) == ("comparison", True, {"wait", "deft"})
    mine = run.episodes.filter(pa.compute.equal(run.episodes.column("run"), "deft"))
    assert mine.drop_columns(["run"]).equals(both.evaluations["deft"].table)


def test_a_sweep_gives_its_trials(tmp_path):
    space = {"hyperparameters": {"gamma": [0.9, 0.99]}}
    found = sweep(TINY, space, tmp_path / "sweep", sampler="grid")
    run = load(tmp_path / "sweep")
    assert (run.kind, run.finished) == ("sweep", True)
    assert run.metrics.column("score").to_pylist() == [trial.score for trial in found.trials]
    assert run.metrics.column("hyperparameters.gamma").to_pylist() == [0.9, 0.99]
    assert {part.kind for part in run.runs.values()} == {"training"}


def test_an_experiment_gives_its_published_table(tmp_path):
    folder = tmp_path / "run"
    with store.RunFolder.create_or_resume(
        folder, {"kind": "experiment", "experiment": "x", "options": {}}
    ).lock():
        time = {"value": 1.5, "interval": [1, 2], "unit": "s"}
        rows = [
            {"method": "a", "time": time, "more": 3},
            {"method": "b", "time": None, "more": "x"},
        ]
        (folder / "table.json").write_text(json.dumps(rows))
    run = load(folder)
    assert run.metrics.to_pylist() == [
        {"method": "a", "time": 1.5, "time low": 1, "time high": 2, "more": "3"},
        {"method": "b", "time": None, "time low": None, "time high": None, "more": "x"},
    ]


def test_an_unfinished_run_says_so_and_gives_what_is_there(tmp_path):
    evaluate("wait", "NMRRelax", run=tmp_path / "run", shard=(0, 2), block=8, **PLAYED)
    run = load(tmp_path / "run")
    assert not run.finished
    assert run.episodes.column("episode").to_pylist() == list(range(8))
    assert "not finished" in run._repr_html_()


def test_what_is_no_run_and_what_was_damaged_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        load(tmp_path)
    evaluate("wait", "NMRRelax", run=tmp_path / "run", **PLAYED)
    block = tmp_path / "run" / "episodes" / "00000000.parquet"
    block.write_bytes(block.read_bytes()[:-9])
    with pytest.raises(MalformedFile):
        _ = load(tmp_path / "run").episodes


# --- runs beside each other -----------------------------------------------------------------------


def test_seeds_of_one_configuration_are_one_learner_on_a_common_axis(trained):
    found = compare_runs([trained / name for name in ("quick", "ppo-0", "ppo-1", "ppo-2")])
    names = [learner.name for learner in found.learners]
    assert [len(learner.runs) for learner in found.learners] == [1, 2, 1]  # ppo-2: other steps
    assert names[0].startswith("ppo (learning_rate 0.01")
    same = [trained / f"ppo-{seed}" for seed in (0, 1)]
    (learner,) = compare_runs(same).learners
    assert learner.name == "ppo"
    assert learner.steps.tolist() == [0, 64, 128]
    finals = [load(run).metrics.column("return")[-1].as_py() for run in same]
    assert learner.finals.tolist() == finals
    assert learner.mean == runs_mean(finals)


def test_how_often_a_run_is_evaluated_makes_no_other_learner(trained, tmp_path):
    train(dataclasses.replace(TINY, seed=3, evaluate_every=128), tmp_path / "ppo-3")
    runs = [trained / "ppo-0", tmp_path / "ppo-3"]
    (learner,) = compare_runs(runs).learners
    assert learner.steps.tolist() == [0, 64, 128]
    first, _, last = learner.curves[1]
    assert learner.curves[1].tolist() == [first, pytest.approx((first + last) / 2), last]
    assert [first, last] == load(runs[1]).metrics.column("return").to_pylist()


def test_curves_are_joined_by_straight_lines_and_never_continued(trained):
    found = compare_runs([trained / "ppo-0", trained / "ppo-2"])
    for learner in found.learners:
        assert learner.steps.max() == 128  # the shortest run
    long = load(trained / "ppo-2").metrics
    assert found.learners[1].curves[0].tolist() == long.column("return").to_pylist()[:3]


def test_a_metric_is_compared_like_the_return(trained):
    found = compare_runs([trained / "ppo-0"], "time_to_equilibrium")
    expected = load(trained / "ppo-0").metrics.column("time_to_equilibrium").to_pylist()
    assert found.learners[0].curves[0].tolist() == expected
    with pytest.raises(ValueError, match=r"has no 'speed'; it has return, Mxy, Mz, duration"):
        compare_runs([trained / "ppo-0"], "speed")


def test_evaluations_are_compared_episode_by_episode(tmp_path):
    both = compare(["wait", "deft"], "NMRRelax", run=tmp_path / "both", **PLAYED)
    for folders in ([tmp_path / "both" / "wait", tmp_path / "both" / "deft"],):
        found = compare_runs(folders, "Mz")
        assert isinstance(found, Comparison)
        assert found.difference("deft", "Mz") == both.difference("deft", "Mz")
    assert set(compare_runs([tmp_path / "both"]).evaluations) == {"wait", "deft"}


def test_what_cannot_be_compared_is_refused_with_both_values(trained, tmp_path):
    evaluate("wait", "NMRRelax", run=tmp_path / "a", **PLAYED)
    evaluate("wait", "NMRRelax", run=tmp_path / "b", **{**PLAYED, "seed": 4})
    evaluate("random", Drift, run=tmp_path / "c", **PLAYED)
    with pytest.raises(ValueError, match=r"seed is 3 in .*a and 4 in .*b"):
        compare_runs([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ValueError, match=r"environment is 'palestra/NMRRelax-v0' in"):
        compare_runs([tmp_path / "a", tmp_path / "c"])
    with pytest.raises(ValueError, match="training runs and evaluations are never compared"):
        compare_runs([tmp_path / "a", trained / "ppo-0"])
    with pytest.raises(ValueError, match="is given twice"):
        compare_runs([tmp_path / "a", tmp_path / "." / "a"])
    with pytest.raises(ValueError, match="got none"):
        compare_runs([])
    copy = tmp_path / "copy"
    train(dataclasses.replace(TINY, seed=0), copy)
    with pytest.raises(ValueError, match="two of ppo have the seed 0"):
        compare_runs([trained / "ppo-0", copy])


# --- files ----------------------------------------------------------------------------------------

ROWS = [
    ["a_b & 50%", Quantity(1.23456, (1.1, 1.4), "s"), None],
    ["x|y \\ {z}", Quantity(-0.5), "≥ text"],
]


def test_latex_is_balanced_and_escaped(tmp_path):
    text = write_table(tmp_path / "t.tex", "50% of a_b", ("name", "time", "more"), ROWS).read_text()
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    assert r"\caption{50\% of a\_b}" in text
    assert r"a\_b \& 50\%" in text
    assert r"x\textbar{}y \textbackslash{} \{z\}" in text
    body = re.findall(r"^    (.*) \\\\$", text, re.M)
    assert len(body) == 3
    for line in body:  # two separators a line, none of them escaped
        assert len(re.findall(r"(?<!\\)&", line)) == 2
    bare = re.sub(r"\\.", "", text)  # what is left after commands and escapes
    assert bare.count("{") == bare.count("}")


def test_csv_has_all_digits_and_three_columns_a_quantity(tmp_path):
    write_table(tmp_path / "t.csv", "", ("name", "time", "more"), ROWS)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text(encoding="utf-8"))))
    assert rows[0] == {
        "name": "a_b & 50%", "time": "1.23456", "time low": "1.1", "time high": "1.4", "more": "",
    }  # fmt: skip
    assert rows[1]["time low"] == ""


def test_markdown_has_a_column_a_head(tmp_path):
    text = write_table(tmp_path / "t.md", "Caption", ("name", "time", "more"), ROWS).read_text()
    lines = text.splitlines()
    assert lines[0] == "Caption"
    assert lines[3] == "|---|---:|---:|"
    for line in lines[2:]:
        assert len(re.findall(r"(?<!\\)\|", line)) == 4


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"suffix must be one of \.tex, \.csv, \.md"):
        write_table(tmp_path / "t.xls", "", ("a",), [])


def test_pictures_are_the_same_bytes_each_time():
    figure = learning_curve({"a_b": [([0, 1], [1.0, 2.0])]}).figure
    for form, start in zip(FORMS, (b"\x89PNG", b"<?xml", b"%PDF"), strict=True):
        once = static_picture(figure, form)
        assert once.startswith(start)
        assert static_picture(figure, form) == once
    with pytest.raises(ValueError, match="form: got 'bmp', allowed png, svg, pdf"):
        static_picture(figure, "bmp")


# --- notebooks ------------------------------------------------------------------------------------


def test_results_show_themselves_escaped_and_without_scripts(trained, tmp_path):
    evil = "<script>alert(1)</script>"
    played = evaluate("wait", "NMRRelax", name=evil, **PLAYED)
    both = compare({evil: "wait", "deft": "deft"}, "NMRRelax", **PLAYED)
    training = train(TINY, trained / "ppo-0")
    shown = [played, both, training, load(trained / "ppo-0"), compare_runs([trained / "ppo-0"])]
    for result in shown:
        markup = result._repr_html_()
        assert markup.startswith("<table")
        assert "<script" not in markup
        assert len(markup) < 200_000
    assert "&lt;script&gt;" in played._repr_html_()
    assert str(played.mean("Mz")) in played._repr_html_()
    assert str(both.difference("deft").difference) in both._repr_html_()
    for result in (played, both, training):
        assert 'src="data:image/png;base64,' in result._repr_html_()
