"""Reads one shard by polling, ahead of its consumer, until its end.

Reading never gives up: a shard that refuses or fails is asked again, later and later, and each time an event tells why.
It is the consumer who decides how long that may last. What cannot get better by waiting (a start that the settings do
not explain, an aggregate that must not be delivered raw) is raised to the consumer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from leasehold.config.settings import ReadSettings, milliseconds
from leasehold.core.events import (
    DeaggregationFailed,
    IteratorExpired,
    Observer,
    PageRead,
    ReadFailed,
    ReadingStarted,
    ReadThrottled,
)
from leasehold.core.model import HashRange, InitialPosition, ShardId
from leasehold.core.position import Position
from leasehold.core.record import Record
from leasehold.core.records.deaggregation import DeaggregationSettings, Incident
from leasehold.core.records.pacing import CallSize, call_size, next_call_ms, retry_wait_ms
from leasehold.errors import (
    IteratorExpiredError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.fleet.reading.byte_budget import BudgetShare
from leasehold.fleet.reading.byte_budget import ByteBudget as ByteBudget
from leasehold.fleet.reading.chunking import (
    RECORD_OVERHEAD_BYTES,
    Demand,
    ShardDeaggregator,
    payload_bytes,
    split_into_chunks,
    weight_of,
)
from leasehold.fleet.reading.chunking import ReadChunk as ReadChunk
from leasehold.fleet.reading.cursor import Cursor
from leasehold.ports import Clock, Page, Stream

CHUNKS_AHEAD: Final = 4


@asynccontextmanager
async def read_shard(
    stream: Stream,
    shard: ShardId,
    *,
    start: Position,
    initial: InitialPosition,
    hash_range: HashRange | None,
    settings: ReadSettings,
    deaggregation: DeaggregationSettings,
    budget: ByteBudget,
    clock: Clock,
    rng: random.Random,
    observe: Observer,
    iterator: str | None = None,
    follows_parent: bool = False,
    record_weight: int | None = None,
    demand: Demand | None = None,
) -> AsyncIterator[AsyncIterator[ReadChunk]]:
    """The user records after `start`, slice by slice, until the slice that names the shard's children.

    A task of its own reads ahead while the consumer works. Each slice is the consumer's once it was returned: whoever
    is done with it calls `budget.release(slice.size_bytes)`. What nobody asked for is given back on leaving. An
    `iterator` that stands right after `start`, where the caller has one, saves asking for it. `follows_parent` says
    that a parent of the shard was read to its end, so that this one is wanted from its very beginning. A
    `record_weight` from earlier reading of the shard saves a first small call; `wanted` keeps the calls from fetching
    what the consumer will not take.
    """
    observe(ReadingStarted(shard, start))
    share = BudgetShare(budget)
    slices = _Slices(share)
    cursor = Cursor(
        stream,
        shard,
        start=start,
        initial=initial,
        follows_parent=follows_parent,
        verify_when_behind_ms=milliseconds(settings.check_gaps_when_behind),
        clock=clock,
        observe=observe,
        iterator=iterator,
    )
    reader = _Reader(
        stream=stream,
        shard=shard,
        cursor=cursor,
        slicer=ShardDeaggregator(start, hash_range, deaggregation),
        slices=slices,
        share=share,
        settings=settings,
        clock=clock,
        rng=rng,
        observe=observe,
        record_weight=record_weight,
        demand=demand or Demand(),
    )
    task = asyncio.create_task(reader.run(), name=f"read {shard}")
    try:
        yield slices
    finally:
        task.cancel()
        try:
            await asyncio.wait([task])
        finally:
            share.close()


class _Slices(AsyncIterator[ReadChunk]):
    """The slices that were read and not asked for yet. Whoever waits for the next one may be cancelled and come back:
    none is lost, which an async generator could not promise.
    """

    def __init__(self, share: BudgetShare) -> None:
        self._share = share
        self._ready: asyncio.Queue[ReadChunk | Exception] = asyncio.Queue(CHUNKS_AHEAD)
        self._is_over = False

    async def put(self, item: ReadChunk | Exception) -> None:
        """Waits while the consumer has enough to do."""
        await self._ready.put(item)

    async def __anext__(self) -> ReadChunk:
        if self._is_over:
            raise StopAsyncIteration
        item = await self._ready.get()
        if isinstance(item, Exception):
            self._is_over = True
            raise item
        self._is_over = item.children is not None
        self._share.hand_over(item.size_bytes)
        return item


@dataclass(slots=True, eq=False, kw_only=True)
class _Reader:
    """Fills the slices of one shard."""

    stream: Stream
    shard: ShardId
    cursor: Cursor
    slicer: ShardDeaggregator
    slices: _Slices
    share: BudgetShare
    settings: ReadSettings
    clock: Clock
    rng: random.Random
    observe: Observer
    due_ms: int = field(init=False)
    record_weight: int | None
    demand: Demand
    failures: int = 0

    def __post_init__(self) -> None:
        self.due_ms = self.clock.now_ms()

    async def run(self) -> None:
        """Reads until the end of the shard, or until something happens that waiting does not cure."""
        try:
            while await self._read_once():
                pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the consumer must hear of it
            await self.slices.put(error)

    async def _read_once(self) -> bool:
        """Asks once, and hands over what came. False after the end of the shard."""
        await self._sleep_until_due()
        size = self._call_size()
        await self.share.acquire(size.expected_bytes)
        asked_ms = self.clock.now_ms()
        try:
            page, records = await self.cursor.read(size.records_max)
        except ServiceError as error:
            self.share.resize(size.expected_bytes, 0)
            return await self._after_failure(error)
        took_ms = self.clock.now_ms() - asked_ms
        self.failures = 0
        self._plan_next_call(asked_ms, page, size.records_max)
        weight = weight_of(records)
        self.share.resize(size.expected_bytes, weight)
        if records:
            self.record_weight = weight // len(records)
        await self._hand_over(page, split_into_chunks(records, weight), took_ms)
        return page.next_iterator is not None

    def _call_size(self) -> CallSize:
        record_bytes = (self.record_weight or 0) - RECORD_OVERHEAD_BYTES
        return call_size(
            self.record_weight,
            self.share.free_bytes,
            self.settings,
            wanted_records=self.demand.kinesis_records(record_bytes),
        )

    async def _sleep_until_due(self) -> None:
        wait_ms = self.due_ms - self.clock.now_ms()
        if wait_ms > 0:
            await self.clock.sleep_ms(wait_ms)

    def _plan_next_call(self, asked_ms: int, page: Page, limit: int) -> None:
        # Some servers always claim to be at the tip; a full page says otherwise.
        is_at_tip = not page.millis_behind and len(page.records) < limit
        self.due_ms = next_call_ms(
            asked_ms, payload_bytes(page.records), self.rng.random(), self.settings, is_at_tip=is_at_tip
        )

    async def _hand_over(self, page: Page, pieces: Sequence[Sequence[Record]], took_ms: int) -> None:
        count = size_bytes = 0
        last: Position | None = None
        for number, piece in enumerate(pieces, start=1):
            batch = self.slicer.user_records(piece)
            self._tell_of(batch.incidents)
            users, weight = batch.records, weight_of(batch.records)
            count, size_bytes = count + len(users), size_bytes + payload_bytes(users)
            if users:
                last = users[-1].position
            self.share.resize(weight_of(piece), weight)
            is_last = number == len(pieces)
            children = page.children if is_last and page.next_iterator is None else None
            read_through = self.slicer.read_through
            await self.slices.put(
                ReadChunk(
                    users, weight, page.millis_behind, read_through, children, is_last, self.record_weight
                )
            )
        self.demand = self.demand.after(count, size_bytes)
        self.observe(PageRead(self.shard, count, size_bytes, page.millis_behind, took_ms, last))

    def _tell_of(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            position = Position(incident.sequence_number)
            self.observe(
                DeaggregationFailed(self.shard, position, incident.outcome.value, dropped=incident.dropped)
            )

    async def _after_failure(self, error: ServiceError) -> bool:
        """Plans another try. False if there is nothing left to try, because the shard is gone."""
        if isinstance(error, NotFoundError) and await self._has_vanished():
            self.cursor.report_unread_rest()
            await self.slices.put(ReadChunk((), 0, None, self.slicer.read_through, ()))
            return False
        self.failures += 1
        wait_ms = retry_wait_ms(self.failures, self.rng.random(), self.settings)
        self.due_ms = self.clock.now_ms() + wait_ms
        if isinstance(error, ThrottledError):
            self.observe(ReadThrottled(self.shard, wait_ms))
        elif isinstance(error, IteratorExpiredError):
            self.cursor.renew()
            self.observe(IteratorExpired(self.shard))
        else:
            # Unless the server could not be reached, it is the iterator that it did not like.
            if not isinstance(error, UnavailableError):
                self.cursor.renew()
            self.observe(ReadFailed(self.shard, str(error), wait_ms))
        return True

    async def _has_vanished(self) -> bool:
        """To end a shard without children is final, so one answer is not enough: the list of shards must agree."""
        try:
            return self.shard not in {shard.id for shard in await self.stream.list_shards()}
        except NotFoundError:
            return True  # the whole stream is gone
        except ServiceError:
            return False
