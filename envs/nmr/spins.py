"""What every environment of spins shares: the sample, the state, pictures, snapshots."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from palestra.batch import BatchEnv, Mask
from palestra.streams import Streams

from .bloch import Array, Ensemble, equilibrium
from .events import EventList
from .sample import Sample, load_sample


class SpinEnv(BatchEnv):
    """An environment whose rows are experiments on spins.

    Attributes:
        sample: what is in the magnet.
        ensemble: the isochromats of each row's episode.
        m: the magnetisation, float64 (B, 3, N).
    """

    render_fps: ClassVar[int] = 2
    m: Array

    def __init__(self, rows: int, *, horizon: int, sample: str | os.PathLike[str] | Sample) -> None:
        super().__init__(rows, horizon=horizon)
        self.sample = load_sample(sample)
        self.ensemble = self.sample.allocate(rows)
        self._m0 = equilibrium(self.ensemble)  # the start state, for pictures
        self._scene: Any = None

    @abstractmethod
    def events(self, row: int) -> EventList:
        """The events of a row's episode so far."""

    def isochromats(self, row: int) -> Ensemble:
        """The isochromats of one row, as an experiment of its own."""
        e, one = self.ensemble, slice(row, row + 1)
        return replace(
            e,
            offset_hz=e.offset_hz[one].copy(),
            b1=e.b1[one].copy(),
            R1=e.R1[one].copy(),
            R2=e.R2[one].copy(),
            receive=e.receive[one].copy(),
        )

    def render(self, row: int) -> Array:
        """Bloch sphere, pulses, and magnetisation against time: uint8 (480, 960, 3).

        Raises:
            ImportError: matplotlib is not installed.
        """
        from .render import Scene, follow

        if self._scene is None:
            self._scene = Scene(type(self).__name__)
        events = self.events(row)
        curves, _ = follow(events, self.isochromats(row), self._m0[row : row + 1])
        picture: Array = self._scene.draw(
            self.m[row], self.ensemble.weight, events, curves, self._caption(row)
        )
        return picture

    def film(self, row: int, pictures: int = 60) -> Iterator[Array]:
        """The episode so far as pictures evenly spaced in time, each uint8 (480, 960, 3).

        Raises:
            ImportError: matplotlib is not installed.
        """
        from .render import Scene, follow, states_at

        if self._scene is None:
            self._scene = Scene(type(self).__name__)
        events, one, m0 = self.events(row), self.isochromats(row), self._m0[row : row + 1].copy()
        curves, _ = follow(events, one, m0)
        times = np.linspace(0.0, events.duration, pictures)
        for time, (begun, m) in zip(times, states_at(times, events, one, m0), strict=True):
            past = curves[:, curves[0] <= time]
            shown = EventList(events.events[:begun])
            pulses = sum(event.theta != 0 for event in shown)
            caption = f"{1e3 * time:.1f} ms, pulses: {pulses}"
            yield self._scene.draw(m, one.weight, shown, past, caption, events.duration)

    @abstractmethod
    def _caption(self, row: int) -> str:
        """What the picture says below its title."""

    def _state(self) -> dict[str, Array]:
        """Every array (B, ...) that an episode needs to go on."""
        e = self.ensemble
        return {
            "m0": self._m0,
            "offset_hz": e.offset_hz,
            "b1": e.b1,
            "R1": e.R1,
            "R2": e.R2,
            "receive": e.receive,
        }

    def snapshot(self, rows: Mask) -> dict[str, Array]:
        """All that the masked rows need to go on."""
        return {name: array[rows].copy() for name, array in self._state().items()}

    def restore(self, state: dict[str, Array], rows: Mask) -> None:
        """Put back what `snapshot` took."""
        for name, array in self._state().items():
            array[rows] = state[name]


class Observed(SpinEnv):
    """A `SpinEnv` that writes its observation as it goes.

    Attributes:
        _observation: float32 (B, n).
    """

    _observation: Array

    def observe(self, rows: Mask | None, streams: Streams, out: Array) -> None:
        """Write the observation; see the class."""
        if rows is None:
            out[:] = self._observation
        else:
            out[rows] = self._observation[rows]
