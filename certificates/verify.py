"""Whether a certificate is true: its topic's checker is asked, and nothing else."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from palestra.safe_files import MalformedFile
from palestra.spaces import Array

from .check import reading

TOPICS = ("nmr",)


def verify(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Check a certificate file again, from the file alone.

    Returns:
        What is wrong; empty where everything holds.

    Raises:
        MalformedFile: it is no certificate, or is damaged.
        FileNotFoundError: nothing there.
    """
    try:
        document, arrays = reading.read(Path(path))
    except reading.Malformed as reason:
        raise MalformedFile(str(reason)) from None
    return problems(document, arrays)


def problems(document: dict[str, Any], arrays: dict[str, Array]) -> tuple[str, ...]:
    """What is wrong with a document and its arrays; empty where everything holds.

    Raises:
        MalformedFile: a topic without a checker, or arrays that its checker cannot read.
    """
    topic = document.get("topic")
    if topic not in TOPICS:
        raise MalformedFile(f"certificate: topic {topic!r}, allowed {', '.join(TOPICS)}")
    checker = importlib.import_module(f".check.{topic}", __package__)
    try:
        return tuple(checker.check(document, arrays))
    except (ValueError, TypeError, AttributeError, KeyError) as reason:
        raise MalformedFile(f"certificate: {reason}") from None
