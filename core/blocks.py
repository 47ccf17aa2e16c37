"""A block of results as the bytes of one Parquet file, in which no flipped bit goes unnoticed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from .disk import CorruptFile

if TYPE_CHECKING:
    import pyarrow as pa


class CorruptBlock(CorruptFile):
    """A block of results is damaged. Deleting the file and resuming computes it again."""


# Page checksums do not cover Parquet's footer: one flipped bit there can rename a column. So the
# footer carries, in the extension field that the format reserves (field 32767 of FileMetaData,
# apache/parquet-format, BinaryProtocolExtensions.md), the SHA-256 of the whole file but itself.
# Every other Parquet reader skips it.
_SEAL = b"\x08\xff\xff\x01" + bytes([40]) + b"palestra"
_TAIL = 9  # end of the footer's struct, its length in four bytes, "PAR1"


def encode_block(table: pa.Table) -> bytes:
    """A Parquet file as bytes: zstd, page checksums, a SHA-256 over everything.

    The same rows give the same bytes, however the table is chunked, for one version of pyarrow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(
        table.combine_chunks(),
        sink,
        compression="zstd",
        compression_level=3,
        write_page_checksum=True,
    )
    plain = memoryview(sink.getvalue())  # no copies: a block may have a hundred MB
    footer = int.from_bytes(plain[-8:-4], "little") + len(_SEAL) + 32
    tail = bytes(plain[-_TAIL:-8]) + footer.to_bytes(4, "little") + bytes(plain[-4:])
    digest = _digest(plain[:-_TAIL], _SEAL, tail)
    return b"".join((plain[:-_TAIL], _SEAL, digest, tail))


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def decode_block(data: bytes, path: Path = Path("<memory>")) -> pa.Table:
    """The table of a block. Raises CorruptBlock, naming `path`, if any bit is not as written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = memoryview(data)
    body, digest, tail = whole[: -_TAIL - 32], whole[-_TAIL - 32 : -_TAIL], whole[-_TAIL:]
    if body[-len(_SEAL) :] != _SEAL:
        raise CorruptBlock(path, "cut short, damaged, or not a block written by palestra")
    if _digest(body, tail) != digest:
        raise CorruptBlock(path, f"checksum does not match. {_REMEDY}")
    try:
        return pq.read_table(
            pa.BufferReader(data), page_checksum_verification=True, use_threads=False
        )
    except (pa.ArrowException, OSError) as error:
        raise CorruptBlock(path, f"{error}. {_REMEDY}") from error


_REMEDY = "Delete this file and resume: the block is computed again"
