"""What the record of some shots tells about log A, log R1, log R2, log b1, compiled for batches.

The information is that of `palestra.envs.nmr.information`, the fit that of
`palestra.envs.nmr.estimation`: here over shots, at the nodes of their windows, one experiment after
the other without Python in between. Tests hold the two against each other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from palestra.kernels import kernel
from palestra.streams import normal

from .information import STATES
from .shots import (
    Windows,
    excite_and_train_row,
    fill_windows_row,
    flip_back_row,
    kind_of_gap,
    rotation,
    wait_row,
    windows_of,
)

KNOWN = 1e30  # precision of a parameter that is known
MOST_STEPS = 12  # of a fit
LONGEST_STEP = 0.7  # of a logarithm
SMALL_STEP = 0.02  # standard deviations
FAR, FAR_LOG = 1.0, 0.1  # standard deviations, and logarithms, at which a fit is linearised anew
HALVINGS = 4


@kernel(allocates=False)
def marginal_information(F, precision):  # type: ignore[no-untyped-def]
    """1 / variance of log A where the others are known to a precision: F (4, 4), (4,).

    F_00 - F_0r (F_rr + P_rr)^-1 F_r0 by Cholesky's decomposition.
    """
    a = F[1, 1] + precision[1]
    b, c = F[1, 2], F[2, 2] + precision[2]
    d, e, f = F[1, 3], F[2, 3], F[3, 3] + precision[3]
    if a <= 0.0:
        a = 1e-300
    l11 = math.sqrt(a)
    l21, l31 = b / l11, d / l11
    l22 = math.sqrt(max(c - l21 * l21, 1e-300))
    l32 = (e - l31 * l21) / l22
    l33 = math.sqrt(max(f - l31 * l31 - l32 * l32, 1e-300))
    y1 = F[0, 1] / l11
    y2 = (F[0, 2] - l21 * y1) / l22
    y3 = (F[0, 3] - l31 * y1 - l32 * y2) / l33
    return F[0, 0] + precision[0] - y1 * y1 - y2 * y2 - y3 * y3


@kernel(allocates=False)
def window_energy(signals, gap, weights):  # type: ignore[no-untyped-def]
    """Int |S|^2 dt of one window, s."""
    nodes = weights.size
    total = 0.0
    for q in range(nodes):
        u, v = signals[gap * nodes + q, 0]
        total += weights[q] * (u * u + v * v)
    return total


@kernel(allocates=False)
def add_window(signals, gap, weights, N0, F):  # type: ignore[no-untyped-def]
    """Add the Fisher information of one window to F (4, 4)."""
    nodes = weights.size
    for q in range(nodes):
        slopes = signals[gap * nodes + q]
        size = weights[q] / N0
        for a in range(STATES):
            for b in range(a + 1):
                F[a, b] += size * (slopes[a, 0] * slopes[b, 0] + slopes[a, 1] * slopes[b, 1])
                F[b, a] = F[a, b]


@kernel(allocates=False)
def _energy_until(signals, gap, nodes, share):  # type: ignore[no-untyped-def]
    """Int |S|^2 over the first part of a window of length 1.

    S is the polynomial through the window's nodes; the rule of the window integrates its square.
    """
    x, w = nodes
    Q = x.size
    total = 0.0
    for p in range(Q):
        at = share * x[p]
        u, v = 0.0, 0.0
        for q in range(Q):
            basis = 1.0
            for r in range(Q):
                if r != q:
                    basis *= (at - x[r]) / (x[q] - x[r])
            u += basis * signals[gap * Q + q, 0, 0]
            v += basis * signals[gap * Q + q, 0, 1]
        total += share * w[p] * (u * u + v * v)
    return total


@kernel(allocates=False)
def share_of_window(signals, gap, nodes, energy):  # type: ignore[no-untyped-def]
    """The part of a window of length 1 after which Int |S|^2 reaches `energy`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(45):
        middle = 0.5 * (low + high)
        if _energy_until(signals, gap, nodes, middle) < energy:
            low = middle
        else:
            high = middle
    return high


@kernel(allocates=False)
def record(signals, shot, weights, N0, abundance, key, episode, step, data, first):  # type: ignore[no-untyped-def]
    """Write the noisy samples of a shot into data (M, 2), from `first` on; returns their end."""
    nodes = weights.shape[1]
    at = first
    for gap in range(windows_of(shot)):
        kind = kind_of_gap(shot, gap)
        for q in range(nodes):
            sd = math.sqrt(N0 / weights[kind, q])
            place = gap * nodes + q
            u, v = signals[place, 0]
            data[at, 0] = abundance * u + sd * normal(key, episode, step, 2 * place)
            data[at, 1] = abundance * v + sd * normal(key, episode, step, 2 * place + 1)
            at += 1
    return at


@kernel(allocates=False)
def _misfit(signals, shot, weights, N0, A, data, first, g, H):  # type: ignore[no-untyped-def]
    """Add a shot's half chi^2, its gradient and its curvature; returns half chi^2."""
    nodes = weights.shape[1]
    cost, at = 0.0, first
    for gap in range(windows_of(shot)):
        kind = kind_of_gap(shot, gap)
        for q in range(nodes):
            slopes, size = signals[gap * nodes + q], weights[kind, q] / N0
            u = data[at, 0] - A * slopes[0, 0]
            v = data[at, 1] - A * slopes[0, 1]
            cost += 0.5 * size * (u * u + v * v)
            for a in range(STATES):
                g[a] += size * A * (slopes[a, 0] * u + slopes[a, 1] * v)
                for b in range(a + 1):
                    H[a, b] += size * A * A * (
                        slopes[a, 0] * slopes[b, 0] + slopes[a, 1] * slopes[b, 1]
                    )  # fmt: skip
            at += 1
    return cost


@kernel(allocates=False)
def _solve(H, g, step, L):  # type: ignore[no-untyped-def]
    """Step = H^-1 g by Cholesky's decomposition L of H, whose lower triangle is given."""
    n = g.size
    for i in range(n):
        for j in range(i + 1):
            total = H[i, j]
            for k in range(j):
                total -= L[i, k] * L[j, k]
            L[i, j] = math.sqrt(max(total, 1e-300)) if i == j else total / L[j, j]
    for i in range(n):
        total = g[i]
        for k in range(i):
            total -= L[i, k] * step[k]
        step[i] = total / L[i, i]
    for i in range(n - 1, -1, -1):
        total = step[i]
        for k in range(i + 1, n):
            total -= L[k, i] * step[k]
        step[i] = total / L[i, i]


class Workspace:
    """Room for the fit of one experiment of some shape.

    Attributes:
        arrays: what the kernels take, in their order.
    """

    def __init__(self, windows: Windows, isochromats: int, species: int, most_pulses: int) -> None:
        Q, N = windows.nodes, isochromats
        self.arrays: tuple[Any, ...] = (
            np.zeros((2, 5, N)),
            np.zeros((4, Q, 2, N)),
            np.zeros((3, 2, N)),
            np.zeros(N),
            np.zeros(species),
            np.zeros(species),
            np.zeros(((most_pulses + 1) * Q, STATES, 2)),
            np.zeros((4, STATES)),
            np.zeros((STATES, STATES)),
        )


@kernel(allocates=False)
def _restart(m, g, H, value, precision):  # type: ignore[no-untyped-def]
    """Equilibrium, and the prior's part of gradient and curvature; returns its half chi^2."""
    for k in range(STATES):
        for c in range(3):
            for i in range(m.shape[2]):
                m[k, c, i] = 1.0 if k == 0 and c == 2 else 0.0
    cost = 0.0
    for a in range(STATES):
        g[a] = -precision[a] * value[a]
        cost += 0.5 * precision[a] * value[a] * value[a]
        for b in range(STATES):
            H[a, b] = precision[a] if a == b else 0.0
    return cost


@kernel(allocates=False)
def _add_shots(  # type: ignore[no-untyped-def]
    m, g, H, value, shots, first, count, data, row, offset_hz, b1, R1, R2, blocks, receive, te,
    times, weights, N0, work,
):  # fmt: skip
    """Add shots number `first` to count - 1 at a value: half chi^2, gradient, curvature.

    `m` is the state after the train of shot first - 1 (equilibrium, for the first), and goes on.
    """
    steps, factors, operators, scaled_b1, scaled_R1, scaled_R2, signals, _, _ = work
    for species in range(R1.shape[1]):
        scaled_R1[species] = R1[row, species] * math.exp(value[1])
        scaled_R2[species] = R2[row, species] * math.exp(value[2])
    strength = math.exp(value[3])
    for i in range(scaled_b1.size):
        scaled_b1[i] = b1[row, i] * strength
    fill_windows_row(
        row, offset_hz, scaled_R1, scaled_R2, blocks, receive, te, times, steps, factors
    )
    cost, A, at = 0.0, math.exp(value[0]), 0
    for k in range(first):
        at += windows_of(shots[k]) * times.shape[1]
    for k in range(first, count):
        if k > 0 and shots[k - 1, 4] >= 0.0:
            rotation(shots[k - 1, 3], scaled_b1, operators[2])
            flip_back_row(m, scaled_b1, shots[k - 1], operators[2], False)
            wait_row(m, scaled_R1, blocks, shots[k - 1, 4])
        shot = shots[k]
        if shot[2] > 0.0:
            rotation(shot[0], scaled_b1, operators[0])
            rotation(shot[1], scaled_b1, operators[1])
            excite_and_train_row(
                m, scaled_b1, scaled_R2, blocks, steps, factors, times, shot, operators, False,
                signals,
            )  # fmt: skip
            cost += _misfit(signals, shot, weights, N0, A, data, at, g, H)
            at += windows_of(shot) * times.shape[1]
    return cost


@kernel(allocates=False)
def fit_row(  # type: ignore[no-untyped-def]
    value, covariance, around, m, g, H, precision, needed, shots, count, data, row, offset_hz, b1,
    R1, R2, blocks, receive, te, times, weights, N0, work,
):  # fmt: skip
    """Maximum a posteriori (log A, log R1, log R2, log b1) after one more shot, in place.

    The shots before are kept as the quadratic that they are near the value `around`: g, H, and the
    state m at their end. Only where the new shot moves the fit far (`FAR`, `FAR_LOG`), or
    ends the measurement, all are fitted anew: Gauss-Newton, halving steps that go
    too far. The rates of the ensemble are the prior's centre.
    """
    step, small = work[7][0], work[7]
    L = work[8]
    if count > 1:
        _add_shots(
            m, g, H, around, shots, count - 1, count, data, row, offset_hz, b1, R1, R2, blocks,
            receive, te, times, weights, N0, work,
        )  # fmt: skip
        _solve(H, g, step, L)
        moved, longest = 0.0, 0.0
        for a in range(STATES):
            longest = max(longest, abs(step[a]))
            moved += step[a] * g[a]
        _invert(H, covariance, small[1], small[2], L)
        for a in range(STATES):
            value[a] = around[a] + (step[a] if precision[a] < KNOWN else 0.0)
        near = moved < FAR * FAR and longest < FAR_LOG
        if near and covariance[0, 0] * needed > 1.0:
            return
    tried = small[3]
    for a in range(STATES):  # from the old quadratic's minimum, if that is not far off
        if abs(value[a] - around[a]) < LONGEST_STEP:
            around[a] = value[a]
    cost = _restart(m, g, H, around, precision)
    cost += _add_shots(
        m, g, H, around, shots, 0, count, data, row, offset_hz, b1, R1, R2, blocks, receive, te,
        times, weights, N0, work,
    )  # fmt: skip
    for _ in range(MOST_STEPS):
        _solve(H, g, step, L)
        moved, longest = 0.0, 0.0
        for a in range(STATES):
            longest = max(longest, abs(step[a]))
            moved += step[a] * g[a]
        if moved < SMALL_STEP * SMALL_STEP:
            break
        size = min(1.0, LONGEST_STEP / longest)
        better = False
        for _ in range(HALVINGS):
            for a in range(STATES):
                tried[a] = around[a] + (size * step[a] if precision[a] < KNOWN else 0.0)
            now = _restart(m, g, H, tried, precision)
            now += _add_shots(
                m, g, H, tried, shots, 0, count, data, row, offset_hz, b1, R1, R2, blocks, receive,
                te, times, weights, N0, work,
            )  # fmt: skip
            if now <= cost:
                cost, better = now, True
                break
            size *= 0.5
        if not better:
            _restart(m, g, H, around, precision)
            _add_shots(
                m, g, H, around, shots, 0, count, data, row, offset_hz, b1, R1, R2, blocks,
                receive, te, times, weights, N0, work,
            )  # fmt: skip
            break
        for a in range(STATES):
            around[a] = tried[a]
    for a in range(STATES):
        value[a] = around[a]
    _invert(H, covariance, small[1], small[2], L)


@kernel(allocates=False)
def _invert(H, inverse, unit, column, L):  # type: ignore[no-untyped-def]
    for k in range(STATES):
        for a in range(STATES):
            unit[a] = 1.0 if a == k else 0.0
        _solve(H, unit, column, L)
        for a in range(STATES):
            inverse[a, k] = column[a]
