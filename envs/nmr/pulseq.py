"""Event lists as Pulseq files (text, version 1.4) and back: block pulses, delays, windows.

One event is one block: a pulse at its beginning, then the delay, with an ADC in it. What is
written: RF amplitudes in Hz (the nutation frequency, whatever the nucleus), two-sample shapes of
constant magnitude and phase, ADCs with a phase offset, no gradients, the definitions of the
rasters, and the md5 signature of the text before `[SIGNATURE]`. The definition `Scans` is ours.

Pulseq takes a sample in the middle of its dwell, so a window needs half a dwell before its first
sample and after its last. Times are rounded to the nearest raster: pulses, blocks and the starts of
windows to 1 us, dwells to 100 ns. Flip angles are kept: the amplitude takes up what a pulse's
length loses. What would change by more than half a raster (a window whose dwells add up, a time
that vanishes) is refused.

The format: K. Layton et al., Magn. Reson. Med. 77 (2017) 1544, and the specification 1.4 at
pulseq.github.io.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from palestra.safe_files import MalformedFile

from .bloch import Array
from .checks import shown
from .events import MOST_SCANS, Event, EventList, Receive

RF_RASTER = BLOCK_RASTER = DELAY_UNIT = 1e-6  # s
ADC_RASTER = 1e-7  # s
GRADIENT_RASTER = 1e-5  # s
MOST_SHAPE_SAMPLES = 10_000_000

_TURN = 2.0 * math.pi


# ---------------------------------------------------------------------------------------- writing


def to_pulseq(events: EventList) -> str:
    """The text of a Pulseq file.

    Raises:
        ValueError: a hard pulse (see `palestra.envs.nmr.exports.with_lengths`), a spoiler, times
            that do not land on the rasters, or a window without room for its dwells. Names the
            event.
    """
    blocks, rf, adc, shapes = [], _Library(), _Library(), _Library()
    total = 0
    for k, event in enumerate(events):
        try:
            duration, pulse, window = _block(event, shapes)
        except ValueError as reason:
            raise ValueError(f"event {k}: {reason}") from None
        total += duration
        blocks.append(
            f"{k + 1} {duration} {rf.number(pulse)} 0 0 0 {adc.number(window)} 0".rstrip()
        )
    definitions = [
        f"AdcRasterTime {ADC_RASTER:.9g}",
        f"BlockDurationRaster {BLOCK_RASTER:.9g}",
        f"GradientRasterTime {GRADIENT_RASTER:.9g}",
        f"RadiofrequencyRasterTime {RF_RASTER:.9g}",
        f"Scans {events.scans}",
        f"TotalDuration {total * BLOCK_RASTER:.9g}",
    ]
    lines = ["# Pulseq sequence file", "# Created by palestra", ""]
    lines += ["[VERSION]", "major 1", "minor 4", "revision 1", ""]
    lines += ["[DEFINITIONS]", *definitions, ""]
    lines += ["# number duration rf gx gy gz adc ext", "[BLOCKS]", *blocks, ""]
    if rf.lines:
        head = "# id amplitude (Hz) magnitude phase time delay (us) frequency (Hz) phase (rad)"
        lines += [head, "[RF]", *rf.numbered(), ""]
    if adc.lines:
        head = "# id samples dwell (ns) delay (us) frequency (Hz) phase (rad)"
        lines += [head, "[ADC]", *adc.numbered(), ""]
    if shapes.lines:
        lines += ["[SHAPES]", ""]
        for number, samples in enumerate(shapes.lines, 1):
            values = samples.split()
            lines += [f"shape_id {number}", f"num_samples {len(values)}", *values, ""]
    return _signed("\n".join(lines) + "\n")


class _Library:
    """Lines of a section, each kept once; numbers from 1, and 0 for none."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, line: str) -> int:
        return self._numbers.setdefault(line, len(self._numbers) + 1) if line else 0

    @property
    def lines(self) -> list[str]:
        return list(self._numbers)

    def numbered(self) -> list[str]:
        return [f"{number} {line}" for line, number in self._numbers.items()]


def _block(event: Event, shapes: _Library) -> tuple[int, str, str]:
    """Duration in rasters, and the lines of RF and ADC, of an event."""
    if event.spoil:
        raise ValueError(
            "spoil: got an ideal spoiler, allowed none: there are no gradients "
            "(exports.without_spoilers)"
        )
    length = _rounded("t_pulse", event.t_pulse, RF_RASTER)
    pulse = ""
    if event.theta != 0.0:
        if event.t_pulse == 0.0:
            raise ValueError("t_pulse: got 0 (a hard pulse), allowed pulses with a length")
        amplitude = abs(event.theta) / (_TURN * length * RF_RASTER)
        phase = (event.phi + (math.pi if event.theta < 0.0 else 0.0)) % _TURN
        shape = [shapes.number(s) for s in ("1 1", "0 0", f"0 {length}")]
        pulse = f"{amplitude!r} {shape[0]} {shape[1]} {shape[2]} 0 0 {phase!r}"
    duration = length + _rounded("tau", event.tau, BLOCK_RASTER)
    window = _adc(event.receive, length, duration) if event.receive else ""
    return duration, pulse, window


def _adc(window: Receive, length: int, duration: int) -> str:
    dwell = _rounded("dwell", window.dwell, ADC_RASTER)
    if abs(dwell * ADC_RASTER - window.dwell) * window.samples > 0.5 * ADC_RASTER * (1 + 1e-6):
        raise ValueError(
            f"dwell: got {window.dwell} s for {window.samples} samples, allowed multiples of "
            f"{ADC_RASTER:g} s: the last sample would move by more than half of that"
        )
    opens = window.first - 0.5 * dwell * ADC_RASTER
    if opens < -0.5 * DELAY_UNIT:
        raise ValueError(
            f"receive: first sample at {window.first} s, allowed from half a dwell "
            f"({0.5 * window.dwell:g} s) on"
        )
    delay = length + round(opens / DELAY_UNIT)
    end = delay * DELAY_UNIT + window.samples * dwell * ADC_RASTER
    if end > duration * BLOCK_RASTER + 1e-9:
        raise ValueError(
            f"receive: the dwell of the last sample ends {end - duration * BLOCK_RASTER:.3g} s "
            "after the delay, allowed up to its end; take fewer samples (exports.trimmed)"
        )
    return f"{window.samples} {dwell * round(ADC_RASTER * 1e9)} {delay} 0 {window.phase % _TURN!r}"


def _rounded(name: str, seconds: float, raster: float) -> int:
    steps = round(seconds / raster)
    if seconds > 0.0 and steps == 0:
        raise ValueError(f"{name}: got {seconds} s, allowed 0 or from {raster:g} s (a raster) on")
    return steps


def _signed(text: str) -> str:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    note = "# md5 of all that stands before the line break above [SIGNATURE]"
    return f"{text}\n[SIGNATURE]\n{note}\nType md5\nHash {digest}\n"


# ---------------------------------------------------------------------------------------- reading


def from_pulseq(text: str, source: str = "sequence") -> EventList:
    """The event list of a Pulseq file of version 1.4.

    Pulses of shapes that are constant in pieces become one event a piece.

    Args:
        text: of the file.
        source: what messages call it.

    Raises:
        MalformedFile: no such file, or a signature that is not that of its text; names the line.
        ValueError: what an event list has no place for: gradients, extensions, frequency offsets,
            shapes that are interpolated, samples before a pulse has ended.
    """
    try:
        return _Reader(text).events()
    except _Broken as reason:
        raise MalformedFile(f"{source}: {reason}") from None
    except ValueError as reason:
        raise ValueError(f"{source}: {reason}") from None


class _Broken(Exception):
    """Not a Pulseq file of version 1.4."""


@dataclass(frozen=True)
class _Line:
    number: int
    words: list[str]

    def values(self, count: int) -> list[float]:
        if len(self.words) != count:
            raise _Broken(
                f"line {self.number}: got {len(self.words)} columns, allowed {count}: "
                f"{shown(' '.join(self.words))}"
            )
        return [self.value(k) for k in range(count)]

    def value(self, column: int) -> float:
        try:
            value = float(self.words[column])
        except (ValueError, IndexError):
            value = math.nan
        if not abs(value) < 1e18:
            raise _Broken(
                f"line {self.number}, column {column + 1}: got {shown(self.words[column:][:1])}, "
                "allowed a number"
            )
        return value


@dataclass
class _Pieces:
    """A pulse as pieces of constant amplitude: (theta, phase, length) each."""

    delay: float
    pieces: list[tuple[float, float, float]] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.delay + math.fsum(length for _, _, length in self.pieces)


class _Reader:
    def __init__(self, text: str) -> None:
        self.sections = _sections(text)
        self._check_signature(text)
        version = {line.words[0]: line.words[1:] for line in self.sections.get("VERSION", [])}
        if version.get("major") != ["1"] or version.get("minor") != ["4"]:
            raise _Broken(f"[VERSION]: got {shown(version)}, allowed major 1, minor 4")
        self.definitions = {line.words[0]: line for line in self.sections.get("DEFINITIONS", [])}
        self.block_raster = self._raster("BlockDurationRaster")
        self.rf_raster = self._raster("RadiofrequencyRasterTime")
        self.shapes = _shapes(self.sections.get("SHAPES", []))
        self.rf = {line.value(0): line for line in self.sections.get("RF", [])}
        self.adc = {line.value(0): line for line in self.sections.get("ADC", [])}

    def _check_signature(self, text: str) -> None:
        signature = {line.words[0]: line.words[1:] for line in self.sections.get("SIGNATURE", [])}
        if not signature:
            return
        before = text[: text.index("[SIGNATURE]")].removesuffix("\n")
        digest = hashlib.md5(before.encode(), usedforsecurity=False).hexdigest()
        if signature.get("Type") != ["md5"] or signature.get("Hash") != [digest]:
            raise _Broken(f"[SIGNATURE]: got {shown(signature)}, allowed md5 {digest}")

    def _raster(self, name: str) -> float:
        if name not in self.definitions:
            raise _Broken(f"[DEFINITIONS]: {name} is missing")
        raster = self.definitions[name].value(1)
        if not 1e-12 <= raster <= 1.0:
            raise _Broken(f"[DEFINITIONS]: {name}: got {raster}, allowed 1e-12 to 1 s")
        return raster

    def events(self) -> EventList:
        if "BLOCKS" not in self.sections:
            raise _Broken("[BLOCKS]: missing")
        events = tuple(event for line in self.sections["BLOCKS"] for event in self._of_block(line))
        scans = self.definitions["Scans"].value(1) if "Scans" in self.definitions else 1
        if not (1 <= scans <= MOST_SCANS and scans == int(scans)):
            raise ValueError(f"[DEFINITIONS]: Scans: got {scans}, allowed 1 to {MOST_SCANS}")
        return EventList(events, int(scans))

    def _of_block(self, line: _Line) -> Iterator[Event]:
        number, duration, rf, *gradients, adc, extension = line.values(8)
        if any(gradients) or extension:
            raise ValueError(
                f"line {line.number}: block {number:g}: got gradients or extensions, allowed none"
            )
        pulse = self._pulse(self._named("RF", self.rf, rf, line)) if rf else _Pieces(0.0)
        left = duration * self.block_raster - pulse.end
        if left < -1e-9:
            raise ValueError(
                f"line {line.number}: block {number:g} is shorter than its pulse by {-left:.3g} s"
            )
        window = None
        if adc:
            window = self._window(self._named("ADC", self.adc, adc, line), pulse.end)
        tau = max(left, 0.0)
        if window is not None and tau < window.last <= tau + 1e-9:
            tau = window.last
        if pulse.delay > 0.0:
            yield Event(tau=pulse.delay)
        pieces = pulse.pieces or [(0.0, 0.0, 0.0)]
        for theta, phase, length in pieces[:-1]:
            yield Event(theta, phase, length)
        theta, phase, length = pieces[-1]
        yield Event(theta, phase, length, tau, window)

    def _named(self, section: str, found: dict[float, _Line], number: float, line: _Line) -> _Line:
        if number not in found:
            raise _Broken(f"line {line.number}: [{section}] has no {number:g}")
        return found[number]

    def _pulse(self, line: _Line) -> _Pieces:
        _, amplitude, magnitude, phase, time, delay, frequency, offset = line.values(8)
        if frequency:
            raise ValueError(f"line {line.number}: frequency: got {frequency} Hz, allowed 0")
        sizes = self._shape(magnitude, line)
        turns = self._shape(phase, line) if phase else np.zeros_like(sizes)
        if turns.shape != sizes.shape or not sizes.size:
            raise _Broken(
                f"line {line.number}: got {sizes.size} magnitudes and {turns.size} phases, allowed "
                "the same number"
            )
        if time:
            constant = np.ptp(sizes) == 0.0 and np.ptp(turns) == 0.0
            if not constant:
                raise ValueError(
                    f"line {line.number}: got a shape that is interpolated, allowed constant ones"
                )
            edges = self._shape(time, line)
            starts, lengths = np.zeros(1, int), np.array([edges[-1] - edges[0]])
            delay = delay * DELAY_UNIT + edges[0] * self.rf_raster
        else:
            changes = (np.diff(sizes) != 0.0) | (np.diff(turns) != 0.0)
            starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
            lengths = np.diff(np.append(starts, sizes.size))
            delay = delay * DELAY_UNIT
        if not (lengths > 0).all():
            raise _Broken(f"line {line.number}: got a pulse that ends before it begins")
        pieces = []
        for first, steps in zip(starts, lengths, strict=True):
            length = float(steps) * self.rf_raster
            theta = _TURN * amplitude * float(sizes[first]) * length
            pieces.append((theta, offset + _TURN * float(turns[first]), length))
        return _Pieces(float(delay), pieces)

    def _shape(self, number: float, line: _Line) -> Array:
        if number not in self.shapes:
            raise _Broken(f"line {line.number}: [SHAPES] has no {number:g}")
        return self.shapes[number]

    def _window(self, line: _Line, pulse_end: float) -> Receive:
        _, samples, dwell_ns, delay, frequency, phase = line.values(6)
        if frequency:
            raise ValueError(f"line {line.number}: frequency: got {frequency} Hz, allowed 0")
        if samples != int(samples):
            raise ValueError(f"line {line.number}: samples: got {samples}, allowed an integer")
        dwell = dwell_ns * 1e-9
        first = delay * DELAY_UNIT + 0.5 * dwell - pulse_end
        if first < -1e-9:
            raise ValueError(
                f"line {line.number}: got a sample {-first:.3g} s before the pulse ends"
            )
        return Receive(max(first, 0.0), dwell, int(samples), phase)


def _sections(text: str) -> dict[str, list[_Line]]:
    sections: dict[str, list[_Line]] = {}
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if words[0].startswith("[") and words[-1].endswith("]") and len(words) == 1:
            name = words[0][1:-1]
            if name in sections:
                raise _Broken(f"line {number}: a second [{name}]")
            sections[name] = []
        elif name:
            sections[name].append(_Line(number, words))
        else:
            raise _Broken(f"line {number}: got {shown(line)}, allowed a [SECTION] first")
    return sections


def _shapes(lines: list[_Line]) -> dict[float, Array]:
    shapes: dict[float, Array] = {}
    k = 0
    while k < len(lines):
        head = lines[k]
        count = lines[k + 1] if k + 1 < len(lines) else head
        if head.words[0].lower() != "shape_id" or count.words[0].lower() != "num_samples":
            raise _Broken(f"line {head.number}: got {shown(head.words)}, allowed shape_id")
        samples = count.value(1)
        if not 0 < samples <= MOST_SHAPE_SAMPLES:
            raise _Broken(
                f"line {count.number}: num_samples: got {samples:g}, allowed 1 to "
                f"{MOST_SHAPE_SAMPLES}"
            )
        k += 2
        stored = []
        while k < len(lines) and lines[k].words[0].lower() != "shape_id":
            stored.append(lines[k].values(1)[0])
            k += 1
        shapes[head.value(1)] = _decompressed(stored, int(samples), head)
    return shapes


def _decompressed(stored: list[float], samples: int, line: _Line) -> Array:
    """Run-length coded differences: a value that stands twice is followed by how often more."""
    if len(stored) == samples:
        return np.array(stored)
    steps: list[Array] = []
    k = written = 0
    while k < len(stored):
        run = 1
        if k + 2 < len(stored) and stored[k] == stored[k + 1]:
            more = stored[k + 2]
            if not 0 <= more <= samples or more != int(more):
                raise _Broken(f"line {line.number}: got a run of {more:g} more samples")
            run = 2 + int(more)
        written += run
        if written > samples:
            break
        steps.append(np.full(run, stored[k]))
        k += 1 if run == 1 else 3
    if written != samples:
        raise _Broken(f"line {line.number}: got {written} samples of a shape, allowed {samples}")
    return np.cumsum(np.concatenate(steps))
