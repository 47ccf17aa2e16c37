"""Write once, batch first: the contract of an environment, and the life of a step.

An environment is defined once, over rows: B copies that advance as one array program. Every
interface (Gymnasium, vector, Stable-Baselines3, PettingZoo) is a view of that definition, and
the core does for all of them what must not be done twice: it checks actions, counts steps,
applies the horizon, draws the seeds and starts the next episode.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from .kernels import kernel
from .spaces import ActionCheck, Array, Tree, allocate, leaves
from .spaces import copy as copy_tree
from .streams import Streams, check_seed, fresh_seed

NO_HORIZON = 2**32 - 1  # the step counter is 32 bits wide

Mask = npt.NDArray[np.bool_]
Options = Sequence[Mapping[str, Any]]


class _Arrays:
    """The arrays of a step, to be assigned freely; `Step` is what an environment gets to see."""

    __slots__ = ("duration", "reward", "terminated", "truncated")

    reward: Array
    terminated: Array
    truncated: Array
    duration: Array


class Step(_Arrays):
    """What one step writes; the core allocates and fills it before `advance`.

    Assigning to an attribute writes into its array, and refuses what does not fit.

    Attributes:
        reward: float64 (B,) or (B, A), filled with 0.
        terminated: bool (B,) or (B, A), filled with False.
        truncated: bool (B,), filled with False; the core adds the horizon.
        duration: float64 (B,), filled with 1 (0 in rows that do not step); seconds, where steps
            differ in length.
    """

    __slots__ = ()

    def __init__(self, rows: int, agents: int = 0) -> None:
        """A step of `rows` rows; with `agents` > 0 reward and terminated are (B, A)."""
        shape = (rows, agents) if agents else (rows,)
        place = object.__setattr__
        place(self, "reward", np.zeros(shape))
        place(self, "terminated", np.zeros(shape, np.bool_))
        place(self, "truncated", np.zeros(rows, np.bool_))
        place(self, "duration", np.ones(rows))

    def __setattr__(self, name: str, value: Any) -> None:
        array = getattr(self, name, None)
        if value is array:  # the second half of `step.reward += ...`
            return
        if array is None:
            raise AttributeError(f"step.{name}: allowed {', '.join(_Arrays.__slots__)}")
        given = np.asarray(value)
        kinds = "b" if array.dtype == np.bool_ else "biuf"
        if given.dtype.kind not in kinds:
            raise TypeError(f"step.{name}: got {given.dtype} values, expected {array.dtype}")
        if given.shape not in {(), array.shape}:
            raise ValueError(f"step.{name}: got shape {given.shape}, allowed {array.shape}")
        array[...] = given

    def copy(self) -> Step:
        """A step with the same values in fresh arrays."""
        return _assemble(
            self.reward.copy(), self.terminated.copy(), self.truncated.copy(), self.duration.copy()
        )

    def __reduce__(self) -> Any:
        return _assemble, (self.reward, self.terminated, self.truncated, self.duration)


def _assemble(reward: Array, terminated: Mask, truncated: Mask, duration: Array) -> Step:
    """A step of these arrays. Every step of a view makes one: the plain class is faster to fill."""
    arrays: Any = _Arrays()
    arrays.reward, arrays.terminated = reward, terminated
    arrays.truncated, arrays.duration = truncated, duration
    arrays.__class__ = Step
    return arrays  # type: ignore[no-any-return]


class BatchEnv(ABC):
    """B copies of an environment as one array program. Subclass it to define an environment.

    Required: the two spaces, `begin`, `advance` and `observe`. Optional methods exist or do not;
    the core asks: `action_masks(out)`, `acting()`, `compute_reward(achieved, desired)`,
    `snapshot(rows)` with `restore(state, rows)`, and `film(row, pictures)`, the episode so far as
    pictures evenly spaced in time, where steps differ in length.

    An environment never checks actions, counts steps, applies the horizon or resets itself.

    Attributes:
        observation_space: the space of one copy; with agents, of one agent, or a Dict keyed
            exactly by the agents.
        action_space: likewise.
        agents: names of the agents; empty for a single agent.
        horizon: episodes are truncated after this many steps (None: never). Applied by the core.
        rows: number of copies, B.
        everyone: the mask of all rows.
        metrics_may_be_missing: whether NaN in a metric stands for "none in this episode".
        option_names: names that `begin` understands in `options`.
        passes_options_on: whether it hands options to something else that may know more names.
        anchors: scores to compare with (see `palestra.registry.Anchors`), or None.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    agents: tuple[str, ...] = ()
    horizon: int | None
    option_names: ClassVar[tuple[str, ...]] = ()
    passes_options_on: ClassVar[bool] = False
    metrics_may_be_missing: ClassVar[bool] = False
    render_fps: ClassVar[int] = 10

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> BatchEnv:
        """Remember the arguments: pickles and copies are built from them."""
        self = super().__new__(cls)
        self._arguments = (args, kwargs)
        return self

    def __init__(self, rows: int, *, horizon: int | None = None) -> None:
        """Set the number of rows and the horizon.

        Raises:
            ValueError: rows or horizon below 1.
        """
        if not _counts(rows):
            raise ValueError(f"rows: got {rows!r}, allowed an integer of at least 1")
        if horizon is not None and not _counts(horizon):
            raise ValueError(f"horizon: got {horizon!r}, allowed None or an integer of at least 1")
        if horizon is not None and horizon >= NO_HORIZON:
            raise ValueError(f"horizon: above {NO_HORIZON - 1} steps; allowed None for no end")
        self.rows = int(rows)
        self.horizon = None if horizon is None else int(horizon)
        self.everyone: Mask = np.ones(self.rows, np.bool_)

    @abstractmethod
    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Start an episode in the rows of the mask; touch no other row.

        Args:
            rows: bool (B,).
            streams: random streams; `streams.step` is 0 in these rows.
            options: one mapping a row (B of them), or None.
        """

    @abstractmethod
    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        """Advance the live rows by one step; touch no other row.

        Args:
            actions: checked actions, (B, ...) in the dtypes of the action space. They may be the
                caller's own arrays: read them, never write.
            live: bool (B,); read it, never write.
            streams: random streams; `streams.step` is k in the k-th step. Never write.
            step: to be written in live rows.
        """

    @abstractmethod
    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        """Write the observation of some rows. Pure: twice gives the same bits.

        Args:
            rows: bool (B,), or None for all.
            streams: random streams (purpose `observation` for noise).
            out: arrays (B, ...) of the observation space; only the given rows are written.
        """

    def metrics(self) -> dict[str, Array]:
        """The numbers a person of the field wants, each (B,), fixed names and dtypes.

        The core reads them when an episode ends; `info` and the episode table carry them. They
        may be asked for at any time. NaN stops an evaluation, unless `metrics_may_be_missing`.
        """
        return {}

    def render(self, row: int) -> Array:
        """A picture of one row, uint8 (H, W, 3).

        Raises:
            NotImplementedError: the environment draws nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no render method")

    def close(self) -> None:  # noqa: B027 - an optional hook, not an abstract method
        """Release what the environment holds (simulators, windows). May be called twice."""

    def stream_name(self) -> str:
        """The name that enters the random keys: the class name, without version or settings."""
        return type(self).__name__

    def __reduce__(self) -> Any:
        if not hasattr(self, "snapshot"):
            raise TypeError(
                f"{type(self).__name__} cannot be copied or pickled: it has no snapshot method"
            )
        # the horizon may have been shortened after construction
        state = self.snapshot(self.everyone)
        return _rebuild, (type(self), *self._arguments, self.horizon, state)

    def __copy__(self) -> BatchEnv:
        raise TypeError(f"{type(self).__name__}: a shallow copy would share state; use deepcopy")

    def __deepcopy__(self, memo: dict[int, Any]) -> BatchEnv:
        rebuild, (cls, args, kwargs, horizon, state) = self.__reduce__()
        args, kwargs = copy.deepcopy((args, kwargs), memo)
        return rebuild(cls, args, kwargs, horizon, state)  # type: ignore[no-any-return]


def _counts(value: Any) -> bool:
    """Whether a value is an integer of at least 1."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1


def _rebuild(
    cls: type[BatchEnv], args: Any, kwargs: Any, horizon: int | None, state: Any
) -> BatchEnv:
    env = cls(*args, **kwargs)
    env.horizon = horizon
    env.restore(state, env.everyone)  # type: ignore[attr-defined]
    return env


# Kernels without branches (they vectorise) keep the books of a step: at a few rows one call
# of a kernel costs less than one NumPy expression.


@kernel(allocates=False)
def _open_step(live, step, duration):  # type: ignore[no-untyped-def]
    """Count the step; a row that does not step takes no time."""
    for row in range(live.shape[0]):
        step[row] += np.uint32(live[row])
        duration[row] *= live[row]


@kernel(allocates=False)
def _open_step_over(live, step, reward, terminated, truncated, duration):  # type: ignore[no-untyped-def]
    """The same, in the arrays of an earlier step."""
    for place in range(reward.size):  # (B,) or (B, A)
        reward.flat[place] = 0.0
        terminated.flat[place] = False
    for row in range(live.shape[0]):
        step[row] += np.uint32(live[row])
        truncated[row] = False
        duration[row] = live[row]


@kernel(allocates=False)
def _close_step(live, step, horizon, all_terminated, truncated, ended, changed):  # type: ignore[no-untyped-def]
    """Apply the horizon, mark the rows that ended in two masks, and count them."""
    count = 0
    for row in range(live.shape[0]):
        truncated[row] |= live[row] & (step[row] >= horizon)
        over = live[row] & (all_terminated[row] | truncated[row])
        ended[row] |= over
        changed[row] |= over
        count += over
    return count


@kernel(allocates=False)
def _open_or_begin(ended, begun, stepped, step, duration, episode, upcoming, stride):  # type: ignore[no-untyped-def]
    """Give the rows that are over their next episode, at step 0; count a step of the others."""
    rows = ended.shape[0]
    for row in range(rows):
        begun[row] = ended[row]
        stepped[row] = not ended[row]
        ended[row] = False
    for row in range(rows):
        step[row] = (step[row] + np.uint32(1)) * stepped[row]
    for row in range(rows):
        duration[row] *= stepped[row]
    for row in range(rows):
        if begun[row]:
            episode[row] = upcoming[row]
            upcoming[row] += stride[row]


@kernel(allocates=False)
def _take_next(rows, episode, upcoming, stride, step, ended):  # type: ignore[no-untyped-def]
    """Give the rows of the mask their next episode, at step 0."""
    for row in range(rows.shape[0]):
        if rows[row]:
            episode[row] = upcoming[row]
            upcoming[row] += stride[row]
            step[row] = np.uint32(0)
            ended[row] = False


class Episodes:
    """The rows of one environment as they play episodes: the life of a step.

    A step (1) refuses actions outside the space or the mask, before anything changes; (2) counts;
    (3) advances; (4) applies the horizon; then (5) the caller observes, (6) reads metrics of
    ended rows and (7) begins them again, in the order its autoreset mode asks for.

    Attributes:
        env: the environment.
        streams: its random streams.
        ended: rows whose episode is over (or has never begun), bool (B,).
        left: agents that have left the running episode, bool (B, A) (empty without agents).
        upcoming: the episode each row begins next, uint64 (B,).
        stride: how far apart a row's episodes are, uint64 (B,).
    """

    def __init__(self, env: BatchEnv) -> None:
        """Take charge of an environment; no episode runs yet.

        Raises:
            TypeError, ValueError: the environment lacks what every environment must define.
        """
        _check_definition(env)
        rows = env.rows
        self.env = env
        self.rows = rows
        self.streams = Streams(env.stream_name(), rows)
        self.ended: Mask = np.ones(rows, np.bool_)
        self.left = np.zeros((rows, len(env.agents)), np.bool_)
        self.upcoming = np.arange(rows, dtype=np.uint64)
        self.stride = np.full(rows, rows, np.uint64)
        self.seeded = False
        self._horizon = NO_HORIZON if env.horizon is None else env.horizon
        self._agents = len(env.agents)
        self.check_actions = ActionCheck(env.action_space, lead(env, env.action_space)).__call__
        blank = allocate(env.observation_space, lead(env, env.observation_space))
        # the method itself where it can be, because it is called in every step
        self._fresh = blank.copy if isinstance(blank, np.ndarray) else partial(copy_tree, blank)
        self._unwritten = Step(rows, self._agents)
        self._unread: Mask = np.zeros(rows, np.bool_)
        self._masks = mask_buffer(env) if hasattr(env, "action_masks") else None
        self.measures = type(env).metrics is not BatchEnv.metrics
        self._metric_names = _checked_names(env, env.metrics())

    def seed(self, seed: int | Sequence[int] | None, rows: Mask | None = None) -> None:
        """Decide which episodes the rows play.

        Args:
            seed: an integer: row r plays episodes r, r + B, r + 2B, ... of it. A sequence of B
                integers: each row plays episodes 0, 1, 2, ... of its own. None: keep the running
                seed, or draw one from the system the first time.
            rows: the rows that it is for, bool (B,); None: all.

        Raises:
            TypeError: a seed that is no integer.
            ValueError: a seed outside 0 <= seed < 2**64, or not one seed a row.
        """
        if seed is None:
            if self.seeded:
                return
            seed = fresh_seed()
        if isinstance(seed, Sequence) or (isinstance(seed, np.ndarray) and seed.ndim):
            seeds = [check_seed(s) for s in seed]
            if len(seeds) != self.rows:
                raise ValueError(f"seed: got {len(seeds)} seeds, allowed {self.rows}, one a row")
            first, stride = np.zeros(self.rows, np.uint64), 1
        else:
            seeds = [check_seed(seed)] * self.rows
            first, stride = np.arange(self.rows, dtype=np.uint64), self.rows
        chosen = self.env.everyone if rows is None else rows
        self.upcoming[chosen] = first[chosen]
        self.stride[chosen] = stride
        self.streams.set_seeds(seeds, chosen)
        self.seeded = True

    def reset(
        self,
        seed: int | Sequence[int] | None,
        rows: Mask | None = None,
        options: Options | None = None,
    ) -> None:
        """`seed` and `begin` in one.

        A refused seed leaves running episodes alone. Where the environment refuses an option,
        nothing runs in the rows that were to begin, because it may have written to them; seed and
        upcoming episodes stay what they were.
        """
        rows = self.env.everyone if rows is None else rows
        if options is None:
            self.seed(seed, rows)
            self.begin(rows)
            return
        self._chosen_episodes(rows, options)
        before, seeded = self._books(), self.seeded
        try:
            self.seed(seed, rows)
            self.begin(rows, options)
        except BaseException:
            self._reopen(before)
            self.ended[rows] = True
            self.seeded = seeded
            raise

    def begin(self, rows: Mask, options: Options | None = None) -> None:
        """Begin the upcoming episode in the rows of the mask.

        `options[row]["episode"]` picks an episode; the row goes on from there.

        Raises:
            TypeError, ValueError: no such episode, or not one mapping a row.
        """
        if options is not None:
            for row, chosen in self._chosen_episodes(rows, options).items():
                self.upcoming[row] = chosen
        streams = self.streams
        episode, upcoming, stride = streams.episode, self.upcoming, self.stride
        _take_next(rows, episode, upcoming, stride, streams.step, self.ended)
        try:
            if self.env.begin(rows, streams, options) is not None:
                raise _returned(self.env, "begin")
        except BaseException:  # an option the environment refuses: nothing runs in these rows
            self.ended[rows] = True
            raise
        if self._agents:
            self.left[rows] = False

    def advance(
        self, actions: Tree, live: Mask | None = None, step: Step | None = None
    ) -> tuple[Step, int]:
        """Steps (1) to (4) in the live rows (None: all).

        Args:
            actions: a tree of actions.
            live: the rows that step, bool (B,).
            step: an earlier step to write over; None: one in fresh arrays.

        Returns:
            The step, and how many rows ended in it. `ended` is updated.

        Raises:
            TypeError: actions are not numbers of the right kind.
            ValueError: actions of the wrong shape, not finite, outside the space or the mask.
        """
        actions = self.check_actions(actions)
        if live is None:
            live = self.env.everyone
        if self._masks is not None:
            self.check_masks(actions, live)
        streams = self.streams
        if step is None:
            step = self._unwritten.copy()
            _open_step(live, streams.step, step.duration)
        else:
            arrays = step.reward, step.terminated, step.truncated, step.duration
            _open_step_over(live, streams.step, *arrays)
        if self.env.advance(actions, live, streams, step) is not None:
            raise _returned(self.env, "advance")
        over = step.terminated if not self._agents else self._agents_left(step)
        count = _close_step(
            live, streams.step, self._horizon, over, step.truncated, self.ended, self._unread
        )
        return step, count

    def advance_or_begin(self, actions: Tree) -> tuple[Step, Mask, Mask, int]:
        """Advance the running rows, and begin the next episode in the others (NEXT_STEP).

        The same as `advance` followed by `begin`, in fewer calls; without agents.

        Returns:
            The step; the rows that advanced; those that began or ended an episode; how many
            ended. All arrays are fresh.

        Raises:
            TypeError, ValueError: as `advance`.
        """
        actions = self.check_actions(actions)
        ended, streams = self.ended, self.streams
        if self._masks is not None:
            self.check_masks(actions, ~ended)
        step = self._unwritten.copy()
        begun, stepped = np.empty(self.rows, np.bool_), np.empty(self.rows, np.bool_)
        _open_or_begin(
            ended,
            begun,
            stepped,
            streams.step,
            step.duration,
            streams.episode,
            self.upcoming,
            self.stride,
        )
        try:
            if self.env.advance(actions, stepped, streams, step) is not None:
                raise _returned(self.env, "advance")
            self.env.begin(begun, streams, None)
        except BaseException:
            ended |= begun
            raise
        over = step.terminated
        count = _close_step(
            stepped, streams.step, self._horizon, over, step.truncated, ended, begun
        )
        return step, stepped, begun, count

    def _agents_left(self, step: Step) -> Mask:
        """Report each agent's end once; an episode is over when all agents have left."""
        step.terminated &= ~self.left
        self.left |= step.terminated
        over: Any = self.left.all(axis=1)
        return over  # type: ignore[no-any-return]

    def observe_blank(self) -> Tree:
        """Fresh arrays of zeros for the observations of all rows."""
        return self._fresh()

    def observe(self) -> Tree:
        """The observation of all rows, in fresh arrays."""
        out = self._fresh()
        if self.env.observe(None, self.streams, out) is not None:
            raise _returned(self.env, "observe")
        return out

    def observe_into(self, rows: Mask, out: Tree) -> None:
        """Write the observation of some rows."""
        self.env.observe(rows, self.streams, out)

    def masks(self) -> Tree:
        """The action masks of all rows, in fresh arrays; None where every action is legal."""
        if self._masks is None:
            return None
        out = copy_tree(self._masks)
        self.env.action_masks(out)  # type: ignore[attr-defined]
        return out

    def snapshot(self) -> dict[str, Array]:
        """Everything that decides how the rows go on; needs the environment's own `snapshot`.

        Raises:
            TypeError: the environment's snapshot is not a dict of arrays.
        """
        inside = self.env.snapshot(self.env.everyone)  # type: ignore[attr-defined]
        arrays = isinstance(inside, dict) and all(
            isinstance(a, np.ndarray) for a in inside.values()
        )
        if not arrays:
            raise TypeError(f"{type(self.env).__name__}.snapshot: expected a dict of arrays")
        return self._books() | {f"env/{name}": array for name, array in inside.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a snapshot of as many rows.

        Raises:
            ValueError: arrays of other names or shapes than a snapshot of this environment has.
        """
        expected = {name: array.shape for name, array in self.snapshot().items()}
        if (given := {name: array.shape for name, array in state.items()}) != expected:
            raise ValueError(
                f"snapshot: got {given}, expected {expected}: of another environment, or of "
                "another number of rows"
            )
        self._reopen(state)
        self.seeded = True
        inside = {k.removeprefix("env/"): v for k, v in state.items() if k.startswith("env/")}
        self.env.restore(inside, self.env.everyone)  # type: ignore[attr-defined]

    def _books(self) -> dict[str, Array]:
        """Copies of what the core itself keeps about the rows."""
        streams = self.streams
        kept: dict[str, Array] = {
            "seed": streams.seed,
            "episode": streams.episode,
            "step": streams.step,
            "upcoming": self.upcoming,
            "stride": self.stride,
            "ended": self.ended,
            "left": self.left,
        }
        return {name: array.copy() for name, array in kept.items()}

    def _reopen(self, books: Mapping[str, Array]) -> None:
        """Go on with the books as they were."""
        streams = self.streams
        streams.set_seeds(books["seed"])
        streams.episode[:] = books["episode"]
        streams.step[:] = books["step"]
        self.upcoming[:] = books["upcoming"]
        self.stride[:] = books["stride"]
        self.ended[:] = books["ended"]
        self.left[:] = books["left"]

    def metrics(self) -> dict[str, Array]:
        """The environment's metrics, each (B,).

        Raises:
            ValueError: other names than before.
        """
        values = self.env.metrics()
        if values.keys() != self._metric_names:
            raise ValueError(
                f"metrics: {type(self.env).__name__} gave {sorted(values)}, "
                f"at first {sorted(self._metric_names)}; names must not change"
            )
        return values

    def _chosen_episodes(self, rows: Mask, options: Options) -> dict[int, int]:
        """The episode that each row's options ask for, if they do; warns about unknown names."""
        if len(options) != self.rows:
            raise ValueError(f"options: got {len(options)} mappings, allowed {self.rows}")
        known = {"episode", *self.env.option_names}
        chosen = {}
        for row in np.flatnonzero(rows).tolist():
            given = options[row]
            if not self.env.passes_options_on:
                for name in given.keys() - known:
                    warn_once(self.env, name, known)
            if "episode" in given:
                chosen[row] = check_seed(given["episode"], "options['episode']")
        return chosen

    def check_masks(self, actions: Tree, live: Mask) -> None:
        """Refuse actions that the current mask forbids, in live rows (of acting agents).

        Raises:
            ValueError: naming row, action, and what the mask allows.
        """
        self.env.action_masks(self._masks)  # type: ignore[attr-defined]
        masks: Tree = self._masks
        if not self._agents:
            refuse_masked(self.env.action_space, actions, masks, live)
            return
        turn = live[:, np.newaxis] & self.acting()
        if not isinstance(masks, dict):
            refuse_masked(self.env.action_space, actions, masks, turn)
            return
        for place, agent in enumerate(self.env.agents):
            space = self._space_of(agent)
            refuse_masked(space, actions[agent], masks[agent], turn[:, place], f" of {agent}")

    def acting(self) -> Array:
        """Agents whose turn it is and who have not left, bool (B, A)."""
        if hasattr(self.env, "acting"):
            return self.env.acting() & ~self.left  # type: ignore[no-any-return]
        return ~self.left

    def _space_of(self, agent: str) -> spaces.Space[Any]:
        return agent_space(self.env, self.env.action_space, agent)


INFO_ENTRIES = (
    *("dt", "seed", "episode_id", "action_mask", "agent", "absent"),
    *("terminal_observation", "TimeLimit.truncated", "final_obs", "final_info"),
)
TABLE_COLUMNS = (
    *("episode", "return", "length", "duration"),
    *("terminated", "truncated", "truncated_by_runner"),
)
RESERVED = frozenset(INFO_ENTRIES + TABLE_COLUMNS)


def _checked_names(env: BatchEnv, values: Any) -> frozenset[str]:
    """The names of an environment's metrics, after a look at what it gives."""
    name = type(env).__name__
    if not isinstance(values, dict):
        raise TypeError(f"metrics: {name} gave {type(values).__name__}, expected a dict of arrays")
    for key, array in values.items():
        if not isinstance(key, str) or key in RESERVED or key.startswith(("_", "return/")):
            raise ValueError(
                f"metrics: {name} gave the name {key!r}; allowed any string but "
                f"{', '.join(sorted(RESERVED))}, return/... and _..."
            )
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise TypeError(f"metrics[{key!r}]: {name} gave {array!r:.60}, expected an array")
        if array.shape != (env.rows,):
            raise ValueError(
                f"metrics[{key!r}]: {name} gave shape {array.shape}, allowed ({env.rows},)"
            )
    return frozenset(values)


def _check_definition(env: BatchEnv) -> None:
    """Raise what helps the author of an environment that is not complete."""
    name = type(env).__name__
    if not hasattr(env, "everyone"):
        raise TypeError(f"{name}.__init__ must call super().__init__(rows, horizon=...)")
    for attribute in ("observation_space", "action_space"):
        space = getattr(env, attribute, None)
        if not isinstance(space, spaces.Space):
            raise TypeError(f"{name}.{attribute}: got {space!r}, expected a gymnasium space")
    for method in ("begin", "advance", "observe"):
        if not callable(getattr(env, method)):
            raise TypeError(f"{name}.{method}: got {getattr(env, method)!r}, expected a method")
    agents = env.agents
    if not isinstance(agents, tuple) or not all(isinstance(agent, str) for agent in agents):
        raise TypeError(f"{name}.agents: got {agents!r}, expected a tuple of names")
    if len(set(agents)) < len(agents):
        raise ValueError(f"{name}.agents: got {agents!r}, allowed each name once")


def _returned(env: BatchEnv, method: str) -> TypeError:
    """The mistake of an author who returns a result that nobody reads."""
    where = {"observe": "out", "advance": "step"}.get(method, "attributes of its own")
    return TypeError(
        f"{type(env).__name__}.{method}: returned a value, expected None; it writes into {where}"
    )


def refuse_masked(
    space: spaces.Space[Any],
    actions: Array,
    masks: Array,
    relevant: Mask,
    whose: str = "",
) -> None:
    """Refuse actions that are masked where it matters.

    Args:
        space: Discrete or MultiDiscrete.
        actions: actions inside the space, (B,) or (B, A), with components last.
        masks: legal choices, bool (B, n) or (B, A, n).
        relevant: where it matters, bool (B,) or (B, A).
        whose: for the message, such as " of leader".

    Raises:
        ValueError: naming row, action, and what the mask allows.
    """
    if isinstance(space, spaces.Discrete):
        index = (actions - space.start)[..., np.newaxis]
        limits = [0, space.n]
    else:
        assert isinstance(space, spaces.MultiDiscrete)
        limits = [0, *np.cumsum(space.nvec).tolist()]
        index = actions - space.start + limits[:-1]
    legal = np.take_along_axis(masks, index, axis=-1)
    wrong = relevant[..., np.newaxis] & ~legal
    if wrong.any():
        *place, part = np.argwhere(wrong)[0].tolist()
        allowed = np.flatnonzero(masks[tuple(place)][limits[part] : limits[part + 1]])
        allowed += np.atleast_1d(space.start)[part]
        row = f"row {place[0]}" + (f", agent {place[1]}" if len(place) > 1 else "")
        component = "" if isinstance(space, spaces.Discrete) else f", component {part}"
        raise ValueError(
            f"action{whose}: {row}{component}: got {np.atleast_1d(actions[tuple(place)])[part]}, "
            f"which the mask forbids; allowed {allowed.tolist()}"
        )


def lead(env: BatchEnv, space: spaces.Space[Any]) -> tuple[int, ...]:
    """Leading dimensions of arrays of a space: (B,), or (B, A) where agents share the space."""
    if not env.agents or keyed_by_agents(env, space):
        return (env.rows,)
    return (env.rows, len(env.agents))


def keyed_by_agents(env: BatchEnv, space: spaces.Space[Any]) -> bool:
    """Whether a space is a Dict keyed exactly by the agents."""
    return isinstance(space, spaces.Dict) and set(space.spaces) == set(env.agents)


def agent_space(env: BatchEnv, space: spaces.Space[Any], agent: str) -> spaces.Space[Any]:
    """The space of one agent."""
    return space[agent] if keyed_by_agents(env, space) else space  # type: ignore[index]


def mask_buffer(env: BatchEnv) -> Tree:
    """Arrays for `action_masks(out)`: bool (B, n), (B, sum nvec), (B, A, n), or a dict by agent.

    Raises:
        TypeError: masks over a space that is neither Discrete nor MultiDiscrete.
    """
    space = env.action_space
    if keyed_by_agents(env, space):
        return {a: np.ones((env.rows, choices_of(space[a])), np.bool_) for a in env.agents}  # type: ignore[index]
    return np.ones((*lead(env, space), choices_of(space)), np.bool_)


def choices_of(space: spaces.Space[Any]) -> int:
    """How many truth values the mask of a space has.

    Raises:
        TypeError: a space that is neither Discrete nor MultiDiscrete.
    """
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return int(space.nvec.sum())
    raise TypeError(f"action_masks: got {space}, allowed Discrete or a flat MultiDiscrete space")


_warned: set[tuple[type, str]] = set()


def warn_once(env: BatchEnv, name: str, known: set[str]) -> None:
    """Warn about an option that the environment does not know, once a class and name."""
    if (type(env), name) not in _warned:
        _warned.add((type(env), name))
        warnings.warn(
            f"options: {type(env).__name__} does not know {name!r}; known: {sorted(known)}",
            UserWarning,
            stacklevel=4,
        )


def not_finite(tree: Tree) -> str | None:
    """The path of the first array of a tree that holds NaN or infinity, or None."""
    for path, leaf in leaves(tree):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            return path or "observation"
    return None
