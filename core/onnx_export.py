"""Write a policy as one ONNX file that runs without palestra.

    palestra.export_onnx("runs/nmr-relax-ppo-seed0", "NMRRelax", "policy.onnx")

Everything between the raw observation and the physical action is inside: statistics, one-hot
codes, layers, the mode of the distribution, clipping or unscaling. A file is written only if it
takes the same actions as `predict` on more than 1000 observations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from .batch import BatchEnv, Episodes
from .disk import write_atomic
from .fast_policy import random_masks, sample_observations
from .onnx_graph import Graph, row_products
from .onnx_networks import NotExportable, clipped, is_network, shaped, write_network
from .onnx_policy import METADATA, OnnxPolicy, input_names, sealed
from .play import one_thread
from .policy import (
    AgentPolicies,
    FunctionPolicy,
    LinearPolicy,
    Normalisation,
    NormalisedPolicy,
    RandomPolicy,
    SharedPolicy,
    Space,
    StateSpacePolicy,
    takes_masks,
)
from .policy import begin as begin_policy
from .policy_identity import fingerprint
from .policy_loading import load_policy
from .registry import did_you_mean, resolve
from .space_json import space_to_json
from .spaces import Array, Tree, map_tree

# Of the range of a Box. The rounding of `predict` itself, in float32, is the limit: networks whose
# layers amplify are 1e-6 away from exact arithmetic in their worst observations.
AVERAGE, MOST = 1e-6, 1e-5
ROWS, STEPS = 10, 51  # compared twice: on sampled observations, and on those of played episodes
EXPORTABLE = (
    "networks of Stable-Baselines3 and sb3-contrib, gain matrices (LinearPolicy), state-space "
    "controllers (StateSpacePolicy), and these with statistics of observations"
)


@dataclass(frozen=True)
class OnnxExport:
    """What was written, and how well it was found to agree.

    Attributes:
        path: of the file.
        sha256: of the file.
        inputs: name -> type and shape behind the batch.
        outputs: likewise.
        observations: how many were compared.
        mean_difference: between its actions and those of `predict`, beyond one step of float32,
            in units of the range of the component (of max(1, |action|) where that has no bounds);
            at most 1e-6. Actions that are no Box are equal: 0.
        largest_difference: likewise; at most 1e-5.
    """

    path: Path
    sha256: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    observations: int
    mean_difference: float
    largest_difference: float


def export_onnx(
    policy: Any,
    env: Any,
    path: str | Path,
    *,
    agent: str | None = None,
    settings: dict[str, Any] | None = None,
    name: str | None = None,
) -> OnnxExport:
    """Write a policy as an ONNX file, raw observation in, physical action out.

    The inputs are `observation` (for a Dict space `observation.KEY` each), in the environment's
    own dtype and shape behind a batch of any size; `action_mask`, bool, for a policy that minds
    masks; `state...` for one that remembers, zeros where an episode begins. The outputs are
    `action` and `next_state...`. The policy acts deterministically.

    Args:
        policy: anything that `palestra.load_policy` takes.
        env: anything that `palestra.make` takes.
        path: of the file; an older one is replaced.
        agent: of a policy with one part an agent, the part to export. A policy that all agents
            share is exported for one agent, and needs none.
        settings: keyword arguments of the environment.
        name: of the policy, in the metadata of the file.

    Raises:
        TypeError: a policy that has no graph; the message says which ones do.
        ValueError: the file's actions differ from those of `predict` (nothing is written then),
            the policy does not fit the environment, or `agent` names none.
        ImportError: onnx or onnxruntime is not installed; `pip install 'palestra[onnx]'`.
        StoreFailed: the file cannot be written.
    """
    _require_onnx()
    where = resolve(env)
    played = where.make(ROWS, **dict(settings or {}))
    try:
        loaded = load_policy(policy, played)
        part = _Part.of(loaded, played, agent)
        content = _written(part, where.reference or where.name, name or _name(policy))
        exported = OnnxPolicy(content, part.action_space, name=str(path))
        with one_thread():
            sequences = (_sampled(part), _played(part, loaded, played))
            apart = np.concatenate([_compared(part, exported, steps) for steps in sequences])
    finally:
        played.close()
    write_atomic(Path(path), content)
    session = exported.session
    return OnnxExport(
        path=Path(path),
        sha256=exported.sha256,
        inputs={v.name: f"{v.type} {v.shape[1:]}" for v in session.get_inputs()},
        outputs={v.name: f"{v.type} {v.shape[1:]}" for v in session.get_outputs()},
        observations=len(apart),
        mean_difference=float(np.mean(apart)),
        largest_difference=float(np.max(apart)),
    )


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        raise ImportError(
            "export_onnx needs onnx and onnxruntime; pip install 'palestra[onnx]'"
        ) from None


def _name(policy: Any) -> str:
    return str(policy) if isinstance(policy, str | Path) else type(policy).__name__


# --- one agent's part -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """The policy that goes into the file, and where in the environment's batches its own is.

    With agents whose spaces differ, batches are dicts by agent; where they share a space, the
    agents are axis 1. `agent` is None for a policy that all agents share, and without agents.
    """

    policy: Any
    observation_space: Space
    action_space: Space
    agent: str | None = None
    agents: tuple[str, ...] = ()
    shared: bool = False

    @classmethod
    def of(cls, policy: Any, env: BatchEnv, agent: str | None) -> _Part:
        agents = tuple(env.agents)
        both: Any = (env.observation_space, env.action_space)
        if isinstance(policy, SharedPolicy):
            if agent is not None and agent not in agents:
                raise ValueError(f"agent: got {agent!r}, allowed {', '.join(agents)}")
            return cls(policy.policy, both[0], both[1], shared=True)
        if not isinstance(policy, AgentPolicies):
            if agent is not None:
                raise ValueError(f"agent: got {agent!r}, but the policy has no part for one agent")
            return cls(policy, both[0], both[1])
        if agent is None or agent not in agents:
            near = did_you_mean(agent, agents) if agent is not None else ""
            raise ValueError(
                f"agent: got {agent!r}{near}; the policy has one part an agent, and each is a file "
                f"of its own: name one of {', '.join(agents)}"
            )
        own = [
            s[agent] if isinstance(s, spaces.Dict) and set(s) == set(agents) else s for s in both
        ]
        return cls(policy.policies[agent], own[0], own[1], agent, agents)

    def own(self, batch: Tree) -> Tree:
        """What is this part's in a batch of the environment: (B, ...), with shared (B A, ...)."""
        if self.shared:
            return map_tree(lambda a: a.reshape(-1, *a.shape[2:]), batch)
        if self.agent is None:
            return batch
        if isinstance(batch, dict) and set(batch) == set(self.agents):
            return batch[self.agent]
        index = self.agents.index(self.agent)
        return map_tree(lambda array: array[:, index], batch)


# --- writing --------------------------------------------------------------------------------------


def _written(part: _Part, environment: str, name: str) -> bytes:
    graph = Graph()
    given = {
        key: graph.input(key, space.dtype, space.shape or ())
        for key, space in _array_inputs(part.observation_space).items()
    }
    prefix = "observation."
    observation: Tree = given.get("observation") or {
        key.removeprefix(prefix): value for key, value in given.items()
    }
    try:
        action = _act(graph, part.policy, observation, part)
    except NotExportable as why:
        raise TypeError(
            f"export_onnx: {name} ({type(part.policy).__name__}) cannot be exported: {why}. "
            f"What can: {EXPORTABLE}"
        ) from None
    space = part.action_space
    graph.output("action", graph.cast(action, space.dtype), space.dtype, space.shape or ())
    said = {
        "version": _version(),
        "environment": environment,
        "policy": name,
        "fingerprint": fingerprint(part.policy) or "",
        "observation_space": json.dumps(space_to_json(part.observation_space)),
        "action_space": json.dumps(space_to_json(part.action_space)),
    } | ({} if part.agent is None else {"agent": part.agent})
    return sealed(graph.model("policy", {METADATA + key: value for key, value in said.items()}))


def _version() -> str:
    from . import __version__

    return __version__


def _array_inputs(space: Space) -> dict[str, Space]:
    found = input_names(space)
    for key, part in found.items():
        if part.shape is None or part.dtype is None:
            raise TypeError(f"export_onnx: {key} is {part}, which is not one array")
    return found


def _act(graph: Graph, policy: Any, observation: Tree, part: _Part) -> str:
    """Write what a policy does with an observation; the name of the action's value."""
    statistics = getattr(policy, "normalisation", None)
    if isinstance(statistics, Normalisation):
        observation = _normalised(graph, statistics, observation)
    if isinstance(policy, NormalisedPolicy):
        return _act(graph, policy.policy, observation, part)
    if isinstance(policy, LinearPolicy):
        u = row_products(graph, _flat(graph, observation), -policy.gain)
        return _bounded(graph, u, policy, part)
    if isinstance(policy, StateSpacePolicy):
        return _state_space(graph, policy, observation, part)
    network = getattr(policy, "policy", policy)
    if is_network(network):
        return write_network(
            graph, network, observation, part.observation_space, takes_masks(policy)
        )
    if isinstance(policy, RandomPolicy):
        raise NotExportable("its actions are drawn from random numbers, which a file has not")
    if isinstance(policy, FunctionPolicy):
        raise NotExportable("it is a Python function, which only Python can run")
    if isinstance(policy, OnnxPolicy):
        raise NotExportable("it is an ONNX file already; copy that")
    raise NotExportable("it is a Python object, which only Python can run")


def _normalised(graph: Graph, statistics: Normalisation, observation: Tree) -> Tree:
    """Z = clip((observation - mean) / sqrt(variance + epsilon), -limit, limit), float32."""

    def part(key: str, x: str) -> str:
        deviation = np.sqrt(statistics.variance[key] + statistics.epsilon)
        z = graph.node("Sub", graph.cast(x, np.float64), graph.constant(statistics.mean[key]))
        z = graph.node("Div", z, graph.constant(deviation))
        low, high = (graph.constant(np.float64(v)) for v in (-statistics.limit, statistics.limit))
        return graph.cast(graph.node("Clip", z, low, high), np.float32)

    if isinstance(observation, str):
        return part("", observation)
    return {k: part(k, x) if k in statistics.mean else x for k, x in observation.items()}


def _flat(graph: Graph, observation: Tree) -> str:
    """An observation as float64 (B, n)."""
    return graph.node("Flatten", graph.cast(observation, np.float64), axis=1)


def _state_space(graph: Graph, policy: StateSpacePolicy, observation: Tree, part: _Part) -> str:
    """x[k+1] = A x[k] + B y[k], u[k] = C x[k] + D y[k]."""
    y = _flat(graph, observation)
    u = row_products(graph, y, policy.D)
    if policy.states:
        x = graph.input("state", np.float64, (policy.states,))
        u = graph.node("Add", row_products(graph, x, policy.C), u)
        after = graph.node(
            "Add", row_products(graph, x, policy.A), row_products(graph, y, policy.B)
        )
        graph.output("next_state", after, np.float64, (policy.states,))
    return _bounded(graph, u, policy, part)


def _bounded(graph: Graph, u: str, policy: Any, part: _Part) -> str:
    """The input u of a classical controller, in its space and saturated at its bounds."""
    space = policy.action_space
    if not isinstance(space, spaces.Box):
        return shaped(graph, u, part.action_space)
    wide = spaces.Box(space.low.astype(np.float64), space.high.astype(np.float64), dtype=np.float64)
    return clipped(graph, shaped(graph, u, space), wide)


# --- comparing ------------------------------------------------------------------------------------


def _compared(part: _Part, exported: OnnxPolicy, steps: Iterator[Any]) -> Array:
    """How far the file's actions lie from those of `predict`, one number an observation.

    Raises:
        ValueError: further than is allowed.
    """
    found = []
    state: Any = None
    memory: Any = None
    for observation, masks, fresh in steps:
        asked = {"episode_start": fresh, "deterministic": True}
        asked |= {"action_masks": masks} if exported.takes_masks else {}
        expected, state = part.policy.predict(observation, state=state, **asked)
        action, memory = exported.predict(observation, state=memory, **asked)
        found.append(_difference(np.asarray(expected), action, part.action_space))
    apart = np.concatenate(found)
    _refuse_difference(apart, part.action_space, exported.name)
    return apart


def _refuse_difference(apart: Array, space: Space, name: str) -> None:
    average, most = (AVERAGE, MOST) if isinstance(space, spaces.Box) else (0.0, 0.0)
    mean, largest = float(np.mean(apart)), float(np.max(apart))
    if not (mean <= average and largest <= most):  # NaN is refused too
        raise ValueError(
            f"export_onnx: {name} is not written: its actions differ from those of predict by "
            f"{mean:.3g} on average and {largest:.3g} in observation {int(np.argmax(apart))} of "
            f"{len(apart)}, allowed {average:g} and {most:g}"
        )


def _difference(expected: Array, found: Array, space: Space) -> Array:
    """How far actions lie apart, (B,), in the units of `OnnxExport.mean_difference`."""
    rows = len(found)
    if expected.shape != found.shape:
        return np.full(rows, np.inf)
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return np.asarray(np.any((expected != found).reshape(rows, -1), axis=1), np.float64)
    wanted = expected.astype(np.float64)
    width = space.high.astype(np.float64) - space.low
    scale = np.where(np.isfinite(width) & (width > 0), width, np.maximum(1.0, np.abs(wanted)))
    step = np.spacing(np.abs(wanted).astype(np.float32))  # what rounding to float32 may do
    apart = np.maximum(np.abs(found - wanted) - step, 0.0) / scale
    return np.asarray(apart.reshape(rows, -1).max(axis=1, initial=0.0))


def _sampled(part: _Part) -> Iterator[tuple[Tree, Any, Array]]:
    """Steps of observations drawn from the space; every tenth row begins an episode."""
    generator = np.random.default_rng(0)
    for step in range(STEPS):
        observation = sample_observations(part.observation_space, ROWS, generator)
        masks = None
        if takes_masks(part.policy):
            masks = random_masks(part.action_space, ROWS, generator)
        yield observation, masks, (generator.random(ROWS) < 0.1) | (step == 0)


def _played(part: _Part, policy: Any, env: BatchEnv) -> Iterator[tuple[Tree, Any, Array]]:
    """Steps of the first episodes of seed 0, as the policy itself plays them."""
    episodes = Episodes(env)
    episodes.seed(0)
    episodes.begin(env.everyone)
    begin_policy(policy, env.everyone, episodes.streams)
    fresh, state = env.everyone.copy(), None
    wanted = takes_masks(policy) and hasattr(env, "action_masks")
    for _ in range(STEPS):
        observation = episodes.observe()
        masks = episodes.masks() if wanted else None
        own = None if masks is None else part.own(masks)
        agents = len(env.agents) if part.shared else 1
        yield part.own(observation), own, np.repeat(fresh, agents)
        actions, state = policy.predict(
            observation,
            state=state,
            episode_start=fresh,
            deterministic=True,
            **({} if masks is None else {"action_masks": masks}),
        )
        if isinstance(env.action_space, spaces.MultiBinary):
            actions = np.asarray(actions, np.int8)  # Stable-Baselines3 gives 0.0 and 1.0
        episodes.advance(actions, env.everyone)
        fresh = episodes.ended.copy()
        if fresh.any():
            episodes.begin(fresh)
            begin_policy(policy, fresh, episodes.streams)
