"""A BatchEnv of one row as a `gymnasium.Env`."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from ..batch import NO_HORIZON, BatchEnv, Episodes, Step
from ..spaces import Array, Tree, copy, legal_space, take
from .human import Window

RENDER_MODES = ("rgb_array", "human")


class GymView(gymnasium.Env[Any, Any]):
    """One row of a BatchEnv behind Gymnasium's single interface.

    `reset(seed=s)` plays episode 0 of s, `reset()` the next one, `options={"episode": k}` any.
    `info` carries `dt` (seconds of the step) in each step; `seed` and `episode_id` at the start;
    these and the environment's metrics at the end.

    Args:
        env: an environment of one row, without agents.
        render_mode: None, "rgb_array" or "human" (needs the `view` extra).
    """

    def __init__(self, env: BatchEnv, render_mode: str | None = None) -> None:
        if env.rows != 1 or env.agents:
            raise ValueError(
                f"env: got {env.rows} rows and agents {env.agents}, allowed 1 row without agents"
            )
        self.metadata = {"render_modes": list(RENDER_MODES), "render_fps": env.render_fps}
        check_render_mode(render_mode, RENDER_MODES)
        self.render_mode = render_mode
        self.batch = env
        self.episodes = Episodes(env)
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._masked = hasattr(env, "action_masks")
        if self._masked:
            self.action_masks = self._action_masks
            self.action_space = legal_space(env.action_space, self._action_masks)
        if hasattr(env, "compute_reward"):
            self.compute_reward = self._compute_reward
        self._window: Window | None = None
        self._prepare_step()

    def _prepare_step(self) -> None:
        episodes = self.episodes
        self._step = Step(1)
        self._clock = episodes.streams.step
        self._horizon = NO_HORIZON if self.batch.horizon is None else self.batch.horizon
        self._blank = episodes.observe_blank()
        self._plain = isinstance(self._blank, np.ndarray)
        space = self.action_space
        self._discrete = isinstance(space, spaces.Discrete) and not self._masked
        if isinstance(space, spaces.Discrete):
            self._low, self._high = int(space.start), int(space.start + space.n)
        self._action = np.zeros(1, np.int64)
        self._live = self.batch.everyone

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; see the class for what `seed` and `options` choose."""
        episodes = self.episodes
        options = check_options(options)
        episodes.reset(seed, options=None if options is None else [options])
        if seed is not None:  # nothing draws from np_random, but Gymnasium's checker looks at it
            super().reset(seed=int(seed))
        if self.render_mode == "human":
            self.render()
        return take(episodes.observe(), 0), self._ids()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance by one step.

        Raises:
            ResetNeeded: before the first reset, or after the end of an episode.
            TypeError: the action is not of the right kind.
            ValueError: the action is outside the space or the mask, or not finite.
        """
        episodes = self.episodes
        if episodes.ended[0]:
            raise ResetNeeded("step: the episode is over (or has not begun); call reset() first")
        actions = self._checked(action)
        step, clock = self._step, self._clock
        step.reward[0] = 0.0
        step.terminated[0] = step.truncated[0] = False
        step.duration[0] = 1.0
        count = clock.item() + 1
        clock[0] = count
        self.batch.advance(actions, self._live, episodes.streams, step)
        terminated = step.terminated.item()
        truncated = count >= self._horizon or step.truncated.item()
        out = self._blank.copy() if self._plain else copy(self._blank)
        self.batch.observe(None, episodes.streams, out)
        info: dict[str, Any] = {"dt": step.duration.item()}
        if terminated or truncated:
            episodes.ended[0] = True
            info.update(self._ids())
            info.update({k: v[0].item() for k, v in episodes.metrics().items()})
        if self.render_mode == "human":
            self.render()
        observation = out[0] if self._plain else take(out, 0)
        return observation, step.reward.item(), terminated, truncated, info

    def _checked(self, action: Any) -> Tree:
        if self._discrete:
            try:
                chosen = operator.index(action)
            except TypeError:
                raise TypeError(f"action: got {action!r}, expected an integer") from None
            if not self._low <= chosen < self._high:
                raise ValueError(f"action: got {chosen}, allowed {self._low} to {self._high - 1}")
            self._action[0] = chosen
            return self._action
        actions = self.episodes.check_actions(one_row(action))
        if self._masked:
            self.episodes.check_masks(actions, self._live)
        return actions

    def _ids(self) -> dict[str, Any]:
        streams = self.episodes.streams
        return {"seed": streams.seed.item(), "episode_id": streams.episode.item()}

    def _action_masks(self) -> Array:
        return take(self.episodes.masks(), 0)  # type: ignore[no-any-return]

    def _compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return self.batch.compute_reward(achieved_goal, desired_goal)  # type: ignore[attr-defined]

    def render(self) -> Any:
        """The picture of this row for "rgb_array"; shows it for "human"; None without a mode."""
        if self.render_mode is None:
            return None
        if not self.episodes.seeded:
            raise ResetNeeded("render: no episode has begun; call reset() first")
        picture = self.batch.render(0)
        if self.render_mode == "rgb_array":
            return picture
        if self._window is None:
            self._window = Window(type(self.batch).__name__, self.batch.render_fps)
        self._window.show(picture)
        return None

    def close(self) -> None:
        """Close the window and the environment. May be called twice."""
        if self._window is not None:
            self._window.close()
            self._window = None
        self.batch.close()


def check_render_mode(mode: str | None, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless the mode is None or one of the allowed ones."""
    if mode is not None and mode not in allowed:
        raise ValueError(f"render_mode: got {mode!r}, allowed {', '.join(allowed)} or None")


def check_options(options: Any) -> Any:
    """Return the options; raise TypeError unless they are None or a mapping."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options: got {options!r}, expected a mapping or None")
    return options


def one_row(action: Any) -> Tree:
    """One action as a tree of a single row."""
    if isinstance(action, dict):
        return {name: one_row(part) for name, part in action.items()}
    if isinstance(action, tuple):
        return tuple(one_row(part) for part in action)
    return np.asarray(action)[np.newaxis]
