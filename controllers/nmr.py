"""Classical pulse sequences as policies: they see what a learned policy sees, the observation.

The sample was excited with phase 0 a known time ago (`NMRRelax`, `NMRAlign`), so its transverse
part began along -y; the observation tells the time since then, and the last flip angle tells how
far the sequence has come. None keeps a memory.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from palestra.envs.nmr.env import OBSERVATION_LIMIT, TIME_SCALE, PulseAction

Array = npt.NDArray[Any]

X, Y, MINUS_X, MINUS_Y = 0.0, math.pi / 2, math.pi, -math.pi / 2

LEAST_FLIP = 0.75  # share of a flip angle that still does its work; 180 degrees are told by it

# Columns of the observation
_MZ, _MXY, _LAST_FLIP, _SINCE, _STEP = 2, 3, 4, 6, 7


class PulseSequence:
    """A sequence as a policy.

    Args:
        env: where it will act; its limits of flip angle and delay are taken (default limits
            without one).

    Raises:
        ValueError: within those limits it cannot be played at all, and would be a straw man. A
            limit that only trims it (a flip angle of 170 degrees for 180) is borne.

    Attributes:
        pulses: how many steps it takes.
        largest_flip: largest flip angle that it asks for, rad.
        refocuses: whether it waits for an echo, as long as the time since the excitation.
        observation_space: the 8 components that the environments of pulses give.
        action_space: the 3 components of an event; with bounds other than -1 and 1 where a
            wrapper around the environment clips.
    """

    pulses = 0
    largest_flip = 0.0
    refocuses = False
    observation_space = spaces.Box(-OBSERVATION_LIMIT, OBSERVATION_LIMIT, (8,), np.float32)

    def __init__(self, env: Any = None) -> None:
        action = getattr(env, "action", None)
        self.action = action if isinstance(action, PulseAction) else PulseAction()
        own, theirs = spaces.Box(-1.0, 1.0, (3,), np.float32), getattr(env, "action_space", None)
        wider = isinstance(theirs, spaces.Box) and theirs.shape == own.shape
        self.action_space = theirs if wider else own
        self._check_limits(env)

    def _check_limits(self, env: Any) -> None:
        limits, horizon = self.action, getattr(env, "horizon", None)
        lacking = []
        if horizon is not None and horizon < self.pulses:
            lacking.append(f"horizon = {horizon} steps, needed {self.pulses}")
        if limits.theta_max <= LEAST_FLIP * self.largest_flip:
            have, need = np.rad2deg((limits.theta_max, self.largest_flip))
            lacking.append(f"theta_max = {have:.3g} degrees, needed {need:.0f}")
        span = getattr(env, "tau0_span", None)
        if self.refocuses and span is not None:
            low, high = span
            latest = min(limits.tau_max, OBSERVATION_LIMIT * TIME_SCALE)  # seen and waited for
            if latest < low or high < limits.tau_min:
                lacking.append(
                    f"delays of {limits.tau_min:g} to {latest:g} s, needed the time since the "
                    f"excitation, {low:g} to {high:g} s (tau0)"
                )
            elif latest < high or low < limits.tau_min:
                warnings.warn(
                    f"{type(self).__name__}: where the excitation was not {limits.tau_min:g} to "
                    f"{latest:g} s ago, the limits of delays cut its echo short or pass it "
                    f"(tau0 is {low:g} to {high:g} s)",
                    UserWarning,
                    stacklevel=3,
                )
        if lacking:
            raise ValueError(
                f"policy: {type(self).__name__} cannot be played within the limits of its "
                f"environment: {'; '.join(lacking)}"
            )

    def predict(
        self,
        observation: Array,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """Actions (B, 3) for observations (B, 8)."""
        theta, phi, tau = self.events(np.asarray(observation, np.float64))
        return self.action.encode(theta, phi, tau), state

    def events(self, observation: Array) -> tuple[Array, Array, Array]:
        """Flip angle (rad), phase (rad) and delay (s) for each row."""
        raise NotImplementedError

    def _nothing(self, rows: int) -> tuple[Array, Array, Array]:
        """No pulse and the shortest delay."""
        return np.zeros(rows), np.zeros(rows), np.full(rows, self.action.tau_min)


def _at_start(observation: Array) -> Array:
    start: Array = observation[:, _STEP] == 0.0
    return start


def _just_refocused(observation: Array) -> Array:
    """Rows whose last pulse was a 180-degree pulse (the excitation does not count)."""
    refocused: Array = observation[:, _LAST_FLIP] > LEAST_FLIP
    return ~_at_start(observation) & refocused


class Wait(PulseSequence):
    """Relax by doing nothing."""

    def events(self, observation: Array) -> tuple[Array, Array, Array]:
        """No pulse."""
        return self._nothing(len(observation))


class Deft(PulseSequence):
    """Driven equilibrium: refocus with 180y, and turn the echo, on -y, back to +z with 90(-x).

    Becker, Ferretti, Farrar, J. Am. Chem. Soc. 91 (1969) 7784. The delay to the echo is the time
    since excitation.
    """

    pulses, largest_flip, refocuses = 2, math.pi, True
    refocus, back = Y, MINUS_X

    def events(self, observation: Array) -> tuple[Array, Array, Array]:
        """180 and a delay, then 90, then nothing."""
        theta, phi, tau = self._nothing(len(observation))
        start, echo = _at_start(observation), _just_refocused(observation)
        theta[start], phi[start] = math.pi, self.refocus
        tau[start] = TIME_SCALE * observation[start, _SINCE]
        theta[echo], phi[echo] = math.pi / 2, self.back
        return theta, phi, tau


class CompensatedDeft(Deft):
    """Driven equilibrium whose pulses cancel each other's error: 90x, 180(-x), 90x.

    The flip angles of the three pulses add up to nothing along x, whatever the transmit field.
    """

    refocus, back = MINUS_X, X


class Ninety(PulseSequence):
    """Turn Mz into signal with one 90-degree pulse.

    Its phase is along the transverse part, -y, so that this part stays where it is.
    """

    pulses, largest_flip = 1, math.pi / 2

    def events(self, observation: Array) -> tuple[Array, Array, Array]:
        """90, then nothing."""
        theta, phi, tau = self._nothing(len(observation))
        start = _at_start(observation)
        theta[start], phi[start] = math.pi / 2, MINUS_Y
        return theta, phi, tau


class Echo(PulseSequence):
    """Gather the transverse part in a spin echo: 180y, then a delay of the time since excitation.

    Hahn, Phys. Rev. 80 (1950) 580.
    """

    pulses, largest_flip, refocuses = 1, math.pi, True

    def events(self, observation: Array) -> tuple[Array, Array, Array]:
        """180 and a delay, then nothing."""
        theta, phi, tau = self._nothing(len(observation))
        start = _at_start(observation)
        theta[start], phi[start] = math.pi, Y
        tau[start] = TIME_SCALE * observation[start, _SINCE]
        return theta, phi, tau


class EchoNinety(PulseSequence):
    """Both: gather the transverse part in an echo, and turn Mz to its side at the echo.

    Where nearly all is along z, the pulse comes at once. The echo is worth its time if the
    transverse part is more than a fifth of the whole (4 % of the signal power).
    """

    pulses, largest_flip, refocuses = 2, math.pi, True
    worthwhile = 0.2

    def events(self, observation: Array) -> tuple[Array, Array, Array]:
        """180 and a delay if worthwhile, then 90, then nothing."""
        theta, phi, tau = self._nothing(len(observation))
        start, turn = _at_start(observation), _just_refocused(observation)
        length = np.hypot(observation[:, _MZ], observation[:, _MXY])
        gather = start & (observation[:, _MXY] > self.worthwhile * length)
        turn |= start & ~gather
        theta[gather], phi[gather] = math.pi, Y
        tau[gather] = TIME_SCALE * observation[gather, _SINCE]
        theta[turn], phi[turn] = math.pi / 2, MINUS_Y
        return theta, phi, tau
