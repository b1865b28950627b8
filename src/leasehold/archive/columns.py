"""The columns of records, and the conversion of user records to Arrow batches. Spark and the archive use both.

The names are those of Databricks' Kinesis connector, so that existing queries work. Spark requires that the batches of
a Python source have *exactly* the Arrow types of its schema (unit of time, 32-bit offsets, nullability). So one table
holds the Spark type and the Arrow type of each column.
"""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.core.model import LeaseSessionId, ShardId
from leasehold.core.record import UserRecord
from leasehold.core.records.record_columns import UserRecordColumns, UserRecordSequence
from leasehold.errors import ConfigError

PARTITION_KEY: Final = "partitionKey"
DATA: Final = "data"
STREAM: Final = "stream"
SHARD_ID: Final = "shardId"
SEQUENCE_NUMBER: Final = "sequenceNumber"
ARRIVAL: Final = "approximateArrivalTimestamp"
SUB_SEQUENCE_NUMBER: Final = "subSequenceNumber"
EXPLICIT_HASH_KEY: Final = "explicitHashKey"
# The index of a row in its pinned range, the number of rows of the range, the lease session that pinned it, and in a
# query of several streams the stream.
SLICE: Final = "slice"

DEFAULT_COLUMNS: Final = (PARTITION_KEY, DATA, STREAM, SHARD_ID, SEQUENCE_NUMBER, ARRIVAL)
ALL_COLUMNS: Final = (*DEFAULT_COLUMNS, SUB_SEQUENCE_NUMBER, EXPLICIT_HASH_KEY, SLICE)
# The archive stores all columns except `slice`, which it only checks.
ARCHIVE_COLUMNS: Final = ALL_COLUMNS

# What a handler with `arrow=True` gets.
HANDLER_COLUMNS: Final = tuple(name for name in ARCHIVE_COLUMNS if name != SLICE)

ROWS_MAX: Final = 10_000  # Spark passes batches of at most this size to a sink
BYTES_MAX: Final = 8 * 1024 * 1024  # Spark is fastest with batches of 1 to 10 MB

_ARRIVAL_TYPE: Final = pa.timestamp("us", tz="UTC")
_SLICE_TYPE: Final = pa.struct(
    [("index", pa.int32()), ("count", pa.int32()), ("session", pa.int64()), ("stream", pa.string())]
)


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The most rows of a batch, and the most bytes of their data."""

    rows: int = ROWS_MAX
    data_bytes: int = BYTES_MAX


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive records of a pinned range, field by field, and the values that they share."""

    data: Sequence[bytes]
    partition_key: Sequence[str]
    sequence_number: Sequence[str]
    arrival_ms: Sequence[int | None]
    sub_sequence_number: Sequence[int]
    explicit_hash_key: Sequence[int | None]
    stream: str
    shard: ShardId
    session: int
    first: int  # the index of its first record in the range
    range_rows: int
    names_stream: bool

    def __len__(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class _Column:
    ddl: str
    type: Any
    values: Callable[[_Run], Any]


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in this order.

    >>> arrow_schema(["data", "shardId"]).names
    ['data', 'shardId']
    """
    return pa.schema([(name, _column(name).type) for name in columns])


def spark_ddl(columns: Sequence[str]) -> str:
    """The schema of these columns as Spark DDL. Spark converts it to `arrow_schema`.

    >>> spark_ddl(["data", "approximateArrivalTimestamp"])
    'data BINARY, approximateArrivalTimestamp TIMESTAMP'
    """
    return ", ".join(f"{name} {_column(name).ddl}" for name in columns)


def record_batches(
    records: Sequence[UserRecord],
    *,
    stream: str,
    shard: ShardId,
    columns: Sequence[str],
    session: int,
    names_stream: bool = False,
    size: BatchSize | None = None,
) -> Iterator[pa.RecordBatch]:
    """Convert the records of one whole pinned range to batches of at most this size.

    `session` is the `session_number` of the lease session that pinned the range. With `names_stream`, `slice` names the
    stream: shards of two streams have the same ids. A larger record becomes a batch of its own.

    Columns of Arrow are not copied: each of their batches becomes one batch or several.
    """
    schema = arrow_schema(columns)
    makers = [_COLUMNS[name].values for name in columns]
    before = 0
    for fields in _parts(records):
        rows = len(fields[0])
        for first, stop in _batch_bounds(fields[0], size or BatchSize()):
            data, keys, numbers, arrivals, _, subs, hash_keys, _ = (
                column[first:stop] if stop - first < rows else column for column in fields
            )
            run = _Run(
                data, keys, numbers, arrivals, subs, hash_keys, stream, shard, session, before + first, len(records),
                names_stream,
            )  # fmt: skip
            yield pa.RecordBatch.from_arrays([make(run) for make in makers], schema=schema)
        before += rows


def user_record_batch(records: Sequence[UserRecord], *, stream: str, shard: ShardId) -> pa.RecordBatch:
    """Convert records to one batch with the columns of the archive, except `slice`."""
    batches = list(
        record_batches(
            records,
            stream=stream,
            shard=shard,
            columns=HANDLER_COLUMNS,
            session=0,
            size=BatchSize(sys.maxsize, sys.maxsize),
        )
    )
    schema = arrow_schema(HANDLER_COLUMNS)
    if len(batches) > 1:
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
    if len(batches) > 1:
        raise OverflowError(
            "a batch of more than 2 GiB does not fit into one Arrow batch: set a lower max_bytes"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


def _parts(records: Sequence[UserRecord]) -> Iterator[Sequence[Any]]:
    """The fields of the records: as lists, or as Arrow arrays of one batch after the other."""
    if isinstance(records, UserRecordSequence) and (batches := records.arrow_batches) is not None:
        yield from (batch.columns for batch in batches)
    else:
        yield UserRecordColumns.of(records).columns


def session_number(session: LeaseSessionId) -> int:
    """A 64-bit hash of a lease session id. The id itself would take more space than the rest of a row.

    >>> session_number(LeaseSessionId("4f1c"))
    -1000408543532448175
    """
    digest = hashlib.blake2b(session.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _column(name: str) -> _Column:
    column = _COLUMNS.get(name)
    if column is None:
        raise ConfigError(f"column {name!r}: expected one of {', '.join(ALL_COLUMNS)}")
    return column


def _batch_bounds(data: Any, most: BatchSize) -> Iterator[tuple[int, int]]:
    """The first and the end index of each batch. Makes as few batches as the limits allow."""
    if isinstance(data, pa.Array):
        sizes = pc.binary_length(data)
        # As nearly all pages are. A list of the sizes would take longer than everything else here.
        if 0 < len(data) <= most.rows and pc.sum(sizes).as_py() <= most.data_bytes:
            yield 0, len(data)
            return
        ends = list(accumulate(sizes.to_pylist()))
    else:
        ends = list(accumulate(map(len, data)))
    first, before_bytes = 0, 0
    while first < len(ends):
        stop = bisect_right(ends, before_bytes + most.data_bytes, first, min(len(ends), first + most.rows))
        stop = max(stop, first + 1)
        yield first, stop
        first, before_bytes = stop, ends[stop - 1]


def _constant(value: str, type_: Any, run: _Run) -> Any:
    return pa.repeat(pa.scalar(value, type_), len(run))


def _array(values: Any, type_: Any) -> Any:
    return values if isinstance(values, pa.Array) else pa.array(values, type_)


def _arrivals(run: _Run) -> Any:
    milliseconds = _array(run.arrival_ms, pa.int64())
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(_ARRIVAL_TYPE)


def _hash_keys(run: _Run) -> Any:
    if isinstance(run.explicit_hash_key, pa.Array):
        return run.explicit_hash_key
    # In most streams no record has one.
    if not any(run.explicit_hash_key) and 0 not in run.explicit_hash_key:
        return pa.nulls(len(run), pa.string())
    return pa.array([None if key is None else str(key) for key in run.explicit_hash_key], pa.string())


def _slice_structs(run: _Run) -> Any:
    index = pa.array(range(run.first, run.first + len(run)), pa.int32())
    count = pa.repeat(pa.scalar(run.range_rows, pa.int32()), len(run))
    session = pa.repeat(pa.scalar(run.session, pa.int64()), len(run))
    named = pa.scalar(run.stream if run.names_stream else None, pa.string())
    stream = pa.repeat(named, len(run))
    return pa.StructArray.from_arrays([index, count, session, stream], fields=list(_SLICE_TYPE))


_COLUMNS: Final[Mapping[str, _Column]] = {
    PARTITION_KEY: _Column("STRING", pa.string(), lambda run: _array(run.partition_key, pa.string())),
    DATA: _Column("BINARY", pa.binary(), lambda run: _array(run.data, pa.binary())),
    STREAM: _Column("STRING", pa.string(), lambda run: _constant(run.stream, pa.string(), run)),
    SHARD_ID: _Column("STRING", pa.string(), lambda run: _constant(run.shard, pa.string(), run)),
    SEQUENCE_NUMBER: _Column("STRING", pa.string(), lambda run: _array(run.sequence_number, pa.string())),
    ARRIVAL: _Column("TIMESTAMP", _ARRIVAL_TYPE, _arrivals),
    SUB_SEQUENCE_NUMBER: _Column(
        "BIGINT", pa.int64(), lambda run: _array(run.sub_sequence_number, pa.int64())
    ),
    EXPLICIT_HASH_KEY: _Column("STRING", pa.string(), _hash_keys),
    SLICE: _Column(
        "STRUCT<index: INT, count: INT, session: BIGINT, stream: STRING>", _SLICE_TYPE, _slice_structs
    ),
}
