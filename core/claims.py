"""Numbers a person could dispute: a value with its interval, and a claim with its bound.

A `Quantity` is printed with no more digits than its interval supports. A `Claim` says which bound a
number is held against; whether it holds is computed from the two, so it cannot disagree with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from .stats import Interval

Direction = Literal["<=", ">="]

CLAIMS_SCHEMA = "palestra.claims/1"

_SIGNS = {"<=": "≤", ">=": "≥"}
NO_BREAK_SPACE = "\u00a0"
_THIN_SPACE = "\u202f"


@dataclass(frozen=True)
class Quantity:
    """A number, how sure we are of it, and its unit.

    Attributes:
        value: the number; NaN says that it could not be measured.
        interval: `(low, high)` with `low <= high`, or None where there is none.
        unit: as printed, such as `"s"`; empty for pure numbers.

    Raises:
        ValueError: the interval is reversed.
    """

    value: float
    interval: tuple[float, float] | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        _check_interval("interval", self.interval)

    @classmethod
    def of(cls, estimate: Interval, unit: str = "") -> Self:
        """An estimate of `palestra.stats`; without interval where its rules give none."""
        low, high = estimate.low, estimate.high
        return cls(estimate.estimate, None if low is None or high is None else (low, high), unit)

    def __str__(self) -> str:
        text = self.text()
        return text if self.interval is None else f"{text} {self.interval_text()}"

    def text(self) -> str:
        """The value and its unit, such as `1.183 s`."""
        number = format_number(self.value, self._decimals())
        return f"{number}{NO_BREAK_SPACE}{self.unit}" if self.unit else number

    def interval_text(self) -> str:
        """The interval, such as `[1.176, 1.190]`; empty where there is none."""
        if self.interval is None:
            return ""
        decimals = self._decimals()
        low, high = (format_number(end, decimals) for end in self.interval)
        return f"[{low},{NO_BREAK_SPACE}{high}]"

    def _decimals(self) -> int | None:
        """Decimals by the rule of the Particle Data Group, on the half-width of the interval.

        Two of its digits count if they are 10 to 35, one if they are more (Review of Particle
        Physics, Introduction, section 5.3).
        """
        if self.interval is None:
            return None
        half_width = (self.interval[1] - self.interval[0]) / 2
        if not 0 < half_width < math.inf or not math.isfinite(self.value):
            return None
        magnitude = math.floor(math.log10(half_width))
        leading = half_width / 10.0**magnitude
        decimals = (1 if leading < 3.55 else 0) - magnitude
        return decimals if -6 < decimals < 10 and abs(self.value) < 1e12 else None


def format_number(value: float, decimals: int | None = None) -> str:
    """A number as a person writes it.

    Args:
        value: any float or int.
        decimals: how many to print (negative: rounded to tens, hundreds, ...); None prints at
            most four significant digits, and every digit of an integer.

    Returns:
        Digits in groups of three from 10 000 upwards, a true minus sign, powers of ten only
        below 1e-4 and from 1e9 upwards.
    """
    if isinstance(value, bool):
        raise TypeError(f"value = {value}: not a number; print truth values as words")
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if decimals is not None:
        text = f"{round(value, decimals):,.{max(decimals, 0)}f}"
        if float(text.replace(",", "")) == 0.0:
            text = text.lstrip("-")
    elif isinstance(value, int) or (value == int(value) and abs(value) < 1e9):
        text = f"{int(value):,d}"
    elif 1e-4 <= abs(value) < 1e9:
        magnitude = math.floor(math.log10(abs(value)))
        text = f"{value:,.{min(max(3 - magnitude, 0), written_decimals(value))}f}"
    else:
        mantissa, exponent = f"{value:.3e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    if len(text.partition(".")[0].lstrip("-")) <= 5:  # "9,999": four digits need no grouping
        text = text.replace(",", "")
    return text.replace(",", _THIN_SPACE).replace("-", "−")


def written_decimals(value: float) -> int:
    """Decimals of the shortest decimal number that is read back as this float; 0 for integers."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    return max(-exponent, 0) if isinstance(exponent, int) else 0


@dataclass(frozen=True)
class Claim:
    """A number and the bound it is held against.

    Attributes:
        name: what is claimed, as a sentence a reader understands.
        value: the measured number; NaN (not measured) never holds.
        bound: what the value is compared with; finite.
        direction: `"<="` if the value must not exceed the bound, `">="` if it must reach it.
        interval: `(low, high)` of the value, or None.
        unit: of value, interval and bound.
        source: the published figure beside ours and where it stands; empty if there is none.
        applicable: False where the user's own input replaces the published set-up.

    Raises:
        ValueError: an unknown direction, a bound that is not finite, or a reversed interval.
    """

    name: str
    value: float
    bound: float
    direction: Direction
    interval: tuple[float, float] | None = None
    unit: str = ""
    source: str = ""
    applicable: bool = True

    def __post_init__(self) -> None:
        if self.direction not in _SIGNS:
            raise ValueError(f"direction = {self.direction!r}: allowed are '<=' and '>='")
        if not math.isfinite(self.bound):
            raise ValueError(f"bound = {self.bound} of claim {self.name!r}: must be finite")
        _check_interval(f"interval of claim {self.name!r}", self.interval)

    @property
    def holds(self) -> bool | None:
        """Whether the value keeps the bound; None where the claim is not applicable."""
        if not self.applicable:
            return None
        if self.direction == "<=":
            return bool(self.value <= self.bound)
        return bool(self.value >= self.bound)

    @property
    def quantity(self) -> Quantity:
        """The value with its interval and unit."""
        return Quantity(float(self.value), self.interval, self.unit)

    def bound_text(self) -> str:
        """The bound as printed, such as `≤ 1.35 s`."""
        if 0 < abs(self.bound) < 1e-4:
            number = f"{Decimal(repr(float(self.bound))).normalize():e}".replace("-", "−")
        else:
            number = format_number(self.bound, written_decimals(self.bound))
        unit = f"{NO_BREAK_SPACE}{self.unit}" if self.unit else ""
        return f"{_SIGNS[self.direction]}{NO_BREAK_SPACE}{number}{unit}"


def all_hold(claims: Sequence[Claim]) -> bool:
    """True unless an applicable claim fails; what the exit code 0 or 1 says."""
    return all(claim.holds is not False for claim in claims)


def claims_json(claims: Sequence[Claim]) -> dict[str, Any]:
    """The content of `claims.json`.

    Returns:
        `{"schema", "holds", "claims": [...]}`, plain JSON: a value or an end of an interval that
        is not finite is written as `"NaN"`, `"Infinity"` or `"-Infinity"`.

    Raises:
        ValueError: two claims have one name.
    """
    names = [claim.name for claim in claims]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"name = {name!r}: must be unique")
    return {
        "schema": CLAIMS_SCHEMA,
        "holds": all_hold(claims),
        "claims": [
            {
                "name": claim.name,
                "value": json_number(claim.value),
                "interval": None
                if claim.interval is None
                else [json_number(end) for end in claim.interval],
                "unit": claim.unit,
                "direction": claim.direction,
                "bound": json_number(claim.bound),
                "holds": claim.holds,
                "source": claim.source,
            }
            for claim in claims
        ],
    }


def claims_from_json(document: Mapping[str, Any]) -> list[Claim]:
    """Read back what `claims_json` wrote.

    Raises:
        ValueError: another schema, a missing or malformed entry, or a `holds` that the numbers
            beside it contradict.
    """
    if document.get("schema") != CLAIMS_SCHEMA:
        raise ValueError(f"schema = {document.get('schema')!r}: this reads {CLAIMS_SCHEMA!r}")
    claims = []
    for index, entry in enumerate(document.get("claims", ())):
        try:
            interval = entry["interval"]
            claim = Claim(
                name=str(entry["name"]),
                value=float(entry["value"]),
                bound=float(entry["bound"]),
                direction=entry["direction"],
                interval=None if interval is None else (float(interval[0]), float(interval[1])),
                unit=str(entry["unit"]),
                source=str(entry["source"]),
                applicable=entry["holds"] is not None,
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"claims[{index}]: missing or malformed field ({error})") from error
        if claim.holds is not entry["holds"]:
            raise ValueError(
                f"claims[{index}] {claim.name!r}: holds = {entry['holds']}, but its value "
                f"{claim.value} against {claim.direction} {claim.bound} says {claim.holds}"
            )
        claims.append(claim)
    return claims


def _check_interval(name: str, interval: tuple[float, float] | None) -> None:
    if interval is not None and interval[0] > interval[1]:
        raise ValueError(f"{name} = {interval}: the low end must not exceed the high end")


def json_number(value: float) -> float | int | str:
    """A number for JSON, which has neither NaN nor infinities: these become words."""
    value = value if isinstance(value, int) else float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
