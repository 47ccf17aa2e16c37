"""The policy in a zip file of Stable-Baselines3, read without unpickling anything.

The tensors come through torch's restricted loader, settings only where they stand as plain JSON.
What is pickled beside them is left alone.
"""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle  # only for the name of torch's error
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from .policy import Normalisation, Space
from .safe_files import MalformedFile, UnsafeFile, read_zip, strict_json
from .sb3_networks import SETTINGS, StoredPolicy, build_network, plain_setting, policy_class
from .spaces import Array


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
    network_class = policy_class(algorithm, alias, name)
    settings = _found_settings(data, weights, algorithm, action_space)
    settings |= {k: plain_setting(k, v) for k, v in (policy_kwargs or {}).items() if k in SETTINGS}
    for key, parameter in inspect.signature(network_class.__init__).parameters.items():
        if key in SETTINGS and key not in settings:
            settings[key] = plain_setting(key, parameter.default)
    known = set(inspect.signature(network_class.__init__).parameters)
    settings = {key: value for key, value in settings.items() if key in known}
    network = build_network(
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
        if key in SETTINGS and SETTINGS[key](plain):
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
