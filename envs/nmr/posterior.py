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
    hard_operator,
    kind_of_gap,
    wait_row,
)

KNOWN = 1e30  # precision of a parameter that is known
MOST_STEPS = 12  # of a fit
LONGEST_STEP = 0.7  # of a logarithm
SMALL_STEP = 1e-3  # of a standard deviation
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
    for gap in range(int(shot[2]) + 1):
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
    for gap in range(int(shot[2]) + 1):
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
            np.zeros((STATES, 3, N)),
            np.zeros((2, 5, N)),
            np.zeros((4, Q, 2, N)),
            np.zeros((3, 12, N)),
            np.zeros(N),
            np.zeros(species),
            np.zeros(species),
            np.zeros(((most_pulses + 1) * Q, STATES, 2)),
            np.zeros((7, STATES)),
            np.zeros((2, STATES, STATES)),
        )


@kernel(allocates=False)
def _evaluate(  # type: ignore[no-untyped-def]
    value, precision, shots, count, data, row, offset_hz, b1, R1, R2, blocks, receive, te, times,
    weights, N0, work, g, H,
):  # fmt: skip
    """Half chi^2 and prior of all shots so far at a value, with gradient and curvature."""
    m, steps, factors, operators, scaled_b1, scaled_R1, scaled_R2, signals, _, _ = work
    for species in range(R1.shape[1]):
        scaled_R1[species] = R1[row, species] * math.exp(value[1])
        scaled_R2[species] = R2[row, species] * math.exp(value[2])
    strength = math.exp(value[3])
    for i in range(scaled_b1.size):
        scaled_b1[i] = b1[row, i] * strength
    fill_windows_row(
        row, offset_hz, scaled_R1, scaled_R2, blocks, receive, te, times, steps, factors
    )
    for k in range(STATES):
        for c in range(3):
            for i in range(scaled_b1.size):
                m[k, c, i] = 1.0 if k == 0 and c == 2 else 0.0
    cost = 0.0
    for a in range(STATES):
        g[a] = -precision[a] * value[a]
        cost += 0.5 * precision[a] * value[a] * value[a]
        for b in range(STATES):
            H[a, b] = precision[a] if a == b else 0.0
    A, at = math.exp(value[0]), 0
    for k in range(count):
        shot = shots[k]
        hard_operator(shot[0], scaled_b1, operators[0])
        hard_operator(shot[1], scaled_b1, operators[1])
        excite_and_train_row(
            m, scaled_b1, scaled_R2, blocks, steps, factors, times, shot, operators[0],
            operators[1], signals,
        )  # fmt: skip
        cost += _misfit(signals, shot, weights, N0, A, data, at, g, H)
        at += (int(shot[2]) + 1) * times.shape[1]
        if k < count - 1:
            hard_operator(shot[3], scaled_b1, operators[2])
            flip_back_row(m, scaled_b1, shot, operators[2])
            wait_row(m, scaled_R1, blocks, shot[4])
    return cost


@kernel(allocates=False)
def fit_row(  # type: ignore[no-untyped-def]
    value, covariance, precision, shots, count, data, row, offset_hz, b1, R1, R2, blocks, receive,
    te, times, weights, N0, work,
):  # fmt: skip
    """Maximum a posteriori (log A, log R1, log R2, log b1), from `value` on, in place.

    Gauss-Newton with halved steps where one goes too far. The rates of the ensemble are the
    prior's centre.

    Returns:
        Half chi^2 with the prior's part.
    """
    small, square = work[8], work[9]
    g, step, best, tried = small[0], small[1], small[2], small[3]
    H, L = square[0], square[1]
    known = precision >= KNOWN
    cost = _evaluate(
        value, precision, shots, count, data, row, offset_hz, b1, R1, R2, blocks, receive, te,
        times, weights, N0, work, g, H,
    )  # fmt: skip
    for _ in range(MOST_STEPS):
        _solve(H, g, step, L)
        moved, longest = 0.0, 0.0
        for a in range(STATES):
            longest = max(longest, abs(step[a]))
            moved += step[a] * g[a]
            best[a] = value[a]
        if moved < SMALL_STEP * SMALL_STEP:
            break
        size = min(1.0, LONGEST_STEP / longest)
        better = False
        for _ in range(HALVINGS):
            for a in range(STATES):
                tried[a] = best[a] + size * step[a]
                if known[a]:
                    tried[a] = best[a]
            now = _evaluate(
                tried, precision, shots, count, data, row, offset_hz, b1, R1, R2, blocks, receive,
                te, times, weights, N0, work, g, H,
            )  # fmt: skip
            if now <= cost:
                cost, better = now, True
                break
            size *= 0.5
        if not better:
            cost = _evaluate(
                best, precision, shots, count, data, row, offset_hz, b1, R1, R2, blocks, receive,
                te, times, weights, N0, work, g, H,
            )  # fmt: skip
            break
        for a in range(STATES):
            value[a] = tried[a]
    _invert(H, covariance, small[4], small[5], L)
    return cost


@kernel(allocates=False)
def _invert(H, inverse, unit, column, L):  # type: ignore[no-untyped-def]
    for k in range(STATES):
        for a in range(STATES):
            unit[a] = 1.0 if a == k else 0.0
        _solve(H, unit, column, L)
        for a in range(STATES):
            inverse[a, k] = column[a]
