"""Reads one shard by polling: one GetRecords call after the other, paced by the limits of Kinesis."""

from __future__ import annotations

from leasehold.core.events import IteratorExpired, ReadFailed, ReadThrottled
from leasehold.core.records.pacing import CallSize, call_size, next_call_ms, quota_ms, retry_wait_ms
from leasehold.errors import IteratorExpiredError, ServiceError, ThrottledError, UnavailableError
from leasehold.fleet.reading.chunking import RECORD_OVERHEAD_BYTES, payload_bytes, weight_of
from leasehold.fleet.reading.cursor import Cursor
from leasehold.fleet.reading.read_ahead import ChunkWriter
from leasehold.fleet.reading.read_position import ReadPosition
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.refused_reads import is_shard_gone
from leasehold.ports import Page


class PollingReader:
    """Polls one shard and passes its pages on."""

    def __init__(
        self, request: ReadRequest, context: ReadContext, position: ReadPosition, writer: ChunkWriter
    ) -> None:
        self._shard = request.shard
        self._in_one_call = request.in_one_call
        self._context = context
        self._position = position
        self._writer = writer
        self._cursor = Cursor(request, context, position)
        self._due_ms = context.clock.now_ms() + request.wait_ms
        self._failures = 0

    async def read_once(self) -> bool:
        """Read one page and pass it on. Return False after the end of the shard."""
        await self._sleep_until_due()
        size, share = self._call_size(), self._writer.share
        # Invariant: the room is acquired before the request, so that no page arrives without room.
        await share.acquire(size.expected_bytes)
        began_ms = self._context.clock.now_ms()
        try:
            page, records = await self._cursor.read(size.records_max)
        except ServiceError as error:
            share.resize(size.expected_bytes, 0)
            return await self._handle_failure(error)
        time_ms = self._context.clock.now_ms() - began_ms
        self._failures = 0
        self._plan_next_call(began_ms, page, size.records_max)
        share.resize(size.expected_bytes, weight_of(records))
        is_end = page.next_iterator is None
        await self._writer.write(
            records,
            children=page.children if is_end else None,
            millis_behind=page.millis_behind,
            time_ms=time_ms,
            quota_ms=quota_ms(began_ms, payload_bytes(page.records), self._context.settings),
        )
        return not is_end

    def discard_iterator(self) -> None:
        """Another reader has moved the position: the next page needs a new iterator."""
        self._cursor.discard_iterator()

    def _call_size(self) -> CallSize:
        record_bytes = (self._writer.record_weight or 0) - RECORD_OVERHEAD_BYTES
        return call_size(
            self._writer.record_weight,
            self._writer.share.free_bytes,
            self._context.settings,
            wanted_records=self._writer.demand.kinesis_records(record_bytes),
            in_one_call=self._in_one_call,
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

    async def _handle_failure(self, error: ServiceError) -> bool:
        """Plan a retry. Return False if the shard no longer exists, so that there is nothing to retry."""
        context = self._context
        if not isinstance(
            error, ThrottledError | UnavailableError | IteratorExpiredError
        ) and await is_shard_gone(context.stream, self._shard, self._position.position, error):
            self._position.report_unread_rest()
            await self._writer.end_without_children()
            return False
        self._failures += 1
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
