"""Recorded episodes: read them back, export them, play them again.

    evaluate("deft", "NMRRelax", episodes=256, seed=7, run="runs/deft", record="trajectories")
    trajectories = Trajectories("runs/deft")
    for episode in trajectories:
        print(episode.episode, episode.rewards.sum())

One block of steps is in memory at a time. Its checksum is verified, and that it holds what
`run.json` says. How steps are stored stands in `palestra.recorder`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .blocks import CorruptBlock
from .disk import CorruptFile
from .recorder import Layout, joined, to_arrow
from .safe_files import MalformedFile
from .space_json import space_from_json
from .spaces import Array, Tree, map_tree
from .store import RunFolder

if TYPE_CHECKING:
    import pyarrow as pa

    from .film import Film
    from .replay import Replay


@dataclass(frozen=True)
class Trajectory:
    """An episode of T steps. With A agents, what each has of its own is (T, A), or a dict by agent.

    Attributes:
        episode: its number.
        observations: (T + 1, ...); a tree where the space is a Dict or Tuple.
        actions: (T, ...), likewise.
        action_masks: bool (T, n), which were legal; None where the environment has no masks.
        probabilities: of the actions, float64 (T,); NaN where the policy does not tell. See
            `palestra.action_probability` for what they mean.
        rewards: float64 (T,).
        terminated: bool (T,).
        truncated: bool (T,), by the environment, its horizon or the runner; one for all agents.
        durations: seconds, float64 (T,).
    """

    episode: int
    observations: Tree
    actions: Tree
    action_masks: Tree
    probabilities: Array
    rewards: Array
    terminated: Array
    truncated: Array
    durations: Array

    def __len__(self) -> int:
        """T, the number of steps."""
        return len(self.durations)


class Trajectories:
    """The recorded episodes of a run folder.

    Args:
        run: the folder of an evaluation with `record="trajectories"`, finished or not.

    Attributes:
        folder: the run folder, open for reading.
        observation_space: of one copy; with agents, of one agent, or a Dict by agent.
        action_space: likewise.
        agents: names of the agents; none for a single agent.

    Raises:
        FileNotFoundError: no run folder.
        ValueError: a run without steps.
        CorruptFile: `run.json` is damaged.
    """

    def __init__(self, run: str | Path) -> None:
        self.folder = RunFolder.open(run)
        self.config = self.folder.config
        if self.config.get("kind") != "evaluation" or "record" not in self.config:
            raise ValueError(
                f"{run}: holds no trajectories; record them by evaluate(..., "
                'record="trajectories"), or palestra evaluate --record'
            )
        try:
            self.observation_space, self.action_space = (
                space_from_json(self.config[name], name)
                for name in ("observation_space", "action_space")
            )
        except MalformedFile as problem:
            raise CorruptFile(self.folder.path / "run.json", str(problem)) from None
        self.agents = tuple(self.config["agents"])
        self._read: tuple[int, _Block] | None = None

    def __len__(self) -> int:
        """How many episodes the run has, whether they have been played yet or not."""
        return int(self.config["episodes"])

    def __iter__(self) -> Iterator[Trajectory]:
        """All episodes in order. Raises ValueError at one that has not been played yet."""
        return (self.episode(number) for number in range(len(self)))

    def episode(self, number: int) -> Trajectory:
        """One episode.

        Raises:
            ValueError: there is no such episode, or it has not been played yet.
            CorruptFile: its block is damaged.
        """
        whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not whole or not 0 <= number < len(self):
            raise ValueError(f"episode: got {number!r}, allowed 0 to {len(self) - 1}")
        block = int(number) // int(self.config["block"])
        return self._block(block).episode(int(number))

    def tables(self) -> Iterator[pa.Table]:
        """The steps as Arrow tables, block by block, checked; see `palestra.recorder`.

        Raises:
            ValueError: a block has not been played yet.
            CorruptFile: it is damaged.
        """
        for index in range(-(-len(self) // self.config["block"])):
            yield self._block(index).table

    def to_minari(self, dataset_id: str, **metadata: Any) -> Any:
        """Export all episodes as a Minari dataset; see `palestra.minari_export.export`."""
        from .minari_export import export

        return export(self, dataset_id, **metadata)

    def replay(self, number: int, target: Any = None) -> Replay:
        """Play an episode again from its stored actions; see `palestra.replay.replay`."""
        from .replay import replay

        return replay(self, number, target)

    def film(self, number: int, target: Any = None) -> Film:
        """An episode as pictures, played again from its stored actions.

        Args:
            number: which episode.
            target: what to play it in, as in `replay`.
        """
        from .film import Film, RecordedActions
        from .replay import trusted_target

        episode = self.episode(number)
        return Film(
            trusted_target(self.config, target),
            RecordedActions(episode.actions, len(episode)),
            seed=self.config["seed"],
            episode=number,
            settings=self.config["settings"],
            max_steps=len(episode),
        )

    def _block(self, index: int) -> _Block:
        if self._read is None or self._read[0] != index:
            self._read = None  # two at a time would take twice the memory
            if not self.folder.has_block("steps", index):
                raise ValueError(
                    f"{self.folder.path}: block {index} has not been played yet, or was deleted; "
                    "run the same evaluation again to go on"
                )
            self._read = index, self._checked_block(index)
        return self._read[1]

    def _checked_block(self, index: int) -> _Block:
        table = self.folder.read_block("steps", index)
        path = self.folder.block_path("steps", index)
        masked = any(name.partition("/")[0] == "action_mask" for name in table.column_names)
        layout = Layout(self.observation_space, self.action_space, self.agents, masked)
        size = int(self.config["block"])
        first = index * size
        block = _Block(table, layout, first, min(size, len(self) - first))
        if problem := block.problem():
            raise CorruptBlock(path, problem)
        return block


class _Block:
    """The steps of a block of episodes."""

    def __init__(self, table: pa.Table, layout: Layout, first: int, count: int) -> None:
        self.table = table
        self.layout = layout
        self.first = first
        self.count = count
        self.starts: Array = np.zeros(0, np.int64)

    def problem(self) -> str | None:
        """Why this is not what a recorder writes; None if it is."""
        try:
            expected = {
                name: to_arrow(blank).type
                for field in self.layout.fields
                for name, blank in self.layout.columns(field).items()
            }
        except TypeError as reason:  # masks over a space that can have none
            return str(reason)
        found = {name: self.table.schema.field(name).type for name in self.table.column_names}
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                return f"column {name!r} is {found.get(name)}, expected {expected.get(name)}"
        episode, step = (self.table.column(name) for name in ("episode", "step"))
        if episode.null_count or step.null_count:
            return "an episode or a step has no number"
        steps = step.to_numpy().astype(np.int64)
        self.starts = np.append(np.flatnonzero(steps == 0), len(steps))
        lengths = np.diff(self.starts)
        numbers = np.arange(self.first, self.first + len(lengths), dtype=np.uint64)
        if (
            len(lengths) != self.count
            or (lengths < 2).any()
            or self.starts[0] != 0
            or not np.array_equal(
                steps, np.arange(len(steps)) - np.repeat(self.starts[:-1], lengths)
            )
            or not np.array_equal(episode.to_numpy(), np.repeat(numbers, lengths))
        ):
            last = self.first + self.count - 1
            return f"does not hold the steps of the episodes {self.first} to {last} in order"
        return self._wrong_nulls(expected)

    def _wrong_nulls(self, columns: Any) -> str | None:
        last = np.zeros(self.table.num_rows, np.bool_)
        last[self.starts[1:] - 1] = True
        for name in columns:
            field = name.partition("/")[0]
            column = self.table.column(name)
            null = column.is_null().to_numpy()
            inner = column.combine_chunks().flatten() if hasattr(column.type, "list_size") else null
            wanted = last & (field not in ("episode", "step", "observation"))
            wrong = (null < wanted) if field == "probability" else (null != wanted)
            if wrong.any() or getattr(inner, "null_count", 0):
                return f"column {name!r} lacks a value, or has one too many"
        return None

    def episode(self, number: int) -> Trajectory:
        start, end = self.starts[number - self.first : number - self.first + 2]
        seen = self.table.slice(int(start), int(end - start))
        taken = seen.slice(0, seen.num_rows - 1)

        def field(name: str, rows: pa.Table) -> Tree:
            read = _reader(rows)
            axis = self.layout.axis(name)
            blank = self.layout.blank(name)
            if not axis:
                return _tree(name, blank, read)
            each = [_tree(joined(name, a), _one_agent(blank), read) for a in axis]
            return _stacked(each)

        return Trajectory(
            episode=number,
            observations=field("observation", seen),
            actions=field("action", taken),
            action_masks=field("action_mask", taken) if self.layout.masked else None,
            probabilities=field("probability", taken),
            rewards=field("reward", taken),
            terminated=field("terminated", taken),
            truncated=field("truncated", taken),
            durations=field("duration", taken),
        )


def _one_agent(blank: Tree) -> Tree:
    return map_tree(lambda array: array[:, 0], blank)


def _stacked(each: list[Tree]) -> Tree:
    return map_tree(lambda *arrays: np.stack(arrays, axis=1), *each)


def _tree(name: str, blank: Tree, read: Callable[[str, Array], Array]) -> Tree:
    """A tree like `blank`, each array read from the column of its path."""
    if isinstance(blank, dict):
        return {key: _tree(joined(name, key), part, read) for key, part in blank.items()}
    if isinstance(blank, tuple):
        return tuple(_tree(joined(name, str(i)), part, read) for i, part in enumerate(blank))
    return read(name, blank)


def _reader(rows: pa.Table) -> Callable[[str, Array], Array]:
    def read(name: str, blank: Array) -> Array:
        shape = blank.shape[1:]
        if not math.prod(shape):
            return np.zeros((rows.num_rows, *shape), blank.dtype)
        column = rows.column(name).combine_chunks()
        values = column.flatten() if shape else column
        array = values.to_numpy(zero_copy_only=False).reshape(rows.num_rows, *shape)
        return np.array(array, blank.dtype, order="C")  # a copy: Arrow's memory is read-only

    return read
