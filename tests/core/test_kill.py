"""SIGKILL at random moments: after any number of them, a run ends with the bytes of a quiet one.

The moments are random, so that a rare one is met some day; the seed is printed when a test fails.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palestra.executors import Executor, InProcess, Processes, Ray
from palestra.rollout import evaluate, merge
from palestra.store import RunFolder
from palestra.train import TrainConfig, train

from .victims import alive, children

pytestmark = pytest.mark.slow

SLOW = f"{Path(__file__).with_name('faults.py')}:Slow"
DRIFT = f"{Path(__file__).with_name('toys.py')}:Drift"
BLOCKS = 60
ARGUMENTS = {"episodes": 4 * BLOCKS - 1, "block": 4, "width": 2, "seed": 9}
KILLS = 50

CONFIG = TrainConfig(
    environment=DRIFT,
    steps=8192,
    rows=8,
    evaluate_every=64,
    evaluation_episodes=8,
    hyperparameters={"n_steps": 8, "batch_size": 32, "policy_kwargs": {"net_arch": [8]}},
)


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print(f"the moments are those of random.Random({seed})")
    return random.Random(seed)


@pytest.fixture(scope="module")
def start():
    """Starts a process in which everything is imported already, so that most of its life counts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["palestra.train", "palestra.jobs", "stable_baselines3"])

    def begin(target: Callable[..., object], *arguments: object, **keywords: object):
        process = context.Process(target=target, args=arguments, kwargs=keywords)
        process.start()
        return process

    return begin


@pytest.fixture(scope="module")
def quiet(tmp_path_factory) -> dict[str, bytes]:
    run = tmp_path_factory.mktemp("quiet") / "run"
    evaluate("random", SLOW, run=run, **ARGUMENTS)
    return blocks_of(run)


def blocks_of(run: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((run / "episodes").glob("*.parquet"))}


def folders(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / f"run{number}" for number in range(10**6))


def test_an_evaluation_killed_fifty_times(tmp_path, chance, start, quiet):
    """Whatever block stood there after one kill stands there, unchanged, after all others."""
    runs, kills, finished = folders(tmp_path), 0, 0
    run = next(runs)
    while kills < KILLS or not finished:
        before = blocks_of(run)
        process = start(evaluate, "random", SLOW, run=run, **ARGUMENTS)
        process.join(chance.uniform(0.0, 1.5))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        after = blocks_of(run)
        assert before.items() <= after.items()
        assert after.items() <= quiet.items()
        if len(after) == BLOCKS:
            done = evaluate("random", SLOW, run=run, **ARGUMENTS)
            assert done.column("episode").tolist() == list(range(ARGUMENTS["episodes"]))
            assert blocks_of(run) == quiet
            assert RunFolder.open(run).verify() == ()
            assert {p.name for p in run.iterdir()} == {"episodes", "manifest.json", "run.json"}
            finished += 1
            run = next(runs)


def test_a_recording_killed_twenty_times(tmp_path, chance, start, quiet):
    """Steps of a block may stand there without its episodes; they are the right ones."""

    def steps_of(run: Path) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted((run / "steps").glob("*.parquet"))}

    recorded = ARGUMENTS | {"record": "trajectories"}
    evaluate("random", SLOW, run=tmp_path / "undisturbed", **recorded)
    expected = steps_of(tmp_path / "undisturbed")
    runs, kills, finished = folders(tmp_path), 0, 0
    run = next(runs)
    while kills < 20 or not finished:
        process = start(evaluate, "random", SLOW, run=run, **recorded)
        process.join(chance.uniform(0.0, 1.5))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        assert blocks_of(run).keys() <= steps_of(run).keys()
        assert steps_of(run).items() <= expected.items()
        if len(blocks_of(run)) == BLOCKS:
            evaluate("random", SLOW, run=run, **recorded)
            assert steps_of(run) == expected
            assert blocks_of(run) == quiet
            assert RunFolder.open(run).verify() == ()
            finished += 1
            run = next(runs)


def checkpoints(run: Path) -> set[str]:
    return {path.name for path in run.glob("checkpoints/step-*")}


def weights_and_curve(run: Path) -> tuple[bytes, bytes]:
    last = RunFolder.open(run).latest("step-")
    return (last / "weights.safetensors").read_bytes(), (last / "progress.json").read_bytes()


def test_a_training_killed_fifty_times(tmp_path, chance, start):
    """No point of the learning curve lost or doubled; the same weights as without a kill (L3)."""
    train(CONFIG, tmp_path / "quiet")
    quiet = weights_and_curve(tmp_path / "quiet")
    runs, kills, finished, longest = folders(tmp_path), 0, 0, 1.0
    run = next(runs)
    while kills < KILLS or not finished:
        before = checkpoints(run)
        process = start(train, CONFIG, run)
        process.join(chance.uniform(0.0, longest))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if checkpoints(run) == before:  # a busy machine: lives long enough to come to something
            longest *= 1.1
        if process.exitcode == 0:
            assert weights_and_curve(run) == quiet
            assert RunFolder.open(run).verify() == ()
            finished += 1
            run = next(runs)


def kill_a_worker(run: Path, parent: int, chance: random.Random, holding: bytes) -> bool:
    """Kill a worker of a process once the run has a block; whether there was one to kill."""
    until = time.monotonic() + 60
    while not blocks_of(run):
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, 0.3))
    workers = [pid for pid in descendants(parent, holding) if alive(pid)]
    if not workers or len(blocks_of(run)) == BLOCKS:
        return False
    os.kill(chance.choice(workers), signal.SIGKILL)
    return True


def descendants(pid: int, holding: bytes) -> list[int]:
    """Processes of a process, and of those, that hold something in their command line."""
    below = children(pid, b"")
    return children(pid, holding) + [d for b in below for d in descendants(b, holding)]


@pytest.mark.parametrize(
    ("executor", "others", "repetitions", "holding"),
    [
        (Processes(workers=2), [InProcess(), Processes(workers=2)], 20, b"spawn_main"),
        (Ray(workers=2), [InProcess(), Processes(workers=2)], 3, b"ray::_call"),
    ],
    ids=["processes", "ray"],
)
def test_a_worker_killed_in_the_middle_and_the_run_resumed_elsewhere(
    tmp_path, chance, start, quiet, executor, others, repetitions, holding
):
    """The worker is replaced; the parent goes on, is killed as well, and another one finishes."""
    if isinstance(executor, Ray):
        pytest.importorskip("ray")
    for repetition, run in zip(range(repetitions), folders(tmp_path), strict=False):
        process = start(evaluate, "random", SLOW, run=run, executor=executor, **ARGUMENTS)
        killed = kill_a_worker(run, process.pid, chance, holding)
        if repetition % 2 == 0:
            process.join(120)
            assert process.exitcode == 0, "the run did not survive its worker"
        else:
            process.join(chance.uniform(0.0, 0.5))
            process.kill()
            process.join()
        assert killed or blocks_of(run) == quiet
        other: Executor = others[repetition % len(others)]
        evaluate("random", SLOW, run=run, executor=other, **ARGUMENTS)
        assert blocks_of(run) == quiet
        assert RunFolder.open(run).verify() == ()


def test_a_shard_killed_in_the_middle(tmp_path, chance, start, quiet):
    run = tmp_path / "run"
    for index in (0, 2):
        evaluate("random", SLOW, run=run, shard=(index, 3), **ARGUMENTS)
    for _ in range(5):
        process = start(evaluate, "random", SLOW, run=run, shard=(1, 3), **ARGUMENTS)
        process.join(chance.uniform(0.0, 0.8))
        process.kill()
        process.join()
    evaluate("random", SLOW, run=run, shard=(1, 3), **ARGUMENTS)
    merge(run)
    assert blocks_of(run) == quiet
