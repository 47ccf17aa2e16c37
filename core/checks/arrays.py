"""Arrays that cross the border: they belong to whoever receives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .compare import bits, flat, kept, shown
from .finding import Event
from .play import Call, course
from .repeat import departure
from .subject import Subject


def arrays_of(call: Call) -> dict[str, Any]:
    """The arrays that a call handed out, by path."""
    leaves = flat({name: call.fields.get(name) for name in ("observation", "reward", "info")})
    return {path: leaf for path, leaf in leaves.items() if isinstance(leaf, np.ndarray)}


def check_aliasing(subject: Subject, calls: list[Call]) -> Iterator[Event]:
    """Hold every array of a course, and look whether it is still what it was."""
    player = subject.player()
    held: list[tuple[Call, str, Any, Any]] = []
    changed: set[str] = set()
    for index, call in enumerate(course(player, 0, min(len(calls), 120))):
        recent = held[-8:] if index % 40 else held
        for earlier, path, array, before in recent:
            if path not in changed and bits(array) != before:
                changed.add(path)
                yield _changed(subject, earlier, call, path)
        held += [(call, path, array, bits(array)) for path, array in arrays_of(call).items()]
    player.env.close()


def _changed(subject: Subject, earlier: Call, later: Call, path: str) -> Any:
    first, *rest = path.split("/")
    place = "".join(f"[{part!r}]" for part in rest).replace("'", '"')
    count = max(earlier.step, 0) + 1
    return subject.finding(
        "aliasing",
        f"this array was changed by the environment in step {later.step} of episode "
        f"{later.episode}, after it had been handed out",
        earlier.episode,
        earlier.step,
        path,
        f"env = build()\n*_, last = play(env, 0, {count if earlier.episode == 0 else 60})\n"
        f'array = last["{first}"]{place}\nbefore = array.copy()\nlist(play(env, 1, 20))\n'
        "assert difference(array, before) is None, (before, array)",
    )


def check_actions_kept(subject: Subject, calls: list[Call]) -> Iterator[Event]:
    """Whether a step writes into its action."""
    player = subject.player()
    player.reset(0, 0)
    for _ in range(min(len(calls), 30)):
        if player.over:
            player.reset(None, 0)
        action = player.sample()
        before = kept(action)
        player.step(action)
        for path, leaf in flat(action).items():
            if bits(leaf) != bits(flat(before)[path]):
                value = shown(flat(before)[path])
                field = "/".join(p for p in ("action", path) if p)
                yield subject.finding(
                    "actions-kept",
                    f"the step wrote {shown(leaf)} over the action {value}",
                    player.episode,
                    player.steps,
                    field,
                    _ACTION_KEPT[subject.kind].format(steps=player.steps),
                )
                return
    player.env.close()


_ONE_ACTION = """
env = build()
*_, last = play(env, 0, {steps})
action = env.action_space.sample()
before = copy.deepcopy(action)
env.step(action)
assert difference(action, before) is None, (before, action)
"""
_ACTION_KEPT = {
    "gym": _ONE_ACTION,
    "parallel": _ONE_ACTION.replace(
        "env.action_space.sample()",
        '{{a: sample(s, last["observation"][a]) for a, s in samplers(env, 0).items()}}',
    ),
    "aec": _ONE_ACTION.replace(
        "env.action_space.sample()", "env.action_space(env.agent_selection).sample()"
    ),
}


def check_arrays_owned(subject: Subject, calls: list[Call]) -> Iterator[Event]:
    """The reference course, while its user overwrites observations and actions."""
    player = subject.player()
    seen: list[Call] = []
    for call in course(player, 0, len(calls)):
        seen.append(Call(call.episode, call.step, kept(call.action), kept(call.fields)))
        for leaf in (*arrays_of(call).values(), *flat(call.action).values()):
            if isinstance(leaf, np.ndarray) and leaf.flags.writeable and not _is_mask(leaf):
                leaf.fill(0)
    player.env.close()
    parted = departure(calls, seen)
    if parted is not None:
        index, path = parted
        yield subject.finding(
            "arrays-owned",
            "the course changes if its user writes into earlier observations and actions: the "
            "environment reads them again",
            calls[index].episode,
            calls[index].step,
            path,
            _OVERWRITTEN.format(n=index + 1),
        )


def _is_mask(leaf: Any) -> bool:
    return bool(leaf.dtype == np.int8 or leaf.dtype == np.bool_)


_OVERWRITTEN = """
def overwrite(tree):
    \"\"\"Set every array of an observation or action to 0.\"\"\"
    if isinstance(tree, dict | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            overwrite(part)
    elif isinstance(tree, np.ndarray):
        tree.fill(0)


env = build()
step = env.step
env.step = lambda action: (step(action), overwrite(action))[0]
*_, first = play(build(), 0, {n})
for last in play(env, 0, {n}):
    second = copy.deepcopy(last)
    overwrite(last["observation"])
assert difference(first, second) is None, difference(first, second)
"""
