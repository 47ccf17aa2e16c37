"""Policies on disk: JSON and safetensors, nothing that runs.

A policy is a folder (or a zip file) of

    policy.json             what it is: schema, kind, class names, settings, spaces
    weights.safetensors     its numbers
    statistics.safetensors  mean and variance of the observations it was trained on, if any

Class names are looked up in tables of the project, never imported by a name found in a file.
Everything a constructor defaulted to is written out, so that a file outlives changed defaults.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    read_limited,
    read_tensors,
    read_zip,
    strict_json,
    write_tensors,
)
from .sb3_networks import (
    ALGORITHMS,
    SETTINGS,
    StoredPolicy,
    build_network,
    is_number,
    plain_setting,
)
from .space_json import space_from_json, space_to_json
from .spaces import Array

FORMAT = "palestra-policy"
SCHEMA = 1
DESCRIPTION, WEIGHTS, STATISTICS = "policy.json", "weights.safetensors", "statistics.safetensors"

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
        if key in SETTINGS:
            settings[key] = plain_setting(key, given.get(key, parameter.default))
    return {"kind": "stable-baselines3", "algorithm": name, "policy": alias, "settings": settings}


def _state_arrays(policy: Any) -> dict[str, Array]:
    return {name: t.detach().cpu().numpy() for name, t in policy.state_dict().items()}


# --- reading --------------------------------------------------------------------------------------


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
    if not (is_number(epsilon) and is_number(limit) and sound):
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
    network = build_network(
        description["algorithm"],
        description["policy"],
        settings,
        _spaces(document, name),
        weights,
        name,
    )
    return StoredPolicy(description, network, normalisation)
