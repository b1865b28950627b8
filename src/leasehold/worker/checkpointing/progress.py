"""Tracks how far one shard is: which records were delivered, which are done, and which position is stored.

Batches are delivered in shard order and may finish in any order, because a program that iterates over a shard may work
on several batches at once. The *done* position ends before the first unfinished batch. This module has no effects.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from leasehold.core.model import Pin
from leasehold.core.position import Position


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """A batch that was delivered. `done_through` is the position up to which its records are done, if any are."""

    end: Position
    records: int
    buffered_bytes: int  # read-ahead bytes that are free once the batch is finished
    done_through: Position | None = None
    is_finished: bool = False


class Progress:
    """The progress of one shard during one lease session.

    >>> progress = Progress(Position("10"))
    >>> first, second = progress.begin(Position("20"), 5), progress.begin(Position("30"), 5)
    >>> progress.finish(second)
    >>> progress.position_to_store() is None
    True
    >>> progress.finish(first)
    >>> progress.position_to_store()
    Position(sequence_number='30', sub_sequence_number=0)
    """

    def __init__(self, stored: Position, prepared: Pin | None = None) -> None:
        self.stored = stored
        self.prepared = prepared  # a two-phase checkpoint that is not committed yet
        self.done = stored
        self.delivered = stored
        self.first: Position | None = None  # the first record of this lease session
        self.records_since_stored = 0
        self._freed_bytes = 0
        self._in_flight: deque[InFlightBatch] = deque()

    @property
    def is_all_done(self) -> bool:
        """True if no delivered batch is unfinished."""
        return not self._in_flight

    def note_first(self, first: Position) -> None:
        """Remember the first position that was delivered, if it is that of a record."""
        if self.first is None and first.is_record:
            self.first = first

    def is_before_first(self, at: Position) -> bool:
        """Whether `at` comes before all records. After a stored record, it is between records of this shard."""
        return (
            self.first is not None
            and self.stored.is_sentinel
            and at.is_record
            and at.number < self.first.number
        )

    def begin(self, end: Position, records: int, buffered_bytes: int = 0) -> InFlightBatch:
        """Add a batch that is delivered after all others and ends at `end`."""
        assert end >= self.delivered, f"a batch up to {end} is delivered after {self.delivered}"
        batch = InFlightBatch(end, records, buffered_bytes)
        self._in_flight.append(batch)
        self.delivered = end
        return batch

    def advance(self, batch: InFlightBatch, to: Position) -> None:
        """Mark the records of a batch up to `to` as done."""
        batch.done_through = to
        self._advance_done()

    def finish(self, batch: InFlightBatch) -> None:
        """Mark a batch as done. Finishing it twice has no further effect."""
        self._mark_finished(batch)
        self._advance_done()

    def declare_done(self, at: Position) -> None:
        """Mark everything up to `at` as done, because user code said so."""
        for batch in self._in_flight:
            if batch.end <= at:
                self._mark_finished(batch)
        self.done = max(self.done, at)
        self._advance_done()

    def pop_freed_bytes(self) -> int:
        """Return the buffered bytes of all batches that finished since the last call. Each batch counts once."""
        freed_bytes, self._freed_bytes = self._freed_bytes, 0
        return freed_bytes

    def prepared_within(self, start: Position, end: Position) -> Pin | None:
        """Return the prepared checkpoint, if it ends among the records in `(start, end]`."""
        pin = self.prepared
        return pin if pin is not None and start < pin.end <= end else None

    def prepared_for(self, start: Position, end: Position) -> Pin | None:
        """Return the prepared checkpoint, if it is for exactly the records in `(start, end]`."""
        pin = self.prepared
        return pin if pin is not None and (self.stored, pin.end) == (start, end) else None

    def position_to_store(self) -> Position | None:
        """Return the position to store now, or None.

        A write clears the prepared checkpoint, so nothing is stored until the done position has reached its end.
        """
        if self.done <= self.stored or (self.prepared is not None and self.done < self.prepared.end):
            return None
        return self.done

    def mark_stored(self, at: Position) -> None:
        """Record that the lease table holds `at`. The write also cleared the prepared checkpoint."""
        self.stored = at
        self.prepared = None
        if at >= self.done:
            self.records_since_stored = 0

    def _mark_finished(self, batch: InFlightBatch) -> None:
        if not batch.is_finished:
            batch.is_finished = True
            self._freed_bytes += batch.buffered_bytes

    def _advance_done(self) -> None:
        while self._in_flight and self._in_flight[0].is_finished:
            batch = self._in_flight.popleft()
            self.done = max(self.done, batch.end)
            self.records_since_stored += batch.records
        if self._in_flight and self._in_flight[0].done_through is not None:
            self.done = max(self.done, self._in_flight[0].done_through)
