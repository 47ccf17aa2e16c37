"""Read files that somebody else wrote: nothing in them is executed, nothing is repaired.

A file is either what its format says, or refused by one of two errors: `MalformedFile` (broken,
or not what it claims to be) and `UnsafeFile` (it could harm the reader: pickled objects, zip
bombs, names that leave their folder). Nothing is unpickled and nothing is extracted to disk.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from .mat_file import NotMatlab, read_mat

Array = npt.NDArray[Any]

FILE_LIMIT = 2 * 2**30  # bytes of a file, and of a zip's members together when unpacked
JSON_LIMIT = 16 * 2**20
TEXT_LIMIT = 16 * 2**20  # of a configuration or a sample, which are parsed by Python
JSON_DEPTH = 64
MEMBER_LIMIT = 64
RATIO_LIMIT = 100  # unpacked over packed size of a member; deflate itself reaches 1032
SMALL_MEMBER = 2**20  # below this a member may be packed as tightly as it likes
MEMBER_NAME = re.compile(r"[A-Za-z0-9._-]+")

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(r"[\[{}\]]")
_DTYPES = {  # safetensors name -> NumPy type; bfloat16 and the 8-bit floats have none
    "BOOL": np.bool_,
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
}


class MalformedFile(ValueError):
    """The file is broken, or is not what it claims to be."""


class UnsafeFile(ValueError):
    """Reading the file could harm the reader, so it was not read."""


def read_limited(path: Path, limit: int = FILE_LIMIT) -> bytes:
    """The bytes of a file of at most `limit` bytes.

    Raises:
        UnsafeFile: a larger file.
        OSError: no such file, or it cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UnsafeFile(f"{path}: larger than {limit} bytes")
        return file.read(size)


def strict_json(content: bytes, name: str = "document") -> Any:
    """The value of a JSON document.

    Args:
        content: UTF-8 text.
        name: how to call the document in errors.

    Raises:
        MalformedFile: not JSON, a key given twice, NaN or an infinity, nested deeper than 64.
        UnsafeFile: larger than 16 MiB.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise MalformedFile(f"{name}: key {twice!r} is given twice")
        return found

    def refuse(constant: str) -> NoReturn:
        raise MalformedFile(f"{name}: {constant} is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise MalformedFile(f"{name}: number {digits[:40]} is out of range")
        return number

    if len(content) > JSON_LIMIT:
        raise UnsafeFile(f"{name}: JSON larger than {JSON_LIMIT} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as reason:
        raise MalformedFile(f"{name}: not UTF-8 text ({reason})") from None
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > JSON_DEPTH:
            raise MalformedFile(f"{name}: nested deeper than {JSON_DEPTH}")
    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
    except MalformedFile:
        raise
    except (ValueError, RecursionError) as reason:
        raise MalformedFile(f"{name}: not JSON ({reason})") from None


def read_zip(source: Path | bytes, name: str, *, folders: bool = False) -> dict[str, bytes]:
    """The members of a zip file, in memory.

    Args:
        source: a path, or the file's bytes.
        name: how to call the file in errors.
        folders: allow member names with `/` between plain names, as in torch's own zips.

    Raises:
        MalformedFile: not a zip file, damaged, or a member given twice.
        UnsafeFile: too many members, too large, packed too tightly, encrypted, or a name outside
            `[A-Za-z0-9._-]+`.
    """
    stream = io.BytesIO(source if isinstance(source, bytes) else read_limited(source, FILE_LIMIT))
    members: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
            limit = 16 * MEMBER_LIMIT if folders else MEMBER_LIMIT
            if len(entries) > limit:
                raise UnsafeFile(f"{name}: {len(entries)} members, allowed {limit}")
            for entry in entries:
                _check_member(entry, name, folders)
            total = sum(entry.file_size for entry in entries)
            if total > FILE_LIMIT:
                raise UnsafeFile(f"{name}: unpacks to {total} bytes, allowed {FILE_LIMIT}")
            for entry in entries:
                if entry.filename in members:
                    raise MalformedFile(f"{name}: member {entry.filename} is given twice")
                members[entry.filename] = archive.read(entry)  # checks size and CRC-32
    except (MalformedFile, UnsafeFile):
        raise
    except Exception as reason:  # zipfile raises whatever its parser trips over
        raise MalformedFile(f"{name}: not a readable zip file ({reason})") from None
    return members


def _check_member(entry: zipfile.ZipInfo, name: str, folders: bool) -> None:
    parts = entry.filename.split("/") if folders else [entry.filename]
    if not all(MEMBER_NAME.fullmatch(part) and part.strip(".") for part in parts):
        raise UnsafeFile(f"{name}: member name {entry.filename[:80]!r}, allowed [A-Za-z0-9._-]+")
    if entry.flag_bits & 0x1:
        raise UnsafeFile(f"{name}: member {entry.filename} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UnsafeFile(f"{name}: member {entry.filename} is neither stored nor deflated")
    packed = max(entry.compress_size, 1)
    if entry.file_size > SMALL_MEMBER and entry.file_size > RATIO_LIMIT * packed:
        raise UnsafeFile(
            f"{name}: member {entry.filename} unpacks to {entry.file_size} bytes from {packed}, "
            f"allowed {RATIO_LIMIT} times"
        )


def read_tensors(content: bytes, name: str) -> dict[str, Array]:
    """The arrays of a safetensors file; their memory is our own and writeable.

    The format (https://github.com/huggingface/safetensors): 8 bytes length of the header, little
    endian; the header, JSON; the data. The tensors must cover the data exactly, without gaps.

    Raises:
        MalformedFile: any deviation from the format, a type that NumPy lacks, NaN or an infinity.
    """
    if len(content) < 8:
        raise MalformedFile(f"{name}: {len(content)} bytes, too short for safetensors")
    (length,) = struct.unpack("<Q", content[:8])
    if length > len(content) - 8:
        raise MalformedFile(f"{name}: header of {length} bytes in a file of {len(content)}")
    header = strict_json(content[8 : 8 + length], f"{name} header")
    if not isinstance(header, dict):
        raise MalformedFile(f"{name}: the header is not a JSON object")
    header.pop("__metadata__", None)
    data = memoryview(content)[8 + length :]
    tensors: dict[str, Array] = {}
    spans = []
    for key, entry in header.items():
        dtype, shape, start, end = _tensor_entry(entry, f"{name}: tensor {key!r}")
        if not 0 <= start <= end <= len(data):
            raise MalformedFile(f"{name}: tensor {key!r} lies outside the file")
        if end - start != math.prod(shape) * dtype.itemsize:
            raise MalformedFile(
                f"{name}: tensor {key!r} of shape {tuple(shape)} needs "
                f"{math.prod(shape) * dtype.itemsize} bytes, got {end - start}"
            )
        spans.append((start, end, key))
        array = np.frombuffer(data[start:end], dtype.newbyteorder("<")).reshape(shape)
        if dtype.kind == "f" and not np.isfinite(array).all():
            raise MalformedFile(f"{name}: tensor {key!r} holds NaN or an infinity")
        tensors[key] = array.astype(dtype)
    position = 0
    for start, end, key in sorted(spans):
        if start != position:
            word = "overlaps another" if start < position else "leaves a gap before it"
            raise MalformedFile(f"{name}: tensor {key!r} {word}")
        position = end
    if position != len(data):
        raise MalformedFile(f"{name}: {len(data) - position} bytes behind the last tensor")
    return tensors


def _tensor_entry(entry: Any, name: str) -> tuple[np.dtype[Any], list[int], int, int]:
    def whole(numbers: Any) -> bool:
        return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise MalformedFile(f"{name}: expected dtype, shape and data_offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in _DTYPES:
        raise MalformedFile(f"{name}: type {entry['dtype']!r}, allowed {', '.join(_DTYPES)}")
    if not whole(shape) or len(shape) > 8 or not whole(offsets) or len(offsets) != 2:
        raise MalformedFile(f"{name}: shape and data_offsets must be non-negative integers")
    return np.dtype(_DTYPES[entry["dtype"]]), shape, offsets[0], offsets[1]


def write_tensors(tensors: Mapping[str, Array], name: str) -> bytes:
    """A safetensors file of the arrays; equal arrays give equal bytes.

    Raises:
        ValueError: NaN or an infinity, which the reader would refuse.
    """
    from safetensors.numpy import save

    for key, array in tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name}: tensor {key!r} holds NaN or an infinity")
    return save({key: np.asarray(tensors[key], order="C") for key in sorted(tensors)})


def read_matrix(path: Path) -> Array:
    """A matrix of finite numbers, float64 (m, n), from a `.csv`, `.npy` or `.mat` file.

    A `.csv` holds one row a line, separated by commas or blanks. A `.mat` file (MATLAB up to 7.2)
    holds one matrix, or several of which one is called `K`.

    Raises:
        MalformedFile: not such a file, or not a finite real matrix.
        UnsafeFile: a `.npy` file with pickled objects, or a file larger than 16 MiB.
    """
    readers = {".csv": _read_csv, ".npy": _read_npy, ".mat": _read_mat}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise ValueError(f"{path}: suffix {suffix!r}, allowed {', '.join(readers)}")
    matrix = np.asarray(readers[suffix](read_limited(path, 16 * 2**20), path))
    if matrix.dtype.kind not in "fiu" or matrix.ndim != 2 or matrix.size == 0:
        raise MalformedFile(
            f"{path}: expected a real matrix (m, n), got {matrix.dtype} of shape {matrix.shape}"
        )
    matrix = matrix.astype(np.float64)
    if not np.isfinite(matrix).all():
        raise MalformedFile(f"{path}: the matrix holds NaN or an infinity")
    return matrix


def _read_csv(content: bytes, path: Path) -> Array:
    try:
        text = content.decode("utf-8-sig")
        separator = "," if "," in text else None
        return np.loadtxt(io.StringIO(text), delimiter=separator, ndmin=2)
    except ValueError as reason:
        raise MalformedFile(f"{path}: not a matrix of numbers ({reason})") from None


def _read_npy(content: bytes, path: Path) -> Array:
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = header(stream)
    except Exception as reason:  # NumPy raises whatever its parser trips over
        raise MalformedFile(f"{path}: not a .npy file ({reason})") from None
    if dtype.hasobject:
        raise UnsafeFile(f"{path}: holds pickled objects, which are never loaded")
    # NumPy would allocate what the header promises before it looks at the data
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != len(content) - stream.tell():
        raise MalformedFile(f"{path}: the header promises {shape} of {dtype}, the data differs")
    stream.seek(0)
    return np.asarray(np.load(stream, allow_pickle=False))


def _read_mat(content: bytes, path: Path) -> Array:
    try:
        variables = read_mat(content)
    except NotMatlab as reason:
        raise MalformedFile(f"{path}: not a .mat file: {reason}") from None
    if "K" in variables:
        chosen = "K"
    elif len(variables) == 1:
        (chosen,) = variables
    else:
        raise MalformedFile(
            f"{path}: holds {sorted(variables)}, expected one matrix or one named K"
        )
    matrix = variables[chosen]
    if matrix is None:
        raise MalformedFile(f"{path}: {chosen} is no full real matrix")
    return matrix
