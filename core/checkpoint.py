"""The state of a Stable-Baselines3 learner as plain files: JSON and safetensors, no pickle.

A checkpoint holds the weights, the optimisers, the counters, the normalisation statistics, the
state of the training environment (where it has `snapshot`) and, restored last, the states of the
random generators. On one thread a resumed run of an on-policy algorithm then equals an unbroken
one. What is not stored: a replay buffer (off-policy algorithms go on with an empty one), and the
state of an environment without `snapshot` (its rows go on with the next episodes).
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import global_random
from .policy_files import policy_files
from .safe_files import MalformedFile, read_tensors, strict_json, write_tensors
from .spaces import Array

LEARNER, TENSORS = "learner.json", "learner.safetensors"
COUNTERS = ("num_timesteps", "_n_updates", "_episode_num", "_current_progress_remaining")
STATISTICS = ("obs_rms", "ret_rms")
NOISE = ("exploration_mat", "exploration_matrices")  # of state-dependent exploration


def learner_files(algorithm: Any) -> dict[str, bytes]:
    """The files of a checkpoint, name -> bytes: the policy's own, and the learner's.

    Args:
        algorithm: a Stable-Baselines3 or sb3-contrib algorithm at the start of a rollout.

    Raises:
        TypeError, ValueError: see `palestra.policy_files.policy_files`.
    """
    arrays: dict[str, Array] = {}
    document: dict[str, Any] = {
        "counters": {name: _plain(getattr(algorithm, name, 0)) for name in COUNTERS},
        "episodes": [[e["r"], e["l"]] for e in algorithm.ep_info_buffer or ()],  # no clock
    }
    document["optimisers"] = _store_parameters(algorithm, arrays)
    document["environment"] = _store_environment(algorithm, arrays)
    document["random"] = _store_chance(algorithm, arrays)
    # bits, not numbers: a snapshot may hold NaN, which the tensor files refuse
    document["types"] = {name: array.dtype.str for name, array in arrays.items()}
    tensors = {name: _bits(array) for name, array in arrays.items()}
    files = policy_files(algorithm)
    text = json.dumps(document, allow_nan=False, sort_keys=True)
    return {**files, LEARNER: text.encode(), TENSORS: write_tensors(tensors, TENSORS)}


def restore_learner(algorithm: Any, files: Mapping[str, bytes]) -> None:
    """Put a fresh algorithm of the same configuration into the stored state, but for its chance.

    `learn` draws noise before it says that a rollout starts, which is when a checkpoint is made:
    only then `restore_chance` gives the random generators their places.

    Raises:
        MalformedFile: the files are damaged, or the state is one of another learner.
    """
    with _malformed_where_it_fails():
        document, arrays = _read(files)
        _restore_parameters(algorithm, arrays, document["optimisers"])
        for name in COUNTERS:
            setattr(algorithm, name, document["counters"][name])
        episodes = [{"r": r, "l": length, "t": 0.0} for r, length in document["episodes"]]
        algorithm.ep_info_buffer = collections.deque(episodes, maxlen=algorithm._stats_window_size)
        algorithm.ep_success_buffer = collections.deque(maxlen=algorithm._stats_window_size)
        _restore_environment(algorithm, arrays, document["environment"])


def restore_chance(algorithm: Any, files: Mapping[str, bytes]) -> None:
    """The random generators and the noise of exploration, at the start of the first rollout.

    Raises:
        MalformedFile: as `restore_learner`.
    """
    import torch

    with _malformed_where_it_fails():
        document, arrays = _read(files)
        for owner, name, _ in _noise(algorithm):
            setattr(owner, name, torch.from_numpy(arrays[f"random/{name}"].copy()))
        name, position, has_gauss, gauss = document["random"]["numpy"]
        version, words, gauss_next = document["random"]["python"]
        global_random.set_state(
            {
                "python": (version, tuple(words), gauss_next),
                "numpy": (name, arrays["random/numpy"], position, has_gauss, gauss),
                "torch": torch.from_numpy(arrays["random/torch"].copy()),
            }
        )


@contextlib.contextmanager
def _malformed_where_it_fails() -> Iterator[None]:
    """Whatever the state of a stranger trips over is the fault of its file."""
    try:
        yield
    except MalformedFile:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        said = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise MalformedFile(f"{LEARNER}: not a state of this learner ({said})") from problem


def _read(files: Mapping[str, bytes]) -> tuple[dict[str, Any], dict[str, Array]]:
    document = strict_json(files[LEARNER], LEARNER)
    arrays = {
        name: array.view(document["types"][name])
        for name, array in read_tensors(files[TENSORS], TENSORS).items()
    }
    return document, arrays


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
        plain: dict[str, Any] = {}  # SB3's RMSprop counts its steps in an int
        for index, slots in state["state"].items():
            for slot, value in slots.items():
                if hasattr(value, "detach"):
                    arrays[f"optimiser/{name}/{index}/{slot}"] = value.detach().cpu().numpy()
                else:
                    plain[f"{index}/{slot}"] = value
        optimisers[name] = {"groups": state["param_groups"], "plain": plain}
    for name, tensor in _variables(algorithm):
        arrays[f"variable/{name}"] = tensor.detach().cpu().numpy()
    return optimisers


def _variables(algorithm: Any) -> Iterator[tuple[str, Any]]:
    """Tensors that the algorithm keeps outside its networks, such as SAC's `log_ent_coef`."""
    for name in algorithm._get_torch_save_params()[1]:
        if getattr(algorithm, name) is not None:
            yield name, getattr(algorithm, name)
    if hasattr(getattr(algorithm, "weights", None), "detach"):  # ARS's vector of parameters
        yield "weights", algorithm.weights


def _restore_parameters(
    algorithm: Any, arrays: Mapping[str, Array], optimisers: Mapping[str, Any]
) -> None:
    import torch

    variables = dict(_variables(algorithm))
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
            variables[rest].data.copy_(tensor)
    for name, optimiser in optimisers.items():
        state = states.setdefault(name, {"state": {}})
        for place, value in optimiser["plain"].items():
            index, _, slot = place.partition("/")
            state["state"].setdefault(int(index), {})[slot] = value
        state["param_groups"] = [
            {**group, **({"betas": tuple(group["betas"])} if "betas" in group else {})}
            for group in optimiser["groups"]
        ]
    algorithm.set_parameters(states, exact_match=True, device=algorithm.device)


# --- chance ---------------------------------------------------------------------------------------


def _store_chance(algorithm: Any, arrays: dict[str, Array]) -> dict[str, Any]:
    for _, name, tensor in _noise(algorithm):
        arrays[f"random/{name}"] = tensor.detach().cpu().numpy()
    state = global_random.get_state()
    name, keys, position, has_gauss, gauss = state["numpy"]
    arrays["random/numpy"] = np.asarray(keys)
    arrays["random/torch"] = state["torch"].numpy()
    return {
        "python": state["python"],
        "numpy": [name, int(position), int(has_gauss), float(gauss)],
    }


def _noise(algorithm: Any) -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and tensor of the noise that state-dependent exploration holds between steps."""
    distribution = getattr(algorithm.policy, "action_dist", None)
    for name in NOISE:
        if hasattr(distribution, name):
            yield distribution, name, getattr(distribution, name)


# --- the training environment ---------------------------------------------------------------------


def _store_environment(algorithm: Any, arrays: dict[str, Array]) -> dict[str, Any]:
    view, normalise = algorithm.env.unwrapped, algorithm.get_vec_normalize_env()
    running = algorithm._last_obs is not None and hasattr(view.batch, "snapshot")
    stored = {"rows": running, "normalise": normalise is not None}
    if running:
        for name, array in view.snapshot().items():
            arrays[f"environment/{name}"] = array
        _store_tree("last/observation", algorithm._last_obs, arrays)
        arrays["last/starts"] = np.asarray(algorithm._last_episode_starts)
        if algorithm._last_original_obs is not None:
            _store_tree("last/original", algorithm._last_original_obs, arrays)
        for name, tensor in _memory(algorithm):
            arrays[f"last/{name}"] = tensor.detach().cpu().numpy()
    else:
        arrays["environment/seed"] = view.episodes.streams.seed.copy()
        arrays["environment/upcoming"] = view.episodes.upcoming.copy()
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
    import torch

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
    if not stored["rows"]:  # learn() begins new episodes: not those that were played already
        episodes = view.episodes
        view.seed(None)
        episodes.streams.set_seeds(arrays["environment/seed"])
        episodes.upcoming[:] = arrays["environment/upcoming"]
        episodes.seeded = True
        return
    prefix = "environment/"
    view.restore({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})
    algorithm._last_obs = _restore_tree("last/observation", arrays)
    algorithm._last_episode_starts = arrays["last/starts"].copy()
    algorithm._last_original_obs = _restore_tree("last/original", arrays)
    for name, tensor in _memory(algorithm):
        tensor.copy_(torch.from_numpy(arrays[f"last/{name}"].copy()))
    if normalise is not None:
        normalise.old_obs = algorithm._last_original_obs


def _memory(algorithm: Any) -> Iterator[tuple[str, Any]]:
    """What a recurrent policy remembers of the running episodes."""
    states = getattr(algorithm, "_last_lstm_states", None)
    for index, tensor in enumerate(itertools.chain(*(states or ()))):
        yield f"memory/{index}", tensor


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
