"""Objects of the archive as Avro object container files. Needs the extra `avro`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import pyarrow as pa

from leasehold.archive.avro_types import (
    expand_names,
    smallest_bytes,
    to_arrow_type,
    to_avro_schema,
    with_numbers_for_times,
)
from leasehold.archive.columns import SEQUENCE_NUMBER
from leasehold.archive.decompression import TooLargeError, require_avro_size
from leasehold.errors import ConfigError

# The names of compressions in Avro.
CODECS: Final[Mapping[str, str]] = {"none": "null", "deflate": "deflate", "zstd": "zstandard"}
BLOCK_BYTES: Final = 256 * 1024


def import_fastavro() -> Any:
    """Import fastavro. Raises ConfigError if it is not installed."""
    try:
        import fastavro  # noqa: PLC0415 - an extra
        import fastavro.write  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError("Avro needs fastavro: pip install 'leasehold[avro]'") from error
    return fastavro


class AvroObject:
    """Collects rows as the body of one object."""

    def __init__(self, first: Any, compression: str) -> None:
        """Begin an object. `first` are its first rows: the others have the same columns."""
        fastavro = import_fastavro()
        self._body = BytesIO()
        schema = to_avro_schema(first.schema)
        expand_names(schema)  # what readers refuse is not written
        self._fields: Sequence[Mapping[str, Any]] = schema["fields"]
        # Other attempts at an object write the same bytes, so the marker between blocks is not random. It depends on
        # sequence numbers, which no producer knows before it has sent its payload.
        marker = hashlib.blake2b("\n".join(first[SEQUENCE_NUMBER].to_pylist()).encode(), digest_size=16)
        self._writer = fastavro.write.Writer(
            self._body,
            fastavro.parse_schema(schema),
            codec=CODECS[compression],
            sync_interval=BLOCK_BYTES,
            sync_marker=marker.digest(),
        )

    def add(self, table: Any) -> None:
        """Add rows. Raises ConfigError for a value that Avro cannot hold."""
        columns = {each["name"]: _to_stored(table[each["name"]], each) for each in self._fields}
        for row in pa.table(columns).to_pylist():
            self._writer.write(row)

    def finish(self) -> bytes:
        """The body of the object."""
        self._writer.flush()
        return self._body.getvalue()


def to_avro(table: Any, compression: str) -> bytes:
    """Encode a table. The same rows always result in the same bytes."""
    made = AvroObject(table, compression)
    made.add(table)
    return made.finish()


def from_avro(body: bytes, columns: Sequence[str] | None = None, *, required: bool = False) -> Any:
    """Decode an object. Columns that it does not have are left out; None: all of its columns.

    Raises ValueError if the object cannot be read, or lacks a required column.
    """
    fastavro = import_fastavro()
    try:
        source = BytesIO(body)
        blocks = fastavro.block_reader(source)
        require_avro_size(body, source.tell(), blocks.codec)
        stored = expand_names(blocks.writer_schema)
        types = {each["name"]: to_arrow_type(each["type"]) for each in stored["fields"]}
        wanted = {
            name: types[name] for name in (types if columns is None else columns) if required or name in types
        }
        return _to_table(blocks, with_numbers_for_times(stored), wanted)
    except TooLargeError:
        raise
    except Exception as error:
        # A damaged file may raise anything: errors of fastavro, of a codec, of Arrow.
        raise ValueError(f"unreadable: {type(error).__name__}") from error


def _to_table(blocks: Iterable[Any], plain: Mapping[str, Any], wanted: Mapping[str, Any]) -> Any:
    """The wanted columns, of these types. Only their values are held. Raises ValueError for rows without end."""
    if not smallest_bytes(plain):
        raise ValueError("rows that take no bytes may be endless")
    found: dict[str, list[Any]] = {name: [] for name in wanted}
    for block in blocks:
        block.writer_schema = plain
        for row in block:
            for name, values in found.items():
                values.append(row[name])
    numbers = {each["name"]: to_arrow_type(each["type"]) for each in plain["fields"]}
    return pa.table({name: pa.array(found.pop(name), numbers[name]).cast(wanted[name]) for name in wanted})


def _to_stored(column: Any, stored: Mapping[str, Any]) -> Any:
    """The column with the type of its field in Avro, and with numbers for times."""
    try:
        column = column.cast(to_arrow_type(stored["type"]))
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"column {stored['name']!r} has a value that Avro cannot hold, such as a time far from today: change it, "
            "drop the column, or use format='parquet'"
        ) from error
    # Objects for times are slow, and end with the year 9999.
    return column.cast(to_arrow_type(with_numbers_for_times(stored["type"])))
