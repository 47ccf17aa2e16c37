"""Event lists: splitting, sampling, export, bad values."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.envs.nmr.events import Event, EventList, Receive, receiver, run

from .ensembles import isochromats

ENSEMBLE = isochromats(
    np.random.default_rng(0).normal(0, 20, 8),
    1 + 0.03 * np.random.default_rng(1).normal(size=8),
    T1=0.6,
    T2=0.3,
)

times = st.floats(0.0, 0.05)
windows = st.builds(
    lambda first, dwell, samples: Receive(first, dwell, samples),
    st.floats(0.0, 1e-3),
    st.floats(1e-4, 1e-3),
    st.integers(1, 10),
)
events = st.builds(
    lambda theta, phi, t_pulse, gap, window, spoil: Event(
        theta, phi, t_pulse, (window.last if window else 0.0) + gap, window, spoil
    ),
    st.floats(0.0, math.pi),
    st.floats(-math.pi, math.pi),
    st.sampled_from([0.0, 50e-6, 2e-3]),
    times,
    st.none() | windows,
    st.booleans(),
)
lists = st.lists(events, min_size=1, max_size=6).map(lambda e: EventList(tuple(e)))


@settings(max_examples=60, deadline=None)
@given(sequence=lists, part=st.floats(0.0, 1.0))
def test_a_list_split_anywhere_gives_the_same_state_and_samples(sequence, part):
    """KomaMRI.jl#784, #583: seams between blocks, also inside a delay, a pulse or a window."""
    whole = run(sequence, ENSEMBLE)
    before, after = sequence.split(part * sequence.duration)
    first = run(before, ENSEMBLE)
    second = run(after, ENSEMBLE, first.m)
    np.testing.assert_allclose(second.m, whole.m, atol=1e-12)
    joined = np.concatenate([first.signal, second.signal])
    assert joined.shape == whole.signal.shape
    np.testing.assert_allclose(joined, whole.signal, atol=1e-12)
    assert before.duration + after.duration == pytest.approx(sequence.duration, abs=1e-15)


@pytest.mark.parametrize("samples", [1, 16])
def test_the_first_sample_after_a_delay_has_decayed_right(samples):
    """KomaMRI.jl#118, #85: also where only one sample is taken, of one isochromat."""
    ensemble = isochromats(T1=0.6, T2=0.3)
    window = Receive(first=7e-3, dwell=1e-4, samples=samples)
    trace = run(EventList((Event(math.pi / 2, tau=0.02, receive=window),)), ensemble)
    assert trace.signal.shape == (samples,)
    assert abs(trace.signal[0] + 1j * math.exp(-7e-3 / 0.3)) < 1e-12


def test_signal_samples_are_exact_at_every_time():
    window = receiver(0.02, dead_time=1e-4, dwell=1e-3)
    trace = run(EventList((Event(math.pi / 2, tau=0.02, receive=window),)), ENSEMBLE)
    assert len(trace.times) == 20
    start = run(EventList((Event(math.pi / 2),)), ENSEMBLE).m
    for time, sample in zip(trace.times, trace.signal, strict=True):
        later = run(EventList((Event(tau=time),)), ENSEMBLE, start).m
        assert abs(sample - (later[0, 0].mean() + 1j * later[0, 1].mean())) < 1e-13


def test_abundance_scales_the_signal():
    once = EventList((Event(1.0, tau=0.01, receive=Receive(0.0, 1e-3, 5)),))
    np.testing.assert_allclose(
        run(once, ENSEMBLE, abundance=3.0).signal, 3.0 * run(once, ENSEMBLE).signal
    )


def test_finite_pulses_in_a_list_take_their_time_and_feel_the_offset():
    slow = EventList((Event(math.pi, t_pulse=1e-3),))
    ensemble = isochromats([0.0, 500.0])
    m = run(slow, ensemble).m[0, 2]
    assert m[0] == pytest.approx(-1.0, abs=1e-12)
    d2 = 1.0  # offset / nutation = 1
    expected = 1 - 2 * math.sin(math.pi / 2 * math.sqrt(1 + d2)) ** 2 / (1 + d2)
    assert m[1] == pytest.approx(expected, abs=1e-12)


def test_a_spoiler_in_a_list_acts_at_the_end_of_its_delay():
    window = Receive(0.0, 5e-3, 3)
    trace = run(EventList((Event(1.0, tau=0.01, receive=window, spoil=True),)), ENSEMBLE)
    assert abs(trace.signal).min() > 0.1
    assert not trace.m[:, :2].any()


def test_a_run_leaves_its_start_state_alone():
    start = run(EventList((Event(1.0, tau=0.01),)), ENSEMBLE).m
    kept = start.copy()
    run(EventList((Event(2.0, tau=0.01, spoil=True),)), ENSEMBLE, start)
    assert start.tobytes() == kept.tobytes()


@settings(max_examples=40, deadline=None)
@given(sequence=lists)
@pytest.mark.parametrize("form", ["json", "csv"])
def test_export_and_back(form, sequence):
    text = getattr(sequence, f"to_{form}")()
    again = getattr(EventList, f"from_{form}")(text)
    for one, other in zip(sequence, again, strict=True):
        assert other.theta == pytest.approx(one.theta, abs=1e-14)
        assert other.phi == pytest.approx(one.phi, abs=1e-14)
        assert other.tau == pytest.approx(one.tau, rel=1e-14)
        assert (other.receive is None) == (one.receive is None)
        assert other.spoil == one.spoil


def test_export_speaks_degrees_and_microseconds():
    one = EventList((Event(math.pi / 2, math.pi, 50e-6, 0.01, label="excite"),))
    assert one.to_csv().splitlines() == [
        "flip_deg,phase_deg,pulse_us,delay_us,first_sample_us,dwell_us,samples,spoil,label,"
        "receiver_deg,scans",
        "90.0,180.0,50.0,10000.0,0.0,0.0,0,0,excite,0.0,1",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"theta": math.nan}, "theta: got nan, allowed -1e\\+06 to 1e\\+06 rad"),
        ({"phi": "x"}, "phi: got 'x', allowed -1e\\+06 to 1e\\+06 rad"),
        ({"t_pulse": -1e-6}, "t_pulse: got -1e-06, allowed 0 to 1e\\+09 s"),
        ({"tau": math.inf}, "tau: got inf, allowed 0 to 1e\\+09 s"),
        ({"tau": 1e300}, "tau: got 1e\\+300, allowed 0 to 1e\\+09 s"),
        ({"tau": 10**400}, "tau: got 1000.*, allowed 0 to 1e\\+09 s"),
        ({"tau": True}, "tau: got True, allowed 0 to 1e\\+09 s"),
        ({"theta": 10**400}, "theta: got 1000.*, allowed -1e\\+06 to"),
        ({"spoil": "no"}, "spoil: got 'no', allowed true or false"),
        ({"tau": 0.01, "receive": Receive(0.0, 1e-3, 12)}, "last sample at 0.011 s, allowed up to"),
    ],
)
def test_bad_events_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Event(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1e-3, 1e-3, 1), "first: got -0.001"),
        ((0.0, 0.0, 1), "dwell: got 0.0"),
        ((math.inf, 1e-3, 1), "first: got inf, allowed 0 to"),
        ((10**400, 1e-3, 1), "first: got 1000"),
        ((0.0, "x", 1), "dwell: got 'x', allowed 1e-12 to"),
        ((0.0, 1e-3, 2.0), "samples: got 2.0, allowed an integer"),
        ((0.0, 1e-3, 0), "samples: got 0, allowed an integer 1 to"),
    ],
)
def test_bad_windows_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Receive(*arguments)


def test_a_dead_time_that_fills_the_delay_is_refused():
    with pytest.raises(ValueError, match=r"dead_time: got 0.002, allowed 0 to below the delay"):
        receiver(0.001, 0.002, 1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((math.nan, 0.0, 1e-4), "tau: got nan, allowed 0 to"),
        ((0.001, math.nan, 1e-4), "dead_time: got nan, allowed 0 to"),
        ((0.001, 0.0, 0.0), "dwell: got 0.0, allowed 1e-12 to"),
        ((0.001, 0.0, 1e-320), "dwell: got 1e-320, allowed 1e-12 to"),
        ((1.0, 0.0, 1e-12), "samples: got 100000000000., allowed an integer 1 to 100000000"),
    ],
)
def test_bad_receivers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        receiver(*arguments)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"receive": 3}, "receive: got 3, allowed a Receive or None"),
        ({"label": 3}, "label: got 3, allowed a string"),
    ],
)
def test_parts_of_another_kind_are_refused(value, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        Event(**value)


def test_an_event_takes_numbers_of_numpy():
    event = Event(
        np.float32(1.0), tau=np.int64(1), spoil=np.True_, receive=Receive(0.0, 0.1, np.int64(2))
    )
    assert (event.tau, event.spoil, event.receive.last) == (1, True, 0.1)


def test_bad_files_are_refused_by_event_and_reason():
    with pytest.raises(ValueError, match="event 0: 'phase_deg' is missing"):
        EventList.from_json(
            '{"events": [{"flip_deg": 1, "samples": 0, "first_sample_us": 0, "dwell_us": 0}]}'
        )
    with pytest.raises(ValueError, match=r"event 0: got 3, allowed {flip_deg, phase_deg"):
        EventList.from_json('{"events": [3]}')
    with pytest.raises(ValueError, match="event list: not JSON: Expecting value"):
        EventList.from_json("events")
    with pytest.raises(ValueError, match="event list: nested too deeply"):
        EventList.from_json("[" * 100_000)
    with pytest.raises(ValueError, match="event 0: cannot convert float infinity"):
        EventList.from_json(EventList((Event(1.0),)).to_json().replace('es": 0', 'es": Infinity'))
    with pytest.raises(ValueError, match="event list: got columns"):
        EventList.from_csv("a,b\n1,2\n")
    text = EventList((Event(1.0),)).to_csv().replace("57.29577951308232", "lots")
    with pytest.raises(ValueError, match="event 0: could not convert"):
        EventList.from_csv(text)


def test_splitting_outside_the_list_is_refused():
    with pytest.raises(ValueError, match=r"time: got 1.0, allowed 0 to 0.5 s"):
        EventList((Event(tau=0.5),)).split(1.0)


def test_running_several_experiments_at_once_is_refused():
    with pytest.raises(ValueError, match="ensemble: got 2 rows, allowed 1"):
        run(EventList(), isochromats([[0.0], [0.0]]))


# ------------------------------------------------------------------------- receiver and scans


def turned(sequence: EventList, transmitter: float, receiver_phase: float) -> EventList:
    def one(event: Event) -> Event:
        window = event.receive
        if window is not None:
            window = dataclasses.replace(window, phase=window.phase + receiver_phase)
        return dataclasses.replace(event, phi=event.phi + transmitter, receive=window)

    return EventList(tuple(one(event) for event in sequence))


@settings(max_examples=40, deadline=None)
@given(sequence=lists, p=st.floats(-4.0, 4.0))
def test_turning_transmitter_and_receiver_alike_leaves_the_samples(sequence, p):
    """Samples carry exp(-i phase): the receiver turns with the transmitter, not against it."""
    np.testing.assert_allclose(
        run(turned(sequence, p, p), ENSEMBLE).signal, run(sequence, ENSEMBLE).signal, atol=1e-12
    )


def test_the_receiver_turns_the_signal_backwards():
    """90 degrees about x leaves -y, -i; a receiver at -90 degrees sees it along +x."""
    window = Receive(0.0, 1e-3, 1, phase=-math.pi / 2)
    trace = run(EventList((Event(math.pi / 2, tau=0.01, receive=window),)), isochromats())
    assert trace.signal[0] == pytest.approx(1.0, abs=1e-12)


def test_a_split_keeps_scans_and_the_phase_of_the_receiver():
    window = Receive(0.0, 1e-3, 8, phase=0.7)
    whole = EventList((Event(1.0, tau=0.01, receive=window),), scans=16)
    before, after = whole.split(3.5e-3)
    assert (before.scans, after.scans) == (16, 16)
    assert (before[0].receive.phase, after[0].receive.phase) == (0.7, 0.7)
    assert (whole + whole).scans == (whole * 2).scans == 16
    assert whole.measuring_time == 16 * whole.duration


def test_lists_of_different_scans_are_not_added():
    with pytest.raises(ValueError, match="scans: got 2 and 3, allowed the same number"):
        EventList((Event(1.0),), 2) + EventList((Event(1.0),), 3)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_scans_and_receiver_come_back(form):
    window = Receive(1e-4, 1e-4, 5, phase=math.radians(270))
    one = EventList((Event(1.0, tau=0.01, receive=window), Event(tau=1.0)), scans=64)
    again = getattr(EventList, f"from_{form}")(getattr(one, f"to_{form}")())
    assert again.scans == 64
    assert again[0].receive.phase == pytest.approx(math.radians(270), abs=1e-15)


def test_files_from_before_there_were_scans_are_read():
    columns = "flip_deg,phase_deg,pulse_us,delay_us,first_sample_us,dwell_us,samples,spoil,label"
    old = EventList.from_csv(f"{columns}\n90.0,0.0,0.0,10000.0,0.0,1000.0,3,0,excite\n")
    assert (old.scans, old[0].receive.phase, old[0].label) == (1, 0.0, "excite")
    row = '"flip_deg": 9, "phase_deg": 0, "pulse_us": 0, "delay_us": 1, "first_sample_us": 0, '
    row += '"dwell_us": 1, "samples": 1, "spoil": 0, "label": ""'
    assert EventList.from_json(f'{{"events": [{{{row}}}]}}').scans == 1


@pytest.mark.parametrize("scans", ["", "x", "0", "1.5"])
def test_bad_scans_in_a_file_are_refused(scans):
    text = EventList((Event(1.0),)).to_csv()
    with pytest.raises(ValueError, match=r"event list: scans: "):
        EventList.from_csv(text.rstrip("\n")[:-1] + scans + "\n")


def test_scans_that_differ_from_row_to_row_are_refused():
    lines = EventList((Event(1.0), Event(2.0)), 4).to_csv().splitlines()
    with pytest.raises(ValueError, match=r"got scans \['4', '5'\], allowed the same"):
        EventList.from_csv("\n".join([*lines[:2], lines[2][:-1] + "5"]))


def test_several_scans_of_nothing_have_no_csv():
    with pytest.raises(ValueError, match="scans: got 2 of a list without events"):
        EventList((), 2).to_csv()
