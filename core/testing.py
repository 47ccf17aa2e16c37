"""For the tests of anyone's environment: `palestra.testing.check(target)`."""

from __future__ import annotations

from typing import Any

from .check import TIME_LIMIT, Report
from .check import check as look


def check(
    target: Any,
    *,
    strict: bool = False,
    isolate: bool = True,
    time_limit: float = TIME_LIMIT,
    **settings: Any,
) -> Report:
    """Check an environment, and fail with what was found.

    Args:
        target: as for `palestra.check.check`.
        strict: fail on warnings too.
        isolate: check in new processes; see `palestra.check.check`.
        time_limit: seconds that one call of the environment may take.
        settings: of the environment.

    Returns:
        The report, if it holds.

    Raises:
        AssertionError: with every error (with `strict`, every warning) and a program that shows it.
        UnknownName, ImportError, TypeError: the target is none.
    """
    report = look(target, settings=settings, isolate=isolate, time_limit=time_limit)
    assert report.holds(strict), f"\n{report}"
    return report
