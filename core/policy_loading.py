"""Make a policy of what a person has: a name, a file, a run folder, a function, an object.

    load_policy("random", env)                      a registered name; ./random is a path
    load_policy("runs/nmr-relax", env)              a run folder: its best checkpoint, else its last
    load_policy("model.zip", env)                   Stable-Baselines3, read safely
    load_policy("K.csv", env)                       u = -K x
    load_policy("mine.py:Controller", env)          runs mine.py
    load_policy(lambda x: -x, env)

`module:object` and `file.py:object` run the code they name: that is the choice of whoever writes
them on a command line. They are never taken from inside a file.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from .onnx_policy import ONNX_LIMIT, OnnxPolicy
from .policy import (
    AgentPolicies,
    FunctionPolicy,
    LinearPolicy,
    Normalisation,
    NormalisedPolicy,
    Policy,
    RandomPolicy,
    SharedPolicy,
    Space,
    StateSpacePolicy,
)
from .policy_files import DESCRIPTION, read_policy
from .registry import LEADS_ELSEWHERE, UnknownName, did_you_mean, load_object, squash
from .safe_files import MalformedFile, UnsafeFile, read_limited, read_matrix, read_zip
from .sb3_zip import read_sb3_zip
from .spaces import Array
from .store import RunFolder

PLUGIN_GROUP = "palestra.policies"
UNPICKLED = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".npz")
FILES = (".zip", ".onnx", ".csv", ".npy", ".mat")
_ALLOWED = (
    f"a registered name, a run folder, a file ({', '.join(FILES)}), module:object, or "
    "path/file.py:object"
)


def load_policy(reference: Any, env: Any) -> Policy:
    """The policy that a reference names, checked against the spaces of an environment.

    Args:
        reference: an object with `predict`; a class of such, which is instantiated (with `env`,
            if its constructor takes it); a function observation -> action; a mapping agent ->
            reference; a state-space object of python-control; a gain matrix (array); or text: a
            registered name, a run folder, a folder or zip file of `save_policy`, a zip file of
            Stable-Baselines3, `.onnx`, a gain matrix in `.csv`, `.npy` or `.mat`,
            `module:object`, `path/file.py:object`.
        env: has `observation_space` and `action_space` of one copy (of one agent, or keyed by
            agent, where it has `agents`).

    Raises:
        UnknownName: a name that nothing is registered under; near names are suggested.
        FileNotFoundError: a path with nothing there.
        MalformedFile, UnsafeFile: a file that is broken, or could do harm.
        ImportError: a module or library that is missing.
        TypeError: an object that is no policy.
        ValueError: the policy does not fit the spaces.
    """
    name = str(reference) if isinstance(reference, str | Path) else type(reference).__name__
    agents = tuple(getattr(env, "agents", ()))
    if isinstance(reference, Mapping):
        return _one_per_agent(reference, env, agents)
    if isinstance(reference, str | Path):
        reference = _from_text(str(reference), env)
    policy = _from_object(reference, env)
    if agents and _is_for_one_agent(policy, env, agents):
        _check_spaces(policy, env.observation_space, env.action_space, name)
        return SharedPolicy(policy, agents)
    _check_spaces(policy, env.observation_space, env.action_space, name)
    return policy


def policy_names() -> dict[str, str]:
    """Registered policies, name -> "module:object". Imports none of them."""
    names = {"random": "palestra.policy:RandomPolicy", "pretrained": "palestra.shipped:pretrained"}
    shipped: dict[str, str] = getattr(
        importlib.import_module("palestra.controllers"), "CATALOGUE", {}
    )
    names.update(shipped)
    taken = {squash(name) for name in names}
    for point in importlib.metadata.entry_points(group=PLUGIN_GROUP):
        if squash(point.name) not in taken:
            taken.add(squash(point.name))
            names[point.name] = point.value
    return names


def registered_name(text: str) -> str | None:
    """The registered policy that a text names, whatever lies in the working directory.

    Case and punctuation do not matter, but a text with a separator, colon or dot is a path or a
    reference: `./deft` never names the registered `deft`.
    """
    names = policy_names()
    if text in names:
        return text
    if LEADS_ELSEWHERE.search(text):
        return None
    return {squash(name): name for name in names}.get(squash(text))


def policy_reference(policy: Any) -> Any:
    """What tells a policy that was given as text from others of the same short name.

    A registered name in its own spelling; of `path/file.py:name` the file's name without its
    folder, because a run may be moved together with its code; by agent, where policies are. None
    for an object.
    """
    if isinstance(policy, Mapping):
        return {str(agent): policy_reference(part) for agent, part in policy.items()}
    if not isinstance(policy, str | Path):
        return None
    text = str(policy)
    place, _, name = text.rpartition(":")
    if place.endswith(".py") and name:
        return f"{Path(place).name}:{name}"
    return registered_name(text) or text


def policy_code(policy: Any) -> Any:
    """The reference to the code of a policy, as `palestra.code_identity.code_files` takes it."""
    if isinstance(policy, Mapping):
        return {str(agent): policy_code(part) for agent, part in policy.items()}
    if not isinstance(policy, str | Path):
        return None
    name = registered_name(str(policy))
    return str(policy) if name is None else policy_names()[name]


# --- text -----------------------------------------------------------------------------------------


def _from_text(text: str, env: Any) -> Any:
    if not text.strip():
        raise UnknownName(f"policy: got {text!r}, allowed {_ALLOWED}")
    if (name := registered_name(text)) is not None:
        return load_object(policy_names()[name])
    path = Path(text)
    if path.exists():
        return _from_path(path, env)
    if _is_object_reference(text):
        return load_object(text)
    if path.suffix.lower() in (*FILES, *UNPICKLED) or "/" in text or "\\" in text:
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        near = did_you_mean(path.name, [sibling.name for sibling in siblings])
        raise FileNotFoundError(f"policy: there is no {text!r}{near}")
    raise UnknownName(
        f"policy: nothing is called {text!r}{did_you_mean(text, policy_names())} A policy is "
        f"{_ALLOWED}; registered are {', '.join(sorted(policy_names()))}"
    )


def _is_object_reference(text: str) -> bool:
    place, _, name = text.rpartition(":")
    dotted = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
    if not re.fullmatch(dotted, name):
        return False
    return place.endswith(".py") or re.fullmatch(dotted, place) is not None


def _from_path(path: Path, env: Any) -> Any:
    if path.is_dir():
        return _from_folder(path)
    suffix = path.suffix.lower()
    if suffix in UNPICKLED:
        raise UnsafeFile(
            f"{path}: a {suffix} file can run code when it is loaded, so it is never loaded. Save "
            "the policy with palestra.policy_files.save_policy, or as .zip, .onnx or .npy"
        )
    if suffix == ".zip":
        if DESCRIPTION in read_zip(path, str(path)):
            return read_policy(path)
        return read_sb3_zip(path, (env.observation_space, env.action_space))
    if suffix == ".onnx":
        return OnnxPolicy(read_limited(path, ONNX_LIMIT), env.action_space, name=str(path))
    if suffix in (".csv", ".npy", ".mat"):
        return _linear(read_matrix(path), env, str(path))
    raise MalformedFile(f"policy: {path}: suffix {suffix!r}, allowed {', '.join(FILES)}")


def _from_folder(path: Path) -> Policy:
    if (path / DESCRIPTION).exists():
        return read_policy(path)
    if not (path / "run.json").exists():
        raise MalformedFile(f"policy: {path} is neither a run folder nor a policy's folder")
    run = RunFolder.open(path)
    checkpoint = run.latest("best-")
    if checkpoint is None and (checkpoint := run.latest()) is not None:
        warnings.warn(
            f"{path}: its best policy (checkpoints/best-...) is missing or damaged; the last one, "
            f"{checkpoint.name}, is taken",
            stacklevel=5,
        )
    if checkpoint is None or not (checkpoint / DESCRIPTION).exists():
        raise FileNotFoundError(f"policy: {path} has no checkpoint with a policy (yet)")
    return read_policy(checkpoint)


# --- objects --------------------------------------------------------------------------------------


def _from_object(value: Any, env: Any) -> Policy:
    if isinstance(value, type):
        value = _instantiate(value, env)
    elif inspect.isfunction(value) and next(iter(inspect.signature(value).parameters), "") == "env":
        value = value(env)  # a function that makes a policy for an environment
    if isinstance(value, np.ndarray):
        return _linear(value, env, "gain")
    if hasattr(value, "predict"):
        return _with_own_statistics(value)
    if all(hasattr(value, name) for name in ("A", "B", "C", "D", "dt")):
        return StateSpacePolicy(value, env.action_space)
    if callable(value):
        return FunctionPolicy(value)
    raise TypeError(
        f"policy: got {type(value).__name__}, expected an object with predict, a class of such, a "
        "function, a mapping agent -> policy, a gain matrix or a state-space object"
    )


def _instantiate(cls: type[Any], env: Any) -> Any:
    if issubclass(cls, RandomPolicy):
        return cls(env.action_space, tuple(getattr(env, "agents", ())))
    parameters = inspect.signature(cls).parameters
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if "env" in parameters:
        return cls(env=env) if set(required) <= {"env"} else _refuse_constructor(cls, required)
    if not required:
        return cls()
    if len(required) == 1 and parameters[required[0]].kind in positional:
        return cls(env)
    return _refuse_constructor(cls, required)


def _refuse_constructor(cls: type[Any], required: list[str]) -> Any:
    raise TypeError(
        f"policy: {cls.__name__} needs {', '.join(required)}; a class named as a policy is called "
        "with env or with nothing. Write a function of env that returns the object"
    )


def _linear(gain: Array, env: Any, name: str) -> LinearPolicy:
    try:
        return LinearPolicy(gain, env.action_space)
    except ValueError as reason:
        raise ValueError(f"policy {name}: {reason}") from None


def _with_own_statistics(policy: Any) -> Policy:
    """An algorithm that was trained in a VecNormalize gets a frozen copy of its statistics."""
    statistics = (
        policy.get_vec_normalize_env() if hasattr(policy, "get_vec_normalize_env") else None
    )
    normalisation = None if statistics is None else Normalisation.of(statistics)
    found: Policy = policy
    return found if normalisation is None else NormalisedPolicy(found, normalisation)


def _one_per_agent(reference: Mapping[str, Any], env: Any, agents: tuple[str, ...]) -> Policy:
    if not agents:
        raise TypeError("policy: got a mapping agent -> policy, but the environment has one agent")

    class OneAgent:
        def __init__(self, agent: str) -> None:
            self.team = env
            both = (env.observation_space, env.action_space)
            self.observation_space, self.action_space = (
                s[agent] if isinstance(s, spaces.Dict) and set(s) == set(agents) else s
                for s in both
            )

    unknown = sorted(set(reference) - set(agents))
    if unknown:
        raise ValueError(
            f"policy: there is no agent {unknown[0]!r}{did_you_mean(unknown[0], agents)} "
            f"The agents are {', '.join(agents)}"
        )
    loaded = {agent: load_policy(part, OneAgent(agent)) for agent, part in reference.items()}
    return AgentPolicies(loaded, agents)


def _is_for_one_agent(policy: Any, env: Any, agents: tuple[str, ...]) -> bool:
    """Whether the policy was made for one of several agents that share a space."""
    shared = not isinstance(env.action_space, spaces.Dict) or set(env.action_space) != set(agents)
    if isinstance(policy, RandomPolicy | AgentPolicies | SharedPolicy) or not shared:
        return False
    return hasattr(policy, "observation_space") or isinstance(policy, LinearPolicy)


# --- spaces ---------------------------------------------------------------------------------------


def _check_spaces(policy: Any, observation_space: Space, action_space: Space, name: str) -> None:
    """Compare what a policy says of its spaces with the environment's.

    Raises:
        ValueError: they differ in kind, shape, number of choices, or bounds of the actions.
    """
    inputs = None
    if isinstance(policy, LinearPolicy):
        inputs = policy.gain.shape[1]
    elif isinstance(policy, StateSpacePolicy):
        inputs = policy.inputs
    if inputs is not None:
        components = int(spaces.flatdim(observation_space))
        if not isinstance(observation_space, spaces.Box) or components != inputs:
            raise ValueError(
                f"policy {name}: takes {inputs} components, but the environment's observations "
                f"are {observation_space}"
            )
    for kind, theirs in (("observation", observation_space), ("action", action_space)):
        ours = getattr(policy, f"{kind}_space", None)
        if isinstance(ours, spaces.Space):
            difference = _difference(ours, theirs, bounds=kind == "action")
            if difference:
                raise ValueError(
                    f"policy {name}: {kind} space differs from the environment's: {difference}"
                )


def _difference(ours: Space, theirs: Space, *, bounds: bool) -> str:
    """What differs between the policy's space and the environment's; empty if they agree."""
    both = f"the policy has {ours}, the environment {theirs}"
    mine, given = _parts(ours), _parts(theirs)
    if mine is not None and given is not None:
        if set(mine) != set(given):
            return both
        parts = ((key, _difference(mine[key], given[key], bounds=bounds)) for key in mine)
        return next((f"{key}: {text}" for key, text in parts if text), "")
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    same_kind = any(isinstance(ours, kind) and isinstance(theirs, kind) for kind in kinds)
    if not same_kind or not _same_shape(ours, theirs):
        return both
    if isinstance(ours, spaces.Discrete) and isinstance(theirs, spaces.Discrete):
        return "" if (ours.n, ours.start) == (theirs.n, theirs.start) else both
    if isinstance(ours, spaces.MultiDiscrete) and isinstance(theirs, spaces.MultiDiscrete):
        return "" if np.array_equal(ours.nvec, theirs.nvec) else both
    if bounds and isinstance(ours, spaces.Box) and isinstance(theirs, spaces.Box):
        same = np.allclose(ours.low, theirs.low) and np.allclose(ours.high, theirs.high)
        return "" if same else both
    return ""


def _parts(space: Space) -> dict[Any, Space] | None:
    """The parts of a composed space by name or place; None of a plain one."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None


def _same_shape(ours: Space, theirs: Space) -> bool:
    if ours.shape == theirs.shape:
        return True
    # Stable-Baselines3 keeps pictures channel first, whatever the environment gives
    shape = tuple(theirs.shape or ())
    return len(shape) == 3 and theirs.dtype == np.uint8 and ours.shape == (shape[2], *shape[:2])
