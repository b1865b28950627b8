"""Encodes tables as the bytes of objects, and decodes the positions of their records, or their payloads if they have
no positions. Encoding is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pybase64 import b64encode_as_string

from leasehold.archive.avro_objects import from_avro, import_fastavro, to_avro
from leasehold.archive.columns import ARRIVAL, DATA, SEQUENCE_NUMBER, SHARD_ID, SUB_SEQUENCE_NUMBER
from leasehold.archive.decompression import TooLargeError, compression_of, read_parquet, read_text
from leasehold.archive.identity import IDENTITY_COLUMNS as IDENTITY_COLUMNS
from leasehold.archive.identity import with_valid_identity
from leasehold.archive.raw_objects import (
    count_frames,
    count_lines,
    from_frames,
    from_lines,
    to_frames,
    to_lines,
)
from leasehold.errors import ConfigError

T = TypeVar("T")

# In JSON lines, a row with this member has text in `data`, and not base64: a program has made the column text.
DATA_IS_TEXT: Final = "_dataIsText"

# What a damaged object of JSON lines or Parquet may raise.
UNREADABLE: Final = (
    pa.ArrowException,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    OSError,
    MemoryError,
    RecursionError,
)
_ENCODERS: Final[Mapping[str, Callable[[Any], bytes]]] = {"raw": to_frames, "txt": to_lines}
_DECODERS: Final[Mapping[str, Callable[[bytes], list[bytes]]]] = {"raw": from_frames, "txt": from_lines}
_COUNTERS: Final[Mapping[str, Callable[[bytes], int]]] = {"raw": count_frames, "txt": count_lines}


def encode(table: Any, extension: str, compression: str) -> bytes:
    """Encode a table as the content of an object. Raises ConfigError for rows that the format cannot hold."""
    if extension == "parquet":
        return _to_parquet(table, compression)
    if extension == "avro":
        return to_avro(table, compression)
    return _compress(_ENCODERS.get(_kind(extension), _to_json_object)(table), extension)


def require_library(extensions: Iterable[str]) -> None:
    """Raise ConfigError if the library for one of these extensions is not installed."""
    if "avro" in extensions:
        import_fastavro()


def decode_payloads(body: bytes, extension: str) -> list[bytes]:
    """Decode an object without positions. Raises ValueError if the object cannot be read."""
    return _read_payloads(body, extension, _DECODERS[_kind(extension)])


def count_payloads(body: bytes, extension: str) -> int:
    """Count the payloads of an object without positions. Raises ValueError if the object cannot be read."""
    return _read_payloads(body, extension, _COUNTERS[_kind(extension)])


def _read_payloads(body: bytes, extension: str, read: Callable[[bytes], T]) -> T:
    try:
        return read(read_text(body, extension))
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise ValueError(f"unreadable: {type(error).__name__}") from error


def decode_identity(body: bytes, extension: str) -> Any:
    """Decode the IDENTITY_COLUMNS of an object with positions. Raises ValueError if the object cannot be read."""
    return with_valid_identity(_decode_identity(body, extension))


def _decode_identity(body: bytes, extension: str) -> Any:
    if extension == "avro":
        return from_avro(body, IDENTITY_COLUMNS, required=True)
    try:
        if extension == "parquet":
            return read_parquet(body, IDENTITY_COLUMNS).select(IDENTITY_COLUMNS)
        return identity_of(row for _, row in json_rows(body, extension))
    except TooLargeError:
        raise
    except UNREADABLE as error:
        raise ValueError(f"unreadable: {type(error).__name__}") from error


def json_rows(body: bytes, extension: str) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """The lines of an object, and the row in each. Raises ValueError for a line that is no row of an archive."""
    for line in BytesIO(read_text(body, extension)):
        row = orjson.loads(line)
        if not isinstance(row, dict) or SEQUENCE_NUMBER not in row:
            raise ValueError("a line is no record")
        yield line.rstrip(b"\r\n"), row


def _to_parquet(table: Any, compression: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **parquet_options(table.column_names, compression))
    return bytes(sink.getvalue())


def parquet_options(names: Sequence[str], compression: str) -> dict[str, Any]:
    """The options of a Parquet writer."""
    # Payloads and sequence numbers are unique. Dictionaries and statistics of them only cost time and space.
    return {
        "compression": compression,
        "use_dictionary": [name for name in names if name not in {DATA, SEQUENCE_NUMBER}],
        "write_statistics": [name for name in names if name != DATA],
        # Compression alone does not show a changed byte.
        "write_page_checksum": True,
    }


def to_json_lines(table: Any) -> bytes:
    """A JSON object for each row, each in a line. Raises ConfigError for a value that JSON cannot hold."""
    dumps: Callable[[Any], bytes] = lambda row: orjson.dumps(  # noqa: E731 - a name for the options
        row, default=_to_json_text, option=orjson.OPT_APPEND_NEWLINE
    )
    try:
        rows = table.to_pylist()
    except UnicodeDecodeError as error:
        raise ConfigError(
            "a column of text has a value that is not UTF-8, for which JSON lines have no text: keep it as bytes, or "
            "use format='parquet'"
        ) from error
    except (OverflowError, ValueError) as error:
        raise ConfigError(
            "a column has a time outside of the years 1 to 9999, for which JSON lines have no text: cast it to a "
            "number or a text, or use format='parquet'"
        ) from error
    return b"".join(map(dumps, rows))


def _to_json_object(table: Any) -> bytes:
    """The content of an object. Payloads that a program has made text are marked: they may look like base64.

    Raises ConfigError for a column that could not be read back.
    """
    for field in table.schema:
        _require_json_type(field.name, field.type)
    if DATA in table.column_names and is_text(table.schema.field(DATA).type):
        table = table.append_column(DATA_IS_TEXT, pa.repeat(True, table.num_rows))
    return to_json_lines(table)


def _require_json_type(column: str, kind: Any) -> None:
    if pa.types.is_map(kind):
        remedy = "make it an array of structures"
    elif pa.types.is_uint64(kind):
        remedy = "cast it to a decimal or a text"
    else:
        for place in range(kind.num_fields):
            _require_json_type(column, kind.field(place).type)
        return
    raise ConfigError(
        f"column {column!r} has values of type {kind}, which cannot be read back from JSON lines: {remedy}, or use "
        "format='parquet'"
    )


def is_text(kind: Any) -> bool:
    """Whether values of an Arrow type are text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _kind(extension: str) -> str:
    return extension.partition(".")[0]


def _compress(body: bytes, extension: str) -> bytes:
    compression = compression_of(extension)
    if compression is None:
        return body
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


def _to_json_text(value: object) -> str:
    """Convert a value without a JSON type: bytes to base64, decimals and others to text."""
    return b64encode_as_string(value) if isinstance(value, bytes) else str(value)


def identity_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """The IDENTITY_COLUMNS of rows of JSON lines. Raises an error of UNREADABLE for other rows."""
    found: dict[str, list[Any]] = {name: [] for name in IDENTITY_COLUMNS}
    for row in rows:
        for name, values in found.items():
            values.append(row[name])
    return pa.table(
        {
            SHARD_ID: pa.array(found[SHARD_ID], pa.string()),
            SEQUENCE_NUMBER: pa.array(found[SEQUENCE_NUMBER], pa.string()),
            SUB_SEQUENCE_NUMBER: pa.array(found[SUB_SEQUENCE_NUMBER], pa.int64()),
            ARRIVAL: pa.array(found[ARRIVAL], pa.string()).cast(pa.timestamp("us", tz="UTC")),
        }
    )
