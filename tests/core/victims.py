"""Processes to be killed, as Linux shows them."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(pid: int, holding: bytes = b"spawn_main") -> list[int]:
    """Processes that a process has started, whose command line holds something."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid and holding in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
