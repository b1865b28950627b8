"""How much processor time does an idle Spark query need, by the number of its shards?

python -m benchmarks spark-idle
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Plan, Result
from benchmarks.processes import cpu_by_kind
from benchmarks.spark_throughput import Bench
from leasehold.local import LocalKinesis
from leasehold.spark import register
from leasehold.spark.pipeline.session import spark_session

COMPARISONS = ("spark-idle",)
SHARDS = (1, 64, 256)
REST_S = 10
SECONDS = 20
DEADLINE_S = 300


def measure(bench: Bench, shards: int, client: Any) -> float:
    """Start a query, wait for its first batch and until the shards are quiet. Returns CPU seconds a minute."""
    name = f"idle-{shards}"
    client.create_stream(StreamName=name, ShardCount=shards)
    client.put_record(StreamName=name, Data=b"x", PartitionKey="key")
    query = bench.query(name, name, "noop", {"processingTime": "0 seconds"})
    until = time.monotonic() + DEADLINE_S
    while not query.recentProgress and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(REST_S)
    # Other processes of Spark end at some time, and then count no more; so the two that work are added up.
    before, began = cpu_by_kind(), time.monotonic()
    time.sleep(SECONDS)
    after, took = cpu_by_kind(), time.monotonic() - began
    query.stop()
    return 60 * sum(after.get(kind, 0) - before.get(kind, 0) for kind in ("reader", "JVM")) / took


def run(plan: Plan) -> Iterator[Result]:
    """The driver's reader and the JVM, at rest."""
    result = Result(
        "spark-idle",
        "How much CPU does an idle Spark query need (reader and JVM, default options)?",
        "CPU s a minute",
        "make bench ARGS=spark-idle",
        "one GetRecords call a shard and second, heartbeats, and five plans a second",
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalKinesis.in_process() as kinesis,
        spark_session("bench", {"spark.master": "local[2]"}, checkpoint=folder) as spark,
    ):
        register(spark)
        for shards in SHARDS[-1:] if plan.is_quick else SHARDS:
            result.add(
                f"{shards} shards", measure(Bench(kinesis, spark, Path(folder)), shards, kinesis.client())
            )
    yield result
