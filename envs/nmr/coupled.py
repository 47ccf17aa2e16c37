"""A few spins 1/2 coupled to each other, as a density matrix in Liouville space.

The density matrix of n spins is its coefficients c_a = Tr(B_a rho) over products of (1, 2Ix, 2Iy,
2Iz), one factor a spin: 4^n real numbers, the first of which is the trace, 1. It obeys

    d rho / dt = -i [H, rho] - R (rho - rho_eq),
    H = sum_k 2 pi offset_k Iz_k + sum_kl 2 pi J_kl (Iz_k Iz_l, or I_k . I_l where strong),

in the frame that rotates with each isotope, in the conventions of `bloch`: a pulse of phase 0 turns
+z into -y, and a positive offset turns x towards y. R is diagonal in the products: a factor x or y
of spin k decays with 1/T2_k, a factor z with 1/T1_k (random fields, not correlated; no cross
relaxation). The equilibrium is that of high temperature, (1 + sum_k p_k 2Iz_k) / 2^n, p_k in
proportion to the gyromagnetic ratio and of sum 1: it commutes with H, so it stays. What is seen is
in units of the equilibrium of each spin.

Sorensen et al., Prog. NMR Spectrosc. 16 (1984) 163 (product operators); Levitt, Di Bari, Phys. Rev.
Lett. 69 (1992) 3124 (the source term).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from . import checks
from .events import LARGEST_ANGLE, LONGEST_EVENT, MOST_SAMPLES, SHORTEST_DWELL
from .sample import GYROMAGNETIC

Array = npt.NDArray[Any]

MOST_SPINS = 4
MOST_KEPT = 1024  # propagators

_PAULI = np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]])


@dataclass(frozen=True)
class Spin:
    """One spin 1/2.

    Attributes:
        isotope: one of GYROMAGNETIC.
        offset_hz: from the carrier of its isotope, Hz.
        T1: s; 1 ns to inf.
        T2: s; 1 ns to 2 T1.
    """

    isotope: str
    offset_hz: float = 0.0
    T1: float = math.inf
    T2: float = math.inf

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.choice("isotope", self.isotope, tuple(GYROMAGNETIC))
        checks.number("offset_hz", self.offset_hz, checks.OFFSET, "Hz")
        shortest = checks.RELAXATION_TIME[0]
        checks.number("T1", self.T1, (shortest, math.inf), "s")
        checks.number("T2", self.T2, (shortest, 2 * self.T1), "s (2 T1)")


@dataclass(frozen=True)
class Coupling:
    """J between two spins.

    Attributes:
        first: index of a spin.
        second: index of another.
        J_hz: Hz.
        strong: I . I instead of Iz Iz; only between spins of one isotope.
    """

    first: int
    second: int
    J_hz: float
    strong: bool = False

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.integer("first", self.first, 0, MOST_SPINS - 1)
        checks.integer("second", self.second, 0, MOST_SPINS - 1)
        checks.number("J_hz", self.J_hz, checks.OFFSET, "Hz")
        checks.flag("strong", self.strong)
        if self.first == self.second:
            raise ValueError(f"second: got {self.second}, allowed another spin than first")


class CoupledSpins:
    """Spins and their couplings, with the propagators of what has been done to them.

    States are arrays (B, 4^n) of coefficients, one row an experiment.
    """

    def __init__(self, spins: Sequence[Spin], couplings: Sequence[Coupling] = ()) -> None:
        """1 to 4 spins.

        Raises:
            ValueError: more or fewer spins; a coupling of a spin that is not there, of a pair
                twice, or strong between isotopes.
        """
        self.spins, self.couplings = tuple(spins), tuple(couplings)
        checks.integer("spins", len(self.spins), 1, MOST_SPINS)
        self._check_couplings()
        self._kept: dict[tuple[float, float, tuple[int, ...], float], Array] = {}

    def _check_couplings(self) -> None:
        pairs: set[frozenset[int]] = set()
        for k, coupling in enumerate(self.couplings):
            pair = (coupling.first, coupling.second)
            for name, index in zip(("first", "second"), pair, strict=True):
                checks.integer(f"couplings[{k}].{name}", index, 0, len(self.spins) - 1)
            if frozenset(pair) in pairs:
                raise ValueError(f"couplings[{k}]: got the pair {pair} again, allowed once")
            pairs.add(frozenset(pair))
            isotopes = {self.spins[index].isotope for index in pair}
            if coupling.strong and len(isotopes) > 1:
                raise ValueError(
                    f"couplings[{k}].strong: got true between {' and '.join(sorted(isotopes))}, "
                    "allowed only within one isotope"
                )

    @cached_property
    def products(self) -> Array:
        """The basis B_a, complex (4^n, 2^n, 2^n)."""
        choices = itertools.product(_PAULI, repeat=len(self.spins))
        return np.array([reduce(np.kron, factors) for factors in choices])

    @cached_property
    def factors(self) -> Array:
        """Which factor a product has at each spin: 0 to 3 for 1, x, y, z; int (4^n, n)."""
        return np.array(list(itertools.product(range(4), repeat=len(self.spins))))

    def index(self, spin: int, axis: int) -> int:
        """Where the coefficient of one spin alone stands; axis 1, 2, 3 for x, y, z."""
        checks.integer("spin", spin, 0, len(self.spins) - 1)
        checks.integer("axis", axis, 1, 3)
        return int(axis * 4 ** (len(self.spins) - 1 - spin))

    def _operator(self, spin: int, axis: int) -> Array:
        return np.asarray(self.products[self.index(spin, axis)]) / 2.0

    @cached_property
    def polarisation(self) -> Array:
        """p_k, (n,): in proportion to gamma, of sum 1: equilibrium has populations in [0, 1]."""
        gamma = np.array([GYROMAGNETIC[spin.isotope] for spin in self.spins])
        return np.asarray(gamma / gamma.sum())

    @cached_property
    def hamiltonian(self) -> Array:
        """H in rad/s, complex (2^n, 2^n)."""
        total = np.zeros((2 ** len(self.spins),) * 2, complex)
        for k, spin in enumerate(self.spins):
            total += 2.0 * math.pi * spin.offset_hz * self._operator(k, 3)
        for c in self.couplings:
            for axis in (1, 2, 3) if c.strong else (3,):
                pair = self._operator(c.first, axis) @ self._operator(c.second, axis)
                total += 2.0 * math.pi * c.J_hz * pair
        return total

    def _commutator(self, operator: Array) -> Array:
        """-i [operator, .] on coefficients, real (4^n, 4^n)."""
        B = self.products
        moved = -1j * (operator @ B - B @ operator)
        return np.asarray(np.einsum("aij,bji->ab", B, moved).real / operator.shape[0])

    @cached_property
    def liouvillian(self) -> Array:
        """Generator of a delay on coefficients, 1/s, real (4^n, 4^n), the source with it."""
        L = self._commutator(self.hamiltonian)
        for k, spin in enumerate(self.spins):
            rates = np.array([0.0, 1.0 / spin.T2, 1.0 / spin.T2, 1.0 / spin.T1])
            L -= np.diag(rates[self.factors[:, k]])
            L[self.index(k, 3), 0] += self.polarisation[k] / spin.T1
        return L

    def equilibrium(self, rows: int = 1) -> Array:
        """Thermal equilibrium, (rows, 4^n)."""
        checks.integer("rows", rows, 1, MOST_SAMPLES)
        state = np.zeros((rows, 4 ** len(self.spins)))
        state[:, 0] = 1.0
        for k, p in enumerate(self.polarisation):
            state[:, self.index(k, 3)] = p
        return state

    def propagator(
        self, theta: float, phi: float, spins: Sequence[int] | None = None, tau: float = 0.0
    ) -> Array:
        """Of a hard pulse (theta, phi) on some spins, then a delay tau: real (4^n, 4^n), kept.

        Args:
            theta: flip angle, rad.
            phi: phase, rad.
            spins: which spins turn; None is all.
            tau: s.

        Raises:
            ValueError: a value that is not allowed.
        """
        chosen = tuple(range(len(self.spins))) if spins is None else tuple(spins)
        key = (theta, phi, chosen, tau)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        made = self._made(theta, phi, chosen, tau)
        made.flags.writeable = False
        self._kept[key] = made
        return made

    def _made(self, theta: float, phi: float, chosen: tuple[int, ...], tau: float) -> Array:
        from scipy.linalg import expm

        checks.number("theta", theta, (-LARGEST_ANGLE, LARGEST_ANGLE), "rad")
        checks.number("phi", phi, (-LARGEST_ANGLE, LARGEST_ANGLE), "rad")
        checks.number("tau", tau, (0.0, LONGEST_EVENT), "s")
        if len(set(chosen)) != len(chosen):
            raise ValueError(f"spins: got {checks.shown(chosen)}, allowed each spin once")
        axis = np.zeros_like(self.hamiltonian)
        for k in chosen:
            axis += math.cos(phi) * self._operator(k, 1) + math.sin(phi) * self._operator(k, 2)
        turned = expm(theta * self._commutator(axis))
        return np.asarray(expm(self.liouvillian * tau) @ turned)

    def step(
        self,
        state: Array,
        theta: float,
        phi: float,
        spins: Sequence[int] | None = None,
        tau: float = 0.0,
    ) -> Array:
        """States (B, 4^n) after a hard pulse and a delay: one matrix product; see `propagator`."""
        return np.asarray(state @ self.propagator(theta, phi, spins, tau).T)

    def magnetisation(self, state: Array, spin: int) -> Array:
        """(Mx, My, Mz) of one spin over its equilibrium, (B, 3)."""
        places = [self.index(spin, axis) for axis in (1, 2, 3)]
        return np.asarray(state[:, places] / self.polarisation[spin])

    def signal(self, state: Array, spin: int) -> Array:
        """Mx + i My of one spin over its equilibrium, complex (B,)."""
        m = self.magnetisation(state, spin)
        return np.asarray(m[:, 0] + 1j * m[:, 1])

    def acquire(self, state: Array, spin: int, dwell: float, samples: int) -> Array:
        """Signal of one spin at 0, dwell, 2 dwell ..., complex (B, samples).

        Raises:
            ValueError: a value that is not allowed.
        """
        checks.number("dwell", dwell, (SHORTEST_DWELL, LONGEST_EVENT), "s")
        checks.integer("samples", samples, 1, MOST_SAMPLES)
        received = np.empty((state.shape[0], samples), complex)
        for k in range(samples):
            received[:, k] = self.signal(state, spin)
            state = self.step(state, 0.0, 0.0, (), dwell)
        return received

    def density_matrix(self, state: Array) -> Array:
        """rho, complex (B, 2^n, 2^n)."""
        return np.asarray(np.einsum("ba,aij->bij", state, self.products) / 2 ** len(self.spins))

    def lines(self, spins: Sequence[int] | None = None) -> tuple[Array, Array]:
        """Frequencies in Hz, ascending, and intensities of the spectrum after a 90-degree pulse.

        Of spins of one isotope, on which the pulse acts and whose signals are added: |<r|I+|s>|^2
        over its sum, of transitions that have any. Without relaxation.

        Raises:
            ValueError: spins of several isotopes, or none.
        """
        chosen = tuple(range(len(self.spins))) if spins is None else tuple(spins)
        for k in chosen:
            checks.integer("spins", k, 0, len(self.spins) - 1)
        isotopes = sorted({self.spins[k].isotope for k in chosen})
        if len(isotopes) != 1:
            raise ValueError(f"spins: got isotopes {isotopes}, allowed spins of one isotope")
        raising = sum(self._operator(k, 1) + 1j * self._operator(k, 2) for k in chosen)
        energies, vectors = np.linalg.eigh(self.hamiltonian)
        strength = np.abs(vectors.conj().T @ raising @ vectors) ** 2
        frequency = (energies[:, np.newaxis] - energies) / (2.0 * math.pi)
        seen = strength > 1e-12 * strength.max()
        order = np.argsort(frequency[seen])
        return frequency[seen][order], strength[seen][order] / strength.sum()
