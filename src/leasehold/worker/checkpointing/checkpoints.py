"""Stores how far one shard is done. The stored position never passes an unfinished batch.

All methods run on the engine's event loop. After the lease session has ended, writes raise LeaseLostError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from leasehold.config.settings import milliseconds
from leasehold.core.events import Checkpointed, Observer
from leasehold.core.model import ChildShard, Pin
from leasehold.core.position import SHARD_END, Position
from leasehold.errors import CheckpointRejectedError, LeaseLostError
from leasehold.fleet.held_lease import HeldLease
from leasehold.ports import Clock
from leasehold.tasks import first_of
from leasehold.worker.batching.batch_builder import PendingBatch
from leasehold.worker.batching.batcher import BufferedBytes
from leasehold.worker.checkpointing.progress import InFlightBatch, Progress
from leasehold.worker.settings import Checkpointing, CheckpointSettings


class Checkpoints:
    """Accounts for the batches of one shard during one lease session, and stores its checkpoints."""

    def __init__(
        self,
        held: HeldLease,
        *,
        buffered: BufferedBytes,
        settings: CheckpointSettings,
        clock: Clock,
        observe: Observer,
    ) -> None:
        self.held = held
        self.progress = Progress(held.lease.checkpoint, held.lease.pin)
        self.all_done = asyncio.Event()
        self.all_done.set()
        self.buffered = buffered
        self._settings = settings
        self._clock = clock
        self._observe = observe
        self._writing = asyncio.Lock()
        self._has_more_to_store = asyncio.Event()
        self._stored_at_ms = clock.now_ms()
        self._is_closed = False
        self._on_progress: Callable[[], object] = lambda: None
        held.store_pending(self)

    @property
    def is_automatic(self) -> bool:
        """True if a handler that returns moves the checkpoint."""
        return self._settings.checkpoint is Checkpointing.AUTOMATIC

    def on_progress(self, callback: Callable[[], object]) -> None:
        """Call `callback` from now on whenever records are done."""
        self._on_progress = callback

    def begin(self, pending: PendingBatch) -> InFlightBatch:
        """Record that a batch is delivered to user code."""
        self.held.note_progress()
        self.all_done.clear()
        self.progress.note_first(pending.records[0].position if pending.records else pending.end)
        return self.progress.begin(pending.end, len(pending.records), pending.buffered_bytes)

    def advance(self, batch: InFlightBatch, to: Position) -> None:
        """Mark the records of a batch up to `to` as done."""
        self.progress.advance(batch, to)
        self._after_progress()

    async def finish(self, batch: InFlightBatch) -> None:
        """Mark a batch as done, and store its end if a checkpoint is due."""
        self.held.note_progress()
        self.progress.finish(batch)
        self._after_progress()
        if self.is_automatic and not self._is_closed and self._wait_ms() == 0:
            await self._store_done()

    async def pass_over(self, pending: PendingBatch) -> None:
        """Move the position past a batch that has nothing for user code."""
        await self.finish(self.begin(pending))

    async def store_with_heartbeat(self) -> bool:
        """Store the done position instead of a plain heartbeat, since both cost one write. Returns whether it wrote."""
        if not self.is_automatic or self._writing.locked():
            return False
        return await self._store_done()

    async def store_before_release(self) -> None:
        """Store the done position, also after `close`: the lease is still ours."""
        if self.is_automatic:
            await self._store_done()

    async def store(self, at: Position) -> None:
        """Store `at`, because user code said that everything up to it is done."""
        async with self._writing:
            self._require_open()
            if at > self.progress.delivered:
                raise CheckpointRejectedError(
                    f"shard {self.held.shard}: {at} is beyond {self.progress.delivered}, the last record delivered to "
                    "the handler; checkpoint only delivered records"
                )
            if at < self.progress.stored:
                raise CheckpointRejectedError(
                    f"shard {self.held.shard}: {at} is before {self.progress.stored}, which is stored already; "
                    "checkpoints never move backwards"
                )
            self._require_within_shard(at)
            self.progress.declare_done(at)
            self._after_progress()
            if at > self.progress.stored:
                await self._write(at)

    async def prepare(self, start: Position, end: Position, state: bytes | None) -> None:
        """Write the first half of a two-phase checkpoint of the records in `(start, end]`.

        Stores `start` first if everything before it is done. Otherwise the next owner would find a longer range. If
        the write fails, an earlier range stays prepared: its effect may exist.
        """
        async with self._writing:
            self._require_open()
            self._require_within_shard(end)
            if self.progress.stored < start <= self.progress.done:
                await self._write(start)
            await self.held.prepare_checkpoint(end, state)
            self.progress.prepared = Pin(end, state)

    async def end_shard(self, children: Sequence[ChildShard]) -> None:
        """Store the end of the shard together with the leases of its children."""
        async with self._writing:
            self._require_open()
            # Writing the end may have to wait for the other parent of a merge, so store the done position first.
            await self._write(self.progress.position_to_store())
            await self.held.finish(children)
            self.progress.mark_stored(SHARD_END)

    async def store_periodically(self) -> None:
        """Store the done position whenever a checkpoint is due, and at once when the lease must be released."""
        while True:
            await self._has_more_to_store.wait()
            self._has_more_to_store.clear()
            await first_of(self._wait_until_due(), self.held.draining.wait())
            await self._store_done()

    def close(self) -> None:
        """End the accounting. User code can store nothing more, and all buffered bytes are released."""
        self._is_closed = True
        self.buffered.release_all()

    def _after_progress(self) -> None:
        # Every way to finish a batch ends here: a handler that returns, `done`, and a manual checkpoint.
        self.buffered.release(self.progress.pop_freed_bytes())
        if self.progress.is_all_done:
            self.all_done.set()
        if self.progress.position_to_store() is not None:
            self._has_more_to_store.set()
        self._on_progress()

    def _wait_ms(self) -> int:
        """Return how long the done position may wait before it is stored."""
        records_max = self._settings.checkpoint_records
        if records_max is not None and self.progress.records_since_stored >= records_max:
            return 0
        if self.progress.stored.is_sentinel:
            return 0  # a new owner of a lease at LATEST would skip the records that arrived in between
        every_ms = milliseconds(self._settings.checkpoint_every)
        if every_ms >= self.held.renew_ms:
            every_ms += self.held.renew_ms // 2  # a heartbeat comes earlier and writes the checkpoint
        return max(0, self._stored_at_ms + every_ms - self._clock.now_ms())

    async def _wait_until_due(self) -> None:
        while (wait_ms := self._wait_ms()) > 0:
            await self._clock.sleep_ms(wait_ms)

    async def _store_done(self) -> bool:
        """Store the done position if the table does not hold it yet. Returns whether it wrote."""
        async with self._writing:
            return await self._write(self.progress.position_to_store())

    async def _write(self, at: Position | None) -> bool:
        """Write a checkpoint, unless `at` is None. The caller holds the lock. Returns whether it wrote."""
        if at is None:
            return False
        began_ms = self._clock.now_ms()
        await self.held.checkpoint(at)
        self.progress.mark_stored(at)
        self._stored_at_ms = self._clock.now_ms()
        self._observe(Checkpointed(self.held.shard, at, self._stored_at_ms - began_ms))
        return True

    def _require_within_shard(self, at: Position) -> None:
        """Raise if `at` comes before all records, as a number of another shard may: nobody could read from there."""
        if self.progress.is_before_first(at):
            raise CheckpointRejectedError(
                f"shard {self.held.shard}: {at} is before {self.progress.first}, the first record delivered to the "
                "handler; checkpoint only records of this shard"
            )

    def _require_open(self) -> None:
        if self._is_closed:
            raise LeaseLostError(
                f"shard {self.held.shard} is no longer served here: nothing can be stored; its next owner reads the "
                f"records after {self.progress.stored} again"
            )
