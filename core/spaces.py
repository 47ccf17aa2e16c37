"""Arrays of a space: allocate them for many rows, take one row out, check actions against them.

A *tree* is what a batch of a space looks like: an array for Box, Discrete, MultiDiscrete and
MultiBinary; a dict of trees for Dict; a tuple of trees for Tuple.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Array = npt.NDArray[Any]
Tree = Any  # Array | dict[str, Tree] | tuple[Tree, ...]

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def allocate(space: spaces.Space[Any], lead: tuple[int, ...]) -> Tree:
    """A tree of zeros for `space` with leading dimensions `lead`, C order.

    Raises:
        TypeError: a space without a fixed array shape (Text, Graph, Sequence, OneOf).
    """
    if isinstance(space, ARRAY_SPACES):
        return np.zeros(lead + tuple(space.shape or ()), space.dtype)
    if isinstance(space, spaces.Dict):
        return {name: allocate(part, lead) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(allocate(part, lead) for part in space.spaces)
    raise TypeError(
        f"space: got {type(space).__name__}, allowed Box, Discrete, MultiDiscrete, MultiBinary, "
        "Dict and Tuple (for ragged things use a fixed maximum and a mask)"
    )


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to each array of a tree (and to the same places of other trees)."""
    if isinstance(tree, dict):
        return {k: map_tree(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    if isinstance(tree, tuple):
        parts = enumerate(tree)
        return tuple(map_tree(function, v, *(o[i] for o in others)) for i, v in parts)
    return function(tree, *others)


def leaves(tree: Tree) -> list[tuple[str, Array]]:
    """The arrays of a tree with their path, such as `("camera/depth", array)`."""
    if isinstance(tree, dict | tuple):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return [
            (f"{name}/{path}" if path else str(name), leaf)
            for name, part in parts
            for path, leaf in leaves(part)
        ]
    return [("", tree)]


def take(tree: Tree, index: Any) -> Tree:
    """The rows `index` of every array of a tree (an integer gives one row, without its axis)."""
    if isinstance(tree, dict | tuple):
        return map_tree(operator.itemgetter(index), tree)
    return tree[index]


def put(tree: Tree, index: Any, values: Tree) -> None:
    """Write values into the rows `index` of every array of a tree."""
    map_tree(lambda array, value: array.__setitem__(index, value), tree, values)


def copy(tree: Tree) -> Tree:
    """A copy of a tree; shares no memory with it."""
    if isinstance(tree, dict | tuple):
        return map_tree(np.ndarray.copy, tree)
    return tree.copy()


class LegalDiscrete(spaces.Discrete):
    """Discrete(n) whose `sample()` draws among the actions that are legal now.

    Args:
        space: the plain Discrete space of the environment.
        mask: called for the current mask, bool (n,).
    """

    def __init__(self, space: spaces.Discrete, mask: Callable[[], Array]) -> None:
        super().__init__(space.n, start=space.start)
        self._legal = mask

    def sample(self, mask: Any = None, probability: Any = None) -> np.int64:
        """A legal action; an explicit mask or probability is used instead of the current mask."""
        if mask is None and probability is None:
            mask = self._legal().astype(np.int8)
        return super().sample(mask=mask, probability=probability)

    def __reduce__(self) -> Any:
        return LegalDiscrete, (spaces.Discrete(self.n, start=self.start), self._legal)


class ActionCheck:
    """Checks the actions of many rows against the space of one copy.

    Call it with a tree of actions; it returns the tree in the space's own types, and raises
    before anything has changed.

    Args:
        space: the action space of one copy (or of one agent).
        lead: leading dimensions, (B,) or (B, A).
    """

    def __new__(cls, space: spaces.Space[Any], lead: tuple[int, ...]) -> ActionCheck:
        kind: type[ActionCheck]
        if isinstance(space, spaces.Box):
            kind = _BoxCheck
        elif isinstance(space, ARRAY_SPACES):
            kind = _IntegerCheck
        elif isinstance(space, spaces.Dict):
            kind = _DictCheck
        elif isinstance(space, spaces.Tuple):
            kind = _TupleCheck
        else:
            allocate(space, lead)  # raises, naming the allowed spaces
        return object.__new__(kind)

    def __init__(self, space: Any, lead: tuple[int, ...]) -> None:
        self.name = "action"
        self.space = space
        self.lead = lead
        self.shape = lead + tuple(space.shape or ())

    def __call__(self, actions: Any) -> Tree:
        """The actions in the space's own dtypes.

        Raises:
            TypeError: not numbers of the right kind.
            ValueError: wrong shape, non-finite, or outside the space.
        """
        raise NotImplementedError  # replaced by the class that __new__ picks

    def _array(self, actions: Any, kinds: str, expected: str) -> Array:
        array = np.asarray(actions)
        if array.dtype.kind not in kinds:
            raise TypeError(f"{self.name}: got {_short(actions)}, expected {expected}")
        if array.shape != self.shape:
            raise ValueError(
                f"{self.name}: got shape {array.shape}, allowed {self.shape} "
                f"(rows {self.lead}, then the space's {self.shape[len(self.lead) :]})"
            )
        return array

    def _refuse(self, array: Array, allowed: Array, low: Array, high: Array) -> None:
        where = tuple(int(i) for i in np.argwhere(~allowed)[0])
        row, inner = where[: len(self.lead)], where[len(self.lead) :]
        place = f"row {row[0]}" if len(row) == 1 else f"row {row[0]}, agent {row[1]}"
        if inner:
            place += f", component {inner[0] if len(inner) == 1 else inner}"
        limits = [np.broadcast_to(b, array.shape)[where].item() for b in (low, high)]
        raise ValueError(
            f"{self.name}: {place}: got {array[where].item()!r}, "
            f"allowed {limits[0]!r} to {limits[1]!r}"
        )


class _BoxCheck(ActionCheck):
    def __init__(self, space: spaces.Box, lead: tuple[int, ...]) -> None:
        super().__init__(space, lead)
        self.dtype = space.dtype
        self.kinds = "fiu" if self.dtype.kind == "f" else "iu"
        info = np.finfo(self.dtype) if self.dtype.kind == "f" else np.iinfo(self.dtype)
        # finite limits refuse infinities and NaN by the same two comparisons
        self.low = np.maximum(space.low, info.min).astype(self.dtype)
        self.high = np.minimum(space.high, info.max).astype(self.dtype)
        if self.low.size and (self.low == self.low.flat[0]).all():
            self.low = self.low.flat[0]
        if self.high.size and (self.high == self.high.flat[0]).all():
            self.high = self.high.flat[0]

    def __call__(self, actions: Any) -> Array:
        if not (
            type(actions) is np.ndarray
            and actions.dtype == self.dtype
            and actions.shape == self.shape
            and actions.flags.c_contiguous
        ):
            expected = "finite numbers" if self.dtype.kind == "f" else "integers"
            given = self._array(actions, self.kinds, expected)
            if self.dtype.kind != "f":  # compare before a cast could wrap around
                allowed = (given >= self.low) & (given <= self.high)
                if not allowed.all():
                    self._refuse(given, allowed, self.low, self.high)
            with np.errstate(over="ignore"):
                actions = np.ascontiguousarray(given, self.dtype).reshape(self.shape)
        allowed = (actions >= self.low) & (actions <= self.high)
        if np.count_nonzero(allowed) != allowed.size:
            self._refuse(actions, allowed, self.low, self.high)
        return actions


class _IntegerCheck(ActionCheck):
    """Discrete, MultiDiscrete and MultiBinary."""

    def __init__(self, space: Any, lead: tuple[int, ...]) -> None:
        super().__init__(space, lead)
        self.dtype = np.dtype(space.dtype)
        if isinstance(space, spaces.MultiBinary):
            self.low, count = np.int64(0), np.int64(2)
        elif isinstance(space, spaces.Discrete):
            self.low, count = np.int64(space.start), np.int64(space.n)
        else:
            self.low, count = space.start.astype(np.int64), space.nvec.astype(np.int64)
        self.high = self.low + count - 1
        self.last = np.asarray(count - 1).astype(np.uint64)
        self.zero_based = not np.any(self.low)

    def __call__(self, actions: Any) -> Array:
        if not (
            type(actions) is np.ndarray
            and actions.dtype == np.int64
            and actions.shape == self.shape
            and actions.flags.c_contiguous
        ):
            given = self._array(actions, "iub" if self.dtype == np.int8 else "iu", "integers")
            actions = np.ascontiguousarray(given, np.int64).reshape(self.shape)
        above = actions if self.zero_based else actions - self.low
        wrong = above.view(np.uint64) > self.last  # a negative number is huge when unsigned
        if np.count_nonzero(wrong):
            self._refuse(actions, ~wrong, self.low, self.high)
        return actions if self.dtype == np.int64 else actions.astype(self.dtype)


class _DictCheck(ActionCheck):
    def __init__(self, space: spaces.Dict, lead: tuple[int, ...]) -> None:
        super().__init__(space, lead)
        self.parts = {name: ActionCheck(part, lead) for name, part in space.spaces.items()}
        for name, check in self.parts.items():
            check.name = f"action[{name!r}]"

    def __call__(self, actions: Any) -> dict[str, Tree]:
        if not isinstance(actions, Mapping) or set(actions) != set(self.parts):
            got = sorted(actions) if isinstance(actions, Mapping) else _short(actions)
            raise ValueError(f"{self.name}: got {got}, expected a mapping with {list(self.parts)}")
        return {name: check(actions[name]) for name, check in self.parts.items()}


class _TupleCheck(ActionCheck):
    def __init__(self, space: spaces.Tuple, lead: tuple[int, ...]) -> None:
        super().__init__(space, lead)
        self.parts = tuple(ActionCheck(part, lead) for part in space.spaces)
        for place, check in enumerate(self.parts):
            check.name = f"action[{place}]"

    def __call__(self, actions: Any) -> tuple[Tree, ...]:
        if not isinstance(actions, tuple | list) or len(actions) != len(self.parts):
            raise ValueError(
                f"{self.name}: got {_short(actions)}, expected a tuple of {len(self.parts)} parts"
            )
        return tuple(check(part) for check, part in zip(self.parts, actions, strict=True))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
