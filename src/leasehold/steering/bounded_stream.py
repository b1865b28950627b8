"""A stream that ends at a time: records that arrived at this time or later are not returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leasehold.core.model import HashRange, Shard, ShardId, StreamIdentifier
from leasehold.core.position import Position
from leasehold.core.record import Record
from leasehold.core.records.deaggregation import DeaggregationSettings, deaggregate
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.ports import Clock, Page, Stream

# A record that arrived before the end may appear a moment after it, and clocks differ.
SETTLED_AFTER_MS: Final = 5_000


class BoundedStream(Stream):
    """Reads another stream up to a time. `finished` are the shards of which everything before it was returned.

    A finished shard looks idle, and is not read any more. A shard that ends before the time ends as usual, so its
    children are read. `last` is the position of the last user record that was returned of each shard.
    """

    def __init__(
        self, stream: Stream, clock: Clock, end_ms: int, deaggregation: DeaggregationSettings
    ) -> None:
        self.finished: set[ShardId] = set()
        self.last: dict[ShardId, Position] = {}
        self._stream = stream
        self._clock = clock
        self._end_ms = end_ms
        self._deaggregation = deaggregation
        self._ranges: dict[ShardId, HashRange] = {}
        self._shard_of: dict[str, ShardId] = {}
        self._open_at_end: set[ShardId] | None = None

    async def get_identifier(self) -> StreamIdentifier:
        """As the other stream."""
        return await self._stream.get_identifier()

    async def get_retention_ms(self) -> int:
        """As the other stream."""
        return await self._stream.get_retention_ms()

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """As the other stream."""
        shards = await self._stream.list_shards(shard_filter)
        self._ranges |= {shard.id: shard.hash_range for shard in shards}
        return shards

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        """As the other stream."""
        iterator = await self._stream.get_iterator(shard, start)
        self._shard_of[iterator] = shard
        return iterator

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """The next records that arrived before the end."""
        shard = self._shard_of[iterator]
        if shard in self.finished:
            return Page((), iterator, 0)
        page = await self._stream.get_records(iterator, limit=limit)
        kept = self._before_end(page.records)
        self._note_last(shard, kept)
        is_at_tip = page.next_iterator is not None and not page.millis_behind
        if len(kept) < len(page.records) or (is_at_tip and await self._was_open_at_end(shard)):
            self.finished.add(shard)
            return Page(kept, iterator, 0)
        if page.next_iterator is not None:
            del self._shard_of[iterator]
            self._shard_of[page.next_iterator] = shard
        return page

    async def close(self) -> None:
        """Close the other stream."""
        await self._stream.close()

    async def _was_open_at_end(self, shard: ShardId) -> bool:
        """Whether the shard was open when all records before the end had appeared: its children have only later ones.

        The last page of a closed shard looks like the tip of an open one, except in a list of the shards.
        """
        if self._clock.wall_ms() < self._end_ms + SETTLED_AFTER_MS:
            return False
        if self._open_at_end is None:
            self._open_at_end = {each.id for each in await self._stream.list_shards() if each.is_open}
        return shard in self._open_at_end

    def _before_end(self, records: Sequence[Record]) -> Sequence[Record]:
        for number, record in enumerate(records):
            if record.arrival_ms is not None and record.arrival_ms >= self._end_ms:
                return records[:number]
        return records

    def _note_last(self, shard: ShardId, records: Sequence[Record]) -> None:
        for record in reversed(records):
            found = deaggregate(record, self._ranges.get(shard), self._deaggregation).records
            if found:
                self.last[shard] = found[-1].position
                return
