"""Where one batch ends and the next begins: by records, bytes and waiting time. Aggregates may be cut anywhere.

The first batch is different when a former owner left a prepared checkpoint: it ends exactly there, whatever its size,
so that an effect which is named by its range gets the same name again. Decides only; who waits is in `batching`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.config.settings import milliseconds
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.fleet.reading.chunking import ReadChunk, payload_bytes
from leasehold.worker.settings import BatchSettings


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """One batch to be: the records after `start` up to `end`. Without records it only says how far the shard is."""

    records: tuple[UserRecord, ...]
    start: Position
    end: Position
    millis_behind: int | None = None
    buffered_bytes: int = 0  # of read-ahead that is free once this batch is done
    ends_shard: bool = False
    is_pinned: bool = False


@dataclass(slots=True)
class _Opened:
    """A slice of which `used` records are in batches already."""

    slice: ReadChunk
    arrived_ms: int
    payload_bytes: int
    used: int = 0

    @property
    def rest(self) -> Sequence[UserRecord]:
        records = self.slice.records
        return records[self.used :] if self.used else records


class BatchBuilder:
    """Holds what was read and not yet given to a handler."""

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
        self._opened: deque[_Opened] = deque()
        self._reached = start  # the last batch ends here
        self._seen = start  # everything up to here was added
        self._records = 0
        self._bytes = 0
        self._shard_ended = False

    def add(self, slice_: ReadChunk, now_ms: int) -> None:
        """The next slice of the shard has arrived."""
        opened = _Opened(slice_, now_ms, payload_bytes(slice_.records))
        self._opened.append(opened)
        self._records += len(slice_.records)
        self._bytes += opened.payload_bytes
        self._shard_ended = slice_.children is not None
        self._seen = _end_of(slice_) or self._seen
        if self._bytes > self._pinned_bytes_max:
            self.pinned_end = None  # too much to hold at once: the range is handled in several batches

    def due_ms(self) -> int | None:
        """When the next batch should be cut even if nothing else arrives; None: nothing is there."""
        if not self._opened:
            return None
        if self._is_complete():
            return 0
        if self.pinned_end is not None:
            return None
        return self._opened[0].arrived_ms + milliseconds(self._settings.max_wait)

    def cut(self) -> PendingBatch:
        """The next batch, of what is there."""
        start, end, behind_ms, buffered, size = self._reached, self._reached, None, 0, 0
        records: list[UserRecord] = []
        while self._opened:
            head, rest = self._opened[0], self._opened[0].rest
            behind_ms = head.slice.millis_behind
            fitting = self._fitting(head, rest, len(records), size)
            records += rest[:fitting]
            if fitting < len(rest):
                head.used += fitting
                end = rest[fitting - 1].position if fitting else end
                break
            end = _end_of(head.slice) or end
            size += head.payload_bytes
            buffered += head.slice.size_bytes
            self._bytes -= head.payload_bytes
            self._opened.popleft()
        pinned_end, self.pinned_end = self.pinned_end, None
        if pinned_end is not None and pinned_end <= self._seen:
            end = pinned_end
        self._reached = end
        self._records -= len(records)
        is_last = self._shard_ended and not self._opened
        return PendingBatch(
            tuple(records), start, end, behind_ms, buffered, is_last, is_pinned=end == pinned_end
        )

    def _is_complete(self) -> bool:
        """Whether the next batch gains nothing by waiting."""
        if self._shard_ended:
            return True
        if self.pinned_end is not None:
            return self._seen >= self.pinned_end
        return (
            not self._records  # no handler is called; only the position moves
            or self._records >= self._settings.max_records
            or self._bytes >= self._settings.max_bytes
        )

    def _fitting(self, head: _Opened, rest: Sequence[UserRecord], taken: int, size: int) -> int:
        """How many of the records still fit into a batch of `taken` records and `size` bytes."""
        if self.pinned_end is not None:
            return _up_to(self.pinned_end, rest)
        room = self._settings.max_records - taken
        if len(rest) <= room and size + head.payload_bytes <= self._settings.max_bytes:
            return len(rest)
        for index, record in enumerate(rest[:room]):
            size += len(record.data) + len(record.partition_key)
            if size > self._settings.max_bytes and taken + index > 0:
                return index
        return min(room, len(rest))


def _end_of(slice_: ReadChunk) -> Position | None:
    if slice_.read_through is not None:
        return slice_.read_through
    return slice_.records[-1].position if slice_.records else None


def _up_to(end: Position, records: Sequence[UserRecord]) -> int:
    if not records or records[-1].position <= end:
        return len(records)
    return sum(record.position <= end for record in records)
