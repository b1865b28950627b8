"""Measures the latency from a put to the handler, and the CPU per GB: enhanced fan-out and polling, in turn.

    python -m benchmarks.fan_out [--rounds 3] [--latencies 100] [--megabytes 200] [--spark] [--json]

Latency: a worker in a process of its own reads an idle stream of four shards with default settings. A record is put
every 50 ms; its latency is the time from before the put to the call of the handler. CPU: a worker reads a backlog of
records of 1,000 bytes to its tip and discards them; the CPU seconds are those of the worker's process, without its
start. With `--spark`, the same for a Spark query: the time until the record is in a batch, and the CPU of all its
processes.

All ways run in turn in each round, on the same server, so that the load of the machine affects them alike. The table
shows the median of all values, and the lowest and highest median of a round in brackets. Our Kinesis server has no
network in between and pushes at once: on AWS both ways are slower, by about the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.backlogs import PUT_RECORDS, fill
from benchmarks.processes import cpu_by_kind, cpu_s
from benchmarks.spark_throughput import Bench, stream_of
from leasehold.local import LocalKinesis
from leasehold.spark import register
from leasehold.spark.pipeline.session import spark_session

PROGRAM = r"""
import json, os, sys, time
from leasehold import Consumer
options, wants_latency = json.loads(sys.argv[1]), sys.argv[2] == "latency"
consumer = Consumer(**options)

@consumer.batch(max_wait=0)
def handle(batch):
    now = time.time()
    said = [now - float(record.data) for record in batch] if wants_latency else len(batch)
    os.write(1, f"{json.dumps(said)}\n".encode())  # shards have threads of their own: one write is one line

consumer.run()
"""
WAYS: Mapping[str, Mapping[str, str]] = {"polling": {}, "fan-out": {"retrieval": "fan_out"}}
SPARK_WAYS: Mapping[str, Mapping[str, str]] = {"polling": {}, "fan-out": {"consumerMode": "efo"}}
REGION = "us-east-1"
RECORD_BYTES = 1_000
WARM_UPS = 5
PUT_EVERY_S = 0.05
LATENCY_STREAM = "latency"
SHARDS = 4
Values = dict[tuple[str, str], list[list[float]]]  # by measure and way: the values of each round


@dataclass
class Worker:
    """A worker in a process of its own, and the lines that its handler prints."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def handled(self) -> int:
        """The number of records of a backlog that were handled so far."""
        return sum(map(int, list(self.lines)))

    def read_lines(self) -> None:
        """Collect the lines until the process ends."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)

    def wait_for(self, condition: Callable[[], bool], deadline_s: float = 300) -> None:
        """Wait until the lines satisfy a condition."""
        until = time.monotonic() + deadline_s
        while not condition():
            self.check_alive()
            if time.monotonic() > until:
                sys.exit("the worker did not handle all records in time")
            time.sleep(0.02)

    def check_alive(self) -> None:
        """End the benchmark if the worker has ended."""
        if self.process.poll() is not None:
            sys.exit(f"the worker ended with code {self.process.returncode}")


@contextmanager
def worker(kinesis: LocalKinesis, stream: str, way: str, wants: str) -> Iterator[Worker]:
    """Start a worker, at the tip for latencies and at the oldest record otherwise. Stop it at the end."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "stream": stream,
            "application": f"bench-{way}",
            "region": REGION,
            "kinesis_endpoint": kinesis.endpoint_url,
            "leases": f"sqlite:///{folder}/leases.sqlite",
            "initial_position": "latest" if wants == "latency" else "trim_horizon",
            **WAYS[way],
        }
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(options), wants], stdout=subprocess.PIPE, text=True
        )
        started = Worker(process)
        reading = threading.Thread(target=started.read_lines)
        reading.start()
        try:
            yield started
        finally:
            process.terminate()
            process.wait(60)
            reading.join()


def put_times(client: Any, count: int) -> None:
    """Put records whose data is the time of the put, to all shards in turn."""
    for number in range(count):
        hash_key = str((number % SHARDS) * (2**128 // SHARDS))
        client.put_record(
            StreamName=LATENCY_STREAM, Data=b"%f" % time.time(), PartitionKey="k", ExplicitHashKey=hash_key
        )
        time.sleep(PUT_EVERY_S)


def worker_latencies(kinesis: LocalKinesis, way: str, count: int) -> list[float]:
    """The milliseconds from a put to the handler, for each record."""
    client = kinesis.client()
    with worker(kinesis, LATENCY_STREAM, way, "latency") as started:

        def latencies() -> list[float]:
            return [1000 * each for line in list(started.lines) for each in json.loads(line)]

        # LATEST begins when a shard is read for the first time, so the first records are not handled.
        while len(latencies()) < WARM_UPS * SHARDS:
            started.check_alive()
            put_times(client, SHARDS)
        time.sleep(2)
        before = len(latencies())
        put_times(client, count)
        started.wait_for(lambda: len(latencies()) >= before + count)
        return latencies()[before:]


def worker_cpu_per_gb(kinesis: LocalKinesis, way: str, records: int) -> float:
    """The CPU seconds of a worker that reads the backlog, per 10^9 bytes of data."""
    with worker(kinesis, stream_of(RECORD_BYTES), way, "backlog") as started:
        started.wait_for(lambda: bool(started.lines))
        before, first = cpu_s(started.process.pid), started.handled()
        started.wait_for(lambda: started.handled() >= records)
        return 1e9 * (cpu_s(started.process.pid) - before) / ((records - first) * RECORD_BYTES)


# -- Spark -------------------------------------------------------------------------------------------------------------


def spark_latencies(bench: Bench, way: str, name: str, count: int) -> list[float]:
    """The milliseconds from a put until a batch has the record, for each record."""
    found: list[float] = []

    def handle(rows: Any, _batch: int) -> None:
        times = [float(row["data"]) for row in rows.select("data").collect()]
        now = time.time()
        found.extend(1000 * (now - each) for each in times)

    query = (
        bench.spark.readStream.format("leasehold")
        .options(streamName=LATENCY_STREAM, applicationName=name, endpointUrl=bench.kinesis.endpoint_url)
        .options(region=REGION, leases=f"sqlite:///{bench.folder}/leases-{name}.sqlite")
        .options(startingPosition="latest", **SPARK_WAYS[way])
        .load()
        .writeStream.foreachBatch(handle)
        .option("checkpointLocation", str(bench.folder / f"checkpoint-{name}"))
        .start()
    )
    client = bench.kinesis.client()
    while len(found) < WARM_UPS * SHARDS:
        put_times(client, SHARDS)
    time.sleep(2)
    found.clear()
    put_times(client, count)
    until = time.monotonic() + 120
    while len(found) < count and time.monotonic() < until:
        time.sleep(0.1)
    query.stop()
    return found


def spark_cpu_per_gb(bench: Bench, way: str, name: str) -> float:
    """The CPU seconds of all processes of a query that reads the backlog, per 10^9 bytes of data."""
    before = cpu_by_kind()
    query = bench.query(stream_of(RECORD_BYTES), name, "noop", {"availableNow": True}, **SPARK_WAYS[way])
    query.awaitTermination()
    rows = sum(each["numInputRows"] for each in query.recentProgress)
    after = cpu_by_kind()
    used = sum(after[kind] - before.get(kind, 0) for kind in after if kind != "server")
    return 1e9 * used / (rows * RECORD_BYTES)


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(kinesis: LocalKinesis, bench: Bench | None, given: argparse.Namespace) -> Values:
    """Run every way in turn, in each round."""
    values: Values = {}
    records = given.megabytes * 1_000_000 // RECORD_BYTES // PUT_RECORDS * PUT_RECORDS
    for round_number in range(given.rounds):
        for way in WAYS:
            name = f"{way}-{round_number}"
            found = {
                "worker: put -> handler, ms": worker_latencies(kinesis, way, given.latencies),
                "worker: CPU s per GB": [worker_cpu_per_gb(kinesis, way, records)],
            }
            if bench is not None:
                found["Spark: put -> batch, ms"] = spark_latencies(bench, way, f"l-{name}", given.latencies)
                found["Spark: CPU s per GB"] = [spark_cpu_per_gb(bench, way, f"c-{name}")]
            for measured, each in found.items():
                values.setdefault((measured, way), []).append(each)
                print(
                    f"round {round_number + 1}, {measured}, {way}: {statistics.median(each):.1f}", flush=True
                )
    return values


def summary(values: Values) -> Sequence[str]:
    """The lines of the table."""
    lines = [f"{'':<28}{'':<10}{'median':>9}  {'(rounds)':<20}{'90 %':>9}"]
    for (measured, way), rounds in sorted(values.items(), reverse=True):
        medians = [statistics.median(each) for each in rounds]
        every = sorted(value for each in rounds for value in each)
        spread = f"({min(medians):.1f} to {max(medians):.1f})"
        lines.append(
            f"{measured:<28}{way:<10}{statistics.median(every):>9.1f}  {spread:<20}"
            f"{every[int(0.9 * (len(every) - 1))]:>9.1f}"
        )
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latencies", type=int, default=100, metavar="COUNT")
    parser.add_argument("--megabytes", type=int, default=200, help="of the backlog")
    parser.add_argument("--spark", action="store_true", help="measure a Spark query, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object as well")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        streams = (f"--stream={LATENCY_STREAM}:{SHARDS}", f"--stream={stream_of(RECORD_BYTES)}:{SHARDS}")
        kinesis = stack.enter_context(LocalKinesis.in_process(*streams))
        fill(kinesis, stream_of(RECORD_BYTES), RECORD_BYTES, given.megabytes)
        bench = None
        if given.spark:
            session = spark_session("fan-out", {"spark.master": "local[2]"}, checkpoint=folder)
            spark = stack.enter_context(session)
            register(spark)
            bench = Bench(kinesis, spark, Path(folder))
        values = measure(kinesis, bench, given)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    print("\n".join(summary(values)))
    if given.json:
        print(
            json.dumps([{"measure": key[0], "way": key[1], "rounds": each} for key, each in values.items()])
        )


if __name__ == "__main__":
    main()
