"""Decides where one batch ends and the next begins: by records, bytes and waiting time.

A batch may end inside a KPL aggregate. The first batch of a lease session is different if an earlier owner left a
prepared checkpoint: it ends exactly there, whatever its size, so that an effect that is named by its range gets the
same name again. This module has no effects; `batcher` does the waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.config.settings import milliseconds
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.core.records.record_columns import UserRecordSequence, as_user_records, join_user_records
from leasehold.fleet.reading.chunking import ReadChunk
from leasehold.worker.settings import BatchSettings


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A batch before its delivery: the records after `start`, up to and including `end`.

    Without records it only says that the shard was read up to `end`.
    """

    records: Sequence[UserRecord]
    start: Position
    end: Position
    millis_behind: int | None = None
    buffered_bytes: int = 0  # read-ahead bytes that are free once this batch is done
    ends_shard: bool = False
    is_pinned: bool = False


@dataclass(slots=True)
class _BufferedChunk:
    """A chunk whose first `used` records are in batches already."""

    chunk: ReadChunk
    arrived_ms: int
    records: UserRecordSequence
    budgeted_bytes: int = 0  # what it uses of the read-ahead budget
    used: int = 0

    @property
    def payload_bytes(self) -> int:
        return self.records.payload_bytes

    @property
    def unused_records(self) -> UserRecordSequence:
        return self.records[self.used :] if self.used else self.records


class BatchBuilder:
    """Buffers the chunks of one shard and builds batches from them."""

    def __init__(
        self,
        start: Position,
        settings: BatchSettings,
        *,
        pinned_end: Position | None = None,
        pinned_bytes_max: int = 0,
    ) -> None:
        self.pinned_end = pinned_end
        self._pinned_bytes_max = pinned_bytes_max
        self._settings = settings
        self._chunks: deque[_BufferedChunk] = deque()
        self._built_through = start  # the end of the last batch
        self._read_through = start  # everything up to here was added
        self._records = 0
        self._bytes = 0
        self._is_shard_read = False

    def add(self, chunk: ReadChunk, now_ms: int) -> int:
        """Add the next chunk of the shard. Return how many of its bytes count against the read-ahead budget.

        A pinned range is buffered whole, even beyond the budget, because its first owner had it in memory, too. One
        that is too large is given up.
        """
        buffered = _BufferedChunk(chunk, now_ms, as_user_records(chunk.records))
        self._chunks.append(buffered)
        self._records += len(chunk.records)
        self._bytes += buffered.payload_bytes
        self._is_shard_read = chunk.children is not None
        self._read_through = _end_of(chunk) or self._read_through
        if self._bytes > self._pinned_bytes_max:
            self.pinned_end = None  # too much to buffer at once: the range is delivered in several batches
        buffered.budgeted_bytes = chunk.size_bytes if self.pinned_end is None else 0
        return buffered.budgeted_bytes

    def is_idle_page(self, chunk: ReadChunk) -> bool:
        """Whether the chunk says no more than the ones before it: no records, the same position, and no end."""
        if self._chunks or chunk.size_bytes or chunk.children is not None or self.pinned_end is not None:
            return False
        return chunk.read_through is None or chunk.read_through == self._built_through

    def due_ms(self) -> int | None:
        """Return when to build the next batch even if no other chunk arrives, or None if nothing is due."""
        if not self._chunks:
            return None
        if self._is_complete():
            return 0
        if self.pinned_end is not None:
            return None
        return self._chunks[0].arrived_ms + milliseconds(self._settings.max_wait)

    def build(self) -> PendingBatch:
        """Build the next batch from the buffered chunks."""
        start, end, millis_behind, freed_bytes, size = self._built_through, self._built_through, None, 0, 0
        parts: list[UserRecordSequence] = []
        count = 0
        while self._chunks:
            head, unused = self._chunks[0], self._chunks[0].unused_records
            millis_behind = head.chunk.millis_behind
            fitting = self._count_fitting(head, unused, count, size)
            parts.append(unused[:fitting])
            count += fitting
            if fitting < len(unused):
                head.used += fitting
                end = unused.position(fitting - 1) if fitting else end
                break
            end = _end_of(head.chunk) or end
            size += head.payload_bytes
            freed_bytes += head.budgeted_bytes
            self._bytes -= head.payload_bytes
            self._chunks.popleft()
        pinned_end, self.pinned_end = self.pinned_end, None
        if pinned_end is not None and pinned_end <= self._read_through:
            end = pinned_end
        self._built_through = end
        self._records -= count
        is_last = self._is_shard_read and not self._chunks
        records = join_user_records(parts)
        return PendingBatch(
            records, start, end, millis_behind, freed_bytes, is_last, is_pinned=end == pinned_end
        )

    def _is_complete(self) -> bool:
        """Return whether the next batch gains nothing by waiting."""
        if self._is_shard_read:
            return True
        if self.pinned_end is not None:
            return self._read_through >= self.pinned_end
        return (
            not self._records  # no handler is called; only the position moves
            or self._records >= self._settings.max_records
            or self._bytes >= self._settings.max_bytes
        )

    def _count_fitting(self, head: _BufferedChunk, unused: UserRecordSequence, taken: int, size: int) -> int:
        """Return how many of the unused records fit into a batch that has `taken` records and `size` bytes."""
        if self.pinned_end is not None:
            return unused.count_to(self.pinned_end)
        room = self._settings.max_records - taken
        if len(unused) <= room and size + head.payload_bytes <= self._settings.max_bytes:
            return len(unused)
        fitting = unused[:room].count_within_bytes(self._settings.max_bytes - size)
        # The first record of a batch fits, whatever its size.
        return fitting if taken else min(room, max(1, fitting))


def _end_of(chunk: ReadChunk) -> Position | None:
    if chunk.read_through is not None:
        return chunk.read_through
    return chunk.records[-1].position if chunk.records else None
