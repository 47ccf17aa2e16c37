"""A run that fails, or is killed, at any one call to the disk: nothing finished is lost.

Every call that changes the disk goes through `palestra.disk.disk`. Call number k is made to fail,
for every k; then the run is resumed and must end with the bytes of one that was never disturbed.
"""

import contextlib
import errno
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from palestra import disk as disk_module
from palestra import store
from palestra.disk import Disk
from palestra.store import RunFolder, StoreFailed, to_json, write_atomic

CALLS = [name for name in vars(Disk) if not name.startswith("_")]
BLOCKS = 3


class Tampered(Disk):
    """Counts the calls; before the chosen one, does `harm`. Flushing is counted, not done."""

    def __init__(self, at=0, harm=None, from_then_on=False):
        self.count = 0
        self.trace = []

        def tampered(name):
            call = getattr(super(Tampered, self), name)

            def counted(*arguments):
                self.count += 1
                if self.count == at or (from_then_on and 0 < at <= self.count):
                    harm(name, arguments)
                self.trace.append((name, *arguments))
                return None if name.startswith("fsync") else call(*arguments)

            return counted

        for name in CALLS:
            setattr(self, name, tampered(name))


def refuse(name, arguments):
    if name == "write":
        os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def leave(name, arguments):
    """The process ends here, in the middle of a write if it is one."""
    if name == "write":
        os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
    os._exit(99)


def block(kind, index):
    random = np.random.default_rng([len(kind), index])
    return pa.table({"episode": np.arange(5) + 5 * index, "return": random.normal(size=5)})


def run(path: Path, finished=lambda what: None) -> RunFolder:
    """A small training run: it resumes what it finds, and says `finished(what)` as it goes."""
    folder = RunFolder.create_or_resume(path, {"seed": 1})
    with folder.lock():
        for index in range(BLOCKS):
            for kind in ("episodes", "steps"):
                if not folder.has_block(kind, index):
                    folder.write_block(kind, index, block(kind, index))
                finished((kind, index))
            # Publishing what stands changes nothing, but ends a clearing-away that was cut short.
            newest = folder.latest("step-")
            if newest is None or int(newest.name.removeprefix("step-")) <= index:
                files = {"policy.bin": b"%d" % index, "state.json": to_json({"step": index})}
                folder.publish(f"step-{index}", files)
            finished(("checkpoint", index))
        folder.finish()
    return folder


def contents(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module", autouse=True)
def one_machine():
    """Asking the machine what it is takes longer than the whole run."""
    known = store.machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "machine", lambda: known)
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(path).verify() == ()
    return contents(path)


@pytest.fixture(scope="module")
def number_of_calls(tmp_path_factory):
    """How many calls change the disk in an undisturbed run."""
    counter = Tampered()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_module, "disk", counter)
        run(tmp_path_factory.mktemp("counted") / "run")
    kinds = {call[0] for call in counter.trace}
    assert kinds == set(CALLS)
    assert counter.count > 100
    return counter.count


def assert_nothing_finished_is_lost(path: Path, said: list[tuple[str, int]]) -> None:
    if not (path / "run.json").exists():
        assert said == []
        return
    folder = RunFolder.open(path)
    for kind in ("episodes", "steps"):
        indices = folder.blocks(kind)
        assert set(indices) >= {index for what, index in said if what == kind}
        for index in indices:  # what has a final name is whole
            assert folder.read_block(kind, index).equals(block(kind, index))
    published = [index for what, index in said if what == "checkpoint"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none is passed over as damaged either
        newest = folder.latest("step-")
    if newest is not None:
        step = int(newest.name.removeprefix("step-"))
        assert step >= max(published, default=0)
        assert (newest / "policy.bin").read_bytes() == b"%d" % step
    else:
        assert published == []


def run_in_child(path: Path, tampered: Tampered) -> tuple[int, list[tuple[str, int]]]:
    """Run in a forked process. Its exit code, and what it said it had finished."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads; it only exits
        pid = os.fork()
    if pid == 0:
        code = 98
        with contextlib.suppress(BaseException):
            disk_module.disk = tampered
            run(path, lambda what: os.write(send, f"{what[0]} {what[1]}\n".encode()))
            code = 0
        os._exit(code)
    os.close(send)
    with os.fdopen(receive) as lines:
        said = [(line.split()[0], int(line.split()[1])) for line in lines]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def test_killed_at_every_call_the_run_resumes_to_the_same_bytes(
    tmp_path, undisturbed, number_of_calls
):
    for at in range(1, number_of_calls + 1):
        path = tmp_path / f"{at}" / "run"
        path.parent.mkdir()
        code, said = run_in_child(path, Tampered(at, leave))
        assert code == 99, at
        assert_nothing_finished_is_lost(path, said)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk_module, "disk", Tampered())
            run(path)
        assert contents(path) == undisturbed, at  # and no temporary, no lock
        shutil.rmtree(path)


@pytest.mark.parametrize("from_then_on", [False, True], ids=["once", "from then on"])
def test_an_error_at_every_call_is_said_and_the_run_resumes_to_the_same_bytes(
    tmp_path, undisturbed, number_of_calls, from_then_on, monkeypatch
):
    silent = 0
    for at in range(1, number_of_calls + 1):
        path = tmp_path / f"{at}" / "run"
        path.parent.mkdir()
        said = []
        tampered = Tampered(at, refuse, from_then_on)
        monkeypatch.setattr(disk_module, "disk", tampered)
        failure = None
        try:
            run(path, said.append)
            silent += 1  # only giving the lock back may fail in silence: it is void soon anyway
        except StoreFailed as error:
            failure = error
        if failure is not None:
            assert failure.errno == errno.EIO
            assert "input/output error" in str(failure)
        assert_nothing_finished_is_lost(path, said)
        # One error leaves no temporary, except of a checkpoint that was being cleared away. A
        # process whose disk failed altogether could not clean up at all; its successor does.
        left = list(path.rglob(".*"))
        if not from_then_on:
            assert all(p.match("run/.lock-*") or p.match("run/checkpoints/.tmp-*") for p in left)
        monkeypatch.setattr(disk_module, "disk", Tampered())
        if left:
            code, _ = run_in_child_after_death(path)
            assert code == 0
        else:
            run(path)
        assert contents(path) == undisturbed, at
        shutil.rmtree(path, ignore_errors=True)
    assert silent <= 4


def run_in_child_after_death(path: Path) -> tuple[int, list[tuple[str, int]]]:
    """Resume as if this process had ended: its own marks are taken for those of a dead one."""
    from palestra.machine import Process

    here = Process.current().token
    gone = here.rpartition("~")[0] + "~1"  # the same number, but begun at another time
    for left in sorted(path.rglob(".*")):
        left.rename(left.with_name(left.name.replace(here, gone)))
    return run_in_child(path, Tampered())


def test_every_rename_comes_after_the_flush_of_what_it_names_and_before_that_of_the_folder(
    tmp_path, monkeypatch
):
    """What a power cut needs: content first, then the name, then the folder that holds the name."""
    dirty: set[Path] = set()  # files and folders with content that is not on the disk yet
    path_of: dict[int, Path] = {}
    renamed: list[str] = []

    class Watching(Disk):
        def make_folder(self, path):
            super().make_folder(path)
            dirty.add(path.parent)

        def create(self, path):
            descriptor = super().create(path)
            path_of[descriptor] = path
            dirty.update((path, path.parent))
            return descriptor

        def write(self, descriptor, data):
            dirty.add(path_of[descriptor])
            return super().write(descriptor, data)

        def fsync(self, descriptor):
            dirty.discard(path_of[descriptor])

        def fsync_folder(self, path):
            dirty.discard(path)

        def rename(self, source, target):
            if not target.name.startswith("."):  # taking a name away needs no flush before
                renamed.append(target.name)
                assert source not in dirty, target
                assert not [path for path in dirty if path.parent == source], target
            super().rename(source, target)
            dirty.add(target.parent)

    monkeypatch.setattr(disk_module, "disk", Watching())
    waiting = []
    folder = run(tmp_path / "run", lambda what: waiting.append(set(dirty)))
    assert len(renamed) == 1 + 2 * BLOCKS + BLOCKS + 1  # run.json, blocks, checkpoints, manifest
    assert len(waiting) == 3 * BLOCKS
    own_lock = {path for path in dirty if path.name.startswith(".lock-")}  # need not last
    assert all(dirty <= own_lock for dirty in waiting)  # flushed before it is called finished
    assert dirty <= own_lock
    assert folder.verify() == ()


def test_an_existing_file_survives_every_fault_while_it_is_replaced(tmp_path, monkeypatch):
    file = tmp_path / "report.html"
    for at in range(1, 7):
        file.write_bytes(b"old")
        tampered = Tampered(at, refuse)
        monkeypatch.setattr(disk_module, "disk", tampered)
        with contextlib.suppress(StoreFailed):
            write_atomic(file, b"new and longer")
        assert file.read_bytes() in (b"old", b"new and longer")
        assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    monkeypatch.setattr(disk_module, "disk", Tampered())
    write_atomic(file, b"new and longer")
    assert [call[0] for call in disk_module.disk.trace] == [
        "create", "write", "fsync", "close", "rename", "fsync_folder",
    ]  # fmt: skip


def test_short_writes_are_continued(tmp_path, monkeypatch):
    class Dribbling(Disk):
        def write(self, descriptor, data):
            return super().write(descriptor, data[:7])

    monkeypatch.setattr(disk_module, "disk", Dribbling())
    write_atomic(tmp_path / "a", bytes(range(100)))
    assert (tmp_path / "a").read_bytes() == bytes(range(100))
