"""Run a small network without what surrounds it: weights read once, a padded forward pass.

Evaluation is bound by the policy call. `predict` of Stable-Baselines3 costs some 200 us for a
network whose arithmetic costs 15; the rest is conversion. `fast_policy` reads the weights of an
MLP actor, compares its actions with `predict` on 1000 observations, and answers None, with the
reason, whenever they differ or the policy is not of this kind. It is deterministic only.

The forward pass is NumPy's. Where a network amplifies its rounding beyond 1e-6, torch's own
operations, which add in the same order as `predict`, take its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from .batch import BatchEnv
from .policy import (
    Normalisation,
    NormalisedPolicy,
    Policy,
    SharedPolicy,
    Space,
    batch_size,
    takes_masks,
)
from .spaces import Array

TOLERANCE = 1e-6
OBSERVATIONS = 1000
ROW_MULTIPLE = 8  # a matrix product treats left-over rows by other code, with other bits
MASKED = np.float32(-1e8)  # the logit of a masked action, as sb3-contrib's MaskableCategorical


@dataclass(frozen=True)
class FastPathReport:
    """Whether the fast path was taken, and why or why not.

    Attributes:
        taken: the actions agree, so the fast path is used.
        reason: one sentence for `run.json`.
        largest_difference: between the actions of both paths, in units of max(1, half the width
            of the action space); the number of differing actions for discrete spaces; None if
            no comparison was made.
        observations: how many observations were compared.
    """

    taken: bool
    reason: str
    largest_difference: float | None = None
    observations: int = 0


class _NotSimple(Exception):
    """The policy is not a plain MLP actor; the message says why."""


def fast_policy(
    policy: Policy,
    env: BatchEnv | int,
    observations: Any = None,
    *,
    seed: int = 0,
) -> tuple[Policy | None, FastPathReport]:
    """A fast copy of a policy whose actions were checked, or None, with the reason.

    Args:
        policy: an algorithm of Stable-Baselines3, one of its policies, or one read from a file
            (with its normalisation statistics).
        env: what it will act in, or only its number of rows. The forward pass always has this
            many rows, so that a row's bits do not depend on what the others hold.
        observations: to compare on, (n, ...) or a dict of such. None: 1000 observations, uniform
            over bounded components, standard normal where there is no bound or one beyond 1e6.
        seed: of these observations.

    Raises:
        ValueError: fewer than 1 row.
    """
    width = env if isinstance(env, int) else env.rows
    if width < 1:
        raise ValueError(f"env: got {width} rows, allowed 1 or more")
    if isinstance(policy, SharedPolicy):  # its rows are the agents of all rows
        agents = policy.agents
        inner, report = fast_policy(policy.policy, width * len(agents), observations, seed=seed)
        return (None if inner is None else SharedPolicy(inner, agents)), report
    report = FastPathReport(False, "")
    try:
        for kind, name in ((FastPolicy, "NumPy"), (TorchFastPolicy, "torch")):
            fast = _read(policy, width, kind)
            if observations is None:
                generator = np.random.default_rng(seed)
                observations = sample_observations(fast.observation_space, OBSERVATIONS, generator)
            report = _judge(policy, fast, name, observations, seed)
            if report.taken:
                return fast, report
    except _NotSimple as why:
        return None, FastPathReport(False, str(why))
    return None, report


def _judge(
    policy: Any, fast: FastPolicy, name: str, observations: Any, seed: int
) -> FastPathReport:
    difference = _compare(policy, fast, observations, np.random.default_rng(seed))
    count = batch_size(observations)
    limit = TOLERANCE if isinstance(fast.action_space, spaces.Box) else 0.0
    if difference <= limit:  # NaN is refused too
        reason = f"{name} forward pass; actions agree with predict on {count} observations"
        return FastPathReport(True, reason, difference, count)
    reason = f"actions of a {name} forward pass differ from predict by {difference:.3g}, "
    return FastPathReport(False, f"{reason}allowed {limit:g}", difference, count)


class FastPolicy:
    """A multi-layer perceptron as an actor, in NumPy float32. Made by `fast_policy`.

    Every buffer is allocated once, for `width` rows (a multiple of 8 of them). Fewer rows are
    padded, more are cut into pieces of that width.

    Attributes:
        observation_space: before normalisation.
        action_space: what it acts in.
        width: rows of a forward pass.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        layers: list[tuple[Array, Array | None, str]],
        width: int,
        *,
        squashed: bool,
        masked: bool,
        normalisation: Normalisation | None,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.width = width
        self.takes_masks = masked
        self._fill, inputs = _filler(observation_space, normalisation)
        padded = -(-width // ROW_MULTIPLE) * ROW_MULTIPLE
        self._input = np.zeros((padded, inputs), np.float32)
        self._layers = []
        for weight, bias, activation in layers:
            matrix = np.ascontiguousarray(weight.T)
            out = np.zeros((padded, matrix.shape[1]), np.float32)
            # adding a whole array is twice as fast as broadcasting a row of it
            biases = np.zeros_like(out) if bias is None else np.broadcast_to(bias, out.shape).copy()
            self._layers.append((matrix, biases, activation, np.zeros_like(out), out))
        self._finish = _finisher(action_space, padded, squashed, masked)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Array, Any]:
        """In fresh memory, and deterministic only.

        Raises:
            ValueError: `deterministic` is False, or an observation of another shape.
        """
        if not deterministic:
            raise ValueError("deterministic: got False; the fast path has no random numbers")
        if type(observation) is np.ndarray and len(observation) == self.width:
            return self._forward(observation, self.width, action_masks), state
        pieces = []
        rows = batch_size(observation)
        for start in range(0, rows, self.width):
            part = slice(start, min(start + self.width, rows))
            if isinstance(observation, dict):
                given: Any = {key: array[part] for key, array in observation.items()}
            else:
                given = observation[part]
            masks = None if action_masks is None else action_masks[part]
            pieces.append(self._forward(given, part.stop - start, masks))
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)), state

    def _forward(self, observation: Any, rows: int, masks: Any) -> Array:
        self._fill(observation, self._input[:rows])
        return self._finish(self._run()[:rows], masks)

    def _run(self) -> Array:
        """Values of the last layer for the input buffer, all its rows."""
        x = self._input
        for matrix, biases, activation, zeros, out in self._layers:
            np.dot(x, matrix, out=out)
            np.add(out, biases, out=out)
            if activation == "Tanh":
                np.tanh(out, out=out)
            elif activation == "ReLU":
                np.maximum(out, zeros, out=out)
            x = out
        return x


class TorchFastPolicy(FastPolicy):
    """The same with torch's operations: the bits of `predict`, at a third of its cost."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        import torch

        super().__init__(*arguments, **keywords)
        self._torch = torch
        # no more rows than `predict` is given: at other sizes torch's products have other bits
        self._input = np.zeros((self.width, self._input.shape[1]), np.float32)
        self._tensor = torch.from_numpy(self._input)
        layers = arguments[2]
        self._modules = [
            (
                torch.from_numpy(weight.copy()),
                None if bias is None else torch.from_numpy(bias.copy()),
                {"": None, "Tanh": torch.tanh_, "ReLU": torch.relu_}[activation],
            )
            for weight, bias, activation in layers
        ]

    def _run(self) -> Array:
        with self._torch.inference_mode():
            x = self._tensor
            for weight, bias, activate in self._modules:
                x = self._torch.nn.functional.linear(x, weight, bias)
                if activate is not None:
                    activate(x)
            return np.asarray(x.numpy())


def _filler(
    space: Space, normalisation: Normalisation | None
) -> tuple[Callable[[Any, Array], None], int]:
    """A function that writes observations into the input buffer, and the number of inputs."""
    if isinstance(space, spaces.Dict):
        parts, at = [], 0
        for key, part in space.spaces.items():
            known = normalisation is not None and key in normalisation.mean
            size = int(np.prod(part.shape or ()))
            parts.append((key, at, at + size, _part(part, key, normalisation if known else None)))
            at += size

        def fill_all(observation: Any, out: Array) -> None:
            for key, start, stop, fill in parts:
                fill(observation[key], out[:, start:stop])

        return fill_all, at
    return _part(space, "", normalisation), int(np.prod(space.shape or ()))


def _part(space: Any, key: str, normalisation: Normalisation | None) -> Callable[..., None]:
    shape = tuple(space.shape)
    size = int(np.prod(shape))

    def checked(observation: Any, rows: int) -> Array:
        array = np.asarray(observation)
        if array.shape != (rows, *shape):
            raise ValueError(f"observation: got shape {array.shape}, allowed {(rows, *shape)}")
        return array.reshape(rows, size)

    if normalisation is None:

        def copy(observation: Any, out: Array) -> None:
            out[...] = checked(observation, len(out))

        return copy
    mean = normalisation.mean[key].reshape(size)
    deviation = np.sqrt(normalisation.variance[key].reshape(size) + normalisation.epsilon)
    limit = normalisation.limit

    def normalise(observation: Any, out: Array) -> None:  # the arithmetic of VecNormalize
        z = np.subtract(checked(observation, len(out)), mean, dtype=np.float64)
        np.divide(z, deviation, out=z)
        np.minimum(z, limit, out=z)
        np.maximum(z, -limit, out=z)
        out[...] = z

    return normalise


def _finisher(
    space: Space, width: int, squashed: bool, masked: bool
) -> Callable[[Array, Any], Array]:
    """A function that makes actions of the last layer's values."""
    if isinstance(space, spaces.Box):
        shape = space.shape
        low, high = (
            np.broadcast_to(b.ravel(), (width, b.size)).copy() for b in (space.low, space.high)
        )
        span = high - low

        def unscale(values: Array, masks: Any) -> Array:
            rows = len(values)
            out = np.tanh(values)
            out += np.float32(1.0)
            out *= np.float32(0.5)
            out *= span[:rows]
            out += low[:rows]
            return out.reshape(rows, *shape)

        def clip(values: Array, masks: Any) -> Array:
            rows = len(values)
            out: Array = np.maximum(values, low[:rows])
            np.minimum(out, high[:rows], out=out)
            return out.reshape(rows, *shape)

        return unscale if squashed else clip
    if isinstance(space, spaces.Discrete):

        def choose(values: Array, masks: Any) -> Array:
            if masked and masks is not None:
                values = np.where(masks, values, MASKED)
            return np.asarray(values.argmax(axis=1))

        return choose
    assert isinstance(space, spaces.MultiDiscrete)
    ends = list(itertools.accumulate(int(n) for n in space.nvec))
    spans = list(zip([0, *ends], ends, strict=False))

    def choose_each(values: Array, masks: Any) -> Array:
        if masked and masks is not None:
            values = np.where(masks, values, MASKED)
        return np.stack([values[:, a:b].argmax(axis=1) for a, b in spans], axis=1)

    return choose_each


# --- reading the weights --------------------------------------------------------------------------


def _read(policy: Any, width: int, kind: type[FastPolicy]) -> FastPolicy:
    normalisation = None
    if isinstance(policy, NormalisedPolicy):
        normalisation, policy = policy.normalisation, policy.policy
    normalisation = normalisation or getattr(policy, "normalisation", None)
    network = getattr(policy, "policy", policy)
    if type(network).__module__.split(".")[0] not in ("stable_baselines3", "sb3_contrib"):
        raise _NotSimple(f"{type(policy).__name__} is not a network of Stable-Baselines3")
    modules, extractor, squashed = _actor(network)
    _check_extractor(extractor, network)
    layers = _layers(modules)
    space = network.action_space
    discrete = isinstance(space, spaces.Discrete) and space.start == 0
    multi = isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1
    if not (isinstance(space, spaces.Box) or discrete or multi):
        raise _NotSimple(f"the action space is {space}")
    if isinstance(space, spaces.Box) and space.dtype != np.float32:
        raise _NotSimple(f"actions are {space.dtype}, not float32")
    return kind(
        network.observation_space,
        space,
        layers,
        width,
        squashed=squashed,
        masked=takes_masks(policy),
        normalisation=normalisation,
    )


def _actor(network: Any) -> tuple[list[Any], Any, bool]:
    """Modules from features to action values, the extractor, and whether tanh comes last."""
    from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from sb3_contrib.tqc.policies import TQCPolicy
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.dqn.policies import DQNPolicy
    from stable_baselines3.sac.policies import SACPolicy
    from stable_baselines3.td3.policies import TD3Policy

    if isinstance(network, RecurrentActorCriticPolicy):
        raise _NotSimple("the policy is recurrent")
    if isinstance(network, ActorCriticPolicy | MaskableActorCriticPolicy):
        if network.squash_output:
            raise _NotSimple("the policy squashes its output")
        modules = [*network.mlp_extractor.policy_net, network.action_net]
        return modules, network.pi_features_extractor, False
    if isinstance(network, SACPolicy | TQCPolicy):
        actor = network.actor
        return [*actor.latent_pi, actor.mu], actor.features_extractor, True
    if isinstance(network, TD3Policy):
        *modules, last = network.actor.mu
        if type(last).__name__ != "Tanh":
            raise _NotSimple("the actor does not end in tanh")
        return modules, network.actor.features_extractor, True
    if isinstance(network, DQNPolicy):
        return [*network.q_net.q_net], network.q_net.features_extractor, False
    raise _NotSimple(f"policy class {type(network).__name__} has no fast path")


def _check_extractor(extractor: Any, network: Any) -> None:
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor
    from torch import nn

    space = network.observation_space
    plain = type(extractor) is FlattenExtractor or (
        type(extractor) is CombinedExtractor
        and all(type(part) is nn.Flatten for part in extractor.extractors.values())
    )
    if not plain:
        raise _NotSimple(f"the features come from {type(extractor).__name__}")
    for part in space.spaces.values() if isinstance(space, spaces.Dict) else [space]:
        if not isinstance(part, spaces.Box):
            raise _NotSimple(f"an observation is {type(part).__name__}, not Box")
        if is_image_space(part):
            raise _NotSimple("an observation is a picture")


def _layers(modules: list[Any]) -> list[tuple[Array, Array | None, str]]:
    """Weight (out, in), bias (out,) and activation of each linear layer."""
    from torch import nn

    layers: list[tuple[Array, Array | None, str]] = []
    for module in modules:
        kind = type(module)
        if kind is nn.Linear:
            bias = None if module.bias is None else module.bias.detach().cpu().numpy().copy()
            layers.append((module.weight.detach().cpu().numpy(), bias, ""))
        elif kind in (nn.Tanh, nn.ReLU) and layers and not layers[-1][2]:
            layers[-1] = (*layers[-1][:2], kind.__name__)
        else:
            raise _NotSimple(f"the network has a {kind.__name__} layer")
    if not layers or layers[-1][2]:
        raise _NotSimple("the network does not end in a linear layer")
    if any(weight.dtype != np.float32 for weight, _, _ in layers):
        raise _NotSimple("the weights are not float32")
    return layers


# --- comparing ------------------------------------------------------------------------------------


def sample_observations(space: Space, count: int, generator: np.random.Generator) -> Any:
    """Observations (count, ...): uniform between bounds, standard normal where there are none."""
    if isinstance(space, spaces.Dict):
        return {
            key: sample_observations(part, count, generator) for key, part in space.spaces.items()
        }
    shape = (count, *(space.shape or ()))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
        return (space.start + generator.integers(sizes, size=shape)).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return generator.integers(2, size=shape).astype(space.dtype)
    assert isinstance(space, spaces.Box)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = (np.abs(low) <= 1e6) & (np.abs(high) <= 1e6)
    width = np.where(bounded, high - low, 0.0)
    even = np.where(bounded, low, 0.0) + generator.random(shape) * width
    normal = np.clip(generator.standard_normal(shape), low, high)
    return np.where(bounded, even, normal).astype(space.dtype)


def _compare(
    policy: Any,
    fast: FastPolicy,
    observations: Any,
    generator: np.random.Generator,
) -> float:
    """The largest difference between both paths, in the units of `FastPathReport`."""
    largest, width = 0.0, fast.width
    space = fast.action_space
    scale: Array = np.ones(())
    if isinstance(space, spaces.Box):
        half = (space.high.astype(np.float64) - space.low) / 2
        scale = np.maximum(1.0, np.where(np.isfinite(half), half, 1.0))
    for start in range(0, batch_size(observations), width):
        if isinstance(observations, dict):
            part: Any = {key: array[start : start + width] for key, array in observations.items()}
        else:
            part = observations[start : start + width]
        masks = random_masks(space, batch_size(part), generator) if fast.takes_masks else None
        given = {} if masks is None else {"action_masks": masks}
        slow, _ = policy.predict(part, deterministic=True, **given)
        quick, _ = fast.predict(part, action_masks=masks)
        if slow.shape != quick.shape or slow.dtype != quick.dtype:
            return float("inf")
        if isinstance(space, spaces.Box):
            apart = np.abs(quick.astype(np.float64) - slow) / scale
            largest = float(np.fmax(largest, np.max(apart, initial=0.0)))
            if np.isnan(apart).any():
                return float("nan")
        else:
            largest += float(np.count_nonzero(np.any(_rows(slow != quick), axis=1)))
    return largest


def _rows(array: Array) -> Array:
    return array.reshape(len(array), -1)


def random_masks(space: Space, rows: int, generator: np.random.Generator) -> Array:
    """Masks with at least one legal action in each component."""
    if isinstance(space, spaces.Discrete):
        sizes = [int(space.n)]
    elif isinstance(space, spaces.MultiDiscrete):
        sizes = [int(n) for n in space.nvec]
    else:  # MultiBinary: two choices a component
        sizes = [2] * int(np.prod(space.shape or ()))
    parts = []
    for size in sizes:
        legal = generator.random((rows, size)) < 0.5
        legal[np.arange(rows), generator.integers(size, size=rows)] = True
        parts.append(legal)
    return np.concatenate(parts, axis=1)
