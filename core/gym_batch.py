"""Any `gymnasium.Env` (Python, MuJoCo, hardware) as a BatchEnv: a loop, with the same contract."""

from __future__ import annotations

import copy
import copyreg
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from .batch import BatchEnv, Mask, Options, Step
from .spaces import Array, Tree, allocate, map_tree, put, take
from .streams import Streams

STEP = "(observation, reward, terminated, truncated, info)"
RESET = "(observation, info)"
NUMBER = int | float | np.integer | np.floating
TRUTH = bool | np.bool_


class GymBatch(BatchEnv):
    """Copies of a plain Gymnasium environment, one a row.

    Each episode resets its copy with a 32-bit seed drawn from the row's stream, so an episode
    depends on its number alone, if the environment honours its seed. Time limits of the
    environment's own wrappers arrive as truncations; `horizon` adds another. Options are passed
    on to its `reset`, whatever their names. It can be copied and pickled if its copies can.

    Args:
        rows: number of copies.
        make: builds one copy; or a Gymnasium id.
        horizon: truncate after so many steps; None leaves it to the environment.
        metrics: names of entries of `info` (numbers) to report at the end of an episode.
        kwargs: passed on to `make`.

    Raises:
        TypeError: a copy is not a gymnasium.Env, or has spaces without a fixed shape; later, what
            its `reset` or `step` returns is not what Gymnasium asks for.
    """

    passes_options_on = True
    metrics_may_be_missing = True

    def __init__(
        self,
        rows: int,
        make: Callable[..., gymnasium.Env[Any, Any]] | str,
        *,
        horizon: int | None = None,
        metrics: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(rows, horizon=horizon)
        build = make if callable(make) else _from_id(make)
        self.copies = [build(**kwargs) for _ in range(rows)]
        for one in self.copies:
            if not isinstance(one, gymnasium.Env):
                raise TypeError(f"make: built {type(one).__name__}, expected a gymnasium.Env")
        if len({id(one) for one in self.copies}) < rows:
            raise TypeError("make: returned the same object twice; each row needs its own copy")
        self.observation_space = self.copies[0].observation_space
        self.action_space = self.copies[0].action_space
        self._seen = allocate(self.observation_space, (rows,))
        self._metrics = {name: np.full(rows, np.nan) for name in metrics}
        self._name = _name_of(self.copies[0])
        if hasattr(self.copies[0].unwrapped, "action_masks"):
            self.action_masks = self._action_masks
        if hasattr(self.copies[0].unwrapped, "compute_reward"):
            self.compute_reward = self._compute_reward

    def stream_name(self) -> str:
        """The id of the environment without version, or its class name."""
        return self._name

    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Reset the copies of the given rows."""
        for row in np.flatnonzero(rows).tolist():
            chosen: Mapping[str, Any] | None = options[row] if options is not None else None
            passed = {k: v for k, v in (chosen or {}).items() if k != "episode"}
            came: Any = self.copies[row].reset(seed=streams.seed32(row), options=passed or None)
            if type(came) is not tuple or len(came) != 2:
                raise self._wrong_number(row, "reset", came, RESET)
            self._see(row, came[0])
        for values in self._metrics.values():
            values[rows] = np.nan

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        """Step the copies of the live rows."""
        for row in np.flatnonzero(live).tolist():
            # a copy: the environment may write into its action
            came: Any = self.copies[row].step(copy.deepcopy(take(actions, row)))
            if type(came) is not tuple or len(came) != 5:
                raise self._wrong_number(row, "step", came, STEP)
            observation, reward, terminated, truncated, info = came
            self._see(row, observation)
            if not isinstance(reward, NUMBER):
                raise self._wrong_kind(row, "reward", reward, "a number")
            for what, end in (("terminated", terminated), ("truncated", truncated)):
                if not isinstance(end, TRUTH):
                    raise self._wrong_kind(row, what, end, "True or False")
            step.reward[row] = reward
            step.terminated[row] = terminated
            step.truncated[row] = truncated
            for name, values in self._metrics.items():
                if name in info:
                    values[row] = info[name]

    def _wrong_number(self, row: int, method: str, came: Any, expected: str) -> TypeError:
        values = f"{len(came)} values" if isinstance(came, tuple) else f"a {type(came).__name__}"
        old = "; this is the interface before Gym 0.26" if method == "step" else ""
        old = old if isinstance(came, tuple) and len(came) == 4 else ""
        return TypeError(
            f"{method}: row {row}: {self._name} returned {values}, expected {expected}{old}"
        )

    def _wrong_kind(self, row: int, what: str, value: Any, expected: str) -> TypeError:
        return TypeError(
            f"{what}: row {row}: {self._name} returned {value!r:.60}, expected {expected}"
        )

    def _see(self, row: int, observation: Any) -> None:
        try:
            map_tree(functools.partial(_write, row), self._seen, observation)
        except (KeyError, IndexError, TypeError, ValueError) as mismatch:
            raise ValueError(
                f"observation: row {row}: {self._name} returned something that does not fit "
                f"{self.observation_space}: {mismatch}"
            ) from mismatch

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        """What the copies returned last."""
        chosen = slice(None) if rows is None else rows
        put(out, chosen, take(self._seen, chosen))

    def metrics(self) -> dict[str, Array]:
        """The chosen entries of `info`; NaN where the environment gave none."""
        return {name: values.copy() for name, values in self._metrics.items()}

    def render(self, row: int) -> Array:
        """The picture that the copy of this row draws; needs kwarg `render_mode="rgb_array"`."""
        picture = self.copies[row].render()
        if not isinstance(picture, np.ndarray):
            raise NotImplementedError(
                f'{self._name} returned no picture; pass render_mode="rgb_array"'
            )
        return picture

    def _action_masks(self, out: Array) -> None:
        for row, one in enumerate(self.copies):
            out[row] = one.unwrapped.action_masks()  # type: ignore[attr-defined]

    def _compute_reward(self, achieved: Array, desired: Array) -> Array:
        return self.copies[0].unwrapped.compute_reward(achieved, desired, {})  # type: ignore[attr-defined, no-any-return]

    def __reduce__(self) -> Any:
        state = {name: value for name, value in vars(self).items() if name != "_arguments"}
        return copyreg.__newobj__, (type(self),), state  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> GymBatch:
        twin = memo[id(self)] = type(self).__new__(type(self))
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin  # type: ignore[return-value]

    def close(self) -> None:
        """Close all copies."""
        for one in self.copies:
            one.close()


def _write(row: int, seen: Array, observation: Any) -> None:
    given = np.asarray(observation)
    if given.shape != seen.shape[1:]:
        raise ValueError(f"got shape {given.shape}, expected {seen.shape[1:]}")
    if not np.can_cast(given.dtype, seen.dtype, "same_kind"):
        raise TypeError(f"got {given.dtype}, expected {seen.dtype}")
    seen[row] = given


def _from_id(name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    return lambda **kwargs: gymnasium.make(name, **kwargs)


def _name_of(one: gymnasium.Env[Any, Any]) -> str:
    if one.spec is not None:
        return one.spec.id.rsplit("-v", 1)[0]
    return type(one.unwrapped).__name__
