"""Actions that are wrong, actions of other number types, and steps at the wrong time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from .compare import difference, kept, shown
from .finding import Event
from .play import Player, Raised, course
from .subject import Subject

PATIENCE = 2_000  # steps to wait for an end


def check_order(subject: Subject) -> Iterator[Event]:
    """Steps before the first reset and after the end."""
    player = subject.player()
    early = _early_action(player)
    if early is not None and player.attempt(early) is None:
        yield subject.finding(
            "order",
            "a step before the first reset is accepted",
            0,
            0,
            "step",
            _EARLY.get(subject.kind),
        )
    player.env.close()
    player = subject.player()
    for call in course(player, 0, PATIENCE, PATIENCE):
        if player.over:
            late = 0 if subject.kind == "aec" else call.action
            if player.attempt(late) is None:
                yield subject.finding(
                    "order",
                    "a step after the end of the episode is accepted",
                    call.episode,
                    call.step + 1,
                    "step",
                    _LATE.get(subject.kind),
                )
            break
    else:
        if early is None:
            yield subject.not_applicable("order", f"no end within {PATIENCE} steps")
    player.env.close()


def _early_action(player: Player) -> Any:
    """An action before the first reset; None where the spaces are not known yet."""
    if player.kind == "gym":
        return player.env.action_space.sample()
    agents = getattr(player.env, "possible_agents", [])
    try:
        sampled = {agent: player.env.action_space(agent).sample() for agent in agents}
    except Exception:  # spaces that a reset makes
        return None
    if not sampled:
        return None
    return sampled if player.kind == "parallel" else next(iter(sampled.values()))


_REFUSED = """
try:
    env.step({action})
except Exception as refusal:
    print("refused:", refusal)
else:
    raise AssertionError("{what} was accepted")
"""
_EARLY = {
    "gym": "env = build()"
    + _REFUSED.format(action="env.action_space.sample()", what="a step before reset"),
    "parallel": "env = build()\n"
    "actions = {a: env.action_space(a).sample() for a in env.possible_agents}"
    + _REFUSED.format(action="actions", what="a step before reset"),
    "aec": "env = build()\naction = env.action_space(env.possible_agents[0]).sample()"
    + _REFUSED.format(action="action", what="a step before reset"),
}
_WAIT = "env = build()\nfor _ in play(env, 0, 2000):\n    if not env.agents:\n        break\n"
_LATE = {
    "parallel": _WAIT
    + "actions = {a: env.action_space(a).sample() for a in env.possible_agents}"
    + _REFUSED.format(action="actions", what="a step after the end"),
    "aec": _WAIT.rstrip() + _REFUSED.format(action="0", what="a step after the end"),
    "gym": "env = build()\nfor last in play(env, 0, 2000):\n"
    '    if last.get("terminated") or last.get("truncated"):\n        break'
    + _REFUSED.format(action="env.action_space.sample()", what="a step after the end"),
}


# ------------------------------------------------------------------ wrong actions


def wrong_actions(space: spaces.Space[Any]) -> list[tuple[str, Any]]:
    """(what is wrong, action) for a space; empty for spaces without limits."""
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n)
        return [("one below the range", low - 1), ("one above the range", high), ("a half", 0.5)]
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        count = space.nvec + space.start if isinstance(space, spaces.MultiDiscrete) else 2
        return [("one above the range", np.full(space.shape, count, space.dtype))]
    if isinstance(space, spaces.Box):
        return _wrong_in_box(space)
    if isinstance(space, spaces.Dict):
        name, part = next(iter(space.spaces.items()))
        return [
            (f"{what} in {name!r}", {**space.sample(), name: bad})
            for what, bad in wrong_actions(part)
        ]
    if isinstance(space, spaces.Tuple):
        return [
            (f"{what} in part 0", (bad, *space.sample()[1:]))
            for what, bad in wrong_actions(space.spaces[0])
        ]
    return []


def _wrong_in_box(space: spaces.Box) -> list[tuple[str, Any]]:
    middle = np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    found: list[tuple[str, Any]] = []
    real = space.dtype.kind == "f"
    room = np.inf if real else np.iinfo(np.dtype(space.dtype.name)).max
    for what, bound, sign in (("above", space.high, 1), ("below", space.low, -1)):
        width = np.where(np.isfinite(bound), 1 + np.abs(bound.astype(np.float64)), 0)
        beyond = bound + sign * width
        if np.isfinite(bound).any() and (np.abs(beyond) < room).all():
            finite = np.where(np.isfinite(bound), beyond, middle)
            found.append((f"{what} the box", finite.astype(space.dtype)))
    if real:
        found.append(("NaN", np.full(space.shape, np.nan, space.dtype)))
    found.append(("another shape", np.zeros((2, *space.shape, 3), space.dtype)))
    return found


def check_bad_actions(subject: Subject) -> Iterator[Event]:
    """Actions that are not in the space: refused, clipped or taken."""
    player = subject.player()
    player.reset(0, 0)
    candidates = [
        (path, space, what, bad)
        for path, space in player.action_spaces()[:1]
        for what, bad in wrong_actions(space)
    ]
    if not candidates:
        yield subject.not_applicable("bad-actions", "every value is an action")
    told: set[str] = set()
    for path, space, what, bad in candidates:
        player = subject.player()
        player.reset(0, 0)
        given = player.with_action(path, kept(bad))
        if player.attempt(given) is not None:
            player.env.close()
            continue
        check, message = "bad-actions", f"{what}: {shown(bad)} is accepted"
        beyond = "the box" in what
        if beyond and isinstance(space, spaces.Box) and _same_as_clipped(subject, path, space, bad):
            check, message = "clipping", f"{what}: {shown(bad)} acts as the clipped action"
        if check not in told:
            told.add(check)
            yield subject.finding(
                check, message, 0, 1, "action" if subject.kind == "gym" else f"action/{path}",
                _wrong_script(subject, path, bad, what),
            )  # fmt: skip
        player.env.close()
    if not any(isinstance(space, spaces.Box) for _, space, _, _ in candidates):
        yield subject.not_applicable("clipping", "the actions are no box")


def _same_as_clipped(subject: Subject, path: str, space: spaces.Box, bad: Any) -> bool:
    results = []
    for action in (bad, np.clip(bad, space.low, space.high)):
        player = subject.player()
        player.reset(0, 0)
        results.append(kept(player.step(player.with_action(path, kept(action))).fields))
        player.env.close()
    return difference(*results) is None


def _wrong_script(subject: Subject, agent: str, bad: Any, what: str) -> str:
    action = f"action = {written(bad)}"
    if subject.kind == "parallel":
        sampled = "{a: env.action_space(a).sample() for a in env.agents}"
        action = f'action = {sampled}\naction["{agent}"] = {written(bad)}'
    refused = _REFUSED.format(action="action", what=what.replace('"', "'"))
    return f"env = build()\nenv.reset(seed=0)\n{action}{refused}"


def written(value: Any) -> str:
    """An action as a program writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{written(v)}, " for v in value) + ")"
    if isinstance(value, np.ndarray):
        numbers = repr(value.tolist()).replace("nan", "np.nan")
        return f"np.array({numbers}, np.{value.dtype.name})"
    return repr(value.item() if isinstance(value, np.generic) else value)


# ------------------------------------------------------------------ equal actions of other types


def other_types(space: spaces.Space[Any], action: Any) -> list[tuple[str, Any, str]]:
    """(type, the same action in it, how a program makes it of `action`)."""
    if isinstance(space, spaces.Discrete):
        return [
            ("a Python int", int(action), "int(action)"),
            ("np.int32", np.int32(action), "np.int32(action)"),
            ("a 0-d array", np.array(action), "np.array(action)"),
        ]
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return [("strided", _strided(action), "np.repeat(action, 2, -1)[..., ::2]")] * bool(
            space.shape
        )
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return [("int32", np.asarray(action, np.int32), "np.asarray(action, np.int32)")]
    return []


def _strided(action: Any) -> Any:
    return np.repeat(action, 2, -1)[..., ::2]


def check_action_types(subject: Subject) -> Iterator[Event]:
    """The same action as another type of number."""
    control, path, forms = _step_with(subject, None)
    if not forms:
        yield subject.not_applicable("action-types", "the action space has one type of numbers")
    for form, text in forms:
        try:
            fields = _step_with(subject, form)[0]
        except Raised as refusal:
            wrong = f"is refused: {refusal}"
        else:
            parted = difference(control, fields)
            if parted is None:
                continue
            wrong = f"does something else ({parted})"
        yield subject.finding(
            "action-types",
            f"a legal action as {form} {wrong}",
            0,
            1,
            "action" if subject.kind == "gym" else f"action/{path}",
            _TYPES.format(cast=text) if subject.kind == "gym" else None,
        )


def _step_with(subject: Subject, form: str | None) -> tuple[Any, str, list[tuple[str, str]]]:
    """The first step, with (an agent's part of) its action in this form.

    Returns:
        What the step returned, the path of that part, and the forms that there are.
    """
    player = subject.player()
    player.reset(0, 0)
    path, space = player.action_spaces()[0]
    whole = player.sample()
    agent = next((a for a in whole if str(a) == path), None) if isinstance(whole, dict) else None
    forms = other_types(space, whole if agent is None else whole[agent])
    value = next((v for name, v, _ in forms if name == form), None)
    if form is not None:
        whole = value if agent is None else {**whole, agent: value}
    fields = kept(player.step(whole).fields)
    player.env.close()
    return fields, path, [(name, text) for name, _, text in forms]


_TYPES = """
results = []
for cast in (lambda action: action, lambda action: {cast}):
    env = build()
    env.reset(seed=0)
    env.action_space.seed(0)
    results.append(env.step(cast(env.action_space.sample())))
assert difference(*results) is None, results
"""


# ------------------------------------------------------------------ masks and spaces


def check_masks_respected(subject: Subject) -> Iterator[Event]:
    """An action that the mask forbids."""
    player = subject.player()
    masked = False
    for index, call in enumerate(course(player, 0, 200)):
        masked = masked or bool(player.masks(call.fields))
        if index > 10 and not masked:
            break
        if player.over:
            continue
        for path, mask, space in player.masks(call.fields):
            flat = np.asarray(mask if not isinstance(mask, tuple) else np.concatenate(mask), bool)
            agent = path.partition("/")[2]
            if not isinstance(space, spaces.Discrete) or flat.all():
                continue
            if not _has_turn(player, agent):
                continue
            action = int(np.flatnonzero(~flat)[0] + space.start)
            given = player.with_action(agent or "action", action)
            refused = player.attempt(given) is not None or _punished(player, agent)
            if not refused:
                yield subject.finding(
                    "masks-respected",
                    f"the masked action {action} is accepted",
                    call.episode,
                    call.step + 1,
                    path,
                    f"env = build()\nlist(play(env, 0, {call.step + 1}))" * (call.episode == 0)
                    + _REFUSED.format(action=action, what=f"the masked action {action}")
                    if subject.kind == "gym" and call.episode == 0
                    else None,
                )
            player.env.close()
            return
    player.env.close()
    yield subject.not_applicable("masks-respected", "no mask forbids anything")


def _has_turn(player: Player, agent: str) -> bool:
    """Whether the action of an agent counts; in our own views it may be ignored."""
    batch: Any = getattr(player.env, "batch", None)
    if not agent or not hasattr(batch, "acting"):
        return True
    return bool(batch.acting()[0, batch.agents.index(agent)])


def _punished(player: Player, agent: str) -> bool:
    """Whether an illegal move of an agent ended its game, as PettingZoo's wrapper does."""
    if player.kind != "aec":
        return False
    flags = {**player.env.terminations}
    return any(over for name, over in flags.items() if str(name) == agent)


def check_space_types(subject: Subject) -> Iterator[Event]:
    """Boxes that learners cannot rescale or have to convert."""
    player = subject.player()
    call = player.reset(0, 0)
    actions = [("action", path, space) for path, space in player.action_spaces()]
    seen = [("observation", path, space) for path, _, space in player.observed(call.fields)]
    player.env.close()
    for kind, path, whole in (*actions, *seen):
        for inner, space in _boxes(whole, path):
            problem = _problem_of(kind, space)
            if problem is not None:
                shows = None
                if subject.kind == "gym" and whole is space:
                    shows = _SPACE.format(kind=kind)
                yield subject.finding("space-types", problem, field=inner, shows=shows)


_SPACE = """
space = build().{kind}_space
bounded = np.isfinite(space.low).all() and np.isfinite(space.high).all()
assert space.dtype.kind == "f" and space.dtype != np.float64, space
assert bounded or "{kind}" == "observation", space
"""


def _boxes(space: spaces.Space[Any], path: str) -> Iterator[tuple[str, spaces.Box]]:
    if isinstance(space, spaces.Box):
        yield path, space
    elif isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from _boxes(part, f"{path}/{name}")
    elif isinstance(space, spaces.Tuple):
        for place, part in enumerate(space.spaces):
            yield from _boxes(part, f"{path}/{place}")


def _problem_of(kind: str, space: spaces.Box) -> str | None:
    if space.dtype == np.float64:
        return "the box is float64; learners compute in float32, and convert"
    if kind == "action" and space.dtype.kind in "iu":
        return "the box of actions holds integers; learners rescale boxes as real numbers"
    if kind == "action" and not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return "the box of actions is unbounded; learners cannot rescale it"
    return None
