"""The state of a Stable-Baselines3 learner as plain files: JSON and safetensors, no pickle.

A checkpoint holds the weights, the optimisers, the counters, the normalisation statistics, the
state of the training environment (where it has `snapshot`) and, restored last, the states of the
random generators. For on-policy algorithms a resumed run then equals an unbroken one. A replay
buffer is not stored: off-policy algorithms go on with an empty one.
"""

from __future__ import annotations

import collections
import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from .policy_files import policy_files
from .safe_files import read_tensors, strict_json, write_tensors
from .spaces import Array

LEARNER, TENSORS = "learner.json", "learner.safetensors"
COUNTERS = ("num_timesteps", "_n_updates", "_episode_num", "_current_progress_remaining")
STATISTICS = ("obs_rms", "ret_rms")


def learner_files(algorithm: Any, notes: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a checkpoint, name -> bytes: the policy's own, and the learner's.

    Args:
        algorithm: a Stable-Baselines3 or sb3-contrib algorithm at a rollout boundary.
        notes: plain JSON kept beside the state (such as the learning curve).
    """
    arrays: dict[str, Array] = {}
    document: dict[str, Any] = {
        "counters": {name: _plain(getattr(algorithm, name, 0)) for name in COUNTERS},
        "episodes": list(algorithm.ep_info_buffer or ()),
        "python_random": random.getstate(),
        "notes": dict(notes),
    }
    document["optimisers"] = _store_parameters(algorithm, arrays)
    document["numpy_random"] = _store_generators(arrays)
    document["environment"] = _store_environment(algorithm, arrays)
    # bits, not numbers: a snapshot may hold NaN, which the tensor files refuse
    document["types"] = {name: array.dtype.str for name, array in arrays.items()}
    tensors = {name: _bits(array) for name, array in arrays.items()}
    files = policy_files(algorithm)
    text = json.dumps(document, allow_nan=False, sort_keys=True)
    return {**files, LEARNER: text.encode(), TENSORS: write_tensors(tensors, TENSORS)}


def restore_learner(algorithm: Any, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Put a fresh algorithm of the same configuration into the stored state.

    Returns:
        The notes.

    Raises:
        MalformedFile: the files are damaged.
        ValueError: the state belongs to another network or environment.
    """
    document = strict_json(files[LEARNER], LEARNER)
    arrays = {
        name: array.view(document["types"][name])
        for name, array in read_tensors(files[TENSORS], TENSORS).items()
    }
    _restore_parameters(algorithm, arrays, document["optimisers"])
    for name, value in document["counters"].items():
        setattr(algorithm, name, value)
    buffer = collections.deque(document["episodes"], maxlen=algorithm._stats_window_size)
    algorithm.ep_info_buffer = buffer
    algorithm.ep_success_buffer = collections.deque(maxlen=algorithm._stats_window_size)
    _restore_environment(algorithm, arrays, document["environment"])
    _restore_generators(arrays, document)
    return dict(document["notes"])


def _bits(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


# --- weights and optimisers -----------------------------------------------------------------------


def _store_parameters(algorithm: Any, arrays: dict[str, Array]) -> dict[str, Any]:
    optimisers: dict[str, Any] = {}
    for name, state in algorithm.get_parameters().items():
        if "param_groups" not in state:
            for key, tensor in state.items():
                arrays[f"weights/{name}/{key}"] = tensor.detach().cpu().numpy()
            continue
        for index, slots in state["state"].items():
            for slot, tensor in slots.items():
                arrays[f"optimiser/{name}/{index}/{slot}"] = tensor.detach().cpu().numpy()
        optimisers[name] = state["param_groups"]
    for name in algorithm._get_torch_save_params()[1]:
        tensor = getattr(algorithm, name)
        if tensor is not None:
            arrays[f"variable/{name}"] = tensor.detach().cpu().numpy()
    return optimisers


def _restore_parameters(
    algorithm: Any, arrays: Mapping[str, Array], optimisers: Mapping[str, Any]
) -> None:
    import torch

    states: dict[str, Any] = {}
    for path, array in arrays.items():
        kind, _, rest = path.partition("/")
        tensor = torch.from_numpy(array.copy())
        if kind == "weights":
            name, _, key = rest.partition("/")
            states.setdefault(name, {})[key] = tensor
        elif kind == "optimiser":
            name, index, slot = rest.split("/")
            state = states.setdefault(name, {"state": {}})["state"]
            state.setdefault(int(index), {})[slot] = tensor
        elif kind == "variable":
            getattr(algorithm, rest).data.copy_(tensor)
    for name, groups in optimisers.items():
        states.setdefault(name, {"state": {}})["param_groups"] = [
            {**group, **({"betas": tuple(group["betas"])} if "betas" in group else {})}
            for group in groups
        ]
    algorithm.set_parameters(states, exact_match=True, device=algorithm.device)


# --- random generators ----------------------------------------------------------------------------


def _store_generators(arrays: dict[str, Array]) -> list[Any]:
    import torch

    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 - SB3 uses it
    arrays["random/numpy"] = np.asarray(keys)
    arrays["random/torch"] = torch.get_rng_state().numpy()
    return [name, int(position), int(has_gauss), float(gauss)]


def _restore_generators(arrays: Mapping[str, Array], document: Mapping[str, Any]) -> None:
    import torch

    name, position, has_gauss, gauss = document["numpy_random"]
    state = (name, arrays["random/numpy"], position, has_gauss, gauss)
    np.random.set_state(state)  # noqa: NPY002 - SB3 uses it
    version, words, gauss_next = document["python_random"]
    random.setstate((version, tuple(words), gauss_next))
    torch.set_rng_state(torch.from_numpy(arrays["random/torch"].copy()))


# --- the training environment ---------------------------------------------------------------------


def _store_environment(algorithm: Any, arrays: dict[str, Array]) -> dict[str, Any]:
    view, normalise = algorithm.env.unwrapped, algorithm.get_vec_normalize_env()
    stored = {"rows": hasattr(view.batch, "snapshot"), "normalise": normalise is not None}
    if stored["rows"]:
        for name, array in view.snapshot().items():
            arrays[f"environment/{name}"] = array
        _store_tree("last/observation", algorithm._last_obs, arrays)
        arrays["last/starts"] = np.asarray(algorithm._last_episode_starts)
        if algorithm._last_original_obs is not None:
            _store_tree("last/original", algorithm._last_original_obs, arrays)
    if normalise is not None:
        arrays["normalise/returns"] = normalise.returns
        for name in STATISTICS:
            parts = getattr(normalise, name, None)
            for key, part in (parts if isinstance(parts, dict) else {"": parts}).items():
                if part is not None:
                    arrays[f"normalise/{name}/{key}/mean"] = np.asarray(part.mean)
                    arrays[f"normalise/{name}/{key}/var"] = np.asarray(part.var)
                    arrays[f"normalise/{name}/{key}/count"] = np.asarray(part.count)
    return stored


def _restore_environment(
    algorithm: Any, arrays: Mapping[str, Array], stored: Mapping[str, Any]
) -> None:
    view, normalise = algorithm.env.unwrapped, algorithm.get_vec_normalize_env()
    if stored["normalise"]:
        normalise.returns = arrays["normalise/returns"].copy()
        for name in STATISTICS:
            parts = getattr(normalise, name, None)
            for key, part in (parts if isinstance(parts, dict) else {"": parts}).items():
                if part is not None:
                    part.mean = arrays[f"normalise/{name}/{key}/mean"].copy()
                    part.var = arrays[f"normalise/{name}/{key}/var"].copy()
                    part.count = arrays[f"normalise/{name}/{key}/count"].item()
    if not stored["rows"]:
        return  # the next learn() begins new episodes
    prefix = "environment/"
    view.restore({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})
    algorithm._last_obs = _restore_tree("last/observation", arrays)
    algorithm._last_episode_starts = arrays["last/starts"].copy()
    algorithm._last_original_obs = _restore_tree("last/original", arrays)
    if normalise is not None:
        normalise.old_obs = algorithm._last_original_obs


def _store_tree(name: str, tree: Any, arrays: dict[str, Array]) -> None:
    if isinstance(tree, dict):
        for key, part in tree.items():
            arrays[f"{name}/{key}"] = part
    else:
        arrays[name] = tree


def _restore_tree(name: str, arrays: Mapping[str, Array]) -> Any:
    if name in arrays:
        return arrays[name].copy()
    parts = {k.removeprefix(f"{name}/"): v.copy() for k, v in arrays.items() if k.startswith(name)}
    return parts or None
