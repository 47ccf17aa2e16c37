"""Re-check of what is claimed of a stored event list: its time, its energy, the bound on both.

A Bloch simulation of its own: complex transverse magnetisation, one event after the other, in plain
NumPy. What it relies on:

    (|M(0)|^2 - |M(T)|^2) / 2 = int |Mxy|^2 R2 dt - int Mz (1 - Mz) R1 dt      (pulses do no work)
    int |S|^2 dt <= sum_i r_i (1/2 + T R1_i / 4) / R2_i                        (from equilibrium)

with receive weights r_i that sum to 1. The second follows from the first, from Mz (1 - Mz) <= 1/4
and from Jensen's inequality.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

COLUMNS = (
    "theta", "phi", "t_pulse", "tau", "first", "dwell", "samples", "receiver_phase", "spoil",
)  # fmt: skip
SPINS = ("offset_hz", "b1", "R1", "R2", "receive")
TOLERANCE = 1e-9  # relative, of recomputed numbers: rounding of a million events stays below
NODES = 24  # of the integral over a finite pulse, per half turn


def check(document: dict[str, Any], arrays: dict[str, Array]) -> list[str]:
    """What is wrong; empty where everything that is claimed holds.

    Raises:
        ValueError: the arrays are not those of an event list and its spins.
    """
    events, spins = _inputs(arrays)
    claim = document["claim"]
    numbers = claim.get("numbers", {})
    found = simulate(events, spins)
    kinds = {"energy budget": _energy_budget, "time bound": _time_bound}
    if claim.get("kind") not in kinds:
        raise ValueError(f"claim.kind: got {claim.get('kind')!r}, allowed {', '.join(kinds)}")
    return kinds[claim["kind"]](numbers, document["system"], spins, found)


def _inputs(arrays: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
    wanted = {"events", *SPINS}
    if set(arrays) != wanted:
        raise ValueError(f"arrays: got {sorted(arrays)}, allowed {sorted(wanted)}")
    events, n = arrays["events"], arrays["offset_hz"].size
    if events.ndim != 2 or events.shape[1] != len(COLUMNS):
        raise ValueError(f"events: got shape {events.shape}, allowed (E, {len(COLUMNS)})")
    spins = {name: arrays[name] for name in SPINS}
    if any(array.shape != (n,) for array in spins.values()) or n == 0:
        raise ValueError("spins: allowed arrays of the same length, one or more")
    times = events[:, [2, 3, 4, 5, 6]]
    if (times < 0).any():
        raise ValueError("events: a time or a number of samples below 0")
    if not ((spins["R1"] > 0).all() and (spins["R2"] >= spins["R1"] / 2).all()):
        raise ValueError("spins: R1 above 0 and R2 of R1 / 2 or more, or |M| could exceed M0")
    if (spins["receive"] < 0).any() or abs(spins["receive"].sum() - 1) > 1e-9:
        raise ValueError("receive: weights of 0 or more that sum to 1")
    return events, spins


# -------------------------------------------------------------------------------------- the claims


def _energy_budget(
    numbers: dict[str, Any], system: dict[str, Any], spins: dict[str, Array], found: dict[str, Any]
) -> list[str]:
    problems = []
    error = float(np.max(np.abs(found["lost"] - (found["transverse"] - found["longitudinal"]))))
    scale = 1.0 + float(np.max(found["transverse"]))
    if error > TOLERANCE * scale:
        problems.append(
            f"the energy balance is off by {error:.3g}, allowed {TOLERANCE * scale:.3g}"
        )
    for name in ("lost", "transverse", "longitudinal"):
        problems += _differs(name, numbers, float(found[name] @ spins["receive"]))
    problems += _differs("duration", numbers, found["duration"])
    return problems


def _time_bound(
    numbers: dict[str, Any], system: dict[str, Any], spins: dict[str, Array], found: dict[str, Any]
) -> list[str]:
    N0 = system.get("N0")
    if not isinstance(N0, float) or not 0 < N0 < math.inf:
        raise ValueError(f"system.N0: got {N0!r}, allowed a noise density above 0, s")
    problems = _differs("duration", numbers, found["duration"])
    problems += _differs("energy", numbers, found["energy"])
    if not found["energy"] > 0:
        return [*problems, "the list receives nothing, so it measures nothing"]
    at_once = float((spins["receive"] / spins["R2"]).sum()) / 2
    per_second = float((spins["receive"] * spins["R1"] / spins["R2"]).sum()) / 4
    most = at_once + per_second * found["duration"]
    if found["energy"] > most * (1 + TOLERANCE):
        problems.append(
            f"it receives {found['energy']:.6g} s, more than the {most:.6g} s that relaxation can "
            "give in its time: the simulation or the accounting is wrong"
        )
    error = math.sqrt(N0 / found["energy"])
    bound = max(0.0, (N0 / error**2 - at_once) / per_second)
    problems += _differs("relative_error", numbers, error)
    problems += _differs("time_bound", numbers, bound)
    problems += _differs("efficiency", numbers, bound / found["duration"])
    efficiency = numbers.get("efficiency")
    if isinstance(efficiency, float) and not 0 <= efficiency <= 1:
        problems.append(f"efficiency: claimed {efficiency!r}, possible 0 to 1")
    return problems


def _differs(name: str, numbers: dict[str, Any], found: float) -> list[str]:
    claimed = numbers.get(name)
    if isinstance(claimed, float) and abs(claimed - found) <= TOLERANCE * max(1.0, abs(found)):
        return []
    return [f"{name}: claimed {claimed!r}, recomputed {found!r}"]


# ---------------------------------------------------------------------------------- the simulation


def simulate(events: Array, spins: dict[str, Array]) -> dict[str, Any]:
    """Run an event list from equilibrium.

    Returns:
        `lost`, `transverse`, `longitudinal` (N,): the three parts of the energy balance, spoilers
        counted as neither; `energy`: int |S|^2 dt over the open receiver, s; `duration`, s.
    """
    offset = 2j * math.pi * spins["offset_hz"]
    R1, R2, b1, receive = spins["R1"], spins["R2"], spins["b1"], spins["receive"]
    xy, z = np.zeros(offset.size, complex), np.ones(offset.size)
    transverse, longitudinal, spoiled = (np.zeros(offset.size) for _ in range(3))
    energy, durations = 0.0, []
    for theta, phi, t_pulse, tau, first, dwell, samples, _, spoil in events.tolist():
        if t_pulse > 0.0:
            xy, z, used, gained = _finite_pulse(xy, z, theta, phi, t_pulse, offset.imag, spins)
            transverse += used
            longitudinal += gained
        else:
            xy, z = _turn(xy, z, theta * b1, phi)
        if samples > 0:
            closed = min(first + dwell * samples, tau)
            energy += _received(receive * xy, offset - R2, first, closed)
        transverse += abs(xy) ** 2 * -np.expm1(-2 * R2 * tau) / 2
        away = z - 1  # Mz (1 - Mz) = -(a e + a^2 e^2) with e = exp(-R1 t)
        longitudinal += away * np.expm1(-R1 * tau) + away**2 * np.expm1(-2 * R1 * tau) / 2
        xy = xy * np.exp((offset - R2) * tau)
        z = 1 + away * np.exp(-R1 * tau)
        if spoil:
            spoiled += abs(xy) ** 2 / 2
            xy = np.zeros_like(xy)
        durations += [t_pulse, tau]
    lost = (1 - abs(xy) ** 2 - z**2) / 2 - spoiled
    return {
        "lost": lost,
        "transverse": transverse,
        "longitudinal": longitudinal,
        "energy": energy,
        "duration": math.fsum(durations),
    }


def _turn(xy: Array, z: Array, angle: Array, phi: float) -> tuple[Array, Array]:
    """Rotate about (cos phi, sin phi, 0): in the frame of the pulse, y and z turn."""
    frame = xy * complex(math.cos(phi), -math.sin(phi))
    along, across = frame.real, frame.imag
    turned = across * np.cos(angle) - z * np.sin(angle)
    up = across * np.sin(angle) + z * np.cos(angle)
    return (along + 1j * turned) * complex(math.cos(phi), math.sin(phi)), up


def _received(signals: Array, rates: Array, first: float, closed: float) -> float:
    """Int |sum_i s_i exp(rate_i t)|^2 dt, exactly: a sum over pairs."""
    pairs = np.conj(rates)[:, None] + rates[None, :]
    at_open = signals * np.exp(rates * first)
    grown = np.expm1(pairs * (closed - first)) / pairs
    return float((np.conj(at_open) @ grown @ at_open).real)


def _finite_pulse(
    xy: Array, z: Array, theta: float, phi: float, length: float, offset: Array,
    spins: dict[str, Array],
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """A rectangular pulse: its end, int |Mxy|^2 R2 dt and int Mz (1 - Mz) R1 dt.

    exp(G t) of the affine generator G, and Gauss-Legendre nodes in time, many to a half turn.
    """
    n, R1, R2 = xy.size, spins["R1"], spins["R2"]
    wx = theta / length * spins["b1"] * math.cos(phi)
    wy = theta / length * spins["b1"] * math.sin(phi)
    G = np.zeros((n, 4, 4))
    G[:, 0, 0] = G[:, 1, 1] = -R2
    G[:, 2, 2], G[:, 2, 3] = -R1, R1
    G[:, 1, 0], G[:, 0, 1] = offset, -offset
    G[:, 0, 2], G[:, 2, 0] = wy, -wy
    G[:, 2, 1], G[:, 1, 2] = wx, -wx
    fastest = float(np.sqrt(wx**2 + wy**2 + offset**2).max()) + float(R2.max())
    parts = max(1, math.ceil(fastest * length / math.pi))
    x, w = np.polynomial.legendre.leggauss(NODES)
    h = length / parts
    state = np.stack([xy.real, xy.imag, z, np.ones(n)], axis=1)
    whole = _exponential(G * h)
    nodes = [_exponential(G * (h * (node + 1) / 2)) for node in x]
    used, gained = np.zeros(n), np.zeros(n)
    for _ in range(parts):
        for step, weight in zip(nodes, w * h / 2, strict=True):
            now = np.einsum("nij,nj->ni", step, state)
            used += weight * R2 * (now[:, 0] ** 2 + now[:, 1] ** 2)
            gained += weight * R1 * now[:, 2] * (1 - now[:, 2])
        state = np.einsum("nij,nj->ni", whole, state)
    return state[:, 0] + 1j * state[:, 1], state[:, 2], used, gained


def _exponential(A: Array) -> Array:
    """Exponential of matrices (N, 4, 4): Taylor's series to the 18th term, scaled and squared."""
    norm = float(np.abs(A).sum(axis=2).max())
    squarings = max(0, math.ceil(math.log2(norm)) + 1) if norm > 0 else 0
    small = A / 2.0**squarings
    term = np.broadcast_to(np.eye(4), A.shape)
    total = term.copy()
    for k in range(1, 19):
        term = term @ small / k
        total = total + term
    for _ in range(squarings):
        total = total @ total
    return np.asarray(total)
