"""The two processes of a check, watched: a hang or a crash is a finding, not an end."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import watch
from .finding import NOT_APPLICABLE, RULES, Course, Event, Finding, Held, Started, from_record
from .repeat import CALLS

PARTS = ("main", "fresh")
NO_DISPLAY = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MPLBACKEND": "Agg"}
START_SECONDS = 60.0  # to import an environment and begin


class Refused(Exception):
    """The target is none; carries the kind and text of the reason."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Identity:
    """What the target turned out to be.

    Attributes:
        name: for people.
        kind: its interface.
        ours: whether it is a BatchEnv.
        plays: a program that plays @CALLS@ calls of the reference course.
        plays_twice: one that does so in two processes, and compares.
    """

    name: str
    kind: str
    ours: bool
    plays: str = ""
    plays_twice: str = ""


@dataclass
class _Part:
    name: str
    process: subprocess.Popen[str]
    watch: Path
    errors: Path
    doing: str = "builds"
    done: bool = False
    course: Course | None = None
    said: set[str] = field(default_factory=set)


def supervised(
    target: str, settings: Mapping[str, Any], limit: float
) -> Iterator[Event | Identity]:
    """Run both parts of a check in fresh processes.

    Args:
        target: a reference that another process resolves.
        settings: of the environment, as JSON can hold them.
        limit: seconds that one call may take.

    Raises:
        Refused: the target is no environment.
    """
    with tempfile.TemporaryDirectory(prefix="palestra-check-") as folder:
        lines: queue.Queue[tuple[_Part, str | None]] = queue.Queue()
        parts = [_start(name, Path(folder), target, settings, limit, lines) for name in PARTS]
        try:
            yield from _once(_follow(parts, lines, target))
        finally:
            for part in parts:
                part.process.kill()
                part.process.wait()


def _once(events: Iterator[Event | Identity]) -> Iterator[Event | Identity]:
    """The same hang or crash in both parts is one finding."""
    told: set[tuple[str, int | None, int | None]] = set()
    for event in events:
        if isinstance(event, Finding) and event.check in ("hangs", "raises"):
            place = event.check, event.episode, event.step
            if place in told:
                continue
            told.add(place)
        yield event


def _start(
    name: str,
    folder: Path,
    target: str,
    settings: Mapping[str, Any],
    limit: float,
    lines: queue.Queue[tuple[_Part, str | None]],
) -> _Part:
    shown, errors = folder / f"{name}.watch", folder / f"{name}.err"
    shown.write_bytes(bytes(watch.SIZE))
    environment = dict(os.environ)
    if name == "fresh":
        environment = {k: v for k, v in environment.items() if "DISPLAY" not in k}
        environment |= {**NO_DISPLAY, "PYTHONHASHSEED": "20261"}
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "palestra.checks.worker", name, str(shown), str(limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            env=environment,
        )
    assert process.stdin is not None
    request = {"target": target, "settings": dict(settings), "path": sys.path}
    process.stdin.write(json.dumps(request))
    process.stdin.close()
    part = _Part(name, process, shown, errors)
    threading.Thread(target=_read, args=(part, lines), daemon=True).start()
    return part


def _read(part: _Part, lines: queue.Queue[tuple[_Part, str | None]]) -> None:
    assert part.process.stdout is not None
    for line in part.process.stdout:
        lines.put((part, line))
    lines.put((part, None))


def _follow(
    parts: list[_Part], lines: queue.Queue[tuple[_Part, str | None]], target: str
) -> Iterator[Event | Identity]:
    identity = Identity(target, "gym", False)
    started = time.monotonic()
    while not all(part.done for part in parts):
        try:
            part, line = lines.get(timeout=0.1)
        except queue.Empty:
            for part in parts:
                yield from _look_at(part, identity, started)
            continue
        if part.done:
            continue
        if line is None:
            part.done = True
            yield from _crash(part, identity)
            continue
        record = json.loads(line)
        if record["event"] == "Refused":
            raise Refused(record["kind"], record["message"])
        if record["event"] == "Subject":
            record.pop("event")
            identity = Identity(**record)  # both parts say the same
            yield identity
        elif record["event"] == "Done":
            part.done = True
        else:
            yield from _pass_on(part, from_record(record))
    yield from _compare(parts, identity)


def _pass_on(part: _Part, event: Event) -> Iterator[Event]:
    if isinstance(event, Started):
        part.doing = event.check
    elif isinstance(event, Course):
        part.course = event
        return
    elif part.name == "fresh" and event.check in ("builds", "raises"):
        return  # the main part says it
    yield event


def _look_at(part: _Part, identity: Identity, started: float) -> Iterator[Event]:
    """A call that should have returned by now is a finding, and ends its part."""
    moment, now = watch.read(part.watch), time.monotonic()
    late = moment.deadline and now > moment.deadline
    never = part.doing == "builds" and not moment.deadline and now - started > START_SECONDS
    if part.done or not (late or never):
        return
    part.done = True
    part.process.kill()
    stock = moment.episode < 0
    where = "a stock checker" if stock else f"step {moment.step} of episode {moment.episode}"
    if moment.step == 0 and not stock:
        where = f"reset (or the build) of episode {moment.episode}"
    yield Finding(
        "hangs",
        "error",
        identity.name,
        f"{where} does not return in time, in {part.doing}; what comes after it was not looked at",
        None if stock else moment.episode,
        None if stock else moment.step,
        "reset" if moment.step == 0 else "step",
        _filled(identity.plays, CALLS),
    )


def _filled(program: str, calls: int) -> str | None:
    return program.replace("@CALLS@", str(calls)) or None


def _crash(part: _Part, identity: Identity) -> Iterator[Event]:
    """The process ended without a word."""
    code = part.process.wait()
    moment = watch.read(part.watch)
    text = part.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    tail = f": {text[-1]}" if text else ""
    check = "render" if part.doing.startswith("render") else "raises"
    rule = RULES[check]
    yield Finding(
        check,
        rule.ours if identity.ours else rule.foreign,
        identity.name,
        f"the process ended with code {code}, in {part.doing}{tail}",
        moment.episode if moment.deadline else None,
        moment.step if moment.deadline else None,
        None,
        _filled(identity.plays, CALLS) if check == "raises" else None,
    )


def _compare(parts: list[_Part], identity: Identity) -> Iterator[Event]:
    """The same course in both processes."""
    main, fresh = (part.course for part in parts)
    if main is None or fresh is None:
        yield Finding(
            "fresh-process", NOT_APPLICABLE, identity.name, "one process has no course to compare"
        )
        return
    pairs = zip(main.calls, fresh.calls, strict=False)
    for index, ((episode, step, one), (_, _, two)) in enumerate(pairs):
        path = next((p for p in one if one[p] != two.get(p)), None)
        if path is not None:
            yield Finding(
                "fresh-process",
                "error",
                identity.name,
                "seed 0, the same actions, in another process (with another hash seed): the course "
                "differs",
                episode,
                step,
                path,
                _filled(identity.plays_twice, index + 1),
            )
            return
    yield Held("fresh-process", f"{min(len(main.calls), len(fresh.calls))} calls")
