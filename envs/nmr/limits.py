"""What an instrument cannot do: which events of a list break its limits, and the nearest that obey.

Limits of `palestra.envs.nmr.sample.Instrument`: the dead time, the highest nutation frequency, the
share of time in which the transmitter may be on, and the grid of phases.

The transmitter is on during a pulse. A hard pulse has no length in a list: it counts, at its
instant, the time that the instrument needs for it, |theta| / (2 pi nu1_max_hz). Windows are open at
their beginning. A list of several scans counts as one that goes on for as long as they do.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from palestra.kernels import kernel

from .bloch import Array
from .events import Event, EventList
from .sample import Instrument

ROUNDING = 1e-9  # relative; what a limit may be exceeded by
WINDOW_ROUNDING = 1e-14  # relative; of sums of durations
PHASE_ROUNDING = 1e-7  # degrees


@kernel(allocates=False)
def phase_on_grid(phi, step):  # type: ignore[no-untyped-def]
    """The multiple of `step` nearest to `phi`, both in one unit; `phi` where the step is 0."""
    if step <= 0.0:
        return phi
    return math.floor(phi / step + 0.5) * step


def violations(events: EventList, instrument: Instrument) -> list[str]:
    """What an instrument cannot do of a list: event, value and limit, one message each.

    Events are counted from 0. No message: the instrument can play the list.
    """
    found = []
    for k, (event, since) in enumerate(with_times_since_pulse(events)):
        found += [f"event {k}: {what}" for what in _of_event(event, since, instrument)]
    return found + _duty_violations(events, instrument)


@dataclass(frozen=True)
class Obeying:
    """A list that an instrument can play, and how it differs from the one that was asked for.

    Attributes:
        events: the list.
        changes: event, what was changed, from what to what; one message each.
    """

    events: EventList
    changes: tuple[str, ...]


def obeying(events: EventList, instrument: Instrument) -> Obeying:
    """The nearest list without violations: phases rounded, windows opened later, delays longer.

    A receiver that opens in the dead time opens at its end, with the same samples; its delay grows
    only if they no longer fit. Where the transmitter would be on for too long, the last delay
    before the pulse grows (a delay of 0 holds a composite pulse together and stays). A train of
    echoes that is changed so loses its echoes: every change is reported, to be looked at.

    Raises:
        ValueError: where no such change helps: a nutation above the limit, or one pulse that alone
            takes more than the share of the window.
    """
    changes: list[str] = []
    _refuse_strong_pulses(events, instrument)
    changed = replace(events, events=tuple(_on_phase_grid(events, instrument, changes)))
    changed = replace(changed, events=tuple(_after_dead_time(changed, instrument, changes)))
    changed = _within_duty(changed, instrument, changes)
    left = violations(changed, instrument)
    if left:
        raise ValueError(f"events: no change helps: {'; '.join(left[:3])}")
    return Obeying(changed, tuple(changes))


def transmitting(event: Event, instrument: Instrument) -> float:
    """How long an event's pulse keeps the transmitter on, s."""
    if event.theta == 0.0:
        return 0.0
    hard = abs(event.theta) / (2.0 * math.pi * instrument.nu1_max_hz)
    return event.t_pulse if event.t_pulse > 0.0 else hard


# ------------------------------------------------------------------------------ of single events


def with_times_since_pulse(events: EventList) -> list[tuple[Event, float]]:
    """Each event, and the time from the end of the last pulse to the start of its delay."""
    since, found = math.inf, []
    for event in events:
        since = 0.0 if event.theta != 0.0 else since + event.t_pulse
        found.append((event, since))
        since += event.tau
    return found


def _of_event(event: Event, since: float, instrument: Instrument) -> list[str]:
    found = []
    nutation = _nutation(event)
    if nutation > instrument.nu1_max_hz * (1.0 + ROUNDING):
        found.append(
            f"nutation: got {nutation:.6g} Hz, allowed up to nu1_max_hz = "
            f"{instrument.nu1_max_hz:g} Hz"
        )
    if event.theta != 0.0:
        found += _off_grid("phi", event.phi, instrument)
    if event.receive is not None:
        opens = since + event.receive.first
        if opens < instrument.dead_time * (1.0 - ROUNDING):
            found.append(
                f"receiver: opens {opens:.6g} s after the pulse, allowed from dead_time = "
                f"{instrument.dead_time:g} s on"
            )
        found += _off_grid("receiver phase", event.receive.phase, instrument)
    return found


def _nutation(event: Event) -> float:
    """Nutation frequency of a pulse with a length, Hz; 0 of a hard one."""
    return abs(event.theta) / (2.0 * math.pi * event.t_pulse) if event.t_pulse > 0.0 else 0.0


def _off_grid(what: str, phase: float, instrument: Instrument) -> list[str]:
    step, degrees = instrument.phase_step_deg, math.degrees(phase)
    if abs(degrees - phase_on_grid(degrees, step)) <= PHASE_ROUNDING:
        return []
    return [f"{what}: got {degrees:.9g} degrees, allowed multiples of phase_step_deg = {step:g}"]


def _refuse_strong_pulses(events: EventList, instrument: Instrument) -> None:
    most = instrument.duty_max * instrument.duty_window
    for k, event in enumerate(events):
        nutation, on = _nutation(event), transmitting(event, instrument)
        if nutation > instrument.nu1_max_hz * (1.0 + ROUNDING):
            raise ValueError(
                f"event {k}: nutation: got {nutation:.6g} Hz, allowed up to nu1_max_hz = "
                f"{instrument.nu1_max_hz:g} Hz; no other phase or delay helps"
            )
        if instrument.duty_max < 1.0 and on > most * (1.0 + ROUNDING):
            raise ValueError(
                f"event {k}: duty: got one pulse of {on:.6g} s, allowed up to duty_max duty_window "
                f"= {most:.6g} s; no longer delay helps"
            )


def _on_phase_grid(events: EventList, instrument: Instrument, changes: list[str]) -> list[Event]:
    def rounded(k: int, what: str, phase: float) -> float:
        if not _off_grid(what, phase, instrument):
            return phase
        degrees = math.degrees(phase)
        nearest = float(phase_on_grid(degrees, instrument.phase_step_deg))
        changes.append(f"event {k}: {what}: {degrees:.9g} to {nearest:.9g} degrees")
        return math.radians(nearest)

    obeyed = []
    for k, event in enumerate(events):
        if event.theta != 0.0:
            event = replace(event, phi=rounded(k, "phi", event.phi))
        if event.receive is not None:
            phase = rounded(k, "receiver phase", event.receive.phase)
            event = replace(event, receive=replace(event.receive, phase=phase))
        obeyed.append(event)
    return obeyed


def _after_dead_time(events: EventList, instrument: Instrument, changes: list[str]) -> list[Event]:
    obeyed = []
    for k, (event, since) in enumerate(with_times_since_pulse(events)):
        window = event.receive
        if window is not None and since + window.first < instrument.dead_time * (1.0 - ROUNDING):
            later = replace(window, first=instrument.dead_time - since)
            changes.append(f"event {k}: first sample: {window.first:.9g} to {later.first:.9g} s")
            if later.last > event.tau:
                changes.append(f"event {k}: delay: {event.tau:.9g} to {later.last:.9g} s")
            event = replace(event, receive=None, tau=max(event.tau, later.last))
            event = replace(event, receive=later)
        obeyed.append(event)
    return obeyed


# ------------------------------------------------------------------------- the transmitter's duty


def _pulses(events: EventList, instrument: Instrument) -> tuple[Array, Array, Array]:
    """End of each pulse, s, how long the transmitter is on, and the number of its event."""
    ends, on, number = [], [], []
    begun = 0.0
    for k, event in enumerate(events):
        if event.theta != 0.0:
            ends.append(begun + event.t_pulse)
            on.append(transmitting(event, instrument))
            number.append(k)
        begun += event.duration
    return np.array(ends), np.array(on), np.array(number, dtype=np.int64)


def _worst_window(events: EventList, instrument: Instrument) -> tuple[float, int]:
    """The longest time on in any window, s, and the event with which that window ends."""
    ends, on, number = _pulses(events, instrument)
    if not ends.size:
        return 0.0, 0
    total, period, window = float(on.sum()), events.duration, instrument.duty_window
    whole = 0.0
    if events.scans > 1:
        if period * events.scans <= window:
            return total * events.scans, int(number[-1])
        turns = math.floor(window / period)
        whole, window = turns * total, window - turns * period
        ends = np.concatenate([ends, ends + period])
        on, number = np.tile(on, 2), np.tile(number, 2)
    hard = np.array([events[k].t_pulse == 0.0 for k in number])
    sums = np.concatenate([[0.0], np.cumsum(on)])
    # a window that has most of the transmitter can be moved until it ends where a pulse does
    starts = ends - window + WINDOW_ROUNDING * (window + ends[-1])
    gone = np.searchsorted(ends, starts, side="right")  # pulses over when the window begins
    cut = np.zeros_like(ends)
    inside = gone < ends.size
    first = np.minimum(gone, ends.size - 1)
    begins = ends[first] - on[first]
    cut[inside] = np.where(hard[first], 0.0, np.clip(starts - begins, 0.0, None))[inside]
    share = sums[1:] - sums[gone] - cut
    worst = int(np.argmax(share))
    most = min(whole + float(share[worst]), total * events.scans)
    return most, int(number[worst])


def _duty_violations(events: EventList, instrument: Instrument) -> list[str]:
    if instrument.duty_max >= 1.0:
        return []
    most, k = _worst_window(events, instrument)
    share = most / instrument.duty_window
    if share <= instrument.duty_max * (1.0 + ROUNDING):
        return []
    return [
        f"event {k}: duty: the transmitter is on for {share:.6g} of the {instrument.duty_window:g} "
        f"s that end here, allowed up to duty_max = {instrument.duty_max:g}"
    ]


def _within_duty(events: EventList, instrument: Instrument, changes: list[str]) -> EventList:
    if instrument.duty_max >= 1.0:
        return events
    obeyed = list(events)
    ends: list[float] = []
    sums: list[float] = []  # time on until the end of each pulse
    hard: list[bool] = []
    begun, most = 0.0, instrument.duty_max * instrument.duty_window
    for k, event in enumerate(events):
        on = transmitting(event, instrument)
        if on > 0.0:
            end = begun + event.t_pulse
            needed = _earliest(ends, sums, hard, most - on) + instrument.duty_window
            if needed > end + ROUNDING * instrument.duty_window:
                _lengthen(obeyed, k, needed - end, changes)
                begun += needed - end
            ends.append(begun + event.t_pulse)
            sums.append((sums[-1] if sums else 0.0) + on)
            hard.append(event.t_pulse == 0.0)
        begun += event.duration
    changed = replace(events, events=tuple(obeyed))
    return _apart(changed, instrument, changes) if events.scans > 1 else changed


def _earliest(ends: list[float], sums: list[float], hard: list[bool], room: float) -> float:
    """When the window may begin that must hold at most `room` of the pulses so far, s."""
    target = (sums[-1] if sums else 0.0) - max(room, 0.0)
    target -= 0.1 * ROUNDING * (target + max(room, 0.0))  # a gap is left at its beginning
    if target <= 0.0:
        return -math.inf
    k = bisect_left(sums, target)
    return ends[k] if hard[k] else ends[k] - (sums[k] - target)


def _lengthen(events: list[Event], before: int, by: float, changes: list[str]) -> None:
    for k in range(before - 1, -1, -1):
        if events[k].tau > 0.0:
            tau = events[k].tau + by
            changes.append(f"event {k}: delay: {events[k].tau:.9g} to {tau:.9g} s")
            events[k] = replace(events[k], tau=tau)
            return
    raise ValueError(f"event {before}: duty: no delay before it that could be longer")


def _apart(events: EventList, instrument: Instrument, changes: list[str]) -> EventList:
    """Scans far enough apart: the last delay grows."""

    def longer(by: float) -> EventList:
        last = events[-1]
        return replace(events, events=(*events.events[:-1], replace(last, tau=last.tau + by)))

    if not _duty_violations(events, instrument):
        return events
    low, high = 0.0, instrument.duty_window
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if _duty_violations(longer(middle), instrument) else (low, middle)
        )
    changed = longer(high)
    k = len(events) - 1
    changes.append(f"event {k}: delay: {events[k].tau:.9g} to {changed[k].tau:.9g} s")
    return changed
