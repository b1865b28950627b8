"""Decides which records of a pinned range are still to be written, from the object keys of the archive.

In normal operation all of them are: a range is pinned once and written once, under its own keys. After the loss of the
lease table, the stream is read again and split into other ranges. Then the object keys show which records are archived,
for each shard and *minute*. Arrival times are not monotonic around the change of a minute, so a range in one minute
says nothing about records of another minute between its ends. Within its own minute a range is complete, because every
object was split from a whole pinned range.

If the layout has another unit of time, hours or days take the place of minutes: the first minute of each stands for it.
A compacted object stands for the objects that it replaces: its range counts in each of its minutes.

The remaining records are split wherever an archived range lies between them. So the ranges of a shard and minute never
overlap. Every attempt computes the same keys, or some of them, whether its listing is older or newer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from leasehold.core.exactly_once.object_keys import ObjectKey
from leasehold.core.exactly_once.position_ranges import Range, RangeSet
from leasehold.core.model import ShardId
from leasehold.core.position import Position

# A later range may hold records with slightly earlier arrival times, because the clocks of Kinesis differ. A larger
# difference only costs another listing.
SLACK_MINUTES: Final = 5

NO_RANGES: Final = RangeSet()


@dataclass(frozen=True, slots=True)
class ArchivedRanges:
    """The archived ranges of one shard, from a minute on."""

    from_minute: int
    minutes: Mapping[int, RangeSet]
    last: Position | None  # the last archived position: nothing has to be skipped beyond it

    def in_minute(self, minute: int) -> RangeSet:
        """The archived ranges of the records that arrived in this minute."""
        return self.minutes.get(minute, NO_RANGES)


@dataclass(frozen=True, slots=True)
class ShardMemory:
    """What a listing found for a shard at the beginning of a lease session.

    `archived` is dropped once reading has passed its last range; only `last` and `from_minute` stay.
    """

    lease_session: str
    from_minute: int
    last: Position | None
    archived: ArchivedRanges | None

    @classmethod
    def of(cls, lease_session: str, archived: ArchivedRanges) -> ShardMemory:
        """The memory of a new lease session, from the listing made for it."""
        return cls(lease_session, archived.from_minute, archived.last, archived)

    def after(self, range_end: Position) -> ShardMemory:
        """The memory after a range was written. Drops ranges that are not needed any more."""
        if self.archived is None or (self.last is not None and range_end <= self.last):
            return self
        return ShardMemory(self.lease_session, self.from_minute, self.last, None)


def ranges_to_skip(
    remembered: ShardMemory | None, lease_session: str, range_: Range, first_minute: int
) -> ArchivedRanges | None:
    """The archived ranges to skip when a range is written. None: the archive has to be listed first.

    Another attempt at the same batch may write a range again. So the condition is that this range lies beyond
    everything archived, not that an earlier range did.
    """
    if (
        remembered is None
        or remembered.lease_session != lease_session
        or first_minute < remembered.from_minute
    ):
        return None
    if remembered.last is None or range_.first > remembered.last:
        return ArchivedRanges(remembered.from_minute, {}, None)
    return remembered.archived


def archived_by_shard(keys: Iterable[ObjectKey], from_minute: int) -> Mapping[ShardId, ArchivedRanges]:
    """Group the keys of a listing by shard."""
    ranges: defaultdict[ShardId, defaultdict[int, list[Range]]] = defaultdict(lambda: defaultdict(list))
    for key in keys:
        # A compacted object has every archived record of its minutes in its range.
        for minute in range(key.first_minute, key.minute + 1, key.layout.minutes):
            if minute >= from_minute:
                ranges[key.shard][minute].append(key.range)
    return {shard: _archived_ranges(minutes, from_minute) for shard, minutes in ranges.items()}


def _archived_ranges(minutes: Mapping[int, list[Range]], from_minute: int) -> ArchivedRanges:
    last = max((range_.last for ranges in minutes.values() for range_ in ranges), default=None)
    return ArchivedRanges(
        from_minute, {minute: RangeSet.of(ranges) for minute, ranges in minutes.items()}, last
    )


def runs_to_write(positions: Sequence[Position], done: RangeSet) -> Sequence[slice]:
    """The records of one minute that are not archived, as runs without an archived record between their ends.

    >>> done = RangeSet.of([Range(Position("20"), Position("30"))])
    >>> runs_to_write([Position("10"), Position("15"), Position("20"), Position("25"), Position("40")], done)
    [slice(0, 2, None), slice(4, 5, None)]
    """
    if not done:
        return [slice(0, len(positions))] if positions else []
    firsts, lasts = [each.first for each in done], [each.last for each in done]
    runs: list[slice] = []
    before_run: int | None = None  # the number of archived ranges before the current run; None: no run
    for index, position in enumerate(positions):
        before = bisect_left(lasts, position)
        if before < len(firsts) and firsts[before] <= position:
            before_run = None
        elif before == before_run:
            runs[-1] = slice(runs[-1].start, index + 1)
        else:
            runs.append(slice(index, index + 1))
            before_run = before
    return runs
