"""Open-loop optimisation of a repeated cycle of pulses: what it takes until the abundance is known.

Two searches share one objective, the seconds until log A is known to eps from the steady state of
the cycle (`palestra.envs.nmr.steady_state`): the cross-entropy method (Rubinstein 1999) over the
parameters of any family of cycles, and a gradient through the closed forms of rotation and delay
(`palestra.controllers.nmr_gradient`) over flip angles, phases and delays of single events. Every
parameter has bounds of its own, which no cycle leaves. All cycles meet the same isochromats.

The objective is local: with a wide prior on relaxation it is optimistic (docs/nmr.md), and what it
finds then has to be confirmed by Monte Carlo.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from palestra.envs.nmr import checks
from palestra.envs.nmr.events import LARGEST_ANGLE, LONGEST_EVENT, Event, EventList, receiver
from palestra.envs.nmr.sample import Instrument
from palestra.envs.nmr.shots import MOST_PULSES, Shot
from palestra.envs.nmr.steady_state import Target
from palestra.progress import progress_bar

Array = npt.NDArray[Any]

NOISE = 0.03  # added to standard deviations of shares, at first
ROUNDING = 1e-6  # by which an efficiency may pass 1


@dataclass(frozen=True)
class Span:
    """Bounds of one parameter.

    Attributes:
        name: what it is.
        low: least value.
        high: largest value; equal to `low` fixes it.
        logarithmic: whether it is searched in its logarithm.
    """

    name: str
    low: float
    high: float
    logarithmic: bool = False

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(
                f"{self.name}: got bounds {self.low} to {self.high}, allowed finite low <= high"
            )
        if self.logarithmic and not self.low > 0.0:
            raise ValueError(f"{self.name}: got the lower bound {self.low}, allowed above 0")

    def at(self, share: float) -> float:
        """The value a share (0 to 1) of the way from low to high."""
        if self.logarithmic:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        return min(max(float(value), self.low), self.high)

    def share(self, value: float) -> float:
        """How far a value is on the way; values outside are at the ends."""
        value = min(max(value, self.low), self.high)
        if self.high == self.low:
            return 0.5
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


class Family(Protocol):
    """Cycles by their parameters."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """Bounds of each parameter."""

    def build(self, values: Sequence[float]) -> EventList:
        """The cycle of parameters within their bounds."""


SHOT_PARAMETERS = ("excitation", "train", "pulses", "flip_back", "wait")


@dataclass(frozen=True)
class SuperCycle:
    """Several shots in turn: trains, driven equilibrium, steady states, and mixtures of them.

    Attributes:
        shots: how many a cycle has.
        te: spacing of the pulses of trains, s.
        instrument: its dead time and dwell time.
        longest_wait: s.
        most_pulses: of one train.
        limits: (low, high) of any of `SHOT_PARAMETERS` in all shots, in rad and s.

    Raises:
        ValueError: a limit of another parameter, or one outside what shots allow.
    """

    shots: int
    te: float
    instrument: Instrument
    longest_wait: float
    most_pulses: int = MOST_PULSES
    limits: Mapping[str, tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        checks.integer("shots", self.shots, 1, 1000)
        checks.integer("most_pulses", self.most_pulses, 1, 100_000)
        checks.number("te", self.te, (1e-9, LONGEST_EVENT), "s")
        checks.number("longest_wait", self.longest_wait, (0.0, LONGEST_EVENT), "s")
        for name, (low, high) in (self.limits or {}).items():
            if name not in SHOT_PARAMETERS:
                raise ValueError(f"limits: got {name!r}, allowed {', '.join(SHOT_PARAMETERS)}")
            widest = self._widest()[name]
            if not widest[0] <= low <= high <= widest[1]:
                raise ValueError(
                    f"limits[{name!r}]: got {low} to {high}, allowed within {widest[0]:g} to "
                    f"{widest[1]:g}"
                )

    def _widest(self) -> dict[str, tuple[float, float]]:
        angle = (0.0, math.pi)
        pulses, wait = (1.0, float(self.most_pulses)), (0.0, self.longest_wait)
        ends = (angle, angle, pulses, (-math.pi, math.pi), wait)
        return dict(zip(SHOT_PARAMETERS, ends, strict=True))

    @property
    def spans(self) -> tuple[Span, ...]:
        """`SHOT_PARAMETERS` of each shot; pulses are searched in their logarithm."""
        bounds = {**self._widest(), **(self.limits or {})}
        return tuple(
            Span(f"{name} {shot + 1}", *bounds[name], logarithmic=name == "pulses")
            for shot in range(self.shots)
            for name in SHOT_PARAMETERS
        )

    def build(self, values: Sequence[float]) -> EventList:
        """The events of all shots."""
        events: tuple[Event, ...] = ()
        for k in range(self.shots):
            excitation, train, pulses, back, wait = values[5 * k : 5 * k + 5]
            shot = Shot(excitation, train, round(pulses), back, wait)
            given = self.instrument
            events += shot.events(self.te, given.dead_time, given.dwell, label=f"{k + 1}: ").events
        return EventList(events)


@dataclass(frozen=True)
class Step:
    """Bounds of one event.

    Attributes:
        theta: (low, high) of the flip angle, rad.
        phi: (low, high) of the phase, rad.
        tau: (low, high) of the delay, s.
        receive: whether the receiver is open in the delay after the dead time.
        spoil: whether a spoiler ends the delay.
        label: of the event.
    """

    theta: tuple[float, float]
    phi: tuple[float, float]
    tau: tuple[float, float]
    receive: bool = True
    spoil: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        for name in ("theta", "phi"):
            angles = (-LARGEST_ANGLE, LARGEST_ANGLE)
            checks.span(name, getattr(self, name), angles, "rad")
        checks.span("tau", self.tau, (0.0, LONGEST_EVENT), "s")


@dataclass(frozen=True)
class EventCycle:
    """A cycle of events, each with bounds of its own: three parameters an event.

    Attributes:
        steps: the events' bounds.
        dead_time: from a pulse to the opening of the receiver, s.
        dwell: time between samples, s.

    Raises:
        ValueError: no step, or a receiver that the dead time could leave no time.
    """

    steps: tuple[Step, ...]
    dead_time: float = 0.0
    dwell: float = 1e-4

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("steps: got none, allowed one or more")
        for k, step in enumerate(self.steps):
            if step.receive and not step.tau[0] > self.dead_time:
                raise ValueError(
                    f"steps[{k}].tau: got {step.tau[0]} s at least, allowed above the dead time "
                    f"{self.dead_time} s where the receiver is open"
                )

    @property
    def spans(self) -> tuple[Span, ...]:
        """Flip angle, phase and delay of each event."""
        return tuple(
            Span(f"{name} {k + 1}", *getattr(step, name))
            for k, step in enumerate(self.steps)
            for name in ("theta", "phi", "tau")
        )

    def build(self, values: Sequence[float]) -> EventList:
        """The events."""
        triples = np.asarray(values, np.float64).reshape(-1, 3).tolist()
        return EventList(
            tuple(
                Event(
                    theta,
                    phi,
                    tau=tau,
                    receive=receiver(tau, self.dead_time, self.dwell) if step.receive else None,
                    spoil=step.spoil,
                    label=step.label,
                )
                for step, (theta, phi, tau) in zip(self.steps, triples, strict=True)
            )
        )


@dataclass(frozen=True)
class Optimised:
    """The best cycle that a search met.

    Attributes:
        cycle: its events.
        values: its parameters.
        seconds: until the target is reached from the steady state; infinite if it never is.
        efficiency: the bound over that, at most 1.
        rate: information about log A in a second, all else known.
        history: best seconds after each round.
    """

    cycle: EventList
    values: tuple[float, ...]
    seconds: float
    efficiency: float
    rate: float
    history: tuple[float, ...]


def judged(
    family: Family, target: Target, values: Sequence[float], history: Iterable[float] = ()
) -> Optimised:
    """A cycle with what it takes.

    Raises:
        ArithmeticError: it would be faster than the bound, which no cycle is.
    """
    cycle = family.build(values)
    rate = target.rate(cycle)
    seconds = target.seconds(cycle)
    efficiency = target.bound / seconds
    if efficiency > 1.0 + ROUNDING:
        raise ArithmeticError(
            f"a cycle of {seconds} s beats the bound of {target.bound} s: not a result but an error"
        )
    return Optimised(
        cycle, tuple(values), seconds, min(efficiency, 1.0), float(rate[0, 0]), tuple(history)
    )


def cross_entropy(
    family: Family,
    target: Target,
    *,
    seed: int,
    population: int = 64,
    elites: int = 10,
    rounds: int = 40,
    start: Sequence[Sequence[float]] = (),
    progress: bool = False,
) -> Optimised:
    """The cross-entropy method: normal distributions of each parameter follow the best cycles.

    Parameters are drawn as shares of the way between their bounds, cut off at the bounds; mean and
    standard deviation move seven tenths of the way to those of the elites, which the best cycle so
    far always belongs to. In the first two thirds of the rounds a shrinking constant is added to
    the standard deviation, so that it does not vanish too soon (Szita and Lorincz, Neural
    Computation 18 (2006) 2936). Parameters are drawn independently: where only some of them
    together lead on, such as equal angles of a balanced train, the search is slow.

    Args:
        family: the cycles.
        target: what they are to reach.
        seed: of the draws.
        population: cycles in a round.
        elites: of them, those that are followed.
        rounds: how many.
        start: parameters of known cycles, which belong to the first round.
        progress: show a bar.

    Raises:
        ValueError: numbers that are not allowed, or a start of another number of parameters.
    """
    checks.integer("seed", seed, 0, 2**64 - 1)
    checks.integer("population", population, 2, 10**6)
    checks.integer("elites", elites, 1, population - 1)
    checks.integer("rounds", rounds, 1, 10**6)
    spans = family.spans
    drawn = np.random.default_rng(seed)
    mean, spread = np.full(len(spans), 0.5), np.full(len(spans), 0.35)
    known = np.array([_shares(spans, values) for values in start]).reshape(-1, len(spans))
    best, least, history = known[:1], math.inf, []
    with progress_bar("cross-entropy", rounds, progress) as advance:
        for round_ in range(rounds):
            shares = drawn.normal(mean, spread, (population, len(spans)))
            shares = np.clip(shares, 0.0, 1.0)
            shares = np.concatenate([known if round_ == 0 else best, shares])
            seconds = np.array([target.seconds(family.build(_values(spans, s))) for s in shares])
            order = np.argsort(seconds, kind="stable")[:elites]
            order = order[np.isfinite(seconds[order])]
            if len(order):
                chosen = shares[order]
                mean += 0.7 * (chosen.mean(axis=0) - mean)
                spread += 0.7 * (chosen.std(axis=0) - spread)
                spread += NOISE * max(0.0, 1.0 - 1.5 * (round_ + 1) / rounds)
                best, least = chosen[:1], float(seconds[order[0]])
            history.append(least)
            advance(1)
    values = _values(spans, best[0] if len(best) else mean)
    return judged(family, target, values, history)


def _values(spans: Sequence[Span], shares: Array) -> list[float]:
    return [span.at(float(share)) for span, share in zip(spans, shares, strict=True)]


def _shares(spans: Sequence[Span], values: Sequence[float]) -> list[float]:
    if len(values) != len(spans):
        raise ValueError(f"start: got {len(values)} parameters, allowed {len(spans)}")
    return [span.share(value) for span, value in zip(spans, values, strict=True)]


def random_values(family: Family, seed: int) -> list[float]:
    """Parameters drawn evenly between their bounds."""
    spans = family.spans
    return _values(spans, np.random.default_rng(seed).uniform(size=len(spans)))
