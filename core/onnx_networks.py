"""Networks of Stable-Baselines3 and sb3-contrib as ONNX graphs: what `predict` does, in full.

From the raw observation to the physical action: channels first, pictures to [0, 1], one-hot
categories; extractor and layers; then the mode of the distribution, and the bounds of the action.
Only the actor is written, without what explores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from .onnx_graph import Graph
from .policy import Space
from .spaces import Array, Tree

MASKED = np.float32(-1e8)  # the logit of a masked action, as sb3-contrib's MaskableCategorical
FAMILIES = ("stable_baselines3", "sb3_contrib")


class NotExportable(TypeError):
    """The policy has a part that is not known here; the message names it."""


def is_network(value: Any) -> bool:
    """Whether a value is a policy network of Stable-Baselines3, sb3-contrib, or derived."""
    return any(cls.__module__.split(".")[0] in FAMILIES for cls in type(value).__mro__) and hasattr(
        value, "state_dict"
    )


def write_network(graph: Graph, network: Any, observation: Tree, given: Space, masked: bool) -> str:
    """Write the deterministic actor of a network into a graph.

    Args:
        graph: to write into.
        network: policy network of Stable-Baselines3 or sb3-contrib.
        observation: names of the values of the observation, a tree as the space has it.
        given: space of the raw observation; its pictures may have their channels last.
        masked: the network minds masks; the graph gets an input `action_mask`.

    Returns:
        The name of the action's value, in the shape of the action space.

    Raises:
        NotExportable: a layer, an extractor or a policy class that is not known here.
    """
    from sb3_contrib.ars.policies import ARSPolicy
    from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from sb3_contrib.crossq.policies import CrossQPolicy
    from sb3_contrib.qrdqn.policies import QRDQNPolicy
    from sb3_contrib.tqc.policies import TQCPolicy
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.dqn.policies import DQNPolicy
    from stable_baselines3.sac.policies import SACPolicy
    from stable_baselines3.td3.policies import TD3Policy

    def features(extractor: Any) -> str:
        return _features(graph, network, extractor, observation, given)

    if isinstance(network, ActorCriticPolicy | MaskableActorCriticPolicy):
        x = features(network.pi_features_extractor)
        if isinstance(network, RecurrentActorCriticPolicy):
            x = _lstm_step(graph, x, network.lstm_actor)
        x = _layers(graph, x, network.mlp_extractor.policy_net, network.action_net)
        if network.squash_output:
            x = graph.node("Tanh", x)
    elif isinstance(network, SACPolicy | TQCPolicy | CrossQPolicy):
        x = features(network.actor.features_extractor)
        x = graph.node("Tanh", _layers(graph, x, network.actor.latent_pi, network.actor.mu))
    elif isinstance(network, TD3Policy):
        x = _layers(graph, features(network.actor.features_extractor), network.actor.mu)
    elif isinstance(network, ARSPolicy):
        x = _layers(graph, features(network.features_extractor), network.action_net)
    elif isinstance(network, DQNPolicy):
        x = _layers(graph, features(network.q_net.features_extractor), network.q_net.q_net)
    elif isinstance(network, QRDQNPolicy):
        inner = network.quantile_net
        x = _layers(graph, features(inner.features_extractor), inner.quantile_net)
        shape = np.array([-1, inner.n_quantiles, int(inner.action_space.n)], np.int64)
        x = graph.node("Reshape", x, graph.constant(shape))
        x = graph.node("ReduceMean", x, axes=[1], keepdims=0)
    else:
        raise NotExportable(f"policy class {type(network).__name__} is not known")
    return _action(graph, x, network, masked)


# --- from the observation to the features ---------------------------------------------------------


def _features(graph: Graph, network: Any, extractor: Any, observation: Tree, given: Space) -> str:
    from stable_baselines3.common.torch_layers import (
        CombinedExtractor,
        FlattenExtractor,
        NatureCNN,
    )

    space = network.observation_space
    if type(extractor) is CombinedExtractor:
        parts = []
        for key, part in extractor.extractors.items():
            x = _prepared(graph, network, observation[key], space[key], given[key])  # type: ignore[index]
            cnn = type(part) is NatureCNN
            parts.append(_layers(graph, x, *((part.cnn, part.linear) if cnn else (part,))))
        return graph.node("Concat", *parts, axis=1)
    x = _prepared(graph, network, observation, space, given)
    if type(extractor) is FlattenExtractor:
        return graph.node("Flatten", x, axis=1)
    if type(extractor) is NatureCNN:
        return _layers(graph, x, extractor.cnn, extractor.linear)
    raise NotExportable(f"the features come from {type(extractor).__name__}, which is not known")


def _prepared(graph: Graph, network: Any, x: str, space: Space, given: Space) -> str:
    """What Stable-Baselines3's `obs_to_tensor` and `preprocess_obs` make of an observation."""
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(space, spaces.Discrete):
        index = graph.node("Unsqueeze", graph.cast(x, np.int64), graph.constant([1]))
        return _one_hot(graph, index, [int(space.n)])
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(graph, graph.cast(x, np.int64), [int(n) for n in space.nvec])
    if isinstance(space, spaces.MultiBinary):
        return graph.cast(x, np.float32)
    if not isinstance(space, spaces.Box):
        raise NotExportable(f"an observation is {type(space).__name__}, which is not known")
    picture = is_image_space(space)
    if picture and given.shape != space.shape:
        x = graph.node("Transpose", x, perm=[0, 3, 1, 2])
    x = graph.cast(x, np.float32)
    if picture and network.normalize_images:
        x = graph.node("Div", x, graph.constant(np.float32(255.0)))
    return x


def _one_hot(graph: Graph, index: str, sizes: list[int]) -> str:
    """One-hot codes, side by side, of categories (B, components)."""
    component = np.repeat(np.arange(len(sizes)), sizes)
    category = np.concatenate([np.arange(size) for size in sizes])
    repeated = graph.node("Gather", index, graph.constant(component), axis=1)
    return graph.cast(graph.node("Equal", repeated, graph.constant(category)), np.float32)


# --- layers ---------------------------------------------------------------------------------------


def _layers(graph: Graph, x: str, *modules: Any) -> str:
    for module in modules:
        x = _layer(graph, x, module)
    return x


def _layer(graph: Graph, x: str, module: Any) -> str:
    from sb3_contrib.common.torch_layers import BatchRenorm1d
    from torch import nn

    kind = type(module)
    if kind is nn.Sequential:
        return _layers(graph, x, *module)
    if kind is nn.Flatten:
        return graph.node("Flatten", x, axis=1)
    if kind is nn.Linear:
        return _affine(graph, x, module.weight, module.bias)
    if kind is nn.Conv2d:
        return _convolution(graph, x, module)
    if kind is BatchRenorm1d:
        deviation = np.sqrt(_array(module.ra_var) + np.float32(module.eps))
        x = graph.node("Sub", x, graph.constant(_array(module.ra_mean)))
        x = graph.node("Div", x, graph.constant(deviation))
        if module.affine:
            x = graph.node("Mul", x, graph.constant(_array(module.scale)))
            x = graph.node("Add", x, graph.constant(_array(module.bias)))
        return x
    name = kind.__name__
    if kind is getattr(nn, name, None) and name in _ACTIVATIONS:
        return _ACTIVATIONS[name](graph, x, module)
    raise NotExportable(f"the network has a {name} layer, which is not known")


def _array(tensor: Any) -> Array:
    return np.asarray(tensor.detach().cpu().numpy(), np.float32)


def _affine(graph: Graph, x: str, weight: Any, bias: Any) -> str:
    offset = () if bias is None else (graph.constant(_array(bias)),)
    return graph.node("Gemm", x, graph.constant(_array(weight)), *offset, transB=1)


def _convolution(graph: Graph, x: str, module: Any) -> str:
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise NotExportable(f"a convolution is padded by {module.padding_mode} {module.padding}")
    offset = () if module.bias is None else (graph.constant(_array(module.bias)),)
    return graph.node(
        "Conv",
        x,
        graph.constant(_array(module.weight)),
        *offset,
        strides=list(module.stride),
        pads=[*module.padding, *module.padding],
        dilations=list(module.dilation),
        group=module.groups,
    )


def _named(operator: str, **attributes: str) -> Callable[[Graph, str, Any], str]:
    """An activation that ONNX has: attribute of the operator <- attribute of the torch module."""

    def write(graph: Graph, x: str, module: Any) -> str:
        given = {name: float(getattr(module, source)) for name, source in attributes.items()}
        return graph.node(operator, x, **given)

    return write


def _hardtanh(graph: Graph, x: str, module: Any) -> str:
    low, high = (graph.constant(np.float32(v)) for v in (module.min_val, module.max_val))
    return graph.node("Clip", x, low, high)


def _softplus(graph: Graph, x: str, module: Any) -> str:
    if module.beta != 1:
        raise NotExportable(f"the network has a Softplus layer of beta {module.beta}, allowed 1")
    return graph.node("Softplus", x)


def _gelu(graph: Graph, x: str, module: Any) -> str:
    if module.approximate != "none":
        raise NotExportable(f"the network has a GELU layer by {module.approximate}")
    scaled = graph.node("Mul", x, graph.constant(np.float32(math.sqrt(0.5))))
    below = graph.node("Add", graph.node("Erf", scaled), graph.constant(np.float32(1.0)))
    half = graph.node("Mul", x, graph.constant(np.float32(0.5)))
    return graph.node("Mul", half, below)


_ACTIVATIONS: dict[str, Callable[[Graph, str, Any], str]] = {
    "CELU": _named("Celu", alpha="alpha"),
    "ELU": _named("Elu", alpha="alpha"),
    "GELU": _gelu,
    "Hardtanh": _hardtanh,
    "Identity": lambda graph, x, module: x,
    "LeakyReLU": _named("LeakyRelu", alpha="negative_slope"),
    "Mish": lambda graph, x, module: graph.node(
        "Mul", x, graph.node("Tanh", graph.node("Softplus", x))
    ),
    "ReLU": _named("Relu"),
    "ReLU6": _hardtanh,
    "SELU": _named("Selu"),
    "SiLU": lambda graph, x, module: graph.node("Mul", x, graph.node("Sigmoid", x)),
    "Sigmoid": _named("Sigmoid"),
    "Softplus": _softplus,
    "Softsign": _named("Softsign"),
    "Tanh": _named("Tanh"),
}


def _lstm_step(graph: Graph, x: str, lstm: Any) -> str:
    """One step of torch.nn.LSTM: hidden and cell state come in and go out, (B, layers, H) each.

    i, f, o = sigmoid, g = tanh of W_ih x + b_ih + W_hh h + b_hh;  c' = f c + i g;  h' = o tanh(c').
    """
    if lstm.bidirectional or lstm.proj_size or not lstm.bias:
        raise NotExportable("the LSTM has two directions, a projection, or no bias")
    shape = (lstm.num_layers, lstm.hidden_size)
    before = {part: graph.input(f"state.{part}", np.float32, shape) for part in ("hidden", "cell")}
    after: dict[str, list[str]] = {"hidden": [], "cell": []}
    for layer in range(lstm.num_layers):
        place = graph.constant(np.int64(layer))
        h, c = (graph.node("Gather", before[part], place, axis=1) for part in before)
        w_ih, w_hh, b_ih, b_hh = (
            getattr(lstm, f"{name}_l{layer}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        gates = graph.node("Add", _affine(graph, x, w_ih, b_ih), _affine(graph, h, w_hh, b_hh))
        i, f, g, o = graph.nodes("Split", gates, outputs=4, axis=1)
        i, f, o = (graph.node("Sigmoid", gate) for gate in (i, f, o))
        kept, new = graph.node("Mul", f, c), graph.node("Mul", i, graph.node("Tanh", g))
        c = graph.node("Add", kept, new)
        x = graph.node("Mul", o, graph.node("Tanh", c))
        for part, value in (("hidden", x), ("cell", c)):
            after[part].append(graph.node("Unsqueeze", value, graph.constant([1])))
    for part, values in after.items():
        stacked = graph.node("Concat", *values, axis=1)
        graph.output(f"next_state.{part}", stacked, np.float32, shape)
    return x


# --- from the last layer to the action ------------------------------------------------------------


def _action(graph: Graph, x: str, network: Any, masked: bool) -> str:
    space = network.action_space
    if isinstance(space, spaces.Box):
        x = shaped(graph, graph.cast(x, space.dtype), space)
        return _unscaled(graph, x, space) if network.squash_output else clipped(graph, x, space)
    sizes = _categories(space, masked)
    if masked:
        mask = graph.input("action_mask", np.bool_, (sum(sizes),))
        x = graph.node("Where", mask, x, graph.constant(MASKED))
    if isinstance(space, spaces.Discrete):
        return graph.node("ArgMax", x, axis=1, keepdims=0)
    if isinstance(space, spaces.MultiBinary) and not masked:
        likely = graph.node("Greater", graph.node("Sigmoid", x), graph.constant(np.float32(0.5)))
        return shaped(graph, graph.cast(likely, space.dtype), space)
    ends = list(itertools.accumulate(sizes))
    choices = []
    for size, end in zip(sizes, ends, strict=True):
        part = graph.node("Slice", x, *(graph.constant([v]) for v in (end - size, end, 1)))
        choices.append(graph.node("ArgMax", part, axis=1, keepdims=1))
    return shaped(graph, graph.node("Concat", *choices, axis=1), space)


def _categories(space: Space, masked: bool) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec]
    if isinstance(space, spaces.MultiBinary):
        return [2 if masked else 1] * int(np.prod(space.shape))
    raise NotExportable(f"the action space is {space}, which is not known")


def shaped(graph: Graph, x: str, space: Space) -> str:
    """Actions (B, components) in the shape of their space."""
    shape = np.array([-1, *(space.shape or ())], np.int64)
    return graph.node("Reshape", x, graph.constant(shape))


def clipped(graph: Graph, x: str, space: spaces.Box) -> str:
    """Actions saturated at the bounds of their space; x has the type of the bounds."""
    return graph.node(
        "Min", graph.node("Max", x, graph.constant(space.low)), graph.constant(space.high)
    )


def _unscaled(graph: Graph, x: str, space: spaces.Box) -> str:
    """From [-1, 1] to the bounds of the space: low + 0.5 (x + 1) (high - low).

    Clipped as well: a runtime's tanh may step over 1 by its rounding, as onnxruntime's does.
    """
    one, half = (graph.constant(np.array(v, space.dtype)) for v in (1.0, 0.5))
    share = graph.node("Mul", half, graph.node("Add", x, one))
    above = graph.node("Mul", share, graph.constant(space.high - space.low))
    return clipped(graph, graph.node("Add", graph.constant(space.low), above), space)
