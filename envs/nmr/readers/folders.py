"""FIDs in the folders of TopSpin and Spinsolve, read by nmrglue (extra `nmr`).

TopSpin's digital filter delays the signal by its group delay, a number g of samples that is not
whole: sample k was taken at (k - g) dwell. Samples before 0 are the filter's and go; a phase in the
spectrum, as usual elsewhere, would wrap the others around.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from palestra.safe_files import MalformedFile, read_limited

from ..checks import shown
from .measurement import FILE_LIMIT, Measurement

SPINSOLVE_DATA = ("data.1d", "fid.1d")


def read_folder(path: Path) -> Measurement:
    """The FID of a folder.

    Raises:
        ValueError: a folder of neither kind, or an experiment of more dimensions.
        MalformedFile: nmrglue cannot read it, or its parameters are missing.
        ImportError: nmrglue is not there.
    """
    if (path / "acqus").is_file() and (path / "fid").is_file():
        return _topspin(path)
    data = next((path / name for name in SPINSOLVE_DATA if (path / name).is_file()), None)
    if data is not None and (path / "acqu.par").is_file():
        return _spinsolve(path, data)
    raise ValueError(
        f"{path}: got a folder with neither acqus and fid (TopSpin) nor acqu.par and data.1d "
        "(Spinsolve)"
    )


def _topspin(path: Path) -> Measurement:
    glue = _nmrglue()
    digest = _digest(path / "fid")
    try:
        parameters, values = glue.bruker.read(str(path))
        acqus = parameters["acqus"]
        delay = _group_delay(acqus, glue.bruker.bruker_dsp_table)
    except Exception as problem:  # nmrglue raises whatever a damaged file leads it to
        raise _unreadable(path, problem) from None
    dwell = 1.0 / _positive(acqus, "SW_h", path)
    frequency = _positive(acqus, "SFO1", path)
    return _fid(path, values, dwell, digest, frequency, acqus.get("NUC1"), delay)


def _group_delay(acqus: Any, table: Any) -> float:
    """Samples: GRPDLY, or on older spectrometers that of firmware and decimation."""
    written = float(acqus.get("GRPDLY", -1.0))
    if written > 0.0:
        return written
    return float(table.get(acqus.get("DSPFVS"), {}).get(acqus.get("DECIM"), 0.0))


def _spinsolve(path: Path, data: Path) -> Measurement:
    glue = _nmrglue()
    digest = _digest(data)
    try:
        parameters, values = glue.spinsolve.read(str(path), specfile=data.name)
        acquisition = parameters["acqu"]
    except Exception as problem:  # as above
        raise _unreadable(path, problem) from None
    dwell = 1e-6 * _positive(acquisition, "dwellTime", path)
    frequency = _positive(acquisition, "b1Freq", path)
    return _fid(path, values, dwell, digest, frequency, acquisition.get("rxChannel"))


def _nmrglue() -> Any:
    try:
        import nmrglue
    except ImportError:
        raise ImportError(
            "folders of spectrometers are read by nmrglue: pip install 'palestra[nmr]'"
        ) from None
    return nmrglue


def _digest(path: Path) -> str:
    return hashlib.sha256(read_limited(path, FILE_LIMIT)).hexdigest()


def _unreadable(path: Path, problem: Exception) -> MalformedFile:
    return MalformedFile(f"{path}: nmrglue: {type(problem).__name__}: {shown(str(problem))}")


def _positive(parameters: Any, name: str, path: Path) -> float:
    try:
        value = float(parameters[name])
    except (KeyError, TypeError, ValueError):
        value = 0.0
    if not 1e-12 < value < 1e12:
        raise MalformedFile(f"{path}: {name}: missing, or no number above 0")
    return value


def _fid(
    path: Path,
    values: Any,
    dwell: float,
    digest: str,
    frequency: float,
    nucleus: Any,
    delay: float = 0.0,
) -> Measurement:
    values = np.asarray(values, complex)
    if values.ndim != 1:
        raise ValueError(f"{path}: got an experiment of {values.ndim} dimensions, allowed 1")
    times = dwell * (np.arange(values.size) - delay)
    return Measurement(
        kind="fid",
        times=times[times >= 0.0],
        values=values[times >= 0.0],
        has_imaginary=True,
        name=path.name,
        sha256=digest,
        frequency_mhz=frequency,
        isotope=str(nucleus).strip("<>") if nucleus else None,
    )
