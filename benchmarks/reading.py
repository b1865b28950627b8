"""Measures the processor time of reading a shard: HTTP, decoding, deaggregation, chunks, batches. No lease is involved.

    python benchmarks/reading.py [--json] [--megabytes N] [--repeats N] [--consumer records|arrow|spark ...]

A server in another process returns pages of the size that a worker requests. The clock of the reader does not wait, so
the limits of Kinesis cost no time. Consumers: `records` iterates over the record objects of each batch, as a handler
does; `arrow` takes each batch as Arrow columns; `spark` converts slices of 8 MB to the Arrow batches of the Spark
source. The figures are microseconds of processor time for a record, and seconds for a gigabyte of data, of this process
alone. All cases are measured in turns in one run, so a busy machine slows them equally.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import multiprocessing
import os
import platform
import random
import socketserver
import statistics
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from multiprocessing.connection import Connection
from typing import Any

import boto3
import orjson
from botocore.config import Config

from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.config.settings import ReadSettings
from leasehold.core.model import HashRange, InitialPosition, ShardId
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import Aggregator
from leasehold.core.records.deaggregation import DEFAULT_DEAGGREGATION
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.shard_reader import read_shard
from leasehold.garbage_collection import tune_garbage_collection
from leasehold.worker.batching.batch_builder import BatchBuilder
from leasehold.worker.settings import BatchSettings

FIRST_NUMBER = 49590338271490256608559692538361571095921575989136588898
PAGE_WEIGHT = 2_000_000
JSON = "application/x-amz-json-1.1"
# Nearly the whole hash range: the keys of aggregates are hashed and checked, and none is outside.
HASH_RANGE = HashRange(0, 2**128 - 2)

Read = Callable[[], tuple[int, int]]


def make_page(first: int, count: int, size: int, next_iterator: str | None, *, aggregated: bool) -> bytes:
    entries = [PutEntry(os.urandom(size), f"customer-{first + number:08d}") for number in range(count)]
    if aggregated:
        entries = aggregate(entries)
    records = [
        {
            "SequenceNumber": str(FIRST_NUMBER + (first + number) * 65_536),
            "ApproximateArrivalTimestamp": 1_700_000_000.123 + number / 1000,
            "Data": base64.b64encode(entry.data).decode(),
            "PartitionKey": entry.partition_key,
        }
        for number, entry in enumerate(entries)
    ]
    end: dict[str, Any] = {"NextShardIterator": next_iterator}
    if next_iterator is None:
        keys = {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
        child = {
            "ShardId": "shardId-000000000001",
            "ParentShards": ["shardId-000000000000"],
            "HashKeyRange": keys,
        }
        end = {"ChildShards": [child]}
    return orjson.dumps({"Records": records, "MillisBehindLatest": 60_000, **end})


def aggregate(entries: list[PutEntry]) -> list[PutEntry]:
    aggregator, aggregates = Aggregator(size_max=51_200), []
    for entry in entries:
        if not aggregator.add(entry):
            aggregates.append(aggregator.flush())
            aggregator.add(entry)
    aggregates.append(aggregator.flush())
    return [PutEntry(each.data, each.partition_key) for each in aggregates]


def serve(pages: list[bytes], port: Connection) -> None:
    """Return the page that the iterator in the request names, until the process is terminated."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Type"] != JSON:
                self.send_error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
                return
            request = json.loads(content)
            if "ShardIterator" in request:
                body = pages[int(request["ShardIterator"])]
            elif "ShardIteratorType" in request:
                body = b'{"ShardIterator": "0"}'
            else:
                body = b'{"Shards": []}'
            self.send_response(200)
            self.send_header("Content-Type", JSON)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do not log."""

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        port.send(server.server_address[1])
        server.serve_forever()


class SkippingClock:
    """A clock whose waits take no time."""

    def __init__(self) -> None:
        self._now_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def wall_ms(self) -> int:
        return self._now_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        self._now_ms += max(0, duration_ms)
        await asyncio.sleep(0)


def kinesis_client(port: int) -> Any:
    return boto3.session.Session().client(
        "kinesis",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


async def read_batches(client: Any, settings: BatchSettings, handle: Callable[[Any], int]) -> tuple[int, int]:
    """Read the shard to its end in batches. Returns the number of records and the bytes of their data."""
    stream, clock = KinesisStream(client, "orders"), SkippingClock()
    budget = ByteBudget(64 * 1024 * 1024)
    request = ReadRequest(
        shard=ShardId("shardId-000000000000"),
        start=TRIM_HORIZON,
        initial=InitialPosition(TRIM_HORIZON),
        hash_range=HASH_RANGE,
    )
    context = ReadContext(
        stream=stream,
        settings=ReadSettings(),
        deaggregation=DEFAULT_DEAGGREGATION,
        budget=budget,
        clock=clock,
        rng=random.Random(1),
        observe=lambda _: None,
        subscribes_once=False,
    )
    builder = BatchBuilder(TRIM_HORIZON, settings)
    count = size = 0
    async with read_shard(request, context) as chunks:
        async for chunk in chunks:
            builder.add(chunk, 0)
            while builder.due_ms() == 0:
                batch = builder.build()
                budget.release(batch.buffered_bytes)
                count, size = count + len(batch.records), size + handle(batch)
    await stream.close()
    return count, size


def consume_records(batch: Any) -> int:
    return sum(len(record.data) for record in tuple(batch.records))


def consume_arrow(batch: Any) -> int:
    from leasehold.archive.columns import user_record_batch  # noqa: PLC0415 - needs pyarrow

    table = user_record_batch(batch.records, stream="orders", shard=ShardId("shardId-0"))
    return int(table.column("data").nbytes)


def consume_spark(batch: Any) -> int:
    from leasehold.archive.columns import ALL_COLUMNS, record_batches  # noqa: PLC0415 - needs pyarrow

    made = record_batches(
        batch.records, stream="orders", shard=ShardId("shardId-0"), columns=ALL_COLUMNS[:6], session=1
    )
    return sum(each.num_rows for each in made)


CONSUMERS: dict[str, tuple[BatchSettings, Callable[[Any], int]]] = {
    "records": (BatchSettings(), consume_records),
    "arrow": (BatchSettings(max_records=10_000, max_bytes=8 * 1024 * 1024), consume_arrow),
    "spark": (BatchSettings(max_records=100_000, max_bytes=8 * 1024 * 1024), consume_spark),
}


@contextlib.contextmanager
def shard_server(size: int, megabytes: int, *, aggregated: bool) -> Iterator[tuple[int, int]]:
    """A server of one shard. Yields its port and the number of user records."""
    per_page = PAGE_WEIGHT // (size + (20 if aggregated else 200))
    pages = max(2, megabytes * 1_000_000 // (per_page * size))
    bodies = [
        make_page(
            number * per_page,
            per_page,
            size,
            None if number == pages - 1 else str(number + 1),
            aggregated=aggregated,
        )
        for number in range(pages)
    ]
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve, args=(bodies, there), daemon=True)
    server.start()
    try:
        yield here.recv(), pages * per_page
    finally:
        server.terminate()
        server.join()


def measure(
    size: int, megabytes: int, repeats: int, consumers: list[str], *, aggregated: bool
) -> list[dict[str, Any]]:
    """Microseconds of processor time for a record, for each consumer."""
    times: dict[str, list[float]] = {name: [] for name in consumers}
    with shard_server(size, megabytes, aggregated=aggregated) as (port, records):
        client = kinesis_client(port)  # takes as long as thousands of records
        for turn in range(repeats + 1):
            for name in consumers:
                settings, handle = CONSUMERS[name]
                start = time.process_time_ns()
                count, _ = asyncio.run(read_batches(client, settings, handle))
                taken_us = (time.process_time_ns() - start) / 1000 / count
                assert count == records, (count, records)
                if turn:  # the first turn opens connections and fills caches
                    times[name].append(taken_us)
    kind = "aggregated" if aggregated else "plain"
    return [
        {
            "records": f"{size} B, {kind}",
            "consumer": name,
            "us": {"min": min(each), "median": statistics.median(each), "max": max(each)},
            "s_per_gb": statistics.median(each) * 1000 / size,
        }
        for name, each in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--megabytes", type=int, default=20, help="of data for each case")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--consumer", nargs="*", choices=list(CONSUMERS), default=list(CONSUMERS))
    arguments = parser.parse_args()
    tune_garbage_collection()
    environment = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "load": os.getloadavg()[0],
    }
    rows = [
        row
        for size, aggregated in ((1_000, False), (100, False), (100, True))
        for row in measure(
            size, arguments.megabytes if size > 100 else max(2, arguments.megabytes // 5), arguments.repeats,
            arguments.consumer, aggregated=aggregated,
        )
    ]  # fmt: skip
    if arguments.json:
        print(json.dumps({"environment": environment, "rows": rows}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    print(f"{'us of processor time a record':32s}{'consumer':10s}{'median (min-max)':>24s}{'s a GB':>10s}")
    for row in rows:
        us = row["us"]
        figures = f"{us['median']:.2f} ({us['min']:.2f}-{us['max']:.2f})"
        print(f"{row['records']:32s}{row['consumer']:10s}{figures:>24s}{row['s_per_gb']:10.2f}")


if __name__ == "__main__":
    main()
