"""The queue of chunks between a reader and its consumer, and the writer that fills it with user records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from leasehold.core.events import DeaggregationFailed, PageRead
from leasehold.core.model import ChildShard
from leasehold.core.position import Position
from leasehold.core.record import Record
from leasehold.core.records.deaggregation import Incident
from leasehold.core.records.record_columns import RecordSequence
from leasehold.fleet.reading.byte_budget import BudgetShare
from leasehold.fleet.reading.chunking import (
    Demand,
    ReadChunk,
    ShardDeaggregator,
    split_into_chunks,
    weight_of,
)
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest

CHUNKS_AHEAD: Final = 4


class ReadAhead(AsyncIterator[ReadChunk]):
    """The chunks that were read and not requested yet.

    A consumer that waits for the next chunk may be cancelled and come back without losing one. An async generator
    could not promise that.
    """

    def __init__(self, share: BudgetShare) -> None:
        self._share = share
        self._ready: asyncio.Queue[ReadChunk | Exception] = asyncio.Queue(CHUNKS_AHEAD)
        self._is_over = False
        self._is_awaited = False
        self._skip: Callable[[ReadChunk], bool] | None = None

    def skip_pages(self, skip: Callable[[ReadChunk], bool]) -> None:
        """Ask `skip` about each page without records for which the consumer waits. If it returns True, the consumer
        does not get the page: to wake it up costs more than the page.
        """
        self._skip = skip

    async def put_empty_page(self, page: ReadChunk) -> None:
        """Add a page without records, unless the consumer skips it."""
        # Invariant: the consumer has handled every earlier chunk, because it waits and none is ready.
        is_next = self._is_awaited and self._ready.empty()
        if not (is_next and self._skip is not None and self._skip(page)):
            await self.put(page)

    async def put(self, item: ReadChunk | Exception) -> None:
        """Add a chunk, or the error that ends reading. Waits while `CHUNKS_AHEAD` chunks are ready."""
        await self._ready.put(item)

    async def __anext__(self) -> ReadChunk:
        if self._is_over:
            raise StopAsyncIteration
        self._is_awaited = True
        try:
            item = await self._ready.get()
        finally:
            self._is_awaited = False
        if isinstance(item, Exception):
            self._is_over = True
            raise item
        self._is_over = item.children is not None
        self._share.transfer(item.size_bytes)
        return item


class ChunkWriter:
    """Turns the new Kinesis records of pages and events into chunks, and puts them into the queue.

    The caller has counted the weight of the records in the byte budget (`share`).
    """

    def __init__(
        self, request: ReadRequest, context: ReadContext, chunks: ReadAhead, share: BudgetShare
    ) -> None:
        self._shard = request.shard
        self._context = context
        self._chunks = chunks
        self._deaggregator = ShardDeaggregator(request.start, request.hash_range, context.deaggregation)
        self.share = share
        self.demand: Demand = request.demand
        self.record_weight = request.record_weight

    async def write(
        self,
        records: RecordSequence[Record],
        *,
        children: tuple[ChildShard, ...] | None,
        millis_behind: int | None,
        time_ms: int | None,
        quota_ms: int | None = None,
    ) -> None:
        """Write the records of one page or event. `children` is None unless it ends the shard."""
        requested_ms = self._context.clock.now_ms() - (time_ms or 0)
        if not len(records) and children is None:
            await self._write_nothing(millis_behind, requested_ms)
            self._context.observe(PageRead(self._shard, 0, 0, millis_behind, time_ms, None))
            return
        weight = weight_of(records)
        if records:
            self.record_weight = weight // len(records)
        parts = split_into_chunks(records, weight)
        count = size_bytes = 0
        last: Position | None = None
        for number, part in enumerate(parts, start=1):
            batch = self._deaggregator.user_records(part)
            self._report(batch.incidents)
            users, weight = batch.records, weight_of(batch.records)
            count, size_bytes = count + len(users), size_bytes + users.payload_bytes
            if users:
                last = users.position(-1)
            self.share.resize(weight_of(part), weight)
            is_last = number == len(parts)
            await self._chunks.put(
                ReadChunk(
                    users,
                    weight,
                    millis_behind,
                    self._deaggregator.read_through,
                    children if is_last else None,
                    is_last,
                    self.record_weight,
                    requested_ms,
                    quota_ms,
                )
            )
        self.demand = self.demand.after(count, size_bytes)
        self._context.observe(PageRead(self._shard, count, size_bytes, millis_behind, time_ms, last))

    async def _write_nothing(self, millis_behind: int | None, requested_ms: int) -> None:
        """Write an empty page, as idle shards have them all the time."""
        through = self._deaggregator.read_through
        await self._chunks.put_empty_page(
            ReadChunk(
                (),
                0,
                millis_behind,
                through,
                None,
                record_weight=self.record_weight,
                requested_ms=requested_ms,
            )
        )

    async def end_without_children(self) -> None:
        """Write the end of a shard that no longer exists."""
        await self._chunks.put(ReadChunk((), 0, None, self._deaggregator.read_through, ()))

    def _report(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            position = Position(incident.sequence_number)
            self._context.observe(
                DeaggregationFailed(self._shard, position, incident.outcome.value, dropped=incident.dropped)
            )
