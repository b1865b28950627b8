"""A `KinesisModel` with one stream and a clock that the test sets, and shortcuts for the tests of the model."""

from typing import Any

from leasehold.core.model import HASH_KEY_MAX, ShardId
from leasehold.kinesis_model.listing import FilterType, ListQuery, ShardFilter
from leasehold.kinesis_model.reading import IteratorType, RecordsPage, StartingPosition
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.kinesis_model.stream import StreamState
from leasehold.kinesis_model.writing import PutRequest, PutResult

BEGIN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
MIDDLE = (HASH_KEY_MAX + 1) // 2


class ModelUnderTest:
    """A model with one stream. Only the test advances the time."""

    def __init__(self, shards: int = 1, **settings: Any) -> None:
        self.now_ms = BEGIN_MS
        self.service = KinesisModel(settings=ServiceSettings(**settings))
        self.service.create_stream(self.now_ms, "s", shard_count=shards)

    @property
    def stream(self) -> StreamState:
        return self.service.stream(self.now_ms, "s")

    def put(self, data: bytes = b"x", *, key: str = "k", hash_key: int | None = None) -> PutResult:
        return self.service.put_record(self.now_ms, "s", PutRequest(key, data, hash_key))

    def split(self, shard: int = 0, at: int = MIDDLE) -> None:
        self.service.split_shard(self.now_ms, "s", shard_id_of(shard), at)

    def merge(self, lower: int, upper: int) -> None:
        self.service.merge_shards(self.now_ms, "s", shard_id_of(lower), shard_id_of(upper))

    def iterator(
        self,
        shard: int = 0,
        kind: str = "TRIM_HORIZON",
        number: str | None = None,
        time_ms: int | None = None,
    ) -> str:
        start = StartingPosition(IteratorType(kind), number, time_ms)
        return self.service.shard_iterator(self.now_ms, "s", shard_id_of(shard), start)

    def get(self, iterator: str, limit: int = 10_000) -> tuple[RecordsPage, str | None]:
        """Return one page and the iterator of the next."""
        parsed = self.service.iterator(self.now_ms, iterator)
        page = self.service.get_records(self.now_ms, parsed, limit)
        return page, self.service.next_iterator(self.now_ms, parsed, page)

    def read(self, shard: int = 0, kind: str = "TRIM_HORIZON", **position: Any) -> list[bytes]:
        """Return the data of one page."""
        page, _ = self.get(self.iterator(shard, kind, **position))
        return list(page.records.data)

    def list_shards(self, kind: str = "FROM_TRIM_HORIZON", **value: Any) -> list[int]:
        """Return the indexes of the shards that a filter lists."""
        query = ListQuery("s", ShardFilter(FilterType(kind), **value))
        page = self.service.list_shards(self.now_ms, query, 10_000)
        return [int(shard.id.removeprefix("shardId-")) for shard in page.shards]


def shard_id_of(index: int) -> ShardId:
    return ShardId(f"shardId-{index:012d}")
