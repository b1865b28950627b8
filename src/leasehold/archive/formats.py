"""Encodes tables as the bytes of objects, and decodes the positions of their records. Encoding is deterministic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pybase64 import b64encode_as_string

from leasehold.archive.columns import ARRIVAL, DATA, SEQUENCE_NUMBER, SHARD_ID, SUB_SEQUENCE_NUMBER

# The columns that identify a record and determine its object.
IDENTITY_COLUMNS: Final = (SHARD_ID, SEQUENCE_NUMBER, SUB_SEQUENCE_NUMBER, ARRIVAL)

_JSON_COMPRESSION: Final[Mapping[str, str | None]] = {
    "jsonl": None,
    "jsonl.gz": "gzip",
    "jsonl.zst": "zstd",
}


def encode(table: Any, extension: str, compression: str) -> bytes:
    """Encode a table as the content of an object."""
    if extension == "parquet":
        return _to_parquet(table, compression)
    return _to_json_lines(table, _JSON_COMPRESSION[extension])


def decode_identity(body: bytes, extension: str) -> Any:
    """Decode the IDENTITY_COLUMNS of an object. Raises ValueError if the object cannot be read."""
    try:
        if extension == "parquet":
            return pq.read_table(pa.BufferReader(body), columns=list(IDENTITY_COLUMNS)).select(
                IDENTITY_COLUMNS
            )
        return _identity_from_json_lines(body, _JSON_COMPRESSION[extension])
    except (pa.ArrowException, ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"unreadable: {type(error).__name__}") from error


def _to_parquet(table: Any, compression: str) -> bytes:
    # Payloads and sequence numbers are unique. Dictionaries and statistics of them only cost time and space.
    names = table.column_names
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression=compression,
        use_dictionary=[name for name in names if name not in {DATA, SEQUENCE_NUMBER}],
        write_statistics=[name for name in names if name != DATA],
    )
    return bytes(sink.getvalue())


def _to_json_lines(table: Any, compression: str | None) -> bytes:
    dumps: Callable[[Any], bytes] = lambda row: orjson.dumps(  # noqa: E731 - a name for the options
        row, default=_to_json_text, option=orjson.OPT_APPEND_NEWLINE
    )
    lines = b"".join(map(dumps, table.to_pylist()))
    if compression is None:
        return lines
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression) as stream:
        stream.write(lines)
    return bytes(sink.getvalue())


def _to_json_text(value: object) -> str:
    """Convert a value without a JSON type: bytes to base64, decimals and others to text."""
    return b64encode_as_string(value) if isinstance(value, bytes) else str(value)


def _identity_from_json_lines(body: bytes, compression: str | None) -> Any:
    text = body
    if compression is not None:
        with pa.CompressedInputStream(pa.BufferReader(body), compression) as stream:
            text = stream.read()
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
