"""A number over two others, as colour."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .figures import Picture
from .still import require_report_extra, static_picture

SCALE = "Cividis"  # the same to the colour-blind


def heat_map(
    x: ArrayLike, y: ArrayLike, z: ArrayLike, *, x_label: str, y_label: str, z_label: str
) -> Picture:
    """A map of z over x and y.

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
        from plotly.graph_objects import Figure, Heatmap
    except ImportError:
        require_report_extra("plotly")
    bar = {"title": {"text": z_label, "side": "right"}}
    figure = Figure(Heatmap(x=across, y=up, z=values, colorscale=SCALE, colorbar=bar))
    figure.update_layout(xaxis={"title": {"text": x_label}}, yaxis={"title": {"text": y_label}})
    return Picture(figure, static_picture(figure))
