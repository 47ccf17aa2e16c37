"""A measurement, and which reader reads it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.safe_files import MalformedFile, read_limited

from ..checks import choice, shown

Array = npt.NDArray[Any]

KINDS = ("ir", "cpmg", "fid")
NAMES = {"ir": "inversion recovery", "cpmg": "echo train", "fid": "FID"}
FILE_LIMIT = 64 * 2**20  # bytes
FEWEST_POINTS = {"ir": 4, "cpmg": 4, "fid": 16}


@dataclass(frozen=True)
class Measurement:
    """Times and values of one measurement.

    Attributes:
        kind: "ir" (inversion recovery: delays), "cpmg" (echo train: times of echoes) or "fid"
            (times since the pulse).
        times: s, ascending, (K,).
        values: complex (K,); with no imaginary part where the file has none.
        has_imaginary: whether the file has an imaginary part.
        name: of the file, without its folder.
        sha256: of the file; of a folder, of its data.
        frequency_mhz: of the observed nucleus, or None.
        isotope: such as 13C, or None.
    """

    kind: str
    times: Array
    values: Array
    has_imaginary: bool
    name: str
    sha256: str
    frequency_mhz: float | None = None
    isotope: str | None = None

    @property
    def dwell(self) -> float:
        """Mean time between values, s."""
        return float((self.times[-1] - self.times[0]) / (self.times.size - 1))

    def conjugated(self) -> Measurement:
        """With the sign of all frequencies turned."""
        return replace(self, values=np.conj(self.values))


def read_measurement(path: Path | str, kind: str | None = None) -> Measurement:
    """Read a measurement.

    Args:
        path: a table, a JCAMP-DX file, or a folder of TopSpin or Spinsolve.
        kind: "ir", "cpmg" or "fid"; None takes it from the header of the file.

    Raises:
        ValueError: a kind that is not known, or not told by the file; values that are not allowed.
            Names file, line and column.
        MalformedFile: not such a file.
        UnsafeFile: larger than 64 MiB.
        ImportError: a folder, without nmrglue.
        OSError: it cannot be read.
    """
    from .folders import read_folder
    from .jcamp import parse_jcamp
    from .table import parse_table

    path = Path(path)
    if kind is not None:
        choice("kind", kind, KINDS)
    if path.is_dir():
        found = read_folder(path)
    else:
        content = read_limited(path, FILE_LIMIT)
        digest = hashlib.sha256(content).hexdigest()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise MalformedFile(f"{path}: not UTF-8, allowed a table or JCAMP-DX") from None
        parse = parse_jcamp if text.lstrip().startswith("##") else parse_table
        found = parse(text, str(path), kind)
        found = replace(found, name=path.name, sha256=digest)
    if kind is not None:
        found = replace(found, kind=kind)
    return _checked(found, str(path))


def _checked(found: Measurement, source: str) -> Measurement:
    order = np.argsort(found.times, kind="stable")
    times, values = found.times[order], found.values[order]
    fewest = FEWEST_POINTS[found.kind]
    if times.size < fewest:
        raise ValueError(
            f"{source}: got {times.size} values of an {NAMES[found.kind]}, allowed {fewest} or more"
        )
    if not (np.isfinite(times).all() and np.isfinite(values).all()):
        raise ValueError(f"{source}: got values that are not finite, allowed numbers")
    if times[0] < 0.0 or times[-1] > 1e6 or times[-1] <= times[0]:
        raise ValueError(f"{source}: got times from {times[0]} to {times[-1]} s, allowed 0 to 1e6")
    if not np.abs(values).max() > 0.0 or np.abs(values).max() > 1e150:
        raise ValueError(f"{source}: got values up to {np.abs(values).max():g}, allowed a signal")
    if found.kind == "fid":
        steps = np.diff(times)
        if np.ptp(steps) > 1e-3 * steps.mean():
            raise ValueError(
                f"{source}: got steps of {steps.min():.6g} to {steps.max():.6g} s between samples "
                "of an FID, allowed equal ones"
            )
        if not found.has_imaginary:
            raise ValueError(
                f"{source}: got an FID without an imaginary part, allowed complex ones: the sign "
                "of frequencies is lost"
            )
    return replace(found, times=times, values=values)


def kind_or_error(kind: str | None, source: str, header: Any) -> str:
    """The kind, or a ValueError that says how to give it."""
    if kind is None:
        raise ValueError(
            f"{source}: got the columns {shown(header)}, which do not tell what was measured: give "
            "--ir, --cpmg or --fid, or name the columns delay (inversion recovery), time and "
            "amplitude (echo train), or time, real and imag (FID)"
        )
    return kind
