"""The source in a real Spark session, with leases in DynamoDB Local or SQLite: exactly once under all conditions."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import col

from leasehold.cli.pipeline_display import LiveTable, PlainLines
from leasehold.core.events import BatchHandled, Event, MemberStopped, PageRead
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.fleet.table.lease_table import Contended
from leasehold.local import LocalKinesis
from leasehold.spark.decoding.avro_payloads import AvroPayloads
from leasehold.spark.decoding.decode_settings import Decode, DecodeFormat
from leasehold.spark.pipeline.pipeline_file import Pipeline, parse_pipeline
from leasehold.spark.pipeline.progress import BatchProgress
from leasehold.spark.pipeline.run_pipeline import decode_payloads, start_query, watch_query
from leasehold.spark.query_listener import QueryMetricsListener
from tests.fleet.worker_processes import wait_until
from tests.spark.conftest import MakeWorld
from tests.spark.gates import BEFORE_PIN, COMMITTED, PINNED, SINK, WRITTEN, GatedSink, GatedSource
from tests.spark.pipeline_world import PATIENCE_S, PipelineWorld
from tests.spark.shared_session import SharedSession, shared_session
from tests.unit.spark.payloads import to_avro


def prepare(session: Any) -> None:
    """Register the gated source and sink in a new session."""
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(GatedSource)
    session.dataSource.register(GatedSink)


@pytest.fixture(scope="module")
def sessions(spark_environment: Path) -> Iterator[SharedSession]:
    """One session for all tests of this module. Spark retries tasks, as on a cluster."""
    with shared_session("source", {"spark.master": "local[2,4]"}, prepare) as shared:
        yield shared


@pytest.fixture
def spark(sessions: SharedSession) -> Iterator[Any]:
    """The session, without queries of other tests."""
    yield sessions.get()
    sessions.stop_queries()


def test_failed_and_killed_tasks_are_retried_with_the_same_rows(spark: Any, make_world: MakeWorld) -> None:
    """One Python worker is killed before its pin, and one task fails after its pin."""
    world = make_world()
    world.put()
    world.gates.set(BEFORE_PIN, "die")
    world.gates.set(PINNED, "fail")
    world.read_all(spark)
    assert not list(world.gates_folder.glob(f"{world.name}.die.*")), "no process was killed"
    world.check()


def test_two_actions_on_one_batch_see_the_same_rows(
    spark: Any, make_world: MakeWorld, tmp_path: Path
) -> None:
    """Records that arrive between two actions of `foreachBatch` belong to the next batch."""
    world = make_world(shards=2)
    world.put()
    seen: list[Counter[int]] = []

    def read_twice(batch: Any, _number: int) -> None:
        first = numbers_in(batch)
        if len(seen) < 2:
            world.put(20)
        assert numbers_in(batch) == first
        seen.append(first)

    rows = world.load(spark, leases=f"sqlite:{tmp_path}/leases.sqlite")
    writer = rows.writeStream.foreachBatch(read_twice).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(PATIENCE_S)
    in_all = sum(seen, Counter[int]())
    assert set(in_all.values()) == {1}
    assert set(range(200)) <= set(in_all)


def test_a_union_with_itself_has_every_row_twice(spark: Any, make_world: MakeWorld, tmp_path: Path) -> None:
    """Two tasks that read one shard concurrently end at the same record, like speculative copies."""
    world = make_world(shards=2)
    world.put()
    rows = world.load(spark, leases=f"sqlite:{tmp_path}/leases.sqlite")
    seen: list[Counter[int]] = []
    writer = rows.union(rows).writeStream.foreachBatch(lambda batch, _: seen.append(numbers_in(batch)))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        world.put(100)
        wait_until(lambda: sum(map(len, seen)) >= 300, "everything was read", PATIENCE_S)
    finally:
        query.stop()
    in_all = sum(seen, Counter[int]())
    assert in_all == Counter(dict.fromkeys(range(300), 2))


def test_a_self_join_is_refused_with_a_remedy(spark: Any, make_world: MakeWorld, tmp_path: Path) -> None:
    """Two readers of one application in one driver would each read a part of the records."""
    world = make_world(shards=1)
    world.put(10)
    rows = world.load(spark).select("sequenceNumber")
    joined = rows.alias("a").join(rows.alias("b"), "sequenceNumber")
    query = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match="load the stream with two application names"):
        query.awaitTermination(PATIENCE_S)


def test_two_applications_both_read_all_records(spark: Any, make_world: MakeWorld, tmp_path: Path) -> None:
    """Queries with different application names share no leases, also within one driver."""
    world = make_world(shards=2)
    world.put()
    seen: dict[str, list[Counter[int]]] = {"a": [], "b": []}

    def start(name: str) -> Any:
        rows = world.load(spark, applicationName=f"{world.name}-{name}")
        writer = rows.writeStream.foreachBatch(lambda batch, _: seen[name].append(numbers_in(batch)))
        return writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()

    queries = [start(name) for name in seen]
    assert all(query.awaitTermination(PATIENCE_S) for query in queries)
    for found in seen.values():
        assert sum(found, Counter[int]()) == Counter(range(200))


def test_a_lease_lost_within_a_batch_delivers_nothing_until_it_is_taken_again(
    spark: Any, make_world: MakeWorld
) -> None:
    """Another member takes a lease before a task pins. The query continues, and no record is delivered twice."""
    world = make_world(shards=2)
    world.put()
    world.gates.set(BEFORE_PIN, "hold")
    query = world.start(world.load(spark, failoverAfter="60s"), to_the_end=False)
    try:
        wait_until(lambda: world.gates.is_reached(BEFORE_PIN), "a task is about to pin", PATIENCE_S)
        key = min(world.leases())
        stolen = steal_lease(world, key)
        world.gates.open(BEFORE_PIN)
        wait_until(lambda: bool(world.archived()), "the other shard is archived", PATIENCE_S)
        assert not [file for file in world.archive.rglob("*.parquet") if key in str(file)]
        world.with_table(lambda table: table.release(stolen))
        world.put(50)
        wait_until(world.has_all, "everything is archived", PATIENCE_S)
        assert query.isActive
    finally:
        query.stop()
    world.check()


@pytest.mark.parametrize("consumer_mode", ["polling", "efo"])
def test_parents_with_a_backlog_are_read_before_their_children(
    spark: Any, make_world: MakeWorld, consumer_mode: str
) -> None:
    """A split and a merge lose and duplicate no record, although most records of the parents are unread."""
    world = make_world(shards=2)
    world.put(300)
    split(world, 0)
    world.put()
    merge(world, 3, 1)
    world.put()
    world.read_all(spark, maxRecordsPerTrigger="150", consumerMode=consumer_mode)
    world.check()
    unfinished = {key for key, lease in world.leases().items() if not lease.checkpoint.is_shard_end}
    assert unfinished == {"shardId-000000000002", "shardId-000000000004"}


def test_latest_keeps_its_meaning_across_a_reshard_during_downtime(spark: Any, make_world: MakeWorld) -> None:
    """A query that began at the tip reads the records that arrived during its downtime, also from closed shards."""
    world = make_world(shards=2)
    world.read_all(spark, startingPosition="latest")  # fixes the moment that "latest" means
    world.put()
    split(world, 0)
    world.put()
    merge(world, 3, 1)
    world.put(50)
    world.read_all(spark, startingPosition="latest")
    world.check()


def test_the_starting_time_of_another_connector(spark: Any, make_world: MakeWorld, tmp_path: Path) -> None:
    """It is a time, and not the tip. A position in an unknown form, and a time in the future, are refused."""
    world = make_world(shards=1)
    world.put(20)
    leases = f"sqlite:{tmp_path}/leases.sqlite"
    with pytest.raises(PySparkException, match="'at_time' is not the id of a shard; expected"):
        world.read_all(spark, leases=leases, startingPosition='{"at_time": "2026-01-01T00:00:00Z"}')
    with pytest.raises(
        PySparkException, match=r": leasehold\.errors\.ConfigError: the start position is .* in the future"
    ):
        world.read_all(spark, leases=leases, startingPosition="at_timestamp 2126-01-01T00:00:00Z")
    start = datetime.now(UTC) - timedelta(hours=1)
    position = {"at_timestamp": f"{start:%m/%d/%Y %H:%M:%S} GMT", "format": "MM/dd/yyyy HH:mm:ss ZZZ"}
    world.read_all(spark, leases=leases, startingPosition=json.dumps(position))
    world.check()


def test_trimmed_records_fail_the_query_unless_the_options_allow_them(
    spark: Any, make_world: MakeWorld, local_kinesis: LocalKinesis
) -> None:
    """The error names the shard and the option."""
    with LocalKinesis.in_thread() as kinesis:
        world = make_world(shards=1, kinesis=kinesis)
        world.put(50)
        world.read_all(spark)
        world.put(30)
        kinesis.advance(timedelta(hours=25))
        world.put(40)
        with pytest.raises(
            PySparkException, match=r"shardId-0+: records after \d+.* were trimmed.*failOnDataLoss"
        ):
            world.read_all(spark)
        world.read_all(spark, failOnDataLoss="false")
        world.check(without=frozenset(range(50, 80)))


REGIONS = ["eu", "us", None]
ORDER_AVSC = """{"type": "record", "name": "Order", "fields": [
    {"name": "number", "type": "int"}, {"name": "region", "type": ["null", "string"]}]}"""


@pytest.mark.slow
def test_decoded_records_are_divided_and_failed_ones_are_apart(spark: Any, make_world: MakeWorld) -> None:
    """Each record is in the archive of its region, or in that of errors, once: after a failed task, a batch that is
    repeated after a restart, and a second application that reads everything again.
    """
    world, decode = make_world(shards=2), Decode(format=DecodeFormat.AVRO, payloads=AvroPayloads(ORDER_AVSC))

    def put(numbers: range) -> None:
        """Every fifth payload is cut off."""
        orders = [(n, to_avro({"number": n, "region": REGIONS[n % 3]}, ORDER_AVSC)) for n in numbers]
        records = [{"Data": data[:-1] if n % 5 == 0 else data, "PartitionKey": str(n)} for n, data in orders]
        assert not world.kinesis.client().put_records(StreamName=world.name, Records=records)[
            "FailedRecordCount"
        ]

    def archive(**changes: str) -> Any:
        rows = decode_payloads(world.load(spark, **changes), decode).withColumn(
            "region", col("record.region")
        )
        writer = rows.writeStream.format(SINK).trigger(availableNow=True)
        writer = writer.options(partitionColumn="region", prefix="orders", checkpointLocation=checkpoint)
        return writer.options(errorColumn="decodeError", errorPrefix="failed").start(str(world.archive))

    checkpoint = str(world.checkpoint)
    put(range(60))
    world.gates.set(WRITTEN, "fail")
    world.gates.set(COMMITTED, "fail")
    with pytest.raises(PySparkException, match="intended failure at committed"):
        archive().awaitTermination(PATIENCE_S)
    put(range(60, 90))
    assert archive().awaitTermination(PATIENCE_S)
    require_divided(world, 90)
    checkpoint = f"{world.checkpoint}-2"
    assert archive(applicationName=f"{world.name}-2").awaitTermination(PATIENCE_S)
    require_divided(world, 90)


def require_divided(world: PipelineWorld, count: int) -> None:
    """Each of the first numbers is in the right place once. Failed records have their payload and the error's class."""
    found: list[tuple[str, int]] = []
    for file in world.archive.rglob("*.parquet"):
        place = file.relative_to(world.archive).parts[:2]
        for row in pq.ParquetFile(file).read(columns=["partitionKey", "record", "decodeError"]).to_pylist():
            number = int(row["partitionKey"])
            if row["record"] is None:
                assert row["decodeError"] == "the payload is not Avro of the schema: EOFError"
                found.append((place[0], number))
            else:
                assert (row["record"]["number"], row["decodeError"]) == (number, None)
                found.append(("/".join(place), number))
    names = {"eu": "orders/region=eu", "us": "orders/region=us", None: "orders/region=_null"}
    expected = [("failed" if n % 5 == 0 else names[REGIONS[n % 3]], n) for n in range(count)]
    assert sorted(found) == sorted(expected)


@pytest.mark.slow
def test_a_read_of_trimmed_times_is_answered_from_the_archive(spark: Any, make_world: MakeWorld) -> None:
    """Of a shard that has left the stream, and of one that is still in it. The rest comes from the stream."""
    with LocalKinesis.in_thread() as kinesis:
        world = make_world(shards=2, kinesis=kinesis)
        start = datetime.now(UTC) - timedelta(seconds=1)
        world.put(40)
        split(world, 0)
        world.put(40)
        world.read_all(spark)
        world.check()
        end = datetime.now(UTC) + timedelta(milliseconds=1)
        kinesis.trim(world.name)
        assert "shardId-000000000000" not in {each["ShardId"] for each in world.production._list_shards()}
        wait_until(lambda: datetime.now(UTC) > end, "the end has passed", PATIENCE_S)
        world.put(30)

        def read(**options: str) -> Counter[int]:
            chosen = {"streamName": world.name, "region": "us-east-1", "endpointUrl": kinesis.endpoint_url}
            return numbers_in(spark.read.format("leasehold").options(**chosen, **options).load())

        with_archive = {"archive": str(world.archive), "startingTimestamp": start.isoformat()}
        assert read(**with_archive, endingTimestamp=end.isoformat()) == Counter(range(80))
        assert read(**with_archive) == Counter(range(110))
        assert read(archive=str(world.archive)) == Counter(range(110))
        assert read(startingTimestamp=start.isoformat()) == Counter(range(80, 110))


@pytest.mark.slow
def test_an_idle_stream_makes_no_batches(spark: Any, make_world: MakeWorld) -> None:
    """Iterators expire during hours without records. The next record makes the next batch."""
    with LocalKinesis.in_thread() as kinesis:
        world = make_world(shards=2, kinesis=kinesis)
        query = world.start(world.load(spark), to_the_end=False)
        try:
            wait_until(lambda: query.lastProgress is not None, "the first batch has ended", PATIENCE_S)
            wait_until(lambda: all(each.pin is None for each in world.leases().values()), "idle", PATIENCE_S)
            batches = len(list((world.checkpoint / "commits").glob("[0-9]*")))
            for _ in range(3):
                kinesis.advance(timedelta(hours=2))
                idle_since = query.lastProgress["timestamp"]
                wait_until(lambda: query.lastProgress["timestamp"] != idle_since, "a trigger", PATIENCE_S)  # noqa: B023
            assert len(list((world.checkpoint / "commits").glob("[0-9]*"))) == batches
            world.production.put(plain=1, aggregated=0)
            wait_until(world.has_all, "the record is archived", PATIENCE_S)
        finally:
            query.stop()
        world.check()
        assert len(list((world.checkpoint / "offsets").glob("[0-9]*"))) == batches + 1


def test_three_hundred_shards(spark: Any, make_world: MakeWorld) -> None:
    """A query with many more shards than task slots uses as many tasks as slots."""
    world = make_world(shards=300)
    world.put(900)
    world.read_all(spark, pollInterval="2s", failoverAfter="15s")
    world.check()


def test_a_lost_lease_table(spark: Any, make_world: MakeWorld, tmp_path: Path) -> None:
    """With the old checkpoint the query fails with a remedy. With a new one it reads all records again, and the archive
    does not change.
    """
    world = make_world(shards=2)
    world.put()
    world.read_all(spark)
    files = sorted(world.archive.rglob("*.parquet"))
    world.dynamodb.client("dynamodb").delete_table(TableName=world.name)
    world.put(50)
    with pytest.raises(PySparkException, match=r"the shard has no lease.*onLeasesBehind=offsets"):
        world.read_all(spark)
    world.read_all(spark, checkpoint=tmp_path, maxRecordsPerTrigger="70")
    world.check()
    assert set(files) <= set(world.archive.rglob("*.parquet"))


def test_a_recreated_stream(spark: Any, make_world: MakeWorld, tmp_path: Path) -> None:
    """The query fails with the remedy. With it, and with a new checkpoint, it reads the new stream from its start."""
    world = make_world(shards=2)
    world.put(40)
    world.read_all(spark)
    client = world.production.kinesis
    client.delete_stream(StreamName=world.name)
    client.get_waiter("stream_not_exists").wait(StreamName=world.name, WaiterConfig={"Delay": 1})
    client.create_stream(StreamName=world.name, ShardCount=2)
    wait_for_stream(world)
    world.put(30)
    with pytest.raises(PySparkException, match=r"deleted and created again.*onRecreatedStream"):
        world.read_all(spark)
    world.read_all(spark, checkpoint=tmp_path, onRecreatedStream="start_over")
    world.check()


def test_operations_that_drop_whole_ranges_are_refused(
    spark: Any, make_world: MakeWorld, tmp_path: Path
) -> None:
    """All ranges of a shard, and all ranges of a batch, behind a shuffle. Without the operation the query continues."""
    world = make_world(shards=3)
    world.put(12)
    leases, one_in_a_range = f"sqlite:{tmp_path}/leases.sqlite", "3"
    rows = world.load(spark, leases=leases, maxRecordsPerTrigger=one_in_a_range)
    for kept in (
        rows.filter("shardId <> 'shardId-000000000001'"),
        rows.repartition(2).filter("length(data) < 0"),
    ):
        with pytest.raises(
            PySparkException, match=r"rows did not reach the sink.*filter when you read the archive"
        ):
            world.start(kept).awaitTermination(PATIENCE_S)
    world.read_all(spark, leases=leases, maxRecordsPerTrigger=one_in_a_range)
    world.check()


def test_operations_that_keep_all_ranges_are_not_refused(
    spark: Any, make_world: MakeWorld, tmp_path: Path
) -> None:
    """A source twice, two sources, fewer tasks, and a join with a table without a shuffle."""
    world = make_world(shards=3)
    world.put(60)
    leases = {"leases": f"sqlite:{tmp_path}/leases.sqlite", "leaseTable": "shared"}
    rows, again = (world.load(spark, **leases, applicationName=world.name + name) for name in ("", "-2"))
    streams = spark.createDataFrame([(world.name, "ours")], "stream string, owner string")
    kept = (
        rows.union(rows.filter("length(data) < 0"))
        .union(again)
        .coalesce(2)
        .join(streams.hint("broadcast"), "stream")
    )
    assert world.start(kept).awaitTermination(PATIENCE_S)
    world.check()


def test_a_lease_file_that_was_deleted_between_two_runs(
    spark: Any, make_world: MakeWorld, tmp_path: Path
) -> None:
    """Spark keeps the Python worker of a task for the next run. It pins in the file of that run, and the run ends."""
    world = make_world(shards=1)
    world.put(20)
    for run in ("first", "second"):
        for file in tmp_path.glob("leases.sqlite*"):
            file.unlink()
        rows = world.load(spark, leases=f"sqlite:{tmp_path}/leases.sqlite")
        # A sink without Python workers, so that the second run gets the worker of the first.
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / run))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S), "the query does not end"
        finally:
            query.stop()
        assert sum(each["numInputRows"] for each in query.recentProgress) == 20


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_a_lease_table_that_is_lost_after_a_split(
    spark: Any, make_world: MakeWorld, tmp_path: Path, shards: int
) -> None:
    """Spark's file sink gets no record twice: by default the query is refused, with `offsets` it continues exactly."""
    world = make_world(shards=shards)
    for count in (500, 1500, 1500):
        world.put(count)
        read_to_files(spark, world, tmp_path)
        if count == 500:
            split(world, 0)
    assert numbers_in_files(spark, tmp_path) == Counter(range(3500))
    world.dynamodb.client("dynamodb").delete_table(TableName=world.name)
    with pytest.raises(PySparkException, match=r"the shard has no lease.*onLeasesBehind=offsets"):
        read_to_files(spark, world, tmp_path)
    assert not world.leases(), "a refused query creates no leases"
    read_to_files(spark, world, tmp_path, onLeasesBehind="offsets")
    assert numbers_in_files(spark, tmp_path) == Counter(range(3500))
    world.put(50)
    read_to_files(spark, world, tmp_path)
    assert numbers_in_files(spark, tmp_path) == Counter(range(3550))


def test_an_old_copy_of_the_checkpoint_location(spark: Any, make_world: MakeWorld, tmp_path: Path) -> None:
    """The query is refused although its last run was stopped cleanly. With the newest copy it loses nothing."""
    world = make_world(shards=1)
    copies = tmp_path / "copies"
    for number in range(3):
        world.put(100)
        read_to_files(spark, world, tmp_path)
        shutil.copytree(tmp_path / "checkpoint", copies / str(number))
    world.put(100)
    use_checkpoint(tmp_path, copies / "0")
    with pytest.raises(PySparkException, match=r"generation \d+ of this query .* old copy"):
        read_to_files(spark, world, tmp_path)
    use_checkpoint(tmp_path, copies / "2")
    read_to_files(spark, world, tmp_path)
    assert numbers_in_files(spark, tmp_path) == Counter(range(400))


# -- helpers ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_an_operator_sees_of_a_query(
    spark: Any, make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bounded run has lines and a bar, each report has its shards, and a listener has the metrics of a worker."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "300ms")
    world = make_world(shards=2)
    world.put(60)
    observed: list[Event] = []
    listener = QueryMetricsListener(observed.append, status_port=0)
    spark.streams.addListener(listener)
    try:
        query = start_query(spark, pipeline_of(world, {"available_now": True}))
        watch_and_show(query)
        check_bounded_run(query, capsys.readouterr().out, world.production.produced)
        wait_until(lambda: handled(observed) == 60, "the listener has the records of all batches", PATIENCE_S)
        wait_until(lambda: kinds(observed)[MemberStopped] == 1, "the listener has its end", PATIENCE_S)
        assert 'leasehold_shard_records_handled_total{shard="' not in metrics_of(listener)
        query = start_query(spark, pipeline_of(world, {"processing_time": "200ms"}))
        world.put(10)
        # The query becomes idle. Without its reports then, the records of the last batch would be missing.
        wait_until(lambda: handled(observed) == 70, "the records of the last batch", PATIENCE_S)
        reads = kinds(observed)[PageRead]
        wait_until(lambda: kinds(observed)[PageRead] > reads + 4, "the lag of an idle query", PATIENCE_S)
        text = metrics_of(listener)
        assert re.findall(r"leasehold_shard_lag_seconds{.*} (.*)", text) == ["0.0", "0.0"]
        assert sum(map(float, re.findall(r"leasehold_shard_records_handled_total{.*} (.*)", text))) == 10
        assert f'application="{world.name}"' in text
        query.stop()
        wait_until(lambda: kinds(observed)[MemberStopped] == 2, "the listener has its end", PATIENCE_S)
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    world.check()


def pipeline_of(world: PipelineWorld, trigger: dict[str, Any]) -> Pipeline:
    """The pipeline as `leasehold pipeline` reads it from a file, with batches of up to 20 records."""
    content = {
        "checkpoint": str(world.checkpoint),
        "source": world.source(maxRecordsPerTrigger="20"),
        "sink": {"kind": "archive", "path": str(world.archive)},
        "trigger": trigger,
    }
    return parse_pipeline(content, name=world.name)


def watch_and_show(query: Any) -> None:
    """Show a bounded run in both ways, line by line and as a table with a bar."""
    with PlainLines() as lines, LiveTable("copy", is_bounded=True) as table:

        def show(progress: BatchProgress) -> None:
            lines.show_batch(progress)
            table.show_batch(progress)

        watch_query(query, show, lambda: False)


def check_bounded_run(query: Any, shown: str, records: int) -> None:
    """Check lines, bar and reports."""
    batches = re.findall(
        r":\d\d batch \d+: (\d+) records?, ([\d.]+) k?B in \S+ s; 2 shards, furthest behind: (.+)", shown
    )
    assert sum(int(count) for count, _, _ in batches) == records
    assert all(float(size) for _, size, _ in batches)
    assert "100%" in shown
    assert "0 s left" in shown
    last = json.loads(query.lastProgress.json)["sources"][0]
    assert last["latestOffset"]["recordsRead"] == records
    assert last["latestOffset"]["maxMillisBehind"] == 0
    assert not last.get("metrics")
    shards = last["latestOffset"]["shards"]
    assert len(shards) == 2
    assert sum(shard["recordsRead"] for shard in shards.values()) == records
    for shard in shards.values():
        assert shard["millisBehind"] == 0
        assert shard["position"][0].isdigit()
        assert shard["bytesRead"] > 0
        assert shard["recordsPerSecond"] > 0
        assert shard["bytesPerSecond"] > 0


def kinds(observed: list[Event]) -> Counter[type[Event]]:
    """How many events there are of each type."""
    return Counter(type(event) for event in observed)


def handled(observed: list[Event]) -> int:
    """The records of all batches that the listener has seen."""
    return sum(event.records for event in observed if isinstance(event, BatchHandled))


def metrics_of(listener: QueryMetricsListener) -> str:
    """What Prometheus scrapes."""
    with urlopen(f"{listener.url}/metrics") as response:
        text: str = response.read().decode()
        return text


def numbers_in(batch: Any) -> Counter[int]:
    """The numbers of the records in a DataFrame."""
    return Counter(int(row.data) for row in batch.select("data").collect())


def read_to_files(spark: Any, world: PipelineWorld, folder: Path, **changes: str) -> None:
    """Write all available records with Spark's own file sink, which skips batch ids that it knows."""
    rows = world.load(spark, columns="default", **changes).select("data")
    writer = rows.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "files"))
    assert query.awaitTermination(PATIENCE_S), "the query does not end"


def numbers_in_files(spark: Any, folder: Path) -> Counter[int]:
    """The numbers of the records that the file sink has written."""
    return numbers_in(spark.read.parquet(str(folder / "files")))


def use_checkpoint(folder: Path, copy: Path) -> None:
    """Replace the checkpoint location with a copy."""
    shutil.rmtree(folder / "checkpoint")
    shutil.copytree(copy, folder / "checkpoint")


def steal_lease(world: PipelineWorld, key: LeaseKey) -> Lease:
    """Let another member take a lease while its owner keeps renewing it."""
    while True:
        seen = world.lease(key)
        taken = world.with_table(lambda table: table.take(seen, WorkerId("thief"), LeaseSessionId("stolen")))  # noqa: B023
        if not isinstance(taken, Contended):
            return taken


def split(world: PipelineWorld, shard: int) -> None:
    """Split a shard in the middle."""
    shards = {each["ShardId"]: each for each in world.production._list_shards()}
    world.production._split(shards[f"shardId-{shard:012}"])
    wait_for_stream(world)


def merge(world: PipelineWorld, left: int, right: int) -> None:
    """Merge two adjacent shards."""
    names = [f"shardId-{number:012}" for number in (left, right)]
    world.production.kinesis.merge_shards(
        StreamName=world.name, ShardToMerge=names[0], AdjacentShardToMerge=names[1]
    )
    wait_for_stream(world)


def wait_for_stream(world: PipelineWorld) -> None:
    """Wait until the reshard has ended."""
    waiter = world.production.kinesis.get_waiter("stream_exists")
    waiter.wait(StreamName=world.name, WaiterConfig={"Delay": 1})
