"""What the spins do during a pulse list: the signal they give, and their magnetisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import checks
from ..bloch import Ensemble, equilibrium
from ..events import Event, EventList, Trace, run
from ..information import energy_balance
from ..render import follow
from . import panels
from .panels import BLUE, GREEN, GREY, ORANGE, Array, Panel, View
from .sequence import Timing, check_events

MOST_SAMPLES = 3000  # of a curve; of more, the largest of each stretch is drawn

PIECES = 300  # of a list: no delay is drawn by a straight line longer than one

_NAMES_BEGIN = 1.01  # where names of curves stand, over the end of the axis
_RIGHT = 1.17  # end of the axis that leaves room for them


def signal_view(
    events: EventList, ensemble: Ensemble, sigma: float | None = None, abundance: float = 1.0
) -> View:
    """Real part, imaginary part and magnitude of the signal, with the noise beside it.

    A list whose pulses cannot be told apart on one axis gets two panels: its beginning, and the
    magnitude of the whole.

    Args:
        events: the list; it starts at equilibrium.
        ensemble: one experiment.
        sigma: standard deviation of the noise of a sample, per real component; None draws none.
        abundance: factor of the signal.

    Raises:
        ValueError: no events, none with a receiver, more than one experiment, or a sigma that is
            not positive.
        ImportError: plotly or matplotlib is missing.
    """
    check_events(events)
    if sigma is not None:
        checks.number("sigma", sigma, (1e-300, 1e300))
    trace = run(events, ensemble, abundance=abundance)
    if not len(trace.times):
        raise ValueError("events: got no open receiver, allowed one or more")
    timing = Timing.of(events)
    end = timing.detail_end()
    split = end < timing.duration
    # one scan is drawn: its noise is that of the mean of all
    noise = None if sigma is None else sigma / math.sqrt(events.scans)
    largest = float(abs(trace.signal).max()) or 1.0
    band, said = _band(noise, largest)
    factor, unit = panels.time_unit(end)
    rows = [
        Panel(f"Signal{' of the beginning' if split else ''}{said}", f"time ({unit})", "signal")
    ]
    if split:
        whole, whole_unit = panels.time_unit(timing.duration)
        title = f"Magnitude of the whole{_thinned(trace)}"
        rows.append(Panel(title, f"time ({whole_unit})", "|signal|", 0.7))
    figure = panels.picture("Signal", rows, 580 if split else 380)
    x, y = _with_gaps(trace, events, end)
    span = (-1.12 * max(largest, band), 1.12 * max(largest, band))
    if band:
        box = np.array([[0.0, factor * end, -band, band]])
        panels.outlines(figure, 1, box, GREY, 0.22)
    parts = (("real", y.real, BLUE), ("imaginary", y.imag, ORANGE), ("magnitude", abs(y), GREEN))
    for name, values, colour in parts:
        panels.curve(
            figure, 1, factor * x, values, colour, width=1.6,
            dash="dash" if name == "magnitude" else "solid",
        )  # fmt: skip
    last = int(np.flatnonzero(np.isfinite(x))[-1])
    ends = {name: (float(values[last]), colour) for name, values, colour in parts}
    if band:
        ends["± σ"] = (band, GREY)
    panels.name_curves(figure, 1, _NAMES_BEGIN * factor * end, ends, span)
    figure.update_layout(
        xaxis_range=[-0.02 * factor * end, _RIGHT * factor * end], yaxis_range=list(span)
    )
    if split:
        x, y = _thinned_curve(trace, events)
        panels.curve(figure, 2, whole * x, y, GREEN, width=1.2)
        figure.update_layout(
            xaxis2_range=[-0.02 * whole * timing.duration, 1.02 * whole * timing.duration],
            yaxis2_range=[0.0, 1.12 * largest],
        )
    caption = "Signal of one scan without noise, in units of the equilibrium signal of abundance 1"
    return panels.view(caption, figure)


def _band(noise: float | None, largest: float) -> tuple[float, str]:
    """Half width of the band, and what it is: one sample's noise, or that of a mean that shows."""
    if noise is None:
        return 0.0, ""
    number = 1
    while noise / math.sqrt(number) > 0.75 * largest and number < 10**12:
        number *= 10
    if number == 1:
        return noise, f"; σ of a sample {panels.rounded(noise)}"
    return noise / math.sqrt(number), (
        f"; band: σ of the mean of {number:g} samples (of one: {panels.rounded(noise)})"
    )


def _window_ends(events: EventList) -> Array:
    """How many samples have been taken by the end of each open receiver."""
    return np.cumsum([e.receive.samples for e in events if e.receive is not None])


def _with_gaps(trace: Trace, events: EventList, end: float) -> tuple[Array, Array]:
    """Samples up to a time, with NaN between receivers."""
    ends = _window_ends(events)
    kept = int(np.searchsorted(trace.times, end * (1 + 1e-12), side="right"))
    kept = max(kept, 1)
    stride = math.ceil(kept / MOST_SAMPLES)
    x: list[Array] = []
    y: list[Array] = []
    begun = 0
    for stop in ends:
        chosen = slice(begun, min(int(stop), kept), stride)
        if begun >= kept:
            break
        x += [trace.times[chosen], np.array([np.nan])]
        y += [trace.signal[chosen], np.array([np.nan + 0j])]
        begun = int(stop)
    return np.concatenate(x), np.concatenate(y)


def _thinned(trace: Trace) -> str:
    number = MOST_SAMPLES // 2
    return f" (largest of each 1/{number} of the time)" if len(trace.times) > MOST_SAMPLES else ""


def _thinned_curve(trace: Trace, events: EventList) -> tuple[Array, Array]:
    """Times and magnitudes; of many samples the largest of equal stretches of time."""
    if len(trace.times) <= MOST_SAMPLES:
        x, y = _with_gaps(trace, events, math.inf)
        return x, abs(y)
    number = MOST_SAMPLES // 2
    edges = np.linspace(0.0, events.duration, number + 1)
    place = np.clip(np.searchsorted(edges, trace.times, side="right") - 1, 0, number - 1)
    largest = np.full(number, -np.inf)
    np.maximum.at(largest, place, abs(trace.signal))
    return (edges[1:] + edges[:-1]) / 2, np.where(np.isfinite(largest), largest, np.nan)


def magnetisation_view(events: EventList, ensemble: Ensemble) -> View:
    """Mean Mz, |M| and |Mxy| over time with equilibrium; and both sides of the energy balance.

    The balance, summed over isochromats by their shares, says what the lengths lost,
    sum w (|M(0)|^2 - |M(t)|^2) / 2, and what relaxation took of them; the two must agree, whatever
    the pulses. It is drawn for hard pulses, for which it is known in closed form.

    Args:
        events: the list; it starts at equilibrium.
        ensemble: one experiment.

    Raises:
        ValueError: no events, or more than one experiment.
        ImportError: plotly or matplotlib is missing.
    """
    check_events(events)
    if ensemble.shape[0] != 1:
        raise ValueError(f"ensemble: got {ensemble.shape[0]} rows, allowed 1")
    start = equilibrium(ensemble)
    fine = _cut(events)
    curves, path = follow(fine, ensemble, start, max(2, min(8, 6000 // len(fine))))
    length = np.sqrt((path**2).sum(axis=1)) @ ensemble.weight
    factor, unit = panels.time_unit(events.duration)
    hard = all(event.t_pulse == 0.0 for event in events)
    rows = [Panel("Magnetisation, means over isochromats", f"time ({unit})", "in units of M₀")]
    if hard:
        ends, lost, relaxed = _balances(fine, ensemble)
        off = float(abs(lost - relaxed).max())
        title = f"Energy balance: lost (line) and taken by relaxation (dots) agree to {off:.0e}"
        rows.append(Panel(title, f"time ({unit})", "loss of |M|²/2", 0.6))
    figure = panels.picture("Magnetisation", rows, 580 if hard else 400)
    end = factor * events.duration
    low = min(0.0, float(curves[1].min()))
    span = (low - 0.08, 1.12)
    named = {
        "⟨Mz⟩": (curves[1], BLUE, "solid"),
        "⟨|M|⟩": (length, ORANGE, "dash"),
        "⟨|Mxy|⟩": (curves[3], GREEN, "solid"),
    }
    panels.curve(figure, 1, [0.0, end], [1.0, 1.0], GREY, width=1.2, dash="dot")
    for values, colour, dash in named.values():
        panels.curve(figure, 1, factor * curves[0], values, colour, width=1.6, dash=dash)
    places = {name: (float(values[-1]), colour) for name, (values, colour, _) in named.items()}
    places["equilibrium"] = (1.0, GREY)
    panels.name_curves(figure, 1, _NAMES_BEGIN * end, places, span)
    figure.update_layout(xaxis_range=[-0.02 * end, _RIGHT * end], yaxis_range=list(span))
    if hard:
        _draw_balance(figure, factor * ends, lost, relaxed, end)
    caption = (
        "Magnetisation of the spins from equilibrium on; pulses turn it and do no work, so that "
        "what |M|² loses is what relaxation takes"
    )
    return panels.view(caption, figure)


def _cut(events: EventList) -> EventList:
    """The same list with long delays in pieces, which curves over time need."""
    longest = events.duration / PIECES
    pieces: list[Event] = []
    for event in events:
        rest = event
        for _ in range(math.ceil(event.tau / longest) - 1):
            before, rest = rest.split(rest.t_pulse + longest)
            pieces.append(before)
        pieces.append(rest)
    return EventList(tuple(pieces))


def _balances(events: EventList, ensemble: Ensemble) -> tuple[Array, Array, Array]:
    """Ends of events, s, and by then the loss of sum w |M|^2 / 2, and what relaxation took.

    What ideal spoilers destroy counts on neither side.
    """
    m = equilibrium(ensemble)
    sums = [(0.0, 0.0)]
    for event in events:
        one = EventList((event,))
        balance = energy_balance(one, ensemble, m)
        taken = balance.transverse - balance.longitudinal
        sums.append((float(balance.lost @ ensemble.weight), float(taken @ ensemble.weight)))
        m = run(one, ensemble, m).m
    lost, relaxed = np.cumsum(sums, axis=0).T
    return Timing.of(events).begins, lost, relaxed


def _draw_balance(figure: Any, x: Array, lost: Array, relaxed: Array, end: float) -> None:
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), 40)).round().astype(int))
    panels.curve(figure, 2, x, lost, ORANGE)
    figure.add_scatter(
        x=x[chosen], y=relaxed[chosen], mode="markers", showlegend=False,
        marker={"color": BLUE, "size": 6, "symbol": "circle"}, **panels.axes(2),
    )  # fmt: skip
    low, high = float(min(lost.min(), 0.0)), float(max(lost.max(), 1e-12))
    span = (low - 0.1 * (high - low), high + 0.15 * (high - low))
    ends = {"lost": (float(lost[-1]), ORANGE), "relaxed": (float(relaxed[-1]), BLUE)}
    places = panels.apart([y for y, _ in ends.values()], 0.13 * (span[1] - span[0]), span)
    for (name, (_, colour)), y in zip(ends.items(), places, strict=True):
        panels.note(figure, 2, _NAMES_BEGIN * end, y, name, colour=colour)
    figure.update_layout(xaxis2_range=[-0.02 * end, _RIGHT * end], yaxis2_range=list(span))
