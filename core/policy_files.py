"""Policies on disk: JSON and safetensors, nothing that runs.

A policy is a folder (or a zip file) of

    policy.json             what it is: schema, kind, class names, settings, spaces
    weights.safetensors     its numbers
    statistics.safetensors  mean and variance of the observations it was trained on, if any

Class names are looked up in tables of this module, never imported by a name found in a file.
Everything a constructor defaulted to is written out, so that a file outlives changed defaults.

Stable-Baselines3's own zips are read by `read_sb3_zip`: the tensors through torch's restricted
loader, settings only where they stand as plain JSON. What is pickled in them is left alone.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import itertools
import json
import math
import os
import pickle  # only for the name of torch's error
import re
import shutil
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from . import __version__
from .policy import (
    LinearPolicy,
    Normalisation,
    NormalisedPolicy,
    Policy,
    Space,
    StateSpacePolicy,
)
from .safe_files import (
    MalformedFile,
    UnsafeFile,
    read_limited,
    read_tensors,
    read_zip,
    strict_json,
    write_tensors,
)
from .spaces import Array

FORMAT = "palestra-policy"
SCHEMA = 1
DESCRIPTION, WEIGHTS, STATISTICS = "policy.json", "weights.safetensors", "statistics.safetensors"
SPACE_LIMIT = 2**25  # components of a space; four times a full-HD picture

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


# --- spaces ---------------------------------------------------------------------------------------


def space_to_json(space: Space) -> dict[str, Any]:
    """A space as JSON; infinite bounds are the texts "inf" and "-inf".

    Raises:
        TypeError: a space other than Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.
    """
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": space.dtype.name,
            "low": _bound_to_json(space.low),
            "high": _bound_to_json(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Dict):
        parts = [[name, space_to_json(part)] for name, part in space.spaces.items()]
        return {"type": "Dict", "spaces": parts}  # pairs: the order of the keys matters
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise TypeError(f"space: got {space}, which has no fixed array shape")


def space_from_json(value: Any, name: str = "space") -> Space:
    """The space that `space_to_json` wrote.

    Raises:
        MalformedFile: anything else.
    """
    readers: dict[str, Callable[..., Space]] = {
        "Box": _read_box,
        "Discrete": lambda n, start: spaces.Discrete(_whole(n, 1), start=_whole(start, None)),
        "MultiDiscrete": lambda nvec, start: spaces.MultiDiscrete(
            _integers(nvec), start=_integers(start)
        ),
        "MultiBinary": lambda shape: spaces.MultiBinary(_shape(shape)),
        "Dict": lambda parts: spaces.Dict(
            {str(key): space_from_json(part, f"{name}.{key}") for key, part in parts}
        ),
        "Tuple": lambda parts: spaces.Tuple(
            [space_from_json(part, f"{name}[{i}]") for i, part in enumerate(parts)]
        ),
    }
    if not isinstance(value, dict) or str(value.get("type")) not in readers:
        raise MalformedFile(f"{name}: expected an object whose type is one of {list(readers)}")
    fields = {key: part for key, part in value.items() if key != "type"}
    if "spaces" in fields:
        fields["parts"] = fields.pop("spaces")
    try:
        space = readers[str(value["type"])](**fields)
    except MalformedFile:
        raise
    except (TypeError, ValueError, AssertionError, OverflowError) as reason:
        raise MalformedFile(f"{name}: not a {value['type']} space ({reason})") from None
    if isinstance(space, spaces.Dict) and list(space.spaces) != [k for k, _ in fields["parts"]]:
        # Gymnasium sorts a plain dict by its keys
        space = spaces.Dict(OrderedDict((k, space.spaces[k]) for k, _ in fields["parts"]))
    return space


def _bound_to_json(bound: Array) -> Any:
    def number(value: Any) -> Any:
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")

    if bound.size and (bound == bound.flat[0]).all():
        return number(bound.flat[0].item())
    return [number(value) for value in bound.ravel().tolist()]


def _read_box(shape: Any, dtype: Any, low: Any, high: Any) -> spaces.Box:
    if not isinstance(dtype, str) or np.dtype(dtype).kind not in "fiu":
        raise ValueError(f"dtype {dtype!r}")
    size = _shape(shape)

    def bound(value: Any) -> Array:
        values = [
            {"inf": math.inf, "-inf": -math.inf}[v] if v in ("inf", "-inf") else v
            for v in (value if isinstance(value, list) else [value])
        ]
        if not all(type(v) in (int, float) for v in values):
            raise ValueError("bounds must be numbers")
        array = np.asarray(values, np.float64 if np.dtype(dtype).kind == "f" else None)
        filled = np.full(size, array[0]) if len(array) == 1 else array.reshape(size)
        return filled.astype(dtype)

    return spaces.Box(bound(low), bound(high), size, np.dtype(dtype).type)


def _whole(value: Any, least: int | None) -> int:
    if type(value) is not int or (least is not None and value < least) or abs(value) >= 2**62:
        raise ValueError(f"{value!r} is not an allowed integer")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    shape = tuple(_whole(n, 0) for n in value)
    if len(shape) > 8 or math.prod(shape) > SPACE_LIMIT:
        raise ValueError(f"shape {shape}: more than 8 axes or {SPACE_LIMIT} components")
    return shape


def _integers(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype != np.int64:
        raise ValueError("expected integers")
    return array


# --- writing --------------------------------------------------------------------------------------


def policy_files(policy: Any, normalisation: Any = None) -> dict[str, bytes]:
    """The files of a policy, name -> bytes, ready to be written anywhere.

    Args:
        policy: an algorithm of Stable-Baselines3 or sb3-contrib, a policy read from such files, a
            `LinearPolicy`, a `StateSpacePolicy`, or a `NormalisedPolicy` around one of these.
        normalisation: a `VecNormalize` or `Normalisation`. None: the one that the algorithm's own
            environment is wrapped in, if any.

    Raises:
        TypeError: a policy of another kind, or one made of classes of your own.
        ValueError: weights that are not finite.
    """
    if isinstance(policy, NormalisedPolicy):
        if normalisation is not None:
            raise TypeError("normalisation: the policy has statistics already")
        policy, normalisation = policy.policy, policy.normalisation
    if isinstance(policy, StoredPolicy):
        description, weights = policy.description, _state_arrays(policy.policy)
        normalisation = policy.normalisation if normalisation is None else normalisation
    elif isinstance(policy, LinearPolicy):
        description, weights = {"kind": "linear"}, {"gain": policy.gain}
    elif isinstance(policy, StateSpacePolicy):
        description = {"kind": "state-space", "dt": float(policy.dt)}
        weights = {name: getattr(policy, name) for name in "ABCD"}
    elif hasattr(policy, "policy_aliases"):
        description, weights = _describe_algorithm(policy), _state_arrays(policy.policy)
        if normalisation is None:
            normalisation = policy.get_vec_normalize_env()
    else:
        raise TypeError(
            f"policy: got {type(policy).__name__}, which cannot be stored without its code; "
            "keep it in a module and refer to it as module:object"
        )
    if normalisation is not None and not isinstance(normalisation, Normalisation):
        normalisation = Normalisation.of(normalisation)
    return _assemble(description, weights, policy, normalisation)


def save_policy(policy: Any, path: str | os.PathLike[str], normalisation: Any = None) -> None:
    """Write a policy to a new folder, or to a file if the path ends in `.zip`.

    It appears at once, complete, under its name.

    Raises:
        FileExistsError: there is something at this path.
        TypeError, ValueError: see `policy_files`.
    """
    target = Path(path)
    files = policy_files(policy, normalisation)
    if target.exists():
        raise FileExistsError(f"{target} exists; remove it or choose another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".tmp-{target.name}-", dir=target.parent))
    try:
        if target.suffix == ".zip":
            packed = working / target.name
            with zipfile.ZipFile(packed, "w") as archive:
                for name, content in files.items():  # a fixed date: equal policies, equal bytes
                    archive.writestr(zipfile.ZipInfo(name), content)
            packed.rename(target)
        else:
            for name, content in files.items():
                (working / name).write_bytes(content)
            working.chmod(0o755)
            working.rename(target)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _assemble(
    description: dict[str, Any],
    weights: dict[str, Array],
    policy: Any,
    normalisation: Normalisation | None,
) -> dict[str, bytes]:
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    shared, own = {}, {}
    for name, array in weights.items():
        place = (array.__array_interface__["data"][0], array.shape)
        original = first.setdefault(place, name) if array.size else name
        if original == name:
            own[name] = array
        else:
            shared[name] = original
    document = {"format": FORMAT, "schema": SCHEMA, **description}
    for name in ("observation_space", "action_space"):
        space = getattr(policy, name, None)
        document[name] = None if space is None else space_to_json(space)
    document["shared"] = shared
    document["normalisation"] = None
    files = {WEIGHTS: write_tensors(own, WEIGHTS)}
    if normalisation is not None:
        document["normalisation"] = {
            "keys": sorted(normalisation.mean),
            "epsilon": normalisation.epsilon,
            "limit": normalisation.limit,
        }
        statistics = {f"mean/{key}": value for key, value in normalisation.mean.items()}
        statistics |= {f"variance/{key}": value for key, value in normalisation.variance.items()}
        files[STATISTICS] = write_tensors(statistics, STATISTICS)
    document["written_by"] = {"palestra": __version__}
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    return {DESCRIPTION: text.encode() + b"\n", **files}


def _describe_algorithm(algorithm: Any) -> dict[str, Any]:
    name, policy = type(algorithm).__name__, algorithm.policy
    package, aliases = ALGORITHMS.get(name, ("", ()))
    if type(algorithm).__module__.split(".")[0] != package:
        raise TypeError(f"policy: got algorithm {name}, allowed {', '.join(ALGORITHMS)}")
    alias = next((a for a in aliases if algorithm.policy_aliases[a] is type(policy)), None)
    if alias is None:
        raise TypeError(
            f"policy: got policy class {type(policy).__name__}, allowed {', '.join(aliases)}; a "
            "class of your own cannot be stored without its code"
        )
    given = dict(algorithm.policy_kwargs)
    if hasattr(algorithm, "use_sde"):
        given["use_sde"] = algorithm.use_sde
    given["net_arch"] = getattr(policy, "net_arch", None)  # resolved, where none was given
    settings: dict[str, Any] = {}
    for key, parameter in inspect.signature(type(policy).__init__).parameters.items():
        if key in _SETTINGS:
            settings[key] = _plain(key, given.get(key, parameter.default))
    return {"kind": "stable-baselines3", "algorithm": name, "policy": alias, "settings": settings}


def _plain(key: str, value: Any) -> Any:
    """A policy's keyword argument as JSON."""
    if isinstance(value, type):
        value = value.__name__
    if isinstance(value, Mapping):
        value = {k: list(v) if isinstance(v, tuple) else v for k, v in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if not _SETTINGS[key](value):
        raise TypeError(
            f"policy_kwargs: {key} = {value!r} cannot be stored without its code; "
            "keep the policy in a module and refer to it as module:object"
        )
    return value


def _state_arrays(policy: Any) -> dict[str, Array]:
    return {name: t.detach().cpu().numpy() for name, t in policy.state_dict().items()}


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


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_extractor_settings(value: Any) -> bool:
    checks = {"features_dim": _is_count, "cnn_output_dim": _is_count, "normalized_image": _is_bool}
    return value is None or (
        isinstance(value, dict) and all(k in checks and checks[k](v) for k, v in value.items())
    )


def _is_few(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 64


_SETTINGS: dict[str, Callable[[Any], bool]] = {  # keyword of a policy class -> what it may be
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
    "log_std_init": _is_number,
    "clip_mean": _is_number,
    "n_critics": _is_few,
    "n_quantiles": _is_count,
    "lstm_hidden_size": _is_count,
    "n_lstm_layers": _is_few,
    "shared_lstm": _is_bool,
    "enable_critic_lstm": _is_bool,
    "lstm_kwargs": lambda value: value is None or value == {},
    "batch_norm": _is_bool,
    "batch_norm_momentum": _is_number,
    "batch_norm_eps": _is_number,
    "renorm_warmup_steps": lambda value: type(value) is int and value >= 0,
    "with_bias": _is_bool,
}


# --- reading --------------------------------------------------------------------------------------


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
        """Actions (B, ...) for observations (B, ...), as the algorithm's `predict` gives them."""
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
        action_masks: Any = None,
    ) -> Array:
        """Probability (for Box: density) of each action under the stochastic policy, (B,).

        Raises:
            ValueError: an algorithm other than A2C, MaskablePPO, PPO and TRPO.
        """
        import torch

        if self.algorithm not in ("A2C", "MaskablePPO", "PPO", "TRPO"):
            raise ValueError(f"action_prob: not defined for {self.algorithm}")
        if self.normalisation is not None:
            observation = self.normalisation(observation)
        self.policy.set_training_mode(False)
        masks = {"action_masks": action_masks} if self.takes_masks else {}
        with torch.no_grad():
            tensor, _ = self.policy.obs_to_tensor(observation)
            given = torch.as_tensor(np.asarray(actions)).reshape(len(actions), -1)
            if isinstance(self.action_space, spaces.Discrete):
                given = given.reshape(-1)
            _, log_prob, _ = self.policy.evaluate_actions(tensor, given, **masks)
        return np.exp(np.asarray(log_prob.numpy(), np.float64))


def read_policy(source: str | os.PathLike[str] | Mapping[str, bytes]) -> Policy:
    """The policy in a folder or zip file that `save_policy` wrote.

    Args:
        source: the path, or the files themselves, name -> bytes.

    Raises:
        MalformedFile: not such files, damaged, or of a newer schema.
        UnsafeFile: files that could harm the reader.
        FileNotFoundError: nothing there.
    """
    files, name = _gather(source)
    if DESCRIPTION not in files or WEIGHTS not in files:
        raise MalformedFile(f"{name}: expected {DESCRIPTION} and {WEIGHTS}")
    document = strict_json(files[DESCRIPTION], f"{name}/{DESCRIPTION}")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise MalformedFile(f"{name}/{DESCRIPTION}: format is not {FORMAT!r}")
    schema = document.get("schema")
    if type(schema) is not int or schema < 1:
        raise MalformedFile(f"{name}/{DESCRIPTION}: schema {schema!r}, allowed 1 to {SCHEMA}")
    if schema > SCHEMA:
        raise MalformedFile(
            f"{name}/{DESCRIPTION}: schema {schema}; palestra {__version__} reads schema 1 to "
            f"{SCHEMA}. Install a newer palestra"
        )
    weights = read_tensors(files[WEIGHTS], f"{name}/{WEIGHTS}")
    for alias, original in _mapping(document, "shared", name).items():
        if alias in weights or not isinstance(original, str) or original not in weights:
            raise MalformedFile(f"{name}/{DESCRIPTION}: shared tensor {alias!r} is not there")
        weights[alias] = weights[original]
    normalisation = _read_normalisation(document, files, name)
    kinds = {
        "stable-baselines3": _read_network,
        "linear": _read_linear,
        "state-space": _read_filter,
    }
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise MalformedFile(f"{name}/{DESCRIPTION}: kind {kind!r}, allowed {', '.join(kinds)}")
    _refuse_unknown(document, {*_KEYS, *_KEYS_OF_KIND[kind]}, f"{name}/{DESCRIPTION}")
    try:
        return kinds[kind](document, weights, normalisation, f"{name}/{DESCRIPTION}")
    except KeyError as reason:
        raise MalformedFile(f"{name}: {reason} is missing") from None


def _gather(source: Any) -> tuple[Mapping[str, bytes], str]:
    if isinstance(source, Mapping):
        return source, "policy"
    path = Path(source)
    if not path.is_dir():
        return read_zip(path, str(path)), str(path)
    names = (DESCRIPTION, WEIGHTS, STATISTICS)
    return {n: read_limited(path / n) for n in names if (path / n).exists()}, str(path)


_KEYS = (
    "format", "schema", "kind", "observation_space", "action_space", "shared", "normalisation",
    "written_by",
)  # fmt: skip
_KEYS_OF_KIND = {
    "stable-baselines3": ("algorithm", "policy", "settings"),
    "linear": (),
    "state-space": ("dt",),
}


def _refuse_unknown(document: Mapping[str, Any], known: set[str], name: str) -> None:
    for key in document:
        if key not in known:
            raise MalformedFile(f"{name}: unknown key {key!r}, allowed {', '.join(sorted(known))}")


def _mapping(document: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise MalformedFile(f"{name}/{DESCRIPTION}: {key} is not a JSON object")
    return value


def _read_normalisation(
    document: dict[str, Any], files: Mapping[str, bytes], name: str
) -> Normalisation | None:
    if document.get("normalisation") is None:
        return None
    settings = _mapping(document, "normalisation", name)
    _refuse_unknown(settings, {"keys", "epsilon", "limit"}, f"{name}/{DESCRIPTION}: normalisation")
    if STATISTICS not in files:
        raise MalformedFile(f"{name}: expected {STATISTICS}")
    tensors = read_tensors(files[STATISTICS], f"{name}/{STATISTICS}")
    keys = settings.get("keys")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise MalformedFile(f"{name}/{DESCRIPTION}: normalisation has no list of keys")
    if set(tensors) != {f"{part}/{key}" for part in ("mean", "variance") for key in keys}:
        raise MalformedFile(f"{name}/{STATISTICS}: tensors differ from the keys {keys}")
    epsilon, limit = settings.get("epsilon"), settings.get("limit")
    mean = {key: tensors[f"mean/{key}"] for key in keys}
    variance = {key: tensors[f"variance/{key}"] for key in keys}
    sound = all((v >= 0).all() and v.shape == mean[k].shape for k, v in variance.items())
    if not (_is_number(epsilon) and _is_number(limit) and sound):
        raise MalformedFile(f"{name}: the statistics are not sound")
    epsilon, limit = float(epsilon or 0.0), float(limit or 0.0)
    if epsilon < 0 or limit <= 0:
        raise MalformedFile(f"{name}: epsilon {epsilon}, limit {limit}: must not be negative")
    return Normalisation(mean, variance, epsilon, limit)


def _spaces(document: dict[str, Any], name: str) -> tuple[Space, Space]:
    return (
        space_from_json(document["observation_space"], f"{name}: observation_space"),
        space_from_json(document["action_space"], f"{name}: action_space"),
    )


def _wrapped(policy: Policy, normalisation: Normalisation | None) -> Policy:
    return policy if normalisation is None else NormalisedPolicy(policy, normalisation)


def _action_space(document: dict[str, Any], name: str) -> Space | None:
    value = document["action_space"]
    return None if value is None else space_from_json(value, f"{name}: action_space")


def _read_linear(
    document: dict[str, Any],
    weights: dict[str, Array],
    normalisation: Normalisation | None,
    name: str,
) -> Policy:
    try:
        policy = LinearPolicy(weights["gain"], _action_space(document, name))
    except MalformedFile:
        raise
    except ValueError as reason:
        raise MalformedFile(f"{name}: {reason}") from None
    return _wrapped(policy, normalisation)


def _read_filter(
    document: dict[str, Any],
    weights: dict[str, Array],
    normalisation: Normalisation | None,
    name: str,
) -> Policy:
    class Matrices:
        A, B, C, D = (weights[matrix] for matrix in "ABCD")
        dt = document["dt"]

    try:
        policy = StateSpacePolicy(Matrices, _action_space(document, name))
    except MalformedFile:
        raise
    except (TypeError, ValueError) as reason:
        raise MalformedFile(f"{name}: {reason}") from None
    return _wrapped(policy, normalisation)


def _read_network(
    document: dict[str, Any],
    weights: dict[str, Array],
    normalisation: Normalisation | None,
    name: str,
) -> Policy:
    keys = ("kind", "algorithm", "policy", "settings")
    description = {key: document[key] for key in keys}
    settings = description["settings"]
    if not isinstance(settings, dict):
        raise MalformedFile(f"{name}: settings is not a JSON object")
    network = _build_network(
        description["algorithm"],
        description["policy"],
        settings,
        _spaces(document, name),
        weights,
        name,
    )
    return StoredPolicy(description, network, normalisation)


def _policy_class(algorithm: Any, alias: Any, name: str) -> type[Any]:
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


def _build_network(
    algorithm: Any,
    alias: Any,
    settings: Mapping[str, Any],
    both_spaces: tuple[Space, Space],
    weights: Mapping[str, Array],
    name: str,
) -> Any:
    """A policy network of Stable-Baselines3 with the given tensors."""
    network_class = _policy_class(algorithm, alias, name)
    import torch
    from stable_baselines3.common import torch_layers

    parameters = inspect.signature(network_class.__init__).parameters
    for key, value in settings.items():
        if key not in _SETTINGS or key not in parameters or not _SETTINGS[key](value):
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


# --- Stable-Baselines3's own zips -----------------------------------------------------------------


def read_sb3_zip(
    path: str | os.PathLike[str],
    env_spaces: tuple[Space, Space],
    *,
    algorithm: str | None = None,
    policy_kwargs: Mapping[str, Any] | None = None,
    normalisation: Normalisation | None = None,
) -> StoredPolicy:
    """The policy in a zip file that an algorithm of Stable-Baselines3 saved. Nothing is unpickled.

    The spaces come from the environment, the layers from the shapes of the tensors, activation
    and extractor from the plain text beside the pickled settings, or from `policy_kwargs`.

    Args:
        path: the zip file.
        env_spaces: observation space and action space of the environment.
        algorithm: name of the algorithm; None: told from the names of the tensors.
        policy_kwargs: settings of the policy class that replace what was found.
        normalisation: statistics of the `VecNormalize` it was trained in, which SB3 stores apart.

    Raises:
        MalformedFile: not such a file, damaged, or its tensors do not fit the spaces.
        UnsafeFile: a file that could harm the reader.
        ValueError: it says of itself that it was made for other spaces.
    """
    name = str(path)
    members = read_zip(Path(path), name)
    if "policy.pth" not in members or "data" not in members:
        raise MalformedFile(f"{name}: expected members data and policy.pth")
    data = strict_json(members["data"], f"{name}/data")
    if not isinstance(data, dict):
        raise MalformedFile(f"{name}/data: not a JSON object")
    for kind, theirs in zip(("observation", "action"), env_spaces, strict=True):
        _compare_written(data.get(f"{kind}_space"), theirs, f"policy {name}: {kind} space")
    weights = read_torch(members["policy.pth"], f"{name}/policy.pth")
    if algorithm is None:
        algorithm = _recognise(weights, data, name)
    observation_space, action_space = copy.deepcopy(env_spaces)
    alias = _alias(algorithm, weights, observation_space)
    network_class = _policy_class(algorithm, alias, name)
    settings = _found_settings(data, weights, algorithm, action_space)
    settings |= {k: _plain(k, v) for k, v in (policy_kwargs or {}).items() if k in _SETTINGS}
    for key, parameter in inspect.signature(network_class.__init__).parameters.items():
        if key in _SETTINGS and key not in settings:
            settings[key] = _plain(key, parameter.default)
    known = set(inspect.signature(network_class.__init__).parameters)
    settings = {key: value for key, value in settings.items() if key in known}
    network = _build_network(
        algorithm, alias, settings, (observation_space, action_space), weights, name
    )
    description = {
        "kind": "stable-baselines3",
        "algorithm": algorithm,
        "policy": alias,
        "settings": settings,
    }
    return StoredPolicy(description, network, normalisation)


def _compare_written(written: Any, theirs: Space, name: str) -> None:
    """Compare what stands in plain text beside a pickled space with the environment's space."""
    if not isinstance(written, dict):
        return
    match = re.search(
        r"\.(Box|Discrete|MultiDiscrete|MultiBinary|Dict)'>$", str(written.get(":type:"))
    )
    if match is None:
        return
    kind, shape = match[1], written.get("_shape")
    ours = f"a {kind}"
    fits = isinstance(theirs, getattr(spaces, kind))
    if kind == "Discrete" and re.fullmatch(r"[0-9]{1,18}", str(written.get("n"))):
        ours = f"Discrete({written['n']})"
        fits = fits and int(written["n"]) == theirs.n  # type: ignore[attr-defined]
    elif kind == "Box" and isinstance(shape, list):
        ours = f"a Box of shape {tuple(shape)}"
        have = tuple(theirs.shape or ())
        # pictures are kept channel first, whatever the environment gives
        fits = fits and tuple(shape) in (have, (*have[-1:], *have[:-1]))
    if not fits:
        raise ValueError(
            f"{name} differs from the environment's: the policy has {ours}, "
            f"the environment {theirs}"
        )


def read_torch(content: bytes, name: str) -> dict[str, Array]:
    """The tensors of a state dictionary that `torch.save` wrote, by torch's restricted loader.

    Raises:
        MalformedFile: not such a file; strided views, sparse tensors, NaN or an infinity.
        UnsafeFile: anything else than tensors is pickled in it, or it is packed like a bomb.
    """
    if not content.startswith(b"PK\x03\x04"):
        raise UnsafeFile(f"{name}: a bare pickle, or not a file of torch; it is never unpickled")
    read_zip(content, name, folders=True)  # torch itself has no limits on sizes
    import torch

    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as reason:
        raise UnsafeFile(f"{name}: holds more than tensors ({_first_line(reason)})") from None
    except Exception as reason:  # torch raises whatever its parser trips over
        raise MalformedFile(f"{name}: not a file of torch ({_first_line(reason)})") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise MalformedFile(f"{name}: not a dictionary of tensors")
    arrays = {}
    for key, tensor in found.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise MalformedFile(f"{name}: {key!r} is not a plain tensor")
        # a view may claim far more numbers than are stored
        if not tensor.is_contiguous() or tensor.is_quantized or tensor.device.type != "cpu":
            raise MalformedFile(f"{name}: tensor {key!r} is a view")
        try:
            array = tensor.detach().numpy()
        except TypeError:
            raise MalformedFile(f"{name}: tensor {key!r} has type {tensor.dtype}") from None
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise MalformedFile(f"{name}: tensor {key!r} holds NaN or an infinity")
        arrays[key] = array
    return arrays


def _first_line(reason: BaseException) -> str:
    return str(reason).strip().split("\n")[0][:120]


def _recognise(weights: Mapping[str, Array], data: dict[str, Any], name: str) -> str:
    """The algorithm, by the names and shapes of its tensors."""

    def has(prefix: str) -> bool:
        return any(key.startswith(prefix) for key in weights)

    hint = data.get("policy_class")
    module = hint.get("__module__", "") if isinstance(hint, dict) else ""
    if has("lstm_actor."):
        return "RecurrentPPO"
    if has("mlp_extractor.") or "action_net.weight" in weights:
        # the tensors of MaskablePPO and PPO are named alike
        return "MaskablePPO" if str(module).startswith("sb3_contrib.common.maskable") else "PPO"
    if has("actor.latent_pi.") and any(key.endswith(".ra_mean") for key in weights):
        return "CrossQ"
    if has("actor.latent_pi.") or "actor.mu.weight" in weights:
        return "SAC" if _layers(weights, "critic.qf0")[-1:] == [1] else "TQC"
    if has("actor.mu."):
        return "TD3"
    if has("q_net."):
        return "DQN"
    if has("quantile_net."):
        return "QRDQN"
    raise MalformedFile(f"{name}: the tensors are of no algorithm that is known here")


def _alias(algorithm: str, weights: Mapping[str, Array], observation_space: Space) -> str:
    if isinstance(observation_space, spaces.Dict):
        alias = "MultiInputPolicy"
    elif any(".cnn." in f".{key}" for key in weights):
        alias = "CnnPolicy"
    else:
        alias = "MlpPolicy"
    return alias.replace("Policy", "LstmPolicy") if algorithm == "RecurrentPPO" else alias


def _layers(weights: Mapping[str, Array], prefix: str) -> list[int]:
    """Widths of the linear layers `prefix.0`, `prefix.2`, ... in order."""
    pattern = re.compile(re.escape(prefix) + r"\.(\d{1,4})\.weight")
    found = {}
    for key, array in weights.items():
        match = pattern.fullmatch(key)
        if match and array.ndim == 2:
            found[int(match[1])] = int(array.shape[0])
    return [found[index] for index in sorted(found)]


def _found_settings(
    data: dict[str, Any], weights: Mapping[str, Array], algorithm: str, action_space: Space
) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    written = data.get("policy_kwargs")
    for key, value in written.items() if isinstance(written, dict) else ():
        match = re.fullmatch(r"<class '(?:[A-Za-z0-9_]+\.)*([A-Za-z0-9]+)'>", str(value))
        plain = match[1] if match else value
        if key in _SETTINGS and _SETTINGS[key](plain):
            settings[key] = plain
    if type(data.get("use_sde")) is bool:
        settings["use_sde"] = data["use_sde"]
    heads = {
        "CrossQ": ("actor.latent_pi", "critic.qf0"),
        "DDPG": ("actor.mu", "critic.qf0"),
        "SAC": ("actor.latent_pi", "critic.qf0"),
        "TD3": ("actor.mu", "critic.qf0"),
        "TQC": ("actor.latent_pi", "critic.qf0"),
    }
    if algorithm in heads:
        actor, critic = (_layers(weights, prefix) for prefix in heads[algorithm])
        if heads[algorithm][0] == "actor.mu":
            actor = actor[:-1]
        settings["net_arch"] = {"pi": actor, "qf": critic[:-1]}
        critics = {m[1] for k in weights if (m := re.match(r"critic\.qf(\d{1,2})\.", k))}
        settings["n_critics"] = max(len(critics), 1)
        if algorithm == "TQC" and critic:
            settings["n_quantiles"] = critic[-1]
    elif algorithm in ("DQN", "QRDQN"):
        prefix = "q_net.q_net" if algorithm == "DQN" else "quantile_net.quantile_net"
        widths = _layers(weights, prefix)
        settings["net_arch"] = widths[:-1]
        if algorithm == "QRDQN" and widths and isinstance(action_space, spaces.Discrete):
            settings["n_quantiles"] = max(widths[-1] // int(action_space.n), 1)
    else:
        policy, value = (_layers(weights, f"mlp_extractor.{n}_net") for n in ("policy", "value"))
        settings["net_arch"] = {"pi": policy, "vf": value}
    if "lstm_actor.weight_hh_l0" in weights:
        settings["lstm_hidden_size"] = int(weights["lstm_actor.weight_hh_l0"].shape[-1])
        settings["n_lstm_layers"] = sum(k.startswith("lstm_actor.weight_hh_l") for k in weights)
        settings["enable_critic_lstm"] = "lstm_critic.weight_hh_l0" in weights
        settings["shared_lstm"] = not (settings["enable_critic_lstm"] or "critic.weight" in weights)
    for key, array in weights.items():
        if re.search(r"features_extractor\.linear\.0\.weight$", key):
            settings.setdefault("features_extractor_kwargs", {})["features_dim"] = len(array)
        elif re.search(r"features_extractor\.extractors\..*\.linear\.0\.weight$", key):
            settings.setdefault("features_extractor_kwargs", {})["cnn_output_dim"] = len(array)
    if any(".cnn." in f".{key}" for key in weights) and "lstm_hidden_size" not in settings:
        # separate extractors hold equal weights where the trained one was shared, not conversely
        settings["share_features_extractor"] = False
    return settings
