"""A worker that begins in the archive and goes on in the stream, through kill -9."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from leasehold.local import LocalKinesis
from tests.fleet.worker_processes import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120
SHARD = "shardId-000000000000"


@contextmanager
def worker(server: LocalKinesis, leases: Path, output: Path, *history: Path) -> Iterator[Any]:
    """Run a worker in its own process, and end it."""
    arguments = [server.endpoint_url, leases, output, *history]
    command = [sys.executable, "-m", "tests.integration.history_program", *map(str, arguments)]
    keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | keys)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def put(client: Any, numbers: range) -> None:
    records = [{"Data": b"%d" % number, "PartitionKey": f"key-{number}"} for number in numbers]
    for first in range(0, len(records), 500):
        assert not client.put_records(StreamName="orders", Records=records[first : first + 500])[
            "FailedRecordCount"
        ]


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """All rows of an archive. This shares no code with the package."""
    found: list[dict[str, Any]] = []
    for file in sorted(folder.rglob("*.parquet")):
        found += pq.ParquetFile(file).read(columns=["shardId", "sequenceNumber", "data"]).to_pylist()
    return found


def _has_rows(folder: Path, count: int, process: Any) -> bool:
    assert process.poll() is None, "the worker has ended"
    return len(rows_in(folder)) >= count


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_history_then_the_stream_through_kills(tmp_path: Path) -> None:
    """A shard has left the stream, its children are in both, and the newest records are only in the stream."""
    with LocalKinesis.in_thread() as server:
        client = server.client()
        client.create_stream(StreamName="orders", ShardCount=1)
        put(client, range(300))
        client.split_shard(StreamName="orders", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
        server.advance(timedelta(hours=20))
        put(client, range(300, 400))
        first = tmp_path / "first"
        with worker(server, tmp_path / "first.sqlite", first) as process:
            wait_until(lambda: _has_rows(first, 400, process), "all is archived", PATIENCE_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        server.advance(timedelta(hours=5))
        put(client, range(400, 450))
        assert SHARD not in {each["ShardId"] for each in client.list_shards(StreamName="orders")["Shards"]}
        second, leases = tmp_path / "second", tmp_path / "second.sqlite"
        for rows in (60, 320):
            with worker(server, leases, second, first) as process:
                wait_until(lambda: _has_rows(second, rows, process), "some rows are there", PATIENCE_S)  # noqa: B023
        with worker(server, leases, second, first) as process:
            wait_until(lambda: _has_rows(second, 450, process), "all rows are there", PATIENCE_S)
        found = rows_in(second)
        assert sorted(int(row["data"]) for row in found) == list(range(450))
        assert {(row["shardId"], row["sequenceNumber"]) for row in rows_in(first)} <= {
            (row["shardId"], row["sequenceNumber"]) for row in found
        }
