"""Stores how far a shard is done. Follows the handlers, on the settings' terms; never goes past an unfinished one.

All of it runs on the engine's loop. Whoever held the lease before and still runs somewhere gets LeaseLostError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from leasehold.config.settings import milliseconds
from leasehold.core.events import Checkpointed, Observer
from leasehold.core.model import ChildShard
from leasehold.core.position import SHARD_END, Position
from leasehold.errors import CheckpointRejectedError, LeaseLostError
from leasehold.fleet.held_lease import HeldLease
from leasehold.ports import Clock
from leasehold.worker.delivery.batcher import BufferedBytes
from leasehold.worker.delivery.progress import InFlightBatch, Progress
from leasehold.worker.settings import Checkpointing, CheckpointSettings
from leasehold.worker.waiting import first_of


class Checkpoints:
    """The checkpoints of one shard during one holding of its lease."""

    def __init__(
        self,
        held: HeldLease,
        *,
        allowance: BufferedBytes,
        settings: CheckpointSettings,
        clock: Clock,
        observe: Observer,
    ) -> None:
        pin = held.lease.pin
        self.progress = Progress(held.lease.checkpoint, pin.end if pin else None)
        self.all_done = asyncio.Event()
        self.all_done.set()
        self._held = held
        self._allowance = allowance
        self._settings = settings
        self._clock = clock
        self._observe = observe
        self._writing = asyncio.Lock()
        self._moved = asyncio.Event()
        self._stored_at_ms = clock.now_ms()
        self._is_closed = False
        self._when_moved: Callable[[], object] = lambda: None
        held.write_pending_checkpoint = self._store_with_heartbeat

    @property
    def is_automatic(self) -> bool:
        """Whether handlers that return move the checkpoint."""
        return self._settings.checkpoint is Checkpointing.AUTOMATIC

    def call_when_moved(self, note: Callable[[], object]) -> None:
        """From now on tell `note` whenever something got done, by whatever way."""
        self._when_moved = note

    def give(self, end: Position, records: int, buffered_bytes: int) -> InFlightBatch:
        """Records up to `end` go out to user code."""
        self.all_done.clear()
        return self.progress.give(end, records, buffered_bytes)

    def advance(self, portion: InFlightBatch, to: Position) -> None:
        """A part of a portion is done."""
        self.progress.advance(portion, to)
        self._note_moved()

    async def finish(self, portion: InFlightBatch) -> None:
        """A portion is done; store it if that is due now."""
        self.progress.finish(portion)
        self._note_moved()
        if self.is_automatic and self._wait_ms() == 0:
            await self.store_what_is_done()

    async def store_what_is_done(self) -> None:
        """Store the furthest position that may be stored, if the table does not know it."""
        async with self._writing:
            await self._store_what_is_done()

    async def store(self, at: Position) -> None:
        """User code says: everything up to `at` is done. Stores it now."""
        async with self._writing:
            self._require_open()
            if at > self.progress.given:
                raise CheckpointRejectedError(
                    f"shard {self._held.shard}: {at} is beyond {self.progress.given}, the last record given to the "
                    "handler; only what was delivered can be done"
                )
            if at < self.progress.stored:
                raise CheckpointRejectedError(
                    f"shard {self._held.shard}: {at} is before {self.progress.stored}, which is stored already; "
                    "checkpoints never go back"
                )
            self.progress.declare(at)
            self._note_moved()
            if at > self.progress.stored:
                await self._write(at)

    async def prepare(self, start: Position, end: Position, state: bytes | None) -> None:
        """The first half of a two-phase checkpoint of the records in `(start, end]`.

        What lies before `start` is stored first, where it is done: the next owner would otherwise find a longer range.
        """
        async with self._writing:
            self._require_open()
            self.progress.prepared = None
            if self.progress.stored < start <= self.progress.done:
                await self._write(start)
            await self._held.prepare_checkpoint(end, state)
            self.progress.prepared = end

    async def end_shard(self, children: Sequence[ChildShard]) -> None:
        """Everything is done: store the end of the shard, together with its children's leases."""
        async with self._writing:
            self._require_open()
            # The end may have to wait for the other parent of a merge; what is done should not wait with it.
            await self._store_what_is_done()
            await self._held.finish(children)
            self.progress.note_stored(SHARD_END)

    async def keep_storing(self) -> None:
        """Store what is done again and again, a while after it was done; at once when the lease is wanted back."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            await first_of(self._time_to_store(), self._held.draining.wait())
            await self.store_what_is_done()

    def close(self) -> None:
        """The shard is served no longer; whoever still tries to store something is told so."""
        self._is_closed = True

    def _note_moved(self) -> None:
        # Here and nowhere else: a batch may be done by its handler's return, by `done`, or by a checkpoint by hand.
        self._allowance.release(self.progress.take_freed_bytes())
        if self.progress.is_all_done:
            self.all_done.set()
        if self.progress.worth_storing() is not None:
            self._moved.set()
        self._when_moved()

    def _wait_ms(self) -> int:
        """How long what is done may wait before it is stored."""
        records_max = self._settings.checkpoint_records
        if records_max is not None and self.progress.records_since_stored >= records_max:
            return 0
        if self.progress.stored.is_sentinel:
            return 0  # a lease at LATEST that changes hands would skip what arrived in between
        every_ms = milliseconds(self._settings.checkpoint_every)
        if every_ms >= self._held.renew_ms:
            every_ms += self._held.renew_ms // 2  # a heartbeat comes before, and takes it along
        return max(0, self._stored_at_ms + every_ms - self._clock.now_ms())

    async def _time_to_store(self) -> None:
        while (wait_ms := self._wait_ms()) > 0:
            await self._clock.sleep_ms(wait_ms)

    async def _store_with_heartbeat(self) -> bool:
        """A heartbeat is due, and costs a write anyway: let it be one that stores what is done, if anything is."""
        if not self.is_automatic or self._writing.locked():
            return False
        async with self._writing:
            return await self._store_what_is_done()

    async def _store_what_is_done(self) -> bool:
        at = self.progress.worth_storing()
        if at is None or self._is_closed:
            return False
        await self._write(at)
        return True

    async def _write(self, at: Position) -> None:
        began_ms = self._clock.now_ms()
        await self._held.checkpoint(at)
        self.progress.note_stored(at)
        self._stored_at_ms = self._clock.now_ms()
        self._observe(Checkpointed(self._held.shard, at, self._stored_at_ms - began_ms))

    def _require_open(self) -> None:
        if self._is_closed:
            raise LeaseLostError(
                f"shard {self._held.shard} is no longer served here: nothing can be stored; records after "
                f"{self.progress.stored} are read again by its next owner"
            )
