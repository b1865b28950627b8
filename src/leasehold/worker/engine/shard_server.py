"""Serves one shard from the wait for its parents to its stored end, in linear code. A member runs it for each lease.

It is cancelled when the lease is lost: then nothing more is stored, and a running handler ends by itself. It returns
when the shard has ended, or when the lease must be released and the delivered records are done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from leasehold.config.settings import ReadSettings
from leasehold.core.events import with_stream
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.core.records.iterators import lease_start
from leasehold.errors import LeaseholdError
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.chunking import ReadChunk
from leasehold.fleet.reading.read_ahead import ReadAhead
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.shard_reader import read_shard
from leasehold.fleet.reading.stream_consumer import StreamConsumers
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.tasks import first_of
from leasehold.worker.batching.batch_builder import BatchBuilder
from leasehold.worker.batching.batcher import Batcher, BufferedBytes
from leasehold.worker.checkpointing.checkpoints import Checkpoints
from leasehold.worker.delivery.served_shard import ServedShard, WorkerContext
from leasehold.worker.delivery.shard_consumer import HandlerKind, ShardConsumer
from leasehold.worker.user_code.engine_calls import EngineCalls
from leasehold.worker.user_code.handler_runners import HandlerRunners, traceback_without_message

LOGGER: Final = logging.getLogger("leasehold.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardServer:
    """Serves the shards of a worker. One call serves one shard during one lease session."""

    handler: HandlerKind
    context: WorkerContext
    runners: HandlerRunners
    streams: Streams
    read: ReadSettings
    deaggregation: DeaggregationSettings
    consumers: StreamConsumers | None  # None: the streams are polled
    budget: ByteBudget
    # Set near the end of the grace period: stop waiting for handlers, so that the leases can still be released.
    abandon: asyncio.Event

    async def __call__(self, held: HeldLease) -> None:
        """Serve one shard."""
        tracked = self.streams.of(held.lease)
        if tracked is None:  # the stream was removed while the lease was taken
            held.drain()
            return
        await first_of(held.wait_for_parents(tracked.stream), held.draining.wait())
        if held.draining.is_set():
            return
        shard = self._make_shard(held, tracked)
        consumer = self.handler.consumer_for(shard)
        has_finished = False
        try:
            has_finished = await self._serve(shard, consumer, tracked)
        except Exception as error:
            if not isinstance(error, LeaseholdError):
                LOGGER.error(  # noqa: TRY400 - `exception` would log the message, which may contain a payload
                    "a bug: shard=%s %s at\n%s",
                    held.lease.key,
                    type(error).__name__,
                    traceback_without_message(error),
                )
            raise
        finally:
            if not has_finished:
                consumer.lease_lost()
            shard.close()

    async def _serve(self, shard: ServedShard, consumer: ShardConsumer, tracked: TrackedStream) -> bool:
        """Serve to the end of the shard or of the lease session. Returns False if it abandoned a handler."""
        checkpoints = shard.checkpoints
        tasks: list[Coroutine[Any, Any, object]] = [
            self._consume(shard, consumer, tracked),
            self.abandon.wait(),
        ]
        if checkpoints.is_automatic:
            tasks.append(checkpoints.store_periodically())
        if (background := consumer.background()) is not None:
            tasks.append(background)
        await first_of(*tasks)
        return not self.abandon.is_set()

    async def _consume(self, shard: ServedShard, consumer: ShardConsumer, tracked: TrackedStream) -> None:
        """Read the shard and deliver its batches, then end the shard or shut down."""
        await consumer.start()
        async with self._read_chunks(shard, tracked) as chunks:
            batcher = self._make_batcher(shard, chunks, with_idle_pages=consumer.wants_idle_pages)
            chunks.skip_pages(batcher.skip_page)
            try:
                while (pending := await batcher.next()) is not None:
                    await consumer.handle(pending)
            finally:
                await batcher.close()
        if batcher.is_exhausted and batcher.children is not None:
            await consumer.end_shard(batcher.children)
        if not shard.held.has_ended:
            await consumer.shut_down()

    def _read_chunks(
        self, shard: ServedShard, tracked: TrackedStream
    ) -> AbstractAsyncContextManager[ReadAhead]:
        held = shard.held
        start, initial = lease_start(held.lease, tracked.initial, is_first_reading=held.is_first_reading)
        return read_shard(
            ReadRequest(
                shard=held.shard,
                start=start,
                initial=initial,
                hash_range=held.lease.hash_range,
                follows_parent=held.follows_parent,
            ),
            ReadContext(
                stream=tracked.stream,
                settings=self.read,
                deaggregation=self.deaggregation,
                budget=self.budget,
                clock=self.context.clock,
                rng=self.context.rng,
                observe=shard.observe,
                subscribes_once=False,
                consumer=None if self.consumers is None else self.consumers.of(tracked.name),
            ),
        )

    def _make_batcher(
        self, shard: ServedShard, chunks: AsyncIterator[ReadChunk], *, with_idle_pages: bool
    ) -> Batcher:
        builder = BatchBuilder(
            shard.checkpoints.progress.stored,
            self.context.settings.batch,
            pinned_end=shard.pin.end if shard.pin else None,
            pinned_bytes_max=self.read.buffer_bytes,
        )
        return Batcher(
            chunks,
            builder,
            held=shard.held,
            clock=self.context.clock,
            buffered=shard.checkpoints.buffered,
            with_idle_pages=with_idle_pages,
        )

    def _make_shard(self, held: HeldLease, tracked: TrackedStream) -> ServedShard:
        observe = with_stream(tracked.id, self.context.observe)
        pin = held.lease.pin
        if pin is not None and not (pin.end.is_record and pin.end > held.lease.checkpoint):
            pin = None  # no record lies before its end
        return ServedShard(
            stream=tracked.name,
            held=held,
            checkpoints=Checkpoints(
                held,
                buffered=BufferedBytes(self.budget),
                settings=self.context.settings.checkpoints,
                clock=self.context.clock,
                observe=observe,
            ),
            runner=self.runners.runner_for(held.lease.key, self.context.settings.records.concurrency),
            engine=EngineCalls(asyncio.get_running_loop()),
            context=self.context,
            observe=observe,
            pin=pin,
        )
