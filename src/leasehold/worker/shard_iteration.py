"""Shards as async iterators, for programs that have a structure of their own.

The engine offers each shard that it serves. The program takes batches when it is ready, may work on several at once,
and calls `done()` on each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from leasehold.core.model import ChildShard, ShardId
from leasehold.errors import LeaseLostError
from leasehold.tasks import first_of
from leasehold.worker.batch import Batch
from leasehold.worker.batching.batch_builder import PendingBatch
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.delivery.shard_consumer import HandlerKind, ShardConsumer
from leasehold.worker.user_code.engine_calls import EngineCalls


class ShardBatches(AsyncIterator[Batch]):
    """The batches of one shard, in order. Ends with the shard, with the lease, or when the consumer stops.

    The checkpoint follows `await batch.done()`. The children of an ended shard start only after all of its batches are
    done.
    """

    def __init__(
        self,
        consumer: _IterationConsumer,
        engine: EngineCalls,
        stream: str,
        shard: ShardId,
        fencing_token: str,
    ) -> None:
        self.stream = stream
        self.shard = shard
        self.fencing_token = fencing_token
        self._consumer = consumer
        self._engine = engine
        self._requested: asyncio.Future[Batch | None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        # The request outlives a cancelled wait, so that its batch goes to the next call.
        if self._requested is None:
            self._requested = self._request()
        batch = await asyncio.shield(self._requested)
        self._requested = None
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _request(self) -> asyncio.Future[Batch | None]:
        try:
            return asyncio.ensure_future(self._engine.run(self._consumer.next_batch()))
        except LeaseLostError:  # the consumer has stopped
            raise StopAsyncIteration from None


@dataclass(frozen=True, slots=True)
class ShardIterationHandler(HandlerKind):
    """Offers shards to a program, which iterates over them."""

    offer: Callable[[ShardBatches], None]

    def consumer_for(self, shard: ServedShard) -> ShardConsumer:
        """Offer one shard to the program."""
        consumer = _IterationConsumer(shard)
        self.offer(
            ShardBatches(consumer, shard.engine, shard.stream, shard.held.shard, shard.held.fencing_token)
        )
        return consumer


class _IterationConsumer(ShardConsumer):
    def __init__(self, shard: ServedShard) -> None:
        self._shard = shard
        self._held = shard.held
        self._checkpoints = shard.checkpoints
        # Holds one batch until the program asks for it. None means that there are no more.
        self._next: asyncio.Queue[PendingBatch | None] = asyncio.Queue(maxsize=1)
        self._is_end_queued = False
        # The batches that the program works on, in shard order, and when each was delivered.
        self._delivered: deque[tuple[PendingBatch, int]] = deque()
        shard.checkpoints.on_progress(self._report_handled)

    async def next_batch(self) -> Batch | None:
        """Return the next batch for the program, or None if there are no more. Runs on the engine's loop."""
        while (pending := await self._next.get()) is not None and self._held.is_valid():
            if pending.records:
                self._delivered.append((pending, self._shard.context.clock.now_ms()))
                return self._shard.make_batch(pending, self._checkpoints.begin(pending))
            await self._checkpoints.pass_over(pending)
        self._close()
        return None

    async def start(self) -> None:
        """The shard was offered when this consumer was made."""

    @property
    def wants_idle_pages(self) -> bool:
        # A page that the program does not take is no progress. Otherwise a program that hangs would keep an idle
        # shard.
        return True

    async def handle(self, pending: PendingBatch) -> None:
        await first_of(self._next.put(pending), self._held.draining.wait())

    async def end_shard(self, children: Sequence[ChildShard]) -> None:
        all_done = self._checkpoints.all_done
        await first_of(self._queue_end(), self._held.draining.wait())
        await first_of(all_done.wait(), self._held.draining.wait())
        if self._is_end_queued and all_done.is_set():
            await self._checkpoints.end_shard(children)

    async def shut_down(self) -> None:
        """Wait until the program has finished the delivered batches. A queued batch is dropped."""
        self._close()
        await self._checkpoints.all_done.wait()

    def lease_lost(self) -> None:
        self._close()

    def _report_handled(self) -> None:
        """Report each batch once all batches before it are done, because `BatchHandled` covers them all."""
        done = self._checkpoints.progress.done
        while self._delivered and self._delivered[0][0].end <= done:
            pending, began_ms = self._delivered.popleft()
            self._shard.report_handled(pending.records, pending.end, pending.millis_behind, began_ms)

    async def _queue_end(self) -> None:
        """Queue the end of the iteration. There is room only after the program has taken the last batch."""
        await self._next.put(None)
        self._is_end_queued = True

    def _close(self) -> None:
        while not self._next.empty():
            self._next.get_nowait()
        self._next.put_nowait(None)
