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

from leasehold.core.deaggregation import DeaggregationSettings
from leasehold.core.events import told_of
from leasehold.core.iterators import lease_start
from leasehold.errors import LeaseholdError, LeaseLostError
from leasehold.fleet.byte_budget import ByteBudget
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.reading import read_shard
from leasehold.fleet.slicing import Slice
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.settings import ReadSettings
from leasehold.worker.batch import Desk
from leasehold.worker.batching import Allowance, Batcher
from leasehold.worker.checkpoints import Checkpoints
from leasehold.worker.cutting import Cutter
from leasehold.worker.engine_calls import EngineCalls
from leasehold.worker.served_shard import Form, ServedShard, Session, Workplace
from leasehold.worker.user_code import UserCode, frames_of
from leasehold.worker.waiting import first_of

LOGGER: Final = logging.getLogger("leasehold.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardServer:
    """Serves the shards of a worker; one call is one shard during one holding of its lease."""

    form: Form
    workplace: Workplace
    user_code: UserCode
    streams: Streams
    read: ReadSettings
    deaggregation: DeaggregationSettings
    budget: ByteBudget
    # Set when the grace period is nearly over: leave handlers alone, so that the leases can still be released.
    abandon: asyncio.Event

    async def __call__(self, held: HeldLease) -> None:
        """Serve one shard."""
        await first_of(held.parents_ended(), held.draining.wait())
        if held.draining.is_set():
            return
        tracked = self.streams.of(held.lease)
        assert tracked is not None, "a member begins only leases of its own streams"
        shard = self._served(held, tracked)
        session = self.form.session(shard)
        in_good_order = False
        try:
            in_good_order = await self._serve(shard, session, tracked)
        except Exception as error:
            if not isinstance(error, LeaseholdError):
                LOGGER.error(  # noqa: TRY400 - `exception` would tell the text, which may be a payload
                    "a bug: shard=%s %s at\n%s", held.lease.key, type(error).__name__, frames_of(error)
                )
            raise
        finally:
            if not in_good_order:
                session.lost()
            shard.close()

    async def _serve(self, shard: ServedShard, session: Session, tracked: TrackedStream) -> bool:
        """Serve to the end of the shard or of the holding. False if user code had to be left behind."""
        checkpoints = shard.desk.checkpoints
        tasks: list[Coroutine[Any, Any, object]] = [
            self._work(shard, session, tracked),
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

    async def _work(self, shard: ServedShard, session: Session, tracked: TrackedStream) -> None:
        """Begin, read, hand over; then end the shard or give it back."""
        await session.begin()
        async with self._reading(shard, tracked) as slices:
            batcher = self._batcher(shard, slices)
            try:
                while (cut := await batcher.next()) is not None:
                    await session.take(cut)
            finally:
                await batcher.close()
        if batcher.is_exhausted and batcher.children is not None:
            await session.end(batcher.children)
        if not shard.desk.held.ended:
            await session.drained()

    def _reading(
        self, shard: ServedShard, tracked: TrackedStream
    ) -> AbstractAsyncContextManager[AsyncIterator[Slice]]:
        held = shard.desk.held
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
            clock=self.workplace.clock,
            rng=self.workplace.rng,
            observe=shard.workplace.observe,
            follows_parent=held.follows_parent,
        )

    def _batcher(self, shard: ServedShard, slices: AsyncIterator[Slice]) -> Batcher:
        desk, pin = shard.desk, shard.pin
        cutter = Cutter(
            desk.checkpoints.progress.stored,
            self.workplace.settings.batch,
            pinned_end=pin.end if pin else None,
            pinned_bytes_max=self.read.buffer_bytes,
        )
        return Batcher(slices, cutter, held=desk.held, clock=self.workplace.clock, allowance=desk.allowance)

    def _served(self, held: HeldLease, tracked: TrackedStream) -> ServedShard:
        workplace = replace(
            self.workplace, stream=tracked.name, observe=told_of(tracked.id, self.workplace.observe)
        )
        allowance = Allowance(self.budget)
        checkpoints = Checkpoints(
            held,
            allowance=allowance,
            settings=workplace.settings.checkpoints,
            clock=workplace.clock,
            observe=workplace.observe,
        )
        engine = EngineCalls(asyncio.get_running_loop())
        desk = Desk(held, checkpoints, allowance, engine)
        pin = held.lease.pin
        if pin is not None and not (pin.end.is_record and pin.end > held.lease.checkpoint):
            pin = None  # nothing lies before it
        return ServedShard(desk, self.user_code.lane(held.lease.key), workplace, pin)

    async def _store_rest(self, checkpoints: Checkpoints) -> None:
        if checkpoints.is_automatic:
            await checkpoints.store_what_is_done()
