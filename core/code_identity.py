"""What code a run names, told by the bytes of its files: an edited file makes another run.

Covered is the file that a reference names: `path/file.py:name`, or the source file of
`module:name`. What that file imports in turn is not, nor is palestra itself, whose version stands
in `run.json`.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def code_files(references: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of the source file of every reference to code, by dotted key.

    Args:
        references: key -> reference; or a list or mapping of such. What names no code is skipped.
    """
    hashes: dict[str, str] = {}
    for key, value in references.items():
        if isinstance(value, list | tuple):
            value = {str(place): part for place, part in enumerate(value)}
        if isinstance(value, Mapping):
            hashes.update({f"{key}.{k}": h for k, h in code_files(value).items()})
        elif isinstance(value, str | Path) and (file := source_file(str(value))) is not None:
            hashes[key] = hashlib.sha256(file.read_bytes()).hexdigest()
    return hashes


def source_file(reference: str) -> Path | None:
    """The file that holds the code of a reference; None for palestra's own and for no code."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        return None
    if place.endswith(".py"):
        file = Path(place)
    elif place.partition(".")[0] == "palestra" or not place.replace(".", "").isidentifier():
        return None
    else:
        try:
            spec = importlib.util.find_spec(place)
        except (ImportError, AttributeError, ValueError):
            return None
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        file = Path(spec.origin)
    return file.resolve() if file.is_file() else None
