"""One seed, one course: what may not change it, and what it may not change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from ..global_random import get_state, preserved
from .compare import difference, digest, flat, kept, shown
from .finding import Course, Event, Held
from .play import Call, course
from .subject import Subject

CALLS = 200
NEW_COPY = "in a new copy"
ARBITRARY = 20_261  # a state that no environment happens to set
SECONDS = 0.15  # of one course; all later ones are as long as the first


def play_reference(subject: Subject, calls: list[Call]) -> None:
    """Append the course that others are compared with; short where steps are slow."""
    first = subject.player()
    first.reset(0, 0)  # the first calls may compile or load
    first.step(first.sample())
    first.env.close()
    player = subject.player()
    start = time.monotonic()
    for call in course(player, seed=0, calls=CALLS):
        calls.append(as_returned(call))
        if time.monotonic() - start > SECONDS and len(calls) > 10:
            break
    player.env.close()


def course_event(calls: Sequence[Call]) -> Course:
    """The digests of a course, for a comparison between processes."""
    return Course(tuple((c.episode, c.step, _digests(c)) for c in calls))


def _digests(call: Call) -> dict[str, str]:
    return {path: digest(leaf) for path, leaf in flat(_compared(call)).items()}


def as_returned(call: Call) -> Call:
    """A call with copies of what it returned."""
    return Call(call.episode, call.step, call.action, kept(call.fields))


def _compared(call: Call) -> dict[str, Any]:
    """What must repeat; infos may hold the time of day."""
    return {name: part for name, part in call.fields.items() if name != "info"}


def departure(first: Sequence[Call], second: Sequence[Call]) -> tuple[int, str] | None:
    """Index of the first call in which two courses differ, and the path of the field."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        path = difference(_compared(one), _compared(other))
        if path is not None:
            return index, path
    return None


def item(path: str) -> str:
    """The path of a field as a program writes it, where it has plain keys."""
    return "".join(f"[{int(p) if p.isdigit() else p!r}]".replace("'", '"') for p in path.split("/"))


def check_determinism(subject: Subject, calls: list[Call]) -> Iterator[Event]:
    """The reference course again, in the same copy after other play, and in a new one."""
    player = subject.player()
    again = [as_returned(c) for c in course(player, 0, len(calls))]
    list(course(player, 1, 1 + len(calls) // 8))
    after_play = [as_returned(c) for c in course(player, 0, len(calls))]
    player.env.close()
    for seen, other, build in (
        (again, NEW_COPY, "play(build(), 0, {n})"),
        (after_play, "in the same copy after other play", None),
    ):
        parted = departure(calls, seen)
        if parted is None:
            continue
        index, path = parted
        n = index + 1
        if build is not None:
            shows = (
                f"*_, first = play(build(), 0, {n})\nfor _ in range(20):\n"
                f"    *_, second = play(build(), 0, {n})\n"
                "    assert difference(first, second) is None, difference(first, second)"
            )
        else:
            shows = (
                "env = build()\n"
                f"*_, first = play(env, 0, {n})\n"
                f"list(play(env, 1, {1 + len(calls) // 8}))\n"
                f"*_, second = play(env, 0, {n})\n"
                f"assert difference(first, second) is None, difference(first, second)"
            )
        one, two = flat(calls[index].fields)[path], flat(seen[index].fields)[path]
        yield subject.finding(
            "determinism",
            f"seed 0, the same actions, {other}: {shown(one)} became {shown(two)}",
            calls[index].episode,
            calls[index].step,
            path,
            shows,
        )
        return
    resets = sum(call.step == 0 for call in calls)
    yield Held("determinism", f"{len(calls)} calls, {resets} resets")


def check_episodes_differ(subject: Subject, calls: list[Call]) -> Iterator[Event]:
    """Whether reset() begins new episodes, where another seed does."""
    starts = [call for call in calls if call.step == 0]
    player = subject.player()
    other = as_returned(player.reset(1, 1))
    player.env.close()
    if len(starts) < 2:
        yield subject.not_applicable("episodes-differ", "the course has a single episode")
        return
    same = [difference(_compared(starts[0]), _compared(s)) is None for s in starts[1:]]
    seeded = difference(_compared(starts[0]), _compared(other)) is not None
    if seeded and all(same):
        n = calls.index(starts[1]) + 1
        yield subject.finding(
            "episodes-differ",
            "reset() without a seed begins the episode of the last seed again",
            1,
            0,
            "observation",
            f"first, *_, second = play(build(), 0, {n})\n"
            "*_, other = play(build(), 1, 1)\n"
            "assert difference(first, other) is not None, 'no two episodes differ'\n"
            "assert difference(first, second) is not None, 'the first episode again'",
        )


def check_shared_state(subject: Subject, calls: list[Call]) -> Iterator[Event]:
    """The reference course, while a second copy plays another one."""
    one, other = subject.player(), subject.player()
    pairs = zip(course(one, 0, len(calls)), course(other, 1, len(calls)), strict=True)
    seen = [as_returned(first) for first, _ in pairs]
    one.env.close()
    other.env.close()
    parted = departure(calls, seen)
    if parted is not None:
        index, path = parted
        n = index + 1
        yield subject.finding(
            "shared-state",
            "a second copy that plays beside it changes its course: do they share something?",
            calls[index].episode,
            calls[index].step,
            path,
            f"*_, alone = play(build(), 0, {n})\n"
            f"*_, (beside, _) = zip(play(build(), 0, {n}), play(build(), 1, {n}))\n"
            "assert difference(alone, beside) is None, difference(alone, beside)",
        )


_GENERATORS = {
    "python": ("random", "random.getstate()"),
    "numpy": ("numpy.random", 'get_state()["numpy"][1:]'),
    "torch": ("torch", "__import__('torch').get_rng_state().numpy()"),
}


def check_global_random(subject: Subject, calls: list[Call]) -> Iterator[Event]:
    """Whether building, resetting or stepping moves a generator that all code shares."""
    seen: set[str] = set()
    with preserved(ARBITRARY):
        before = get_state()
        player = subject.player()
        for name in _moved(before):
            seen.add(name)
            yield _moved_finding(subject, name, "building it", None, None, 0)
        for index, call in enumerate(course(player, 0, min(len(calls), 60))):
            for name in _moved(before):
                if name not in seen:
                    seen.add(name)
                    what = "a step" if call.step else "reset(seed=0)"
                    yield _moved_finding(subject, name, what, call.episode, call.step, index + 1)
        player.env.close()


def _moved(before: dict[str, Any]) -> list[str]:
    now = get_state()
    return [
        name
        for name, state in before.items()
        if state is not None and digest(_plain(state)) != digest(_plain(now[name]))
    ]


def _plain(state: Any) -> Any:
    if isinstance(state, tuple):
        return tuple(getattr(part, "tolist", lambda part=part: part)() for part in state)
    return state.numpy() if hasattr(state, "numpy") else state


def _moved_finding(
    subject: Subject, name: str, what: str, episode: int | None, step: int | None, calls: int
) -> Any:
    module, read = _GENERATORS[name]
    used = f"list(play(build(), 0, {calls}))" if calls else "build()"
    return subject.finding(
        "global-random",
        f"{what} draws from or seeds the global generator of {module}",
        episode,
        step,
        module,
        f"before = {read}\n{used}\n"
        f"assert difference(before, {read}) is None, 'the global state of {module} has moved'",
    )
