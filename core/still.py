"""Still pictures of Plotly figures, drawn by matplotlib without a browser."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
"""Okabe and Ito, "Color Universal Design" (2008); black and yellow left out (invisible on one
of the two backgrounds), grey added."""

MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross")

GREY = PALETTE[-1]

FORMS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
"""Forms of a still picture, with the metadata that would make two of them differ."""

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
"""Dashes of lines, and what matplotlib calls them."""

_MARKERS = dict(zip(MARKERS, "osD^xv+", strict=True))
_TAG = re.compile(r"<[^>]*>")
_BREAK = re.compile(r"<br\s*/?>")
_KINDS = ("scatter", "scattergl", "bar", "heatmap")
_INK = "#333333"
_WIDTH = 7.6  # inches
_MARGINS = {"left": 0.75, "right": 0.2, "bottom": 0.55, "top": 0.4}  # inches, of several panels
_COLOUR_BAR = 1.0  # inches beside the panels


def require_report_extra(package: str) -> NoReturn:
    """Raise with the command that installs the packages that reports need."""
    raise ImportError(
        f'{package} is not installed; reports need it: pip install "palestra[report]"', name=package
    )


def static_picture(figure: Figure, form: str = "png") -> bytes:
    """The still picture of a Plotly figure of scatter, bar and heat-map traces.

    Drawn are lines, markers, texts, steps, error bars, filled areas, coloured cells with their
    texts and colour bars, straight lines added by `add_hline`/`add_vline` with their labels, the
    title, axis titles, ranges, types and tick texts; one pair of axes, or several in their domains.

    Args:
        figure: of those traces.
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
        if trace.type not in _KINDS:
            raise ValueError(
                f"figure.data[{index}] is a {trace.type} trace: a still picture is drawn of "
                f"{', '.join(_KINDS)} traces; give fallback_png"
            )
    layout = figure.layout
    size = (_WIDTH, (layout.height or 400) / 100)
    pairs = _pairs_of_axes(figure)
    drawing = Drawing(figsize=size, dpi=150, layout="constrained" if len(pairs) == 1 else None)
    FigureCanvasAgg(drawing)
    panels = {pair: _panel(drawing, figure, pair, alone=len(pairs) == 1) for pair in pairs}
    _draw_traces(drawing, panels, figure)
    first = panels[pairs[0]]
    for shape in layout.shapes:
        _draw_shape(panels.get(_pair(shape.xref, shape.yref), first), shape)
    for note in layout.annotations:
        _draw_annotation(panels.get(_pair(note.xref, note.yref), first), note)
    for (across, up), axes in panels.items():
        _draw_axis(axes, "x", layout[_axis_name(across)])
        _draw_axis(axes, "y", layout[_axis_name(up)])
    if layout.title.text:
        drawing.suptitle(plain(layout.title.text), x=0.01, ha="left", fontsize=11, color=_INK)
    _draw_legend(drawing, panels, figure)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "palestra", "svg.fonttype": "none"}):
        drawing.savefig(buffer, format=form, metadata=FORMS[form])
    return buffer.getvalue()


def plain(text: str | None) -> str:
    """Plotly's text for matplotlib: no tags, no entities, no mathematics between dollars."""
    broken = _BREAK.sub("\n", text or "")
    return html.unescape(_TAG.sub("", broken)).replace("$", r"\$")


# --------------------------------------------------------------------------------------- panels


def _pair(xref: str | None, yref: str | None) -> tuple[str, str]:
    """The axes that references such as "x2" or "y2 domain" mean; "paper" is the first pair."""
    across, up = ((ref or axis).split()[0] for ref, axis in ((xref, "x"), (yref, "y")))
    return "x" if across == "paper" else across, "y" if up == "paper" else up


def _pairs_of_axes(figure: Figure) -> list[tuple[str, str]]:
    used = [(trace.xaxis or "x", trace.yaxis or "y") for trace in figure.data]
    return list(dict.fromkeys(used)) or [("x", "y")]


def _axis_name(short: str) -> str:
    return f"{short[0]}axis{short[1:]}"


def _panel(drawing: Any, figure: Figure, pair: tuple[str, str], *, alone: bool) -> Any:
    """Axes of a pair; of several, each stands where its domains are."""
    if alone:
        axes = drawing.add_subplot()
    else:
        (left, right), (bottom, top) = (
            figure.layout[_axis_name(short)].domain or (0.0, 1.0) for short in pair
        )
        width, height = drawing.get_size_inches()
        margin = dict(_MARGINS)
        if figure.layout.title.text:
            margin["top"] += 0.3
        if any(trace.type == "heatmap" and trace.showscale is not False for trace in figure.data):
            margin["right"] += _COLOUR_BAR
        across = width - margin["left"] - margin["right"]
        up = height - margin["bottom"] - margin["top"]
        axes = drawing.add_axes(
            (
                (margin["left"] + left * across) / width,
                (margin["bottom"] + bottom * up) / height,
                (right - left) * across / width,
                (top - bottom) * up / height,
            )
        )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e3e3", linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def _draw_traces(drawing: Any, panels: dict[tuple[str, str], Any], figure: Figure) -> None:
    previous: dict[tuple[str, str], tuple[Any, Any]] = {}
    for index, trace in enumerate(figure.data):
        if trace.visible in (False, "legendonly"):
            continue
        pair = (trace.xaxis or "x", trace.yaxis or "y")
        colour = PALETTE[index % len(PALETTE)]
        if trace.type == "bar":
            _draw_bars(panels[pair], trace, colour)
        elif trace.type == "heatmap":
            _draw_cells(drawing, panels[pair], trace, alone=len(panels) == 1)
        else:
            previous[pair] = _draw_scatter(panels[pair], trace, colour, previous.get(pair))


def _draw_legend(drawing: Any, panels: dict[tuple[str, str], Any], figure: Figure) -> None:
    entries = [axes.get_legend_handles_labels() for axes in panels.values()]
    handles = [handle for some, _ in entries for handle in some]
    labels = [label for _, some in entries for label in some]
    if len(handles) > 1 and figure.layout.showlegend is not False:
        drawing.legend(
            handles,
            labels,
            loc="outside upper left" if len(panels) == 1 else "upper right",
            ncols=_legend_columns(labels),
            frameon=False,
            fontsize=9,
        )


def _legend_columns(labels: Sequence[str]) -> int:
    """As many as fit beside each other, with the line before each and the gap after it."""
    longest = max(len(label) for label in labels)
    return max(1, min(len(labels), 4, 100 // (longest + 8)))


# --------------------------------------------------------------------------------------- traces


def _draw_scatter(
    axes: Any, trace: Any, colour: str, previous: tuple[Any, Any] | None
) -> tuple[Any, Any]:
    y = np.asarray(trace.y)
    x = np.arange(len(y)) if trace.x is None else np.asarray(trace.x)
    mode = trace.mode or ("lines+markers" if len(x) < 20 else "lines")
    opacity = 1.0 if trace.opacity is None else trace.opacity
    line_colour = _colour(trace.line.color, colour)
    label = plain(trace.name) if trace.name and trace.showlegend is not False else None
    drawstyle = {"hv": "steps-post", "vh": "steps-pre", "hvh": "steps-mid"}
    if trace.fill:
        fill = _colour(trace.fillcolor, (*_rgb(line_colour), 0.3))
        if trace.fill == "toself":
            _fill_outlines(axes, x, y, fill)
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
        linestyle=DASHES.get(trace.line.dash or "solid", "-") if "lines" in mode else "none",
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
            marker=_MARKERS.get(shape, "o"),
            markersize=0.8 * size,
            color=_colour(marker.color, line_colour),
            alpha=marker_opacity * opacity,
            markeredgewidth=1.5 if shape in ("x", "cross") else 0,
            label=label,
        )
    if "text" in mode and trace.text is not None:
        _draw_texts(axes, trace, x, y)
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


def _fill_outlines(axes: Any, x: Any, y: Any, colour: Any) -> None:
    """Areas within outlines that gaps (NaN) part from each other."""
    from matplotlib.collections import PolyCollection

    points = np.column_stack([np.asarray(x, np.float64), np.asarray(y, np.float64)])
    gaps = np.flatnonzero(np.isnan(points).any(axis=1))
    outlines = [part[~np.isnan(part).any(axis=1)] for part in np.split(points, gaps)]
    axes.add_collection(
        PolyCollection([o for o in outlines if len(o)], facecolors=[colour], edgecolors="none")
    )


def _draw_texts(axes: Any, trace: Any, x: Any, y: Any) -> None:
    texts = [trace.text] * len(x) if isinstance(trace.text, str) else trace.text
    up, across = (trace.textposition or "middle center").split()
    size = trace.textfont.size if isinstance(trace.textfont.size, int | float) else 12
    shift = {"left": (-4, "right"), "right": (4, "left"), "center": (0, "center")}[across]
    lift = {"top": (3, "bottom"), "bottom": (-3, "top"), "middle": (0, "center")}[up]
    for place_x, place_y, text in zip(x, y, texts, strict=True):
        axes.annotate(
            plain(text),
            (place_x, place_y),
            xytext=(shift[0], lift[0]),
            textcoords="offset points",
            fontsize=0.75 * size,
            color=_colour(trace.textfont.color, _INK),
            ha=shift[1],
            va=lift[1],
            annotation_clip=False,
        )


def _draw_cells(drawing: Any, axes: Any, trace: Any, *, alone: bool) -> None:
    """Coloured cells around their points, with texts that stand out from them."""
    from matplotlib.colors import LinearSegmentedColormap

    z = np.asarray(trace.z, np.float64)
    x = np.arange(z.shape[1]) if trace.x is None else np.asarray(trace.x)
    y = np.arange(z.shape[0]) if trace.y is None else np.asarray(trace.y)
    scale = [(float(at), _colour(colour, GREY)) for at, colour in trace.colorscale]
    colours = LinearSegmentedColormap.from_list("plotly", scale)
    cells = axes.pcolormesh(_edges(x), _edges(y), z, cmap=colours, vmin=trace.zmin, vmax=trace.zmax)
    axes.grid(visible=False)
    if trace.showscale is not False:
        width = drawing.get_size_inches()[0]
        box = axes.get_position()
        place: dict[str, Any] = {"ax": axes}
        if not alone:
            left = box.x1 + 0.15 / width
            place = {"cax": drawing.add_axes((left, box.y0, 0.16 / width, box.height))}
        drawing.colorbar(cells, label=plain(trace.colorbar.title.text), **place)
    if trace.text is None:
        return
    for row, texts in enumerate(trace.text):
        for column, text in enumerate(texts):
            if text:
                red, green, blue, _ = cells.cmap(cells.norm(z[row, column]))
                bright = 0.299 * red + 0.587 * green + 0.114 * blue
                axes.text(
                    x[column],
                    y[row],
                    plain(text),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=_INK if bright > 0.5 else "white",
                )


def _edges(centres: Any) -> Any:
    """Halfway between neighbours, and as far beyond the ends; one cell alone is 1 wide."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middles = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middles[0], 2 * centres[-1] - middles[-1]
    return np.concatenate([[first], middles, [last]])


def _draw_bars(axes: Any, trace: Any, colour: str) -> None:
    fill = _colour(trace.marker.color, colour)
    label = plain(trace.name) if trace.name and trace.showlegend is not False else None
    x, y = np.asarray(trace.x), np.asarray(trace.y)
    if trace.orientation == "h":
        axes.barh(y, x, color=fill, label=label)
    else:
        axes.bar(x, y, color=fill, label=label, width=0.8 if trace.width is None else trace.width)


def _draw_shape(axes: Any, shape: Any) -> None:
    if shape.type != "line":
        return
    style = {
        "color": _colour(shape.line.color, GREY),
        "linewidth": shape.line.width or 1.5,
        "linestyle": DASHES.get(shape.line.dash or "solid", "-"),
    }
    if (shape.xref or "").endswith("domain"):
        axes.axhline(shape.y0, **style)
    elif (shape.yref or "").endswith("domain"):
        axes.axvline(shape.x0, **style)
    else:
        axes.plot([shape.x0, shape.x1], [shape.y0, shape.y1], **style)


def _draw_annotation(axes: Any, note: Any) -> None:
    across, up = (
        axes.transAxes if (ref or "").endswith(("domain", "paper")) else axes.transData
        for ref in (note.xref, note.yref)
    )
    axes.annotate(
        plain(note.text),
        (note.x, note.y),
        xycoords=(across, up),
        xytext=(0.75 * (note.xshift or 0), 0.75 * (note.yshift or 0)),
        textcoords="offset points",
        fontsize=9,
        color="#444444",
        ha={"left": "left", "right": "right"}.get(note.xanchor, "center"),
        va={"top": "top", "bottom": "bottom"}.get(note.yanchor, "center"),
        annotation_clip=False,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )


def _draw_axis(axes: Any, which: str, axis: Any) -> None:
    if axis.title.text:
        getattr(axes, f"set_{which}label")(plain(axis.title.text))
    if axis.type == "log":
        getattr(axes, f"set_{which}scale")("log")
    if axis.tickvals is not None:
        texts = axis.ticktext if axis.ticktext is not None else [str(v) for v in axis.tickvals]
        getattr(axes, f"set_{which}ticks")(list(axis.tickvals), [plain(text) for text in texts])
        if not any(texts):  # names stand in the picture, not beside it
            axes.tick_params(axis=which, length=0)
            axes.spines["left" if which == "y" else "bottom"].set_visible(False)
        if axis.type == "log":  # no labels between those that were asked for
            getattr(axes, f"{which}axis").set_minor_formatter("")
    elif axis.showticklabels is False:
        axes.tick_params(axis=which, labelbottom=False, labelleft=False)
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
