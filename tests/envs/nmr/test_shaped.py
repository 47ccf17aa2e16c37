"""Swept pulses against the Bloch equations of their smooth waveform, and in place of a 180."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from palestra.envs.nmr import pulses, shaped
from palestra.envs.nmr.bloch import signal
from palestra.envs.nmr.events import Event, EventList, Receive, run

from .ensembles import isochromats

T, BAND, NU1 = 2e-3, 4000.0, 2000.0
BETA = math.acosh(100.0)


def secant(t):
    """(nu1, phase): the textbook's formula, written in t; f = (band / 2) tanh(beta s)."""
    s = 2 * t / T - 1
    return NU1 / math.cosh(BETA * s), math.pi * BAND * T / (2 * BETA) * math.log(
        math.cosh(BETA * s)
    )


def wurst(edge):
    def shape(t):
        return (
            NU1 * (1 - abs(math.cos(math.pi * t / T)) ** edge),
            math.pi * BAND / T * (t - T / 2) ** 2,
        )

    return shape


def integrated(shape, offset_hz, b1):
    """Mz of the smooth waveform, by an ODE solver."""

    def bloch(t, m):
        nu1, phi = shape(t)
        w = 2 * math.pi * np.array([b1 * nu1 * math.cos(phi), b1 * nu1 * math.sin(phi), offset_hz])
        return np.cross(w, m)

    return solve_ivp(bloch, (0, T), [0, 0, 1], method="DOP853", rtol=1e-11, atol=1e-13).y[2, -1]


SWEPT = [
    (lambda n: shaped.hyperbolic_secant(T, BAND, NU1, n), secant),
    (lambda n: shaped.chirp(T, BAND, NU1, n), wurst(20)),
    (lambda n: shaped.chirp(T, BAND, NU1, n, edge=4), wurst(4)),
]
POINTS = ([0.0, 700.0, -1500.0, 2100.0], [1.0, 0.5, 1.3, 0.8])


@pytest.mark.parametrize(("build", "shape"), SWEPT)
def test_a_swept_pulse_is_its_smooth_waveform(build, shape):
    """Segments err by the square of their length: two numbers of them give the limit."""
    truth = [integrated(shape, *point) for point in zip(*POINTS, strict=True)]
    coarse, fine = (pulses.inversion_profile(build(n), *POINTS) for n in (1024, 2048))
    np.testing.assert_allclose((4 * fine - coarse) / 3, truth, atol=1e-6)
    assert abs(fine - truth).max() < 3e-4


@pytest.mark.parametrize(("build", "shape"), SWEPT)
def test_the_profile_of_segments_is_that_of_their_rotations(build, shape):
    from scipy.spatial.transform import Rotation

    pulse = build(200)
    for offset, b1, got in zip(*POINTS, pulses.inversion_profile(pulse, *POINTS), strict=True):
        m = np.array([0.0, 0.0, 1.0])
        for e in pulse:
            turn = (b1 * e.theta * math.cos(e.phi), b1 * e.theta * math.sin(e.phi))
            m = Rotation.from_rotvec([*turn, 2 * math.pi * offset * e.t_pulse]).apply(m)
        assert got == pytest.approx(m[2], abs=1e-10)


def test_the_frequency_of_a_sweep_rises_through_the_band():
    """A spin is turned when the frequency passes its offset: -1 kHz early, +1 kHz late."""
    pulse = shaped.chirp(10e-3, 4000.0, 700.0, 2000)
    for offset, crossed in ((-1000.0, 0.25), (1000.0, 0.75)):
        for share, inverted in ((crossed - 0.15, False), (crossed + 0.15, True)):
            part = EventList(pulse.events[: round(2000 * share)])
            assert (pulses.inversion_profile(part, offset) < 0.0) == inverted


def test_the_area_of_a_swept_pulse_is_not_its_flip_angle():
    """pulseq#43: areas of many turns and of three times as many both invert."""
    for nu1 in (2000.0, 6000.0):
        pulse = shaped.chirp(4e-3, 20_000.0, nu1, 4000)
        assert pulses.inversion_profile(pulse) < -0.99
    assert shaped.area_angle(pulse) > 100.0
    assert shaped.area_angle(pulses.bb1()) == pytest.approx(5 * math.pi)


def test_adiabaticity_sets_the_inversion_of_landau_and_zener():
    """On resonance of a wide sweep: Mz = 2 exp(-pi Q / 2) - 1, up to ripples of the edges."""
    for Q in (0.3, 0.8):
        nu1 = shaped.chirp_nutation(Q, 0.1, 40_000.0)
        pulse = shaped.chirp(0.1, 40_000.0, nu1, 20_000, edge=8)
        expected = 2 * math.exp(-math.pi * Q / 2) - 1
        assert pulses.inversion_profile(pulse) == pytest.approx(expected, abs=5e-3)


def test_thresholds_of_a_plain_pulse_are_its_closed_forms():
    """cos(b pi) = -0.99; 1 - 2 sin^2(pi/2 sqrt(1+d^2)) / (1+d^2) = -0.99 at d = 0.0707."""
    plain = pulses.with_nutation(pulses.inversion(), 1000.0)
    low, high = shaped.inverted_b1(plain, np.linspace(0.8, 1.2, 801))
    edge = math.acos(-0.99) / math.pi
    assert (low, high) == pytest.approx((edge, 2 - edge), abs=1e-5)
    low, high = shaped.inverted_band(plain, np.linspace(-200.0, 200.0, 801))
    d = high / 1000.0
    mz = 1 - 2 * math.sin(math.pi / 2 * math.hypot(1, d)) ** 2 / (1 + d * d)
    assert low == pytest.approx(-high)
    assert mz == pytest.approx(-0.99, abs=1e-5)
    assert math.isnan(shaped.inverted_b1(plain, [0.5, 1.5], offset_hz=900.0)[0])


def test_a_swept_pulse_inverts_a_band_that_a_plain_one_does_not():
    swept = shaped.hyperbolic_secant(8e-3, 4000.0, 1500.0, 600)
    grid = np.linspace(-3000.0, 3000.0, 61)
    low, high = shaped.inverted_band(swept, grid)
    assert high - low > 2500.0
    table = shaped.inversion_map(swept, grid, [0.8, 1.2])
    assert table.shape == (2, 61)
    assert table[:, 30].max() < -0.99


TRAIN = EventList(
    (
        Event(math.pi / 2, 0.0, tau=5e-3, label="excite"),
        Event(math.pi, math.pi / 2, tau=10e-3, receive=Receive(3e-3, 1e-3, 5)),
        Event(math.pi, math.pi / 2, tau=5e-3, receive=Receive(5e-3, 1e-3, 1)),
    )
)


def test_hard_composite_pulses_take_the_phase_and_leave_the_times():
    """90x 180y 90x in place of 180 of phase y is the same with 90 degrees more."""
    got = shaped.with_inversion(TRAIN, pulses.composite_90_180_90())
    assert [round(math.degrees(e.phi)) for e in got] == [0, 90, 180, 90, 90, 180, 90]
    assert got.duration == TRAIN.duration
    ensemble = isochromats(12.0, T1=1.0, T2=0.5)
    before, after = run(TRAIN, ensemble), run(got, ensemble)
    np.testing.assert_array_equal(before.times, after.times)
    np.testing.assert_allclose(abs(after.signal), abs(before.signal), atol=1e-12)


def test_two_swept_pulses_refocus_a_band_at_the_old_times():
    offsets = np.linspace(-1200.0, 1200.0, 49)
    ensemble = isochromats(offsets)
    swept = shaped.hyperbolic_secant(4e-3, 5000.0, 3000.0, 500)
    got = shaped.with_inversion(TRAIN, swept)
    assert got.duration == pytest.approx(TRAIN.duration, abs=1e-15)
    trace = run(got, ensemble)
    np.testing.assert_allclose(trace.times, run(TRAIN, ensemble).times, atol=1e-15)
    assert abs(trace.signal[-1]) > 0.98
    assert abs(signal(trace.m, ensemble)[0]) > 0.98


def test_a_pulse_that_begins_the_list_takes_all_from_the_delay_after_it():
    recovery = EventList((Event(math.pi, tau=0.1), Event(math.pi / 2, tau=0.1)))
    got = shaped.with_inversion(recovery, shaped.chirp(4e-3, 4000.0, 2000.0, 10))
    assert got.duration == pytest.approx(0.2, abs=1e-15)
    assert got[9].tau == pytest.approx(0.096)


@pytest.mark.parametrize(
    ("duration", "message"),
    [(10.1e-3, "delay of event 0"), (6.5e-3, "covers a sample of event 1")],
)
def test_a_pulse_that_does_not_fit_is_refused(duration, message):
    with pytest.raises(ValueError, match=message):
        shaped.with_inversion(TRAIN, shaped.chirp(duration, 4000.0, 2000.0, 4))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: shaped.chirp(0.0, 1.0, 1.0), "duration: got 0.0, allowed 1e-06 to 10 s"),
        (lambda: shaped.chirp(1.0, math.nan, 1.0), "bandwidth_hz: got nan"),
        (lambda: shaped.chirp(1.0, 1.0, 0.0), "nu1_hz: got 0.0"),
        (lambda: shaped.chirp(1.0, 1.0, 1.0, 1), "segments: got 1"),
        (lambda: shaped.chirp(1.0, 1.0, 1.0, edge=0), "edge: got 0"),
        (lambda: shaped.hyperbolic_secant(1.0, 1.0, 1.0, truncation=1.0), "truncation: got 1.0"),
        (lambda: shaped.chirp_nutation(0.0, 1.0, 1.0), "adiabaticity: got 0.0"),
        (lambda: shaped.with_inversion(TRAIN, TRAIN), "pulse: got delays"),
        (lambda: shaped.inverted_band(pulses.inversion(), [1.0, 2.0]), "offset_hz: got"),
        (lambda: shaped.inverted_b1(pulses.inversion(), [0.9, 1.1], depth=2.0), "depth: got 2"),
    ],
)
def test_bad_input_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
