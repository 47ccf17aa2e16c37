"""Count atoms as a team: one agent aligns the spins, one brings them back, one says whose turn."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from gymnasium import spaces

from palestra.batch import Mask, Options, Step
from palestra.kernels import kernel
from palestra.streams import Streams

from .abundance import observe_measured, observe_oracle
from .bloch import Array
from .measurement import OBSERVATION_LIMIT, Measurement
from .sample import Sample
from .shots import MOST_PULSES, decode_shot

AGENTS = ("toggle", "align", "relax")
TOGGLE, ALIGN, RELAX = range(3)  # whose turn it is
CHOICES = ("align", "relax", "stop")
AT_EQUILIBRIUM = 0.01  # |1 - Mz| that needs no more waiting


@kernel(allocates=False)
def _write_align(rows, last, most_pulses, books, shots, decoded):  # type: ignore[no-untyped-def]
    """The next shot of each row: excitation and train, nothing after it yet."""
    for row in range(rows.shape[0]):
        if rows[row]:
            decode_shot(last[row], books[row].reference, most_pulses, decoded)
            shot = shots[row, int(books[row].shots)]
            for k in range(3):
                shot[k] = decoded[k]
            shot[3], shot[4] = 0.0, -1.0


@kernel(allocates=False)
def _write_relax(rows, last, most_pulses, books, shots, recovered, decoded):  # type: ignore[no-untyped-def]
    """Flip back and wait of the last shot; after one that has them, a shot of nothing else."""
    for row in range(rows.shape[0]):
        if rows[row]:
            book = books[row]
            decode_shot(last[row], book.reference, most_pulses, decoded)
            if recovered[row]:
                for k in range(3):
                    shots[row, int(book.shots), k] = 0.0
                book.shots += 1.0
            shot = shots[row, int(book.shots) - 1]
            shot[3], shot[4] = decoded[3], decoded[4]


@kernel(allocates=False)
def _still_to_wait(rows, books, out):  # type: ignore[no-untyped-def]
    """T1 ln(|1 - Mz| / tol): how long waiting alone would take, s."""
    for row in range(rows.shape[0]):
        if rows[row]:
            away = max(abs(1.0 - books[row].Mz), AT_EQUILIBRIUM)
            out[row] = books[row].T1 * math.log(away / AT_EQUILIBRIUM)


@kernel(allocates=False)
def _observe_more(rows, observation, first, books, last, recovered, oracle):  # type: ignore[no-untyped-def]
    """What the team sees beyond the observation of `NMRAbundance`."""
    for row in range(rows.shape[0]):
        if rows[row]:
            o, at = observation[row], first
            if oracle:
                o[at] = books[row].Mxy
                for k in range(last.shape[1]):
                    o[at + 1 + k] = last[row, k]
                at += 1 + last.shape[1]
            o[at] = 1.0 if recovered[row] else 0.0


class NMRTeam(Measurement):
    r"""Three agents measure how much of an element there is, in the least time.

    ## Description
    The measurement of `NMRAbundance` in three roles, as in the abstract of "Counting atoms faster":
    *align* excites and acquires, *relax* brings the spins back towards equilibrium, *toggle* says
    which of them acts, or that the measurement is over. Turns: toggle, then the agent it chose,
    then toggle again. An align and the relax after it make one shot of `NMRAbundance`.

    ## Agents and actions
    | Agent | Action space | Meaning |
    |---|---|---|
    | toggle | `Discrete(3)` | 0 align, 1 relax, 2 stop |
    | align | `Box(-1, 1, (3,), float32)` | excitation, flip angle of the train, pulses |
    | relax | `Box(-1, 1, (2,), float32)` | flip back, wait |

    Scaled as in `NMRAbundance`. An align after an align excites what the train has left; a relax
    after a relax flips and waits once more.

    ## Observation space
    The same for every agent, `Box(-10, 10, (n,), float32)`: the observation of `NMRAbundance`
    (8 numbers with "oracle", 29 with "measured"), then with "oracle" the mean length of Mxy and the
    last actions of align and relax (6), and at last whether the last act was a relax.

    ## Reward
    To each: -p dt / time bound, p as in `NMRAbundance`. To align and toggle 4 times the share of
    the information that an align gained. To relax, at the same price, how much less time waiting
    alone would still take after its act, T1 ln(|1 - Mz| / 0.01), than after its last one; the end
    of the episode settles the rest, so it sums to 0 and changes no optimum. (None of these with
    "time".) A stop before the target is met costs toggle 1 and the share that is missing.

    ## Starting state
    Equilibrium, toggle's turn.

    ## Episode end
    Terminated when toggle stops. The clock stops inside the window where the target is met
    ("measured": after the train); who goes on then pays for the rest of the train too. Truncated
    after `horizon` acts (three a shot), or `task.max_time` times the bound.

    ## Arguments
    As `NMRAbundance`; `horizon` (256).

    ## Metrics
    As `NMRAbundance`.

    ## Example
    >>> import palestra
    >>> env = palestra.make("NMRTeam", "aec")
    >>> env.reset(seed=0)

    ## References
    The roles are those of "Counting atoms faster", ICML 2025 (OpenReview uXYZZv6fiE), whose figures
    are not used; spaces and rewards are ours. The time bound: docs/nmr.md.

    ## Version history
    - v0: first version.
    """

    agents = AGENTS

    def __init__(
        self,
        rows: int,
        *,
        horizon: int = 256,
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
        self._base = 29 if self.measured else 8
        size = self._base + (1 if self.measured else 7)
        box = spaces.Box(-OBSERVATION_LIMIT, OBSERVATION_LIMIT, (size,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(AGENTS, box))
        self.action_space = spaces.Dict(
            {
                "toggle": spaces.Discrete(len(CHOICES)),
                "align": spaces.Box(-1.0, 1.0, (3,), np.float32),
                "relax": spaces.Box(-1.0, 1.0, (2,), np.float32),
            }
        )
        self._observation = np.zeros((rows, size), np.float32)
        self._turn = np.zeros(rows, np.int64)
        self._recovered = np.ones(rows, np.bool_)
        self._decoded = np.zeros(5)
        self._needs = np.zeros(rows)

    def acting(self) -> Array:
        """Whose turn it is, bool (B, 3)."""
        return np.asarray(self._turn[:, np.newaxis] == np.arange(len(AGENTS)))

    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Another sample and magnet, at equilibrium; toggle's turn."""
        self._turn[rows] = TOGGLE
        self._recovered[rows] = True
        self._needs[rows] = 0.0
        super().begin(rows, streams, options)

    def advance(self, actions: Any, live: Mask, streams: Streams, step: Step) -> None:
        """One act of the agent whose turn it is."""
        aligns, relaxes = live & (self._turn == ALIGN), live & (self._turn == RELAX)
        chooses = live & (self._turn == TOGGLE)
        duration = np.zeros(self.rows)
        if aligns.any():
            gained = self._align(aligns, actions["align"], streams)
            for agent in (ALIGN, TOGGLE):
                step.reward[aligns, agent] += self.shaping * gained[aligns]
        if relaxes.any():
            nearer = self._relax(relaxes, actions["relax"])
            if self.shaping:
                step.reward[relaxes, RELAX] += nearer[relaxes]
        acted = aligns | relaxes
        duration[acted] = self.books["dt"][acted]
        stops = chooses & (actions["toggle"] == CHOICES.index("stop"))
        early = stops & (self.books["met"] == 0.0)
        step.reward[early, TOGGLE] -= 2.0 - self.books["share"][early]
        step.reward[live] -= self._cost(duration)[live, np.newaxis]
        step.duration[live] = duration[live]
        step.terminated[stops] = True
        step.truncated[live] = (self._too_late() & ~stops)[live]
        if self.shaping:
            over = step.terminated[:, RELAX] | step.truncated
            if self.horizon is not None:
                over |= live & (streams.step >= self.horizon)
            step.reward[over, RELAX] += self._cost(self._needs)[over]
        self._turn[chooses] = 1 + actions["toggle"][chooses]
        self._turn[acted | stops] = TOGGLE
        self._look(live)

    def _align(self, rows: Mask, actions: Array, streams: Streams) -> Array:
        """Excite and acquire; returns the share of information gained, (B,)."""
        before = self.books["share"].copy()
        self._last[rows, :3] = actions[rows]
        most = self.action.most_pulses
        _write_align(rows, self._last, most, self.books, self._shots, self._decoded)
        self._acquire(rows, streams)
        self._recovered[rows] = False
        return np.asarray(self.books["share"] - before)

    def _relax(self, rows: Mask, actions: Array) -> Array:
        """Flip back and wait; returns how much nearer equilibrium is than after the last, (B,)."""
        self._last[rows, 3:] = actions[rows]
        most = self.action.most_pulses
        _write_relax(
            rows, self._last, most, self.books, self._shots, self._recovered, self._decoded
        )
        self._recover(rows)
        self._recovered[rows] = True
        before = self._needs.copy()
        _still_to_wait(rows, self.books, self._needs)
        return self._cost(before - self._needs)

    def observe(self, rows: Mask | None, streams: Streams, out: Any) -> None:
        """Write what every agent sees; see the class."""
        for agent in AGENTS:
            super().observe(rows, streams, out[agent])

    def _look(self, rows: Mask) -> None:
        seen = self._observation[:, : self._base]
        if self.measured:
            observe_measured(
                rows, seen, self.books, self.averages, self._last, self.value, self.covariance,
                self.nominal_scale, float(self.sample.task.eps),
            )  # fmt: skip
        else:
            observe_oracle(rows, seen, self.books)
        _observe_more(
            rows, self._observation, self._base, self.books, self._last, self._recovered,
            not self.measured,
        )  # fmt: skip

    def _state(self) -> dict[str, Array]:
        return {
            **super()._state(),
            "turn": self._turn,
            "recovered": self._recovered,
            "needs": self._needs,
        }

    def _caption(self, row: int) -> str:
        return f"{super()._caption(row)}; {AGENTS[self._turn[row]]}'s turn"
