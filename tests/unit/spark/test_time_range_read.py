"""The task of a batch read, on a stream in memory."""

import pytest

from leasehold.adapters.memory.stream import MemoryStream
from leasehold.adapters.system_clock import SystemClock
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.model import WHOLE_HASH_RANGE, ShardId
from leasehold.core.position import TRIM_HORIZON
from leasehold.errors import ConfigError
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.ports import Page
from leasehold.spark.options import source_options
from leasehold.spark.query import task_resources
from leasehold.spark.query.time_range_read import ShardTimeRange, read_time_ranges

OPTIONS = source_options({"streamName": "orders"})
SHARD = ShardId("shardId-000000000000")


class _Unreadable(MemoryStream):
    """A stream whose archive has one page that can be read."""

    pages = 0

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        self.pages += 1
        if self.pages > 1:
            raise ConfigError("the archive of shard 0 has no column data")
        return await super().get_records(iterator, limit=min(limit, 3))


@pytest.mark.parametrize("kind", [MemoryStream, _Unreadable])
def test_an_error_while_reading_fails_the_task(
    kind: type[MemoryStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after some rows: a batch read without an error has all of them."""
    service, clock = KinesisModel(), SystemClock()
    now_ms = clock.wall_ms()
    service.create_stream(now_ms - 60_000, "orders", shard_count=1)
    for number in range(5):
        service.put_record(now_ms - 1_000, "orders", PutRequest("k", b"%d" % number, 0))
    opened = {"orders": kind(service, "orders", clock)}
    monkeypatch.setitem(task_resources._streams, (OPTIONS.names, OPTIONS.connection), opened)
    part = ShardTimeRange("orders", SHARD, WHOLE_HASH_RANGE, ReadStart(TRIM_HORIZON), now_ms)
    found: list[bytes] = []

    def read() -> None:
        for batch in read_time_ranges([part], OPTIONS):
            found.extend(batch["data"].to_pylist())

    if kind is MemoryStream:
        read()
        assert len(found) == 5
    else:
        with pytest.raises(ConfigError):
            read()
        assert len(found) == 3
