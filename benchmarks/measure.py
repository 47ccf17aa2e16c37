"""How speed is compared here: ratios, per CPU-second, in interleaved rounds of one run.

Contenders take turns in short slices; each round gives one ratio between two of them; the median
of the rounds is reported with the range that the middle half of them spans. CPU time counts what
a process and its threads used, so that neighbours on the machine disturb little.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from palestra.machine import machine

SLICE = 0.1  # CPU-seconds of one contender in one round
ROUNDS = 15


class Contender:
    """Something that can take any number of steps.

    Args:
        name: what it is called in the tables.
        take: take(n) does n steps; returns the CPU-seconds that they cost.
        items: what one step counts for (rows, usually).
    """

    def __init__(self, name: str, take: Callable[[int], float], items: int = 1) -> None:
        self.name, self.take, self.items = name, take, items
        self.steps = 1

    def warm_up(self, slice_: float = SLICE) -> None:
        """Compile, fill caches, and choose how many steps fill a slice."""
        self.take(1)
        for _ in range(2):  # the first time may still have compiled something
            while (seconds := self.take(self.steps)) < slice_ / 2:
                self.steps *= 2
            self.steps = max(1, round(self.steps * slice_ / seconds))

    def cost(self) -> float:
        """CPU-seconds of one item, from one slice."""
        return self.take(self.steps) / (self.steps * self.items)


def timed(step: Callable[[int], Any]) -> Callable[[int], float]:
    """`take` of a contender in this process: calls step(0), step(1), ..."""

    def take(count: int) -> float:
        started = time.process_time()
        for index in range(count):
            step(index)
        return time.process_time() - started

    return take


def interleave(contenders: Sequence[Contender], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """CPU-seconds an item, one number a round, by contender; the order turns every round."""
    for contender in contenders:
        contender.warm_up()
    costs: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for index in range(rounds):
        for contender in contenders if index % 2 == 0 else reversed(contenders):
            costs[contender.name].append(contender.cost())
    return costs


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        what: what is compared.
        value: the median; a ratio, or microseconds where `unit` says so.
        low: lower quartile over the rounds.
        high: upper quartile over the rounds.
        bar: what must hold, or None where the line only informs.
        aim: what we reach for beyond it, or None.
        unit: "x" (a ratio, more is better), or of what less is better: "us", "s", "%", "GiB", "".
    """

    what: str
    value: float
    low: float
    high: float
    bar: float | None = None
    aim: float | None = None
    unit: str = "x"

    @property
    def holds(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.unit == "x" else self.value <= self.bar


def line(what: str, values: Sequence[float], **rest: Any) -> Line:
    """A line from one value a round."""
    low, middle, high = statistics.quantiles(values, n=4)
    return Line(what, middle, low, high, **rest)


def ratio(what: str, costs: dict[str, list[float]], ours: str, theirs: str, **rest: Any) -> Line:
    """How many times as much `ours` does in a CPU-second as `theirs`."""
    rounds = zip(costs[ours], costs[theirs], strict=True)
    return line(what, [their / our for our, their in rounds], **rest)


def report(title: str, lines: Sequence[Line], json_path: Path | None) -> None:
    """Print the table, and write it with date and machine if a path is given."""
    table = Table(title=title)
    for name in ("what", "measured", "middle half", "bar", "aim", ""):
        table.add_column(name, justify="left" if name == "what" else "right")
    for each in lines:
        shown = (each.value, each.bar, each.aim)
        measured, bar, aim = ("" if v is None else f"{v:.3g} {each.unit}" for v in shown)
        verdict = {True: "holds", False: "MISSED", None: ""}[each.holds]
        table.add_row(each.what, measured, f"{each.low:.3g} to {each.high:.3g}", bar, aim, verdict)
    Console(width=120).print(table)
    if json_path is not None:
        described = {key: value for key, value in machine().items() if key != "host"}
        document = {
            "title": title,
            "date": datetime.date.today().isoformat(),
            "machine": described,
            "lines": [{**asdict(each), "holds": each.holds} for each in lines],
        }
        json_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that each script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the table there")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    return parser
