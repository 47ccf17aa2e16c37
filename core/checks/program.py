"""The checks in their order. A check that raises is a finding; the others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from . import actions, arrays, copies, fresh, fuzz, repeat, rows
from .finding import Event, Finding, Held, Started
from .play import Call, Raised
from .subject import Subject

Check = Callable[[Subject, list[Call], float], Iterator[Event]]


def _plain(check: Callable[[Subject], Iterator[Event]]) -> Check:
    return lambda subject, calls, seconds: check(subject)


def _with_calls(check: Callable[[Subject, list[Call]], Iterator[Event]]) -> Check:
    return lambda subject, calls, seconds: check(subject, calls)


def _with_seconds(check: Callable[[Subject, float], Iterator[Event]]) -> Check:
    return lambda subject, calls, seconds: check(subject, seconds)


MAIN: tuple[tuple[tuple[str, ...], Check], ...] = (
    (("global-random",), _with_calls(repeat.check_global_random)),
    (("determinism",), _with_calls(repeat.check_determinism)),
    (("episodes-differ",), _with_calls(repeat.check_episodes_differ)),
    (("shared-state",), _with_calls(repeat.check_shared_state)),
    (("aliasing",), _with_calls(arrays.check_aliasing)),
    (("actions-kept",), _with_calls(arrays.check_actions_kept)),
    (("arrays-owned",), _with_calls(arrays.check_arrays_owned)),
    (("order",), _plain(actions.check_order)),
    (("bad-actions", "clipping"), _plain(actions.check_bad_actions)),
    (("action-types",), _plain(actions.check_action_types)),
    (("masks-respected",), _plain(actions.check_masks_respected)),
    (("space-types",), _plain(actions.check_space_types)),
    (("copies", "snapshot"), _plain(copies.check_copies)),
    (("snapshot",), _with_seconds(rows.check_snapshot)),
    (("close",), _plain(copies.check_close)),
    (
        ("rows", "idle-rows", "observe", "single-equals-batch"),
        _with_seconds(rows.check_rows),
    ),
    (("single-equals-batch",), _with_calls(rows.check_single_view)),
    (("autoreset",), _with_seconds(rows.check_autoreset)),
    (("limit",), _plain(rows.check_limit)),
    (
        ("finite", "honest-spaces", "returns", "info-types", "masks", "limit", "ends", "memory"),
        _plain(fuzz.check_fuzz),
    ),
)


COMPARES = ("episodes-differ", "shared-state", "arrays-owned")  # with the reference course
REPEATS = ("rows", "single-equals-batch", "autoreset", *COMPARES)  # vain where no reset repeats


def main_part(subject: Subject) -> Iterator[Event]:
    """Everything that can be looked at in one process."""
    calls: list[Call] = []
    said: set[str] = set()
    for event in _reference(subject, calls):
        said |= {event.check} if isinstance(event, Finding | Held) else set()
        yield event
    if not calls:
        return
    seconds, repeated = _seconds_a_step(subject, len(calls)), calls
    for index, (names, check) in enumerate(MAIN):
        yield Started(names[0])
        compares = names[0] in COMPARES
        if names[0] in REPEATS and len(repeated) < 2:
            said.update(names)
            for name in names:
                yield subject.not_applicable(name, "no course repeats that could be compared")
            continue
        given = repeated if compares else calls
        for event in _guarded(subject, names[0], check(subject, given, seconds)):
            if isinstance(event, Finding) and repeat.NEW_COPY in event.message:
                place = event.episode, event.step
                repeated = [c for c in calls if (c.episode, c.step) < place]
            if isinstance(event, Finding | Held):
                if event.check == "raises" and "raises" in said:
                    continue  # it has been said where it does
                said.add(event.check)
            yield event
        later = {name for more, _ in MAIN[index + 1 :] for name in more}
        for name in names:
            if name not in said and name not in later:
                said.add(name)
                yield Held(name)
    if "raises" not in said:
        yield Held("raises")


def fresh_part(subject: Subject, apart: bool = True) -> Iterator[Event]:
    """What wants a process of its own.

    Args:
        subject: the environment.
        apart: whether this process is one.
    """
    calls: list[Call] = []
    yield from (e for e in _reference(subject, calls) if apart and not isinstance(e, Finding))
    if not calls:
        return
    yield Started("stock checkers")
    yield from _guarded(subject, "raises", fresh.check_stock(subject))
    yield Started("render")
    yield from _guarded(subject, "render", fresh.check_render(subject, calls, windows=apart))


def _reference(subject: Subject, calls: list[Call]) -> Iterator[Event]:
    """The course that everything is compared with."""
    yield Started("builds")
    try:
        repeat.play_reference(subject, calls)
    except Raised as raised:
        yield subject.finding(
            "raises",
            f"a legal call raises {raised}",
            raised.episode,
            raised.step,
            shows=f"list(play(build(), 0, {repeat.CALLS}))",
        )
        if calls:
            yield Held("builds")
            yield repeat.course_event(calls)
        return
    except Exception as problem:
        yield subject.finding(
            "builds", f"it cannot be built: {type(problem).__name__}: {problem}", shows="build()"
        )
        return
    yield Held("builds")
    yield repeat.course_event(calls)


def _seconds_a_step(subject: Subject, calls: int) -> float:
    player = subject.player()
    start, steps = time.monotonic(), 0
    while steps < min(20, calls - 1) and time.monotonic() - start < 0.05:
        if player.over:
            player.reset(0, 0)
        player.step(player.sample())
        steps += 1
    player.env.close()
    return (time.monotonic() - start) / max(steps, 1)


def _guarded(subject: Subject, name: str, events: Iterator[Event]) -> Iterator[Event]:
    try:
        yield from events
    except Raised as raised:
        yield subject.finding(
            "raises", f"in {name}: a legal call raises {raised}", raised.episode, raised.step
        )
    except Exception as problem:
        yield subject.finding(name, f"raises {type(problem).__name__}: {problem}")
