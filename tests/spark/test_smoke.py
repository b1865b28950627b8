"""One quick run from stream to archive. `make test-oldest` runs it with the oldest pyspark too."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from leasehold.archive import ArchiveSettings, read
from leasehold.errors import ConfigError
from leasehold.local import LocalKinesis
from leasehold.spark import last_positions, register, rows_after
from tests.fleet.record_producer import RecordProducer
from tests.spark.shared_session import SharedSession, shared_session

PATIENCE_S = 400


@pytest.fixture(scope="module")
def sessions() -> Iterator[SharedSession]:
    """One session for all tests of this module."""
    with shared_session("smoke", {"spark.master": "local[2]"}, register) as shared:
        yield shared


@pytest.fixture
def spark(sessions: SharedSession) -> Iterator[Any]:
    """The session, without queries of other tests."""
    yield sessions.get()
    sessions.stop_queries()


def archived(folder: Path) -> list[int]:
    """The numbers of all records in an archive, sorted."""
    tables = (pq.read_table(file, columns=["data"]) for file in folder.rglob("*.parquet"))
    return sorted(int(data) for table in tables for data in table["data"].to_pylist())


def test_a_stream_is_archived_over_several_runs_and_a_reshard(spark: Any, tmp_path: Path) -> None:
    """Each run continues where the last one stopped, children follow their parent, and a batch read returns all."""
    with LocalKinesis.in_thread(streams={"orders": 2}) as kinesis:
        production = RecordProducer(kinesis.client(), "orders", random.Random(1))
        connection = {"streamName": "orders", "endpointUrl": kinesis.endpoint_url, "region": "us-east-1"}
        rows = (
            spark.readStream.format("leasehold")
            .options(**connection, applicationName="smoke", leases=f"sqlite:///{tmp_path}/leases.sqlite")
            .options(startingPosition="trim_horizon", columns="archive", maxRecordsPerTrigger="300")
            .load()
        )
        for _ in range(2):
            production.put(plain=250, aggregated=250)
            production.reshard()
            production.put(plain=50, aggregated=50)
            query = (
                rows.writeStream.format("leasehold-archive")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(tmp_path / "archive"))
            )
            assert query.awaitTermination(PATIENCE_S)
            assert archived(tmp_path / "archive") == list(range(production.produced))
        assert spark.read.format("leasehold").options(**connection).load().count() == production.produced


def test_two_streams_are_archived_over_several_runs_and_a_reshard_of_each(spark: Any, tmp_path: Path) -> None:
    """Their shards have the same ids. Each stream has an archive of its own, which can be read by itself."""
    names = ("orders", "returns")
    with LocalKinesis.in_thread(streams=dict.fromkeys(names, 2)) as kinesis:
        productions = {name: RecordProducer(kinesis.client(), name, random.Random(name)) for name in names}
        connection = {
            "streamName": "orders,returns",
            "endpointUrl": kinesis.endpoint_url,
            "region": "us-east-1",
        }
        rows = (
            spark.readStream.format("leasehold")
            .options(**connection, applicationName="smoke-2", leases=f"sqlite:///{tmp_path}/leases.sqlite")
            .options(startingPosition="trim_horizon", columns="archive")
            .load()
        )
        for _ in range(2):
            for production in productions.values():
                production.put(plain=60, aggregated=60)
                production.reshard()
                production.put(plain=20, aggregated=20)
            query = (
                rows.writeStream.format("leasehold-archive")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(tmp_path / "archive"))
            )
            assert query.awaitTermination(PATIENCE_S)
            for name, production in productions.items():
                found = archived(tmp_path / "archive" / f"stream={name}")
                assert found == list(range(production.produced)), name
        produced = {name: production.produced for name, production in productions.items()}
        everything = spark.read.format("leasehold").options(**connection).load()
        assert {
            row["stream"]: row["count"] for row in everything.groupBy("stream").count().collect()
        } == produced
    orders = ArchiveSettings(url=str(tmp_path / "archive"), prefix="stream=orders")
    assert sum(batch.num_rows for batch in read(orders)) == produced["orders"]


def test_positions_of_a_batch_show_which_rows_are_new(spark: Any) -> None:
    """By stream and shard, in the order of numbers, and not of texts. A record of an aggregate has its own position."""
    columns = "stream STRING, shardId STRING, sequenceNumber STRING, subSequenceNumber BIGINT"
    keys = [("a", "s-1", "9", 0), ("a", "s-1", "10", 0), ("a", "s-1", "10", 9), ("b", "s-1", "8", 0)]
    batch = spark.createDataFrame([*keys, ("a", "s-1", "10", 10), ("a", "s-2", "7", 0)], columns)
    assert rows_after(batch, {}).count() == 6
    positions = last_positions(batch.where("subSequenceNumber < 10 and shardId = 's-1'"))
    assert sorted(positions) == [("a", "s-1"), ("b", "s-1")]
    assert positions["a", "s-1"] == "10".zfill(56) + "." + "9".zfill(10)
    new = rows_after(batch, positions)
    assert sorted(tuple(row) for row in new.collect()) == [("a", "s-1", "10", 10), ("a", "s-2", "7", 0)]
    assert last_positions(rows_after(new, last_positions(new))) == {}
    with pytest.raises(
        ConfigError, match="the batch has no column subSequenceNumber: read the stream with columns"
    ):
        last_positions(batch.drop("subSequenceNumber"))
