"""The Bloch kernel: nanoseconds for a pulse and a delay of one isochromat, against NumPy.

python benchmarks/bloch.py [--json PATH] [--rounds N]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from measure import Contender, arguments, interleave, line, ratio, report, timed

from palestra.envs.nmr.bloch import Ensemble, equilibrium, finite_pulse, pulse_and_delay

SHAPES = ((128, 32), (64, 256))  # experiments, isochromats; the bar holds from 4096 on


def experiment(rows: int, isochromats: int, dtype: Any) -> tuple[Any, Ensemble, Any, Any, Any]:
    """State, ensemble and random events: the 50 Hz magnet of the sample `oil`."""
    rng = np.random.default_rng(0)
    shape = (rows, isochromats)
    ensemble = Ensemble(
        offset_hz=rng.normal(0, 21, shape),
        b1=(1 + 0.03 * rng.normal(size=shape)).astype(dtype),
        R1=np.full((rows, 1), 1 / 0.6),
        R2=np.full((rows, 1), 1 / 0.3),
        blocks=np.array([0, isochromats]),
        weight=np.full(isochromats, 1 / isochromats),
        receive=np.full(shape, 1 / isochromats),
    )
    theta, phi = rng.uniform(0, np.pi, rows), rng.uniform(-np.pi, np.pi, rows)
    return equilibrium(ensemble, dtype), ensemble, theta, phi, rng.uniform(1e-4, 0.04, rows)


def compiled(rows: int, isochromats: int, dtype: Any) -> Callable[[int], Any]:
    """One event of all isochromats by the kernel."""
    m, ensemble, theta, phi, tau = experiment(rows, isochromats, dtype)
    return lambda _: pulse_and_delay(m, ensemble, theta, phi, tau)


def finite(rows: int, isochromats: int, dtype: Any) -> Callable[[int], Any]:
    """One finite pulse of 100 us, split as its error asks for."""
    m, ensemble, theta, phi, _ = experiment(rows, isochromats, dtype)
    return lambda _: finite_pulse(m, ensemble, theta, phi, 1e-4)


def numpy_closed_form(rows: int, isochromats: int, dtype: Any) -> Callable[[int], Any]:
    """The same event as array expressions, in the dtype."""
    m, ensemble, *events = experiment(rows, isochromats, dtype)
    theta, phi, tau = (event[:, np.newaxis].astype(dtype) for event in events)
    omega = (2 * np.pi * ensemble.offset_hz).astype(dtype)
    R1, R2 = ensemble.R1.astype(dtype), ensemble.R2.astype(dtype)
    x, y, z = np.ascontiguousarray(m.swapaxes(0, 1))

    def event(_: int) -> None:
        nonlocal x, y, z
        angle = theta * ensemble.b1
        c, s, cos_phi, sin_phi = np.cos(angle), np.sin(angle), np.cos(phi), np.sin(phi)
        along = cos_phi * x + sin_phi * y
        across = cos_phi * y - sin_phi * x
        turned = c * across - s * z
        z = s * across + c * z
        x, y = cos_phi * along - sin_phi * turned, sin_phi * along + cos_phi * turned
        phase, E1, E2 = omega * tau, np.exp(-R1 * tau), np.exp(-R2 * tau)
        c, s = E2 * np.cos(phase), E2 * np.sin(phase)
        x, y, z = c * x - s * y, s * x + c * y, 1 + E1 * (z - 1)

    return event


def main() -> None:
    """Measure, print, and write."""
    options = arguments(__doc__).parse_args()
    lines = []
    for rows, isochromats in SHAPES:
        contenders = {
            f"{name} {np.dtype(dtype).name}": Contender(
                f"{name} {np.dtype(dtype).name}",
                timed(build(rows, isochromats, dtype)),
                items=rows * isochromats,
            )
            for dtype in (np.float64, np.float32)
            for name, build in (
                ("kernel", compiled), ("NumPy", numpy_closed_form), ("finite pulse", finite)
            )
        }  # fmt: skip
        costs = interleave(list(contenders.values()), options.rounds)
        bars = {"kernel float64": (12.0, None), "kernel float32": (6.0, 3.0)}
        for name, values in costs.items():
            bar, aim = bars.get(name, (None, None))
            what = f"{name}, {rows} x {isochromats}"
            lines.append(line(what, [1e9 * v for v in values], bar=bar, aim=aim, unit="ns"))
        for dtype in ("float64", "float32"):
            what = f"kernel over NumPy, {dtype}, {rows} x {isochromats}"
            ours, theirs = f"kernel {dtype}", f"NumPy {dtype}"
            lines.append(ratio(what, costs, ours, theirs, bar=5.0 if dtype == "float64" else None))
    report("Bloch kernel, CPU time of one isochromat and event", lines, options.json)


if __name__ == "__main__":
    main()
