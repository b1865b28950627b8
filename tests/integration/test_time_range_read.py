"""A batch read of times that the stream has trimmed is answered from its archive: each record once."""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from leasehold.archive import Archive, ArchiveSettings
from leasehold.archive.rows import PinnedRange
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.local import LocalKinesis
from leasehold.spark.options import source_options
from leasehold.spark.query.time_range_read import list_time_ranges, read_time_ranges
from leasehold.worker.archive_handler import to_archive_table

FIRST = "shardId-000000000000"


def put(client: Any, numbers: range) -> None:
    records = [{"Data": b"%d" % number, "PartitionKey": f"key-{number}"} for number in numbers]
    assert not client.put_records(StreamName="orders", Records=records)["FailedRecordCount"]


def archive_everything(client: Any, folder: Path) -> list[float]:
    """Archive what the stream holds, two records in an object. Returns the arrival times in order, in seconds."""
    archive, arrivals = ArchiveSettings(url=str(folder)), []
    for shard in client.list_shards(StreamName="orders")["Shards"]:
        chosen = {"StreamName": "orders", "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        page = client.get_records(ShardIterator=client.get_shard_iterator(**chosen)["ShardIterator"])
        times = [each["ApproximateArrivalTimestamp"].timestamp() for each in page["Records"]]
        records = [
            UserRecord(each["Data"], each["PartitionKey"], each["SequenceNumber"], round(1000 * arrived))
            for each, arrived in zip(page["Records"], times, strict=True)
        ]
        name = ShardId(shard["ShardId"])
        ranges = [
            PinnedRange(name, "one", to_archive_table(records[first : first + 2], "orders", name))
            for first in range(0, len(records), 2)
        ]
        asyncio.run(Archive.open(archive).write(ranges))
        arrivals += times
    return sorted(arrivals)


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def wait_for_stream(client: Any) -> None:
    client.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})


def test_trimmed_times_are_read_in_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shard that has left the stream, and of shards that are still in it. The rest comes from the stream."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with LocalKinesis.in_thread() as kinesis:
        client = kinesis.client()
        client.create_stream(StreamName="orders", ShardCount=2)
        wait_for_stream(client)
        put(client, range(60))
        client.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey=str(2**126))
        wait_for_stream(client)
        put(client, range(60, 100))
        arrivals = archive_everything(client, tmp_path)
        kinesis.trim("orders")
        assert FIRST not in {each["ShardId"] for each in client.list_shards(StreamName="orders")["Shards"]}
        put(client, range(100, 130))

        def read(**options: str) -> Counter[int]:
            chosen = source_options(
                {"streamName": "orders", "region": "us-east-1", "endpointUrl": kinesis.endpoint_url} | options
            )
            parts = asyncio.run(list_time_ranges(chosen, round(time.time() * 1000)))
            batches = read_time_ranges(parts, chosen)
            return Counter(int(data) for batch in batches for data in batch.column("data").to_pylist())

        start, end = at(arrivals[0]), at(arrivals[-1] + 0.001)
        archive = {"archive": str(tmp_path)}
        assert read(**archive, startingTimestamp=start, endingTimestamp=end) == Counter(range(100))
        assert read(**archive, startingTimestamp=start) == Counter(range(130))
        assert read(startingTimestamp=start, endingTimestamp=end) == Counter()
        middle = arrivals[60]
        later = read(**archive, startingTimestamp=at(middle), endingTimestamp=end)
        assert later.total() == sum(each >= middle for each in arrivals)
