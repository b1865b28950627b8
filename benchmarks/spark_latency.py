"""How long does a record take from its put to its row in a Spark query, at a trickle and with default options?

    python -m benchmarks spark-latency

A record is put every quarter of a second. A row is there when the function of `foreachBatch` has it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Plan, Result
from benchmarks.spark_throughput import REGION, RUN_DEADLINE_S
from leasehold.local import LocalKinesis
from leasehold.spark import register
from leasehold.spark.pipeline.session import spark_session

RECORDS = 60
WARM_UP = 12
PUT_EVERY_S = 0.25
STREAM = "trickle"
COMPARISONS = ("spark-latency",)


def put_to_row_s(kinesis: LocalKinesis, spark: Any, folder: Path) -> list[float]:
    """Put records one by one. Returns the seconds until each was a row, without the first ones."""
    put_at: dict[int, float] = {}
    row_at: dict[int, float] = {}

    def note(rows: Any, _: int) -> None:
        numbers = [int(bytes(row.data)) for row in rows.select("data").collect()]
        row_at.update(dict.fromkeys(numbers, time.monotonic()))

    client = kinesis.client()
    client.create_stream(StreamName=STREAM, ShardCount=2)
    source = spark.readStream.format("leasehold").options(
        streamName=STREAM,
        applicationName=STREAM,
        endpointUrl=kinesis.endpoint_url,
        region=REGION,
        leases=f"sqlite:///{folder}/leases.sqlite",
        startingPosition="trim_horizon",
    )
    query = (
        source.load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    for number in range(RECORDS + WARM_UP):
        put_at[number] = time.monotonic()
        client.put_record(StreamName=STREAM, Data=b"%d" % number, PartitionKey=f"key-{number}")
        time.sleep(PUT_EVERY_S if number else 0.0)
        while number == 0 and 0 not in row_at:  # the start of the query does not count
            time.sleep(PUT_EVERY_S)
    until = time.monotonic() + RUN_DEADLINE_S
    while len(row_at) < len(put_at) and time.monotonic() < until:
        time.sleep(0.1)
    query.stop()
    return [row_at[number] - put_at[number] for number in range(WARM_UP, RECORDS + WARM_UP)]


def run(_: Plan) -> Iterator[Result]:
    """The latencies as repeats: the median is the p50."""
    result = Result(
        "spark-latency",
        "How long does a record take from put to row, at four records a second and with default options?",
        "s from put to row",
        "make bench ARGS=spark-latency",
        "the wait for the next poll (250 ms between two polls), and Spark's work for a batch",
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalKinesis.in_process() as kinesis,
        spark_session("bench", {"spark.master": "local[2]"}, checkpoint=folder) as spark,
    ):
        register(spark)
        for seconds in put_to_row_s(kinesis, spark, Path(folder)):
            result.add("leasehold, default options", seconds)
    yield result
