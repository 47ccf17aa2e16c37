"""What commands print: data to stdout, messages to stderr."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

MOST_SHOWN = 1000  # characters of a message that had several lines
SPELLED = {"≤": "<=", "≥": ">=", "−": "-", "∞": "infinity", "\u00a0": " ", "\u2009": " "}


def say(message: str) -> None:
    """A message on stderr, on one line."""
    print(f"palestra: {one_line(message)}", file=sys.stderr)


def one_line(message: str) -> str:
    """A message on one line, whatever the library that wrote it put into it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = " ".join(lines)
    return (
        text if len(lines) < 2 or len(text) <= MOST_SHOWN else text[:MOST_SHOWN].rstrip() + " ..."
    )


def print_json(document: Any) -> None:
    """The one document of `--json`."""
    print(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False, default=str))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table, as wide as the terminal; 100 columns or more where there is none."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(100, console.width))
    console.print(table)


def print_whatever_the_encoding() -> None:
    """Spell what an encoding of the terminal lacks, rather than fail when the work is done.

    A stream that was closed takes everything and keeps nothing.
    """

    def spell(problem: UnicodeError) -> tuple[str, int]:
        assert isinstance(problem, UnicodeEncodeError)
        lacking = problem.object[problem.start : problem.end]
        return "".join(SPELLED.get(character, "?") for character in lacking), problem.end

    codecs.register_error("palestra.spell", spell)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="palestra.spell")
