"""Trains and composite pulses: simulated event by event, against the textbook's closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from palestra.envs.nmr import pulses
from palestra.envs.nmr.bloch import signal
from palestra.envs.nmr.events import Event, EventList, run

from .ensembles import isochromats, vector

DEG = math.pi / 180


def steady_state(period: EventList, ensemble, repeats: int):
    """State (3, N) at the start of a period, after many."""
    return run(period * repeats, ensemble).m[0]


# -------------------------------------------------------------------------------- A4: Ernst


@pytest.mark.parametrize(
    ("TR", "degrees", "expected"),
    [
        (0.1, 25.1986, 0.223514),
        (0.5, 52.6609, 0.494893),
        (1.0, 68.4151, 0.679792),
        (2.0, 82.2220, 0.872694),
    ],
)
def test_ernst_angle_signal_matches_the_closed_form(TR, degrees, expected):
    """Cos a = exp(-TR/T1), signal sqrt((1-E1)/(1+E1)); simulated with ideal spoiling."""
    angle = pulses.ernst_angle(TR, 1.0)
    assert angle / DEG == pytest.approx(degrees, abs=1e-4)
    assert pulses.ernst_signal(TR, 1.0) == pytest.approx(expected, abs=1e-6)
    ensemble = isochromats(T1=1.0, T2=0.5)
    before = steady_state(pulses.saturation_train(angle, TR, 1), ensemble, 200)
    assert before[2, 0] * math.sin(angle) == pytest.approx(expected, abs=1e-5)


def test_the_ernst_angle_gives_the_largest_signal():
    ensemble = isochromats(T1=1.0, T2=0.5)

    def lost(angle):
        before = steady_state(pulses.saturation_train(angle, 0.5, 1), ensemble, 60)
        return -before[2, 0] * math.sin(angle)

    best = minimize_scalar(lost, bounds=(0.3, 1.5), method="bounded", options={"xatol": 1e-6})
    assert best.x == pytest.approx(pulses.ernst_angle(0.5, 1.0), abs=1e-4)


# --------------------------------------------------------------------- A5: best repetition of 90s


def test_best_repetition_of_90_degree_pulses():
    """Maximise (1 - e^-x)/sqrt x: x = 1.25643, 0.638173; at 5 T1 0.444200; Ernst 0.707107."""
    best = minimize_scalar(
        lambda x: -pulses.saturation_efficiency(x), bounds=(0.5, 3), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    assert best.x == pytest.approx(1.25643, abs=1e-5)
    assert -best.fun == pytest.approx(0.638173, abs=1e-6)
    assert pulses.saturation_efficiency(5.0) == pytest.approx(0.444200, abs=1e-6)
    ernst_limit = pulses.ernst_signal(1e-6, 1.0) / math.sqrt(1e-6)
    assert ernst_limit == pytest.approx(math.sqrt(0.5), abs=1e-5)
    in_time = [(e / pulses.saturation_efficiency(5.0)) ** 2 for e in (-best.fun, ernst_limit)]
    assert in_time == pytest.approx([2.0640, 2.5340], abs=1e-4)


# ------------------------------------------------------------------------------ A6 to A8: bSSFP


def bssfp_after_pulse(offset_hz, T1=0.6, T2=0.3, TR=5e-3, alpha=60 * DEG, periods=2000):
    ensemble = isochromats(offset_hz, T1=T1, T2=T2)
    pair = EventList((Event(alpha, 0.0, tau=TR), Event(alpha, math.pi, tau=TR)))
    m = steady_state(pair, ensemble, periods)[np.newaxis]
    return run(EventList((Event(alpha, 0.0),)), ensemble, m).m[0, :, 0]


def test_bssfp_steady_state_on_resonance():
    """Sin a (1-E1) / (1 - (E1-E2) cos a - E1 E2), just after the pulse."""
    m = bssfp_after_pulse(0.0)
    assert math.hypot(m[0], m[1]) == pytest.approx(0.3492992717, abs=1e-8)
    assert m[2] == pytest.approx(0.5983375269, abs=1e-8)
    assert pulses.bssfp_signal(0.6, 0.3, 5e-3, 60 * DEG) == pytest.approx(
        (0.3492992717, 0.5983375269), abs=1e-9
    )


@pytest.mark.parametrize(("offset_hz", "expected"), [(50.0, 0.3528483472), (100.0, 0.0072762176)])
def test_bssfp_steady_state_off_resonance(offset_hz, expected):
    """Linear solve of the affine map of one period; 100 Hz is the dark band at TR 5 ms."""
    m = bssfp_after_pulse(offset_hz)
    assert math.hypot(m[0], m[1]) == pytest.approx(expected, abs=1e-8)


def test_the_train_prepared_by_half_a_pulse_settles_in_the_steady_state():
    ensemble = isochromats(T1=0.6, T2=0.3)
    m = run(pulses.bssfp(60 * DEG, 5e-3, 3000), ensemble).m
    m = run(EventList((Event(60 * DEG, math.pi),)), ensemble, m).m
    assert abs(signal(m, ensemble)[0]) == pytest.approx(0.3492992717, abs=1e-8)


def test_bssfp_optimum_for_short_repetition():
    """Cos a = (T1/T2-1)/(T1/T2+1), signal sqrt(T2/T1)/2: 70.5288 degrees and 0.353553."""
    angle = pulses.bssfp_best_angle(2.0, 1.0)
    assert angle / DEG == pytest.approx(70.5288, abs=1e-4)
    assert pulses.bssfp_signal(2.0, 1.0, 1e-6, angle)[0] == pytest.approx(0.353553, abs=1e-4)
    for other in (angle - 0.05, angle + 0.05):
        assert pulses.bssfp_signal(2.0, 1.0, 1e-6, other)[0] < 0.35355


# --------------------------------------------------------------------------------- A9: DEFT


def test_deft_steady_state():
    """(1-Ed)/(1-E2 Ed) before each excitation; without the flip-back only 1-Ed."""
    ensemble = isochromats(T1=1.0, T2=0.8)
    before = steady_state(pulses.deft(0.1, 0.3), ensemble, 300)
    assert before[2, 0] == pytest.approx(0.6126501906, abs=1e-9)
    assert pulses.deft_polarisation(1.0, 0.8, 0.1, 0.3) == pytest.approx(0.6126501906, abs=1e-9)
    saturated = run(EventList((Event(math.pi / 2, spoil=True), Event(tau=0.3))), ensemble).m
    assert saturated[0, 2, 0] == pytest.approx(0.2591817793, abs=1e-9)


# -------------------------------------------------------------------- A10, A11: composite pulses


@pytest.mark.parametrize(
    ("pulse", "expected"),
    [
        (pulses.inversion, (-0.809017, -0.951057, -0.987688)),
        (pulses.composite_90_180_90, (-0.981763, -0.998802, -0.999924)),
        (pulses.bb1, (-0.998906, -0.999982, -0.99999971)),
    ],
)
def test_inversion_at_a_wrong_field_strength(pulse, expected):
    """Cos(b pi); cos^2 a cos 2a - sin^2 a with a = b pi / 2; Wimperis (1994)."""
    got = pulses.inversion_profile(pulse(), b1=[0.8, 0.9, 0.95])
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_the_phase_of_bb1_is_104_4775_degrees():
    assert pulses.bb1()[0].phi / DEG == pytest.approx(104.4775, abs=1e-4)


@pytest.mark.parametrize(
    ("pulse", "expected"),
    [
        (pulses.inversion, (-0.877957, -0.545626, -0.092548)),
        (pulses.composite_90_180_90, (-0.900677, -0.819856, -0.939482)),
        (pulses.composite_90_240_90, (-0.992983, -0.992138, -0.728476)),
    ],
)
def test_inversion_off_resonance(pulse, expected):
    """Rodrigues about the tilted field; for one pulse 1 - 2 sin^2(pi/2 sqrt(1+d^2))/(1+d^2)."""
    nu1 = 2500.0
    train = pulses.with_nutation(pulse(), nu1)
    got = pulses.inversion_profile(train, offset_hz=nu1 * np.array([0.25, 0.5, 0.75]))
    np.testing.assert_allclose(got, expected, atol=1e-6)


# -------------------------------------------------------------------------------- A12: echoes


@pytest.mark.parametrize(("first", "second", "expected"), [(90, 90, 0.5), (70, 130, 0.771858)])
def test_two_pulse_echo_of_a_fully_dephased_ensemble(first, second, expected):
    """Sin a1 sin^2(a2/2) (Hahn 1950); offsets that cover a whole turn stand for full dephasing."""
    tau, n = 0.01, 720
    ensemble = isochromats(np.arange(n) / n / tau)
    m = run(pulses.echo(tau, first * DEG, second * DEG), ensemble).m
    assert abs(signal(m, ensemble)[0]) == pytest.approx(expected, abs=1e-6)
    assert pulses.two_pulse_echo(first * DEG, second * DEG) == pytest.approx(expected, abs=1e-6)


def test_stimulated_echo():
    """(1/2) exp(-2 tau/T2) exp(-TM/T1) = 0.335160 at 2 tau = 20 ms, TM = 200 ms."""
    tau, TM, n = 0.01, 0.2, 720
    ensemble = isochromats(np.arange(n) / n / tau, T1=0.6, T2=0.3)
    ninety = math.pi / 2
    three = EventList(
        (
            Event(ninety, tau=tau),
            Event(ninety, tau=TM, spoil=True),
            Event(ninety, tau=tau),
        )
    )
    # recovery during TM is turned by the third pulse, but dephased at the echo
    m = run(three, ensemble).m
    assert abs(signal(m, ensemble)[0]) == pytest.approx(0.335160, abs=1e-6)
    assert pulses.stimulated_echo(tau, TM, 0.6, 0.3) == pytest.approx(0.335160, abs=1e-6)


# ------------------------------------------------------------------------ A13: efficiencies


@pytest.mark.parametrize(
    ("k", "plain", "best"),
    [
        (1, 0.288447, 0.431622),
        (2, 0.326070, 0.528439),
        (5, 0.353755, 0.637490),
        (20, 0.369439, 0.743143),
    ],
)
def test_cpmg_efficiency(k, plain, best):
    """2 (1-e^-x)^2 (1-e^-2L) / (x + L/k), at x = 5, L = 1.5 and at its maximum."""
    assert pulses.cpmg_efficiency(5.0, 1.5, k) == pytest.approx(plain, abs=1e-6)
    found = minimize(
        lambda p: -pulses.cpmg_efficiency(*p, k), [1.0, 0.8], method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12},
    )  # fmt: skip
    assert -found.fun == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize(
    ("k", "expected"), [(1, 0.592593), (2, 0.721360), (5, 0.851928), (10, 0.915606)]
)
def test_de_cpmg_efficiency(k, expected):
    """4 k rho^2 / ((rho+k)^2 (1+rho)) at its maximum."""
    assert pulses.de_cpmg_efficiency(k) == pytest.approx(expected, abs=1e-4)


def test_cpmg_with_waits_simulated_reaches_its_formula():
    """The information rate of simulated CPMG, over the energy bound 1/(4 T1) T2."""
    T1, T2, te, echoes, wait = 0.6, 0.3, 1e-3, 450, 3.0
    ensemble = isochromats(T1=T1, T2=T2)
    period = pulses.cpmg(te, echoes, wait, 0.0, 1e-4)
    m = run(period, ensemble).m
    trace = run(period, ensemble, m)
    times, power = trace.times, abs(trace.signal) ** 2
    # every gap is sampled at both ends, so trapezoids between equal times count nothing
    rate = np.trapezoid(power, times) / period.duration
    expected = pulses.cpmg_efficiency(wait / T1, echoes * te / T2, T1 / T2)
    assert rate / (T2 / (4 * T1)) == pytest.approx(expected, rel=2e-3)


def test_cpmg_with_a_dead_time_of_half_the_spacing_is_refused():
    with pytest.raises(ValueError, match=r"dead_time: got 0.0005, allowed 0 to below te / 2"):
        pulses.cpmg(1e-3, 4, 1.0, 5e-4, 1e-4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pulses.cpmg(math.nan, 4, 1.0, 0.0, 1e-4), "te: got nan, allowed 0 to"),
        (lambda: pulses.cpmg(1e-3, 0, 1.0, 0.0, 1e-4), "echoes: got 0, allowed an integer 1 to"),
        (lambda: pulses.cpmg(1e-3, 4, math.inf, 0.0, 1e-4), "tau: got inf, allowed 0 to"),
        (lambda: pulses.cpmg(1e-3, 4, 1.0, 0.0, 0.0), "dwell: got 0.0, allowed 1e-12 to"),
        (lambda: pulses.saturation_train(1.0, 1.0, -1), "shots: got -1, allowed an integer 1 to"),
        (lambda: pulses.bssfp(1.0, 1e-3, 2.5), "pulses: got 2.5, allowed an integer 1 to"),
        (lambda: pulses.with_nutation(pulses.inversion(), 0.0), "nu1_hz: got 0.0, allowed 1 to"),
        (lambda: pulses.inversion_profile(pulses.inversion(), [0, math.inf]), "offset_hz: got"),
        (lambda: pulses.inversion_profile(pulses.inversion(), 0.0, math.nan), "b1: got nan, allow"),
    ],
)
def test_pulses_that_no_one_could_give_are_refused(build, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        build()


def test_flip_back_saves_polarisation():
    ensemble = isochromats(T1=0.6, T2=0.3)
    ends = [
        run(pulses.cpmg(4e-3, 10, 0.1, 1e-4, 1e-4, flip_back=back), ensemble).m[0, 2, 0]
        for back in (False, True)
    ]
    assert ends[0] == pytest.approx(1 - math.exp(-0.1 / 0.6), abs=0.01)
    assert ends[1] > 0.85


def test_cp_trains_of_equal_phases_collapse_and_y_phases_do_not():
    """Pitfall 16: with 10 % B1 error the echoes of 180x fall, those of 180y stay."""
    ensemble = isochromats(np.random.default_rng(0).normal(0, 50, 400), b1=0.9)
    echoes = []
    for phi in (0.0, math.pi / 2):
        half = Event(tau=5e-3)
        train = EventList((Event(math.pi / 2, tau=5e-3), Event(math.pi, phi, tau=5e-3)))
        train += EventList((half, Event(math.pi, phi, tau=5e-3))) * 5
        echoes.append(abs(signal(run(train, ensemble).m, ensemble)[0]))
    assert echoes[0] < 0.4
    assert echoes[1] > 0.9


def test_ninety_of_minus_x_returns_an_echo_on_minus_y_to_plus_z():
    ensemble = isochromats()
    m = run(EventList((Event(math.pi / 2, math.pi),)), ensemble, vector(0, -1, 0)).m
    np.testing.assert_allclose(m[0, :, 0], (0, 0, 1), atol=1e-12)
