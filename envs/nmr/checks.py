"""What is refused, and how it is said: the argument, the value, what is allowed.

Every quantity has a finite range, wider than nature's, within which no formula of this family
overflows, divides by zero or loses a phase.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

# Ranges (lowest, highest)
RELAXATION_TIME = (1e-9, 1e9)  # s
DELAY = (1e-9, 1e6)  # s, where it must be above 0
OFFSET = (-1e6, 1e6)  # Hz: shifts, couplings, offsets of a table
WIDTH = (0.0, 1e6)  # Hz
NUTATION = (1.0, 1e7)  # Hz
STATIC_FIELD = (1e-9, 100.0)  # T
TEMPERATURE = (1e-3, 1e4)  # K
RELATIVE_ERROR = (1e-9, 1e9)
LOGARITHMIC_SPREAD = (0.0, 100.0)
RELAXATION_RATIO = (1e-9, 2.0)

_LONGEST_SHOWN = 120  # characters of a value in a message


def shown(value: Any) -> str:
    """A value as a message shows it: its `repr`, cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; endless nesting
        return f"{'an' if isinstance(value, int) else 'a'} {type(value).__name__} too long to show"
    if len(text) > _LONGEST_SHOWN:
        text = f"{text[:_LONGEST_SHOWN]}... ({len(text)} characters)"
    return text


def number(where: str, value: Any, span: tuple[float, float], unit: str = "") -> None:
    """Raise ValueError unless `value` is a real number (no bool) within `span`."""
    real = isinstance(value, int | float | np.floating | np.integer)
    if real and not isinstance(value, bool) and span[0] <= value <= span[1]:
        return
    allowed = f"{span[0]:g} to {span[1]:g}{unit and ' '}{unit}"
    raise ValueError(f"{where}: got {shown(value)}, allowed {allowed}")


def integer(where: str, value: Any, low: int, high: int) -> None:
    """Raise ValueError unless `value` is an integer (no bool) within [low, high]."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        raise ValueError(f"{where}: got {shown(value)}, allowed an integer {low} to {high}")


def flag(where: str, value: Any) -> None:
    """Raise ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{where}: got {shown(value)}, allowed true or false")


def choice(where: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{where}: got {shown(value)}, allowed {', '.join(choices)}")


def instance(where: str, value: Any, cls: type, allowed: str = "") -> None:
    """Raise TypeError unless `value` is an instance of a class."""
    if not isinstance(value, cls):
        article = "an" if cls.__name__[0] in "AEIOU" else "a"
        allowed = allowed or f"{article} {cls.__name__}"
        raise TypeError(f"{where}: got {shown(value)}, allowed {allowed}")


def listed(value: Any) -> bool:
    """Whether a value is a list, a tuple or an array of one dimension or more."""
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def without_numpy_scalars(record: Any) -> None:
    """Turn the NumPy scalars of a frozen dataclass into Python's: int8 would overflow in 2 T1."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, np.generic):
            object.__setattr__(record, field.name, plain(value))


def plain(value: Any) -> Any:
    """A NumPy scalar as Python's; anything else as it is."""
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, np.integer | np.bool_ | np.str_):
        return value.item()
    return value


def span(where: str, value: Any, limits: tuple[float, float], unit: str = "") -> None:
    """Raise ValueError unless `value` is two numbers (low, high) within limits, low <= high."""
    sound = listed(value) and len(value) == 2
    if sound:
        try:
            for end in value:
                number(where, end, limits)
            sound = bool(value[0] <= value[1])
        except ValueError:
            sound = False
    if not sound:
        raise ValueError(
            f"{where}: got {shown(value)}, allowed (low, high), low <= high, within "
            f"{limits[0]:g} to {limits[1]:g}{unit and ' '}{unit}"
        )


def beyond_turns(longest_hz: float) -> float:
    """The longest delay, s, in which an offset makes at most 2**49 turns (or `DELAY`'s end).

    Beyond, float64 no longer holds the phase: quarters of a turn need two bits more, and the
    rounding of `sincos_turns` ends at 2**51.
    """
    return min(DELAY[1], 2.0**49 / longest_hz) if longest_hz > 0.0 else DELAY[1]
