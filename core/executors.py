"""Where work is done: in this process, in worker processes, or on a Ray cluster.

An executor maps a function over items, such as the blocks of an evaluation or the trials of a
sweep, and yields every result as it arrives. Results do not depend on the executor; it decides
only how long they take and what survives. Work travels as references and numbers, never as code:
a worker imports what it is told by name.

What fails, and what then happens:

- An exception (NaN among them) ends the run. It is not tried again: the same episodes would raise
  it again. It carries a note that says where.
- A worker that dies (killed, out of memory, a node that leaves) is replaced, and the item it had
  is tried again, at most `RETRIES` times; then `WorkerDied` names the item.
- An item that takes longer than `time_limit` has its worker ended, whatever it hangs in; stderr
  shows where it was, and `TimeLimitExceeded` names the item.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_sentinels
from typing import Any, Protocol

RETRIES = 2
STDERR = 2  # the descriptor: it works in a worker whose sys.stderr is something else

# When `auto` leaves this process: only for blocks that outweigh the hand-over, and only if the rest
# would take this much longer here. Workers import torch and compile kernels before they begin, and
# two of them give 1.7 times the speed of one process.
LEAST_ITEM_SECONDS = 0.05
START_UP_SECONDS = 10.0
EFFICIENCY = 0.85


class ItemLost(RuntimeError):
    """An item without a result, which stands in `item`; the others are not to blame."""

    def __init__(self, message: str, item: Any = None) -> None:
        super().__init__(message)
        self.item = item


class WorkerDied(ItemLost):
    """The workers that had an item died, every time; the message names the item."""


class TimeLimitExceeded(ItemLost):
    """An item took longer than the time limit; the message names the item."""


@dataclass(frozen=True)
class Errand:
    """Work as it travels: two functions that are importable by name, and plain data.

    Attributes:
        function: `function(job, item)` does it.
        prepare: `prepare(job)` is called before, outside the time limit.
        job: what both need.
    """

    function: Callable[[Any, Any], Any]
    prepare: Callable[[Any], Any]
    job: Any


@dataclass(frozen=True)
class Work:
    """What is to be done with every item.

    Attributes:
        here: does it in this process.
        elsewhere: does it in any other; None where the work cannot leave this process.
        reason: why it cannot.
        name: what a message calls an item.
    """

    here: Callable[[Any], Any]
    elsewhere: Errand | None
    reason: str
    name: Callable[[Any], str]


@dataclass(frozen=True)
class Done:
    """A result. `here` says that this process did it."""

    item: Any
    result: Any
    here: bool


class Executor(Protocol):
    """Does work; one method."""

    def map(self, work: Work, items: Sequence[Any]) -> Iterator[Done]:
        """The result of every item, in the order in which they are done.

        Raises:
            ValueError: the work cannot leave this process, and would have to.
            WorkerDied: an item whose worker died in every attempt.
            TimeLimitExceeded: an item that took too long.
            Exception: whatever the work raised first.
        """
        ...


@dataclass(frozen=True)
class InProcess:
    """Everything here, one item after the other."""

    def map(self, work: Work, items: Sequence[Any]) -> Iterator[Done]:
        """See `Executor.map`."""
        for item in items:
            yield Done(item, work.here(item), here=True)


@dataclass(frozen=True)
class Processes:
    """Worker processes on this machine, started by spawn.

    Attributes:
        workers: how many; None takes as many as this process may use cores.
        time_limit: seconds an item may take; None: no limit.
    """

    workers: int | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        _check(self.workers, self.time_limit)

    def map(self, work: Work, items: Sequence[Any]) -> Iterator[Done]:
        """See `Executor.map`.

        When a worker dies, the pool loses all of them, and nobody can tell which item was to
        blame. Those that were under way are therefore tried again one at a time.
        """
        errand = _travelling(work)
        waiting, suspects = deque(items), deque[Any]()
        attempts = _Attempts(work, self.time_limit)
        workers = max(1, min(self.workers or cores(), len(waiting)))
        running: dict[Future[Any], tuple[Any, float]] = {}
        pool = _pool(workers)
        try:
            while waiting or suspects or running:
                alone = not running and bool(suspects)
                room = 1 if alone else 0 if suspects else workers - len(running)
                source = suspects if alone else waiting
                for _ in range(min(room, len(source))):
                    try:
                        future = pool.submit(_call, errand, self.time_limit, source[0])
                    except BrokenProcessPool:  # just now; what is under way will say so too
                        break
                    running[future] = source.popleft(), time.monotonic()
                if not running:  # broken while nothing was under way
                    _kill(pool)
                    pool = _pool(workers)
                    continue
                if alone:  # nothing else until it is done
                    wait(running)
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                broken = [f for f in done if isinstance(f.exception(), BrokenProcessPool)]
                results = [Done(running.pop(f)[0], f.result(), False) for f in done - {*broken}]
                if broken:
                    for item, since in running.values():
                        attempts.died(item, since)
                        suspects.append(item)
                    running.clear()
                    _kill(pool)
                    pool = _pool(workers)
                yield from results
            pool.shutdown()
        finally:
            _kill(pool)


@dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster; needs the extra `ray`.

    Attributes:
        address: of a running cluster, "auto" for the one of this machine; None starts one here,
            for as long as the work lasts.
        workers: tasks at a time; None takes as many as the cluster has cores.
        time_limit: seconds an item may take; None: no limit.
    """

    address: str | None = None
    workers: int | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        _check(self.workers, self.time_limit)

    def map(self, work: Work, items: Sequence[Any]) -> Iterator[Done]:
        """See `Executor.map`."""
        errand = _travelling(work)
        try:
            import ray
            from ray import exceptions
        except ImportError:
            raise ImportError(
                "executor: 'ray' needs Ray, which is not installed: pip install 'palestra[ray]'"
            ) from None
        gone = (
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.OutOfMemoryError,
            exceptions.ObjectLostError,
        )
        waiting = deque(items)
        attempts = _Attempts(work, self.time_limit)
        running: dict[Any, tuple[Any, float]] = {}
        with _cluster(ray, self.address, self.workers):
            call = ray.remote(num_cpus=1, max_retries=0)(_call)
            resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            most = self.workers or max(1, int(resources.get("CPU", 1)))
            try:
                while waiting or running:
                    while waiting and len(running) < most:
                        item = waiting.popleft()
                        task = call.remote(errand, self.time_limit, item)
                        running[task] = item, time.monotonic()
                    (task,), _ = ray.wait(list(running), num_returns=1)
                    item, since = running.pop(task)
                    try:
                        result = ray.get(task)
                    except gone:
                        attempts.died(item, since)
                        waiting.appendleft(item)
                    except exceptions.RayTaskError as failed:
                        raise failed.cause from failed
                    else:
                        yield Done(item, result, here=False)
            finally:
                for task in running:
                    ray.cancel(task, force=True)


@dataclass(frozen=True)
class Auto:
    """This process; worker processes for the rest, once that is certain to be quicker.

    Attributes:
        workers: how many there would be; None takes as many as this process may use cores.
        time_limit: seconds an item may take in a worker; None: no limit.
    """

    workers: int | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        _check(self.workers, self.time_limit)

    def map(self, work: Work, items: Sequence[Any]) -> Iterator[Done]:
        """See `Executor.map`."""
        waiting = deque(items)
        workers = min(self.workers or cores(), cores())
        while waiting:
            start = time.perf_counter()
            item = waiting.popleft()
            yield Done(item, work.here(item), here=True)
            seconds = time.perf_counter() - start
            saved = seconds * len(waiting) * (1 - 1 / max(1.0, EFFICIENCY * workers))
            if work.elsewhere and seconds > LEAST_ITEM_SECONDS and saved > START_UP_SECONDS:
                yield from Processes(self.workers, self.time_limit).map(work, waiting)
                return


EXECUTORS: dict[str, Callable[..., Executor]] = {
    "in-process": InProcess,
    "processes": Processes,
    "ray": Ray,
    "auto": Auto,
}


def executor(chosen: str | Executor) -> Executor:
    """The executor of a name, with its defaults; an executor itself stays what it is.

    Raises:
        ValueError: no such name.
    """
    if not isinstance(chosen, str):
        return chosen
    if chosen not in EXECUTORS:
        raise ValueError(f"executor: got {chosen!r}, allowed {', '.join(EXECUTORS)}")
    return EXECUTORS[chosen]()


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check(workers: Any, time_limit: Any) -> None:
    if workers is not None and (type(workers) is not int or workers < 1):
        raise ValueError(f"workers: got {workers!r}, allowed an integer of at least 1")
    numeric = isinstance(time_limit, int | float) and not isinstance(time_limit, bool)
    if time_limit is not None and not (numeric and 0 < time_limit < float("inf")):
        raise ValueError(f"time_limit: got {time_limit!r}, allowed a positive number of seconds")


def _travelling(work: Work) -> Errand:
    if work.elsewhere is None:
        raise ValueError(f"executor: this work cannot leave the process. {work.reason}")
    return work.elsewhere


class _Attempts:
    """Counts the workers that died over an item, and gives up."""

    def __init__(self, work: Work, time_limit: float | None) -> None:
        self.work = work
        self.time_limit = time_limit
        self.deaths: Counter[str] = Counter()

    def died(self, item: Any, since: float) -> None:
        name = self.work.name(item)
        if self.time_limit is not None and time.monotonic() - since >= self.time_limit:
            raise TimeLimitExceeded(
                f"{name}: took longer than the time limit of {self.time_limit:g} s; its worker was "
                "ended, and said on stderr where it was",
                item,
            )
        self.deaths[name] += 1
        if self.deaths[name] > RETRIES:
            raise WorkerDied(
                f"{name}: its worker died in {self.deaths[name]} attempts. Killed for want of "
                "memory? A crash in compiled code? What was finished before is kept",
                item,
            )


# --- inside a worker ------------------------------------------------------------------------------


def _call(errand: Errand, time_limit: float | None, item: Any) -> Any:
    errand.prepare(errand.job)
    if time_limit is not None:  # a thread of its own that needs no interpreter: it ends any hang
        faulthandler.dump_traceback_later(time_limit, exit=True, file=STDERR)
    try:
        return errand.function(errand.job, item)
    except Exception as problem:
        _must_be_picklable(problem)
        raise
    finally:
        if time_limit is not None:
            faulthandler.cancel_dump_traceback_later()


def _must_be_picklable(problem: Exception) -> None:
    """Raise another exception in place of one that would not arrive: it would break the pool."""
    try:
        pickle.loads(pickle.dumps(problem))  # noqa: S301 - our own bytes
    except Exception:
        told = RuntimeError(f"{type(problem).__name__}: {problem}")
        for note in getattr(problem, "__notes__", ()):
            told.add_note(note)
        raise told from None


def _enter_worker() -> None:
    """Leave Ctrl-C and SIGUSR1 to the parent, and end when it ends, even killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_sentinels([parent.sentinel])
        os._exit(1)


# --- pools ----------------------------------------------------------------------------------------


def _pool(workers: int) -> ProcessPoolExecutor:
    # spawn: a fork would copy the locks of numba's and torch's threads
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_enter_worker)


def _kill(pool: ProcessPoolExecutor) -> None:
    """End the workers of a pool at once. Python 3.14 has a method for it."""
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.kill()
    pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _cluster(ray: Any, address: str | None, workers: int | None) -> Iterator[None]:
    """Be connected to a cluster; one that was started or joined here is left again."""
    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    with contextlib.ExitStack() as stack:
        if address is None:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            )
            quiet |= {
                "num_cpus": workers or cores(),
                "include_dashboard": False,
                "_temp_dir": folder,
            }
        else:
            quiet["address"] = address
        ray.init(**quiet)
        stack.callback(ray.shutdown)
        yield
