"""Real matrices of a MATLAB file (level 5, which MATLAB writes up to `-v7`), in pure Python.

The format is MathWorks' "MAT-File Format" (R2021b), chapter 1: a header of 128 bytes, then
elements, each a tag (type, number of bytes) and its data. SciPy's compiled reader reads more, but a
damaged file can end the process with a segmentation fault, and files come from strangers.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MATRIX, COMPRESSED = 14, 15
STORED = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
NUMERIC = range(6, 16)  # classes: double, single, int8 to uint64
COMPLEX = 0x0800
UNPACKED = 64 * 2**20  # bytes that the compressed parts of a file may become


class NotMatlab(ValueError):
    """The bytes are not a file of the format."""


class _Element(NamedTuple):
    kind: int
    data: bytes


def read_mat(content: bytes) -> dict[str, Array | None]:
    """The variables of a file: an array, or None for what is no full real array of numbers.

    Raises:
        NotMatlab: any deviation from the format; also a file of `-v7.3`, which is HDF5.
    """
    if len(content) < 128 or content[126:128] not in (b"IM", b"MI"):
        if content.startswith((b"MATLAB 7.3", b"\x89HDF")):
            raise NotMatlab("a MATLAB 7.3 file; save it with `save(..., '-v7')`")
        raise NotMatlab("no header of a MATLAB file (level 5)")
    order = "<" if content[126:128] == b"IM" else ">"
    (version,) = struct.unpack(order + "H", content[124:126])
    if version == 0x0200:
        raise NotMatlab("a MATLAB 7.3 file; save it with `save(..., '-v7')`")
    if version != 0x0100:
        raise NotMatlab(f"version {version:#06x}, allowed 0x0100")
    variables: dict[str, Array | None] = {}
    left = UNPACKED
    for element in _elements(content[128:], order):
        if element.kind == COMPRESSED:
            data = _inflated(element.data, left)
            left -= len(data)
            element = next(_elements(data, order), _Element(0, b""))
        if element.kind != MATRIX:
            raise NotMatlab(f"an element of type {element.kind} where a variable should be")
        name, value = _variable(element.data, order)
        variables[name] = value
    return variables


def _elements(data: bytes, order: str) -> Iterator[_Element]:
    place = 0
    while place < len(data):
        if len(data) - place < 8:
            raise NotMatlab("it ends within a tag")
        kind, size = struct.unpack_from(order + "II", data, place)
        start = place + 8
        if kind >> 16:  # a small element: type and size in one word, the data in the next
            kind, size, start = kind & 0xFFFF, kind >> 16, place + 4
            if size > 4:
                raise NotMatlab(f"a small element of {size} bytes, allowed 4")
            place += 8
        else:
            padding = 0 if kind == COMPRESSED else -size % 8
            place = start + size + padding
        if start + size > len(data):
            raise NotMatlab("it ends within an element")
        yield _Element(kind, data[start : start + size])


def _inflated(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, limit)
    except zlib.error as reason:
        raise NotMatlab(f"a compressed element is damaged ({reason})") from None
    if not stream.eof:
        raise NotMatlab(f"a compressed element is cut off, or larger than {UNPACKED} bytes")
    return found


def _variable(data: bytes, order: str) -> tuple[str, Array | None]:
    parts = list(_elements(data, order))
    if len(parts) < 3:
        raise NotMatlab("a variable without flags, shape or name")
    flags, shape, name, *rest = parts
    if flags.kind != 6 or len(flags.data) != 8 or shape.kind != 5 or len(shape.data) % 4:
        raise NotMatlab("a variable whose flags or shape are no integers")
    (word,) = struct.unpack_from(order + "I", flags.data)
    text = name.data.decode("ascii", "replace")
    if word & 0xFF not in NUMERIC or word & COMPLEX:
        return text, None
    sizes = struct.unpack(f"{order}{len(shape.data) // 4}i", shape.data)
    if not rest or rest[0].kind not in STORED:
        raise NotMatlab(f"variable {text!r} has no numbers")
    real = rest[0]
    dtype = np.dtype(order + STORED[real.kind])
    if min(sizes, default=-1) < 0 or math.prod(sizes) * dtype.itemsize != len(real.data):
        raise NotMatlab(f"variable {text!r} of shape {sizes} has {len(real.data)} bytes of {dtype}")
    values = np.frombuffer(real.data, dtype).reshape(sizes, order="F")
    return text, values.astype(dtype.newbyteorder("="))
