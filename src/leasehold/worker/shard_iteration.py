"""Shards as async iterators: for programs that want a structure of their own.

The engine offers each shard that it serves; the program takes batches when it is ready for them, works on as many as
it likes, and says of each when it is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from leasehold.core.events import BatchHandled
from leasehold.core.model import ChildShard, ShardId
from leasehold.errors import LeaseLostError
from leasehold.fleet.reading.chunking import payload_bytes
from leasehold.worker.batch import Batch
from leasehold.worker.delivery.batch_builder import PendingBatch
from leasehold.worker.delivery.served_shard import HandlerKind, ServedShard, ShardConsumer
from leasehold.worker.user_code.engine_calls import EngineCalls
from leasehold.worker.waiting import first_of


class ShardBatches(AsyncIterator[Batch]):
    """One shard: its batches in order. Ends with the shard, with the lease, or when the consumer stops.

    The checkpoint follows `await batch.done()`. Until all batches of a shard that has ended are done, its children
    do not begin.
    """

    def __init__(
        self,
        shard_consumer: _IterationConsumer,
        engine: EngineCalls,
        stream: str,
        shard: ShardId,
        fencing_token: str,
    ) -> None:
        self.stream = stream
        self.shard = shard
        self.fencing_token = fencing_token
        self._session = shard_consumer
        self._engine = engine
        self._asked: asyncio.Future[Batch | None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        # Asking outlives a cancelled wait: the batch that comes then is for the next who asks.
        if self._asked is None:
            self._asked = self._ask()
        batch = await asyncio.shield(self._asked)
        self._asked = None
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _ask(self) -> asyncio.Future[Batch | None]:
        try:
            return asyncio.ensure_future(self._engine.run(self._session.next_batch()))
        except LeaseLostError:  # the consumer has stopped
            raise StopAsyncIteration from None


@dataclass(frozen=True, slots=True)
class ShardIterationHandler(HandlerKind):
    """Shards are offered to a program, which iterates over them."""

    offer: Callable[[ShardBatches], None]

    def shard_consumer(self, shard: ServedShard) -> ShardConsumer:
        """Offer one shard."""
        shard_consumer = _IterationConsumer(shard)
        accounting = shard.accounting
        stream = shard.context.stream
        self.offer(
            ShardBatches(
                shard_consumer,
                accounting.engine,
                stream,
                accounting.held.shard,
                accounting.held.fencing_token,
            )
        )
        return shard_consumer


class _IterationConsumer(ShardConsumer):
    def __init__(self, shard: ServedShard) -> None:
        self._shard = shard
        self._held = shard.accounting.held
        self._all_done = shard.accounting.checkpoints.all_done
        # A batch waits here until it is asked for. None: there will be no more.
        self._waiting: asyncio.Queue[PendingBatch | None] = asyncio.Queue(maxsize=1)
        self._end_told = False
        # Batches in the hands of the program, in shard order, and when each was given.
        self._given: deque[tuple[PendingBatch, int]] = deque()
        shard.accounting.checkpoints.call_when_moved(self._tell_handled)

    async def next_batch(self) -> Batch | None:
        """The next batch for the program, or None when there will be no more. On the engine's loop."""
        while (cut := await self._waiting.get()) is not None and self._held.is_valid():
            if cut.records:
                self._given.append((cut, self._shard.context.clock.now_ms()))
                return self._shard.batch(cut, self._shard.accounting.give(cut))
            await self._shard.accounting.pass_over(cut)
        self._close()
        return None

    async def begin(self) -> None:
        """The program has been offered the shard."""

    async def take(self, cut: PendingBatch) -> None:
        await first_of(self._waiting.put(cut), self._held.draining.wait())

    async def end(self, children: Sequence[ChildShard]) -> None:
        await first_of(self._tell_end(), self._held.draining.wait())
        await first_of(self._all_done.wait(), self._held.draining.wait())
        if self._end_told and self._all_done.is_set():
            await self._shard.accounting.checkpoints.end_shard(children)

    async def drained(self) -> None:
        """Wait for what the program has in hand; what waits here was never given."""
        self._close()
        await self._all_done.wait()

    def lost(self) -> None:
        self._close()

    def _tell_handled(self) -> None:
        """A batch is told once all before it are done, too: `BatchHandled` says so of everything up to its end."""
        done, context = self._shard.accounting.checkpoints.progress.done, self._shard.context
        while self._given and self._given[0][0].end <= done:
            cut, given_ms = self._given.popleft()
            context.observe(
                BatchHandled(
                    self._held.shard,
                    len(cut.records),
                    payload_bytes(cut.records),
                    cut.end,
                    context.clock.now_ms() - given_ms,
                    cut.millis_behind,
                )
            )

    async def _tell_end(self) -> None:
        """There is room for it only once the last batch has been taken."""
        await self._waiting.put(None)
        self._end_told = True

    def _close(self) -> None:
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)
