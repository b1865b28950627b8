"""Reads one shard by subscriptions of enhanced fan-out, one after the other, each from where the last one ended.

Back-pressure: the next event is requested only when there is room in the byte budget, and when the chunks of the last
one were put into the queue. While no event is requested, the adapter reads nothing from the connection. Each shard may
exceed the budget by one event, because its size is not known before it arrives; to reserve room while a shard is idle
would take it from the shards that are not.
"""

from __future__ import annotations

import asyncio
from typing import Any

from leasehold.core.events import (
    ReadFailed,
    ReadThrottled,
    Subscribed,
    SubscriptionEnded,
    SubscriptionLost,
)
from leasehold.core.position import Position
from leasehold.core.records.pacing import CALL_BYTES_MIN
from leasehold.core.records.subscriptions import (
    EVENT_TIME_MAX_MS,
    SILENCE_MAX_MS,
    may_subscribe_ms,
    poll_instead_ms,
    resubscribe_wait_ms,
)
from leasehold.errors import InUseError, NotFoundError, ServiceError, ThrottledError, UnavailableError
from leasehold.fleet.reading.chunking import weight_of
from leasehold.fleet.reading.read_ahead import ChunkWriter
from leasehold.fleet.reading.read_position import ReadPosition
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.refused_reads import is_shard_gone
from leasehold.fleet.reading.stream_consumer import ShardSlot, StreamConsumer
from leasehold.ports import Subscription, SubscriptionEvent
from leasehold.tasks import cancel_and_wait


class SubscriptionReader:
    """Subscribes to one shard again and again, and passes the events on."""

    def __init__(
        self,
        request: ReadRequest,
        context: ReadContext,
        consumer: StreamConsumer,
        position: ReadPosition,
        writer: ChunkWriter,
    ) -> None:
        self._shard = request.shard
        self._context = context
        self._consumer = consumer
        self._position = position
        self._writer = writer
        self._due_ms = context.clock.now_ms()
        self._failures = 0  # one after the other, without an event in between
        self._eventless = 0  # those of them that Kinesis had accepted
        self._poll_until_ms = self._due_ms
        self._event_weight = 0

    @property
    def should_poll(self) -> bool:
        """Whether several subscriptions have sent no event, so that the shard is polled for a while."""
        return self._context.clock.now_ms() < self._poll_until_ms

    async def read_once(self) -> bool:
        """Read one subscription to its end. Return False after the end of the shard."""
        async with self._consumer.slot(self._shard) as slot:
            await self._sleep_until_due(slot)
            requested_wall_ms = self._context.clock.wall_ms()
            try:
                start = await self._position.subscription_start()
                subscription = await self._consumer.subscribe(self._shard, start)
            except ServiceError as error:
                return await self._handle_failure(error, was_subscribed=False)
            if subscription is None:
                return True  # from now on, the shard is polled
            slot.subscribed_ms = self._context.clock.now_ms()
            self._position.note_started(start, requested_wall_ms)
            self._context.observe(Subscribed(self._shard, start))
            try:
                return await self._pass_on(subscription, self._position.required_first_record(start))
            except ServiceError as error:
                return await self._handle_failure(error, was_subscribed=True)
            finally:
                await subscription.close()

    async def _pass_on(self, subscription: Subscription, must_begin_at: Position | None) -> bool:
        """Pass on the events of a subscription. Return False after the end of the shard."""
        began_ms, events = self._context.clock.now_ms(), 0
        while True:
            await self._wait_for_room()
            event = await self._next_event(subscription)
            if event is None:
                time_ms = self._context.clock.now_ms() - began_ms
                self._context.observe(SubscriptionEnded(self._shard, events, time_ms))
                return True
            events += 1
            if event.records:
                self._require_first_record(event, must_begin_at)
                must_begin_at = None
            self._failures = self._eventless = 0
            if await self._write(event):
                return False
            if self._position.is_far_behind:
                # Trimmed records would be skipped in silence. Polling notices them.
                return True

    def _require_first_record(self, event: SubscriptionEvent, must_begin_at: Position | None) -> None:
        first = event.records[0].sequence_number
        if must_begin_at is not None and int(first) > must_begin_at.number:
            self._position.note_skipped_records()
            raise UnavailableError(
                f"the subscription begins with record {first}, although it was to begin at {must_begin_at}: it has "
                "skipped records, or sends its events in a wrong order"
            )

    async def _write(self, event: SubscriptionEvent) -> bool:
        """Pass one event on. Return True if it ends the shard."""
        if event.continuation is None and not event.children:
            # As for pages: to treat it as the end would leave the rest unread, and the children without leases.
            raise UnavailableError("an event has neither a continuation nor child shards")
        is_end = event.continuation is None or bool(event.children)
        records = self._position.accept(event.records, event.millis_behind, is_end=is_end)
        self._position.note_continuation(event.continuation)
        self._event_weight = weight_of(records)
        self._writer.share.resize(0, self._event_weight)
        await self._writer.write(
            records,
            children=event.children if is_end else None,
            millis_behind=event.millis_behind,
            time_ms=None,
        )
        return is_end

    async def _wait_for_room(self) -> None:
        """Wait until an event of the size of the last one fits into the byte budget, or a call's worth."""
        room = max(self._event_weight, min(CALL_BYTES_MIN, self._context.settings.buffer_bytes // 4))
        await self._writer.share.acquire(room)
        self._writer.share.resize(room, 0)

    async def _next_event(self, subscription: Subscription) -> SubscriptionEvent | None:
        """The next event; None if the service has ended the subscription. UnavailableError if it is silent."""
        until_ms = self._context.clock.now_ms() + EVENT_TIME_MAX_MS
        subscription.has_received()  # parts of this event count, not those of earlier ones
        reading = asyncio.ensure_future(_next_or_none(subscription))
        try:
            while not await self._ends_soon(reading):
                # A large event takes long on a slow connection. If it were abandoned, the next attempt would be, too.
                if not subscription.has_received() or self._context.clock.now_ms() >= until_ms:
                    raise UnavailableError(f"no event for {SILENCE_MAX_MS} ms: the subscription is abandoned")
            return reading.result()
        finally:
            await cancel_and_wait(reading)

    async def _ends_soon(self, reading: asyncio.Future[Any]) -> bool:
        """Wait for the event, as long as a subscription may be silent. Return False if it has not arrived."""
        silence: asyncio.Future[Any] = asyncio.ensure_future(self._context.clock.sleep_ms(SILENCE_MAX_MS))
        try:
            await asyncio.wait({reading, silence}, return_when=asyncio.FIRST_COMPLETED)
            return reading.done()
        finally:
            await cancel_and_wait(silence)

    async def _sleep_until_due(self, slot: ShardSlot) -> None:
        now_ms = self._context.clock.now_ms()
        wait_ms = max(self._due_ms, may_subscribe_ms(slot.subscribed_ms, now_ms)) - now_ms
        if wait_ms > 0:
            await self._context.clock.sleep_ms(wait_ms)

    async def _handle_failure(self, error: ServiceError, *, was_subscribed: bool) -> bool:
        """Plan the next subscription. Return False if the shard no longer exists."""
        context = self._context
        if not isinstance(error, ThrottledError | UnavailableError | InUseError):
            if await is_shard_gone(context.stream, self._shard, self._position.position, error):
                self._position.report_unread_rest()
                await self._writer.end_without_children()
                return False
            if isinstance(error, NotFoundError):
                self._consumer.forget_arn()
        self._failures += 1
        is_in_use = isinstance(error, InUseError)
        wait_ms = resubscribe_wait_ms(self._failures, context.rng.random(), is_in_use=is_in_use)
        if isinstance(error, ThrottledError):
            context.observe(ReadThrottled(self._shard, wait_ms))
        elif was_subscribed:
            wait_ms = self._note_lost(error, wait_ms)
        else:
            context.observe(ReadFailed(self._shard, str(error), wait_ms))
        self._due_ms = context.clock.now_ms() + wait_ms
        return True

    def _note_lost(self, error: ServiceError, wait_ms: int) -> int:
        """Report a lost subscription, and decide whether to poll for a while. Return the wait for the next one."""
        self._eventless += 1
        poll_ms, reason = poll_instead_ms(self._eventless), str(error)
        if poll_ms:
            self._poll_until_ms = self._context.clock.now_ms() + poll_ms
            wait_ms = poll_ms
            reason += (
                f"; {self._eventless} subscriptions in a row sent no event, so the shard is polled meanwhile"
            )
        self._context.observe(SubscriptionLost(self._shard, reason, wait_ms))
        return wait_ms


async def _next_or_none(subscription: Subscription) -> SubscriptionEvent | None:
    try:
        return await anext(subscription)
    except StopAsyncIteration:
        return None
