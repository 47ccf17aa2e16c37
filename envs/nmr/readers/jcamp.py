"""JCAMP-DX for NMR (5.01): FIDs as NTUPLES, their ordinates as AFFN or ASDF.

ASDF packs numbers by their first character: SQZ (`@`, `A`-`I`, `a`-`i`) a value and its sign, DIF
(`%`, `J`-`R`, `j`-`r`) a difference to the value before, DUP (`S`-`Z`, `s`) how often the last one
stands. A line that follows one which ended in differences repeats its last value, as a check.

A. N. Davies, P. Lampen, Appl. Spectrosc. 47 (1993) 1093; R. S. McDonald, P. A. Wilks, ibid. 42
(1988) 151.
"""

from __future__ import annotations

import re

import numpy as np

from palestra.safe_files import MalformedFile

from ..checks import shown
from .measurement import Array, Measurement

MOST_POINTS = 10_000_000

_LABEL = re.compile(r"##([^=]*)=(.*)")
_SQZ = {c: str(d) for d, c in enumerate("@ABCDEFGHI")} | {
    c: f"-{d}" for d, c in enumerate("abcdefghi", 1)
}
_DIF = {c: str(d) for d, c in enumerate("%JKLMNOPQR")} | {
    c: f"-{d}" for d, c in enumerate("jklmnopqr", 1)
}
_DUP = {c: str(d) for d, c in enumerate("STUVWXYZs", 1)}
_LEAD = "".join([*_SQZ, *_DIF, *_DUP])
_PACKED = re.compile(rf"[{re.escape(_LEAD)}]\d*|[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]\d+)?|[\s,;]+")


def parse_jcamp(text: str, source: str, kind: str | None = None) -> Measurement:
    """An FID from the text of a JCAMP-DX file called `source`; its hash is left empty.

    Raises:
        MalformedFile: not such a file, or ordinates that do not fit their checks; names the line.
        ValueError: another kind of data.
    """
    labels, pages = _read(text, source)
    kind_of_data = labels.get("DATATYPE", "")
    if "FID" not in kind_of_data.upper():
        raise ValueError(f"{source}: DATA TYPE: got {shown(kind_of_data)}, allowed NMR FID")
    symbols = [s.upper() for s in _listed(labels, "SYMBOL", source)]
    if "X" not in symbols or "R" not in symbols:
        raise ValueError(f"{source}: SYMBOL: got {shown(symbols)}, allowed X, R, I, N")
    factor = dict(zip(symbols, _numbers(labels, "FACTOR", source), strict=False))
    first = dict(zip(symbols, _numbers(labels, "FIRST", source), strict=False))
    last = dict(zip(symbols, _numbers(labels, "LAST", source), strict=False))
    count = dict(zip(symbols, _numbers(labels, "VAR_DIM", source), strict=False)).get("X", 0.0)
    if not (2 <= count <= MOST_POINTS and count == int(count)):
        raise ValueError(f"{source}: VAR_DIM: got {count:g}, allowed 2 to {MOST_POINTS}")
    points = int(count)
    unit = dict(zip(symbols, _listed(labels, "UNITS", source), strict=False)).get("X", "")
    if unit.upper() not in ("SECONDS", "S", "SEC"):
        raise ValueError(f"{source}: UNITS: got {shown(unit)} of X, allowed SECONDS")
    parts: dict[str, Array] = {}
    for symbol, lines in pages.items():
        parts[symbol] = factor.get(symbol, 1.0) * _ordinates(lines, points, source)
    if "R" not in parts:
        raise MalformedFile(f"{source}: no page of (X++(R..R))")
    values = parts["R"].astype(complex)
    if "I" in parts:
        values += 1j * parts["I"]
    return Measurement(
        kind=kind or "fid",
        times=np.linspace(first.get("X", 0.0), last.get("X", 0.0), points),
        values=values,
        has_imaginary="I" in parts,
        name=source,
        sha256="",
        frequency_mhz=_frequency(labels, source),
        isotope=labels.get(".OBSERVENUCLEUS", "").strip("^ <>") or None,
    )


Lines = list[tuple[int, str]]


def _read(text: str, source: str) -> tuple[dict[str, str], dict[str, Lines]]:
    """Values of labels (without spaces, in capitals), and the lines of each page's table."""
    labels: dict[str, str] = {}
    pages: dict[str, Lines] = {}
    table: Lines | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("$$", 1)[0].rstrip()
        if not line.strip():
            continue
        match = _LABEL.match(line.strip())
        if match:
            name = re.sub(r"[\s/-]", "", match[1]).upper()
            value = match[2].strip()
            table = None
            if name == "DATATABLE":
                page = re.match(r"\(X\+\+\(([A-Z])\.\.\1\)\)", value.replace(" ", "").upper())
                if page is None:
                    raise MalformedFile(
                        f"{source}: line {number}: got {shown(value)}, allowed (X++(R..R)), XYDATA"
                    )
                table = pages.setdefault(page[1], [])
            elif name not in labels:
                labels[name] = value
        elif table is not None:
            table.append((number, line.strip()))
    if "JCAMPDX" not in labels:
        raise MalformedFile(f"{source}: no JCAMP-DX label")
    return labels, pages


def _listed(labels: dict[str, str], name: str, source: str) -> list[str]:
    if name not in labels:
        raise MalformedFile(f"{source}: {name} is missing")
    return [part.strip() for part in labels[name].split(",")]


def _numbers(labels: dict[str, str], name: str, source: str) -> list[float]:
    return [_number(part or "0", f"{source}: {name}") for part in _listed(labels, name, source)]


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e150:
        raise MalformedFile(f"{where}: got {shown(text)}, allowed a number")
    return value


def _frequency(labels: dict[str, str], source: str) -> float | None:
    for name in (".OBSERVEFREQUENCY", ".FREQUENCY"):
        if name in labels:
            return _number(labels[name], f"{source}: {name}")
    return None


def _ordinates(lines: Lines, points: int, source: str) -> Array:
    """The values of a table: each line an abscissa, then packed ordinates."""
    found: list[float] = []
    ended_in_difference = False
    for number, line in lines:
        where = f"{source}: line {number}"
        values, differences = _line(line, points, where)
        if ended_in_difference and values:
            if abs(values[0] - found[-1]) > 1e-6 * max(1.0, abs(found[-1])):
                raise MalformedFile(
                    f"{where}: got {values[0]:g} as the check of the line before, allowed "
                    f"{found[-1]:g}"
                )
            values = values[1:]
        found += values
        ended_in_difference = differences
        if len(found) > points:
            break
    if len(found) != points:
        raise MalformedFile(f"{source}: got {len(found)} ordinates, allowed VAR_DIM = {points}")
    return np.array(found)


def _line(line: str, points: int, where: str) -> tuple[list[float], bool]:
    """Ordinates of a line without its abscissa; whether it ends in a difference."""
    tokens, place = [], 0
    while place < len(line):
        match = _PACKED.match(line, place)
        if match is None:
            raise MalformedFile(f"{where}: got {shown(line[place : place + 10])}, allowed ASDF")
        if match[0].strip(" \t,;"):
            tokens.append(match[0])
        place = match.end()
    values: list[float] = []
    step = 0.0
    difference = False
    for token in tokens[1:]:
        lead, rest = token[0], token[1:]
        if lead in _DUP:
            more = int((_DUP[lead] + rest)[:12]) - 1
            if not values or more < 0 or more > points:
                raise MalformedFile(f"{where}: got {shown(token)}, allowed to follow a value")
            for _ in range(more):
                values.append(values[-1] + (step if difference else 0.0))
        elif lead in _DIF:
            if not values:
                raise MalformedFile(f"{where}: got the difference {shown(token)} before any value")
            step, difference = _number(_DIF[lead] + rest, where), True
            values.append(values[-1] + step)
        else:
            difference = False
            values.append(_number(_SQZ[lead] + rest if lead in _SQZ else token, where))
        if len(values) > points + 1:
            raise MalformedFile(f"{where}: got more than VAR_DIM = {points} ordinates")
    return values, difference
