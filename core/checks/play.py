"""One copy of an environment, played call by call: a Gymnasium, Parallel or AEC environment alike.

A *course* is a reset with a seed, then steps with sampled actions; where an episode ends, a reset
without a seed. The action spaces are seeded at each reset, so a course repeats exactly if the
environment does. `SCRIPTS` holds the same loop as text, for the programs that show a finding.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ..spaces import LegalDiscrete, LegalMultiDiscrete
from .compare import kept
from .watch import Watch

LONGEST = 50  # steps of an episode before a course resets it, so that short courses reset too


class Raised(Exception):
    """A legal call raised; carries where it did."""

    def __init__(self, episode: int, step: int, problem: BaseException) -> None:
        super().__init__(f"{type(problem).__name__}: {problem}")
        self.episode, self.step, self.problem = episode, step, problem


@dataclass(frozen=True)
class Call:
    """What one call returned.

    Attributes:
        episode: counted from 0 in a course.
        step: 0 is the reset.
        action: what was given to a step.
        fields: "observation", after a step also "reward", "terminated" and "truncated", and
            "info"; by agent where there are several.
    """

    episode: int
    step: int
    action: Any
    fields: dict[str, Any]


class Player(ABC):
    """Plays one copy.

    Args:
        env: the copy.
        watch: is told which call runs.

    Attributes:
        over: whether the next call must be a reset.
        episode: the running episode, counted from 0.
        steps: how many steps it has had.
    """

    kind: ClassVar[str]

    def __init__(self, env: Any, watch: Watch) -> None:
        self.env, self.watch = env, watch
        self.over, self.episode, self.steps = True, -1, 0

    def reset(self, seed: int | None, actions_seed: int) -> Call:
        """Reset, and seed what actions are sampled from."""
        self.episode, self.steps = self.episode + 1, 0
        fields = self._guarded(self._reset, seed)
        self._guarded(self.seed_actions, actions_seed)
        return Call(self.episode, 0, None, fields)

    def go_on(self, actions_seed: int) -> None:
        """Seed what the actions of the running episode are sampled from."""
        self._guarded(self.seed_actions, actions_seed)

    def sample(self) -> Any:
        """A legal action."""
        return self._guarded(self._sample)

    def step(self, action: Any) -> Call:
        """Step with an action."""
        self.steps += 1
        return Call(self.episode, self.steps, action, self._guarded(self._step, action))

    def follow(self, other: Player) -> None:
        """Stand where another player stands; its copy is in the same state."""
        self.over, self.episode, self.steps = other.over, other.episode, other.steps

    def attempt(self, action: Any) -> BaseException | None:
        """Step with what should be refused; what it raised."""
        self.watch.enter(max(self.episode, 0), self.steps + 1)
        try:
            self._step(action)
        except Exception as refusal:
            return refusal
        finally:
            self.watch.leave()
        return None

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.watch.enter(self.episode, self.steps)
        try:
            return call(*arguments)
        except Exception as problem:
            raise Raised(self.episode, self.steps, problem) from problem
        finally:
            self.watch.leave()

    @abstractmethod
    def observed(self, fields: dict[str, Any]) -> list[tuple[str, Any, spaces.Space[Any]]]:
        """(path, observation, space) of a call's observations."""

    @abstractmethod
    def masks(self, fields: dict[str, Any]) -> list[tuple[str, Any, spaces.Space[Any]]]:
        """(path, mask, action space) where the environment offers masks."""

    @abstractmethod
    def action_spaces(self) -> list[tuple[str, spaces.Space[Any]]]:
        """(path, space) of the actions that the next step takes."""

    @abstractmethod
    def with_action(self, path: str, action: Any) -> Any:
        """An action for the next step, in which the part at `path` is this one."""

    @abstractmethod
    def seed_actions(self, seed: int) -> None:
        """Seed what actions are sampled from: copies, because instances may share a space."""

    @abstractmethod
    def _reset(self, seed: int | None) -> dict[str, Any]: ...

    @abstractmethod
    def _sample(self) -> Any: ...

    @abstractmethod
    def _step(self, action: Any) -> dict[str, Any]: ...


class GymPlayer(Player):
    """Plays a `gymnasium.Env`."""

    kind = "gym"

    def seed_actions(self, seed: int) -> None:
        """One sampler."""
        self._sampler = sampler(self.env.action_space, seed)

    def _reset(self, seed: int | None) -> dict[str, Any]:
        observation, info = self.env.reset(seed=seed)
        self.over = False
        return {"observation": observation, "info": info}

    def _sample(self) -> Any:
        return legal_sample(self._sampler, self._mask())

    def _mask(self) -> Any:
        masks = getattr(self.env.unwrapped, "action_masks", None)
        return None if masks is None else masks()

    def _step(self, action: Any) -> dict[str, Any]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.over = bool(terminated) or bool(truncated)
        return {
            "observation": observation,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }

    def observed(self, fields: dict[str, Any]) -> list[tuple[str, Any, spaces.Space[Any]]]:
        """The observation."""
        return [("observation", fields["observation"], self.env.observation_space)]

    def masks(self, fields: dict[str, Any]) -> list[tuple[str, Any, spaces.Space[Any]]]:
        """What `action_masks()` says, if there is such a method."""
        mask = self._guarded(self._mask)
        return [] if mask is None else [("action_masks", mask, self.env.action_space)]

    def action_spaces(self) -> list[tuple[str, spaces.Space[Any]]]:
        """The action space."""
        return [("action", self.env.action_space)]

    def with_action(self, path: str, action: Any) -> Any:
        """The action itself."""
        return action


class ParallelPlayer(Player):
    """Plays a PettingZoo `ParallelEnv`."""

    kind = "parallel"

    def __init__(self, env: Any, watch: Watch) -> None:
        super().__init__(env, watch)
        self._last: dict[str, Any] = {}

    def follow(self, other: Player) -> None:
        """Also what it saw last, where masks may be."""
        super().follow(other)
        self._last = kept(other._last) if isinstance(other, ParallelPlayer) else {}

    def seed_actions(self, seed: int) -> None:
        """One sampler an agent."""
        self._samplers = _samplers(self.env, seed)

    def _reset(self, seed: int | None) -> dict[str, Any]:
        observations, infos = self.env.reset(seed=seed)
        self._last = {"observation": dict(observations), "info": dict(infos)}
        self.over = not self.env.agents
        return self._last

    def _sample(self) -> Any:
        return {
            agent: legal_sample(self._sampler_of(agent), self._mask(agent))
            for agent in self.env.agents
        }

    def _sampler_of(self, agent: Any) -> spaces.Space[Any]:
        if agent not in self._samplers:  # it came in the middle of an episode
            self._samplers[agent] = sampler(self.env.action_space(agent), len(self._samplers))
        return self._samplers[agent]

    def _mask(self, agent: Any) -> Any:
        return _mask_in(self._last["observation"].get(agent), self._last["info"].get(agent))

    def _step(self, action: Any) -> dict[str, Any]:
        names = ("observation", "reward", "terminated", "truncated", "info")
        returned = self.env.step(action)
        self._last = {n: dict(part) for n, part in zip(names, returned, strict=True)}
        self.over = not self.env.agents
        return self._last

    def observed(self, fields: dict[str, Any]) -> list[tuple[str, Any, spaces.Space[Any]]]:
        """The observation of each agent."""
        return [
            (f"observation/{agent}", seen, self.env.observation_space(agent))
            for agent, seen in fields["observation"].items()
        ]

    def masks(self, fields: dict[str, Any]) -> list[tuple[str, Any, spaces.Space[Any]]]:
        """Masks of live agents, from their observation or info."""
        found = [(agent, self._mask(agent)) for agent in self.env.agents]
        return [
            (f"action_mask/{agent}", mask, self.env.action_space(agent))
            for agent, mask in found
            if mask is not None
        ]

    def action_spaces(self) -> list[tuple[str, spaces.Space[Any]]]:
        """The space of each live agent."""
        return [(str(agent), self.env.action_space(agent)) for agent in self.env.agents]

    def with_action(self, path: str, action: Any) -> Any:
        """Sampled actions, and this one for the agent called `path`."""
        name = next(agent for agent in self.env.agents if str(agent) == path)
        return {**self._sample(), name: action}


class AECPlayer(Player):
    """Plays a PettingZoo `AECEnv`; a step is the turn of one agent."""

    kind = "aec"

    def seed_actions(self, seed: int) -> None:
        """One sampler an agent."""
        self._samplers = _samplers(self.env, seed)

    def _reset(self, seed: int | None) -> dict[str, Any]:
        self.env.reset(seed=seed)
        return self._look()

    def _look(self) -> dict[str, Any]:
        env = self.env
        self.over = not env.agents
        turn = None if self.over else env.agent_selection
        return {
            "agent": turn,
            "observation": {} if turn is None else {turn: env.observe(turn)},
            "reward": dict(env.rewards),
            "terminated": dict(env.terminations),
            "truncated": dict(env.truncations),
            "info": dict(env.infos),
        }

    def _sample(self) -> Any:
        agent = self.env.agent_selection
        if self.env.terminations[agent] or self.env.truncations[agent]:
            return None  # an agent that is over takes its leave
        return legal_sample(self._sampler_of(agent), self._mask(agent))

    def _sampler_of(self, agent: Any) -> spaces.Space[Any]:
        if agent not in self._samplers:  # it came in the middle of an episode
            self._samplers[agent] = sampler(self.env.action_space(agent), len(self._samplers))
        return self._samplers[agent]

    def _mask(self, agent: Any) -> Any:
        return _mask_in(self.env.observe(agent), self.env.infos.get(agent))

    def _step(self, action: Any) -> dict[str, Any]:
        self.env.step(action)
        return self._look()

    def observed(self, fields: dict[str, Any]) -> list[tuple[str, Any, spaces.Space[Any]]]:
        """What the agent sees whose turn it is."""
        return [
            (f"observation/{agent}", seen, self.env.observation_space(agent))
            for agent, seen in fields["observation"].items()
        ]

    def masks(self, fields: dict[str, Any]) -> list[tuple[str, Any, spaces.Space[Any]]]:
        """The mask of the agent whose turn it is."""
        agent = fields["agent"]
        if agent is None or fields["terminated"].get(agent) or fields["truncated"].get(agent):
            return []
        mask = self._guarded(self._mask, agent)
        return (
            [] if mask is None else [(f"action_mask/{agent}", mask, self.env.action_space(agent))]
        )

    def action_spaces(self) -> list[tuple[str, spaces.Space[Any]]]:
        """The space of the agent whose turn it is."""
        if self.over:
            return []
        agent = self.env.agent_selection
        return [(str(agent), self.env.action_space(agent))]

    def with_action(self, path: str, action: Any) -> Any:
        """The action itself."""
        return action


PLAYERS: dict[str, type[Player]] = {p.kind: p for p in (GymPlayer, ParallelPlayer, AECPlayer)}


def sampler(space: spaces.Space[Any], seed: int) -> spaces.Space[Any]:
    """What actions are drawn from: a seeded copy; the spaces of our own views are a copy's own."""
    own = space if isinstance(space, LegalDiscrete | LegalMultiDiscrete) else copy.deepcopy(space)
    own.seed(seed)
    return own


def _samplers(env: Any, seed: int) -> dict[Any, spaces.Space[Any]]:
    return {
        agent: sampler(env.action_space(agent), seed + place)
        for place, agent in enumerate(env.agents)
    }


def legal_sample(space: spaces.Space[Any], mask: Any) -> Any:
    """A legal action; spaces of our own views know their masks."""
    if mask is None or isinstance(space, LegalDiscrete | LegalMultiDiscrete):
        return space.sample()
    return space.sample(mask=_as_sample_takes_it(space, mask))


def _as_sample_takes_it(space: Any, mask: Any) -> Any:
    if isinstance(mask, tuple):
        return tuple(np.asarray(part, np.int8) for part in mask)
    flat = np.asarray(mask, np.int8)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(np.split(flat, np.cumsum(space.nvec)[:-1]))
    return flat


def _mask_in(observation: Any, info: Any) -> Any:
    for place in (observation, info):
        if isinstance(place, dict) and "action_mask" in place:
            return place["action_mask"]
    return None


def course(
    player: Player, seed: int, calls: int, longest: int = LONGEST, begin: bool = True
) -> Iterator[Call]:
    """Play a number of calls.

    Args:
        player: plays them.
        seed: of the first reset, and of the actions.
        calls: how many, resets included.
        longest: a longer episode is reset.
        begin: whether the first call is a reset; otherwise the running episode goes on, with
            actions of this seed.
    """
    if begin:
        player.over, player.episode = True, -1
    else:
        player.go_on(seed)
    resets = 0
    for _ in range(calls):
        if player.over or player.steps >= longest:
            yield player.reset(seed if begin and resets == 0 else None, seed + resets)
            resets += 1
        else:
            yield player.step(player.sample())


SCRIPTS = {
    "gym": '''
def play(env, seed, calls, begin=True):
    """Reset where an episode is over (or {longest} steps long), otherwise step; what came back."""
    over, steps, episode = begin, 0, -1
    actions = {space}
    actions.seed(seed)
    for _ in range(calls):
        if over or steps == {longest}:
            episode += 1
            observation, info = env.reset(seed=seed if begin and episode == 0 else None)
            actions.seed(seed + episode)
            yield {{"observation": observation, "info": info}}
            over, steps = False, 0
        else:
            observation, reward, terminated, truncated, info = env.step({sample})
            over, steps = terminated or truncated, steps + 1
            yield {{
                "observation": observation, "reward": reward,
                "terminated": terminated, "truncated": truncated, "info": info,
            }}
''',
    "parallel": '''
def sample(space, *places):
    """A legal action."""
    masks = [p["action_mask"] for p in places if isinstance(p, dict) and "action_mask" in p]
    return space.sample(mask=masks[0]) if masks else space.sample()


def samplers(env, seed):
    """What the actions of each agent are drawn from."""
    actions = {{agent: {space} for agent in env.agents}}
    for place, agent in enumerate(actions):
        actions[agent].seed(seed + place)
    return actions


def play(env, seed, calls, begin=True):
    """Reset where no agent is left (or after {longest} steps), otherwise step; what came back."""
    steps, episode, observation, info = 0, -1, {{}}, {{}}
    actions = None if begin else samplers(env, seed)
    for _ in range(calls):
        if begin or not env.agents or steps == {longest}:
            episode += 1
            observation, info = env.reset(seed=seed if episode == 0 else None)
            actions = samplers(env, seed + episode)
            yield {{"observation": observation, "info": info}}
            begin, steps = False, 0
        else:
            chosen = {{a: sample(actions[a], observation.get(a), info.get(a)) for a in env.agents}}
            observation, reward, terminated, truncated, info = env.step(chosen)
            steps += 1
            yield {{
                "observation": observation, "reward": reward,
                "terminated": terminated, "truncated": truncated, "info": info,
            }}
''',
    "aec": '''
def sample(env, space, agent):
    """A legal action; None for an agent that is over."""
    if env.terminations[agent] or env.truncations[agent]:
        return None
    for place in (env.observe(agent), env.infos.get(agent)):
        if isinstance(place, dict) and "action_mask" in place:
            return space.sample(mask=place["action_mask"])
    return space.sample()


def samplers(env, seed):
    """What the actions of each agent are drawn from."""
    actions = {{agent: {space} for agent in env.agents}}
    for place, agent in enumerate(actions):
        actions[agent].seed(seed + place)
    return actions


def play(env, seed, calls, begin=True):
    """Reset where no agent is left (or after {longest} turns), otherwise step; what came back."""
    steps, episode = 0, -1
    actions = None if begin else samplers(env, seed)
    for _ in range(calls):
        if begin or not env.agents or steps == {longest}:
            episode += 1
            env.reset(seed=seed if episode == 0 else None)
            actions = samplers(env, seed + episode)
            begin, steps = False, 0
        else:
            turn = env.agent_selection
            env.step(sample(env, actions[turn], turn))
            steps += 1
        turn = env.agent_selection if env.agents else None
        yield {{
            "agent": turn, "observation": {{turn: env.observe(turn)}} if env.agents else {{}},
            "reward": dict(env.rewards), "terminated": dict(env.terminations),
            "truncated": dict(env.truncations), "info": dict(env.infos),
        }}
''',
}


def script(kind: str, legal: bool, mask: str | None) -> str:
    """The loop as text.

    Args:
        kind: of the interface.
        legal: whether the action spaces draw legal actions themselves, and are a copy's own.
        mask: how a program gets the mask of a plain Gymnasium environment, if it has one.
    """
    space = "env.action_space" if kind == "gym" else "env.action_space(agent)"
    return SCRIPTS[kind].format(
        longest=LONGEST,
        space=space if legal else f"copy.deepcopy({space})",
        sample=f"actions.sample(mask={mask})" if mask else "actions.sample()",
    )
