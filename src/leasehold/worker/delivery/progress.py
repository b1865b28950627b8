"""How far one shard is: what was given out, what is done, what is stored. Decides what may be stored next.

Records are given out in portions, in shard order. They may be finished in any order (a program that iterates over a
shard may work on several at once); what is *done* ends before the first portion that is not finished. Reaches nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from leasehold.core.position import Position


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """Some records of a shard, given out together. `reached` is how far into it everything is done."""

    end: Position
    records: int
    buffered_bytes: int = 0  # of read-ahead that nobody needs once it is finished
    reached: Position | None = None
    is_finished: bool = False


class Progress:
    """The progress of one shard during one holding of its lease.

    >>> progress = Progress(Position("10"))
    >>> first, second = progress.give(Position("20"), 5), progress.give(Position("30"), 5)
    >>> progress.finish(second)
    >>> progress.worth_storing() is None
    True
    >>> progress.finish(first)
    >>> progress.worth_storing()
    Position(sequence_number='30', sub_sequence_number=0)
    """

    def __init__(self, stored: Position, prepared: Position | None = None) -> None:
        self.stored = stored
        self.prepared = prepared  # a two-phase checkpoint that is not completed
        self.done = stored
        self.given = stored
        self.records_since_stored = 0
        self._freed_bytes = 0
        self._open: deque[InFlightBatch] = deque()

    @property
    def is_all_done(self) -> bool:
        """Nothing that was given out is unfinished."""
        return not self._open

    def give(self, end: Position, records: int, buffered_bytes: int = 0) -> InFlightBatch:
        """A new portion goes out, after all the others; it ends at `end`."""
        assert end >= self.given, f"{end} goes out after {self.given}"
        portion = InFlightBatch(end, records, buffered_bytes)
        self._open.append(portion)
        self.given = end
        return portion

    def advance(self, portion: InFlightBatch, to: Position) -> None:
        """Within a portion everything up to `to` is done."""
        portion.reached = to
        self._settle()

    def finish(self, portion: InFlightBatch) -> None:
        """A portion is done. Finishing it twice is as good."""
        self._mark_finished(portion)
        self._settle()

    def declare(self, at: Position) -> None:
        """Someone who must know says that everything up to `at` is done."""
        for portion in self._open:
            if portion.end <= at:
                self._mark_finished(portion)
        self.done = max(self.done, at)
        self._settle()

    def take_freed_bytes(self) -> int:
        """What the portions finished since the last call had buffered; each is counted once, whoever finished it."""
        freed_bytes, self._freed_bytes = self._freed_bytes, 0
        return freed_bytes

    def worth_storing(self) -> Position | None:
        """What should be stored now, if anything. Storing clears a prepared checkpoint, so that is passed first."""
        if self.done <= self.stored or (self.prepared is not None and self.done < self.prepared):
            return None
        return self.done

    def note_stored(self, at: Position) -> None:
        """The table knows that everything up to `at` is done; what was prepared is settled with it."""
        self.stored = at
        self.prepared = None
        if at >= self.done:
            self.records_since_stored = 0

    def _mark_finished(self, portion: InFlightBatch) -> None:
        if not portion.is_finished:
            portion.is_finished = True
            self._freed_bytes += portion.buffered_bytes

    def _settle(self) -> None:
        while self._open and self._open[0].is_finished:
            portion = self._open.popleft()
            self.done = max(self.done, portion.end)
            self.records_since_stored += portion.records
        if self._open and self._open[0].reached is not None:
            self.done = max(self.done, self._open[0].reached)
