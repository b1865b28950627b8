"""The conversion of records to Arrow columns."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from leasehold.archive.columns import (
    ALL_COLUMNS,
    ARCHIVE_COLUMNS,
    DEFAULT_COLUMNS,
    BatchSize,
    arrow_schema,
    record_batches,
    session_number,
    spark_ddl,
)
from leasehold.core.model import LeaseSessionId, ShardId
from leasehold.core.record import UserRecord
from leasehold.errors import ConfigError

SHARD = ShardId("shardId-000000000001")


def records_of(*sizes: int) -> list[UserRecord]:
    return [UserRecord(bytes(size), f"key{i}", str(100 + i), 1000 * i) for i, size in enumerate(sizes)]


def batches_of(
    records: Sequence[UserRecord],
    columns: Sequence[str] = DEFAULT_COLUMNS,
    *,
    rows_max: int = 1000,
    bytes_max: int = 1_000_000,
) -> list[pa.RecordBatch]:
    return list(
        record_batches(
            records,
            stream="orders",
            shard=SHARD,
            columns=columns,
            session=7,
            size=BatchSize(rows_max, bytes_max),
        )
    )


def test_a_row_contains_all_fields_of_a_record() -> None:
    """Times are in UTC, and the hash key is text."""
    record = UserRecord(b"\x00\xff", "key", "49" * 28, 1_700_000_000_123, "KMS", 3, 2**127, True)
    (batch,) = batches_of([record], ALL_COLUMNS)
    assert batch.to_pylist() == [
        {
            "partitionKey": "key",
            "data": b"\x00\xff",
            "stream": "orders",
            "shardId": SHARD,
            "sequenceNumber": "49" * 28,
            "approximateArrivalTimestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
            "subSequenceNumber": 3,
            "explicitHashKey": str(2**127),
            "slice": {"index": 0, "count": 1, "session": 7, "stream": None},
        }
    ]


def test_batches_have_the_declared_schema() -> None:
    """Spark refuses a batch whose schema is not equal to the declared one."""
    for columns in (DEFAULT_COLUMNS, ARCHIVE_COLUMNS, ("data", "slice", "explicitHashKey")):
        for batch in batches_of(records_of(1, 2, 3), columns, rows_max=2):
            assert batch.schema == arrow_schema(columns)


def test_unknown_values_are_null() -> None:
    """Arrival time and hash key may be missing. Hash key 0 is a value."""
    bare, zero = UserRecord(b"", "k", "1"), UserRecord(b"", "k", "2", explicit_hash_key=0)
    (batch,) = batches_of([bare, zero], ["approximateArrivalTimestamp", "explicitHashKey"])
    assert batch.column(0).to_pylist() == [None, None]
    assert batch.column(1).to_pylist() == [None, "0"]


@pytest.mark.parametrize(
    ("sizes", "rows_max", "bytes_max", "expected"),
    [
        ([], 10, 10, []),
        ([5, 5, 5], 2, 100, [2, 1]),
        ([5, 5, 5], 10, 10, [2, 1]),
        ([50, 1, 50], 10, 10, [1, 1, 1]),
        ([0, 0, 0], 10, 10, [3]),
    ],
)
def test_batches_respect_both_limits(
    sizes: list[int], rows_max: int, bytes_max: int, expected: list[int]
) -> None:
    """A batch is as large as the limits allow. A record that is too large gets its own batch."""
    batches = batches_of(records_of(*sizes), rows_max=rows_max, bytes_max=bytes_max)
    assert [batch.num_rows for batch in batches] == expected


def test_the_slice_index_continues_across_the_batches_of_a_range() -> None:
    """The count is that of the whole range."""
    batches = batches_of(records_of(1, 1, 1, 1, 1), ["slice"], rows_max=2)
    rows = [row["slice"] for batch in batches for row in batch.to_pylist()]
    assert rows == [{"index": i, "count": 5, "session": 7, "stream": None} for i in range(5)]


def test_an_unknown_column_is_refused_with_the_known_columns() -> None:
    """The error lists all columns."""
    with pytest.raises(ConfigError, match=r"column 'Data': expected one of partitionKey, data, "):
        arrow_schema(["Data"])
    with pytest.raises(ConfigError, match="'x'"):
        spark_ddl(["x"])


def test_session_numbers_fit_into_a_signed_64_bit_column() -> None:
    """The number of every id can be stored."""
    for i in range(200):
        assert -(2**63) <= session_number(LeaseSessionId(str(i))) < 2**63


def test_a_batch_has_ten_thousand_rows_or_eight_mebibytes() -> None:
    """Unless another size is given: Spark is fastest with such batches."""

    def rows_of_batches(*sizes: int) -> list[int]:
        batches = record_batches(
            records_of(*sizes), stream="orders", shard=SHARD, columns=DEFAULT_COLUMNS, session=7
        )
        return [batch.num_rows for batch in batches]

    assert rows_of_batches(*[10] * 10_001) == [10_000, 1]
    assert rows_of_batches(*[1024 * 1024] * 10) == [8, 2]
