"""Coupled spins against closed forms, the Bloch equations, and a density matrix written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.linalg import expm

from palestra.envs.nmr.coupled import MOST_KEPT, CoupledSpins, Coupling, Spin
from palestra.envs.nmr.events import Event, EventList, run
from palestra.envs.nmr.sample import GYROMAGNETIC, Species

from .ensembles import isochromats

RIGHT, X, Y = math.pi / 2, 0.0, math.pi / 2
J = 145.0


def carbon_proton(**relaxation):
    return CoupledSpins(
        [Spin("13C", 30.0, **relaxation), Spin("1H", -50.0, 3.0, 1.0)], [Coupling(0, 1, J)]
    )


def pair(delta, coupling, strong=True):
    spins = [Spin("1H", delta / 2, 2.0, 0.7), Spin("1H", -delta / 2, 1.0, 0.4)]
    return CoupledSpins(spins, [Coupling(0, 1, coupling, strong)])


@pytest.mark.parametrize("delta", [0.5, 7.0, 60.0])
def test_the_ab_quartet(delta):
    """Lines at (+-C +- J) / 2, C = sqrt(delta^2 + J^2), intensities (1 +- J/C) / 4."""
    j = 8.0
    C = math.hypot(delta, j)
    got = pair(delta, j).lines()
    np.testing.assert_allclose(got[0], [-(C + j) / 2, -(C - j) / 2, (C - j) / 2, (C + j) / 2])
    inner, outer = (1 + j / C) / 4, (1 - j / C) / 4
    np.testing.assert_allclose(got[1], [outer, inner, inner, outer], atol=1e-12)


def test_the_free_decay_of_an_ab_pair_is_its_quartet():
    spins = [Spin("1H", 5.0), Spin("1H", -5.0)]
    system = CoupledSpins(spins, [Coupling(0, 1, 8.0, strong=True)])
    state = system.step(system.equilibrium(), RIGHT, Y)
    got = sum(system.acquire(state, k, 1e-2, 40)[0] for k in (0, 1)) / 2
    frequency, intensity = system.lines()
    times = 1e-2 * np.arange(40)
    expected = np.exp(2j * np.pi * np.outer(times, frequency)) @ intensity
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_a_doublet_is_cos_pi_j_t():
    system = CoupledSpins([Spin("13C", T2=0.3, T1=0.5), Spin("1H")], [Coupling(0, 1, J)])
    state = system.step(system.equilibrium(), RIGHT, Y, (0,))
    t = 1e-3 * np.arange(50)
    got = system.acquire(state, 0, 1e-3, 50)[0]
    np.testing.assert_allclose(got, np.cos(np.pi * J * t) * np.exp(-t / 0.3), atol=1e-12)


def test_an_echo_of_a_homonuclear_pair_is_modulated():
    """180 on both: offsets are refocused, J is not: cos(pi J 2 tau); 180 on one: neither J."""
    system = CoupledSpins([Spin("1H", 80.0), Spin("1H", -31.0)], [Coupling(0, 1, 7.0)])
    start = system.equilibrium()
    for tau in (0.01, 0.03, 0.09):
        excited = system.step(start, RIGHT, Y, None, tau)
        both = system.signal(system.step(excited, math.pi, Y, None, tau), 0)[0]
        one = system.signal(system.step(excited, math.pi, Y, (0,), tau), 0)[0]
        assert both == pytest.approx(-math.cos(2 * math.pi * 7.0 * tau), abs=1e-12)
        assert one == pytest.approx(-1.0, abs=1e-12)


def test_inept_transfers_gamma_h_over_gamma_c():
    """90x(H) - 1/4J - 180x(H, C) - 1/4J - 90y(H) 90x(C): antiphase carbon, in phase 1/2J later."""
    system = CoupledSpins([Spin("13C", 17.0), Spin("1H", 40.0)], [Coupling(0, 1, J)])
    quarter = 1 / (4 * J)
    saturated = system.equilibrium()
    saturated[:, system.index(0, 3)] = 0.0  # of the carbon's own magnetisation
    state = system.step(saturated, RIGHT, X, (1,), quarter)
    state = system.step(state, math.pi, X, None, quarter)
    state = system.step(state, RIGHT, Y, (1,))
    state = system.step(state, RIGHT, X, (0,))
    assert abs(system.signal(state, 0)[0]) < 1e-12
    state = system.step(state, 0.0, 0.0, (), quarter)
    state = system.step(state, math.pi, X, None, quarter)
    gain = GYROMAGNETIC["1H"] / GYROMAGNETIC["13C"]
    assert abs(system.signal(state, 0)[0]) == pytest.approx(gain, abs=1e-11)


@pytest.mark.parametrize("system", [carbon_proton(T1=0.6, T2=0.2), pair(7.0, 8.0)])
def test_equilibrium_stays_and_every_state_comes_to_it(system):
    """Spinach#22."""
    start = system.equilibrium()
    assert abs(system.liouvillian @ start[0]).max() < 1e-12
    for tau in (1e-3, 1.0, 300.0):
        np.testing.assert_allclose(system.step(start, 0.0, 0.0, (), tau), start, atol=1e-12)
    any_state = np.random.default_rng(5).normal(size=(6, 16))
    any_state[:, 0] = 1.0
    end = system.step(any_state, 0.0, 0.0, (), 300.0)
    np.testing.assert_allclose(end, np.repeat(start, 6, axis=0), atol=1e-12)


def test_states_that_pulses_reach_are_density_matrices():
    system = carbon_proton(T1=0.6, T2=0.2)
    random = np.random.default_rng(3)
    state = system.equilibrium(4)
    for _ in range(200):
        theta, phi = random.uniform(0, math.pi), random.uniform(0, 2 * math.pi)
        spins = [(0,), (1,), None][random.integers(3)]
        state = system.step(state, theta, phi, spins, random.exponential(0.02))
        rho = system.density_matrix(state)
        np.testing.assert_allclose(np.trace(rho, axis1=1, axis2=2), 1.0, atol=1e-12)
        populations = np.linalg.eigvalsh(rho)
        assert populations.min() > -1e-12
        assert populations.max() < 1 + 1e-12


def test_without_coupling_each_spin_obeys_the_bloch_equations():
    spins = [Spin("13C", 30.0, 0.6, 0.2), Spin("1H", -50.0, 3.0, 1.0)]
    system = CoupledSpins(spins)
    steps = [(1.1, 0.3, 0.02), (2.5, 4.0, 0.3), (0.7, 1.0, 0.001)]
    state = system.equilibrium()
    for theta, phi, tau in steps:
        state = system.step(state, theta, phi, None, tau)
    events = EventList(tuple(Event(theta, phi, tau=tau) for theta, phi, tau in steps))
    for k, spin in enumerate(spins):
        ensemble = isochromats(spin.offset_hz, T1=spin.T1, T2=spin.T2)
        expected = run(events, ensemble).m[0, :, 0]
        np.testing.assert_allclose(system.magnetisation(state, k)[0], expected, atol=1e-12)


def test_the_superoperator_is_the_equation_of_the_density_matrix():
    """Matrices 4x4 written out by hand, rows of rho stacked, and expm of 16x16 complex."""
    system = pair(7.0, 8.0)
    x, y, z = (np.array(m) / 2 for m in ([[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]))
    one = np.eye(2)
    A, B = ([np.kron(m, one) for m in (x, y, z)], [np.kron(one, m) for m in (x, y, z)])
    H = 2 * np.pi * (3.5 * A[2] - 3.5 * B[2] + 8.0 * sum(a @ b for a, b in zip(A, B, strict=True)))

    def left_right(a, b):
        return np.kron(a, b.T)

    eye = np.eye(4)
    decay = np.zeros((16, 16), complex)
    for ops, T1, T2 in ((A, 2.0, 0.7), (B, 1.0, 0.4)):
        for op, rate in zip(ops, (1 / (2 * T1), 1 / (2 * T1), 1 / T2 - 1 / (2 * T1)), strict=True):
            double = left_right(op @ op, eye) + left_right(eye, op @ op) - 2 * left_right(op, op)
            decay += rate * double
    rest = (eye + A[2] + B[2]) / 4  # p = 1/2 each
    pulse = expm(-1j * 1.2 * (A[0] + B[0]))
    rho = pulse @ rest @ pulse.conj().T
    L = -1j * (left_right(H, eye) - left_right(eye, H)) - decay
    final = rest.ravel() + expm(L * 0.13) @ (rho - rest).ravel()
    got = system.density_matrix(system.step(system.equilibrium(), 1.2, 0.0, None, 0.13))[0]
    np.testing.assert_allclose(got, final.reshape(4, 4), atol=1e-12)


@pytest.mark.parametrize("n_H", [1, 2, 3])
def test_a_multiplet_is_a_set_of_isochromats(n_H):
    """Pulses on the carbon alone, protons that do not relax: lines of the binomial weights."""
    species = Species(1.0, 0.6, 0.2, shift_hz=30.0, J_hz=J, n_H=n_H)
    carbon = Spin("13C", 30.0, species.T1, species.T2)
    protons = [Spin("1H", 10.0 * k) for k in range(n_H)]
    system = CoupledSpins([carbon, *protons], [Coupling(0, k + 1, J) for k in range(n_H)])
    steps = [(1.1, 0.3, 0.002), (2.5, 4.0, 0.003), (0.7, 1.0, 0.0013)]
    state = system.equilibrium()
    for theta, phi, tau in steps:
        state = system.step(state, theta, phi, (0,), tau)
    offsets, weights = np.array(species.lines).T
    events = EventList(tuple(Event(theta, phi, tau=tau) for theta, phi, tau in steps))
    m = run(events, isochromats(offsets, T1=species.T1, T2=species.T2)).m[0]
    np.testing.assert_allclose(system.magnetisation(state, 0)[0], m @ weights, atol=1e-12)


def test_propagators_are_kept_and_cannot_be_changed():
    system = carbon_proton(T1=0.6, T2=0.2)
    first = system.propagator(1.0, 0.0, (0,), 0.1)
    assert system.propagator(1.0, 0.0, (0,), 0.1) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 2.0
    for k in range(MOST_KEPT + 5):
        system.propagator(0.0, 0.0, (), 1e-3 * (k + 1))
    np.testing.assert_array_equal(system.propagator(1.0, 0.0, (0,), 0.1), first)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Spin("2H"), "isotope: got '2H'"),
        (lambda: Spin("1H", T1=1.0, T2=2.1), "T2: got 2.1"),
        (lambda: Spin("1H", T1=1.0), "T2: got inf"),
        (lambda: Coupling(1, 1, 5.0), "second: got 1"),
        (lambda: CoupledSpins([]), "spins: got 0"),
        (lambda: CoupledSpins([Spin("1H")], [Coupling(0, 1, 5.0)]), r"couplings\[0\].second: got"),
        (
            lambda: CoupledSpins([Spin("1H")] * 2, [Coupling(0, 1, 5.0), Coupling(1, 0, 5.0)]),
            "again",
        ),
        (
            lambda: CoupledSpins([Spin("1H"), Spin("13C")], [Coupling(0, 1, 5.0, True)]),
            r"couplings\[0\].strong: got true between 13C and 1H",
        ),
        (lambda: carbon_proton().propagator(1.0, 0.0, (0, 0)), "spins: got"),
        (lambda: carbon_proton().propagator(1.0, 0.0, (2,)), "spin: got 2"),
        (lambda: carbon_proton().propagator(math.nan, 0.0), "theta: got nan"),
        (lambda: carbon_proton().propagator(0.0, 0.0, (), -1.0), "tau: got -1"),
        (lambda: carbon_proton().lines(), "spins: got isotopes"),
    ],
)
def test_bad_input_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
