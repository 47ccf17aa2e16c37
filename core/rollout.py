"""The shared rollout runner: every policy is evaluated on the same episodes, in blocks.

Episodes 0 to N - 1 of a seed are cut into blocks. Inside a block each row has a list of episodes
of its own (row, row + width, ...) and takes the next when one ends, so short episodes are not
preferred and few rows idle. The policy is always called on all rows, finished ones included:
a network gives other bits at other batch sizes, so the width is part of the result. The width,
the block size and the path taken stand in `run.json`; no clock enters the table.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .executors import Executor, Work
from .executors import executor as choose_executor
from .jobs import Job, Stage, block_work, named_code, opened
from .play import MOST_BLOCKS, Advance, Player, Span, one_thread
from .policy_loading import policy_reference
from .progress import progress_bar
from .registry import resolve
from .run_schema import RECORDS
from .space_json import described_spaces
from .spaces import Array
from .streams import check_seed, fresh_seed

if TYPE_CHECKING:
    import pyarrow as pa

    from .stats import Interval, PairedDifference
    from .store import RunFolder

DEFAULT_WIDTH = 64
MOST_ROWS = 2**20  # that advance together: beyond, memory runs out long before time is saved


@dataclass(frozen=True)
class Evaluation:
    """What a policy did in N episodes.

    Attributes:
        environment: name of the environment.
        policy: name of the policy.
        seed: the seed whose episodes 0 to N - 1 were played.
        table: one row an episode: `episode`, `return` (sum of rewards; with agents, of all, and
            `return/<agent>` beside it), `length` (steps), `duration` (sum of `dt`), `terminated`,
            `truncated`, `truncated_by_runner`, and the environment's metrics.
        path: "predict", or "fast" where the weights of a network were read and run directly.
        reason: why this path was taken.
    """

    environment: str
    policy: str
    seed: int
    table: pa.Table
    path: str = "predict"
    reason: str = ""

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return int(self.table.num_rows)

    def column(self, name: str) -> Array:
        """One column as an array, in the order of the episodes.

        Raises:
            KeyError: no such column; the message lists those there are.
        """
        if name not in self.table.column_names:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.table.column_names)}")
        return self.table.column(name).to_numpy()  # type: ignore[no-any-return]

    def mean(self, name: str = "return", level: float = 0.95) -> Interval:
        """Mean of a column over episodes, with its interval; of truth values, the rate."""
        from .stats import episodes_mean, success_rate

        values = self.column(name)
        if values.dtype == np.bool_:
            return success_rate(int(np.count_nonzero(values)), len(values), level)
        return episodes_mean(values, level)

    def means(self, level: float = 0.95) -> dict[str, Interval | None]:
        """The mean of every column; None for a metric that is not a number in every episode."""
        found: dict[str, Interval | None] = {}
        for name in self.table.column_names:
            if name != "episode":
                try:
                    found[name] = self.mean(name, level)
                except ValueError:
                    found[name] = None
        return found

    def _repr_html_(self) -> str:
        """Means and a picture for a notebook."""
        from .notebook import evaluations_markup

        return evaluations_markup(self.environment, {self.policy: self})


@dataclass(frozen=True)
class Comparison:
    """Policies on the same episodes.

    Attributes:
        evaluations: one a policy, by name.
        reference: the policy that the others are compared with.
    """

    evaluations: Mapping[str, Evaluation]
    reference: str

    def difference(self, name: str, column: str = "return") -> PairedDifference:
        """Paired difference of a policy to the reference, episode by episode."""
        from .stats import paired_difference

        one, other = self.evaluations[name], self.evaluations[self.reference]
        return paired_difference(
            one.column(column),
            other.column(column),
            a_episodes=one.column("episode"),
            b_episodes=other.column("episode"),
        )

    def _repr_html_(self) -> str:
        """Means and a picture for a notebook."""
        from .notebook import evaluations_markup

        environment = next(iter(self.evaluations.values())).environment
        return evaluations_markup(environment, self.evaluations, self)


Bound = tuple[str, str, float]  # metric, "<=" or ">=", value


class BoundBroken(AssertionError):
    """An episode breaks what a certificate says of every episode."""


def evaluate(
    policy: Any,
    target: Any,
    *,
    episodes: int = 1000,
    seed: int | None = None,
    width: int = DEFAULT_WIDTH,
    block: int | None = None,
    settings: Mapping[str, Any] | None = None,
    deterministic: bool = True,
    max_steps: int | None = None,
    fast: bool = True,
    run: str | Path | None = None,
    name: str | None = None,
    progress: bool = False,
    executor: str | Executor = "in-process",
    shard: tuple[int, int] | None = None,
    strict: bool = False,
    record: str | None = None,
    bounds: Sequence[Bound] = (),
) -> Evaluation:
    """Play episodes 0 to N - 1 of a seed with a policy.

    Args:
        policy: anything that `palestra.load_policy` takes.
        target: anything that `palestra.make` takes.
        episodes: how many, N.
        seed: whose episodes; None draws one from the system (and stores it).
        width: rows that advance together, at most 2**20; part of the result for torch policies.
            Rows beyond the number of episodes are padding.
        block: episodes a block; by default 1024 and 16 a row, fewer where they are slow. Of a
            run that is resumed, the one it began with. Part of the result only where a network
            samples its actions; then it does not depend on how slow they are.
        settings: keyword arguments of the environment.
        deterministic: take the mode of the policy's distribution; with False, samples.
        max_steps: cut longer episodes and flag them `truncated_by_runner`; by default 100 000
            where the environment has no horizon of its own.
        fast: read the weights of a small network and run them directly, after checking its
            actions against `predict`.
        run: folder for the result; a run that was interrupted resumes there.
        name: of the policy, in tables.
        progress: show a progress bar on stderr.
        executor: where blocks are played: "in-process", "processes", "ray", "auto", or an
            executor of `palestra.executors`. The result is the same. Outside this process policy
            and target must be references (names, files, `module:object`).
        shard: (i, n) plays only the blocks with index = i mod n; `merge` completes the run. Needs
            `run` and `seed`, the same for all shards.
        strict: refuse to go on with a run on another machine or with other libraries, instead of
            warning.
        record: "trajectories" keeps every step in the run folder too, for
            `palestra.trajectories.Trajectories`. Needs `run`. Blocks are then as small as their
            steps demand. A run with another `record` is another run.
        bounds: certified of every episode, as `Certificate.episode_bounds()` gives them: (metric,
            "<=" or ">=", value).

    Returns:
        The evaluation, with the table of episodes (of a shard, those of its blocks).

    Raises:
        BoundBroken: an episode breaks a certified bound. The run folder keeps it.
        NotFinite: an observation, action or reward is not finite.
        RunMismatch: the folder holds another run.
        RunLocked: another process plays the same blocks.
        CorruptFile: the folder does not hold what was written to it.
        WorkerDied, TimeLimitExceeded: see `palestra.executors`.
        ValueError: an argument out of range, or an action that the environment refuses.
    """
    _check_counts(episodes, width, block, max_steps)
    if record is not None and record not in RECORDS:
        raise ValueError(f"record: got {record!r}, allowed None, {', '.join(map(repr, RECORDS))}")
    if record is not None and run is None:
        raise ValueError(f"record: {record!r} needs run, the folder that keeps them")
    chosen = choose_executor(executor)
    stored = _stored_config(run)
    part = None if shard is None else _Shard.checked(shard)
    if part is not None and (run is None or (seed is None and not stored)):
        raise ValueError("shard: needs run and seed, the same for all shards")
    where = resolve(target)
    seed = check_seed(seed if seed is not None else stored.get("seed", fresh_seed()))
    job = Job(
        environment=where.reference or where.name,
        settings=dict(settings or {}),
        policy=str(policy) if isinstance(policy, str | Path) else "",
        width=int(width),
        seed=seed,
        deterministic=deterministic,
        max_steps=max_steps,
        fast=fast,
        code=named_code(where.reference or where.name, policy, settings or {}),
        record=record is not None,
    )
    with opened(job, where, policy) as stage, one_thread():
        player = stage.player
        if block is None:
            block = stored.get("block") or (
                player.pick_block(episodes) if part is None else part.block(player, episodes)
            )
            if record is not None and not stored:
                block = player.recorded_block(block)
        config = _configuration(job, stage, policy, name or _name(policy), episodes, block)
        if record is not None:
            config |= {"record": record, **described_spaces(player.env)}
        spans = [
            Span(index, first, min(block, episodes - first))
            for index, first in enumerate(range(0, episodes, block))
            if part is None or index % part.of == part.index
        ]
        label = f"{player.name}: {config['policy']}"
        with progress_bar(label, sum(span.count for span in spans), progress) as advance:
            work = block_work(job, stage, where, policy, advance)
            results = _Results(chosen, work, spans, advance)
            if run is None:
                table = results.in_memory()
            else:
                table = results.in_folder(run, config, part, strict)
    played = Evaluation(where.name, name or _name(policy), seed, table, stage.path, stage.reason)
    _hold(played, bounds)
    return played


def _hold(played: Evaluation, bounds: Sequence[Bound]) -> None:
    """Refuse an evaluation in which an episode breaks a certified bound."""
    for metric, direction, value in bounds:
        if metric not in played.table.column_names:
            raise ValueError(
                f"bounds: {played.environment} has no metric {metric!r}, allowed "
                f"{', '.join(played.table.column_names)}"
            )
        found = played.column(metric)
        broken = np.flatnonzero(found > value if direction == "<=" else found < value)
        if broken.size:
            episode = int(played.column("episode")[broken[0]])
            raise BoundBroken(
                f"{played.environment}: seed {played.seed}, episode {episode}: {metric} is "
                f"{found[broken[0]]}, certified {direction} {value}, and {broken.size - 1} more "
                "such episodes. The certificate, the model or the environment is wrong"
            )


def compare(
    policies: Mapping[str, Any] | Sequence[Any],
    target: Any,
    *,
    reference: str | None = None,
    run: str | Path | None = None,
    seed: int | None = None,
    **arguments: Any,
) -> Comparison:
    """Evaluate several policies on the same episodes.

    Args:
        policies: name -> policy, or a sequence of references that are their own names.
        target: the environment.
        reference: the policy to compare with; the first one by default.
        run: folder; each policy's evaluation goes into a folder of its name below it.
        seed: whose episodes; None draws one from the system.
        arguments: passed on to `evaluate`.

    Raises:
        ValueError: no policy, or an unknown reference.
    """
    named = policies if isinstance(policies, Mapping) else _names(policies)
    if not named:
        raise ValueError("policies: got none, expected at least one")
    reference = reference or next(iter(named))
    if reference not in named:
        raise ValueError(f"reference: got {reference!r}, allowed {', '.join(named)}")
    seed = fresh_seed() if seed is None else seed
    done = {
        name: evaluate(
            policy,
            target,
            name=name,
            seed=seed,
            run=None if run is None else Path(run) / _folder(name),
            **arguments,
        )
        for name, policy in named.items()
    }
    return Comparison(done, reference)


def _check_counts(episodes: Any, width: Any, block: Any, max_steps: Any) -> None:
    counts = {"episodes": episodes, "width": width}
    counts |= {} if block is None else {"block": block}
    counts |= {} if max_steps is None else {"max_steps": max_steps}
    for label, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{label}: got {value!r}, allowed an integer of at least 1")
        if value >= 2**32:
            raise ValueError(f"{label}: got a larger number, allowed at most 2**32 - 1")
    if width > MOST_ROWS:
        raise ValueError(f"width: got {width}, allowed at most {MOST_ROWS} (2**20)")


def _configuration(
    job: Job, stage: Stage, policy: Any, name: str, episodes: int, block: int
) -> dict[str, Any]:
    """What tells one evaluation from another, for its run.json."""
    from .store import named_files

    return {
        "kind": "evaluation",
        "environment": job.environment,
        "settings": job.settings,
        "files": {**named_files({"settings": job.settings}), **job.code},
        "policy": name,
        "policy_sha256": stage.fingerprint,
        "policy_reference": None if stage.fingerprint else policy_reference(policy),
        "by_object": not isinstance(policy, str | Path),
        "seed": job.seed,
        "episodes": episodes,
        "width": job.width,
        "block": block,
        "deterministic": job.deterministic,
        "max_steps": stage.player.max_steps,
        "path": stage.path,
    }


@dataclass(frozen=True)
class _Shard:
    """Part `index` of `of` parts of a run."""

    index: int
    of: int

    @classmethod
    def checked(cls, shard: Any) -> _Shard:
        """Raises ValueError if it is no such part."""
        whole = isinstance(shard, tuple) and len(shard) == 2 and all(type(x) is int for x in shard)
        if not whole or not 0 <= shard[0] < shard[1] <= MOST_BLOCKS:
            raise ValueError(
                f"shard: got {shard!r}, allowed (i, n) with 0 <= i < n <= {MOST_BLOCKS}"
            )
        return cls(*shard)

    def block(self, player: Player, episodes: int) -> int:
        """Episodes a block: the same in every shard, so no clock decides; work for each of them."""
        rounds = -(-episodes // (self.of * player.env.rows))
        return min(rounds, player.rounds(episodes)) * player.env.rows


class _Results:
    """Blocks as an executor delivers them, kept in memory or in a run folder."""

    def __init__(
        self, executor: Executor, work: Work, spans: Sequence[Span], advance: Advance
    ) -> None:
        self.executor = executor
        self.work = work
        self.spans = spans
        self.advance = advance

    def played(self, spans: Sequence[Span]) -> Iterator[tuple[Span, dict[str, bytes]]]:
        for done in self.executor.map(self.work, spans):
            if not done.here:  # here, the player itself says how far it is
                self.advance(done.item.count)
            yield done.item, done.result

    def in_memory(self) -> pa.Table:
        import pyarrow as pa

        from .blocks import decode_block

        blocks = {span.index: tables["episodes"] for span, tables in self.played(self.spans)}
        return pa.concat_tables(decode_block(blocks[index]) for index in sorted(blocks))

    def in_folder(
        self, run: str | Path, config: dict[str, Any], part: _Shard | None, strict: bool
    ) -> pa.Table:
        """Play what the folder does not hold yet, and read the whole."""
        from .store import RunFolder

        if config["policy_sha256"] is None and config["by_object"] and _stored_config(run):
            warnings.warn(
                f"{run}: the policy is an object without weights or name; whether it is the one "
                "that began this run cannot be told",
                UserWarning,
                stacklevel=3,
            )
        folder = RunFolder.create_or_resume(run, config, strict=strict)
        lock = "writer" if part is None else f"shard-{part.index}-of-{part.of}"
        with folder.lock(lock), folder.withdrawn_if_empty():
            kinds = _kinds(config)
            missing = [
                span
                for span in self.spans
                if not all(folder.has_block(kind, span.index) for kind in kinds)
            ]
            self.advance(sum(s.count for s in self.spans) - sum(s.count for s in missing))
            for span, tables in self.played(missing):
                # the episodes last: a block counts as finished once they stand there
                for kind in sorted(tables, key=lambda kind: kind == "episodes"):
                    folder.write_block(kind, span.index, tables[kind])
            if part is None and not folder.finished:
                folder.finish()
        if part is None:
            return checked_table(folder)
        import pyarrow as pa

        parts = [folder.read_block("episodes", span.index) for span in self.spans]
        return pa.concat_tables(parts) if parts else folder.read("episodes").slice(0, 0)


def merge(run: str | Path) -> Evaluation:
    """Complete a run whose blocks were played by shards: check all of them, and seal the run.

    Args:
        run: the folder.

    Raises:
        IncompleteRun: blocks are missing; the message says which.
        CorruptFile: a file is not what was written to it, or the folder holds no evaluation.
        RunLocked: somebody writes to it.
    """
    from .store import CorruptFile, RunFolder

    folder = RunFolder.open(run, writable=True)
    config = folder.config
    if config.get("kind") != "evaluation":
        raise CorruptFile(folder.path / "run.json", "holds no evaluation; only these are merged")
    blocks = -(-config["episodes"] // config["block"])
    there = set.intersection(*(set(folder.blocks(kind)) for kind in _kinds(config)))
    missing = sorted(set(range(blocks)) - there)
    if missing:
        raise IncompleteRun(folder.path, missing, config["block"], blocks)
    with folder.lock():
        if not folder.finished:
            folder.finish()
    table = checked_table(folder)
    path = str(config.get("path", "predict"))
    return Evaluation(config["environment"], config["policy"], config["seed"], table, path)


def _kinds(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of blocks that a run consists of."""
    return ("episodes", "steps") if "record" in config else ("episodes",)


class IncompleteRun(ValueError):
    """A run lacks blocks. `missing` lists their indices."""

    def __init__(self, path: Path, missing: list[int], block: int, blocks: int) -> None:
        super().__init__(path, missing, block, blocks)
        self.path = path
        self.missing = tuple(missing)
        self.block = block
        self.blocks = blocks

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.missing[:8]))
        more = f" and {len(self.missing) - 8} more" if len(self.missing) > 8 else ""
        return (
            f"{self.path}: {len(self.missing)} of {self.blocks} blocks are missing "
            f"(of {self.block} episodes each): {shown}{more}. Run the shards that have "
            "not finished again"
        )


def checked_table(folder: RunFolder) -> pa.Table:
    """All episodes of a run, after a check of everything that stands in its folder.

    Raises:
        CorruptFile: a file is not what was written to it, or episodes are missing.
    """
    from .store import CorruptFile

    if problems := folder.verify():
        raise CorruptFile(folder.path, "; ".join(problems))
    table, expected = folder.read("episodes"), folder.config["episodes"]
    if not np.array_equal(table.column("episode").to_numpy(), np.arange(expected)):
        raise CorruptFile(
            folder.path / "episodes",
            f"does not hold the episodes 0 to {expected - 1}, each once and in order",
        )
    return table


def _name(policy: Any) -> str:
    """A short name: the last part of a path without suffix, the object of `file.py:object`."""
    if not isinstance(policy, str | Path):
        return str(getattr(policy, "__name__", type(policy).__name__))
    text = str(policy)
    if ":" in text and not Path(text).exists():
        return text.rpartition(":")[2]
    return (Path(text).name if Path(text).is_dir() else Path(text).stem) or text


def _names(policies: Sequence[Any]) -> dict[str, Any]:
    """Policies by short name; by the full reference where the short one is not unique.

    Raises:
        ValueError: two policies with one name even so.
    """
    short = [_name(policy) for policy in policies]
    named: dict[str, Any] = {}
    for policy, name in zip(policies, short, strict=True):
        unique = name if short.count(name) == 1 else str(policy)
        if unique in named:
            raise ValueError(f"policies: {unique!r} stands there twice; give a mapping with names")
        named[unique] = policy
    return named


def _folder(name: str) -> str:
    """A policy's name as the name of a folder: no separators, nothing that leads elsewhere.

    A name that had to change ends in its hash, so that `a/b` and `a-b` do not meet.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")[:100]
    if plain == name:
        return name
    return f"{plain or 'policy'}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def _stored_config(run: str | Path | None) -> dict[str, Any]:
    if run is None or not (Path(run) / "run.json").is_file():
        return {}
    from .store import RunFolder

    return RunFolder.open(run).config
