"""Where reading stands in one shard: pages that follow each other without repeats, however often the iterator has to be
renewed. Asks once and passes every error on; when to ask, and when to ask again, is the reader's business.

The rules of `core.iterators` in use: a shard is entered *at* the last record that was read. That record then comes
back and is dropped here. If it does not come back it was trimmed, and perhaps others after it: a gap. It is told with
the first record that comes instead or, if none does, at the end of the shard.

A continued iterator would pass over trimmed records in silence. So, once reading is so far behind that trimming is
near, the shard is entered anew after every page that brought something.

A shard that begins at TRIM_HORIZON asks for what is there, and nothing is missing; unless it goes on where a parent
ended that was read to its end. Then everything in it was to be read, and a beginning that is trimmed is a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.core.events import GapFound, Observer
from leasehold.core.model import InitialPosition, ShardId
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
from leasehold.ports import Clock, Page, Stream


@dataclass(frozen=True, slots=True)
class _Look:
    """When the shard was last looked at, on both clocks, and how far behind it was then."""

    now_ms: int
    wall_ms: int
    millis_behind: int


class Cursor:
    """A place in a shard that moves forward with every page."""

    def __init__(
        self,
        stream: Stream,
        shard: ShardId,
        *,
        start: Position,
        initial: InitialPosition,
        follows_parent: bool,
        verify_when_behind_ms: int,
        clock: Clock,
        observe: Observer,
        iterator: str | None = None,
    ) -> None:
        """`iterator` is one that stands right after `start` and was used a moment ago, so that nothing is missing."""
        self._stream = stream
        self._shard = shard
        self._initial = initial
        self._verify_when_behind_ms = verify_when_behind_ms
        self._clock = clock
        self._observe = observe
        self._position = start
        self._follows_parent = follows_parent and start == TRIM_HORIZON
        # Whether `_position` is a record that was read here, and not the start, of which a part may be left to read.
        self._has_read = False
        self._iterator = iterator
        self._entered_first_wall_ms: int | None = None
        self._last_look: _Look | None = None
        # The record that the next page must begin with, or there is a gap.
        self._awaited: Position | None = None

    async def read(self, limit: int) -> tuple[Page, Sequence[Record]]:
        """The next page as it came, and what in it is new."""
        if self._iterator is None:
            self._iterator = await self._enter()
        page = await self._stream.get_records(self._iterator, limit=limit)
        self._iterator = page.next_iterator
        self._last_look = _Look(self._clock.now_ms(), self._clock.wall_ms(), page.millis_behind or 0)
        if not page.records:
            if page.next_iterator is None and self._awaited:
                self._tell(Gap(self._awaited, resumes_at=None, resumes_at_arrival_ms=None))
            return page, ()
        self._report_gap(page.records[0])
        new = self._without_repeats(page.records)
        if new:
            self._position = Position(new[-1].sequence_number)
            self._has_read = True
            if self._is_trimming_near():
                self._iterator = None
        return page, new

    def renew(self) -> None:
        """The iterator is of no more use: take another before the next page."""
        self._iterator = None

    def report_unread_rest(self) -> None:
        """The shard is gone before its end was read: a gap, unless all there was had just been read."""
        if (self._position.is_record or self._follows_parent) and (self._awaited or not self._is_near_tip()):
            self._tell(Gap(self._position, resumes_at=None, resumes_at_arrival_ms=None))

    async def _enter(self) -> str:
        asked_wall_ms = self._clock.wall_ms()
        if self._entered_first_wall_ms is None:
            if self._follows_parent:
                self._awaited = await self._trimmed_beginning()
            start = iterator_start(self._position, self._initial)
        else:
            start = replacement_start(self._position, self._initial, self._entered_first_wall_ms)
        iterator = await self._stream.iterator(self._shard, start)
        self._entered_first_wall_ms = self._entered_first_wall_ms or asked_wall_ms
        if self._position.is_record and self._is_trimming_near():
            self._awaited = self._position
        return iterator

    async def _trimmed_beginning(self) -> Position | None:
        try:
            listed = await self._stream.list_shards(ShardFilter(ShardFilterKind.AT_TRIM_HORIZON))
        except (NotFoundError, ThrottledError, UnavailableError):
            raise
        except ServiceError:
            return None  # we may not ask, or not so; that is no reason not to read
        return trimmed_beginning(self._shard, listed)

    def _is_trimming_near(self) -> bool:
        """Whether what comes next may be trimmed already. If not, the record to enter at may well be gone, for there
        may have been none after it for days, but nothing was lost.
        """
        look = self._last_look
        if look is None:
            return True
        # The monotonic clock stands still in a suspended machine; the other one may be put back.
        since_ms = max(self._clock.now_ms() - look.now_ms, self._clock.wall_ms() - look.wall_ms)
        return look.millis_behind + since_ms > self._verify_when_behind_ms

    def _is_near_tip(self) -> bool:
        """Whether, at a last look that is not long ago, there was nothing more to read."""
        look = self._last_look
        return look is not None and look.millis_behind == 0 and not self._is_trimming_near()

    def _report_gap(self, first: Record) -> None:
        awaited, self._awaited = self._awaited, None
        gap = awaited and gap_before(awaited, first.sequence_number, first.arrival_ms)
        if gap:
            self._tell(gap)

    def _tell(self, gap: Gap) -> None:
        self._observe(GapFound(self._shard, gap))

    def _without_repeats(self, records: Sequence[Record]) -> Sequence[Record]:
        """Only a shard that was entered anew repeats records; one look at the first tells."""
        if not self._has_read:
            return records
        last = self._position.number
        if int(records[0].sequence_number) > last:
            return records
        return [record for record in records if int(record.sequence_number) > last]
