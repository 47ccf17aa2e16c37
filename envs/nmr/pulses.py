"""What textbooks say about pulses and pulse trains: event lists, and the closed forms to check by.

Flip angles and phases in radians, times in seconds, signals in units of M0.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import checks
from .bloch import Ensemble
from .events import LONGEST_EVENT, Event, EventList, pulse_train, receiver, run

Array = npt.NDArray[Any]

X, Y, MINUS_X = 0.0, math.pi / 2, math.pi
NINETY, INVERSION = math.pi / 2, math.pi
MOST_PULSES = 1_000_000  # of a train


# -------------------------------------------------------------------- inversion pulses, composite


def inversion() -> EventList:
    """A plain 180-degree pulse of phase x."""
    return pulse_train([(INVERSION, X)])


def composite_90_180_90() -> EventList:
    """90x 180y 90x: an inversion that forgives a wrong field strength (Levitt, Freeman 1979)."""
    return pulse_train([(NINETY, X), (INVERSION, Y), (NINETY, X)])


def composite_90_240_90() -> EventList:
    """90x 240y 90x: an inversion that forgives an offset (Levitt 1982)."""
    return pulse_train([(NINETY, X), (math.radians(240), Y), (NINETY, X)])


def bb1(theta: float = INVERSION, phi: float = X) -> EventList:
    """BB1: 180(p) 360(3p) 180(p) then the pulse itself, cos p = -theta / 4 pi.

    Wimperis, J. Magn. Reson. A 109 (1994) 221. p is 104.4775 degrees for an inversion.
    """
    p = math.acos(-theta / (4 * math.pi))
    return pulse_train(
        [(math.pi, phi + p), (2 * math.pi, phi + 3 * p), (math.pi, phi + p), (theta, phi)]
    )


def with_nutation(pulses: EventList, nu1_hz: float) -> EventList:
    """The same pulses with the length they have at a nutation frequency of nu1_hz.

    Raises:
        ValueError: nu1_hz outside 1 to 1e7 Hz.
    """
    checks.number("nu1_hz", nu1_hz, checks.NUTATION, "Hz")
    return replace(
        pulses,
        events=tuple(
            Event(e.theta, e.phi, abs(e.theta) / (2 * math.pi * nu1_hz), e.tau, e.receive, e.spoil)
            for e in pulses
        ),
    )


def inversion_profile(
    pulse: EventList, offset_hz: npt.ArrayLike = 0.0, b1: npt.ArrayLike = 1.0
) -> Array:
    """Mz after a pulse from equilibrium, without relaxation, over offsets and field strengths.

    Args:
        pulse: the pulse; hard parts ignore the offset, those with a length do not.
        offset_hz: offsets, broadcast with b1.
        b1: transmit field over its nominal value.

    Raises:
        ValueError: an offset or a field strength that is not finite.
    """
    for name, values in (("offset_hz", offset_hz), ("b1", b1)):
        if not np.isfinite(np.asarray(values, np.float64)).all():
            raise ValueError(f"{name}: got {checks.shown(values)}, allowed finite numbers")
    offset, strength = np.broadcast_arrays(
        np.asarray(offset_hz, np.float64), np.asarray(b1, np.float64)
    )
    n = offset.size
    still = np.zeros((1, 1))  # no relaxation
    ensemble = Ensemble(
        offset_hz=offset.reshape(1, n).copy(),
        b1=strength.reshape(1, n).copy(),
        R1=still,
        R2=still,
        blocks=np.array([0, n]),
        weight=np.full(n, 1.0 / n),
        receive=np.full((1, n), 1.0 / n),
    )
    return np.asarray(run(pulse, ensemble).m[0, 2].reshape(offset.shape))


# --------------------------------------------------------------------------------------- trains


def saturation_train(theta: float, TR: float, shots: int) -> EventList:
    """Pulses theta every TR, with an ideal spoiler before each next one."""
    checks.integer("shots", shots, 1, MOST_PULSES)
    return EventList((Event(theta, X, tau=TR, spoil=True, label="shot"),)) * shots


def bssfp(alpha: float, TR: float, pulses: int) -> EventList:
    """Balanced steady-state free precession: alpha/2, then alpha every TR, phases alternating."""
    checks.integer("pulses", pulses, 1, MOST_PULSES)
    train = tuple(
        Event(alpha, MINUS_X if k % 2 == 0 else X, tau=TR, label="bSSFP") for k in range(pulses)
    )
    return EventList((Event(alpha / 2, X, tau=TR / 2, label="alpha/2"), *train))


def echo(tau: float, first: float = NINETY, second: float = INVERSION) -> EventList:
    """Two pulses (x, then y) tau apart; the echo stands at the end of the list."""
    return EventList(
        (
            Event(first, X, tau=tau, label="excite"),
            Event(second, Y, tau=tau, label="refocus"),
        )
    )


def deft(tau: float, wait: float) -> EventList:
    """Driven equilibrium: 90x - tau - 180y - tau - 90(-x) - wait, what is left then spoiled.

    Becker, Ferretti, Farrar, J. Am. Chem. Soc. 91 (1969) 7784.
    """
    back = Event(NINETY, MINUS_X, tau=wait, spoil=True, label="flip back")
    return EventList((*echo(tau), back))


def cpmg(
    te: float,
    echoes: int,
    wait: float,
    dead_time: float,
    dwell: float,
    flip_back: bool = False,
) -> EventList:
    """90x, then 180y every te (te/2 at both ends), the receiver open after each dead time.

    With `flip_back` the last echo is returned to +z before the wait (DE-CPMG).

    Raises:
        ValueError: dead_time of te / 2 or more; less than one echo; times that are not allowed.
    """
    checks.integer("echoes", echoes, 1, MOST_PULSES)
    checks.number("te", te, (0.0, LONGEST_EVENT), "s")
    checks.number("dead_time", dead_time, (0.0, LONGEST_EVENT), "s")
    if not 0.0 <= dead_time < te / 2:
        raise ValueError(f"dead_time: got {dead_time}, allowed 0 to below te / 2 = {te / 2} s")

    def gap(theta: float, phi: float, tau: float, label: str) -> Event:
        return Event(theta, phi, tau=tau, receive=receiver(tau, dead_time, dwell), label=label)

    train = [gap(INVERSION, Y, te, "refocus") for _ in range(echoes - 1)]
    back = NINETY if flip_back else 0.0
    return EventList(
        (
            gap(NINETY, X, te / 2, "excite"),
            *train,
            gap(INVERSION, Y, te / 2, "refocus"),
            Event(back, MINUS_X, tau=wait, spoil=True, label="flip back" if flip_back else "wait"),
        )
    )


# --------------------------------------------------------------------------------- closed forms


def ernst_angle(TR: float, T1: float) -> float:
    """Ernst angle a of shots every TR: cos a = exp(-TR / T1)."""
    return math.acos(math.exp(-TR / T1))


def ernst_signal(TR: float, T1: float) -> float:
    """Steady-state signal at the Ernst angle, sqrt((1 - E1) / (1 + E1))."""
    return math.sqrt(math.tanh(TR / (2 * T1)))


def saturation_efficiency(x: float) -> float:
    """Signal per square root of time of 90-degree shots every x T1: (1 - exp(-x)) / sqrt(x)."""
    return -math.expm1(-x) / math.sqrt(x)


def bssfp_signal(T1: float, T2: float, TR: float, alpha: float) -> tuple[float, float]:
    """(|Mxy|, Mz) just after a pulse in the on-resonance steady state of alternating phases."""
    E1, E2 = math.exp(-TR / T1), math.exp(-TR / T2)
    denominator = 1 - (E1 - E2) * math.cos(alpha) - E1 * E2
    return (
        math.sin(alpha) * (1 - E1) / denominator,
        (1 - E1) * (math.cos(alpha) + E2) / denominator,
    )


def bssfp_best_angle(T1: float, T2: float) -> float:
    """Angle a of the largest signal for TR -> 0: cos a = (T1/T2 - 1) / (T1/T2 + 1).

    The signal is then sqrt(T2/T1) / 2.
    """
    return math.acos((T1 / T2 - 1) / (T1 / T2 + 1))


def deft_polarisation(T1: float, T2: float, tau: float, wait: float) -> float:
    """Mz before each excitation in the DEFT steady state, (1 - Ed) / (1 - E2 Ed)."""
    Ed, E2 = math.exp(-wait / T1), math.exp(-2 * tau / T2)
    return (1 - Ed) / (1 - E2 * Ed)


def two_pulse_echo(first: float, second: float) -> float:
    """Echo of two pulses when all is dephased between them: sin a1 sin^2(a2 / 2) (Hahn 1950)."""
    return math.sin(first) * math.sin(second / 2) ** 2


def stimulated_echo(tau: float, TM: float, T1: float, T2: float) -> float:
    """Echo of three 90-degree pulses: exp(-2 tau / T2) exp(-TM / T1) / 2."""
    return 0.5 * math.exp(-2 * tau / T2 - TM / T1)


def cpmg_efficiency(wait: float, train: float, k: float) -> float:
    """Information per time of CPMG with waits, over the energy bound.

    2 (1 - e^-x)^2 (1 - e^-2L) / (x + L / k) with x = wait / T1, L = train / T2, k = T1 / T2.
    """
    return 2 * math.expm1(-wait) ** 2 * -math.expm1(-2 * train) / (wait + train / k)


def de_cpmg_efficiency(k: float) -> float:
    """The same for ideal short trains with flip-back: 4 k rho^2 / ((rho + k)^2 (1 + rho)).

    rho, wait over train length, is at its optimum (k + sqrt(k^2 + 8 k)) / 2.
    """
    rho = (k + math.sqrt(k * k + 8 * k)) / 2
    return 4 * k * rho**2 / ((rho + k) ** 2 * (1 + rho))
