"""Ensembles for the tests of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.envs.nmr.bloch import Ensemble


def isochromats(
    offset_hz: Any = 0.0,
    b1: Any = 1.0,
    T1: float = np.inf,
    T2: float = np.inf,
    dtype: npt.DTypeLike = np.float64,
) -> Ensemble:
    """Equal isochromats of one species: offsets (N,) for one experiment, (B, N) for several."""
    offset = np.atleast_2d(np.asarray(offset_hz, np.float64)).copy()
    rows, n = offset.shape
    return Ensemble(
        offset_hz=offset,
        b1=np.broadcast_to(np.asarray(b1, dtype), offset.shape).copy(),
        R1=np.full((rows, 1), 1.0 / T1),
        R2=np.full((rows, 1), 1.0 / T2),
        blocks=np.array([0, n]),
        weight=np.full(n, 1.0 / n),
        receive=np.full((rows, n), 1.0 / n),
    )


def vector(*components: float) -> npt.NDArray[np.float64]:
    """The state (1, 3, 1) of one isochromat."""
    return np.array(components, np.float64).reshape(1, 3, 1)
