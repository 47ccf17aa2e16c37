"""Pictures of pulse lists and of their results, for reports and notebooks.

Each is a pure function to a `View`, which is its caption, a Plotly figure that follows the page's
dark or light, and a still picture: `report.plot(*view)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..bloch import Ensemble
from ..events import EventList
from ..sample import Sample
from .errors import Calibration, calibration, calibration_view, error_against_time
from .maps import GRID, list_robustness_view, robustness_map, speed_up_map
from .panels import View
from .sequence import sequence_diagram
from .spins import magnetisation_view, signal_view

__all__ = [
    "Calibration",
    "View",
    "calibration",
    "calibration_view",
    "error_against_time",
    "list_robustness_view",
    "magnetisation_view",
    "report_sections",
    "robustness_map",
    "sequence_diagram",
    "signal_view",
    "speed_up_map",
]

B1_SHOWN = (0.8, 1.2)  # over the nominal transmit field
WIDTHS_SHOWN = 2.0  # offsets shown to either side, in widths of the sample's field


def report_sections(
    events: EventList,
    sample: Sample,
    ensemble: Ensemble | None = None,
    owners: Sequence[str] | None = None,
) -> list[View]:
    """All that is to be seen of a pulse list: diagram, signal, magnetisation, robustness.

    What a list has not is left out: the signal without an open receiver; robustness without one,
    or with finite pulses, for which there is no map, or for several species, which share none.

    Args:
        events: the list; it starts at equilibrium.
        sample: what is in the magnet.
        ensemble: one experiment; None draws one from the sample.
        owners: for each event who was in charge; None draws no strip of owners.

    Raises:
        ValueError: no events, or another number of owners.
        ImportError: plotly or matplotlib is missing.
    """
    spins = sample.magnet() if ensemble is None else ensemble
    views = [sequence_diagram(events, owners)]
    received = any(event.receive for event in events)
    if received:
        sigma = math.sqrt(sample.N0 / sample.instrument.dwell)
        views.append(signal_view(events, spins, sigma))
    views.append(magnetisation_view(events, spins))
    hard = all(event.t_pulse == 0.0 for event in events)
    excited = any(event.theta for event in events)
    if received and excited and hard and spins.R1.shape[1] == 1:
        reach = WIDTHS_SHOWN * max(sample.widest, 1.0)
        offsets = np.linspace(-reach, reach, GRID)
        b1 = np.linspace(*B1_SHOWN, GRID)
        T1, T2 = float(1.0 / spins.R1[0, 0]), float(1.0 / spins.R2[0, 0])
        views.append(list_robustness_view(events, T1, T2, offsets, b1))
    return views
