"""Measures CPU and memory of one worker process that serves many idle shards.

    python -m benchmarks.idle_shards [--shards 100] [--seconds 30] [--dynamodb URL] [--json]

Our Kinesis server runs in another process. The leases are in SQLite, or in DynamoDB at the URL (a server on this
machine). Each shard is polled once a second. Machines differ, so the benchmark also measures the CPU share of the same
polls through boto3, without leases and handlers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Plan, Result
from benchmarks.processes import cpu_s, memory_mb
from leasehold.local import LocalKinesis

PROGRAM = """
import sys
from leasehold import Consumer
consumer = Consumer(stream="idle", application="idle", region="us-east-1", kinesis_endpoint=sys.argv[1],
                    **({"leases": "dynamodb", "dynamodb_endpoint": sys.argv[2]} if "://" in sys.argv[2]
                       else {"leases": f"sqlite:///{sys.argv[2]}"}))

@consumer.batch()
def handle(batch):
    pass

consumer.run()
"""
WARM_UP_DEADLINE_S = 300
BOTO3_CALLS = 200


def count_held_leases(leases: str) -> int:
    """Return the number of leases with an owner."""
    location = ["--dynamodb-endpoint-url", leases, "--application", "idle", "--region", "us-east-1"]
    location = location if "://" in leases else ["--sqlite", leases]
    command = [sys.executable, "-m", "leasehold.cli", "leases", *location, "--json"]
    result = subprocess.run(command, capture_output=True, check=False, text=True)
    return result.stdout.count('"state": "held"') + result.stdout.count('"state":"held"')


def boto3_percent(client: Any, shards: int) -> float:
    """Return the share of a core that boto3 needs to poll the shards once a second."""
    iterator = client.get_shard_iterator(
        StreamName="idle", ShardId="shardId-000000000000", ShardIteratorType="LATEST"
    )["ShardIterator"]
    client.get_records(ShardIterator=iterator)
    before = time.process_time()
    for _ in range(BOTO3_CALLS):
        client.get_records(ShardIterator=iterator)
    return 100 * shards * (time.process_time() - before) / BOTO3_CALLS


def measure(shards: int, seconds: float, dynamodb: str | None) -> dict[str, object]:
    """Run a worker until it owns every shard, then measure it."""
    with tempfile.TemporaryDirectory() as folder, LocalKinesis.in_process() as kinesis:
        kinesis.client().create_stream(StreamName="idle", ShardCount=shards)
        leases = dynamodb or str(Path(folder) / "leases.sqlite")
        worker = subprocess.Popen([sys.executable, "-c", PROGRAM, kinesis.endpoint_url, leases])
        try:
            deadline = time.monotonic() + WARM_UP_DEADLINE_S
            while count_held_leases(leases) < shards:
                if time.monotonic() > deadline:
                    sys.exit("the worker did not take every shard within the deadline")
                time.sleep(1)
            before, began = cpu_s(worker.pid), time.monotonic()
            time.sleep(seconds)
            used, took = cpu_s(worker.pid) - before, time.monotonic() - began
            return {
                "shards": shards,
                "leases": "DynamoDB" if dynamodb else "SQLite",
                "seconds": round(took, 1),
                "cpu_percent_of_a_core": round(100 * used / took, 1),
                "boto3_percent_for_the_same_polls": round(boto3_percent(kinesis.client(), shards), 1),
                "memory_mb": round(memory_mb(worker.pid), 1),
                "python": platform.python_version(),
                "load_average": os.getloadavg()[0],
            }
        finally:
            worker.terminate()
            worker.wait(60)


COMPARISONS = ("idle-cpu", "idle-memory")
SHARD_COUNTS = (1, 8, 64, 256, 1_000)
SECONDS = 15


def run(plan: Plan) -> Iterator[Result]:
    """CPU and memory of one idle worker, by the number of its shards."""
    command = "make bench ARGS=idle"
    cpu = Result(
        "idle-cpu",
        "How much of a core does one worker need for idle shards?",
        "% of a core",
        command,
        "one GetRecords call a shard and second, and heartbeats",
    )
    memory = Result(
        "idle-memory",
        "How much memory does it need?",
        "MB",
        command,
        "imported modules; then state of shards",
    )
    for shards in SHARD_COUNTS[:3] if plan.is_quick else SHARD_COUNTS:
        measured = measure(shards, SECONDS, None)
        cpu.add(f"{shards:,} shards", float(str(measured["cpu_percent_of_a_core"])))
        memory.add(f"{shards:,} shards", float(str(measured["memory_mb"])))
    yield from (cpu, memory)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument(
        "--dynamodb", metavar="URL", help="keep the leases in DynamoDB at this URL, not in SQLite"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.shards, options.seconds, options.dynamodb)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:>33}  {value}")


if __name__ == "__main__":
    main()
