"""Reads one shard by polling, ahead of its consumer, until its end.

A reader never gives up: it retries a throttled or failed read with growing pauses, and reports each failure. The
consumer decides how long that may last. Errors that a retry cannot cure (a start that the settings do not explain, an
aggregate that must not be delivered raw, a position in an earlier stream of this name) are raised to the consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from leasehold.core.events import (
    DeaggregationFailed,
    IteratorExpired,
    PageRead,
    ReadFailed,
    ReadingStarted,
    ReadThrottled,
)
from leasehold.core.model import Shard, ShardId
from leasehold.core.position import Position
from leasehold.core.record import Record
from leasehold.core.records.deaggregation import Incident
from leasehold.core.records.pacing import CallSize, call_size, next_call_ms, retry_wait_ms
from leasehold.core.shards.recreated_stream import position_before_start
from leasehold.errors import (
    IteratorExpiredError,
    NotFoundError,
    RecreatedStreamError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.fleet.reading.byte_budget import BudgetShare
from leasehold.fleet.reading.chunking import (
    RECORD_OVERHEAD_BYTES,
    ReadChunk,
    ShardDeaggregator,
    payload_bytes,
    split_into_chunks,
    weight_of,
)
from leasehold.fleet.reading.cursor import Cursor
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.ports import Page
from leasehold.tasks import cancel_and_wait

CHUNKS_AHEAD: Final = 4


@asynccontextmanager
async def read_shard(request: ReadRequest, context: ReadContext) -> AsyncIterator[AsyncIterator[ReadChunk]]:
    """The user records after `request.start`, in chunks; the last chunk names the child shards.

    A task of its own reads ahead while the consumer works. A chunk belongs to the consumer once it was returned: the
    consumer calls `budget.release(chunk.size_bytes)` when it is done with it. Chunks that were not requested are
    released on exit.
    """
    context.observe(ReadingStarted(request.shard, request.start))
    share = BudgetShare(context.budget)
    chunks = _ReadAhead(share)
    reader = _Reader(request, context, chunks, share)
    task = asyncio.create_task(reader.run(), name=f"read {request.shard}")
    try:
        yield chunks
    finally:
        try:
            await cancel_and_wait(task)
        finally:
            share.close()


class _ReadAhead(AsyncIterator[ReadChunk]):
    """The chunks that were read and not requested yet.

    A consumer that waits for the next chunk may be cancelled and come back without losing one. An async generator
    could not promise that.
    """

    def __init__(self, share: BudgetShare) -> None:
        self._share = share
        self._ready: asyncio.Queue[ReadChunk | Exception] = asyncio.Queue(CHUNKS_AHEAD)
        self._is_over = False

    async def put(self, item: ReadChunk | Exception) -> None:
        """Add a chunk, or the error that ends reading. Waits while `CHUNKS_AHEAD` chunks are ready."""
        await self._ready.put(item)

    async def __anext__(self) -> ReadChunk:
        if self._is_over:
            raise StopAsyncIteration
        item = await self._ready.get()
        if isinstance(item, Exception):
            self._is_over = True
            raise item
        self._is_over = item.children is not None
        self._share.transfer(item.size_bytes)
        return item


class _Reader:
    """Reads one shard and fills its read-ahead queue."""

    def __init__(
        self, request: ReadRequest, context: ReadContext, chunks: _ReadAhead, share: BudgetShare
    ) -> None:
        self._shard = request.shard
        self._context = context
        self._chunks = chunks
        self._share = share
        self._cursor = Cursor(request, context)
        self._deaggregator = ShardDeaggregator(request.start, request.hash_range, context.deaggregation)
        self._due_ms = context.clock.now_ms()
        self._record_weight = request.record_weight
        self._demand = request.demand
        self._failures = 0

    async def run(self) -> None:
        """Read until the end of the shard, or until an error that a retry does not cure."""
        try:
            while await self._read_once():
                pass
        except Exception as error:  # noqa: BLE001 - the consumer raises it, whatever it is
            await self._chunks.put(error)

    async def _read_once(self) -> bool:
        """Read one page and pass it on. Return False after the end of the shard."""
        await self._sleep_until_due()
        size = self._call_size()
        # Invariant: the room is acquired before the request, so that no page arrives without room.
        await self._share.acquire(size.expected_bytes)
        began_ms = self._context.clock.now_ms()
        try:
            page, records = await self._cursor.read(size.records_max)
        except ServiceError as error:
            self._share.resize(size.expected_bytes, 0)
            return await self._handle_failure(error)
        time_ms = self._context.clock.now_ms() - began_ms
        self._failures = 0
        self._plan_next_call(began_ms, page, size.records_max)
        weight = weight_of(records)
        self._share.resize(size.expected_bytes, weight)
        if records:
            self._record_weight = weight // len(records)
        await self._pass_on(page, split_into_chunks(records, weight), time_ms)
        return page.next_iterator is not None

    def _call_size(self) -> CallSize:
        record_bytes = (self._record_weight or 0) - RECORD_OVERHEAD_BYTES
        return call_size(
            self._record_weight,
            self._share.free_bytes,
            self._context.settings,
            wanted_records=self._demand.kinesis_records(record_bytes),
        )

    async def _sleep_until_due(self) -> None:
        wait_ms = self._due_ms - self._context.clock.now_ms()
        if wait_ms > 0:
            await self._context.clock.sleep_ms(wait_ms)

    def _plan_next_call(self, began_ms: int, page: Page, limit: int) -> None:
        # Some servers always claim to be at the tip; a full page shows that they are not.
        is_at_tip = not page.millis_behind and len(page.records) < limit
        jitter = self._context.rng.random()
        size_bytes = payload_bytes(page.records)
        self._due_ms = next_call_ms(began_ms, size_bytes, jitter, self._context.settings, is_at_tip=is_at_tip)

    async def _pass_on(self, page: Page, parts: Sequence[Sequence[Record]], time_ms: int) -> None:
        count = size_bytes = 0
        last: Position | None = None
        for number, part in enumerate(parts, start=1):
            batch = self._deaggregator.user_records(part)
            self._report(batch.incidents)
            users, weight = batch.records, weight_of(batch.records)
            count, size_bytes = count + len(users), size_bytes + payload_bytes(users)
            if users:
                last = users[-1].position
            self._share.resize(weight_of(part), weight)
            is_last = number == len(parts)
            children = page.children if is_last and page.next_iterator is None else None
            read_through = self._deaggregator.read_through
            await self._chunks.put(
                ReadChunk(
                    users, weight, page.millis_behind, read_through, children, is_last, self._record_weight
                )
            )
        self._demand = self._demand.after(count, size_bytes)
        self._context.observe(PageRead(self._shard, count, size_bytes, page.millis_behind, time_ms, last))

    def _report(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            position = Position(incident.sequence_number)
            self._context.observe(
                DeaggregationFailed(self._shard, position, incident.outcome.value, dropped=incident.dropped)
            )

    async def _handle_failure(self, error: ServiceError) -> bool:
        """Plan a retry. Return False if the shard no longer exists, so that there is nothing to retry."""
        if not isinstance(error, ThrottledError | UnavailableError | IteratorExpiredError):
            shards = await self._list_shards()
            # Ending a shard without children is final, so one NotFoundError is not enough.
            if isinstance(error, NotFoundError) and shards is not None and self._shard not in shards:
                self._cursor.report_unread_rest()
                await self._chunks.put(ReadChunk((), 0, None, self._deaggregator.read_through, ()))
                return False
            self._refuse_recreated(shards or {})
        self._failures += 1
        context = self._context
        wait_ms = retry_wait_ms(self._failures, context.rng.random(), context.settings)
        self._due_ms = context.clock.now_ms() + wait_ms
        if isinstance(error, ThrottledError):
            context.observe(ReadThrottled(self._shard, wait_ms))
        elif isinstance(error, IteratorExpiredError):
            self._cursor.discard_iterator()
            context.observe(IteratorExpired(self._shard))
        else:
            # An error of the server itself, not of the connection, is likely to be about the iterator.
            if not isinstance(error, UnavailableError):
                self._cursor.discard_iterator()
            context.observe(ReadFailed(self._shard, str(error), wait_ms))
        return True

    async def _list_shards(self) -> Mapping[ShardId, Shard] | None:
        """The shards of the stream, none if it was deleted; None if they cannot be listed."""
        try:
            return {shard.id: shard for shard in await self._context.stream.list_shards()}
        except NotFoundError:
            return {}
        except ServiceError:
            return None

    def _refuse_recreated(self, shards: Mapping[ShardId, Shard]) -> None:
        """Raise RecreatedStreamError if our position cannot be in this shard. A retry would fail for ever."""
        shard = shards.get(self._shard)
        fact = shard and position_before_start(self._cursor.position, shard)
        if fact:
            raise RecreatedStreamError(f"the stream was deleted and created again: {fact}")
