"""Coupled spins: microseconds for a pulse and a delay of one experiment, its propagator kept.

python benchmarks/coupled.py [--json PATH] [--rounds N]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from measure import Contender, arguments, interleave, line, report, timed

from palestra.envs.nmr.coupled import CoupledSpins, Coupling, Spin

BARS = {2: 50.0, 3: 1000.0}  # us


def step(protons: int) -> Callable[[int], Any]:
    """One event of a carbon with some protons, of a propagator made before."""
    spins = [Spin("13C", 30.0, 0.6, 0.2), *[Spin("1H", 10.0, 3.0, 1.0)] * protons]
    system = CoupledSpins(spins, [Coupling(0, k + 1, 145.0) for k in range(protons)])
    state = system.equilibrium()

    def event(_: int) -> None:
        nonlocal state
        state = system.step(state, 1.1, 0.3, (0,), 2e-3)

    event(0)
    return event


def main() -> None:
    """Measure, print, and write."""
    options = arguments(__doc__).parse_args()
    contenders = [Contender(f"{n} spins", timed(step(n - 1)), items=1) for n in BARS]
    costs = interleave(contenders, options.rounds)
    lines = []
    for n, bar in BARS.items():
        values = [1e6 * v for v in costs[f"{n} spins"]]
        lines.append(line(f"{n} spins (min {min(values):.2f})", values, bar=bar, unit="us"))
    report("A pulse and a delay of coupled spins, CPU time", lines, options.json)


if __name__ == "__main__":
    main()
