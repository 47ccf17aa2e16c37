"""A BatchEnv as a native `gymnasium.vector.VectorEnv`, in each of the three autoreset modes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from ..batch import BatchEnv, Episodes, Mask
from ..spaces import Array, Tree, draw_legal, take, take_rows
from .gym import check_options, check_render_mode


class LegalActions(spaces.MultiDiscrete):
    """The batched action space of a masked environment: `sample()` draws legal actions.

    Args:
        space: Discrete or MultiDiscrete space of one row.
        view: the vector view whose current masks count.
    """

    def __init__(self, space: Any, view: VectorView) -> None:
        discrete = isinstance(space, spaces.Discrete)
        self._widths = [int(space.n)] if discrete else space.nvec.tolist()
        lead = (view.num_envs,) if discrete else (view.num_envs, 1)
        nvec = np.tile(space.n if discrete else space.nvec, lead)
        super().__init__(nvec, dtype=space.dtype.type, start=np.tile(space.start, lead))
        self._view = view

    def sample(self, mask: Any = None, probability: Any = None) -> Array:
        """One legal action a row; an explicit mask or probability is passed on."""
        if mask is not None or probability is not None:
            return super().sample(mask=mask, probability=probability)
        chosen = draw_legal(self.np_random, self._view.episodes.masks(), self._widths)
        return (chosen.reshape(self.shape) + self.start).astype(self.dtype)


class VectorView(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """All rows of a BatchEnv behind Gymnasium's vector interface.

    `reset(seed=s)` lets row r play episodes r, r + B, r + 2B, ... of s; a list of seeds lets each
    row play episodes 0, 1, 2, ... of its own. Every array that leaves is fresh.

    `infos` carries `dt` in each step; `seed` and `episode_id` where an episode begins or ends;
    the environment's metrics where one ends. In SAME_STEP those of the ended episode are in
    `final_info`, with the last observation in `final_obs`.

    Args:
        env: an environment without agents.
        autoreset_mode: NEXT_STEP (default), SAME_STEP or DISABLED, or its name.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self,
        env: BatchEnv,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        if env.agents:
            raise ValueError(f'env: got agents {env.agents}; use view="parallel", "aec" or "sb3"')
        check_render_mode(render_mode, ("rgb_array",))
        self.autoreset_mode = _mode(autoreset_mode)
        self._next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        self._same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self.metadata = {
            "autoreset_mode": self.autoreset_mode,
            "render_modes": ["rgb_array"],
            "render_fps": env.render_fps,
        }
        self.render_mode = render_mode
        self.batch = env
        self.num_envs = env.rows
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.observation_space = batch_space(env.observation_space, env.rows)
        self.episodes = Episodes(env)
        if hasattr(env, "action_masks"):
            self.action_masks = self.episodes.masks
            self.action_space = LegalActions(env.action_space, self)
        else:
            self.action_space = batch_space(env.action_space, env.rows)
        # Gymnasium gives a batch of a nested action space as nested arrays: what we check
        self._waiting = 0  # rows that ended and have not begun again

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        """Begin episodes: in all rows, or in the rows of `options["reset_mask"]`."""
        episodes = self.episodes
        rows = self.batch.everyone
        options = dict(check_options(options) or {})
        if "reset_mask" in options:
            rows = _reset_mask(options.pop("reset_mask"), self.num_envs)
        if not episodes.seeded and not rows.all():
            raise ResetNeeded("reset: the first reset must begin all rows")
        try:
            episodes.reset(seed, rows, [options] * self.num_envs if options else None)
        finally:
            self._waiting = int(np.count_nonzero(episodes.ended))
        infos: dict[str, Any] = {}
        self._add_ids(infos, rows.copy())
        return episodes.observe(), infos

    def step(self, actions: Any) -> tuple[Tree, Array, Array, Array, dict[str, Any]]:
        """Advance all rows; what happens to ended rows depends on the autoreset mode.

        Raises:
            ResetNeeded: before the first reset, or an ended row is stepped in DISABLED mode.
            TypeError, ValueError: illegal actions; nothing has changed then.
        """
        episodes = self.episodes
        if not episodes.seeded:
            raise ResetNeeded("step: no episode has begun; call reset() first")
        changed = None
        if not self._waiting:
            stepped = self.batch.everyone.copy()
            step, ended = episodes.advance(actions)
            if ended:
                changed = episodes.ended.copy()
        elif self._next_step:
            step, stepped, changed, ended = episodes.advance_or_begin(actions)
        else:
            rows = np.flatnonzero(episodes.ended).tolist()
            raise ResetNeeded(
                f"step: rows {rows} are over; begin them with "
                'reset(options={"reset_mask": ...}) first'
            )
        observation = episodes.observe()
        infos: dict[str, Any] = {"dt": step.duration, "_dt": stepped}
        if ended and self._same_step:
            self._begin_again(observation, infos)
            return observation, step.reward, step.terminated, step.truncated, infos
        self._waiting = ended
        if changed is not None:
            self._add_ids(infos, changed)
        if ended and episodes.measures:
            self._add_metrics(infos, episodes.ended.copy())
        return observation, step.reward, step.terminated, step.truncated, infos

    def _begin_again(self, observation: Tree, infos: dict[str, Any]) -> None:
        episodes = self.episodes
        over = episodes.ended.copy()
        rows = over.nonzero()[0]
        ended, final = take_rows(observation, rows), np.full(self.num_envs, None, dtype=object)
        for index, row in enumerate(rows.tolist()):
            final[row] = take(ended, index)
        infos["final_obs"], infos["_final_obs"] = final, over
        last = {"dt": infos["dt"].copy(), "_dt": over.copy()}
        self._add_ids(last, over.copy())
        self._add_metrics(last, over.copy())
        infos["final_info"], infos["_final_info"] = last, over.copy()
        episodes.begin(over)
        episodes.observe_into(over, observation)
        self._add_ids(infos, over.copy())

    def _add_ids(self, infos: dict[str, Any], rows: Mask) -> None:
        streams = self.episodes.streams
        infos["seed"], infos["_seed"] = streams.seed.copy(), rows
        infos["episode_id"], infos["_episode_id"] = streams.episode.copy(), rows

    def _add_metrics(self, infos: dict[str, Any], rows: Mask) -> None:
        for name, values in self.episodes.metrics().items():
            infos[name] = np.where(rows, values, values.dtype.type(0))
            infos[f"_{name}"] = rows

    def render(self) -> tuple[Array, ...] | None:
        """One picture a row for "rgb_array"; None without a render mode."""
        if self.render_mode is None:
            return None
        if not self.episodes.seeded:
            raise ResetNeeded("render: no episode has begun; call reset() first")
        return tuple(self.batch.render(row) for row in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        self.batch.close()


def _mode(mode: AutoresetMode | str) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    names = {m.name: m for m in AutoresetMode} | {m.value: m for m in AutoresetMode}
    if mode not in names:
        allowed = ", ".join(m.name for m in AutoresetMode)
        raise ValueError(f"autoreset_mode: got {mode!r}, allowed {allowed}")
    return names[mode]


def _reset_mask(mask: Any, rows: int) -> Mask:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (rows,):
        raise ValueError(
            f"options['reset_mask']: got {mask!r}, allowed a boolean array of shape ({rows},)"
        )
    if not mask.any():
        raise ValueError("options['reset_mask']: names no row; at least one must be True")
    return np.ascontiguousarray(mask)
