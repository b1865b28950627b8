"""The archive sink in a real Spark session."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from leasehold.adapters.folder_objects import STAGING_FOLDER
from leasehold.archive.columns import ALL_COLUMNS, arrow_schema, spark_ddl
from leasehold.spark.archive_sink import ArchiveSink
from tests.spark.ranges_source import BATCHES, RANGE_ROWS, SHARDS, RangesSource
from tests.spark.shared_session import SharedSession, shared_session

ROOT = Path(__file__).parents[2]
ALL_ROWS = BATCHES * RANGE_ROWS * SHARDS
PATIENCE_S = 400


def prepare(session: Any) -> None:
    """Register the source and the sink in a new session."""
    session.dataSource.register(RangesSource)
    session.dataSource.register(ArchiveSink)


@pytest.fixture
def spark(sessions: SharedSession) -> Iterator[Any]:
    """The session, without queries of other tests."""
    yield sessions.get()
    sessions.stop_queries()


@pytest.fixture(scope="module")
def sessions() -> Iterator[SharedSession]:
    """One session for all tests of this module."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before)))  # workers import the source
    try:
        with shared_session("archive-sink", {"spark.master": "local[2]"}, prepare) as shared:
            yield shared
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def ranges(spark: Any, session: int = 1, **options: str) -> Any:
    return spark.readStream.format("ranges").option("session", session).options(**options).load()


def archive_rows(rows: Any, folder: Path, checkpoint: Path, **options: str) -> None:
    """Run a query until its source has no more rows."""
    query = (
        rows.writeStream.format("leasehold-archive")
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start(str(folder))
    )
    assert query.awaitTermination(PATIENCE_S)


def test_a_stream_that_is_read_twice_is_archived_once(spark: Any, tmp_path: Path) -> None:
    """The second query has new leases and writes nothing. `spark.read.parquet` reads the objects, and no other file."""
    folder = tmp_path / "archive"
    archive_rows(ranges(spark), folder, tmp_path / "first")
    files = sorted(folder.rglob("*.parquet"))
    archive_rows(ranges(spark, session=2), folder, tmp_path / "second")
    assert sorted(folder.rglob("*.parquet")) == files
    (folder / STAGING_FOLDER / "left-by-a-killed-writer.tmp").write_bytes(b"PAR1 half of a file")
    stored = spark.read.option("recursiveFileLookup", "true").parquet(str(folder))
    assert stored.count() == stored.select("shardId", "sequenceNumber").distinct().count() == ALL_ROWS
    assert set(stored.columns) == set(ALL_COLUMNS) - {"slice"}
    # Objects are split by minute and by range. The rows span 4.5 minutes, and some ranges end within a minute.
    assert len({file.parent.parent for file in files}) >= 5


def test_a_shuffle_fails_the_query_with_cause_and_remedy(spark: Any, tmp_path: Path) -> None:
    """The sink writes no row of an incomplete range."""
    with pytest.raises(PySparkException, match="repartition, orderBy, join, filter, limit"):
        archive_rows(ranges(spark).repartition(2), tmp_path / "archive", tmp_path / "checkpoint")
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("data,shardId", {}, r'option\("columns", "archive"\)'),
        (",".join(ALL_COLUMNS), {"fileFromat": "jsonl"}, "did you mean fileFormat"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(
    spark: Any, tmp_path: Path, columns: str, options: dict[str, str], sentence: str
) -> None:
    """Examples are a missing column and a misspelt option."""
    with pytest.raises(PySparkException, match=sentence):
        archive_rows(ranges(spark, columns=columns), tmp_path / "archive", tmp_path / "checkpoint", **options)


def test_the_schema_for_spark_is_the_schema_of_the_batches(spark: Any) -> None:
    """Spark refuses batches of a Python source whose Arrow schema differs from that of its own schema."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(spark_ddl(ALL_COLUMNS))
    assert isinstance(schema, StructType)
    assert to_arrow_schema(schema, timezone="UTC") == arrow_schema(ALL_COLUMNS)
