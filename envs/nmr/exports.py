"""Event lists to files that instruments and people read, and back.

`.csv` and `.json` hold everything, `.seq` is Pulseq, `.txt` a pulse program in Bruker's style. What
an instrument cannot do is not exported: `palestra.envs.nmr.limits` says why, and what obeys.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

from palestra.safe_files import TEXT_LIMIT, MalformedFile, read_limited

from . import checks
from .events import Event, EventList
from .limits import violations, with_times_since_pulse
from .pulse_program import from_pulse_program, to_pulse_program
from .pulseq import RF_RASTER, from_pulseq, to_pulseq
from .sample import Instrument

SUFFIXES = (".csv", ".json", ".seq", ".txt")


def export(events: EventList, path: str | os.PathLike[str], instrument: Instrument) -> list[str]:
    """Write an event list in the format that the suffix of the path names.

    For `.seq` and `.txt` hard pulses get the length that they have on the instrument, and samples
    that then fall under a pulse or in the dead time, for `.seq` also those without room for their
    dwell, are left out. Every such change is returned.

    Args:
        events: the list.
        path: ends in one of SUFFIXES.
        instrument: whose limits hold.

    Raises:
        ValueError: an unknown suffix, what the instrument cannot do, or what the format has no
            place for.
    """
    path = Path(path)
    _check_suffix(path)
    _refuse_violations(events, instrument)
    changes: list[str] = []
    if path.suffix in (".seq", ".txt"):
        raster = RF_RASTER if path.suffix == ".seq" else 0.0
        events = with_lengths(events, instrument.nu1_max_hz, raster, changes)
        events = after_dead_time(events, instrument.dead_time, changes)
        _refuse_violations(events, instrument)
    if path.suffix == ".seq":
        events = trimmed(events, changes)
    write = {
        ".csv": EventList.to_csv,
        ".json": EventList.to_json,
        ".seq": to_pulseq,
        ".txt": to_pulse_program,
    }[path.suffix]
    path.write_text(write(events), encoding="utf-8")
    return changes


def _refuse_violations(events: EventList, instrument: Instrument) -> None:
    broken = violations(events, instrument)
    if broken:
        more = f", and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise ValueError(f"events: the instrument cannot play them: {'; '.join(broken[:3])}{more}")


def read_events(path: str | os.PathLike[str]) -> EventList:
    """Read an event list in any of the formats of SUFFIXES.

    Raises:
        ValueError: an unknown suffix, or values that are not allowed.
        MalformedFile: not UTF-8, or not such a file.
        UnsafeFile: larger than 16 MiB.
        OSError: it cannot be read.
    """
    path = Path(path)
    _check_suffix(path)
    try:
        text = read_limited(path, TEXT_LIMIT).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MalformedFile(f"{path}: not UTF-8") from None
    if path.suffix == ".seq":
        return from_pulseq(text, str(path))
    if path.suffix == ".txt":
        return from_pulse_program(text, str(path))
    try:
        return EventList.from_csv(text) if path.suffix == ".csv" else EventList.from_json(text)
    except ValueError as reason:
        raise ValueError(f"{path}: {reason}") from None


def _check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: got {path.suffix!r}, allowed {', '.join(SUFFIXES)}")


def with_lengths(
    events: EventList, nu1_hz: float, raster: float = 0.0, changes: list[str] | None = None
) -> EventList:
    """Hard pulses with the length that they have at a nutation frequency, their middles kept.

    Half of a pulse's length is taken from the delay before it and half from the delay after it, as
    far as those reach: a composite pulse grows longer. Samples that a pulse would cover are left
    out.

    Args:
        events: the list; pulses with a length stay as they are.
        nu1_hz: nutation frequency, Hz.
        raster: lengths are rounded up to its multiples, s, and the pulses made weaker; 0 is none.
        changes: to which each pulse that changes is added, in words.

    Raises:
        ValueError: nu1_hz outside 1 to 1e7 Hz.
    """
    checks.number("nu1_hz", nu1_hz, checks.NUTATION, "Hz")
    found: list[Event] = []
    for k, event in enumerate(events):
        if event.theta == 0.0 or event.t_pulse > 0.0:
            found.append(event)
            continue
        length = abs(event.theta) / (2.0 * math.pi * nu1_hz)
        if raster > 0.0:
            length = math.ceil(length / raster * (1.0 - 1e-12)) * raster
        if found:
            found[-1] = _shorter_at_end(k - 1, found[-1], length / 2.0, changes)
        found.append(_shorter_at_start(k, replace(event, t_pulse=length), length / 2.0, changes))
        if changes is not None:
            changes.append(f"event {k}: pulse of {length:.9g} s in place of a hard one")
    return replace(events, events=tuple(found))


def _shorter_at_end(k: int, event: Event, by: float, changes: list[str] | None) -> Event:
    tau = max(event.tau - by, 0.0)
    window = event.receive
    if window is not None and window.last > tau:
        fit = 1 + math.floor((tau - window.first) / window.dwell)
        event = _with_samples(k, event, 0, fit, changes)
    return replace(event, tau=tau)


def _shorter_at_start(k: int, event: Event, by: float, changes: list[str] | None) -> Event:
    by = min(by, event.tau)
    event = _sampled_from(k, event, by, changes)
    window = event.receive
    if window is not None:
        window = replace(window, first=window.first - by)
    tau = event.tau - by
    return replace(event, receive=window, tau=max(tau, window.last) if window else tau)


def after_dead_time(
    events: EventList, dead_time: float, changes: list[str] | None = None
) -> EventList:
    """The list without the samples that come sooner after a pulse than the dead time.

    Args:
        events: the list.
        dead_time: s.
        changes: to which each window that changes is added, in words.
    """
    found = [
        _sampled_from(k, event, dead_time - since, changes)
        for k, (event, since) in enumerate(with_times_since_pulse(events))
    ]
    return replace(events, events=tuple(found))


def _sampled_from(k: int, event: Event, time: float, changes: list[str] | None) -> Event:
    """The event without its samples before a time of its delay."""
    window = event.receive
    if window is None or window.first >= time * (1.0 - 1e-9):
        return event
    gone = math.ceil((time - window.first) / window.dwell - 1e-9)
    return _with_samples(k, event, gone, window.samples, changes)


def trimmed(events: EventList, changes: list[str] | None = None) -> EventList:
    """The list without the last samples whose dwell, half of it after the sample, has no room.

    Args:
        events: the list.
        changes: to which each window that changes is added, in words.
    """
    found = []
    for k, event in enumerate(events):
        window = event.receive
        if window is not None:
            room = event.tau - window.first - 0.5 * window.dwell
            fit = min(window.samples, 1 + math.floor(room / window.dwell + 1e-6))
            if fit < window.samples:
                event = _with_samples(k, event, 0, fit, changes)
        found.append(event)
    return replace(events, events=tuple(found))


def without_spoilers(events: EventList, changes: list[str] | None = None) -> EventList:
    """The list without its ideal spoilers: right only where nothing transverse is left by then.

    Args:
        events: the list.
        changes: to which each spoiler that goes is added, in words.
    """
    if changes is not None:
        changes += [f"event {k}: no spoiler" for k, event in enumerate(events) if event.spoil]
    return replace(events, events=tuple(replace(event, spoil=False) for event in events))


def _with_samples(k: int, event: Event, begin: int, end: int, changes: list[str] | None) -> Event:
    """The event with its samples begin : end only."""
    window = event.receive
    assert window is not None
    samples = max(end - begin, 0)
    if changes is not None:
        changes.append(f"event {k}: {window.samples} to {samples} samples")
    first = window.first + begin * window.dwell
    kept = replace(window, first=first, samples=samples) if samples else None
    return replace(event, receive=kept)
