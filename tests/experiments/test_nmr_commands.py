"""`palestra nmr`: files in, files out, and what is said when they do not do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from palestra.envs.nmr.exports import read_events
from palestra.envs.nmr.sample import load_sample
from palestra.experiments.cli import main

DATA = Path(__file__).parents[2] / "examples" / "nmr"
FILES = [str(DATA / f"{kind}.csv") for kind in ("ir", "cpmg", "fid")]


def test_a_fitted_sample_is_one_and_holds_the_truth(tmp_path, capsys):
    out = tmp_path / "mine.toml"
    assert main(["nmr", "fit", *FILES, "-o", str(out), "--reference-hz", "12.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sample = load_sample(out)
    assert document["sample"]["species"][0]["T1"] == sample.species[0].T1
    assert sample.name == "mine"
    assert pytest.approx(0.6, rel=3 * sample.task.log_T1_sd) == sample.species[0].T1
    assert pytest.approx(0.3, rel=3 * sample.task.log_T2_sd) == sample.species[0].T2
    assert sample.field.b0_fwhm_hz == pytest.approx(6.0, abs=0.1)
    assert str(DATA) not in out.read_text()


def test_a_reference_on_the_wrong_side_says_what_to_do(capsys):
    assert main(["nmr", "fit", *FILES, "--reference-hz", "-12.5"]) == 2
    assert "conjugate your data or pass --conjugate" in capsys.readouterr().err
    assert main(["nmr", "fit", *FILES, "--reference-hz", "-12.5", "--conjugate"]) == 0


def test_a_file_that_is_no_table_is_malformed(tmp_path, capsys):
    bad = tmp_path / "bad.csv"
    bad.write_text("delay,real\n1,two\n")
    assert main(["nmr", "fit", "--ir", str(bad)]) == 3
    assert "line 2, column 2: got 'two', allowed a number" in capsys.readouterr().err


def test_an_exported_train_is_read_again(tmp_path, capsys):
    out = tmp_path / "train.seq"
    assert main(["nmr", "export", str(DATA / "train.csv"), "-o", str(out), "--no-spoilers"]) == 0
    assert "event 9: no spoiler" in capsys.readouterr().err
    assert read_events(out).scans == 16
    assert main(["nmr", "export", str(out), "-o", str(tmp_path / "train.json"), "--json"]) == 0


def test_what_the_instrument_cannot_play_needs_obey(tmp_path, capsys):
    slow = tmp_path / "slow.toml"
    slow.write_text(
        "[[species]]\nfraction = 1.0\nT1 = 0.6\nT2 = 0.3\n"
        "[instrument]\nduty_max = 0.02\nduty_window = 0.01\n"
    )
    command = ["nmr", "export", str(DATA / "train.csv"), "-o", str(tmp_path / "x.json")]
    assert main([*command, "--sample", str(slow)]) == 2
    assert "duty: the transmitter is on for" in capsys.readouterr().err
    assert main([*command, "--sample", str(slow), "--obey"]) == 0
    assert "delay: " in capsys.readouterr().err
