"""A long play with legal actions: what comes back, when episodes end, and whether memory grows."""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from .compare import flat, shown
from .finding import Event, Finding, Held
from .play import Call, Player, course
from .repeat import item
from .subject import Subject

STEPS, EPISODES, SECONDS = 10_000, 200, 4.0
LONGEST = 5_000  # steps of an episode before it is cut


@dataclass
class _Fuzz:
    """What the fuzz has seen so far."""

    subject: Subject
    player: Player
    limit: int | None
    seed: int = 0
    calls: int = 0
    steps: int = 0
    episodes: int = 0
    ended: int = 0
    masked: bool = False
    types: dict[str, type] = field(default_factory=dict)
    told: set[tuple[str, str]] = field(default_factory=set)

    def last(self, env: str = "build()") -> str:
        """The line of a program that plays up to this call and keeps what it returned."""
        return f"*_, last = play({env}, {self.seed}, {self.calls})\n"

    def finding(
        self, check: str, call: Call, path: str, message: str, shows: str | None = None
    ) -> Iterator[Finding]:
        """A finding, once a check and field; `shows` is the end of its program."""
        if (check, path) in self.told:
            return
        self.told.add((check, path))
        found = self.subject.finding(check, message, call.episode, call.step, path, shows)
        # its episodes are longer than those of a short course
        script = found.script and found.script.replace("50 steps", f"{LONGEST} steps")
        script = script and script.replace("50 turns", f"{LONGEST} turns")
        script = script and script.replace("steps == 50", f"steps == {LONGEST}")
        yield Finding(**{**vars(found), "script": script})


def check_fuzz(subject: Subject) -> Iterator[Event]:
    """10 000 steps and 200 episodes, or four seconds."""
    player = subject.player()
    fuzz = _Fuzz(subject, player, declared_limit(subject, player.env))
    gc.freeze()  # what is there already need not be searched for each sample of the memory
    try:
        yield from _play(fuzz)
    finally:
        gc.unfreeze()
        player.env.close()


def _play(fuzz: _Fuzz) -> Iterator[Event]:
    memory, start = _Memory(), time.monotonic()
    for fuzz.seed in itertools.count():
        fuzz.calls = 0
        for call in course(fuzz.player, fuzz.seed, LONGEST + 1, LONGEST):
            fuzz.calls += 1
            fuzz.steps += call.step > 0
            fuzz.episodes += call.step == 0
            fuzz.ended += fuzz.player.over
            yield from _look(fuzz, call)
            elapsed = time.monotonic() - start
            played = min(fuzz.steps / STEPS, fuzz.episodes / EPISODES)
            memory.note(max(played, elapsed / SECONDS), fuzz.episodes, fuzz.steps)
            if played >= 1 or elapsed >= SECONDS:
                yield from _conclude(fuzz, memory, elapsed)
                return


def declared_limit(subject: Subject, env: Any) -> int | None:
    """After how many steps an episode is cut, as the environment declares it."""
    if subject.ours:
        return subject.rows(1).horizon if subject.rows else None
    return getattr(getattr(env, "spec", None), "max_episode_steps", None)


def _look(fuzz: _Fuzz, call: Call) -> Iterator[Event]:
    finite = True
    for path, leaf in flat({k: v for k, v in call.fields.items() if k != "info"}).items():
        if not _finite(leaf):
            finite = False
            yield from fuzz.finding(
                "finite",
                call,
                path,
                f"{shown(leaf)} after legal actions",
                f"{fuzz.last()}value = np.asarray(last{item(path)})\n"
                "assert np.isfinite(value).all(), value",
            )
    if finite:
        yield from _spaces(fuzz, call)
    yield from _returned(fuzz, call)
    yield from _infos(fuzz, call)
    yield from _masks(fuzz, call)
    yield from _limit(fuzz, call)


def _finite(leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray | np.generic | float):
        return True
    array = np.asarray(leaf)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _spaces(fuzz: _Fuzz, call: Call) -> Iterator[Event]:
    for path, seen, space in fuzz.player.observed(call.fields):
        outside = what_is_outside(space, seen, path)
        if outside is not None:
            where, reason = outside
            agent = path.partition("/")[2]
            asked = f'observation_space("{agent}")' if agent else "observation_space"
            yield from fuzz.finding(
                "honest-spaces",
                call,
                where,
                reason,
                f"env = build()\n{fuzz.last('env')}"
                f"assert last{item(path)} in env.{asked}, last{item(path)}",
            )


def what_is_outside(space: spaces.Space[Any], value: Any, path: str) -> tuple[str, str] | None:
    """Path and reason of the first part of a value that its space does not contain."""
    if space.contains(value):
        return None
    if isinstance(space, spaces.Dict) and isinstance(value, dict):
        if set(value) != set(space.spaces):
            return path, f"has the keys {sorted(value)}, the space {sorted(space.spaces)}"
        parts = [(k, part, value[k]) for k, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple) and isinstance(value, tuple | list):
        parts = list(zip(map(str, range(len(value))), space.spaces, value, strict=False))
    else:
        return path, _why_outside(space, value)
    inner = (what_is_outside(part, v, f"{path}/{name}") for name, part, v in parts)
    return next((found for found in inner if found is not None), (path, f"is not in {space}"))


def _why_outside(space: spaces.Space[Any], value: Any) -> str:
    if not isinstance(space, spaces.Box):
        return f"{shown(value)} is not in {space}"
    if not isinstance(value, np.ndarray):
        return f"{shown(value)} is a {type(value).__name__}, the space holds arrays"
    if value.shape != space.shape:
        return f"has shape {value.shape}, the space {space.shape}"
    if not np.can_cast(value.dtype, space.dtype):
        return f"is {value.dtype}, the space {space.dtype}"
    place = tuple(int(i) for i in np.argwhere((value < space.low) | (value > space.high))[0])
    return (
        f"component {place}: {value[place]!r} is outside {space.low[place]!r} to "
        f"{space.high[place]!r}"
    )


_TYPES = {
    "reward": "int | float | np.integer | np.floating",
    "terminated": "bool | np.bool_",
    "truncated": "bool | np.bool_",
}


def _returned(fuzz: _Fuzz, call: Call) -> Iterator[Event]:
    """Types of rewards, flags and infos."""
    for name in ("reward", "terminated", "truncated"):
        wanted = (bool | np.bool_) if name != "reward" else (int | float | np.integer | np.floating)
        for path, leaf in flat({name: call.fields.get(name, {})}).items():
            if not isinstance(leaf, wanted):
                yield from fuzz.finding(
                    "returns",
                    call,
                    path,
                    f"is {shown(leaf)}, a {type(leaf).__name__}; allowed a "
                    f"{'number' if name == 'reward' else 'bool'}",
                    f"{fuzz.last()}value = last{item(path)}\n"
                    f"assert isinstance(value, {_TYPES[name]}), (type(value), value)",
                )
    infos = call.fields["info"]
    for agent, info in infos.items() if fuzz.player.kind != "gym" else [(None, infos)]:
        if not isinstance(info, dict):
            path = "info" if agent is None else f"info/{agent}"
            yield from fuzz.finding(
                "returns",
                call,
                path,
                f"is a {type(info).__name__}, allowed a dict",
                f"{fuzz.last()}assert isinstance(last{item(path)}, dict), last{item(path)}",
            )


def _infos(fuzz: _Fuzz, call: Call) -> Iterator[Event]:
    """An entry of info keeps the type that it had first."""
    for path, leaf in flat({"info": call.fields["info"]}).items():
        first = fuzz.types.setdefault(path, type(leaf))
        if type(leaf) is not first and leaf is not None and first is not type(None):
            yield from fuzz.finding(
                "info-types",
                call,
                path,
                f"is a {type(leaf).__name__}, before it was a {first.__name__}",
                f"calls = list(play(build(), {fuzz.seed}, {fuzz.calls}))\n"
                f"types = {{type(find(call)) for call in calls if find(call) is not None}}\n"
                "assert len(types) == 1, types".replace("find(call)", _safe(path)),
            )


def _safe(path: str) -> str:
    """The entry of a call, None where there is none."""
    first, *rest = path.split("/")
    return f'call["{first}"]' + "".join(f'.get("{part}")' for part in rest[:1])


def _masks(fuzz: _Fuzz, call: Call) -> Iterator[Event]:
    for path, mask, space in fuzz.player.masks(call.fields):
        fuzz.masked = True
        parts = mask if isinstance(mask, tuple) else _parts(space, np.asarray(mask))
        sizes = _sizes(space)
        if sizes is None:
            continue
        if [len(part) for part in parts] != sizes:
            message = f"has {[len(p) for p in parts]} entries, the actions {sizes}"
        elif not all(np.any(part) for part in parts):
            message = "no action is legal"
        else:
            continue
        shows = None
        if fuzz.player.kind == "gym":
            shows = (
                f"env = build()\nlist(play(env, {fuzz.seed}, {fuzz.calls}))\n"
                "mask = env.unwrapped.action_masks()\nassert mask.any(), mask"
            )
        yield from fuzz.finding("masks", call, path, message, shows)


def _sizes(space: spaces.Space[Any]) -> list[int] | None:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return [int(n) for n in space.nvec]
    return None


def _parts(space: spaces.Space[Any], mask: Any) -> list[Any]:
    sizes = _sizes(space) or []
    return np.split(mask, np.cumsum(sizes)[:-1]) if mask.ndim == 1 else [mask]


def _limit(fuzz: _Fuzz, call: Call) -> Iterator[Event]:
    """Episodes are over at the declared limit."""
    if fuzz.limit is None or call.step < fuzz.limit or fuzz.player.kind == "aec":
        return
    if not fuzz.player.over:
        yield from fuzz.finding(
            "limit",
            call,
            "truncated",
            f"step {call.step} does not end the episode; the declared limit is {fuzz.limit} steps",
            f"{fuzz.last()}"
            'assert last["terminated"] or last["truncated"], "the limit ends nothing"',
        )


def _conclude(fuzz: _Fuzz, memory: _Memory, seconds: float) -> Iterator[Event]:
    subject = fuzz.subject
    if fuzz.steps >= STEPS:
        looked = f"{STEPS:,} steps".replace(",", " ")
    else:
        looked = f"{fuzz.steps} steps in {seconds:.1f} s"
    yield Held("honest-spaces", looked)
    yield Held("finite", looked)
    if not fuzz.masked:
        yield subject.not_applicable("masks", "it has none")
    if fuzz.limit is None and not subject.ours:
        yield subject.not_applicable("limit", "none is declared")
    if not fuzz.ended:
        if fuzz.limit is None:
            longest = min(fuzz.steps, LONGEST)
            yield subject.finding(
                "ends",
                f"no episode ended by itself within {longest} steps and no limit is declared: "
                "give it a horizon (max_episode_steps)",
                0,
                longest,
                "terminated",
                f"env = build()\nenv.reset(seed=0)\nfor step in range({longest}):\n"
                "    *_, terminated, truncated, _ = env.step(env.action_space.sample())\n"
                "    if terminated or truncated:\n        break\nelse:\n"
                f"    raise AssertionError('no end within {longest} steps')"
                if subject.kind == "gym" and not subject.masked
                else None,
            )
        else:
            yield subject.not_applicable("ends", f"no episode ended in {looked}")
    else:
        yield Held("ends", f"{fuzz.ended} episodes ended")
    yield from memory.conclude(subject, fuzz)


# ------------------------------------------------------------------ memory

PARTS = 8
LEAST_BLOCKS = 30  # of the interpreter, between two samples; and one in so many steps, because
LEAST_STEPS = 10  # the interpreter's own caches fill up slowly
STEADY = 0.8  # a leak goes on; what is filled once (caches, specialised code) takes less and less
LEAST_BYTES = 4 * 2**20


class _Memory:
    """Samples of how much memory is in use, at equal parts of the play."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, int, int, int]] = []

    def note(self, progress: float, episodes: int, steps: int) -> None:
        """Take a sample where the next part is complete."""
        if progress * PARTS >= len(self.samples):
            gc.collect()
            self.samples.append((sys.getallocatedblocks(), _resident(), episodes, steps))

    def conclude(self, subject: Subject, fuzz: _Fuzz) -> Iterator[Event]:
        """Memory leaks if each part of the second half takes more."""
        blocks, resident, episodes, steps = map(list, zip(*self.samples[-5:], strict=True))
        note = f"over {fuzz.episodes} episodes, {fuzz.steps} steps"
        if len(blocks) < 5:
            yield subject.not_applicable("memory", f"too short a play: {note}")
            return
        least = max(LEAST_BLOCKS, (steps[-1] - steps[0]) // (4 * LEAST_STEPS))
        if _leaks(blocks, least) or _leaks(resident, LEAST_BYTES):
            played = episodes[-1] - episodes[0]
            grown = f"{blocks[-1] - blocks[0]} objects, {(resident[-1] - resident[0]) >> 10} KiB"
            yield subject.finding(
                "memory",
                f"grew by {grown} in {played} episodes ({steps[-1] - steps[0]} steps), and went on",
                fuzz.episodes - 1,
                None,
                "memory",
                "env, counts = build(), []\nfor seed in range(4):\n"
                "    list(play(env, seed, 2000))\n    gc.collect()\n"
                "    counts.append(sys.getallocatedblocks())\n"
                "assert counts[3] - counts[2] < 100 or counts[2] - counts[1] < 100, counts",
            )
        else:
            yield Held("memory", note)


def _leaks(samples: list[int], least: int) -> bool:
    """Whether every part took more than the least, and the last ones no less than the first."""
    taken = np.diff(samples)
    return bool(min(taken) > least and sum(taken[2:]) > STEADY * sum(taken[:2]))


def _resident() -> int:
    """Bytes in memory, where the system says so."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    return int(statm.read_text(encoding="ascii").split()[1]) * 4096
