"""Search spaces: which configurations a sweep may try, as data.

A space is a table of dotted keys of a configuration. The value of a key is a list of choices, or a
table `{low, high}` with `log` or `step`::

    algorithm = ["ppo", "a2c"]
    [hyperparameters]
    gamma = [0.9, 0.99]
    learning_rate = {low = 1e-4, high = 1e-2, log = true}
    n_epochs = {low = 2, high = 10, step = 2}

A range whose ends are whole numbers holds whole numbers. A point of a space is one value a key.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .config import ConfigError, shown
from .disk import to_json
from .registry import did_you_mean

Point = dict[str, Any]  # dotted key -> value

RANGE_KEYS = ("low", "high", "log", "step")
MOST_POINTS = 10_000
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Choices:
    """Any of some values."""

    values: tuple[Any, ...]

    def at(self, u: float) -> Any:
        """The value at a quantile u in [0, 1)."""
        return self.values[int(u * len(self.values))]

    def all(self) -> Sequence[Any]:
        """Every value."""
        return self.values

    def holds(self, value: Any) -> bool:
        """Whether it is one of them."""
        return value in self.values


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; whole ones if both ends are.

    Attributes:
        low: the smallest.
        high: the largest.
        log: uniform in the logarithm.
        step: only low, low + step, low + 2 step, ...
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def spacing(self) -> float | None:
        """The distance of neighbours; None in a continuum."""
        return 1 if self.step is None and self.whole else self.step

    def at(self, u: float) -> float:
        """The value at a quantile u in [0, 1)."""
        if self.log:
            margin = 0.5 if self.whole else 0.0  # every whole number has its share
            low, high = math.log(self.low - margin), math.log(self.high + margin)
            value = math.exp(low + u * (high - low))
            value = round(value) if self.whole else value
            return min(max(value, self.low), self.high)
        if self.spacing is None:
            return self.low + u * (self.high - self.low)
        return self._number(int(u * self._count()))

    def all(self) -> Sequence[Any]:
        """Every value, where there is a step."""
        return [self._number(k) for k in range(self._count())]

    def holds(self, value: Any) -> bool:
        """Whether it is a number in between."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high

    def _count(self) -> int:
        assert self.spacing is not None
        return round((self.high - self.low) / self.spacing) + 1

    def _number(self, k: int) -> float:
        assert self.spacing is not None
        value = self.low + k * self.spacing
        return value if self.whole else float(f"{value:.12g}")  # 0.3, not 0.30000000000000004


Space = dict[str, Choices | Range]  # by dotted key, in the order in which they are given


def read_space(document: Mapping[str, Any]) -> Space:
    """A space from plain data.

    Raises:
        ConfigError: no key, choices or a range that make no sense; the message names the key, the
            value and what is allowed.
    """
    space = dict(_entries(document, ""))
    if not space:
        raise ConfigError("space: is empty; allowed one key or more, each with its values")
    for key in space:
        for other in space:
            if other.startswith(f"{key}."):
                raise ConfigError(f"space: {other} is a part of {key}; allowed one of the two")
    return space


def grid(space: Space) -> list[Point]:
    """Every combination, the last key varying fastest.

    Raises:
        ConfigError: a range without step, or more than `MOST_POINTS` combinations.
    """
    for key, values in space.items():
        if isinstance(values, Range) and values.step is None:
            raise ConfigError(
                f"space: {key} is a range without step; a grid needs a list of choices, or a step"
            )
    axes = [part.all() for part in space.values()]
    count = math.prod(len(axis) for axis in axes)
    if count > MOST_POINTS:
        raise ConfigError(f"space: the grid has {count} points, allowed at most {MOST_POINTS}")
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]


def random_point(space: Space, seed: int, number: int) -> Point:
    """Point `number` of a random search: a function of space, seed and number alone.

    Every key draws from a hash of its own, so that a key more leaves the others as they were.
    """
    return {key: values.at(_uniform(seed, number, key)) for key, values in space.items()}


def holds(space: Space, point: Point) -> bool:
    """Whether a point has the keys of a space, each with a value that it holds."""
    if point.keys() != space.keys():
        return False
    return all(values.holds(point[key]) for key, values in space.items())


def configured(options: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """A copy of the options with the values of a point at their dotted keys.

    Raises:
        ConfigError: a key that goes through something that is not a table.
    """
    result: dict[str, Any] = copy.deepcopy(dict(options))
    for key, value in point.items():
        *path, last = key.split(".")
        table = result
        for depth, part in enumerate(path):
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(
                    f"space: {key}: {'.'.join(path[: depth + 1])} is {shown(table)}, which has no "
                    "keys"
                )
        table[last] = copy.deepcopy(value)
    return result


def _uniform(seed: int, number: int, key: str) -> float:
    digest = hashlib.blake2b(f"{seed}|{number}|{key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def _entries(document: Mapping[str, Any], where: str) -> Iterator[tuple[str, Choices | Range]]:
    for name, value in document.items():
        key = f"{where}.{name}" if where else name
        if isinstance(value, list):
            yield key, _choices(key, value)
        elif isinstance(value, Mapping) and any(
            name in value and not isinstance(value[name], list | Mapping)
            for name in ("low", "high")
        ):
            yield key, _range(key, value)
        elif isinstance(value, Mapping):
            yield from _entries(value, key)
        else:
            raise ConfigError(
                f"space: {key} = {shown(value)}: must be a list of choices, or a table with low "
                "and high"
            )


def _choices(key: str, values: list[Any]) -> Choices:
    if not values:
        raise ConfigError(f"space: {key} = []: must have one choice or more")
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ConfigError(f"space: {key}: the choice {shown(value)} stands there twice")
    try:
        to_json(values)
    except (TypeError, ValueError):
        raise ConfigError(
            f"space: {key} = {shown(values)}: must be finite numbers, strings, truth values, lists "
            "or tables"
        ) from None
    return Choices(tuple(values))


def _range(key: str, table: Mapping[str, Any]) -> Range:
    for name in table:
        if name not in RANGE_KEYS:
            raise ConfigError(
                f"space: {key} has {name!r}{did_you_mean(name, RANGE_KEYS)} A range has "
                f"{', '.join(RANGE_KEYS)}"
            )
    for name in ("low", "high"):
        if name not in table:
            raise ConfigError(f"space: {key}.{name} is missing: a range has low and high")
    for name in ("low", "high", "step"):
        value = table.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise ConfigError(f"space: {key}.{name} = {shown(value)}: must be a finite number")
    low, high, step, log = table["low"], table["high"], table.get("step"), table.get("log", False)
    if not isinstance(log, bool):
        raise ConfigError(f"space: {key}.log = {shown(log)}: must be true or false")
    if low >= high:
        raise ConfigError(f"space: {key}: low = {low} and high = {high}: low must be below high")
    if log and low <= 0:
        raise ConfigError(f"space: {key}.low = {low}: must be positive where log = true")
    if log and step is not None:
        raise ConfigError(f"space: {key} has log and step; allowed one of the two")
    whole = isinstance(low, int) and isinstance(high, int)
    if step is not None:
        if step <= 0 or (whole and not isinstance(step, int)):
            kind = "a positive whole number, as low and high are" if whole else "positive"
            raise ConfigError(f"space: {key}.step = {step}: must be {kind}")
        steps = (high - low) / step
        if steps > MOST_POINTS or abs(steps - round(steps)) > _TOLERANCE * max(1.0, steps):
            raise ConfigError(
                f"space: {key}.step = {step}: must lead from low = {low} to high = {high} in whole "
                f"steps, at most {MOST_POINTS} of them"
            )
    if whole:
        return Range(low, high, log, step)
    return Range(float(low), float(high), log, None if step is None else float(step))


def _finite(value: float) -> bool:
    return -1e300 < value < 1e300
