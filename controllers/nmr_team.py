"""Classical policies for the three agents of `NMRTeam`, one a role.

They see what the agents see and keep no memory: a toggle that alternates, as every classical
measurement does, and workers for it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.envs.nmr.measurement import Measurement
from palestra.envs.nmr.team import CHOICES

from .nmr_shots import FULL_RECOVERY, INVERSION, NINETY, Known, ShotSequence

Array = npt.NDArray[Any]

ORACLE, MEASURED = 8, 29  # numbers of the observation of `NMRAbundance` at the head of the team's
_MISSING, _ERROR = 6, 28  # information still needed (oracle), predicted error over eps (measured)
_LAST_TRAIN = {ORACLE: 10, MEASURED: 17}  # where the last action's train stands, scaled


def _head(observation: Array) -> int:
    return MEASURED if observation.shape[1] > MEASURED else ORACLE


class Alternate:
    """Align, relax, align, relax, ... and stop when the target is met."""

    def predict(
        self,
        observation: Array,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """Choices (B,)."""
        o = np.asarray(observation)
        met = o[:, _ERROR] <= 1.0 if _head(o) == MEASURED else o[:, _MISSING] <= 0.0
        recovered = o[:, -1] > 0.5
        turn = np.where(recovered, CHOICES.index("align"), CHOICES.index("relax"))
        return np.where(met, CHOICES.index("stop"), turn), state


class FlipBack:
    """Relax by a flip back of half the train's angle and no wait: it ends a balanced train."""

    def predict(
        self,
        observation: Array,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """Actions (B, 2)."""
        o = np.asarray(observation)
        train = math.pi * (o[:, _LAST_TRAIN[_head(o)]] + 1.0) / 2.0
        back = train / 2.0 / math.pi
        return np.stack([back, np.full_like(back, -1.0)], axis=1).astype(np.float32), state


class _Worker(ShotSequence):
    """A role of one classical shot.

    Args:
        env: the team, or what stands for one of its agents (with the team as `team`).
    """

    part = slice(None)

    def __init__(self, env: Any = None) -> None:
        team = getattr(env, "team", env)
        super().__init__(team if isinstance(team, Measurement) else None)
        del self.observation_space, self.action_space  # those of the role, which are not these

    def predict(
        self,
        observation: Array,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """Actions of the role."""
        o = np.asarray(observation)
        shots, _ = super().predict(o[:, : _head(o)])
        return shots[:, self.part], state


class Echoes(_Worker):
    """Align: 90 degrees and echoes for 1.5 T2."""

    part = slice(0, 3)

    def shot(self, known: Known, count: Array) -> tuple[Any, Any, Any, Any, Any]:
        """See the class."""
        return NINETY, INVERSION, self._pulses(1.5 * known.T2), 0.0, 0.0


class Patience(_Worker):
    """Relax: wait 4.5 (T1 + 1 standard deviation)."""

    part = slice(3, 5)

    def shot(self, known: Known, count: Array) -> tuple[Any, Any, Any, Any, Any]:
        """See the class."""
        wait = np.minimum(4.5 * known.T1 * (1 + known.T1_sd), FULL_RECOVERY * known.reference)
        return NINETY, INVERSION, 1, 0.0, wait
