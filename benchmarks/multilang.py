"""Measures the CPU per GB of a kclpy processor: in the worker itself, over pipes, and with the Java daemon, in turn.

    python -m benchmarks.multilang [--rounds 3] [--megabytes 200] [--ways process,pipes,java] [--json]

A backlog of records of 1,000 bytes on four shards is read to its tip. The processor, of kclpy's version 3, takes the
data of each record and checkpoints every batch. The CPU seconds are those of the daemon and of its children, from the
first record on, so without the start of Python or of the JVM. The leases are in DynamoDB Local. The Java daemon and
kclpy's Python part are those of `kclpy-ext` (`make setup-servers`); all ways use the same properties.

All ways run in turn in each round, on the same servers, so that the load of the machine affects them alike. The table
shows the median, the lowest and the highest round in brackets, and the ratio to the Java daemon. A short run is unfair
to Java, whose compiler needs a while; so compare runs of different lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.backlogs import PUT_RECORDS, fill
from benchmarks.processes import tree_cpu_s
from leasehold.local import LocalKinesis
from tests.servers.catalog import DYNAMODB_LOCAL
from tests.servers.install import java, kcl_jars, site_packages
from tests.servers.running import Run

RECORD_BYTES = 1_000
SHARDS = 4
STREAM = "backlog"
DEADLINE_S = 600
WAYS = ("process", "pipes", "java")
NAMES = {
    "process": "leasehold run --kclpy",
    "pipes": "leasehold multilang",
    "java": "Java MultiLangDaemon",
}
APP = r'''
import os
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


class RecordProcessor(processor.RecordProcessorBase):
    """Takes the data of each record, counts it, and checkpoints every batch."""

    def initialize(self, initialize_input):
        name = f"{initialize_input.shard_id}-{os.getpid()}"
        self.log = os.open(os.path.join(os.environ["COUNTS"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def process_records(self, process_records_input):
        size = sum(len(record.binary_data) for record in process_records_input.records)
        os.write(self.log, f"{len(process_records_input.records)} {size}\n".encode())
        process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(RecordProcessor()).run()
'''


@dataclass(frozen=True)
class Bench:
    """The servers, and the backlog."""

    kinesis: LocalKinesis
    dynamodb_url: str
    records: int


def write_program(folder: Path, stream: str, application: str, kinesis_url: str, dynamodb_url: str) -> None:
    """Write the program and its properties."""
    (folder / "app.py").write_text(APP)
    given = {
        "executableName": f"{sys.executable} -S app.py",
        "applicationName": application,
        "streamName": stream,
        "AwsCredentialsProvider": "DefaultCredentialsProvider",
        "initialPositionInStream": "TRIM_HORIZON",
        "regionName": "us-east-1",
        "kinesisEndpoint": kinesis_url,
        "dynamoDBEndpoint": dynamodb_url,
        "retrievalMode": "POLLING",
        "idleTimeBetweenReadsInMillis": 200,
        "shardSyncIntervalMillis": 1_000,
        "metricsLevel": "NONE",
    }
    (folder / "app.properties").write_text("".join(f"{key} = {value}\n" for key, value in given.items()))


def daemon_command(way: str) -> list[str]:
    """Return the command of one way."""
    ours = [sys.executable, "-m", "leasehold.cli"]
    if way == "process":
        return [*ours, "run", "--kclpy", "app:RecordProcessor", "--properties", "app.properties"]
    if way == "pipes":
        return [*ours, "multilang", "app.properties"]
    jars = os.pathsep.join(map(str, sorted(kcl_jars().glob("*.jar"))))
    daemon = "software.amazon.kinesis.multilang.MultiLangDaemon"
    return [str(java()), "-cp", jars, daemon, "--properties-file", "app.properties"]


@contextmanager
def running(bench: Bench, way: str, name: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run one way until the end of the block. Yields the process, and the folder with its counts."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        counts = folder / "counts"
        counts.mkdir()
        write_program(folder, STREAM, name, bench.kinesis.endpoint_url, bench.dynamodb_url)
        environment = os.environ | {
            "PYTHONPATH": str(site_packages("kclpy")),
            "COUNTS": str(counts),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                daemon_command(way),
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                yield process, counts
            except BaseException:
                print((folder / "log").read_text(errors="replace")[-3000:], file=sys.stderr)
                raise
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def count(counts: Path) -> int:
    """Return the number of records that were handled so far."""
    lines = [line for file in counts.iterdir() for line in file.read_text().splitlines()]
    return sum(int(line.split()[0]) for line in lines)


def wait_for_count(process: subprocess.Popen[bytes], counts: Path, least: int) -> int:
    """Wait until so many records were handled. Returns how many were."""
    until = time.monotonic() + DEADLINE_S
    while (handled := count(counts)) < least:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{handled} of {least} records were handled")
        time.sleep(0.05)
    return handled


def measure(bench: Bench, way: str, name: str) -> float:
    """Read the backlog in one way. Returns CPU seconds per 10^9 bytes. Kinesis limits the speed, not the way."""
    with running(bench, way, name) as (process, counts):
        first = wait_for_count(process, counts, 1)
        before = tree_cpu_s(process.pid)
        last = wait_for_count(process, counts, bench.records)
        used = tree_cpu_s(process.pid) - before
    return 1e9 * used / ((last - first) * RECORD_BYTES)


def summary(values: Mapping[str, Sequence[float]]) -> list[str]:
    """The lines of the table."""
    lines = [f"{'CPU s per GB':<24}{'median':>8}  {'(rounds)':<16}{'of Java':>8}"]
    for way, rounds in values.items():
        median, java_rounds = statistics.median(rounds), values.get("java")
        ratio = f"{median / statistics.median(java_rounds):8.2f}" if java_rounds else ""
        spread = f"({min(rounds):.1f} to {max(rounds):.1f})"
        lines.append(f"{NAMES[way]:<24}{median:>8.1f}  {spread:<16}{ratio}")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=200, help="of the backlog")
    parser.add_argument("--ways", default=",".join(WAYS), help="which ways to compare")
    parser.add_argument("--json", action="store_true", help="print one JSON object as well")
    given = parser.parse_args()
    ways = [way for way in WAYS if way in given.ways.split(",")]
    values: dict[str, list[float]] = {way: [] for way in ways}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        servers = Run(os.getpid(), Path(folder))
        stack.callback(servers.end)
        dynamodb: Any = servers.server(DYNAMODB_LOCAL)
        kinesis = stack.enter_context(LocalKinesis.in_process(f"--stream={STREAM}:{SHARDS}"))
        fill(kinesis, STREAM, RECORD_BYTES, given.megabytes)
        records = given.megabytes * 1_000_000 // RECORD_BYTES // PUT_RECORDS * PUT_RECORDS
        bench = Bench(kinesis, dynamodb.url, records)
        for number in range(given.rounds):
            for way in ways:
                values[way].append(measure(bench, way, f"bench-{way}-{number}"))
                print(f"round {number + 1}, {NAMES[way]}: {values[way][-1]:.1f} CPU s per GB", flush=True)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    print("\n".join(summary(values)))
    if given.json:
        print(json.dumps(values))


if __name__ == "__main__":
    main()
