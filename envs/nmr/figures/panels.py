"""Panels of a picture: their places, their titles, and names that stand beside curves."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from palestra.still import PALETTE, require_report_extra, static_picture

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Array = npt.NDArray[Any]

BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, GREY = PALETTE
SCALE = "Cividis"  # the same to the colour-blind

_GAP = 0.06  # between names of curves, as a share of the panel's height
_GLYPH = 0.0115  # width of a letter, as a share of the panel's width


class View(NamedTuple):
    """A picture with its caption: `report.plot(*view)`."""

    caption: str
    figure: Figure
    png: bytes


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: above it.
        x_label: with its unit; empty where the panel below tells it.
        y_label: with its unit.
        share: of the height (or width) of the picture, relative to the other panels.
    """

    title: str
    x_label: str
    y_label: str
    share: float = 1.0


def picture(title: str, panels: Sequence[Panel], height: int, *, beside: bool = False) -> Figure:
    """An empty figure of panels, the first on top or, `beside` each other, on the left.

    Raises:
        ImportError: plotly is missing.
    """
    try:
        from plotly.graph_objects import Figure
    except ImportError:
        require_report_extra("plotly")
    figure = Figure()
    gap = 0.11 if beside else 88 / height
    room = 1.0 - gap * (len(panels) - 1)
    total = sum(panel.share for panel in panels)
    edge = 0.0 if beside else 1.0
    for number, panel in enumerate(panels, 1):
        length = room * panel.share / total
        across = [edge, min(1.0, edge + length)] if beside else [0.0, 1.0]
        up = [0.0, 1.0] if beside else [max(0.0, edge - length), edge]
        edge = edge + length + gap if beside else edge - length - gap
        suffix = "" if number == 1 else str(number)
        figure.layout[f"xaxis{suffix}"] = {
            "title": {"text": text(panel.x_label)}, "domain": across, "anchor": f"y{suffix}",
            "zeroline": False,
        }  # fmt: skip
        figure.layout[f"yaxis{suffix}"] = {
            "title": {"text": text(panel.y_label)}, "domain": up, "anchor": f"x{suffix}",
            "zeroline": False,
        }  # fmt: skip
        figure.add_annotation(
            text=text(panel.title), showarrow=False, font={"size": 13},
            x=0.0, xref=f"x{suffix} domain", xanchor="left",
            y=1.0, yref=f"y{suffix} domain", yanchor="bottom", yshift=3,
        )  # fmt: skip
    figure.update_layout(
        height=height, showlegend=False, margin={"l": 16, "r": 16, "t": 78, "b": 16},
        title={"text": f"<b>{text(title)}</b>", "x": 0.01, "xanchor": "left", "font": {"size": 15}},
    )  # fmt: skip
    return figure


def axes(panel: int) -> dict[str, str]:
    """The axes of a panel, counted from 1, as a trace names them."""
    suffix = "" if panel == 1 else str(panel)
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def view(caption: str, figure: Figure) -> View:
    """The figure with its still picture."""
    return View(caption, figure, static_picture(figure))


def text(given: str) -> str:
    """Text for Plotly, which would otherwise read its own markup in it."""
    return html.escape(given, quote=False)


def curve(
    figure: Figure,
    panel: int,
    x: Any,
    y: Any,
    colour: str,
    *,
    width: float = 2,
    dash: str = "solid",
) -> None:
    """A line without a legend."""
    figure.add_scatter(
        x=x, y=y, mode="lines", line={"color": colour, "width": width, "dash": dash},
        showlegend=False, **axes(panel),
    )  # fmt: skip


def note(
    figure: Figure, panel: int, x: float, y: float, words: str, place: str = "middle right",
    colour: str | None = None, size: int = 12,
) -> None:  # fmt: skip
    """Words at a point, which may be outside the panel."""
    figure.add_scatter(
        x=[x], y=[y], mode="text", text=[text(words).replace("\n", "<br>")], textposition=place,
        textfont={"size": size} | ({"color": colour} if colour else {}),
        cliponaxis=False, hoverinfo="skip", showlegend=False, **axes(panel),
    )  # fmt: skip


def outlines(
    figure: Figure, panel: int, boxes: Array, colour: str, opacity: float, *, name: str = ""
) -> None:
    """Filled rectangles (left, right, bottom, top), (K, 4), as one trace."""
    if not len(boxes):
        return
    left, right, bottom, top = np.asarray(boxes, np.float64).T
    gap = np.full(len(left), np.nan)
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    figure.add_scatter(
        x=np.stack([left, right, right, left, left, gap], axis=1).ravel()[:-1],
        y=np.stack([bottom, bottom, top, top, bottom, gap], axis=1).ravel()[:-1],
        mode="lines", line={"width": 0.8 if opacity == 1 else 0, "color": colour}, fill="toself",
        fillcolor=f"rgba({red},{green},{blue},{opacity})", hoverinfo="skip", name=text(name),
        showlegend=False, **axes(panel),
    )  # fmt: skip


def name_curves(
    figure: Figure, panel: int, x: float, ends: Mapping[str, tuple[float, str]],
    span: tuple[float, float],
) -> None:  # fmt: skip
    """The name of each curve to the right of its end, moved apart where ends meet.

    Args:
        figure: with the panel.
        panel: its number.
        x: where curves end.
        ends: for each name the height of its curve's end, and its colour.
        span: of the vertical axis.
    """
    places = apart([y for y, _ in ends.values()], _GAP * (span[1] - span[0]), span)
    for (name, (_, colour)), y in zip(ends.items(), places, strict=True):
        note(figure, panel, x, y, name, colour=colour)


def apart(heights: Sequence[float], gap: float, span: tuple[float, float]) -> list[float]:
    """Heights in the same order, at least a gap from each other and, if they fit, within a span."""
    order = np.argsort(heights, kind="stable")
    placed = np.asarray(heights, np.float64)[order]
    for k in range(1, len(placed)):
        placed[k] = max(placed[k], placed[k - 1] + gap)
    if len(placed) and placed[-1] > span[1]:
        placed[-1] = span[1]
        for k in range(len(placed) - 2, -1, -1):
            placed[k] = min(placed[k], placed[k + 1] - gap)
    found = np.empty_like(placed)
    found[order] = placed
    return [float(height) for height in found]


def fits(words: str, width: float) -> bool:
    """Whether words fit into a width, given as a share of the panel's."""
    return max(map(len, words.split("\n"))) * _GLYPH <= width


def time_unit(span: float) -> tuple[float, str]:
    """Factor and name of the unit in which a time reads well."""
    for factor, name in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if span * factor >= 2.0:
            return factor, name
    return 1e6, "µs"


def rounded(value: float) -> str:
    """Three significant digits, without an exponent where that reads well."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"
