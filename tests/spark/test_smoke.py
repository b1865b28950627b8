"""One quick run from stream to archive. `make test-oldest` runs it with the oldest pyspark too."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from leasehold.local import LocalKinesis
from leasehold.spark import register
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
