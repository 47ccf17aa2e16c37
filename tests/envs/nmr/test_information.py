"""Information, energy balance and the time bound: known values, and nothing beats the bound."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.envs.nmr.bloch import Ensemble, equilibrium, pulse_and_delay
from palestra.envs.nmr.events import Event, EventList, Receive, run
from palestra.envs.nmr.information import (
    STATES,
    energy_balance,
    energy_bound,
    fisher,
    noise_density,
    pulse_and_delay_with_tangents,
    signal_energy,
    time_bound,
)
from palestra.envs.nmr.pulses import bssfp, bssfp_best_angle

from .ensembles import isochromats, vector

NINETY = np.pi / 2


def two_species(random, n=5):
    """Offsets, fields and receive weights at random; T1 0.6 and 2 s, T2 0.3 and 0.1 s."""
    receive = random.uniform(0.5, 1.5, (1, 2 * n))
    return Ensemble(
        offset_hz=random.normal(0, 20, (1, 2 * n)),
        b1=random.normal(1, 0.03, (1, 2 * n)),
        R1=np.array([[1 / 0.6, 1 / 2.0]]),
        R2=np.array([[1 / 0.3, 1 / 0.1]]),
        blocks=np.array([0, n, 2 * n]),
        weight=np.full(2 * n, 0.5 / n),
        receive=receive / receive.sum(),
    )


def random_events(random, count=30, receive=True):
    events = []
    for _ in range(count):
        tau = float(random.uniform(1e-3, 0.1))
        window = Receive(1e-4, 1e-3, int(tau / 1e-3)) if receive else None
        theta, phi = random.uniform(0, np.pi), random.uniform(-np.pi, np.pi)
        events.append(Event(float(theta), float(phi), 0.0, tau, window))
    return EventList(tuple(events))


# --- reference values -----------------------------------------------------------------------------


def test_the_time_bound_of_the_dossiers_example():
    assert time_bound(0.6, 0.3, 0.05) == pytest.approx(42.0, rel=1e-12)  # A17
    assert time_bound(0.6, 0.3, 0.4) == 0.0


def test_error_of_an_amplitude_from_a_decay():
    """A14: A = 1, T2 = 50 ms, 5000 samples 0.1 ms apart, sigma 0.1."""
    spins = isochromats(0.0, 1.0, T1=1e9, T2=0.05)
    window = EventList((Event(NINETY, 0.0, 0.0, 0.5, Receive(0.0, 1e-4, 5000)),))
    information = fisher(window, spins, 0.1)
    assert information[0, 0] ** -0.5 == pytest.approx(0.00631824, abs=1e-8)
    # with R2 unknown; phase and frequency, which the dossier adds, do not correlate with either
    joint = np.linalg.inv(information[np.ix_([0, 2], [0, 2])])
    assert joint[0, 0] ** 0.5 == pytest.approx(0.00892641, abs=1e-8)


@pytest.mark.parametrize(
    ("window", "inflation"),
    [(0.5, 3.20284), (1, 2.71024), (2, 2.23049), (3, 2.06600), (5, 2.00365)],
)
def test_inflation_of_the_variance_by_an_unknown_decay(window, inflation):
    """A15, in the limit of dense samples at the middles of their intervals."""
    T2, count = 0.05, 20_000
    dwell = window * T2 / count
    spins = isochromats(0.0, 1.0, T1=1e9, T2=T2)
    event = Event(NINETY, 0.0, 0.0, window * T2, Receive(dwell / 2, dwell, count))
    F = fisher(EventList((event,)), spins, 1.0)
    joint = np.linalg.inv(F[np.ix_([0, 2], [0, 2])])[0, 0]
    assert joint * F[0, 0] == pytest.approx(inflation, abs=2e-5)


def test_noise_of_one_ideal_shot():
    """By definition eps1 is the error of a whole decay: F = int exp(-2 t / T2) dt / N0."""
    T2, eps1 = 0.3, 0.3
    assert T2 / 2 / noise_density(T2, eps1) == pytest.approx(eps1**-2, rel=1e-12)


# --- derivatives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("parameter", [1, 2, 3])
def test_tangents_are_derivatives_of_the_signal(parameter):
    random = np.random.default_rng(parameter)
    spins, events = two_species(random), random_events(random)

    def signal(shift):
        scale = np.exp(shift)
        changed = {
            1: {"R1": spins.R1 * scale},
            2: {"R2": spins.R2 * scale},
            3: {"b1": spins.b1 * scale},
        }
        return run(events, dataclasses.replace(spins, **changed[parameter])).signal

    h = 1e-5
    slope = (8 * (signal(h) - signal(-h)) - (signal(2 * h) - signal(-2 * h))) / (12 * h)
    F = fisher(events, spins, 1.0)
    assert F[parameter, parameter] == pytest.approx(np.vdot(slope, slope).real, rel=1e-8)
    amplitude = run(events, spins).signal
    assert F[0, parameter] == pytest.approx(np.vdot(amplitude, slope).real, rel=1e-7, abs=1e-9)
    assert F[0, 0] == pytest.approx(np.vdot(amplitude, amplitude).real, rel=1e-12)
    assert np.array_equal(F, F.T)


def test_the_state_with_tangents_moves_as_the_state_alone():
    random = np.random.default_rng(0)
    spins = two_species(random)
    m = equilibrium(spins)
    state = np.zeros((1, STATES, 3, m.shape[2]))
    state[:, 0] = m
    live = np.ones(1, np.bool_)
    for event in random_events(random):
        pulse_and_delay(m, spins, event.theta, event.phi, event.tau)
        given = (np.full(1, v) for v in (event.theta, event.phi, event.tau))
        pulse_and_delay_with_tangents(state, spins, *given, live)
    assert np.allclose(state[:, 0], m, rtol=0, atol=1e-14)
    before = state.copy()
    still = np.zeros(1, np.bool_)
    pulse_and_delay_with_tangents(state, spins, np.ones(1), np.ones(1), np.ones(1), still)
    assert np.array_equal(state, before)


def test_spoilers_and_start_states_are_obeyed():
    spins = isochromats(0.0, 1.0, T1=0.6, T2=0.3)
    window = Receive(0.0, 1e-3, 100)
    shot = Event(NINETY, 0.0, 0.0, 0.1, window)
    again = EventList((dataclasses.replace(shot, spoil=True), Event(0.0, 0.0, 0.0, 0.1, window)))
    once = EventList((shot,))
    assert fisher(again, spins, 1.0)[0, 0] == fisher(once, spins, 1.0)[0, 0]
    half = fisher(once, spins, 1.0, vector(0, 0, 0.5))
    assert half[0, 0] == pytest.approx(fisher(once, spins, 1.0)[0, 0] / 4, rel=1e-12)


# --- energy ---------------------------------------------------------------------------------------


def test_pulses_do_no_work():
    """A16: the identity holds to rounding, whatever is done."""
    for seed in range(5):
        random = np.random.default_rng(seed)
        balance = energy_balance(random_events(random, 60), two_species(random))
        assert np.abs(balance.error).max() < 1e-13
        assert balance.transverse.min() > 0
    spoiled = EventList((Event(NINETY, 0.0, 0.0, 0.1, spoil=True), Event(0.3, 0.0, 0.0, 0.2)))
    assert np.abs(energy_balance(spoiled, two_species(random)).error).max() < 1e-14


def test_signal_energy_is_the_integral_of_the_signal():
    random = np.random.default_rng(3)
    spins, tau = two_species(random), 0.2
    exact = signal_energy(EventList((Event(1.0, 0.3, 0.0, tau),)), spins)
    count = 200_000
    dense = EventList((Event(1.0, 0.3, 0.0, tau, Receive(tau / count / 2, tau / count, count)),))
    assert exact == pytest.approx(
        (abs(run(dense, spins).signal) ** 2).sum() * tau / count, rel=1e-9
    )


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    T1=st.floats(0.05, 5),
    ratio=st.floats(0.01, 2),
    spread=st.floats(0, 100),
    count=st.integers(1, 40),
)
def test_no_sequence_gets_more_signal_than_the_bound(seed, T1, ratio, spread, count):
    random = np.random.default_rng(seed)
    spins = isochromats(random.normal(0, spread, 6), random.normal(1, 0.1, 6), T1, ratio * T1)
    events = random_events(random, count, receive=False)
    time = sum(event.tau for event in events)
    assert signal_energy(events, spins) <= energy_bound(spins, time)[0] * (1 + 1e-12)
    m = random.normal(0, 0.4, (1, 3, 6))
    assert signal_energy(events, spins, m) <= energy_bound(spins, time, m)[0] * (1 + 1e-12)


def test_the_energy_bound_of_the_dossiers_example():
    """A16: T1 0.6 s, T2 0.3 s, 2 s: at most 0.4 s; of two species the mean by their share."""
    assert energy_bound(isochromats(0.0, 1.0, 0.6, 0.3), 2.0)[0] == pytest.approx(0.4, rel=1e-12)
    both = two_species(np.random.default_rng(0))
    share = both.receive[0, :5].sum()
    parts = [0.3 * (0.5 + 2.0 / 2.4), 0.1 * (0.5 + 2.0 / 8.0)]
    expected = share * parts[0] + (1 - share) * parts[1]
    assert energy_bound(both, 2.0)[0] == pytest.approx(expected, rel=1e-12)


def test_steady_free_precession_comes_close_to_the_bound():
    """On resonance, at its best angle and short TR it meets the rate T2 / (4 T1) of the bound."""
    T1, T2, TR = 0.6, 0.3, 1e-3
    spins = isochromats(0.0, 1.0, T1, T2)
    alpha = bssfp_best_angle(T1, T2)
    rates = [signal_energy(bssfp(alpha, TR, n), spins) for n in (6000, 8000)]
    rate = (rates[1] - rates[0]) / (2000 * TR)
    assert rate == pytest.approx(T2 / (4 * T1), rel=2e-3)
    assert rate <= T2 / (4 * T1) * (1 + 1e-6)  # what is left of the approach


# --- bad input ------------------------------------------------------------------------------------


def test_what_is_not_covered_is_refused():
    spins = isochromats(0.0, 1.0, 0.6, 0.3)
    finite = EventList((Event(NINETY, 0.0, 1e-4, 0.1),))
    for function in (energy_balance, signal_energy, lambda e, s: fisher(e, s, 1.0)):
        with pytest.raises(ValueError, match=r"a finite pulse of 0\.0001 s"):
            function(finite, spins)
        with pytest.raises(ValueError, match="got 2 rows, allowed 1"):
            function(EventList(()), isochromats(np.zeros((2, 3))))
    with pytest.raises(ValueError, match="sigma"):
        fisher(EventList(()), spins, 0.0)
    with pytest.raises(ValueError, match="eps"):
        time_bound(0.6, 0.3, 0.0)


def test_scans_multiply_information_and_the_receivers_phase_changes_nothing():
    random = np.random.default_rng(5)
    spins, once = two_species(random), random_events(random)
    many = dataclasses.replace(once, scans=16)
    window = [dataclasses.replace(e.receive, phase=float(random.uniform(-3, 3))) for e in once]
    turned = EventList(
        tuple(dataclasses.replace(e, receive=w) for e, w in zip(once, window, strict=True))
    )
    known = fisher(once, spins, 0.1)
    np.testing.assert_allclose(fisher(many, spins, 0.1), 16 * known, rtol=1e-14)
    np.testing.assert_allclose(fisher(turned, spins, 0.1), known, rtol=1e-9, atol=1e-9)
