"""What an experiment tells about abundance, and the least time in which it can tell it.

Noise is white, complex, of variance sigma^2 per real component and sample; N0 = sigma^2 dwell. The
Fisher information about a = (log A, log R1, log R2, log b1) of samples S_k is

    F_ab = sum_k Re(conj(dS_k/da) dS_k/db) / sigma^2.

Derivatives are carried along as *tangents*: three more states an isochromat, which obey the same
linear steps as the magnetisation and pick up a source where a parameter acts.

Pulses do no work. Along any sequence the energy balance of one isochromat is

    (|M(0)|^2 - |M(T)|^2) / 2 = int |Mxy|^2 R2 dt - int Mz (1 - Mz) R1 dt,

and as Mz (1 - Mz) <= 1/4, no sequence gets more signal than

    int |S|^2 dt <= T2 (|M(0)|^2 / 2 + T / (4 T1)),

summed over species by their share of the spins, and hence no measurement to a relative error eps
is shorter than `time_bound`. The derivation is ours: docs/nmr.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from palestra.kernels import kernel

from . import checks
from .bloch import Array, Ensemble, equilibrium, sincos_turns
from .events import Event, EventList

PARAMETERS = ("log A", "log R1", "log R2", "log b1")
STATES = 4  # magnetisation, and its derivatives by log R1, log R2, log b1

_TURN = 2.0 * math.pi


def noise_density(T2: float, eps1: float) -> float:
    """N0 in seconds, for M0 = 1: one ideal shot, its whole decay acquired, errs by eps1.

    1 / eps1^2 = T2 / (2 N0).
    """
    return T2 * eps1**2 / 2.0


def time_bound(T1: float, eps1: float, eps: float) -> float:
    """The least time, in seconds, to measure the abundance of one species to a relative error.

    2 T1 ((eps1 / eps)^2 - 1) from equilibrium, whatever the sequence; 0 where one shot is enough.

    Args:
        T1: of the species, s.
        eps1: relative error of one ideal shot.
        eps: the error to be reached.

    Raises:
        ValueError: a value that is not positive and finite.
    """
    for name, value in (("T1", T1), ("eps1", eps1), ("eps", eps)):
        checks.number(name, value, (1e-12, 1e12))
    return max(0.0, 2.0 * T1 * ((eps1 / eps) ** 2 - 1.0))


def energy_bound(ensemble: Ensemble, time: float, m: Array | None = None) -> Array:
    """The most that int |S|^2 dt can be within a time, for each experiment: (B,), in seconds.

    The weights are those of the received signal; of a start state its own lengths count.

    Args:
        ensemble: the isochromats.
        time: s.
        m: start state (B, 3, N); None is equilibrium.
    """
    m = equilibrium(ensemble) if m is None else m
    R1, R2 = (ensemble.rate_of_isochromat(rates) for rates in (ensemble.R1, ensemble.R2))
    lengths = (np.asarray(m, np.float64) ** 2).sum(axis=1)
    return np.asarray((ensemble.receive * (lengths / 2.0 + time * R1 / 4.0) / R2).sum(axis=1))


@dataclass(frozen=True)
class Balance:
    """The energy balance of every isochromat of one experiment; arrays (N,).

    Attributes:
        lost: (|M(0)|^2 - |M(T)|^2) / 2.
        transverse: int |Mxy|^2 R2 dt.
        longitudinal: int Mz (1 - Mz) R1 dt.
    """

    lost: Array
    transverse: Array
    longitudinal: Array

    @property
    def error(self) -> Array:
        """What is missing from the identity; rounding only."""
        return np.asarray(self.lost - (self.transverse - self.longitudinal))


def energy_balance(events: EventList, ensemble: Ensemble, m: Array | None = None) -> Balance:
    """Both sides of the energy balance over an event list of hard pulses, in closed form.

    Args:
        events: without finite pulses; spoilers count as a loss of transverse magnetisation.
        ensemble: one experiment.
        m: start state (1, 3, N); None is equilibrium.

    Raises:
        ValueError: a finite pulse, or more than one experiment.
    """
    _check_one(ensemble)
    state = _tangent_start(ensemble, m)
    R1, R2 = (ensemble.rate_of_isochromat(rates)[0] for rates in (ensemble.R1, ensemble.R2))
    start = (state[0, 0] ** 2).sum(axis=0)
    transverse, longitudinal, spoiled = (np.zeros_like(start) for _ in range(3))
    for event in events:
        _check_hard(event.t_pulse)
        _pulse(state, ensemble, event.theta, event.phi)
        mx, my, mz = state[0, 0]
        transverse += (mx**2 + my**2) * -np.expm1(-2.0 * R2 * event.tau) / 2.0
        deficit = mz - 1.0  # Mz (1 - Mz) = -(d e + d^2 e^2) with e = exp(-R1 t)
        longitudinal -= deficit * -np.expm1(-R1 * event.tau)
        longitudinal -= deficit**2 * -np.expm1(-2.0 * R1 * event.tau) / 2.0
        _delay(state, ensemble, event.tau)
        if event.spoil:
            spoiled += (state[0, 0, :2] ** 2).sum(axis=0) / 2.0
            state[:, :, :2] = 0.0
    lost = (start - (state[0, 0] ** 2).sum(axis=0)) / 2.0 - spoiled
    return Balance(lost, transverse, longitudinal)


def signal_energy(events: EventList, ensemble: Ensemble, m: Array | None = None) -> float:
    """Int |S|^2 dt over all delays of an event list of hard pulses, exact, in seconds.

    The receiver is taken to be open all the time: what any receiver gets is less.

    Raises:
        ValueError: a finite pulse, or more than one experiment.
    """
    return _energy(events, ensemble, m, lambda event: (0.0, event.tau))


def received_energy(events: EventList, ensemble: Ensemble, m: Array | None = None) -> float:
    """Int |S|^2 dt while the receiver is open, in seconds: each sample stands for its dwell time.

    Raises:
        ValueError: a finite pulse, or more than one experiment.
    """

    def window(event: Event) -> tuple[float, float]:
        r = event.receive
        return (0.0, 0.0) if r is None else (r.first, min(r.first + r.dwell * r.samples, event.tau))

    return _energy(events, ensemble, m, window)


def _energy(
    events: EventList,
    ensemble: Ensemble,
    m: Array | None,
    window: Callable[[Event], tuple[float, float]],
) -> float:
    _check_one(ensemble)
    state = _tangent_start(ensemble, m)
    rates = _rates(ensemble)
    pairs = np.conj(rates)[:, None] + rates[None, :]
    total = 0.0
    for event in events:
        _check_hard(event.t_pulse)
        _pulse(state, ensemble, event.theta, event.phi)
        opened, closed = window(event)
        received = ensemble.receive[0] * (state[0, 0, 0] + 1j * state[0, 0, 1])
        received = received * np.exp(rates * opened)
        grown = np.expm1(pairs * (closed - opened)) / pairs
        total += float((np.conj(received) @ grown @ received).real)
        _delay(state, ensemble, event.tau)
        if event.spoil:
            state[:, :, :2] = 0.0
    return total


def fisher(events: EventList, ensemble: Ensemble, sigma: float, m: Array | None = None) -> Array:
    """Fisher information about `PARAMETERS`, (4, 4), of the samples of an event list.

    That of all its scans; the receiver's phase changes nothing.

    Args:
        events: of hard pulses.
        ensemble: one experiment; its abundance is 1.
        sigma: standard deviation of the noise of a sample of one scan, per real component, for
            M0 = 1.
        m: start state (1, 3, N), which no parameter changes; None is equilibrium.

    Raises:
        ValueError: a finite pulse, more than one experiment, or a sigma that is not positive.
    """
    checks.number("sigma", sigma, (1e-300, 1e300))
    _, slopes = signal_with_slopes(events, ensemble, m)
    return np.asarray(events.scans * (np.conj(slopes) @ slopes.T).real / sigma**2)


def signal_with_slopes(
    events: EventList, ensemble: Ensemble, m: Array | None = None
) -> tuple[Array, Array]:
    """The samples of an event list of hard pulses, and their derivatives by `PARAMETERS`.

    Returns:
        Samples of (Mx + i My) exp(-i phase) of one scan, complex (K,), and their derivatives,
        complex (4, K).

    Raises:
        ValueError: a finite pulse, or more than one experiment.
    """
    _check_one(ensemble)
    state = _tangent_start(ensemble, m)
    rates = _rates(ensemble)
    parts = [np.zeros((STATES, 0), complex)]
    for event in events:
        _check_hard(event.t_pulse)
        _pulse(state, ensemble, event.theta, event.phi)
        if event.receive is not None:
            received = _slopes(state, ensemble, rates, event.receive.times)
            parts.append(event.receive.turned * received)
        _delay(state, ensemble, event.tau)
        if event.spoil:
            state[:, :, :2] = 0.0
    slopes = np.concatenate(parts, axis=1)
    return slopes[0].copy(), slopes  # A is a factor: dS/dlog A = S


def _slopes(state: Array, ensemble: Ensemble, rates: Array, times: Array) -> Array:
    """dS/d(parameter) at times after the state, complex (4, K)."""
    decay = np.exp(np.multiply.outer(rates, times))  # (N, K)
    received = ensemble.receive[0] * (state[0, :, 0] + 1j * state[0, :, 1])  # (4, N)
    slopes = np.asarray(received @ decay)
    R2 = ensemble.rate_of_isochromat(ensemble.R2)[0]
    slopes[2] -= times * ((received[0] * R2) @ decay)  # R2 acts on while the receiver is open
    return slopes


def _rates(ensemble: Ensemble) -> Array:
    R2 = ensemble.rate_of_isochromat(ensemble.R2)[0]
    return np.asarray(2j * np.pi * ensemble.offset_hz[0] - R2)


def _tangent_start(ensemble: Ensemble, m: Array | None) -> Array:
    state = np.zeros((ensemble.shape[0], STATES, 3, ensemble.shape[1]))
    state[:, 0] = equilibrium(ensemble) if m is None else m
    return state


def _check_one(ensemble: Ensemble) -> None:
    if ensemble.shape[0] != 1:
        raise ValueError(f"ensemble: got {ensemble.shape[0]} rows, allowed 1")


def _check_hard(t_pulse: float) -> None:
    if t_pulse > 0.0:
        raise ValueError(f"events: a finite pulse of {t_pulse} s; allowed hard pulses (0 s)")


# -------------------------------------------------------------------------------------- tangents


def pulse_and_delay_with_tangents(
    state: Array, ensemble: Ensemble, theta: Array, phi: Array, tau: Array, live: Array
) -> None:
    """A hard pulse, then a delay, of a state and its derivatives, in place.

    Args:
        state: (B, 4, 3, N) float64: M, dM/dlog R1, dM/dlog R2, dM/dlog b1.
        ensemble: its isochromats.
        theta: nominal flip angles, rad (B,).
        phi: phases, rad (B,).
        tau: delays, s (B,).
        live: rows to touch, bool (B,).
    """
    _event_with_tangents(
        state, ensemble.offset_hz, ensemble.b1, ensemble.R1, ensemble.R2, ensemble.blocks,
        theta, phi, tau, live,
    )  # fmt: skip


def _pulse(state: Array, ensemble: Ensemble, theta: float, phi: float) -> None:
    _one(state, ensemble, theta, phi, 0.0)


def _delay(state: Array, ensemble: Ensemble, tau: float) -> None:
    _one(state, ensemble, 0.0, 0.0, tau)


def _one(state: Array, ensemble: Ensemble, theta: float, phi: float, tau: float) -> None:
    pulse_and_delay_with_tangents(
        state, ensemble, np.array([theta]), np.array([phi]), np.array([tau]), np.ones(1, np.bool_)
    )


@kernel(allocates=False)
def _event_with_tangents(  # type: ignore[no-untyped-def]
    state, offset_hz, b1, R1, R2, blocks, theta, phi, tau, live
):
    for row in range(state.shape[0]):
        if live[row]:
            if theta[row] != 0.0:
                pulse_with_tangents_row(state, row, b1, theta[row], phi[row])
            if tau[row] > 0.0:
                delay_with_tangents_row(state, row, offset_hz, R1, R2, blocks, tau[row])


@kernel(allocates=False)
def pulse_with_tangents_row(state, row, b1, theta, phi):  # type: ignore[no-untyped-def]
    """Rotate M and its derivatives about n by theta b; d/dlog b1 also gains theta b n x M."""
    sin_phi, cos_phi = sincos_turns(phi / _TURN, 0.0)
    turns = theta / _TURN
    b = b1[row]
    for k in range(STATES):
        mx, my, mz = state[row, k, 0], state[row, k, 1], state[row, k, 2]
        for i in range(b.size):
            s, c = sincos_turns(turns * b[i], 0.0)
            along = cos_phi * mx[i] + sin_phi * my[i]
            across = cos_phi * my[i] - sin_phi * mx[i]
            turned = c * across - s * mz[i]
            mz[i] = s * across + c * mz[i]
            mx[i] = cos_phi * along - sin_phi * turned
            my[i] = sin_phi * along + cos_phi * turned
    mx, my, mz = state[row, 0, 0], state[row, 0, 1], state[row, 0, 2]
    dx, dy, dz = state[row, 3, 0], state[row, 3, 1], state[row, 3, 2]
    for i in range(b.size):
        angle = theta * b[i]
        dx[i] += angle * sin_phi * mz[i]
        dy[i] -= angle * cos_phi * mz[i]
        dz[i] += angle * (cos_phi * my[i] - sin_phi * mx[i])


@kernel(allocates=False)
def delay_with_tangents_row(  # type: ignore[no-untyped-def]
    state, row, offset_hz, R1, R2, blocks, tau
):
    """Precession and relaxation of M and its derivatives; each rate adds its own source."""
    for species in range(blocks.size - 1):
        first, last = blocks[species], blocks[species + 1]
        offset = offset_hz[row, first:last]
        slow, fast = tau * R1[row, species], tau * R2[row, species]
        E1, E2 = math.exp(-slow), math.exp(-fast)
        for k in range(STATES):
            mx, my = state[row, k, 0, first:last], state[row, k, 1, first:last]
            for i in range(mx.size):
                s, c = sincos_turns(offset[i] * tau, 0.0)
                x, y = mx[i], my[i]
                mx[i] = E2 * (c * x - s * y)
                my[i] = E2 * (s * x + c * y)
        mx, my = state[row, 0, 0, first:last], state[row, 0, 1, first:last]
        dx, dy = state[row, 2, 0, first:last], state[row, 2, 1, first:last]
        mz, z1 = state[row, 0, 2, first:last], state[row, 1, 2, first:last]
        z2, zb = state[row, 2, 2, first:last], state[row, 3, 2, first:last]
        for i in range(mx.size):
            dx[i] -= fast * mx[i]
            dy[i] -= fast * my[i]
            z1[i] = E1 * (z1[i] - slow * (mz[i] - 1.0))
            z2[i] = E1 * z2[i]
            zb[i] = E1 * zb[i]
            mz[i] = 1.0 + E1 * (mz[i] - 1.0)
