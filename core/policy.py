"""Anything with `predict` is a policy.

    action, state = policy.predict(observation, state, episode_start, deterministic)

The batch leads always: observations are (B, ...), actions (B, ...). `state` is what the policy
remembers between steps, and None at first; `episode_start`, bool (B,), marks the rows whose
memory must be forgotten. Where `predict` names `action_masks`, it is given the masks of the
environment. Two methods are optional: `begin(rows, streams)` hands a policy its stream of random
numbers, and `action_prob(observation, actions, ...)` gives the probability of the actions taken
(it is given `state`, `episode_start`, `deterministic` and `action_masks`, those that it names; one
that does not name `deterministic` speaks of sampled actions only).

Stable-Baselines3's algorithms are policies as they are. `load_policy` makes one of whatever a
person is likely to have: a name, a file, a run folder, a function, a gain matrix.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces

from .batch import Mask
from .kernels import kernel
from .spaces import Array, Tree, leaves, map_tree
from .streams import Streams, uniform

Space = spaces.Space[Any]
State = Any


@runtime_checkable
class Policy(Protocol):
    """What acts: an object with `predict`."""

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """The actions for a batch of observations, and the state for the next call.

        This is what `predict` means everywhere; other classes say only in what theirs differs.

        Args:
            observation: (B, ...), or a dict of such; with agents (B, A, ...).
            state: what the last call returned; None at first.
            episode_start: bool (B,), rows that begin an episode; None means none but the first.
            deterministic: take the mode of the action distribution instead of a sample.

        A policy that minds masks has a further argument `action_masks`: bool (B, n) for Discrete,
        (B, sum nvec) for MultiDiscrete, with agents (B, A, n); a dict of such for a Dict of
        spaces. True marks what is allowed.

        Returns:
            Actions (B, ...) and the state for the next call.
        """
        ...


class NoProbability(ValueError):
    """A policy does not know the probability of its actions; the message says why."""


def takes_masks(policy: Policy) -> bool:
    """Whether a policy wants `action_masks`: its `predict` names them.

    A policy that wraps another says so by an attribute `takes_masks` instead.
    """
    declared = getattr(policy, "takes_masks", None)
    if isinstance(declared, bool):
        return declared
    try:
        return "action_masks" in inspect.signature(policy.predict).parameters
    except (TypeError, ValueError):  # a predict written in C has no signature
        return False


def begin(policy: Policy, rows: Mask, streams: Streams) -> None:
    """Hand a policy its streams, if it wants them. Call it when rows begin an episode."""
    if hasattr(policy, "begin"):
        policy.begin(rows, streams)


def batch_size(observation: Tree) -> int:
    """B of a batch of observations.

    Raises:
        ValueError: an array without a leading dimension.
    """
    first = np.shape(leaves(observation)[0][1])
    if not first:
        raise ValueError("observation: got a single number, expected a batch (B, ...)")
    return int(first[0])


def _masked(policy: Policy, masks: Any) -> dict[str, Any]:
    return {"action_masks": masks} if masks is not None and takes_masks(policy) else {}


# --- chance ---------------------------------------------------------------------------------------


@kernel
def _fill_uniform(key, episode, step, out):  # type: ignore[no-untyped-def]
    for row in range(out.shape[0]):
        for draw in range(out.shape[1]):
            out[row, draw] = uniform(key[row], episode[row], step[row], draw)


class RandomPolicy:
    """Uniform over the action space, and over the legal actions where there are masks.

    With streams from `begin`, the action of an episode's step is a function of seed, episode and
    step alone: the same in any row, at any number of rows. Components of a Box without bounds
    are drawn as Gymnasium draws them: normal, or exponential beyond a single bound.

    Args:
        action_space: the space of one copy; with agents, of one agent or a Dict by agent.
        agents: names of the agents, if there are several.
        seed: of the numbers drawn where nobody calls `begin`.
    """

    def __init__(
        self, action_space: Space, agents: Sequence[str] = (), seed: int | None = None
    ) -> None:
        self.action_space = action_space
        keyed = isinstance(action_space, spaces.Dict) and set(action_space) == set(agents)
        self.agents = () if keyed else tuple(agents)
        self._by_agent = tuple(agents) if keyed else ()
        self._draws = _count_draws(action_space)
        self._streams: Streams | None = None
        self._generator = np.random.default_rng(seed)

    def begin(self, rows: Mask, streams: Streams) -> None:
        """Draw from these streams from now on (purpose `policy`)."""
        self._streams = streams

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Tree, Any]:
        """Random, whether `deterministic` or not; of the observation only B counts.

        Raises:
            ValueError: a row without a legal action, or more rows than the streams have.
        """
        rows = batch_size(observation)
        agents = max(len(self.agents), 1)
        chance = self._uniform(rows, agents * self._draws)
        if not self.agents:
            return _choose(self.action_space, chance, action_masks), state
        flat = chance.reshape(rows * agents, self._draws)
        masks = action_masks
        if masks is not None:
            masks = map_tree(lambda m: np.reshape(m, (rows * agents, -1)), masks)
        actions = _choose(self.action_space, flat, masks)
        split = map_tree(lambda a: a.reshape((rows, agents, *a.shape[1:])), actions)
        return split, state

    def action_prob(
        self,
        observation: Any,
        actions: Tree,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> Array:
        """Probability of each action, (B,), with agents (B, A); for a bounded Box its density.

        Raises:
            NoProbability: a Box without bounds.
        """
        rows = batch_size(observation)
        space = self.action_space
        if self._by_agent:
            masks = dict.fromkeys(self._by_agent) if action_masks is None else action_masks
            each = [_uniform_probability(space[a], rows, masks[a]) for a in self._by_agent]  # type: ignore[index]
            return np.stack(each, axis=1)
        if not self.agents:
            return _uniform_probability(space, rows, action_masks)
        flat = rows * len(self.agents)
        masks = action_masks
        if masks is not None:
            masks = map_tree(lambda m: np.reshape(m, (flat, -1)), masks)
        return _uniform_probability(space, flat, masks).reshape(rows, len(self.agents))

    def _uniform(self, rows: int, draws: int) -> Array:
        if self._streams is None:
            return self._generator.random((rows, draws))
        s = self._streams
        if rows != len(s.step):
            raise ValueError(f"observation: got {rows} rows, the streams have {len(s.step)}")
        out = np.empty((rows, draws))
        _fill_uniform(s.policy, s.episode, s.step, out)
        return out


def _uniform_probability(space: Space, rows: int, masks: Any) -> Array:
    """Probability (B,) of any one action of a space; for a bounded Box its density."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        each = [_uniform_probability(part, rows, None) for part in parts]
        return np.asarray(np.prod(each, axis=0))
    if isinstance(space, spaces.Box) and space.is_bounded():
        widths = space.high.astype(np.float64) - space.low
        if space.dtype.kind != "f":
            widths = widths + 1.0
        return np.full(rows, 1.0 / np.prod(widths))
    if isinstance(space, spaces.MultiBinary):
        return np.full(rows, 0.5 ** np.prod(space.shape))
    sizes = _category_sizes(space)
    if sizes is None:
        raise NoProbability(f"action_prob: not defined for {space}")
    counts = np.broadcast_to(np.asarray(sizes, np.float64), (rows, len(sizes)))
    if masks is not None:
        edges = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        counts = np.add.reduceat(np.asarray(masks, np.float64), edges, axis=1)
    return 1.0 / np.asarray(counts.prod(axis=1))


def certain_probability(space: Space, rows: int) -> Array:
    """The probability 1 (B,) of the actions that a deterministic policy takes.

    Raises:
        NoProbability: the space has components that are real numbers; there is no density.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            certain_probability(part, rows)
    elif isinstance(space, spaces.Box) and space.dtype.kind == "f":
        raise NoProbability(f"action_prob: a deterministic action in {space} has no density")
    return np.ones(rows)


def _category_sizes(space: Space) -> list[int] | None:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    return None


def _count_draws(space: Space) -> int:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(_count_draws(part) for part in parts)
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return int(np.prod(space.shape or ()))
    raise TypeError(f"action_space: got {space}, which has no fixed number of components")


def _choose(space: Space, chance: Array, masks: Any) -> Tree:
    """Actions (B, ...) from uniform numbers (B, draws)."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keyed = isinstance(space, spaces.Dict)
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        chosen, at = {}, 0
        for name, part in parts:
            width = _count_draws(part)
            mask = None if masks is None else masks[name]
            chosen[name] = _choose(part, chance[:, at : at + width], mask)
            at += width
        return chosen if keyed else tuple(chosen.values())
    shape = (len(chance), *(space.shape or ()))
    sizes = _category_sizes(space)
    if sizes is not None:
        start = np.asarray(space.start).ravel()  # type: ignore[attr-defined]
        picks = _choose_categories(sizes, chance, masks) + start
        return picks.astype(space.dtype).reshape(shape)
    if masks is not None:
        raise ValueError(f"action_masks: not defined for {space}")
    if isinstance(space, spaces.MultiBinary):
        return (chance >= 0.5).astype(space.dtype).reshape(shape)
    assert isinstance(space, spaces.Box)
    return _choose_box(space, chance).reshape(shape)


def _choose_categories(sizes: list[int], chance: Array, masks: Any) -> Array:
    """The k-th legal category, k uniform; (B, components)."""
    if masks is None:
        return np.asarray(np.floor(chance * np.asarray(sizes)), np.int64)
    legal = np.asarray(masks, np.bool_).reshape(len(chance), -1)
    if legal.shape[1] != sum(sizes):
        raise ValueError(f"action_masks: got {legal.shape[1]} columns, allowed {sum(sizes)}")
    picks = np.empty(chance.shape, np.int64)
    for component, (size, end) in enumerate(zip(sizes, itertools.accumulate(sizes), strict=True)):
        rank = np.cumsum(legal[:, end - size : end], axis=1)
        count = rank[:, -1]
        if not count.all():
            raise ValueError(f"action_masks: row {int(np.argmin(count))} has no legal action")
        wanted = np.floor(chance[:, component] * count).astype(np.int64) + 1
        picks[:, component] = (rank >= wanted[:, np.newaxis]).argmax(axis=1)
    return picks


def _choose_box(space: spaces.Box, chance: Array) -> Array:
    low = space.low.ravel().astype(np.float64)
    high = space.high.ravel().astype(np.float64)
    if space.dtype.kind != "f":
        return (low + np.floor(chance * (high - low + 1.0))).astype(space.dtype)
    below, above = np.isfinite(low), np.isfinite(high)
    with np.errstate(invalid="ignore"):
        drawn = low + chance * (high - low)
    if not (below & above).all():
        from scipy.special import ndtri

        tail = -np.log1p(-chance)
        drawn = np.where(below & ~above, low + tail, drawn)
        drawn = np.where(~below & above, high - tail, drawn)
        drawn = np.where(~below & ~above, ndtri(chance + 2.0**-54), drawn)
    # rounding to float32 may step over a bound
    return np.asarray(np.clip(drawn.astype(space.dtype), space.low.ravel(), space.high.ravel()))


# --- adapters -------------------------------------------------------------------------------------


class FunctionPolicy:
    """A plain function of a batch of observations: observation (B, ...) -> action (B, ...).

    A function that names `action_masks` is given them. For a function of one observation write
    `RowFunctionPolicy(function)`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        try:
            self.takes_masks = "action_masks" in inspect.signature(function).parameters
        except (TypeError, ValueError):
            self.takes_masks = False

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Tree, Any]:
        """What the function gives.

        Raises:
            ValueError: the function's answer does not have one action a row.
        """
        masks = {"action_masks": action_masks} if self.takes_masks else {}
        actions = self._call(observation, masks)
        rows = batch_size(observation)
        for path, leaf in leaves(actions):
            if np.ndim(leaf) == 0 or np.shape(leaf)[0] != rows:
                name = getattr(self.function, "__name__", type(self.function).__name__)
                raise ValueError(
                    f"policy {name}: got actions{f' {path}' if path else ''} of shape "
                    f"{np.shape(leaf)}, allowed ({rows}, ...): observations come in batches. If "
                    "the function takes one observation, use palestra.policy.RowFunctionPolicy"
                )
        return actions, state

    def _call(self, observation: Any, masks: dict[str, Any]) -> Tree:
        actions = self.function(observation, **masks)
        return actions if isinstance(actions, dict | tuple) else np.asarray(actions)


class RowFunctionPolicy(FunctionPolicy):
    """A plain function of one observation, called once a row."""

    def _call(self, observation: Any, masks: dict[str, Any]) -> Tree:
        answers = []
        for row in range(batch_size(observation)):
            given = map_tree(lambda array, row=row: array[row], observation)
            mask = {k: v if v is None else v[row] for k, v in masks.items()}
            answers.append(self.function(given, **mask))
        return map_tree(lambda *parts: np.stack([np.asarray(p) for p in parts]), *answers)


class LinearPolicy:
    """State feedback u = -K x, saturated at the bounds of the actuators.

    Args:
        gain: K, (m, n), as `control.lqr` returns it.
        action_space: Box with m components; its bounds saturate u, its dtype is the answer's.
            None: no bounds, float64.

    Raises:
        ValueError: K is not a finite real matrix, or does not have m rows.
    """

    def __init__(self, gain: Any, action_space: Space | None = None) -> None:
        self.gain = _real_matrix(gain, "gain")
        self.action_space = action_space
        if self.gain.ndim != 2 or not np.isfinite(self.gain).all():
            raise ValueError(f"gain: got shape {self.gain.shape}, expected a finite matrix (m, n)")
        self._actuators = _Actuators(action_space, self.gain.shape[0], "gain")

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """The input u for observations x (B, n), in the shape of the action space.

        Raises:
            ValueError: an observation without n components.
        """
        x = _flat(observation, self.gain.shape[1], "gain")
        return self._actuators(-_row_products(x, self.gain)), state


class StateSpacePolicy:
    """Output feedback by a discrete-time linear controller, such as python-control makes.

        x[k+1] = A x[k] + B y[k]        u[k] = C x[k] + D y[k]

    y is the observation, u the action (no sign is changed), saturated at the bounds of the
    actuators. x starts at 0 in every episode and travels as the policy's `state`, (B, states).

    Args:
        system: an object with matrices `A`, `B`, `C`, `D` and a sampling time `dt`.
        action_space: Box; see `LinearPolicy`.

    Raises:
        TypeError: the object has no such attributes.
        ValueError: a continuous-time system, or matrices whose shapes do not fit.
    """

    def __init__(self, system: Any, action_space: Space | None = None) -> None:
        missing = [name for name in ("A", "B", "C", "D", "dt") if not hasattr(system, name)]
        if missing:
            raise TypeError(f"system: got {type(system).__name__}, without {', '.join(missing)}")
        if system.dt is None or not system.dt > 0:
            raise ValueError(
                f"system: got dt = {system.dt!r} (continuous or unspecified time), allowed a "
                "positive sampling time; use control.sample_system(system, dt)"
            )
        A, B, C, D = (
            np.array(_real_matrix(getattr(system, n), f"system: {n}"), ndmin=2) for n in "ABCD"
        )
        self.states, self.inputs, self.outputs = len(A), D.shape[1], D.shape[0]
        expected = (
            (self.states, self.states),
            (self.states, self.inputs),
            (self.outputs, self.states),
        )
        if (A.shape, B.shape, C.shape) != expected:
            raise ValueError(f"system: A {A.shape}, B {B.shape}, C {C.shape}, D {D.shape} differ")
        if not all(np.isfinite(matrix).all() for matrix in (A, B, C, D)):
            raise ValueError("system: the matrices must be finite")
        self.A, self.B, self.C, self.D = A, B, C, D
        self.dt = system.dt
        self.action_space = action_space
        self._actuators = _Actuators(action_space, self.outputs, "system")

    def predict(
        self,
        observation: Any,
        state: Array | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Array]:
        """The input u for outputs y (B, inputs); the state is the controller's x, (B, states)."""
        y = _flat(observation, self.inputs, "system")
        x = np.zeros((len(y), self.states)) if state is None else state
        if episode_start is not None:
            x = np.where(np.asarray(episode_start, np.bool_)[:, np.newaxis], 0.0, x)
        u = _row_products(x, self.C) + _row_products(y, self.D)
        return self._actuators(u), _row_products(x, self.A) + _row_products(y, self.B)


def _real_matrix(value: Any, name: str) -> Array:
    """A copy in float64; what NumPy would drop (imaginary parts) or read (text) is refused."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: got {array.dtype} numbers, allowed real ones")
    return array.astype(np.float64)


def _row_products(x: Array, matrix: Array) -> Array:
    """Products matrix @ x of every row, in one fixed order of summation.

    A BLAS product would give other bits at other batch sizes; these matrices are small.
    """
    out = np.zeros((len(x), len(matrix)))
    for column in range(matrix.shape[1]):
        out += x[:, column, np.newaxis] * matrix[:, column]
    return out


def _flat(observation: Any, width: int, name: str) -> Array:
    if isinstance(observation, Mapping | tuple):
        raise ValueError(f"{name}: got a {type(observation).__name__} observation, allowed arrays")
    rows = batch_size(observation)
    x = np.asarray(observation, np.float64).reshape(rows, -1)
    if x.shape[1] != width:
        raise ValueError(f"{name}: got observations of {x.shape[1]} components, allowed {width}")
    return x


class _Actuators:
    """Saturation at the bounds of a Box, and its shape and dtype."""

    def __init__(self, space: Space | None, outputs: int, name: str) -> None:
        self.space = space
        if space is None:
            return
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
            raise ValueError(f"{name}: got action space {space}, allowed a Box of floats")
        if int(np.prod(space.shape)) != outputs:
            raise ValueError(
                f"{name}: gives {outputs} actions, but the action space {space} has "
                f"{int(np.prod(space.shape))} components"
            )

    def __call__(self, u: Array) -> Array:
        if not isinstance(self.space, spaces.Box):
            return u
        u = u.reshape((len(u), *self.space.shape))
        return np.clip(u, self.space.low, self.space.high).astype(self.space.dtype)


@dataclass(frozen=True)
class Normalisation:
    """Frozen statistics of observations, as `VecNormalize` gathers them in training.

    z = clip((observation - mean) / sqrt(variance + epsilon), -limit, limit), float32.

    Attributes:
        mean: by observation key, float64; the key is "" where the observation is an array.
        variance: likewise.
        epsilon: added to the variance.
        limit: bound on |z|.
    """

    mean: Mapping[str, Array]
    variance: Mapping[str, Array]
    epsilon: float
    limit: float

    @classmethod
    def of(cls, normalised: Any) -> Normalisation | None:
        """The statistics of a `VecNormalize`; None if it leaves observations alone."""
        if not normalised.norm_obs:
            return None
        gathered = normalised.obs_rms
        by_key = gathered if isinstance(gathered, dict) else {"": gathered}
        return cls(
            mean={key: np.array(part.mean, np.float64) for key, part in by_key.items()},
            variance={key: np.array(part.var, np.float64) for key, part in by_key.items()},
            epsilon=float(normalised.epsilon),
            limit=float(normalised.clip_obs),
        )

    def __call__(self, observation: Any) -> Any:
        """The normalised observation; keys without statistics stay as they are."""
        if not isinstance(observation, Mapping):
            return self._part("", observation)
        return {
            key: self._part(key, part) if key in self.mean else part
            for key, part in observation.items()
        }

    def _part(self, key: str, x: Array) -> Array:
        z = (x - self.mean[key]) / np.sqrt(self.variance[key] + self.epsilon)
        return np.asarray(np.clip(z, -self.limit, self.limit).astype(np.float32))


class NormalisedPolicy:
    """A policy that was trained on normalised observations, with the statistics it needs.

    Args:
        policy: sees normalised observations.
        normalisation: the frozen statistics.
    """

    def __init__(self, policy: Policy, normalisation: Normalisation) -> None:
        self.policy = policy
        self.normalisation = normalisation
        self.takes_masks = takes_masks(policy)
        for name in ("observation_space", "action_space"):
            if hasattr(policy, name):
                setattr(self, name, getattr(policy, name))

    def begin(self, rows: Mask, streams: Streams) -> None:
        """Hand on the streams."""
        begin(self.policy, rows, streams)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """What the policy inside says to the normalised observation."""
        return self.policy.predict(
            self.normalisation(observation),
            state=state,
            episode_start=episode_start,
            deterministic=deterministic,
            **_masked(self.policy, action_masks),
        )


# --- several agents -------------------------------------------------------------------------------


class AgentPolicies:
    """One policy an agent.

    Where the agents share a space, observations are (B, A, ...) and so are the actions; where
    the space is a Dict by agent, both are dicts of (B, ...). Each agent draws from a stream of
    its own, so that two random policies do not act alike.

    Args:
        policies: agent -> policy, for every agent.
        agents: the agents, in the order of axis A.

    Raises:
        ValueError: an agent without a policy, or a policy without an agent.
    """

    def __init__(self, policies: Mapping[str, Policy], agents: Sequence[str]) -> None:
        if set(policies) != set(agents):
            raise ValueError(
                f"policies: got one for {sorted(policies)}, allowed exactly {sorted(agents)}"
            )
        self.agents = tuple(agents)
        self.policies = {agent: policies[agent] for agent in self.agents}
        self.takes_masks = any(takes_masks(policy) for policy in policies.values())
        self._streams: dict[str, Streams] = {}

    def begin(self, rows: Mask, streams: Streams) -> None:
        """Give each agent a stream named after it."""
        for agent, policy in self.policies.items():
            if not hasattr(policy, "begin"):
                continue
            own = self._streams.get(agent)
            if own is None or own.episode is not streams.episode:
                own = Streams(f"{streams.name}/{agent}", len(streams.step))
                own.set_seeds(streams.seed)
                own.episode, own.step = streams.episode, streams.step  # shared, they move on
                self._streams[agent] = own
            elif not np.array_equal(own.seed, streams.seed):
                own.set_seeds(streams.seed)
            policy.begin(rows, own)

    def predict(
        self,
        observation: Any,
        state: Mapping[str, Any] | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """The actions of all agents; `state` is a dict by agent."""
        by_agent = isinstance(observation, Mapping) and set(observation) == set(self.agents)
        actions, memory = {}, {}
        for index, (agent, policy) in enumerate(self.policies.items()):
            actions[agent], memory[agent] = policy.predict(
                observation[agent] if by_agent else _agent_slice(observation, index),
                state=None if state is None else state[agent],
                episode_start=episode_start,
                deterministic=deterministic,
                **_masked(policy, self._mask(action_masks, agent, index)),
            )
        if by_agent:
            return actions, memory
        parts = list(actions.values())
        return map_tree(lambda *arrays: np.stack(arrays, axis=1), *parts), memory

    @staticmethod
    def _mask(masks: Any, agent: str, index: int) -> Any:
        if masks is None:
            return None
        return masks[agent] if isinstance(masks, Mapping) else masks[:, index]


class SharedPolicy:
    """One policy that all agents share: its rows are the agents of all rows.

    Observations (B, A, ...) are given to it as (B A, ...), row by row and within a row agent by
    agent; masks, `episode_start` and actions likewise.

    Args:
        policy: acts for one agent.
        agents: the agents, in the order of axis A.
    """

    def __init__(self, policy: Policy, agents: Sequence[str]) -> None:
        self.policy = policy
        self.agents = tuple(agents)
        self.takes_masks = takes_masks(policy)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """The actions of all agents, (B, A, ...)."""
        rows, agents = batch_size(observation), len(self.agents)

        def join(array: Array) -> Array:
            return np.reshape(array, (rows * agents, *np.shape(array)[2:]))

        def split(array: Array) -> Array:
            return np.reshape(array, (rows, agents, *np.shape(array)[1:]))

        if episode_start is not None:
            episode_start = np.repeat(episode_start, agents)
        masks = None if action_masks is None else map_tree(join, action_masks)
        actions, state = self.policy.predict(
            map_tree(join, observation),
            state=state,
            episode_start=episode_start,
            deterministic=deterministic,
            **_masked(self.policy, masks),
        )
        return map_tree(split, actions), state


def _agent_slice(tree: Tree, index: int) -> Tree:
    return map_tree(lambda array: array[:, index], tree)
