"""Shots against the event lists that they stand for, which another module runs exactly."""

import dataclasses
import math

import numpy as np
import pytest

from palestra.batch import Episodes
from palestra.envs.nmr.abundance import NMRAbundance
from palestra.envs.nmr.events import run
from palestra.envs.nmr.information import fisher, signal_energy
from palestra.envs.nmr.posterior import marginal_information
from palestra.envs.nmr.sample import Field, Instrument, Sample, Species, Task, load_sample
from palestra.envs.nmr.shots import Shot, ShotAction, nodes_needed

QUIET = Field(b0_fwhm_hz=20.0, b1_sd=0.05, n_iso=7)


def sample(**changes):
    given = {"field": QUIET, "instrument": Instrument(dead_time=0.0), **changes}
    return Sample(species=(Species(1.0, 0.6, 0.3),), **given)


def one_shot(env, shot):
    """Play a shot as the first of an episode; the episode's bookkeeper."""
    episodes = Episodes(env)
    episodes.reset(3)
    wait = shot.wait / env.books["reference"][0]
    action = env.action.encode(shot.excitation, shot.train, shot.pulses, shot.flip_back, wait)
    episodes.advance(action[np.newaxis])
    return episodes


SHOTS = [
    Shot(math.pi / 2, math.pi, 9, math.pi / 2, 0.2),
    Shot(0.6, 1.2, 8, 0.6, 0.0),
    Shot(math.pi / 2, 0.0, 20, 0.0, 1.0),
    Shot(2.0, 3.0, 1, -1.0, 0.05),
]


@pytest.mark.parametrize("shot", SHOTS)
@pytest.mark.parametrize("species", [1, 2])
def test_spins_end_where_the_event_list_takes_them(shot, species):
    what = sample()
    if species == 2:
        parts = (Species(0.5, 0.3, 0.15, J_hz=20.0, n_H=1), Species(0.5, 3.0, 1.5))
        what = dataclasses.replace(what, species=parts)
    env = NMRAbundance(1, sample=what, eps=1e-3)
    one_shot(env, shot)
    played = env.shots(0)[0]
    assert played.pulses == shot.pulses
    assert played.excitation == pytest.approx(shot.excitation, abs=1e-6)
    ends = run(env.events(0), env.isochromats(0)).m
    np.testing.assert_allclose(env.m, ends, atol=1e-12)
    assert env.books["elapsed"][0] == pytest.approx(env.events(0).duration, rel=1e-12)


def test_spins_end_there_with_finite_pulses_too():
    finite = Instrument(dead_time=0.0, pulse_model="finite", nu1_max_hz=2000.0)
    env = NMRAbundance(1, sample=sample(instrument=finite), eps=1e-3)
    one_shot(env, SHOTS[0])
    events = env.events(0)
    assert events[0].t_pulse == pytest.approx(0.25 / 2000.0)
    np.testing.assert_allclose(env.m, run(events, env.isochromats(0)).m, atol=2e-3)
    assert env.books["elapsed"][0] == pytest.approx(events.duration, rel=1e-12)


@pytest.mark.parametrize("shot", SHOTS)
def test_information_is_the_exact_energy_of_the_signal(shot):
    env = NMRAbundance(1, sample=sample(), eps=1e-3)
    one_shot(env, shot)
    open_all_the_time = [e for e in env.events(0) if e.receive]  # the wait gives nothing
    energy = signal_energy(type(env.events(0))(tuple(open_all_the_time)), env.isochromats(0))
    counted = env.books["information"][0] * env.books["N0"][0]
    assert counted == pytest.approx(energy, rel=1e-5)


def test_information_with_unknown_relaxation_is_fishers():
    dense = Instrument(dead_time=0.0, dwell=2e-6)
    what = sample(instrument=dense, task=Task(information="marginal", log_b1_sd=0.02))
    env = NMRAbundance(1, sample=what, eps=1e-3, observation="oracle")
    episodes = Episodes(env)
    episodes.reset(1)
    for shot in (SHOTS[1], SHOTS[0]):
        wait = shot.wait / env.books["reference"][0]
        action = env.action.encode(shot.excitation, shot.train, shot.pulses, shot.flip_back, wait)
        episodes.advance(action[np.newaxis])
    sigma = math.sqrt(env.books["N0"][0] / dense.dwell)
    F = fisher(env.events(0), env.isochromats(0), sigma)
    prior = np.diag([0.0, 0.5**-2, 0.5**-2, 0.02**-2])
    expected = 1 / np.linalg.inv(F + prior)[0, 0]
    assert env.books["information"][0] == pytest.approx(expected, rel=2e-3)


def test_marginal_information_is_that_of_the_inverse():
    rng = np.random.default_rng(0)
    for _ in range(20):
        half = rng.normal(size=(4, 6))
        F, precision = half @ half.T, rng.uniform(0, 2, 4)
        expected = 1 / np.linalg.inv(F + np.diag(precision))[0, 0]
        assert marginal_information(F, precision) == pytest.approx(expected, rel=1e-10)


def test_the_clock_stops_where_the_target_is_met():
    """The exact energy of the list, cut where the clock stopped, is what was needed."""
    env = NMRAbundance(1, sample=sample(), eps=0.4)  # reached in the first train
    one_shot(env, Shot(math.pi / 2, math.pi, 100, 0.0, 1.0))
    assert env.books["met"][0]
    energy = signal_energy(env.events(0), env.isochromats(0))
    assert energy / env.books["N0"][0] == pytest.approx(0.4**-2, rel=1e-5)
    assert env.events(0).duration < 0.4  # no trailing wait


def test_actions_and_shots_match():
    action = ShotAction(most_pulses=1000)
    shot = action.decode(action.encode(1.0, 2.0, 300, -0.5, 0.7), T1=2.0)
    assert shot.pulses == 300
    found = (shot.excitation, shot.train, shot.flip_back, shot.wait)
    np.testing.assert_allclose(found, (1.0, 2.0, -0.5, 1.4), rtol=1e-5)
    assert action.decode(np.ones(5), 1.0).wait == pytest.approx(5.0)


@pytest.mark.parametrize("band", [10.0, 100.0, 800.0])
def test_enough_nodes(band):
    Q = nodes_needed(band, 4e-3, 5.0)
    x, w = np.polynomial.legendre.leggauss(Q)
    t = 2e-3 * (x + 1)
    rate = 2j * math.pi * band - 5.0
    found = 2e-3 * (w @ np.exp(rate * t))
    assert abs(found - (np.exp(rate * 4e-3) - 1) / rate) < 1e-5 * 4e-3
    assert nodes_needed(2 * band, 4e-3, 5.0) >= Q


def test_windows_too_long_for_their_offsets_are_refused():
    with pytest.raises(ValueError, match=r"te: got windows of 1 s .* allowed spacings"):
        NMRAbundance(1, sample="oil", te=1.0)
    with pytest.raises(ValueError, match=r"te: got 0.0002 s with a dead time of 0.0001"):
        NMRAbundance(1, sample="oil", te=2e-4)


def test_random_trains_stay_below_the_time_bound():
    """1000 policies that act at random, on 1000 samples: no efficiency above 1, no |M| above 1."""
    env = NMRAbundance(1000, sample="random", horizon=40)
    episodes = Episodes(env)
    episodes.reset(7)
    rng = np.random.default_rng(1)
    centre = rng.uniform(-1, 1, (1000, 5))  # each policy has a habit of its own
    for _ in range(40):
        live = ~episodes.ended
        if not live.any():
            break
        action = np.clip(centre + 0.3 * rng.normal(size=(1000, 5)), -1, 1).astype(np.float32)
        episodes.advance(action, live)
        most = env.books["at_once"] + env.books["per_second"] * env.books["elapsed"]
        assert (env.books["information"] * env.books["N0"] <= most * (1 + 1e-9)).all()
        assert np.linalg.norm(env.m, axis=1).max() <= 1 + 1e-12
    found = env.metrics()
    assert found["target_met"].any()
    assert found["efficiency"].max() <= 1.0
    assert found["time_over_bound"].min() >= 1.0


@pytest.mark.parametrize("name", ["mixed", "soil", "oil", "sugar"])
def test_so_they_do_on_other_samples(name):
    env = NMRAbundance(50, sample=load_sample(name), te=1e-3, horizon=20, eps=0.2)
    episodes = Episodes(env)
    episodes.reset(2)
    rng = np.random.default_rng(3)
    for _ in range(20):
        live = ~episodes.ended
        if live.any():
            episodes.advance(rng.uniform(-1, 1, (50, 5)).astype(np.float32), live)
    assert env.metrics()["efficiency"].max() <= 1.0


def test_the_receiver_follows_the_train():
    """Of a perfect echo train all samples at the echoes have the same phase."""
    shot = Shot(math.pi / 2, math.pi, 6, 0.0, 0.0)
    events = shot.events(4e-3, 1e-4, 1e-4)
    assert [round(e.receive.phase / math.pi) for e in events if e.receive] == [0, 1, 0, 1, 0, 1, 0]
    what = Sample(
        species=(Species(1.0, 0.6, 0.3),), field=Field(b0_fwhm_hz=0.0, b1_sd=0.0, n_iso=1)
    )
    env = NMRAbundance(1, sample=what)
    one_shot(env, shot)
    signal = run(events, env.isochromats(0)).signal
    np.testing.assert_allclose(np.angle(signal), -math.pi / 2, atol=1e-9)
