"""Three agents that learn one after the other."""

import numpy as np
import pytest

import palestra
from palestra.agents.nmr import ORDER, PPO, ThreeAgentNMR

TINY = {role: {**PPO[role], "n_steps": 8, "batch_size": 32, "n_epochs": 1} for role in PPO}
OIL = {"sample": "oil", "eps": 0.15}


def trained(folder, **options):
    return ThreeAgentNMR.train(
        folder, settings=OIL, steps=64, rows=8, hyperparameters=TINY, **options
    )


def test_every_role_learns_in_its_own_run_folder_and_the_team_plays(tmp_path):
    team = trained(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"1-{role}" for role in sorted(ORDER)]
    assert set(team.policies) == set(ORDER)
    played = palestra.evaluate(team.policies, "NMRTeam", episodes=8, seed=0, settings=OIL)
    assert (played.column("efficiency") <= 1).all()
    before = [palestra.load(training.folder).metrics for training in team.trainings]
    again = trained(tmp_path)  # goes on with what is finished: nothing is trained twice
    after = [palestra.load(training.folder).metrics for training in again.trainings]
    assert before == after
    env = palestra.make("NMRTeam", "aec", **OIL).batch
    env_policy = team.team(env)
    assert set(env_policy.policies) == set(ORDER)


def test_a_second_round_learns_with_those_of_the_first(tmp_path):
    team = trained(tmp_path, rounds=2)
    assert [t.folder.name for t in team.trainings] == [
        f"{k}-{role}" for k in (1, 2) for role in ORDER
    ]
    config = palestra.load(tmp_path / "2-align").configuration
    assert config["settings"]["others"]["relax"] == str(tmp_path / "1-relax")


def test_no_round_is_refused(tmp_path):
    with pytest.raises(ValueError, match="rounds: got 0, allowed 1 or more"):
        trained(tmp_path, rounds=0)


def test_the_team_that_ships_measures_near_the_bound():
    played = palestra.evaluate("pretrained", "NMRTeam", episodes=64, seed=3)
    over = np.exp(np.log(played.column("time_over_bound")).mean())
    assert 1.0 < over < 1.2
    assert played.column("target_met").mean() > 0.95
