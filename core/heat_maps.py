"""A number over two others, as colour; drawn by Plotly, and still, by matplotlib."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import ArrayLike

from .figures import FORMS, Picture, require_report_extra

SCALE = "Cividis"  # the same to the colour-blind


def heat_map(
    x: ArrayLike, y: ArrayLike, z: ArrayLike, *, x_label: str, y_label: str, z_label: str
) -> Picture:
    """A map of z over x and y, with contour lines at tenths of its range.

    Args:
        x: ascending, (K,).
        y: ascending, (L,).
        z: (L, K); NaN stays empty.
        x_label: with its unit.
        y_label: with its unit.
        z_label: with its unit.

    Raises:
        ValueError: shapes that do not fit.
        ImportError: plotly or matplotlib is missing.
    """
    across, up, values = (np.asarray(v, np.float64) for v in (x, y, z))
    if values.shape != (up.size, across.size):
        raise ValueError(f"z: got shape {values.shape}, allowed {(up.size, across.size)}")
    try:
        from plotly.graph_objects import Contour, Figure
    except ImportError:
        require_report_extra("plotly")
    figure = Figure(
        Contour(
            x=across,
            y=up,
            z=values,
            colorscale=SCALE,
            ncontours=11,
            colorbar={"title": {"text": z_label, "side": "right"}},
            line={"width": 0.5},
        )
    )
    figure.update_layout(xaxis={"title": {"text": x_label}}, yaxis={"title": {"text": y_label}})
    return Picture(figure, _still(across, up, values, x_label, y_label, z_label))


def _still(
    x: np.ndarray, y: np.ndarray, z: np.ndarray, x_label: str, y_label: str, z_label: str
) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        require_report_extra("matplotlib")
    drawing = Figure(figsize=(7.6, 4.0), dpi=150, layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot()
    colours = axes.contourf(x, y, z, levels=11, cmap=SCALE.lower())
    lines = axes.contour(x, y, z, levels=11, colors="white", linewidths=0.4)
    axes.clabel(lines, fontsize=7)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    drawing.colorbar(colours, ax=axes, label=z_label)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", metadata=FORMS["png"])
    return buffer.getvalue()
