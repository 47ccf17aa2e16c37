"""The shared rollout runner: every policy is evaluated on the same episodes, in blocks.

Episodes 0 to N - 1 of a seed are cut into blocks. Inside a block each row has a list of episodes
of its own (row, row + width, ...) and takes the next when one ends, so short episodes are not
preferred and few rows idle. The policy is always called on all rows, finished ones included:
a network gives other bits at other batch sizes, so the width is part of the result. The width,
the block size and the path taken stand in `run.json`; no clock enters the table.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from .batch import BatchEnv, Episodes
from .function_identity import function_bytes
from .global_random import preserved
from .kernels import kernel
from .onnx_policy import OnnxPolicy
from .policy import (
    AgentPolicies,
    FunctionPolicy,
    LinearPolicy,
    Normalisation,
    NormalisedPolicy,
    SharedPolicy,
    StateSpacePolicy,
    takes_masks,
)
from .policy import begin as begin_policy
from .policy_loading import load_policy
from .progress import progress_bar
from .registry import resolve
from .spaces import Array, Tree, leaves, map_tree
from .streams import check_seed, fresh_seed

if TYPE_CHECKING:
    import pyarrow as pa

    from .stats import Interval, PairedDifference

DEFAULT_WIDTH = 64
BLOCK_ROUNDS = 16  # episodes a row plays in a block at least, unless they are slow
BLOCK_EPISODES = 1024  # episodes in a block at least, unless they are slow
BLOCK_SECONDS = 1.0
MOST_BLOCKS = 1000
UNBOUNDED_STEPS = 100_000  # where an environment has no horizon, the runner's own limit


class NotFinite(FloatingPointError):
    """An environment or policy produced NaN or infinity; the message says where."""


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
) -> Evaluation:
    """Play episodes 0 to N - 1 of a seed with a policy.

    Args:
        policy: anything that `palestra.load_policy` takes.
        target: anything that `palestra.make` takes.
        episodes: how many, N.
        seed: whose episodes; None draws one from the system (and stores it).
        width: rows that advance together; part of the result for torch policies.
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

    Returns:
        The evaluation, with the table of episodes.

    Raises:
        NotFinite: an observation, action or reward is not finite.
        RunMismatch: the folder holds another run.
        CorruptFile: the folder does not hold what was written to it.
        ValueError: an argument out of range, or an action that the environment refuses.
    """
    counts = {"episodes": episodes, "width": width}
    counts |= {} if block is None else {"block": block}
    counts |= {} if max_steps is None else {"max_steps": max_steps}
    for label, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{label}: got {value!r}, allowed an integer of at least 1")
        if value >= 2**32:
            raise ValueError(f"{label}: got a larger number, allowed at most 2**32 - 1")
    where = resolve(target)
    stored = _stored_config(run)
    seed = check_seed(seed if seed is not None else stored.get("seed", fresh_seed()))
    env = where.make(width, **dict(settings or {}))
    try:
        loaded = load_policy(policy, env)
        with one_thread():
            chosen, report = _chosen_path(loaded, env, fast and deterministic)
            player = _Player(where.name, env, chosen, seed, deterministic, max_steps)
            block = block or stored.get("block") or player.pick_block(episodes)
            blocks = -(-episodes // block)
            from .store import named_files

            config = {
                "kind": "evaluation",
                "environment": where.reference or where.name,
                "settings": dict(settings or {}),
                "files": named_files(settings or {}),
                "policy": name or _name(policy),
                "policy_sha256": fingerprint(loaded),
                "by_object": not isinstance(policy, str | Path),
                "seed": seed,
                "episodes": episodes,
                "width": width,
                "block": block,
                "deterministic": deterministic,
                "max_steps": player.max_steps,
                "path": report.path,
            }
            spans = [(b, b * block, min(block, episodes - b * block)) for b in range(blocks)]
            table = _play(player, spans, run, config, progress)
    finally:
        env.close()
    return Evaluation(where.name, name or _name(policy), seed, table, report.path, report.reason)


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


def _play(
    player: _Player,
    spans: list[tuple[int, int, int]],
    run: str | Path | None,
    config: dict[str, Any],
    progress: bool,
) -> pa.Table:
    import pyarrow as pa

    total = sum(count for _, _, count in spans)
    label = f"{player.name}: {config['policy']}"
    if run is None:
        with progress_bar(label, total, progress) as advance:
            return pa.concat_tables(player.play(*span, advance) for span in spans)
    from .store import CorruptFile, RunFolder

    if config["policy_sha256"] is None and config["by_object"] and _stored_config(run):
        warnings.warn(
            f"{run}: the policy is an object without weights or name; whether it is the one that "
            "began this run cannot be told",
            UserWarning,
            stacklevel=3,
        )
    folder = RunFolder.create_or_resume(run, config)
    bar = progress_bar(label, total, progress)
    with folder.lock(), folder.withdrawn_if_empty(), bar as advance:
        for span in spans:
            if folder.has_block("episodes", span[0]):
                advance(span[2])
            else:
                folder.write_block("episodes", span[0], player.play(*span, advance))
        if not folder.finished:
            folder.finish()
    if problems := folder.verify():
        raise CorruptFile(folder.path, "; ".join(problems))
    table = folder.read("episodes")
    if not np.array_equal(table.column("episode").to_numpy(), np.arange(config["episodes"])):
        raise CorruptFile(
            folder.path / "episodes",
            f"does not hold the episodes 0 to {config['episodes'] - 1}, each once and in order",
        )
    return table


@kernel(allocates=False)
def _all_finite(values):  # type: ignore[no-untyped-def]
    """Whether no value (n,) is NaN or infinite: x - x is 0 then. No branch: it vectorises."""
    finite = True
    for place in range(values.shape[0]):
        finite &= values[place] - values[place] == 0.0
    return finite


class _Player:
    """Plays blocks of episodes of one seed, on one environment, with one policy."""

    def __init__(
        self,
        name: str,
        env: BatchEnv,
        policy: Any,
        seed: int,
        deterministic: bool,
        max_steps: int | None,
    ) -> None:
        self.name = name
        self.env = env
        self.policy = policy
        self.seed = seed
        self.deterministic = deterministic
        unbounded = env.horizon is None and max_steps is None
        self.max_steps = UNBOUNDED_STEPS if unbounded else max_steps
        self.episodes = Episodes(env)
        self.wants_masks = hasattr(env, "action_masks") and takes_masks(policy)

    def pick_block(self, episodes: int) -> int:
        """Episodes a block: `BLOCK_EPISODES` or more, or as many as take about a second.

        A run is never cut into more than `MOST_BLOCKS` files.
        """
        least = -(-episodes // (MOST_BLOCKS * self.env.rows))
        most = max(BLOCK_ROUNDS, -(-BLOCK_EPISODES // self.env.rows), least)
        if not self.deterministic:
            return most * self.env.rows  # a network is seeded by the block: no clock may decide
        self.episodes.seed(self.seed)
        self.episodes.begin(self.env.everyone)
        begin_policy(self.policy, self.env.everyone, self.episodes.streams)
        fresh, state = np.ones(self.env.rows, np.bool_), None
        for _ in range(2):  # the first step compiles
            start = time.perf_counter()
            observation = self.episodes.observe()
            self._check_finite("observation", observation, self.env.everyone)
            actions, state = self._act(observation, state, fresh)
            self._advance(actions, self.env.everyone)
            seconds = time.perf_counter() - start
            self.episodes.begin(self.env.everyone)
        per_round = seconds * min(self.env.horizon or 1000, self.max_steps or 1000)
        rounds = int(np.clip(BLOCK_SECONDS / per_round, least, most))
        return rounds * self.env.rows

    def play(self, index: int, first: int, count: int, advance: Any) -> pa.Table:
        """Play episodes first .. first + count - 1; one row an episode, in their order."""
        with _evaluation_mode(self.policy):
            if self.deterministic:
                return self._play(first, count, advance)
            with _own_chance(self.policy, self.seed, index, self.env.rows):
                return self._play(first, count, advance)

    def _play(self, first: int, count: int, advance: Any) -> pa.Table:
        env, episodes = self.env, self.episodes
        width = env.rows
        episodes.seed(self.seed)
        episodes.upcoming[:] = first + np.arange(width)
        episodes.begin(env.everyone)
        begin_policy(self.policy, env.everyone, episodes.streams)
        left = np.maximum(0, -(-(count - np.arange(width)) // width))  # episodes a row still plays
        live = left > 0  # rows beyond the block are padding: begun, never advanced
        rows = _Rows(count, env)
        state: Any = None
        fresh = np.ones(width, np.bool_)
        observation = episodes.observe()
        self._check_finite("observation", observation, live)
        playing = int(np.count_nonzero(live))
        starting = True
        while playing:
            actions, state = self._act(observation, state, fresh)
            step, ended = self._advance(actions, live)
            self._check_finite("reward", step.reward, live)
            self._check_finite("duration", step.duration, live)
            if step.duration.min() < 0:
                self._refuse_negative(step.duration)
            rows.add(step)
            observation = episodes.observe()
            self._check_finite("observation", observation, live)
            if self.max_steps is not None:
                ended += self._cut(live, rows)
            if ended:
                over = episodes.ended & live
                metrics = episodes.metrics()
                if not env.metrics_may_be_missing:
                    for metric, values in metrics.items():
                        self._check_finite(f"metric {metric}", values, over)
                rows.close(over, first, episodes, step, metrics)
                left[over] -= 1
                live = live & (left > 0)
                playing = int(np.count_nonzero(live))
                fresh = over & live
                starting = bool(fresh.any())
                if starting:
                    episodes.begin(fresh)
                    begin_policy(self.policy, fresh, episodes.streams)
                    episodes.observe_into(fresh, observation)
                    self._check_finite("observation", observation, live)
                advance(int(np.count_nonzero(over)))
            elif starting:
                fresh, starting = np.zeros(width, np.bool_), False
        return rows.table()

    def _act(self, observation: Tree, state: Any, fresh: Array) -> tuple[Tree, Any]:
        masks = {"action_masks": self.episodes.masks()} if self.wants_masks else {}
        return self.policy.predict(  # type: ignore[no-any-return]
            observation,
            state=state,
            episode_start=fresh,
            deterministic=self.deterministic,
            **masks,
        )

    def _advance(self, actions: Tree, live: Array) -> tuple[Any, int]:
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

    def _cut(self, live: Array, rows: _Rows) -> int:
        """End the episodes that have reached the runner's own limit."""
        episodes = self.episodes
        assert self.max_steps is not None
        long = live & ~episodes.ended & (episodes.streams.step >= self.max_steps)
        if not long.any():
            return 0
        episodes.ended |= long
        rows.cut |= long
        return int(np.count_nonzero(long))

    def _refuse_negative(self, duration: Array) -> None:
        row = int(np.argmin(duration))
        streams = self.episodes.streams
        raise ValueError(
            f"{self.name}: seed {self.seed}, episode {int(streams.episode[row])}, "
            f"step {int(streams.step[row])}: duration is {duration[row]}, allowed 0 or more"
        )

    def _check_finite(self, field: str, tree: Tree, live: Array) -> None:
        for path, leaf in [("", tree)] if isinstance(tree, np.ndarray) else leaves(tree):
            if leaf.dtype.kind != "f":
                continue
            compiled = leaf.dtype.itemsize in (4, 8)
            if not (_all_finite(leaf.reshape(-1)) if compiled else np.isfinite(leaf).all()):
                self._refuse(f"{field}/{path}" if path else field, leaf, live)

    def _refuse(self, field: str, leaf: Array, live: Array) -> None:
        bad = ~np.isfinite(leaf).reshape(len(live), -1).all(axis=1) & live
        if not bad.any():
            return  # padding rows repeat an observation that was never part of the run
        row = int(np.argmax(bad))
        streams = self.episodes.streams
        value = leaf[row].reshape(-1)
        raise NotFinite(
            f"{self.name}: seed {self.seed}, episode {int(streams.episode[row])}, "
            f"step {int(streams.step[row])}: {field} is {value[~np.isfinite(value)][0]}"
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


class _Rows:
    """Sums of the running episodes, and the finished rows of the table."""

    def __init__(self, count: int, env: BatchEnv) -> None:
        self.env = env
        self.returns = np.zeros((env.rows, max(1, len(env.agents))))
        self.durations = np.zeros(env.rows)
        self.terminated = np.zeros(env.rows, np.bool_)
        self.cut = np.zeros(env.rows, np.bool_)
        self.columns = {name: np.zeros(count, kind) for name, kind in table_columns(env).items()}

    def add(self, step: Any) -> None:
        # rows that do not step have reward 0 and duration 0
        self.returns += step.reward if step.reward.ndim == 2 else step.reward[:, np.newaxis]
        self.durations += step.duration

    def close(
        self, over: Array, first: int, episodes: Episodes, step: Any, metrics: dict[str, Array]
    ) -> None:
        """Write the rows of ended episodes into the table."""
        streams, columns = episodes.streams, self.columns
        place = (streams.episode[over] - np.uint64(first)).astype(np.int64)
        columns["episode"][place] = streams.episode[over]
        columns["return"][place] = self.returns[over].sum(axis=1)
        for i, agent in enumerate(self.env.agents):
            columns[f"return/{agent}"][place] = self.returns[over, i]
        columns["length"][place] = streams.step[over]
        columns["duration"][place] = self.durations[over]
        ends = step.terminated if step.terminated.ndim == 1 else episodes.left.all(axis=1)
        columns["terminated"][place] = np.asarray(ends)[over]
        columns["truncated"][place] = step.truncated[over]
        columns["truncated_by_runner"][place] = self.cut[over]
        for name, values in metrics.items():
            columns[name][place] = values[over]
        self.returns[over] = 0.0
        self.durations[over] = 0.0
        self.cut[over] = False

    def table(self) -> pa.Table:
        import pyarrow as pa

        return pa.table(self.columns)


@dataclass(frozen=True)
class _Path:
    path: str
    reason: str


def _chosen_path(policy: Any, env: BatchEnv, fast: bool) -> tuple[Any, _Path]:
    if not fast:
        return policy, _Path("predict", "the fast path was not asked for")
    from .fast_policy import fast_policy

    quick, report = fast_policy(policy, env.rows)
    if quick is None:
        return policy, _Path("predict", report.reason)
    return quick, _Path("fast", report.reason)


def fingerprint(policy: Any) -> str | None:
    """SHA-256 over the numbers of a policy: weights, statistics, gains (names, shapes, bytes).

    Of an ONNX file over its bytes; of a plain function over its code, see
    `palestra.function_identity`. None where something in the policy is not known here, such as an
    object of a class of your own.
    """
    if isinstance(policy, OnnxPolicy):
        return policy.sha256
    digest = hashlib.sha256()
    try:
        for name, array in _numbers(policy):
            digest.update(f"{name}{array.shape}{array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    except LookupError:
        return None
    return digest.hexdigest()


def _numbers(policy: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(policy, AgentPolicies):
        for agent, part in policy.policies.items():
            yield from ((f"{agent}/{name}", array) for name, array in _numbers(part))
        return
    statistics = getattr(policy, "normalisation", None)
    if isinstance(statistics, Normalisation):
        for key in sorted(statistics.mean):
            yield f"mean/{key}", statistics.mean[key]
            yield f"variance/{key}", statistics.variance[key]
        yield "epsilon, limit", np.array([statistics.epsilon, statistics.limit])
    if isinstance(policy, SharedPolicy | NormalisedPolicy):
        yield from _numbers(policy.policy)
    elif isinstance(policy, LinearPolicy):
        yield "gain", policy.gain
    elif isinstance(policy, StateSpacePolicy):
        yield from ((name, getattr(policy, name)) for name in "ABCD")
    elif hasattr(network := getattr(policy, "policy", policy), "state_dict"):
        for name, tensor in sorted(network.state_dict().items()):
            yield name, tensor.detach().cpu().numpy()
    elif isinstance(policy, OnnxPolicy):
        yield "ONNX file", np.frombuffer(bytes.fromhex(policy.sha256), np.uint8)
    elif isinstance(policy, FunctionPolicy) and (code := function_bytes(policy.function)):
        yield type(policy).__name__, np.frombuffer(code, np.uint8)
    else:
        raise LookupError(f"what a {type(policy).__name__} does is not known here")


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
