"""Shots: excite, a train of pulses with the receiver open between them, flip back, wait.

    theta_exc (x) - te/2 - [ theta_train (-x, x, -x, ...) - te ]^n (the last gap te/2)
        - flip back (the next phase of the train) - spoil - wait

Every classical sequence is such a shot, repeated. 90 degrees, a train of 180: echoes (CPMG with
alternating phases). alpha/2, a train of alpha: balanced steady-state free precession. A short train
and a flip back of 90 degrees: driven equilibrium. A train of 0 degrees: a free induction decay.

The signal of a window is sampled at the nodes of a Gauss-Legendre rule. For white noise of density
N0 the projections of the record on polynomials up to the degree of the rule are all that it tells,
if the signal is such a polynomial: values at the nodes t_q with independent noise of variance
N0 / w_q per component. The rule is chosen so fine that it is one to a relative error of 1e-5.

A state is (B, K, 3, N): K = 1 is the magnetisation; K = 4 adds its derivatives by log R1, log R2,
log b1 (see `palestra.envs.nmr.information`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from palestra.kernels import kernel

from . import checks
from .bloch import Array, Ensemble, finite_pulse_row, sincos_turns
from .events import Event, EventList, receiver
from .information import STATES

X, MINUS_X = 0.0, math.pi
MOST_PULSES = 400
PULSES_LIMIT = 100_000
LONGEST_WAIT = 5.0  # of the reference T1
MOST_NODES = 24
QUADRATURE_ERROR = 1e-5

# Kinds of gaps in a train: half or whole, after a pulse (and its dead time) or after none
HALF, WHOLE, HALF_OPEN, WHOLE_OPEN = range(4)
_TURN = 2.0 * math.pi


@dataclass(frozen=True)
class Shot:
    """One shot. Angles in rad, times in s.

    Attributes:
        excitation: flip angle of the first pulse, phase x.
        train: flip angle of the pulses of the train.
        pulses: how many; 0 is a flip back and a wait alone.
        flip_back: flip angle of the last pulse; above 0 it turns an echo towards +z.
        wait: after the spoiler; below 0 there is neither flip back nor spoiler.
    """

    excitation: float
    train: float
    pulses: int
    flip_back: float
    wait: float

    def events(
        self,
        te: float,
        dead_time: float,
        dwell: float,
        nu1_hz: float = 0.0,
        label: str = "",
    ) -> EventList:
        """The shot as events.

        Args:
            te: spacing of the pulses of the train, s.
            dead_time: of the receiver after a pulse, s; after none it is open at once.
            dwell: time between samples, s.
            nu1_hz: nutation frequency of finite pulses; 0 is hard pulses.
            label: put before the label of every event.
        """

        def event(theta: float, phi: float, tau: float, name: str) -> Event:
            length = abs(theta) / (_TURN * nu1_hz) if nu1_hz > 0 else 0.0
            received = phi if theta else 0.0  # it alternates with the train, so that echoes add
            window = receiver(tau, dead_time if theta else 0.0, dwell, received)
            return Event(theta, phi, length, tau, window, label=label + name)

        acquired: tuple[Event, ...] = ()
        if self.pulses:
            gaps = [te] * (self.pulses - 1) + [te / 2]
            name = "train" if self.train else "receive"
            train = [event(self.train, _phase(k), gap, name) for k, gap in enumerate(gaps)]
            acquired = (event(self.excitation, X, te / 2, "excite"), *train)
        if self.wait < 0:
            return EventList(acquired)
        length = abs(self.flip_back) / (_TURN * nu1_hz) if nu1_hz > 0 else 0.0
        last = Event(
            self.flip_back,
            _phase(self.pulses) if self.train else MINUS_X,
            length,
            self.wait,
            spoil=True,
            label=label + ("flip back" if self.flip_back else "wait"),
        )
        return EventList((*acquired, last))


def _phase(k: int) -> float:
    """Phase of pulse k after the excitation."""
    return MINUS_X if k % 2 == 0 else X


@dataclass(frozen=True)
class ShotAction:
    """How an action in [-1, 1]^5 becomes a shot, and back.

        excitation = pi (a0 + 1) / 2,  train = pi (a1 + 1) / 2,
        pulses = round(most^((a2 + 1) / 2)),  flip back = pi a3,
        wait = 5 T1ref ((a4 + 1) / 2)^2

    Attributes:
        most_pulses: of a train; 2 to 100 000.
    """

    most_pulses: int = MOST_PULSES

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.integer("most_pulses", self.most_pulses, 2, PULSES_LIMIT)

    def encode(
        self, excitation: Any, train: Any, pulses: Any, flip_back: Any, wait_over_T1: Any
    ) -> Array:
        """Actions (..., 5), float32, clipped to the box."""
        a = np.stack(
            np.broadcast_arrays(
                2 * np.asarray(excitation, np.float64) / math.pi - 1,
                2 * np.asarray(train, np.float64) / math.pi - 1,
                2 * np.log(np.maximum(pulses, 1.0)) / math.log(self.most_pulses) - 1,
                np.asarray(flip_back, np.float64) / math.pi,
                2 * np.sqrt(np.maximum(wait_over_T1, 0.0) / LONGEST_WAIT) - 1,
            ),
            axis=-1,
        )
        return np.asarray(a.clip(-1.0, 1.0), np.float32)

    def decode(self, action: Any, T1: float) -> Shot:
        """The shot of one action (5,), for a reference T1 in s."""
        out = np.zeros(5)
        decode_shot(np.asarray(action, np.float32), T1, self.most_pulses, out)
        return Shot(out[0], out[1], int(out[2]), out[3], out[4])


@kernel(allocates=False)
def decode_shot(action, T1, most_pulses, out):  # type: ignore[no-untyped-def]
    """Write (excitation, train, pulses, flip back, wait) of an action (5,)."""
    out[0] = math.pi * (np.float64(action[0]) + 1.0) / 2.0
    out[1] = math.pi * (np.float64(action[1]) + 1.0) / 2.0
    out[2] = np.rint(most_pulses ** ((np.float64(action[2]) + 1.0) / 2.0))
    out[3] = math.pi * np.float64(action[3])
    share = (np.float64(action[4]) + 1.0) / 2.0
    out[4] = LONGEST_WAIT * T1 * share * share


# ------------------------------------------------------------------------- windows and their nodes


def nodes_needed(band_hz: float, window: float, decay: float) -> int:
    """Gauss-Legendre nodes that integrate |S|^2 over a window to `QUADRATURE_ERROR`.

    The fastest beat of two isochromats is exp(2 pi i band t), decaying with exp(-decay t).

    Args:
        band_hz: the largest difference of two offsets, Hz.
        window: s.
        decay: 1/s, of |S|^2.

    Raises:
        ValueError: more than `MOST_NODES` would be needed.
    """
    rate = 2j * math.pi * band_hz - decay
    exact = np.expm1(rate * window) / (rate * window) if rate else 1.0
    scale = -math.expm1(-decay * window) / (decay * window) if decay else 1.0
    for nodes in range(2, MOST_NODES + 1):
        x, w = np.polynomial.legendre.leggauss(nodes)
        found = (w / 2) @ np.exp(rate * window * (x + 1) / 2)
        if abs(found - exact) <= QUADRATURE_ERROR * scale:
            return nodes
    raise ValueError(
        f"te: got windows of {window:g} s for offsets that differ by {band_hz:g} Hz and a decay of "
        f"{decay:g} / s; allowed spacings at which {MOST_NODES} nodes a window resolve them"
    )


class Windows:
    """The gaps of a train for the isochromats of B experiments: steps, nodes, weights.

    Attributes:
        te: spacing of the train, s.
        dead_time: s.
        times: of the nodes after a pulse, s, (4, Q), by kind of gap.
        weights: of the nodes, s, (4, Q).
        steps: (B, 2, 5, N) for half and whole gaps: exp(-R2 t) cos, exp(-R2 t) sin, exp(-R1 t),
            R1 t, R2 t.
        factors: (B, 4, Q, 2, N), receive weight times exp((2 pi i offset - R2) t) at the nodes.
    """

    def __init__(self, rows: int, isochromats: int, nodes: int, te: float, dead_time: float):
        checks.number("te", te, checks.DELAY, "s")
        if not 0.0 <= dead_time < te / 2:
            raise ValueError(
                f"te: got {te} s with a dead time of {dead_time} s, allowed above twice the dead "
                "time"
            )
        self.te, self.dead_time = te, dead_time
        x, w = np.polynomial.legendre.leggauss(nodes)
        gaps = np.array([(dead_time, te / 2), (dead_time, te), (0.0, te / 2), (0.0, te)])
        length = np.diff(gaps)
        self.times = gaps[:, :1] + length * (x + 1) / 2
        self.weights = length * w / 2
        self.steps = np.zeros((rows, 2, 5, isochromats))
        self.factors = np.zeros((rows, 4, nodes, 2, isochromats))

    @property
    def nodes(self) -> int:
        """Nodes of a window, Q."""
        return int(self.times.shape[1])

    def fill(self, rows: Array, ensemble: Ensemble) -> None:
        """Compute the steps and factors of the masked rows."""
        e = ensemble
        fill_windows(
            rows, e.offset_hz, e.R1, e.R2, e.blocks, e.receive, self.te, self.times, self.steps,
            self.factors,
        )  # fmt: skip


@kernel(allocates=False)
def fill_windows(rows, offset_hz, R1, R2, blocks, receive, te, times, steps, factors):  # type: ignore[no-untyped-def]
    """See `Windows`."""
    for row in range(rows.shape[0]):
        if rows[row]:
            fill_windows_row(
                row, offset_hz, R1[row], R2[row], blocks, receive, te, times, steps[row],
                factors[row],
            )  # fmt: skip


@kernel(allocates=False)
def fill_windows_row(row, offset_hz, R1, R2, blocks, receive, te, times, steps, factors):  # type: ignore[no-untyped-def]
    """Steps (2, 5, N) and factors (4, Q, 2, N) of one experiment with rates (S,)."""
    for species in range(blocks.size - 1):
        for i in range(blocks[species], blocks[species + 1]):
            turns = offset_hz[row, i]
            for whole in range(2):
                tau = te if whole else te / 2
                s, c = sincos_turns(turns * tau, 0.0)
                E2 = math.exp(-R2[species] * tau)
                steps[whole, 0, i], steps[whole, 1, i] = E2 * c, E2 * s
                steps[whole, 2, i] = math.exp(-R1[species] * tau)
                steps[whole, 3, i], steps[whole, 4, i] = R1[species] * tau, R2[species] * tau
            for kind in range(times.shape[0]):
                for q in range(times.shape[1]):
                    s, c = sincos_turns(turns * times[kind, q], 0.0)
                    size = receive[row, i] * math.exp(-R2[species] * times[kind, q])
                    factors[kind, q, 0, i], factors[kind, q, 1, i] = size * c, size * s


# ------------------------------------------------------------------------------- pulses of a shot


@kernel(allocates=False)
def rotation(theta, b1, out):  # type: ignore[no-untyped-def]
    """Cosine and sine of a hard pulse's angles, (2, N)."""
    for i in range(b1.size):
        out[1, i], out[0, i] = sincos_turns(theta * b1[i] / _TURN, 0.0)


@kernel(allocates=False)
def finite_operator(theta, nu1, offset_hz, b1, R1, R2, blocks, tolerance, basis, row, operator):  # type: ignore[no-untyped-def]
    """A rectangular pulse of phase x as an affine map (12, N): a 3 x 3 matrix by rows, the shift.

    The map is read off four start states, in `basis` (1, 3, N). Returns the length in s.
    """
    n = basis.shape[2]
    duration = abs(theta) / (_TURN * nu1)
    if duration == 0.0:
        for k in range(12):
            for i in range(n):
                operator[k, i] = 1.0 if k == 0 or k == 4 or k == 8 else 0.0
        return 0.0
    for start in range(4):
        for k in range(3):
            for i in range(n):
                basis[0, k, i] = 1.0 if k == start else 0.0
        finite_pulse_row(
            basis, 0, offset_hz[row : row + 1], b1[row : row + 1], R1[row : row + 1],
            R2[row : row + 1], blocks, theta, 0.0, duration, tolerance,
        )  # fmt: skip
        for k in range(3):
            for i in range(n):
                if start < 3:
                    operator[3 * k + start, i] = basis[0, k, i]
                else:
                    operator[9 + k, i] = basis[0, k, i]
    for k in range(3):
        for start in range(3):
            for i in range(n):
                operator[3 * k + start, i] -= operator[9 + k, i]
    return duration


@kernel(allocates=False)
def rotate(m, turn, sign, theta, b1):  # type: ignore[no-untyped-def]
    """A hard pulse of phase x (sign 1) or -x (sign -1) on a state (K, 3, N).

    The derivative by log b1 gains theta b n x M.
    """
    c, s = turn[0], turn[1]
    for k in range(m.shape[0]):
        y, z = m[k, 1], m[k, 2]
        for i in range(c.size):
            v, w = y[i], z[i]
            y[i] = c[i] * v - sign * s[i] * w
            z[i] = sign * s[i] * v + c[i] * w
    if m.shape[0] == STATES:
        y, z, dy, dz = m[0, 1], m[0, 2], m[3, 1], m[3, 2]
        for i in range(c.size):
            angle = sign * theta * b1[i]
            dy[i] -= angle * z[i]
            dz[i] += angle * y[i]


@kernel(allocates=False)
def transform(m, operator, sign):  # type: ignore[no-untyped-def]
    """A finite pulse of phase x (sign 1) or -x (sign -1) on a state (1, 3, N)."""
    a, x, y, z = operator, m[0, 0], m[0, 1], m[0, 2]
    for i in range(x.size):
        u, v, w = x[i], y[i], sign * z[i]
        x[i] = a[0, i] * u + a[1, i] * v + a[2, i] * w + sign * a[9, i]
        y[i] = a[3, i] * u + a[4, i] * v + a[5, i] * w + sign * a[10, i]
        z[i] = sign * (a[6, i] * u + a[7, i] * v + a[8, i] * w) + a[11, i]


@kernel(allocates=False)
def pulse_row(m, pulse, finite, sign, theta, b1):  # type: ignore[no-untyped-def]
    """A pulse given by `rotation` in its first two rows, or by `finite_operator`."""
    if finite:
        transform(m, pulse, sign)
    else:
        rotate(m, pulse, sign, theta, b1)


@kernel(allocates=False)
def _pass(m, step):  # type: ignore[no-untyped-def]
    """A gap of a train: precession and relaxation of a state (K, 3, N) and its derivatives."""
    c, s, E1 = step[0], step[1], step[2]
    n = c.size
    for k in range(m.shape[0]):
        x, y = m[k, 0], m[k, 1]
        for i in range(n):
            u, v = x[i], y[i]
            x[i] = c[i] * u - s[i] * v
            y[i] = s[i] * u + c[i] * v
    z = m[0, 2]
    if m.shape[0] == STATES:
        slow, fast = step[3], step[4]
        x, y, dx, dy = m[0, 0], m[0, 1], m[2, 0], m[2, 1]
        z1, z2, zb = m[1, 2], m[2, 2], m[3, 2]
        for i in range(n):
            dx[i] -= fast[i] * x[i]
            dy[i] -= fast[i] * y[i]
            z1[i] = E1[i] * (z1[i] - slow[i] * (z[i] - 1.0))
            z2[i] *= E1[i]
            zb[i] *= E1[i]
    for i in range(n):
        z[i] = 1.0 + E1[i] * (z[i] - 1.0)


@kernel(allocates=False)
def wait_row(m, R1, blocks, tau):  # type: ignore[no-untyped-def]
    """An ideal spoiler, then a wait, on a state (K, 3, N) and its derivatives."""
    for k in range(m.shape[0]):
        for i in range(m.shape[2]):
            m[k, 0, i] = 0.0
            m[k, 1, i] = 0.0
    for species in range(blocks.size - 1):
        slow = R1[species] * tau
        E1 = math.exp(-slow)
        for i in range(blocks[species], blocks[species + 1]):
            if m.shape[0] == STATES:
                m[1, 2, i] = E1 * (m[1, 2, i] - slow * (m[0, 2, i] - 1.0))
                m[2, 2, i] *= E1
                m[3, 2, i] *= E1
            m[0, 2, i] = 1.0 + E1 * (m[0, 2, i] - 1.0)


# ------------------------------------------------------------------------------------- the signal


@kernel(reassociate_sums=True, allocates=False)
def _listen(m, factor, R2, blocks, time, signal):  # type: ignore[no-untyped-def]
    """The signal at one node, and its derivatives: (K, 2), real and imaginary part."""
    real, imaginary = factor[0], factor[1]
    for k in range(m.shape[0]):
        signal[k, 0], signal[k, 1] = 0.0, 0.0
    for species in range(blocks.size - 1):
        first, last = blocks[species], blocks[species + 1]
        for k in range(m.shape[0]):
            x, y = m[k, 0], m[k, 1]
            u, v = 0.0, 0.0
            for i in range(first, last):
                u += real[i] * x[i] - imaginary[i] * y[i]
                v += real[i] * y[i] + imaginary[i] * x[i]
            signal[k, 0] += u
            signal[k, 1] += v
            if k == 0 and m.shape[0] == STATES:  # R2 acts on while the receiver is open
                signal[2, 0] -= R2[species] * time * u
                signal[2, 1] -= R2[species] * time * v


@kernel(allocates=False)
def _open_window(m, kind, factors, R2, blocks, times, sign, signals, gap):  # type: ignore[no-untyped-def]
    """The signals of a window, received with phase 0 (sign 1) or 180 degrees (sign -1)."""
    nodes = times.shape[1]
    for q in range(nodes):
        signal = signals[gap * nodes + q]
        _listen(m, factors[kind, q], R2, blocks, times[kind, q], signal)
        for k in range(signal.shape[0]):
            signal[k, 0] *= sign
            signal[k, 1] *= sign


@kernel(allocates=False)
def windows_of(shot):  # type: ignore[no-untyped-def]
    """How many windows a shot has."""
    return int(shot[2]) + 1 if shot[2] > 0.0 else 0


@kernel(allocates=False)
def kind_of_gap(shot, gap):  # type: ignore[no-untyped-def]
    """Which kind the window number `gap` of a shot is; 0 follows the excitation."""
    if gap == 0:
        return HALF if shot[0] != 0.0 else HALF_OPEN
    last = gap == int(shot[2])
    if shot[1] != 0.0:
        return HALF if last else WHOLE
    return HALF_OPEN if last else WHOLE_OPEN


@kernel(allocates=False)
def excite_and_train_row(  # type: ignore[no-untyped-def]
    m, b1, R2, blocks, steps, factors, times, shot, pulses, finite, signals
):
    """All of a shot up to its flip back, in place; signals ((pulses + 1) Q, K, 2).

    The receiver's phase alternates with the train, so that echoes add.

    Args:
        m: state (K, 3, N).
        b1: (N,).
        R2: (S,).
        blocks: (S + 1,).
        steps: (2, 5, N).
        factors: (4, Q, 2, N).
        times: (4, Q).
        shot: excitation, train, pulses, flip back, wait.
        pulses: the first pulse, and one of the train, (2 or more, 12, N); see `pulse_row`.
        finite: whether they have a length.
        signals: to be written.
    """
    last = int(shot[2])
    pulse_row(m, pulses[0], finite, 1.0, shot[0], b1)
    _open_window(m, kind_of_gap(shot, 0), factors, R2, blocks, times, 1.0, signals, 0)
    _pass(m, steps[0])
    sign = 1.0
    for gap in range(1, last + 1):
        if shot[1] != 0.0:
            sign = -sign
            pulse_row(m, pulses[1], finite, sign, shot[1], b1)
        kind = kind_of_gap(shot, gap)
        _open_window(m, kind, factors, R2, blocks, times, sign, signals, gap)
        _pass(m, steps[0 if gap == last else 1])


@kernel(allocates=False)
def flip_back_row(m, b1, shot, pulse, finite):  # type: ignore[no-untyped-def]
    """The flip back of a shot: its phase is the next one of the train, -x where there is none."""
    sign = -1.0 if int(shot[2]) % 2 == 0 or shot[1] == 0.0 else 1.0
    pulse_row(m, pulse, finite, sign, shot[3], b1)
