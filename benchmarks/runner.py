"""What the runner costs, and what its executors gain. Needs an idle machine with two cores.

    python benchmarks/runner.py [--json PATH]

Ratios of wall time here, not of CPU time: it is waiting that an executor saves.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cartpole import CartPole
from measure import Line, arguments, line, report
from slow import turns_for

from palestra import evaluate
from palestra.executors import Auto, Errand, InProcess, Processes, Work
from palestra.fast_policy import fast_policy
from palestra.play import Player, Span, one_thread
from palestra.policy import RandomPolicy
from palestra.policy import begin as begin_policy
from palestra.views import make

HERE = Path(__file__).parent
CARTPOLE, SPINNING = f"{HERE / 'cartpole.py'}:CartPole", f"{HERE / 'slow.py'}:Spinning"
ROWS = 64


def bare(env: CartPole, policy: Any, steps: int) -> Callable[[], float]:
    """Policy, advance, observe and the beginnings of episodes, and nothing else; seconds a step."""
    player = Player("CartPole", env, policy, 0, True, None)
    episodes = player.episodes

    def run() -> float:
        episodes.seed(0)
        episodes.upcoming[:] = np.arange(env.rows)
        episodes.begin(env.everyone)
        begin_policy(policy, env.everyone, episodes.streams)
        observation, fresh, state = episodes.observe(), np.ones(env.rows, np.bool_), None
        start = time.process_time()
        for _ in range(steps):
            actions, state = policy.predict(
                observation, state=state, episode_start=fresh, deterministic=True
            )
            _, ended = episodes.advance(actions)
            observation = episodes.observe()
            if ended:
                fresh = episodes.ended.copy()
                episodes.begin(fresh)
                begin_policy(policy, fresh, episodes.streams)
                episodes.observe_into(fresh, observation)
        return (time.process_time() - start) / steps

    return run


def whole(env: CartPole, policy: Any, rounds: int) -> tuple[Callable[[], float], int]:
    """A block of the runner, without the disk: seconds a step of the batch, and how many."""
    player = Player("CartPole", env, policy, 0, True, None)
    span = Span(0, 0, rounds * env.rows)
    counted = [0]
    advance = player.episodes.advance

    def counting(*given: Any) -> Any:
        counted[0] += 1
        return advance(*given)

    player.episodes.advance = counting  # type: ignore[method-assign]
    player.play(span)
    player.episodes.advance = advance  # type: ignore[method-assign]
    steps = counted[0]

    def run() -> float:
        start = time.process_time()
        player.play(span)
        return (time.process_time() - start) / steps

    return run, steps


def overhead(rounds: int) -> list[Line]:
    """The runner beyond what policy and environment take themselves."""
    from stable_baselines3 import PPO  # here: worker processes import this file, not SB3

    model = PPO("MlpPolicy", make(CARTPOLE, view="sb3", rows=8), device="cpu", seed=0)
    model.policy.set_training_mode(False)
    quick, _ = fast_policy(model, ROWS)
    space = CartPole(1).action_space
    lines = []
    # a network balances up to 500 steps; the random policy some 22
    contenders = (("random", RandomPolicy(space), 64), ("fast", quick, 8))
    for name, policy, episodes in contenders:
        ours, steps = whole(CartPole(ROWS), policy, episodes)
        theirs = bare(CartPole(ROWS), policy, steps)
        theirs()
        beyond = []
        for index in range(rounds):
            if index % 2:
                mine, other = ours(), theirs()
            else:
                other, mine = theirs(), ours()
            beyond.append(1e6 * (mine - other))
        what = f"runner beyond policy and environment, {name} policy"
        lines.append(line(what, beyond, bar=10.0, unit="us"))
    shares = [share(model) for _ in range(rounds)]
    what = "runner and its timers, of the time with SB3's predict"
    return [*lines, line(what, shares, bar=5.0, unit="%")]


def share(policy: Any) -> float:
    """Per cent of a block that are spent outside policy and environment, timers included.

    Taken inside one block: the noise of `predict` between two of them is larger than the runner.
    """
    player = Player("CartPole", CartPole(ROWS), policy, 0, True, None)
    inside = [0.0]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timing(*given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = call(*given, **named)
            inside[0] += time.perf_counter() - start
            return result

        return timing

    calls = [(policy, "predict")]
    calls += [(player.episodes, name) for name in ("advance", "observe", "observe_into", "begin")]
    for owner, name in calls:
        setattr(owner, name, timed(getattr(owner, name)))
    try:
        start = time.perf_counter()
        player.play(Span(0, 0, 2 * ROWS))
        total = time.perf_counter() - start
    finally:
        for owner, name in calls:
            delattr(owner, name)
    return 100 * (total - inside[0]) / total


def seconds(**given: Any) -> float:
    start = time.perf_counter()
    evaluate("random", width=1, seed=0, **given)
    return time.perf_counter() - start


def two_processes(rounds: int) -> list[Line]:
    """Steps of 1 ms of the processor."""
    given: dict[str, Any] = {"target": SPINNING, "settings": {"turns": turns_for(1e-3)}}
    given |= {"episodes": 2400, "block": 50}
    gains = [
        seconds(executor="in-process", **given) / seconds(executor=Processes(2), **given)
        for _ in range(rounds)
    ]
    return [line("2 processes / 1, steps of 1 ms, 24 s in all", gains, bar=1.7)]


def start_up(rounds: int) -> list[Line]:
    """From the call to the end of two workers that have next to nothing to do."""
    work = Work(here=str, elsewhere=Errand(max, str, 0), reason="", name=str)
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        list(Processes(2).map(work, [1, 2]))
        taken.append(time.perf_counter() - start)
    return [line("start and end of 2 worker processes", taken, bar=2.0, unit="s")]


def auto(rounds: int) -> list[Line]:
    """`auto` against staying here: at least 0.9."""
    lines = []
    five = {"target": SPINNING, "settings": {"turns": turns_for(5e-3)}, "episodes": 800}
    quick = {"target": CARTPOLE, "episodes": 20_000}
    for name, given in (("CartPole, 20 000 episodes", quick), ("steps of 5 ms, 40 s", five)):
        ratios = [
            seconds(executor=InProcess(), **given) / seconds(executor=Auto(), **given)
            for _ in range(rounds)
        ]
        lines.append(line(f"in-process / auto, {name}", ratios, bar=0.9))
    return lines


def million() -> list[Line]:
    """Peak memory of the process, and files, of 1e6 episodes in a run folder."""
    code = (
        "import resource, sys; from palestra import evaluate;"
        "evaluate('random', sys.argv[1], episodes=10**6, seed=0, run=sys.argv[2]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        told = subprocess.run(
            [sys.executable, "-c", code, CARTPOLE, run], check=True, capture_output=True, text=True
        )
        files = float(sum(1 for path in run.rglob("*") if path.is_file()))
    gib = int(told.stdout) * 1024 / 2**30
    return [
        Line("peak memory of 1e6 episodes", gib, gib, gib, bar=1.0, unit="GiB"),
        Line("files of 1e6 episodes", files, files, files, bar=2000.0, unit=""),
    ]


def main() -> None:
    """Measure everything, print, and write."""
    options = arguments(__doc__).parse_args()
    with one_thread():
        lines = overhead(options.rounds)
    few = max(2, options.rounds // 5)  # these take minutes
    lines += two_processes(few) + start_up(options.rounds) + auto(few) + million()
    report("The runner", lines, options.json)


if __name__ == "__main__":
    main()
