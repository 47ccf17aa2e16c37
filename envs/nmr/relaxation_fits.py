"""Relaxation times and line shape from measurements, by least squares with complex models.

    inversion recovery   c (1 - (1 + e) exp(-t / T1)),   e the efficiency of the inversion
    echo train           c exp(-t / T2)
    FID                  c exp(2 pi i f t - t / T2) g(t)
                         g = exp(-(pi w t)^2 / (4 ln 2)) gaussian, exp(-pi w t) lorentzian,
                         w the full width at half maximum of the field

with a complex c that holds amplitude and phase (real where the file has no imaginary part): no
magnitudes. Standard deviations are those of the local covariance, with the noise of the residuals.

Whether the model fits is asked of noise that the model does not know: the part of the values at
right angles to c, the tail of an FID, or the third differences of a long even train.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .estimation import LACK_OF_FIT
from .readers import Measurement

Array = npt.NDArray[Any]
Model = Callable[[Array], tuple[Array, Array]]

TOLERANCE = 1e-13
GRID = 80  # time constants and widths tried to begin from
LINE_SHAPES = ("gaussian", "lorentzian")
_FALL = math.pi**2 / (4.0 * math.log(2.0))  # of the gaussian envelope


@dataclass(frozen=True)
class RelaxationFit:
    """What a measurement says.

    Attributes:
        values: of the parameters, by name.
        sd: their standard deviations.
        sigma: standard deviation of the noise, per real component.
        p: chance of residuals as large as these if the model is right; nan where the noise cannot
            be known without the model.
        points: how many values there were.
    """

    values: dict[str, float]
    sd: dict[str, float]
    sigma: float
    p: float
    points: int

    @property
    def lacks_fit(self) -> bool:
        """Whether the model does not describe the values."""
        return self.p < LACK_OF_FIT


@dataclass(frozen=True)
class LineFit:
    """The FID with the likelier of the two line shapes.

    Attributes:
        shape: gaussian or lorentzian.
        fit: of that shape.
        log_likelihood_ratio: of that shape to the other.
    """

    shape: str
    fit: RelaxationFit
    log_likelihood_ratio: float


def fit_inversion_recovery(measured: Measurement) -> RelaxationFit:
    """T1, and the efficiency e of the inversion (1 is perfect), of an inversion recovery.

    Raises:
        ValueError: values that do not determine them, or that look like magnitudes.
    """
    t, y = measured.times, measured.values
    _refuse_magnitudes(measured)

    def model(x: Array) -> tuple[Array, Array]:
        c, e, T1 = complex(x[0], x[1]), x[2], math.exp(x[3])
        u = np.exp(-t / T1)
        shape = 1.0 - (1.0 + e) * u
        return c * shape, np.array([shape, 1j * shape, -c * u, -c * (1.0 + e) * u * t / T1])

    def begin(T1: float) -> tuple[float, list[float]]:
        u = np.exp(-t / T1)
        (c, fallen), left = _linear(np.array([np.ones_like(u), u]), y)
        e = float((-fallen / c).real) - 1.0 if c else 1.0
        return left, [c.real, c.imag, e, math.log(T1)]

    names = ("real", "imag", "efficiency", "log_T1")
    start = min((begin(T1) for T1 in _scales(t)), key=lambda found: found[0])[1]
    return _fit(measured, model, start, names, in_phase=3)


def _refuse_magnitudes(measured: Measurement) -> None:
    """Real values that fall to a minimum and rise again, never below 0, have lost their sign."""
    sizes = measured.values.real
    lowest = int(sizes.argmin())
    dips = 0 < lowest < sizes.size - 1 and sizes[0] > 2.0 * sizes[lowest]
    if not measured.has_imaginary and sizes[lowest] >= 0.0 and dips:
        raise ValueError(
            f"{measured.name}: got values that fall and rise again, all above 0, as magnitudes do; "
            "allowed values with their sign"
        )


def fit_echo_train(measured: Measurement) -> RelaxationFit:
    """T2 of the echoes of a CPMG train.

    Raises:
        ValueError: values that do not determine it.
    """
    t, y = measured.times, measured.values

    def model(x: Array) -> tuple[Array, Array]:
        c, T2 = complex(x[0], x[1]), math.exp(x[2])
        u = np.exp(-t / T2)
        return c * u, np.array([u, 1j * u, c * u * t / T2])

    def begin(T2: float) -> tuple[float, list[float]]:
        (c,), left = _linear(np.exp(-t / T2)[np.newaxis], y)
        return left, [c.real, c.imag, math.log(T2)]

    start = min((begin(T2) for T2 in _scales(t)), key=lambda found: found[0])[1]
    return _fit(measured, model, start, ("real", "imag", "log_T2"), in_phase=2)


def fit_line(measured: Measurement, T2: float, log_T2_sd: float) -> LineFit:
    """Shift and width of the line of an FID, and which shape it has.

    T2 comes from an echo train, with its error: an FID alone cannot tell a lorentzian field from
    a short T2.

    Args:
        measured: the FID.
        T2: s.
        log_T2_sd: standard deviation of ln T2.

    Raises:
        ValueError: values that do not determine the line.
    """
    found = {shape: _fit_shape(measured, shape, T2, log_T2_sd) for shape in LINE_SHAPES}
    best, other = sorted(found, key=lambda shape: found[shape][1])
    sigma = found[best][0].sigma
    ratio = (found[other][1] - found[best][1]) / (2.0 * sigma**2)
    return LineFit(best, found[best][0], ratio)


def peak_near(measured: Measurement, offset_hz: float) -> float:
    """The largest height of an FID's spectrum within 5 % of an offset (a line width at least)."""
    spectrum, frequency, resolution = _spectrum(measured)
    near = np.abs(frequency - offset_hz) <= max(0.05 * abs(offset_hz), 2.0 * resolution)
    return float(np.abs(spectrum[near]).max()) if near.any() else 0.0


def highest_peak(measured: Measurement) -> float:
    """The largest height of an FID's spectrum."""
    return float(np.abs(_spectrum(measured)[0]).max())


# ----------------------------------------------------------------------------------------- FIDs


def _spectrum(measured: Measurement) -> tuple[Array, Array, float]:
    size = 1 << math.ceil(math.log2(4 * measured.times.size))
    spectrum = np.fft.fft(measured.values, size)
    frequency = np.fft.fftfreq(size, measured.dwell)
    return spectrum, frequency, 1.0 / (measured.dwell * measured.times.size)


def _fit_shape(
    measured: Measurement, shape: str, T2: float, log_T2_sd: float
) -> tuple[RelaxationFit, float]:
    """The fit of one shape, and its sum of squares with the penalty of T2."""
    t = measured.times
    y = measured.values
    gaussian = shape == "gaussian"

    def model(x: Array) -> tuple[Array, Array]:
        c, f, w, decay = complex(x[0], x[1]), x[2], x[3], math.exp(x[4])
        fall = _FALL * (w * t) ** 2 if gaussian else math.pi * w * t
        slope = -2.0 * _FALL * w * t**2 if gaussian else -math.pi * t
        u = np.exp(2j * math.pi * f * t - t / decay - fall)
        m = c * u
        return m, np.array([u, 1j * u, 2j * math.pi * t * m, slope * m, t / decay * m])

    spectrum, frequency, _ = _spectrum(measured)
    f = float(frequency[np.abs(spectrum).argmax()])

    def begin(w: float) -> tuple[float, list[float]]:
        u = model(np.array([1.0, 0.0, f, w, math.log(T2)]))[0]
        (c,), left = _linear(u[np.newaxis], y)
        return left, [c.real, c.imag, f, w, math.log(T2)]

    widths = np.geomspace(0.02 / t[-1], 0.5 / measured.dwell, GRID)
    start = min((begin(float(w)) for w in widths), key=lambda found: found[0])[1]
    names = ("real", "imag", "shift_hz", "fwhm_hz", "log_T2")
    fixed = _fit(measured, model, start, names, prior=(4, math.log(T2), 1e-9), sigma=1.0)
    start = [fixed.values[name] for name in names]
    sigma = fixed.sigma
    fit = _fit(measured, model, start, names, prior=(4, math.log(T2), log_T2_sd), sigma=sigma)
    left = y - model(np.array([fit.values[name] for name in names]))[0]
    penalty = sigma**2 * ((fit.values["log_T2"] - math.log(T2)) / log_T2_sd) ** 2
    fit.values["fwhm_hz"] = abs(fit.values["fwhm_hz"]) if gaussian else fit.values["fwhm_hz"]
    return fit, float(np.vdot(left, left).real) + penalty


# ------------------------------------------------------------------------------- least squares


def _scales(t: Array) -> Array:
    """Time constants to begin from."""
    return np.asarray(np.geomspace(max(0.1 * t[t > 0.0].min(), 1e-4 * t[-1]), 10.0 * t[-1], GRID))


def _linear(basis: Array, y: Array) -> tuple[Array, float]:
    """Coefficients of the linear least squares, and what is left of |y|^2."""
    found = np.linalg.lstsq(basis.T.astype(complex), y, rcond=None)[0]
    left = y - found @ basis
    return found, float(np.vdot(left, left).real)


def _fit(
    measured: Measurement,
    model: Model,
    start: list[float],
    names: tuple[str, ...],
    in_phase: int = 0,
    prior: tuple[int, float, float] | None = None,
    sigma: float = 1.0,
) -> RelaxationFit:
    """Levenberg-Marquardt; `prior` is a parameter's number, its mean and its deviation."""
    from scipy.optimize import least_squares

    y = measured.values
    free = np.array([k for k in range(len(names)) if measured.has_imaginary or names[k] != "imag"])
    scale = float(np.abs(y).max())
    unit = np.array([scale if name in ("real", "imag") else 1.0 for name in names])

    def whole(x: Array) -> Array:
        value = np.array(start)
        value[free] = x * unit[free]
        return value

    def parts(z: Array) -> Array:
        return np.concatenate([z.real, z.imag], axis=-1) if measured.has_imaginary else z.real

    def residual(x: Array) -> Array:
        left = parts(model(whole(x))[0] - y) / scale
        if prior is None:
            return left
        number, mean, spread = prior
        return np.append(left, (whole(x)[number] - mean) / spread * sigma / scale)

    def slopes(x: Array) -> Array:
        found = np.asarray((parts(model(whole(x))[1]) * unit[:, None])[free].T / scale)
        if prior is None:
            return found
        row = np.where(free == prior[0], sigma / scale / prior[2], 0.0)
        return np.vstack([found, row])

    points = y.size * (2 if measured.has_imaginary else 1)
    degrees = points - free.size + (1 if prior else 0)
    if degrees < 1:
        raise ValueError(
            f"{measured.name}: got {points} numbers for {free.size} parameters, allowed more"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            best = least_squares(
                residual, np.array(start)[free] / unit[free], slopes, method="lm",
                x_scale="jac", xtol=TOLERANCE, ftol=TOLERANCE,
            )  # fmt: skip
            inverse = np.linalg.inv(best.jac.T @ best.jac)
        except (np.linalg.LinAlgError, ValueError, OverflowError):
            raise ValueError(
                f"{measured.name}: the values do not determine {', '.join(names[2:])}"
            ) from None
    noise2 = float(best.fun[:points] @ best.fun[:points]) / degrees
    value = whole(best.x)
    deviation = np.zeros(len(names))
    deviation[free] = np.sqrt(np.maximum(noise2 * np.diag(inverse), 0.0)) * unit[free]
    if not (np.isfinite(value).all() and np.isfinite(deviation).all()):
        raise ValueError(f"{measured.name}: the values do not determine {', '.join(names[2:])}")
    left = y - model(value)[0]
    return RelaxationFit(
        values=dict(zip(names, value.tolist(), strict=True)),
        sd=dict(zip(names, deviation.tolist(), strict=True)),
        sigma=math.sqrt(noise2) * scale,
        p=_p(measured, left, complex(value[0], value[1]), in_phase, len(names) - 2),
        points=y.size,
    )


# ----------------------------------------------------------------------------------- lack of fit


def _p(measured: Measurement, left: Array, c: complex, in_phase: int, others: int) -> float:
    """The chance of residuals this large, by a noise that no model was fitted to."""
    from scipy.stats import f as fisher_snedecor

    if measured.kind == "fid":
        ours, ours_degrees, noise, noise_degrees = _tail(measured, left, others)
    elif measured.has_imaginary:
        turned = left * np.conj(c) / abs(c)
        ours, ours_degrees = float((turned.real**2).sum()), float(left.size - in_phase)
        noise, noise_degrees = float((turned.imag**2).sum()), float(left.size - 1)
    else:
        ours, ours_degrees = float((left.real**2).sum()), float(left.size - in_phase)
        noise, noise_degrees = _rough(measured)
    if min(ours_degrees, noise_degrees) < 1 or not noise > 0.0:
        return math.nan
    ratio = (ours / ours_degrees) / (noise / noise_degrees)
    return float(fisher_snedecor.sf(ratio, ours_degrees, noise_degrees))


def _tail(measured: Measurement, left: Array, others: int) -> tuple[float, float, float, float]:
    """Squares and degrees of an FID's first three quarters, and of its last if that is noise."""
    cut = 3 * left.size // 4
    signal = measured.values[cut:] - left[cut:]
    noise = float(np.vdot(left[cut:], left[cut:]).real)
    if float(np.vdot(signal, signal).real) > noise / max(1.0, left.size - cut):
        noise = 0.0  # there is signal in it
    ours = float(np.vdot(left[:cut], left[:cut]).real)
    return ours, 2.0 * cut - 2 - others, noise, 2.0 * (left.size - cut)


def _rough(measured: Measurement) -> tuple[float, float]:
    """Squares and degrees of the noise by third differences, which a smooth decay leaves out.

    Their coefficients (1, -3, 3, -1) have squares that sum to 20; neighbours correlate, which
    leaves 400 / 924 of the degrees.
    """
    steps = np.diff(measured.times)
    if measured.times.size < 32 or np.ptp(steps) > 1e-3 * steps.mean():
        return 0.0, 0.0
    third = np.diff(measured.values.real, 3)
    degrees = third.size * 400.0 / 924.0
    return float((third**2).mean()) / 20.0 * degrees, degrees
