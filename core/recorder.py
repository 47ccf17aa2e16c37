"""Steps of episodes as a table: what a recorded run keeps beside its episodes.

An episode of T steps has T + 1 rows, so that its T + 1 observations are all there. Row `step` = k
holds the observation after k steps, and what then happened: the action, its probability, the
reward, the ends. In the last row, the final observation, all of that is null. Rows stand in the
order of (episode, step).

```
episode       uint64
step          uint32        0 to T
observation   as the space has it
action        as the space has it
action_mask   bool, which actions were legal; only where the environment has masks
probability   float64       of the action, see `palestra.action_probability`; null: unknown
reward        float64
terminated    bool
truncated     bool          by the environment, its horizon or the runner
duration      float64       seconds
```

Parts of Dict and Tuple spaces have columns of their own, named by their path: `observation/gap`,
`observation/0`. Where there are agents, the agent's name comes first, whether they share a space or
not: `observation/leader/gap`, `reward/leader`; only `truncated` and `duration` are those of all.
Arrays are lists of fixed size in C order; their shape stands with the spaces in `run.json`.
Everything has the exact dtype of its space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from .action_probability import action_probability
from .batch import BatchEnv, Episodes, Step, choices_of, lead, mask_buffer
from .spaces import Array, Tree, allocate, leaves

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 2**26  # steps of a block by default; while it is written, six times this
MOST_BYTES = 2**30  # where episodes turn out to be longer than was to be expected
USUAL_STEPS = 1000  # what an episode without horizon is expected to last

SCALARS: dict[str, Any] = {
    "episode": np.uint64,
    "step": np.uint32,
    "probability": np.float64,
    "reward": np.float64,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "duration": np.float64,
}
AFTERWARDS = ("probability", "reward", "terminated", "truncated", "duration")
OF_EACH_AGENT = ("probability", "reward", "terminated")


def joined(*parts: str) -> str:
    """Parts of a column's name; empty ones are left out."""
    return "/".join(part for part in parts if part)


def columns_of(name: str, tree: Tree, agents: Sequence[str]) -> dict[str, Array]:
    """The arrays of a tree by the names of their columns.

    Args:
        name: of the field, such as "observation".
        tree: arrays (B, ...), or (B, A, ...) where there are `agents`.
        agents: those of axis 1; none where the tree has no such axis.
    """
    if not agents:
        return {joined(name, path): leaf for path, leaf in leaves(tree)}
    return {
        joined(name, agent, path): leaf[:, place]
        for place, agent in enumerate(agents)
        for path, leaf in leaves(tree)
    }


def axis_agents(agents: Sequence[str], space: spaces.Space[Any]) -> Sequence[str]:
    """The agents of axis 1 in arrays of a space; none where the space is keyed by them."""
    keyed = isinstance(space, spaces.Dict) and set(space.spaces) == set(agents)
    return () if keyed else agents


@dataclass(frozen=True)
class Layout:
    """Names, dtypes and shapes of the columns of a recorded run.

    Attributes:
        observation_space: of one copy; with agents, of one agent, or keyed by them.
        action_space: likewise.
        agents: names of the agents; none for a single agent.
        masked: whether there are action masks.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    agents: tuple[str, ...]
    masked: bool

    def blank(self, name: str) -> Tree:
        """The tree of a field without rows: (0, ...), or (0, A, ...) where agents share it."""
        if name == "observation":
            return allocate(self.observation_space, self._lead(self.observation_space))
        if name == "action":
            return allocate(self.action_space, self._lead(self.action_space))
        if name == "action_mask":
            return self._blank_masks()
        several = (len(self.agents),) if self.agents and name in OF_EACH_AGENT else ()
        return np.zeros((0, *several), SCALARS[name])

    def axis(self, name: str) -> Sequence[str]:
        """The agents of axis 1 of a field; none if it has no such axis."""
        if name == "observation":
            return axis_agents(self.agents, self.observation_space)
        if name in ("action", "action_mask"):
            return axis_agents(self.agents, self.action_space)
        return self.agents if name in OF_EACH_AGENT else ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields there are, in the order of their columns."""
        masks = ("action_mask",) if self.masked else ()
        return ("episode", "step", "observation", "action", *masks, *AFTERWARDS)

    def columns(self, name: str) -> dict[str, Array]:
        """The columns of a field, without rows; those that hold no numbers are left out."""
        columns = columns_of(name, self.blank(name), self.axis(name))
        return {k: values for k, values in columns.items() if math.prod(values.shape[1:])}

    def _lead(self, space: spaces.Space[Any]) -> tuple[int, ...]:
        agents = axis_agents(self.agents, space)
        return (0, len(agents)) if agents else (0,)

    def _blank_masks(self) -> Tree:
        space = self.action_space
        if isinstance(space, spaces.Dict) and set(space.spaces) == set(self.agents):
            return {a: np.zeros((0, choices_of(space[a])), np.bool_) for a in self.agents}
        return np.zeros((*self._lead(space), choices_of(space)), np.bool_)


def episodes_that_fit(env: BatchEnv, max_steps: int | None) -> int:
    """How many recorded episodes of an environment a block holds, at least 1."""
    trees = [allocate(s, lead(env, s)) for s in (env.observation_space, env.action_space)]
    if hasattr(env, "action_masks"):
        trees.append(mask_buffer(env))
    step = 64 + sum(leaf.nbytes for tree in trees for _, leaf in leaves(tree)) // env.rows
    steps = min(env.horizon or USUAL_STEPS, max_steps or USUAL_STEPS)
    return max(1, BLOCK_BYTES // (step * (steps + 1)))


class Recorder:
    """Collects the steps of the live rows of a block.

    Call `acted` between the policy's answer and the step, `stepped` after it.

    Args:
        episodes: the rows that play.
        policy: what acts.
        deterministic: as it is asked.
        policy_sees_masks: whether it is given the masks.

    Raises:
        ValueError: parts of a space whose columns would have the same name.
    """

    def __init__(
        self, episodes: Episodes, policy: Any, deterministic: bool, *, policy_sees_masks: bool
    ) -> None:
        self.episodes = episodes
        self.policy = policy
        self.deterministic = deterministic
        self.policy_sees_masks = policy_sees_masks
        env = episodes.env
        self.agents = env.agents
        self._seen = _Chunks()  # T + 1 rows an episode
        self._taken = _Chunks()  # T rows an episode
        self._observers = axis_agents(env.agents, env.observation_space)
        self._actors = axis_agents(env.agents, env.action_space)
        _check_names(env.observation_space, self._observers)
        _check_names(env.action_space, self._actors)

    def acted(
        self, observation: Tree, actions: Tree, state: Any, fresh: Array, live: Array
    ) -> None:
        """Note what the policy saw and answered, before the step changes anything."""
        streams = self.episodes.streams
        self._rows = rows = np.flatnonzero(live)
        self._see(rows, streams.episode, streams.step, observation)
        self._answer = observation, actions, state, fresh, self.episodes.masks()

    def stepped(self, step: Step, cut: Array, observation: Tree) -> None:
        """Note what the actions led to; of the rows that ended, also the final observation.

        Args:
            step: the step.
            cut: rows that the runner ended, bool (B,).
            observation: of all rows, after the step.
        """
        before, actions, state, fresh, masks = self._answer
        actions = self.episodes.check_actions(actions)
        known = action_probability(
            self.policy,
            before,
            actions,
            state=state,
            episode_start=fresh,
            deterministic=self.deterministic,
            action_masks=masks if self.policy_sees_masks else None,
        )
        columns = columns_of("action", actions, self._actors)
        if masks is not None:
            columns |= columns_of("action_mask", masks, self._actors)
        if known is None or (self.agents and known.ndim == 1):  # one number for all agents
            known = np.full(step.reward.shape, np.nan)
        columns |= columns_of("probability", known, self.agents)
        columns |= columns_of("reward", step.reward, self.agents)
        columns |= columns_of("terminated", step.terminated, self.agents)
        columns |= {"truncated": step.truncated | cut, "duration": step.duration}
        self._taken.add(self._rows, columns)
        over = self._rows[self.episodes.ended[self._rows]]
        if len(over):
            streams = self.episodes.streams
            self._see(over, streams.episode, streams.step, observation)
        self._refuse_more_than_fits()

    def _see(self, rows: Array, episode: Array, step: Array, observation: Tree) -> None:
        columns = {"episode": episode, "step": step}
        self._seen.add(rows, columns | columns_of("observation", observation, self._observers))

    def _refuse_more_than_fits(self) -> None:
        if self._seen.bytes + self._taken.bytes > MOST_BYTES:
            raise ValueError(
                f"block: its recorded steps take more than {MOST_BYTES >> 20} MiB before all its "
                "episodes have ended; give a smaller block, or max_steps"
            )

    def table(self) -> pa.Table:
        """The table of all steps of the block."""
        import pyarrow as pa

        seen, taken = self._seen.columns(), self._taken.columns()
        order = np.lexsort((seen["step"], seen["episode"]))
        last = np.append(np.diff(seen["episode"][order]) != 0, True)
        final = np.empty_like(last)
        final[order] = last
        number = np.cumsum(~final) - 1  # what was decided came in the order in which it was seen
        decided = number[order[~last]]
        columns = {}
        for name in list(seen):  # each is given up when its ordered copy is made
            values = seen.pop(name)
            if values.size:
                columns[name] = to_arrow(values[order])
        for name in list(taken):
            values = taken.pop(name)
            if values.size:
                full = np.zeros((len(order), *values.shape[1:]), values.dtype)
                full[~last] = values[decided]
                null = last | np.isnan(full) if name.startswith("probability") else last
                columns[name] = to_arrow(full, null)
        return pa.table(columns)


def to_arrow(values: Array, null: Array | None = None) -> pa.Array:
    """An array (n, ...) as a column: of numbers, or of lists of fixed size.

    Args:
        values: the numbers.
        null: rows without a value, bool (n,).
    """
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values, mask=null)
    inner = pa.array(values.reshape(-1))
    size = math.prod(values.shape[1:])
    return pa.FixedSizeListArray.from_arrays(
        inner, size, mask=None if null is None else pa.array(null)
    )


class _Chunks:
    """Columns that grow by some rows of the batch at a time."""

    def __init__(self) -> None:
        self.chunks: dict[str, list[Array]] = {}
        self.bytes = 0

    def add(self, rows: Array, columns: Mapping[str, Array]) -> None:
        for name, values in columns.items():
            chosen = values.take(rows, axis=0)
            self.chunks.setdefault(name, []).append(chosen)
            self.bytes += chosen.nbytes

    def columns(self) -> dict[str, Array]:
        """Whole columns. The pieces are given up."""
        return {name: np.concatenate(self.chunks.pop(name)) for name in list(self.chunks)}


def _check_names(space: spaces.Space[Any], agents: Sequence[str]) -> None:
    names = [
        joined(agent, path) for agent in agents or [""] for path, _ in leaves(allocate(space, (0,)))
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"record: two parts of {space} would have the column {twice[0]!r}; keys must not "
            "contain '/' where that makes two paths the same"
        )
