"""Waits for chunks of a shard and turns them into batches, until the shard ends or its lease must be released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from leasehold.core.model import ChildShard
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.chunking import RECORD_OVERHEAD_BYTES, ReadChunk
from leasehold.ports import Clock
from leasehold.tasks import cancel_and_wait
from leasehold.worker.batching.batch_builder import BatchBuilder, PendingBatch


class BufferedBytes:
    """The bytes that one shard uses of the process's read-ahead budget."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._used_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count a chunk that has arrived. The reader has acquired its bytes from the budget."""
        self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release the bytes of a finished batch. After `release_all` nothing is left to release."""
        size_bytes = min(size_bytes, self._used_bytes)
        self._used_bytes -= size_bytes
        self._budget.release(size_bytes)

    def release_all(self) -> None:
        """Release the rest, because the shard is no longer served."""
        self.release(self._used_bytes)


class Batcher:
    """Builds batches from the chunks of one shard."""

    def __init__(
        self,
        chunks: AsyncIterator[ReadChunk],
        builder: BatchBuilder,
        *,
        held: HeldLease,
        clock: Clock,
        buffered: BufferedBytes,
        with_idle_pages: bool = False,
    ) -> None:
        self.children: tuple[ChildShard, ...] | None = None
        self._chunks = chunks
        self._builder = builder
        self._held = held
        self._clock = clock
        self._buffered = buffered
        self._with_idle_pages = with_idle_pages
        self._is_waiting = False
        self._draining = asyncio.ensure_future(held.draining.wait())
        self._next_chunk: asyncio.Future[ReadChunk] | None = None

    async def next(self) -> PendingBatch | None:
        """Return the next batch, or None after the shard's last batch or if the lease must be released."""
        while not self._held.draining.is_set():
            due_ms = self._builder.due_ms()
            if due_ms is not None and due_ms <= self._clock.now_ms():
                return self._builder.build()
            if self.is_exhausted:
                return None
            # The request for a chunk stays open across calls. To cancel it half-way could lose a chunk.
            self._next_chunk = self._next_chunk or asyncio.ensure_future(anext(self._chunks))
            await self._wait_for(self._next_chunk, due_ms)
            if self._next_chunk.done():
                chunk, self._next_chunk = self._next_chunk.result(), None
                if self._has_nothing_new(chunk):
                    self._held.note_progress()
                    continue
                budgeted_bytes = self._builder.add(chunk, self._clock.now_ms())
                self.children = chunk.children
                self._count(chunk, budgeted_bytes)
        return None

    def skip_page(self, page: ReadChunk) -> bool:
        """Count the page as progress and return True if `next` waits and need not get the page.

        While a handler works, a page is no progress: the shard may have stalled.
        """
        if not self._is_waiting or not self._has_nothing_new(page):
            return False
        self._held.note_progress()
        return True

    @property
    def is_exhausted(self) -> bool:
        """True if the shard was read to its end and all of it is in batches."""
        return self.children is not None and self._builder.due_ms() is None

    async def close(self) -> None:
        """Stop waiting. Afterwards `BufferedBytes.release_all` releases what this shard still uses."""
        pending = self._next_chunk
        try:
            await cancel_and_wait(self._draining, *([pending] if pending else []))
        finally:
            # Also if this task is cancelled meanwhile. A chunk that arrived during the last batch is never delivered,
            # but its bytes must be released, or other shards would wait for them for ever.
            if pending and pending.done() and not pending.cancelled() and pending.exception() is None:
                self._buffered.add(pending.result().size_bytes)

    async def _wait_for(self, chunk: asyncio.Future[ReadChunk], due_ms: int | None) -> None:
        """Wait until the chunk arrives, the next batch is due, or the lease must be released."""
        waits: set[asyncio.Future[Any]] = {chunk, self._draining}
        timer = None
        if due_ms is not None:
            timer = asyncio.ensure_future(self._clock.sleep_ms(due_ms - self._clock.now_ms()))
            waits.add(timer)
        self._is_waiting = True
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_waiting = False
            if timer is not None:
                await cancel_and_wait(timer)

    def _has_nothing_new(self, chunk: ReadChunk) -> bool:
        return not self._with_idle_pages and self._builder.is_idle_page(chunk)

    def _count(self, chunk: ReadChunk, budgeted_bytes: int) -> None:
        """Count an added chunk as progress, as throughput, and as buffered bytes."""
        self._held.note_progress()
        self._held.note_delivered(chunk.size_bytes - RECORD_OVERHEAD_BYTES * len(chunk.records))
        self._buffered.add(chunk.size_bytes)
        self._buffered.release(chunk.size_bytes - budgeted_bytes)
