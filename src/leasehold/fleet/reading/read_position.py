"""How far one shard was read: where to start or to continue, which records are new, and which are missing.

Both ways of reading share it: polling (`cursor`) and subscriptions (`subscription_reader`).

Reading continues *at* the last record that was read (the rules are in `core.records.iterators`). That record comes
back and is dropped here. If it does not come back, it was trimmed, and perhaps others after it: a gap. The gap is
reported with the first record that comes instead, or at the end of the shard if none comes.

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
    IteratorKind,
    IteratorStart,
    gap_before,
    iterator_start,
    replacement_start,
    trimmed_beginning,
)
from leasehold.core.records.record_columns import RecordSequence, as_records
from leasehold.core.records.subscriptions import ReadProgress, required_first_record, subscription_start
from leasehold.core.shards.lease_creation import ShardFilter, ShardFilterKind
from leasehold.errors import NotFoundError, ServiceError, ThrottledError, UnavailableError
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest


@dataclass(frozen=True, slots=True)
class _ResponseTime:
    """When the last page or event was received, on both clocks, and how far behind the tip it was."""

    now_ms: int
    wall_ms: int
    millis_behind: int


class ReadPosition:
    """The position of a reader in one shard. It moves forward with every page and every event."""

    def __init__(self, request: ReadRequest, context: ReadContext) -> None:
        self._request = request
        self._context = context
        # `has_read` is False while the position is the start: a part of that record may still have to be read.
        self._progress = ReadProgress(request.start, has_read=False)
        self._follows_parent = request.follows_parent and request.start == TRIM_HORIZON
        self._first_start_wall_ms: int | None = None
        self._last_response: _ResponseTime | None = None
        # The record that the next records must begin with; otherwise there is a gap.
        self._expected: Position | None = None
        self._must_poll = False

    @property
    def position(self) -> Position:
        """The last record that was read, or the start."""
        return self._progress.position

    @property
    def is_far_behind(self) -> bool:
        """Whether records were received from so far behind that the next ones may be trimmed already."""
        return self.has_response and self.is_trimming_near()

    @property
    def has_response(self) -> bool:
        """Whether a page or an event was received."""
        return self._last_response is not None

    async def iterator_start(self) -> IteratorStart:
        """Where to request the next iterator."""
        if self._first_start_wall_ms is not None:
            return replacement_start(self.position, self._request.initial, self._first_start_wall_ms)
        if self._follows_parent:
            self._expected = await self._trimmed_beginning()
        return iterator_start(self.position, self._request.initial)

    async def subscription_start(self) -> IteratorStart:
        """Where to subscribe next. If trimming is near, this is the last record, so that a gap is noticed."""
        if self._request.iterator is not None and not self.has_response:
            # The iterator cannot be used here. It points right after the start.
            number = self.position.sequence_number
            return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=number)
        continued = None if self.is_trimming_near() else subscription_start(self._progress)
        return continued or await self.iterator_start()

    @property
    def may_subscribe(self) -> bool:
        """Whether a subscription can start where reading is now, and would skip no trimmed records silently."""
        if self._request.iterator is not None and not self.position.is_record:
            return False  # only the iterator knows where reading is
        return not self.is_far_behind and not self._must_poll

    def required_first_record(self, start: IteratorStart) -> Position | None:
        """The record that a subscription from `start` surely begins with: it was read before, and is not trimmed."""
        keeps_ms = milliseconds(self._context.settings.check_gaps_when_behind)
        return required_first_record(
            self._progress, start, self._context.clock.wall_ms(), keeps_records_ms=keeps_ms
        )

    def note_started(self, start: IteratorStart, requested_wall_ms: int) -> None:
        """An iterator was received, or a subscription was accepted, that was requested at `requested_wall_ms`."""
        self._first_start_wall_ms = self._first_start_wall_ms or requested_wall_ms
        is_at_position = (
            start.kind is IteratorKind.AT_SEQUENCE_NUMBER
            and start.sequence_number == self.position.sequence_number
        )
        if is_at_position and self.is_trimming_near():
            self._expected = self.position

    def accept(
        self, records: Sequence[Record], millis_behind: int | None, *, is_end: bool
    ) -> RecordSequence[Record]:
        """Move on by the records of a page or an event. Return those that were not read before."""
        found = as_records(records)
        clock = self._context.clock
        self._last_response = _ResponseTime(clock.now_ms(), clock.wall_ms(), millis_behind or 0)
        self._must_poll = self._must_poll and not records
        if not found:
            if is_end and self._expected:
                self._report(Gap(self._expected, resumes_at=None, resumes_at_arrival_ms=None))
            return found
        self._report_gap_before(found[0])
        new = self._without_repeats(found)
        if new:
            last = new[-1]
            self._progress = ReadProgress(
                Position(last.sequence_number), has_read=True, arrival_ms=last.arrival_ms
            )
        return new

    def note_skipped_records(self) -> None:
        """A subscription did not begin with the last record that was read. Polling finds out whether it was trimmed."""
        self._expected = self.position
        self._must_poll = True

    def note_continuation(self, continuation: str | None) -> None:
        """A subscription said where the next one may continue."""
        self._progress = self._progress.with_continuation(continuation)

    def report_unread_rest(self) -> None:
        """The shard was deleted before its end was read: report a gap, unless everything had just been read."""
        could_read_more = self.position.is_record or self._follows_parent
        if could_read_more and (self._expected or not self._is_near_tip()):
            self._report(Gap(self.position, resumes_at=None, resumes_at_arrival_ms=None))

    def is_trimming_near(self) -> bool:
        """Whether the next records may be trimmed already.

        If not, the last record may still be gone, because no record came after it for days, but none was lost.
        """
        last = self._last_response
        if last is None:
            return True
        # The monotonic clock stops while the machine is suspended; the wall clock may be set back.
        clock = self._context.clock
        since_ms = max(clock.now_ms() - last.now_ms, clock.wall_ms() - last.wall_ms)
        return last.millis_behind + since_ms > milliseconds(self._context.settings.check_gaps_when_behind)

    async def _trimmed_beginning(self) -> Position | None:
        shard_filter = ShardFilter(ShardFilterKind.AT_TRIM_HORIZON)
        try:
            listed = await self._context.stream.list_shards(shard_filter)
        except (NotFoundError, ThrottledError, UnavailableError):
            raise
        except ServiceError:
            return None  # ListShards or this filter is not permitted; the shard can be read all the same
        beginning = trimmed_beginning(self._request.shard, listed)
        if beginning is None:
            return None
        archived = await self._context.stream.list_archived()
        return None if any(each.id == self._request.shard for each in archived) else beginning

    def _is_near_tip(self) -> bool:
        """Whether a recent response showed that there was nothing more to read."""
        last = self._last_response
        return last is not None and last.millis_behind == 0 and not self.is_trimming_near()

    def _report_gap_before(self, first: Record) -> None:
        expected, self._expected = self._expected, None
        gap = expected and gap_before(expected, first.sequence_number, first.arrival_ms)
        if gap:
            self._report(gap)

    def _report(self, gap: Gap) -> None:
        self._context.observe(GapFound(self._request.shard, gap))

    def _without_repeats(self, records: RecordSequence[Record]) -> RecordSequence[Record]:
        """Drop records that were read before. Only a new start repeats records, so the first record decides."""
        if not self._progress.has_read:
            return records
        last = self.position.number
        if int(records[0].sequence_number) > last:
            return records
        return records.after_number(last)
