"""Tables of text: commas, semicolons, tabs or spaces; comments; units in the header.

    # inversion recovery
    delay (ms), real, imag
    1.0, -0.98, 0.01

The first column is a time: `delay`, `time`, `t` or `tau`, in `(s)`, `(ms)` or `(us)`; then `real`
(or `integral`, `amplitude`) and, if there is one, `imag`. Without a header times are in seconds.
Where semicolons part the columns, numbers may have a decimal comma.
"""

from __future__ import annotations

import re

import numpy as np

from palestra.safe_files import MalformedFile

from ..checks import shown
from .measurement import Measurement, kind_or_error

COMMENTS = ("#", "%", "//")
TIMES = {"delay": "ir", "tau": "ir", "recovery": "ir", "time": None, "t": None, "echo": "cpmg"}
REAL = ("real", "re", "integral", "amplitude", "intensity", "signal", "i")
IMAGINARY = ("imag", "imaginary", "im", "q")
MAGNITUDES = ("magnitude", "abs", "absolute", "modulus")
UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}
_NAME = re.compile(r"([A-Za-z]+)[\s_]*(?:[\s_(\[/]\s*([A-Za-zµμ.]+)[)\]]?)?")


def parse_table(text: str, source: str, kind: str | None) -> Measurement:
    """A measurement from the text of a table called `source`; its hash is left empty.

    Raises:
        MalformedFile: a row with a word or another number of columns; names line and column.
        ValueError: columns that do not say what they are, or magnitudes.
    """
    lines = [
        (number, line.strip())
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith(COMMENTS)
    ]
    if not lines:
        raise MalformedFile(f"{source}: no line of numbers")
    separator = _separator(lines[0][1])
    header: list[str] = []
    if not _is_number(_cells(lines[0][1], separator)[0], separator):
        header = _cells(lines.pop(0)[1], separator)
    unit, columns, told = _columns(header, source)
    rows = [_row(number, line, separator, source) for number, line in lines]
    if not rows:
        raise MalformedFile(f"{source}: no line of numbers")
    width = len(rows[0])
    for (number, _), row in zip(lines, rows, strict=True):
        if len(row) != width:
            raise MalformedFile(
                f"{source}: line {number}: got {len(row)} columns, allowed {width} as above"
            )
    if not columns:
        if width not in (2, 3):
            raise ValueError(f"{source}: got {width} columns, allowed time, real and perhaps imag")
        columns = [0, 1, 2][:width]
    if max(columns) >= width:
        raise MalformedFile(f"{source}: got {width} columns and a header of {len(header)}")
    table = np.array(rows)
    values = table[:, columns[1]].astype(complex)
    if len(columns) == 3:
        values += 1j * table[:, columns[2]]
    return Measurement(
        kind=kind_or_error(kind or told, source, header),
        times=table[:, columns[0]] * unit,
        values=values,
        has_imaginary=len(columns) == 3,
        name=source,
        sha256="",
    )


def _separator(line: str) -> str | None:
    for separator in (";", "\t"):
        if separator in line:
            return separator
    return "," if "," in line else None


def _cells(line: str, separator: str | None) -> list[str]:
    return [cell.strip().strip('"') for cell in line.split(separator)]


def _plain(cell: str, separator: str | None) -> str:
    return cell.replace(",", ".") if separator == ";" else cell


def _is_number(cell: str, separator: str | None) -> bool:
    try:
        float(_plain(cell, separator))
    except ValueError:
        return False
    return True


def _row(number: int, line: str, separator: str | None, source: str) -> list[float]:
    row = []
    for column, cell in enumerate(_cells(line, separator), 1):
        try:
            value = float(_plain(cell, separator))
        except ValueError:
            value = float("nan")
        if not abs(value) < 1e150:
            raise MalformedFile(
                f"{source}: line {number}, column {column}: got {shown(cell)}, allowed a number"
            )
        row.append(value)
    return row


def _columns(header: list[str], source: str) -> tuple[float, list[int], str | None]:
    """Seconds of a unit of time; the columns of time, real and imaginary part; the kind."""
    if not header:
        return 1.0, [], None
    found: dict[str, int] = {}
    unit, kind, names = 1.0, None, []
    for column, cell in enumerate(header):
        match = _NAME.fullmatch(cell)
        name = match[1].lower() if match else cell.lower()
        names.append(name)
        where = f"{source}: column {column + 1}"
        if name in MAGNITUDES:
            raise ValueError(
                f"{where}: got {shown(cell)}, allowed real and imaginary parts: noise makes "
                "magnitudes too large"
            )
        if name in TIMES and "time" not in found:
            found["time"], kind = column, TIMES[name]
            given = (match[2] or "s").lower() if match else "s"
            if given not in UNITS:
                raise ValueError(f"{where}: got the unit {shown(given)}, allowed s, ms, us")
            unit = UNITS[given]
        elif name in REAL and "real" not in found:
            found["real"] = column
        elif name in IMAGINARY and "imag" not in found:
            found["imag"] = column
    if "time" not in found or "real" not in found:
        raise ValueError(
            f"{source}: got the columns {shown(header)}, allowed a time ({', '.join(TIMES)}) and a "
            f"value ({', '.join(REAL)}), perhaps also {IMAGINARY[0]}"
        )
    if kind is None:
        amplitude = names[found["real"]] in ("amplitude", "intensity")
        kind = "cpmg" if amplitude else ("fid" if "imag" in found else None)
    order = [found[name] for name in ("time", "real", "imag") if name in found]
    return unit, order, kind
