"""Executors: the same table everywhere, and what happens when a worker does not come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from palestra import executors
from palestra.blocks import encode_block
from palestra.executors import (
    Auto,
    Errand,
    InProcess,
    Processes,
    Ray,
    TimeLimitExceeded,
    Work,
    WorkerDied,
)
from palestra.play import NotFinite
from palestra.rollout import IncompleteRun, evaluate, merge
from palestra.store import RunFolder, RunLocked, RunMismatch

from .faults import nothing
from .victims import alive, children

TOYS = Path(__file__).with_name("toys.py")
FAULTS = Path(__file__).with_name("faults.py")
DRIFT, COIN = f"{TOYS}:Drift", f"{TOYS}:CoinLength"
ARGUMENTS = {"episodes": 23, "block": 5, "seed": 4, "width": 3}
TWO = Processes(workers=2)


def fault(name: str) -> str:
    return f"{FAULTS}:{name}"


def sums(items, elsewhere=None) -> Work:
    return Work(here=lambda item: item + 1, elsewhere=elsewhere, reason="It is shy.", name=str)


def contents(run: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((run / "episodes").glob("*.parquet"))}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    evaluation = evaluate("random", DRIFT, run=run, **ARGUMENTS)
    return evaluation, contents(run)


# --- the same everywhere --------------------------------------------------------------------------


def test_two_processes_write_the_bytes_of_one(tmp_path, undisturbed):
    evaluation, files = undisturbed
    parallel = evaluate("random", DRIFT, run=tmp_path / "run", executor=TWO, **ARGUMENTS)
    assert contents(tmp_path / "run") == files
    assert RunFolder.open(tmp_path / "run").verify() == ()
    assert encode_block(parallel.table) == encode_block(evaluation.table)


def test_without_a_folder_too(undisturbed):
    parallel = evaluate("random", DRIFT, executor=TWO, **ARGUMENTS)
    assert encode_block(parallel.table) == encode_block(undisturbed[0].table)


def test_thirteen_episodes_in_blocks_of_five_with_two_workers_are_thirteen():
    """ray#46412, ray#18335."""
    done = evaluate("random", COIN, episodes=13, block=5, seed=1, executor=TWO)
    assert done.column("episode").tolist() == list(range(13))


@pytest.mark.slow
def test_a_network_gives_the_same_table_with_two_workers(tmp_path):
    """pytorch#58128, #136338: other bits at other batch sizes; here the width is fixed."""
    from stable_baselines3 import PPO

    from palestra.policy_files import save_policy
    from palestra.views import make

    network = {"net_arch": [16], "log_std_init": -1.0}
    model = PPO("MlpPolicy", make(DRIFT, view="sb3", rows=2), policy_kwargs=network, seed=3)
    save_policy(model, tmp_path / "policy")
    for options in ({}, {"fast": False}, {"deterministic": False}):
        one, two = (
            evaluate(tmp_path / "policy", DRIFT, executor=executor, **options, **ARGUMENTS)
            for executor in ("in-process", TWO)
        )
        assert encode_block(one.table) == encode_block(two.table)
        assert len(set(one.column("return"))) > 1


def test_geometric_lengths_have_mean_ten_with_two_workers():
    """The mean of 10 000 lengths with p = 0.1 lies within 3 sigma = 0.28 of 10, and is the same."""
    target = f"{TOYS}:GeometricLength"
    one, two = (
        evaluate("random", target, episodes=10_000, seed=3, block=2500, executor=executor)
        for executor in ("in-process", TWO)
    )
    assert abs(two.mean().estimate - 10) < 0.28
    assert encode_block(one.table) == encode_block(two.table)


def test_three_shards_merged_are_the_run(tmp_path, undisturbed):
    evaluation, files = undisturbed
    run = tmp_path / "run"
    for index in (2, 0):
        part = evaluate("random", DRIFT, run=run, shard=(index, 3), **ARGUMENTS)
        first = [5 * b + e for b in range(index, 5, 3) for e in range(5) if 5 * b + e < 23]
        assert part.column("episode").tolist() == first
    with pytest.raises(IncompleteRun, match=r"2 of 5 blocks are missing .*: 1, 4\."):
        merge(run)
    assert not RunFolder.open(run).finished
    evaluate("random", DRIFT, run=run, shard=(1, 3), **ARGUMENTS)
    merged = merge(run)
    assert contents(run) == files
    assert RunFolder.open(run).finished
    assert encode_block(merged.table) == encode_block(evaluation.table)
    assert encode_block(merge(run).table) == encode_block(evaluation.table)  # once more: the same


def test_every_shard_has_work_and_chooses_the_same_blocks(tmp_path):
    for index in range(4):
        evaluate("random", COIN, run=tmp_path / "run", episodes=1000, seed=1, shard=(index, 4))
    assert RunFolder.open(tmp_path / "run").config["block"] == 256
    assert merge(tmp_path / "run").episodes == 1000


def test_two_processes_do_not_play_one_shard(tmp_path):
    evaluate("random", DRIFT, run=tmp_path / "run", shard=(0, 3), **ARGUMENTS)
    folder = RunFolder.open(tmp_path / "run", writable=True)
    with folder.lock("shard-1-of-3"):
        evaluate("random", DRIFT, run=tmp_path / "run", shard=(2, 3), **ARGUMENTS)
        with pytest.raises(RunLocked, match="shard-1-of-3"):
            evaluate("random", DRIFT, run=tmp_path / "run", shard=(1, 3), **ARGUMENTS)


def test_a_merged_folder_with_a_damaged_block_is_refused(tmp_path):
    run = tmp_path / "run"
    for index in range(3):
        evaluate("random", DRIFT, run=run, shard=(index, 3), **ARGUMENTS)
    block = run / "episodes" / "00000003.parquet"
    damaged = bytearray(block.read_bytes())
    damaged[40] ^= 1
    block.write_bytes(damaged)
    with pytest.raises(ValueError, match="00000003"):
        merge(run)
    assert not RunFolder.open(run).finished


def test_a_worker_takes_relative_paths_from_where_the_run_began(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(TOYS.read_text())
    monkeypatch.chdir(tmp_path)
    done = evaluate("random", "mine.py:CoinLength", episodes=9, block=3, seed=1, executor=TWO)
    assert done.episodes == 9


def test_an_environment_that_a_script_registers_is_there_in_its_workers(tmp_path):
    """Gymnasium#222, #697, #742, stable-baselines3#1869: "does not exist" in the worker."""
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "from palestra import evaluate\n"
        "from palestra.executors import Processes\n"
        "class Mine(CartPoleEnv): pass\n"
        "gymnasium.register('Mine-v0', entry_point=Mine, max_episode_steps=20)\n"
        "if __name__ == '__main__':\n"
        "    done = evaluate('random', 'Mine-v0', episodes=8, block=2, seed=1, width=2,\n"
        "                    executor=Processes(2))\n"
        "    print(done.episodes)\n"
    )
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (0, "8\n"), told.stderr


# --- what cannot travel, and what is no executor --------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "target", "message"),
    [
        (lambda x: x, DRIFT, "policy: got a function object; give a reference"),
        ("random", lambda rows: None, "target: <lambda> is an object that no other process"),
    ],
    ids=["policy", "target"],
)
def test_objects_do_not_travel(policy, target, message):
    if target is not DRIFT:
        from .toys import Drift

        target = lambda rows: Drift(rows)  # noqa: E731
    with pytest.raises(ValueError, match=message):
        evaluate(policy, target, executor=TWO, **ARGUMENTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"executor": "threads"}, "executor: got 'threads', allowed in-process, processes, ray"),
        ({"shard": (3, 3)}, r"shard: got \(3, 3\), allowed \(i, n\) with 0 <= i < n"),
        ({"shard": "0/3"}, "shard: got '0/3', allowed"),
        ({"shard": (True, 3)}, r"shard: got \(True, 3\), allowed"),
        ({"shard": (0, 3)}, "shard: needs run and seed"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate("random", DRIFT, **{**ARGUMENTS, **arguments})


def test_shards_need_a_seed(tmp_path):
    with pytest.raises(ValueError, match="shard: needs run and seed"):
        evaluate("random", DRIFT, episodes=3, shard=(0, 2), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [Processes, Ray, Auto])
@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", 0), ("workers", 1.5), ("workers", True), ("time_limit", 0), ("time_limit", "1 s"),
     ("time_limit", float("nan"))],
)  # fmt: skip
def test_bad_executors_are_refused(kind, name, value):
    with pytest.raises(ValueError, match=f"{name}: got {value!r}, allowed"):
        kind(**{name: value})


def test_auto_stays_here_where_the_rest_is_short(monkeypatch):
    def elsewhere(*_):
        raise AssertionError("it left")

    monkeypatch.setattr(Processes, "map", elsewhere)
    errand = Errand(nothing, nothing, None)
    assert [d.result for d in Auto(2).map(sums([1, 2], errand), [1, 2])] == [2, 3]


def test_auto_leaves_where_the_rest_is_long(monkeypatch):
    """Two cores, 1.7 times the speed: 59 more items of 1 s save 24 s, and 24 more less than 10."""
    clock = [0.0]
    left = []
    monkeypatch.setattr(executors.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(executors, "cores", lambda: 2)
    monkeypatch.setattr(Processes, "map", lambda self, work, items: left.append(list(items)) or ())

    def here(item):
        clock[0] += 1.0
        return item

    for count, stays in ((60, 1), (25, 25)):
        work = Work(here, Errand(nothing, nothing, None), "", str)
        assert len(list(Auto().map(work, list(range(count))))) == stays
    assert left == [list(range(1, 60))]
    left.clear()
    assert len(list(Auto().map(Work(here, None, "It is shy.", str), list(range(60))))) == 60
    assert not left


def test_in_process_is_what_it_says():
    assert [(d.item, d.result, d.here) for d in InProcess().map(sums([1]), [1])] == [(1, 2, True)]


# --- faults ---------------------------------------------------------------------------------------


def test_what_a_policy_raises_arrives_with_the_episodes_it_was_at():
    for executor in ("in-process", TWO):
        with pytest.raises(ZeroDivisionError) as caught:
            evaluate(
                fault("Raises"),
                DRIFT,
                executor=executor,
                **ARGUMENTS,
            )
        (note,) = caught.value.__notes__
        assert "Drift: seed 4, block 2 (episodes 10 to 14), while playing the episodes 10 (" in note


def test_nan_arrives_as_itself_and_is_not_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MARKS", str(tmp_path))
    with pytest.raises(NotFinite, match="seed 4, episode 7, step 2: reward is nan"):
        evaluate("random", fault("NaNAtSeven"), executor=TWO, **ARGUMENTS)
    assert len(list(tmp_path.glob("nan-*"))) == 1


def test_an_exception_that_does_not_pickle_arrives_as_text():
    with pytest.raises(RuntimeError, match="Stubborn: no way"):
        evaluate(fault("RaisesStubbornly"), DRIFT, executor=TWO, **ARGUMENTS)


def test_a_worker_that_dies_once_is_replaced(tmp_path, monkeypatch, undisturbed):
    """A block that killed its worker is played again, and the table is that of a quiet run."""
    monkeypatch.setenv("MARKS", str(tmp_path))
    evaluate("random", fault("DiesOnce"), run=tmp_path / "run", executor=TWO, **ARGUMENTS)
    assert (tmp_path / "died").exists()
    quiet = evaluate("random", fault("DiesOnce"), run=tmp_path / "quiet", **ARGUMENTS)
    assert contents(tmp_path / "run") == contents(tmp_path / "quiet")
    assert quiet.episodes == 23


def test_a_block_that_always_kills_its_worker_is_named_and_the_others_are_kept(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("MARKS", str(tmp_path))
    with pytest.raises(WorkerDied, match=r"Dies: block 3 \(episodes 15 to 19\).* 3 attempts"):
        evaluate("random", fault("Dies"), run=tmp_path / "run", executor=TWO, **ARGUMENTS)
    assert len(list(tmp_path.glob("begun-15-*"))) == 3
    assert {0, 1, 2} <= set(RunFolder.open(tmp_path / "run").blocks("episodes"))
    assert 3 not in RunFolder.open(tmp_path / "run").blocks("episodes")


def test_a_block_that_hangs_is_named(tmp_path, capfd):
    with pytest.raises(TimeLimitExceeded, match=r"Hangs: block 3 \(episodes 15 to 19\): took"):
        evaluate(
            "random",
            fault("Hangs"),
            run=tmp_path / "run",
            executor=Processes(workers=2, time_limit=2.0),
            **ARGUMENTS,
        )
    assert "in advance" in capfd.readouterr().err  # where it hung
    assert {0, 1, 2} <= set(RunFolder.open(tmp_path / "run").blocks("episodes"))


def test_a_disk_that_fills_leaves_no_worker_behind(tmp_path, monkeypatch):
    from palestra.store import StoreFailed

    def full(self, kind, index, table):
        raise StoreFailed(28, "no space left on the device")

    monkeypatch.setattr(RunFolder, "write_block", full)
    with pytest.raises(StoreFailed):
        evaluate("random", DRIFT, run=tmp_path / "run", executor=TWO, **ARGUMENTS)
    assert not children(os.getpid())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path, number):
    arguments = [sys.executable, "-m", "palestra", "evaluate", fault("Slow"), "--policy", "random"]
    arguments += [
        "--episodes",
        "9999",
        "--seed",
        "1",
        "--width",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    arguments += ["--executor", "processes", "--workers", "2", "--quiet"]
    parent = subprocess.Popen(
        arguments,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 60
    while not list(tmp_path.glob("run/episodes/*.parquet")):
        assert time.monotonic() < until, parent.communicate()
        time.sleep(0.05)
    workers = children(parent.pid)
    assert len(workers) == 2
    parent.send_signal(number)
    code = parent.wait(30)
    assert code == {signal.SIGKILL: -9, signal.SIGINT: 130}.get(number, 143)
    until = time.monotonic() + 30
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < until, "a worker outlives its parent"
        time.sleep(0.05)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.verify() == ()


def test_another_machine_is_warned_about_or_refused(tmp_path, monkeypatch):
    from palestra import store

    evaluate("random", DRIFT, run=tmp_path / "run", **ARGUMENTS)
    elsewhere = {**store.machine(), "cpu": "another one"}
    monkeypatch.setattr(store, "machine", lambda: elsewhere)
    with pytest.warns(store.ResumedElsewhere, match="cpu"):
        evaluate("random", DRIFT, run=tmp_path / "run", **ARGUMENTS)
    with pytest.raises(RunMismatch, match="began on another machine"):
        evaluate("random", DRIFT, run=tmp_path / "run", strict=True, **ARGUMENTS)


# --- Ray ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ray_writes_the_bytes_of_one_process(tmp_path, undisturbed):
    pytest.importorskip("ray")
    evaluate("random", DRIFT, run=tmp_path / "run", executor=Ray(workers=2), **ARGUMENTS)
    assert contents(tmp_path / "run") == undisturbed[1]


@pytest.mark.slow
def test_ray_names_the_episode_and_the_block(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("MARKS", str(tmp_path))
    two = Ray(workers=2)
    with pytest.raises(NotFinite, match="seed 4, episode 7, step 2: reward is nan"):
        evaluate("random", fault("NaNAtSeven"), executor=two, **ARGUMENTS)
    with pytest.raises(WorkerDied, match=r"Dies: block 3 \(episodes 15 to 19\).* 3 attempts"):
        evaluate("random", fault("Dies"), executor=two, **ARGUMENTS)
    with pytest.raises(TimeLimitExceeded, match=r"Hangs: block 3 \(episodes 15 to 19\)"):
        evaluate("random", fault("Hangs"), executor=Ray(workers=2, time_limit=2.0), **ARGUMENTS)


@pytest.mark.parametrize("first", [0, 1])
def test_a_pool_that_breaks_between_two_items_is_replaced(first, monkeypatch):
    """A worker that dies is noticed by whoever submits next, or by whoever waits."""
    make, submissions = executors._pool, []

    def pool(workers):
        made = make(workers)
        submit = made.submit

        def breaking(*arguments):
            submissions.append(arguments[-1])
            if len(submissions) == first + 1:
                for process in (made._processes or {}).values():
                    process.kill()
                raise BrokenProcessPool
            return submit(*arguments)

        made.submit = breaking
        return made

    monkeypatch.setattr(executors, "_pool", pool)
    work = Work(nothing, Errand(nothing, nothing, None), "", str)
    assert sorted(done.item for done in TWO.map(work, [1, 2, 3])) == [1, 2, 3]
