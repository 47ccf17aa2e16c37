"""Networks of Stable-Baselines3 and sb3-contrib as policies, built from settings and tensors.

Both readers stand on it: that of the project's own files and that of Stable-Baselines3's zips.
Class names are looked up in tables of this module, never imported by a name found in a file, and
no layer is made that is larger than the tensors of the file.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from .policy import NoProbability, Normalisation, Space, batch_size, certain_probability
from .safe_files import MalformedFile
from .spaces import Array

_THREE = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
ALGORITHMS: dict[str, tuple[str, tuple[str, ...]]] = {  # name -> package, policy classes
    "A2C": ("stable_baselines3", _THREE),
    "DDPG": ("stable_baselines3", _THREE),
    "DQN": ("stable_baselines3", _THREE),
    "PPO": ("stable_baselines3", _THREE),
    "SAC": ("stable_baselines3", _THREE),
    "TD3": ("stable_baselines3", _THREE),
    "ARS": ("sb3_contrib", ("MlpPolicy", "LinearPolicy")),
    "CrossQ": ("sb3_contrib", ("MlpPolicy",)),
    "MaskablePPO": ("sb3_contrib", _THREE),
    "QRDQN": ("sb3_contrib", _THREE),
    "RecurrentPPO": (
        "sb3_contrib",
        ("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"),
    ),
    "TQC": ("sb3_contrib", _THREE),
    "TRPO": ("sb3_contrib", _THREE),
}
ACTIVATIONS = (
    "CELU", "ELU", "GELU", "Hardtanh", "Identity", "LeakyReLU", "Mish", "ReLU", "ReLU6", "SELU",
    "SiLU", "Sigmoid", "Softplus", "Softsign", "Tanh",
)  # fmt: skip
EXTRACTORS = ("CombinedExtractor", "FlattenExtractor", "NatureCNN")


class StoredPolicy:
    """A network of Stable-Baselines3, rebuilt from its tensors, with its statistics.

    Only the network is here, not the algorithm: what an algorithm adds to a stochastic `predict`
    (DQN's exploration) is gone, so that DQN and QR-DQN act greedily.

    Attributes:
        algorithm: name of the algorithm that trained it.
        policy: the torch module, in evaluation mode, on the CPU.
        normalisation: frozen statistics of the observations, or None.
        observation_space: before normalisation.
        action_space: what it acts in.
        description: how the file describes it.
    """

    def __init__(
        self, description: Mapping[str, Any], policy: Any, normalisation: Normalisation | None
    ) -> None:
        self.description = dict(description)
        self.algorithm = str(description["algorithm"])
        self.policy = policy
        self.normalisation = normalisation
        self.observation_space: Space = policy.observation_space
        self.action_space: Space = policy.action_space
        self.takes_masks = self.algorithm == "MaskablePPO"

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """As the algorithm's `predict` acts; see `Policy.predict`."""
        if self.normalisation is not None:
            observation = self.normalisation(observation)
        masks = {"action_masks": action_masks} if self.takes_masks else {}
        actions, state = self.policy.predict(
            observation, state, episode_start, deterministic, **masks
        )
        return actions, state

    def action_prob(
        self,
        observation: Any,
        actions: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> Array:
        """Probability of each action, (B,); see `network_probability`.

        Raises:
            NoProbability: sampled actions of an algorithm other than A2C, MaskablePPO, PPO and
                TRPO; deterministic ones in a Box.
        """
        if not deterministic and self.algorithm not in ("A2C", "MaskablePPO", "PPO", "TRPO"):
            raise NoProbability(f"action_prob: not defined for {self.algorithm}")
        if self.normalisation is not None:
            observation = self.normalisation(observation)
        return network_probability(self.policy, observation, actions, deterministic, action_masks)


def network_probability(
    network: Any, observation: Any, actions: Any, deterministic: bool, action_masks: Any = None
) -> Array:
    """The probability with which a network of Stable-Baselines3 takes an action, as played.

    A Gaussian policy is clipped at the bounds of its Box. The number is then the density of the
    components inside, times the probability of lying beyond the bound for those at it.

    Args:
        network: the policy object inside an algorithm.
        observation: (B, ...), normalised.
        actions: (B, ...).
        deterministic: whether it took the mode, which for discrete actions has probability 1.
        action_masks: bool (B, n), for a network that takes masks.

    Returns:
        float64 (B,).

    Raises:
        NoProbability: no network with a plain distribution: one without `get_distribution`, with
            a memory, with state-dependent exploration; a deterministic action in a Box.
    """
    space = network.action_space
    if deterministic:
        return certain_probability(space, batch_size(observation))
    kind = type(network).__name__
    if not hasattr(network, "get_distribution") or hasattr(network, "lstm_actor"):
        raise NoProbability(f"action_prob: not defined for sampled actions of a {kind}")
    if getattr(network, "use_sde", False):
        raise NoProbability("action_prob: state-dependent exploration keeps its noise over steps")
    import torch

    masks = {} if action_masks is None else {"action_masks": action_masks}
    with torch.no_grad():
        tensor, _ = network.obs_to_tensor(observation)
        distribution = network.get_distribution(tensor, **masks)
        if isinstance(space, spaces.Box):
            inner = distribution.distribution
            both = inner.mean.cpu().numpy(), inner.stddev.cpu().numpy()
            return _clipped_density(*both, actions, space)
        given = torch.as_tensor(np.asarray(actions), device=network.device)
        given = given.reshape(-1) if isinstance(space, spaces.Discrete) else given.flatten(1)
        if isinstance(space, spaces.MultiBinary):
            given = given.float()  # torch's Bernoulli compares them with its logits
        log_probability = distribution.log_prob(given)
    return np.exp(np.asarray(log_probability.cpu().numpy(), np.float64))


def _clipped_density(mean: Array, deviation: Array, actions: Any, space: spaces.Box) -> Array:
    """Density of a Gaussian with independent components, clipped at the bounds of a Box."""
    from scipy.special import ndtr

    u = np.asarray(actions).reshape(len(mean), -1)
    low, high = space.low.ravel(), space.high.ravel()
    mu, sigma = mean.astype(np.float64), deviation.astype(np.float64)
    each = np.exp(-0.5 * ((u - mu) / sigma) ** 2) / (sigma * math.sqrt(2.0 * math.pi))
    with np.errstate(invalid="ignore"):
        each = np.where(u <= low, ndtr((low - mu) / sigma), each)
        each = np.where(u >= high, ndtr((mu - high) / sigma), each)
    return np.asarray(each.prod(axis=1))


# --- settings -------------------------------------------------------------------------------------


def _is_layers(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(_is_count(n) for n in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 2**24


def _is_architecture(value: Any) -> bool:
    if isinstance(value, dict):
        return set(value) <= {"pi", "vf", "qf"} and all(_is_layers(v) for v in value.values())
    return _is_layers(value)


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def is_number(value: Any) -> bool:
    """Whether a value from JSON is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def _is_extractor_settings(value: Any) -> bool:
    checks = {"features_dim": _is_count, "cnn_output_dim": _is_count, "normalized_image": _is_bool}
    return value is None or (
        isinstance(value, dict) and all(k in checks and checks[k](v) for k, v in value.items())
    )


def _is_few(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 64


SETTINGS: dict[str, Callable[[Any], bool]] = {  # keyword of a policy class -> what it may be
    "net_arch": _is_architecture,
    "activation_fn": lambda value: value in ACTIVATIONS,
    "features_extractor_class": lambda value: value in EXTRACTORS,
    "features_extractor_kwargs": _is_extractor_settings,
    "share_features_extractor": _is_bool,
    "normalize_images": _is_bool,
    "squash_output": _is_bool,
    "use_sde": _is_bool,
    "full_std": _is_bool,
    "use_expln": _is_bool,
    "log_std_init": is_number,
    "clip_mean": is_number,
    "n_critics": _is_few,
    "n_quantiles": _is_count,
    "lstm_hidden_size": _is_count,
    "n_lstm_layers": _is_few,
    "shared_lstm": _is_bool,
    "enable_critic_lstm": _is_bool,
    "lstm_kwargs": lambda value: value is None or value == {},
    "batch_norm": _is_bool,
    "batch_norm_momentum": is_number,
    "batch_norm_eps": is_number,
    "renorm_warmup_steps": lambda value: type(value) is int and value >= 0,
    "with_bias": _is_bool,
}


def plain_setting(key: str, value: Any) -> Any:
    """A policy's keyword argument as JSON.

    Raises:
        TypeError: a value that no file may hold.
    """
    if isinstance(value, type):
        value = value.__name__
    if isinstance(value, Mapping):
        value = {k: list(v) if isinstance(v, tuple) else v for k, v in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if not SETTINGS[key](value):
        raise TypeError(
            f"policy_kwargs: {key} = {value!r} cannot be stored without its code; "
            "keep the policy in a module and refer to it as module:object"
        )
    return value


# --- networks -------------------------------------------------------------------------------------


def policy_class(algorithm: Any, alias: Any, name: str) -> type[Any]:
    """The policy class that an algorithm has under an alias.

    Raises:
        MalformedFile: an algorithm or an alias that is not in `ALGORITHMS`.
        ImportError: the `train` extra is not installed.
    """
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise MalformedFile(f"{name}: algorithm {algorithm!r}, allowed {', '.join(ALGORITHMS)}")
    package, aliases = ALGORITHMS[algorithm]
    if alias not in aliases:
        raise MalformedFile(f"{name}: policy {alias!r}, allowed {', '.join(aliases)}")
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise ImportError(
            f"{name}: a policy of {algorithm} needs {package}; pip install 'palestra[train]'"
        ) from None
    found: type[Any] = getattr(module, algorithm).policy_aliases[alias]
    return found


def build_network(
    algorithm: Any,
    alias: Any,
    settings: Mapping[str, Any],
    both_spaces: tuple[Space, Space],
    weights: Mapping[str, Array],
    name: str,
) -> Any:
    """A policy network of Stable-Baselines3 with the given tensors, in evaluation mode.

    Raises:
        MalformedFile: settings that are not allowed, or tensors that do not fit them.
    """
    network_class = policy_class(algorithm, alias, name)
    import torch
    from stable_baselines3.common import torch_layers

    parameters = inspect.signature(network_class.__init__).parameters
    for key, value in settings.items():
        if key not in SETTINGS or key not in parameters or not SETTINGS[key](value):
            raise MalformedFile(f"{name}: setting {key} = {value!r} is not allowed")
    observation_space, action_space = both_spaces
    _refuse_oversized(settings, observation_space, action_space, weights, name)
    arguments: dict[str, Any] = copy.deepcopy(dict(settings))
    if "activation_fn" in arguments:
        arguments["activation_fn"] = getattr(torch.nn, arguments["activation_fn"])
    if "features_extractor_class" in arguments:
        arguments["features_extractor_class"] = getattr(
            torch_layers, arguments["features_extractor_class"]
        )
    if "lr_schedule" in parameters:
        arguments["lr_schedule"] = lambda _: 0.0
    if "ortho_init" in parameters:
        arguments["ortho_init"] = False  # the weights are replaced anyway
    try:
        with torch.random.fork_rng(devices=[]):  # initial weights draw from the global generator
            network = network_class(observation_space, action_space, **arguments)
    except (TypeError, ValueError, AssertionError, NotImplementedError, RuntimeError) as reason:
        raise MalformedFile(f"{name}: {algorithm} cannot be built ({reason})") from None
    _load_weights(network, weights, name)
    network.set_training_mode(False)
    return network


def _load_weights(network: Any, weights: Mapping[str, Array], name: str) -> None:
    import torch

    expected = {key: tensor.numpy() for key, tensor in network.state_dict().items()}
    missing, extra = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    if missing or extra:
        word, which = ("lacks", missing) if missing else ("has an unknown", extra)
        raise MalformedFile(f"{name}: the file {word} tensor {sorted(which)[0]!r}")
    for key, array in expected.items():
        given = weights[key]
        if (given.shape, given.dtype) != (array.shape, array.dtype):
            raise MalformedFile(
                f"{name}: tensor {key!r} is {given.dtype} {given.shape}, "
                f"expected {array.dtype} {array.shape}"
            )
    network.load_state_dict({key: torch.from_numpy(array) for key, array in weights.items()})


def _refuse_oversized(
    settings: Mapping[str, Any],
    observation_space: Space,
    action_space: Space,
    weights: Mapping[str, Array],
    name: str,
) -> None:
    """Refuse a description of layers larger than any tensor of the file, before they are made."""
    largest = max((array.size for array in weights.values()), default=0)
    features, layers = _feature_layers(settings, observation_space)
    width = features
    if "lstm_hidden_size" in settings:
        hidden = settings["lstm_hidden_size"]
        layers += [(4 * hidden, features), (4 * hidden, hidden)]
        width = hidden
    architecture = settings.get("net_arch") or []
    quantiles = settings.get("n_quantiles", 1)
    if isinstance(action_space, spaces.Discrete):
        outputs = quantiles * int(action_space.n)
    elif isinstance(action_space, spaces.MultiDiscrete):
        outputs = int(action_space.nvec.sum())
    else:
        outputs = quantiles
    for stack in architecture.values() if isinstance(architecture, dict) else [architecture]:
        widths = [width, *stack]
        layers += list(itertools.pairwise(widths))
    if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete) or quantiles > 1:
        layers.append((1, outputs))
    for rows, columns in layers:
        if rows * columns > largest:
            raise MalformedFile(
                f"{name}: describes a layer of {rows} x {columns}, "
                f"but the largest tensor has {largest} numbers"
            )


def _feature_layers(settings: Mapping[str, Any], space: Space) -> tuple[int, list[tuple[int, int]]]:
    """Number of features, and the layers that make them."""
    given = settings.get("features_extractor_kwargs") or {}
    extractor = settings.get("features_extractor_class", "FlattenExtractor")
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    features, layers = 0, []
    for part in parts:
        shape = tuple(part.shape or ())
        picture = extractor == "NatureCNN" or (
            extractor == "CombinedExtractor"
            and len(shape) == 3
            and (part.dtype == np.uint8 or given.get("normalized_image", False))
        )
        if picture and len(shape) == 3:
            out = given.get("features_dim" if extractor == "NatureCNN" else "cnn_output_dim")
            out = out or (512 if extractor == "NatureCNN" else 256)
            sides = [(((n - 8) // 4 + 1 - 4) // 2 + 1) - 2 for n in shape[1:]]
            layers.append((out, 64 * max(sides[0], 1) * max(sides[1], 1)))
            features += out
        else:
            features += int(spaces.flatdim(part))
    return features, layers
