"""A sample, with its uncertainties, from what a spectrometer measured.

T1 from an inversion recovery, T2 from an echo train, shift, width and shape of the line from an
FID, and the noise: the FID's samples err by sigma per component every dwell, so N0 = sigma^2 dwell
for an amplitude a, and eps1 = sqrt(2 N0 / T2) / a, the error of one ideal shot. The FID must be
that of a 90-degree pulse at equilibrium; if it is the mean of several scans, one of them errs by
the square root of their number more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from palestra.config import dump_toml

from . import checks
from .readers import Measurement
from .readers.measurement import FEWEST_POINTS, NAMES
from .relaxation_fits import (
    LineFit,
    RelaxationFit,
    fit_echo_train,
    fit_inversion_recovery,
    fit_line,
    highest_peak,
    peak_near,
)
from .sample import GYROMAGNETIC, HARD_PULSE_OFFSET, Field, Instrument, Sample, load_sample

LONGEST_TIME_ZERO = 1.0  # s
SMALLEST_SD = 1e-6  # of a logarithm


@dataclass(frozen=True)
class SampleFit:
    """A sample, and the fits that it comes from.

    Attributes:
        sample: as environments take it; `task.log_T1_sd` and `log_T2_sd` are those of the fits.
        document: its tables, as a TOML file has them.
        T1: the fit of the inversion recovery.
        T2: the fit of the echo train.
        line: the fit of the FID.
        eps1: relative error of one ideal shot.
        measured: what was fitted.
    """

    sample: Sample
    document: dict[str, Any]
    T1: RelaxationFit
    T2: RelaxationFit
    line: LineFit
    eps1: float
    measured: tuple[Measurement, ...]

    @property
    def lacks_fit(self) -> list[str]:
        """Names of the measurements that their models do not describe."""
        fits = {"ir": self.T1, "cpmg": self.T2, "fid": self.line.fit}
        return [m.name for m in self.measured if fits[m.kind].lacks_fit]

    def to_toml(self) -> str:
        """The TOML file: where its numbers come from, then the tables."""
        lines = [f"# {line}".rstrip() for line in (*self._provenance(), "", *self.findings())]
        return "\n".join(lines) + "\n\n" + dump_toml(self.document)

    def _provenance(self) -> list[str]:
        return ["Fitted by palestra to:"] + [
            f"  {m.name} ({NAMES[m.kind]}, {m.times.size} values), SHA-256 {m.sha256}"
            for m in self.measured
        ]

    def findings(self) -> list[str]:
        """What was found, one line a quantity, with standard deviations."""
        T1, T2, line = self.T1, self.T2, self.line
        found = [
            _relative("T1", math.exp(T1.values["log_T1"]), T1.sd["log_T1"]),
            f"inversion efficiency = {_pm(T1.values['efficiency'], T1.sd['efficiency'])}",
            _relative("T2", math.exp(T2.values["log_T2"]), T2.sd["log_T2"]),
            f"shift = {_pm(line.fit.values['shift_hz'], line.fit.sd['shift_hz'])} Hz",
            f"field width = {_pm(line.fit.values['fwhm_hz'], line.fit.sd['fwhm_hz'])} Hz, "
            f"{line.shape} (log likelihood ratio {line.log_likelihood_ratio:.3g})",
            f"eps1 = {self.eps1:.4g}",
        ]
        for m in self.measured:
            p = {"ir": T1, "cpmg": T2, "fid": line.fit}[m.kind].p
            said = "cannot be asked" if math.isnan(p) else f"p = {p:.3g}"
            found.append(f"{m.name}: fit of the model: {said}")
        return found + [f"{name}: THE MODEL DOES NOT FIT" for name in self.lacks_fit]


def _pm(value: float, sd: float) -> str:
    return f"{value:.5g} +- {sd:.2g}"


def _relative(name: str, value: float, log_sd: float) -> str:
    return f"{name} = {_pm(value, value * log_sd)} s"


def fit_sample(
    measured: Sequence[Measurement],
    reference_hz: float | None = None,
    isotope: str | None = None,
    B0: float | None = None,
    scans: int = 1,
    time_zero: float = 0.0,
    name: str = "sample",
) -> SampleFit:
    """Fit a sample of one species to an inversion recovery, an echo train and an FID.

    Args:
        measured: one of each kind.
        reference_hz: where a peak of the FID is known to stand, Hz from the carrier: a check of
            the sign of frequencies.
        isotope: None takes that of the files, or 13C.
        B0: static field, T; None takes that of the FID's frequency, or the default.
        scans: how many scans the FID is the mean of.
        time_zero: when the FID's signal began on the clock of its file, s: the middle of the pulse.
        name: of the sample.

    Raises:
        ValueError: not one of each kind; a reference that stands at the negative offset or
            nowhere; values that do not determine a quantity, or give one that is not allowed.
    """
    by_kind = _one_of_each(measured)
    checks.integer("scans", scans, 1, 1_000_000_000)
    checks.number("time_zero", time_zero, (-LONGEST_TIME_ZERO, LONGEST_TIME_ZERO), "s")
    fid = by_kind["fid"]
    fid = _since(fid, time_zero)
    if reference_hz is not None:
        check_reference(fid, reference_hz)
    T1, T2 = fit_inversion_recovery(by_kind["ir"]), fit_echo_train(by_kind["cpmg"])
    log_T2_sd = max(T2.sd["log_T2"], SMALLEST_SD)
    line = fit_line(fid, math.exp(T2.values["log_T2"]), log_T2_sd)
    amplitude = math.hypot(line.fit.values["real"], line.fit.values["imag"])
    T2_seconds = math.exp(T2.values["log_T2"])
    N0 = line.fit.sigma**2 * fid.dwell * scans
    eps1 = math.sqrt(2.0 * N0 / T2_seconds) / amplitude
    document = {
        "name": name,
        "species": [
            {
                "fraction": 1.0,
                "T1": math.exp(T1.values["log_T1"]),
                "T2": T2_seconds,
                "shift_hz": line.fit.values["shift_hz"],
            }
        ],
        "field": {
            "b0_fwhm_hz": max(line.fit.values["fwhm_hz"], 0.0),
            "b0_shape": line.shape,
        },
        "instrument": _instrument(fid, line, isotope, B0, eps1),
        "task": {"log_T1_sd": max(T1.sd["log_T1"], SMALLEST_SD), "log_T2_sd": log_T2_sd},
    }
    sample = load_sample(document)
    return SampleFit(sample, document, T1, T2, line, eps1, tuple(by_kind.values()))


def _one_of_each(measured: Sequence[Measurement]) -> dict[str, Measurement]:
    by_kind: dict[str, Measurement] = {}
    for kind in NAMES:
        found = [m for m in measured if m.kind == kind]
        if len(found) != 1:
            raise ValueError(
                f"measured: got {len(found)} of {NAMES[kind]} "
                f"({', '.join(m.name for m in found) or 'none'}), allowed one"
            )
        by_kind[kind] = found[0]
    return by_kind


def _since(fid: Measurement, time_zero: float) -> Measurement:
    """The FID on a clock that starts at `time_zero`, without the samples before it."""
    times = fid.times - time_zero
    left = times >= -1e-9 * fid.dwell
    if left.sum() < FEWEST_POINTS["fid"]:
        raise ValueError(
            f"time_zero: got {time_zero} s, which leaves {left.sum()} samples of {fid.name}, "
            f"allowed {FEWEST_POINTS['fid']} or more"
        )
    return replace(fid, times=times[left], values=fid.values[left])


def check_reference(fid: Measurement, reference_hz: float) -> None:
    """Raise ValueError unless a peak stands at an offset, and more so than at its negative."""
    band = 0.5 / fid.dwell
    sound = isinstance(reference_hz, int | float) and 0.0 < abs(reference_hz) <= band
    if not sound:
        raise ValueError(
            f"reference_hz: got {checks.shown(reference_hz)}, allowed an offset other than 0 "
            f"within +-{band:.6g} Hz"
        )
    here, there = peak_near(fid, reference_hz), peak_near(fid, -reference_hz)
    highest = highest_peak(fid)
    if there > 2.0 * here and there > 0.3 * highest:
        raise ValueError(
            f"{fid.name}: the reference stands at {-reference_hz:g} Hz, allowed {reference_hz:g} "
            "Hz: conjugate your data or pass --conjugate"
        )
    if here < 2.0 * there or here < 0.1 * highest:
        raise ValueError(
            f"{fid.name}: no reference peak at {reference_hz:g} Hz that differs from "
            f"{-reference_hz:g} Hz"
        )


def _instrument(
    fid: Measurement, line: LineFit, isotope: str | None, B0: float | None, eps1: float
) -> dict[str, Any]:
    known = fid.isotope if fid.isotope in GYROMAGNETIC else "13C"
    isotope = isotope or known
    checks.choice("isotope", isotope, tuple(GYROMAGNETIC))
    if B0 is None and fid.frequency_mhz:
        B0 = 2e6 * math.pi * fid.frequency_mhz / GYROMAGNETIC[isotope]
    width = max(line.fit.values["fwhm_hz"], 0.0)
    field = Field(b0_fwhm_hz=width, b0_shape=line.shape)
    band = width * field.half_band + abs(line.fit.values["shift_hz"])
    usual = Instrument()
    dwell = min(fid.dwell, 0.499 / band) if band > 0.0 else fid.dwell
    finite = band > HARD_PULSE_OFFSET * usual.nu1_max_hz
    found: dict[str, Any] = {"isotope": isotope, "dwell": dwell, "eps1": eps1}
    if B0 is not None:
        found["B0"] = B0
    if finite:
        found["pulse_model"] = "finite"
    return found
