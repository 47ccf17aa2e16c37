"""Abundance from samples: the maximum a posteriori fit of (log A, log R1, log R2, log b1).

    minimise |y - A S(R1, R2, b1)|^2 / sigma^2 + sum_a ((a - a0) / sd_a)^2

by MINPACK's damped Gauss-Newton steps (Levenberg-Marquardt) with exact derivatives. Samples are
white, complex, with sigma per real component. What the fit says of its own error is the local
covariance; whether that can be trusted is a matter for Monte Carlo, not for the fit: with a wide
prior on the relaxation times it is too small.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from . import checks
from .bloch import Array, Ensemble
from .events import EventList
from .information import PARAMETERS, signal_with_slopes

TOLERANCE = 1e-12
SIDE = 0.02  # of log b1, to begin from
LACK_OF_FIT = 1e-3  # p of chi^2 below which the model does not describe the samples


@dataclass(frozen=True)
class Prior:
    """What is known before: Gaussians on the logarithms, around the values of the ensemble.

    Attributes:
        log_A_sd: of the abundance; infinite says nothing.
        log_R1_sd: of 1 / T1; 0 takes it as known.
        log_R2_sd: of 1 / T2; 0 takes it as known.
        log_b1_sd: of the transmit field; 0 takes it as known.
    """

    log_A_sd: float = math.inf
    log_R1_sd: float = 0.0
    log_R2_sd: float = 0.0
    log_b1_sd: float = 0.0

    def __post_init__(self) -> None:
        for name in ("log_A_sd", "log_R1_sd", "log_R2_sd", "log_b1_sd"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and value >= 0):
                raise ValueError(f"{name}: got {value!r}, allowed 0 or more; inf says nothing")

    @property
    def spread(self) -> Array:
        """The four standard deviations, in the order of `PARAMETERS`."""
        return np.array(dataclasses.astuple(self))


@dataclass(frozen=True)
class Fit:
    """What the samples say.

    Attributes:
        abundance: A.
        T1_factor: T1 over that of the ensemble.
        T2_factor: likewise.
        b1_factor: likewise.
        covariance: of the logarithms in the order of `PARAMETERS`, local, (4, 4).
        chi2: sum of squared residuals over sigma^2.
        degrees: real samples minus fitted parameters.
        p: chance of a chi2 this large if the model is right.
        converged: whether the steps have become small.
    """

    abundance: float
    T1_factor: float
    T2_factor: float
    b1_factor: float
    covariance: Array
    chi2: float
    degrees: int
    p: float
    converged: bool

    @property
    def relative_error(self) -> float:
        """Local standard deviation of log A."""
        return float(self.covariance[0, 0] ** 0.5)

    @property
    def lacks_fit(self) -> bool:
        """Whether the model does not describe the samples, such as one species for two."""
        return self.p < LACK_OF_FIT


def fit(
    samples: Array,
    events: EventList,
    ensemble: Ensemble,
    sigma: float,
    prior: Prior = Prior(),
    start: Array | None = None,
) -> Fit:
    """Fit abundance, and what else is not known, to the samples of one experiment.

    Args:
        samples: complex (K,), as `palestra.envs.nmr.events.run` gives them, with noise; the mean
            over the scans of the list.
        events: what was done; hard pulses.
        ensemble: one experiment with the expected T1, T2 and field.
        sigma: standard deviation of the noise, per real component of a sample of one scan.
        prior: what is known of each parameter.
        start: logarithms to begin from, (4,); None begins at the prior's centre.

    Raises:
        ValueError: samples that are not finite or of another number than the events have; a
            sigma that is not positive; no sample; nothing to fit, or more than the samples can
            determine.
    """
    from scipy.optimize import least_squares

    checks.number("sigma", sigma, (1e-300, 1e300))
    sigma /= math.sqrt(events.scans)
    expected = sum(event.receive.samples for event in events if event.receive)
    samples = np.asarray(samples, complex)
    if samples.shape != (expected,) or expected == 0:
        raise ValueError(f"samples: got shape {samples.shape}, allowed ({expected},), one or more")
    if not np.isfinite(samples).all():
        raise ValueError("samples: not all are finite")
    spread = prior.spread
    free = np.flatnonzero(spread > 0)
    if free.size == 0:
        raise ValueError(f"prior: got {prior}, allowed at least one parameter that is not known")
    weight = 1.0 / spread[free]  # an infinite spread says nothing

    def model(at: Array) -> tuple[Array, Array]:
        value = np.zeros(len(PARAMETERS))
        value[free] = at
        return _scaled_model(events, ensemble, sigma, value, free)

    def residual(at: Array) -> Array:
        left = model(at)[0] - samples / sigma
        return np.concatenate([left.real, left.imag, weight * at])

    def slopes(at: Array) -> Array:
        found = model(at)[1]
        return np.vstack([found.real.T, found.imag.T, np.diag(weight)])

    begin = np.zeros(len(PARAMETERS)) if start is None else np.array(start, float)
    if start is None and 0 in free:
        begin[0] = _first_amplitude(samples, events, ensemble)
    starts = [begin]
    if start is None and 3 in free:  # around 90 degrees b1 and 1 / b1 look alike: try either side
        side = min(float(spread[3]), SIDE)
        starts = [begin + side * np.array([0, 0, 0, sign]) for sign in (1, -1)]
    best = min(
        (
            least_squares(residual, one[free], slopes, method="lm", xtol=TOLERANCE, ftol=TOLERANCE)
            for one in starts
        ),
        key=lambda end: float(end.cost),
    )
    value = np.zeros(len(PARAMETERS))
    value[free] = best.x
    try:
        inverse = np.linalg.inv(best.jac.T @ best.jac)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"samples: they do not determine {', '.join(PARAMETERS[k] for k in free)}; give the "
            "prior a finite spread, or take other events"
        ) from None
    left = best.fun[: 2 * expected]
    covariance = np.zeros((len(PARAMETERS), len(PARAMETERS)))
    covariance[np.ix_(free, free)] = inverse
    chi2, degrees = float(left @ left), 2 * expected - len(free)
    return Fit(
        abundance=math.exp(value[0]),
        T1_factor=math.exp(-value[1]),
        T2_factor=math.exp(-value[2]),
        b1_factor=math.exp(value[3]),
        covariance=covariance,
        chi2=chi2,
        degrees=degrees,
        p=_upper_tail(chi2, degrees),
        converged=best.status > 0,
    )


def _first_amplitude(samples: Array, events: EventList, ensemble: Ensemble) -> float:
    """Log A of the linear fit at the prior's centre; 0 where that is not positive."""
    model, _ = signal_with_slopes(events, ensemble)
    overlap, power = np.vdot(model, samples).real, np.vdot(model, model).real
    return math.log(overlap / power) if overlap > 0 and power > 0 else 0.0


def _scaled_model(
    events: EventList, ensemble: Ensemble, sigma: float, value: Array, free: Array
) -> tuple[Array, Array]:
    """The model and its derivatives by the free parameters, both over sigma."""
    changed = dataclasses.replace(
        ensemble,
        R1=ensemble.R1 * math.exp(value[1]),
        R2=ensemble.R2 * math.exp(value[2]),
        b1=ensemble.b1 * math.exp(value[3]),
    )
    model, slopes = signal_with_slopes(events, changed)
    factor = math.exp(value[0]) / sigma
    return factor * model, factor * slopes[free]


def _upper_tail(chi2: float, degrees: int) -> float:
    from scipy.special import chdtrc

    return float(chdtrc(degrees, chi2)) if degrees > 0 else 1.0
