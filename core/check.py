"""Check an environment: anyone's, against what this package and Gymnasium promise of one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .checks.finding import (
    ERROR,
    NOT_APPLICABLE,
    RULES,
    WARNING,
    Course,
    Event,
    Finding,
    Held,
    Started,
)

TIME_LIMIT = 30.0


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        environment: its name.
        kind: its interface: "gym", "parallel" or "aec".
        ours: whether it is a BatchEnv (then more is an error).
        findings: errors, warnings and what was not applicable, in the order they were found.
        held: checks that found nothing, with how far they looked.
        seconds: how long it took.
    """

    environment: str
    kind: str
    ours: bool
    findings: tuple[Finding, ...]
    held: Mapping[str, str]
    seconds: float

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors."""
        return tuple(f for f in self.findings if f.level == ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are warnings."""
        return tuple(f for f in self.findings if f.level == WARNING)

    def holds(self, strict: bool = False) -> bool:
        """Whether there are no errors; with `strict`, no warnings either."""
        return not self.errors and not (strict and self.warnings)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return {
            "environment": self.environment,
            "kind": self.kind,
            "ours": self.ours,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "seconds": round(self.seconds, 2),
            "findings": [asdict(finding) for finding in self.findings],
            "held": dict(self.held),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.environment}: {len(self.errors)} errors, {len(self.warnings)} warnings, "
            f"{len(self.held)} checks hold"
        ]
        for finding in (*self.errors, *self.warnings):
            place = f" ({finding.place()})" if finding.place() else ""
            lines.append(f"{finding.level}: {finding.check}{place}: {finding.message}")
            if finding.script:
                lines += ["", *(f"    {line}".rstrip() for line in finding.script.splitlines()), ""]
        return "\n".join(lines)


def check(
    target: Any,
    *,
    settings: Mapping[str, Any] | None = None,
    isolate: bool = True,
    time_limit: float = TIME_LIMIT,
    report: Callable[[Finding | Held | Started], None] | None = None,
) -> Report:
    """Check an environment.

    Args:
        target: a name, a Gymnasium id, `module:name`, `path/file.py:name`; a class or function
            that builds a BatchEnv, a `gymnasium.Env` or a Parallel or AEC environment of
            PettingZoo; or such an environment itself.
        settings: of the environment.
        isolate: check in two new processes, so that a hang or a crash is a finding. Without it
            (and for targets that another process cannot find) everything runs here; then nothing
            can be said about other processes and windows.
        time_limit: seconds that one call of the environment may take.
        report: is called with each finding as soon as it is found, and with what begins.

    Returns:
        The report.

    Raises:
        UnknownName, ImportError: there is no such target.
        TypeError: it is no environment, or has no such setting.
        ValueError: a time limit that is not positive.
    """
    if not time_limit > 0:
        raise ValueError(f"time_limit: got {time_limit!r}, allowed more than 0 seconds")
    start = time.monotonic()
    chosen = dict(settings or {})
    identity: list[Any] = [str(target), "gym", False]
    findings: list[Finding] = []
    held: dict[str, str] = {}
    for event in _events(target, chosen, isolate, time_limit, identity):
        if isinstance(event, Course):
            continue
        if isinstance(event, Finding):
            findings.append(event)
        elif isinstance(event, Held):
            held[event.check] = event.note
        if report is not None:
            report(event)
    broken = {f.check for f in findings if f.level != NOT_APPLICABLE}
    notes = {name: held[name] for name in RULES if name in held and name not in broken}
    told = tuple(f for f in findings if f.level != NOT_APPLICABLE or f.check not in notes)
    name, kind, ours = identity
    return Report(name, kind, ours, told, notes, time.monotonic() - start)


def _events(
    target: Any, settings: dict[str, Any], isolate: bool, limit: float, identity: list[Any]
) -> Iterator[Event]:
    """What the parts of a check say; fills in what the target is."""
    reference = _named(target, settings) if isolate else None
    if reference is None:
        yield from _here(target, settings, identity)
        return
    from .checks.supervise import Identity, Refused, supervised

    try:
        for event in supervised(reference, settings, limit):
            if isinstance(event, Identity):
                identity[:] = event.name, event.kind, event.ours
            else:
                yield event
    except Refused as refused:
        raise _as_it_was(refused.kind)(str(refused)) from None


def _named(target: Any, settings: dict[str, Any]) -> str | None:
    """A string that another process resolves to the same, with these settings; or None."""
    from .checks.subject import reference_of

    try:
        if json.loads(json.dumps(settings)) != settings:
            return None
    except TypeError:
        return None
    if isinstance(target, str):
        return target
    callable_object = callable(target) and hasattr(target, "__qualname__")
    return reference_of(target) if callable_object else None


def _as_it_was(kind: str) -> type[Exception]:
    from .registry import UnknownName

    kinds: dict[str, type[Exception]] = {
        k.__name__: k for k in (UnknownName, TypeError, ImportError, ValueError)
    }
    return kinds.get(kind, ValueError)


def _here(target: Any, settings: dict[str, Any], identity: list[Any]) -> Iterator[Event]:
    """Both parts in this process."""
    import warnings

    from .checks.program import fresh_part, main_part
    from .checks.subject import find

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject = find(target, settings)
        identity[:] = subject.name, subject.kind, subject.ours
        yield from main_part(subject)
        yield subject.not_applicable("hangs", "everything ran in this process")
        yield subject.not_applicable("fresh-process", "everything ran in this process")
        yield from fresh_part(subject, apart=False)
