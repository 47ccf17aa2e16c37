"""Swept pulses: inversion by a frequency that passes through resonance, slowly enough.

A swept pulse is an amplitude nu1(t) and a phase phi(t); its frequency (dphi/dt) / 2 pi runs from
-bandwidth / 2 to +bandwidth / 2. A spin at a positive offset turns x towards y, and so does a field
whose phase grows: the pulse meets an offset when its frequency equals it. Here such a pulse is an
event list of rectangular segments, each with amplitude and phase of its middle, so its error falls
with the square of the length of a segment.

Tannus, Garwood, NMR Biomed. 10 (1997) 423; Kupce, Freeman, J. Magn. Reson. A 115 (1995) 273.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import checks
from .events import Event, EventList
from .pulses import inversion_profile

Array = npt.NDArray[Any]

DURATION = (1e-6, 10.0)  # s
BANDWIDTH = (1e-3, 1e6)  # Hz
MOST_SEGMENTS = 1_000_000
INVERSION_TOLERANCE = 1e-9  # rad, within which a flip angle is 180 degrees
_DEPTH = (0.0, 1.0)


def hyperbolic_secant(
    duration: float,
    bandwidth_hz: float,
    nu1_hz: float,
    segments: int = 512,
    truncation: float = 0.01,
) -> EventList:
    """Hyperbolic secant: nu1 sech(beta s), frequency (bandwidth / 2) tanh(beta s), s = -1 .. 1.

    Its phase is (pi bandwidth duration / 2 beta) ln cosh(beta s).

    Args:
        duration: s.
        bandwidth_hz: of the sweep, were it not cut off.
        nu1_hz: nutation frequency at the peak.
        segments: rectangular pieces.
        truncation: amplitude at both ends over the peak, sech(beta).

    Raises:
        ValueError: a value that is not allowed.
    """
    checks.number("truncation", truncation, (1e-6, 0.5))
    beta = math.acosh(1.0 / truncation)

    def shape(s: Array) -> tuple[Array, Array]:
        turns = bandwidth_hz * duration / (4.0 * beta) * np.log(np.cosh(beta * s))
        return nu1_hz / np.cosh(beta * s), 2.0 * math.pi * turns

    return _swept(shape, duration, bandwidth_hz, nu1_hz, segments)


def chirp(
    duration: float, bandwidth_hz: float, nu1_hz: float, segments: int = 512, edge: int = 20
) -> EventList:
    """Linear sweep with smooth edges (WURST): nu1 (1 - |sin(pi s / 2)|^edge), s = -1 .. 1.

    Its phase is pi bandwidth duration s^2 / 4.

    Args:
        duration: s.
        bandwidth_hz: of the sweep.
        nu1_hz: nutation frequency in the middle.
        segments: rectangular pieces.
        edge: the power; the larger, the steeper.

    Raises:
        ValueError: a value that is not allowed.
    """
    checks.integer("edge", edge, 1, 1000)

    def shape(s: Array) -> tuple[Array, Array]:
        amplitude = nu1_hz * (1.0 - np.abs(np.sin(math.pi * s / 2.0)) ** edge)
        return amplitude, math.pi * bandwidth_hz * duration * s**2 / 4.0

    return _swept(shape, duration, bandwidth_hz, nu1_hz, segments)


def _swept(
    shape: Callable[[Array], tuple[Array, Array]],
    duration: float,
    bandwidth_hz: float,
    nu1_hz: float,
    segments: int,
) -> EventList:
    checks.number("duration", duration, DURATION, "s")
    checks.number("bandwidth_hz", bandwidth_hz, BANDWIDTH, "Hz")
    checks.number("nu1_hz", nu1_hz, checks.NUTATION, "Hz")
    checks.integer("segments", segments, 2, MOST_SEGMENTS)
    middles = (2.0 * np.arange(segments) + 1.0) / segments - 1.0
    amplitude, phase = shape(middles)
    length = duration / segments
    angles = 2.0 * math.pi * amplitude * length
    phases = np.mod(phase, 2.0 * math.pi)
    pairs = zip(angles.tolist(), phases.tolist(), strict=True)
    return EventList(tuple(Event(theta, phi, length) for theta, phi in pairs))


def chirp_nutation(adiabaticity: float, duration: float, bandwidth_hz: float) -> float:
    """Peak nu1 in Hz of a chirp whose adiabaticity 2 pi nu1^2 duration / bandwidth is given.

    Raises:
        ValueError: a value that is not allowed.
    """
    checks.number("adiabaticity", adiabaticity, (1e-6, 1e6))
    checks.number("duration", duration, DURATION, "s")
    checks.number("bandwidth_hz", bandwidth_hz, BANDWIDTH, "Hz")
    return math.sqrt(adiabaticity * bandwidth_hz / (2.0 * math.pi * duration))


def area_angle(pulse: EventList) -> float:
    """Area of the amplitude, the sum of |theta| in rad. *Not* the flip angle of a swept pulse.

    It is that of a pulse on resonance whose phase stays. A swept pulse inverts at many areas, and
    a composite one turns by less than its area: ask `inversion_profile`.
    """
    return math.fsum(abs(event.theta) for event in pulse)


# ------------------------------------------------------------------------------- in place of a 180


def with_inversion(events: EventList, pulse: EventList) -> EventList:
    """The list with every 180-degree pulse replaced by another inversion, its timing kept.

    The middle of the new pulse stands where the middle of the old one stood: half of what it is
    longer is taken from the delay before it, half from the delay after it. A pulse that begins the
    list has no delay before it, and takes all from the delay after it. Samples stay at their
    times. The phase of the old pulse is added to the new one's.

    One swept pulse leaves a phase that depends on the offset; a second like it takes it away.

    Args:
        events: the list.
        pulse: pulses without delays: composite, or shaped.

    Raises:
        ValueError: a pulse that is empty or has delays; one that does not fit into the delays, or
            covers a sample.
    """
    if not pulse.events or any(event.tau > 0.0 or event.spoil for event in pulse):
        raise ValueError("pulse: got delays, spoilers or no event, allowed pulses without delays")
    done: list[Event] = []
    for k, event in enumerate(events):
        if abs(abs(event.theta) - math.pi) > INVERSION_TOLERANCE:
            done.append(event)
            continue
        longer = pulse.duration - event.t_pulse
        before = longer / 2.0 if done else 0.0
        if done:
            done[-1] = _shorter_at_the_end(k - 1, done[-1], before)
        done.extend(_in_place_of(k, event, pulse, longer - before))
    return replace(events, events=tuple(done))


def _fits(k: int, event: Event, time: float) -> None:
    if time > event.tau * (1.0 + 1e-12):
        raise ValueError(
            f"pulse: needs {time} s of the delay of event {k}, allowed up to its tau = "
            f"{event.tau} s"
        )


def _shorter_at_the_end(k: int, event: Event, time: float) -> Event:
    _fits(k, event, time)
    left = max(0.0, event.tau - time)
    if event.receive is not None and event.receive.last > left * (1.0 + 1e-12):
        raise ValueError(
            f"pulse: covers a sample of event {k} at {event.receive.last} s of its delay, allowed "
            f"samples up to {left} s"
        )
    return replace(event, tau=left)


def _in_place_of(k: int, event: Event, pulse: EventList, time: float) -> list[Event]:
    """The new pulse and what is left of the delay of the old one, `time` shorter."""
    _fits(k, event, time)
    receive = event.receive
    if receive is not None:
        if receive.first < time * (1.0 - 1e-12):
            raise ValueError(
                f"pulse: covers a sample of event {k} at {receive.first} s of its delay, allowed "
                f"samples from {time} s on"
            )
        receive = replace(receive, first=max(0.0, receive.first - time))
    turn = event.phi if event.theta > 0.0 else event.phi + math.pi
    parts = [replace(part, phi=part.phi + turn, label=event.label) for part in pulse]
    left = max(0.0, event.tau - time)
    if receive is not None:  # rounding of the two differences may part by one bit
        left = max(left, receive.last)
    parts[-1] = replace(parts[-1], tau=left, receive=receive, spoil=event.spoil)
    return parts


# -------------------------------------------------------------------------------- how robust it is


def inversion_map(pulse: EventList, offset_hz: npt.ArrayLike, b1: npt.ArrayLike) -> Array:
    """Mz after the pulse for every field strength (rows) and offset (columns)."""
    strengths = np.atleast_1d(np.asarray(b1, np.float64))
    return inversion_profile(pulse, np.atleast_1d(np.asarray(offset_hz)), strengths[:, np.newaxis])


def inverted_band(
    pulse: EventList, offset_hz: npt.ArrayLike, b1: float = 1.0, depth: float = 0.99
) -> tuple[float, float]:
    """(lowest, highest) offset in Hz around 0 at which Mz <= -depth; (nan, nan) if not at 0.

    Ends are interpolated between the offsets given, or are the outermost of them.

    Raises:
        ValueError: offsets that do not ascend through 0; a depth outside 0 to 1.
    """
    grid = _ascending("offset_hz", offset_hz, 0.0)
    return _around(grid, inversion_profile(pulse, grid, b1), 0.0, depth)


def inverted_b1(
    pulse: EventList, b1: npt.ArrayLike, offset_hz: float = 0.0, depth: float = 0.99
) -> tuple[float, float]:
    """(lowest, highest) field strength around the nominal 1 at which Mz <= -depth; nan if not at 1.

    Ends are interpolated between the strengths given, or are the outermost of them.

    Raises:
        ValueError: strengths that do not ascend through 1; a depth outside 0 to 1.
    """
    grid = _ascending("b1", b1, 1.0)
    return _around(grid, inversion_profile(pulse, offset_hz, grid), 1.0, depth)


def _ascending(name: str, values: npt.ArrayLike, middle: float) -> Array:
    grid = np.asarray(values, np.float64)
    sound = grid.ndim == 1 and grid.size >= 2 and bool(np.all(np.diff(grid) > 0.0))
    if not sound or not grid[0] <= middle <= grid[-1]:
        raise ValueError(
            f"{name}: got {checks.shown(values)}, allowed two or more, ascending, on both sides "
            f"of {middle:g}"
        )
    return grid


def _around(grid: Array, mz: Array, middle: float, depth: float) -> tuple[float, float]:
    checks.number("depth", depth, _DEPTH)
    spare = -depth - mz  # at least 0 where inverted
    if np.interp(middle, grid, spare) < 0.0:
        return math.nan, math.nan
    outside = np.flatnonzero(spare < 0.0)
    below, above = outside[grid[outside] < middle], outside[grid[outside] > middle]
    low = _crossing(grid, spare, below[-1]) if below.size else float(grid[0])
    high = _crossing(grid, spare, above[0] - 1) if above.size else float(grid[-1])
    return low, high


def _crossing(grid: Array, spare: Array, k: int) -> float:
    """Where the line between points k and k + 1 is 0."""
    share = spare[k] / (spare[k] - spare[k + 1])
    return float(grid[k] + share * (grid[k + 1] - grid[k]))
