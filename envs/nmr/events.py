"""The event list: pulses, delays and receiver windows, the common currency of everything here.

Policies, classical sequences, optimisers, pictures and exports all read and write it. An event is
a pulse, then a delay, in which samples may be taken, and at its end an ideal spoiler if asked for.
Times belong to events, never to a running clock: nothing depends on how long ago it all began.

The receiver has a phase too: samples are multiplied by exp(-i phase). Where the phases of all
pulses grow by p, the transverse magnetisation is turned by p, so adding the same p to transmitter
and receiver leaves the samples as they are.

A list may stand for several *scans*: it is done that often, each time from the same state, and what
is received is added. Samples here are those of one scan, or the mean of all: noise of standard
deviation sigma in a scan has sigma / sqrt(scans) in the mean, and information is that of one scan
times their number.
"""

from __future__ import annotations

import cmath
import csv
import io
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import checks
from .bloch import (
    Ensemble,
    apply_propagator,
    equilibrium,
    pulse_and_delay,
    pulse_propagator,
    spoil,
)

Array = npt.NDArray[Any]

LARGEST_ANGLE = 1e6  # rad
LONGEST_EVENT = 1e9  # s
SHORTEST_DWELL = 1e-12  # s
MOST_SAMPLES = 100_000_000  # of one event
MOST_SCANS = 1_000_000_000


@dataclass(frozen=True)
class Receive:
    """Samples of the signal in the delay of an event.

    Attributes:
        first: time of the first sample after the end of the pulse, s.
        dwell: time between samples, s.
        samples: how many.
        phase: of the receiver, rad; samples are multiplied by exp(-i phase).
    """

    first: float
    dwell: float
    samples: int
    phase: float = 0.0

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.number("first", self.first, (0.0, LONGEST_EVENT), "s")
        checks.number("dwell", self.dwell, (SHORTEST_DWELL, LONGEST_EVENT), "s")
        checks.integer("samples", self.samples, 1, MOST_SAMPLES)
        checks.number("phase", self.phase, (-LARGEST_ANGLE, LARGEST_ANGLE), "rad")

    @property
    def times(self) -> Array:
        """Times of the samples after the end of the pulse, s."""
        return self.first + self.dwell * np.arange(self.samples)

    @property
    def last(self) -> float:
        """Time of the last sample, s."""
        return self.first + self.dwell * (self.samples - 1)

    @property
    def turned(self) -> complex:
        """What the receiver's phase multiplies samples with, exp(-i phase)."""
        return cmath.exp(-1j * self.phase)


@dataclass(frozen=True)
class Event:
    """A pulse, then a delay.

    Attributes:
        theta: nominal flip angle, rad; 0 is no pulse.
        phi: phase, rad.
        t_pulse: length of the pulse, s; 0 is a hard pulse.
        tau: delay after the pulse, s.
        receive: samples taken in the delay, or None.
        spoil: whether an ideal spoiler acts at the end of the delay.
        label: what a person calls it.
    """

    theta: float = 0.0
    phi: float = 0.0
    t_pulse: float = 0.0
    tau: float = 0.0
    receive: Receive | None = None
    spoil: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        for name in ("theta", "phi"):
            checks.number(name, getattr(self, name), (-LARGEST_ANGLE, LARGEST_ANGLE), "rad")
        for name in ("t_pulse", "tau"):
            checks.number(name, getattr(self, name), (0.0, LONGEST_EVENT), "s")
        if self.receive is not None:
            checks.instance("receive", self.receive, Receive, "a Receive or None")
        checks.flag("spoil", self.spoil)
        checks.instance("label", self.label, str, "a string")
        if self.receive is not None and self.receive.last > self.tau * (1.0 + 1e-12):
            raise ValueError(
                f"receive: last sample at {self.receive.last} s, allowed up to tau = {self.tau} s"
            )

    @property
    def duration(self) -> float:
        """Pulse and delay, s."""
        return self.t_pulse + self.tau

    def split(self, time: float) -> tuple[Event, Event]:
        """Two events that do what this one does, cut `time` seconds after its beginning.

        A finite pulse is cut with its flip angle in proportion. Samples at the cut fall to the
        first part, the spoiler to the second.

        Raises:
            ValueError: time outside 0 to duration.
        """
        checks.number("time", time, (0.0, self.duration), "s")
        if time < self.t_pulse:
            part = time / self.t_pulse
            before = replace(
                self, theta=part * self.theta, t_pulse=time, tau=0.0, receive=None, spoil=False
            )
            rest = self.t_pulse - time
            return before, replace(self, theta=(1.0 - part) * self.theta, t_pulse=rest)
        passed = time - self.t_pulse
        early, late = _split_receive(self.receive, passed)
        before = replace(self, tau=passed, receive=early, spoil=False)
        after = replace(self, theta=0.0, t_pulse=0.0, tau=self.tau - passed, receive=late)
        return before, after


def _split_receive(receive: Receive | None, time: float) -> tuple[Receive | None, Receive | None]:
    if receive is None:
        return None, None
    early = int(np.count_nonzero(receive.times <= time))
    first = replace(receive, samples=early) if early else None
    left = receive.samples - early
    if not left:
        return first, None
    begins = receive.first + early * receive.dwell - time
    return first, replace(receive, first=begins, samples=left)


@dataclass(frozen=True)
class EventList:
    """Events in order, and how often they are done.

    Attributes:
        events: in order.
        scans: how often the list is repeated and its samples added.
    """

    events: tuple[Event, ...] = ()
    scans: int = 1

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.integer("scans", self.scans, 1, MOST_SCANS)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __getitem__(self, index: int) -> Event:
        return self.events[index]

    def __add__(self, other: EventList) -> EventList:
        if other.scans != self.scans:
            raise ValueError(
                f"scans: got {self.scans} and {other.scans}, allowed the same number in both lists"
            )
        return replace(self, events=self.events + other.events)

    def __mul__(self, times: int) -> EventList:
        return replace(self, events=self.events * times)

    @property
    def duration(self) -> float:
        """Seconds from beginning to end of one scan."""
        return math.fsum(event.duration for event in self.events)

    @property
    def measuring_time(self) -> float:
        """Seconds of all scans."""
        return self.scans * self.duration

    @property
    def longest_gap(self) -> float:
        """The longest delay, s."""
        return max((event.tau for event in self.events), default=0.0)

    def split(self, time: float) -> tuple[EventList, EventList]:
        """Two lists that together do what this one does, cut at `time` seconds.

        Raises:
            ValueError: time outside 0 to duration.
        """
        checks.number("time", time, (0.0, self.duration), "s")
        left = time
        for k, event in enumerate(self.events):
            if left < event.duration:
                before, after = event.split(left)
                return (
                    replace(self, events=(*self.events[:k], before)),
                    replace(self, events=(after, *self.events[k + 1 :])),
                )
            left -= event.duration
        return self, replace(self, events=())

    def to_json(self) -> str:
        """JSON: phases and flip angles in degrees, times in microseconds."""
        rows = [dict(zip(_OF_EVENT, _row(event), strict=True)) for event in self.events]
        return json.dumps({"scans": self.scans, "events": rows}, indent=2)

    @staticmethod
    def from_json(text: str) -> EventList:
        """Read what `to_json` wrote; without `scans` or `receiver_deg` they are 1 and 0.

        Raises:
            ValueError: not such a document.
        """
        try:
            document = json.loads(text)
        except RecursionError:
            raise ValueError("event list: nested too deeply, allowed a list of events") from None
        except ValueError as reason:
            raise ValueError(f"event list: not JSON: {reason}") from None
        if not isinstance(document, dict) or not isinstance(document.get("events"), list):
            raise ValueError('event list: got no "events", allowed {"events": [...]}')
        events = tuple(_event(k, row) for k, row in enumerate(document["events"]))
        return _listed(events, document.get("scans", 1))

    def to_csv(self) -> str:
        """CSV with a header: phases and flip angles in degrees, times in microseconds.

        The number of scans is a column, the same in every row.

        Raises:
            ValueError: several scans of no event, which have no row to stand in.
        """
        if not self.events and self.scans != 1:
            raise ValueError(f"scans: got {self.scans} of a list without events, allowed 1")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows((*_row(event), self.scans) for event in self.events)
        return text.getvalue()

    @staticmethod
    def from_csv(text: str) -> EventList:
        """Read what `to_csv` wrote, now or before there were `receiver_deg` and `scans`.

        Raises:
            ValueError: missing columns or values that are not allowed.
        """
        reader = csv.DictReader(io.StringIO(text))
        try:
            columns, rows = tuple(reader.fieldnames or ()), list(reader)
        except csv.Error as reason:
            raise ValueError(f"event list: not CSV ({reason})") from None
        if columns not in (_COLUMNS, _OLD_COLUMNS):
            raise ValueError(f"event list: got columns {columns}, allowed {_COLUMNS}")
        events = tuple(_event(k, row) for k, row in enumerate(rows))
        scans = {row.get("scans", "1") for row in rows} or {"1"}
        if len(scans) > 1:
            raise ValueError(
                f"event list: got scans {checks.shown(sorted(map(str, scans)))}, allowed the same "
                "in every row"
            )
        given = scans.pop()
        if given is None or not given.strip().isdecimal() or len(given) > 20:
            raise ValueError(
                f"event list: scans: got {checks.shown(given)}, allowed an integer 1 to "
                f"{MOST_SCANS}"
            )
        return _listed(events, int(given))


_OLD_COLUMNS = (
    "flip_deg",
    "phase_deg",
    "pulse_us",
    "delay_us",
    "first_sample_us",
    "dwell_us",
    "samples",
    "spoil",
    "label",
)
_OF_EVENT = (*_OLD_COLUMNS, "receiver_deg")
_COLUMNS = (*_OF_EVENT, "scans")


def _listed(events: tuple[Event, ...], scans: Any) -> EventList:
    try:
        return EventList(events, scans)
    except ValueError as reason:
        raise ValueError(f"event list: {reason}") from None


def _row(event: Event) -> tuple[Any, ...]:
    r = event.receive
    window = (r.first * 1e6, r.dwell * 1e6, r.samples) if r else (0.0, 0.0, 0)
    return (
        math.degrees(event.theta),
        math.degrees(event.phi),
        event.t_pulse * 1e6,
        event.tau * 1e6,
        *window,
        int(event.spoil),
        event.label,
        math.degrees(r.phase) if r else 0.0,
    )


def _event(k: int, row: Any) -> Event:
    if not isinstance(row, dict):
        raise ValueError(f"event {k}: got {checks.shown(row)}, allowed {{{', '.join(_OF_EVENT)}}}")
    try:
        samples = int(row["samples"])
        first, dwell = float(row["first_sample_us"]) * 1e-6, float(row["dwell_us"]) * 1e-6
        phase = math.radians(float(row.get("receiver_deg", 0.0)))
        return Event(
            theta=math.radians(float(row["flip_deg"])),
            phi=math.radians(float(row["phase_deg"])),
            t_pulse=float(row["pulse_us"]) * 1e-6,
            tau=float(row["delay_us"]) * 1e-6,
            receive=Receive(first, dwell, samples, phase) if samples else None,
            spoil=bool(int(row["spoil"])),
            label=str(row["label"]),
        )
    except KeyError as missing:
        raise ValueError(f"event {k}: {missing} is missing") from None
    except (TypeError, ValueError, OverflowError) as reason:
        raise ValueError(f"event {k}: {reason}") from None


def pulse_train(pulses: Iterable[tuple[float, float]]) -> EventList:
    """Pulses (theta, phi) in radians without delays: a composite pulse."""
    return EventList(tuple(Event(theta=theta, phi=phi) for theta, phi in pulses))


def receiver(tau: float, dead_time: float, dwell: float, phase: float = 0.0) -> Receive | None:
    """The receiver open during a whole delay but for the dead time after the pulse.

    Raises:
        ValueError: the dead time fills the delay.
    """
    checks.number("tau", tau, (0.0, LONGEST_EVENT), "s")
    checks.number("dead_time", dead_time, (0.0, LONGEST_EVENT), "s")
    if not dead_time < tau:
        raise ValueError(f"dead_time: got {dead_time}, allowed 0 to below the delay {tau} s")
    checks.number("dwell", dwell, (SHORTEST_DWELL, LONGEST_EVENT), "s")
    return Receive(dead_time, dwell, 1 + int((tau - dead_time) / dwell * (1 + 1e-12)), phase)


@dataclass(frozen=True)
class Trace:
    """What an event list did to one experiment.

    Attributes:
        m: final state, (1, 3, N).
        times: times of the samples since the beginning of the list, s, (K,).
        signal: samples of (Mx + i My) exp(-i phase) of one scan, complex (K,).
    """

    m: Array
    times: Array
    signal: Array


def run(
    events: EventList, ensemble: Ensemble, m: Array | None = None, abundance: float = 1.0
) -> Trace:
    """Run an event list on one experiment, exactly.

    Pulses with a length are finite (offset and relaxation act during them), others hard. The scans
    of a list all begin at the start state: one is computed, and stands for their mean.

    Args:
        events: the list.
        ensemble: one experiment (one row).
        m: start state (1, 3, N), left as it is; None is equilibrium.
        abundance: factor of the signal.

    Raises:
        ValueError: an ensemble of more than one row.
    """
    if ensemble.shape[0] != 1:
        raise ValueError(f"ensemble: got {ensemble.shape[0]} rows, allowed 1")
    m = equilibrium(ensemble) if m is None else np.array(m, np.float64)
    propagators: dict[tuple[float, float, float], Array] = {}
    times: list[Array] = []
    samples: list[Array] = []
    begun = 0.0
    for event in events:
        if event.t_pulse > 0.0:
            key = (event.theta, event.phi, event.t_pulse)
            if key not in propagators:
                propagators[key] = pulse_propagator(ensemble, *key)
            apply_propagator(m, propagators[key])
        elif event.theta != 0.0:
            pulse_and_delay(m, ensemble, event.theta, event.phi, 0.0)
        if event.receive is not None:
            times.append(begun + event.t_pulse + event.receive.times)
            received = acquire(m, ensemble, event.receive.times)
            samples.append(abundance * event.receive.turned * received)
        if event.tau > 0.0:
            pulse_and_delay(m, ensemble, 0.0, 0.0, event.tau)
        if event.spoil:
            spoil(m)
        begun += event.duration
    none = np.zeros(0)
    return Trace(
        m=m,
        times=np.concatenate([none, *times]),
        signal=np.concatenate([none.astype(complex), *samples]),
    )


def acquire(m: Array, ensemble: Ensemble, times: Array) -> Array:
    """Signal of one experiment at times (K,) after the state `m`, with nothing but precession.

    Each sample is computed from the state, none from the sample before it.
    """
    transverse = ensemble.receive[0] * (m[0, 0] + 1j * m[0, 1])
    rates = 2j * np.pi * ensemble.offset_hz[0] - ensemble.rate_of_isochromat(ensemble.R2)[0]
    return np.asarray(np.exp(np.multiply.outer(times, rates)) @ transverse)
