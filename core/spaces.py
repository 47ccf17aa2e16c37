"""Arrays of a space: allocate them for many rows, take one row out, check actions against them.

A *tree* is what a batch of a space looks like: an array for Box, Discrete, MultiDiscrete and
MultiBinary; a dict of trees for Dict; a tuple of trees for Tuple.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from .kernels import kernel

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


def take_rows(tree: Tree, rows: Array) -> Tree:
    """Copies of the rows with these indices, int (n,), of every array of a tree."""
    # the method is several times faster than array[rows] where there are few
    return map_tree(lambda array: array.take(rows, axis=0), tree)


def put(tree: Tree, index: Any, values: Tree) -> None:
    """Write values into the rows `index` of every array of a tree."""
    map_tree(lambda array, value: array.__setitem__(index, value), tree, values)


def copy(tree: Tree) -> Tree:
    """A copy of a tree; shares no memory with it."""
    if isinstance(tree, dict | tuple):
        return map_tree(np.ndarray.copy, tree)
    return tree.copy()


def draw_legal(rng: np.random.Generator, masks: Array, widths: Sequence[int]) -> Array:
    """Choices drawn uniformly among the legal ones.

    Args:
        rng: the generator of a space.
        masks: bool (..., sum of widths), legal choices of each component, side by side.
        widths: number of choices of each component.

    Returns:
        Choices counted from 0, int64 (..., number of components).
    """
    scores = np.where(masks, rng.random(masks.shape), -1.0)
    parts = np.split(scores, np.cumsum(widths)[:-1], axis=-1)
    return np.stack([part.argmax(axis=-1) for part in parts], axis=-1)


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


class LegalMultiDiscrete(spaces.MultiDiscrete):
    """MultiDiscrete(nvec) whose `sample()` draws among the actions that are legal now.

    Args:
        space: the plain MultiDiscrete space of the environment, nvec of shape (k,).
        mask: called for the current mask, bool (sum nvec,).
    """

    def __init__(self, space: spaces.MultiDiscrete, mask: Callable[[], Array]) -> None:
        super().__init__(space.nvec, dtype=space.dtype.type, start=space.start)
        self._legal = mask

    def sample(self, mask: Any = None, probability: Any = None) -> Array:
        """A legal action; an explicit mask or probability is used instead of the current mask."""
        if mask is not None or probability is not None:
            return super().sample(mask=mask, probability=probability)
        chosen = draw_legal(self.np_random, self._legal(), self.nvec.tolist())
        return (chosen + self.start).astype(self.dtype)

    def __reduce__(self) -> Any:
        plain = spaces.MultiDiscrete(self.nvec, dtype=self.dtype.type, start=self.start)
        return LegalMultiDiscrete, (plain, self._legal)


def legal_space(space: spaces.Space[Any], mask: Callable[[], Array]) -> spaces.Space[Any]:
    """The space of a masked environment: its `sample()` draws legal actions."""
    if isinstance(space, spaces.Discrete):
        return LegalDiscrete(space, mask)
    assert isinstance(space, spaces.MultiDiscrete)
    return LegalMultiDiscrete(space, mask)


@kernel(allocates=False)
def _all_within(values, low, high):  # type: ignore[no-untyped-def]
    """Whether low <= value <= high everywhere; NaN is not. No early exit: it vectorises."""
    within = True
    for place in range(values.size):
        value = values.flat[place]
        within &= (low.flat[place] <= value) & (value <= high.flat[place])
    return within


class ActionCheck:
    """Checks the actions of many rows against the space of one copy.

    Call it with a tree of actions; it returns the tree in the space's own types, and raises
    before anything has changed.

    Args:
        space: the action space of one copy (or of one agent).
        lead: leading dimensions, (B,) or (B, A).
        name: what errors call the actions.
    """

    def __new__(
        cls, space: spaces.Space[Any], lead: tuple[int, ...], name: str = "action"
    ) -> ActionCheck:
        """The check for this kind of space."""
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

    def __init__(self, space: Any, lead: tuple[int, ...], name: str = "action") -> None:
        self.name = name
        self.space = space
        self.lead = lead
        self.shape = lead + tuple(space.shape or ())

    def __reduce__(self) -> Any:
        return ActionCheck, (self.space, self.lead, self.name)

    def __call__(self, actions: Any) -> Tree:
        """The actions in the space's own dtypes.

        Raises:
            TypeError: not numbers of the right kind.
            ValueError: wrong shape, non-finite, or outside the space.
        """
        raise NotImplementedError  # replaced by the class that __new__ picks


class _ArrayCheck(ActionCheck):
    """A check of one array: converted where it must be, then compared with the limits.

    Args:
        low: smallest allowed values, (*space.shape) or (), in the dtype to compare in.
        high: largest allowed values.
    """

    def __init__(self, space: Any, lead: tuple[int, ...], name: str, low: Any, high: Any) -> None:
        super().__init__(space, lead, name)
        self.dtype = np.dtype(space.dtype)
        self.low = np.ascontiguousarray(np.broadcast_to(low, self.shape))
        self.high = np.ascontiguousarray(np.broadcast_to(high, self.shape))
        self.compared = self.low.dtype
        self.cast = self.compared != self.dtype

    def __call__(self, actions: Any) -> Array:
        if not (
            type(actions) is np.ndarray
            and actions.dtype == self.compared
            and actions.shape == self.shape
            and actions.flags.c_contiguous
        ):
            actions = self._converted(actions)
        if not _all_within(actions, self.low, self.high):
            self._refuse(actions)
        return actions.astype(self.dtype) if self.cast else actions  # type: ignore[no-any-return]

    def _converted(self, actions: Any) -> Array:
        """The actions as a C-ordered array of the compared dtype, with their values unchanged."""
        raise NotImplementedError  # the two kinds below differ in what they accept

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

    def _refuse(self, array: Array) -> None:
        allowed = (array >= self.low) & (array <= self.high)
        where = tuple(int(i) for i in np.argwhere(~allowed)[0])
        row, inner = where[: len(self.lead)], where[len(self.lead) :]
        place = f"row {row[0]}" if len(row) == 1 else f"row {row[0]}, agent {row[1]}"
        if inner:
            place += f", component {inner[0] if len(inner) == 1 else inner}"
        raise ValueError(
            f"{self.name}: {place}: got {array[where].item()!r}, "
            f"allowed {self.low[where].item()!r} to {self.high[where].item()!r}"
        )


class _BoxCheck(_ArrayCheck):
    def __init__(self, space: spaces.Box, lead: tuple[int, ...], name: str = "action") -> None:
        dtype = space.dtype
        info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        # finite limits refuse infinities and NaN by the same two comparisons
        low = np.maximum(space.low, info.min).astype(dtype)
        high = np.minimum(space.high, info.max).astype(dtype)
        super().__init__(space, lead, name, low, high)

    def _converted(self, actions: Any) -> Array:
        if self.dtype.kind == "f":
            given = self._array(actions, "fiu", "finite numbers")
        else:
            given = self._array(actions, "iu", "integers")
            if not ((given >= self.low) & (given <= self.high)).all():
                self._refuse(given)  # before a cast could wrap around
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(given, self.dtype).reshape(self.shape)


class _IntegerCheck(_ArrayCheck):
    """Discrete, MultiDiscrete and MultiBinary; compared as int64, whatever the space's dtype."""

    def __init__(self, space: Any, lead: tuple[int, ...], name: str = "action") -> None:
        low, count = np.array(0), np.array(2)
        if isinstance(space, spaces.Discrete):
            low, count = np.array(space.start), np.array(space.n)
        elif isinstance(space, spaces.MultiDiscrete):
            low, count = space.start.astype(np.int64), space.nvec.astype(np.int64)
        super().__init__(space, lead, name, low, low + count - 1)

    def _converted(self, actions: Any) -> Array:
        given = self._array(actions, "iub" if self.dtype == np.int8 else "iu", "integers")
        if given.dtype == np.uint64:  # keep what is too large from wrapping around
            given = np.minimum(given, np.iinfo(np.int64).max)
        return np.ascontiguousarray(given, np.int64).reshape(self.shape)


class _DictCheck(ActionCheck):
    def __init__(self, space: spaces.Dict, lead: tuple[int, ...], name: str = "action") -> None:
        super().__init__(space, lead, name)
        self.parts = {
            key: ActionCheck(part, lead, f"{name}[{key!r}]") for key, part in space.spaces.items()
        }

    def __call__(self, actions: Any) -> dict[str, Tree]:
        if not isinstance(actions, Mapping) or set(actions) != set(self.parts):
            got = sorted(actions) if isinstance(actions, Mapping) else _short(actions)
            raise ValueError(f"{self.name}: got {got}, expected a mapping with {list(self.parts)}")
        return {name: check(actions[name]) for name, check in self.parts.items()}


class _TupleCheck(ActionCheck):
    def __init__(self, space: Any, lead: tuple[int, ...], name: str = "action") -> None:
        super().__init__(space, lead, name)
        self.parts = tuple(
            ActionCheck(part, lead, f"{name}[{place}]") for place, part in enumerate(space.spaces)
        )

    def __call__(self, actions: Any) -> tuple[Tree, ...]:
        if not isinstance(actions, tuple | list) or len(actions) != len(self.parts):
            raise ValueError(
                f"{self.name}: got {_short(actions)}, expected a tuple of {len(self.parts)} parts"
            )
        return tuple(check(part) for check, part in zip(self.parts, actions, strict=True))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
