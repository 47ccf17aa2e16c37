"""The fit of abundance: known values come back, errors are honest, misfits are seen."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.optimize

from palestra.envs.nmr.bloch import Ensemble
from palestra.envs.nmr.estimation import Prior, fit
from palestra.envs.nmr.events import Event, EventList, Receive, run
from palestra.envs.nmr.information import fisher
from palestra.envs.nmr.pulses import cpmg

from .ensembles import isochromats

T1, T2 = 0.6, 0.3
SPINS = isochromats(np.linspace(-20, 20, 5), 1.0, T1, T2)
EVENTS = EventList(
    tuple(event for wait in (0.3, 1.0, 3.0) for event in cpmg(4e-3, 30, wait, 1e-4, 5e-4))
)
WIDE = Prior(log_R1_sd=0.5, log_R2_sd=0.5, log_b1_sd=0.03)


def truth(A=1.3, T1_factor=1.2, T2_factor=0.8, b1_factor=1.02):
    spins = dataclasses.replace(
        SPINS, R1=SPINS.R1 / T1_factor, R2=SPINS.R2 / T2_factor, b1=SPINS.b1 * b1_factor
    )
    return A * run(EVENTS, spins).signal


def noisy(signal, sigma, seed):
    random = np.random.default_rng(seed)
    return signal + sigma * (random.normal(size=signal.size) + 1j * random.normal(size=signal.size))


def test_without_noise_the_truth_comes_back():
    found = fit(truth(), EVENTS, SPINS, 1e-4, Prior(log_R1_sd=9, log_R2_sd=9, log_b1_sd=9))
    assert found.converged
    assert found.abundance == pytest.approx(1.3, rel=1e-6)
    assert (found.T1_factor, found.T2_factor) == pytest.approx((1.2, 0.8), rel=1e-5)
    assert found.b1_factor == pytest.approx(1.02, rel=1e-5)


def test_the_optimum_is_that_of_a_general_optimiser():
    sigma, samples = 0.05, noisy(truth(), 0.05, 0)
    found = fit(samples, EVENTS, SPINS, sigma, WIDE)
    spread = WIDE.spread

    def cost(x):
        spins = dataclasses.replace(
            SPINS,
            R1=SPINS.R1 * np.exp(x[1]),
            R2=SPINS.R2 * np.exp(x[2]),
            b1=SPINS.b1 * np.exp(x[3]),
        )
        residual = samples - np.exp(x[0]) * run(EVENTS, spins).signal
        return (abs(residual) ** 2).sum() / sigma**2 + ((x / spread) ** 2).sum()

    theirs = scipy.optimize.minimize(
        cost, [0.2, 0, 0, 0], method="Nelder-Mead",
        options={"xatol": 1e-8, "fatol": 1e-9, "maxiter": 8000, "maxfev": 8000},
    )  # fmt: skip
    ours = np.log([found.abundance, 1 / found.T1_factor, 1 / found.T2_factor, found.b1_factor])
    assert cost(ours) <= theirs.fun + 1e-5
    assert ours == pytest.approx(theirs.x, abs=2e-4)


def test_known_relaxation_gives_the_error_of_the_fisher_matrix():
    samples = noisy(truth(1.0, 1.0, 1.0, 1.0), 0.05, 1)
    found = fit(samples, EVENTS, SPINS, 0.05)
    F = fisher(EVENTS, SPINS, 0.05)
    assert found.relative_error == pytest.approx(F[0, 0] ** -0.5 / found.abundance, rel=1e-9)
    assert (found.T1_factor, found.T2_factor, found.b1_factor) == (1, 1, 1)
    assert not found.covariance[1:].any()


def test_a_narrow_prior_is_a_known_value_and_a_wide_one_costs_information():
    samples = noisy(truth(1.0, 1.0, 1.0, 1.0), 0.05, 2)
    known = fit(samples, EVENTS, SPINS, 0.05)
    narrow = fit(samples, EVENTS, SPINS, 0.05, Prior(log_R1_sd=1e-6, log_R2_sd=1e-6))
    wide = fit(samples, EVENTS, SPINS, 0.05, WIDE)
    assert narrow.abundance == pytest.approx(known.abundance, rel=1e-6)
    assert narrow.relative_error == pytest.approx(known.relative_error, rel=1e-6)
    assert wide.relative_error > known.relative_error


@pytest.mark.slow
def test_errors_are_honest_over_many_experiments():
    """300 draws of truth and noise with a prior of 5 %: bias below 3 standard errors, and the
    spread of the normalised error is 1 within its own (0.04, three times)."""
    prior = Prior(log_R1_sd=0.05, log_R2_sd=0.05, log_b1_sd=0.03)
    random = np.random.default_rng(5)
    normalised = []
    for seed in range(300):
        logs = random.normal(0, [0.05, 0.05, 0.03])
        samples = noisy(truth(1.0, *np.exp(logs)), 0.2, seed)
        found = fit(samples, EVENTS, SPINS, 0.2, prior)
        assert found.converged
        normalised.append(np.log(found.abundance) / found.relative_error)
    assert abs(np.mean(normalised)) < 3 / 300**0.5
    assert np.std(normalised) == pytest.approx(1.0, abs=0.13)


def test_two_species_taken_for_one_lack_fit():
    mixed = Ensemble(
        offset_hz=np.zeros((1, 2)), b1=np.ones((1, 2)), R1=np.array([[1 / 0.3, 1 / 3.0]]),
        R2=np.array([[1 / 0.15, 1 / 1.5]]), blocks=np.array([0, 1, 2]), weight=np.array([0.5, 0.5]),
        receive=np.array([[0.5, 0.5]]),
    )  # fmt: skip
    one = isochromats(0.0, 1.0, 0.6, 0.3)
    samples = noisy(run(EVENTS, mixed).signal, 0.01, 0)
    prior = Prior(log_R1_sd=2.0, log_R2_sd=2.0, log_b1_sd=0.03)
    assert fit(samples, EVENTS, one, 0.01, prior).lacks_fit
    right = noisy(truth(1.0, 1.0, 1.0, 1.0), 0.01, 0)
    sound = fit(right, EVENTS, SPINS, 0.01, prior)
    assert not sound.lacks_fit
    assert sound.chi2 / sound.degrees == pytest.approx(1.0, abs=0.1)


def test_bad_input_is_named():
    samples = truth()
    with pytest.raises(ValueError, match=r"samples: got shape \(3,\), allowed"):
        fit(samples[:3], EVENTS, SPINS, 0.1)
    with pytest.raises(ValueError, match="not all are finite"):
        fit(samples * np.nan, EVENTS, SPINS, 0.1)
    with pytest.raises(ValueError, match="sigma"):
        fit(samples, EVENTS, SPINS, 0.0)
    with pytest.raises(ValueError, match="one or more"):
        fit(np.zeros(0), EventList((Event(1.0, 0.0, 0.0, 0.1),)), SPINS, 0.1)
    with pytest.raises(ValueError, match="at least one parameter that is not known"):
        fit(samples, EVENTS, SPINS, 0.1, Prior(log_A_sd=0.0))
    silent = EventList((Event(0.0, 0.0, 0.0, 0.1, Receive(0.0, 1e-3, 9)),))  # no pulse, no signal
    with pytest.raises(ValueError, match="do not determine log A, log R1; give the prior"):
        fit(np.ones(9), silent, SPINS, 0.1, Prior(log_R1_sd=np.inf))
    with pytest.raises(ValueError, match="log_R1_sd: got -1"):
        Prior(log_R1_sd=-1)


def test_scans_and_a_turned_receiver_are_accounted_for():
    """The mean of 16 scans errs by a quarter of one, whatever the receiver's phase."""
    turned = EventList(
        tuple(
            dataclasses.replace(e, receive=e.receive and dataclasses.replace(e.receive, phase=0.8))
            for e in EVENTS
        )
    )
    many = dataclasses.replace(turned, scans=16)
    samples = run(turned, SPINS).signal * 1.3
    np.testing.assert_allclose(samples, 1.3 * np.exp(-0.8j) * run(EVENTS, SPINS).signal, atol=1e-12)
    one, mean = (fit(samples, events, SPINS, 0.4, Prior()) for events in (turned, many))
    assert mean.abundance == pytest.approx(1.3, rel=1e-9)
    assert mean.relative_error == pytest.approx(one.relative_error / 4, rel=1e-9)
