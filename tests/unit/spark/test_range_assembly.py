"""Only whole pinned ranges, in order, reach the archive."""

import pickle
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from leasehold.archive import ArchiveSettings
from leasehold.archive.columns import ARCHIVE_COLUMNS, record_batches
from leasehold.errors import BrokenRangeError, ConfigError
from leasehold.spark.archive_sink import ArchiveSink, archive_settings, require_columns
from leasehold.spark.range_assembly import assemble_ranges, range_name, require_delivered
from tests.unit.archive.archive_world import A, B, records, table


def cut(rows: Any, *sizes: int) -> list[Any]:
    """Split rows into batches of these sizes, as Spark may do."""
    batches, first = [], 0
    for size in (*sizes, rows.num_rows):
        if first < rows.num_rows:
            batches += rows.slice(first, size).combine_chunks().to_batches()
        first += size
    return batches


SETTINGS = ArchiveSettings(url="x")
TWO = pa.concat_tables([table(records(range(5))), table(records(range(5, 12)), shard=B)])


@pytest.mark.parametrize("sizes", [(), (5,), (3, 3, 3), (1,) * 12, (4, 7), (11,)])
def test_ranges_are_reassembled_however_spark_splits_the_batches(sizes: Sequence[int]) -> None:
    """A batch may contain parts of several ranges, and a range may span several batches."""
    first, second = assemble_ranges(cut(TWO, *sizes))
    assert (first.shard, first.lease_session, first.table.equals(TWO.slice(0, 5))) == (A, "1", True)
    assert (second.shard, second.table.equals(TWO.slice(5))) == (B, True)


def of_stream(stream: str, numbers: range) -> Any:
    """A range of shard A in a query of several streams."""
    batches = record_batches(
        records(numbers), stream=stream, shard=A, columns=ARCHIVE_COLUMNS, session=1, names_stream=True
    )
    return pa.Table.from_batches(batches)


def test_shards_of_two_streams_with_one_id_are_two_ranges() -> None:
    """Also if the column `stream` was dropped."""
    both = pa.concat_tables([of_stream("orders", range(3)), of_stream("returns", range(3))])
    for rows in (both, both.drop_columns(["stream"])):
        ranges = list(assemble_ranges(cut(rows, 2, 2)))
        assert [(each.stream, each.table.num_rows) for each in ranges] == [("orders", 3), ("returns", 3)]
        assert len({range_name(each) for each in ranges}) == 2
    mixed = pa.concat_tables([both.slice(0, 1), both.slice(4, 2)])
    with pytest.raises(BrokenRangeError, match="rows of another range came in between"):
        list(assemble_ranges(cut(mixed)))
    unnamed = pa.concat_tables([table(records(range(3))).slice(0, 1), both.slice(1, 2)])
    with pytest.raises(BrokenRangeError, match="rows of another range came in between"):
        list(assemble_ranges(cut(unnamed)))


def test_errors_name_the_stream_of_a_shard() -> None:
    """Another stream has a shard with the same id."""
    rows = of_stream("returns", range(3))
    named = f"shard {A} of stream returns"
    for some in (rows.slice(0, 2), rows.slice(1)):
        with pytest.raises(BrokenRangeError, match=named):
            list(assemble_ranges(cut(some)))
    (delivered,) = map(range_name, assemble_ranges(cut(rows)))
    with pytest.raises(BrokenRangeError, match=named):
        require_delivered(frozenset({delivered}), frozenset())


def test_without_rows_there_is_no_range() -> None:
    """A batch without input still has a write task."""
    assert list(assemble_ranges([])) == []
    assert (
        list(assemble_ranges([TWO.slice(0, 0).to_batches(1)[0]] if TWO.slice(0, 0).to_batches(1) else []))
        == []
    )


def _shuffled() -> Any:
    order = list(range(12))
    random.Random(7).shuffle(order)
    return TWO.take(order)


@pytest.mark.parametrize(
    ("rows", "how"),
    [
        pytest.param(TWO.slice(0, 11), "this task got 6: the rest of it is missing", id="limit"),
        pytest.param(TWO.slice(1), "is number 1 of its range", id="beginning-elsewhere"),
        pytest.param(TWO.filter(pa.array([True, False] * 6)), "this task got 0", id="filter"),
        pytest.param(TWO.take([0, 1, 1, 2, 3, 4]), "missing, doubled or out of order", id="doubled"),
        pytest.param(TWO.take([0, 2, 1, 3, 4]), "missing, doubled or out of order", id="out-of-order"),
        pytest.param(TWO.take([0, 5, 1, 6, 2, 3, 4]), "rows of another range came in between", id="mixed"),
        pytest.param(_shuffled(), "whole pinned ranges", id="shuffle"),
    ],
)
def test_an_incomplete_range_is_an_error_with_cause_and_remedy(rows: Any, how: str) -> None:
    """The error says what is missing, what may have caused it, and what to do instead."""
    for sizes in ((), (2, 2, 2)):
        with pytest.raises(BrokenRangeError) as caught:
            list(assemble_ranges(cut(rows, *sizes)))
        assert how in str(caught.value)
        assert "repartition, orderBy, join, filter, limit" in str(caught.value)


def test_rows_without_a_slice_are_an_error() -> None:
    """An outer join produces such rows."""
    place = TWO.column_names.index("slice")
    rows = TWO.set_column(place, "slice", pa.nulls(12, TWO.schema.field("slice").type))
    with pytest.raises(BrokenRangeError, match="no shardId or no slice"):
        list(assemble_ranges(cut(rows)))


def test_options_are_converted_to_settings() -> None:
    """Case does not matter, and Spark's own options are ignored."""
    options = {
        "path": "s3://b/x",
        "fileformat": "jsonl",
        "COMPRESSION": "gzip",
        "awsProfile": "p",
        "checkpointLocation": "/c",
        "maxconcurrentputs": "3",
    }
    assert archive_settings(options) == ArchiveSettings(
        url="s3://b/x", format="jsonl", compression="gzip", profile="p", max_concurrent_puts=3
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"path": "x", "compresion": "zstd"}, "option 'compresion': did you mean compression?"),
        ({"path": "x", "zzz": "1"}, "option 'zzz': expected one of path, prefix, layout"),
        ({}, "has no path"),
        ({"path": "x", "maxConcurrentPuts": "many"}, "maxConcurrentPuts='many'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], sentence: str) -> None:
    """The error suggests the closest name, or lists all of them."""
    with pytest.raises(ConfigError, match=sentence):
        archive_settings(options)


def test_missing_columns_are_refused_with_a_remedy() -> None:
    """The error names the option of the source."""
    require_columns(list(ARCHIVE_COLUMNS), SETTINGS)
    with pytest.raises(
        ConfigError, match=r'columns subSequenceNumber, slice, .*option\("columns", "archive"\)'
    ):
        require_columns(["shardId", "sequenceNumber", "approximateArrivalTimestamp"], SETTINGS)
    with pytest.raises(ConfigError, match="no column 'region'"):
        require_columns(list(ARCHIVE_COLUMNS), ArchiveSettings(url="x", partition_column="region"))


def test_an_archive_is_never_overwritten() -> None:
    """Output mode complete would overwrite it."""
    from pyspark.sql.types import StructType

    with pytest.raises(ConfigError, match="only appends"):
        ArchiveSink({"path": "x"}).streamWriter(StructType(), overwrite=True)


def test_a_writer_can_be_pickled() -> None:
    """Spark sends it to the executors for every batch."""
    from pyspark.sql.types import BinaryType, StructType

    schema = StructType()
    for name in ARCHIVE_COLUMNS:
        schema = schema.add(name, BinaryType())
    writer = ArchiveSink({"path": "x"}).streamWriter(schema, overwrite=False)
    assert pickle.loads(pickle.dumps(writer))._settings == ArchiveSettings(url="x")
