"""Classical measurements of abundance as policies: what textbooks do with `NMRAbundance`.

Each is a rule from T1, T2 and the width of the magnet to a shot, tuned by its formula. With the
observation "oracle" these are the true ones; with "measured" the present estimates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from palestra.envs.nmr.measurement import OBSERVATION_LIMIT, Measurement
from palestra.envs.nmr.measuring import MARGIN
from palestra.envs.nmr.pulses import cpmg_efficiency
from palestra.envs.nmr.sample import Sample, load_sample
from palestra.envs.nmr.shots import LONGEST_WAIT, Shot, ShotAction

Array = npt.NDArray[Any]

NINETY, INVERSION = math.pi / 2, math.pi
FULL_RECOVERY = 5.0  # of T1
FULL_DECAY = 5.0  # of T2*: exp(-10) of the energy is left
SHORT_TRAIN = 0.2  # of T2, of driven equilibrium: its efficiency is highest for short trains
BEST_REPETITION = 1.25643  # of T1, for 90-degree pulses: maximises (1 - exp(-x)) / sqrt(x)

Shots = tuple[Any, Any, Any, Any, Any]


class Known:
    """What a policy knows in each row: arrays (B,).

    Attributes:
        T1: s; the longest.
        T2: s.
        T2_star: s; 1 / T2* = 1 / T2 + pi FWHM.
        T1_sd: relative standard deviation of T1.
        reference: what the environment measures waits by, s.
        error: predicted relative error over the target (measured), else 1.
    """

    def __init__(self, observation: Array, sample: Sample, measured: bool) -> None:
        o = np.asarray(observation, np.float64)
        one = max(sample.species, key=lambda species: species.T1)
        width = np.full(len(o), sample.widest if sample.field.b0_shape != "table" else 0.0)
        if measured:
            self.T1, self.T2 = one.T1 * np.exp(o[:, 23]), one.T2 * np.exp(o[:, 24])
            self.T1_sd = np.exp(o[:, 26])
            self.reference = self.T1 * np.exp(MARGIN * self.T1_sd)
            self.error = o[:, 28]
        else:
            self.T1 = np.exp(o[:, 0])
            self.T2 = self.T1 * np.exp(o[:, 1])
            self.T1_sd = np.zeros(len(o))
            self.reference, self.error = self.T1, np.ones(len(o))
            width = 40.0 * (o[:, 2] + 1.0)
        self.T2_star = 1 / (1 / self.T2 + math.pi * width)


class ShotSequence:
    """One shot again and again.

    Args:
        env: where it will act; its sample, spacing and longest train are taken (those of the
            preset "random" without one).
    """

    measured_only = False

    def __init__(self, env: Any = None) -> None:
        if isinstance(env, Measurement):
            self.sample, self.te, self.action = env.sample, env.windows.te, env.action
            self.measured = env.measured
        else:
            self.sample, self.te, self.action = load_sample("random"), 4e-3, ShotAction()
            self.measured = False
        limit = OBSERVATION_LIMIT
        size = 29 if self.measured else 8
        self.observation_space = spaces.Box(-limit, limit, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (5,), np.float32)
        if self.measured_only and not self.measured:
            raise ValueError(
                f"policy: {type(self).__name__} goes by its own estimates, allowed with "
                "observation = 'measured'"
            )

    def predict(
        self,
        observation: Array,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """Actions (B, 5); `state` counts the shots of each row."""
        rows = len(observation)
        count = np.zeros(rows, np.int64) if state is None else np.asarray(state)
        if episode_start is not None:
            count = np.where(episode_start, 0, count)
        known = Known(observation, self.sample, self.measured)
        excitation, train, pulses, flip_back, wait = self.shot(known, count)
        waits = np.asarray(wait) / known.reference
        if np.any(waits > LONGEST_WAIT * (1 + 1e-9)):
            raise ValueError(
                f"policy: {type(self).__name__} waits {np.max(waits):.3g} T1ref, allowed up to "
                f"{LONGEST_WAIT:g}"
            )
        shots = np.broadcast_arrays(
            excitation, train, self._whole(pulses), flip_back, waits, np.empty(rows)
        )
        return self.action.encode(*shots[:5]), count + 1

    def shot(self, known: Known, count: Array) -> Shots:
        """Excitation (rad), train (rad), pulses, flip back (rad) and wait (s); each (B,) or one."""
        raise NotImplementedError

    def _whole(self, pulses: Any) -> Array:
        return np.asarray(np.clip(np.rint(pulses), 1, self.action.most_pulses))

    def _pulses(self, length: Any) -> Array:
        """Pulses of a train of a length in s."""
        return self._whole(np.asarray(length) / self.te)


class Ninety5T1(ShotSequence):
    """90 degrees, one free induction decay, then 5 T1: the textbook's quantitative experiment."""

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        return NINETY, 0.0, self._pulses(FULL_DECAY * known.T2_star), 0.0, FULL_RECOVERY * known.T1


class Ninety126(ShotSequence):
    """90 degrees every 1.2564 T1: the best repetition of 90-degree pulses."""

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        repetition = BEST_REPETITION * known.T1
        pulses = self._pulses(np.minimum(FULL_DECAY * known.T2_star, repetition))
        return NINETY, 0.0, pulses, 0.0, np.maximum(repetition - pulses * self.te, 0.0)


class Ernst(ShotSequence):
    """The Ernst angle, repeated as soon as the decay is over: cos a = exp(-TR / T1)."""

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        pulses = self._pulses(FULL_DECAY * known.T2_star)
        angle = np.arccos(np.exp(-pulses * self.te / known.T1))
        return angle, 0.0, pulses, 0.0, 0.0


class CPMG5T1(ShotSequence):
    """Echoes for 1.5 T2, then 5 T1."""

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        return NINETY, INVERSION, self._pulses(1.5 * known.T2), 0.0, FULL_RECOVERY * known.T1


class CPMGTuned(ShotSequence):
    """Echoes and wait at the optimum of `cpmg_efficiency` for T1 / T2, or factors from there.

    Args:
        env: see `ShotSequence`.
        wait: factor of the best wait.
        train: factor of the best length of the train.
    """

    def __init__(self, env: Any = None, *, wait: float = 1.0, train: float = 1.0) -> None:
        super().__init__(env)
        self.wait, self.train = wait, train

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        log_k, wait, train = _best_cpmg()
        at = np.log(known.T1 / known.T2)
        pulses = self._pulses(self.train * np.interp(at, log_k, train) * known.T2)
        waits = np.minimum(self.wait * np.interp(at, log_k, wait), LONGEST_WAIT) * known.T1
        return NINETY, INVERSION, pulses, 0.0, waits


@cache
def _best_cpmg() -> tuple[Array, Array, Array]:
    """Logarithm of k, and the best wait / T1 and train / T2 there."""
    from scipy.optimize import minimize

    found, start = [], np.log([1.0, 0.8])
    log_k = np.linspace(math.log(0.5), math.log(1e4), 80)

    def worse(logs: Array, k: float) -> float:
        wait, train = np.exp(logs).tolist()
        return -cpmg_efficiency(wait, train, k)

    for k in np.exp(log_k).tolist():
        best = minimize(worse, start, args=(k,))
        found.append(np.exp(best.x))
        start = best.x
    wait, train = np.array(found).T
    return log_k, np.minimum(wait, LONGEST_WAIT), train


class DECPMG(ShotSequence):
    """Driven equilibrium: a short train of echoes, a flip back of 90 degrees, a wait of rho trains.

    rho = (k + sqrt(k^2 + 8 k)) / 2 with k = T1 / T2; see `de_cpmg_efficiency`.

    Args:
        env: see `ShotSequence`.
        wait: factor of that wait.
        train: length of the train, in T2.
    """

    def __init__(self, env: Any = None, *, wait: float = 1.0, train: float = SHORT_TRAIN) -> None:
        super().__init__(env)
        self.wait, self.train = wait, train

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        k = known.T1 / known.T2
        pulses = self._pulses(self.train * known.T2)
        rho = (k + np.sqrt(k * k + 8 * k)) / 2
        wait = np.minimum(self.wait * rho * pulses * self.te, LONGEST_WAIT * known.T1)
        return NINETY, INVERSION, pulses, NINETY, wait


class DEFT(ShotSequence):
    """One echo, flipped back, and the wait of driven equilibrium (Becker et al. 1969)."""

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        k = known.T1 / known.T2
        rho = (k + np.sqrt(k * k + 8 * k)) / 2
        return NINETY, INVERSION, 1, NINETY, np.minimum(rho * self.te, LONGEST_WAIT * known.T1)


class BSSFP(ShotSequence):
    """Balanced steady-state free precession: cos a = (T1/T2 - 1) / (T1/T2 + 1), no waits.

    Args:
        env: see `ShotSequence`.
        angle: factor of that angle.
    """

    def __init__(self, env: Any = None, *, angle: float = 1.0) -> None:
        super().__init__(env)
        self.angle = angle

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        k = known.T1 / known.T2
        angle = np.arccos(np.clip((k - 1) / (k + 1), -1.0, 1.0))
        angle = np.minimum(self.angle * angle, INVERSION)
        return angle / 2, angle, self.action.most_pulses, angle / 2, 0.0


class IRbSSFP(BSSFP):
    """An inversion before each train: density, T1 and T2 from one (Schmitt et al. 2004)."""

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        excitation, train, *_ = super().shot(known, count)
        inverts = count % 2 == 0
        return (
            np.where(inverts, INVERSION, excitation),
            np.where(inverts, 0.0, train),
            np.where(inverts, 1, self._pulses(3.0 * known.T1)),
            0.0,
            0.0,
        )


class SaturationRecovery(ShotSequence):
    """Saturate, recover for a time that grows from shot to shot, look: a reference for T1."""

    waits = (0.25, 0.5, 1.0, 2.0, 5.0)  # of T1

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        wait = np.take(self.waits, count % len(self.waits)) * known.T1
        return NINETY, 0.0, self._pulses(FULL_DECAY * known.T2_star), 0.0, wait


class InversionRecovery(ShotSequence):
    """Invert, recover for a time that grows, look, and wait 5 T1: the other reference for T1."""

    delays = (0.05, 0.2, 0.5, 0.9, 2.0)  # of T1

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        inverts, which = count % 2 == 0, (count // 2) % len(self.delays)
        delay = np.take(self.delays, which) * known.T1
        return (
            np.where(inverts, INVERSION, NINETY),
            0.0,
            np.where(inverts, 1, self._pulses(FULL_DECAY * known.T2_star)),
            0.0,
            np.where(inverts, delay, FULL_RECOVERY * known.T1),
        )


class WorstCaseCPMG(ShotSequence):
    """Echoes, then 5 of the longest T1 that there may be: what one does who will not estimate."""

    measured_only = True

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        wait = np.minimum(FULL_RECOVERY * _longest_T1(self.sample), LONGEST_WAIT * known.reference)
        return NINETY, INVERSION, self._pulses(1.5 * known.T2), 0.0, wait


class AdaptiveCPMG(ShotSequence):
    """Two shots for the worst case, then 4.5 (T1 + 1 sd); every third wait 1.2 T1, to learn T1."""

    measured_only = True

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        careful = FULL_RECOVERY * _longest_T1(self.sample)
        usual = 4.5 * known.T1 * (1 + known.T1_sd)
        wait = np.where(count < 2, careful, np.where(count % 3 == 2, 1.2 * known.T1, usual))
        return (
            NINETY,
            INVERSION,
            self._pulses(1.5 * known.T2),
            0.0,
            np.minimum(wait, LONGEST_WAIT * known.reference),
        )


class Replay(ShotSequence):
    """The same shots in every episode, whatever is seen; the last one again and again.

    Args:
        env: see `ShotSequence`.
        shots: at least one.

    Raises:
        ValueError: no shot.
    """

    def __init__(self, env: Any = None, *, shots: Sequence[Shot]) -> None:
        super().__init__(env)
        if not shots:
            raise ValueError("shots: got none, allowed one or more")
        given = [(s.excitation, s.train, s.pulses, s.flip_back, max(s.wait, 0.0)) for s in shots]
        self.shots = np.array(given, np.float64)

    def shot(self, known: Known, count: Array) -> Shots:
        """See the class."""
        chosen = self.shots[np.minimum(count, len(self.shots) - 1)]
        excitation, train, pulses, flip_back, wait = chosen.T
        return excitation, train, pulses, flip_back, wait


def _longest_T1(sample: Sample) -> float:
    """The longest T1 of any episode; of a Gaussian prior, two standard deviations out."""
    if sample.vary.T1 is not None:
        return sample.vary.T1[1]
    longest = max(species.T1 for species in sample.species)
    return float(longest * math.exp(2.0 * sample.task.log_T1_sd))
