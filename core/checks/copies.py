"""Copies: a pickle, a deep copy; and `close`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from .compare import difference, kept
from .finding import Event, Held
from .play import Raised, course
from .subject import Subject

BEFORE, AFTER = 5, 20  # calls

_COPIERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a deep copy": (copy.deepcopy, "copy.deepcopy(env)"),
    "a pickle": (lambda env: pickle.loads(pickle.dumps(env)), "pickle.loads(pickle.dumps(env))"),  # noqa: S301 - what it has just written itself
}


_NO_COPY = f"""
env = build()
list(play(env, 0, {BEFORE}))
twin = copy.deepcopy(env)
for first, second in zip(play(env, 1, {AFTER}, begin=False), play(twin, 1, {AFTER}, begin=False)):
    assert difference(first, second) is None, difference(first, second)
"""


def check_copies(subject: Subject) -> Iterator[Event]:
    """A copy taken within an episode goes on as the original does."""
    works = []
    for name, (copier, text) in _COPIERS.items():
        player = subject.player()
        list(course(player, 0, BEFORE))
        try:
            twin = copier(player.env)
        except Exception as problem:
            reason = f"{type(problem).__name__}: {problem}"
            if not (subject.ours and "has no snapshot" in reason):
                yield subject.finding(
                    "copies",
                    f"{name} cannot be made: {reason}",
                    shows=f"env = build()\nlist(play(env, 0, {BEFORE}))\n{text}",
                )
            continue
        other = subject.player(twin)
        other.follow(player)
        original = [kept(c.fields) for c in course(player, 1, AFTER, begin=False)]
        apart = list(_compare(subject, name, text, original, other))
        yield from apart
        if not apart:
            works.append(name)
    if subject.ours:
        return
    if works:
        yield Held("snapshot", f"by {' and '.join(works)}")
    else:
        yield subject.finding(
            "snapshot", "its state cannot be kept: no copy of it goes on exactly", shows=_NO_COPY
        )


def _compare(
    subject: Subject, name: str, text: str, original: list[Any], other: Any
) -> Iterator[Event]:
    try:
        twin = [kept(c.fields) for c in course(other, 1, AFTER, begin=False)]
    except Raised as problem:
        yield subject.finding(
            "copies",
            f"{name} does not go on: {problem}",
            0,
            problem.step,
            shows=f"env = build()\nlist(play(env, 0, {BEFORE}))\ntwin = {text}\n"
            f"list(play(twin, 1, {AFTER}, begin=False))",
        )
        return
    finally:
        other.env.close()
    for index, (one, two) in enumerate(zip(original, twin, strict=True)):
        one.pop("info")
        two.pop("info")
        path = difference(one, two)
        if path is not None:
            yield subject.finding(
                "copies",
                f"{name} goes on differently",
                0,
                BEFORE + index,
                path,
                f"env = build()\nlist(play(env, 0, {BEFORE}))\ntwin = {text}\n"
                f"*_, first = play(env, 1, {index + 1}, begin=False)\n"
                f"*_, second = play(twin, 1, {index + 1}, begin=False)\n"
                "assert difference(first, second) is None, difference(first, second)",
            )
            return


def check_close(subject: Subject) -> Iterator[Event]:
    """`close` twice."""
    player = subject.player()
    player.reset(0, 0)
    try:
        player.env.close()
        player.env.close()
    except Exception as problem:
        yield subject.finding(
            "close",
            f"a second close() raises {type(problem).__name__}: {problem}",
            shows="env = build()\nenv.reset(seed=0)\nenv.close()\nenv.close()",
        )
