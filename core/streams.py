"""One seed, one episode: every episode draws from its own counter-based stream.

A random number is a pure function of four things: the *key* (from the environment's name, the
seed and the purpose), the *episode*, the *step* and the *draw*. Nothing is carried from one call
to the next, so episode i is the same whatever ran before it, in any row of any process.

The function is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011). Counter words: episode low, episode high, step, draw.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .kernels import kernel

PURPOSES = ("dynamics", "observation", "policy", "planning")
SEED_LIMIT = 2**64
SEED_DRAW = 0xFFFFFFFF  # the draw that seeds foreign environments; entities count up from 0

_U32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)
_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_TO_UNIT = 2.0**-53


@kernel
def philox(key, episode, step, draw):  # type: ignore[no-untyped-def]
    """Four 32-bit words (as uint64) of Philox4x32-10. Use inside kernels.

    Args:
        key: uint64; its low word is the first key word.
        episode: uint64; low and high words are counter words 0 and 1.
        step: counter word 2.
        draw: counter word 3.
    """
    k0 = np.uint64(key) & _U32
    k1 = np.uint64(key) >> _SHIFT32
    c0 = np.uint64(episode) & _U32
    c1 = np.uint64(episode) >> _SHIFT32
    c2 = np.uint64(step) & _U32
    c3 = np.uint64(draw) & _U32
    for _ in range(10):
        p0 = _MULTIPLIER_0 * c0
        p1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT32) ^ c1 ^ k0,
            p1 & _U32,
            (p0 >> _SHIFT32) ^ c3 ^ k1,
            p0 & _U32,
        )
        k0 = (k0 + _WEYL_0) & _U32
        k1 = (k1 + _WEYL_1) & _U32
    return c0, c1, c2, c3


@kernel
def uniform(key, episode, step, draw):  # type: ignore[no-untyped-def]
    """One float64, uniform on [0, 1) with 53 random bits. Use inside kernels."""
    a, b, _, _ = philox(key, episode, step, draw)
    return np.float64((a << np.uint64(21)) ^ (b >> np.uint64(11))) * _TO_UNIT


@kernel
def normal(key, episode, step, draw):  # type: ignore[no-untyped-def]
    """One standard normal float64 (Box-Muller on one Philox block). Use inside kernels."""
    a, b, c, d = philox(key, episode, step, draw)
    u = (np.float64((a << np.uint64(21)) ^ (b >> np.uint64(11))) + 0.5) * _TO_UNIT  # never 0
    v = np.float64((c << np.uint64(21)) ^ (d >> np.uint64(11))) * _TO_UNIT
    return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)


def stream_key(name: str, seed: int, purpose: str) -> int:
    """Key of a stream: the first 8 bytes of BLAKE2b("name|seed|purpose"), little endian.

    The name carries neither version nor settings, so that variants of an environment share their
    random numbers.
    """
    digest = hashlib.blake2b(f"{name}|{seed}|{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def check_seed(seed: Any, name: str = "seed") -> int:
    """The seed as a Python integer; errors call it by its name.

    Raises:
        TypeError: not an integer.
        ValueError: outside 0 <= seed < 2**64.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"{name}: got {seed!r}, expected an integer")
    if not 0 <= int(seed) < SEED_LIMIT:
        raise ValueError(f"{name}: got {seed}, allowed 0 <= {name} < 2**64")
    return int(seed)


def fresh_seed() -> int:
    """A seed drawn from the operating system; 32 bits, so that a person can copy it."""
    return secrets.randbits(32)


class Streams:
    """The random streams of B rows. Owned by the core; an environment only reads them.

    Attributes:
        seed: the seed each row plays, uint64 (B,).
        episode: index of the running episode, uint64 (B,).
        step: 0 in `begin`, k in the k-th `advance` and the `observe` after it, uint32 (B,).
        dynamics: key of the stream for the dynamics, uint64 (B,).
        observation: key of the stream for observation noise, uint64 (B,).
        policy: key of the stream that a stochastic policy may use, uint64 (B,).
    """

    def __init__(self, name: str, rows: int) -> None:
        """Streams of `rows` rows that belong to the environment called `name`."""
        self.name = name
        self.seed = np.zeros(rows, np.uint64)
        self.episode = np.zeros(rows, np.uint64)
        self.step = np.zeros(rows, np.uint32)
        self.dynamics = np.zeros(rows, np.uint64)
        self.observation = np.zeros(rows, np.uint64)
        self.policy = np.zeros(rows, np.uint64)

    def set_seeds(
        self,
        seeds: Sequence[int] | npt.NDArray[np.uint64],
        rows: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Give each row (of a mask, bool (B,)) its seed, and the keys that follow from it."""
        keys: dict[int, tuple[int, ...]] = {}
        for row in range(len(seeds)) if rows is None else np.flatnonzero(rows).tolist():
            seed = int(seeds[row])
            if seed not in keys:
                keys[seed] = tuple(stream_key(self.name, seed, p) for p in PURPOSES[:3])
            self.seed[row] = seed
            self.dynamics[row], self.observation[row], self.policy[row] = keys[seed]

    def generator(self, row: int, purpose: str = "dynamics") -> np.random.Generator:
        """A NumPy generator of this row, episode and step, for authors who do without kernels.

        Equal calls give equal generators: draw everything a step needs from one.

        Raises:
            ValueError: unknown purpose.
        """
        if purpose not in PURPOSES:
            raise ValueError(f"purpose: got {purpose!r}, allowed {', '.join(PURPOSES)}")
        key = stream_key(self.name, int(self.seed[row]), purpose)
        counter = [0, 0, int(self.step[row]), int(self.episode[row])]
        return np.random.Generator(np.random.Philox(counter=counter, key=key))

    def seed32(self, row: int) -> int:
        """A 32-bit seed of this row and episode, for `reset(seed=)` of foreign environments."""
        return int(philox(self.dynamics[row], self.episode[row], np.uint32(0), SEED_DRAW)[0])
