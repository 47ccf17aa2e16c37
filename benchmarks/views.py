"""Steps per CPU-second of palestra's views of CartPole, against what people use today.

    python benchmarks/views.py [--json PATH] [--envpool PYTHON]

Every contender gives complete steps: checked actions, horizon, fresh observations, infos, and
episodes that begin again. All play the same uniformly random actions.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from cartpole import BareLoop, CartPole, CartPoleForce
from measure import Contender, Line, arguments, interleave, line, ratio, report, timed
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from palestra.batch import Step
from palestra.spaces import Array
from palestra.views.gym import GymView
from palestra.views.sb3 import SB3View
from palestra.views.vector import VectorView

HERE = Path(__file__).parent
PLANNED = 32  # action arrays drawn before the clock runs; few, so that they stay in the cache
PEER_ROWS = (8, 64, 1024, 8192)


def planned_actions(rows: int) -> list[Array]:
    draws = np.random.default_rng(0)
    return [draws.integers(0, 2, rows) for _ in range(PLANNED)]


def vector_view(rows: int) -> Contender:
    view, plan = VectorView(CartPole(rows)), planned_actions(rows)
    view.reset(seed=0)
    return Contender("vector view", timed(lambda i: view.step(plan[i % PLANNED])), rows)


def sb3_view(rows: int) -> Contender:
    view, plan = SB3View(CartPole(rows)), planned_actions(rows)
    view.seed(0)
    view.reset()
    return Contender("SB3 view", timed(lambda i: view.step(plan[i % PLANNED])), rows)


def bare_loop(rows: int) -> Contender:
    view = VectorView(CartPole(rows))
    view.reset(seed=0)
    loop, plan = BareLoop(rows, view.episodes.streams.dynamics), planned_actions(rows)
    return Contender("bare loop", timed(lambda i: loop.step(plan[i % PLANNED])), rows)


def dummy(rows: int, monitor: bool) -> Contender:
    """SB3's DummyVecEnv; `make_vec_env` wraps each environment in a Monitor."""
    envs: Any
    if monitor:
        envs = make_vec_env("CartPole-v1", n_envs=rows, seed=0)
    else:
        envs = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * rows)
    plan = planned_actions(rows)
    envs.reset()
    name = "DummyVecEnv, Monitor" if monitor else "DummyVecEnv"
    return Contender(name, timed(lambda i: envs.step(plan[i % PLANNED])), rows)


def gymnasium_native(rows: int) -> Contender:
    envs = gymnasium.make_vec("CartPole-v1", rows, vectorization_mode="vector_entry_point")
    plan = planned_actions(rows)
    envs.reset(seed=0)
    return Contender("Gymnasium native", timed(lambda i: envs.step(plan[i % PLANNED])), rows)


@contextmanager
def envpool(python: str, rows: int) -> Iterator[Contender]:
    """EnvPool in a process of its own, which answers a number of steps with CPU-seconds."""
    command = [python, "-W", "ignore", str(HERE / "peers" / "envpool_cartpole.py"), str(rows)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        to_child, from_child = child.stdin, child.stdout

        def take(count: int) -> float:
            print(count, file=to_child, flush=True)
            answer = from_child.readline()
            if not answer:
                raise RuntimeError("EnvPool's process ended; its message stands above")
            return float(answer)

        yield Contender("EnvPool", take, rows)
        to_child.close()


def single_view(env: CartPole, actions: Sequence[Any], rounds: int, what: str, bar: float) -> Line:
    """Microseconds of GymView.step beyond the environment's own advance and observe.

    A balanced episode (a linear policy keeps the pole up to the horizon) is recorded first, and
    played again and again; resets are not timed.
    """
    view = GymView(env)
    recorded = []
    observation, _ = view.reset(seed=0)
    for _ in range(env.horizon or 1):
        recorded.append(actions[int(observation @ (0.1, 0.2, 5.0, 1.0) > 0)])
        observation, _, terminated, _, _ = view.step(recorded[-1])
        assert not terminated
    batches = [np.array([action], env.action_space.dtype) for action in recorded]
    streams, step, out = view.episodes.streams, Step(1), np.zeros((1, 4), np.float32)

    def whole(count: int) -> float:
        seconds = 0.0
        for _ in range(count):
            view.reset(seed=0)
            started = time.process_time()
            for action in recorded:
                view.step(action)
            seconds += time.process_time() - started
        return seconds

    def kernels(count: int) -> float:
        seconds = 0.0
        for _ in range(count):
            view.reset(seed=0)
            started = time.process_time()
            for batch in batches:
                env.advance(batch, env.everyone, streams, step)
                env.observe(None, streams, out)
            seconds += time.process_time() - started
        return seconds

    steps = len(recorded)
    costs = interleave(
        [Contender("view", whole, steps), Contender("kernels", kernels, steps)], rounds
    )
    pairs = zip(costs["view"], costs["kernels"], strict=True)
    beyond = [1e6 * (view_cost - kernel_cost) for view_cost, kernel_cost in pairs]
    return line(what, beyond, bar=bar, unit="us")


def compare(rounds: int, envpool_python: str) -> Iterator[Line]:
    bars = {
        "SB3 view": {8: (12, 20), 64: (35, 80)},
        "vector view": {8: (15, None), 64: (70, None)},
    }
    native_bars = {8: 8, 64: 6, 8192: 1.5}
    envpool_bars = {64: 12, 1024: 30}
    for rows in PEER_ROWS:
        contenders = [vector_view(rows), sb3_view(rows), bare_loop(rows), gymnasium_native(rows)]
        if rows <= 64:
            contenders += [dummy(rows, monitor=True), dummy(rows, monitor=False)]
        with envpool(envpool_python, rows) as peer:
            if rows in envpool_bars:
                contenders.append(peer)
            costs = interleave(contenders, rounds)
        for ours in ("SB3 view", "vector view"):
            for theirs in ("DummyVecEnv, Monitor", "DummyVecEnv") if rows <= 64 else ():
                # the view's infos carry what a Monitor gives, so this is like against like
                bar, aim = bars[ours][rows] if "Monitor" in theirs else (None, None)
                what = f"{ours} / {theirs}, {rows} rows"
                yield ratio(what, costs, ours, theirs, bar=bar, aim=aim)
        what, bar = f"vector view / Gymnasium native, {rows} rows", native_bars.get(rows)
        yield ratio(what, costs, "vector view", "Gymnasium native", bar=bar)
        if rows in envpool_bars:
            what = f"vector view / EnvPool, {rows} rows"
            yield ratio(what, costs, "vector view", "EnvPool", bar=envpool_bars[rows])
        bar = 0.7 if rows >= 1024 else None
        yield ratio(
            f"vector view / bare loop, {rows} rows", costs, "vector view", "bare loop", bar=bar
        )
        yield ratio(f"SB3 view / bare loop, {rows} rows", costs, "SB3 view", "bare loop")
    what = "single view beyond its kernels, Discrete actions"
    yield single_view(CartPole(1), [0, 1], rounds, what, bar=2.0)
    forces = [np.array([-1.0], np.float32), np.array([1.0], np.float32)]
    what = "single view beyond its kernels, Box actions"
    yield single_view(CartPoleForce(1), forces, rounds, what, bar=4.0)


def main() -> None:
    parser = arguments(__doc__)
    default = HERE / ".venvs" / "envpool" / "bin" / "python"
    parser.add_argument("--envpool", default=str(default), help="Python that has EnvPool")
    given = parser.parse_args()
    lines = list(compare(given.rounds, given.envpool))
    report("Views of CartPole, steps per CPU-second", lines, given.json)


if __name__ == "__main__":
    main()
