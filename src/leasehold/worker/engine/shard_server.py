"""One shard from "wait for its parents" to "its end is stored", in linear code: what a member runs for each lease.

Cancelled when the lease is lost: then nothing more is stored, and a handler that still runs ends by itself. Returns
when the shard has ended, or when the lease is wanted back and what was in hand is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

from leasehold.config.settings import ReadSettings
from leasehold.core.events import with_stream
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.core.records.iterators import lease_start
from leasehold.errors import LeaseholdError, LeaseLostError
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.chunking import ReadChunk
from leasehold.fleet.reading.shard_reader import read_shard
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.worker.batch import ShardAccounting
from leasehold.worker.delivery.batch_builder import BatchBuilder
from leasehold.worker.delivery.batcher import Batcher, BufferedBytes
from leasehold.worker.delivery.checkpoints import Checkpoints
from leasehold.worker.delivery.served_shard import HandlerKind, ServedShard, ShardConsumer, WorkerContext
from leasehold.worker.user_code.engine_calls import EngineCalls
from leasehold.worker.user_code.handler_runners import HandlerRunners, traceback_without_message
from leasehold.worker.waiting import first_of

LOGGER: Final = logging.getLogger("leasehold.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardServer:
    """Serves the shards of a worker; one call is one shard during one holding of its lease."""

    form: HandlerKind
    context: WorkerContext
    user_code: HandlerRunners
    streams: Streams
    read: ReadSettings
    deaggregation: DeaggregationSettings
    budget: ByteBudget
    # Set when the grace period is nearly over: leave handlers alone, so that the leases can still be released.
    abandon: asyncio.Event

    async def __call__(self, held: HeldLease) -> None:
        """Serve one shard."""
        await first_of(held.wait_for_parents(), held.draining.wait())
        if held.draining.is_set():
            return
        tracked = self.streams.of(held.lease)
        assert tracked is not None, "a member begins only leases of its own streams"
        shard = self._served(held, tracked)
        shard_consumer = self.form.shard_consumer(shard)
        in_good_order = False
        try:
            in_good_order = await self._serve(shard, shard_consumer, tracked)
        except Exception as error:
            if not isinstance(error, LeaseholdError):
                LOGGER.error(  # noqa: TRY400 - `exception` would tell the text, which may be a payload
                    "a bug: shard=%s %s at\n%s",
                    held.lease.key,
                    type(error).__name__,
                    traceback_without_message(error),
                )
            raise
        finally:
            if not in_good_order:
                shard_consumer.lost()
            shard.close()

    async def _serve(self, shard: ServedShard, shard_consumer: ShardConsumer, tracked: TrackedStream) -> bool:
        """Serve to the end of the shard or of the holding. False if user code had to be left behind."""
        checkpoints = shard.accounting.checkpoints
        tasks: list[Coroutine[Any, Any, object]] = [
            self._work(shard, shard_consumer, tracked),
            self.abandon.wait(),
        ]
        if checkpoints.is_automatic:
            tasks.append(checkpoints.keep_storing())
        try:
            await first_of(*tasks)
        except LeaseLostError:
            raise
        except LeaseholdError:
            await self._store_rest(checkpoints)
            raise
        await self._store_rest(checkpoints)
        return not self.abandon.is_set()

    async def _work(self, shard: ServedShard, shard_consumer: ShardConsumer, tracked: TrackedStream) -> None:
        """Begin, read, hand over; then end the shard or give it back."""
        await shard_consumer.begin()
        async with self._reading(shard, tracked) as slices:
            batcher = self._batcher(shard, slices)
            try:
                while (cut := await batcher.next()) is not None:
                    await shard_consumer.take(cut)
            finally:
                await batcher.close()
        if batcher.is_exhausted and batcher.children is not None:
            await shard_consumer.end(batcher.children)
        if not shard.accounting.held.ended:
            await shard_consumer.drained()

    def _reading(
        self, shard: ServedShard, tracked: TrackedStream
    ) -> AbstractAsyncContextManager[AsyncIterator[ReadChunk]]:
        held = shard.accounting.held
        start, initial = lease_start(held.lease, tracked.initial, is_first_reading=held.is_first_reading)
        return read_shard(
            tracked.stream,
            held.shard,
            start=start,
            initial=initial,
            hash_range=held.lease.hash_range,
            settings=self.read,
            deaggregation=self.deaggregation,
            budget=self.budget,
            clock=self.context.clock,
            rng=self.context.rng,
            observe=shard.context.observe,
            follows_parent=held.follows_parent,
        )

    def _batcher(self, shard: ServedShard, slices: AsyncIterator[ReadChunk]) -> Batcher:
        accounting, pin = shard.accounting, shard.pin
        cutter = BatchBuilder(
            accounting.checkpoints.progress.stored,
            self.context.settings.batch,
            pinned_end=pin.end if pin else None,
            pinned_bytes_max=self.read.buffer_bytes,
        )
        return Batcher(
            slices, cutter, held=accounting.held, clock=self.context.clock, allowance=accounting.allowance
        )

    def _served(self, held: HeldLease, tracked: TrackedStream) -> ServedShard:
        context = replace(
            self.context, stream=tracked.name, observe=with_stream(tracked.id, self.context.observe)
        )
        allowance = BufferedBytes(self.budget)
        checkpoints = Checkpoints(
            held,
            allowance=allowance,
            settings=context.settings.checkpoints,
            clock=context.clock,
            observe=context.observe,
        )
        engine = EngineCalls(asyncio.get_running_loop())
        accounting = ShardAccounting(held, checkpoints, allowance, engine)
        pin = held.lease.pin
        if pin is not None and not (pin.end.is_record and pin.end > held.lease.checkpoint):
            pin = None  # nothing lies before it
        return ServedShard(accounting, self.user_code.runner(held.lease.key), context, pin)

    async def _store_rest(self, checkpoints: Checkpoints) -> None:
        if checkpoints.is_automatic:
            await checkpoints.store_what_is_done()
