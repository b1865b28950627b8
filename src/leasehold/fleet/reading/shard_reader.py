"""Reads one shard ahead of its consumer, until its end: by subscriptions of enhanced fan-out, or by polling.

A reader never gives up: it retries a throttled or failed read with growing pauses, and reports each failure. The
consumer decides how long that may last. Errors that a retry cannot cure (a start that the settings do not explain, an
aggregate that must not be delivered raw, a position in an earlier stream of this name, a consumer that cannot be
registered) are raised to the consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from leasehold.core.events import ReadingStarted
from leasehold.fleet.reading.byte_budget import BudgetShare
from leasehold.fleet.reading.polling_reader import PollingReader
from leasehold.fleet.reading.read_ahead import ChunkWriter, ReadAhead
from leasehold.fleet.reading.read_position import ReadPosition
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.subscription_reader import SubscriptionReader
from leasehold.tasks import cancel_and_wait


@asynccontextmanager
async def read_shard(request: ReadRequest, context: ReadContext) -> AsyncIterator[ReadAhead]:
    """The user records after `request.start`, in chunks; the last chunk names the child shards.

    A task of its own reads ahead while the consumer works. A chunk belongs to the consumer once it was returned: the
    consumer calls `budget.release(chunk.size_bytes)` when it is done with it. Chunks that were not requested are
    released on exit.
    """
    context.observe(ReadingStarted(request.shard, request.start))
    share = BudgetShare(context.budget)
    chunks = ReadAhead(share)
    reader = _Reader(request, context, chunks, share)
    task = asyncio.create_task(reader.run(), name=f"read {request.shard}")
    try:
        yield chunks
    finally:
        try:
            await cancel_and_wait(task)
        finally:
            share.close()


class _Reader:
    """Reads one shard and fills its read-ahead queue."""

    def __init__(
        self, request: ReadRequest, context: ReadContext, chunks: ReadAhead, share: BudgetShare
    ) -> None:
        self._chunks = chunks
        self._position = ReadPosition(request, context)
        writer = ChunkWriter(request, context, chunks, share)
        self._polling = PollingReader(request, context, self._position, writer)
        self._shard = request.shard
        self._consumer = context.consumer
        self._subscribes_once = context.subscribes_once
        self._has_subscribed = False
        self._subscribing = (
            None
            if context.consumer is None
            else SubscriptionReader(request, context, context.consumer, self._position, writer)
        )

    async def run(self) -> None:
        """Read until the end of the shard, or until an error that a retry does not cure."""
        try:
            while await self._read_once():
                pass
        except Exception as error:  # noqa: BLE001 - the consumer raises it, whatever it is
            await self._chunks.put(error)

    async def _read_once(self) -> bool:
        """Read one page or one subscription. Return False after the end of the shard."""
        if self._subscribing is None or self._subscribing.should_poll or not self._may_subscribe():
            return await self._polling.read_once()
        self._has_subscribed = True
        has_more = await self._subscribing.read_once()
        if self._position.has_response:
            self._polling.discard_iterator()
        return has_more

    def _may_subscribe(self) -> bool:
        if self._consumer is None or self._consumer.is_refused or not self._position.may_subscribe:
            return False
        if not self._subscribes_once:
            return True
        return not self._has_subscribed and self._consumer.may_subscribe_now(self._shard)
