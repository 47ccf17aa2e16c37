"""Playing a block of episodes: the loop that every evaluation, sweep and recording goes through.

Inside a block each row has a list of episodes of its own (row, row + width, ...) and takes the
next when one ends, so short episodes are not preferred and few rows idle. The policy is always
called on all rows, finished ones included: a network gives other bits at other batch sizes, so
the width is part of the result.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from .batch import TABLE_COLUMNS, BatchEnv, Episodes, Step
from .global_random import preserved
from .kernels import kernel
from .policy import NormalisedPolicy, SharedPolicy, takes_masks
from .policy import begin as begin_policy
from .spaces import Array, Tree, leaves, map_tree

if TYPE_CHECKING:
    import pyarrow as pa

    from .recorder import Recorder

BLOCK_ROUNDS = 16  # episodes a row plays in a block at least, unless they are slow
BLOCK_EPISODES = 1024  # episodes in a block at least, unless they are slow
BLOCK_SECONDS = 1.0
MOST_BLOCKS = 1000
PATIENCE = 1024  # steps without an ended episode after which the books are looked at
UNBOUNDED_STEPS = 100_000  # where an environment has no horizon, the runner's own limit

Advance = Callable[[float], None]


@dataclass(frozen=True)
class Span:
    """A block of a run.

    Attributes:
        index: which one; its files are named after it.
        first: its first episode.
        count: how many episodes it has.
    """

    index: int
    first: int
    count: int

    def __str__(self) -> str:
        return f"block {self.index} (episodes {self.first} to {self.first + self.count - 1})"


class NotFinite(FloatingPointError):
    """An environment or policy produced NaN or infinity; the message says where."""


# Kernels keep the books of a step and of ended episodes: at 64 rows one call of a kernel costs less
# than a few NumPy expressions. Those without branches vectorise.


@kernel(allocates=False)
def _all_finite(values):  # type: ignore[no-untyped-def]
    """Whether no value (n,) is NaN or infinite: x - x is 0 then."""
    finite = True
    for place in range(values.shape[0]):
        finite &= values[place] - values[place] == 0.0
    return finite


@kernel(allocates=False)
def _add_step(reward, duration, returns, durations):  # type: ignore[no-untyped-def]
    """Add a step to the sums of the running episodes; reward and returns are (B, A).

    Whether all its numbers are finite and no duration is negative. Rows that do not step have
    reward 0 and duration 0.
    """
    sound = True
    for row in range(duration.shape[0]):
        sound &= (duration[row] - duration[row] == 0.0) & (duration[row] >= 0.0)
        durations[row] += duration[row]
    for row in range(reward.shape[0]):
        for agent in range(reward.shape[1]):
            sound &= reward[row, agent] - reward[row, agent] == 0.0
            returns[row, agent] += reward[row, agent]
    return sound


@kernel(allocates=False)
def _write_ended(over, first, episode, step, ends, sums, columns):  # type: ignore[no-untyped-def]
    """Write the rows of ended episodes into the columns of the table, and clear their sums."""
    returns, durations, cut = sums
    episodes, total, lengths, seconds, terminated, truncated, by_runner = columns
    for row in range(over.shape[0]):
        if over[row]:
            place = episode[row] - first
            whole = 0.0
            for agent in range(returns.shape[1]):
                whole += returns[row, agent]
                returns[row, agent] = 0.0
            episodes[place] = episode[row]
            total[place] = whole
            lengths[place] = step[row]
            seconds[place] = durations[row]
            terminated[place] = ends[0][row]
            truncated[place] = ends[1][row]
            by_runner[place] = cut[row]
            durations[row] = 0.0
            cut[row] = False


@kernel(allocates=False)
def _next_episodes(over, left, live, fresh):  # type: ignore[no-untyped-def]
    """Which rows go on, and which of them begin an episode; how many there are of both."""
    playing, beginning = 0, 0
    for row in range(over.shape[0]):
        left[row] -= over[row]
        live[row] &= left[row] > 0
        fresh[row] = over[row] & live[row]
        playing += live[row]
        beginning += fresh[row]
    return playing, beginning


class Player:
    """Plays blocks of episodes of one seed, on one environment, with one policy."""

    def __init__(
        self,
        name: str,
        env: BatchEnv,
        policy: Any,
        seed: int,
        deterministic: bool,
        max_steps: int | None,
        record: bool = False,
    ) -> None:
        self.name = name
        self.record = record
        self.env = env
        self.policy = policy
        self.seed = seed
        self.deterministic = deterministic
        unbounded = env.horizon is None and max_steps is None
        self.max_steps = UNBOUNDED_STEPS if unbounded else max_steps
        self.episodes = Episodes(env)
        self.live = env.everyone
        self.wants_masks = hasattr(env, "action_masks") and takes_masks(policy)

    def pick_block(self, episodes: int) -> int:
        """Episodes a block: `BLOCK_EPISODES` or more, or as many as take about a second.

        A run is never cut into more than `MOST_BLOCKS` files.
        """
        least, most = -(-episodes // (MOST_BLOCKS * self.env.rows)), self.rounds(episodes)
        if not self.deterministic:
            return most * self.env.rows  # a network is seeded by the block: no clock may decide
        self.episodes.seed(self.seed)
        self.episodes.begin(self.env.everyone)
        begin_policy(self.policy, self.env.everyone, self.episodes.streams)
        fresh, state = np.ones(self.env.rows, np.bool_), None
        for _ in range(2):  # the first step compiles
            start = time.perf_counter()
            observation = self.episodes.observe()
            self._check_finite("observation", observation)
            actions, state = self._act(observation, state, fresh)
            self._advance(actions, self.env.everyone)
            seconds = time.perf_counter() - start
            self.episodes.begin(self.env.everyone)
        per_round = seconds * min(self.env.horizon or 1000, self.max_steps or 1000)
        rounds = int(np.clip(BLOCK_SECONDS / per_round, least, most))
        return rounds * self.env.rows

    def recorded_block(self, block: int) -> int:
        """At most `block` episodes, and no more than a recording can hold in memory."""
        from .recorder import episodes_that_fit

        fit = episodes_that_fit(self.env, self.max_steps)
        return min(block, fit if fit < self.env.rows else fit // self.env.rows * self.env.rows)

    def rounds(self, episodes: int) -> int:
        """Episodes a row plays in a block, where they are not slow."""
        least = -(-episodes // (MOST_BLOCKS * self.env.rows))
        return max(BLOCK_ROUNDS, -(-BLOCK_EPISODES // self.env.rows), least)

    def play(self, span: Span, advance: Advance = lambda done: None) -> dict[str, pa.Table]:
        """Play one block.

        Args:
            span: which episodes; a network that samples is seeded by the index of the block.
            advance: told how many episodes have ended, now and then.

        Returns:
            Tables by kind: "episodes", one row an episode, in their order; of a player that
            records also "steps", see `palestra.recorder`.

        Raises:
            NotFinite: an observation, action, reward or metric is not finite.
            Exception: whatever environment or policy raise, with a note that says where.
        """
        chance = (
            contextlib.nullcontext()
            if self.deterministic
            else _own_chance(self.policy, self.seed, span.index, self.env.rows)
        )
        with _evaluation_mode(self.policy), chance:
            try:
                return self._play(span.first, span.count, advance)
            except Exception as problem:
                if not isinstance(problem, NotFinite):
                    problem.add_note(self._whereabouts(span))
                raise

    def _play(self, first: int, count: int, advance: Advance) -> dict[str, pa.Table]:
        env, episodes = self.env, self.episodes
        width = env.rows
        episodes.seed(self.seed)
        episodes.upcoming[:] = first + np.arange(width)
        episodes.begin(env.everyone)
        begin_policy(self.policy, env.everyone, episodes.streams)
        left = np.maximum(0, -(-(count - np.arange(width)) // width))  # episodes a row still plays
        self.live = live = left > 0  # rows beyond the block are padding: begun, never advanced
        table = _EpisodeTable(first, count, env)
        recorder = self._recorder()
        state: Any = None
        fresh = np.ones(width, np.bool_)
        observation = episodes.observe()
        self._check_finite("observation", observation)
        playing = int(np.count_nonzero(live))
        starting = True
        quiet = 0  # steps since an episode ended
        while playing:
            if quiet and quiet % PATIENCE == 0:
                self._check_books(live, playing)
            quiet += 1
            before = state
            actions, state = self._act(observation, before, fresh)
            if recorder is not None:
                recorder.acted(observation, actions, before, fresh, live)
            step, ended = self._advance(actions, live)
            if not table.add(step):
                self._refuse_step(step)
            observation = episodes.observe()
            self._check_finite("observation", observation)
            if self.max_steps is not None:
                ended += self._cut(table.cut)
            if recorder is not None:
                recorder.stepped(step, table.cut, observation)
            if ended:
                over = episodes.ended & live
                metrics = episodes.metrics()
                if not env.metrics_may_be_missing:
                    for metric, values in metrics.items():
                        self._check_finite(f"metric {metric}", values, over)
                table.close(over, episodes, step, metrics)
                self.live = live = live.copy()  # the environment may keep what it was given
                fresh = np.empty(width, np.bool_)
                playing, beginning = _next_episodes(over, left, live, fresh)
                starting = beginning > 0
                if starting:
                    episodes.begin(fresh)
                    begin_policy(self.policy, fresh, episodes.streams)
                    episodes.observe_into(fresh, observation)
                    self._check_finite("observation", observation)
                advance(ended)
                quiet = 0
            elif starting:
                fresh, starting = np.zeros(width, np.bool_), False
        if left.any():
            raise self._books_written()
        tables = {"episodes": table.table()}
        return tables if recorder is None else tables | {"steps": recorder.table()}

    def _recorder(self) -> Recorder | None:
        if not self.record:
            return None
        from .recorder import Recorder

        masks = self.wants_masks
        return Recorder(self.episodes, self.policy, self.deterministic, policy_sees_masks=masks)

    def _check_books(self, live: Array, playing: int) -> None:
        """Refuse an environment that keeps its rows from ever ending: it would play forever."""
        steps = self.episodes.streams.step[live]
        if np.count_nonzero(live) != playing or not (steps >= PATIENCE).all():
            raise self._books_written()

    def _books_written(self) -> RuntimeError:
        return RuntimeError(
            f"{self.name}: the environment wrote to live or streams, which belong to the core; it "
            "may only read them"
        )

    def _whereabouts(self, span: Span) -> str:
        """Which episodes and steps the rows were at, for the note of an exception."""
        streams, rows = self.episodes.streams, np.flatnonzero(self.live)
        shown = [f"{streams.episode[row]} (step {streams.step[row]})" for row in rows[:8]]
        more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
        return (
            f"{self.name}: seed {self.seed}, {span}, while playing the episodes "
            f"{', '.join(shown)}{more}"
        )

    def _act(self, observation: Tree, state: Any, fresh: Array) -> tuple[Tree, Any]:
        masks = {"action_masks": self.episodes.masks()} if self.wants_masks else {}
        came = self.policy.predict(
            observation,
            state=state,
            episode_start=fresh,
            deterministic=self.deterministic,
            **masks,
        )
        if type(came) is not tuple or len(came) != 2:
            raise TypeError(
                f"policy: its predict returned {type(came).__name__}, expected the tuple "
                "(actions, state)"
            )
        return came

    def _advance(self, actions: Tree, live: Array) -> tuple[Step, int]:
        try:
            return self.episodes.advance(actions, live)
        except ValueError as refusal:
            for path, leaf in leaves(map_tree(np.asarray, actions)):
                if leaf.dtype.kind == "f" and len(leaf) == self.env.rows:
                    self._refuse(f"action/{path}" if path else "action", leaf, live)
            if "mask forbids" in str(refusal) and not self.wants_masks:
                raise ValueError(
                    f"{refusal}. The policy does not look at action masks: its predict has no "
                    "argument action_masks"
                ) from refusal
            raise

    def _cut(self, cut: Array) -> int:
        """End the episodes that have reached the runner's own limit, and mark them."""
        episodes = self.episodes
        assert self.max_steps is not None
        long = self.live & ~episodes.ended & (episodes.streams.step >= self.max_steps)
        if not long.any():
            return 0
        episodes.ended |= long
        cut |= long
        return int(np.count_nonzero(long))

    def _refuse_step(self, step: Step) -> None:
        self._check_finite("reward", step.reward)
        self._check_finite("duration", step.duration)
        row = int(np.argmin(step.duration))
        raise ValueError(f"{self._place(row)}: duration is {step.duration[row]}, allowed 0 or more")

    def _check_finite(self, field: str, tree: Tree, rows: Array | None = None) -> None:
        """Refuse what is not finite in some rows; None means the live ones."""
        for path, leaf in [("", tree)] if isinstance(tree, np.ndarray) else leaves(tree):
            if leaf.dtype.kind != "f":
                continue
            compiled = leaf.dtype.itemsize in (4, 8)
            if not (_all_finite(leaf.reshape(-1)) if compiled else np.isfinite(leaf).all()):
                chosen = self.live if rows is None else rows
                self._refuse(f"{field}/{path}" if path else field, leaf, chosen)

    def _refuse(self, field: str, leaf: Array, rows: Array) -> None:
        bad = ~np.isfinite(leaf).reshape(len(rows), -1).all(axis=1) & rows
        if not bad.any():
            return  # padding rows repeat an observation that was never part of the run
        row = int(np.argmax(bad))
        value = leaf[row].reshape(-1)
        raise NotFinite(f"{self._place(row)}: {field} is {value[~np.isfinite(value)][0]}")

    def _place(self, row: int) -> str:
        streams = self.episodes.streams
        return (
            f"{self.name}: seed {self.seed}, episode {int(streams.episode[row])}, "
            f"step {int(streams.step[row])}"
        )


def table_columns(env: BatchEnv) -> dict[str, Any]:
    """Names and dtypes of the episode table of an environment; see `Evaluation`."""
    columns: dict[str, Any] = {
        "episode": np.uint64,
        "return": np.float64,
        **{f"return/{agent}": np.float64 for agent in env.agents},
        "length": np.uint32,
        "duration": np.float64,
        "terminated": np.bool_,
        "truncated": np.bool_,
        "truncated_by_runner": np.bool_,
    }
    columns |= {name: values.dtype for name, values in env.metrics().items()}
    return columns


class _EpisodeTable:
    """Sums of the running episodes of a block, and the table of those that have ended."""

    def __init__(self, first: int, count: int, env: BatchEnv) -> None:
        self.first = first
        self.agents = env.agents
        self.returns = np.zeros((env.rows, max(1, len(env.agents))))
        self.durations = np.zeros(env.rows)
        self.cut = np.zeros(env.rows, np.bool_)
        self.columns = {name: np.zeros(count, kind) for name, kind in table_columns(env).items()}
        self._sums = self.returns, self.durations, self.cut
        self._always = tuple(self.columns[name] for name in TABLE_COLUMNS)

    def add(self, step: Step) -> bool:
        """Add a step; whether all its numbers are finite and no duration is negative."""
        reward = step.reward.reshape(self.returns.shape)
        return bool(_add_step(reward, step.duration, self.returns, self.durations))

    def close(self, over: Array, episodes: Episodes, step: Step, metrics: dict[str, Array]) -> None:
        """Write the rows of ended episodes into the table."""
        streams, columns = episodes.streams, self.columns
        if self.agents or metrics:
            place = (streams.episode[over] - np.uint64(self.first)).astype(np.int64)
            for i, agent in enumerate(self.agents):
                columns[f"return/{agent}"][place] = self.returns[over, i]
            for name, values in metrics.items():
                columns[name][place] = values[over]
        terminated = step.terminated if not self.agents else episodes.left.all(axis=1)
        ends = terminated, step.truncated
        first = np.uint64(self.first)
        _write_ended(over, first, streams.episode, streams.step, ends, self._sums, self._always)

    def table(self) -> pa.Table:
        """The table of all episodes of the block."""
        import pyarrow as pa

        return pa.table(self.columns)


@contextlib.contextmanager
def _evaluation_mode(policy: Any) -> Iterator[None]:
    """Switch a Stable-Baselines3 network to evaluation mode once, instead of in every call.

    Its `predict` walks all modules to do so each time: a quarter of the call at 8 rows.
    """
    network = policy
    while not hasattr(network, "set_training_mode") and hasattr(network, "policy"):
        network = network.policy
    if not hasattr(network, "set_training_mode"):
        yield
        return
    network.set_training_mode(False)
    network.set_training_mode = lambda mode: None
    try:
        yield
    finally:
        del network.set_training_mode  # the method of the class is back


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """BLAS and torch on one thread, so that bits do not depend on the number of cores."""
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch is not None else 1
    with threadpool_limits(1):
        try:
            if torch is not None:
                torch.set_num_threads(1)
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(threads)


@contextlib.contextmanager
def _own_chance(policy: Any, seed: int, block: int, rows: int) -> Iterator[None]:
    """Seed, for one block, whatever a policy may draw from besides its streams.

    Networks sample from torch's generator, DQN also from NumPy's and from its action space;
    state-dependent exploration keeps a matrix of noise. Generators are left as they were.
    """
    digest = hashlib.blake2b(f"{seed}|{block}|policy".encode(), digest_size=7).digest()
    word = int.from_bytes(digest, "little")
    while isinstance(policy, SharedPolicy | NormalisedPolicy):
        policy = policy.policy
    space: Any = getattr(policy, "action_space", None)
    network: Any = getattr(policy, "policy", policy)
    generator = space._np_random if isinstance(space, spaces.Space) else None
    with preserved(word):
        try:
            if isinstance(space, spaces.Space):
                space.seed(word)
            if getattr(network, "use_sde", False) or getattr(
                getattr(network, "actor", None), "use_sde", False
            ):
                network.reset_noise(rows)
            yield
        finally:
            if isinstance(space, spaces.Space):
                space._np_random = generator  # type: ignore[assignment]
