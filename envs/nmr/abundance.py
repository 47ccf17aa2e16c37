"""Count atoms: measure the abundance of an element to a given precision in the least time."""

from __future__ import annotations

import math
import os

import numpy as np
from gymnasium import spaces

from palestra.batch import Mask, Step
from palestra.kernels import kernel
from palestra.streams import Streams

from .bloch import Array
from .measurement import OBSERVATION_LIMIT, Measurement, within_limits
from .sample import Sample
from .shots import MOST_PULSES, decode_shot


@kernel(allocates=False)
def _decode(actions, rows, most_pulses, books, shots):  # type: ignore[no-untyped-def]
    for row in range(rows.shape[0]):
        if rows[row]:
            book = books[row]
            decode_shot(actions[row], book.reference, most_pulses, shots[row, int(book.shots)])


@kernel(allocates=False)
def observe_oracle(rows, observation, books):  # type: ignore[no-untyped-def]
    """What an oracle sees, (B, 8); see `NMRAbundance`."""
    for row in range(rows.shape[0]):
        if rows[row]:
            book, o = books[row], observation[row]
            o[0] = math.log(book.T1)
            o[1] = math.log(book.T2 / book.T1)
            o[2] = book.width / 40.0 - 1.0
            o[3], o[4], o[5] = book.Mx, book.My, book.Mz
            o[6] = 1.0 - book.share
            o[7] = book.elapsed / book.scale - 1.0
            within_limits(o)


@kernel(allocates=False)
def observe_measured(  # type: ignore[no-untyped-def]
    rows, observation, books, averages, action, value, covariance, scale, eps
):
    """What there is to see without an oracle, (B, 29); see `NMRAbundance`."""
    for row in range(rows.shape[0]):
        if rows[row]:
            o, at = observation[row], 2 * averages.shape[1]
            for part in range(averages.shape[1]):
                o[2 * part], o[2 * part + 1] = averages[row, part]
            for k in range(action.shape[1]):
                o[at + k] = action[row, k]
            at += action.shape[1]
            o[at] = books[row].elapsed / scale - 1.0
            for k in range(3):  # log A, log T1, log T2
                o[at + 1 + k] = value[row, k] if k == 0 else -value[row, k]
                o[at + 4 + k] = 0.5 * math.log(max(covariance[row, k, k], 1e-30))
            o[at + 7] = math.sqrt(covariance[row, 0, 0]) / eps
            within_limits(o)


class NMRAbundance(Measurement):
    r"""Measure how much of an element there is, to a given precision, in the least time.

    ## Description
    A sample in an inhomogeneous magnet, at equilibrium. Each step is one shot: an excitation, a
    train of pulses with the receiver open in its gaps, a flip back, a spoiler and a wait. The
    measurement is over when the relative error of the abundance has reached `eps`. No sequence can
    be faster than the time bound, which follows from the energy balance of the Bloch equations.

    ## Action space
    `Box(-1, 1, (5,), float32)`. Every classical sequence is a point of it.

    | Num | Action | Physical value |
    |---|---|---|
    | 0 | excitation, phase x | 0 to 180 degrees |
    | 1 | flip angle of the train, phases -x, x, -x, ... | 0 to 180 degrees |
    | 2 | pulses of the train | logarithmic, 1 to most_pulses (400) |
    | 3 | flip back; above 0 towards +z | -180 to 180 degrees |
    | 4 | wait | 5 T1ref ((a + 1) / 2)^2 |

    The gaps of a train last `te`, the first and last of them te / 2; the receiver is shut for the
    dead time after each pulse. T1ref is the longest T1; with "measured" its present estimate times
    exp(2 sd(ln T1)), so that the wait can reach what T1 may be.

    ## Observation space
    "oracle", `Box(-10, 10, (8,), float32)`:

    | Num | Observation | Unit |
    |---|---|---|
    | 0 | ln T1 (the longest) | ln s |
    | 1 | ln (T2 / T1) | |
    | 2 | width of the magnet / 40 - 1 | Hz |
    | 3, 4 | mean Mx, My, as received | M0 |
    | 5 | mean Mz | M0 |
    | 6 | information still needed | of all |
    | 7 | time so far / time bound - 1 | |

    "measured", `Box(-10, 10, (29,), float32)`, nothing hidden in it:

    | Num | Observation | Unit |
    |---|---|---|
    | 0 to 15 | the last record in 8 equal parts, averaged: real, imaginary | its noise |
    | 16 to 20 | the last action | |
    | 21 | time so far / time bound at the prior's centre - 1 | |
    | 22 to 24 | fitted ln A; ln T1, ln T2 from the prior's centre | |
    | 25 to 27 | ln of their standard deviations | |
    | 28 | predicted relative error / eps | |

    ## Reward
    "shaped": 4 (information gained / information needed) - p dt / time bound; the first part sums
    to 4 in every episode that ends well, so it changes no optimum. "time": -p dt / time bound. The
    price p is 1, with "marginal" 0.1: else to give up would pay. Where the bound is 0 (eps of eps1
    or more) T1 takes its place. Steps differ in length (`info["dt"]`): gamma near 1.

    ## Information
    "known": T1, T2 and the transmit field are given; information is the integral of |S|^2 / N0 over
    the open receiver. "marginal": they are estimated along with the abundance, from Gaussian priors
    on their logarithms (`task` of the sample), and the true ones differ from the prior's centre:
    drawn from `vary` where the sample has it, else from the prior (T2 is held to 2 T1). With
    "oracle" the information is Fisher's at the true values; with "measured" noisy samples are
    drawn, the maximum a posteriori fit runs after every shot, and *its own* standard deviation
    decides when the measurement is over. The map of the magnet is known.

    ## Starting state
    Equilibrium. Nothing is waited for.

    ## Episode end
    Terminated when the target is met; the time counted ends inside the window where that happens
    ("measured": after the train) and has no trailing wait. Truncated after `horizon` shots, or
    `task.max_time` times the bound.

    ## Arguments
    `sample` ("random"; a preset, a TOML path or a `Sample`), `horizon` (64), `te` (4 ms), `eps`,
    `eps1`, `information` (those of the sample), `observation` ("oracle" for known, "measured" for
    marginal), `reward` ("shaped"), `most_pulses` (400).

    ## Metrics
    `measurement_time` (s; where the target was not met, extrapolated: the rest goes as well against
    the bound as the shots so far), `time_bound` (s), `time_over_bound` (nothing is below 1),
    `efficiency` (the inverse: nothing is above 1), `target_met`, `share` (of the information
    needed), `shots`; with
    "measured" also `abundance` (true: 1), `predicted_error`, `T1_ratio`, `T2_ratio` (fitted over
    true).

    ## Example
    >>> import gymnasium, palestra
    >>> env = gymnasium.make("palestra/NMRAbundance-v0", sample="oil")
    >>> observation, info = env.reset(seed=0)

    ## References
    The time bound and its derivation: docs/nmr.md. The task is that of "Counting atoms faster",
    ICML 2025 (OpenReview uXYZZv6fiE), whose figures are not used.

    ## Version history
    - v0: first version.
    """

    horizon: int

    def __init__(
        self,
        rows: int,
        *,
        horizon: int = 64,
        sample: str | os.PathLike[str] | Sample = "random",
        te: float = 4e-3,
        eps: float | None = None,
        eps1: float | None = None,
        information: str | None = None,
        observation: str | None = None,
        reward: str = "shaped",
        most_pulses: int = MOST_PULSES,
    ) -> None:
        super().__init__(
            rows,
            horizon=horizon,
            sample=sample,
            te=te,
            eps=eps,
            eps1=eps1,
            information=information,
            observation=observation,
            reward=reward,
            most_pulses=most_pulses,
        )
        size = self.averages.shape[1] * 2 + 13 if self.measured else 8
        limit = OBSERVATION_LIMIT
        self.action_space = spaces.Box(-1.0, 1.0, (5,), np.float32)
        self.observation_space = spaces.Box(-limit, limit, (size,), np.float32)
        self._observation = np.zeros((rows, size), np.float32)

    def advance(self, actions: Array, live: Mask, streams: Streams, step: Step) -> None:
        """One shot."""
        _decode(actions, live, self.action.most_pulses, self.books, self._shots)
        before = self.books["share"].copy()
        self._last[live] = actions[live]
        self._acquire(live, streams)
        duration = self.books["dt"].copy()
        going_on = live & (self.books["met"] == 0.0)
        self._recover(going_on)
        duration[going_on] += self.books["dt"][going_on]
        gained = self.books["share"] - before
        step.reward[live] = (self.shaping * gained - self._cost(duration))[live]
        step.duration[live] = duration[live]
        step.terminated[live] = ~going_on[live]
        step.truncated[live] = (going_on & self._too_late())[live]
        self._look(live)

    def _look(self, rows: Mask) -> None:
        if self.measured:
            observe_measured(
                rows, self._observation, self.books, self.averages, self._last, self.value,
                self.covariance, self.nominal_scale, float(self.sample.task.eps),
            )  # fmt: skip
        else:
            observe_oracle(rows, self._observation, self.books)
