"""An experiment is data, a score and a picture: options, presets, run folder, claims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from palestra import experiments, store
from palestra.claims import Claim, Quantity, claims_from_json
from palestra.config import ConfigError
from palestra.experiments import cli
from palestra.experiments.experiment import Experiment, Findings, configure, find, names, run
from palestra.experiments.pages import write_page
from palestra.registry import UnknownName
from palestra.report import Report
from palestra.rollout import evaluate
from palestra.store import RunFolder, RunMismatch

DRIFT = f"{Path(__file__).parents[1] / 'core' / 'toys.py'}:Drift"
PUBLISHED = 0.5


@dataclass(frozen=True)
class Drifting(Experiment):
    """How far a policy that does not act drifts, against a random one."""

    name: ClassVar[str] = "drifting"
    summary: ClassVar[str] = "where an integrator of noise ends"
    smoke: ClassVar[Mapping[str, Any]] = {"episodes": 10, "most": 5.0}

    episodes: int = 64
    gain: float = PUBLISHED
    seed: int = 0
    most: float | None = None

    def run(self, folder: Path, *, progress: bool) -> Findings:
        calls.append(self)
        settings = {"gain": self.gain}
        distance = {}
        for name, policy in (("still", still), ("random", "random")):
            played = evaluate(
                policy, DRIFT, episodes=self.episodes, seed=self.seed, settings=settings,
                name=name, run=folder / "evaluations" / name, progress=progress, width=8,
            )  # fmt: skip
            distance[name] = Quantity.of(played.mean("distance"), "m")
        still_here = distance["still"]
        claims = [
            Claim(
                "a policy that does not act ends within",
                still_here.value,
                3.0 if self.most is None else self.most,
                "<=",
                still_here.interval,
                "m",
                source="1 m (nobody, 2020)",
                applicable=self.gain == PUBLISHED,
            )
        ]
        count = np.int64(self.episodes)
        rows = [[name, q, np.float64(q.value), count] for name, q in distance.items()]
        rows.append(["bound", Quantity(float("nan"), None, "m"), float("inf"), None])
        page = Report(self.name, subtitle=self.summary)
        page.headline([("yours", still_here), ("best known", still_here), ("bound", Quantity(0.0))])
        page.table("Distances", COLUMNS, rows)
        page.claims(claims)
        return Findings(COLUMNS, rows, claims, page)


COLUMNS = ("policy", "distance", "mean", "episodes")
calls: list[Drifting] = []


def still(observation):
    return np.zeros((len(observation), 1), np.float32)


@pytest.fixture(autouse=True)
def catalogued(monkeypatch):
    monkeypatch.setitem(experiments.CATALOGUE, "drifting", f"{__name__}:Drifting")
    known = store.machine()
    monkeypatch.setattr(store, "machine", lambda: known)
    calls.clear()


# --- options --------------------------------------------------------------------------------------


def test_experiments_are_found_by_name_whatever_its_case():
    assert {"drifting", "nmr-relax"} <= set(names())
    assert find("Drifting") is find("drifting")
    assert find("NMRRelax").name == "nmr-relax"
    with pytest.raises(UnknownName, match=r"there is no 'drift-ing-s' \(did you mean 'drifting'"):
        find("drift-ing-s")


def test_options_come_from_preset_file_settings_and_seed_the_later_ones_win(tmp_path):
    assert configure("drifting") == Drifting()
    assert configure("drifting", "smoke") == Drifting(episodes=10, most=5.0)
    file = tmp_path / "options.toml"
    file.write_text('episodes = 20\nseed = 3\nmost = "none"\n')
    assert configure("drifting", "smoke", file) == Drifting(episodes=20, seed=3)
    chosen = configure("drifting", "smoke", file, ["episodes=30", "gain=1"], seed=9)
    assert chosen == Drifting(episodes=30, seed=9, gain=1.0)
    with pytest.raises(ConfigError, match="preset: got 'quick', allowed full, smoke"):
        configure("drifting", "quick")
    with pytest.raises(ConfigError, match="unknown key 'episode': did you mean 'episodes'"):
        configure("drifting", settings=["episode=3"])
    with pytest.raises(ConfigError, match="episodes = 'many': must be a whole number"):
        configure("drifting", settings=["episodes=many"])


@pytest.mark.parametrize("name", [n for n in names() if n != "drifting"])
def test_every_experiment_declares_a_smoke_whose_options_it_has(name):
    assert configure(name, "smoke") != configure(name)
    assert find(name).name == name
    assert find(name).summary
    assert find(name).__doc__


# --- the run --------------------------------------------------------------------------------------


def test_a_run_leaves_configuration_claims_table_and_page(tmp_path):
    outcome = run(configure("drifting"), tmp_path / "run")
    assert outcome.holds
    names = sorted(p.name for p in (tmp_path / "run").iterdir() if p.is_file())
    assert names == [
        "claims.json", "config.toml", "manifest.json", "report.html", "run.json", "table.json",
    ]  # fmt: skip
    document = json.loads((tmp_path / "run" / "claims.json").read_text())
    assert claims_from_json(document) == outcome.findings.claims
    (claim,) = document["claims"]
    assert claim["holds"] is True
    assert (claim["bound"], claim["direction"], claim["unit"]) == (3.0, "<=", "m")
    assert claim["source"] == "1 m (nobody, 2020)"
    assert claim["interval"][0] < claim["value"] < claim["interval"][1]
    table = json.loads((tmp_path / "run" / "table.json").read_text())
    assert [row["policy"] for row in table] == ["still", "random", "bound"]
    assert table[0]["distance"]["value"] == table[0]["mean"] == claim["value"]
    assert table[0]["episodes"] == 64
    assert (table[2]["distance"]["value"], table[2]["mean"]) == ("NaN", "Infinity")
    for part in ("table", "options", "claims"):
        assert outcome.document[part] == (
            {"table": table, "options": vars(Drifting()) | {"most": "none"}}.get(part)
            or document["claims"]
        )
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "best known" in page
    assert RunFolder.open(tmp_path / "run").verify() == ()


def test_the_stored_configuration_gives_the_same_run_again(tmp_path):
    first = run(configure("drifting", "smoke", seed=5), tmp_path / "first")
    again = configure("drifting", config=tmp_path / "first" / "config.toml")
    assert again == first.experiment
    run(again, tmp_path / "second")
    for name in ("claims.json", "table.json", "config.toml"):
        files = [(tmp_path / n / name).read_bytes() for n in ("first", "second")]
        assert files[0] == files[1]


def test_an_interrupted_run_goes_on_with_what_is_finished(tmp_path, monkeypatch):
    def interrupted(self, *arguments, **keywords):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("palestra.policy.RandomPolicy.predict", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(configure("drifting"), tmp_path / "run")
    assert not (tmp_path / "run" / "claims.json").exists()
    assert RunFolder.open(tmp_path / "run" / "evaluations" / "still").finished
    with pytest.raises(ValueError, match="this experiment is not finished"):
        write_page(tmp_path / "run")

    written, write = [], RunFolder.write_block

    def write_and_tell(self, *arguments):
        written.append(self.path.name)
        write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_block", write_and_tell)
        outcome = run(configure("drifting"), tmp_path / "run")
    assert written == ["random"]  # what was finished is not computed again
    whole = run(configure("drifting"), tmp_path / "whole")
    assert outcome.document["claims"] == whole.document["claims"]
    assert outcome.document["table"] == whole.document["table"]


def test_other_options_do_not_go_on_in_the_same_folder(tmp_path):
    run(configure("drifting", "smoke"), tmp_path / "run")
    with pytest.raises(RunMismatch, match=r"options.gain \(0.5 there, 0.75 asked\)"):
        run(configure("drifting", "smoke", settings=["gain=0.75"]), tmp_path / "run")


def test_an_experiment_without_claims_is_a_mistake(tmp_path, monkeypatch):
    inner = Drifting.run

    def claimless(self, folder, *, progress):
        found = inner(self, folder, progress=progress)
        return Findings(found.columns, found.rows, [], found.report)

    monkeypatch.setattr(Drifting, "run", claimless)
    with pytest.raises(TypeError, match="drifting: an experiment makes at least one claim"):
        run(configure("drifting", "smoke"), tmp_path / "run")


# --- on the command line --------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capfd.readouterr()
        code = cli.main(["run", "drifting", "--quiet", *arguments])
        return (code, *capfd.readouterr())

    return call


def test_a_run_that_holds_has_exit_code_0_and_a_refuted_one_1(command):
    code, out, err = command("--preset", "smoke")
    assert (code, err) == (0, "")
    assert "holds" in out
    assert "report: " in out
    code, out, _ = command("--preset", "smoke", "--set", "most=0.01", "--out", "refuted")
    assert code == 1
    assert "REFUTED" in out
    document = json.loads(Path("refuted/claims.json").read_text())
    assert document["holds"] is document["claims"][0]["holds"] is False


def test_claims_about_the_published_set_up_do_not_apply_to_a_persons_own(command):
    code, out, _ = command("--set", "gain=0.25", "--set", "most=0.001", "--set", "episodes=10")
    assert code == 0
    assert "not applicable" in out
    (folder,) = Path("runs").iterdir()
    (claim,) = json.loads((folder / "claims.json").read_text())["claims"]
    assert claim["holds"] is None
    assert "not applicable" in (folder / "report.html").read_text(encoding="utf-8")


def test_json_is_one_document_and_other_options_get_another_folder(command):
    code, out, _ = command("--preset", "smoke", "--json")
    assert code == 0
    first = json.loads(out)
    assert first["experiment"] == "drifting"
    assert first["holds"] is True
    assert first["options"]["episodes"] == 10
    code, out, _ = command("--preset", "smoke", "--json", "--seed", "1")
    second = json.loads(out)
    assert second["folder"] != first["folder"]
    assert second["options"]["seed"] == 1
    code, out, _ = command("--preset", "smoke", "--json")
    assert json.loads(out) == first  # from what is stored
    assert len(calls) == 3


def test_the_page_of_an_experiment_is_written_again(command, capfd):
    command("--preset", "smoke", "--out", "run")
    Path("run/report.html").unlink()
    assert cli.main(["report", "run"]) == 0
    assert Path("run/report.html").is_file()
