"""The position of a reader in one shard: returns pages without repeats, even when the iterator has to be replaced.

A cursor sends one request at a time and raises every error. The reader decides when to read and when to retry.

A new iterator starts *at* the last record that was read (the rules are in `core.records.iterators`). That record comes
back and is dropped here. If it does not come back, it was trimmed, and perhaps others after it: a gap. The gap is
reported with the first record that comes instead, or at the end of the shard if none comes.

An iterator that Kinesis returned with a page skips trimmed records silently. So, once reading is so far behind that
trimming is near, the cursor requests a new iterator after every page with records.

Reading from TRIM_HORIZON asks for the records that are there, so nothing is missing. The exception is a shard whose
parent was read to its end: every record of it was to be read, and a trimmed beginning is a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.config.settings import milliseconds
from leasehold.core.events import GapFound
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.record import Record
from leasehold.core.records.iterators import (
    Gap,
    gap_before,
    iterator_start,
    replacement_start,
    trimmed_beginning,
)
from leasehold.core.shards.lease_creation import ShardFilter, ShardFilterKind
from leasehold.errors import NotFoundError, ServiceError, ThrottledError, UnavailableError
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.ports import Page


@dataclass(frozen=True, slots=True)
class _PageTime:
    """When the last page was read, on both clocks, and how far behind the tip it was."""

    now_ms: int
    wall_ms: int
    millis_behind: int


class Cursor:
    """A position in one shard that moves forward with every page."""

    def __init__(self, request: ReadRequest, context: ReadContext) -> None:
        self._request = request
        self._context = context
        self._position = request.start
        self._follows_parent = request.follows_parent and request.start == TRIM_HORIZON
        # False while `_position` is the start: a part of that record may still have to be read.
        self._has_read = False
        self._iterator = request.iterator
        self._first_iterator_wall_ms: int | None = None
        self._last_page: _PageTime | None = None
        # The record that the next page must begin with; otherwise there is a gap.
        self._expected: Position | None = None

    @property
    def position(self) -> Position:
        """The last record that was read, or the start."""
        return self._position

    async def read(self, limit: int) -> tuple[Page, Sequence[Record]]:
        """Read the next page. Return it as it came, and its new records."""
        if self._iterator is None:
            self._iterator = await self._request_iterator()
        page = await self._context.stream.get_records(self._iterator, limit=limit)
        self._iterator = page.next_iterator
        clock = self._context.clock
        self._last_page = _PageTime(clock.now_ms(), clock.wall_ms(), page.millis_behind or 0)
        if not page.records:
            if page.next_iterator is None and self._expected:
                self._report(Gap(self._expected, resumes_at=None, resumes_at_arrival_ms=None))
            return page, ()
        self._report_gap_before(page.records[0])
        new = self._without_repeats(page.records)
        if new:
            self._position = Position(new[-1].sequence_number)
            self._has_read = True
            if self._is_trimming_near():
                self._iterator = None
        return page, new

    def discard_iterator(self) -> None:
        """The iterator is unusable: request a new one before the next page."""
        self._iterator = None

    def report_unread_rest(self) -> None:
        """The shard was deleted before its end was read: report a gap, unless everything had just been read."""
        could_read_more = self._position.is_record or self._follows_parent
        if could_read_more and (self._expected or not self._is_near_tip()):
            self._report(Gap(self._position, resumes_at=None, resumes_at_arrival_ms=None))

    async def _request_iterator(self) -> str:
        requested_wall_ms = self._context.clock.wall_ms()
        initial = self._request.initial
        if self._first_iterator_wall_ms is None:
            if self._follows_parent:
                self._expected = await self._trimmed_beginning()
            start = iterator_start(self._position, initial)
        else:
            start = replacement_start(self._position, initial, self._first_iterator_wall_ms)
        iterator = await self._context.stream.get_iterator(self._request.shard, start)
        self._first_iterator_wall_ms = self._first_iterator_wall_ms or requested_wall_ms
        if self._position.is_record and self._is_trimming_near():
            self._expected = self._position
        return iterator

    async def _trimmed_beginning(self) -> Position | None:
        shard_filter = ShardFilter(ShardFilterKind.AT_TRIM_HORIZON)
        try:
            listed = await self._context.stream.list_shards(shard_filter)
        except (NotFoundError, ThrottledError, UnavailableError):
            raise
        except ServiceError:
            return None  # ListShards or this filter is not permitted; the shard can be read all the same
        return trimmed_beginning(self._request.shard, listed)

    def _is_trimming_near(self) -> bool:
        """Whether the next records may be trimmed already.

        If not, the last record may still be gone, because no record came after it for days, but none was lost.
        """
        last = self._last_page
        if last is None:
            return True
        # The monotonic clock stops while the machine is suspended; the wall clock may be set back.
        clock = self._context.clock
        since_ms = max(clock.now_ms() - last.now_ms, clock.wall_ms() - last.wall_ms)
        return last.millis_behind + since_ms > milliseconds(self._context.settings.check_gaps_when_behind)

    def _is_near_tip(self) -> bool:
        """Whether a recent page showed that there was nothing more to read."""
        last = self._last_page
        return last is not None and last.millis_behind == 0 and not self._is_trimming_near()

    def _report_gap_before(self, first: Record) -> None:
        expected, self._expected = self._expected, None
        gap = expected and gap_before(expected, first.sequence_number, first.arrival_ms)
        if gap:
            self._report(gap)

    def _report(self, gap: Gap) -> None:
        self._context.observe(GapFound(self._request.shard, gap))

    def _without_repeats(self, records: Sequence[Record]) -> Sequence[Record]:
        """Drop records that were read before. Only a new iterator repeats records, so the first record decides."""
        if not self._has_read:
            return records
        last = self._position.number
        if int(records[0].sequence_number) > last:
            return records
        return [record for record in records if int(record.sequence_number) > last]
