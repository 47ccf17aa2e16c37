"""Gradients of the seconds that a repeated cycle of events takes, through its closed forms.

The same rotation and delay as in `palestra.envs.nmr.information`, with the same tangents, written
for torch's reverse differentiation; the steady state is solved for as in
`palestra.envs.nmr.steady_state`, whose numbers are the reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from palestra.envs.nmr import checks
from palestra.envs.nmr.information import STATES
from palestra.envs.nmr.steady_state import (
    LONGEST_PIECE,
    Target,
    largest_rate,
    rule,
    seconds_to_error,
)
from palestra.progress import progress_bar

from .nmr_open_loop import Array, EventCycle, Optimised, judged, random_values

if TYPE_CHECKING:
    from torch import Tensor

_EDGE = 1e-4  # nearest share of the way to a bound at which a search starts
_WIDE = 1e6  # stands for a prior that says nothing
_RATE = 0.05  # of Adam, in units of the logistic function's argument


def gradient_descent(
    family: EventCycle,
    target: Target,
    *,
    seed: int,
    starts: int = 4,
    steps: int = 100,
    refinements: int = 60,
    start: Sequence[Sequence[float]] = (),
    progress: bool = False,
) -> Optimised:
    """Adam, then L-BFGS, on ln(seconds) from several starts; bounds are kept by logistic functions.

    Args:
        family: the cycles.
        target: what they are to reach.
        seed: of random starts.
        starts: how many begin at random.
        steps: of Adam.
        refinements: of L-BFGS.
        start: parameters of known cycles to begin from as well.
        progress: show a bar.

    Returns:
        The best that any start met; its history is of all starts, one after the other.

    Raises:
        ValueError: numbers that are not allowed, or no start from which the target is ever reached.
    """
    checks.integer("seed", seed, 0, 2**63)
    checks.integer("starts", starts, 0 if start else 1, 10**6)
    checks.integer("steps", steps, 0, 10**6)
    checks.integer("refinements", refinements, 0, 10**6)
    begins = [list(values) for values in start]
    begins += [random_values(family, seed + k) for k in range(starts)]
    best: tuple[float, list[float]] = (math.inf, [])
    history: list[float] = []
    with progress_bar("gradient", len(begins), progress) as advance:
        for values in begins:
            if math.isfinite(target.seconds(family.build(values))):
                met = _descend(family, target, values, steps, refinements, history)
                best = min(best, met, key=lambda pair: pair[0])
            advance(1)
    if not best[1]:
        raise ValueError("start: got none from which the target is reached, allowed one or more")
    lowest = np.minimum.accumulate(history).tolist()
    return judged(family, target, best[1], lowest)


def seconds_and_gradient(
    family: EventCycle, target: Target, values: Sequence[float]
) -> tuple[float, Array]:
    """The seconds of a cycle and their derivatives by its parameters, (3 K,)."""
    import torch

    at = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    seconds = _Objective.of(family, target).seconds(at)
    (slope,) = torch.autograd.grad(seconds, at)
    return float(seconds.detach()), np.asarray(slope.numpy())


def _descend(
    family: EventCycle, target: Target, values: Sequence[float], steps: int, refinements: int,
    history: list[float],
) -> tuple[float, list[float]]:  # fmt: skip
    """One start; the best of all that is met on the way, and its seconds."""
    import torch

    objective = _Objective.of(family, target)
    spans = family.spans
    low = torch.tensor([span.low for span in spans], dtype=torch.float64)
    width = torch.tensor([span.high - span.low for span in spans], dtype=torch.float64)
    shares = [span.share(value) for span, value in zip(spans, values, strict=True)]
    free = torch.tensor(np.clip(shares, _EDGE, 1.0 - _EDGE), dtype=torch.float64).logit()
    free.requires_grad_(True)
    best = (math.inf, list(values))

    def loss() -> Any:
        nonlocal best
        adam.zero_grad()
        at = low + width * torch.sigmoid(free)
        seconds = objective.seconds(at)
        reached = float(seconds.detach())
        history.append(reached)
        if reached < best[0]:
            inside = [
                min(max(value, span.low), span.high)
                for value, span in zip(at.tolist(), spans, strict=True)
            ]
            best = (reached, inside)
        value = seconds.log()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    adam = torch.optim.Adam([free], lr=_RATE)
    for _ in range(steps):
        adam.step(loss)
    if refinements:
        search = "strong_wolfe"
        torch.optim.LBFGS([free], max_iter=refinements, line_search_fn=search).step(loss)  # type: ignore[no-untyped-call]
    return best


@dataclass(frozen=True)
class _Objective:
    """Isochromats and bounds as tensors; those of isochromats are (N,)."""

    family: EventCycle
    target: Target
    turn: Tensor  # rad/s
    b1: Tensor
    R1: Tensor
    R2: Tensor
    receive: Tensor
    spread: Tensor  # prior standard deviations of the nuisances, (3,)

    @staticmethod
    def of(family: EventCycle, target: Target) -> _Objective:
        import torch

        e = target.ensemble
        rates = (e.rate_of_isochromat(values)[0] for values in (e.R1, e.R2))
        spread = np.minimum(target.prior.spread[1:], _WIDE)
        arrays = (2.0 * math.pi * e.offset_hz[0], e.b1[0], *rates, e.receive[0], spread)
        tensors = [torch.tensor(np.asarray(a, np.float64)) for a in arrays]
        return _Objective(family, target, *tensors)

    def seconds(self, values: Tensor) -> Tensor:
        """By one Newton step from the root that NumPy finds, which carries its derivative."""
        import torch

        rate = self.rate(values)
        root = seconds_to_error(rate.detach().numpy(), self.target.prior, self.target.eps)
        T = torch.tensor(root, dtype=torch.float64, requires_grad=True)
        known = self._known(T, rate.detach())
        (slope,) = torch.autograd.grad(known, T)
        change = self._known(T.detach(), rate)
        seconds: Tensor = T.detach() - (change - change.detach()) / slope
        return seconds

    def _known(self, T: Tensor, rate: Tensor) -> Tensor:
        """What is known of log A after T seconds, but for its own prior."""
        import torch

        scaled = self.spread[:, None] * rate[1:, 1:] * self.spread
        lost = self.spread * rate[1:, 0]
        inner = torch.linalg.solve(T * scaled + torch.eye(3, dtype=torch.float64), lost)
        known: Tensor = rate[0, 0] * T - T * T * (lost @ inner)
        return known

    def rate(self, values: Tensor) -> Tensor:
        """Information in a second in the steady state, (4, 4)."""
        import torch

        triples = values.reshape(-1, 3)
        n = len(self.b1)
        begins = torch.zeros((4, STATES, 3, n), dtype=torch.float64)
        for axis in range(3):
            begins[1 + axis, 0, axis] = 1.0
        ends, _ = self._through(begins, triples, received=False)
        state = self._steady(ends)
        _, information = self._through(state, triples, received=True)
        return information / self.target.N0 / triples[:, 2].sum()

    def _steady(self, ends: Tensor) -> Tensor:
        import torch

        shift = ends[0].permute(2, 0, 1)  # (N, 4, 3)
        linear = ends[1:].permute(3, 1, 2, 0) - shift[..., None]
        rest = torch.eye(3, dtype=torch.float64) - linear[:, 0]
        m = torch.linalg.solve(rest, shift[:, 0, :, None])
        sources = linear[:, 1:] @ m[:, None] + shift[:, 1:, :, None]
        slopes = torch.linalg.solve(rest[:, None], sources)
        return torch.cat([m[:, None], slopes], dim=1)[..., 0].permute(1, 2, 0)[None]

    def _through(self, state: Tensor, triples: Tensor, *, received: bool) -> tuple[Tensor, Tensor]:
        """States (B, 4, 3, N) after the events, and N0 times the information of the first row."""
        import torch

        information = torch.zeros((STATES, STATES), dtype=torch.float64)
        x, y, z = state.unbind(dim=2)
        for step, (theta, phi, tau) in zip(self.family.steps, triples, strict=True):
            x, y, z = self._pulse(x, y, z, theta, phi)
            if received and step.receive:
                information = information + self._received(x[0], y[0], tau, step.tau[1])
            x, y, z = self._delay(x, y, z, tau)
            if step.spoil:
                x, y = torch.zeros_like(x), torch.zeros_like(y)
        return torch.stack([x, y, z], dim=2), information

    def _pulse(
        self, x: Tensor, y: Tensor, z: Tensor, theta: Tensor, phi: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotation about (cos phi, sin phi, 0) by theta b; d/dlog b1 gains theta b n x M."""
        angle = theta * self.b1
        s, c, sin_phi, cos_phi = angle.sin(), angle.cos(), phi.sin(), phi.cos()
        along = cos_phi * x + sin_phi * y
        across = cos_phi * y - sin_phi * x
        turned = c * across - s * z
        z = s * across + c * z
        x, y = cos_phi * along - sin_phi * turned, sin_phi * along + cos_phi * turned
        b = _tangent(3)
        mx, my, mz = x[:, :1], y[:, :1], z[:, :1]
        return (
            x + b * (angle * sin_phi * mz),
            y - b * (angle * cos_phi * mz),
            z + b * (angle * (cos_phi * my - sin_phi * mx)),
        )

    def _delay(self, x: Tensor, y: Tensor, z: Tensor, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Precession and relaxation; each rate adds its own source."""
        slow, fast = tau * self.R1, tau * self.R2
        E1, E2 = (-slow).exp(), (-fast).exp()
        s, c = (self.turn * tau).sin(), (self.turn * tau).cos()
        x, y = E2 * (c * x - s * y), E2 * (s * x + c * y)
        magnetisation, by_R1, by_R2 = _tangent(0), _tangent(1), _tangent(2)
        mx, my, deficit = x[:, :1], y[:, :1], z[:, :1] - 1.0
        z = E1 * (z - by_R1 * (slow * deficit)) + magnetisation * (1.0 - E1)
        return x - by_R2 * (fast * mx), y - by_R2 * (fast * my), z

    def _received(self, x: Tensor, y: Tensor, tau: Tensor, longest: float) -> Tensor:
        """N0 times the information of one open receiver, from states (4, N) at its pulse."""
        import torch

        dead = self.family.dead_time
        pieces = max(
            1, math.ceil((longest - dead) * largest_rate(self.target.ensemble) / LONGEST_PIECE)
        )
        nodes, weights = rule()
        places = (np.arange(pieces)[:, None] + nodes).ravel() / pieces
        share = torch.tensor(np.tile(weights, pieces) / pieces)
        times = dead + (tau - dead) * torch.tensor(places)
        decay = torch.exp(
            torch.outer(torch.complex(-self.R2, self.turn), times.to(torch.complex128))
        )
        received = self.receive * torch.complex(x, y)
        slopes = received @ decay
        by_R2 = times * ((received[0] * self.R2) @ decay)
        slopes = slopes - _tangent(2) * by_R2
        product: Tensor = ((slopes.conj() * share) @ slopes.T).real * (tau - dead)
        return product


def _tangent(index: int) -> Tensor:
    """1 at the magnetisation (0) or one of its derivatives, 0 elsewhere, (4, 1)."""
    import torch

    one = torch.zeros((STATES, 1), dtype=torch.float64)
    one[index] = 1.0
    return one
