"""Writing to the disk so that a name never stands for half of its content.

Every call that changes the disk goes through one small object, `disk`. Tests put another in its
place and make call number k fail, or the process end there, for every k.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .machine import Process
from .safe_files import JSON_DEPTH, JSON_LIMIT, MalformedFile, read_limited, strict_json

TEMPORARY = ".tmp-"


class StoreFailed(OSError):
    """The disk refused: full, read-only, or the run folder is gone. Finished files are intact."""


class CorruptFile(MalformedFile):
    """A file does not hold what was written to it, or was never one of ours. `path` names it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # both: exceptions cross processes pickled
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class Disk:
    """Every call by which the store changes the disk."""

    def make_folder(self, path: Path) -> None:
        """Make one folder; its parent exists."""
        os.mkdir(path)

    def create(self, path: Path) -> int:
        """Create a file that does not exist; its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(path, flags, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`; how many bytes."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Flush a file to the device."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give `source` the name `target`; a file that has it is replaced."""
        os.replace(source, target)

    def fsync_folder(self, path: Path) -> None:
        """Flush the names in a folder to the device."""
        if os.name == "nt":  # Windows cannot open a folder; NTFS journals the rename itself
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
                raise
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)


disk = Disk()

_REASONS = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the limit allows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.ENOENT: "the folder does not exist (any more)",
    errno.ENOTDIR: "a file stands where a folder should be",
    errno.EIO: "the device reported an input/output error",
}


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn any OSError from inside into a StoreFailed that says what could not be written."""
    try:
        yield
    except StoreFailed:
        raise
    except OSError as error:
        code = error.errno or 0
        reason = _REASONS.get(code, error.strerror or str(error))
        message = f"cannot write {path}: {reason}. What was finished before is intact."
        raise StoreFailed(code, message) from error


def write_new(path: Path, data: bytes | memoryview, *, durable: bool = True) -> None:
    """Create `path`, which must not exist, and write `data` to it."""
    descriptor = disk.create(path)
    try:
        rest = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while len(rest):
            rest = rest[disk.write(descriptor, rest) :]
        if durable:
            disk.fsync(descriptor)
    finally:
        disk.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a file or a folder with its files. Links are removed, never followed."""
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            remove_tree(child)
        disk.remove_folder(path)
    else:
        disk.remove(path)


def ensure_folder(path: Path) -> None:
    """Make the folder `path` inside its parent, which must exist: a deleted run stays deleted."""
    if not path.is_dir():
        with contextlib.suppress(FileExistsError):
            disk.make_folder(path)
        disk.fsync_folder(path.parent)


def temporary_name(folder: Path) -> Path:
    """A temporary name in `folder` that says which process it belongs to."""
    return folder / f"{TEMPORARY}{Process.current().token}~{secrets.token_hex(4)}"


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that its name never stands for half of its content.

    Temporary file beside it, flush, rename over the name, flush the folder. An existing file is
    replaced. Raises StoreFailed; then the old file, if any, is still there.
    """
    path = Path(path)
    temporary = temporary_name(path.parent)
    with explained(path):
        try:
            write_new(temporary, data)
            disk.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                disk.remove(temporary)
            raise
        disk.fsync_folder(path.parent)


def to_json(obj: object) -> bytes:
    """Strict, deterministic JSON: sorted keys, two spaces, UTF-8, a newline at the end.

    NumPy scalars become numbers, tuples become lists. Raises TypeError for anything that JSON does
    not have (an array, a path, a key that is not text) and ValueError for NaN and infinities and
    for nesting deeper than 64; the message names the place.
    """
    plain = _plain(obj, "", 0)
    text = json.dumps(plain, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


def _plain(value: Any, where: str, depth: int) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where or 'the document'} is {value}: JSON has finite numbers only")
        return float(value)
    if depth >= JSON_DEPTH:
        raise ValueError(f"{where}: nested deeper than {JSON_DEPTH} levels")
    if isinstance(value, Mapping):
        plain = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where or 'the document'} has the key {key!r}: keys must be text")
            plain[str(key)] = _plain(item, f"{where}.{key}" if where else key, depth + 1)
        return plain
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    kind = type(value).__name__
    raise TypeError(f"{where or 'the document'} is a {kind}: JSON has no such thing")


def read_json(path: Path, limit_bytes: int = JSON_LIMIT) -> Any:
    """Read a JSON file strictly.

    Raises:
        MalformedFile: not JSON, a key given twice, NaN or an infinity, nested deeper than 64.
        UnsafeFile: larger than `limit_bytes`.
        OSError: it cannot be read.
    """
    return strict_json(read_limited(Path(path), limit_bytes), str(path))
