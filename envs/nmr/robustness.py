"""How a pulse list bears errors of the fields: what it gets from spins that see other ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import checks
from .bloch import Array, Ensemble, pulse_and_delay
from .events import EventList


def energy_map(
    events: EventList, T1: float, T2: float, offset_hz: npt.ArrayLike, b1: npt.ArrayLike
) -> Array:
    """Int |Mxy|^2 dt over the open receiver, for single spins that see other fields.

    Args:
        events: hard pulses.
        T1: s.
        T2: s.
        offset_hz: offsets, (K,).
        b1: transmit field over its nominal value, (L,).

    Returns:
        In s, (L, K).

    Raises:
        ValueError: a finite pulse; a value that is not finite; T1 or T2 out of range.
    """
    checks.number("T1", T1, checks.RELAXATION_TIME, "s")
    checks.number("T2", T2, (checks.RELAXATION_TIME[0], 2 * T1), "s (2 T1)")
    for name, values in (("offset_hz", offset_hz), ("b1", b1)):
        if not np.isfinite(np.asarray(values, np.float64)).all():
            raise ValueError(f"{name}: got {checks.shown(values)}, allowed finite numbers")
    strength, offset = np.meshgrid(
        np.asarray(b1, np.float64), np.asarray(offset_hz, np.float64), indexing="ij"
    )
    n = offset.size
    spins = Ensemble(
        offset_hz=offset.reshape(1, n).copy(),
        b1=strength.reshape(1, n).copy(),
        R1=np.array([[1 / T1]]),
        R2=np.array([[1 / T2]]),
        blocks=np.array([0, n]),
        weight=np.full(n, 1 / n),
        receive=np.full((1, n), 1 / n),
    )
    m = np.zeros((1, 3, n))
    m[:, 2] = 1.0
    energy = np.zeros(n)
    for event in events:
        if event.t_pulse > 0.0:
            raise ValueError(
                f"events: a finite pulse of {event.t_pulse} s; allowed hard pulses (0 s)"
            )
        pulse_and_delay(m, spins, event.theta, event.phi, 0.0)
        if event.receive is not None:
            opened, closed = event.receive.first, event.receive.last + event.receive.dwell
            closed = min(closed, event.tau)
            decay = np.exp(-2 * opened / T2) - np.exp(-2 * closed / T2)
            energy += (m[0, 0] ** 2 + m[0, 1] ** 2) * decay * T2 / 2
        pulse_and_delay(m, spins, 0.0, 0.0, event.tau)
        if event.spoil:
            m[:, :2] = 0.0
    return energy.reshape(strength.shape)
