"""Steady states and what they tell: closed forms, repeated cycles, and the bound."""

import math
from dataclasses import replace

import numpy as np
import pytest

from palestra.envs.nmr import pulses
from palestra.envs.nmr.bloch import equilibrium
from palestra.envs.nmr.estimation import Prior
from palestra.envs.nmr.events import Event, EventList, Receive, receiver, run
from palestra.envs.nmr.information import fisher, signal_energy
from palestra.envs.nmr.sample import load_sample
from palestra.envs.nmr.steady_state import (
    Target,
    cycle_information,
    seconds_to_error,
    steady_state,
)

from .ensembles import isochromats
from .test_information import random_events, two_species

OIL = load_sample("oil")


def test_balanced_steady_state_of_the_reference_values():
    """A6 and A7: T1 0.6, T2 0.3, TR 5 ms, 60 degrees, alternating phase, just after the pulse."""
    alpha, TR = math.radians(60), 5e-3
    cycle = EventList((Event(alpha, math.pi, tau=TR), Event(alpha, 0.0, tau=TR)))
    spins = isochromats([0.0, 50.0, 100.0], T1=0.6, T2=0.3)
    before = steady_state(cycle, spins)[:, 0]
    after = run(EventList((Event(alpha, math.pi),)), spins, before).m[0]
    np.testing.assert_allclose(
        np.hypot(after[0], after[1]), [0.3492992717, 0.3528483472, 0.0072762176], atol=1e-8
    )
    assert after[2, 0] == pytest.approx(0.5983375269, abs=1e-8)


def test_saturation_and_driven_equilibrium_of_the_reference_values():
    shot = EventList((Event(math.pi / 2, 0.0, tau=1.0, spoil=True),))
    mz = steady_state(shot, isochromats(T1=1.0, T2=0.1))[0, 0, 2, 0]
    assert mz == pytest.approx(1 - math.exp(-1.0), abs=1e-12)
    cycle = pulses.deft(0.1, 0.3)  # A9
    mz = steady_state(cycle, isochromats(T1=1.0, T2=0.8))[0, 0, 2, 0]
    assert mz == pytest.approx(0.6126501906, abs=1e-9)


def test_the_steady_state_is_what_repeated_cycles_end_in():
    random = np.random.default_rng(1)
    spins, cycle = two_species(random), random_events(random, 12)
    m = equilibrium(spins)
    for _ in range(60):
        m = run(cycle, spins, m).m
    np.testing.assert_allclose(steady_state(cycle, spins)[:, 0], m, atol=1e-9)


@pytest.mark.parametrize(("tangent", "field"), [(1, "R1"), (2, "R2"), (3, "b1")])
def test_its_derivatives_are_those_of_finite_differences(tangent, field):
    random = np.random.default_rng(2)
    spins, cycle, h = two_species(random), random_events(random, 12), 1e-6
    ends = [
        steady_state(cycle, replace(spins, **{field: getattr(spins, field) * math.exp(d)}))[0, 0]
        for d in (h, -h)
    ]
    difference = (ends[0] - ends[1]) / (2 * h)
    np.testing.assert_allclose(steady_state(cycle, spins)[0, tangent], difference, atol=1e-8)


def test_information_of_a_cycle_is_the_growth_of_that_of_many():
    random = np.random.default_rng(3)
    spins, dwell = two_species(random), 4e-5
    events = [
        Event(
            float(random.uniform(0.3, 2)), float(random.uniform(-3, 3)), tau=tau,
            receive=Receive(1e-3 + dwell / 2, dwell, round((tau - 1e-3) / dwell)),
        )
        for tau in (0.1, 0.04, 0.2)
    ]  # fmt: skip
    cycle = EventList(tuple(events))
    windows = EventList(
        tuple(
            Event(e.theta, e.phi, tau=e.tau, receive=receiver(e.tau, 1e-3, dwell)) for e in events
        )
    )
    N0 = 0.01
    sigma = math.sqrt(N0 / dwell)
    growth = fisher(cycle * 31, spins, sigma) - fisher(cycle * 30, spins, sigma)
    np.testing.assert_allclose(cycle_information(windows, spins, N0), growth, rtol=2e-4, atol=1e-5)


def test_known_spins_tell_of_the_abundance_what_their_signal_has_of_energy():
    random = np.random.default_rng(4)
    spins, cycle = two_species(random), random_events(random, 5, receive=False)
    always = EventList(
        tuple(Event(e.theta, e.phi, tau=e.tau, receive=receiver(e.tau, 0.0, 1e-3)) for e in cycle)
    )
    energy = signal_energy(cycle, spins, steady_state(cycle, spins)[:, 0])
    assert cycle_information(always, spins, 1.0)[0, 0] == pytest.approx(energy, rel=1e-10)


@pytest.mark.parametrize("seed", range(200))
def test_no_cycle_beats_the_bound(seed):
    random = np.random.default_rng(seed)
    spins, cycle = two_species(random), random_events(random, int(random.integers(1, 9)))
    always = EventList(
        tuple(Event(e.theta, e.phi, tau=e.tau, receive=receiver(e.tau, 0.0, 1e-3)) for e in cycle)
    )
    target = Target(spins, 0.01, 0.05)
    assert target.bound / target.seconds(always) <= 1.0


def test_continuous_balanced_precession_on_resonance_meets_the_bound():
    spins, TR = isochromats(T1=0.6, T2=0.3), 1e-5
    alpha = pulses.bssfp_best_angle(0.6, 0.3)
    opened = receiver(TR, 0.0, TR / 2)
    cycle = EventList(
        tuple(Event(alpha, phase, tau=TR, receive=opened) for phase in (0.0, math.pi))
    )
    target = Target(spins, 0.0135, 0.05)
    assert target.bound == pytest.approx(2 * 0.6 * 36)  # 2 T1 (eps1 / eps)^2
    assert target.bound / target.seconds(cycle) == pytest.approx(1.0, abs=1e-4)


def test_efficiency_of_ideal_trains():
    """A13: CPMG of 1.5 T2 with 5 T1 waits, relative to the bound, for T1 = 2 T2."""
    te = 1e-4
    cycle = pulses.cpmg(te, 4500, 3.0, 0.0, te / 4)
    target = Target(isochromats(T1=0.6, T2=0.3), 0.0135, 0.05)
    assert target.bound / target.seconds(cycle) == pytest.approx(0.326070, abs=1e-4)


def test_seconds_to_an_error_are_those_of_the_inverted_matrix():
    random = np.random.default_rng(5)
    root = random.normal(size=(4, 4))
    rate = root @ root.T
    prior = Prior(log_A_sd=3.0, log_R1_sd=0.4, log_R2_sd=0.1, log_b1_sd=0.03)
    T = seconds_to_error(rate, prior, 0.05)
    precision = np.diag(prior.spread**-2.0)
    assert np.linalg.inv(rate * T + precision)[0, 0] == pytest.approx(0.05**2, rel=1e-9)
    known = seconds_to_error(rate, Prior(), 0.05)
    assert known == pytest.approx(400 / rate[0, 0])
    assert known < T
    nothing = seconds_to_error(
        rate, Prior(log_R1_sd=math.inf, log_R2_sd=math.inf, log_b1_sd=math.inf), 0.05
    )
    assert nothing == pytest.approx(400 * np.linalg.inv(rate)[0, 0], rel=1e-6)
    assert seconds_to_error(rate, Prior(log_A_sd=0.01), 0.05) == 0.0


def test_a_signal_that_confounds_is_never_enough():
    rate = np.ones((4, 4))  # all parameters look the same
    assert seconds_to_error(rate, Prior(log_R1_sd=0.2), 0.05) == math.inf
    assert seconds_to_error(rate, Prior(log_R1_sd=0.01), 0.05) < math.inf


def test_figures_of_the_dossier_with_relaxation_known():
    """6.2: oil, 5 %, eps1 30 %: CPMG with 5 T1 138 s, DE-CPMG 64 s, each to 3 %."""
    target = Target(OIL.magnet(0), OIL.N0, 0.05)
    cpmg = pulses.cpmg(4e-3, 112, 3.0, 1e-4, 1e-4)
    assert target.seconds(cpmg) == pytest.approx(138, rel=0.03)
    driven = pulses.cpmg(4e-3, 15, 0.18, 1e-4, 1e-4, flip_back=True)
    assert target.seconds(driven) == pytest.approx(64, rel=0.03)


def test_bad_cycles_are_refused():
    spins = isochromats(T1=0.6, T2=0.3)
    with pytest.raises(ValueError, match="a finite pulse of"):
        steady_state(EventList((Event(1.0, t_pulse=1e-3, tau=0.1),)), spins)
    with pytest.raises(ValueError, match=r"cycle: got a duration of 0\.0 s"):
        steady_state(EventList((Event(1.0),)), spins)
    two = isochromats([[0.0], [1.0]], T1=0.6, T2=0.3)
    with pytest.raises(ValueError, match="ensemble: got 2 rows, allowed 1"):
        cycle_information(EventList((Event(1.0, tau=0.1),)), two, 1.0)
    with pytest.raises(ValueError, match="eps"):
        Target(spins, 1.0, 0.0)
