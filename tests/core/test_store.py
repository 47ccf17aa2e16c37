"""Run folders: what is finished stays finished, and nothing damaged is read as if it were sound."""

import dataclasses
import errno
import hashlib
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from palestra import disk as disk_module
from palestra import store
from palestra.blocks import decode_block, encode_block
from palestra.machine import Process
from palestra.run_schema import FIELDS
from palestra.safe_files import MalformedFile, UnsafeFile
from palestra.store import (
    CorruptBlock,
    CorruptFile,
    ResumedElsewhere,
    RunFolder,
    RunLocked,
    RunMismatch,
    StoreFailed,
    read_json,
    to_json,
    write_atomic,
)
from palestra.train import TrainConfig

CONFIG = {"env": {"id": "palestra/NMRRelax-v0", "horizon": 4}, "seed": 7, "width": 64}


def table(index: int, rows: int = 64) -> pa.Table:
    random = np.random.default_rng(index)
    return pa.table(
        {
            "episode": np.arange(rows, dtype=np.uint64) + rows * index,
            "return": random.normal(size=rows),
            "length": random.integers(1, 100, rows, dtype=np.int32),
        }
    )


def new_run(path: Path, blocks: int = 0) -> RunFolder:
    folder = RunFolder.create_or_resume(path / "run", CONFIG)
    with folder.lock():
        for index in range(blocks):
            folder.write_block("episodes", index, table(index))
    return folder


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A fresh interpreter that runs `code`; its standard output can be read line by line."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


# ------------------------------------------------------------------------------------------ JSON


def test_json_has_sorted_keys_and_plain_numbers():
    document = {"b": np.float32(0.5), "a": np.int64(3), "c": (True, None, np.bool_(False)), "é": ""}
    text = (
        '{\n  "a": 3,\n  "b": 0.5,\n  "c": [\n    true,\n    null,\n    false\n  ],\n  "é": ""\n}\n'
    )
    assert to_json(document) == text.encode()


@pytest.mark.parametrize(
    ("document", "error", "place"),
    [
        ({"a": [1.0, float("nan")]}, ValueError, r"a\[1\] is nan"),
        ({"a": {"b": np.float64("inf")}}, ValueError, r"a\.b is inf"),
        ({"a": {1: 2}}, TypeError, r"a has the key 1"),
        ({"path": Path("x")}, TypeError, r"path is a PosixPath"),
        ({"w": np.zeros(3)}, TypeError, r"w is a ndarray"),
    ],
)
def test_what_json_does_not_have_is_refused_with_its_place(document, error, place):
    with pytest.raises(error, match=place):
        to_json(document)


def test_nesting_beyond_64_is_refused_in_both_directions(tmp_path):
    def nested(levels):
        document: object = 1
        for _ in range(levels):
            document = [document]
        return document

    write_atomic(tmp_path / "a.json", to_json(nested(64)))
    assert read_json(tmp_path / "a.json") == nested(64)
    with pytest.raises(ValueError, match="64"):
        to_json(nested(65))
    for levels in (65, 10**6):
        (tmp_path / "b.json").write_bytes(b"[" * levels + b"]" * levels)
        with pytest.raises(MalformedFile, match="64"):
            read_json(tmp_path / "b.json")


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "{", "\xff"])
def test_json_that_is_not_strict_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(MalformedFile, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_json_over_the_limit_is_refused(tmp_path):
    (tmp_path / "a.json").write_bytes(b"[" + b" " * 100 + b"]")
    assert read_json(tmp_path / "a.json", limit_bytes=102) == []
    with pytest.raises(UnsafeFile, match="larger than 101 bytes"):
        read_json(tmp_path / "a.json", limit_bytes=101)


# ---------------------------------------------------------------------------------------- blocks


def test_blocks_come_back_in_order_of_their_index(tmp_path):
    folder = new_run(tmp_path)
    with folder.lock():
        for index in (10, 2, 0):
            folder.write_block("episodes", index, table(index))
        folder.write_block("steps", 0, table(99, rows=500))
    reader = RunFolder.open(folder.path)
    assert reader.blocks("episodes") == [0, 2, 10]
    assert reader.read("episodes").equals(pa.concat_tables([table(0), table(2), table(10)]))
    assert reader.read("episodes", ["length"]).column_names == ["length"]
    assert reader.read("steps").equals(table(99, rows=500))
    assert reader.has_block("episodes", 2)
    assert not reader.has_block("episodes", 1)
    assert reader.block_path("episodes", 2) == folder.path / "episodes" / "00000002.parquet"
    assert reader.read("nothing").num_rows == 0


def test_the_same_rows_give_the_same_bytes_however_chunked_and_in_a_fresh_process():
    whole = table(3, rows=1000)
    for rows in (whole, table(3, rows=20_000)):  # more than one batch of the Parquet writer
        parts = pa.concat_tables([rows.slice(0, 1), rows.slice(1, 998), rows.slice(999)])
        assert parts.column(0).num_chunks == 3
        assert encode_block(parts) == encode_block(rows)
    code = """
import hashlib, numpy as np, pyarrow as pa
from palestra.blocks import encode_block
random = np.random.default_rng(3)
print(hashlib.sha256(encode_block(pa.table({
    "episode": np.arange(1000, dtype=np.uint64) + 3000,
    "return": random.normal(size=1000),
    "length": random.integers(1, 100, 1000, dtype=np.int32)}))).hexdigest())
"""
    there, _ = child(code).communicate(timeout=60)
    assert there.strip() == hashlib.sha256(encode_block(whole)).hexdigest()


def test_any_parquet_reader_reads_a_block(tmp_path):
    folder = new_run(tmp_path, blocks=1)
    assert pq.read_table(folder.block_path("episodes", 0)).equals(table(0))


def test_a_bit_flipped_at_201_places_is_never_read_as_data(tmp_path):
    folder = new_run(tmp_path, blocks=1)
    path = folder.block_path("episodes", 0)
    sound = path.read_bytes()
    for place in np.linspace(0, 8 * len(sound) - 1, 201).astype(int):
        damaged = bytearray(sound)
        damaged[place // 8] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptBlock, match=r"episodes/00000000\.parquet"):
            folder.read("episodes")


def test_every_single_bit_of_a_block_is_covered():
    """Page checksums alone let 237 of 15 864 flips through: the footer, for one, names columns."""
    sound = encode_block(table(0))
    unnoticed = 0
    for place in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[place // 8] ^= 1 << (place % 8)
        try:
            decode_block(bytes(damaged))
            unnoticed += 1
        except CorruptBlock:
            pass
    assert unnoticed == 0
    assert decode_block(sound).equals(table(0))


def test_a_block_cut_short_or_extended_or_foreign_is_refused():
    sound = encode_block(table(0))
    for length in range(len(sound)):
        with pytest.raises(CorruptBlock):
            decode_block(sound[:length])
    sink = pa.BufferOutputStream()
    pq.write_table(table(0), sink)
    for data in (sound + b"\0", sound * 2, sink.getvalue().to_pybytes()):
        with pytest.raises(CorruptBlock):
            decode_block(data)


def test_page_checksums_stand_in_the_file():
    """For readers that do not know our seal: a flip in a page is found by Parquet's own means."""
    sound = encode_block(table(0))
    chunk = pq.read_metadata(pa.BufferReader(sound)).row_group(0).column(1)
    damaged = bytearray(sound)
    damaged[chunk.dictionary_page_offset + chunk.total_compressed_size - 3] ^= 1
    with pytest.raises(OSError, match=r"(?i)crc"):
        pq.read_table(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)


def test_a_finished_block_is_written_once(tmp_path):
    folder = new_run(tmp_path, blocks=1)
    before = folder.block_path("episodes", 0).stat().st_mtime_ns
    with folder.lock():
        folder.write_block("episodes", 0, table(0))
        with pytest.raises(ValueError, match="did not repeat"):
            folder.write_block("episodes", 0, table(1))
    assert folder.block_path("episodes", 0).stat().st_mtime_ns == before


def test_blocks_with_other_columns_are_refused(tmp_path):
    folder = new_run(tmp_path, blocks=1)
    with folder.lock():
        folder.write_block("episodes", 1, table(1).drop_columns(["length"]))
    with pytest.raises(CorruptBlock, match=r"00000001\.parquet.*columns"):
        folder.read("episodes")


@pytest.mark.parametrize("kind", ["../x", "Episodes", "", "a/b", "checkpoints", ".lock"])
def test_block_kinds_cannot_leave_the_folder(tmp_path, kind):
    with pytest.raises(ValueError, match="block kind"):
        new_run(tmp_path).block_path(kind, 0)


def test_writing_needs_the_lock_and_a_folder_opened_to_write(tmp_path):
    folder = new_run(tmp_path, blocks=1)
    for write in (
        lambda: folder.write_block("episodes", 1, table(1)),
        lambda: folder.publish("step-1", {}),
        folder.finish,
    ):
        with pytest.raises(RuntimeError, match="needs the lock"):
            write()
    reader = RunFolder.open(folder.path)
    with pytest.raises(PermissionError, match="reading only"), reader.lock():
        pass
    with pytest.raises(PermissionError, match="reading only"):
        reader.write("report.html", b"")


# --------------------------------------------------------------------------------- configuration


def test_run_json_is_there_before_anything_else(tmp_path):
    folder = new_run(tmp_path)
    document = json.loads((folder.path / "run.json").read_bytes())
    assert document["schema"] == "palestra.run/1"
    assert document["config"]["env"] == CONFIG["env"]
    assert document["config"]["machine"]["libraries"]["numpy"] == np.__version__
    assert RunFolder.open(folder.path).config == folder.config == document["config"]


def test_another_configuration_is_refused_with_the_keys_that_differ(tmp_path):
    new_run(tmp_path)
    other = {"env": {"id": "palestra/NMRRelax-v0", "horizon": 5}, "seed": 7, "rows": 64}
    with pytest.raises(RunMismatch, match=r"env\.horizon \(4 there, 5 asked\)") as caught:
        RunFolder.create_or_resume(tmp_path / "run", other)
    assert caught.value.keys == ("env.horizon", "rows", "width")
    with pytest.raises(RunMismatch) as caught:
        RunFolder.create_or_resume(tmp_path / "run", CONFIG, schema="palestra.training/1")
    assert caught.value.keys == ("schema",)


def test_the_same_configuration_in_other_python_types_is_the_same_run(tmp_path):
    new_run(tmp_path, blocks=1)
    same = {"width": np.int64(64), "seed": 7, "env": CONFIG["env"], "notes": {"why": "again"}}
    resumed = RunFolder.create_or_resume(tmp_path / "run", same)
    assert resumed.blocks("episodes") == [0]
    assert "notes" not in resumed.config  # run.json is written once


def test_another_machine_is_recorded_and_warned_about_and_refused_if_strict(tmp_path, monkeypatch):
    folder = new_run(tmp_path)
    then = folder.config["machine"]
    now = {**then, "host": "elsewhere", "libraries": {**then["libraries"], "numpy": "9.9"}}
    monkeypatch.setattr(store, "machine", lambda: now)
    for _ in range(2):
        with pytest.warns(ResumedElsewhere, match=r"machine\.libraries\.numpy \(.* then, \"9\.9\""):
            RunFolder.create_or_resume(folder.path, CONFIG)
    assert read_json(folder.path / "resumes.json") == [now]
    with pytest.raises(RunMismatch) as caught:
        RunFolder.create_or_resume(folder.path, CONFIG, strict=True)
    assert caught.value.keys == ("machine.host", "machine.libraries.numpy")


def test_a_library_that_was_installed_or_removed_meanwhile_is_no_other_machine(
    tmp_path, monkeypatch
):
    folder = new_run(tmp_path)
    then = folder.config["machine"]
    libraries = {**then["libraries"], "a-new-one": "9.9"}
    libraries.pop("gymnasium")
    monkeypatch.setattr(store, "machine", lambda: {**then, "libraries": libraries})
    RunFolder.create_or_resume(folder.path, CONFIG, strict=True)  # no warning, which would fail
    assert not (folder.path / "resumes.json").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunMismatch, match=r"thesis\.tex"):
        RunFolder.create_or_resume(tmp_path, CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(FileNotFoundError, match=r"no run\.json"):
        RunFolder.open(tmp_path)


def test_a_newer_schema_and_a_damaged_run_json_are_refused(tmp_path):
    folder = new_run(tmp_path)
    file = folder.path / "run.json"
    sound = file.read_bytes()
    file.write_bytes(sound.replace(b"palestra.run/1", b"palestra.run/2"))
    for enter in (RunFolder.open, lambda path: RunFolder.create_or_resume(path, CONFIG)):
        with pytest.raises(CorruptFile, match=r"'palestra\.run/2' is newer than 'palestra\.run/1'"):
            enter(folder.path)
    for damage in (sound[:-20], b"", b"[]", b'{"config": 3}'):
        file.write_bytes(damage)
        with pytest.raises(MalformedFile, match=r"run\.json"):
            RunFolder.open(folder.path)


# ------------------------------------------------------------------------------------------ lock

HOLD = """
import sys, time
from palestra.store import RunFolder
folder = RunFolder.create_or_resume(sys.argv[1], {"seed": 1})
with folder.lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_told_who_holds_the_run_and_a_dead_one_is_replaced_at_once(tmp_path):
    holder = child(HOLD, tmp_path / "run")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        folder = RunFolder.create_or_resume(tmp_path / "run", {"seed": 1})
        with (
            pytest.raises(RunLocked, match=f"process {holder.pid} on host") as caught,
            folder.lock(),
        ):
            pytest.fail("two writers")
        assert (caught.value.pid, caught.value.host) == (holder.pid, Process.current().host)
        with folder.lock("shard-1"):  # another name is another lock
            pass
        holder.send_signal(signal.SIGKILL)  # not yet waited for: a zombie counts as dead
        before = time.monotonic()
        while True:
            try:
                with folder.lock(wait=0.0):
                    break
            except RunLocked:
                assert time.monotonic() - before < 5
        assert time.monotonic() - before < 5
    finally:
        holder.kill()
        holder.wait()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["run.json"]


def lock_of(folder: RunFolder, **changed: object) -> Path:
    here = Process.current()
    fields = {"host": here.host, "boot": here.boot, "pid": here.pid, "start": here.start, **changed}
    file = folder.path / f".lock-writer~{'~'.join(map(str, fields.values()))}~00000000"
    file.write_bytes(b"")  # content is for people only: a torn lock file is as good as a whole one
    return file


@pytest.mark.parametrize(
    "changed", [{"pid": 2**22 + 1}, {"start": "1"}, {"boot": "00000000"}], ids=str
)
def test_the_lock_of_a_process_that_is_gone_is_void(tmp_path, changed):
    """No such process; its number now belongs to another one; the machine has restarted since."""
    folder = new_run(tmp_path)
    file = lock_of(folder, **changed)
    with folder.lock(wait=0.0):
        assert not file.exists()


def test_the_lock_of_another_host_holds_while_it_is_heard_of(tmp_path):
    folder = new_run(tmp_path)
    file = lock_of(folder, host="node-17", pid=4)
    heard = time.time()
    os.utime(file, (heard, heard - store.LEASE + 20))
    with (
        pytest.raises(RunLocked, match=r"process 4 on host node-17.*void in 120 s at most"),
        folder.lock(wait=0.0),
    ):
        pytest.fail("two writers")
    os.utime(file, (heard, heard - store.LEASE - 20))
    with folder.lock(wait=0.0):
        assert not file.exists()


def test_the_lock_of_a_dead_host_falls_although_the_clock_was_set_back(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "HEARTBEAT", 0.05)
    folder = new_run(tmp_path)
    file = lock_of(folder, host="node-17", pid=4)
    tomorrow = time.time() + 86_400
    os.utime(file, (tomorrow, tomorrow))
    with folder.lock(wait=0.0):
        assert not file.exists()
        folder.write_block("episodes", 0, table(0))


def test_the_lock_of_a_living_host_holds_although_the_clock_was_set_back(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "HEARTBEAT", 0.05)
    folder = new_run(tmp_path)
    file = lock_of(folder, host="node-17", pid=4)
    tomorrow = time.time() + 86_400
    os.utime(file, (tomorrow, tomorrow))
    over = threading.Event()

    def beat():
        while not over.wait(0.02):
            os.utime(file)

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        with pytest.raises(RunLocked, match="host node-17"), folder.lock(wait=0.0):
            pytest.fail("two writers")
    finally:
        over.set()
        heart.join()


def test_finished_blocks_are_read_although_the_clock_was_set_back(tmp_path):
    folder = new_run(tmp_path)
    with folder.lock():
        folder.write_block("episodes", 0, table(0))
    for file in folder.path.rglob("*"):
        os.utime(file, (2e9, 2e9))  # the year 2033
    again = RunFolder.open(folder.path, writable=True)
    with again.lock():
        again.write_block("episodes", 1, table(1))
    assert again.blocks("episodes") == [0, 1]
    assert again.verify() == ()


def test_who_holds_a_lock_is_heard_of(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "HEARTBEAT", 0.01)
    folder = new_run(tmp_path)
    with folder.lock():
        (file,) = folder.path.glob(".lock-writer~*")
        os.utime(file, (1.0, 1.0))
        until = time.monotonic() + 10
        while file.stat().st_mtime < 2:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_who_slept_through_the_lease_writes_no_more(tmp_path):
    folder = new_run(tmp_path)
    with folder.lock():
        folder.write_block("episodes", 0, table(0))
        (file,) = folder.path.glob(".lock-writer~*")
        file.unlink()  # another host took over
        with pytest.raises(RunLocked, match="not heard of for 120 s"):
            folder.write_block("episodes", 1, table(1))
    assert folder.blocks("episodes") == [0]


def test_of_many_that_want_the_lock_at_once_never_two_have_it(tmp_path):
    """Eight threads stand for eight processes: the protocol sees files only."""
    new_run(tmp_path)
    inside, overlaps, entered = [0], [0], [0]
    barrier = threading.Barrier(8)

    def candidate():
        folder = RunFolder(tmp_path / "run", {}, writable=True)
        barrier.wait()
        for _ in range(5):
            with folder.lock(wait=30.0):
                inside[0] += 1
                entered[0] += 1
                overlaps[0] += inside[0] > 1
                time.sleep(0.001)
                inside[0] -= 1

    threads = [threading.Thread(target=candidate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (entered[0], overlaps[0]) == (40, 0)


def test_global_random_state_is_untouched(tmp_path):
    import random

    state, numpy_state = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    new_run(tmp_path, blocks=1)
    assert random.getstate() == state
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_leftovers_of_the_dead_are_deleted_and_those_of_the_living_kept(tmp_path):
    folder = new_run(tmp_path, blocks=1)
    here = Process.current()
    dead = f".tmp-{here.host}~{here.boot}~{2**22 + 1}~5~0badcafe"
    elsewhere = f".tmp-node-17~{here.boot}~4~5~0badcafe"
    alive = f".tmp-{here.token}~0badcafe"
    for place in (folder.path, folder.path / "episodes"):
        for name in (dead, elsewhere, alive):
            (place / name).write_bytes(b"half a block")
    (folder.path / "checkpoints" / dead).mkdir(parents=True)
    (folder.path / "checkpoints" / dead / "policy.bin").write_bytes(b"half")
    assert RunFolder.open(folder.path).blocks("episodes") == [0]  # readers ignore them
    assert folder.latest() is None
    with folder.lock():
        pass
    for place in (folder.path, folder.path / "episodes"):
        assert not (place / dead).exists()
        assert (place / elsewhere).exists()
        assert (place / alive).exists()
    assert list((folder.path / "checkpoints").iterdir()) == []


# ------------------------------------------------------------------------------ finish and verify


def test_verify_names_every_file_that_changed_after_finish(tmp_path):
    folder = new_run(tmp_path, blocks=3)
    assert not folder.finished
    assert folder.verify() == ()
    with folder.lock():
        manifest = read_json(folder.finish())
    assert folder.finished
    assert folder.verify() == ()
    assert list(manifest["files"]) == [
        "episodes/00000000.parquet",
        "episodes/00000001.parquet",
        "episodes/00000002.parquet",
        "run.json",
    ]
    block = folder.block_path("episodes", 0).read_bytes()
    assert manifest["files"]["episodes/00000000.parquet"] == {
        "bytes": len(block),
        "sha256": hashlib.sha256(block).hexdigest(),
    }

    folder.block_path("episodes", 0).write_bytes(encode_block(table(7)))  # sound, but another
    folder.block_path("episodes", 1).unlink()
    shutil.copy(folder.block_path("episodes", 2), folder.block_path("episodes", 3))
    problems = "\n".join(RunFolder.open(folder.path).verify())
    assert "episodes/00000003.parquet: not in the manifest" in problems
    assert "episodes/00000000.parquet: SHA-256 differs" in problems
    assert "episodes/00000001.parquet: in the manifest, but missing" in problems
    assert problems.count("\n") == 2


def test_verify_without_a_manifest_checks_each_block_by_itself(tmp_path):
    folder = new_run(tmp_path, blocks=2)
    path = folder.block_path("episodes", 1)
    path.write_bytes(path.read_bytes()[:-1])
    assert len(folder.verify()) == 1
    assert folder.verify()[0].startswith("episodes/00000001.parquet: ")
    with folder.lock(), pytest.raises(CorruptBlock, match=r"00000001"):
        folder.finish()
    assert not folder.finished


# ----------------------------------------------------------------------------------- checkpoints


def test_the_last_two_checkpoints_of_a_series_stay(tmp_path):
    folder = new_run(tmp_path)
    with folder.lock():
        folder.publish("best-1", {"policy.bin": b"best"})
        for step in (100, 200, 50, 300):  # order of publication, not of the numbers or the clock
            path = folder.publish(f"step-{step}", {"policy.bin": b"%d" % step, "empty": b""})
            os.utime(path, (10**9 - step, 10**9 - step))
    assert sorted(p.name for p in (folder.path / "checkpoints").iterdir()) == [
        "best-1",
        "step-300",
        "step-50",
    ]
    newest = RunFolder.open(folder.path).latest("step-")
    assert newest == folder.path / "checkpoints" / "step-300"
    assert (newest / "policy.bin").read_bytes() == b"300"
    assert folder.latest("best-").name == "best-1"
    assert folder.latest("other-") is None
    assert folder.verify() == ()


def test_a_damaged_checkpoint_is_passed_over_and_may_be_published_again(tmp_path):
    folder = new_run(tmp_path)
    with folder.lock():
        folder.publish("step-1", {"policy.bin": b"one"})
        newest = folder.publish("step-2", {"policy.bin": b"two"})
        (newest / "policy.bin").write_bytes(b"twx")
        with pytest.warns(RuntimeWarning, match=r"step-2 is passed over: policy\.bin differs"):
            assert folder.latest().name == "step-1"
        assert folder.verify() == ("checkpoints/step-2: policy.bin differs from its manifest",)
        folder.publish("step-2", {"policy.bin": b"two"})
        assert folder.latest() == newest
        (newest / "policy.bin").unlink()
        with pytest.warns(RuntimeWarning, match=r"policy\.bin is missing"):
            assert folder.latest().name == "step-1"


def test_a_checkpoint_name_is_used_once(tmp_path):
    folder = new_run(tmp_path)
    with folder.lock():
        first = folder.publish("step-1", {"policy.bin": b"one"})
        assert folder.publish("step-1", {"policy.bin": b"one"}) == first
        with pytest.raises(ValueError, match="choose another name"):
            folder.publish("step-1", {"policy.bin": b"two"})
        assert (first / "policy.bin").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("name", "files", "keep"),
    [
        ("../step", {}, 2),
        (".tmp-1", {}, 2),
        ("step-1", {"a/b": b""}, 2),
        ("step-1", {"..": b""}, 2),
        ("step-1", {"manifest.json": b""}, 2),
        ("step-1", {}, 0),
    ],
)
def test_checkpoint_names_cannot_leave_the_folder(tmp_path, name, files, keep):
    folder = new_run(tmp_path)
    with folder.lock(), pytest.raises(ValueError, match=r"name|itself|keep"):
        folder.publish(name, files, keep=keep)


def test_a_manifest_that_points_outside_is_not_followed(tmp_path):
    folder = new_run(tmp_path)
    with folder.lock():
        path = folder.publish("step-1", {"policy.bin": b"one"})
    manifest = read_json(path / "manifest.json")
    manifest["files"]["../../run.json"] = manifest["files"].pop("policy.bin")
    (path / "manifest.json").write_bytes(to_json(manifest))
    with pytest.warns(RuntimeWarning, match="names the file"):
        assert folder.latest() is None


# -------------------------------------------------------------------------- a disk that says no


def test_a_full_disk_is_said_and_earlier_blocks_are_intact(tmp_path):
    """The process's file size limit stands for a full disk: the write itself fails part-way."""
    folder = new_run(tmp_path, blocks=2)
    code = """
import resource, sys
import numpy as np, pyarrow as pa
from palestra.store import RunFolder, StoreFailed
folder = RunFolder.create_or_resume(sys.argv[1], RunFolder.open(sys.argv[1]).config)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    with folder.lock():
        noise = np.random.default_rng(0).normal(size=100_000)
        folder.write_block("episodes", 2, pa.table({"return": noise}))
except StoreFailed as error:
    print(error)
    sys.exit(1)
"""
    process = child(code, folder.path)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "00000002.parquet: the file would be larger than the limit allows" in said
    assert "finished before is intact" in said
    assert sorted(p.name for p in (folder.path / "episodes").iterdir()) == [
        "00000000.parquet",
        "00000001.parquet",
    ]
    assert folder.read("episodes").equals(pa.concat_tables([table(0), table(1)]))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 20_000


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"),
    ],
)
def test_the_reason_is_said_in_words(tmp_path, monkeypatch, code, reason):
    folder = new_run(tmp_path, blocks=1)

    class Refusing(disk_module.Disk):
        def write(self, descriptor, data):
            raise OSError(code, os.strerror(code))

    with folder.lock():
        monkeypatch.setattr(disk_module, "disk", Refusing())
        with pytest.raises(StoreFailed, match=reason) as caught:
            folder.write_block("episodes", 1, table(1))
        assert caught.value.errno == code
        monkeypatch.undo()
        folder.write_block("episodes", 1, table(1))  # room again: the same object goes on
    assert folder.read("episodes").num_rows == 128


def test_a_folder_deleted_under_the_run_is_said_and_not_made_anew(tmp_path):
    folder = new_run(tmp_path, blocks=1)
    with folder.lock():
        shutil.rmtree(folder.path)
        with pytest.raises(StoreFailed, match="does not exist"):
            folder.write_block("episodes", 1, table(1))
        with pytest.raises(StoreFailed, match="does not exist"):
            folder.publish("step-1", {"policy.bin": b""})
    assert not folder.path.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_said(tmp_path):
    folder = new_run(tmp_path, blocks=1)
    folder.path.chmod(0o555)
    try:
        with pytest.raises(StoreFailed, match="permission denied"), folder.lock():
            pass
    finally:
        folder.path.chmod(0o755)
    assert folder.read("episodes").equals(table(0))


def test_a_file_where_the_run_should_be_is_said(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(StoreFailed, match="a file stands where a folder should be"):
        RunFolder.create_or_resume(tmp_path / "run", CONFIG)


def test_errors_survive_the_way_between_processes():
    for error in (
        CorruptBlock(Path("a"), "why"),
        RunMismatch(Path("a"), ("k",), "why"),
        RunLocked(Path("a"), 3, "here", "why"),
        StoreFailed(errno.ENOSPC, "why"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


# ------------------------------------------------------------------------------- while it happens

WRITE = """
import sys
import numpy as np, pyarrow as pa
from palestra.store import RunFolder
folder = RunFolder.create_or_resume(sys.argv[1], {"seed": 1, "blocks": int(sys.argv[2])})
with folder.lock():
    for index in range(int(sys.argv[2])):
        if folder.has_block("episodes", index):
            continue
        random = np.random.default_rng(index)
        print(index, flush=True)
        folder.write_block("episodes", index, pa.table({"return": random.normal(size=20_000)}))
    folder.finish()
"""


def test_two_readers_see_whole_blocks_only_while_one_writes(tmp_path):
    writer = child(WRITE, tmp_path / "run", 60)
    assert writer.stdout is not None
    writer.stdout.readline()
    failures, most = [], [0, 0]

    def reader(number):
        folder = RunFolder.open(tmp_path / "run")
        while writer.poll() is None:
            try:
                rows = folder.read("episodes").num_rows
            except Exception as error:
                failures.append(error)
                return
            if rows % 20_000 or rows < most[number]:
                failures.append(rows)
            most[number] = rows

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    writer.communicate(timeout=60)
    for thread in threads:
        thread.join()
    assert failures == []
    assert min(most) > 0
    assert RunFolder.open(tmp_path / "run").verify() == ()


def test_after_sigkill_finished_blocks_are_kept_and_only_the_others_computed(tmp_path):
    def hashes(path):
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted((path / "episodes").iterdir())
        }

    undisturbed = child(WRITE, tmp_path / "undisturbed", 24)
    undisturbed.communicate(timeout=60)
    assert undisturbed.returncode == 0
    for finished in (1, 5, 13, 20):
        path = tmp_path / f"killed-{finished}"
        process = child(WRITE, path, 24)
        assert process.stdout is not None
        while int(process.stdout.readline()) < finished:
            pass
        process.kill()
        process.communicate()
        kept = RunFolder.open(path).blocks("episodes")
        assert len(kept) >= finished
        assert RunFolder.open(path).read("episodes").num_rows == 20_000 * len(kept)
        resumed = child(WRITE, path, 24)
        said, _ = resumed.communicate(timeout=60)
        assert [int(line) for line in said.split()] == [i for i in range(24) if i not in kept]
        assert hashes(path) == hashes(tmp_path / "undisturbed")
        assert RunFolder.open(path).verify() == ()
        assert list(path.rglob(".*")) == []


def test_store_loads_no_heavy_library():
    code = """
import sys, palestra.store
print(*[m for m in ("pyarrow", "torch", "stable_baselines3", "pandas") if m in sys.modules])
"""
    said, _ = child(code).communicate(timeout=60)
    assert said.strip() == ""


def test_a_process_is_found_again_by_its_token():
    here = Process.current()
    assert Process.parse(f"{here.token}~anything") == here
    assert not here.dead()
    assert here.pid == os.getpid()
    assert not set(here.token) & set("/\\: ")
    assert Process.parse("nonsense") is None


# --- taking a run back ----------------------------------------------------------------------------


def test_a_run_that_was_created_here_is_taken_back_with_everything_in_it(tmp_path):
    folder = RunFolder.create_or_resume(tmp_path / "run", {"seed": 1})
    with folder.lock():
        folder.publish("step-0", {"state": b"x"})
        folder.write("config.toml", b"seed = 1")
        folder.withdraw()
    assert not (tmp_path / "run").exists()
    RunFolder.create_or_resume(tmp_path / "run", {"seed": 2})


def test_a_run_that_began_before_is_never_taken_back(tmp_path):
    RunFolder.create_or_resume(tmp_path / "run", {"seed": 1})
    folder = RunFolder.create_or_resume(tmp_path / "run", {"seed": 1})
    with folder.lock(), pytest.raises(RuntimeError, match="only who created a run withdraws it"):
        folder.withdraw()
    with pytest.raises(RuntimeError, match="writing needs the lock"):
        folder.withdraw()
    assert RunFolder.open(tmp_path / "run").config["seed"] == 1


@pytest.mark.parametrize(
    ("error", "blocks", "stays"),
    [(ValueError, 0, False), (ValueError, 1, True), (KeyboardInterrupt, 0, True)],
)
def test_a_run_that_fails_stays_if_it_has_a_result_or_was_interrupted(
    tmp_path, error, blocks, stays
):
    folder = RunFolder.create_or_resume(tmp_path / "run", {"seed": 1})

    def work():
        with folder.lock(), folder.withdrawn_if_empty():
            folder.write("config.toml", b"seed = 1")
            for index in range(blocks):
                folder.write_block("episodes", index, table(index))
            raise error("no")

    with pytest.raises(error):
        work()
    assert (tmp_path / "run").exists() == stays


def test_a_hidden_file_of_somebody_else_stays(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".mine").write_text("x")
    folder = RunFolder.create_or_resume(tmp_path / "run", {"seed": 1})
    with folder.lock():
        folder.withdraw()
    assert [file.name for file in (tmp_path / "run").iterdir()] == [".mine"]


def test_a_list_of_machines_that_is_none_is_refused(tmp_path):
    config = {"seed": 1, "machine": {"cpu": "a"}}
    RunFolder.create_or_resume(tmp_path / "run", config)
    (tmp_path / "run" / "resumes.json").write_text("{}")
    with (
        pytest.warns(store.ResumedElsewhere),
        pytest.raises(store.CorruptFile, match=r"resumes.json: must be a list of machines"),
    ):
        RunFolder.create_or_resume(tmp_path / "run", {**config, "machine": {"cpu": "b"}})


def test_fields_of_a_training_are_those_of_its_configuration():
    assert FIELDS["training"].keys() == {field.name for field in dataclasses.fields(TrainConfig)}
