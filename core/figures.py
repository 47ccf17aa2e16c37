"""Pictures that every run needs, drawn twice: by Plotly, and still, by matplotlib.

A figure is described once, as Plotly scatter and bar traces; `static_picture` draws the same
traces without a browser. Colours are those of Okabe and Ito (2008), readable by colour-blind
people and, in this order, on white and on black; markers differ too, so that colour is never the
only difference.
"""

from __future__ import annotations

import html
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from .claims import Quantity

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
"""Okabe and Ito, "Color Universal Design" (2008); black and yellow left out (invisible on one
of the two backgrounds), grey added."""

MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross")

POINTS_SHOWN = 2000
"""More points of one group than this hide each other; an even selection is drawn and said."""

FORMS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
"""Forms of a still picture, with the metadata that would make two of them differ."""

_GREY = PALETTE[-1]
_MATPLOTLIB_MARKERS = dict(zip(MARKERS, "osD^xv+", strict=True))
_MATPLOTLIB_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_TAG = re.compile(r"<[^>]*>")


class Picture(NamedTuple):
    """The same picture for the page and for paper: `report.plot(caption, *picture)`."""

    figure: Figure
    png: bytes


def require_report_extra(package: str) -> NoReturn:
    """Raise with the command that installs the packages that reports need."""
    raise ImportError(
        f'{package} is not installed; reports need it: pip install "palestra[report]"', name=package
    )


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
                "dash": list(_MATPLOTLIB_DASHES)[number % len(_MATPLOTLIB_DASHES)],
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


def static_picture(figure: Figure, form: str = "png") -> bytes:
    """The still picture of a Plotly figure of scatter and bar traces, drawn by matplotlib.

    Drawn are lines, markers, steps, error bars, filled areas, straight lines added by
    `add_hline`/`add_vline` with their labels, axis titles, ranges, types and tick texts.

    Args:
        figure: a figure with one pair of axes.
        form: one of `FORMS`.

    Returns:
        The bytes of the file, on white; the same bytes for the same figure.

    Raises:
        ValueError: another form; or traces of another kind: draw those yourself and pass the
            picture along.
        ImportError: matplotlib is missing.
    """
    if form not in FORMS:
        raise ValueError(f"form: got {form!r}, allowed {', '.join(FORMS)}")
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        require_report_extra("matplotlib")
    for index, trace in enumerate(figure.data):
        if trace.type not in ("scatter", "scattergl", "bar") or (
            trace.xaxis not in (None, "x") or trace.yaxis not in (None, "y")
        ):
            raise ValueError(
                f"figure.data[{index}] is a {trace.type} trace on axes {trace.xaxis or 'x'}, "
                f"{trace.yaxis or 'y'}: a still picture is drawn of scatter and bar traces on one "
                "pair of axes; give fallback_png"
            )
    layout = figure.layout
    drawing = Drawing(figsize=(7.6, (layout.height or 400) / 100), dpi=150, layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e3e3", linewidth=0.7)
    axes.set_axisbelow(True)
    previous: tuple[Any, Any] | None = None
    for index, trace in enumerate(figure.data):
        if trace.visible in (False, "legendonly"):
            continue
        colour = PALETTE[index % len(PALETTE)]
        if trace.type == "bar":
            _draw_bars(axes, trace, colour)
        else:
            previous = _draw_scatter(axes, trace, colour, previous)
    for shape in layout.shapes:
        _draw_shape(axes, shape)
    for note in layout.annotations:
        _draw_annotation(axes, note)
    _draw_axis(axes, "x", layout.xaxis)
    _draw_axis(axes, "y", layout.yaxis)
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1 and layout.showlegend is not False:
        drawing.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=_legend_columns(labels),
            frameon=False,
            fontsize=9,
        )
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "palestra", "svg.fonttype": "none"}):
        drawing.savefig(buffer, format=form, metadata=FORMS[form])
    return buffer.getvalue()


def _legend_columns(labels: Sequence[str]) -> int:
    """As many as fit beside each other, with the line before each and the gap after it."""
    longest = max(len(label) for label in labels)
    return max(1, min(len(labels), 4, 100 // (longest + 8)))


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


def _plain(text: str | None) -> str:
    """Plotly's text for matplotlib: no tags, no entities, no mathematics between dollars."""
    return html.unescape(_TAG.sub("", text or "")).replace("$", r"\$")


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


def _draw_scatter(
    axes: Any, trace: Any, colour: str, previous: tuple[Any, Any] | None
) -> tuple[Any, Any]:
    y = np.asarray(trace.y)
    x = np.arange(len(y)) if trace.x is None else np.asarray(trace.x)
    mode = trace.mode or ("lines+markers" if len(x) < 20 else "lines")
    opacity = 1.0 if trace.opacity is None else trace.opacity
    line_colour = _colour(trace.line.color, colour)
    label = _plain(trace.name) if trace.name and trace.showlegend is not False else None
    drawstyle = {"hv": "steps-post", "vh": "steps-pre", "hvh": "steps-mid"}
    if trace.fill:
        fill = _colour(trace.fillcolor, (*_rgb(line_colour), 0.3))
        if trace.fill == "toself":
            axes.fill(x, y, facecolor=fill, edgecolor="none")
        elif trace.fill == "tonexty" and previous is not None:
            axes.fill(
                np.concatenate([x, previous[0][::-1]]),
                np.concatenate([y, previous[1][::-1]]),
                facecolor=fill,
                edgecolor="none",
            )
        else:
            axes.fill_between(x, y, facecolor=fill, edgecolor="none")
    lines = axes.plot(
        x,
        y,
        color=line_colour,
        alpha=opacity,
        linestyle=_MATPLOTLIB_DASHES.get(trace.line.dash or "solid", "-")
        if "lines" in mode
        else "none",
        linewidth=2.0 if trace.line.width is None else trace.line.width,
        drawstyle=drawstyle.get(trace.line.shape, "default"),
        label=label if "markers" not in mode else None,
    )
    if "markers" in mode:
        marker = trace.marker
        shape = marker.symbol if isinstance(marker.symbol, str) else "circle"
        size = marker.size if isinstance(marker.size, int | float) else 6
        marker_opacity = marker.opacity if isinstance(marker.opacity, int | float) else 1.0
        axes.plot(
            x,
            y,
            linestyle=lines[0].get_linestyle(),
            linewidth=lines[0].get_linewidth(),
            marker=_MATPLOTLIB_MARKERS.get(shape, "o"),
            markersize=0.8 * size,
            color=_colour(marker.color, line_colour),
            alpha=marker_opacity * opacity,
            markeredgewidth=1.5 if shape in ("x", "cross") else 0,
            label=label,
        )
    if "text" in mode and trace.text is not None:
        texts = [trace.text] * len(x) if isinstance(trace.text, str) else trace.text
        for place_x, place_y, text in zip(x, y, texts, strict=True):
            axes.annotate(_plain(text), (place_x, place_y), fontsize=9, ha="center", va="bottom")
    for axis, error in (("xerr", trace.error_x), ("yerr", trace.error_y)):
        if error is not None and error.array is not None:
            above = np.asarray(error.array)
            below = above if error.arrayminus is None else np.asarray(error.arrayminus)
            style: dict[str, Any] = {axis: np.stack([below, above])}
            axes.errorbar(
                x,
                y,
                fmt="none",
                ecolor=_colour(error.color, line_colour),
                elinewidth=error.thickness or 2,
                capsize=error.width or 3,
                **style,
            )
    return x, y


def _draw_bars(axes: Any, trace: Any, colour: str) -> None:
    fill = _colour(trace.marker.color, colour)
    label = _plain(trace.name) if trace.name and trace.showlegend is not False else None
    x, y = np.asarray(trace.x), np.asarray(trace.y)
    if trace.orientation == "h":
        axes.barh(y, x, color=fill, label=label)
    else:
        axes.bar(x, y, color=fill, label=label)


def _draw_shape(axes: Any, shape: Any) -> None:
    if shape.type != "line":
        return
    style = {
        "color": _colour(shape.line.color, _GREY),
        "linewidth": shape.line.width or 1.5,
        "linestyle": _MATPLOTLIB_DASHES.get(shape.line.dash or "solid", "-"),
    }
    if shape.xref == "x domain":
        axes.axhline(shape.y0, **style)
    elif shape.yref == "y domain":
        axes.axvline(shape.x0, **style)
    else:
        axes.plot([shape.x0, shape.x1], [shape.y0, shape.y1], **style)


def _draw_annotation(axes: Any, note: Any) -> None:
    across = axes.transAxes if note.xref == "x domain" else axes.transData
    up = axes.transAxes if note.yref == "y domain" else axes.transData
    axes.annotate(
        _plain(note.text),
        (note.x, note.y),
        xycoords=(across, up),
        fontsize=9,
        color="#444444",
        ha={"left": "left", "right": "right"}.get(note.xanchor, "center"),
        va={"top": "top", "bottom": "bottom"}.get(note.yanchor, "center"),
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )


def _draw_axis(axes: Any, which: str, axis: Any) -> None:
    if axis.title.text:
        getattr(axes, f"set_{which}label")(_plain(axis.title.text))
    if axis.type == "log":
        getattr(axes, f"set_{which}scale")("log")
    if axis.tickvals is not None:
        texts = axis.ticktext if axis.ticktext is not None else [str(v) for v in axis.tickvals]
        getattr(axes, f"set_{which}ticks")(list(axis.tickvals), [_plain(text) for text in texts])
        if not any(texts):  # names stand in the picture, not beside it
            axes.tick_params(axis=which, length=0)
            axes.spines["left" if which == "y" else "bottom"].set_visible(False)
        if axis.type == "log":  # no labels between those that were asked for
            getattr(axes, f"{which}axis").set_minor_formatter("")
    if axis.range is not None:
        ends = [10.0**end for end in axis.range] if axis.type == "log" else list(axis.range)
        getattr(axes, f"set_{which}lim")(ends)
    if axis.autorange == "reversed":
        getattr(axes, f"invert_{which}axis")()
    if axis.showgrid is False:
        axes.grid(visible=False, axis=which)


def _colour(given: Any, default: Any) -> Any:
    """A Plotly colour as matplotlib reads it."""
    if not isinstance(given, str):
        return default
    match = re.fullmatch(r"rgba?\(([^)]*)\)", given.strip())
    if match is None:
        return given
    parts = [float(part) for part in match.group(1).split(",")]
    return (*(part / 255 for part in parts[:3]), parts[3] if len(parts) > 3 else 1.0)


def _rgb(colour: Any) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)
