"""Which call of an environment runs, written where another process can read it."""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_LAYOUT = struct.Struct("<dqq")
SIZE = _LAYOUT.size


@dataclass(frozen=True)
class Moment:
    """What a watch shows.

    Attributes:
        deadline: when the running call should have returned, in `time.monotonic()`; 0: none runs.
        episode: its episode.
        step: its step.
    """

    deadline: float
    episode: int
    step: int


class Watch:
    """Notes the running call; without a file it notes nothing.

    Args:
        file: a file of `SIZE` bytes that the watching process reads.
        limit: seconds that a call may take.
    """

    def __init__(self, file: Path | None = None, limit: float = 30.0) -> None:
        self.limit = limit
        self._map: mmap.mmap | None = None
        if file is not None:
            with file.open("r+b") as opened:
                self._map = mmap.mmap(opened.fileno(), SIZE)

    def enter(self, episode: int, step: int, limit: float | None = None) -> None:
        """A call begins."""
        if self._map is not None:
            deadline = time.monotonic() + (self.limit if limit is None else limit)
            _LAYOUT.pack_into(self._map, 0, deadline, episode, step)

    def leave(self) -> None:
        """The call has returned."""
        if self._map is not None:
            struct.pack_into("<d", self._map, 0, 0.0)


def read(file: Path) -> Moment:
    """What the watch in a file shows."""
    return Moment(*_LAYOUT.unpack(file.read_bytes()[:SIZE]))
