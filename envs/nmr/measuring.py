"""A measurement of abundance, compiled: the truth that is drawn, what shots tell, what they cost.

Two acts make up a measurement. To *acquire* is to excite and open the receiver through a train; to
*recover* is to flip back, spoil and wait. The books of a row count time and information.
"""

from __future__ import annotations

import math

import numpy as np

from palestra.kernels import kernel
from palestra.streams import normal

from .bloch import SPLIT_TOLERANCE
from .information import STATES
from .posterior import (
    add_window,
    fit_row,
    marginal_information,
    record,
    share_of_window,
    window_energy,
)
from .sample import DRAW_WIDTH, uniform_pair
from .shots import (
    excite_and_train_row,
    finite_operator,
    flip_back_row,
    kind_of_gap,
    rotation,
    wait_row,
    windows_of,
)

MARGIN = 2.0  # standard deviations of ln T1, in the reference of waits
DRAW_T1, DRAW_T2, DRAW_B1 = 19, 20, 21  # of step 0, where the truth differs from the prior's centre

BOOKS = np.dtype(
    [
        (name, np.float64)
        for name in (
            "elapsed",  # s
            "dt",  # of the last act, s
            "left_over",  # of a train after the moment the target was met, s
            "shots",
            "information",  # 1 / variance of log A
            "share",  # of the information that is needed, up to 1
            "met",
            "T1",  # the longest, true, s
            "T2",  # of the same species
            "width",  # of the offsets, Hz
            "reference",  # T1 in which waits are given, s
            "N0",  # noise density, s
            "at_once",  # most energy of the signal in no time, s
            "per_second",  # and what any second can add
            "bound",  # the time bound, s
            "scale",  # the time that counts as 1: the bound, or T1 where there is none
            "Mx",
            "My",
            "Mz",
            "Mxy",  # mean of |Mxy|
        )
    ]
)


# -------------------------------------------------------------------------------------- the start


@kernel(allocates=False)
def draw_truth(  # type: ignore[no-untyped-def]
    rows, keys, episodes, R1, R2, b1, centre_R1, centre_R2, centre_b1, sds, relaxation_varies
):
    """Rates and transmit field around the prior's centre, which is the nominal sample.

    ln T1, ln T2 and ln b1 are normal; T2 is held to 2 T1. Where the sample varies its relaxation
    by itself, it stays as drawn.
    """
    for row in range(rows.shape[0]):
        if not rows[row]:
            continue
        key, episode = keys[row], episodes[row]
        strength = math.exp(sds[2] * normal(key, episode, 0, DRAW_B1))
        slower = math.exp(sds[0] * normal(key, episode, 0, DRAW_T1))
        faster = math.exp(sds[1] * normal(key, episode, 0, DRAW_T2))
        for i in range(b1.shape[1]):
            centre_b1[row, i] = b1[row, i]
            b1[row, i] *= strength
        if not relaxation_varies:
            for s in range(R1.shape[1]):
                R1[row, s] = centre_R1[row, s] * slower
                R2[row, s] = max(centre_R2[row, s] * faster, R1[row, s] / 2.0)


@kernel(allocates=False)
def open_books(rows, keys, episodes, books, fraction, R1, R2, width_span, eps1, eps, m):  # type: ignore[no-untyped-def]
    """Bound and noise of the rows' samples; spins at equilibrium, derivatives 0."""
    for row in range(rows.shape[0]):
        if not rows[row]:
            continue
        book = books[row]
        book.elapsed, book.dt, book.left_over, book.shots = 0.0, 0.0, 0.0, 0.0
        book.information, book.share, book.met = 0.0, 0.0, 0.0
        u, _ = uniform_pair(keys[row], episodes[row], 0, DRAW_WIDTH)
        book.width = width_span[0] + u * (width_span[1] - width_span[0])
        energy = 0.0
        book.at_once, book.per_second, book.T1 = 0.0, 0.0, 0.0
        for s in range(fraction.size):
            for r in range(fraction.size):
                energy += fraction[s] * fraction[r] / (R2[row, s] + R2[row, r])
            book.at_once += fraction[s] / R2[row, s] / 2.0
            book.per_second += fraction[s] * R1[row, s] / R2[row, s] / 4.0
            if 1.0 / R1[row, s] > book.T1:
                book.T1, book.T2 = 1.0 / R1[row, s], 1.0 / R2[row, s]
        book.N0 = eps1 * eps1 * energy
        book.bound = max(0.0, (book.N0 / (eps * eps) - book.at_once) / book.per_second)
        book.scale = book.bound if book.bound > 0.0 else book.T1
        book.reference = book.T1
        book.Mx, book.My, book.Mz, book.Mxy = 0.0, 0.0, 1.0, 0.0
        m[row] = 0.0
        m[row, 0, 2] = 1.0


@kernel(allocates=False)
def refer_to_estimate(row, book, centre_R1, value, covariance):  # type: ignore[no-untyped-def]
    """Waits are given in the longest T1 as fitted, and two standard deviations more."""
    slowest = 0.0
    for s in range(centre_R1.shape[1]):
        slowest = max(slowest, 1.0 / centre_R1[row, s])
    sd = math.sqrt(covariance[row, 1, 1])
    book.reference = slowest * math.exp(MARGIN * sd - value[row, 1])


@kernel(allocates=False)
def refer_all(rows, books, centre_R1, value, covariance):  # type: ignore[no-untyped-def]
    """`refer_to_estimate` of the masked rows."""
    for row in range(rows.shape[0]):
        if rows[row]:
            refer_to_estimate(row, books[row], centre_R1, value, covariance)


# ---------------------------------------------------------------------------------------- acquire


@kernel(allocates=False)
def _pulse_operators(shot, row, offset_hz, b1, R1, R2, blocks, nu1, operators, basis):  # type: ignore[no-untyped-def]
    """Excitation and train as operators; returns the lengths of their pulses, s."""
    if nu1 > 0.0:
        first = finite_operator(
            shot[0], nu1, offset_hz, b1, R1, R2, blocks, SPLIT_TOLERANCE, basis, row, operators[0]
        )
        train = finite_operator(
            shot[1], nu1, offset_hz, b1, R1, R2, blocks, SPLIT_TOLERANCE, basis, row, operators[1]
        )
        return first, train
    rotation(shot[0], b1[row], operators[0])
    rotation(shot[1], b1[row], operators[1])
    return 0.0, 0.0


@kernel(allocates=False)
def _time_in_shot(shot, gap, share, first, train, te, dead_time):  # type: ignore[no-untyped-def]
    """Seconds from the start of a shot to a share of the window number `gap`."""
    begun = first
    if gap > 0:
        begun += te / 2.0 + (gap - 1) * te + gap * train
    half = gap == 0 or gap == int(shot[2])
    length = te / 2.0 if half else te
    pulsed = shot[0] != 0.0 if gap == 0 else shot[1] != 0.0
    shut = dead_time if pulsed else 0.0
    return begun + shut + share * (length - shut)


@kernel(allocates=False)
def _until_met(  # type: ignore[no-untyped-def]
    book, F, precision, signals, shot, weights, rule, needed, first, train, te, dead_time
):
    """Count the information of a shot, window by window; when the target is met, s, or -1."""
    marginal = signals.shape[1] == STATES
    met = -1.0
    for gap in range(windows_of(shot)):
        kind = kind_of_gap(shot, gap)
        before = book.information
        if marginal:
            add_window(signals, gap, weights[kind], book.N0, F)
            book.information = marginal_information(F, precision)
        else:
            book.information += window_energy(signals, gap, weights[kind]) / book.N0
        if book.information >= needed and before < needed:
            if marginal:
                share = (needed - before) / (book.information - before)
            else:
                length = weights[kind].sum()
                share = share_of_window(signals, gap, rule, (needed - before) * book.N0 / length)
            met = _time_in_shot(shot, gap, share, first, train, te, dead_time)
    return met


@kernel(allocates=False)
def acquire(  # type: ignore[no-untyped-def]
    rows, m, b1, R1, R2, offset_hz, blocks, steps, factors, times, weights, rule, te, dead_time,
    nu1, operators, basis, signals, books, shots, F, precision, needed,
):  # fmt: skip
    """The shot that comes next in each row, and its information at the true parameters.

    The clock stops inside the window where the target is met; `left_over` is the rest of the train.
    """
    for row in range(rows.shape[0]):
        if not rows[row]:
            continue
        book = books[row]
        shot = shots[row, int(book.shots)]
        first, train = _pulse_operators(
            shot, row, offset_hz, b1, R1, R2, blocks, nu1, operators, basis
        )
        excite_and_train_row(
            m[row], b1[row], R2[row], blocks, steps[row], factors[row], times, shot, operators,
            nu1 > 0.0, signals,
        )  # fmt: skip
        met = _until_met(
            book, F[row], precision, signals, shot, weights, rule, needed, first, train, te,
            dead_time,
        )  # fmt: skip
        length = first + shot[2] * (te + train)
        book.dt = book.left_over + (length if met < 0.0 else met)
        book.left_over = 0.0 if met < 0.0 else length - met
        book.elapsed += book.dt
        book.shots += 1.0
        book.share = min(book.information / needed, 1.0)
        book.met = 1.0 if book.information >= needed else 0.0


@kernel(allocates=False)
def _average(data, first, last, shot, weights, N0, averages):  # type: ignore[no-untyped-def]
    """The record of a shot in equal parts, each averaged, over the noise of the average."""
    nodes = weights.shape[1]
    parts = averages.shape[0]
    total = last - first
    for part in range(parts):
        u, v, weight = 0.0, 0.0, 0.0
        for at in range(part * total // parts, (part + 1) * total // parts):
            w = weights[kind_of_gap(shot, at // nodes), at % nodes]
            u += w * data[first + at, 0]
            v += w * data[first + at, 1]
            weight += w
        scale = math.sqrt(max(weight, 1e-300) * N0)
        averages[part, 0], averages[part, 1] = u / scale, v / scale


@kernel(allocates=False)
def acquire_record(  # type: ignore[no-untyped-def]
    rows, keys, episodes, step, m, b1, R1, R2, offset_hz, blocks, receive, steps, factors, times,
    weights, te, nu1, operators, basis, signals, books, shots, data, filled, value, covariance,
    around, model, gradient, curvature, precision, centre_b1, centre_R1, centre_R2, averages, work,
    needed,
):  # fmt: skip
    """The shot that comes next in each row, its noisy record, and the fit to all records so far."""
    for row in range(rows.shape[0]):
        if not rows[row]:
            continue
        book = books[row]
        shot = shots[row, int(book.shots)]
        first, train = _pulse_operators(
            shot, row, offset_hz, b1, R1, R2, blocks, nu1, operators, basis
        )
        excite_and_train_row(
            m[row], b1[row], R2[row], blocks, steps[row], factors[row], times, shot, operators,
            nu1 > 0.0, signals,
        )  # fmt: skip
        begun = filled[row]
        filled[row] = record(
            signals, shot, weights, book.N0, 1.0, keys[row], episodes[row], step[row], data[row],
            begun,
        )  # fmt: skip
        _average(data[row], begun, filled[row], shot, weights, book.N0, averages[row])
        book.dt = first + shot[2] * (te + train)
        book.elapsed += book.dt
        book.shots += 1.0
        fit_row(
            value[row], covariance[row], around[row], model[row], gradient[row], curvature[row],
            precision, needed, shots[row], int(book.shots), data[row], row, offset_hz, centre_b1,
            centre_R1, centre_R2, blocks, receive, te, times, weights, book.N0, work,
        )  # fmt: skip
        refer_to_estimate(row, book, centre_R1, value, covariance)
        book.information = 1.0 / covariance[row, 0, 0]
        book.share = min(book.information / needed, 1.0)
        book.met = 1.0 if book.information >= needed else 0.0


# ---------------------------------------------------------------------------------------- recover


@kernel(allocates=False)
def recover(  # type: ignore[no-untyped-def]
    rows, m, b1, R1, R2, offset_hz, blocks, nu1, operators, basis, books, shots
):
    """Flip back, spoil and wait, as the last shot of each row says."""
    for row in range(rows.shape[0]):
        if not rows[row]:
            continue
        book = books[row]
        shot = shots[row, int(book.shots) - 1]
        length = 0.0
        if nu1 > 0.0:
            length = finite_operator(
                shot[3], nu1, offset_hz, b1, R1, R2, blocks, SPLIT_TOLERANCE, basis, row,
                operators[2],
            )  # fmt: skip
        else:
            rotation(shot[3], b1[row], operators[2])
        flip_back_row(m[row], b1[row], shot, operators[2], nu1 > 0.0)
        wait_row(m[row], R1[row], blocks, shot[4])
        book.dt = book.left_over + length + shot[4]
        book.left_over = 0.0
        book.elapsed += book.dt


@kernel(reassociate_sums=True, allocates=False)
def see(rows, m, receive, weight, books):  # type: ignore[no-untyped-def]
    """Averages of the spins into the books."""
    for row in range(rows.shape[0]):
        if rows[row]:
            x, y, z, length = 0.0, 0.0, 0.0, 0.0
            mx, my, mz, r = m[row, 0, 0], m[row, 0, 1], m[row, 0, 2], receive[row]
            for i in range(weight.size):
                x += r[i] * mx[i]
                y += r[i] * my[i]
                z += weight[i] * mz[i]
                length += weight[i] * math.sqrt(mx[i] * mx[i] + my[i] * my[i])
            book = books[row]
            book.Mx, book.My, book.Mz, book.Mxy = x, y, z, length
