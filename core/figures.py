"""Pictures that every run needs, drawn twice: by Plotly, and still, by matplotlib.

A figure is described once, as Plotly traces; `still.static_picture` draws the same traces without
a browser. Colours are those of Okabe and Ito (2008), readable by colour-blind people and, in this
order, on white and on black; markers differ too, so that colour is never the only difference.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .still import DASHES
from .still import FORMS as FORMS
from .still import GREY as _GREY
from .still import MARKERS as MARKERS
from .still import PALETTE as PALETTE
from .still import require_report_extra as require_report_extra
from .still import static_picture as static_picture

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from .claims import Quantity

POINTS_SHOWN = 2000
"""More points of one group than this hide each other; an even selection is drawn and said."""


class Picture(NamedTuple):
    """The same picture for the page and for paper: `report.plot(caption, *picture)`."""

    figure: Figure
    png: bytes


def learning_curve(
    runs: Mapping[str, Sequence[tuple[ArrayLike, ArrayLike]]],
    *,
    x_label: str = "environment steps",
    y_label: str = "return",
    references: Mapping[str, float] | None = None,
) -> Picture:
    """Score against training, every run as a line of its own.

    From three runs on, a thicker line is their median at each step that all of them cover. No
    band is drawn: the runs themselves are the honest picture of how far they scatter.

    Args:
        runs: for each learner its runs, each `(steps (T,), values (T,))` with increasing steps.
        x_label: what the steps count.
        y_label: what the values are, with their unit.
        references: horizontal lines, such as the best classical score or a bound.

    Raises:
        ValueError: no run, a run whose arrays differ in length or whose steps decrease.
    """
    figure = _figure(x_label, y_label)
    if not any(runs.values()):
        raise ValueError("runs is empty: a learning curve needs at least one run")
    for number, (name, curves) in enumerate(runs.items()):
        colour = PALETTE[number % len(PALETTE)]
        arrays = [_curve(name, index, curve) for index, curve in enumerate(curves)]
        several = len(arrays) >= 3
        for index, (steps, values) in enumerate(arrays):
            few_points = len(steps) <= 40 and not several
            figure.add_scatter(
                x=steps,
                y=values,
                mode="lines+markers" if few_points else "lines",
                line={"color": colour, "width": 1 if several else 2},
                marker={"symbol": MARKERS[number % len(MARKERS)], "size": 6},
                opacity=0.45 if several else 1.0,
                name=_label(name),
                legendgroup=_label(name),
                showlegend=index == 0 and not several,
            )
        if several:
            steps, middle = _median_curve(arrays)
            figure.add_scatter(
                x=steps,
                y=middle,
                mode="lines",
                line={"color": colour, "width": 3},
                name=_label(f"{name}, median of {len(arrays)} runs"),
                legendgroup=_label(name),
            )
    _reference_lines(figure, references or {}, horizontal=True)
    return _picture(figure)


def distributions(
    groups: Mapping[str, ArrayLike],
    *,
    x_label: str,
    references: Mapping[str, float] | None = None,
) -> Picture:
    """One strip a group: every value as a point, the quartiles, and from 20 values the density.

    The density (a Gaussian kernel, Silverman's bandwidth) is drawn only between the smallest and
    the largest value: none is shown where nothing was measured.

    Args:
        groups: for each name its values `(n,)`, such as one a episode.
        x_label: what the values are, with their unit.
        references: vertical lines.

    Raises:
        ValueError: no group, an empty one, or values that are not finite.
    """
    names = list(groups)
    arrays = _finite_groups(groups)
    figure = _figure(x_label, "")
    for number, (name, values) in enumerate(zip(names, arrays, strict=True)):
        row = len(names) - 1 - number
        colour = PALETTE[number % len(PALETTE)]
        if len(values) >= 20 and np.ptp(values) > 0:
            grid, density = _density(values)
            outline = 0.3 * density / density.max()
            figure.add_scatter(
                x=np.concatenate([grid, grid[::-1]]),
                y=row + 0.05 + np.concatenate([outline, np.zeros_like(outline)]),
                mode="lines",
                line={"color": colour, "width": 1},
                fill="toself",
                fillcolor=_transparent(colour, 0.18),
                hoverinfo="skip",
                showlegend=False,
            )
        shown = _even_selection(values)
        figure.add_scatter(
            x=shown,
            y=row - 0.17 + 0.2 * (_golden_fractions(len(shown)) - 0.5),
            mode="markers",
            marker={
                "color": colour,
                "size": 5 if len(shown) < 200 else 4,
                "opacity": 0.7 if len(shown) < 200 else 0.35,
                "symbol": MARKERS[number % len(MARKERS)],
            },
            name=_label(name),
            showlegend=False,
            hovertemplate="%{x}<extra>" + _label(name) + "</extra>",
        )
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        figure.add_scatter(
            x=[low, high],
            y=[row, row],
            mode="lines",
            line={"color": colour, "width": 4},
            hovertemplate="quartile %{x}<extra>" + _label(name) + "</extra>",
            showlegend=False,
        )
        figure.add_scatter(
            x=[middle],
            y=[row],
            mode="markers",
            marker={"color": colour, "size": 11, "symbol": MARKERS[number % len(MARKERS)]},
            hovertemplate="median %{x}<extra>" + _label(name) + "</extra>",
            showlegend=False,
        )
    _name_rows(figure, [_counted(n, a) for n, a in zip(names, arrays, strict=True)])
    _reference_lines(figure, references or {}, horizontal=False)
    return _picture(figure)


def cumulative(
    groups: Mapping[str, ArrayLike],
    *,
    x_label: str,
    references: Mapping[str, float] | None = None,
) -> Picture:
    """Empirical distribution functions: the share of values at or below x. Every value counts.

    Args:
        groups: for each name its values `(n,)`.
        x_label: what the values are, with their unit.
        references: vertical lines.

    Raises:
        ValueError: no group, an empty one, or values that are not finite.
    """
    figure = _figure(x_label, "share of episodes at or below")
    for number, (name, values) in enumerate(zip(groups, _finite_groups(groups), strict=True)):
        ends, counts = np.unique(values, return_counts=True)
        share = np.cumsum(counts) / len(values)
        figure.add_scatter(
            x=np.concatenate([ends[:1], ends]),
            y=np.concatenate([[0.0], share]),
            mode="lines",
            line={
                "color": PALETTE[number % len(PALETTE)],
                "width": 2,
                "shape": "hv",
                "dash": list(DASHES)[number % len(DASHES)],
            },
            name=_label(_counted(name, values)),
        )
    figure.update_yaxes(range=[0, 1.02])
    _reference_lines(figure, references or {}, horizontal=False)
    return _picture(figure)


def paired_differences(
    differences: Mapping[str, ArrayLike],
    *,
    x_label: str,
    means: Mapping[str, Quantity] | None = None,
) -> Picture:
    """Differences on the same episodes: every pair as a point, the mean with its interval, zero.

    Args:
        differences: for each comparison, such as `"PPO - DEFT"`, ours minus theirs `(n,)`.
        x_label: what is subtracted, with its unit and which sign is good.
        means: for each comparison its mean and interval (`palestra.stats`); a comparison left
            out shows points only.

    Raises:
        ValueError: no comparison, an empty one, values that are not finite, or a mean of a
            comparison that is not there.
    """
    means = means or {}
    for name in means:
        if name not in differences:
            raise ValueError(f"means[{name!r}]: allowed are {', '.join(map(repr, differences))}")
    names = list(differences)
    arrays = _finite_groups(differences)
    figure = _figure(x_label, "")
    for number, (name, values) in enumerate(zip(names, arrays, strict=True)):
        row = len(names) - 1 - number
        colour = PALETTE[number % len(PALETTE)]
        shown = _even_selection(values)
        figure.add_scatter(
            x=shown,
            y=row - 0.13 + 0.28 * (_golden_fractions(len(shown)) - 0.5),
            mode="markers",
            marker={
                "color": colour,
                "size": 5 if len(shown) < 200 else 4,
                "opacity": 0.7 if len(shown) < 200 else 0.35,
                "symbol": MARKERS[number % len(MARKERS)],
            },
            hovertemplate="%{x}<extra>" + _label(name) + "</extra>",
            showlegend=False,
        )
        if name in means:
            mean = means[name]
            low, high = mean.interval or (mean.value, mean.value)
            figure.add_scatter(
                x=[mean.value],
                y=[row + 0.16],
                mode="markers",
                marker={"color": colour, "size": 11, "symbol": MARKERS[number % len(MARKERS)]},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [high - mean.value],
                    "arrayminus": [mean.value - low],
                    "color": colour,
                    "thickness": 3,
                    "width": 6,
                },
                hovertemplate="mean %{x}<extra>" + _label(name) + "</extra>",
                showlegend=False,
            )
    _name_rows(figure, [_counted(n, a) for n, a in zip(names, arrays, strict=True)])
    _reference_lines(figure, {"no difference": 0.0}, horizontal=False)
    return _picture(figure)


def score_by_value(
    values: Sequence[Any],
    scores: Sequence[Quantity],
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
    best: int | None = None,
) -> Picture:
    """Scores of trials against one of their parameters, each with its interval.

    Numbers stand on an axis of numbers; anything else gets a place of its own, in the order in
    which it first occurs.

    Args:
        values: of the parameter, one a trial.
        scores: of the trials.
        x_label: name of the parameter.
        y_label: what is scored.
        log: the parameter on a logarithmic axis.
        best: index of the trial that is marked.

    Raises:
        ValueError: no trial, or another number of scores.
    """
    if not values or len(values) != len(scores):
        raise ValueError(
            f"values and scores have {len(values)} and {len(scores)} entries: must be equally many"
        )
    figure = _figure(x_label, y_label)
    places: Sequence[float] = values
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        texts = [json.dumps(value) if not isinstance(value, str) else value for value in values]
        names = list(dict.fromkeys(texts))
        places = [names.index(text) for text in texts]
        figure.update_xaxes(
            tickvals=list(range(len(names))),
            ticktext=[_label(name) for name in names],
            range=[-0.5, len(names) - 0.5],
        )
    elif log:
        ticks = _log_ticks(min(values), max(values))
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    for chosen, name in ((False, "trial"), (True, "best")):
        indices = [k for k in range(len(values)) if (k == best) == chosen]
        if not indices:
            continue
        ends = [scores[k].interval or (scores[k].value, scores[k].value) for k in indices]
        colour = PALETTE[1 if chosen else 0]
        figure.add_scatter(
            x=[places[k] for k in indices],
            y=[scores[k].value for k in indices],
            mode="markers",
            marker={"color": colour, "size": 11 if chosen else 8, "symbol": MARKERS[2 * chosen]},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [
                    high - scores[k].value for k, (_, high) in zip(indices, ends, strict=True)
                ],
                "arrayminus": [
                    scores[k].value - low for k, (low, _) in zip(indices, ends, strict=True)
                ],
                "color": colour,
                "thickness": 1,
                "width": 3,
            },
            name=name,
        )
    return _picture(figure)


def _log_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: 1, 2, 5 of every decade, or 1 only where there are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    mantissas = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = [float(f"{mantissa}e{k}") for k in decades for mantissa in mantissas]
    below = max(tick for tick in ticks if tick <= low)
    above = min(tick for tick in ticks if tick >= high)
    return [tick for tick in ticks if below <= tick <= above]


def _figure(x_label: str, y_label: str) -> Figure:
    try:
        from plotly.graph_objects import Figure
    except ImportError:
        require_report_extra("plotly")
    figure = Figure()
    figure.update_layout(
        xaxis={"title": {"text": _label(x_label)}}, yaxis={"title": {"text": _label(y_label)}}
    )
    return figure


def _picture(figure: Figure) -> Picture:
    return Picture(figure, static_picture(figure))


def _label(text: str) -> str:
    """Text for Plotly, which would otherwise read its own markup in it."""
    return html.escape(text, quote=False)


def _transparent(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _counted(name: str, values: NDArray[np.float64]) -> str:
    shown = len(_even_selection(values))
    return f"{name}, n = {len(values)}" + (f" ({shown} drawn)" if shown < len(values) else "")


def _curve(
    name: str, index: int, curve: tuple[ArrayLike, ArrayLike]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    steps = np.asarray(curve[0], dtype=np.float64)
    values = np.asarray(curve[1], dtype=np.float64)
    if steps.ndim != 1 or steps.shape != values.shape or len(steps) == 0:
        raise ValueError(
            f"runs[{name!r}][{index}]: steps {steps.shape} and values {values.shape} must be two "
            "arrays (T,) with T >= 1"
        )
    if np.any(np.diff(steps) <= 0):
        raise ValueError(f"runs[{name!r}][{index}]: steps must increase")
    return steps, values


def _median_curve(
    curves: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    start = max(steps[0] for steps, _ in curves)
    end = min(steps[-1] for steps, _ in curves)
    grid = np.unique(np.concatenate([steps for steps, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    table = np.stack([np.interp(grid, steps, values) for steps, values in curves])
    return grid, np.median(table, axis=0)


def _finite_groups(groups: Mapping[str, ArrayLike]) -> list[NDArray[np.float64]]:
    if not groups:
        raise ValueError("no group is given: at least one is needed")
    arrays = []
    for name, values in groups.items():
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 1 or len(array) == 0:
            raise ValueError(f"{name!r} has shape {array.shape}: must be (n,) with n >= 1")
        if not np.isfinite(array).all():
            raise ValueError(f"{name!r}: {np.sum(~np.isfinite(array))} values are not finite")
        arrays.append(array)
    return arrays


def _even_selection(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """At most `POINTS_SHOWN` values, evenly spaced in rank, both ends included."""
    if len(values) <= POINTS_SHOWN:
        return values
    ranks = np.linspace(0, len(values) - 1, POINTS_SHOWN).round().astype(np.int64)
    return np.sort(values)[ranks]


def _golden_fractions(count: int) -> NDArray[np.float64]:
    """Evenly scattered numbers in [0, 1): points jittered by these never clump."""
    golden = (np.sqrt(5.0) - 1.0) / 2.0
    return np.asarray(np.mod(np.arange(1, count + 1) * golden, 1.0))


def _density(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gaussian kernel density; bandwidth 0.9 min(s, IQR/1.34) n^(-1/5), Silverman (1986) 3.31."""
    deviation = float(np.std(values, ddof=1))
    spread = float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / 1.34
    width = 0.9 * (min(deviation, spread) if spread > 0 else deviation) * len(values) ** -0.2
    grid = np.linspace(values.min(), values.max(), 200)
    centres, counts = values, np.ones(len(values))
    if len(values) > 5000:  # 5000 bins are far finer than the kernel
        counts, edges = np.histogram(values, bins=5000)
        centres = (edges[:-1] + edges[1:]) / 2
    kernel = np.exp(-0.5 * ((grid[:, None] - centres[None, :]) / width) ** 2)
    return grid, kernel @ counts / (len(values) * width * np.sqrt(2 * np.pi))


def _name_rows(figure: Figure, names: Sequence[str]) -> None:
    """One row a name, the first on top; the name stands above its row, also on narrow screens."""
    count = len(names)
    figure.update_layout(height=90 + 110 * count)
    figure.update_yaxes(
        tickvals=list(range(count)),
        ticktext=[""] * count,
        range=[-0.45, count - 0.3],
        showgrid=False,
        zeroline=False,
    )
    for number, name in enumerate(names):
        figure.add_annotation(
            text=f"<b>{_label(name)}</b>",
            x=0,
            xref="x domain",
            xanchor="left",
            y=count - 1 - number + 0.42,
            yanchor="bottom",
            showarrow=False,
        )


def _reference_lines(figure: Figure, references: Mapping[str, float], *, horizontal: bool) -> None:
    middle = 0.0
    if horizontal and references:  # room for the name above the highest line
        heights = [np.asarray(trace.y, dtype=np.float64) for trace in figure.data]
        every = np.concatenate([*heights, list(references.values())])
        low, high = np.nanmin(every), np.nanmax(every)
        middle = (low + high) / 2
        margin = 0.08 * ((high - low) or abs(high) or 1.0)
        figure.update_yaxes(range=[low - margin, high + margin])
    for number, (name, value) in enumerate(references.items()):
        line = {"color": _GREY, "width": 1.5, "dash": ("dash", "dot", "dashdot")[number % 3]}
        note = {"text": _label(name), "font": {"size": 12}}
        if horizontal:  # learning curves rise: the corners they leave free
            side = "top left" if value > middle else "top right"
            figure.add_hline(y=value, line=line, annotation=note, annotation_position=side)
        else:
            figure.add_vline(
                x=value, line=line, annotation=note, annotation_position="bottom right"
            )
