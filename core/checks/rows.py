"""Many rows as one: what a BatchEnv promises, and what copies of a plain environment must."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from ..batch import BatchEnv, Episodes, Mask, agent_space, keyed_by_agents, lead
from ..spaces import Tree, allocate, put, take
from .compare import difference, kept
from .finding import Event, Held
from .play import Call, legal_sample
from .subject import Subject

SEEDS = (10, 11, 12)
Rows = list[dict[str, Any]]  # what one call returned, a row each


class RowPlay:
    """Plays a BatchEnv; the actions of a row depend on its seed, episode and step alone.

    Args:
        env: the environment.
        seeds: one a row; each row plays episodes 0, 1, 2, ... of its own.
    """

    def __init__(self, env: BatchEnv, seeds: Sequence[int]) -> None:
        self.env = env
        self.seeds = list(seeds)
        self.episodes = Episodes(env)
        self.episodes.seed(self.seeds)
        self.spaces = [copy.deepcopy(env.action_space) for _ in seeds]
        self.begun = np.zeros(env.rows, np.int64)
        self.rows: Rows = [{} for _ in seeds]

    def call(self, resting: Mask | None = None) -> Rows:
        """Begin rows that are over, step the others; rows of the mask `resting` do neither."""
        episodes = self.episodes
        playing = ~resting if resting is not None else np.ones(self.env.rows, np.bool_)
        begin, live = playing & episodes.ended, playing & ~episodes.ended
        if begin.any():
            episodes.begin(begin)
            for row in np.flatnonzero(begin).tolist():
                self.spaces[row].seed(self.seeds[row] + int(self.begun[row]))
                self.begun[row] += 1
        step = episodes.advance(self._actions(live), live)[0] if live.any() else None
        seen, metrics = episodes.observe(), self.env.metrics()
        for row in np.flatnonzero(playing).tolist():
            fields = {"observation": take(seen, (row, ...))}
            if live[row] and step is not None:
                for name in ("reward", "terminated", "truncated", "duration"):
                    fields[name] = getattr(step, name)[row]
            fields["metrics"] = {name: values[row] for name, values in metrics.items()}
            self.rows[row] = kept(fields)
        return [dict(row) for row in self.rows]

    def _actions(self, live: Mask) -> Tree:
        env = self.env
        masks = self.episodes.masks()
        actions = _inside(env)
        for row in np.flatnonzero(live).tolist():
            put(actions, row, self._row_action(row, masks))
        return actions

    def _row_action(self, row: int, masks: Tree) -> Tree:
        env, space = self.env, self.spaces[row]
        if not env.agents:
            return legal_sample(space, None if masks is None else masks[row])
        by_name = keyed_by_agents(env, space)
        drawn = {}
        for place, agent in enumerate(env.agents):
            mask = None
            if masks is not None:
                mask = masks[agent][row] if isinstance(masks, dict) else masks[row, place]
            drawn[agent] = legal_sample(agent_space(env, space, agent), mask)
        if by_name:
            return drawn
        together = allocate(space, (len(env.agents),))
        for place, agent in enumerate(env.agents):
            put(together, place, drawn[agent])
        return together


def _inside(env: BatchEnv) -> Tree:
    """Actions inside the space, for rows that rest."""
    space = env.action_space
    leading = lead(env, space)
    blank = allocate(space, leading)
    sample = space.sample()
    if len(leading) == 1:
        for row in range(env.rows):
            put(blank, row, sample)
    else:
        for row in range(env.rows):
            for agent in range(leading[1]):
                put(blank, (row, agent), sample)
    return blank


def play_rows(env: BatchEnv, seeds: Sequence[int], calls: int, look: int = 1) -> list[Rows]:
    """What each call returns, a row each.

    Args:
        env: an environment of `len(seeds)` rows.
        seeds: of the rows.
        calls: how many; the first begins.
        look: how often each call observes; more than once must change nothing.
    """
    play = RowPlay(env, seeds)
    played = []
    for _ in range(calls):
        played.append(play.call())
        for _ in range(look - 1):
            play.episodes.observe()
            env.metrics()
    env.close()
    return played


def _places(play: Sequence[Rows], row: int) -> list[tuple[int, int]]:
    """(episode, step) of each call of a row."""
    episode, step, found = -1, 0, []
    for rows in play:
        begins = "reward" not in rows[row]
        episode, step = (episode + 1, 0) if begins else (episode, step + 1)
        found.append((episode, step))
    return found


def calls_for(seconds_a_step: float, rows: int, seconds: float = 0.12) -> int:
    """How many calls fit."""
    return int(np.clip(seconds / max(seconds_a_step * rows, 1e-6), 8, 60))


def check_rows(subject: Subject, seconds_a_step: float) -> Iterator[Event]:
    """Other places, other neighbours, another number of rows, idle rows: the same bits."""
    if subject.rows is None:
        for name in ("rows", "idle-rows", "observe", "single-equals-batch", "autoreset"):
            yield subject.not_applicable(name, subject.why_no_rows)
        return
    build, n = subject.rows, calls_for(seconds_a_step, len(SEEDS))
    control = play_rows(build(len(SEEDS)), SEEDS, n)
    other = [SEEDS[0], 90, 91]
    for check, what, seeds, pairs in (
        ("rows", "rows in another order", SEEDS[::-1], [(r, len(SEEDS) - 1 - r) for r in range(3)]),
        ("rows", "other episodes and actions in the other rows", other, [(0, 0)]),
        ("single-equals-batch", "alone", SEEDS[:1], [(0, 0)]),
        ("single-equals-batch", "alone", SEEDS[-1:], [(2, 0)]),
    ):
        seen = play_rows(build(len(seeds)), seeds, n)
        yield from _compare(subject, check, what, control, seen, pairs, seeds)
    if not subject.ours:
        for name in ("idle-rows", "observe"):
            yield subject.not_applicable(name, "the adapter of plain environments does this")
        return
    yield from _check_observe(subject, control, n)
    yield from _check_idle_rows(subject, control, n)


def _compare(
    subject: Subject,
    check: str,
    what: str,
    control: list[Rows],
    seen: list[Rows],
    pairs: Sequence[tuple[int, int]],
    seeds: Sequence[int],
) -> Iterator[Event]:
    for index, (one, two) in enumerate(zip(control, seen, strict=True)):
        for row, there in pairs:
            path = difference(one[row], two[there])
            if path is None:
                continue
            episode, step = _places(control, row)[index]
            n = index + 1
            yield subject.finding(
                check,
                f"row {row} (seed {SEEDS[row]}) plays differently: {what}",
                episode,
                step,
                path,
                f"first = play_rows(build({len(SEEDS)}), {list(SEEDS)}, {n})[-1][{row}]\n"
                f"second = play_rows(build({len(seeds)}), {list(seeds)}, {n})[-1][{there}]\n"
                "assert difference(first, second) is None, (first, second)",
                rows=True,
            )
            return


def _check_observe(subject: Subject, control: list[Rows], calls: int) -> Iterator[Event]:
    assert subject.rows is not None
    seen = play_rows(subject.rows(len(SEEDS)), SEEDS, calls, look=3)
    for index, (one, two) in enumerate(zip(control, seen, strict=True)):
        for row in range(len(SEEDS)):
            path = difference(one[row], two[row])
            if path is not None:
                episode, step = _places(control, row)[index]
                yield subject.finding(
                    "observe",
                    f"row {row} plays differently if observe() and metrics() are called more often",
                    episode,
                    step,
                    path,
                    f"first = play_rows(build(3), {list(SEEDS)}, {index + 1})[-1][{row}]\n"
                    f"second = play_rows(build(3), {list(SEEDS)}, {index + 1}, look=3)[-1][{row}]\n"
                    "assert difference(first, second) is None, (first, second)",
                    rows=True,
                )
                return
    play = RowPlay(subject.rows(len(SEEDS)), SEEDS)
    for index in range(min(calls, 10)):
        play.call()
        path = difference(play.episodes.observe(), play.episodes.observe())
        if path is not None:
            episode, step = _places(control, 0)[index]
            yield subject.finding(
                "observe",
                "observe() gives other bits when it is called again",
                episode,
                step,
                "/".join(p for p in ("observation", path) if p),
                f"episodes = Episodes(build(1))\nepisodes.reset({SEEDS[0]})\n"
                "first, second = episodes.observe(), episodes.observe()\n"
                "assert difference(first, second) is None, (first, second)",
                rows=True,
            )
            return


def _check_idle_rows(subject: Subject, control: list[Rows], calls: int) -> Iterator[Event]:
    """Row 1 rests in every other call: it stays as it is, and plays its own calls later."""
    assert subject.rows is not None
    play = RowPlay(subject.rows(len(SEEDS)), SEEDS)
    rest = np.array([False, True, False])
    own = 0
    for index in range(calls):
        resting = rest if index % 2 else None
        before = _state(play, 1)
        rows = play.call(resting)
        if resting is not None:
            path = difference(before, _state(play, 1))
            if path is not None:
                episode, step = _places(control, 1)[max(own - 1, 0)]
                yield _idle_finding(
                    subject, "row 1 changes although it does not step", episode, step, path
                )
                return
        own += resting is None
        expected = [control[index][0], control[own - 1][1], control[index][2]]
        for row in range(len(SEEDS)):
            path = difference(expected[row], rows[row])
            if path is not None:
                episode, step = _places(control, row)[index if row != 1 else own - 1]
                what = f"row {row} plays differently if row 1 rests in every other call"
                yield _idle_finding(subject, what, episode, step, path)
                return
    play.env.close()


def _state(play: RowPlay, row: int) -> dict[str, Any]:
    """All that can be seen of a row."""
    env = play.env
    fields = {
        "observation": take(play.episodes.observe(), (row, ...)),
        "metrics": {name: values[row] for name, values in env.metrics().items()},
    }
    if hasattr(env, "snapshot"):
        fields["snapshot"] = {n: v[row] for n, v in env.snapshot(env.everyone).items()}
    return kept(fields)  # type: ignore[no-any-return]


def _idle_finding(subject: Subject, what: str, episode: int, step: int, path: str) -> Any:
    return subject.finding("idle-rows", what, episode, step, path, _IDLE, rows=True)


_IDLE = f"""
def play(calls, rest):
    \"\"\"The calls of rows 0 and 2; row 1 rests in every other call if `rest` says so.\"\"\"
    played = RowPlay(build(3), {list(SEEDS)})
    seen = []
    for number in range(calls):
        resting = np.array([False, rest and number % 2 == 1, False])
        before = row_state(played, 1)
        rows = played.call(resting)
        if resting.any():
            assert difference(before, row_state(played, 1)) is None, "row 1 changed at rest"
        seen.append([rows[0], rows[2]])
    return seen


for first, second in zip(play(60, False), play(60, True)):
    assert difference(dict(enumerate(first)), dict(enumerate(second))) is None, (first, second)
"""


def row_state(play: RowPlay, row: int) -> dict[str, Any]:
    """All that can be seen of a row: observation, metrics, snapshot."""
    return _state(play, row)


# ------------------------------------------------------------------ the single view, limits


def check_single_view(subject: Subject, calls: list[Call]) -> Iterator[Event]:
    """The Gymnasium view against the rows, with the same actions."""
    if not subject.ours or subject.kind != "gym" or subject.rows is None:
        return
    n = min(len(calls), 40)
    single = list(_play_view(subject.one(), SEEDS[0], n))
    rows = play_rows(subject.rows(3), SEEDS, n)
    for index, (one, many) in enumerate(zip(single, rows, strict=True)):
        names = [n for n in ("observation", "reward", "terminated") if n in many[0]]
        path = difference(*({n: _array(fields[n]) for n in names} for fields in (one, many[0])))
        if path is not None:
            episode, step = _places(rows, 0)[index]
            yield subject.finding(
                "single-equals-batch",
                "the Gymnasium view plays differently from row 0 of three",
                episode,
                step,
                path,
            )
            return


def _play_view(view: Any, seed: int, calls: int) -> Iterator[dict[str, Any]]:
    """The calls of a Gymnasium view with the actions that `RowPlay` gives a row."""
    actions, over, episode = copy.deepcopy(view.batch.action_space), True, -1
    for _ in range(calls):
        if over:
            episode += 1
            seen, _ = view.reset(seed=seed if episode == 0 else None)
            actions.seed(seed + episode)
            over = False
            yield {"observation": kept(seen)}
            continue
        mask = view.action_masks() if hasattr(view, "action_masks") else None
        seen, reward, terminated, truncated, _ = view.step(legal_sample(actions, mask))
        over = terminated or truncated
        yield {"observation": kept(seen), "reward": reward, "terminated": terminated}
    view.close()


def _array(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {name: _array(part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_array(part) for part in tree)
    return np.asarray(tree)


def check_limit(subject: Subject) -> Iterator[Event]:
    """A horizon of a few steps truncates, and terminates nothing that goes on without it."""
    if not subject.ours or subject.rows is None:
        return
    steps = 3
    free, cut = subject.rows(len(SEEDS)), subject.rows(len(SEEDS))
    free.horizon, cut.horizon = None, steps
    without, within = (play_rows(env, SEEDS, steps + 1) for env in (free, cut))
    for row in range(len(SEEDS)):
        if any(np.any(rows[row].get("terminated", False)) for rows in without):
            continue
        last = within[steps][row]
        ends = bool(last["truncated"]) and not np.any(last["terminated"])
        if not ends:
            yield subject.finding(
                "limit",
                f"a horizon of {steps} does not truncate step {steps} of an episode that goes on "
                f"without it: terminated {last['terminated']}, truncated {last['truncated']}",
                0,
                steps,
                "terminated",
                f"free, cut = build(3), build(3)\nfree.horizon, cut.horizon = None, {steps}\n"
                f"first = play_rows(free, {list(SEEDS)}, {steps + 1})[-1][{row}]\n"
                f"second = play_rows(cut, {list(SEEDS)}, {steps + 1})[-1][{row}]\n"
                'assert difference(first["terminated"], second["terminated"]) is None, second\n'
                'assert second["truncated"], second',
                rows=True,
            )
            return


# ------------------------------------------------------------------ snapshots


def check_snapshot(subject: Subject, seconds_a_step: float) -> Iterator[Event]:
    """A snapshot restored into the same and into a new environment goes on exactly."""
    if not subject.ours or subject.rows is None:
        return
    env = subject.rows(len(SEEDS))
    if not (hasattr(env, "snapshot") and hasattr(env, "restore")):
        yield subject.finding(
            "snapshot",
            "there is no snapshot(rows) and restore(state, rows): no copies, no exact resume",
            shows="env = build(1)\n"
            "assert hasattr(env, 'snapshot') and hasattr(env, 'restore'), 'no snapshot'",
            rows=True,
        )
        return
    before, after = 4, calls_for(seconds_a_step, len(SEEDS), 0.1)
    play = RowPlay(env, SEEDS)
    for _ in range(before):
        play.call()
    state, samplers = play.episodes.snapshot(), copy.deepcopy((play.spaces, play.begun))
    as_taken = kept(state)
    onward = [play.call() for _ in range(after)]
    changed = difference(as_taken, state)
    if changed is not None:
        yield subject.finding(
            "snapshot",
            "the snapshot changes as the environment goes on: it must be copies",
            0,
            before,
            changed,
            _SNAPSHOT.format(seeds=list(SEEDS), before=before, after=after),
            rows=True,
        )
        return
    for where, target in (("the same environment", play), ("a new one", None)):
        again = target or RowPlay(subject.rows(len(SEEDS)), SEEDS)
        again.episodes.restore(kept(state))
        again.spaces, again.begun = copy.deepcopy(samplers)
        for index in range(after):
            path = difference(*(dict(enumerate(r)) for r in (onward[index], again.call())))
            if path is not None:
                row, _, inner = path.partition("/")
                yield subject.finding(
                    "snapshot",
                    f"row {row} goes on differently after a restore into {where}",
                    0,
                    before + index,
                    inner,
                    _SNAPSHOT.format(seeds=list(SEEDS), before=before, after=after),
                    rows=True,
                )
                return
    yield Held("snapshot", f"{after} calls after a restore")


_SNAPSHOT = """
played = RowPlay(build(3), {seeds})
for _ in range({before}):
    played.call()
state, samplers = played.episodes.snapshot(), copy.deepcopy(played.spaces)
taken = copy.deepcopy(state)
first = [played.call() for _ in range({after})]
assert difference(taken, state) is None, "the snapshot changed: " + difference(taken, state)
for other in (played, RowPlay(build(3), {seeds})):
    other.episodes.restore(taken)
    other.spaces = copy.deepcopy(samplers)
    for one in first:
        path = difference(dict(enumerate(one)), dict(enumerate(other.call())))
        assert path is None, path
"""


# ------------------------------------------------------------------ autoreset


def play_vector(env: BatchEnv, mode: str, seeds: Sequence[int], calls: int) -> list[list[Any]]:
    """The whole episodes of each row under an autoreset mode: lists of what the steps returned."""
    from ..views.vector import VectorView

    view = VectorView(env, mode)
    space, rows = env.action_space, range(len(seeds))
    samplers = [copy.deepcopy(space) for _ in seeds]
    number = [0] * len(seeds)
    seen, _ = view.reset(seed=list(seeds))
    for row in rows:
        samplers[row].seed(seeds[row])
    episodes: list[list[Any]] = [[] for _ in seeds]
    running = [[kept(take(seen, (row, ...)))] for row in rows]
    over = np.zeros(len(seeds), np.bool_)
    for _ in range(calls):
        if mode == "DISABLED" and over.any():
            seen, _ = view.reset(options={"reset_mask": over})
            _start(rows, over, seen, running, number, samplers, seeds)
            over = np.zeros(len(seeds), np.bool_)
        begins = over if mode == "NEXT_STEP" else np.zeros(len(seeds), np.bool_)
        masks = view.episodes.masks()
        actions = _inside(env)
        for row in rows:
            if not begins[row]:
                mask = None if masks is None else masks[row]
                put(actions, row, legal_sample(samplers[row], mask))
        seen, reward, terminated, truncated, infos = view.step(actions)
        _start(rows, begins, seen, running, number, samplers, seeds)
        over = terminated | truncated
        for row in rows:
            if begins[row]:
                continue
            same = mode == "SAME_STEP" and over[row]
            last = infos["final_obs"][row] if same else take(seen, (row, ...))
            running[row].append(
                (kept(_array(last)), reward[row], bool(terminated[row]), bool(truncated[row]))
            )
            if over[row]:
                episodes[row].append(running[row])
        if mode == "SAME_STEP":
            _start(rows, over, seen, running, number, samplers, seeds)
            over = np.zeros(len(seeds), np.bool_)
    view.close()
    return episodes


def _start(
    rows: range,
    which: Mask,
    seen: Tree,
    running: list[list[Any]],
    number: list[int],
    samplers: list[Any],
    seeds: Sequence[int],
) -> None:
    """New episodes in these rows."""
    for row in rows:
        if which[row]:
            number[row] += 1
            running[row] = [kept(take(seen, (row, ...)))]
            samplers[row].seed(seeds[row] + number[row])


def check_autoreset(subject: Subject, seconds_a_step: float) -> Iterator[Event]:
    """The three modes of the vector view play the same episodes."""
    if subject.rows is None:
        return
    if subject.kind != "gym":
        yield subject.not_applicable("autoreset", "the vector view has no agents")
        return
    n = calls_for(seconds_a_step, 2, 0.1)
    build: Callable[[int], BatchEnv] = subject.rows

    def short() -> BatchEnv:
        env = build(2)
        env.horizon = min(5, env.horizon or 5)
        return env

    played = {mode.name: play_vector(short(), mode.name, SEEDS[:2], n) for mode in AutoresetMode}
    control = played["DISABLED"]
    whole = sum(map(len, control))
    for mode, episodes in played.items():
        for row, (expected, seen) in enumerate(zip(control, episodes, strict=True)):
            for number, (one, two) in enumerate(zip(expected, seen, strict=False)):
                path = difference(tuple(one), tuple(two))
                if path is not None:
                    step = path.partition("/")[0]
                    yield subject.finding(
                        "autoreset",
                        f"row {row} plays another episode in {mode} than in DISABLED",
                        number,
                        int(step) if step.isdigit() else None,
                        "observation",
                        _AUTORESET.format(mode=mode, seeds=list(SEEDS[:2]), calls=n),
                        rows=True,
                    )
                    return
    if not whole:
        yield subject.not_applicable("autoreset", f"no episode ended within {n} steps")
    else:
        yield Held("autoreset", f"{whole} episodes")


_AUTORESET = """
def short():
    env = build(2)
    env.horizon = min(5, env.horizon or 5)
    return env


first = play_vector(short(), "DISABLED", {seeds}, {calls})
second = play_vector(short(), "{mode}", {seeds}, {calls})
for one, other in zip(first, second):
    for episode, twin in zip(one, other):
        path = difference(tuple(episode), tuple(twin))
        assert path is None, path
"""
