"""A progress bar on stderr for long work; a line now and then where nobody watches."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

Advance = Callable[[float], None]


@contextlib.contextmanager
def progress_bar(label: str, total: float, show: bool = True) -> Iterator[Advance]:
    """Show how far a piece of work is.

    Args:
        label: what is being done.
        total: amount of work.
        show: False shows nothing.

    Yields:
        `advance(done)`, to be called with the amount done since the last call.
    """
    if not show:
        yield lambda done: None
    elif sys.stderr.isatty():
        with _bar(label, total) as advance:
            yield advance
    else:
        yield _lines(label, total)


@contextlib.contextmanager
def _bar(label: str, total: float) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.advance(task, done)


def _lines(label: str, total: float, every: float = 10.0) -> Advance:
    """One line each ten seconds: what a log file can bear."""
    start = last = time.monotonic()
    so_far = 0.0

    def advance(done: float) -> None:
        nonlocal so_far, last
        so_far += done
        now = time.monotonic()
        if now - last >= every:
            last = now
            share = 100 * so_far / total if total else 100.0
            print(f"{label}: {share:.0f} % after {now - start:.0f} s", file=sys.stderr, flush=True)

    return advance
