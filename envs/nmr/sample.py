"""What is in the magnet: species, field, instrument and task, as a person would write them down.

A *sample* is a TOML file (or a `Sample`). It says what is known beforehand; each episode then
*draws* one magnet and one sample from it: offsets, transmit field, relaxation times where they
vary.
"""

from __future__ import annotations

import math
import os
import sys
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.kernels import kernel
from palestra.safe_files import TEXT_LIMIT, MalformedFile, read_limited
from palestra.streams import philox, stream_key

from . import checks
from .bloch import SPLIT_TOLERANCE, Ensemble, split_steps
from .checks import shown

Array = npt.NDArray[Any]

SHAPES = ("gaussian", "lorentzian", "uniform", "table")
SAMPLINGS = ("stratified", "quantile", "equispaced", "gauss-hermite")
PULSE_MODELS = ("hard", "finite")
INFORMATION = ("known", "marginal")
PRESETS = ("oil", "sugar", "soil", "mixed", "random", "unknown")

# Gyromagnetic ratios, rad/s/T (CODATA for 1H; IUPAC frequency ratios for the others).
GYROMAGNETIC = {"1H": 2.6752218708e8, "13C": 6.728284e7, "19F": 2.51815e8, "31P": 1.08394e8}
HBAR, BOLTZMANN = 1.054571817e-34, 1.380649e-23  # J s, J/K (CODATA 2018)

MOST_ISOCHROMATS = 65536  # for each line
CLOSEST_OFFSETS = 1e-6  # Hz, between rows of a table
MOST_SPLIT_STEPS = 10_000  # of one turn of a finite pulse
LORENTZIAN_CUT = 1e6  # widths; one spin in three million lies beyond
_LARGEST = float(np.finfo(np.float64).max)
SMALLEST_DUTY = 1e-9
FINEST_PHASE_STEP = 1e-4  # degrees
HARD_PULSE_OFFSET = 0.02  # offset / nutation rate beyond which "hard" misleads (0.13 M0 at 0.16)


@dataclass(frozen=True)
class Species:
    """A kind of spin.

    Attributes:
        fraction: its share of the spins; the shares of a sample sum to 1.
        T1: longitudinal relaxation time, s; 1 ns to 1e9 s.
        T2: transverse relaxation time without field spread, s; 1 ns to 2 T1.
        shift_hz: chemical shift from the carrier, Hz.
        J_hz: one-bond coupling to each proton, Hz.
        n_H: number of equivalent protons, 0 to 3. Without proton pulses and with slow protons a
            multiplet is a set of isochromats at its lines.
    """

    fraction: float
    T1: float
    T2: float
    shift_hz: float = 0.0
    J_hz: float = 0.0
    n_H: int = 0

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.number("fraction", self.fraction, (0.0, 1.0))
        checks.number("T1", self.T1, checks.RELAXATION_TIME, "s")
        shortest = checks.RELAXATION_TIME[0]
        checks.number("T2", self.T2, (shortest, 2 * self.T1), "s (2 T1)")
        checks.number("shift_hz", self.shift_hz, checks.OFFSET, "Hz")
        checks.number("J_hz", self.J_hz, checks.OFFSET, "Hz")
        checks.integer("n_H", self.n_H, 0, 3)
        if self.T2 > self.T1:
            warnings.warn(
                f"T2 = {self.T2} s exceeds T1 = {self.T1} s: possible up to 2 T1, but rare",
                UserWarning,
                stacklevel=3,
            )

    @property
    def lines(self) -> list[tuple[float, float]]:
        """(offset in Hz, share) of the lines of the multiplet: binomial, J apart."""
        n = self.n_H
        return [
            (self.shift_hz + (k - n / 2) * self.J_hz, math.comb(n, k) / 2**n) for k in range(n + 1)
        ]


@dataclass(frozen=True)
class Field:
    """The magnet and the coil: how fields spread over the sample, and how that is sampled.

    Attributes:
        b0_fwhm_hz: full width at half maximum of the offsets, Hz (shape "table": must be 0).
        b0_shape: gaussian, lorentzian (slow to converge in n_iso; cut a million widths out),
            uniform or table.
        b0_table: for the shape "table", rows (offset in Hz, density), offsets ascending.
        b1_sd: relative standard deviation of the transmit field.
        reciprocity: whether the same coil receives, so that signal weights follow b1.
        n_iso: isochromats for each line of each species.
        sampling: stratified (random in each of n_iso equal shares, anew each episode), quantile
            (the middle of each share), equispaced (over three half widths to either side, weighted
            by density, of which two at least must be above 0) or gauss-hermite (gaussian only).
            The last three revive: see `revival_time`.
    """

    b0_fwhm_hz: float = 50.0
    b0_shape: str = "gaussian"
    b0_table: tuple[tuple[float, float], ...] = ()
    b1_sd: float = 0.03
    reciprocity: bool = False
    n_iso: int = 32
    sampling: str = "stratified"

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.number("b0_fwhm_hz", self.b0_fwhm_hz, checks.WIDTH, "Hz")
        checks.choice("b0_shape", self.b0_shape, SHAPES)
        checks.number("b1_sd", self.b1_sd, (0.0, 0.2))
        checks.flag("reciprocity", self.reciprocity)
        checks.integer("n_iso", self.n_iso, 1, MOST_ISOCHROMATS)
        checks.choice("sampling", self.sampling, SAMPLINGS)
        self._check_table()
        if self.sampling == "gauss-hermite":
            if self.b0_shape != "gaussian":
                raise ValueError(
                    f"sampling: got 'gauss-hermite' with b0_shape {self.b0_shape!r}, allowed only "
                    "with 'gaussian'"
                )
            checks.integer("n_iso", self.n_iso, 1, 100)
        if self.sampling == "equispaced":
            checks.integer("n_iso", self.n_iso, 2, MOST_ISOCHROMATS)
            self._check_grid()

    def _check_table(self) -> None:
        rows = self.b0_table
        listed = checks.listed(rows)
        if self.b0_shape != "table":
            if not listed or len(rows):
                raise ValueError(
                    f"b0_table: got {shown(rows)} with b0_shape {self.b0_shape!r}, allowed rows "
                    "only with 'table'"
                )
            return
        if self.b0_fwhm_hz != 0:
            raise ValueError(
                f"b0_fwhm_hz: got {self.b0_fwhm_hz}, allowed 0 with b0_shape 'table', which has "
                "its own width"
            )
        if not listed or len(rows) < 2:
            raise ValueError(
                f"b0_table: got {shown(rows)}, allowed two or more rows [offset in Hz, density]"
            )
        table: list[tuple[float, float]] = []
        for k, row in enumerate(rows):
            if not checks.listed(row) or len(row) != 2:
                raise ValueError(
                    f"b0_table[{k}]: got {shown(row)}, allowed [offset in Hz, density]"
                )
            checks.number(f"b0_table[{k}][0]", row[0], checks.OFFSET, "Hz")
            checks.number(f"b0_table[{k}][1]", row[1], (0.0, _LARGEST))
            if table and row[0] < table[-1][0] + CLOSEST_OFFSETS:
                raise ValueError(
                    f"b0_table[{k}][0]: got {row[0]}, allowed at least {CLOSEST_OFFSETS:g} Hz "
                    f"above {table[-1][0]}: offsets ascend"
                )
            table.append((float(row[0]), float(row[1])))
        object.__setattr__(self, "b0_table", tuple(table))
        if not self.cumulative_table[2][-1] > 0.0:
            raise ValueError(
                f"b0_table: got {shown(rows)}, allowed rows with a density above 0 somewhere"
            )

    def _check_grid(self) -> None:
        """A grid needs two offsets with spins: none gives 0/0, one hides the spread."""
        if self._reaches_two(self.n_iso):
            return
        enough = (n for n in range(self.n_iso, 1025) if self._reaches_two(n))
        more = next((f"n_iso = {n}, or " for n in enough), "")
        raise ValueError(
            f"n_iso: got {self.n_iso} with sampling 'equispaced' and b0_shape {self.b0_shape!r}, "
            "which leaves less than two isochromats where there are spins, allowed "
            f"{more}sampling 'stratified' or 'quantile'"
        )

    def _reaches_two(self, n: int) -> bool:
        return bool(np.count_nonzero(self._density(self._grid(n))) >= 2)

    @property
    def scale_hz(self) -> float:
        """What a quantile of the unit shape is multiplied with: the width, or 1 for a table."""
        return 1.0 if self.b0_shape == "table" else self.b0_fwhm_hz

    @cached_property
    def cumulative_table(self) -> tuple[Array, Array, Array]:
        """Offsets in Hz, density and cumulative probability of the table; else empty.

        The density is linear between rows, so a cell holds the mass of a trapezoid.
        """
        if self.b0_shape != "table":
            return np.zeros(0), np.zeros(0), np.zeros(0)
        offsets, density = self._table
        mass = np.diff(offsets) * (density[1:] + density[:-1]) / 2
        total = mass.sum()
        if not total > 0.0:
            return offsets, density, np.zeros_like(offsets)
        cumulative = np.concatenate([[0.0], np.cumsum(mass) / total])
        cumulative[-1] = 1.0
        return offsets, density, cumulative

    @property
    def _table(self) -> tuple[Array, Array]:
        """Offsets and densities; these scaled by a power of two (exact), so that sums are safe."""
        offsets, density = np.asarray(self.b0_table, np.float64).T.copy()
        return offsets, np.ldexp(density, -np.frexp(density.max())[1])

    def quantile(self, u: float) -> float:
        """Offset in Hz below which the share u of the spins lies."""
        shape = SHAPES.index(self.b0_shape)
        return self.scale_hz * float(unit_quantile(shape, u, *self.cumulative_table))

    @property
    def half_band(self) -> float:
        """Largest unit offset (times the width in Hz) but for the outermost 1 % of the spins."""
        shape = SHAPES.index(self.b0_shape)
        ends = (unit_quantile(shape, u, *self.cumulative_table) for u in (0.005, 0.995))
        return max(abs(float(end)) for end in ends)

    @property
    def reach(self) -> float:
        """Unit offset (times the width in Hz) that no isochromat exceeds."""
        if self.sampling != "stratified":
            return float(abs(self.nodes()[0]).max())
        if self.b0_shape == "table":
            return max(abs(offset) for offset, _ in self.b0_table)
        # 4.2 widths are 9.9 standard deviations; the smallest u, 2**-54 / 65536, lies 9.5 out
        return {"gaussian": 4.2, "lorentzian": LORENTZIAN_CUT, "uniform": 0.5}[self.b0_shape]

    def _grid(self, n: int) -> Array:
        """Unit offsets of n equispaced isochromats."""
        if self.b0_shape == "table":
            return np.linspace(self.b0_table[0][0], self.b0_table[-1][0], n)
        return np.linspace(-1.5, 1.5, n)

    def _density(self, x: Array) -> Array:
        """Density at unit offsets, but for a factor."""
        if self.b0_shape == "table":
            return np.interp(x, *self._table)
        if self.b0_shape == "gaussian":
            return np.asarray(np.exp(-0.5 * (x / _SD_OF_FWHM) ** 2))
        if self.b0_shape == "lorentzian":
            return 1.0 / (1.0 + 4.0 * x * x)
        return (abs(x) <= 0.5).astype(float)

    def nodes(self) -> tuple[Array, Array]:
        """Unit offsets (times `scale_hz`) and weights (n_iso,) of deterministic sampling."""
        n = self.n_iso
        if self.sampling == "gauss-hermite":
            x, w = np.polynomial.hermite_e.hermegauss(n)
            return x * _SD_OF_FWHM, w / w.sum()
        shape = SHAPES.index(self.b0_shape)
        if self.sampling == "equispaced":
            x = self._grid(n)
            w = self._density(x)
            return x, w / w.sum()
        middle = (np.arange(n) + 0.5) / n
        x = np.array([unit_quantile(shape, u, *self.cumulative_table) for u in middle])
        return x, np.full(n, 1.0 / n)

    @property
    def revival_time(self) -> float:
        """When isochromats on a grid come back together and fake an echo, s (inf if random)."""
        return self.revival_of(self.scale_hz)

    def revival_of(self, scale_hz: float) -> float:
        """`revival_time` where the width is another one, Hz."""
        if self.sampling == "stratified" or self.n_iso < 2:
            return math.inf
        spacing = scale_hz * float(np.diff(np.sort(self.nodes()[0])).min())
        return math.inf if spacing == 0.0 else 1.0 / spacing


@dataclass(frozen=True)
class Instrument:
    """The spectrometer.

    Attributes:
        B0: static field, T.
        temperature: K.
        isotope: one of GYROMAGNETIC.
        nu1_max_hz: nutation frequency of a pulse, Hz; 5 kHz is a 50 us 90-degree pulse. Also the
            highest that the transmitter gives.
        dead_time: from the end of a pulse to the first sample, s.
        dwell: time between samples, s.
        eps1: relative error of the abundance after one ideal 90-degree shot whose whole T2 decay
            is acquired; sets the noise.
        pulse_model: "hard" (no duration) or "finite" (offset and relaxation act during pulses).
        duty_max: largest share of any window of `duty_window` in which the transmitter may be on;
            1 is no limit. A hard pulse counts theta / (2 pi nu1_max_hz).
        duty_window: s.
        phase_step_deg: phases of pulses and receiver are multiples of it; 0 allows any.
    """

    B0: float = 0.5
    temperature: float = 298.15
    isotope: str = "13C"
    nu1_max_hz: float = 5000.0
    dead_time: float = 100e-6
    dwell: float = 100e-6
    eps1: float = 0.3
    pulse_model: str = "hard"
    duty_max: float = 1.0
    duty_window: float = 1.0
    phase_step_deg: float = 0.0

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.number("B0", self.B0, checks.STATIC_FIELD, "T")
        checks.number("temperature", self.temperature, checks.TEMPERATURE, "K")
        checks.choice("isotope", self.isotope, tuple(GYROMAGNETIC))
        checks.number("nu1_max_hz", self.nu1_max_hz, checks.NUTATION, "Hz")
        checks.number("dead_time", self.dead_time, (0.0, checks.DELAY[1]), "s")
        checks.number("dwell", self.dwell, checks.DELAY, "s")
        checks.number("eps1", self.eps1, checks.RELATIVE_ERROR)
        checks.choice("pulse_model", self.pulse_model, PULSE_MODELS)
        checks.number("duty_max", self.duty_max, (SMALLEST_DUTY, 1.0))
        checks.number("duty_window", self.duty_window, checks.DELAY, "s")
        self._check_phase_step()

    def _check_phase_step(self) -> None:
        """A step that does not divide the turn would make multiples of multiples."""
        step = self.phase_step_deg
        checks.number("phase_step_deg", step, (0.0, 180.0), "degrees")
        if step and (step < FINEST_PHASE_STEP or abs(360.0 / step - round(360.0 / step)) > 1e-6):
            raise ValueError(
                f"phase_step_deg: got {step}, allowed 0 (any phase), or a whole part of 360 "
                f"degrees from {FINEST_PHASE_STEP:g} on"
            )

    @property
    def larmor_hz(self) -> float:
        """Larmor frequency, Hz."""
        return GYROMAGNETIC[self.isotope] * self.B0 / (2 * math.pi)

    @property
    def polarisation(self) -> float:
        """P = tanh(gamma hbar B0 / (2 k T)) of a spin 1/2."""
        energy = GYROMAGNETIC[self.isotope] * HBAR * self.B0
        return math.tanh(energy / (2 * BOLTZMANN * self.temperature))

    def equilibrium_magnetisation(self, spins_per_m3: float) -> float:
        """M0 = n gamma hbar P / 2, A/m."""
        return spins_per_m3 * GYROMAGNETIC[self.isotope] * HBAR * self.polarisation / 2


@dataclass(frozen=True)
class Task:
    """What is to be measured.

    Attributes:
        eps: relative error of the abundance to be reached.
        log_T1_sd: prior standard deviation of ln T1.
        log_T2_sd: prior standard deviation of ln T2.
        log_b1_sd: prior standard deviation of the logarithm of the transmit field.
        information: "known" (relaxation is given) or "marginal" (it is estimated too).
        max_time: give up after this many times the time bound.
    """

    eps: float = 0.05
    log_T1_sd: float = 0.5
    log_T2_sd: float = 0.5
    log_b1_sd: float = 0.03
    information: str = "known"
    max_time: float = 30.0

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.number("eps", self.eps, checks.RELATIVE_ERROR)
        for name in ("log_T1_sd", "log_T2_sd", "log_b1_sd"):
            checks.number(name, getattr(self, name), checks.LOGARITHMIC_SPREAD)
        checks.choice("information", self.information, INFORMATION)
        checks.number("max_time", self.max_time, checks.RELATIVE_ERROR)


@dataclass(frozen=True)
class Vary:
    """What differs from episode to episode in a sample of one species.

    Attributes:
        T1: (low, high) in s, uniform in the logarithm.
        T2_over_T1: (low, high), uniform in the logarithm; high at most 2.
        b0_fwhm_hz: (low, high) in Hz, uniform.
    """

    T1: tuple[float, float] | None = None
    T2_over_T1: tuple[float, float] | None = None
    b0_fwhm_hz: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name, limits, unit in (
            ("T1", checks.RELAXATION_TIME, "s"),
            ("T2_over_T1", checks.RELAXATION_RATIO, ""),
            ("b0_fwhm_hz", checks.WIDTH, "Hz"),
        ):
            span = getattr(self, name)
            if span is not None:
                checks.span(name, span, limits, unit)
                object.__setattr__(self, name, (float(span[0]), float(span[1])))


@dataclass(frozen=True)
class Sample:
    """All that is known of a measurement before it begins."""

    species: tuple[Species, ...]
    field: Field = Field()
    instrument: Instrument = Instrument()
    task: Task = Task()
    vary: Vary = Vary()
    name: str = "sample"
    comment: str = ""

    def __post_init__(self) -> None:
        species: Any = self.species
        if not isinstance(species, list | tuple):
            raise TypeError(
                f"species: got {shown(species)}, allowed a tuple of one or more Species"
            )
        for k, one in enumerate(species):
            checks.instance(f"species[{k}]", one, Species)
        object.__setattr__(self, "species", tuple(species))
        for name, cls in _SECTIONS.items():
            checks.instance(name, getattr(self, name), cls)
        for name in ("name", "comment"):
            checks.instance(name, getattr(self, name), str, "a string")
        if not self.species:
            raise ValueError("species: got none, allowed one or more")
        total = sum(s.fraction for s in self.species)
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"species: got fractions that sum to {total:g}, allowed a sum of 1")
        if self.vary != Vary() and len(self.species) > 1:
            raise ValueError(f"vary: got {len(self.species)} species, allowed only with one")
        if self.vary.b0_fwhm_hz and self.field.b0_shape == "table":
            raise ValueError("vary.b0_fwhm_hz: got a range, allowed only without b0_shape 'table'")
        self._check_drawn_relaxation()
        self._check_dwell()
        self._check_pulse()

    @property
    def widest(self) -> float:
        """The largest width that an episode can have, Hz (1 for a table: its offsets are in Hz)."""
        return self.vary.b0_fwhm_hz[1] if self.vary.b0_fwhm_hz else self.field.scale_hz

    @property
    def band_hz(self) -> float:
        """Largest offset of any line but for the outermost 1 % of its spins, Hz."""
        return self.widest * self.field.half_band + self._farthest_line

    @property
    def reach_hz(self) -> float:
        """Offset that no isochromat of any episode exceeds, Hz."""
        return self.widest * self.field.reach + self._farthest_line

    @property
    def _farthest_line(self) -> float:
        return max(abs(line) for s in self.species for line, _ in s.lines)

    @property
    def shortest(self) -> tuple[float, float]:
        """The shortest T1 and T2 that an episode can have, s."""
        if self.vary.T1 is None and self.vary.T2_over_T1 is None:
            return min(s.T1 for s in self.species), min(s.T2 for s in self.species)
        only = self.species[0]
        T1 = self.vary.T1[0] if self.vary.T1 else only.T1
        ratio = self.vary.T2_over_T1[0] if self.vary.T2_over_T1 else only.T2 / only.T1
        return T1, T1 * ratio

    def _check_drawn_relaxation(self) -> None:
        drawn, least = self.shortest[1], checks.RELAXATION_TIME[0]
        if drawn < least * (1.0 - 1e-12):  # T2 / T1, times T1, may round down
            raise ValueError(
                f"vary: got ranges that reach down to T2 = {drawn:.3g} s, allowed T2 from "
                f"{least:g} s"
            )

    def _check_dwell(self) -> None:
        if 1.0 / self.instrument.dwell < 2.0 * self.band_hz:
            raise ValueError(
                f"instrument.dwell: got {self.instrument.dwell}, allowed at most "
                f"{0.5 / self.band_hz:.3g} s for offsets of +-{self.band_hz:.4g} Hz, which would "
                "alias"
            )

    def _check_pulse(self) -> None:
        instrument = self.instrument
        ratio = self.band_hz / instrument.nu1_max_hz
        if instrument.pulse_model == "hard" and ratio > HARD_PULSE_OFFSET:
            warnings.warn(
                f"instrument.pulse_model: 'hard' ignores offsets during pulses, but they reach "
                f"{ratio:.3f} of the nutation rate (up to {HARD_PULSE_OFFSET} is harmless); "
                "set 'finite'",
                UserWarning,
                stacklevel=4,
            )
        if instrument.pulse_model == "finite":
            T1, T2 = self.shortest
            w1, turn = 2 * math.pi * instrument.nu1_max_hz, 1.0 / instrument.nu1_max_hz
            rate = math.hypot(w1, 2 * math.pi * self.band_hz)
            if split_steps(w1, rate, 1 / T1, 1 / T2, turn, SPLIT_TOLERANCE) > MOST_SPLIT_STEPS:
                raise ValueError(
                    f"instrument.nu1_max_hz: got {instrument.nu1_max_hz}, allowed more with "
                    f"pulse_model 'finite', T2 down to {T2:.3g} s and offsets of "
                    f"+-{self.band_hz:.4g} Hz: a pulse lasts so long that it takes more than "
                    f"{MOST_SPLIT_STEPS} steps"
                )

    def warn_of_revival(self, longest: float) -> None:
        """Warn if isochromats on a grid rephase by themselves within `longest` seconds."""
        revival = self.field.revival_of(self.widest)
        if revival < longest:
            needed = math.ceil(self.field.n_iso * longest / revival) + 1
            most = 100 if self.field.sampling == "gauss-hermite" else MOST_ISOCHROMATS
            more = f"n_iso = {needed}, or " if needed <= most else ""
            warnings.warn(
                f"field.n_iso: {self.field.n_iso} isochromats with sampling "
                f"{self.field.sampling!r} rephase after {revival:.3g} s and fake an echo within "
                f"{longest:.3g} s; set {more}sampling 'stratified'",
                UserWarning,
                stacklevel=3,
            )

    @property
    def N0(self) -> float:
        """Noise density, s: eps1^2 times the integral of |S|^2 over an ideal shot (T2 / 2)."""
        pairs = [(a, b) for a in self.species for b in self.species]
        energy = sum(a.fraction * b.fraction / (1 / a.T2 + 1 / b.T2) for a, b in pairs)
        return self.instrument.eps1**2 * energy

    @property
    def T_bound(self) -> float:
        """No sequence that starts at equilibrium reaches `task.eps` sooner, s.

        From the energy balance: the integral of |S|^2 is at most
        sum_j f_j T2_j (1/2 + T / (4 T1_j)); for one species 2 T1 ((eps1/eps)^2 - 1).
        """
        at_once = sum(s.fraction * s.T2 for s in self.species) / 2
        per_second = sum(s.fraction * s.T2 / s.T1 for s in self.species) / 4
        return max(0.0, (self.N0 / self.task.eps**2 - at_once) / per_second)

    # ---------------------------------------------------------------------------------- drawing

    @cached_property
    def _layout(self) -> tuple[Array, Array, Array, Array, Array]:
        """Blocks (S + 1,); line offset, weight, stratum and unit node of each isochromat (N,)."""
        unit, share = self.field.nodes()
        n = self.field.n_iso
        lines = [(line, s.fraction * part) for s in self.species for line, part in s.lines]
        blocks = np.cumsum([0] + [n * len(s.lines) for s in self.species])
        line_hz = np.repeat([line for line, _ in lines], n)
        weight = np.concatenate([part * share for _, part in lines])
        stratum = np.tile(np.arange(n), len(lines))
        return blocks.astype(np.int64), line_hz, weight, stratum, np.tile(unit, len(lines))

    def allocate(self, rows: int) -> Ensemble:
        """Room for the isochromats of `rows` experiments, to be filled by `draw`."""
        blocks, _, weight, _, _ = self._layout
        shape, species = (rows, weight.size), (rows, len(self.species))
        return Ensemble(
            offset_hz=np.zeros(shape),
            b1=np.ones(shape),
            R1=np.ones(species),
            R2=np.ones(species),
            blocks=blocks,
            weight=weight,
            receive=np.tile(weight, (rows, 1)),
        )

    def magnet(self, seed: int = 0) -> Ensemble:
        """The isochromats of one experiment on this sample: those of episode 0 of a seed."""
        one = self.allocate(1)
        key = np.array([stream_key("Sample", seed, "dynamics")], np.uint64)
        self.draw(one, np.ones(1, np.bool_), key, np.zeros(1, np.uint64))
        return one

    def draw(self, into: Ensemble, rows: Array, keys: Array, episodes: Array) -> None:
        """Draw the magnet and the relaxation times of the masked rows' episodes.

        Args:
            into: what `allocate` gave.
            rows: bool (B,).
            keys: Philox keys, uint64 (B,) (`streams.dynamics`).
            episodes: uint64 (B,) (`streams.episode`).
        """
        _, line_hz, weight, stratum, unit = self._layout
        table_hz, density, cumulative = self.field.cumulative_table
        T1 = np.array([s.T1 for s in self.species])
        T2 = np.array([s.T2 for s in self.species])
        vary = self.vary
        ratio = T2[0] / T1[0]
        _draw(
            rows,
            keys,
            episodes,
            into.offset_hz,
            into.b1,
            into.R1,
            into.R2,
            into.receive,
            line_hz,
            weight,
            stratum,
            unit,
            T1,
            T2,
            vary.T1 or (T1[0], T1[0]),
            vary.T2_over_T1 or (ratio, ratio),
            vary.b0_fwhm_hz or (float(self.field.scale_hz), float(self.field.scale_hz)),
            vary.T1 is not None or vary.T2_over_T1 is not None,
            self.field.n_iso if self.field.sampling == "stratified" else 0,
            SHAPES.index(self.field.b0_shape),
            table_hz,
            density,
            cumulative,
            float(self.field.b1_sd),
            self.field.reciprocity,
        )


# Draw numbers of an episode's step 0. Environments use those below ISOCHROMAT.
DRAW_RELAXATION, DRAW_WIDTH = 0, 1
ISOCHROMAT = 1024  # isochromat i draws its offset and its b1 together, as number ISOCHROMAT + i
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_SD_OF_FWHM = 1.0 / (2.0 * math.sqrt(2.0 * math.log(2.0)))
_TO_UNIT = 2.0**-53


@kernel(allocates=False)
def uniform_pair(key, episode, step, draw):  # type: ignore[no-untyped-def]
    """Two independent float64 on (0, 1) from one Philox block."""
    a, b, c, d = philox(key, episode, step, draw)
    u = np.float64((a << np.uint64(21)) ^ (b >> np.uint64(11)))
    v = np.float64((c << np.uint64(21)) ^ (d >> np.uint64(11)))
    return (u + 0.5) * _TO_UNIT, (v + 0.5) * _TO_UNIT


@kernel(allocates=False)
def normal_quantile(p):  # type: ignore[no-untyped-def]
    """Quantile of the standard normal distribution.

    Algorithm AS 241, PPND16 (Wichura, Applied Statistics 37 (1988) 477): about 1e-16 relative.
    """
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        num = (((((((2509.0809287301226727 * r + 33430.575583588128105) * r
            + 67265.770927008700853) * r + 45921.953931549871457) * r
            + 13731.693765509461125) * r + 1971.5909503065514427) * r
            + 133.14166789178437745) * r + 3.387132872796366608)  # fmt: skip
        den = (((((((5226.495278852854561 * r + 28729.085735721942674) * r
            + 39307.89580009271061) * r + 21213.794301586595867) * r
            + 5394.1960214247511077) * r + 687.1870074920579083) * r
            + 42.313330701600911252) * r + 1.0)  # fmt: skip
        return q * num / den
    r = math.sqrt(-math.log(p if q < 0.0 else 1.0 - p))
    if r <= 5.0:
        r -= 1.6
        num = (((((((7.7454501427834140764e-4 * r + 0.0227238449892691845833) * r
            + 0.24178072517745061177) * r + 1.27045825245236838258) * r
            + 3.64784832476320460504) * r + 5.7694972214606914055) * r
            + 4.6303378461565452959) * r + 1.42343711074968357734)  # fmt: skip
        den = (((((((1.05075007164441684324e-9 * r + 5.475938084995344946e-4) * r
            + 0.0151986665636164571966) * r + 0.14810397642748007459) * r
            + 0.68976733498510000455) * r + 1.6763848301838038494) * r
            + 2.05319162663775882187) * r + 1.0)  # fmt: skip
    else:
        r -= 5.0
        num = (((((((2.01033439929228813265e-7 * r + 2.71155556874348757815e-5) * r
            + 0.0012426609473880784386) * r + 0.026532189526576123093) * r
            + 0.29656057182850489123) * r + 1.7848265399172913358) * r
            + 5.4637849111641143699) * r + 6.6579046435011037772)  # fmt: skip
        den = (((((((2.04426310338993978564e-15 * r + 1.4215117583164458887e-7) * r
            + 1.8463183175100546818e-5) * r + 7.868691311456132591e-4) * r
            + 0.0148753612908506148525) * r + 0.13692988092273580531) * r
            + 0.59983220655588793769) * r + 1.0)  # fmt: skip
    return -num / den if q < 0.0 else num / den


@kernel(allocates=False)
def unit_quantile(shape, u, table_hz, density, cumulative):  # type: ignore[no-untyped-def]
    """Quantile of a line shape of unit full width at half maximum (a table: in Hz)."""
    if shape == 0:  # gaussian
        return _SD_OF_FWHM * normal_quantile(u)
    if shape == 1:  # lorentzian
        x = 0.5 * math.tan(math.pi * (u - 0.5))
        return min(max(x, -LORENTZIAN_CUT), LORENTZIAN_CUT)
    if shape == 2:  # uniform
        return u - 0.5
    right = 1
    while right < cumulative.size - 1 and cumulative[right] < u:
        right += 1
    low, high = cumulative[right - 1], cumulative[right]
    share = (u - low) / (high - low) if high > low else 0.5
    first, last = density[right - 1], density[right]
    # share (first + last) = 2 first part + (last - first) part^2, solved without cancellation
    root = math.sqrt(first * first + share * (last * last - first * first))
    part = share * (first + last) / (first + root) if first + root > 0.0 else share
    return table_hz[right - 1] + part * (table_hz[right] - table_hz[right - 1])


@kernel(allocates=False)
def _draw(  # type: ignore[no-untyped-def]
    rows, keys, episodes, offset_hz, b1, R1, R2, receive, line_hz, weight, stratum, unit, T1, T2,
    T1_span, ratio_span, width_span, relaxation_varies, strata, shape, table_hz, density,
    cumulative, b1_sd, reciprocity,
):  # fmt: skip
    for row in range(rows.shape[0]):
        if not rows[row]:
            continue
        key, episode = keys[row], episodes[row]
        u, v = uniform_pair(key, episode, 0, DRAW_RELAXATION)
        for s in range(T1.size):
            R1[row, s], R2[row, s] = 1.0 / T1[s], 1.0 / T2[s]
        if relaxation_varies:
            R1[row, 0] = 1.0 / (T1_span[0] * (T1_span[1] / T1_span[0]) ** u)
            R2[row, 0] = R1[row, 0] / (ratio_span[0] * (ratio_span[1] / ratio_span[0]) ** v)
        u, _ = uniform_pair(key, episode, 0, DRAW_WIDTH)
        width = width_span[0] + u * (width_span[1] - width_span[0])
        received = 0.0
        for i in range(weight.size):
            if strata:
                u, v = uniform_pair(key, episode, 0, ISOCHROMAT + i)
                x = unit_quantile(shape, (stratum[i] + u) / strata, table_hz, density, cumulative)
            else:  # as deterministic as the offsets, and spread evenly over them
                x, v = unit[i], (0.5 + i * _GOLDEN) % 1.0
            offset_hz[row, i] = line_hz[i] + width * x
            b1[row, i] = 1.0 + b1_sd * normal_quantile(v)
            received += weight[i] * b1[row, i]
        if reciprocity:
            for i in range(weight.size):
                receive[row, i] = weight[i] * b1[row, i] / received


# ------------------------------------------------------------------------------- reading a file


def load_sample(sample: str | os.PathLike[str] | Mapping[str, Any] | Sample) -> Sample:
    """A sample by the name of a preset, from a TOML file, from its tables, or as it is.

    Args:
        sample: a preset; a path with a suffix; a mapping laid out as the file (such as
            `dataclasses.asdict` of a `Sample`, which a run folder can hold); or a `Sample`.

    Raises:
        TypeError: none of these.
        MalformedFile: a file that is not TOML in UTF-8 (a byte order mark is skipped).
        UnsafeFile: one larger than 16 MiB.
        ValueError: unknown preset, or a value that is not allowed; names file, field, value and
            what is allowed.
        FileNotFoundError: no such file.
    """
    if isinstance(sample, Sample):
        return sample
    if isinstance(sample, Mapping):
        return _read("sample", sample)
    given = os.fspath(sample) if isinstance(sample, str | os.PathLike) else sample
    presets = ", ".join(PRESETS)
    if not isinstance(given, str):
        raise TypeError(
            f"sample: got {shown(sample)}, allowed {presets}, the path of a TOML file, a mapping "
            "or a Sample"
        )
    if "\0" not in given and Path(given).suffix:
        try:
            content = read_limited(Path(given), TEXT_LIMIT)
            return parse_sample(content.decode("utf-8-sig"), given)
        except UnicodeDecodeError as reason:
            raise MalformedFile(
                f"{given}: not UTF-8: {reason.reason} at byte {reason.start}, allowed a TOML file "
                "in UTF-8"
            ) from None
    if given not in PRESETS:
        raise ValueError(
            f"sample: got {shown(given)}, allowed {presets}, or the path of a file "
            "with a suffix, such as my_sample.toml"
        )
    text = resources.files("palestra.envs.nmr").joinpath("data", f"{given}.toml").read_text("utf-8")
    return parse_sample(text, f"{given}.toml")


def parse_sample(text: str, source: str) -> Sample:
    """A sample from the text of a TOML file called `source`.

    Raises:
        TypeError: text is no string.
        MalformedFile, ValueError: as `load_sample`.
    """
    checks.instance("text", text, str, "a string of TOML")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as reason:
        raise MalformedFile(f"{source}: not TOML: {reason}") from None
    except RecursionError:
        raise MalformedFile(f"{source}: {_TOO_DEEP}") from None
    except ValueError:  # Python's limit, reached before any field is known
        digits = sys.get_int_max_str_digits()
        raise ValueError(
            f"{source}: got an integer of more than {digits} digits, allowed numbers that fit "
            "their field"
        ) from None
    return _read(source, document)


_TOO_DEEP = "nested too deeply, allowed tables of values and lists of pairs"


def _read(source: str, document: Mapping[str, Any]) -> Sample:
    """A sample from parsed tables; what is said of it names the source."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sample = _build(document)
    except RecursionError:
        raise ValueError(f"{source}: {_TOO_DEEP}") from None
    except ValueError as reason:
        raise ValueError(f"{source}: {reason}") from None
    for warning in caught:
        warnings.warn(f"{source}: {warning.message}", UserWarning, stacklevel=4)
    return sample


_SECTIONS: dict[str, type] = {"field": Field, "instrument": Instrument, "task": Task, "vary": Vary}


def _build(document: Mapping[str, Any]) -> Sample:
    _refuse_unknown("", document, ["species", *_SECTIONS, "name", "comment"])
    species = document.get("species")
    if not isinstance(species, list | tuple) or not species:
        raise ValueError(f"species: got {shown(species)}, allowed one or more tables [[species]]")
    arguments: dict[str, Any] = {
        "species": tuple(_section(f"species[{k}]", Species, s) for k, s in enumerate(species))
    }
    for name, cls in _SECTIONS.items():
        if name in document:
            arguments[name] = _section(name, cls, document[name])
    for name in ("name", "comment"):
        if name in document:
            if not isinstance(document[name], str):
                raise ValueError(f"{name}: got {shown(document[name])}, allowed a string")
            arguments[name] = document[name]
    return Sample(**arguments)


def _section(where: str, cls: type, values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: got {shown(values)}, allowed a table")
    _refuse_unknown(f"{where}.", values, [f.name for f in fields(cls)])
    missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]
    if missing:
        raise ValueError(f"{where}.{missing[0]}: missing, allowed a number")
    try:
        return cls(**{name: _frozen(value) for name, value in values.items()})
    except ValueError as reason:
        raise ValueError(f"{where}.{reason}") from None


def _refuse_unknown(where: str, values: Mapping[str, Any], known: list[str]) -> None:
    for name in values:
        if name not in known:
            shortened = name if isinstance(name, str) and len(name) < 80 else shown(name)
            raise ValueError(f"{where}{shortened}: unknown; allowed {', '.join(known)}")


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value
