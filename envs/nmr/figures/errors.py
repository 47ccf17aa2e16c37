"""Errors: how fast methods reach theirs, and whether predicted ones are true."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.still import PALETTE

from .. import checks
from . import panels
from .panels import BLUE, GREY, ORANGE, Array, Panel, View

_DASHES = ("solid", "dash", "dashdot")


def error_against_time(
    methods: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]], T_bound: float, eps: float
) -> View:
    """Relative error of the abundance against time of measurement, and the bound on it.

    Args:
        methods: for each its times, s, ascending, and its relative errors there, both above 0.
        T_bound: no sequence reaches `eps` sooner, s; 0 where one shot is enough.
        eps: the error to be reached.

    Raises:
        ValueError: no method, or times and errors that do not fit.
        ImportError: plotly or matplotlib is missing.
    """
    checks.number("T_bound", T_bound, (0.0, 1e12), "s")
    checks.number("eps", eps, checks.RELATIVE_ERROR)
    if not methods:
        raise ValueError("methods: got none, allowed one or more")
    curves = {name: _times_and_errors(name, *pair) for name, pair in methods.items()}
    times = np.concatenate([t for t, _ in curves.values()] + [[T_bound]] * (T_bound > 0))
    errors = np.concatenate([100 * e for _, e in curves.values()] + [[100 * eps]])
    x_span = math.log10(times.min()), math.log10(times.max())
    y_span = math.log10(errors.min()), math.log10(errors.max())
    width, height = max(x_span[1] - x_span[0], 0.1), max(y_span[1] - y_span[0], 0.1)
    bottom, top = y_span[0] - 0.1 * height, y_span[1] + 0.14 * height
    left, right = x_span[0] - 0.04 * width, x_span[1] + 0.34 * width
    figure = panels.picture(
        "Error against time",
        [Panel(f"Target: {100 * eps:g} %", "time of measurement (s)", "relative error (%)")],
        440,
    )
    target = [100 * eps] * 2
    panels.curve(figure, 1, [10**left, 10**right], target, GREY, width=1.2, dash="dot")
    if T_bound > 0.0:
        panels.curve(figure, 1, [T_bound] * 2, [10**bottom, 10**top], GREY, width=1.6, dash="dash")
        words = f"{panels.rounded(T_bound)} s: no sequence\nreaches {100 * eps:g} % sooner"
        side = "left" if math.log10(T_bound) > (left + right) / 2 else "right"
        panels.note(
            figure, 1, T_bound, 10 ** (top - 0.07 * (top - bottom)), words, f"middle {side}"
        )
    ends = panels.apart(
        [math.log10(100 * error[-1]) for _, error in curves.values()],
        0.06 * (top - bottom), (bottom, top),
    )  # fmt: skip
    for number, ((name, (time, error)), y) in enumerate(zip(curves.items(), ends, strict=True)):
        colour = PALETTE[number % len(PALETTE)]
        dash = _DASHES[number // len(PALETTE) % len(_DASHES)]
        panels.curve(figure, 1, time, 100 * error, colour, dash=dash)
        figure.add_scatter(
            x=time[-1:], y=100 * error[-1:], mode="markers", showlegend=False,
            marker={"color": colour, "size": 8}, hoverinfo="skip",
        )  # fmt: skip
        panels.note(figure, 1, float(time[-1]), 10**y, f" {name}", colour=colour)
    for axis, (low, high) in (("xaxis", (left, right)), ("yaxis", (bottom, top))):
        ticks = _log_ticks(low, high)
        figure.layout[axis].update(
            type="log", range=[low, high], tickvals=ticks, ticktext=[f"{t:g}" for t in ticks]
        )
    return panels.view("Relative error of the abundance against time of measurement", figure)


def _times_and_errors(name: str, time: npt.ArrayLike, error: npt.ArrayLike) -> tuple[Array, Array]:
    t, e = np.asarray(time, np.float64), np.asarray(error, np.float64)
    if t.ndim != 1 or t.shape != e.shape or not t.size:
        raise ValueError(
            f"methods[{name!r}]: got times {t.shape} and errors {e.shape}, allowed (K,), K >= 1"
        )
    if not (np.isfinite(t) & np.isfinite(e) & (t > 0) & (e > 0)).all():
        raise ValueError(f"methods[{name!r}]: got values that are not finite and above 0")
    if (np.diff(t) < 0).any():
        raise ValueError(f"methods[{name!r}]: got times that decrease, allowed ascending ones")
    return t, e


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 of every decade within two powers of ten, or 1 only where there are many."""
    mantissas = (1, 2, 5) if high - low <= 3.5 else (1,)
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks = [float(f"{mantissa}e{k}") for k in decades for mantissa in mantissas]
    return [tick for tick in ticks if low <= math.log10(tick) <= high]


@dataclass(frozen=True)
class Calibration:
    """Errors of repeated estimates beside the predicted ones; intervals are of 95 %.

    Attributes:
        rmse: root mean square of the relative error.
        rmse_interval: from chi^2, for normal errors around the truth.
        bias: mean relative error.
        bias_interval: Student's t.
        predicted: root mean square of the predicted standard deviations, relative.
        spread: root mean square of error / predicted standard deviation; 1 is honest.
        spread_interval: from chi^2.
        inside: share of estimates within 1.96 predicted standard deviations; 0.95 is honest.
    """

    rmse: float
    rmse_interval: tuple[float, float]
    bias: float
    bias_interval: tuple[float, float]
    predicted: float
    spread: float
    spread_interval: tuple[float, float]
    inside: float


def calibration(
    estimates: npt.ArrayLike, predicted_sd: npt.ArrayLike, truth: float = 1.0
) -> Calibration:
    """What repeated estimates of an abundance say of their predicted errors.

    Args:
        estimates: (K,), two or more.
        predicted_sd: absolute standard deviations, of each or of all.
        truth: the abundance.

    Raises:
        ValueError: fewer than two estimates, values that are not finite, a truth or a standard
            deviation that is not above 0.
    """
    from scipy.stats import chi2, t

    values, sd = _estimates(estimates, predicted_sd, truth)
    n = len(values)
    error, scaled = values / truth - 1.0, (values - truth) / sd
    bias, deviation = float(error.mean()), float(error.std(ddof=1))
    half = float(t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)

    def around_zero(of: Array) -> tuple[float, tuple[float, float]]:
        square = float((of**2).sum())
        low, high = (math.sqrt(square / float(q)) for q in chi2.ppf([0.975, 0.025], n))
        return math.sqrt(square / n), (low, high)

    rmse, rmse_interval = around_zero(error)
    spread, spread_interval = around_zero(scaled)
    return Calibration(
        rmse=rmse,
        rmse_interval=rmse_interval,
        bias=bias,
        bias_interval=(bias - half, bias + half),
        predicted=math.sqrt(float((sd**2).mean())) / truth,
        spread=spread,
        spread_interval=spread_interval,
        inside=float((abs(scaled) <= 1.96).mean()),
    )


def calibration_view(
    estimates: npt.ArrayLike, predicted_sd: npt.ArrayLike, truth: float = 1.0
) -> View:
    """Histogram of errors over their predicted standard deviations, beside the honest normal curve.

    Args:
        estimates: (K,), two or more.
        predicted_sd: absolute standard deviations, of each or of all.
        truth: the abundance.

    Raises:
        ValueError: see `calibration`.
        ImportError: plotly or matplotlib is missing.
    """
    found = calibration(estimates, predicted_sd, truth)
    values, sd = _estimates(estimates, predicted_sd, truth)
    scaled = (values - truth) / sd
    reach = max(4.0, float(abs(scaled).max()) * 1.05)
    bins = int(np.clip(2 * reach / max(_bin_width(scaled), 2 * reach / 200), 8, 200))
    counts, edges = np.histogram(scaled, bins=bins, range=(-reach, reach))
    width = edges[1] - edges[0]
    density = counts / (len(scaled) * width)
    low, high = (100 * end for end in found.rmse_interval)
    less, more = (100 * end for end in found.bias_interval)
    title = (
        f"RMSE {100 * found.rmse:.2f} % [{low:.2f}, {high:.2f}], predicted "
        f"{100 * found.predicted:.2f} %; bias {100 * found.bias:+.2f} % [{less:+.2f}, {more:+.2f}]"
    )
    figure = panels.picture(
        "Calibration", [Panel(title, "error / predicted standard deviation", "density")], 420
    )
    figure.add_bar(
        x=(edges[1:] + edges[:-1]) / 2, y=density, width=width * 0.94, showlegend=False,
        marker={"color": panels.SKY},
    )  # fmt: skip
    grid = np.linspace(-reach, reach, 241)
    normal = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    panels.curve(figure, 1, grid, normal, ORANGE)
    top = 1.18 * max(float(density.max()), 0.4)
    mean = float(scaled.mean())
    panels.curve(figure, 1, [mean, mean], [0.0, top], BLUE, dash="dash")
    panels.curve(figure, 1, [0.0, 0.0], [0.0, top], GREY, width=1.2, dash="dot")
    panels.note(figure, 1, 1.3, 0.20, " as predicted", "middle right", ORANGE)
    side = "right" if mean >= 0 else "left"
    panels.note(figure, 1, mean, 0.96 * top, " mean " if mean else " mean", f"middle {side}", BLUE)
    other = "left" if side == "right" else "right"
    panels.note(figure, 1, 0.0, 0.96 * top, " truth ", f"middle {other}", GREY)
    figure.update_layout(xaxis_range=[-reach, reach], yaxis_range=[0.0, top], bargap=0.0)
    caption = (
        f"Errors of {len(scaled)} estimates over their predicted standard deviations: spread "
        f"{found.spread:.3f} [{found.spread_interval[0]:.3f}, {found.spread_interval[1]:.3f}] "
        f"where 1 is honest, {100 * found.inside:.1f} % within 1.96 where 95 % is; brackets are "
        "95 % intervals"
    )
    return panels.view(caption, figure)


def _bin_width(values: Array) -> float:
    """Freedman and Diaconis (1981): 2 IQR n^(-1/3)."""
    low, high = np.quantile(values, [0.25, 0.75])
    return float(2 * (high - low) * len(values) ** (-1 / 3))


def _estimates(estimates: Any, predicted_sd: Any, truth: float) -> tuple[Array, Array]:
    checks.number("truth", truth, (1e-300, 1e300))
    values = np.asarray(estimates, np.float64)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(
            f"estimates: got shape {values.shape}, allowed two or more finite values (K,)"
        )
    sd = np.asarray(predicted_sd, np.float64)
    if sd.shape not in ((), values.shape) or not (np.isfinite(sd) & (sd > 0)).all():
        raise ValueError(
            f"predicted_sd: got shape {sd.shape}, allowed one value or {len(values)}, above 0"
        )
    return values, np.broadcast_to(sd, values.shape)
