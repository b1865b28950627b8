"""Merges the objects of one shard into one object, with bounded memory: the records pass through in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from leasehold.archive.avro_objects import AvroObject, from_avro
from leasehold.archive.decompression import TooLargeError, compression_of, read_parquet
from leasehold.archive.formats import UNREADABLE, identity_of, json_rows, parquet_options
from leasehold.archive.identity import with_valid_identity
from leasehold.archive.rows import positions_of

# Rows are collected until they have this size, and then become a row group of a Parquet file.
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
# A row of JSON lines is kept as it is, beside the columns that identify it.
LINE: Final = "line"
# The compression of a merged Avro object, for the one that was chosen for Parquet.
_AVRO_COMPRESSIONS: Final[Mapping[str, str]] = {
    "zstd": "zstd",
    "snappy": "zstd",
    "gzip": "deflate",
    "none": "none",
}


def decode_rows(body: bytes, extension: str) -> Any:
    """All rows of an object, so that `ObjectMerger` can write them again. Raises ValueError for a damaged object."""
    rows = _decode_rows(body, extension)
    with_valid_identity(rows)  # its types stay as they are
    return rows


def _decode_rows(body: bytes, extension: str) -> Any:
    if extension == "avro":
        return from_avro(body)
    try:
        if extension == "parquet":
            return read_parquet(body, None)
        lines: list[bytes] = []

        def rows() -> Iterator[Mapping[str, Any]]:
            for line, row in json_rows(body, extension):
                lines.append(line)
                yield row

        return identity_of(rows()).append_column(LINE, pa.array(lines, pa.binary()))
    except TooLargeError:
        raise
    except UNREADABLE as error:
        raise ValueError(f"unreadable: {type(error).__name__}") from error


def merge_rows(tables: Sequence[Any]) -> Any:
    """The rows of overlapping objects in their order, each record once."""
    if len(tables) == 1:
        return tables[0]
    table = pa.concat_tables(tables)
    rows = {position: row for row, position in enumerate(positions_of(table))}
    return table.take(pa.array([rows[position] for position in sorted(rows)], pa.int64()))


class ObjectMerger:
    """Writes the rows of one object after the other into the body of one object."""

    def __init__(self, schema: Any, extension: str, compression: str) -> None:
        self.rows = 0
        self.decoded_bytes = 0
        self._schema = schema
        self._body = _begin_body(schema, extension, compression)

    def has_schema_of(self, table: Any) -> bool:
        """True if these rows have the columns of the object."""
        return bool(self._schema.equals(table.schema))

    def add(self, table: Any) -> None:
        """Add the next rows."""
        self.rows += table.num_rows
        self.decoded_bytes += table.nbytes
        self._body.add(table)

    def finish(self) -> bytes:
        """The body of the object."""
        return self._body.finish()


class _Body(Protocol):
    """The body of an object that gets its rows little by little."""

    def add(self, table: Any) -> None: ...

    def finish(self) -> bytes: ...


def _begin_body(schema: Any, extension: str, compression: str) -> _Body:
    if extension == "parquet":
        return _ParquetBody(schema, compression)
    return _AvroBody(compression) if extension == "avro" else _JsonLinesBody(extension)


class _ParquetBody:
    def __init__(self, schema: Any, compression: str) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, schema, **parquet_options(schema.names, compression))
        self._pending: list[Any] = []
        self._pending_bytes = 0

    def add(self, table: Any) -> None:
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> bytes:
        self._flush()
        self._writer.close()
        return bytes(self._sink.getvalue())

    def _flush(self) -> None:
        if self._pending:
            table = pa.concat_tables(self._pending).combine_chunks()
            self._pending, self._pending_bytes = [], 0
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))


class _AvroBody:
    def __init__(self, compression: str) -> None:
        self._compression = _AVRO_COMPRESSIONS[compression]
        self._object: AvroObject | None = None

    def add(self, table: Any) -> None:
        self._object = self._object or AvroObject(table, self._compression)
        self._object.add(table)

    def finish(self) -> bytes:
        return b"" if self._object is None else self._object.finish()


class _JsonLinesBody:
    def __init__(self, extension: str) -> None:
        self._sink = pa.BufferOutputStream()
        kind = compression_of(extension)
        self._text = self._sink if kind is None else pa.CompressedOutputStream(self._sink, kind)

    def add(self, table: Any) -> None:
        self._text.write(_joined_lines(table[LINE].to_pylist()))

    def finish(self) -> bytes:
        if self._text is not self._sink:
            self._text.close()
        return bytes(self._sink.getvalue())


def _joined_lines(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
