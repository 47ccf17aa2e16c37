"""Play episodes through the raw BatchEnv or any view, with actions that only depend on episode
and step, and write down every bit of them.

`python -m tests.core.playing ROWS COUNT` prints the digest of every environment that there is.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from palestra.batch import BatchEnv, Episodes, keyed_by_agents
from palestra.registry import catalogue, resolve
from palestra.spaces import Tree, copy, leaves, take

from .toys import SINGLE, TEAMS, build, legal_actions

SEED = 20


@dataclass
class Record:
    """One episode as it was seen: `observations` has one more entry than the other lists."""

    observations: list[Tree] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    terminated: Any = None
    truncated: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)

    def bits(self) -> list[Any]:
        """Everything, with dtypes, shapes and bytes."""
        numbers = (self.rewards, self.durations, self.terminated, self.truncated)
        return [
            [[(p, _bits(leaf)) for p, leaf in leaves(tree)] for tree in self.observations],
            [_bits(np.asarray(n)) for n in numbers],
            {name: _bits(np.asarray(value)) for name, value in sorted(self.metrics.items())},
        ]

    def digest(self) -> str:
        return hashlib.sha256(repr(self.bits()).encode()).hexdigest()

    def with_float32_rewards(self) -> Record:
        """As Stable-Baselines3 sees it."""
        return Record(**{**vars(self), "rewards": [np.float32(r) for r in self.rewards]})


def _bits(leaf: Any) -> tuple[str, tuple[int, ...], str]:
    leaf = np.asarray(leaf)
    return leaf.dtype.str, leaf.shape, leaf.tobytes().hex()


def _hash(episode: Any, step: Any, number: int) -> Any:
    """Uniform numbers on [0, 1), a pure function of the three integers (splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.asarray(episode, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = z + np.asarray(step, np.uint64) * np.uint64(0xD1B54A32D192ED03)
        z = z + np.uint64(number) * np.uint64(0x8CB92BA72F3D8DD7)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) * 2.0**-53


def hashed_actions(env: BatchEnv, episode: Any, step: Any, masks: Tree = None) -> Tree:
    """Legal actions of all rows that depend only on each row's episode and step."""
    drawn = 0

    def random(shape: tuple[int, ...]) -> Any:
        nonlocal drawn
        inner = shape[1:]
        size = int(np.prod(inner))
        columns = [_hash(episode, step, drawn + i) for i in range(size)]
        drawn += size
        return np.stack(columns, axis=-1).reshape(len(episode), *inner)

    space = env.action_space
    shared = bool(env.agents) and not keyed_by_agents(env, space)
    leading = (len(episode), len(env.agents)) if shared else (len(episode),)
    actions = legal_actions(space, random, leading)
    if masks is None:
        return actions
    if isinstance(masks, dict):
        return {name: legalise(space[name], actions[name], masks[name]) for name in masks}
    return legalise(space, actions, masks)


def legalise(space: Any, actions: Any, masks: Any) -> Any:
    """Replace each choice k by the (k mod count)-th legal one."""
    discrete = isinstance(space, spaces.Discrete)
    widths = [space.n] if discrete else list(space.nvec)
    given = (actions - space.start).reshape(*masks.shape[:-1], len(widths))
    chosen = np.empty_like(given)
    for part, mask in enumerate(np.split(masks, np.cumsum(widths)[:-1], axis=-1)):
        rank = np.cumsum(mask, axis=-1) - 1
        wanted = given[..., part] % mask.sum(axis=-1)
        chosen[..., part] = (mask & (rank == wanted[..., np.newaxis])).argmax(axis=-1)
    return chosen.reshape(actions.shape) + space.start


def play_raw(env: BatchEnv, count: int) -> dict[int, Record]:
    """Episodes 0 .. count - 1 of SEED by the raw environment; rows without work are frozen."""
    episodes = Episodes(env)
    streams = episodes.streams
    episodes.seed(SEED)
    records: dict[int, Record] = {}
    while (fresh := episodes.ended & (episodes.upcoming < count)).any() or not episodes.ended.all():
        if fresh.any():
            episodes.begin(fresh)
            seen = episodes.observe()
            for row in np.flatnonzero(fresh):
                records[int(streams.episode[row])] = Record([one_row(seen, row)])
        live = ~episodes.ended
        actions = hashed_actions(env, streams.episode, streams.step + 1, episodes.masks())
        step, _ = episodes.advance(actions, live)
        seen, metrics = episodes.observe(), env.metrics()
        for row in np.flatnonzero(live):
            record = records[int(streams.episode[row])]
            record.observations.append(one_row(seen, row))
            record.rewards.append(one_row(step.reward, row))
            record.durations.append(float(step.duration[row]))
            record.terminated = one_row(step.terminated, row)
            record.truncated = bool(step.truncated[row])
            if episodes.ended[row]:
                record.metrics = {name: values[row].item() for name, values in metrics.items()}
    return records


def one_row(tree: Tree, row: int) -> Tree:
    """A copy of one row; what is a scalar there becomes a 0-d array."""
    return copy(take(tree, (row, ...)))


def as_arrays(tree: Tree) -> Tree:
    """An observation of a single view, with NumPy scalars as 0-d arrays."""
    if isinstance(tree, dict):
        return {name: as_arrays(part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(as_arrays(part) for part in tree)
    return np.array(tree)


def play_gym(view: Any, count: int) -> dict[int, Record]:
    """Episodes 0 .. count - 1 of SEED by the Gymnasium view."""
    records = {}
    for number in range(count):
        seen, info = view.reset(seed=SEED) if number == 0 else view.reset()
        assert info == {"seed": SEED, "episode_id": number}
        record = records[number] = Record([as_arrays(seen)])
        over = False
        while not over:
            masks = view.action_masks()[np.newaxis] if hasattr(view, "action_masks") else None
            now = len(record.rewards) + 1
            actions = hashed_actions(view.batch, np.array([number]), np.array([now]), masks)
            seen, reward, terminated, truncated, info = view.step(take(actions, 0))
            assert type(reward) is float
            record.observations.append(as_arrays(seen))
            record.rewards.append(reward)
            record.durations.append(info.pop("dt"))
            record.terminated, record.truncated = terminated, truncated
            over = terminated or truncated
        assert (info.pop("seed"), info.pop("episode_id")) == (SEED, number)
        record.metrics = info
    return records


def play_vector(view: Any, count: int) -> dict[int, Record]:
    """Episodes 0 .. count - 1 of SEED by the vector view, in its autoreset mode."""
    rows, mode = view.num_envs, view.autoreset_mode
    seen, infos = view.reset(seed=SEED)
    episode, now = infos["episode_id"].astype(np.int64), np.zeros(rows, np.int64)
    records = {int(e): Record([one_row(seen, row)]) for row, e in enumerate(episode)}
    over = np.zeros(rows, np.bool_)
    while episode.min() < count:
        if mode is AutoresetMode.DISABLED and over.any():
            seen, infos = view.reset(options={"reset_mask": over})
            assert (infos["_episode_id"] == over).all()
            for row in np.flatnonzero(over):
                episode[row], now[row] = infos["episode_id"][row], 0
                records[int(episode[row])] = Record([one_row(seen, row)])
            over = np.zeros(rows, np.bool_)
        masks = view.action_masks() if hasattr(view, "action_masks") else None
        actions = hashed_actions(view.batch, episode, now + 1, masks)
        seen, reward, terminated, truncated, infos = view.step(actions)
        begun = over if mode is AutoresetMode.NEXT_STEP else np.zeros(rows, np.bool_)
        over = terminated | truncated
        for row in np.flatnonzero(begun):
            assert reward[row] == 0
            assert not over[row]
            assert not infos["_dt"][row]
            episode[row], now[row] = infos["episode_id"][row], 0
            records[int(episode[row])] = Record([one_row(seen, row)])
        for row in np.flatnonzero(~begun):
            now[row] += 1
            record = records[int(episode[row])]
            again = mode is AutoresetMode.SAME_STEP and over[row]
            last = infos["final_obs"][row] if again else one_row(seen, row)
            record.observations.append(as_arrays(last))
            record.rewards.append(reward[row])
            record.durations.append(float(infos["dt"][row]))
            record.terminated, record.truncated = bool(terminated[row]), bool(truncated[row])
            if over[row]:
                ended = infos["final_info"] if again else infos
                record.metrics = _entries(ended, row)
                assert record.metrics.pop("dt") == record.durations[-1]
                assert record.metrics.pop("seed") == SEED
                assert record.metrics.pop("episode_id") == episode[row]
            if again:
                episode[row], now[row] = infos["episode_id"][row], 0
                records[int(episode[row])] = Record([one_row(seen, row)])
    return {number: records[number] for number in range(count)}


def _entries(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """What the infos of a vector view say about one row."""
    return {
        name: infos[name][row].item()
        for name in infos
        if not name.startswith("_") and not name.startswith("final") and infos[f"_{name}"][row]
    }


def play_sb3(view: Any, count: int) -> dict[int, Record]:
    """Episodes 0 .. count - 1 of SEED by the Stable-Baselines3 view (without agents)."""
    view.seed(SEED)
    seen = view.reset()
    rows = view.num_envs
    episode = np.array([info["episode_id"] for info in view.reset_infos])
    now = np.zeros(rows, np.int64)
    records = {int(e): Record([one_row(seen, row)]) for row, e in enumerate(episode)}
    while episode.min() < count:
        masks = np.stack(view.env_method("action_masks")) if hasattr(view, "action_masks") else None
        seen, reward, done, infos = view.step(hashed_actions(view.batch, episode, now + 1, masks))
        assert reward.dtype == np.float32
        for row in range(rows):
            now[row] += 1
            record, info = records[int(episode[row])], infos[row]
            last = as_arrays(info.pop("terminal_observation")) if done[row] else one_row(seen, row)
            record.observations.append(last)
            record.rewards.append(reward[row])
            record.durations.append(info.pop("dt"))
            record.terminated = record.truncated = False
            if done[row]:
                record.truncated = info.pop("TimeLimit.truncated")
                record.terminated = not record.truncated
                assert (info.pop("seed"), info.pop("episode_id")) == (SEED, episode[row])
                summary = info.pop("episode")
                assert summary["l"] == now[row]
                record.metrics = info
                episode[row], now[row] = episode[row] + rows, 0
                records[int(episode[row])] = Record([one_row(seen, row)])
    return {number: records[number] for number in range(count)}


def environments() -> dict[str, Callable[[int], BatchEnv]]:
    """Builders of every registered environment and every toy, by name."""
    registered: dict[str, Callable[[int], BatchEnv]] = {
        name: resolve(entry).make for name, entry in catalogue().items()
    }
    return registered | {n: functools.partial(build, n) for n in SINGLE | TEAMS}


def alone() -> list[str]:
    """Names of the environments with one agent."""
    several = {name for name, entry in catalogue().items() if entry.agents} | set(TEAMS)
    return [name for name in environments() if name not in several]


def digests(rows: int, count: int) -> dict[str, list[str]]:
    """For every environment, the digests of its episodes 0 .. count - 1."""
    table = {}
    for name, make in environments().items():
        played = play_raw(make(rows), count)
        table[name] = [played[number].digest() for number in range(count)]
    return table


if __name__ == "__main__":
    print(json.dumps(digests(int(sys.argv[1]), int(sys.argv[2]))))
