"""Encodes tables as the bytes of objects, and decodes the positions of their records, or their payloads if they have
no positions. Encoding is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pybase64 import b64encode_as_string

from leasehold.archive.avro_objects import from_avro, import_fastavro, to_avro
from leasehold.archive.columns import ARRIVAL, DATA, SEQUENCE_NUMBER, SHARD_ID, SUB_SEQUENCE_NUMBER
from leasehold.archive.raw_objects import from_frames, from_lines, to_frames, to_lines
from leasehold.errors import ConfigError

# The columns that identify a record and determine its object.
IDENTITY_COLUMNS: Final = (SHARD_ID, SEQUENCE_NUMBER, SUB_SEQUENCE_NUMBER, ARRIVAL)

_COMPRESSIONS: Final[Mapping[str, str | None]] = {"": None, "gz": "gzip", "zst": "zstd"}
_ENCODERS: Final[Mapping[str, Callable[[Any], bytes]]] = {"raw": to_frames, "txt": to_lines}
_DECODERS: Final[Mapping[str, Callable[[bytes], list[bytes]]]] = {"raw": from_frames, "txt": from_lines}


def encode(table: Any, extension: str, compression: str) -> bytes:
    """Encode a table as the content of an object. Raises ConfigError for rows that the format cannot hold."""
    if extension == "parquet":
        return _to_parquet(table, compression)
    if extension == "avro":
        return to_avro(table, compression)
    return _compress(_ENCODERS.get(_kind(extension), to_json_lines)(table), extension)


def require_library(extensions: Iterable[str]) -> None:
    """Raise ConfigError if the library for one of these extensions is not installed."""
    if "avro" in extensions:
        import_fastavro()


def decode_payloads(body: bytes, extension: str) -> list[bytes]:
    """Decode an object without positions. Raises ValueError if the object cannot be read."""
    try:
        return _DECODERS[_kind(extension)](read_text(body, extension))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"unreadable: {type(error).__name__}") from error


def decode_identity(body: bytes, extension: str) -> Any:
    """Decode the IDENTITY_COLUMNS of an object with positions. Raises ValueError if the object cannot be read."""
    if extension == "avro":
        return from_avro(body, IDENTITY_COLUMNS, required=True)
    try:
        if extension == "parquet":
            # `read_table` takes several times as long for a small object.
            file = pq.ParquetFile(pa.BufferReader(body))
            return file.read(columns=list(IDENTITY_COLUMNS), use_threads=False).select(IDENTITY_COLUMNS)
        return _identity_from_json_lines(read_text(body, extension))
    except (pa.ArrowException, ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"unreadable: {type(error).__name__}") from error


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
    }


def to_json_lines(table: Any) -> bytes:
    """A JSON object for each row, each in a line. Raises ConfigError for a time that Python cannot hold."""
    dumps: Callable[[Any], bytes] = lambda row: orjson.dumps(  # noqa: E731 - a name for the options
        row, default=_to_json_text, option=orjson.OPT_APPEND_NEWLINE
    )
    try:
        rows = table.to_pylist()
    except (OverflowError, ValueError) as error:
        raise ConfigError(
            "a column has a time outside of the years 1 to 9999, for which JSON lines have no text: cast it to a "
            "number or a text, or use format='parquet'"
        ) from error
    return b"".join(map(dumps, rows))


def compression_of(extension: str) -> str | None:
    """The compression that the extension of a name shows, as pyarrow calls it.

    >>> compression_of("jsonl.zst"), compression_of("raw")
    ('zstd', None)
    """
    return _COMPRESSIONS[extension.partition(".")[2]]


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


def read_text(body: bytes, extension: str) -> bytes:
    """The content of an object without its compression."""
    compression = compression_of(extension)
    if compression is None:
        return body
    with pa.CompressedInputStream(pa.BufferReader(body), compression) as stream:
        return bytes(stream.read())


def _identity_from_json_lines(text: bytes) -> Any:
    rows: Sequence[Mapping[str, Any]] = [orjson.loads(line) for line in text.splitlines()]
    arrivals = pa.array([row[ARRIVAL] for row in rows], pa.string()).cast(pa.timestamp("us", tz="UTC"))
    return pa.table(
        {
            SHARD_ID: pa.array([row[SHARD_ID] for row in rows], pa.string()),
            SEQUENCE_NUMBER: pa.array([row[SEQUENCE_NUMBER] for row in rows], pa.string()),
            SUB_SEQUENCE_NUMBER: pa.array([row[SUB_SEQUENCE_NUMBER] for row in rows], pa.int64()),
            ARRIVAL: arrivals,
        }
    )
