"""What `palestra check` prints: findings as they are found, then a table and the programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from palestra.check import Report, check
from palestra.checks.finding import NOT_APPLICABLE, RULES, Finding, Held, Started


def check_aloud(
    target: str, settings: dict[str, Any], isolate: bool, time_limit: float, progress: bool
) -> Report:
    """Check, with each finding on stderr as soon as it is found."""
    return check(
        target,
        settings=settings,
        isolate=isolate,
        time_limit=time_limit,
        report=_teller(progress),
    )


def _teller(progress: bool) -> Callable[[Finding | Held | Started], None]:
    """Prints findings; on a terminal also what is being looked at, on a line of its own."""
    live = progress and sys.stderr.isatty()

    def tell(event: Finding | Held | Started) -> None:
        if isinstance(event, Started) and live:
            print(f"\r\x1b[Klooking at {event.check}", end="", file=sys.stderr, flush=True)
        elif isinstance(event, Finding) and event.level != NOT_APPLICABLE:
            place = f" ({event.place()})" if event.place() else ""
            start = "\r\x1b[K" if live else ""
            line = f"{start}{event.level}: {event.check}{place}: {event.message}"
            print(line, file=sys.stderr, flush=True)

    return tell


def table_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """(check, result, where, what) for each check, the worst first."""
    rows = [(f.check, f.level, f.place(), f.message) for f in report.findings]
    rows += [(name, "holds", "", note or RULES[name].what) for name, note in report.held.items()]
    order = ("error", "warning", "holds", NOT_APPLICABLE)
    return sorted(rows, key=lambda row: order.index(row[1]))


def programs(report: Report) -> str:
    """The programs that show the errors and warnings, one after the other."""
    parts = []
    for finding in (*report.errors, *report.warnings):
        if finding.script is not None:
            title = f"# {finding.level}: {finding.check}: {finding.message}"
            parts.append(f"{title}\n{finding.script}")
    return "\n\n".join(parts)
