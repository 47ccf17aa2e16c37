"""What ships with every environment of the catalogue, and with those of others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import palestra
from palestra.config import build, load_config
from palestra.policy_identity import fingerprint
from palestra.policy_loading import load_policy
from palestra.registry import anchors_of, catalogue, kebab, resolve
from palestra.shipped import bibliography, palestra_reference, shelf_of, shelf_of_env
from palestra.train import TrainConfig, algorithm_class, check

ROOT = Path(__file__).parents[2]
TOYS = f"{ROOT / 'tests' / 'core' / 'toys.py'}:"
EVERY = sorted(catalogue())
SINGLE = sorted(name for name, entry in catalogue().items() if not entry.agents)


# --- every environment ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_every_environment_can_be_cited(name):
    references = shelf_of(resolve(name)).references()
    assert references
    for entry in references:
        assert {"title", "year"} <= entry.fields.keys()
        assert entry.fields.keys() & {"doi", "url", "journal"}
        assert entry.text.count("{") == entry.text.count("}")
        assert "keywords" not in entry.text


@pytest.mark.parametrize("name", SINGLE)
def test_every_environment_of_one_agent_has_tuned_options(name):
    files = shelf_of(resolve(name)).tuned()
    assert files
    for algorithm, file in files.items():
        config = build(TrainConfig, {**load_config(file), "environment": name})
        assert algorithm_class(config.algorithm) is algorithm_class(algorithm)
        check(config)  # learner and environment take them
        assert file.read_text().startswith("# ")  # where they come from


@pytest.mark.parametrize("name", SINGLE)
def test_every_environment_of_one_agent_ships_a_trained_policy(name):
    shelf = shelf_of(resolve(name))
    card, entry = shelf.card(), catalogue()[name]
    assert card is not None
    size = sum(file.stat().st_size for file in shelf.pretrained.iterdir())
    assert size < 1_000_000
    assert card["anchors"] == vars(anchors_of(entry))  # measured anew with them
    score = palestra.evaluate("pretrained", name, episodes=256, seed=card["seed"])
    low, high = card["score"]["low"], card["score"]["high"]
    wider = (high - low) / 2 * np.sqrt(card["episodes"] / 256)  # fewer episodes than the card's
    assert abs(score.mean(card["metric"]).estimate - card["score"]["estimate"]) < 2 * wider
    # random scores 0 and the bound 1: a policy that learned nothing would not pass
    assert card["normalised"] > 0.5
    assert anchors_of(entry).normalised(score.mean(card["metric"]).estimate) > 0.5


@pytest.mark.parametrize("name", SINGLE)
def test_the_page_of_results_has_the_numbers_that_were_stored(name):
    from palestra.experiments.results import page

    stem = kebab(name)
    folder = ROOT / "docs" / "results"
    document = json.loads((folder / f"{stem}.json").read_text())
    assert (folder / f"{stem}.md").read_text() == page(document)
    assert (folder / f"{stem}.svg").read_text().startswith("<?xml")
    card = shelf_of(resolve(name)).card()
    runs = {run["seed"]: run for run in document["learned"][card["algorithm"]]}
    shipped = runs[card["training_seed"]]
    assert document["shipped"] == {
        "algorithm": card["algorithm"],
        "seed": card["training_seed"],
    }
    assert shipped["estimate"] == card["score"]["estimate"]
    assert {row["policy"] for row in document["rows"]} > {"random"}
    bound = document["bound"]
    if bound is not None:  # a learner beyond it has found an error
        worst = min if document["direction"] == "min" else max
        scores = [row["estimate"] for row in document["rows"]]
        assert worst(bound, *scores) == bound


@pytest.mark.parametrize("name", EVERY)
def test_every_environment_moves_in_the_gallery_and_in_the_readme(name):
    picture = f"pictures/{kebab(name)}.gif"
    assert f"]({picture})" in (ROOT / "docs" / "gallery.md").read_text()
    assert f'src="docs/{picture}"' in (ROOT / "README.md").read_text()
    assert (ROOT / "docs" / picture).stat().st_size < 500_000
    assert (ROOT / "docs" / "gallery.md").read_text().count(f"results/{kebab(name)}.md") == 1


def test_the_best_score_of_a_page_is_bold_whichever_way_is_better():
    from palestra.experiments.results import page

    rows = [
        {"policy": "a", "estimate": 1.0, "low": 0.5, "high": 1.5, "rule": "t"},
        {"policy": "b", "estimate": 2.0, "low": None, "high": None, "rule": "points only"},
    ]
    plan = {"environment": "X", "episodes": 8, "seed": 1, "training_seed": 3}
    document = {
        "environment": "palestra/X-v0", "metric": "m", "bound": None, "rows": rows, "plan": plan,
        "command": "c", "processor": "p", "date": "d", "palestra": "1", "learned": {},
        "shipped": {"algorithm": "ppo", "seed": 3},
    }  # fmt: skip
    text = page(document | {"direction": "max"})
    assert "| **b** | **2.0000** | **points only** |" in text
    assert "| a | 1.0000 | 0.5000 to 1.5000 |" in text
    assert "| **a** |" in page(document | {"direction": "min"})


# --- the shelf of anyone --------------------------------------------------------------------------


OWN = """
import numpy as np
from gymnasium import spaces
import palestra


class Mine(palestra.BatchEnv):
    def __init__(self, rows, *, horizon=3):
        super().__init__(rows, horizon=horizon)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def begin(self, rows, streams, options):
        pass

    def advance(self, actions, live, streams, step):
        step.reward[live] = actions[live, 0]

    def observe(self, rows, streams, out):
        out[...] = 0.5
"""


@pytest.fixture
def own(tmp_path):
    """An environment in a file of its own, with a shelf beside it."""
    from palestra.policy import LinearPolicy
    from palestra.policy_files import save_policy

    (tmp_path / "mine.py").write_text(OWN)
    env = palestra.make(f"{tmp_path / 'mine.py'}:Mine")
    save_policy(LinearPolicy([[-1.0]], env.action_space), tmp_path / "data/pretrained/Mine")
    (tmp_path / "data/tuned").mkdir()
    (tmp_path / "data/tuned/Mine-ppo.toml").write_text("# by hand\nsteps = 64\n")
    (tmp_path / "data/tuned/Other-sac.toml").write_text("# by hand\nsteps = 64\n")
    (tmp_path / "data/references.bib").write_text(
        "@misc{a,\n  title = {One},\n  year = {2020},\n  keywords = {Other, Mine},\n}\n\n"
        "@misc{b,\n  title = {Two},\n  keywords = {MineTwo},\n}\n"
    )
    return f"{tmp_path / 'mine.py'}:Mine"


def test_an_environment_of_your_own_has_a_shelf_beside_its_file(own):
    shelf = shelf_of(resolve(own))
    assert list(shelf.tuned()) == ["ppo"]
    assert [entry.key for entry in shelf.references()] == ["a"]
    assert shelf.card() is None
    assert palestra.evaluate("pretrained", own, episodes=4, seed=0).mean().estimate == 1.5
    with pytest.raises(FileNotFoundError, match=r"no tuned options for 'sac'; there are: ppo"):
        shelf.tuned_for("sac")


def test_the_shelf_of_an_object_is_that_of_its_target(own):
    env = resolve(own).make(2, wrappers=["clip-actions"])
    assert shelf_of_env(env) == shelf_of(resolve(own))
    for name in EVERY:
        assert shelf_of_env(resolve(name).make(1)) == shelf_of(resolve(name))


def test_an_environment_without_a_shelf_says_so():
    assert shelf_of(resolve("CartPole-v1")).tuned() == {}
    assert shelf_of(resolve(TOYS + "Drift")).references() == []
    with pytest.raises(FileNotFoundError, match="CartPoleEnv ships no pretrained policy"):
        load_policy("pretrained", resolve("CartPole-v1").make(1))


def test_a_run_keeps_the_fingerprint_of_the_policy_that_shipped(own, tmp_path):
    run = tmp_path / "run"
    palestra.evaluate("pretrained", own, episodes=4, seed=0, run=run)
    config = json.loads((run / "run.json").read_text())["config"]
    assert config["policy_reference"] is None  # told by its numbers
    assert config["policy_sha256"] == fingerprint(load_policy("pretrained", resolve(own).make(1)))


# --- BibTeX ---------------------------------------------------------------------------------------


def test_keys_of_a_bibliography_are_unique():
    for file in ROOT.glob("envs/*/data/references.bib"):
        text = file.read_text()
        entries = list(bibliography(text))
        assert len(entries) == len(re.findall(r"^@", text, re.M))  # none is lost
        assert len({entry.key for entry in entries}) == len(entries)
        known = set(catalogue())
        for entry in entries:
            assert set(re.split(r"[,\s]+", entry.fields["keywords"])) <= known


def test_palestra_cites_itself_in_its_version():
    entry = palestra_reference()
    assert entry.key == "palestra"
    assert entry.fields["version"] == palestra.__version__
    assert entry.fields["author"] == "{The palestra authors}"
    cff = (ROOT / "CITATION.cff").read_text()
    assert f"version: {palestra.__version__}" in cff
    assert f'title: "{entry.fields["title"]}"' in cff
