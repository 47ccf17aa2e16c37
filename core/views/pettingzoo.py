"""A BatchEnv of one row with several agents as PettingZoo's two interfaces."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pettingzoo import AECEnv, ParallelEnv

from ..batch import BatchEnv, Episodes, Step, agent_space, keyed_by_agents, refuse_masked
from ..spaces import ActionCheck, Array, Tree, allocate, legal_space, put, take
from .gym import check_options, check_render_mode, one_row


class _Agents:
    """One row of a multi-agent BatchEnv, addressed by agent. Shared by both interfaces."""

    def __init__(self, env: BatchEnv) -> None:
        if env.rows != 1 or not env.agents:
            raise ValueError(
                f"env: got {env.rows} rows and agents {env.agents}, allowed 1 row with agents"
            )
        self.env = env
        self.names = list(env.agents)
        self.place = {name: i for i, name in enumerate(env.agents)}
        self.episodes = Episodes(env)
        self.observation_spaces = self._each(env.observation_space)
        self.action_spaces = self._each(env.action_space)
        self._checks = {
            name: ActionCheck(space, (1,), f"action of {name}")
            for name, space in self.action_spaces.items()
        }
        self._masked = hasattr(env, "action_masks")
        if self._masked:
            for name, space in self.action_spaces.items():
                self.action_spaces[name] = legal_space(space, functools.partial(self.mask, name))
        self._by_name = {
            kind: keyed_by_agents(env, space)
            for kind, space in (("obs", env.observation_space), ("act", env.action_space))
        }
        self._actions = _first_actions(env)

    def _each(self, space: spaces.Space[Any]) -> dict[str, spaces.Space[Any]]:
        # a space of its own for each agent, because PettingZoo seeds them one by one
        return {name: copy.deepcopy(agent_space(self.env, space, name)) for name in self.names}

    def begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        check_options(options)
        self.episodes.reset(seed, options=None if options is None else [options])

    def advance(self, actions: Mapping[str, Any]) -> Step:
        """Advance with the given agents' actions; the others keep a harmless one."""
        checked = {name: self.check(name, action) for name, action in actions.items()}
        for name, action in checked.items():
            if self._by_name["act"]:
                put(self._actions[name], 0, take(action, 0))
            else:
                put(self._actions, (0, self.place[name]), take(action, 0))
        return self.episodes.advance(self._actions)[0]

    def check(self, name: str, action: Any) -> Tree:
        """An agent's action as one row, in the dtypes of its space.

        Raises:
            TypeError: not numbers of the right kind.
            ValueError: outside the space; or masked, if it is the agent's turn.
        """
        checked = self._checks[name](one_row(action))
        if self._masked and name in self.acting():
            mask = self.mask(name)[np.newaxis]
            space, whose = self.action_spaces[name], f" of {name}"
            refuse_masked(space, checked, mask, self.env.everyone, whose)
        return checked

    def mask(self, name: str) -> Array:
        """The current mask of an agent, bool (n,)."""
        masks = self.episodes.masks()
        return masks[name][0] if isinstance(masks, dict) else masks[0, self.place[name]]  # type: ignore[no-any-return]

    def observations(self) -> dict[str, Tree]:
        tree = self.episodes.observe()
        if self._by_name["obs"]:
            return {name: take(tree[name], 0) for name in self.names}
        return {name: take(tree, (0, self.place[name])) for name in self.names}

    def infos(self, step: Step | None) -> dict[str, dict[str, Any]]:
        """Per agent: `dt`, ids at the ends of an episode, metrics at its end, the mask."""
        streams = self.episodes.streams
        shared: dict[str, Any] = {} if step is None else {"dt": step.duration.item()}
        if step is None or self.episodes.ended[0]:
            shared.update(seed=streams.seed.item(), episode_id=streams.episode.item())
        if step is not None and self.episodes.ended[0]:
            shared.update({k: v[0].item() for k, v in self.episodes.metrics().items()})
        infos = {name: dict(shared) for name in self.names}
        if self._masked:
            for name, space in self.action_spaces.items():
                infos[name]["action_mask"] = _split_mask(self.mask(name), space)
        return infos

    def acting(self) -> list[str]:
        """Agents whose turn it is and who have not left, in order."""
        turn = self.episodes.acting()[0].tolist()
        return [name for name, acts in zip(self.names, turn, strict=True) if acts]


def _first_actions(env: BatchEnv) -> Tree:
    """Actions inside the space, for agents that do not act."""
    if keyed_by_agents(env, env.action_space):
        return {name: _first(env.action_space[name], (1,)) for name in env.agents}  # type: ignore[index]
    return _first(env.action_space, (1, len(env.agents)))


def _first(space: Any, lead: tuple[int, ...]) -> Tree:
    if isinstance(space, spaces.Dict):
        return {name: _first(part, lead) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_first(part, lead) for part in space.spaces)
    blank = allocate(space, lead)
    if isinstance(space, spaces.Box):
        blank[...] = np.clip(0, space.low, space.high)
    elif not isinstance(space, spaces.MultiBinary):
        blank[...] = space.start
    return blank


def _split_mask(mask: Array, space: spaces.Space[Any]) -> Any:
    """Masks as `space.sample(mask)` takes them: int8, a tuple of them for MultiDiscrete."""
    mask = mask.astype(np.int8)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(np.split(mask, np.cumsum(space.nvec)[:-1]))
    return mask


class ParallelView(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """One row of a multi-agent BatchEnv behind PettingZoo's parallel interface.

    Every live agent gives an action each step; where the environment has turns, those of agents
    whose turn it is not are ignored. `infos[agent]` holds `dt`, `action_mask` where there are
    masks, and `seed`, `episode_id` and metrics as in the Gymnasium view.

    Args:
        env: an environment of one row with agents.
        render_mode: None or "rgb_array".
    """

    def __init__(self, env: BatchEnv, render_mode: str | None = None) -> None:
        check_render_mode(render_mode, ("rgb_array",))
        self.render_mode = render_mode
        self.metadata = _metadata(env)
        self.batch = env
        self._row = _Agents(env)
        self.possible_agents = list(env.agents)
        self.agents: list[str] = []
        self.observation_spaces = self._row.observation_spaces
        self.action_spaces = self._row.action_spaces

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """The observation space of an agent (always the same object)."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """The action space of an agent (always the same object)."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode; `seed` and `options` as in the Gymnasium view."""
        self._row.begin(seed, options)
        self.agents = list(self.possible_agents)
        return self._row.observations(), self._row.infos(None)

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, Any],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Advance by one step with an action of every live agent.

        Raises:
            ResetNeeded: no agent is live.
            TypeError, ValueError: an agent's action is missing, too many, or illegal.
        """
        if not self.agents:
            raise ResetNeeded("step: the episode is over (or has not begun); call reset() first")
        if set(actions) != set(self.agents):
            raise ValueError(f"actions: got {sorted(actions)}, expected those of {self.agents}")
        row, playing = self._row, self.agents
        step = row.advance(actions)
        truncated = step.truncated.item()
        terminated = {name: bool(step.terminated[0, row.place[name]]) for name in playing}
        observations, infos = row.observations(), row.infos(step)
        self.agents = [n for n in playing if not terminated[n] and not row.episodes.ended[0]]
        return (
            {name: observations[name] for name in playing},
            {name: float(step.reward[0, row.place[name]]) for name in playing},
            terminated,
            dict.fromkeys(playing, truncated),
            {name: infos[name] for name in playing},
        )

    def render(self) -> Array | None:
        """The picture of the row for "rgb_array"; None without a render mode."""
        return None if self.render_mode is None else self.batch.render(0)

    def close(self) -> None:
        """Close the environment."""
        self.batch.close()


class AECView(AECEnv[str, Any, Any]):  # type: ignore[misc]
    """One row of a multi-agent BatchEnv behind PettingZoo's turn-by-turn interface.

    The agents whose turn it is act one after the other; the environment advances when the last
    of them has acted.

    Args:
        env: an environment of one row with agents.
        render_mode: None or "rgb_array".
    """

    def __init__(self, env: BatchEnv, render_mode: str | None = None) -> None:
        super().__init__()
        check_render_mode(render_mode, ("rgb_array",))
        self.render_mode = render_mode
        self.metadata = _metadata(env)
        self.batch = env
        self._row = _Agents(env)
        self.possible_agents = list(env.agents)
        self.agents: list[str] = []
        self.observation_spaces = self._row.observation_spaces
        self.action_spaces = self._row.action_spaces

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """The observation space of an agent (always the same object)."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """The action space of an agent (always the same object)."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode; `seed` and `options` as in the Gymnasium view."""
        self._row.begin(seed, options)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = self._row.infos(None)
        self._seen = self._row.observations()
        self._next_turn()

    def _next_turn(self) -> None:
        self._chosen: dict[str, Any] = {}
        self._turn = self._row.acting()
        if not self._turn:
            raise RuntimeError(
                f"acting: {type(self.batch).__name__} gives the turn to no live agent"
            )
        self.agent_selection = self._turn[0]

    def observe(self, agent: str) -> Any:
        """What an agent sees."""
        return self._seen[agent]

    def step(self, action: Any) -> None:
        """Take the action of `agent_selection` (None for an agent that is over).

        Raises:
            ResetNeeded: no agent is live.
            TypeError, ValueError: the action is illegal; nothing has changed then.
        """
        if not self.agents:
            raise ResetNeeded("step: the episode is over (or has not begun); call reset() first")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._chosen[agent] = take(self._row.check(agent, action), 0)
        self._cumulative_rewards[agent] = 0.0
        if len(self._chosen) < len(self._turn):
            self._clear_rewards()
            self.agent_selection = self._turn[len(self._chosen)]
            return
        self._advance()
        self._accumulate_rewards()
        self._deads_step_first()

    def _advance(self) -> None:
        row = self._row
        step = row.advance(self._chosen)
        over, truncated = bool(row.episodes.ended[0]), step.truncated.item()
        infos = row.infos(step)
        self._seen = row.observations()
        for name in self.agents:
            place = row.place[name]
            self.rewards[name] = float(step.reward[0, place])
            self.terminations[name] = bool(step.terminated[0, place])
            self.truncations[name] = truncated
            self.infos[name] = infos[name]
        if not over:
            self._next_turn()

    def render(self) -> Array | None:
        """The picture of the row for "rgb_array"; None without a render mode."""
        return None if self.render_mode is None else self.batch.render(0)

    def close(self) -> None:
        """Close the environment."""
        self.batch.close()


def _metadata(env: BatchEnv) -> dict[str, Any]:
    return {
        "name": env.stream_name(),
        "render_modes": ["rgb_array"],
        "render_fps": env.render_fps,
        "is_parallelizable": True,
    }
