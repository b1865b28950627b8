"""A writer, a compactor and a reader of one archive in S3, each killed at random moments, all at once.

The result is checked with boto3 and pyarrow only.
"""

import io
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from leasehold.local import LocalKinesis
from tests.fleet.worker_processes import wait_until
from tests.servers import Server

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300
SHARD = "shardId-000000000000"


@dataclass
class Process:
    """A program that is started again whenever it has ended."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    running: Any = field(default=None)
    kills: int = 0

    def ensure(self) -> None:
        """Start the program unless it runs."""
        if self.running is None or self.running.poll() is not None:
            with self.log.open("ab") as log:
                self.running = subprocess.Popen(
                    self.command, cwd=ROOT, env=os.environ | self.environment, stdout=log, stderr=log
                )

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.running is not None:
            self.kills += self.running.poll() is None
            self.running.kill()
            self.running.wait()


def put(client: Any, numbers: range) -> None:
    records = [{"Data": b"%d" % number, "PartitionKey": f"key-{number}"} for number in numbers]
    assert not client.put_records(StreamName="orders", Records=records)["FailedRecordCount"]


class Bucket:
    """The rows of an archive, read without the package."""

    def __init__(self, s3: Any, name: str) -> None:
        self._s3 = s3
        self._name = name
        self._rows: dict[str, list[tuple[str, str, int]]] = {}

    def keys(self, prefix: str) -> list[str]:
        """The names of the objects."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def rows(self, prefix: str) -> list[tuple[str, str, int]]:
        """Shard, sequence number and data of every row."""
        for key in self.keys(prefix):
            if key.endswith(".parquet") and key not in self._rows:
                body = self._s3.get_object(Bucket=self._name, Key=key)["Body"].read()
                table = pq.read_table(io.BytesIO(body), columns=["shardId", "sequenceNumber", "data"])
                columns = (table[name].to_pylist() for name in table.column_names)
                self._rows[key] = [
                    (shard, number, int(data)) for shard, number, data in zip(*columns, strict=True)
                ]
        return [row for key, rows in self._rows.items() if key.startswith(prefix) for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_writer_compactor_and_reader_are_killed_at_once(tmp_path: Path, ministack: Server) -> None:
    """The reader begins in the archive, with a shard that has left the stream, while the others change it."""
    s3, name = ministack.client("s3"), f"kills-{os.getpid()}"
    s3.create_bucket(Bucket=name)
    bucket, rng = Bucket(s3, name), random.Random(7)
    first, second = f"s3://{name}/first", f"s3://{name}/second"
    environment = {
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_DEFAULT_REGION": "us-east-1",
        "TEST_S3_ENDPOINT": ministack.url,
    }
    with LocalKinesis.in_thread() as server:
        client = server.client()
        client.create_stream(StreamName="orders", ShardCount=1)

        def program(kind: str, *arguments: str) -> Process:
            leases = str(tmp_path / f"{kind}.sqlite")
            command = ["-m", "tests.integration.history_program", server.endpoint_url, leases, *arguments]
            return Process([sys.executable, *command], environment, tmp_path / f"{kind}.log")

        compact = ["archive", "compact", first, "--s3-endpoint-url", ministack.url]
        compact += ["--older-than", "1m", "--delete-after", "1m", "--target-size", "1MiB"]
        compactor = Process(
            [sys.executable, "-m", "leasehold", *compact], environment, tmp_path / "compactor.log"
        )
        writer, reader = program("writer", first), program("reader", second, first)

        def has_rows(prefix: str, count: int, *running: Process) -> Callable[[], bool]:
            def check() -> bool:
                for each in running:
                    each.ensure()
                return len({row[2] for row in bucket.rows(prefix)}) >= count

            return check

        def has_compacted() -> bool:
            compactor.ensure()
            return any(".since-" in key for key in bucket.keys("first/"))

        try:
            put(client, range(400))
            client.split_shard(StreamName="orders", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
            server.advance(timedelta(hours=20))
            put(client, range(400, 500))
            wait_until(has_rows("first/", 500, writer), "the history is archived", PATIENCE_S)
            server.advance(timedelta(hours=5))
            archived_s = time.monotonic()
            wait_until(lambda: time.monotonic() > archived_s + 90, "the first minute is closed", PATIENCE_S)
            # A compactor that is killed holds its lock for a while, so that kills alone could prevent each compaction.
            wait_until(has_compacted, "the first minute is compacted", PATIENCE_S)
            for first_number in range(500, 800, 25):
                put(client, range(first_number, first_number + 25))
                for each in (writer, compactor, reader):
                    each.ensure()
                # A process needs some seconds to start. One of the three survives each round.
                time.sleep(rng.uniform(2, 10))
                for each in rng.sample((writer, compactor, reader), 2):
                    each.kill()
            # A compactor that has nothing to do ends soon, so that it may have ended before it was killed.
            for _ in range(20):
                if compactor.kills <= 1:
                    compactor.ensure()
                    time.sleep(rng.uniform(0.3, 1))
                    compactor.kill()
            wait_until(has_rows("second/", 800, writer, compactor, reader), "the reader has all", PATIENCE_S)
            compactor.kill()  # it deletes objects, which could be gone between their listing and their reading
            wait_until(has_rows("first/", 800, writer), "the archive has all", PATIENCE_S)
        finally:
            for each in (writer, compactor, reader):
                each.kill()
    seen = bucket.rows("second/")
    assert sorted(number for _, _, number in seen) == list(range(800))
    assert len({row[:2] for row in seen}) == 800
    assert all(each.kills > 1 for each in (writer, compactor, reader))
    assert any(".since-" in key for key in bucket.keys("first/")), "nothing was compacted"
