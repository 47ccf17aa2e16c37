"""The Bloch equations against closed forms, independent integrators, and bug reports of others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from palestra.envs.nmr.bloch import (
    apply_propagator,
    decay_time,
    equilibrium,
    finite_pulse,
    length_bound,
    pulse_and_delay,
    pulse_propagator,
    signal,
    sincos_turns,
    spoil,
)

from .ensembles import isochromats, vector


def closed_form(m, ensemble, theta, phi, tau):
    """Rodrigues' rotation, precession and relaxation, written with NumPy for whole arrays."""
    theta, phi, tau = (np.reshape(a, (-1, 1)) for a in (theta, phi, tau))
    c, s = np.cos(theta * ensemble.b1), np.sin(theta * ensemble.b1)
    x, y, z = m[:, 0], m[:, 1], m[:, 2]
    along = np.cos(phi) * x + np.sin(phi) * y
    across = -np.sin(phi) * x + np.cos(phi) * y
    turned, z = c * across - s * z, s * across + c * z
    R1 = np.repeat(ensemble.R1, np.diff(ensemble.blocks), axis=1)
    R2 = np.repeat(ensemble.R2, np.diff(ensemble.blocks), axis=1)
    transverse = (along + 1j * turned) * np.exp(1j * phi)
    transverse = transverse * np.exp((2j * np.pi * ensemble.offset_hz - R2) * tau)
    return np.stack([transverse.real, transverse.imag, 1 + (z - 1) * np.exp(-R1 * tau)], axis=1)


def some_events(rows, isochromats_, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    ensemble = isochromats(
        rng.normal(0, 20, (rows, isochromats_)),
        1 + 0.03 * rng.normal(size=(rows, isochromats_)),
        T1=0.6,
        T2=0.3,
        dtype=dtype,
    )
    m = rng.normal(size=(rows, 3, isochromats_))
    m = (m / np.maximum(1.0, np.linalg.norm(m, axis=1, keepdims=True))).astype(dtype)
    theta, phi = rng.uniform(0, math.pi, rows), rng.uniform(-math.pi, math.pi, rows)
    return ensemble, m, theta, phi, rng.uniform(1e-4, 0.04, rows)


# ------------------------------------------------------------------------------- conventions (A1)


@pytest.mark.parametrize(("phi", "expected"), [(0.0, (0, -1, 0)), (math.pi / 2, (1, 0, 0))])
def test_a_90_degree_pulse_of_phase_x_gives_minus_y_and_of_phase_y_gives_x(phi, expected):
    m = vector(0, 0, 1)
    pulse_and_delay(m, isochromats(), math.pi / 2, phi, 0.0)
    np.testing.assert_allclose(m[0, :, 0], expected, atol=1e-12)


def test_positive_offset_turns_x_towards_y():
    m = vector(1, 0, 0)
    pulse_and_delay(m, isochromats(1.0), 0.0, 0.0, 0.25)
    np.testing.assert_allclose(m[0, :, 0], (0, 1, 0), atol=1e-12)


def test_turning_transmitter_by_p_and_receiver_by_minus_p_changes_nothing():
    """Sign of the B1 phase (MRzero-Core#57, Spinach#378)."""
    p = 0.7
    signals = []
    for turn in (0.0, p):
        ensemble = isochromats([3.0, -8.0, 12.0], T1=0.6, T2=0.3)
        m = equilibrium(ensemble)
        for theta, phi, tau in ((1.1, 0.2, 4e-3), (2.5, 1.5, 7e-3), (0.6, -2.0, 3e-3)):
            pulse_and_delay(m, ensemble, theta, phi + turn, tau)
        signals.append(signal(m, ensemble)[0] * np.exp(-1j * turn))
    assert abs(signals[0] - signals[1]) < 1e-12


def test_a_line_at_plus_10_hz_appears_at_plus_10_hz():
    """Sign of the offset (MRzero-Core#31, Spinach#378)."""
    ensemble = isochromats(10.0, T1=0.6, T2=0.3)
    m, samples = equilibrium(ensemble), []
    pulse_and_delay(m, ensemble, math.pi / 2, 0.0, 0.0)
    for _ in range(256):
        samples.append(signal(m, ensemble)[0])
        pulse_and_delay(m, ensemble, 0.0, 0.0, 1 / 256)
    spectrum = abs(np.fft.fft(samples))
    assert np.fft.fftfreq(256, 1 / 256)[spectrum.argmax()] == 10.0


# ----------------------------------------------------------------------------- closed forms (A2)


def test_free_induction_decay_follows_its_closed_form():
    """Bloch: Mxy(t) = exp((i Dw - R2) t)."""
    m = vector(1, 0, 0)
    pulse_and_delay(m, isochromats(7.0, T1=0.6, T2=0.3), 0.0, 0.0, 0.05)
    expected = np.exp((2j * math.pi * 7 - 1 / 0.3) * 0.05)
    assert abs(m[0, 0, 0] + 1j * m[0, 1, 0] - expected) < 1e-12


def test_inversion_recovery_passes_zero_at_t1_ln_2():
    m = vector(0, 0, -1)
    null = 0.6 * math.log(2)
    assert null == pytest.approx(0.4158883083, abs=1e-10)
    pulse_and_delay(m, isochromats(T1=0.6, T2=0.3), 0.0, 0.0, null)
    assert abs(m[0, 2, 0]) < 1e-12


@pytest.mark.parametrize(("dtype", "atol"), [(np.float64, 5e-15), (np.float32, 5e-7)])
def test_the_kernel_equals_the_numpy_closed_form(dtype, atol):
    ensemble, m, theta, phi, tau = some_events(17, 29, dtype)
    expected = closed_form(m.astype(np.float64), ensemble, theta, phi, tau)
    pulse_and_delay(m, ensemble, theta, phi, tau)
    np.testing.assert_allclose(m, expected, atol=atol)


def test_sine_and_cosine_are_exact_to_rounding_and_at_quarter_turns():
    turns = np.random.default_rng(1).uniform(-50, 50, 4000)
    got = np.array([sincos_turns(t, 1.0) for t in turns])
    angle = 2 * np.pi * (turns - np.rint(turns))
    np.testing.assert_allclose(got, np.stack([np.sin(angle), np.cos(angle)], 1), atol=1e-15)
    for quarter, expected in enumerate([(0, 1), (1, 0), (0, -1), (-1, 0), (0, 1)]):
        assert sincos_turns(quarter / 4, 1.0) == expected


def test_float32_keeps_the_phase_of_long_delays():
    """300 rad in float32 would cost 1e-5; the range is reduced in float64."""
    offset = np.random.default_rng(2).normal(0, 100, (1, 64))
    ensemble = isochromats(offset, T1=1e3, T2=1e3, dtype=np.float32)
    m = np.zeros((1, 3, 64), np.float32)
    m[:, 0] = 1
    pulse_and_delay(m, ensemble, 0.0, 0.0, 10.0)
    expected = np.exp((2j * math.pi * offset - 1e-3) * 10.0)
    assert abs(m[:, 0] + 1j * m[:, 1] - expected).max() < 5e-7


# ---------------------------------------------------------------------- finite pulses (A3, #414)

PULSE = (2 * math.pi * 2500 * 100e-6, math.radians(30), 100e-6)  # flip angle, phase, length
FINITE = [
    (0.6, 0.2, (0.6312692035, -0.7752504677, 0.0056922111)),
    (5e-3, 0.2e-3, (0.4899788936, -0.6203466527, 0.1508540430)),
]


@pytest.mark.parametrize(("T1", "T2", "expected"), FINITE)
def test_exact_finite_pulse_matches_the_matrix_exponential(T1, T2, expected):
    ensemble = isochromats(400.0, T1=T1, T2=T2)
    m = equilibrium(ensemble)
    apply_propagator(m, pulse_propagator(ensemble, *PULSE))
    np.testing.assert_allclose(m[0, :, 0], expected, atol=1e-9)


@pytest.mark.parametrize(("T1", "T2", "expected"), FINITE)
def test_split_finite_pulse_keeps_its_promised_error(T1, T2, expected):
    ensemble = isochromats(400.0, T1=T1, T2=T2)
    m = equilibrium(ensemble)
    finite_pulse(m, ensemble, *PULSE)
    np.testing.assert_allclose(m[0, :, 0], expected, atol=1e-4)


@pytest.mark.parametrize(("T1", "T2"), [(0.6, 0.2), (5e-3, 0.2e-3), (1e-3, 1.5e-3), (0.02, 1e-4)])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
def test_the_estimate_of_the_split_error_holds(T1, T2, tolerance):
    rng = np.random.default_rng(3)
    ensemble = isochromats(rng.normal(0, 800, 50), 1 + 0.1 * rng.normal(size=50), T1=T1, T2=T2)
    m = equilibrium(ensemble)
    exact = m.copy()
    finite_pulse(m, ensemble, *PULSE, tolerance=tolerance)
    apply_propagator(exact, pulse_propagator(ensemble, *PULSE))
    assert abs(m - exact).max() < tolerance


def test_exact_finite_pulse_agrees_with_an_ode_solver():
    theta, phi, length = PULSE
    w1, dw, R1, R2 = theta / length, 2 * math.pi * 400, 1 / 5e-3, 1 / 0.2e-3
    omega = np.array([w1 * math.cos(phi), w1 * math.sin(phi), dw])

    def bloch_equations(_, m):
        return np.cross(omega, m) - np.array([R2 * m[0], R2 * m[1], R1 * (m[2] - 1)])

    end = solve_ivp(bloch_equations, (0, length), [0, 0, 1], rtol=1e-11, atol=1e-13).y[:, -1]
    ensemble = isochromats(400.0, T1=5e-3, T2=0.2e-3)
    m = equilibrium(ensemble)
    apply_propagator(m, pulse_propagator(ensemble, *PULSE))
    np.testing.assert_allclose(m[0, :, 0], end, atol=1e-9)


def test_relaxation_in_a_long_pulse_is_not_dropped():
    """Spinach#414: with T2 = 0.2 ms the rotation alone is wrong by 0.155."""
    ensemble = isochromats(400.0, T1=5e-3, T2=0.2e-3)
    still = isochromats(400.0)
    with_relaxation, without = equilibrium(ensemble), equilibrium(still)
    apply_propagator(with_relaxation, pulse_propagator(ensemble, *PULSE))
    apply_propagator(without, pulse_propagator(still, *PULSE))
    assert abs(with_relaxation - without).max() == pytest.approx(0.155, abs=2e-3)


def test_ignoring_the_offset_during_a_pulse_errs_by_13_percent():
    """Pitfall 2: at offset / nutation = 0.16 the hard pulse is off by 0.13 M0."""
    ensemble = isochromats(400.0, T1=0.6, T2=0.2)
    hard, finite = equilibrium(ensemble), equilibrium(ensemble)
    pulse_and_delay(hard, ensemble, PULSE[0], PULSE[1], 0.0)
    apply_propagator(finite, pulse_propagator(ensemble, *PULSE))
    assert abs(hard - finite).max() == pytest.approx(0.13, abs=0.005)


# ------------------------------------------------------------------------------ bugs seen elsewhere


def test_the_same_pulse_turns_the_same_after_any_waiting_time():
    """KomaMRI.jl#779: flip angles drift once the clock passes 128 s (and pitfall 13)."""
    ensemble = isochromats([0.0, 35.0], T1=0.6, T2=0.3)
    ends = []
    for wait in (1.0, 1e3, 1e6):
        m = equilibrium(ensemble)
        pulse_and_delay(m, ensemble, 0.0, 0.0, wait)
        finite_pulse(m, ensemble, math.pi / 2, 0.0, 50e-6)
        ends.append(m)
    assert abs(ends[0] - ends[1]).max() < 1e-12
    assert abs(ends[0] - ends[2]).max() < 1e-12


def test_a_short_pulse_after_a_long_delay_is_not_stepped_over():
    """qutip#1265, qutip#2814."""
    ensemble = isochromats(T1=0.6, T2=0.3)
    m = equilibrium(ensemble)
    pulse_and_delay(m, ensemble, 0.0, 0.0, 100.0)
    pulse_and_delay(m, ensemble, math.pi, 0.0, 0.0)
    assert abs(m[0, 2, 0] + 1.0) < 1e-12


def test_an_ideal_spoiler_leaves_no_later_echo():
    """KomaMRI.jl#52, pitfall 11."""
    ensemble = isochromats(np.random.default_rng(4).normal(0, 20, 24))
    m = equilibrium(ensemble)
    pulse_and_delay(m, ensemble, math.pi / 2, 0.0, 0.01)
    spoil(m)
    assert not m[:, :2].any()
    pulse_and_delay(m, ensemble, math.pi, math.pi / 2, 0.01)
    assert abs(signal(m, ensemble)[0]) < 1e-12


def test_equilibrium_is_a_fixed_point():
    ensemble = isochromats([5.0, -5.0], T1=0.6, T2=0.3)
    m = equilibrium(ensemble)
    pulse_and_delay(m, ensemble, 0.0, 0.0, 60.0)
    assert abs(m - equilibrium(ensemble)).max() < 1e-15


def test_without_an_echo_the_signal_and_with_one_its_phase_are_right():
    """Pitfall 1: the echo of 90x - tau - 180y stands where the excitation left it, at -y."""
    offsets = np.random.default_rng(5).normal(0, 21, 200)
    ensemble = isochromats(offsets, T1=1e9, T2=0.3)
    m = equilibrium(ensemble)
    pulse_and_delay(m, ensemble, math.pi / 2, 0.0, 0.02)
    assert abs(signal(m, ensemble)[0]) < 0.2
    pulse_and_delay(m, ensemble, math.pi, math.pi / 2, 0.02)
    assert signal(m, ensemble)[0] == pytest.approx(-1j * math.exp(-0.04 / 0.3), abs=1e-9)


# ------------------------------------------------------------------------- rows and live masks


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("length", [None, 1e-4])
def test_a_row_is_the_same_bits_in_any_batch(dtype, length):
    """L1 of the reproducibility contract, hard and finite pulses."""
    ensemble, m, theta, phi, tau = some_events(64, 24, dtype)
    together = m.copy()
    step = _event if length is None else _finite_event
    step(together, ensemble, theta, phi, tau)
    for width in (1, 7):
        for first in (0, 33, 64 - width):
            part = slice(first, first + width)
            few = m[part].copy()
            alone = type(ensemble)(
                ensemble.offset_hz[part].copy(),
                ensemble.b1[part].copy(),
                ensemble.R1[part].copy(),
                ensemble.R2[part].copy(),
                ensemble.blocks,
                ensemble.weight,
                ensemble.receive[part].copy(),
            )
            step(few, alone, theta[part], phi[part], tau[part])
            assert few.tobytes() == together[part].tobytes()


def _event(m, ensemble, theta, phi, tau):
    pulse_and_delay(m, ensemble, theta, phi, tau)


def _finite_event(m, ensemble, theta, phi, tau):
    finite_pulse(m, ensemble, theta, phi, 1e-4)


def test_rows_that_are_not_live_stay_as_they_are():
    ensemble, m, theta, phi, tau = some_events(9, 24)
    before, live = m.copy(), np.arange(9) % 2 == 0
    pulse_and_delay(m, ensemble, theta, phi, tau, live)
    finite_pulse(m, ensemble, theta, phi, 1e-4, live)
    spoil(m, live)
    assert m[~live].tobytes() == before[~live].tobytes()
    assert (m[live] != before[live]).any(axis=(1, 2)).all()


# --------------------------------------------------------------------- bounds, for any sequence


def test_no_pulses_lengthen_a_vector_and_the_energy_balance_holds():
    """1.5(a): (|M(0)|^2 - |M(T)|^2)/2 = INT |Mxy|^2/T2 dt - INT Mz (1 - Mz)/T1 dt; and
    qutip-qoc#34: nothing impossible is ever reported."""
    rows, n, T1, T2 = 1000, 8, 0.6, 0.3
    rng = np.random.default_rng(6)
    ensemble = isochromats(rng.normal(0, 30, (rows, n)), T1=T1, T2=T2)
    m, lost, energy, total = equilibrium(ensemble), 0.0, np.zeros((rows, n)), np.zeros((rows, 1))
    start = (m * m).sum(1)
    for _ in range(30):
        theta, phi, tau = (
            rng.uniform(0, 2, rows),
            rng.uniform(-3, 3, rows),
            rng.uniform(0, 0.2, rows),
        )
        pulse_and_delay(m, ensemble, theta, phi, 0.0)
        t, d = tau[:, None], m[:, 2] - 1
        squares = (m[:, 0] ** 2 + m[:, 1] ** 2) * T2 / 2 * -np.expm1(-2 * t / T2)
        recovery = -d * T1 * -np.expm1(-t / T1) - d * d * T1 / 2 * -np.expm1(-2 * t / T1)
        energy += squares
        lost = lost + squares / T2 - recovery / T1
        total += t
        pulse_and_delay(m, ensemble, 0.0, 0.0, tau)
        assert (np.linalg.norm(m, axis=1) <= 1 + 1e-12).all()
    np.testing.assert_allclose((start - (m * m).sum(1)) / 2, lost, atol=1e-12)
    assert (energy <= T2 * (start / 2 + total / (4 * T1))).all()


def test_the_signal_never_exceeds_the_length_bound():
    ensemble, m, *_ = some_events(200, 16)
    assert (abs(signal(m, ensemble)) <= length_bound(m, ensemble) + 1e-15).all()


# ------------------------------------------------------------------------------ decay times


def test_decay_time_of_one_species_is_a_logarithm():
    assert decay_time(np.array([0.5]), np.array([1 / 0.6]), 0.01) == 0.6 * math.log(50)
    assert decay_time(np.array([0.009]), np.array([1.0]), 0.01) == 0.0


def test_decay_time_of_several_species_solves_the_equation():
    rng = np.random.default_rng(7)
    for _ in range(200):
        amplitude, rate = rng.uniform(0, 1, 3), 10 ** rng.uniform(-1, 2, 3)
        time = decay_time(amplitude, rate, 0.01)
        if time > 0:
            assert (amplitude * np.exp(-rate * time)).sum() == pytest.approx(0.01, rel=1e-9)


def test_rotation_in_the_kernels_is_right_handed_like_scipy():
    from scipy.spatial.transform import Rotation

    m = vector(0.3, -0.2, 0.6)
    expected = Rotation.from_rotvec(1.234 * np.array([math.cos(0.5), math.sin(0.5), 0])).apply(
        m[0, :, 0]
    )
    pulse_and_delay(m, isochromats(), 1.234, 0.5, 0.0)
    np.testing.assert_allclose(m[0, :, 0], expected, atol=1e-14)


def test_the_steady_state_of_a_continuous_field():
    """A19: T1 0.6 s, T2 0.2 s, nu1 1 Hz, offset 0.7 Hz; the formula of Bloch (1946)."""
    ensemble = isochromats(0.7, T1=0.6, T2=0.2)
    m = vector(0.0, 0.0, 1.0)
    propagator = pulse_propagator(ensemble, 2 * np.pi * 20.0, 0.0, 20.0)
    apply_propagator(m, propagator)
    expected = (0.1697686883, -0.1929966138, 0.2724199072)
    np.testing.assert_allclose(m[0, :, 0], expected, atol=1e-9)
