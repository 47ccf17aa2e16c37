"""The certificate file: one safetensors file whose metadata hold one JSON document.

Eight bytes (little endian) say how long the header is; the header is JSON: for each array its type,
shape and place, and under `__metadata__` the entry `certificate`, the document as text. Then come
the arrays. Nothing in it is code.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

FORMAT, SCHEMA = "palestra.certificate", 1
FILE_LIMIT, HEADER_LIMIT = 2**30, 2**24
TYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
}
ENTRIES = {
    "format", "schema", "topic", "claim", "method", "system", "domain", "assumptions",
    "not_covered", "hashes", "provenance",
}  # fmt: skip


class Malformed(ValueError):
    """The file is no certificate, is damaged, or is of a newer schema."""


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Document and arrays of a certificate file, each array held against its SHA-256.

    Raises:
        Malformed: see there.
        OSError: it cannot be read.
    """
    path = Path(path)
    if path.stat().st_size > FILE_LIMIT:
        raise Malformed(f"{path}: larger than {FILE_LIMIT} bytes")
    content = path.read_bytes()
    if len(content) < 8:
        raise Malformed(f"{path}: too short for a certificate")
    (length,) = struct.unpack("<Q", content[:8])
    if length > min(HEADER_LIMIT, len(content) - 8):
        raise Malformed(f"{path}: a header of {length} bytes, in a file of {len(content)}")
    header = _json(content[8 : 8 + length], f"{path}: header")
    metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("certificate"), str):
        raise Malformed(f"{path}: no certificate in its metadata")
    document = _json(metadata["certificate"].encode(), f"{path}: certificate")
    arrays = {
        name: _array(f"{path}: {name}", entry, content[8 + length :])
        for name, entry in header.items()
    }
    _check_document(str(path), document, arrays)
    return document, arrays


def _json(text: bytes, name: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number of JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as reason:
        raise Malformed(f"{name}: not JSON: {reason}") from None


def _array(name: str, entry: Any, data: bytes) -> np.ndarray[Any, Any]:
    try:
        dtype, shape, (first, last) = TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        fits = all(type(n) is int and n >= 0 for n in (*shape, first, last))
        fits = fits and first <= last <= len(data)
        fits = fits and last - first == math.prod(shape) * dtype.itemsize
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise Malformed(f"{name}: its entry in the header fits no array of the file")
    array: np.ndarray[Any, Any] = np.frombuffer(data[first:last], dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise Malformed(f"{name}: holds numbers that are not finite")
    return array


def _check_document(name: str, document: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise Malformed(f"{name}: format is not {FORMAT!r}")
    if document.get("schema") != SCHEMA:
        raise Malformed(f"{name}: schema {document.get('schema')!r}, read here: {SCHEMA}")
    if set(document) != ENTRIES:
        odd = sorted(set(document) ^ ENTRIES)
        raise Malformed(f"{name}: entries missing or unknown: {', '.join(odd)}")
    hashes = document["hashes"]
    if not isinstance(hashes, dict) or set(hashes) != set(arrays):
        raise Malformed(f"{name}: hashes of other arrays than it has")
    for key, array in arrays.items():
        if hashes[key] != digest(array):
            raise Malformed(f"{name}: array {key!r} is not the one that was certified (SHA-256)")


def digest(array: np.ndarray[Any, Any]) -> str:
    """SHA-256 of an array's bytes, C order, little endian."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
