"""Two roles of pulse control as environments: bring spins back to equilibrium, and align them.

Each step is one event: a pulse of flip angle theta and phase phi, then a delay tau.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from palestra.batch import Mask, Options, Step
from palestra.kernels import kernel
from palestra.streams import Streams, uniform

from . import checks
from .bloch import (
    SPLIT_TOLERANCE,
    decay_time,
    delay_row,
    equilibrium,
    finite_pulse_row,
    hard_pulse_row,
    species_averages,
    weighted_length,
)
from .events import Event, EventList
from .limits import phase_on_grid
from .sample import Sample
from .spins import Observed

Array = npt.NDArray[Any]

TIME_SCALE = 0.02  # s; the observation gives times since excitation in units of 20 ms
OBSERVATION_LIMIT = 10.0
SMALLEST_FLIP = 1e-6  # rad, of a largest flip angle
SMALLEST_TOL = 1e-9  # of equilibrium; rounding stands at 1e-16
LONGEST_HORIZON = 1_000_000  # steps: each keeps its event

POLARISATION, FLIP = (-1.0, 1.0), (0.0, 2 * math.pi)  # of a start state

# Draws of step 0 beyond those of the sample
DRAW_TAU0, DRAW_THETA0, DRAW_POLARISATION = 16, 17, 18


@dataclass(frozen=True)
class PulseAction:
    """How an action in [-1, 1]^3 becomes an event, and back.

        theta = theta_max (a0 + 1) / 2,   phi = pi a1,
        tau = tau_min (tau_max / tau_min)^((a2 + 1) / 2)

    Attributes:
        theta_max: largest flip angle, rad; 1e-6 to 2 pi.
        tau_min: shortest delay, s; from 1 ns.
        tau_max: longest delay, s; above tau_min, to 1e6 s.
    """

    theta_max: float = math.pi
    tau_min: float = 1e-4
    tau_max: float = 4e-2

    def __post_init__(self) -> None:
        checks.without_numpy_scalars(self)
        checks.number("theta_max", self.theta_max, (SMALLEST_FLIP, 2 * math.pi), "rad")
        checks.number("tau_min", self.tau_min, checks.DELAY, "s")
        checks.number("tau_max", self.tau_max, checks.DELAY, "s")
        if not self.tau_min < self.tau_max:
            raise ValueError(
                f"tau_max: got {self.tau_max}, allowed above tau_min = {self.tau_min} s"
            )

    def encode(self, theta: Any, phi: Any, tau: Any) -> Array:
        """Actions (..., 3), float32, of flip angles, phases and delays; out of range is clipped."""
        a0 = 2.0 * np.asarray(theta, np.float64) / self.theta_max - 1.0
        a1 = np.angle(np.exp(1j * np.asarray(phi, np.float64))) / math.pi
        shortest = np.maximum(np.asarray(tau, np.float64), self.tau_min)
        a2 = 2.0 * np.log(shortest / self.tau_min) / math.log(self.tau_max / self.tau_min) - 1.0
        action: Array = np.stack(np.broadcast_arrays(a0, a1, a2), axis=-1)
        return action.clip(-1.0, 1.0).astype(np.float32)

    def decode(self, action: Any) -> tuple[Array, Array, Array]:
        """Flip angles (rad), phases (rad) and delays (s) of actions (..., 3)."""
        a = np.asarray(action, np.float64)
        theta = self.theta_max * (a[..., 0] + 1) / 2
        tau = self.tau_min * (self.tau_max / self.tau_min) ** ((a[..., 2] + 1) / 2)
        return theta, math.pi * a[..., 1], tau


# ------------------------------------------------------------------ what both environments share

_COMMON = [
    "elapsed",  # s since the episode began
    "since",  # s since the excitation that came before it
    "theta",  # last flip angle, rad
    "tau",  # last delay, s
    "steps",
    "Mx",
    "My",  # averages over isochromats, as the coil receives them
    "Mz",
    "Mxy",  # average of |Mxy|, which dephasing does not change
]


@kernel(allocates=False)
def _event_row(  # type: ignore[no-untyped-def]
    m,
    row,
    offset_hz,
    b1,
    R1,
    R2,
    blocks,
    action,
    theta_max,
    tau_min,
    tau_max,
    nu1,
    phase_step,
    events,
    log,
):
    """One action: pulse, delay, and their entry in the log. Returns the duration in seconds.

    A nutation rate nu1 of 0 means hard pulses. Phases are rounded to multiples of `phase_step`.
    """
    theta = theta_max * (np.float64(action[0]) + 1.0) / 2.0
    phi = phase_on_grid(math.pi * np.float64(action[1]), phase_step)
    tau = tau_min * (tau_max / tau_min) ** ((np.float64(action[2]) + 1.0) / 2.0)
    pulse = 0.0
    if theta > 0.0:
        if nu1 > 0.0:
            pulse = theta / (2.0 * math.pi * nu1)
            finite_pulse_row(
                m, row, offset_hz, b1, R1, R2, blocks, theta, phi, pulse, SPLIT_TOLERANCE
            )
        else:
            hard_pulse_row(m, row, b1, theta, phi)
    delay_row(m, row, offset_hz, R1, R2, blocks, tau)
    step = int(log.steps)
    if step < events.shape[1]:
        events[row, step, 0] = theta
        events[row, step, 1] = phi
        events[row, step, 2] = pulse
        events[row, step, 3] = tau
    log.theta = theta
    log.tau = tau
    log.steps += 1.0
    log.elapsed += pulse + tau
    log.since += pulse + tau
    return pulse + tau


@kernel(reassociate_sums=True, allocates=False)
def _received(m, row, receive):  # type: ignore[no-untyped-def]
    """Real and imaginary part of the signal of one row."""
    mx, my, r = m[row, 0], m[row, 1], receive[row]
    x, y = 0.0, 0.0
    for i in range(mx.size):
        x += r[i] * mx[i]
        y += r[i] * my[i]
    return x, y


@kernel(allocates=False)
def _longest(rates):  # type: ignore[no-untyped-def]
    """The longest of some relaxation times, given their rates."""
    slowest = math.inf
    for rate in rates:
        slowest = min(slowest, rate)
    return 1.0 / slowest


@kernel(allocates=False)
def _look(m, row, receive, weight, blocks, mz, mxy, log):  # type: ignore[no-untyped-def]
    """Averages of one row into the log, and per species into mz, mxy (B, S)."""
    log.Mx, log.My = _received(m, row, receive)
    species_averages(m, row, weight, blocks, mz, mxy)
    log.Mz, log.Mxy = 0.0, 0.0
    for species in range(mz.shape[1]):
        log.Mz += mz[row, species]
        log.Mxy += mxy[row, species]


@kernel(allocates=False)
def _observe_row(observation, row, log, theta_max, tau_min, tau_max, horizon):  # type: ignore[no-untyped-def]
    observation[row, 0] = log.Mx
    observation[row, 1] = log.My
    observation[row, 2] = log.Mz
    observation[row, 3] = log.Mxy
    observation[row, 4] = log.theta / math.pi
    observation[row, 5] = 2.0 * math.log(log.tau / tau_min) / math.log(tau_max / tau_min) - 1.0
    observation[row, 6] = log.since / TIME_SCALE
    observation[row, 7] = log.steps / horizon
    for k in range(8):
        observation[row, k] = min(max(observation[row, k], -OBSERVATION_LIMIT), OBSERVATION_LIMIT)


@kernel(allocates=False)
def _excite(  # type: ignore[no-untyped-def]
    rows, m, offset_hz, b1, R1, R2, blocks, keys, episodes, polarisation, theta0, tau0,
    polarisation_span, theta0_span, tau0_span, logs,
):  # fmt: skip
    """Start states: partly polarised, an ideal pulse of phase 0, free precession. NaN: draw it."""
    for row in range(rows.shape[0]):
        if not rows[row]:
            continue
        low, high = polarisation_span
        p = polarisation[row]
        if math.isnan(p):
            p = low + (high - low) * uniform(keys[row], episodes[row], 0, DRAW_POLARISATION)
        low, high = theta0_span
        theta = theta0[row]
        if math.isnan(theta):
            theta = low + (high - low) * uniform(keys[row], episodes[row], 0, DRAW_THETA0)
        low, high = tau0_span
        tau = tau0[row]
        if math.isnan(tau):
            tau = low + (high - low) * uniform(keys[row], episodes[row], 0, DRAW_TAU0)
        for i in range(m.shape[2]):
            m[row, 0, i], m[row, 1, i], m[row, 2, i] = 0.0, 0.0, p
        hard_pulse_row(m, row, b1, theta, 0.0)
        delay_row(m, row, offset_hz, R1, R2, blocks, tau)
        log = logs[row]
        log.elapsed, log.steps = 0.0, 0.0
        log.since, log.theta, log.tau = tau, theta, tau


class PulseEnv(Observed):
    """What both environments share: sample, state, actions, observations, start states.

    Attributes:
        action: how actions become events.
    """

    option_names: ClassVar[tuple[str, ...]] = ("polarisation", "theta0", "tau0", "magnetisation")
    _own_fields: ClassVar[list[str]] = []
    horizon: int

    def __init__(
        self,
        rows: int,
        *,
        horizon: int,
        sample: str | os.PathLike[str] | Sample,
        polarisation: Sequence[float],
        theta0: Sequence[float],
        tau0: Sequence[float],
        theta_max: float,
        tau_min: float,
        tau_max: float,
    ) -> None:
        checks.integer("horizon", horizon, 1, LONGEST_HORIZON)
        super().__init__(rows, horizon=horizon, sample=sample)
        horizon = int(horizon)
        self.action = PulseAction(theta_max, tau_min, tau_max)
        self._tau_limits = (0.0, checks.beyond_turns(self.sample.reach_hz))
        checks.number("tau_max", tau_max, self._tau_limits, self._why_tau_ends)
        self._polarisation_span = _span("polarisation", polarisation, POLARISATION)
        self._theta0_span = _span("theta0", theta0, FLIP, "rad")
        self._tau0_span = _span("tau0", tau0, self._tau_limits, self._why_tau_ends)
        self._steps = horizon  # scale of the observed step, even where the core shortens episodes
        self.sample.warn_of_revival(self._tau0_span[1] + horizon * tau_max)

        self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.observation_space = spaces.Box(-OBSERVATION_LIMIT, OBSERVATION_LIMIT, (8,), np.float32)
        self.m = equilibrium(self.ensemble)
        self._logs = np.zeros(rows, [(name, np.float64) for name in _COMMON + self._own_fields])
        self._logs["tau"] = tau_min
        self._observation = np.zeros((rows, 8), np.float32)
        self._events = np.zeros((rows, horizon, 4))  # theta, phi, pulse, tau
        species = (rows, len(self.sample.species))
        self._mz, self._mxy = np.zeros(species), np.zeros(species)
        instrument = self.sample.instrument
        finite = instrument.pulse_model == "finite"
        self._nu1 = float(instrument.nu1_max_hz) if finite else 0.0
        self._phase_step = math.radians(instrument.phase_step_deg)
        self._check_duty()

    def _check_duty(self) -> None:
        """Refuse limits within which the transmitter could be on for too long."""
        instrument, limits = self.sample.instrument, self.action
        on = limits.theta_max / (2 * math.pi * instrument.nu1_max_hz)
        period = limits.tau_min + (on if self._nu1 else 0.0)
        window = instrument.duty_window
        share = max(on / max(period, on), min(on, window) / window)
        if instrument.duty_max < 1.0 and share > instrument.duty_max:
            raise ValueError(
                f"tau_min: got {limits.tau_min} s between pulses of {on:.3g} s, which keeps the "
                f"transmitter on for a share of {share:.3g}, allowed up to instrument.duty_max = "
                f"{instrument.duty_max:g}: a longer tau_min, or a smaller theta_max"
            )

    @property
    def tau0_span(self) -> tuple[float, float]:
        """Between which times the start state has precessed, s."""
        return self._tau0_span

    @property
    def _why_tau_ends(self) -> str:
        """Unit of a delay, and what bounds it."""
        if self._tau_limits[1] == checks.DELAY[1]:
            return "s"
        return f"s with offsets of up to {self.sample.reach_hz:.3g} Hz"

    def _start(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Draw the sample and the start state of the masked rows."""
        self.sample.draw(self.ensemble, rows, streams.dynamics, streams.episode)
        given = {name: np.full(self.rows, np.nan) for name in ("polarisation", "theta0", "tau0")}
        states: dict[int, Array] = {}
        if options is not None:
            for row in np.flatnonzero(rows).tolist():
                self._read_options(row, options[row], given, states)
        e = self.ensemble
        _excite(
            rows,
            self.m,
            e.offset_hz,
            e.b1,
            e.R1,
            e.R2,
            e.blocks,
            streams.dynamics,
            streams.episode,
            given["polarisation"],
            given["theta0"],
            given["tau0"],
            self._polarisation_span,
            self._theta0_span,
            self._tau0_span,
            self._logs,
        )
        for row, start in states.items():
            self.m[row] = start
        self._m0[rows] = self.m[rows]

    def _read_options(
        self,
        row: int,
        options: Mapping[str, Any],
        given: dict[str, Array],
        states: dict[int, Array],
    ) -> None:
        limits = {
            "polarisation": (POLARISATION, ""),
            "theta0": (FLIP, "rad"),
            "tau0": (self._tau_limits, self._why_tau_ends),
        }
        for name, (span, unit) in limits.items():
            if name in options:
                checks.number(f"options[{name!r}]", options[name], span, unit)
                given[name][row] = options[name]
        if "magnetisation" in options:
            shape = self.m.shape[1:]
            state = _numbers("options['magnetisation']", options["magnetisation"])
            if state.shape not in (shape, (3,)):
                raise ValueError(
                    f"options['magnetisation']: got shape {state.shape}, allowed {shape} or (3,)"
                )
            length = np.linalg.norm(state, axis=0)
            if not (length <= 1.0 + 1e-9).all():
                raise ValueError(
                    "options['magnetisation']: got vectors longer than 1 or not finite (of length "
                    f"{length.max():g}), allowed lengths of 0 to 1"
                )
            states[row] = (
                state if state.shape == shape else np.repeat(state[:, np.newaxis], shape[1], 1)
            )

    def events(self, row: int) -> EventList:
        """The events of a row's episode so far, without the excitation that came before it."""
        return EventList(
            tuple(
                Event(theta=theta, phi=phi, t_pulse=pulse, tau=tau)
                for theta, phi, pulse, tau in self._events[
                    row, : int(self._logs["steps"][row])
                ].tolist()
            )
        )

    def _caption(self, row: int) -> str:
        """What the picture says below its title."""
        log = self._logs[row]
        return f"step {log['steps']:.0f} of {self.horizon}, {1e3 * log['elapsed']:.1f} ms"

    def _state(self) -> dict[str, Array]:
        return {
            **super()._state(),
            "m": self.m,
            "logs": self._logs.view(np.float64).reshape(self.rows, -1),
            "observation": self._observation,
            "events": self._events,
        }


def _span(
    name: str, span: Sequence[float], limits: tuple[float, float], unit: str = ""
) -> tuple[float, float]:
    """A range (low, high) within limits."""
    checks.span(name, span, limits, unit)
    return float(span[0]), float(span[1])


def _numbers(name: str, value: Any) -> Array:
    """An array of real numbers, float64."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError, RecursionError):  # ragged rows
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name}: got {checks.shown(value)}, allowed an array of real numbers")
    return array.astype(np.float64)


# ------------------------------------------------------------------------ back to equilibrium


@kernel(allocates=False)
def _remaining(row, R1, R2, fraction, mz, mxy, tol, off):  # type: ignore[no-untyped-def]
    """Seconds of waiting until both the deviation of Mz and |Mxy| are within tol.

    Species count without cancelling: sum_j |f_j - Mz_j| exp(-R1_j t) <= tol, and likewise
    sum_j |Mxy|_j exp(-R2_j t) <= tol. Lengths, so that no hidden coherence counts as gone.
    """
    for species in range(fraction.size):
        off[species] = abs(fraction[species] - mz[row, species])
    longitudinal = decay_time(off, R1[row], tol)
    return max(longitudinal, decay_time(mxy[row], R2[row], tol))


@kernel(allocates=False)
def _relax_begin(  # type: ignore[no-untyped-def]
    rows, m, R1, R2, receive, weight, blocks, fraction, mz, mxy, tol, off, logs,
    observation, theta_max, tau_min, tau_max, horizon,
):  # fmt: skip
    for row in range(rows.shape[0]):
        if not rows[row]:
            continue
        log = logs[row]
        _look(m, row, receive, weight, blocks, mz, mxy, log)
        log.remaining = _remaining(row, R1, R2, fraction, mz, mxy, tol, off)
        log.waiting = log.remaining
        for species in range(fraction.size):
            length = weighted_length(m, row, weight, blocks[species], blocks[species + 1])
            off[species] = fraction[species] - length
        log.floor = decay_time(off, R1[row], tol)
        log.T1 = _longest(R1[row])
        _observe_row(observation, row, log, theta_max, tau_min, tau_max, horizon)


@kernel(allocates=False)
def _relax_advance(  # type: ignore[no-untyped-def]
    actions, live, m, offset_hz, b1, R1, R2, receive, weight, blocks, fraction, mz, mxy,
    tol, off, logs, observation, events, theta_max, tau_min, tau_max, nu1,
    phase_step, horizon, reward, terminated, duration,
):  # fmt: skip
    for row in range(live.shape[0]):
        if not live[row]:
            continue
        log = logs[row]
        dt = _event_row(
            m, row, offset_hz, b1, R1, R2, blocks, actions[row], theta_max, tau_min, tau_max, nu1,
            phase_step, events, log,
        )  # fmt: skip
        _look(m, row, receive, weight, blocks, mz, mxy, log)
        before = log.remaining
        log.remaining = _remaining(row, R1, R2, fraction, mz, mxy, tol, off)
        reward[row] = (before - log.remaining - dt) / log.T1
        terminated[row] = log.remaining == 0.0
        duration[row] = dt
        _observe_row(observation, row, log, theta_max, tau_min, tau_max, horizon)


class NMRRelax(PulseEnv):
    r"""Bring excited spins back to thermal equilibrium, faster than waiting does.

    ## Description
    A sample has been excited by a pulse of phase 0 (so the magnetisation lies along -y) and has
    precessed and relaxed for a time tau0 in an inhomogeneous field. Pulses cannot speed recovery
    up, but they can save what is left: refocus the transverse magnetisation and flip it back to
    +z (driven equilibrium). Every episode has another magnet: isochromat offsets and transmit
    field are drawn anew.

    ## Action space
    `Box(-1, 1, (3,), float32)`: one pulse, then one delay.

    | Num | Action | Physical value |
    |---|---|---|
    | 0 | flip angle theta | theta_max (a + 1) / 2; 0 to 180 degrees |
    | 1 | phase phi | 180 degrees times a |
    | 2 | delay tau | logarithmic, tau_min to tau_max; 0.1 ms to 40 ms |

    ## Observation space
    `Box(-10, 10, (8,), float32)`, magnetisation in units of M0.

    | Num | Observation | Unit | Range |
    |---|---|---|---|
    | 0 | mean Mx, as received | M0 | -1 to 1 |
    | 1 | mean My, as received | M0 | -1 to 1 |
    | 2 | mean Mz | M0 | -1 to 1 |
    | 3 | mean length of Mxy | M0 | 0 to 1 |
    | 4 | last flip angle | 180 degrees | 0 to 2 |
    | 5 | last delay | scaled as the action | about -1 to 1 |
    | 6 | time since the excitation | 20 ms | 0 to 10 |
    | 7 | step | horizon | 0 to 1 |

    ## Reward
    Let W be the time that waiting would still take until both |1 - Mz| and the mean length of Mxy
    are within `tol` (species do not cancel). A step that lasts dt earns
    (W before - W after - dt) / T1, so the undiscounted return is exactly the time saved against
    waiting, in units of the (longest) T1. Use gamma = 1: steps differ in length (`info["dt"]`).

    ## Starting state
    Equilibrium, an ideal pulse of 90 degrees (times the local transmit field) and phase 0, then
    free precession for tau0, uniform on 2 to 20 ms.

    ## Episode end
    Terminated when W is 0. Truncated after `horizon` steps; W then counts as time to equilibrium.

    ## Arguments
    `sample` ("oil": T1 0.6 s, T2 0.3 s, 50 Hz; a preset, a TOML path or a `Sample`), `tol` (0.01),
    `horizon` (4), `theta0`, `tau0`, `polarisation` (ranges of the start), `theta_max`, `tau_min`,
    `tau_max`.

    ## Options of reset
    `tau0` (s), `theta0` (rad), `polarisation` (before the excitation, -1 to 1), `magnetisation`
    ((3,) or (3, N), replaces the start state).

    ## Metrics
    `time_to_equilibrium` (s; sequence and remaining wait), `waiting_time` (s; doing nothing),
    `time_saved` (s; their difference: a ratio is heavy-tailed, take it of the means),
    `time_floor` (s; no pulses can be faster: lengths kept, turned to +z at once), `sequence_time`
    (s), `Mz` and `Mxy` at the end of the sequence.

    ## Anchors
    On `oil`: waiting 2.75 s, driven equilibrium 1.18 s, floor 0.68 s.

    ## Example
    >>> import gymnasium, palestra
    >>> env = gymnasium.make("palestra/NMRRelax-v0", sample="oil")
    >>> observation, info = env.reset(seed=0, options={"tau0": 0.01})

    ## References
    Energy balance and recovery bound: growth of |M| is fastest along +z, so from length r0 to r1
    no sequence takes less than T1 ln((1 - r0) / (1 - r1)). Driven equilibrium: Becker, Ferretti,
    Farrar, J. Am. Chem. Soc. 91 (1969) 7784. The role "force relaxation to equilibrium" is one of
    three in "Counting atoms faster", ICML 2025 (OpenReview uXYZZv6fiE), whose figures are not used.

    ## Version history
    - v0: first version.
    """

    horizon: int
    _own_fields: ClassVar[list[str]] = ["remaining", "waiting", "floor", "T1"]

    def __init__(
        self,
        rows: int,
        *,
        horizon: int = 4,
        sample: str | os.PathLike[str] | Sample = "oil",
        tol: float = 0.01,
        polarisation: Sequence[float] = (1.0, 1.0),
        theta0: Sequence[float] = (math.pi / 2, math.pi / 2),
        tau0: Sequence[float] = (2e-3, 20e-3),
        theta_max: float = math.pi,
        tau_min: float = 1e-4,
        tau_max: float = 4e-2,
    ) -> None:
        super().__init__(
            rows,
            horizon=horizon,
            sample=sample,
            polarisation=polarisation,
            theta0=theta0,
            tau0=tau0,
            theta_max=theta_max,
            tau_min=tau_min,
            tau_max=tau_max,
        )
        checks.number("tol", tol, (SMALLEST_TOL, math.nextafter(1.0, 0.0)), "(below 1)")
        self.tol = float(tol)
        self._fraction = np.array([s.fraction for s in self.sample.species], np.float64)
        self._off = np.zeros_like(self._fraction)

    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Excite and let dephase."""
        self._start(rows, streams, options)
        e, a = self.ensemble, self.action
        _relax_begin(
            rows, self.m, e.R1, e.R2, e.receive, e.weight, e.blocks, self._fraction, self._mz,
            self._mxy, self.tol, self._off, self._logs, self._observation,
            a.theta_max, a.tau_min, a.tau_max, self._steps,
        )  # fmt: skip

    def advance(self, actions: Array, live: Mask, streams: Streams, step: Step) -> None:
        """One pulse and delay."""
        e, a = self.ensemble, self.action
        _relax_advance(
            actions, live, self.m, e.offset_hz, e.b1, e.R1, e.R2, e.receive, e.weight, e.blocks,
            self._fraction, self._mz, self._mxy, self.tol, self._off, self._logs,
            self._observation, self._events, a.theta_max, a.tau_min, a.tau_max, self._nu1,
            self._phase_step, self._steps, step.reward, step.terminated, step.duration,
        )  # fmt: skip

    def metrics(self) -> dict[str, Array]:
        """See the class."""
        log = self._logs
        achieved = log["elapsed"] + log["remaining"]
        return {
            "time_to_equilibrium": achieved,
            "waiting_time": log["waiting"].copy(),
            "time_saved": log["waiting"] - achieved,
            "time_floor": log["floor"].copy(),
            "sequence_time": log["elapsed"].copy(),
            "Mz": log["Mz"].copy(),
            "Mxy": log["Mxy"].copy(),
        }

    def _caption(self, row: int) -> str:
        log = self._logs[row]
        return (
            f"{super()._caption(row)}; within {100 * self.tol:g} % of equilibrium after "
            f"{log['remaining']:.2f} s more"
        )


# -------------------------------------------------------------------------------- alignment

ALIGNED = 0.98  # share of the length bound that counts as aligned


@kernel(allocates=False)
def _align_begin(  # type: ignore[no-untyped-def]
    rows, m, R1, receive, weight, blocks, mz, mxy, logs, observation, theta_max, tau_min,
    tau_max, horizon,
):  # fmt: skip
    for row in range(rows.shape[0]):
        if not rows[row]:
            continue
        log = logs[row]
        _look(m, row, receive, weight, blocks, mz, mxy, log)
        log.signal = math.hypot(log.Mx, log.My)
        log.length = weighted_length(m, row, receive[row], 0, m.shape[2])
        log.length0 = log.length
        log.T1 = _longest(R1[row])
        _observe_row(observation, row, log, theta_max, tau_min, tau_max, horizon)


@kernel(allocates=False)
def _align_advance(  # type: ignore[no-untyped-def]
    actions, live, m, offset_hz, b1, R1, R2, receive, weight, blocks, mz, mxy, logs,
    observation, events, theta_max, tau_min, tau_max, nu1, phase_step, horizon, reward, terminated,
    duration,
):  # fmt: skip
    for row in range(live.shape[0]):
        if not live[row]:
            continue
        log = logs[row]
        dt = _event_row(
            m, row, offset_hz, b1, R1, R2, blocks, actions[row], theta_max, tau_min, tau_max, nu1,
            phase_step, events, log,
        )  # fmt: skip
        _look(m, row, receive, weight, blocks, mz, mxy, log)
        before = log.signal
        log.signal = math.hypot(log.Mx, log.My)
        log.length = weighted_length(m, row, receive[row], 0, m.shape[2])
        gained = (log.signal**2 - before**2) / max(log.length0, 1e-12) ** 2
        reward[row] = gained - dt / log.T1
        terminated[row] = log.signal >= ALIGNED * log.length
        duration[row] = dt
        _observe_row(observation, row, log, theta_max, tau_min, tau_max, horizon)


class NMRAlign(PulseEnv):
    r"""Align spins for detection: the largest signal from a state that an experiment left behind.

    ## Description
    Some polarisation, a pulse of phase 0 with some flip angle, some dephasing: part of the
    magnetisation lies along z, part is transverse and scattered. The signal |S| is bounded by the
    length bound L, the received sum of |M| over isochromats, whatever pulses are given. One pulse
    turns z into signal, an echo gathers what has dephased; transverse relaxation eats both.

    ## Action space
    `Box(-1, 1, (3,), float32)`: one pulse, then one delay.

    | Num | Action | Physical value |
    |---|---|---|
    | 0 | flip angle theta | theta_max (a + 1) / 2; 0 to 180 degrees |
    | 1 | phase phi | 180 degrees times a |
    | 2 | delay tau | logarithmic, tau_min to tau_max; 0.1 ms to 40 ms |

    ## Observation space
    `Box(-10, 10, (8,), float32)`, as in `NMRRelax`.

    | Num | Observation | Unit | Range |
    |---|---|---|---|
    | 0 | mean Mx, as received | M0 | -1 to 1 |
    | 1 | mean My, as received | M0 | -1 to 1 |
    | 2 | mean Mz | M0 | -1 to 1 |
    | 3 | mean length of Mxy | M0 | 0 to 1 |
    | 4 | last flip angle | 180 degrees | 0 to 2 |
    | 5 | last delay | scaled as the action | about -1 to 1 |
    | 6 | time since the excitation | 20 ms | 0 to 10 |
    | 7 | step | horizon | 0 to 1 |

    ## Reward
    The gain of signal power as a share of what the start state holds, minus time:
    (|S after|^2 - |S before|^2) / L0^2 - dt / T1. The rate of information about abundance is
    |S|^2 / N0, so the return is the information rate bought, less its price. Use gamma = 1.

    ## Starting state
    Polarisation uniform on 0.2 to 1, an ideal pulse of phase 0 and flip angle uniform on 0 to 180
    degrees, free precession for tau0 uniform on 2 to 20 ms.

    ## Episode end
    Terminated when |S| >= 0.98 L at the end of a step. Truncated after `horizon` steps.

    ## Arguments
    `sample` ("oil"), `horizon` (8), `theta0`, `tau0`, `polarisation` (ranges of the start),
    `theta_max`, `tau_min`, `tau_max`.

    ## Options of reset
    `tau0` (s), `theta0` (rad), `polarisation` (-1 to 1), `magnetisation` ((3,) or (3, N)).

    ## Metrics
    `signal` (|S|, M0), `length_bound` (L, M0), `alignment` (|S| / L), `signal_kept` (|S| over the
    length bound of the start), `aligned` (whether 0.98 was reached), `sequence_time` (s).

    ## Example
    >>> import gymnasium, palestra
    >>> env = gymnasium.make("palestra/NMRAlign-v0", sample="oil")
    >>> observation, info = env.reset(seed=0, options={"theta0": 1.57, "tau0": 0.01})

    ## References
    Spin echo: Hahn, Phys. Rev. 80 (1950) 580. Phase-shifted trains: Meiboom, Gill, Rev. Sci.
    Instrum. 29 (1958) 688. The role "align nuclear spins" is one of three in "Counting atoms
    faster", ICML 2025 (OpenReview uXYZZv6fiE), whose figures are not used.

    ## Version history
    - v0: first version.
    """

    horizon: int
    _own_fields: ClassVar[list[str]] = ["signal", "length", "length0", "T1"]

    def __init__(
        self,
        rows: int,
        *,
        horizon: int = 8,
        sample: str | os.PathLike[str] | Sample = "oil",
        polarisation: Sequence[float] = (0.2, 1.0),
        theta0: Sequence[float] = (0.0, math.pi),
        tau0: Sequence[float] = (2e-3, 20e-3),
        theta_max: float = math.pi,
        tau_min: float = 1e-4,
        tau_max: float = 4e-2,
    ) -> None:
        super().__init__(
            rows,
            horizon=horizon,
            sample=sample,
            polarisation=polarisation,
            theta0=theta0,
            tau0=tau0,
            theta_max=theta_max,
            tau_min=tau_min,
            tau_max=tau_max,
        )

    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Leave the sample as some earlier experiment might have."""
        self._start(rows, streams, options)
        e, a = self.ensemble, self.action
        _align_begin(
            rows, self.m, e.R1, e.receive, e.weight, e.blocks, self._mz, self._mxy,
            self._logs, self._observation, a.theta_max, a.tau_min, a.tau_max, self._steps,
        )  # fmt: skip

    def advance(self, actions: Array, live: Mask, streams: Streams, step: Step) -> None:
        """One pulse and delay."""
        e, a = self.ensemble, self.action
        _align_advance(
            actions, live, self.m, e.offset_hz, e.b1, e.R1, e.R2, e.receive, e.weight, e.blocks,
            self._mz, self._mxy, self._logs, self._observation, self._events,
            a.theta_max, a.tau_min, a.tau_max, self._nu1, self._phase_step, self._steps,
            step.reward, step.terminated, step.duration,
        )  # fmt: skip

    def metrics(self) -> dict[str, Array]:
        """See the class."""
        log = self._logs
        tiny = np.finfo(np.float64).tiny
        alignment = log["signal"] / np.maximum(log["length"], tiny)
        return {
            "signal": log["signal"].copy(),
            "length_bound": log["length"].copy(),
            "alignment": alignment,
            "signal_kept": log["signal"] / np.maximum(log["length0"], tiny),
            "aligned": alignment >= ALIGNED,
            "sequence_time": log["elapsed"].copy(),
        }

    def _caption(self, row: int) -> str:
        log = self._logs[row]
        return (
            f"{super()._caption(row)}; signal {log['signal']:.2f} of at most {log['length']:.2f} "
            "$M_0$"
        )
