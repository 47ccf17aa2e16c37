"""A cycle of events repeated for ever: its steady state, and what it tells about the abundance.

A cycle maps the magnetisation of an isochromat by M -> Phi M + c. Its steady state and the
derivatives of that by a parameter a (log R1, log R2, log b1) solve

    (I - Phi) M = c,    (I - Phi) dM/da = (dPhi/da) M + dc/da,

where Phi and c, with their derivatives, are the tangents of four start states: zero and the three
unit vectors. No cycle is repeated to find it.

The open receivers see white noise of density N0 (s, for M0 = 1): a cycle gives the information

    F_ab = int Re(conj(dS/da) dS/db) dt / N0 about (log A, log R1, log R2, log b1),

by Gauss-Legendre rules on pieces so short that they are exact to about 1e-10. In the steady state
|M| returns, so that by the energy balance no cycle tells more about log A in a second than
sum_j f_j T2_j / (4 T1_j N0).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from palestra.kernels import kernel

from . import checks
from .bloch import Array, Ensemble, sincos_turns
from .estimation import Prior
from .events import EventList
from .information import (
    PARAMETERS,
    STATES,
    delay_with_tangents_row,
    pulse_with_tangents_row,
)
from .sample import Sample

NODES = 8  # of the rule on one piece of a window
LONGEST_PIECE = 2.0  # rad that an isochromat turns in it, or decays by

KNOWN = Prior()  # relaxation and transmit field are given

_START_STATES = 4  # zero and the unit vectors
_TURN = 2.0 * math.pi
_WIDE = 1e6  # stands for a prior that says nothing


@dataclass(frozen=True)
class Steps:
    """A list of hard pulses as arrays (K,): what kernels and automatic differentiation read.

    Attributes:
        theta: flip angles, rad.
        phi: phases, rad.
        tau: delays, s.
        opened: when the receiver opens after the pulse, s.
        closed: when it closes, s; not above `opened` where it stays closed.
        spoil: whether a spoiler ends the delay.
    """

    theta: Array
    phi: Array
    tau: Array
    opened: Array
    closed: Array
    spoil: Array

    @staticmethod
    def of(events: EventList) -> Steps:
        """Each sample stands for the dwell after it, but for what would be beyond the delay.

        Raises:
            ValueError: a finite pulse.
        """
        for event in events:
            if event.t_pulse > 0.0:
                raise ValueError(
                    f"events: a finite pulse of {event.t_pulse} s; allowed hard pulses (0 s)"
                )
        windows = [
            (r.first, min(r.last + r.dwell, e.tau)) if (r := e.receive) is not None else (0.0, 0.0)
            for e in events
        ]
        return Steps(
            theta=np.array([e.theta for e in events], np.float64),
            phi=np.array([e.phi for e in events], np.float64),
            tau=np.array([e.tau for e in events], np.float64),
            opened=np.array([opened for opened, _ in windows], np.float64),
            closed=np.array([closed for _, closed in windows], np.float64),
            spoil=np.array([e.spoil for e in events], np.bool_),
        )


def steady_state(cycle: EventList, ensemble: Ensemble) -> Array:
    """The state before each cycle of hard pulses, with its derivatives, (1, 4, 3, N).

    Args:
        cycle: the events that are repeated.
        ensemble: one experiment.

    Raises:
        ValueError: a finite pulse, more than one experiment, or a cycle that takes no time.
    """
    steps = _checked(cycle, ensemble)
    state = np.zeros((_START_STATES, STATES, 3, ensemble.shape[1]))
    for axis in range(3):
        state[1 + axis, 0, axis] = 1.0
    spins = _rows(ensemble, _START_STATES)
    _propagate(
        state, spins.offset_hz, spins.b1, spins.R1, spins.R2, spins.blocks,
        steps.theta, steps.phi, steps.tau, steps.spoil,
    )  # fmt: skip
    shift = state[0].transpose(2, 0, 1)  # (N, 4, 3): c and its derivatives
    images = state[1:].transpose(3, 1, 2, 0)  # (N, 4, 3, 3): image of each unit vector a column
    linear = images - shift[..., np.newaxis]
    rest = np.eye(3) - linear[:, 0]
    m = np.linalg.solve(rest, shift[:, 0, :, np.newaxis])
    sources = linear[:, 1:] @ m[:, np.newaxis] + shift[:, 1:, :, np.newaxis]
    slopes = np.linalg.solve(rest[:, np.newaxis], sources)
    found = np.concatenate([m[:, np.newaxis], slopes], axis=1)[..., 0]
    return np.ascontiguousarray(found.transpose(1, 2, 0))[np.newaxis]


def cycle_information(
    cycle: EventList, ensemble: Ensemble, N0: float, state: Array | None = None
) -> Array:
    """Information about `PARAMETERS` that one cycle gives in its steady state, (4, 4).

    Args:
        cycle: of hard pulses.
        ensemble: one experiment; its abundance is 1.
        N0: noise density, s.
        state: before the cycle, with its derivatives, (1, 4, 3, N); None is the steady state.

    Raises:
        ValueError: a finite pulse, more than one experiment, a cycle that takes no time, or N0 that
            is not positive.
    """
    steps = _checked(cycle, ensemble)
    checks.number("N0", N0, (1e-300, 1e300), "s")
    before = steady_state(cycle, ensemble) if state is None else np.array(state, np.float64)
    information = np.zeros((len(PARAMETERS), len(PARAMETERS)))
    nodes, weights = rule()
    slopes = np.zeros((len(PARAMETERS), 2))
    _accumulate(
        before, ensemble.offset_hz, ensemble.b1, ensemble.R1, ensemble.R2, ensemble.blocks,
        ensemble.receive, steps.theta, steps.phi, steps.tau, steps.opened, steps.closed,
        steps.spoil, largest_rate(ensemble), nodes, weights, slopes, information,
    )  # fmt: skip
    return np.asarray((information + np.triu(information, 1).T) / N0)


def rule() -> tuple[Array, Array]:
    """Nodes and weights of the Gauss-Legendre rule on [0, 1], (8,) each."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (nodes + 1.0) / 2.0, weights / 2.0


def largest_rate(ensemble: Ensemble) -> float:
    """How fast any isochromat turns or decays, rad/s."""
    return float(_TURN * np.abs(ensemble.offset_hz).max() + ensemble.R2.max())


def seconds_to_error(rate: Array, prior: Prior, eps: float) -> float:
    """Time of measurement until the standard deviation of log A is eps; infinite if it never is.

    The smallest T with [(rate T + prior^-1)^-1]_00 <= eps^2, in the basis in which the information
    about the unknown nuisances, scaled by their prior, is diagonal.

    Args:
        rate: information in a second about `PARAMETERS`, (4, 4).
        prior: 0 takes a nuisance as known.
        eps: the error to be reached.

    Raises:
        ValueError: eps out of range.
    """
    checks.number("eps", eps, checks.RELATIVE_ERROR)
    spread = np.minimum(prior.spread[1:], _WIDE)
    known_already = prior.log_A_sd**-2.0 if prior.log_A_sd > 0 else math.inf
    needed = eps**-2.0 - known_already
    if needed <= 0.0:
        return 0.0
    values, vectors = np.linalg.eigh(spread[:, np.newaxis] * rate[1:, 1:] * spread)
    values = np.maximum(values, 0.0)
    lost = (vectors.T @ (spread * rate[1:, 0])) ** 2

    def known(T: float) -> float:
        return float(rate[0, 0] * T - (lost * T * T / (values * T + 1.0)).sum())

    low = needed / rate[0, 0] if rate[0, 0] > 0.0 else math.inf  # as if nuisances were known
    high = low
    while high < 1e12 and known(high) < needed:
        high *= 2.0
    if not high < 1e12:
        return math.inf
    if known(low) >= needed:
        return low
    from scipy.optimize import brentq

    return float(brentq(lambda T: known(T) - needed, low, high, xtol=1e-13 * high, rtol=1e-14))


@dataclass(frozen=True)
class Target:
    """What a repeated cycle is to reach, and with which spins it is judged.

    Attributes:
        ensemble: one experiment, the same for every cycle that is compared.
        N0: noise density, s.
        eps: error of log A to be reached.
        prior: what is known of the nuisances before.
    """

    ensemble: Ensemble
    N0: float
    eps: float
    prior: Prior = KNOWN

    def __post_init__(self) -> None:
        if self.ensemble.shape[0] != 1:
            raise ValueError(f"ensemble: got {self.ensemble.shape[0]} rows, allowed 1")
        checks.number("N0", self.N0, (1e-300, 1e300), "s")
        checks.number("eps", self.eps, checks.RELATIVE_ERROR)

    @staticmethod
    def of(sample: Sample, seed: int = 0) -> Target:
        """The task of a sample; its isochromats are drawn by a seed."""
        task = sample.task
        prior = KNOWN
        if task.information == "marginal":
            prior = Prior(
                log_R1_sd=task.log_T1_sd, log_R2_sd=task.log_T2_sd, log_b1_sd=task.log_b1_sd
            )
        return Target(sample.magnet(seed), sample.N0, task.eps, prior)

    def rate(self, cycle: EventList) -> Array:
        """Information in a second of the repeated cycle about `PARAMETERS`, (4, 4)."""
        return cycle_information(cycle, self.ensemble, self.N0) / cycle.duration

    def seconds(self, cycle: EventList) -> float:
        """Time until the target is reached by the repeated cycle, from its steady state."""
        return seconds_to_error(self.rate(cycle), self.prior, self.eps)

    @property
    def bound(self) -> float:
        """No repeated cycle takes less, s: 1 / eps^2 over the largest rate of information."""
        e = self.ensemble
        ratio = e.rate_of_isochromat(e.R1) / e.rate_of_isochromat(e.R2)
        return float(4.0 * self.N0 / (self.eps**2 * (e.receive * ratio).sum()))


def _checked(cycle: EventList, ensemble: Ensemble) -> Steps:
    if ensemble.shape[0] != 1:
        raise ValueError(f"ensemble: got {ensemble.shape[0]} rows, allowed 1")
    if not cycle.duration > 0.0:
        raise ValueError(f"cycle: got a duration of {cycle.duration} s, allowed above 0")
    return Steps.of(cycle)


def _rows(ensemble: Ensemble, rows: int) -> Ensemble:
    """The same experiment several times."""
    names = ("offset_hz", "b1", "R1", "R2", "receive")
    repeated = {name: np.repeat(getattr(ensemble, name), rows, axis=0) for name in names}
    return dataclasses.replace(ensemble, **repeated)


# --------------------------------------------------------------------------------------- kernels


@kernel(allocates=False)
def _propagate(  # type: ignore[no-untyped-def]
    state, offset_hz, b1, R1, R2, blocks, theta, phi, tau, spoil
):
    """All rows through all events, in place."""
    for row in range(state.shape[0]):
        for k in range(theta.size):
            _step(state, row, offset_hz, b1, R1, R2, blocks, theta[k], phi[k], tau[k], spoil[k])


@kernel(allocates=False)
def _step(  # type: ignore[no-untyped-def]
    state, row, offset_hz, b1, R1, R2, blocks, theta, phi, tau, spoil
):
    if theta != 0.0:
        pulse_with_tangents_row(state, row, b1, theta, phi)
    if tau > 0.0:
        delay_with_tangents_row(state, row, offset_hz, R1, R2, blocks, tau)
    if spoil:
        for k in range(state.shape[1]):
            for i in range(state.shape[3]):
                state[row, k, 0, i] = 0.0
                state[row, k, 1, i] = 0.0


@kernel(allocates=False)
def _accumulate(  # type: ignore[no-untyped-def]
    state, offset_hz, b1, R1, R2, blocks, receive, theta, phi, tau, opened, closed, spoil,
    rate, nodes, weights, slopes, information,
):  # fmt: skip
    """One row through all events; adds the upper half of N0 times the information."""
    for k in range(theta.size):
        if theta[k] != 0.0:
            pulse_with_tangents_row(state, 0, b1, theta[k], phi[k])
        length = closed[k] - opened[k]
        if length > 0.0:
            pieces = max(1, math.ceil(length * rate / LONGEST_PIECE))
            for piece in range(pieces):
                for q in range(nodes.size):
                    time = opened[k] + length * (piece + nodes[q]) / pieces
                    _slopes_at(state, offset_hz, R2, blocks, receive, time, slopes)
                    share = weights[q] * length / pieces
                    for a in range(slopes.shape[0]):
                        for b in range(a, slopes.shape[0]):
                            product = slopes[a, 0] * slopes[b, 0] + slopes[a, 1] * slopes[b, 1]
                            information[a, b] += share * product
        _step(state, 0, offset_hz, b1, R1, R2, blocks, 0.0, 0.0, tau[k], spoil[k])


@kernel(allocates=False)
def _slopes_at(state, offset_hz, R2, blocks, receive, time, slopes):  # type: ignore[no-untyped-def]
    """dS/d(log A, log R1, log R2, log b1) a time after the state, as (real, imaginary)."""
    for a in range(slopes.shape[0]):
        slopes[a, 0] = 0.0
        slopes[a, 1] = 0.0
    for species in range(blocks.size - 1):
        fast = R2[0, species] * time
        E2 = math.exp(-fast)
        for i in range(blocks[species], blocks[species + 1]):
            s, c = sincos_turns(offset_hz[0, i] * time, E2)
            real, imag = receive[0, i] * E2 * c, receive[0, i] * E2 * s
            for a in range(slopes.shape[0]):
                x, y = state[0, a, 0, i], state[0, a, 1, i]
                slopes[a, 0] += real * x - imag * y
                slopes[a, 1] += real * y + imag * x
            x, y = state[0, 0, 0, i], state[0, 0, 1, i]
            slopes[2, 0] -= fast * (real * x - imag * y)
            slopes[2, 1] -= fast * (real * y + imag * x)
