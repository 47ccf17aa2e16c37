"""The Bloch equations of an ensemble of isochromats, solved exactly event by event.

    dM/dt = Omega x M - (R2 Mx, R2 My, R1 (Mz - 1)),
    Omega = (2 pi nu1 b cos phi, 2 pi nu1 b sin phi, 2 pi offset)

in the rotating frame, right-handed (Levitt, J. Magn. Reson. 126 (1997) 164): a pulse of phase 0
turns +z into -y, free precession at a positive offset turns x towards y, and the detected signal
S = Mx + i My carries exp(+2 pi i offset t).

Units: seconds, radians, hertz; R1 = 1/T1 and R2 = 1/T2 (homogeneous) in 1/s. Every isochromat has
equilibrium (0, 0, 1); populations and abundance enter as weights of sums over isochromats.

The state `m` of B experiments with N isochromats each is one array (B, 3, N), float64 or float32:
the isochromats of one component lie side by side, so that each loop below becomes SIMD code. An
*event* is a pulse followed by a delay, each in closed form, so cost and error do not depend on how
long an event lasts. Rows never meet: a row's result is the same bits in any batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.kernels import kernel

Array = npt.NDArray[Any]
ArrayLike = npt.ArrayLike

SPLIT_TOLERANCE = 1e-4  # what the split of a finite pulse may err, in units of M0


@dataclass(frozen=True)
class Ensemble:
    """The isochromats of B experiments. Species j owns isochromats blocks[j] : blocks[j + 1].

    Attributes:
        offset_hz: resonance offsets, float64 (B, N).
        b1: local transmit field over its nominal value, (B, N), in the dtype of the state.
        R1: longitudinal rates of the S species, 1/s, float64 (B, S).
        R2: transverse rates of the S species, 1/s, float64 (B, S).
        blocks: bounds of the species, int64 (S + 1,).
        weight: share of the spins, float64 (N,), sums to 1.
        receive: weight in the detected signal, float64 (B, N), sums to 1 in a row.
    """

    offset_hz: Array
    b1: Array
    R1: Array
    R2: Array
    blocks: Array
    weight: Array
    receive: Array

    @property
    def shape(self) -> tuple[int, int]:
        """(B, N): experiments and isochromats."""
        return self.offset_hz.shape[0], self.offset_hz.shape[1]

    def rate_of_isochromat(self, rates: Array) -> Array:
        """Rates (B, S) of species, repeated for their isochromats: (B, N)."""
        return np.repeat(rates, np.diff(self.blocks), axis=1)


def equilibrium(ensemble: Ensemble, dtype: npt.DTypeLike = np.float64) -> Array:
    """Thermal equilibrium, (B, 3, N)."""
    rows, isochromats = ensemble.shape
    m = np.zeros((rows, 3, isochromats), dtype)
    m[:, 2] = 1.0
    return m


# ---------------------------------------------------------------- sine and cosine that vectorise

# Minimax polynomials of fdlibm (k_sin.c, k_cos.c; Sun Microsystems, 1993) on [-pi/4, pi/4].
_S3, _S5, _S7 = -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04
_S9, _S11, _S13 = (
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_C4, _C6, _C8 = 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05
_C10, _C12, _C14 = (
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding and subtracting it rounds a float64 to an integer
_TURN = 2.0 * math.pi


@kernel(allocates=False)
def sincos_turns(turns, like):  # type: ignore[no-untyped-def]
    """Sine and cosine of an angle given in turns, in the type of `like`.

    libm's would keep the loop scalar. The range is reduced in float64, where turns (unlike
    radians) lose nothing: 300 rad in float32 would cost 1e-5.
    """
    real = type(like)
    quarter = (4.0 * turns + _ROUND) - _ROUND
    y = real((turns - 0.25 * quarter) * _TURN)
    y2 = y * y
    s = real(_S13) * y2 + real(_S11)
    s = ((s * y2 + real(_S9)) * y2 + real(_S7)) * y2 + real(_S5)
    s = y + y * y2 * (s * y2 + real(_S3))
    c = real(_C14) * y2 + real(_C12)
    c = ((c * y2 + real(_C10)) * y2 + real(_C8)) * y2 + real(_C6)
    c = real(1.0) - real(0.5) * y2 + y2 * y2 * (c * y2 + real(_C4))
    # The quadrant k = -2 .. 2 turns (c, s) by k right angles: exact arithmetic instead of branches.
    k = real(quarter - 4.0 * ((0.25 * quarter + _ROUND) - _ROUND))
    cos_k = real(1.0) - abs(k)
    sin_k = k * (real(2.0) - abs(k))
    return sin_k * c + cos_k * s, cos_k * c - sin_k * s


# ------------------------------------------------------------------------- one row of a batch


@kernel(allocates=False)
def hard_pulse_row(m, row, b1, theta, phi):  # type: ignore[no-untyped-def]
    """Rotate about (cos phi, sin phi, 0) by theta * b: an ideal pulse of no duration."""
    real = m.dtype.type
    mx, my, mz, b = m[row, 0], m[row, 1], m[row, 2], b1[row]
    sin_phi, cos_phi = sincos_turns(phi / _TURN, real(0.0))
    turns = theta / _TURN
    for i in range(mx.size):
        s, c = sincos_turns(turns * b[i], cos_phi)
        along = cos_phi * mx[i] + sin_phi * my[i]  # in the frame of the pulse: along its axis
        across = cos_phi * my[i] - sin_phi * mx[i]
        turned = c * across - s * mz[i]
        mz[i] = s * across + c * mz[i]
        mx[i] = cos_phi * along - sin_phi * turned
        my[i] = sin_phi * along + cos_phi * turned


@kernel(allocates=False)
def delay_row(m, row, offset_hz, R1, R2, blocks, tau):  # type: ignore[no-untyped-def]
    """Free precession and relaxation for a time tau, exact.

    Mxy -> Mxy exp((2 pi i offset - R2) tau);  Mz -> 1 + (Mz - 1) exp(-R1 tau).
    """
    real = m.dtype.type
    for species in range(blocks.size - 1):
        first, last = blocks[species], blocks[species + 1]
        mx, my, mz = m[row, 0, first:last], m[row, 1, first:last], m[row, 2, first:last]
        offset = offset_hz[row, first:last]
        longitudinal = math.exp(-tau * R1[row, species])
        E1, recovered = real(longitudinal), real(1.0 - longitudinal)
        E2 = real(math.exp(-tau * R2[row, species]))
        for i in range(mx.size):
            s, c = sincos_turns(offset[i] * tau, E2)
            x, y = mx[i], my[i]
            mx[i] = E2 * (c * x - s * y)
            my[i] = E2 * (s * x + c * y)
            mz[i] = recovered + E1 * mz[i]


@kernel(allocates=False)
def split_steps(pulse_rate, rate, R1, R2, duration, tolerance):  # type: ignore[no-untyped-def]
    """Strang steps that keep a pulse's error below the tolerance.

    The error of n steps of length h is n h^3 (|[B,[B,A]]|/12 + |[A,[A,B]]|/24) at leading order
    (A relaxes, B rotates). With D = |R2 - R1| the commutators are at most
    pulse_rate * rate * (2 D + R1) and pulse_rate * (2 D^2 + R1 R2).
    """
    spread = abs(R2 - R1)
    error = rate * (2.0 * spread + R1) / 12.0 + (2.0 * spread * spread + R1 * R2) / 24.0
    error *= pulse_rate * duration**3
    return max(1, math.ceil(math.sqrt(error / tolerance)))


@kernel(allocates=False)
def finite_pulse_row(  # type: ignore[no-untyped-def]
    m, row, offset_hz, b1, R1, R2, blocks, theta, phi, duration, tolerance
):
    """A rectangular pulse of finite length: rotation about the tilted field, with relaxation.

    Strang split (half a relaxation, the rotation, half a relaxation) in as many steps as keep the
    estimated error below `tolerance`.
    """
    real = m.dtype.type
    w1 = theta / duration
    cos_phi, sin_phi = math.cos(phi), math.sin(phi)
    for species in range(blocks.size - 1):
        first, last = blocks[species], blocks[species + 1]
        mx, my, mz = m[row, 0, first:last], m[row, 1, first:last], m[row, 2, first:last]
        offset, b = offset_hz[row, first:last], b1[row, first:last]
        largest_b, largest_offset = 0.0, 0.0
        for i in range(mx.size):
            largest_b = max(largest_b, abs(b[i]))
            largest_offset = max(largest_offset, abs(offset[i]))
        pulse_rate = abs(w1) * largest_b
        rate = math.hypot(pulse_rate, _TURN * largest_offset)
        r1, r2 = R1[row, species], R2[row, species]
        steps = split_steps(pulse_rate, rate, r1, r2, duration, tolerance)
        h = duration / steps
        E1, E2 = real(math.exp(-0.5 * h * r1)), real(math.exp(-0.5 * h * r2))
        recovered = real(-math.expm1(-0.5 * h * r1))
        for _ in range(steps):
            for i in range(mx.size):
                wx, wy, wz = w1 * b[i] * cos_phi, w1 * b[i] * sin_phi, _TURN * offset[i]
                w = math.sqrt(wx * wx + wy * wy + wz * wz) + 1e-300
                kx, ky, kz = real(wx / w), real(wy / w), real(wz / w)
                s, c = sincos_turns(w * h / _TURN, E2)
                x, y, z = E2 * mx[i], E2 * my[i], recovered + E1 * mz[i]
                along = (real(1.0) - c) * (kx * x + ky * y + kz * z)  # Rodrigues' formula
                mx[i] = E2 * (c * x + s * (ky * z - kz * y) + along * kx)
                my[i] = E2 * (c * y + s * (kz * x - kx * z) + along * ky)
                mz[i] = recovered + E1 * (c * z + s * (kx * y - ky * x) + along * kz)


# ----------------------------------------------------------------------- events of a whole batch


@kernel(allocates=False)
def _pulse_and_delay(m, offset_hz, b1, R1, R2, blocks, theta, phi, tau, live):  # type: ignore[no-untyped-def]
    for row in range(m.shape[0]):
        if live[row]:
            if theta[row] != 0.0:
                hard_pulse_row(m, row, b1, theta[row], phi[row])
            if tau[row] > 0.0:
                delay_row(m, row, offset_hz, R1, R2, blocks, tau[row])


@kernel(allocates=False)
def _finite_pulse(  # type: ignore[no-untyped-def]
    m, offset_hz, b1, R1, R2, blocks, theta, phi, duration, live, tolerance
):
    for row in range(m.shape[0]):
        if live[row] and duration[row] > 0.0:
            finite_pulse_row(
                m,
                row,
                offset_hz,
                b1,
                R1,
                R2,
                blocks,
                theta[row],
                phi[row],
                duration[row],
                tolerance,
            )


def pulse_and_delay(
    m: Array,
    ensemble: Ensemble,
    theta: ArrayLike,
    phi: ArrayLike,
    tau: ArrayLike,
    live: Array | None = None,
) -> None:
    """A hard pulse, then a delay, in place.

    Args:
        m: state (B, 3, N), float64 or float32.
        ensemble: its isochromats; `b1` in the dtype of `m`.
        theta: nominal flip angle, rad, scalar or (B,).
        phi: phase, rad, scalar or (B,).
        tau: delay, s, scalar or (B,).
        live: rows to touch, bool (B,); None is all.
    """
    rows = m.shape[0]
    _pulse_and_delay(
        m,
        ensemble.offset_hz,
        ensemble.b1,
        ensemble.R1,
        ensemble.R2,
        ensemble.blocks,
        per_row(theta, rows),
        per_row(phi, rows),
        per_row(tau, rows),
        np.ones(rows, np.bool_) if live is None else live,
    )


def finite_pulse(
    m: Array,
    ensemble: Ensemble,
    theta: ArrayLike,
    phi: ArrayLike,
    duration: ArrayLike,
    live: Array | None = None,
    tolerance: float = SPLIT_TOLERANCE,
) -> None:
    """A rectangular pulse with offset and relaxation, in place, by Strang splitting.

    Args:
        m: state (B, 3, N).
        ensemble: its isochromats.
        theta: nominal on-resonance flip angle, rad; the nutation rate is theta / duration.
        phi: phase, rad.
        duration: length of the pulse, s; 0 is no pulse.
        live: rows to touch; None is all.
        tolerance: largest estimated error, in units of M0.
    """
    rows = m.shape[0]
    _finite_pulse(
        m,
        ensemble.offset_hz,
        ensemble.b1,
        ensemble.R1,
        ensemble.R2,
        ensemble.blocks,
        per_row(theta, rows),
        per_row(phi, rows),
        per_row(duration, rows),
        np.ones(rows, np.bool_) if live is None else live,
        tolerance,
    )


def pulse_propagator(
    ensemble: Ensemble, theta: ArrayLike, phi: ArrayLike, duration: ArrayLike
) -> Array:
    """Exact propagators of a rectangular pulse, (B, N, 4, 4), acting on (Mx, My, Mz, 1).

    exp(G t) of the affine generator G = [[L, R1 e_z], [0, 0]] with
    L = [[-R2, -Wz, Wy], [Wz, -R2, -Wx], [-Wy, Wx, -R1]].
    """
    from scipy.linalg import expm

    rows, isochromats = ensemble.shape
    length = per_row(duration, rows)[:, np.newaxis]
    angle = per_row(theta, rows)[:, np.newaxis] * ensemble.b1  # w1 * duration
    phase = per_row(phi, rows)[:, np.newaxis]
    wx, wy = angle * np.cos(phase), angle * np.sin(phase)
    wz = _TURN * ensemble.offset_hz * length
    r1 = ensemble.rate_of_isochromat(ensemble.R1) * length
    r2 = ensemble.rate_of_isochromat(ensemble.R2) * length
    G = np.zeros((rows, isochromats, 4, 4))
    G[..., 0, 0] = G[..., 1, 1] = -r2
    G[..., 2, 2], G[..., 2, 3] = -r1, r1
    G[..., 1, 0], G[..., 0, 1] = wz, -wz
    G[..., 0, 2], G[..., 2, 0] = wy, -wy
    G[..., 2, 1], G[..., 1, 2] = wx, -wx
    return np.asarray(expm(G))


def apply_propagator(m: Array, propagator: Array) -> None:
    """Apply propagators (B, N, 4, 4) to a state (B, 3, N), in place."""
    linear, shift = propagator[..., :3, :3], propagator[..., :3, 3]
    m[:] = np.einsum("bnij,bjn->bin", linear, m) + np.moveaxis(shift, -1, 1)


def spoil(m: Array, live: Array | None = None) -> None:
    """Ideal spoiler: all transverse magnetisation is gone, for good. In place."""
    if live is None:
        m[:, :2] = 0.0
    else:
        m[live, :2] = 0.0


def per_row(value: ArrayLike, rows: int) -> Array:
    """A scalar or (B,) as a contiguous float64 array (B,)."""
    if isinstance(value, np.ndarray) and value.shape == (rows,) and value.dtype == np.float64:
        return np.ascontiguousarray(value)
    return np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.float64), (rows,)))


# -------------------------------------------------------------------------------- what is seen


def signal(m: Array, ensemble: Ensemble) -> Array:
    """Detected signal S = sum_i r_i (Mx + i My), complex (B,), for unit abundance."""
    total = np.einsum("bn,bkn->bk", ensemble.receive, m[:, :2])
    return np.asarray(total[:, 0] + 1j * total[:, 1])


def length_bound(m: Array, ensemble: Ensemble) -> Array:
    """sum_i r_i |m_i|, (B,): no pulses can make |S| larger, for rotations keep lengths."""
    return np.asarray((ensemble.receive * np.sqrt((m * m).sum(axis=1))).sum(axis=1))


# ------------------------------------------------------------------------ the way to equilibrium


@kernel(allocates=False)
def decay_time(amplitude, rate, tol):  # type: ignore[no-untyped-def]
    """When sum_j amplitude_j exp(-rate_j t) has fallen to tol; 0 if it already is below.

    One species: ln(amplitude / tol) / rate. Several: from the slowest of those times, which is
    too early, Newton's method on the logarithm of the sum, which is convex: it never overshoots.
    """
    time = 0.0
    for j in range(amplitude.size):
        if amplitude[j] > tol:
            time = max(time, math.log(amplitude[j] / tol) / rate[j])
    if amplitude.size == 1:
        return time
    for _ in range(100):
        total, slope = 0.0, 0.0
        for j in range(amplitude.size):
            left = amplitude[j] * math.exp(-rate[j] * time)
            total += left
            slope += rate[j] * left
        if total <= tol * (1.0 + 1e-12):
            break
        time += math.log(total / tol) * total / slope
    return time


@kernel(reassociate_sums=True, allocates=False)
def species_averages(m, row, weight, blocks, mz_mean, mxy_mean):  # type: ignore[no-untyped-def]
    """Weighted sums over each species' isochromats of Mz and |Mxy|, into (B, S) arrays."""
    for species in range(blocks.size - 1):
        first, last = blocks[species], blocks[species + 1]
        mx, my, mz = m[row, 0, first:last], m[row, 1, first:last], m[row, 2, first:last]
        w = weight[first:last]
        along, across = 0.0, 0.0
        for i in range(mx.size):
            along += w[i] * mz[i]
            across += w[i] * math.sqrt(mx[i] * mx[i] + my[i] * my[i])
        mz_mean[row, species] = along
        mxy_mean[row, species] = across


@kernel(reassociate_sums=True, allocates=False)
def weighted_length(m, row, weight, first, last):  # type: ignore[no-untyped-def]
    """sum_i w_i |m_i| of one row over isochromats first : last."""
    mx, my, mz, w = m[row, 0], m[row, 1], m[row, 2], weight
    total = 0.0
    for i in range(first, last):
        total += w[i] * math.sqrt(mx[i] * mx[i] + my[i] * my[i] + mz[i] * mz[i])
    return total
