"""What a Spark read of an archive selects, from options and filters."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, LessThanOrEqual, Not
from pyspark.sql.types import StructType

from leasehold.archive.reading import TimeSpan
from leasehold.archive.settings import ArchiveSettings
from leasehold.errors import ConfigError
from leasehold.spark.archive_sink import ArchiveSink
from leasehold.spark.archive_source import (
    ArchiveReader,
    ArchiveSelection,
    FilteringArchiveReader,
    archive_selection,
    narrow,
    with_schema,
)

ARCHIVE = ArchiveSettings(url="memory://")
ALL = ArchiveSelection(ARCHIVE)
ARRIVAL = ("approximateArrivalTimestamp",)


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def test_options_select_time_shards_and_columns() -> None:
    options = {
        "startingTimestamp": "1970-01-01T00:00:01Z",
        "ENDINGTIMESTAMP": "1970-01-01T00:00:02Z",
        "shards": "a, b",
        "columns": "DATA,shardid",
    }
    chosen = archive_selection(ARCHIVE, options)
    assert chosen == ArchiveSelection(ARCHIVE, TimeSpan(1_000, 2_000), ("a", "b"), ("data", "shardId"))


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"columns='slice'.*\.schema"):
        archive_selection(ARCHIVE, {"columns": "slice"})


def test_filters_narrow_the_selection() -> None:
    assert narrow(ALL, GreaterThan(ARRIVAL, at(5))).span == TimeSpan(5_000, None)
    assert narrow(ALL, LessThan(ARRIVAL, at(5))).span == TimeSpan(None, 5_001)
    both = narrow(narrow(ALL, LessThanOrEqual(ARRIVAL, at(5))), GreaterThan(ARRIVAL, at(2)))
    assert narrow(both, EqualTo(ARRIVAL, at(3))).span == TimeSpan(3_000, 3_001)
    assert narrow(narrow(ALL, In(("shardId",), ("a", "b"))), EqualTo(("shardId",), "b")).shards == ("b",)


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("partitionKey",), "a"),
        Not(EqualTo(("shardId",), "a")),
        GreaterThan(ARRIVAL, datetime(2026, 1, 1)),  # noqa: DTZ001 - a time without a zone says nothing
    ],
)
def test_other_filters_change_nothing(condition: object) -> None:
    assert narrow(ALL, condition) == ALL  # type: ignore[arg-type]


def test_only_a_read_with_the_option_takes_filters() -> None:
    """Spark refuses a reader that takes filters, unless a setting of the session allows it."""
    schema = StructType()
    assert type(ArchiveSink({"path": "/tmp"}).reader(schema)) is ArchiveReader
    with_filters = ArchiveSink({"path": "/tmp", "filterpushdown": "true"}).reader(schema)
    assert isinstance(with_filters, FilteringArchiveReader)
    filters = [EqualTo(("shardId",), "a")]
    assert with_filters.pushFilters(list(filters)) == filters


def test_options_of_a_read_are_refused_by_the_sink() -> None:
    with pytest.raises(ConfigError, match="does not write with option shards"):
        ArchiveSink({"path": "/tmp", "shards": "a"}).streamWriter(StructType(), overwrite=False)


def test_columns_that_an_object_does_not_have_are_null() -> None:
    rows = with_schema(pa.table({"a": [1, 2]}), pa.schema([("b", pa.string()), ("a", pa.int64())]))
    assert rows.to_pylist() == [{"b": None, "a": 1}, {"b": None, "a": 2}]
