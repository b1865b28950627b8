"""Waits for slices of a shard and makes batches of them, until the shard ends or its lease is wanted back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from leasehold.core.model import ChildShard
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.chunking import RECORD_OVERHEAD_BYTES, ReadChunk
from leasehold.ports import Clock
from leasehold.worker.delivery.batch_builder import BatchBuilder, PendingBatch
from leasehold.worker.waiting import cancelled


class BufferedBytes:
    """What one shard has taken from the byte budget of the process."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._owed_bytes = 0

    def owe(self, size_bytes: int) -> None:
        """A slice has arrived."""
        self._owed_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """A batch is done. After `settle` there is nothing left to give."""
        size_bytes = min(size_bytes, self._owed_bytes)
        self._owed_bytes -= size_bytes
        self._budget.release(size_bytes)

    def settle(self) -> None:
        """The shard is served no longer."""
        self.release(self._owed_bytes)


class Batcher:
    """Makes batches from the slices of one shard."""

    def __init__(
        self,
        slices: AsyncIterator[ReadChunk],
        cutter: BatchBuilder,
        *,
        held: HeldLease,
        clock: Clock,
        allowance: BufferedBytes,
    ) -> None:
        self.children: tuple[ChildShard, ...] | None = None
        self._slices = slices
        self._cutter = cutter
        self._held = held
        self._clock = clock
        self._allowance = allowance
        self._draining = asyncio.ensure_future(held.draining.wait())
        self._asked: asyncio.Future[ReadChunk] | None = None

    async def next(self) -> PendingBatch | None:
        """The next batch. None: the lease is wanted back, or the last batch was the shard's last."""
        while not self._held.draining.is_set():
            due_ms = self._cutter.due_ms()
            if due_ms is not None and due_ms <= self._clock.now_ms():
                return self._cutter.cut()
            if self.is_exhausted:
                return None
            await self._wait_for_more(due_ms)
        return None

    @property
    def is_exhausted(self) -> bool:
        """All of the shard was given out, to its end."""
        return self.children is not None and self._cutter.due_ms() is None

    async def close(self) -> None:
        """Stop waiting. What is owed by then is to be settled."""
        asked = self._asked
        await cancelled(self._draining, *([asked] if asked else []))
        if asked and not asked.cancelled() and asked.exception() is None:
            # It came while a batch was being handled. Nobody will see it; its bytes must be given back all the same.
            self._allowance.owe(asked.result().size_bytes)

    async def _wait_for_more(self, due_ms: int | None) -> None:
        """Until a slice has come, the time is over, or the lease is wanted back."""
        # Asking is never cancelled half way: a slice would get lost.
        self._asked = self._asked or asyncio.ensure_future(anext(self._slices))
        waits: set[asyncio.Future[Any]] = {self._asked, self._draining}
        timer = None
        if due_ms is not None:
            timer = asyncio.ensure_future(self._clock.sleep_ms(due_ms - self._clock.now_ms()))
            waits.add(timer)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if timer is not None:
                await cancelled(timer)
        if self._asked.done():
            slice_, self._asked = self._asked.result(), None
            self._take_in(slice_)

    def _take_in(self, slice_: ReadChunk) -> None:
        self._held.note_progress()
        self._held.note_delivered(slice_.size_bytes - RECORD_OVERHEAD_BYTES * len(slice_.records))
        self._allowance.owe(slice_.size_bytes)
        self._cutter.add(slice_, self._clock.now_ms())
        self.children = slice_.children
        if self._cutter.pinned_end is not None:
            # A pinned range must fit, whatever others hold; it was held in memory once before.
            self._allowance.release(slice_.size_bytes)
