"""The random generators that the whole process shares, left as they were found.

palestra draws from none of them (see `palestra.streams`). Stable-Baselines3 seeds and draws from
all of them, and so may any policy; whoever runs such code here does it inside `preserved`.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np


def get_state() -> dict[str, Any]:
    """The states of Python's, NumPy's and, once it is imported, torch's generator (on the CPU)."""
    torch = sys.modules.get("torch")
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - it is what others draw from
        "torch": None if torch is None else torch.get_rng_state(),
    }


def set_state(state: dict[str, Any]) -> None:
    """Put the generators into a state that `get_state` gave."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    if state["torch"] is not None:
        sys.modules["torch"].set_rng_state(state["torch"])


@contextlib.contextmanager
def preserved(seed: int | None = None) -> Iterator[None]:
    """Give the generators back, at the end, as they were at the beginning.

    Args:
        seed: seed them for the time in between; None leaves them running.
    """
    before = get_state()
    try:
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            if before["torch"] is not None:
                sys.modules["torch"].manual_seed(seed)
        yield
    finally:
        set_state(before)
