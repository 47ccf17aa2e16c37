"""Limits of an instrument: what breaks them is named, what obeys them is near."""

from __future__ import annotations

import math
from dataclasses import replace

import numba
import numpy as np
import pytest

from palestra.envs.nmr.events import Event, EventList, Receive
from palestra.envs.nmr.limits import obeying, phase_on_grid, transmitting, violations
from palestra.envs.nmr.pulses import cpmg
from palestra.envs.nmr.sample import Instrument

NINETY = math.pi / 2
PLAIN = Instrument(nu1_max_hz=5000.0, dead_time=1e-4)  # 90 degrees in 50 us
WINDOW = Receive(1e-4, 1e-4, 10)


def train(pulses: int, gap: float, t_pulse: float = 0.0) -> EventList:
    return EventList((Event(NINETY, t_pulse=t_pulse, tau=gap),)) * pulses


def worst_share(events: EventList, instrument: Instrument) -> float:
    """By brute force: how much of any window ending at a pulse's end the transmitter is on."""
    spans, begun = [], 0.0
    for event in list(events) * min(events.scans, 40):
        if event.theta:
            on = transmitting(event, instrument)
            spans.append((begun + event.t_pulse, on, event.t_pulse > 0))
        begun += event.duration
    worst = 0.0
    for end, _, _ in spans:
        start, share = end - instrument.duty_window, 0.0
        for other, on, finite in spans:
            if finite:
                share += max(0.0, min(end, other) - max(start, other - on))
            elif start + 1e-12 < other <= end:
                share += on
        worst = max(worst, share)
    return worst / instrument.duty_window


def test_an_instrument_without_limits_plays_everything():
    assert violations(cpmg(4e-3, 10, 1.0, 1e-4, 1e-4), PLAIN) == []


@pytest.mark.parametrize(
    ("event", "change", "message"),
    [
        (
            Event(NINETY, t_pulse=25e-6),
            {},
            "event 1: nutation: got 10000 Hz, allowed up to nu1_max_hz = 5000 Hz",
        ),
        (
            Event(NINETY, tau=0.01, receive=replace(WINDOW, first=5e-5)),
            {},
            "event 1: receiver: opens 5e-05 s after the pulse, allowed from dead_time = 0.0001 s",
        ),
        (
            Event(NINETY, phi=math.radians(40)),
            {"phase_step_deg": 90.0},
            "event 1: phi: got 40 degrees, allowed multiples of phase_step_deg = 90",
        ),
        (
            Event(NINETY, tau=0.01, receive=replace(WINDOW, phase=math.radians(45))),
            {"phase_step_deg": 90.0},
            "event 1: receiver phase: got 45 degrees, allowed multiples of phase_step_deg = 90",
        ),
        (
            Event(4 * NINETY, tau=0.01),
            {"duty_max": 0.01, "duty_window": 0.01},
            "event 1: duty: the transmitter is on for 0.02 of the 0.01 s that end here, allowed up",
        ),
    ],
)
def test_what_breaks_a_limit_is_named(event, change, message):
    found = violations(EventList((Event(tau=1.0), event)), replace(PLAIN, **change))
    assert len(found) == 1
    assert found[0].startswith(message)


def test_the_dead_time_runs_on_through_an_event_without_a_pulse():
    later = Event(tau=0.01, receive=replace(WINDOW, first=0.0))
    assert violations(EventList((Event(NINETY, tau=5e-5), later)), PLAIN)
    assert not violations(EventList((Event(NINETY, tau=1e-4), later)), PLAIN)
    assert not violations(EventList((later,)), PLAIN)  # no pulse before it


@pytest.mark.parametrize("scans", [1, 5])
@pytest.mark.parametrize("t_pulse", [0.0, 50e-6])
def test_the_duty_is_that_of_brute_force(scans, t_pulse):
    random = np.random.default_rng(0)
    for _ in range(40):
        gaps = random.exponential(3e-3, 12)
        events = EventList(tuple(Event(NINETY, t_pulse=t_pulse, tau=float(g)) for g in gaps), scans)
        window = float(random.uniform(1e-3, 0.1))  # up to three scans
        share = worst_share(events, replace(PLAIN, duty_window=window))
        for factor in (1 - 1e-6, 1 + 1e-6):
            limited = replace(PLAIN, duty_window=window, duty_max=min(1.0, share * factor))
            assert bool(violations(events, limited)) == (factor < 1)


def test_obeying_changes_nothing_that_obeys():
    events = cpmg(4e-3, 10, 1.0, 1e-4, 1e-4)
    assert obeying(events, PLAIN).events == events
    assert obeying(events, PLAIN).changes == ()


def test_phases_are_rounded_and_reported():
    turned = replace(WINDOW, phase=math.radians(95))
    found = obeying(
        EventList((Event(NINETY, math.radians(-50), tau=0.01, receive=turned),), 4),
        replace(PLAIN, phase_step_deg=90.0),
    )
    assert math.degrees(found.events[0].phi) == pytest.approx(-90)
    assert math.degrees(found.events[0].receive.phase) == pytest.approx(90)
    assert found.events.scans == 4
    assert found.changes == (
        "event 0: phi: -50 to -90 degrees",
        "event 0: receiver phase: 95 to 90 degrees",
    )


def test_a_receiver_in_the_dead_time_opens_later_with_the_same_samples():
    events = EventList((Event(NINETY, tau=1e-3, receive=Receive(2e-5, 1e-4, 10)),))
    found = obeying(events, PLAIN)
    assert found.events[0].receive == Receive(1e-4, 1e-4, 10)
    assert found.events[0].tau == pytest.approx(1e-3)
    assert found.changes == ("event 0: first sample: 2e-05 to 0.0001 s",)


@pytest.mark.parametrize("t_pulse", [0.0, 50e-6])
def test_delays_grow_no_more_than_the_duty_asks(t_pulse):
    """At 10 % of 1 ms, two pulses of 50 us: the third begins a window after the first."""
    limited = replace(PLAIN, duty_max=0.1, duty_window=1e-3)
    found = obeying(train(6, 1e-4, t_pulse), limited)
    assert violations(found.events, limited) == []
    assert worst_share(found.events, limited) == pytest.approx(0.1, rel=1e-6)
    starts = np.cumsum([0.0] + [e.duration for e in found.events])
    assert starts[2] - starts[0] == pytest.approx(1e-3, rel=1e-9)
    assert len(found.changes) == 2


def test_scans_are_kept_apart():
    limited = replace(PLAIN, duty_max=0.05, duty_window=1e-3)
    found = obeying(replace(train(1, 1e-4), scans=8), limited)
    assert found.events.duration == pytest.approx(1e-3, rel=1e-6)


def test_a_composite_pulse_is_not_torn_apart():
    composite = EventList((Event(NINETY), Event(2 * NINETY, NINETY), Event(NINETY, tau=1e-3)))
    limited = replace(PLAIN, duty_max=0.1, duty_window=1e-3)
    with pytest.raises(ValueError, match="event 1: duty: no delay before it that could be longer"):
        obeying(composite, limited)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Event(NINETY, t_pulse=25e-6), "event 0: nutation: got 10000 Hz.* no other phase or delay"),
        (Event(NINETY, t_pulse=2e-4), r"event 0: duty: got one pulse of 0.0002 s, allowed up to"),
    ],
)
def test_what_no_change_helps_is_refused(event, message):
    with pytest.raises(ValueError, match=message):
        obeying(EventList((event,)), replace(PLAIN, duty_max=0.1, duty_window=1e-3))


def test_phases_on_a_grid_in_a_kernel():
    @numba.njit
    def doubled(phi, step):
        return 2.0 * phase_on_grid(phi, step)

    assert doubled(1.4, 1.0) == 2.0
    assert phase_on_grid(-1.6, 1.0) == -2.0
    assert phase_on_grid(0.3, 0.0) == 0.3
