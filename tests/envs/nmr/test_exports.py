"""Exports: what is read again does what was written; what a format cannot say is refused."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest

from palestra.envs.nmr.events import Event, EventList, Receive, run
from palestra.envs.nmr.exports import (
    export,
    read_events,
    trimmed,
    with_lengths,
    without_spoilers,
)
from palestra.envs.nmr.pulse_program import from_pulse_program, to_pulse_program
from palestra.envs.nmr.pulseq import from_pulseq, to_pulseq
from palestra.envs.nmr.pulses import cpmg, deft
from palestra.envs.nmr.sample import Instrument
from palestra.safe_files import MalformedFile

from .ensembles import isochromats

SPINS = isochromats(np.random.default_rng(0).normal(0, 20, 8), 1.0, 0.6, 0.3)
NINETY = math.pi / 2
PLAIN = Instrument(nu1_max_hz=5000.0, dead_time=1e-4)
WINDOW = Receive(1e-4, 1e-4, 10, phase=0.7)


def on_raster() -> EventList:
    """Pulses of 50 and 100 us, windows with room for their dwells, a phase of any value."""
    first = Event(NINETY, 0.3, 50e-6, 2e-3, label="excite")
    echo = Event(math.pi, NINETY, 100e-6, 4e-3, replace(WINDOW, samples=30), label='"echo"')
    late = Event(tau=0.5, receive=WINDOW)
    return EventList((first, echo, echo, late, Event(1.234, -1.0, 37e-6)), scans=8)


def same_samples(one: EventList, other: EventList, tolerance: float) -> None:
    ours, theirs = run(one, SPINS), run(other, SPINS)
    assert one.scans == other.scans
    np.testing.assert_allclose(ours.times, theirs.times, atol=1e-12)
    np.testing.assert_allclose(ours.signal, theirs.signal, atol=tolerance)
    np.testing.assert_allclose(ours.m, theirs.m, atol=tolerance)


def test_a_pulseq_file_does_what_was_written():
    events = on_raster()
    same_samples(from_pulseq(to_pulseq(events)), events, 1e-9)


def test_a_pulseq_file_says_what_the_format_asks():
    """A 90-degree pulse of 50 us at 5 kHz; the ADC opens half a dwell before its first sample."""
    window = Receive(1e-4, 1e-4, 10, phase=1.0)
    text = to_pulseq(EventList((Event(NINETY, 0.5, 50e-6, 2e-3, window),)))
    lines = text.splitlines()
    assert lines[lines.index("[BLOCKS]") + 1] == "1 2050 1 0 0 0 1 0"
    amplitude, *rest = lines[lines.index("[RF]") + 1].split()[1:]
    assert float(amplitude) == pytest.approx(5000.0, rel=1e-12)
    assert rest == ["1", "2", "3", "0", "0", "0.5"]
    assert lines[lines.index("[ADC]") + 1] == "1 10 100000 100 0 1.0"
    before, after = text.split("\n[SIGNATURE]\n")
    assert after.split()[-1] == hashlib.md5(before.encode(), usedforsecurity=False).hexdigest()


def test_times_off_the_raster_move_by_half_a_raster_at_most():
    off = EventList((Event(NINETY, 0.0, 50.3e-6, 2.0004e-3, WINDOW),))
    again = from_pulseq(to_pulseq(off))
    assert again[0].t_pulse == pytest.approx(50e-6, abs=1e-12)
    assert again[0].theta == pytest.approx(NINETY, rel=1e-12)
    assert abs(again[0].tau - off[0].tau) <= 0.5e-6


def test_compressed_shapes_are_decoded():
    """1 0 0 97 is a constant of 100 samples; a ramp of two levels becomes two pieces."""
    text = to_pulseq(EventList((Event(NINETY, 0.0, 50e-6, 1e-3),)))
    text = text[: text.index("\n[SIGNATURE]")]
    head, _ = text.split("[SHAPES]")
    shapes = "[SHAPES]\nshape_id 1\nnum_samples 100\n1\n0\n0\n47\n-0.5\n0\n0\n47\n"
    shapes += "\nshape_id 2\nnum_samples 100\n0\n0\n98\n"
    lines = head.splitlines()
    k = lines.index("[RF]") + 1
    lines[k] = "1 5000 1 2 0 20 0 0.25"
    events = from_pulseq("\n".join(lines) + "\n" + shapes)
    assert [e.t_pulse for e in events] == pytest.approx([0.0, 50e-6, 50e-6])
    assert [e.theta for e in events] == pytest.approx([0.0, NINETY, NINETY / 2])
    assert [e.tau for e in events] == pytest.approx([20e-6, 0.0, 930e-6])
    assert events[1].phi == 0.25


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Event(NINETY), "event 0: t_pulse: got 0"),
        (Event(tau=1.0, spoil=True), "event 0: spoil: got an ideal spoiler"),
        (Event(NINETY, t_pulse=3e-7), r"event 0: t_pulse: got 3e-07 s, allowed 0 or from 1e-06"),
        (
            Event(tau=1e-2, receive=Receive(1e-5, 1e-4, 2)),
            r"event 0: receive: first sample at 1e-05 s, allowed from half a dwell",
        ),
        (
            Event(tau=1e-3, receive=Receive(1e-4, 1e-4, 10)),
            "event 0: receive: the dwell of the last sample ends 5e-05 s after the delay",
        ),
        (
            Event(tau=1.0, receive=Receive(1e-4, 1.0004e-4, 1000)),
            "event 0: dwell: got 0.00010004 s for 1000 samples, allowed multiples of 1e-07",
        ),
    ],
)
def test_what_pulseq_cannot_say_is_refused(event, message):
    with pytest.raises(ValueError, match=message):
        to_pulseq(EventList((event,)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("minor 4", "minor 3", r"\[VERSION\]: got .*allowed major 1, minor 4"),
        ("1 2050 1 0", "1 2050 7 0", r"line \d+: \[RF\] has no 7"),
        ("1 2050 1 0", "1 2050 x 0", r"line \d+, column 3: got \['x'\], allowed a number"),
        ("1 2050 1 0 0", "1 2050 1 0", r"line \d+: got 7 columns, allowed 8"),
        ("1 2050 1 0 0", "1 2050 1 0 5", "got gradients or extensions, allowed none"),
        ("1 2050 1", "1 20 1", "block 1 is shorter than its pulse"),
        ("num_samples 2", "num_samples 9", "got 2 samples of a shape, allowed 9"),
        ("BlockDurationRaster", "Block", "BlockDurationRaster is missing"),
    ],
)
def test_damaged_pulseq_files_are_refused(old, new, message):
    text = to_pulseq(EventList((Event(NINETY, 0.5, 50e-6, 2e-3),)))
    assert old in text
    with pytest.raises(MalformedFile, match=r"x.seq: \[SIGNATURE\]"):
        from_pulseq(text.replace(old, new), "x.seq")
    with pytest.raises(ValueError, match=f"x.seq: .*{message}"):
        from_pulseq(text.split("\n[SIGNATURE]")[0].replace(old, new), "x.seq")


def test_a_pulse_program_is_the_same_list():
    events = on_raster() + replace(with_lengths(deft(5e-3, 1.0), 5000.0), scans=8)
    text = to_pulse_program(events)
    assert "UNTESTED ON HARDWARE" in text.splitlines()[1]
    again = from_pulse_program(text)
    assert again.scans == 8
    for one, other in zip(events, again, strict=True):
        assert other.label == one.label
        assert other.spoil == one.spoil
        for name in ("theta", "phi", "t_pulse", "tau"):
            assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-9, abs=1e-15)
        if one.receive is None:
            assert other.receive is None
        else:
            assert vars(other.receive) == pytest.approx(vars(one.receive), rel=1e-9)


def test_right_angles_stand_in_the_tables_as_bruker_counts_them():
    text = to_pulse_program(EventList((Event(NINETY, 3 * NINETY, 50e-6), Event(1.0, 0.5, 50e-6))))
    assert "ph1=3\n" in text
    assert f"ph2=(360) {math.degrees(0.5)!r}\n" in text
    assert "; pl1: nutation of 5000.0 Hz" in text


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("2000.0u", "soon", MalformedFile, "x.txt: line 12: got 'soon', allowed power, pulse"),
        ("ph1=", "ph9=", MalformedFile, "x.txt: line 11: ph1 is not defined"),
        ("lo to 2 times 1", "lo to 2 times 0", ValueError, "x.txt: scans: got 0"),
    ],
)
def test_damaged_pulse_programs_are_refused(old, new, error, message):
    text = to_pulse_program(EventList((Event(NINETY, 0.5, 50e-6, 2e-3),)))
    assert old in text
    with pytest.raises(error, match=message):
        from_pulse_program(text.replace(old, new), "x.txt")


def test_pulses_with_lengths_keep_their_middles():
    hard = EventList((Event(NINETY, tau=2e-3), Event(math.pi, NINETY, tau=4e-3)))
    found = with_lengths(hard, 5000.0)
    assert [e.t_pulse for e in found] == pytest.approx([50e-6, 100e-6])
    middles = (25e-6, found[0].duration + 50e-6)
    assert middles[1] - middles[0] == pytest.approx(2e-3, abs=1e-12)


def test_lengths_on_a_raster_make_pulses_weaker_and_turn_as_far():
    found = with_lengths(EventList((Event(1.0, tau=2e-3),)), 5000.0, 1e-6)
    assert found[0].t_pulse == pytest.approx(32e-6)  # 31.8 rounded up
    assert found[0].theta == 1.0


def test_samples_under_a_pulse_are_left_out():
    """A pulse of 50 us covers what came less than 25 us after its middle."""
    close = EventList((Event(NINETY, tau=1e-2, receive=Receive(1e-5, 1e-5, 5)),))
    changes: list[str] = []
    found = with_lengths(close, 5000.0, changes=changes)
    assert found[0].receive.first == pytest.approx(5e-6)
    assert found[0].receive.samples == 3
    assert changes[0] == "event 0: 5 to 3 samples"


def test_a_window_that_opened_with_the_dead_time_still_does(tmp_path):
    """Half of the pulse's length has come off the delay: the first sample goes."""
    close = EventList((Event(NINETY, tau=1e-2, receive=Receive(1e-4, 1e-4, 20)),))
    export(close, tmp_path / "x.txt", PLAIN)
    window = read_events(tmp_path / "x.txt")[0].receive
    assert window.first == pytest.approx(1.75e-4)
    assert window.samples == 19


def test_samples_without_room_are_left_out():
    full = EventList((Event(tau=1e-3, receive=Receive(1e-4, 1e-4, 10)),))
    changes: list[str] = []
    assert trimmed(full, changes)[0].receive.samples == 9
    assert changes == ["event 0: 10 to 9 samples"]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".seq", ".txt"])
def test_files_of_every_kind_come_back(suffix, tmp_path):
    events = without_spoilers(cpmg(4e-3, 5, 1.0, 2e-4, 1e-4))
    path = tmp_path / f"train{suffix}"
    changes = export(events, path, PLAIN)
    again = read_events(path)
    assert len(again) == len(events)
    assert bool(changes) == (suffix in (".seq", ".txt"))
    assert again.duration == pytest.approx(events.duration + 25e-6 * bool(changes), abs=1e-9)
    middles = (
        np.cumsum([e.duration for e in again])[:5] + np.array([e.t_pulse / 2 for e in again])[1:6]
    )
    np.testing.assert_allclose(np.diff(middles), 4e-3, atol=1e-12)


def test_what_the_instrument_cannot_play_is_not_exported(tmp_path):
    early = EventList((Event(NINETY, tau=1e-2, receive=Receive(1e-5, 1e-4, 5)),))
    with pytest.raises(ValueError, match="events: the instrument cannot play them: event 0: rece"):
        export(early, tmp_path / "x.json", PLAIN)
    assert not (tmp_path / "x.json").exists()


def test_unknown_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"got '.xml', allowed \.csv, \.json, \.seq, \.txt"):
        export(EventList(), tmp_path / "x.xml", PLAIN)
