"""Play a recorded episode again from its stored actions, and compare it bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .batch import BatchEnv, Episodes
from .play import one_thread
from .recorder import axis_agents, columns_of
from .registry import is_registered, resolve
from .space_json import described_spaces
from .spaces import Array, Tree, take

if TYPE_CHECKING:
    from .trajectories import Trajectories, Trajectory


@dataclass(frozen=True)
class Difference:
    """Where an episode did not repeat.

    Attributes:
        step: the row of the recorded steps in which it stands.
        field: the column.
        recorded: what the recording says.
        replayed: what came out now.
    """

    step: int
    field: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.field} was {self.recorded}, is now {self.replayed}"


@dataclass(frozen=True)
class Replay:
    """An episode that was played again.

    Attributes:
        environment: the target that played it.
        seed: of the run.
        recorded: the episode as it was recorded.
        steps: how many steps were played again; those before the difference, if there is one.
        difference: the first one, or None: rewards, observations, ends and durations are the
            same, bit for bit.
    """

    environment: str
    seed: int
    recorded: Trajectory
    steps: int
    difference: Difference | None

    @property
    def same(self) -> bool:
        """Whether the episode repeated."""
        return self.difference is None

    def to_json(self) -> dict[str, Any]:
        """Everything but the arrays, and the rewards, as plain data."""
        return {
            "environment": self.environment,
            "seed": self.seed,
            "episode": self.recorded.episode,
            "length": len(self.recorded),
            "return": float(self.recorded.rewards.sum()),
            "replayed_steps": self.steps,
            "same": self.same,
            "difference": None if self.difference is None else vars(self.difference),
            "rewards": self.recorded.rewards.tolist(),
        }


def replay(trajectories: Trajectories, number: int, target: Any = None) -> Replay:
    """Play an episode again from its stored actions, up to the first difference.

    The policy is not asked, so this tells whether the environment still does what it did.

    Args:
        trajectories: the recorded run.
        number: which episode.
        target: what to play it in. None takes the environment that the run names, if that is a
            registered name: a run folder may come from anywhere, so a file or module that it
            names is not run.

    Raises:
        ValueError: there is no such episode; or no target where the run names a file or module.
        CorruptFile: its block is damaged.
    """
    config = trajectories.config
    recorded = trajectories.episode(number)
    where = resolve(trusted_target(config, target))
    env = where.make(1, **config["settings"])
    try:
        with one_thread():
            steps, difference = _compare(trajectories, recorded, env)
    finally:
        env.close()
    return Replay(where.name, config["seed"], recorded, steps, difference)


def trusted_target(config: Mapping[str, Any], target: Any = None) -> Any:
    """What to play a run in: as the caller says, else what it names, if that is registered.

    Raises:
        ValueError: the run names a file or a module, which is not run.
    """
    if target is not None:
        return target
    target = config["environment"]
    if not is_registered(target):
        raise ValueError(
            f"target: the run names {target!r}, which is not a registered name, and what a "
            "run folder names is not run; say so yourself (--environment on the command line)"
        )
    return target


def _compare(
    trajectories: Trajectories, recorded: Trajectory, env: BatchEnv
) -> tuple[int, Difference | None]:
    config = trajectories.config
    for name, now in described_spaces(env).items():
        if config[name] != now:
            return 0, Difference(0, name, str(config[name]), str(now))
    episodes = Episodes(env)
    episodes.seed(config["seed"])
    episodes.upcoming[:] = recorded.episode
    episodes.begin(env.everyone)
    steps = 0
    for row, expected, found in _rows(recorded, episodes, config.get("max_steps")):
        for field, value in expected.items():
            if not _same_bits(value, found[field]):
                said = _short(value), _short(found[field])
                return steps, Difference(row, field, *said)
        steps = max(steps, row)
    return len(recorded), None


def _rows(
    recorded: Trajectory, episodes: Episodes, max_steps: int | None
) -> Iterator[tuple[int, Mapping[str, Array], Mapping[str, Array]]]:
    """What was recorded and what comes out now, (1, ...) by column, each with its row."""
    env = episodes.env
    observers = axis_agents(env.agents, env.observation_space)

    def observation(tree: Tree) -> dict[str, Array]:
        return columns_of("observation", tree, observers)

    yield 0, observation(take(recorded.observations, slice(0, 1))), observation(episodes.observe())
    for t in range(len(recorded)):
        now = slice(t, t + 1)
        actions = take(recorded.actions, now)
        if refusal := _refused(episodes, actions):
            taken = columns_of("action", actions, axis_agents(env.agents, env.action_space))
            text = {"action": np.array(refusal)}
            yield t, {"action": np.array(_short(next(iter(taken.values()))))}, text
            return
        step, _ = episodes.advance(actions)
        cut = max_steps is not None and t + 1 >= max_steps and not episodes.ended[0]
        expected = columns_of("reward", recorded.rewards[now], env.agents)
        expected |= columns_of("terminated", recorded.terminated[now], env.agents)
        expected |= {"truncated": recorded.truncated[now], "duration": recorded.durations[now]}
        found = columns_of("reward", step.reward, env.agents)
        found |= columns_of("terminated", step.terminated, env.agents)
        found |= {"truncated": step.truncated | cut, "duration": step.duration}
        yield t, expected, found
        after = take(recorded.observations, slice(t + 1, t + 2))
        yield t + 1, observation(after), observation(episodes.observe())


def _refused(episodes: Episodes, actions: Tree) -> str:
    """Why the environment does not take the actions; empty if it does."""
    try:
        actions = episodes.check_actions(actions)
        if hasattr(episodes.env, "action_masks"):
            episodes.check_masks(actions, episodes.env.everyone)
    except (TypeError, ValueError) as refusal:
        return f"refused ({refusal})"
    return ""


def _same_bits(one: Array, other: Array) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()
    )


def _short(value: Array) -> str:
    """The row of a column as text, in full precision while it is short."""
    text = repr(value[0].tolist()) if value.ndim else str(value)
    return text if len(text) <= 200 else text[:197] + "..."
