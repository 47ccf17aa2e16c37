"""Spaces of Gymnasium as JSON, and back."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from .batch import BatchEnv
from .policy import Space
from .safe_files import MalformedFile
from .spaces import Array

SPACE_LIMIT = 2**25  # components of a space; four times a full-HD picture


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
        return {
            "type": "Discrete",
            "n": int(space.n),
            "start": int(space.start),
            **_unusual_dtype(space),
        }
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            **_unusual_dtype(space),
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
        "Discrete": lambda n, start, dtype="int64": spaces.Discrete(
            _whole(n, 1), start=_whole(start, None), **_integer_type(dtype)
        ),
        "MultiDiscrete": lambda nvec, start, dtype="int64": spaces.MultiDiscrete(
            _integers(nvec), start=_integers(start), **_integer_type(dtype)
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


def described_spaces(env: BatchEnv) -> dict[str, Any]:
    """The spaces and agents of an environment, as a recorded run keeps them in `run.json`."""
    return {
        "observation_space": space_to_json(env.observation_space),
        "action_space": space_to_json(env.action_space),
        "agents": list(env.agents),
    }


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


def _unusual_dtype(space: Space) -> dict[str, str]:
    """The dtype of a space of integers, if it is not int64."""
    name = np.dtype(space.dtype).name
    return {} if name == "int64" else {"dtype": name}


def _integer_type(name: Any) -> dict[str, Any]:
    """Keyword arguments of a space of integers: older versions of Gymnasium know only int64."""
    if name == "int64":
        return {}
    if not isinstance(name, str) or np.dtype(name).kind not in "iu":
        raise ValueError(f"dtype {name!r}")
    return {"dtype": np.dtype(name).type}


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
