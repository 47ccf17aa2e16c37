"""The sequence diagram: pulses, open receivers, who was in charge, and cycles that repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import checks
from ..events import Event, EventList
from . import panels
from .panels import BLUE, GREEN, GREY, PURPLE, Array, Panel, View

MOST_IN_DETAIL = 12  # pulses of the panel that shows the beginning
LONGEST_CYCLE = 256  # events of a cycle that is recognised

_CROWDED = 0.05  # least gap between pulses, over the span, that needs no panel of its own
_ALMOST_ALL = 0.7  # of the duration: a beginning that is longer is no panel of its own
_ROOM = 0.062  # of the panel's width that a pulse's words take
_QUADRANTS = {0: "x", 90: "y", 180: "−x", 270: "−y"}
_HIGHEST = 180.0  # degrees that an axis shows at least


@dataclass(frozen=True)
class Cycle:
    """Events that follow each other several times.

    Attributes:
        first: index of the first event.
        length: events of one cycle.
        times: how often it is done.
    """

    first: int
    length: int
    times: int


def cycles(events: EventList) -> list[Cycle]:
    """The list cut into cycles: from the left, each time what covers most of the events.

    A cycle is done three times or more, or twice if it has several events; what belongs to none is
    a cycle of one event done once.
    """
    names: dict[Event, int] = {}
    ids = np.array([names.setdefault(event, len(names)) for event in events], np.int64)
    n = len(ids)
    lengths = range(1, min(LONGEST_CYCLE, n // 2) + 1)
    runs = {length: _run_lengths(ids[length:] == ids[:-length]) for length in lengths}
    found, at = [], 0
    while at < n:
        best = Cycle(at, 1, 1)
        for length, run in runs.items():
            times = 1 + int(run[at]) // length if at < len(run) else 1
            repeats = times >= (3 if length == 1 else 2)
            if repeats and length * times > best.length * best.times:
                best = Cycle(at, length, times)
        found.append(best)
        at += best.length * best.times
    return found


def _run_lengths(equal: Array) -> Array:
    """How many values from each place on are true."""
    places = np.arange(len(equal))
    ends = np.where(equal, len(equal), places)
    return np.asarray(np.minimum.accumulate(ends[::-1])[::-1] - places)


@dataclass(frozen=True)
class Timing:
    """When what happens, in s; arrays over events.

    Attributes:
        begins: of each event, and the end of the list, (K + 1,).
        flip: flip angle, degrees, 0 or more, (K,).
        phase: of the pulse, degrees in [0, 360), (K,).
        pulsed: whether there is a pulse, (K,).
        length: of the pulse, (K,).
    """

    begins: Array
    flip: Array
    phase: Array
    pulsed: Array
    length: Array

    @staticmethod
    def of(events: EventList) -> Timing:
        """A pulse of a negative angle is one of the opposite phase."""
        theta = np.array([event.theta for event in events])
        phi = np.array([event.phi for event in events]) + math.pi * (theta < 0)
        return Timing(
            begins=np.cumsum([0.0, *(event.duration for event in events)]),
            flip=np.abs(np.degrees(theta)),
            phase=np.round(np.degrees(phi), 3) % 360.0,
            pulsed=theta != 0.0,
            length=np.array([event.t_pulse for event in events]),
        )

    @property
    def duration(self) -> float:
        """Of the list, s."""
        return float(self.begins[-1])

    @property
    def crowded(self) -> bool:
        """Whether pulses cannot be told apart on an axis of the whole list."""
        starts = self.begins[:-1][self.pulsed]
        if len(starts) > MOST_IN_DETAIL:
            return True
        return len(starts) > 1 and float(np.diff(starts).min()) < _CROWDED * self.duration

    def detail_end(self) -> float:
        """Where the beginning ends that has an axis of its own; that of the list without one."""
        end = self._end_of_first_pulses() if self.crowded else self.duration
        return end if end < _ALMOST_ALL * self.duration else self.duration

    def _end_of_first_pulses(self) -> float:
        """A long wait after the last of them is cut."""
        starts = self.begins[:-1][self.pulsed]
        last = min(len(starts), MOST_IN_DETAIL) - 1
        if last < 1:
            return self.duration
        usual = float(np.median(np.diff(starts[: last + 1])))
        if len(starts) <= MOST_IN_DETAIL:  # all, but for waits that squeeze the rest
            gaps = np.diff(starts)
            wide = np.flatnonzero(gaps > max(8 * usual, 1e-12))
            last = int(wide[0]) if len(wide) and wide[0] > 0 else last
        following = starts[last + 1] if last + 1 < len(starts) else self.duration
        return float(min(following, starts[last] + 1.5 * usual))


def sequence_diagram(events: EventList, owners: Sequence[str] | None = None) -> View:
    """Pulses as bars with angle and phase, open receivers shaded, cycles marked.

    A list whose pulses cannot be told apart on one axis gets two panels: its beginning and the
    whole.

    Args:
        events: the list.
        owners: for each event who was in charge, such as "align"; None draws no strip of owners.

    Raises:
        ValueError: no events, or another number of owners.
        ImportError: plotly or matplotlib is missing.
    """
    check_events(events)
    if owners is not None and len(owners) != len(events):
        raise ValueError(
            f"owners: got {len(owners)} names, allowed one an event, {len(events)}, or None"
        )
    timing = Timing.of(events)
    end = timing.detail_end()
    split = end < timing.duration
    factor, unit = panels.time_unit(end)
    count = int(np.count_nonzero(timing.pulsed))
    shaded = "; shaded: receiver open" if any(event.receive for event in events) else ""
    spoiled = "; × spoiler" if any(event.spoil for event in events) else ""
    shown = int(np.count_nonzero(timing.pulsed & (timing.begins[:-1] < end * (1 - 1e-12))))
    first = f"The first {shown} of {count} pulses" if shown < count else "Pulses"
    rows = [Panel(f"{first}{shaded}{spoiled}", f"time ({unit})", "flip angle (°)")]
    if split:
        whole, whole_unit = panels.time_unit(timing.duration)
        rows.append(Panel("The whole list", f"time ({whole_unit})", "flip angle (°)", 0.6))
    figure = panels.picture("Sequence", rows, 560 if split else 360)
    _draw(figure, 1, events, timing, end, factor, owners, words=True)
    if split:
        _draw(figure, 2, events, timing, timing.duration, whole, owners, words=False)
    if owners is not None:
        place = {"x": 1.0, "xanchor": "right", "y": 1.02, "yanchor": "bottom", "orientation": "h"}
        figure.update_layout(showlegend=_legend_needed(figure), legend=place)
    again = f", {events.scans} scans" if events.scans > 1 else ""
    caption = (
        f"Sequence diagram: {count} pulses in {panels.rounded(timing.duration)} s{again}. Bars are "
        "flip angles, with the phase above"
    )
    return panels.view(caption, figure)


def check_events(events: EventList) -> None:
    """Raise ValueError unless there is something to draw."""
    checks.instance("events", events, EventList, "an EventList")
    if not len(events) or events.duration <= 0.0:
        raise ValueError(
            f"events: got {len(events)} events of {events.duration} s, allowed above 0"
        )


def _draw(
    figure: Any, panel: int, events: EventList, timing: Timing, end: float, factor: float,
    owners: Sequence[str] | None, *, words: bool,
) -> None:  # fmt: skip
    """One panel, of the time from 0 to `end`."""
    starts = timing.begins[:-1]
    inside = starts < end * (1.0 - 1e-12)
    pulsed = timing.pulsed & inside
    tallest = max(_HIGHEST, float(timing.flip.max(initial=0.0)))
    low = -0.32 * tallest if owners is not None else -0.1 * tallest
    top = tallest * (2.0 if words else 1.4)
    panels.outlines(figure, panel, _windows(events, timing, end, factor, tallest), GREEN, 0.25)
    placed = starts[pulsed]
    least = float(np.diff(placed).min()) if len(placed) > 1 else end
    width = max(min(0.008 * end, 0.4 * least), 0.0006 * end)
    middle = placed + timing.length[pulsed] / 2
    half = np.maximum(timing.length[pulsed], width) / 2
    bars = np.stack(
        [factor * (middle - half), factor * (middle + half), 0.0 * middle, timing.flip[pulsed]],
        axis=1,
    )
    panels.outlines(figure, panel, bars, BLUE, 1.0)
    panels.curve(figure, panel, [0.0, factor * end], [0.0, 0.0], GREY, width=1)
    spoilers = [
        factor * stop for stop, event in zip(timing.begins[1:], events, strict=True)
        if event.spoil and stop <= end * (1 + 1e-12)
    ]  # fmt: skip
    if spoilers and len(spoilers) <= 60:
        figure.add_scatter(
            x=spoilers, y=[0.0] * len(spoilers), mode="markers", hoverinfo="skip",
            marker={"symbol": "x", "color": GREY, "size": 8}, showlegend=False,
            cliponaxis=False, **panels.axes(panel),
        )  # fmt: skip
    if words:
        _angles_and_phases(figure, panel, timing, pulsed, end, factor, 0.36 * tallest)
    if owners is not None:
        _owners(figure, panel, owners, timing, end, factor, (low, 0.3 * low))
    _brackets(figure, panel, cycles(events), timing, end, factor, (0.87 * top, 0.05 * tallest))
    suffix = "" if panel == 1 else str(panel)
    figure.layout[f"xaxis{suffix}"].range = [-0.035 * factor * end, 1.02 * factor * end]
    axis = figure.layout[f"yaxis{suffix}"]
    axis.range = [low, top]
    step = 90 if tallest <= 270 else 180
    axis.tickvals = list(range(0, int(tallest) + 1, step))


def _windows(events: EventList, timing: Timing, end: float, factor: float, height: float) -> Array:
    """Open receivers as boxes; neighbours that touch on the page become one."""
    boxes: list[list[float]] = []
    for begun, event in zip(timing.begins[:-1], events, strict=True):
        if event.receive is None or begun >= end:
            continue
        opens = begun + event.t_pulse + event.receive.first
        closes = min(begun + event.t_pulse + event.receive.last, end)
        if opens >= end:
            continue
        if boxes and opens - boxes[-1][1] < 1e-3 * end:
            boxes[-1][1] = closes
        else:
            boxes.append([opens, closes, 0.0, height / factor])
    return factor * np.array(boxes).reshape(-1, 4)


def phase_name(degrees: float) -> str:
    """x, y, −x, −y, or the phase in degrees."""
    return _QUADRANTS.get(round(degrees), f"{degrees:.0f}°")


def _angles_and_phases(
    figure: Any, panel: int, timing: Timing, pulsed: Array, end: float, factor: float, lift: float
) -> None:
    """Words above bars; those that would meet others stand higher, or are left out.

    Words stand over the tallest bar that they reach over, so that none runs through them.
    """
    placed: list[tuple[float, float]] = []
    indices = np.flatnonzero(pulsed)
    centres = timing.begins[:-1] + timing.length / 2
    for k in indices:
        at = float(centres[k] / end)
        near = indices[np.abs(centres[indices] / end - at) < _ROOM / 2]
        over = float(timing.flip[near].max())
        for height in (over, over + lift):
            if all(abs(at - x) >= _ROOM or abs(height - y) >= lift for x, y in placed):
                placed.append((at, height))
                words = f"{timing.flip[k]:.0f}°\n{phase_name(float(timing.phase[k]))}"
                where = factor * centres[k]
                panels.note(figure, panel, where, height, words, "top center", size=11)
                break


def _owners(
    figure: Any, panel: int, owners: Sequence[str], timing: Timing, end: float, factor: float,
    span: tuple[float, float],
) -> None:  # fmt: skip
    """A strip below the pulses, coloured by who was in charge, with names where there is room."""
    colours = (panels.ORANGE, panels.SKY, PURPLE, panels.YELLOW, panels.GREEN, GREY)
    for number, name in enumerate(dict.fromkeys(owners)):
        mine = np.array([owner == name for owner in owners])
        changes = np.diff(np.concatenate([[0], mine.astype(int), [0]]))
        starts = timing.begins[np.flatnonzero(changes == 1)]
        stops = np.minimum(timing.begins[np.flatnonzero(changes == -1)], end)
        seen = starts < stops
        starts, stops = starts[seen], stops[seen]
        boxes = [[factor * a, factor * b, *span] for a, b in zip(starts, stops, strict=True)]
        colour = colours[number % len(colours)]
        panels.outlines(figure, panel, np.array(boxes).reshape(-1, 4), colour, 0.55, name=name)
        widest = int(np.argmax(stops - starts)) if len(starts) else -1
        if widest >= 0 and panels.fits(name, (stops[widest] - starts[widest]) / end):
            middle = factor * (starts[widest] + stops[widest]) / 2
            panels.note(figure, panel, middle, sum(span) / 2, name, "middle center", size=11)


def _legend_needed(figure: Any) -> bool:
    """Show the owners whose names stand nowhere in the picture in a legend."""
    written = {words for trace in figure.data if trace.mode == "text" for words in trace.text}
    missing = {trace.name for trace in figure.data if trace.name} - written
    for trace in figure.data:
        if trace.name in missing:
            missing.discard(trace.name)
            trace.showlegend = True
    return any(trace.showlegend for trace in figure.data)


def _brackets(
    figure: Any, panel: int, found: Sequence[Cycle], timing: Timing, end: float, factor: float,
    place: tuple[float, float],
) -> None:  # fmt: skip
    """A bracket over each cycle that repeats, with how often; it is open where the panel ends."""
    height, drop = place
    for cycle in found:
        if cycle.times == 1:
            continue
        start = float(timing.begins[cycle.first])
        once = float(timing.begins[cycle.first + cycle.length])
        stop = float(timing.begins[cycle.first + cycle.length * cycle.times])
        if start >= end or (min(stop, end) - start) < 0.03 * end:
            continue
        cut = min(stop, end)
        x, y = [factor * start] * 2 + [factor * cut], [height - drop, height, height]
        if stop <= end * (1 + 1e-12):
            x, y = [*x, factor * cut], [*y, height - drop]
        panels.curve(figure, panel, x, y, GREY, width=1.5)
        several = f"{cycle.length} events, " if cycle.length > 1 else ""
        each = f"{several}{panels.rounded(once - start)} s each"
        words = f"× {cycle.times}"
        long = f"{words} ({each})"
        share = (cut - start) / end
        chosen = long if panels.fits(long, share) else words
        if panels.fits(chosen, share):
            panels.note(figure, panel, factor * (start + cut) / 2, height, chosen, "top center")
