"""One agent of several, as an environment of its own: the others play by given policies.

What a learner for one agent (Stable-Baselines3's) needs to train the agents of a team in turn. An
episode is the same as that of the team's environment with the same seed and number.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from .batch import BatchEnv, Mask, Options, Step, agent_space
from .policy import Policy, RandomPolicy
from .policy_loading import load_policy
from .spaces import Array, Tree, allocate, map_tree
from .streams import Streams


class OneAgent(BatchEnv):
    """The turns of one agent. Between two of them the others act, and its rewards add up.

    Args:
        rows: number of copies.
        environment: a target with several agents that have spaces of their own (a Dict by agent).
        agent: who learns.
        others: a policy for every other agent: what `palestra.policy_loading.load_policy` takes.
        horizon: truncate after so many turns; None leaves it to the environment.
        settings: keyword arguments of the environment.

    Raises:
        ValueError: no such agent, or an environment whose agents share one space.
    """

    def __init__(
        self,
        rows: int,
        *,
        environment: str,
        agent: str,
        others: Mapping[str, Any],
        horizon: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        from .registry import resolve

        super().__init__(rows, horizon=horizon)
        self.env: BatchEnv = resolve(environment).make(rows, **dict(settings or {}))
        if agent not in self.env.agents:
            raise ValueError(
                f"agent: got {agent!r}, allowed {', '.join(self.env.agents) or 'none: one agent'}"
            )
        observations: Any = self.env.observation_space
        actions: Any = self.env.action_space
        if set(getattr(actions, "keys", tuple)()) != set(self.env.agents):
            raise ValueError(f"environment: {environment}'s agents share a space, allowed a Dict")
        self.agent = agent
        self.observation_space = agent_space(self.env, observations, agent)
        self.action_space = agent_space(self.env, actions, agent)
        quiet = RandomPolicy(self.action_space, seed=0)  # never asked in the agent's own turn
        self._others: Policy = load_policy({agent: quiet, **others}, self.env)
        self._place = self.env.agents.index(agent)
        self._streams: Streams | None = None
        self._over = np.zeros(rows, np.bool_)
        self._starts = np.zeros(rows, np.bool_)
        self._memory: Any = None
        self._actions: Any = allocate(actions, (rows,))
        self._seen: Any = allocate(observations, (rows,))
        self._turns = Step(rows, len(self.env.agents))

    def stream_name(self) -> str:
        """That of the team's environment, so that episodes are the same."""
        return self.env.stream_name()

    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Begin, and let the others act until it is the agent's turn."""
        own = self._own_streams(streams)
        own.step[rows] = 0
        self._over[rows] = False
        self._starts[rows] = True
        self.env.begin(rows, own, options)
        begin = getattr(self._others, "begin", None)
        if begin is not None:
            begin(rows, own)
        unread = Step(self.rows)
        self._until_turn(rows.copy(), unread)

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        """The agent's turn, then those of the others until its next one."""
        step.duration[live] = 0.0
        early = live & self._over  # the others ended the episode before its first turn
        step.terminated[early] = True
        acting = live & ~self._over
        map_tree(partial(_put, acting), self._actions[self.agent], actions)
        self._move(acting, step)
        self._until_turn(acting & ~self._over, step)

    def _until_turn(self, rows: Mask, step: Step) -> None:
        """Play the others in the rows until each is over or at the agent's turn."""
        while True:
            rows &= ~self._over & ~self._acting()[:, self._place]
            if not rows.any():
                return
            self.env.observe(None, self._own_streams(None), self._seen)
            chosen, self._memory = self._others.predict(
                self._seen, state=self._memory, episode_start=self._starts, deterministic=True
            )
            self._starts[:] = False
            for name in self.env.agents:
                if name != self.agent:
                    map_tree(partial(_put, rows), self._actions[name], chosen[name])
            self._move(rows, step)

    def _move(self, rows: Mask, step: Step) -> None:
        """One step of the team in the rows, added to the agent's step."""
        own, turns = self._own_streams(None), self._turns
        own.step[rows] += np.uint32(1)
        turns.reward[:], turns.duration[:] = 0.0, 1.0
        turns.terminated[:], turns.truncated[:] = False, False
        self.env.advance(self._actions, rows, own, turns)
        late = np.zeros(self.rows, np.bool_)
        if self.env.horizon is not None:
            late = own.step >= self.env.horizon
        ended = rows & turns.terminated.all(axis=1)
        cut = rows & ~ended & (turns.truncated | late)
        step.reward[rows] += turns.reward[rows, self._place]
        step.duration[rows] += turns.duration[rows]
        step.terminated[ended] = True
        step.truncated[cut] = True
        self._over |= ended | cut

    def _acting(self) -> Array:
        acting = getattr(self.env, "acting", None)
        shape = (self.rows, len(self.env.agents))
        return np.ones(shape, np.bool_) if acting is None else np.asarray(acting())

    def _own_streams(self, streams: Streams | None) -> Streams:
        """The streams of the rows, with a count of the team's steps in place of the agent's."""
        if self._streams is None:
            assert streams is not None
            self._streams = Streams(streams.name, self.rows)
        if streams is not None:
            for name in ("seed", "episode", "dynamics", "observation", "policy"):
                setattr(self._streams, name, getattr(streams, name))
        return self._streams

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        """What the agent sees."""
        self.env.observe(rows, self._own_streams(streams), self._seen)
        chosen = self.everyone if rows is None else rows
        map_tree(partial(_put, chosen), out, self._seen[self.agent])

    def metrics(self) -> dict[str, Array]:
        """Those of the environment."""
        return self.env.metrics()

    def render(self, row: int) -> Array:
        """The picture of the environment."""
        return self.env.render(row)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _put(rows: Mask, own: Array, given: Array) -> Array:
    own[rows] = given[rows]
    return own
