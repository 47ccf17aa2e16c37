"""The Bloch kernel with tangents of three parameters: its cost over that of the plain kernel.

python benchmarks/nmr_tangents.py [--json PATH] [--rounds N]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bloch import SHAPES, compiled, experiment
from measure import Contender, arguments, interleave, line, report, timed

from palestra.envs.nmr.information import STATES, pulse_and_delay_with_tangents

BAR = 4.5  # times the plain cost


def tangents(rows: int, isochromats: int) -> Callable[[int], Any]:
    """One event of all isochromats and their derivatives."""
    m, ensemble, theta, phi, tau = experiment(rows, isochromats, np.float64)
    state = np.zeros((rows, STATES, 3, isochromats))
    state[:, 0] = m
    live = np.ones(rows, np.bool_)
    return lambda _: pulse_and_delay_with_tangents(state, ensemble, theta, phi, tau, live)


def main() -> None:
    """Measure, print, and write."""
    options = arguments(__doc__).parse_args()
    lines = []
    for rows, isochromats in SHAPES:
        contenders = [
            Contender(name, timed(event), items=rows * isochromats)
            for name, event in (
                ("plain", compiled(rows, isochromats, np.float64)),
                ("tangents", tangents(rows, isochromats)),
            )
        ]
        costs = interleave(contenders, options.rounds)
        for name, values in costs.items():
            lines.append(
                line(f"{name}, {rows} x {isochromats}", [1e9 * v for v in values], unit="ns")
            )
        times = [a / b for a, b in zip(costs["tangents"], costs["plain"], strict=True)]
        what = f"tangents over plain (min {min(times):.2f}), {rows} x {isochromats}"
        lines.append(line(what, times, bar=BAR, unit="times"))
    report("Bloch kernel with three tangents, float64, CPU time", lines, options.json)


if __name__ == "__main__":
    main()
