"""Measures the throughput of the Spark source and the archive sink on local[2], and the latency of a record.

    python -m benchmarks spark
    python -m benchmarks.spark_throughput [--megabytes 128] [--shards 8] [--latencies 40] [--sinks noop] [--json]

A backlog of records of 1,000 and of 100 bytes is read to its tip: to the noop sink, and to an archive in a folder.
Rates are rows and payload (10^6 bytes) per second of Spark's batches, with planning and logs, in a warm session,
without the time in which the query takes its leases. Our Kinesis server runs on the same machine and uses part of it.
Its limit is measured too: the same backlog, read by our adapter alone and by boto3, and discarded. The CPU seconds per
1,000 MB show what limits a run, even on a busy machine.

`AWSLABS_CONNECTOR_JAR=/path/to/jar python -m benchmarks spark` also measures awslabs' connector to noop, if you have
built it: the source is awslabs/spark-sql-kinesis-connector on GitHub, and `mvn package -DskipTests` builds the jar.

Latency: a record is put every quarter of a second. Its latency is the time from before the put to the time stamp of the
archived file.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark

from benchmarks.arrow_files_source import ArrowFilesSource, write_files
from benchmarks.backlogs import fill
from benchmarks.harness import Plan, Result, interleaved
from benchmarks.harness import environment as machine
from benchmarks.processes import CpuMeter, cpu_by_kind
from leasehold.adapters.aws import clients
from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.local import LocalKinesis
from leasehold.spark import register
from leasehold.spark.pipeline.session import spark_session
from leasehold.spark.source import FORMAT, KinesisSource

RECORD_BYTES = (1_000, 100)
SINKS = ("noop", "archive")
PUT_EVERY_S = 0.25
RUN_DEADLINE_S = 900
RECORDS_A_CALL = 10_000
REGION = "us-east-1"
KINDS = ("server", "client", "JVM", "reader", "Python")
SHOWN_MIN = 0.5


@dataclass(frozen=True)
class Run:
    """One way to read the backlog. `cpu` is seconds per 1,000 MB, by kind of process."""

    record_bytes: int
    way: str
    rows_per_s: float
    mb_per_s: float
    cpu: Mapping[str, float]


# -- the backlog -------------------------------------------------------------------------------------------------------


def stream_of(record_bytes: int) -> str:
    """Return the name of the stream with records of this size."""
    return f"records-{record_bytes}"


# -- the limit of the server -------------------------------------------------------------------------------------------


async def read_by_adapter(endpoint: str, stream_name: str) -> int:
    """Read a stream to its tip with our adapter alone, all shards at the same time. Returns the number of records."""
    stream = KinesisStream(
        clients.kinesis_client(AwsAccess(region=REGION, endpoint_url=endpoint)), stream_name
    )

    async def read(shard: ShardId) -> int:
        iterator, count = await stream.get_iterator(shard, IteratorStart(IteratorKind.TRIM_HORIZON)), 0
        while True:
            page = await stream.get_records(iterator, limit=RECORDS_A_CALL)
            count += len(page.records)
            if not page.records or page.next_iterator is None:
                return count
            iterator = page.next_iterator

    try:
        return sum(await asyncio.gather(*(read(shard.id) for shard in await stream.list_shards())))
    finally:
        await stream.close()


def read_by_boto3(client: Any, stream: str) -> int:
    """Read a stream to its tip with boto3 in two threads. Returns the number of records."""

    def read(shard: str) -> int:
        entry = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        iterator, count = entry["ShardIterator"], 0
        while True:
            page = client.get_records(ShardIterator=iterator, Limit=RECORDS_A_CALL)
            count += len(page["Records"])
            if not page["Records"]:
                return count
            iterator = page["NextShardIterator"]

    shards = [shard["ShardId"] for shard in client.list_shards(StreamName=stream)["Shards"]]
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(read, shards))


# -- Spark -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """The server, the Spark session and the folder of all runs."""

    kinesis: LocalKinesis
    spark: Any
    folder: Path
    records: dict[str, int] = field(default_factory=dict)  # by stream

    def query(
        self,
        stream: str,
        name: str,
        sink: str,
        trigger: Mapping[str, Any],
        *,
        source: str = FORMAT,
        **options: str,
    ) -> Any:
        """Start a query from TRIM_HORIZON to a sink."""
        rows = (
            self.spark.readStream.format(source)
            .options(streamName=stream, applicationName=name, endpointUrl=self.kinesis.endpoint_url)
            .options(region=REGION, leases=f"sqlite:///{self.folder}/leases-{name}.sqlite")
            .options(startingPosition="trim_horizon", columns="archive" if sink == "archive" else "default")
            # Kinesis limits a shard to 2 MB per second. The benchmark measures the software, not that limit.
            .options(**{"maxFetchRate": "64mb", **options})
            .load()
        )
        writer = rows.writeStream.format("leasehold-archive" if sink == "archive" else "noop")
        writer = writer.option("checkpointLocation", str(self.folder / f"checkpoint-{name}")).trigger(
            **trigger
        )
        return writer.start(str(self.archive(name))) if sink == "archive" else writer.start()

    def archive(self, name: str) -> Path:
        """Return the folder of a query's archive."""
        return self.folder / f"archive-{name}"

    def read_backlog(self, stream: str, name: str, sink: str, **options: str) -> tuple[int, float]:
        """Read a stream to its tip. Returns the rows, and the seconds of Spark's batches."""
        return await_end(self.query(stream, name, sink, {"availableNow": True}, **options), name)


def await_end(query: Any, name: str) -> tuple[int, float]:
    """Wait for the end of a query. Returns its rows, and the seconds of its batches, as of a query that runs for days:
    without the first plan, in which it takes its leases, and without batches that have no rows.
    """
    if not query.awaitTermination(RUN_DEADLINE_S):
        sys.exit(f"{name} did not end within {RUN_DEADLINE_S} s")
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    taken_ms = sum(each["durationMs"]["triggerExecution"] for each in batches)
    first_plan_ms = batches[0]["durationMs"]["latestOffset"] if batches else 0
    return sum(each["numInputRows"] for each in batches), (taken_ms - first_plan_ms) / 1000


def measure_latencies(bench: Bench, count: int, poll_interval: str) -> list[float]:
    """Put records one by one. Returns for each the seconds from its put to its archived object."""
    stream, name = f"latency-{poll_interval}", f"latency-{poll_interval}"
    client = bench.kinesis.client()
    client.create_stream(StreamName=stream, ShardCount=2)
    put_at: dict[bytes, float] = {}
    query = bench.query(stream, name, "archive", {"processingTime": "0 seconds"}, pollInterval=poll_interval)
    for number in range(-4, count):  # the first four warm up the workers
        data = b"%d" % number
        put_at[data] = time.time()
        client.put_record(StreamName=stream, Data=data, PartitionKey=f"key-{number}")
        until = time.monotonic() + (RUN_DEADLINE_S if number < 0 else PUT_EVERY_S)
        while time.monotonic() < until and not (number < 0 and data in _archived(bench.archive(name))):
            time.sleep(PUT_EVERY_S / 5)
    until = time.monotonic() + RUN_DEADLINE_S
    while len(archived := _archived(bench.archive(name))) < len(put_at) and time.monotonic() < until:
        time.sleep(0.2)
    query.stop()
    return [archived[data] - at for data, at in put_at.items() if not data.startswith(b"-")]


def _archived(folder: Path) -> dict[bytes, float]:
    """When each record of an archive was there."""
    return {
        data: file.stat().st_mtime
        for file in folder.rglob("*.parquet")
        for data in pq.read_table(file, columns=["data"])["data"].to_pylist()
    }


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(record_bytes: int, way: str, work: Callable[[], tuple[int, float]]) -> Run:
    """Run work that returns rows and seconds, and measure its CPU time."""
    before = cpu_by_kind()
    rows, seconds = work()
    after, megabytes = cpu_by_kind(), rows * record_bytes / 1e6
    cpu = {kind: round(1000 * (after[kind] - before.get(kind, 0)) / megabytes, 1) for kind in after}
    run = Run(record_bytes, way, rows / seconds, megabytes / seconds, cpu)
    show(run)
    return run


def with_seconds(read: Callable[[], int]) -> Callable[[], tuple[int, float]]:
    """Make work that also returns the seconds it took."""

    def work() -> tuple[int, float]:
        began = time.perf_counter()
        rows = read()
        return rows, time.perf_counter() - began

    return work


def show(run: Run) -> None:
    """Print one line of the table."""
    cpu = ", ".join(f"{kind} {run.cpu[kind]:.1f}" for kind in KINDS if run.cpu.get(kind, 0) >= SHOWN_MIN)
    print(
        f"{run.record_bytes:>7} B  {run.way:<14} {run.rows_per_s:>10,.0f} rows/s {run.mb_per_s:>7.1f} MB/s   {cpu}",
        file=sys.stderr,
        flush=True,
    )


def environment() -> dict[str, str]:
    """Describe the machine and the versions."""
    return machine() | {"pyspark": pyspark.__version__}


def measure_backlog(bench: Bench, record_bytes: int, sinks: Sequence[str]) -> list[Run]:
    """Measure the server's limit, and Spark, on one backlog."""
    stream, endpoint, client = stream_of(record_bytes), bench.kinesis.endpoint_url, bench.kinesis.client()
    runs = [
        measure(
            record_bytes,
            "adapter alone",
            with_seconds(lambda: asyncio.run(read_by_adapter(endpoint, stream))),
        ),
        measure(record_bytes, "boto3 alone", with_seconds(lambda: read_by_boto3(client, stream))),
    ]
    for sink in sinks:
        name = f"{record_bytes}-{sink}"
        bench.read_backlog("warm-up", f"warm-up-{name}", sink)
        runs.append(
            measure(
                record_bytes,
                f"Spark, {sink}",
                lambda name=name, sink=sink: bench.read_backlog(stream, name, sink),  # type: ignore[misc]
            )
        )
    limit = runs[0].mb_per_s
    for run in runs[2:]:
        print(f"          {run.way}: {100 * run.mb_per_s / limit:.0f}% of the adapter alone", file=sys.stderr)
    return runs


# -- net processor time, compared --------------------------------------------------------------------------------------

DEFAULT, TUNED, PURE, READY, AWSLABS = (
    "leasehold, default options",
    "leasehold, maxFetchRate=64mb",
    "leasehold, pure Python",
    "ready-made Arrow batches",
    "awslabs connector",
)
CONNECTOR_JAR = os.environ.get("AWSLABS_CONNECTOR_JAR", "")
# After the last record of a batch the connector waits for more, five seconds by default. With these options it waits
# for one second.
CONNECTOR_OPTIONS = {
    "region": REGION,
    "kinesisRegion": REGION,
    "consumerType": "GetRecords",
    "startingPosition": "TRIM_HORIZON",
    "awsAccessKeyId": "test",
    "awsSecretKey": "test",
    "failOnDataLoss": "true",
    "internal.dataQueueWaitTimeoutSec": "1",
    "internal.maxDataQueueEmptyCount": "6",
    "maxFetchTimePerShardSec": "10",
}
PURE_FORMAT = "leasehold-pure"
# With fewer shards, Kinesis' limit of 2 MB a second and shard would slow the query with default options.
SHARDS = 32
LENGTHS = {1_000: (16_000, 512_000), 100: (80_000, 2_560_000)}  # records of the short and of the long stream
COMPARISONS = tuple(f"spark-{way}-{size}" for size in LENGTHS for way in ("noop", "rate", "archive"))
HAS_NATIVE = importlib.util.find_spec("leasehold_native") is not None


class PureSource(KinesisSource):
    """Our source in Python processes without the native decoder."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return PURE_FORMAT


def register_contestants(spark: Any) -> None:
    """Register our source, the same without the native decoder, and the one with ready-made batches.

    A source keeps the environment variables that its processes get when it is registered.
    """
    register(spark)
    spark.dataSource.register(ArrowFilesSource)
    variables = spark.sparkContext.environment
    variables["LEASEHOLD_NATIVE"] = "0"
    spark.dataSource.register(PureSource)
    del variables["LEASEHOLD_NATIVE"]


def contestants(sink: str) -> tuple[str, ...]:
    """Every contestant that can run here. Without the native decoder, ours are not called so."""
    ours = (DEFAULT, TUNED, PURE) if HAS_NATIVE else (PURE,)
    if sink != "noop":
        return ours
    return (*ours, READY, AWSLABS) if CONNECTOR_JAR else (*ours, READY)


def run(plan: Plan) -> Iterator[Result]:
    """Net CPU a GB of the source, to noop and to an archive, beside a Python source with ready-made batches."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalKinesis.in_process("--stream=warm-up:8") as kinesis,
        spark_session("bench", _spark_settings(), checkpoint=folder) as spark,
    ):
        register_contestants(spark)
        bench = Bench(kinesis, spark, Path(folder))
        fill(kinesis, "warm-up", 1_000, 4)
        bench.records["warm-up"] = 4_000
        write_files(bench.folder / "warm-up", 1_000, 16_000)
        wanted = [(size, sink) for size in LENGTHS for sink in SINKS if _wants(plan, size, sink)]
        for record_bytes in dict.fromkeys(size for size, _ in wanted):
            fill_both(bench, record_bytes, LENGTHS[record_bytes])
        for record_bytes, sink in wanted:
            yield from compare(bench, record_bytes, sink, plan)


def _spark_settings() -> dict[str, str]:
    return {"spark.master": "local[2]"} | ({"spark.jars": CONNECTOR_JAR} if CONNECTOR_JAR else {})


def _wants(plan: Plan, record_bytes: int, sink: str) -> bool:
    if plan.is_quick and not plan.only:
        return sink == "noop"
    return plan.wants(f"spark-{sink}-{record_bytes}") or (
        sink == "noop" and plan.wants(f"spark-rate-{record_bytes}")
    )


def fill_both(bench: Bench, record_bytes: int, lengths: tuple[int, int]) -> None:
    """Fill a short and a long stream, and write as many records to Arrow files."""
    for name, records in zip(("short", "long"), lengths, strict=True):
        stream = f"{stream_of(record_bytes)}-{name}"
        bench.kinesis.client().create_stream(StreamName=stream, ShardCount=SHARDS)
        fill(bench.kinesis, stream, record_bytes, records * record_bytes // 1_000_000)
        bench.records[stream] = records
        write_files(bench.folder / stream, record_bytes, records)


def compare(bench: Bench, record_bytes: int, sink: str, plan: Plan) -> Iterator[Result]:
    """Measure one size of records and one sink, all contestants in turns: CPU and, to noop, rows a second."""
    rate = Result(
        f"spark-rate-{record_bytes}",
        f"How many records of {record_bytes:,} B does Spark read in a second, to noop, on local[2]?",
        "rows a second of Spark's batches, the server on the same machine",
        "make bench ARGS=spark",
        "the processors, which the server uses, too",
    )
    result = Result(
        f"spark-{sink}-{record_bytes}",
        f"How much CPU does Spark need for 1 GB of records of {record_bytes:,} B, to {sink}, on local[2]?",
        "net CPU s a GB (JVM, reader, Python workers)",
        "make bench ARGS=spark",
        "the copy from Arrow to rows in the JVM, then decoding",
    )
    repeats = 1 if plan.is_quick else plan.repeats
    for number, contestant in enumerate(interleaved(contestants(sink), repeats)):
        # Spark ends Python processes that were idle for a minute. Both queries find them warm, or both lengths
        # could not be compared: a cold start costs as much as 200 MB. Before its first measurement, a contestant reads
        # the long stream, so that the JVM has compiled its code.
        is_first = number < len(contestants(sink))
        warm_up = f"{stream_of(record_bytes)}-long" if is_first else "warm-up"
        _read(bench, contestant, warm_up, f"warm-up-{record_bytes}-{sink}-{number}", sink)
        used = dict[str, tuple[float, int]]()
        for length in ("short", "long"):
            stream, name = f"{stream_of(record_bytes)}-{length}", f"{record_bytes}-{sink}-{length}-{number}"
            with CpuMeter() as meter:
                before = _client_cpu_s(meter)
                rows, seconds = _read(bench, contestant, stream, name, sink)
                time.sleep(1)  # the reader releases its leases
                used[length] = _client_cpu_s(meter) - before, rows
        cpu_s, more_rows = (used["long"][part] - used["short"][part] for part in (0, 1))
        result.add(contestant, 1e9 * cpu_s / (more_rows * record_bytes))
        rate.add(contestant, used["long"][1] / seconds)
        print(
            f"  {result.key}, {contestant}: {result.values[contestant][-1]:.1f} "
            f"({used['short'][0]:.1f} and {used['long'][0]:.1f} s)",
            file=sys.stderr,
            flush=True,
        )
    yield result
    if sink == "noop":
        yield rate


def _read(bench: Bench, contestant: str, stream: str, name: str, sink: str) -> tuple[int, float]:
    if contestant == AWSLABS:
        return _read_by_connector(bench, stream, name)
    if contestant != READY:
        options = {"maxFetchRate": "64mb"} if contestant == TUNED else {"maxFetchRate": "2mb"}
        source = PURE_FORMAT if contestant == PURE else FORMAT
        query = bench.query(stream, name, sink, {"availableNow": True}, source=source, **options)
        return await_end(query, name)
    rows = bench.spark.readStream.format("arrow-files").option("path", str(bench.folder / stream)).load()
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(bench.folder / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    return await_end(query, name)


def _read_by_connector(bench: Bench, stream: str, name: str) -> tuple[int, float]:
    """Read a stream with awslabs' connector, which has no AvailableNow: until it has delivered all records."""
    options = {f"kinesis.{option}": value for option, value in CONNECTOR_OPTIONS.items()}
    rows = (
        bench.spark.readStream.format("aws-kinesis")
        .options(**options)
        .option("kinesis.streamName", stream)
        .option("kinesis.endpointUrl", bench.kinesis.endpoint_url)
        .load()
    )
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(bench.folder / f"checkpoint-{name}"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    expected, until = bench.records[stream], time.monotonic() + RUN_DEADLINE_S
    while sum(each["numInputRows"] for each in query.recentProgress) < expected:
        if not query.isActive or time.monotonic() > until:
            sys.exit(f"{name}: {AWSLABS} has not delivered {expected:,} records: {query.exception()}")
        time.sleep(0.1)
    query.stop()
    return await_end(query, name)


def _client_cpu_s(meter: CpuMeter) -> float:
    """Of the JVM and the Python processes below it. What this process does for a query is next to nothing."""
    return sum(
        seconds for kind, seconds in meter.cpu_by_kind().items() if kind in ("JVM", "reader", "Python")
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megabytes", type=int, default=128, help="of 1,000-byte records; a quarter of 100-byte"
    )
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--latencies", type=int, default=40, metavar="COUNT")
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=SINKS)
    parser.add_argument("--json", action="store_true", help="print one JSON object as well")
    given = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in environment().items()), file=sys.stderr)
    print("last columns: CPU seconds per 1,000 MB\n", file=sys.stderr)
    streams = [f"--stream={stream_of(size)}:{given.shards}" for size in RECORD_BYTES]
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalKinesis.in_process(*streams, f"--stream=warm-up:{given.shards}") as kinesis,
        spark_session("bench", {"spark.master": "local[2]"}, checkpoint=folder) as spark,
    ):
        register(spark)
        bench, runs = Bench(kinesis, spark, Path(folder)), []
        fill(kinesis, "warm-up", 1_000, 4)
        for record_bytes in RECORD_BYTES:
            share = 1 if record_bytes == 1_000 else 4
            fill(kinesis, stream_of(record_bytes), record_bytes, given.megabytes // share)
            runs += measure_backlog(bench, record_bytes, given.sinks)
        waits = (
            {every: measure_latencies(bench, given.latencies, every) for every in ("1s", "200ms")}
            if given.latencies
            else {}
        )
    for every, each in waits.items():
        print(
            f"put to archived object, pollInterval {every}: median {statistics.median(each):.2f} s, "
            f"90 % within {sorted(each)[int(len(each) * 0.9)]:.2f} s, of {len(each)}",
            file=sys.stderr,
        )
    if given.json:
        print(
            json.dumps({"environment": environment(), "runs": [asdict(run) for run in runs], "waits": waits})
        )


if __name__ == "__main__":
    main()
