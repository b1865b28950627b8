"""The archive as a sink of a real Spark session."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from leasehold.archive.columns import ALL_COLUMNS, arrow_schema, spark_ddl
from leasehold.spark.archive_sink import ArchiveSink
from leasehold.spark.pipeline.session import spark_session
from tests.spark.ranges_source import BATCHES, RANGE_ROWS, SHARDS, RangesSource

ROOT = Path(__file__).parents[2]
ALL_ROWS = BATCHES * RANGE_ROWS * SHARDS
PATIENCE_S = 120


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all tests of this module."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before)))  # workers import the source
    try:
        with spark_session("archive-sink", {"spark.master": "local[2]"}) as session:
            session.dataSource.register(RangesSource)
            session.dataSource.register(ArchiveSink)
            yield session
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def ranges(spark: Any, session: int = 1, **options: str) -> Any:
    return spark.readStream.format("ranges").option("session", session).options(**options).load()


def archived(rows: Any, folder: Path, checkpoint: Path, **options: str) -> None:
    """Run a query until its source has nothing more."""
    query = (
        rows.writeStream.format("leasehold-archive")
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start(str(folder))
    )
    assert query.awaitTermination(PATIENCE_S)


def test_a_stream_is_archived_once_however_often_it_is_read(spark: Any, tmp_path: Path) -> None:
    """A query that begins again under new leases finds everything there; `spark.read.parquet` reads it back."""
    folder = tmp_path / "archive"
    archived(ranges(spark), folder, tmp_path / "first")
    files = sorted(folder.rglob("*.parquet"))
    archived(ranges(spark, session=2), folder, tmp_path / "second")
    assert sorted(folder.rglob("*.parquet")) == files
    stored = spark.read.option("recursiveFileLookup", "true").parquet(str(folder))
    assert stored.count() == stored.select("shardId", "sequenceNumber").distinct().count() == ALL_ROWS
    assert set(stored.columns) == set(ALL_COLUMNS) - {"slice"}
    # Cut by minute and by range: 4.5 minutes, of which ranges end in the middle of some.
    assert len({file.parent.parent for file in files}) >= 5


def test_a_shuffle_stops_the_query_with_cause_and_remedy(spark: Any, tmp_path: Path) -> None:
    """Nothing is written from rows that were moved."""
    with pytest.raises(PySparkException, match="repartition, orderBy, join, filter, limit"):
        archived(ranges(spark).repartition(2), tmp_path / "archive", tmp_path / "checkpoint")
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("data,shardId", {}, r'option\("columns", "archive"\)'),
        (",".join(ALL_COLUMNS), {"fileFromat": "jsonl"}, "did you mean fileFormat"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    spark: Any, tmp_path: Path, columns: str, options: dict[str, str], sentence: str
) -> None:
    """A missing column and a misspelt option reach the user as what they are."""
    with pytest.raises(PySparkException, match=sentence):
        archived(ranges(spark, columns=columns), tmp_path / "archive", tmp_path / "checkpoint", **options)


def test_the_schema_for_spark_is_the_schema_of_the_batches(spark: Any) -> None:
    """Spark refuses batches of a Python source whose Arrow schema differs from that of its own schema."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(spark_ddl(ALL_COLUMNS))
    assert isinstance(schema, StructType)
    assert to_arrow_schema(schema, timezone="UTC") == arrow_schema(ALL_COLUMNS)
