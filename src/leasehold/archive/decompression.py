"""Decompresses objects with bounded memory.

An object is not trusted before it was parsed: a few bytes of it may stand for any number of bytes. So the decompressed
size is limited, in proportion to the size of the object. Data that writers store is far below this limit, and a
compaction creates no object above it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# An object may have so many bytes decompressed, or so many for each byte of it, whichever is more. Zstandard compresses
# repeated text 20 to 30 times, and a bomb thousands of times.
SMALL_BYTES_MAX: Final = 1024 * 1024 * 1024
BYTES_PER_STORED_BYTE: Final = 64

_COMPRESSIONS: Final[Mapping[str, str | None]] = {"": None, "gz": "gzip", "zst": "zstd"}
_PIECE_BYTES: Final = 1024 * 1024
_ROWS_AT_ONCE: Final = 64 * 1024
_ROWS_TO_DROP: Final = 4 * 1024  # at once, if they are not kept: a record may have 1 MiB
# A row has at least its position and its arrival time.
_ROW_BYTES_MIN: Final = 16
_RAW_DEFLATE: Final = -zlib.MAX_WBITS
_LONG_BYTES_MAX: Final = 10


class TooLargeError(ValueError):
    """An object has far more bytes decompressed than its size allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"it has more than {limit:,} bytes decompressed, which no writer of an archive stores in an object of its "
            "size"
        )


def decoded_limit(stored_bytes: int) -> int:
    """The bytes that an object of this size may have decompressed."""
    return max(SMALL_BYTES_MAX, BYTES_PER_STORED_BYTE * stored_bytes)


def compression_of(extension: str) -> str | None:
    """The compression that the extension of a name shows, as pyarrow calls it.

    >>> compression_of("jsonl.zst"), compression_of("raw")
    ('zstd', None)
    """
    return _COMPRESSIONS[extension.partition(".")[2]]


def read_text(body: bytes, extension: str) -> bytes:
    """The content of an object without its compression. Raises TooLargeError, or the errors of Arrow."""
    compression = compression_of(extension)
    if compression is None:
        return body
    limit, size, pieces = decoded_limit(len(body)), 0, list[bytes]()
    for piece in _decompress(body, compression):
        size += len(piece)
        if size > limit:
            raise TooLargeError(limit)
        pieces.append(piece)
    return b"".join(pieces)


def read_parquet(body: bytes, columns: Sequence[str] | None) -> Any:
    """These columns of a Parquet file; those that it does not have are left out. None: all columns.

    Raises TooLargeError, or the errors of Arrow.
    """
    # `read_table` takes several times as long for a small object.
    file = _open_parquet(body)
    schema = file.schema_arrow
    wanted = None if columns is None else [name for name in columns if name in schema.names]
    if wanted is not None and not wanted:
        return file.read(columns=[])
    batches = list(_parquet_batches(file, body, wanted))
    if batches:
        return pa.Table.from_batches(batches)
    return (schema if wanted is None else pa.schema([schema.field(name) for name in wanted])).empty_table()


def require_readable_parquet(body: bytes) -> None:
    """Read all columns of a Parquet file, and keep none. Raises what `read_parquet` raises."""
    for _ in _parquet_batches(_open_parquet(body), body, None, rows=_ROWS_TO_DROP):
        pass


def _open_parquet(body: bytes, dictionaries: Sequence[str] = ()) -> Any:
    return pq.ParquetFile(
        pa.BufferReader(body), read_dictionary=list(dictionaries), page_checksum_verification=True
    )


def _parquet_batches(
    file: Any, body: bytes, wanted: Sequence[str] | None, *, rows: int = _ROWS_AT_ONCE
) -> Iterator[Any]:
    limit, schema = decoded_limit(len(body)), file.schema_arrow
    claimed = _claimed_bytes(file.metadata)
    if claimed > limit or file.metadata.num_rows > limit // _ROW_BYTES_MIN:
        raise TooLargeError(limit)
    repeated = [name for name in _dictionary_columns(file.metadata) if name in schema.names]
    if repeated and claimed * file.metadata.num_rows > limit:
        # A value of a dictionary is stored once for any number of rows. So its rows are counted before they are made.
        file = _open_parquet(body, repeated)
    size = 0
    for batch in file.iter_batches(batch_size=rows, columns=wanted, use_threads=False):
        size += sum(map(_plain_bytes, batch.columns))
        if size > limit:
            raise TooLargeError(limit)
        yield _without_dictionaries(batch)


def require_avro_size(body: bytes, blocks_at: int, codec: str) -> None:
    """Raise TooLargeError if the blocks of an Avro file, which begin at `blocks_at`, are too large decompressed.

    Raises ValueError for a file that is cut off, and for a codec that the archive does not use.
    """
    limit, size, source = decoded_limit(len(body)), 0, BytesIO(body)
    source.seek(blocks_at)
    while source.tell() < len(body):
        _read_long(source)  # the number of rows
        stored = _read_long(source)
        block = source.read(max(0, stored))
        if len(block) != stored:
            raise ValueError("it ends within a block")
        for piece in _avro_pieces(block, codec):
            size += len(piece)
            if size > limit:
                raise TooLargeError(limit)
        source.seek(16, 1)  # the marker


def _avro_pieces(block: bytes, codec: str) -> Iterator[bytes]:
    if codec == "null":
        return iter([block])
    if codec == "zstandard":
        return _decompress(block, "zstd")
    if codec == "deflate":
        return _inflate(block)
    raise ValueError(f"codec {codec[:20]!r} is not one of the archive")


def _decompress(body: bytes, compression: str) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(body), compression) as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield bytes(piece)


def _inflate(block: bytes) -> Iterator[bytes]:
    inflater = zlib.decompressobj(_RAW_DEFLATE)
    try:
        while block and not inflater.eof:
            yield inflater.decompress(block, _PIECE_BYTES)
            block = inflater.unconsumed_tail
    except zlib.error as error:
        raise ValueError("not compressed with deflate") from error


def _read_long(source: BytesIO) -> int:
    """A number as Avro stores it: seven bits in each byte, and the sign in the lowest bit."""
    found = 0
    for place in range(_LONG_BYTES_MAX):
        byte = source.read(1)
        if not byte:
            raise ValueError("it ends within a number")
        found |= (byte[0] & 0x7F) << (7 * place)
        if byte[0] < 0x80:
            return (found >> 1) ^ -(found & 1)
    raise ValueError("a number has too many bytes")


def _claimed_bytes(metadata: Any) -> int:
    return sum(max(0, metadata.row_group(each).total_byte_size) for each in range(metadata.num_row_groups))


def _dictionary_columns(metadata: Any) -> list[str]:
    """The texts and byte strings of which some have a dictionary."""
    found: dict[str, None] = {}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for place in range(row_group.num_columns):
            column = row_group.column(place)
            if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page:
                found[column.path_in_schema] = None
    return list(found)


def _plain_bytes(array: Any) -> int:
    """The size of an array without its dictionary."""
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    kind = array.type.value_type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        return int(array.nbytes)
    lengths = pc.take(pc.binary_length(array.dictionary), array.indices)
    return int(pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0) + int(array.indices.nbytes)


def _without_dictionaries(batch: Any) -> Any:
    if not any(map(pa.types.is_dictionary, batch.schema.types)):
        return batch
    columns = [
        each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in batch.columns
    ]
    fields = [field.with_type(each.type) for field, each in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
