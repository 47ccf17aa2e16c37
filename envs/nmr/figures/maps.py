"""Maps: where a method is faster, and which fields a pulse or a pulse list bears."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.still import require_report_extra

from ..events import EventList
from ..pulses import inversion_profile
from ..robustness import energy_map
from . import panels
from .panels import SCALE, Array, Panel, View

MOST_WORDS = 150  # cells of a map that carry their numbers
GRID = 61  # points of a map of fields to either side
WELL_INVERTED = -0.98  # Mz at the line that is drawn


def speed_up_map(
    ratios: npt.ArrayLike, widths_hz: npt.ArrayLike, speed_up: npt.ArrayLike, what: str
) -> View:
    """How many times as fast a method is, over T1/T2 and the width of the magnet's field.

    Args:
        ratios: T1 / T2, (K,).
        widths_hz: full width at half maximum, Hz, (L,).
        speed_up: time of one method over that of the other, (L, K); NaN stays empty.
        what: the comparison, such as "bSSFP against CPMG with 5 T1".

    Raises:
        ValueError: shapes that do not fit, or no number at all.
        ImportError: plotly or matplotlib is missing.
    """
    across, up, values = (np.asarray(v, np.float64) for v in (ratios, widths_hz, speed_up))
    if across.ndim != 1 or up.ndim != 1 or values.shape != (up.size, across.size):
        raise ValueError(
            f"speed_up: got shape {values.shape}, allowed {(up.size, across.size)} for "
            f"{across.size} ratios and {up.size} widths"
        )
    if not np.isfinite(values).any():
        raise ValueError("speed_up: got no finite number, allowed one or more")
    figure = panels.picture(
        "Speed-up", [Panel(what, "T₁ / T₂", "width of the field, FWHM (Hz)")], 120 + 44 * up.size
        if 4 <= up.size <= 12 else 420,
    )  # fmt: skip
    words = None
    if values.size <= MOST_WORDS:
        words = [["" if np.isnan(v) else f"{v:.2f}" for v in row] for row in values]
    _cells(figure, 1, range(across.size), range(up.size), values, "times as fast", text=words)
    for name, places in (("xaxis", across), ("yaxis", up)):
        shown = range(0, places.size, max(1, places.size // 12))
        figure.layout[name].tickvals = list(shown)
        figure.layout[name].ticktext = [f"{places[k]:g}" for k in shown]
    return panels.view(f"{what}: how many times as fast, over T1/T2 and field width", figure)


def robustness_map(
    pulses: Mapping[str, EventList], offset_hz: npt.ArrayLike, b1: npt.ArrayLike
) -> View:
    """Mz after inversion pulses beside each other, over offset and strength of the fields.

    Hard pulses ignore the offset; `pulses.with_nutation` gives them their length. A line surrounds
    the fields that are inverted to 99 % (Mz = -0.98).

    Args:
        pulses: one to three pulses by name.
        offset_hz: ascending, (K,).
        b1: transmit field over its nominal value, ascending, (L,).

    Raises:
        ValueError: no pulse or more than three, or fields that do not ascend.
        ImportError: plotly or matplotlib is missing.
    """
    if not 1 <= len(pulses) <= 3:
        raise ValueError(f"pulses: got {len(pulses)}, allowed one to three")
    offset, strength = _ascending(offset_hz=offset_hz, b1=b1)
    label = "transmit field / nominal"
    rows = [Panel(name, "offset (Hz)", label if k == 0 else "") for k, name in enumerate(pulses)]
    figure = panels.picture("Inversion over offset and transmit field", rows, 420, beside=True)
    for panel, pulse in enumerate(pulses.values(), 1):
        mz = inversion_profile(pulse, offset[np.newaxis, :], strength[:, np.newaxis])
        last = panel == len(pulses)
        _cells(figure, panel, offset, strength, mz, "Mz / M₀" if last else "", span=(-1.0, 1.0))
        for line in _level(offset, strength, mz, WELL_INVERTED):
            panels.curve(figure, panel, line[:, 0], line[:, 1], "#ffffff", width=1.5)
    caption = (
        f"Mz after {', '.join(pulses)}, from equilibrium; inside the white line 99 % of the spins "
        "are inverted"
    )
    return panels.view(caption, figure)


def list_robustness_view(
    events: EventList, T1: float, T2: float, offset_hz: npt.ArrayLike, b1: npt.ArrayLike
) -> View:
    """Signal energy of a pulse list over offset and strength of the fields, over its largest.

    Args:
        events: of hard pulses.
        T1: s.
        T2: s.
        offset_hz: ascending, (K,).
        b1: transmit field over its nominal value, ascending, (L,).

    Raises:
        ValueError: a finite pulse, no open receiver, or values that are not allowed.
        ImportError: plotly or matplotlib is missing.
    """
    offset, strength = _ascending(offset_hz=offset_hz, b1=b1)
    energy = energy_map(events, T1, T2, offset, strength)
    if not energy.max() > 0.0:
        raise ValueError("events: got no signal, allowed an open receiver after a pulse")
    relative = energy / energy.max()
    row = Panel("Signal energy over its largest", "offset (Hz)", "transmit field / nominal")
    figure = panels.picture("Robustness", [row], 420)
    _cells(figure, 1, offset, strength, relative, "share of the largest", span=(0.0, 1.0))
    for line in _level(offset, strength, relative, 0.9):
        panels.curve(figure, 1, line[:, 0], line[:, 1], "#ffffff", width=1.5)
    caption = (
        "Signal energy of single spins over the errors of the two fields; inside the white line at "
        "least 90 % of the largest"
    )
    return panels.view(caption, figure)


def _ascending(**fields: npt.ArrayLike) -> list[Array]:
    found = []
    for name, values in fields.items():
        array = np.asarray(values, np.float64)
        if array.ndim != 1 or array.size < 2 or not (np.diff(array) > 0).all():
            raise ValueError(
                f"{name}: got shape {array.shape}, allowed two or more ascending values"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: got values that are not finite, allowed finite ones")
        found.append(array)
    return found


def _cells(
    figure: Any, panel: int, x: Any, y: Any, z: Array, label: str,
    span: tuple[float, float] | None = None, text: Any = None,
) -> None:  # fmt: skip
    """A heat map; with a label it has a colour bar."""
    from plotly.graph_objects import Heatmap

    low, high = span or (float(np.nanmin(z)), float(np.nanmax(z)))
    figure.add_trace(
        Heatmap(
            x=list(x),
            y=list(y),
            z=z,
            zmin=low,
            zmax=high,
            colorscale=SCALE,
            showscale=bool(label),
            text=text,
            texttemplate="%{text}" if text else None,
            colorbar={"title": {"text": panels.text(label), "side": "right"}, "thickness": 14},
            **panels.axes(panel),
        )
    )


def _level(x: Array, y: Array, z: Array, level: float) -> list[Array]:
    """Lines (K, 2) on which z has a value."""
    try:
        from contourpy import contour_generator
    except ImportError:
        require_report_extra("matplotlib")
    lines = contour_generator(x, y, z).lines(level)
    return [np.asarray(line) for line in lines]
