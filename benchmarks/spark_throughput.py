"""Measures the throughput of the Spark source and the archive sink on local[2], and the latency of a record.

    python benchmarks/spark_throughput.py [--megabytes 128] [--shards 8] [--latencies 40] [--sinks noop] [--json]

A backlog of records of 1,000 and of 100 bytes is read to its tip: to the noop sink, and to an archive in a folder.
Rates are rows and payload (10^6 bytes) per second of Spark's batches, with planning and logs, in a warm session. Our
Kinesis server runs on the same machine and uses part of it. Its limit is measured too: the same backlog, read by our
adapter alone and by boto3, and discarded. The CPU seconds per 1,000 MB show what limits a run, even on a busy machine.

Latency: a record is put every quarter of a second. Its latency is the time from before the put to the time stamp of the
archived file.
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


def fill(kinesis: LocalKinesis, stream: str, record_bytes: int, megabytes: int) -> None:
    """Fill a stream by sending one prepared request many times; its records go to all shards."""
    entries = [
        {"Data": base64.b64encode(os.urandom(record_bytes)).decode(), "PartitionKey": f"key-{index}"}
        for index in range(PUT_RECORDS)
    ]
    body = json.dumps({"StreamName": stream, "Records": entries}).encode()
    url = urlsplit(kinesis.endpoint_url)
    connection = http.client.HTTPConnection(str(url.hostname), url.port)
    for _ in range(megabytes * 1_000_000 // record_bytes // PUT_RECORDS):
        connection.request("POST", "/", body, PUT_HEADERS)
        response = connection.getresponse()
        if b'"FailedRecordCount":0' not in response.read():
            sys.exit(f"{stream} could not be filled: {response.status}")
    connection.close()


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

    def query(self, stream: str, name: str, sink: str, trigger: Mapping[str, Any], **options: str) -> Any:
        """Start a query from TRIM_HORIZON to a sink."""
        rows = (
            self.spark.readStream.format("leasehold")
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

    def read_backlog(self, stream: str, name: str, sink: str) -> tuple[int, float]:
        """Read a stream to its tip. Returns the rows, and the seconds of Spark's batches."""
        query = self.query(stream, name, sink, {"availableNow": True})
        if not query.awaitTermination(RUN_DEADLINE_S):
            sys.exit(f"{name} did not end within {RUN_DEADLINE_S} s")
        progress = query.recentProgress
        seconds = sum(each["durationMs"]["triggerExecution"] for each in progress) / 1000
        return sum(each["numInputRows"] for each in progress), seconds


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


def kind_of(command: bytes) -> str | None:
    """Return the part of the benchmark that a process belongs to."""
    if b"leasehold.cli\0local" in command:
        return "server"
    if b"org.apache.spark" in command or b"/java" in command.split(b"\0")[0]:
        return "JVM"
    return "Python" if b"pyspark" in command else None


def cpu_by_kind() -> Mapping[str, float]:
    """Return the CPU seconds so far of this process and its descendants, ended ones included."""
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
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "load": f"{os.getloadavg()[0]:.1f}",
    }


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
