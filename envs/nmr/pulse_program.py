"""Event lists as the text of a pulse program in Bruker's style, and back. Untested on hardware.

Each event is written with its times inline: `pl1:f1` sets a power, `(50u ph1):f1` is a pulse,
`1900u` a delay, `aqw(20, 100u) ph2` a window of 20 samples, dwell 100 us, `spoil` an ideal spoiler.
Powers are what a person must set: a comment says which nutation frequency each stands for. Phases
are tables: `ph1=0` counts in right angles, `ph2=(360) 33.5` in degrees. `aqw` and `spoil` are not
Bruker's: they must be replaced by what the console has, and fail to compile until they are.
"""

from __future__ import annotations

import json
import math
import re

from palestra.safe_files import MalformedFile

from .checks import shown
from .events import Event, EventList, Receive

_TURN = 2.0 * math.pi
_HEAD = """; palestra: an event list as a pulse program in Bruker's style
; UNTESTED ON HARDWARE: check powers, phases and timing before it meets a probe
; aqw(samples, dwell) is a receiver window: the first sample at once, the last at its end
; phases that are no multiple of what the console can set have to be rounded
"""
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TIME = rf"({_NUMBER})u"
_STATEMENTS = {
    "power": re.compile(r"pl(\d+):f1"),
    "pulse": re.compile(rf"\({_TIME} ph(\d+)\):f1"),
    "delay": re.compile(_TIME),
    "window": re.compile(rf"aqw\((\d+), {_TIME}\) ph(\d+)"),
    "spoil": re.compile("spoil"),
    "phase": re.compile(rf"ph(\d+)=(?:\(({_NUMBER})\) )?({_NUMBER})"),
    "scans": re.compile(r"lo to 2 times (\d+)"),
    "frame": re.compile(r"1 ze|2 1u|exit"),
}
_EVENT = re.compile(r'; event (\d+)(?: (".*"))?')
_POWER = re.compile(rf"; pl(\d+): nutation of ({_NUMBER}) Hz")


def to_pulse_program(events: EventList) -> str:
    """The text of a pulse program.

    Raises:
        ValueError: a hard pulse (see `palestra.envs.nmr.exports.with_lengths`); names the event.
    """
    powers: dict[float, int] = {}
    phases: dict[float, int] = {}
    body: list[str] = []
    for k, event in enumerate(events):
        body.append(f"; event {k} {json.dumps(event.label)}" if event.label else f"; event {k}")
        if event.theta != 0.0:
            body += _pulse(k, event, powers, phases)
        elif event.t_pulse > 0.0:
            body.append(f"  {_us(event.t_pulse)}")
        body += _delay(event, phases)
        if event.spoil:
            body.append("  spoil")
    lines = [_HEAD.rstrip()]
    lines += [f"; pl{number}: nutation of {nu1!r} Hz" for nu1, number in powers.items()]
    lines += ["", "1 ze", "2 1u", *body, f"  lo to 2 times {events.scans}", "exit", ""]
    lines += [f"ph{number}={_table(degrees)}" for degrees, number in phases.items()]
    return "\n".join(lines) + "\n"


def _pulse(k: int, event: Event, powers: dict[float, int], phases: dict[float, int]) -> list[str]:
    if event.t_pulse == 0.0:
        raise ValueError(f"event {k}: t_pulse: got 0 (a hard pulse), allowed pulses with a length")
    nu1 = float(f"{abs(event.theta) / (_TURN * event.t_pulse):.13g}")  # one power for equal pulses
    phi = math.degrees(event.phi) + (180.0 if event.theta < 0.0 else 0.0)
    power, phase = _number(powers, nu1), _number(phases, phi)
    return [f"  pl{power}:f1", f"  ({_us(event.t_pulse)} ph{phase}):f1"]


def _delay(event: Event, phases: dict[float, int]) -> list[str]:
    window = event.receive
    if window is None:
        return [f"  {_us(event.tau)}"] if event.tau > 0.0 else []
    phase = _number(phases, math.degrees(window.phase))
    lines = [f"  {_us(window.first)}"] if window.first > 0.0 else []
    lines.append(f"  aqw({window.samples}, {_us(window.dwell)}) ph{phase}")
    rest = event.tau - window.last
    return [*lines, f"  {_us(rest)}"] if rest > 1e-12 * event.tau else lines


def _number(known: dict[float, int], value: float) -> int:
    return known.setdefault(value, len(known) + 1)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6!r}u"


def _table(degrees: float) -> str:
    quarters = degrees / 90.0
    return f"{round(quarters)}" if quarters == round(quarters) else f"(360) {degrees!r}"


def from_pulse_program(text: str, source: str = "pulse program") -> EventList:
    """The event list of a pulse program that `to_pulse_program` wrote.

    Args:
        text: of the program.
        source: what messages call it.

    Raises:
        MalformedFile: a line that is none of its statements; names it.
        ValueError: values that are not allowed in an event list; names the event.
    """
    powers: dict[str, float] = {}
    phases: dict[str, float] = {}
    found: list[list[tuple[str, tuple[str, ...], int]]] = []
    labels: list[str] = []
    scans = 1
    for number, line in enumerate(text.splitlines(), 1):
        if power := _POWER.fullmatch(line.strip()):
            powers[power[1]] = float(power[2])
        elif event := _EVENT.fullmatch(line.strip()):
            found.append([])
            labels.append(_label(event[2], f"{source}: line {number}"))
        elif (statement := line.split(";", 1)[0].strip()) != "":
            kind, parts = _statement(statement, f"{source}: line {number}")
            if kind == "phase":
                per_unit = 360.0 / float(parts[1]) if parts[1] and float(parts[1]) else 90.0
                phases[parts[0]] = math.radians(float(parts[2]) * per_unit)
            elif kind == "scans":
                scans = int(parts[0][:12])
            elif kind != "frame":
                if not found:
                    raise MalformedFile(f"{source}: line {number}: a statement before any event")
                found[-1].append((kind, parts, number))
    try:
        events = [
            _read(k, statements, powers, phases, label)
            for k, (statements, label) in enumerate(zip(found, labels, strict=True))
        ]
        return EventList(tuple(events), scans)
    except MalformedFile as reason:
        raise MalformedFile(f"{source}: {reason}") from None
    except ValueError as reason:
        raise ValueError(f"{source}: {reason}") from None


def _label(quoted: str | None, where: str) -> str:
    try:
        return str(json.loads(quoted)) if quoted else ""
    except ValueError:
        raise MalformedFile(f"{where}: got the label {shown(quoted)}, allowed a string") from None


def _statement(text: str, where: str) -> tuple[str, tuple[str, ...]]:
    for kind, pattern in _STATEMENTS.items():
        if match := pattern.fullmatch(text):
            return kind, match.groups()
    raise MalformedFile(f"{where}: got {shown(text)}, allowed {', '.join(_STATEMENTS)}")


def _read(
    k: int,
    statements: list[tuple[str, tuple[str, ...], int]],
    powers: dict[str, float],
    phases: dict[str, float],
    label: str,
) -> Event:
    nu1 = theta = phi = t_pulse = tau = 0.0
    window, spoil = None, False
    for kind, parts, line in statements:
        where = f"line {line}"
        if kind == "power":
            nu1 = _known(powers, "pl", parts[0], where)
        elif kind == "pulse":
            if t_pulse or tau or window:
                raise MalformedFile(f"{where}: a pulse that is not the first of event {k}")
            t_pulse, phi = _seconds(parts[0]), _known(phases, "ph", parts[1], where)
            theta = _TURN * nu1 * t_pulse
        elif kind == "delay":
            tau += _seconds(parts[0])
        elif kind == "window":
            if window is not None:
                raise MalformedFile(f"{where}: a second window of event {k}")
            phase = _known(phases, "ph", parts[2], where)
            try:
                window = Receive(tau, _seconds(parts[1]), int(parts[0][:12]), phase)
            except ValueError as reason:
                raise ValueError(f"event {k}: {reason}") from None
            tau = window.last
        else:
            spoil = True
    try:
        return Event(theta, phi, t_pulse, tau, window, spoil, label)
    except ValueError as reason:
        raise ValueError(f"event {k}: {reason}") from None


def _seconds(us: str) -> float:
    return float(us) * 1e-6


def _known(table: dict[str, float], kind: str, number: str, where: str) -> float:
    if number not in table:
        raise MalformedFile(f"{where}: {kind}{number} is not defined")
    return table[number]
