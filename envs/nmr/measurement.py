"""What the environments that measure an abundance share: set-up, start, books, records."""

from __future__ import annotations

import dataclasses
import math
import os
from abc import abstractmethod

import numpy as np

from palestra.batch import Mask, Options
from palestra.kernels import kernel
from palestra.streams import Streams

from . import checks
from .bloch import Array
from .events import EventList
from .information import STATES
from .limits import violations
from .measuring import (
    BOOKS,
    acquire,
    acquire_record,
    draw_truth,
    open_books,
    recover,
    refer_all,
    see,
)
from .posterior import KNOWN, Workspace
from .sample import INFORMATION, Sample
from .shots import PULSES_LIMIT, Shot, ShotAction, Windows, nodes_needed
from .spins import Observed

OBSERVATIONS = ("oracle", "measured")
REWARDS = ("shaped", "time")
SHAPING = 4.0  # reward of all the information that is needed; the time bound costs 1
MARGINAL_PRICE = 0.1  # of a time bound, where T1 and T2 are estimated too: that takes about ten
AVERAGES = 8  # parts of a record, in the observation
OBSERVATION_LIMIT = 10.0
LONGEST_HORIZON = 100_000  # shots: each is kept
FILLS_A_WINDOW = 2_000  # pulses that are looked at, of those that fill the window of the duty


@kernel(allocates=False)
def within_limits(observation):  # type: ignore[no-untyped-def]
    """Clip an observation to +-10, in place."""
    for k in range(observation.size):
        observation[k] = min(max(observation[k], -OBSERVATION_LIMIT), OBSERVATION_LIMIT)


class Measurement(Observed):
    """Rows that measure the abundance of an element; subclasses say who acts, and how.

    Attributes:
        action: how actions become shots.
        windows: the gaps of a train.
        measured: whether noisy records are drawn and fitted.
        shaping: what all the information is worth, in reward.
        price: what a time bound costs, in reward.
        books: time, information and bound of each row, (B,) of `BOOKS`.
        averages: the last record in equal parts over their noise, (B, 8, 2).
        value: fitted log A, and log R1, log R2, log b1 from the prior's centre, (B, 4).
        covariance: of the same, (B, 4, 4).
    """

    def __init__(
        self,
        rows: int,
        *,
        horizon: int,
        sample: str | os.PathLike[str] | Sample,
        te: float,
        eps: float | None,
        eps1: float | None,
        information: str | None,
        observation: str | None,
        reward: str,
        most_pulses: int,
    ) -> None:
        checks.integer("horizon", horizon, 1, LONGEST_HORIZON)
        checks.choice("reward", reward, REWARDS)
        super().__init__(rows, horizon=int(horizon), sample=sample)
        self.sample = _with_task(self.sample, eps, eps1, information)
        task, instrument = self.sample.task, self.sample.instrument
        marginal = task.information == "marginal"
        observation = observation or ("measured" if marginal else "oracle")
        checks.choice("observation", observation, OBSERVATIONS)
        self.measured = observation == "measured"
        finite = instrument.pulse_model == "finite"
        if finite and (marginal or self.measured):
            raise ValueError(
                "sample: got instrument.pulse_model 'finite' with information "
                f"{task.information!r} and observation {observation!r}, allowed 'hard' with these; "
                "'finite' with 'known' and 'oracle'"
            )
        checks.number("te", te, checks.DELAY, "s")
        self.action = ShotAction(most_pulses)
        _check_instrument(self.sample, float(te))
        self.shaping = SHAPING if reward == "shaped" else 0.0
        self.price = MARGINAL_PRICE if marginal else 1.0
        self._needed = 1.0 / task.eps**2
        self._nu1 = float(instrument.nu1_max_hz) if finite else 0.0
        self.sample.warn_of_revival(min(horizon, PULSES_LIMIT) * int(most_pulses) * te)
        self._allocate_train(float(te))
        self._allocate_record()

    def _allocate_train(self, te: float) -> None:
        sample, (rows, N) = self.sample, self.ensemble.shape
        marginal = sample.task.information == "marginal"
        nodes = nodes_needed(2 * sample.band_hz, te, 2 / sample.shortest[1])
        self.windows = Windows(rows, N, nodes, te, float(sample.instrument.dead_time))
        x, w = np.polynomial.legendre.leggauss(nodes)
        self._rule = np.array([(x + 1) / 2, w / 2])
        states = STATES if marginal and not self.measured else 1
        self._spins = np.zeros((rows, states, 3, N))
        self.m = self._spins[:, 0]
        self.m[:, 2] = 1.0
        self.books = np.ones(rows, BOOKS)
        self._shots = np.zeros((rows, int(self.horizon or 0), 5))
        self._operators, self._basis = np.zeros((3, 12, N)), np.zeros((1, 3, N))
        self._signals = np.zeros(((self.action.most_pulses + 1) * nodes, states, 2))
        self._fraction = np.array([s.fraction for s in sample.species], np.float64)
        self._F = np.zeros((rows, STATES, STATES))
        task = sample.task
        self._sds = np.array([task.log_T1_sd, task.log_T2_sd, task.log_b1_sd]) * marginal
        self._precision = np.array([0.0, KNOWN, KNOWN, KNOWN])
        free = self._sds > KNOWN**-0.5
        self._precision[1:][free] = self._sds[free] ** -2.0

    def _allocate_record(self) -> None:
        rows, N = self.ensemble.shape
        species, most = self.sample.species, self.action.most_pulses
        self._centre_R1 = np.tile([1 / s.T1 for s in species], (rows, 1))
        self._centre_R2 = np.tile([1 / s.T2 for s in species], (rows, 1))
        self._centre_b1 = np.ones((rows, N))
        room = (self.horizon or 0) * (most + 1) * self.windows.nodes if self.measured else 0
        self._data = np.zeros((rows, room, 2))
        self._filled = np.zeros(rows, np.int64)
        self.value = np.zeros((rows, STATES))
        self.covariance = np.zeros((rows, STATES, STATES))
        self._linear = (  # the fit so far: around which value, model there, gradient, curvature
            np.zeros((rows, STATES)),
            np.zeros((rows, STATES, 3, N)),
            np.zeros((rows, STATES)),
            np.zeros((rows, STATES, STATES)),
        )
        self.averages = np.zeros((rows, AVERAGES, 2))
        self._last = np.zeros((rows, 5), np.float32)
        self._work = Workspace(self.windows, N, len(species), most).arrays

    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Another sample and magnet, at equilibrium."""
        e, sample = self.ensemble, self.sample
        sample.draw(e, rows, streams.dynamics, streams.episode)
        self._draw_truth(rows, streams)
        scale = float(sample.field.scale_hz)
        open_books(
            rows, streams.dynamics, streams.episode, self.books, self._fraction, e.R1, e.R2,
            sample.vary.b0_fwhm_hz or (scale, scale), float(sample.instrument.eps1),
            float(sample.task.eps), self._spins,
        )  # fmt: skip
        self.windows.fill(rows, e)
        self._F[rows] = 0.0
        self._filled[rows] = 0
        self.value[rows] = 0.0
        self.covariance[rows] = np.diag(1 / np.maximum(self._precision, 1 / KNOWN))
        self._linear[0][rows] = 0.0
        self.averages[rows] = 0.0
        self._last[rows] = 0.0
        if self.measured:
            refer_all(rows, self.books, self._centre_R1, self.value, self.covariance)
        self._look(rows)

    def _draw_truth(self, rows: Mask, streams: Streams) -> None:
        e, vary = self.ensemble, self.sample.vary
        varies = vary.T1 is not None or vary.T2_over_T1 is not None
        if self.sample.task.information == "marginal":
            draw_truth(
                rows, streams.dynamics, streams.episode, e.R1, e.R2, e.b1, self._centre_R1,
                self._centre_R2, self._centre_b1, self._sds, varies,
            )  # fmt: skip
        else:
            self._centre_R1[rows], self._centre_R2[rows] = e.R1[rows], e.R2[rows]
            self._centre_b1[rows] = e.b1[rows]

    @abstractmethod
    def _look(self, rows: Mask) -> None:
        """Compute the observation of the masked rows."""

    def _acquire(self, rows: Mask, streams: Streams) -> None:
        """The shot that was written for each masked row, up to the end of its train."""
        e, w = self.ensemble, self.windows
        if self.measured:
            acquire_record(
                rows, streams.dynamics, streams.episode, streams.step, self._spins, e.b1, e.R1,
                e.R2, e.offset_hz, e.blocks, e.receive, w.steps, w.factors, w.times, w.weights,
                w.te, self._nu1, self._operators, self._basis, self._signals, self.books,
                self._shots, self._data, self._filled, self.value, self.covariance, *self._linear,
                self._precision, self._centre_b1, self._centre_R1, self._centre_R2, self.averages,
                self._work, self._needed,
            )  # fmt: skip
        else:
            acquire(
                rows, self._spins, e.b1, e.R1, e.R2, e.offset_hz, e.blocks, w.steps, w.factors,
                w.times, w.weights, self._rule, w.te, w.dead_time, self._nu1, self._operators,
                self._basis, self._signals, self.books, self._shots, self._F, self._precision,
                self._needed,
            )  # fmt: skip
        see(rows, self._spins, e.receive, e.weight, self.books)

    def _recover(self, rows: Mask) -> None:
        """Flip back, spoil and wait, as the last shot of each masked row says."""
        e = self.ensemble
        recover(
            rows, self._spins, e.b1, e.R1, e.R2, e.offset_hz, e.blocks, self._nu1,
            self._operators, self._basis, self.books, self._shots,
        )  # fmt: skip
        see(rows, self._spins, e.receive, e.weight, self.books)

    def _cost(self, duration: Array) -> Array:
        """Reward that times (B,) in s cost."""
        return np.asarray(self.price * duration / self.books["scale"])

    def _too_late(self) -> Array:
        return np.asarray(self.books["elapsed"] >= self.sample.task.max_time * self.books["scale"])

    @property
    def nominal_scale(self) -> float:
        """The time bound at the prior's centre, s; the longest T1 there where it is 0."""
        return self.sample.T_bound or max(float(s.T1) for s in self.sample.species)

    def metrics(self) -> dict[str, Array]:
        """See the environment."""
        book = self.books
        time = np.where(book["met"] > 0, book["elapsed"], self._extrapolated())
        found = {
            "measurement_time": time,
            "time_bound": book["bound"].copy(),
            "time_over_bound": time / book["scale"],
            "efficiency": book["bound"] / np.maximum(time, np.finfo(np.float64).tiny),
            "target_met": book["met"] > 0,
            "share": book["share"].copy(),
            "shots": book["shots"].copy(),
        }
        if self.measured:
            R1, R2 = self.ensemble.R1[:, 0], self.ensemble.R2[:, 0]
            found |= {
                "abundance": np.exp(self.value[:, 0]),
                "predicted_error": np.sqrt(self.covariance[:, 0, 0]),
                "T1_ratio": R1 / (self._centre_R1[:, 0] * np.exp(self.value[:, 1])),
                "T2_ratio": R2 / (self._centre_R2[:, 0] * np.exp(self.value[:, 2])),
            }
        return found

    def _extrapolated(self) -> Array:
        """When the target would be met, s, if the rest went as well against the bound as so far."""
        book = self.books
        most = book["at_once"] + book["per_second"] * book["elapsed"]
        so_far = np.clip(book["information"] * book["N0"] / most, 1e-12, 1.0)
        energy = book["N0"] * self._needed / so_far
        rest = np.maximum((energy - book["at_once"]) / book["per_second"], book["elapsed"])
        return np.asarray(rest)

    def shots(self, row: int) -> tuple[Shot, ...]:
        """The shots of a row's episode so far."""
        return tuple(
            Shot(float(s[0]), float(s[1]), int(s[2]), float(s[3]), float(s[4]))
            for s in self._shots[row, : int(self.books["shots"][row])]
        )

    def events(self, row: int) -> EventList:
        """The events of a row's episode so far, up to the moment the target was met."""
        te, instrument = self.windows.te, self.sample.instrument
        events = EventList()
        for shot in self.shots(row):
            events += shot.events(te, instrument.dead_time, instrument.dwell, self._nu1)
        elapsed = float(self.books["elapsed"][row])
        return events.split(elapsed)[0] if elapsed < events.duration else events

    def _state(self) -> dict[str, Array]:
        return {
            **super()._state(),
            "spins": self._spins,
            "books": self.books.view(np.float64).reshape(self.rows, -1),
            "shots": self._shots,
            "F": self._F,
            "steps": self.windows.steps,
            "factors": self.windows.factors,
            "centre_R1": self._centre_R1,
            "centre_R2": self._centre_R2,
            "centre_b1": self._centre_b1,
            "filled": self._filled,
            "value": self.value,
            "covariance": self.covariance,
            **{f"linear_{k}": array for k, array in enumerate(self._linear)},
            "averages": self.averages,
            "last": self._last,
            "observation": self._observation,
        }

    def snapshot(self, rows: Mask) -> dict[str, Array]:
        """All that the masked rows need to go on; of the records, the part that is filled."""
        longest = max(self._filled[rows].tolist(), default=0)
        return {**super().snapshot(rows), "data": self._data[rows, :longest].copy()}

    def restore(self, state: dict[str, Array], rows: Mask) -> None:
        """Put back what `snapshot` took."""
        super().restore(state, rows)
        self._data[rows, : state["data"].shape[1]] = state["data"]

    def _caption(self, row: int) -> str:
        book = self.books[row]
        return (
            f"{book['shots']:.0f} shots, {book['elapsed']:.2f} s; {100 * book['share']:.0f} % of "
            f"the information; bound {book['bound']:.2f} s"
        )


def _check_instrument(sample: Sample, te: float) -> None:
    """Refuse trains that the instrument cannot play, however they are chosen.

    The worst are two shots of the largest angles without a wait: all else is slower or smaller, and
    the phases are always those.
    """
    instrument = sample.instrument
    if not instrument.dead_time < te / 2:
        return  # refused, with its own words, where the windows are laid out
    nu1 = instrument.nu1_max_hz if instrument.pulse_model == "finite" else 0.0
    pulses = min(math.ceil(instrument.duty_window / te) + 1, FILLS_A_WINDOW)
    worst = Shot(math.pi, math.pi, pulses, math.pi, 0.0)
    played = worst.events(te, instrument.dead_time, te, nu1) * 2
    found = violations(played, instrument)
    if found:
        raise ValueError(
            f"sample.instrument: cannot play trains with te = {te:g} s: {found[0]}; allowed other "
            "limits, or a longer te"
        )


def _with_task(
    sample: Sample, eps: float | None, eps1: float | None, information: str | None
) -> Sample:
    """The sample with another target; None keeps its own."""
    task, instrument = sample.task, sample.instrument
    if eps is not None:
        task = dataclasses.replace(task, eps=eps)
    if information is not None:
        checks.choice("information", information, INFORMATION)
        task = dataclasses.replace(task, information=information)
    if eps1 is not None:
        instrument = dataclasses.replace(instrument, eps1=eps1)
    return dataclasses.replace(sample, task=task, instrument=instrument)
