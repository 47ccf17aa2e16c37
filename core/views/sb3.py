"""A BatchEnv as a native Stable-Baselines3 `VecEnv`: no DummyVecEnv, no loop over rows."""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from ..batch import BatchEnv, Episodes, Step, agent_space, keyed_by_agents
from ..kernels import kernel
from ..spaces import Array, Tree, legal_space, map_tree, take, take_rows
from ..streams import check_seed
from .gym import check_render_mode

FIXED = ("rows", "horizon", "agents", "observation_space", "action_space")


@kernel(allocates=False)
def _pay(reward, duration, returns, paid):  # type: ignore[no-untyped-def]
    """Write rewards as float32, and add them to the returns; whether all durations are equal."""
    equal = True
    for row in range(reward.shape[0]):
        returns[row] += reward[row]
        paid[row] = reward[row]
        equal &= duration[row] == duration[0]
    return equal


class SB3View(VecEnv):
    """All rows of a BatchEnv behind Stable-Baselines3's interface; ended rows begin at once.

    Rewards are float32 here, as SB3 expects. `seed(s)` lets row r play episodes r, r + B, ... of
    s at the next reset (it does not add the row to the seed). `infos` carries `dt` in each step;
    at the end of an episode `terminal_observation`, `TimeLimit.truncated`, `episode` (return
    `r`, length `l`, as SB3's Monitor gives them), `seed`, `episode_id` and the metrics.

    With several agents (equal spaces) each agent is a row of its own, row * A + agent, and all
    share one policy. An agent that leaves before the others is done then, and once more when the
    episode ends for all; in between its row shows what the environment observes for it, with
    `infos["absent"]`, and its actions are ignored.

    Args:
        env: the environment.
        render_mode: None or "rgb_array".
    """

    def __init__(self, env: BatchEnv, render_mode: str | None = None) -> None:
        check_render_mode(render_mode, ("rgb_array",))
        self.batch = env
        self.render_mode = render_mode
        self.episodes = Episodes(env)
        self._agents = max(1, len(env.agents))
        observation, action = _shared_spaces(env)
        self._masked = hasattr(env, "action_masks")
        if self._masked:
            self.action_masks = self._action_masks
            self._sampled_row = -1
            action = legal_space(action, self._mask_of_next_row)
        super().__init__(env.rows * self._agents, observation, action)
        self.metadata: dict[str, Any] = {
            "render_modes": ["rgb_array"],
            "render_fps": env.render_fps,
        }
        self._seed: int | Sequence[int] | None = None
        self._returns = np.zeros(self.num_envs)
        self._absent = np.zeros(self.num_envs, np.bool_)
        self._actions: Any = None
        self._step = Step(env.rows, len(env.agents))  # none of its arrays leaves the view
        self._plain = isinstance(self.episodes.observe_blank(), np.ndarray)
        self._start = time.monotonic()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Choose the seed of the next reset; row r plays episodes r, r + B, ... of it."""
        self._seed = None if seed is None else check_seed(seed)
        return [seed] * self.num_envs

    def reset(self) -> Tree:
        """Begin the next episode in all rows."""
        episodes = self.episodes
        options = self._options[:: self._agents] if any(self._options) else None
        seed, self._seed = self._seed, None
        self._reset_seeds()
        self._reset_options()
        episodes.reset(seed, options=options)
        self._returns[:] = 0.0
        self._absent[:] = False
        streams = episodes.streams
        self.reset_infos = [
            {"seed": int(streams.seed[r]), "episode_id": int(streams.episode[r])}
            for r in range(self.batch.rows)
            for _ in range(self._agents)
        ]
        return self._fold(episodes.observe())

    def snapshot(self) -> dict[str, Array]:
        """Everything that decides how the rows go on; needs the environment's `snapshot`."""
        return {
            **self.episodes.snapshot(),
            "sb3/returns": self._returns.copy(),
            "sb3/absent": self._absent.copy(),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a snapshot of as many rows."""
        self._returns[:] = state["sb3/returns"]
        self._absent[:] = state["sb3/absent"]
        self.episodes.restore({k: v for k, v in state.items() if not k.startswith("sb3/")})

    def step_async(self, actions: Array) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Tree, Array, Array, list[dict[str, Any]]]:
        """Advance all rows, and begin those that ended.

        Raises:
            TypeError, ValueError: illegal actions; nothing has changed then.
        """
        episodes = self.episodes
        if not episodes.seeded:
            raise RuntimeError("step: no episode has begun; call reset() first")
        actions = self._actions if self._agents == 1 else self._unfold(self._actions)
        step, ended = episodes.advance(actions, step=self._step)
        observation = episodes.observe()
        if self._agents > 1:
            infos: list[dict[str, Any]] = [{"dt": dt} for dt in step.duration.tolist()]
            return self._agents_as_rows(step, ended, observation, infos)
        reward = np.empty(self.num_envs, np.float32)
        if _pay(step.reward, step.duration, self._returns, reward):
            infos = list(map(dict.copy, repeat({"dt": step.duration.item(0)}, self.num_envs)))
        else:
            infos = [{"dt": dt} for dt in step.duration.tolist()]
        if not ended:
            return observation, reward, episodes.ended.copy(), infos
        done = episodes.ended.copy()
        self._close_rows(done.nonzero()[0], step, observation, infos)
        episodes.begin(done)
        episodes.observe_into(done, observation)
        return observation, reward, done, infos

    def _close_rows(
        self, rows: Array, step: Step, observation: Tree, infos: list[dict[str, Any]]
    ) -> None:
        """Complete the infos of rows whose episode is over; their sums start again."""
        streams, elapsed = self.episodes.streams, self._elapsed()
        metrics = self.episodes.metrics() if self.episodes.measures else {}
        seeds, episodes, steps = streams.seed, streams.episode, streams.step
        returns, terminated = self._returns, step.terminated
        final = observation if self._plain else take_rows(observation, rows)
        # number by number: few rows end in a step, and an array for each column costs more
        for index, row in enumerate(rows.tolist()):
            info = infos[row]
            info["seed"] = seeds.item(row)
            info["episode_id"] = episodes.item(row)
            for name, values in metrics.items():
                info[name] = values.item(row)
            info["terminal_observation"] = final[row].copy() if self._plain else take(final, index)
            info["TimeLimit.truncated"] = not terminated.item(row)
            info["episode"] = {"r": returns.item(row), "l": steps.item(row), "t": elapsed}
            returns[row] = 0.0

    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    def _close(self, info: dict[str, Any], row: int, metrics: dict[str, Array]) -> None:
        """Add ids and metrics of a row whose episode is over."""
        streams = self.episodes.streams
        info["seed"] = streams.seed.item(row)
        info["episode_id"] = streams.episode.item(row)
        for name, values in metrics.items():
            info[name] = values.item(row)

    def _episode(self, row: int, place: int, elapsed: float) -> dict[str, Any]:
        """The `episode` entry of a place (the row, or one of its agents); its sum starts again."""
        length = self.episodes.streams.step.item(row)
        summary = {"r": self._returns.item(place), "l": length, "t": elapsed}
        self._returns[place] = 0.0
        return summary

    def _agents_as_rows(
        self, step: Any, ended: int, observation: Tree, row_infos: list[dict[str, Any]]
    ) -> tuple[Tree, Array, Array, list[dict[str, Any]]]:
        episodes, agents = self.episodes, self._agents
        infos = [dict(info) for info in row_infos for _ in range(agents)]
        reward = step.reward.reshape(-1).astype(np.float32)
        self._returns += step.reward.reshape(-1)
        over = np.repeat(episodes.ended, agents)
        left = step.terminated.reshape(-1)
        done = left | over
        folded = self._fold(observation)
        names = self.batch.agents
        if done.any():
            places = done.nonzero()[0]
            final, metrics, elapsed = (
                take_rows(folded, places),
                self.episodes.metrics(),
                self._elapsed(),
            )
            cut = np.repeat(step.truncated, agents) & ~left & ~self._absent
            for index, place in enumerate(places.tolist()):
                row, agent = divmod(place, agents)
                info = infos[place]
                if over[place]:
                    self._close(info, row, metrics)
                info["agent"] = names[agent]
                info["terminal_observation"] = take(final, index)
                info["TimeLimit.truncated"] = cut.item(place)
                if not self._absent[place]:
                    info["episode"] = self._episode(row, place, elapsed)
        for place in np.flatnonzero(self._absent).tolist():
            infos[place]["absent"] = True
        self._absent = (self._absent | left) & ~over
        if ended:
            begun = episodes.ended.copy()
            episodes.begin(begun)
            episodes.observe_into(begun, observation)
            folded = self._fold(observation)
        return folded, reward, done, infos

    def _fold(self, tree: Tree) -> Tree:
        """(B, A, ...) or a dict by agent -> (B * A, ...)."""
        if not self.batch.agents:
            return tree
        if keyed_by_agents(self.batch, self.batch.observation_space):
            parts = [tree[agent] for agent in self.batch.agents]
            return map_tree(
                lambda *arrays: np.stack(arrays, 1).reshape(-1, *arrays[0].shape[1:]),
                parts[0],
                *parts[1:],
            )
        return map_tree(lambda a: a.reshape(-1, *a.shape[2:]).copy(), tree)

    def _unfold(self, actions: Array) -> Tree:
        """(B * A, ...) -> (B, A, ...), or a dict by agent."""
        actions = np.asarray(actions)
        if actions.shape[:1] != (self.num_envs,):
            raise ValueError(
                f"action: got shape {actions.shape}, allowed {self.num_envs} rows "
                f"({self.batch.rows} of {self._agents} agents)"
            )
        split = actions.reshape(self.batch.rows, self._agents, *actions.shape[1:])
        if keyed_by_agents(self.batch, self.batch.action_space):
            return {agent: split[:, i] for i, agent in enumerate(self.batch.agents)}
        return split

    def _action_masks(self) -> Array:
        """Masks of all rows, bool (B * A, n)."""
        masks = self.episodes.masks()
        if isinstance(masks, dict):
            masks = np.stack([masks[agent] for agent in self.batch.agents], 1)
        return masks.reshape(self.num_envs, -1)  # type: ignore[no-any-return]

    def _mask_of_next_row(self) -> Array:
        # off-policy learners draw their first actions one row after the other
        self._sampled_row = (self._sampled_row + 1) % self.num_envs
        return self._action_masks()[self._sampled_row]  # type: ignore[no-any-return]

    def _get_indices(self, indices: Any) -> list[int]:
        """The rows that are meant.

        Raises:
            IndexError: there is no such row.
        """
        chosen = [operator.index(row) for row in super()._get_indices(indices)]
        for row in chosen:
            if not -self.num_envs <= row < self.num_envs:
                raise IndexError(f"indices: got {row}, allowed 0 to {self.num_envs - 1}")
        return [row % self.num_envs for row in chosen]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The same attribute for each asked row: of the view, else of the environment."""
        owner = self if hasattr(self, attr_name) else self.batch
        value = getattr(owner, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the environment, for all rows at once.

        Raises:
            ValueError: asked for some rows only; the rows share one environment. Or an attribute
                that the view was built from.
        """
        if attr_name in FIXED:
            raise ValueError(f"set_attr: {attr_name!r} is fixed when the view is made")
        if indices is not None and len(self._get_indices(indices)) != self.num_envs:
            raise ValueError(f"set_attr: rows share one environment; got indices {indices!r}")
        setattr(self.batch, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method: masks and pictures row by row, anything else once for the batch."""
        rows = self._get_indices(indices)
        if method_name == "action_masks" and self._masked:
            masks = self._action_masks()
            return [masks[row] for row in rows]
        if method_name == "compute_reward":
            achieved, desired = method_args[:2]
            reward = self.batch.compute_reward(achieved, desired)  # type: ignore[attr-defined]
            return [reward for _ in rows]
        if method_name == "render":
            return [self.batch.render(row // self._agents) for row in rows]
        result = getattr(self.batch, method_name)(*method_args, **method_kwargs)
        return [result for _ in rows]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """True for Monitor, whose `episode` entry the view gives itself; False otherwise."""
        return [issubclass(wrapper_class, Monitor) for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[Array | None]:
        """One picture a row of the environment."""
        return [self.batch.render(row) for row in range(self.batch.rows)]

    def close(self) -> None:
        """Close the environment."""
        self.batch.close()


def _shared_spaces(env: BatchEnv) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    if not env.agents:
        return env.observation_space, env.action_space
    shared = []
    for kind in ("observation_space", "action_space"):
        candidates = [agent_space(env, getattr(env, kind), agent) for agent in env.agents]
        if any(space != candidates[0] for space in candidates):
            raise ValueError(
                f"{kind}: agents as rows need equal spaces, got "
                + ", ".join(f"{a}: {s}" for a, s in zip(env.agents, candidates, strict=True))
            )
        shared.append(candidates[0])
    return shared[0], shared[1]
