"""How much does Spark read through the source, and write to the archive, on local[2]? How long is a record on its way?

    python benchmarks/spark_throughput.py [--megabytes 128] [--shards 8] [--latencies 40] [--sinks noop] [--json]

A backlog of records of 1,000 and of 100 bytes is read to its tip: to noop, and to an archive in a folder. Rates are
rows and payload (10^6 bytes) over the time that Spark says its batches took, planning and logs included, in a session
that is warm. The Kinesis server of this package runs beside it and takes its share of the machine, so its own ceiling
stands there, too: the same backlog read by our adapter alone, and through boto3, and thrown away. CPU seconds for each
1,000 MB tell what bounds a run, also on a machine that has other things to do.

Latency: a record is put every quarter of a second, and its object looked for; from before the put to the time stamp of
the file.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pyspark

from leasehold.adapters.aws import clients
from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.local import LocalKinesis
from leasehold.spark import register
from leasehold.spark.pipeline.session import spark_session

RECORD_BYTES = (1_000, 100)
SINKS = ("noop", "archive")
PUT_RECORDS = 500
PUT_HEADERS = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "Kinesis_20131202.PutRecords"}
PUT_EVERY_S = 0.25
RUN_DEADLINE_S = 900
RECORDS_A_CALL = 10_000
REGION = "us-east-1"
KINDS = ("server", "client", "JVM", "Python")
SHOWN_MIN = 0.5
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """One way through the backlog. `cpu` is seconds for each 1,000 MB, by kind of process."""

    record_bytes: int
    way: str
    rows_per_s: float
    mb_per_s: float
    cpu: Mapping[str, float]


# -- the backlog -------------------------------------------------------------------------------------------------------


def stream_of(record_bytes: int) -> str:
    """The stream that holds records of this size."""
    return f"records-{record_bytes}"


def fill(kinesis: LocalKinesis, stream: str, record_bytes: int, megabytes: int) -> None:
    """Put so much on a stream, spread over its shards: one and the same request again and again, made once."""
    entries = [
        {"Data": base64.b64encode(os.urandom(record_bytes)).decode(), "PartitionKey": f"key-{place}"}
        for place in range(PUT_RECORDS)
    ]
    body = json.dumps({"StreamName": stream, "Records": entries}).encode()
    place = urlsplit(kinesis.endpoint_url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port)
    for _ in range(megabytes * 1_000_000 // record_bytes // PUT_RECORDS):
        connection.request("POST", "/", body, PUT_HEADERS)
        answer = connection.getresponse()
        if b'"FailedRecordCount":0' not in answer.read():
            sys.exit(f"{stream} could not be filled: {answer.status}")
    connection.close()


# -- the ceiling -------------------------------------------------------------------------------------------------------


async def read_by_adapter(endpoint: str, stream_name: str) -> int:
    """Read a stream to its tip by the package's adapter alone, all shards at a time; returns how many records."""
    stream = KinesisStream(
        clients.kinesis_client(AwsAccess(region=REGION, endpoint_url=endpoint)), stream_name
    )

    async def read(shard: ShardId) -> int:
        iterator, count = await stream.iterator(shard, IteratorStart(IteratorKind.TRIM_HORIZON)), 0
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
    """The same through boto3, in two threads."""

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
    """What all runs share."""

    kinesis: LocalKinesis
    spark: Any
    folder: Path

    def query(self, stream: str, name: str, sink: str, trigger: Mapping[str, Any], **options: str) -> Any:
        """A query from the beginning of a stream to a sink."""
        rows = (
            self.spark.readStream.format("leasehold")
            .options(streamName=stream, applicationName=name, endpointUrl=self.kinesis.endpoint_url)
            .options(region=REGION, leases=f"sqlite:///{self.folder}/leases-{name}.sqlite")
            .options(startingPosition="trim_horizon", columns="archive" if sink == "archive" else "default")
            # A shard of Kinesis gives 2 MB a second; here the software is measured, not that limit.
            .options(**{"maxFetchRate": "64mb", **options})
            .load()
        )
        writer = rows.writeStream.format("leasehold-archive" if sink == "archive" else "noop")
        writer = writer.option("checkpointLocation", str(self.folder / f"checkpoint-{name}")).trigger(
            **trigger
        )
        return writer.start(str(self.archive(name))) if sink == "archive" else writer.start()

    def archive(self, name: str) -> Path:
        """Where a query's archive is."""
        return self.folder / f"archive-{name}"

    def read_backlog(self, stream: str, name: str, sink: str) -> tuple[int, float]:
        """Read a stream to its tip; returns rows, and the seconds that Spark's batches took."""
        query = self.query(stream, name, sink, {"availableNow": True})
        if not query.awaitTermination(RUN_DEADLINE_S):
            sys.exit(f"{name} did not end within {RUN_DEADLINE_S} s")
        progress = query.recentProgress
        seconds = sum(each["durationMs"]["triggerExecution"] for each in progress) / 1000
        return sum(each["numInputRows"] for each in progress), seconds


def latencies(bench: Bench, count: int, poll_interval: str) -> list[float]:
    """Seconds from a put to the archived object, one for each of so many records put one by one."""
    stream, name = f"latency-{poll_interval}", f"latency-{poll_interval}"
    client = bench.kinesis.client()
    client.create_stream(StreamName=stream, ShardCount=2)
    put_at: dict[bytes, float] = {}
    query = bench.query(stream, name, "archive", {"processingTime": "0 seconds"}, pollInterval=poll_interval)
    for number in range(-4, count):  # the first few meet cold workers
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


def kind_of(command: bytes) -> str | None:
    """Which part of the bench a process belongs to."""
    if b"leasehold.cli\0local" in command:
        return "server"
    if b"org.apache.spark" in command or b"/java" in command.split(b"\0")[0]:
        return "JVM"
    return "Python" if b"pyspark" in command else None


def cpu_by_kind() -> Mapping[str, float]:
    """CPU seconds so far of the processes below this one (those that ended included), and of this one."""
    parents, found = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            parents[int(entry.name)] = int(fields[1])
            found[int(entry.name)] = (command, sum(map(int, fields[11:15])) / TICKS_PER_S)
    used: defaultdict[str, float] = defaultdict(float, client=time.process_time())
    for process, (command, seconds) in found.items():
        if _is_below(process, os.getpid(), parents):
            used[kind_of(command) or "other"] += seconds
    return used


def _is_below(process: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while process in parents:
        process = parents[process]
        if process == ancestor:
            return True
    return False


def measured(record_bytes: int, way: str, work: Callable[[], tuple[int, float]]) -> Run:
    """Do some work, which tells how many rows it read in how many seconds."""
    before = cpu_by_kind()
    rows, seconds = work()
    after, megabytes = cpu_by_kind(), rows * record_bytes / 1e6
    cpu = {kind: round(1000 * (after[kind] - before.get(kind, 0)) / megabytes, 1) for kind in after}
    run = Run(record_bytes, way, rows / seconds, megabytes / seconds, cpu)
    show(run)
    return run


def timed(read: Callable[[], int]) -> Callable[[], tuple[int, float]]:
    """The same work, with the seconds that it took."""

    def work() -> tuple[int, float]:
        began = time.perf_counter()
        rows = read()
        return rows, time.perf_counter() - began

    return work


def show(run: Run) -> None:
    """One line of the table, as soon as it is known."""
    cpu = ", ".join(f"{kind} {run.cpu[kind]:.1f}" for kind in KINDS if run.cpu.get(kind, 0) >= SHOWN_MIN)
    print(
        f"{run.record_bytes:>7} B  {run.way:<14} {run.rows_per_s:>10,.0f} rows/s {run.mb_per_s:>7.1f} MB/s   {cpu}",
        file=sys.stderr,
        flush=True,
    )


def environment() -> dict[str, str]:
    """Where this was measured."""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def backlog_runs(bench: Bench, record_bytes: int, sinks: Sequence[str]) -> list[Run]:
    """The ceiling, and Spark, on one backlog."""
    stream, endpoint, client = stream_of(record_bytes), bench.kinesis.endpoint_url, bench.kinesis.client()
    runs = [
        measured(
            record_bytes, "adapter alone", timed(lambda: asyncio.run(read_by_adapter(endpoint, stream)))
        ),
        measured(record_bytes, "boto3 alone", timed(lambda: read_by_boto3(client, stream))),
    ]
    for sink in sinks:
        name = f"{record_bytes}-{sink}"
        bench.read_backlog("warm-up", f"warm-up-{name}", sink)
        runs.append(
            measured(
                record_bytes,
                f"Spark, {sink}",
                lambda name=name, sink=sink: bench.read_backlog(stream, name, sink),  # type: ignore[misc]
            )
        )
    ceiling = runs[0].mb_per_s
    for run in runs[2:]:
        print(
            f"          {run.way}: {100 * run.mb_per_s / ceiling:.0f}% of the adapter alone", file=sys.stderr
        )
    return runs


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
    print("last columns: CPU seconds for each 1,000 MB\n", file=sys.stderr)
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
            runs += backlog_runs(bench, record_bytes, given.sinks)
        waits = (
            {every: latencies(bench, given.latencies, every) for every in ("1s", "200ms")}
            if given.latencies
            else {}
        )
    for every, each in waits.items():
        print(
            f"put to archived object, pollInterval {every}: median {statistics.median(each):.2f} s, "
            f"nine in ten within {sorted(each)[int(len(each) * 0.9)]:.2f} s, of {len(each)}",
            file=sys.stderr,
        )
    if given.json:
        print(
            json.dumps({"environment": environment(), "runs": [asdict(run) for run in runs], "waits": waits})
        )


if __name__ == "__main__":
    main()
