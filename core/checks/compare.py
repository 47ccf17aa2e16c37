"""Where two things that an environment returned differ, to the bit."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ..spaces import leaves


def flat(fields: Any) -> dict[str, Any]:
    """The leaves of nested dicts and tuples by path."""
    return dict(leaves(fields))


def difference(first: Any, second: Any) -> str | None:
    """The path of the first leaf in which two trees differ, or None; "" is the tree itself."""
    one, other = flat(first), flat(second)
    if one.keys() != other.keys():
        return sorted(one.keys() ^ other.keys())[0]
    return next((path for path in one if bits(one[path]) != bits(other[path])), None)


def bits(leaf: Any) -> Any:
    """What makes a leaf equal to another one: type of numbers, shape and bytes; or the value."""
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float):
        array = np.asarray(leaf)
        if array.dtype != object:
            return array.dtype.str, array.shape, array.tobytes()
    return repr(leaf)


def digest(leaf: Any) -> str:
    """A short name of the bits of a leaf."""
    return hashlib.blake2b(repr(bits(leaf)).encode(), digest_size=8).hexdigest()


def kept(fields: Any) -> Any:
    """A copy of nested dicts and tuples that shares no array with them."""
    if isinstance(fields, dict):
        return {name: kept(part) for name, part in fields.items()}
    if isinstance(fields, tuple):
        return tuple(kept(part) for part in fields)
    return fields.copy() if isinstance(fields, np.ndarray) else fields


def shown(leaf: Any) -> str:
    """A leaf in a sentence."""
    text = " ".join(repr(leaf).split())
    return text if len(text) <= 60 else text[:57] + "..."
