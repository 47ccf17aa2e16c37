"""Classical sequences as policies, on the reference set-up of the dossier's figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from palestra.batch import Episodes
from palestra.controllers import CATALOGUE, nmr
from palestra.envs.nmr.env import NMRAlign, NMRRelax
from palestra.envs.nmr.sample import load_sample
from palestra.registry import load_object
from palestra.rollout import evaluate


def play(env, policy):
    episodes = Episodes(env)
    episodes.seed(0)
    episodes.begin(env.everyone)
    for _ in range(env.horizon):
        actions, _ = policy.predict(episodes.observe())
        episodes.advance(actions, ~episodes.ended)
    return env.metrics()


def mean_time(policy, **settings):
    env = NMRRelax(4096, **settings)
    return play(env, policy(env))["time_to_equilibrium"].mean()


def test_waiting_takes_2_752_seconds():
    assert mean_time(nmr.Wait) == pytest.approx(2.752, abs=0.002)


def test_driven_equilibrium_takes_1_179_seconds():
    """Mean of 512 starts in the reference; its sampling error is 0.015 s."""
    assert mean_time(nmr.Deft) == pytest.approx(1.179, abs=0.02)


def test_ideal_driven_equilibrium_takes_1_100_seconds():
    oil = load_sample("oil")
    ideal = replace(oil, field=replace(oil.field, b1_sd=0.0))
    assert mean_time(nmr.Deft, sample=ideal) == pytest.approx(1.100, abs=0.002)
    assert mean_time(nmr.CompensatedDeft, sample=ideal) == pytest.approx(1.100, abs=0.002)


def test_pulses_whose_errors_cancel_lose_less_to_a_wrong_transmit_field():
    assert 1.100 < mean_time(nmr.CompensatedDeft) < 1.13 < mean_time(nmr.Deft)


def test_nothing_helps_where_t2_is_short():
    """Pitfall of the topic: on soil the gain over waiting is about 1."""
    env = NMRRelax(1024, sample="soil")
    metrics = play(env, nmr.Deft(env))
    ratio = metrics["waiting_time"].mean() / metrics["time_to_equilibrium"].mean()
    assert 1.0 < ratio < 1.06


@pytest.mark.parametrize(
    ("policy", "theta0"),
    [(nmr.Ninety, (0.0, 0.1)), (nmr.Echo, (1.5, 1.6)), (nmr.EchoNinety, (0, 3.1))],
)
def test_each_alignment_sequence_aligns_the_states_it_is_for(policy, theta0):
    env = NMRAlign(2048, theta0=theta0)
    metrics = play(env, policy(env))
    assert metrics["aligned"].mean() > 0.85
    assert metrics["alignment"].mean() > 0.98


def test_refocusing_and_turning_beat_either_alone():
    kept = {}
    for policy in (nmr.Ninety, nmr.Echo, nmr.EchoNinety):
        env = NMRAlign(2048)
        kept[policy] = play(env, policy(env))["signal_kept"].mean()
    assert kept[nmr.EchoNinety] > 0.95
    assert kept[nmr.EchoNinety] > max(kept[nmr.Ninety], kept[nmr.Echo]) + 0.1


@pytest.mark.parametrize(
    "name", [n for n, v in CATALOGUE.items() if v.startswith("palestra.controllers.nmr:")]
)
def test_sequences_are_legal_policies_by_name(name):
    cls = NMRAlign if name in ("ninety", "echo", "echo-ninety") else NMRRelax
    env = cls(5)
    policy = load_object(CATALOGUE[name])(env)
    observation = np.random.default_rng(0).uniform(-1, 1, (5, 8)).astype(np.float32)
    actions, state = policy.predict(observation, state="kept")
    assert all(env.action_space.contains(a) for a in actions)
    assert state == "kept"


@pytest.mark.parametrize(
    ("policy", "settings", "says"),
    [
        (nmr.Deft, {"tau0": (0.05, 0.06)}, "delays of 0.0001 to 0.04 s, needed the time since"),
        (nmr.Deft, {"tau0": (0.3, 0.4), "tau_max": 0.5}, "delays of 0.0001 to 0.2 s, needed"),
        (nmr.Echo, {"tau_min": 0.03}, "delays of 0.03 to 0.04 s, needed"),
        (nmr.CompensatedDeft, {"theta_max": 1.0}, "theta_max = 57.3 degrees, needed 180"),
        (nmr.Echo, {"theta_max": 2.35}, "theta_max = 135 degrees, needed 180"),
        (nmr.Ninety, {"theta_max": 1.0}, "theta_max = 57.3 degrees, needed 90"),
        (nmr.Deft, {"horizon": 1}, "horizon = 1 steps, needed 2"),
        (nmr.EchoNinety, {"horizon": 1}, "horizon = 1 steps, needed 2"),
    ],
)
def test_a_sequence_that_cannot_be_played_is_refused_rather_than_a_straw_man(
    policy, settings, says
):
    env = NMRRelax(2, **settings)
    with pytest.raises(ValueError, match=f"policy: {policy.__name__} cannot be played.*: {says}"):
        policy(env)
    assert nmr.Wait(env).predict(np.zeros((2, 8)))[0].shape == (2, 3)


def test_a_horizon_that_is_shortened_later_counts_too():
    with pytest.raises(ValueError, match="horizon = 1 steps, needed 2"):
        evaluate("deft", "NMRRelax", episodes=2, seed=0, settings={"max_episode_steps": 1})


def test_a_limit_that_only_trims_a_sequence_is_borne():
    waiting = mean_time(nmr.Wait)
    assert mean_time(nmr.Deft, theta_max=3.0) < 0.6 * waiting
    with pytest.warns(UserWarning, match=r"Deft: where the excitation was not 0.0001 to 0.015 s"):
        assert mean_time(nmr.Deft, tau_max=0.015) < 0.8 * waiting


def test_sequences_keep_to_the_limits_of_their_environment():
    env = NMRRelax(4, tau_max=0.03)
    episodes = Episodes(env)
    episodes.seed(0)
    episodes.begin(env.everyone)
    tau0 = episodes.observe()[:, 6] * 0.02
    episodes.advance(nmr.Deft(env).predict(episodes.observe())[0])
    np.testing.assert_allclose([env.events(r)[0].tau for r in range(4)], tau0, rtol=1e-5)
