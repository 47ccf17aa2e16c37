"""The one place that writes to disk.

A run is a folder. Whatever stands in it under a final name is complete: bytes are written under a
temporary name in the same folder, flushed to the disk, and only then renamed. A process may be
killed between any two system calls; what was finished before stays finished, and a run that is
resumed ends with the same bytes as one that was never killed.

```
run.json                       what was asked for; written first
episodes/00000000.parquet      one row an episode; the name depends on kind and index only
steps/00000000.parquet         one row a step
checkpoints/step-000002048/    policy, optimiser, statistics, random states; renamed at once
manifest.json                  SHA-256 of every block; written last
resumes.json                   only if the run went on on another machine or with other libraries
.lock-writer~...               whoever writes now
```

Nothing here unpickles anything, and nothing here knows what an episode is.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import disk as _disk
from .blocks import CorruptBlock, decode_block, encode_block
from .config import ConfigError
from .disk import (
    TEMPORARY,
    CorruptFile,
    StoreFailed,
    ensure_folder,
    explained,
    read_json,
    remove_tree,
    temporary_name,
    to_json,
    write_atomic,
    write_new,
)
from .machine import Process, machine
from .run_schema import check_run
from .safe_files import MalformedFile, strict_json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CorruptBlock",
    "CorruptFile",
    "MalformedFile",
    "ResumedElsewhere",
    "RunFolder",
    "RunLocked",
    "RunMismatch",
    "StoreFailed",
    "machine",
    "named_files",
    "read_json",
    "to_json",
    "write_atomic",
]

HEARTBEAT = 15.0  # seconds between two signs of life of a lock
LEASE = 120.0  # seconds after the last one until a lock of another host is void
SCHEMA = "palestra.run/1"  # another name may be chosen, the version is the store's
OUTSIDE_COMPARISON = ("notes", "machine")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")
_BLOCK = re.compile(r"(\d{8})\.parquet")
_LOCK = ".lock-"


def named_files(options: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of every file that the values of some options name, by dotted option.

    It belongs into the configuration of a run: an edited sample file makes another run. Of
    `file.py:name` it is the file; `palestra.code_identity` knows of modules too.
    """
    hashes: dict[str, str] = {}
    for key, value in options.items():
        if isinstance(value, list | tuple):
            value = {str(place): part for place, part in enumerate(value)}
        if isinstance(value, Mapping):
            hashes.update({f"{key}.{k}": h for k, h in named_files(value).items()})
        elif isinstance(value, str | Path):
            place, _, name = str(value).rpartition(":")
            file = Path(place if place.endswith(".py") and name else value)
            if file.suffix and file.is_file():
                hashes[key] = hashlib.sha256(file.read_bytes()).hexdigest()
    return hashes


class RunMismatch(ValueError):
    """The folder holds another run. `keys` are the dotted names that differ."""

    def __init__(self, path: Path, keys: Sequence[str], message: str) -> None:
        super().__init__(path, keys, message)  # all of them: exceptions cross processes pickled
        self.path = path
        self.keys = tuple(keys)
        self.message = message

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class RunLocked(RuntimeError):
    """Another process writes to this run folder. `pid` and `host` name it."""

    def __init__(self, path: Path, pid: int, host: str, message: str) -> None:
        super().__init__(path, pid, host, message)
        self.path = path
        self.pid = pid
        self.host = host
        self.message = message

    def __str__(self) -> str:
        return self.message


class ResumedElsewhere(UserWarning):
    """A run goes on with other libraries or on another machine than it began with."""


class RunFolder:
    """A run on disk: its configuration, its blocks of results, its checkpoints.

    Made by `create_or_resume` (to write) or `open` (to read). Blocks and checkpoints are written
    only while this object holds the lock::

        folder = RunFolder.create_or_resume(path, config)
        with folder.lock():
            for index in range(n_blocks):
                if not folder.has_block("episodes", index):
                    folder.write_block("episodes", index, table)
            folder.finish()

    Reading needs no lock, also while someone writes: a block appears complete or not at all.

    The store does not merge blocks. Their number is the caller's choice (it stands in the
    configuration): 1024 episodes a block leave 977 files of a kind for a million episodes.
    """

    def __init__(self, path: Path, document: dict[str, Any], *, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self.created = False  # by this object, rather than found
        self._document = document
        self._held: dict[str, Path] = {}  # lock -> its file
        self._withdrawn = False

    # -- opening

    @classmethod
    def create_or_resume(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        schema: str = SCHEMA,
        strict: bool = False,
    ) -> RunFolder:
        """Begin a run in `path`, or go on with the same run.

        `config` is written to `run.json` before anything else. Its sections "notes" and "machine"
        do not make a run another one; "machine" is filled in from this machine if absent. If the
        machine differs on resume, a ResumedElsewhere warning says in what, and `resumes.json`
        records it; with `strict` it is refused.

        Raises RunMismatch if the folder holds another configuration (naming the keys that differ)
        or files that are no run; CorruptFile if its run.json is damaged; StoreFailed if the disk
        refuses.
        """
        path = Path(path)
        document = {"schema": schema, "config": {"machine": machine(), **config}}
        asked = strict_json(to_json(document), "config")
        with explained(path):
            missing = [p for p in (path, *path.parents) if not p.exists()]
            for folder in reversed(missing):
                ensure_folder(folder)
            visible = [p.name for p in _visible(path)]
        strangers = [name for name in visible if name not in ("run.json", "resumes.json")]
        if strangers and not (path / "run.json").exists():
            message = f"has files but no run.json ({', '.join(strangers[:3])}): not a run folder"
            raise RunMismatch(path, (), message)
        run = cls(path, asked, writable=True)
        with run.lock("create", wait=10.0):
            file = path / "run.json"
            if not file.exists():
                write_atomic(file, to_json(asked))
                run.created = True
                return run
            run._document = _read_run(file)
            run._compare(asked, strict=strict)
        return run

    @classmethod
    def open(cls, path: str | Path, *, writable: bool = False) -> RunFolder:
        """Open a run, to read unless `writable`. Raises FileNotFoundError if there is none,
        CorruptFile if run.json is damaged or of a newer schema than this version reads.
        """
        path = Path(path)
        if not (path / "run.json").is_file():
            raise FileNotFoundError(errno.ENOENT, "not a run folder: it has no run.json", str(path))
        return cls(path, _read_run(path / "run.json"), writable=writable)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as stored, "machine" and "notes" included; a copy."""
        config = strict_json(to_json(self._document["config"]), "config")
        assert isinstance(config, dict)
        return config

    @property
    def schema(self) -> str:
        """Name and version of the layout of run.json."""
        return str(self._document["schema"])

    def _compare(self, asked: dict[str, Any], *, strict: bool) -> None:
        """Refuse another run; record and warn about another machine. Holds the lock "create"."""

        def essential(document: dict[str, Any]) -> dict[str, Any]:
            config = document["config"].items()
            return {k: v for k, v in config if k not in OUTSIDE_COMPARISON}

        keys = _differing(essential(self._document), essential(asked))
        if self.schema != asked["schema"]:
            keys.insert(0, "schema")
        if keys:
            both = [f"{k} ({_at(self._document, k)} there, {_at(asked, k)} asked)" for k in keys]
            message = f"holds another run; these differ: {'; '.join(both)}"
            raise RunMismatch(self.path, keys, message)

        here = asked["config"]["machine"]
        there = self._document["config"].get("machine", {})
        # a library that was installed or removed meanwhile is none that the run stands on
        optional = {f"machine.libraries.{name}" for name in _one_sided(there, here)}
        drift = [key for key in _differing(there, here, "machine") if key not in optional]
        if not drift:
            return
        said = [f"{k} ({_at(self._document, k)} then, {_at(asked, k)} now)" for k in drift]
        message = f"began on another machine or with other libraries: {'; '.join(said)}"
        if strict:
            raise RunMismatch(self.path, drift, message)
        warnings.warn(f"{self.path}: {message}", ResumedElsewhere, stacklevel=4)
        file = self.path / "resumes.json"
        resumes = read_json(file) if file.exists() else []
        if not isinstance(resumes, list):
            raise CorruptFile(file, "must be a list of machines")
        if not resumes or resumes[-1] != here:
            write_atomic(file, to_json([*resumes, here]))

    # -- the lock

    @contextlib.contextmanager
    def lock(self, name: str = "writer", *, wait: float = 0.5) -> Iterator[None]:
        """Be the only one who writes under this name.

        The lock of a process that no longer runs is void: at once if it ran on this host, and on
        another host `LEASE` seconds after its last heartbeat. Raises RunLocked if another process
        holds it throughout `wait` seconds. On entry, temporaries that dead processes left are
        deleted. Whoever sleeps through its own lease finds its lock gone and writes no more.

        How: every candidate announces itself by a file of its own and then looks for others. Of two
        candidates, the one who looks second sees the first, so at most one goes on; whoever sees
        another takes its announcement back and tries again after a random pause. Nothing is ever
        decided about a file that somebody else may be replacing. A heartbeat sets the time of the
        file; it is compared with that of a file just written, both by the clock of the disk, so
        the clocks of the hosts do not matter.
        """
        if not self.writable:
            raise PermissionError(errno.EACCES, "opened for reading only", str(self.path))
        if not _KIND.fullmatch(name.replace("-", "_")):
            raise ValueError(f"lock name {name!r}: lower-case letters, digits, '-' and '_' only")
        mine = self.path / f"{_LOCK}{name}~{Process.current().token}~{secrets.token_hex(4)}"
        note = to_json({"pid": os.getpid(), "host": socket.gethostname()})  # for people to read
        beating = threading.Event()
        heart = threading.Thread(target=_beat, args=(mine, beating), daemon=True)
        until = time.monotonic() + wait
        pauses = random.Random(mine.name)  # own generator: global random state is the user's
        try:
            while True:
                with explained(mine):
                    # Not flushed: a power cut changes the boot, which voids the lock.
                    write_new(mine, note, durable=False)
                    other = self._other_holder(name, mine)
                    if other is None:
                        break
                    _disk.disk.remove(mine)
                if time.monotonic() >= until:
                    raise _locked(self.path, name, other)
                time.sleep(pauses.uniform(0.005, 0.05))
            self._held[name] = mine
            with explained(self.path):
                self._sweep(mine)
                # a writer killed before us may not have come to it
                _disk.disk.fsync_folder(self.path)
            heart.start()
            yield
        finally:
            beating.set()
            if heart.is_alive():  # left alone, it may wake while the interpreter ends, and abort it
                heart.join(HEARTBEAT)
            self._held.pop(name, None)
            with contextlib.suppress(OSError):  # the folder may be gone
                _disk.disk.remove(mine)
            if self._withdrawn:
                with contextlib.suppress(OSError):  # somebody else has put something there
                    _disk.disk.remove_folder(self.path)

    def _other_holder(self, name: str, mine: Path) -> Process | None:
        start = f"{_LOCK}{name}~"
        for file in sorted(self.path.iterdir()):
            if file.name.startswith(start) and file != mine:
                process = Process.parse(file.name.removeprefix(start))
                if process is not None and not _void(process, file, mine):
                    return process
        return None

    def _sweep(self, mine: Path) -> None:
        """Delete what dead processes left behind: temporaries and locks. `mine` is fresh."""
        inside = [p for p in _visible(self.path) if p.is_dir() and not p.is_symlink()]
        for folder in (self.path, *inside):
            for file in sorted(folder.iterdir()):
                token = None
                if file.name.startswith(TEMPORARY):
                    token = file.name.removeprefix(TEMPORARY)
                elif file.name.startswith(_LOCK):
                    token = file.name.partition("~")[2]
                owner = Process.parse(token) if token else None
                if owner is not None and _void(owner, file, mine):
                    with contextlib.suppress(FileNotFoundError):  # another shard sweeps too
                        remove_tree(file)

    def _must_hold_lock(self) -> None:
        if not self._held:
            raise RuntimeError(f"{self.path}: writing needs the lock: use 'with folder.lock():'")
        for name, file in self._held.items():
            if self.path.is_dir() and not file.exists():
                raise RunLocked(
                    self.path,
                    os.getpid(),
                    socket.gethostname(),
                    f"{self.path}: this process was not heard of for {LEASE:g} s, and its lock "
                    f"{name!r} was given to another. What was finished before is intact; run the "
                    "same command again to go on",
                )

    def withdraw(self) -> None:
        """Take a run back that this object created: everything in it, and the folder if empty.

        For a run that was refused before it had a result; another may then begin in its place.
        """
        self._must_hold_lock()
        if not self.created:
            raise RuntimeError(f"{self.path}: began before; only who created a run withdraws it")
        with explained(self.path):
            documents = [p for p in _visible(self.path) if p.name != "run.json"]
            for path in [*documents, self.path / "run.json"]:  # killed in between, it stays a run
                remove_tree(path)
        self._withdrawn = True

    @contextlib.contextmanager
    def withdrawn_if_empty(self) -> Iterator[None]:
        """If what is inside fails, `withdraw` a new run without any result; Ctrl-C is no failure.

        Results are folders: of blocks, of checkpoints, of parts. Hold the lock around this.
        """
        try:
            yield
        except (Exception, SystemExit):  # sys.exit in an environment's code is a failure too
            if self.created and not any(p.is_dir() for p in _visible(self.path)):
                self.withdraw()
            raise

    # -- blocks

    def block_path(self, kind: str, index: int) -> Path:
        """Where a block stands: a function of kind and index only."""
        if not _KIND.fullmatch(kind) or kind == "checkpoints":
            raise ValueError(f"block kind {kind!r}: lower-case letters, digits and '_' only")
        if not 0 <= index < 10**8:
            raise ValueError(f"block index {index}: from 0 to 99999999")
        return self.path / kind / f"{index:08d}.parquet"

    def has_block(self, kind: str, index: int) -> bool:
        """Whether the block is finished."""
        return self.block_path(kind, index).is_file()

    def blocks(self, kind: str) -> list[int]:
        """The indices of the finished blocks, in order."""
        folder = self.block_path(kind, 0).parent
        if not folder.is_dir():
            return []
        found = (_BLOCK.fullmatch(file.name) for file in folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def write_block(self, kind: str, index: int, table: pa.Table | bytes) -> None:
        """Write a block, a table or what `encode_block` made of it; it appears complete or not
        at all.

        Writing a finished block again is allowed if it gives the same bytes, and changes nothing.
        Other bytes mean that the same episodes came out differently: ValueError.
        """
        self._must_hold_lock()
        path = self.block_path(kind, index)
        data = table if isinstance(table, bytes) else encode_block(table)
        if path.exists():
            if path.read_bytes() != data:
                message = "is finished and holds other rows: the episodes did not repeat"
                raise ValueError(f"{path} {message}")
            return
        with explained(path):
            ensure_folder(path.parent)
        write_atomic(path, data)

    def read_block(self, kind: str, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """One block, its checksums verified. Raises CorruptBlock, FileNotFoundError."""
        path = self.block_path(kind, index)
        table = decode_block(path.read_bytes(), path)
        return table if columns is None else table.select(list(columns))

    def read(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All finished blocks in order of their index, checksums verified, as one table.

        No block gives a table without columns. Raises CorruptBlock naming the file.
        """
        import pyarrow as pa

        tables: list[pa.Table] = []
        for index in self.blocks(kind):
            table = self.read_block(kind, index, columns)
            if tables and not table.schema.equals(tables[0].schema):
                path = self.block_path(kind, index)
                raise CorruptBlock(path, "its columns are not those of the blocks before it")
            tables.append(table)
        return pa.concat_tables(tables) if tables else pa.table({})

    # -- single documents

    def write(self, name: str, data: bytes) -> Path:
        """Write one document (`report.html`, `claims.json`) into the folder, atomically."""
        if not self.writable:
            raise PermissionError(errno.EACCES, "opened for reading only", str(self.path))
        if not _NAME.fullmatch(name) or name in ("run.json", "resumes.json", "manifest.json"):
            raise ValueError(f"document name {name!r}: letters, digits, '.', '_' and '-', not ours")
        write_atomic(self.path / name, data)
        return self.path / name

    # -- the end, and the check of it

    def _contents(self) -> list[Path]:
        blocks = [
            folder / file.name
            for folder in sorted(p for p in self.path.iterdir() if _KIND.fullmatch(p.name))
            if folder.is_dir()
            for file in sorted(folder.iterdir())
            if _BLOCK.fullmatch(file.name)
        ]
        return [self.path / "run.json", *blocks]

    def finish(self) -> Path:
        """Write `manifest.json`: size and SHA-256 of run.json and of every block. Returns its path.

        Blocks are verified as they are read. Raises CorruptBlock, StoreFailed.
        """
        self._must_hold_lock()
        files = {}
        for path in self._contents():
            data = path.read_bytes()
            if path.suffix == ".parquet":
                decode_block(data, path)
            files[path.relative_to(self.path).as_posix()] = _entry(data)
        manifest = self.path / "manifest.json"
        write_atomic(manifest, to_json({"schema": "palestra.manifest/1", "files": files}))
        return manifest

    @property
    def finished(self) -> bool:
        """Whether `finish` has been reached."""
        return (self.path / "manifest.json").is_file()

    def verify(self) -> tuple[str, ...]:
        """Recompute every hash. Returns one sentence for each problem; empty means sound.

        Before `finish` there is no manifest; then each block is held against its own checksum.
        """
        problems = []
        present = {p.relative_to(self.path).as_posix(): p for p in self._contents()}
        if self.finished:
            try:
                listed = _listed(self.path / "manifest.json", "palestra.manifest/1")
            except CorruptFile as error:
                return (str(error),)
            problems += [f"{name}: not in the manifest" for name in present if name not in listed]
            for name, entry in listed.items():
                if name not in present:
                    problems.append(f"{name}: in the manifest, but missing")
                elif _entry(present[name].read_bytes()) != entry:
                    problems.append(f"{name}: SHA-256 differs from the manifest")
        else:
            for name, path in present.items():
                try:
                    if path.suffix == ".parquet":
                        decode_block(path.read_bytes(), path)
                except CorruptBlock as error:
                    problems.append(f"{name}: {error.reason}")
        for checkpoint in self._checkpoints(""):
            reason = _incomplete(checkpoint)
            if reason:
                problems.append(f"checkpoints/{checkpoint.name}: {reason}")
        return tuple(problems)

    # -- checkpoints

    def publish(self, name: str, files: Mapping[str, bytes], keep: int = 2) -> Path:
        """Publish a checkpoint: the folder `checkpoints/<name>` appears at once, complete.

        `name` is `<series>-<anything without '-'>`, as `step-000002048`. Of each series the newest
        `keep` (at least 1) stay, by order of publication, whatever the clock says. A name is used
        once: publishing it again with the same files changes nothing, with others is refused
        (ValueError), unless the one that stands there is damaged. Killed at any point, the previous
        checkpoint is there and loads; one too many may stay until the next publication.
        """
        self._must_hold_lock()
        if keep < 1:
            raise ValueError(f"keep={keep}: at least 1")
        for text in (name, *files):
            if not _NAME.fullmatch(text):
                raise ValueError(f"name {text!r}: letters, digits, '.', '_' and '-' only")
        if "manifest.json" in files:
            raise ValueError("'manifest.json' is written by the store itself")
        folder = self.path / "checkpoints"
        target = folder / name
        entries = {key: _entry(data) for key, data in sorted(files.items())}
        with explained(target):
            ensure_folder(folder)
            if target.exists() and _incomplete(target):
                self._discard(target)
            if not target.exists():
                self._publish_new(target, files, entries)
            elif _listed(target / "manifest.json", _CHECKPOINT) != entries:
                raise ValueError(f"{target} exists with other content: choose another name")
            series = name.rpartition("-")[0]
            older = [p for p in self._checkpoints("") if p.name.rpartition("-")[0] == series]
            for path in older[:-keep]:
                self._discard(path)
        return target

    def _publish_new(
        self, target: Path, files: Mapping[str, bytes], entries: Mapping[str, Any]
    ) -> None:
        """Write the whole folder under a temporary name, then give it its own."""
        folder = target.parent
        sequence = 1 + max((_sequence(p) for p in self._checkpoints("")), default=0)
        manifest = {
            "schema": _CHECKPOINT,
            "name": target.name,
            "sequence": sequence,
            "files": entries,
        }
        temporary = temporary_name(folder)
        try:
            _disk.disk.make_folder(temporary)
            for key, data in sorted(files.items()):
                write_new(temporary / key, data)
            write_new(temporary / "manifest.json", to_json(manifest))
            _disk.disk.fsync_folder(temporary)
            _disk.disk.rename(temporary, target)
        except OSError:
            with contextlib.suppress(OSError):
                remove_tree(temporary)
            raise
        _disk.disk.fsync_folder(folder)

    def latest(self, prefix: str = "") -> Path | None:
        """The newest complete checkpoint whose name begins with `prefix`; None if there is none.

        Its hashes are verified. A damaged one is passed over with a warning.
        """
        for path in reversed(self._checkpoints(prefix)):
            reason = _incomplete(path)
            if reason is None:
                return path
            warnings.warn(f"{path} is passed over: {reason}", RuntimeWarning, stacklevel=2)
        return None

    def _checkpoints(self, prefix: str) -> list[Path]:
        """Published checkpoints, oldest first."""
        folder = self.path / "checkpoints"
        if not folder.is_dir():
            return []
        found = [p for p in folder.iterdir() if _NAME.fullmatch(p.name) and p.is_dir()]
        return sorted(
            (p for p in found if p.name.startswith(prefix)), key=lambda p: (_sequence(p), p.name)
        )

    def _discard(self, checkpoint: Path) -> None:
        """Take a checkpoint away: first its name, at once, then its files."""
        temporary = temporary_name(checkpoint.parent)
        _disk.disk.rename(checkpoint, temporary)
        _disk.disk.fsync_folder(checkpoint.parent)
        remove_tree(temporary)


_CHECKPOINT = "palestra.checkpoint/1"


def _beat(lock: Path, until: threading.Event) -> None:
    """Renew the lease of a lock now and then; ends when the lock is given back, or gone."""
    while not until.wait(HEARTBEAT):
        try:
            os.utime(lock)
        except FileNotFoundError:
            return
        except OSError:  # a network file system that is away for a moment
            continue


def _void(owner: Process, file: Path, fresh: Path) -> bool:
    """Whether what a process left in `file` counts no more; `fresh` was written just now."""
    if owner.host == Process.current().host:
        return owner.dead()
    try:
        age = fresh.stat().st_mtime - file.stat().st_mtime
        return age > LEASE or (age < -HEARTBEAT and _silent(file))
    except FileNotFoundError:  # given back in between
        return True


def _silent(file: Path) -> bool:
    """Whether nobody renews a lock for as long as two heartbeats.

    Asked only of one whose time lies in the future: the clock of the disk was set back since, and
    by its age the lock of a dead host would hold until the clock is there again.
    """
    last = file.stat().st_mtime_ns
    until = time.monotonic() + 2 * HEARTBEAT
    while time.monotonic() < until:
        time.sleep(HEARTBEAT / 10)
        if file.stat().st_mtime_ns != last:
            return False
    return True


def _visible(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if not p.name.startswith("."))


def _entry(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _at(document: dict[str, Any], key: str) -> str:
    """The value under a dotted key of a run document, for a message."""
    value: Any = document if key == "schema" else document["config"]
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return "absent"
        value = value[part]
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _one_sided(there: dict[str, Any], here: dict[str, Any]) -> set[str]:
    """Libraries that only one of two machines has."""
    both = [machine.get("libraries") for machine in (there, here)]
    ours, theirs = (set(libraries) if isinstance(libraries, dict) else set() for libraries in both)
    return ours ^ theirs


def _check_schema(path: Path, found: object, known: str) -> None:
    """Refuse a document of another schema or of a newer version of it."""
    name, _, version = known.partition("/")
    match = re.fullmatch(r"([a-z.-]+)/([0-9]{1,9})", found) if isinstance(found, str) else None
    if match is None or match[1] != name:
        raise CorruptFile(path, f"schema is {found!r}, expected {known!r}")
    if int(match[2]) > int(version):
        raise CorruptFile(path, f"schema {found!r} is newer than {known!r}, the newest read here")


def _read_run(path: Path) -> dict[str, Any]:
    """The document of a run, its fields checked by kind."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise CorruptFile(path, "must be a table with schema and config")
    schema = document.get("schema")
    name, slash, _ = schema.partition("/") if isinstance(schema, str) else ("", "", "")
    _check_schema(path, schema, f"{name}/{SCHEMA.partition('/')[2]}" if name and slash else SCHEMA)
    try:
        check_run(document)
    except ConfigError as problem:
        raise CorruptFile(path, str(problem)) from None
    return document


def _listed(path: Path, schema: str) -> dict[str, Any]:
    """The files that a manifest lists, name -> {bytes, sha256}."""
    document = read_json(path)
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, dict):
        raise CorruptFile(path, "no manifest: 'files' is missing")
    _check_schema(path, document.get("schema"), schema)
    return files


def _sequence(checkpoint: Path) -> int:
    """The place of a checkpoint in the order of publication; 0 if it does not tell."""
    try:
        number = read_json(checkpoint / "manifest.json").get("sequence")
    except (OSError, ValueError, AttributeError):
        return 0
    return number if isinstance(number, int) else 0


def _incomplete(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be used, or None."""
    try:
        files = _listed(checkpoint / "manifest.json", _CHECKPOINT)
        for name, entry in files.items():
            if not _NAME.fullmatch(name):
                return f"its manifest names the file {name!r}"
            if _entry((checkpoint / name).read_bytes()) != entry:
                return f"{name} differs from its manifest"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _locked(path: Path, name: str, holder: Process) -> RunLocked:
    here = Process.current()
    who = f"process {holder.pid} on host {holder.host}"
    if holder == here:
        who += " (this process)"
    message = f"{path} is being written by {who} (lock {name!r})."
    if holder.host != here.host:
        message += f" If that process no longer runs, its lock is void in {LEASE:g} s at most."
    return RunLocked(path, holder.pid, holder.host, message)


def _differing(a: Any, b: Any, where: str = "") -> list[str]:
    """Dotted names of the leaves in which two JSON documents differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted(a.keys() | b.keys())
        missing = object()
        return [
            name
            for key in keys
            for name in _differing(
                a.get(key, missing), b.get(key, missing), f"{where}.{key}" if where else key
            )
        ]
    same = type(a) is type(b) and a == b
    return [] if same else [where]
