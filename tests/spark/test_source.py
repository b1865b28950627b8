"""The source on a real Spark session, with leases on DynamoDB Local or SQLite: exactly-once whatever a query does."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.fleet.table.lease_table import Contended
from leasehold.local import LocalKinesis
from leasehold.spark.pipeline.session import spark_session
from tests.fleet.worker_processes import wait_until
from tests.spark.conftest import MakeScene
from tests.spark.gates import BEFORE_PIN, PINNED, GatedSink, GatedSource
from tests.spark.pipeline_world import PATIENCE_S, Scene


@pytest.fixture(scope="module")
def spark(spark_environment: Path) -> Iterator[Any]:
    """One session for all tests of this module. Tasks are tried again, as on a cluster."""
    with spark_session("source", {"spark.master": "local[2,4]"}) as session:
        session.sparkContext.setLogLevel("ERROR")
        session.dataSource.register(GatedSource)
        session.dataSource.register(GatedSink)
        yield session


def test_tasks_that_fail_or_die_are_repeated_with_the_same_rows(spark: Any, scene: MakeScene) -> None:
    """A Python worker that is killed before its pin, and a task that fails after it, cost nothing but time."""
    stage = scene()
    stage.put()
    stage.gates.set(BEFORE_PIN, "die")
    stage.gates.set(PINNED, "fail")
    stage.read_all(spark)
    assert not list(stage.gates_folder.glob(f"{stage.name}.die.*")), "nobody was killed"
    stage.check()


def test_two_actions_on_one_batch_see_the_same_rows(spark: Any, scene: MakeScene, tmp_path: Path) -> None:
    """Records that arrive between two actions of `foreachBatch` are for the next batch."""
    stage = scene(shards=2)
    stage.put()
    seen: list[Counter[int]] = []

    def act_twice(batch: Any, _number: int) -> None:
        first = numbers_in(batch)
        if len(seen) < 2:
            stage.put(20)
        assert numbers_in(batch) == first
        seen.append(first)

    rows = stage.load(spark, leases=f"sqlite:{tmp_path}/leases.sqlite")
    writer = rows.writeStream.foreachBatch(act_twice).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(PATIENCE_S)
    in_all = sum(seen, Counter[int]())
    assert set(in_all.values()) == {1}
    assert set(range(200)) <= set(in_all)


def test_a_union_with_itself_has_every_row_twice(spark: Any, scene: MakeScene, tmp_path: Path) -> None:
    """Two tasks that read one shard at the same time end at the same record: what speculation would do, on one host."""
    stage = scene(shards=2)
    stage.put()
    rows = stage.load(spark, leases=f"sqlite:{tmp_path}/leases.sqlite")
    seen: list[Counter[int]] = []
    writer = rows.union(rows).writeStream.foreachBatch(lambda batch, _: seen.append(numbers_in(batch)))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        stage.put(100)
        wait_until(lambda: sum(map(len, seen)) >= 300, "everything was read", PATIENCE_S)
    finally:
        query.stop()
    in_all = sum(seen, Counter[int]())
    assert in_all == Counter(dict.fromkeys(range(300), 2))


def test_a_self_join_is_refused_with_a_sentence(spark: Any, scene: MakeScene, tmp_path: Path) -> None:
    """Two readers of one application in one driver would each see a part of the records."""
    stage = scene(shards=1)
    stage.put(10)
    rows = stage.load(spark).select("sequenceNumber")
    joined = rows.alias("a").join(rows.alias("b"), "sequenceNumber")
    query = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match="load the stream twice with two application names"):
        query.awaitTermination(PATIENCE_S)


def test_two_application_names_both_get_everything(spark: Any, scene: MakeScene, tmp_path: Path) -> None:
    """Queries with names of their own do not share, also within one driver."""
    stage = scene(shards=2)
    stage.put()
    seen: dict[str, list[Counter[int]]] = {"a": [], "b": []}

    def start(name: str) -> Any:
        rows = stage.load(spark, applicationName=f"{stage.name}-{name}")
        writer = rows.writeStream.foreachBatch(lambda batch, _: seen[name].append(numbers_in(batch)))
        return writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()

    queries = [start(name) for name in seen]
    assert all(query.awaitTermination(PATIENCE_S) for query in queries)
    for found in seen.values():
        assert sum(found, Counter[int]()) == Counter(range(200))


def test_a_lease_lost_in_mid_batch_delivers_nothing_until_it_is_back(spark: Any, scene: MakeScene) -> None:
    """Another member takes a lease while a task stands before its pin: the query goes on, and no record is doubled."""
    stage = scene(shards=2)
    stage.put()
    stage.gates.set(BEFORE_PIN, "hold")
    query = stage.start(stage.load(spark), to_the_end=False)
    try:
        wait_until(lambda: stage.gates.is_reached(BEFORE_PIN), "a task stands before its pin", PATIENCE_S)
        key = min(stage.leases())
        stolen = stolen_lease(stage, key)
        stage.gates.open(BEFORE_PIN)
        wait_until(lambda: bool(stage.archived()), "the other shard is archived", PATIENCE_S)
        assert not [file for file in stage.archive.rglob("*.parquet") if key in str(file)]
        stage.with_table(lambda table: table.release(stolen))
        stage.put(50)
        wait_until(stage.has_all, "everything is archived", PATIENCE_S)
        assert query.isActive
    finally:
        query.stop()
    stage.check()


def test_parents_with_a_backlog_come_before_their_children(spark: Any, scene: MakeScene) -> None:
    """A split and a merge while most of the parents' records are still to be read lose and double nothing."""
    stage = scene(shards=2)
    stage.put(300)
    split(stage, 0)
    stage.put()
    merge(stage, 3, 1)
    stage.put()
    stage.read_all(spark, maxRecordsPerTrigger="150")
    stage.check()
    unfinished = {key for key, lease in stage.leases().items() if not lease.checkpoint.is_shard_end}
    assert unfinished == {"shardId-000000000002", "shardId-000000000004"}


def test_latest_keeps_its_meaning_over_a_reshard_in_downtime(spark: Any, scene: MakeScene) -> None:
    """What arrives while a query that began at the tip is down is read, through shards that came and went meanwhile."""
    stage = scene(shards=2)
    stage.read_all(spark, startingPosition="latest")  # it is known now where "latest" was
    stage.put()
    split(stage, 0)
    stage.put()
    merge(stage, 3, 1)
    stage.put(50)
    stage.read_all(spark, startingPosition="latest")
    stage.check()


def test_trimmed_records_stop_the_query_unless_it_is_told_to_go_on(
    spark: Any, scene: MakeScene, local_kinesis: LocalKinesis
) -> None:
    """Records that were trimmed before they were read are told by a sentence that names the shard and the option."""
    with LocalKinesis.in_thread() as kinesis:
        stage = scene(shards=1, kinesis=kinesis)
        stage.put(50)
        stage.read_all(spark)
        stage.put(30)
        kinesis.advance(timedelta(hours=25))
        stage.put(40)
        with pytest.raises(
            PySparkException, match=r"shardId-0+: records after \d+.* were trimmed.*failOnDataLoss"
        ):
            stage.read_all(spark)
        stage.read_all(spark, failOnDataLoss="false")
        stage.check(without=frozenset(range(50, 80)))


def test_an_idle_stream_makes_no_batches(spark: Any, scene: MakeScene) -> None:
    """After hours without records, in which iterators expire, the next record is a batch of its own, and the first."""
    with LocalKinesis.in_thread() as kinesis:
        stage = scene(shards=2, kinesis=kinesis)
        query = stage.start(stage.load(spark), to_the_end=False)
        try:
            wait_until(lambda: query.lastProgress is not None, "the first batch is over", PATIENCE_S)
            wait_until(lambda: all(each.pin is None for each in stage.leases().values()), "idle", PATIENCE_S)
            batches = len(list((stage.checkpoint / "commits").glob("[0-9]*")))
            for _ in range(3):
                kinesis.advance(timedelta(hours=2))
                idle_since = query.lastProgress["timestamp"]
                wait_until(lambda: query.lastProgress["timestamp"] != idle_since, "a look", PATIENCE_S)  # noqa: B023
            assert len(list((stage.checkpoint / "commits").glob("[0-9]*"))) == batches
            stage.production.put(plain=1, aggregated=0)
            wait_until(stage.has_all, "the record is archived", PATIENCE_S)
        finally:
            query.stop()
        stage.check()
        assert len(list((stage.checkpoint / "offsets").glob("[0-9]*"))) == batches + 1


def test_three_hundred_shards(spark: Any, scene: MakeScene) -> None:
    """Many more shards than task slots are read in as many tasks as there are slots."""
    stage = scene(shards=300)
    stage.put(900)
    stage.read_all(spark, pollInterval="2s", failoverAfter="15s")
    stage.check()


def test_a_lost_lease_table(spark: Any, scene: MakeScene, tmp_path: Path) -> None:
    """With a new checkpoint all is read again and the archive stays as it is; with the old one a sentence says why."""
    stage = scene(shards=2)
    for _ in range(2):  # from its second batch on, a query's log knows where a shard stands
        stage.put()
        stage.read_all(spark)
    files = sorted(stage.archive.rglob("*.parquet"))
    stage.dynamodb.client("dynamodb").delete_table(TableName=stage.name)
    stage.put(50)
    with pytest.raises(
        PySparkException, match=r"the lease table stands at TRIM_HORIZON.*onLeasesBehind=offsets"
    ):
        stage.read_all(spark)
    stage.read_all(spark, checkpoint=tmp_path, maxRecordsPerTrigger="70")
    stage.check()
    assert set(files) <= set(stage.archive.rglob("*.parquet"))


# -- what the tests share --------------------------------------------------------------------------------------


def numbers_in(batch: Any) -> Counter[int]:
    """The numbers of the records in a DataFrame."""
    return Counter(int(row.data) for row in batch.select("data").collect())


def stolen_lease(stage: Scene, key: LeaseKey) -> Lease:
    """A lease, taken by another member while its owner renews it all the time."""
    while True:
        seen = stage.lease(key)
        taken = stage.with_table(lambda table: table.take(seen, WorkerId("thief"), LeaseSessionId("stolen")))  # noqa: B023
        if not isinstance(taken, Contended):
            return taken


def split(stage: Scene, shard: int) -> None:
    """Split a shard in the middle."""
    shards = {each["ShardId"]: each for each in stage.production._list_shards()}
    stage.production._split(shards[f"shardId-{shard:012}"])
    wait_for_stream(stage)


def merge(stage: Scene, left: int, right: int) -> None:
    """Merge two neighbours."""
    names = [f"shardId-{number:012}" for number in (left, right)]
    stage.production.kinesis.merge_shards(
        StreamName=stage.name, ShardToMerge=names[0], AdjacentShardToMerge=names[1]
    )
    wait_for_stream(stage)


def wait_for_stream(stage: Scene) -> None:
    """Until the reshard is over."""
    waiter = stage.production.kinesis.get_waiter("stream_exists")
    waiter.wait(StreamName=stage.name, WaiterConfig={"Delay": 1})
