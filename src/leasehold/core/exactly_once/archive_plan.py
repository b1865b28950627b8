"""What of a pinned range is still to be written, given what the archive holds. Decides; lists and writes nothing.

In normal operation nothing has to be left out: a range is pinned once, and written once under its own names. When the
lease table was lost, the stream is read again and cut differently. Then the archive itself says what is done: the
ranges in its names, per shard *and minute*. Arrival times are not monotonic at the edge of a minute, so a range in one
minute says nothing about the records of another minute that lie between its ends. Within one minute it says everything,
since every object was cut from a whole pinned range.

What a range leaves to be written is cut again wherever the archive holds something in between. So the ranges of a shard
and minute never overlap, and every attempt, with an older or a newer list in hand, comes to the same names or to some
of them.
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

# Later ranges may hold records that arrived a little earlier, by the clocks of Kinesis. One that arrived earlier still
# costs another listing, nothing else.
SLACK_MINUTES: Final = 5

NOTHING: Final = RangeSet()


@dataclass(frozen=True, slots=True)
class ArchivedRanges:
    """What the archive holds of one shard, from a minute on."""

    from_minute: int
    minutes: Mapping[int, RangeSet]
    last: Position | None  # of everything held; beyond it there is nothing to leave out

    def in_minute(self, minute: int) -> RangeSet:
        """What is done of the records that arrived in this minute."""
        return self.minutes.get(minute, NOTHING)


@dataclass(frozen=True, slots=True)
class ShardMemory:
    """What was found out about a shard at the beginning of an ownership.

    `held` is forgotten once the stream has passed everything in it; only `last` and `from_minute` stay.
    """

    lease_session: str
    from_minute: int
    last: Position | None
    held: ArchivedRanges | None

    @classmethod
    def of(cls, lease_session: str, held: ArchivedRanges) -> ShardMemory:
        """A new ownership, with the list that was made for it."""
        return cls(lease_session, held.from_minute, held.last, held)

    def after(self, range_end: Position) -> ShardMemory:
        """The same after a range was written; forgets what can no longer matter."""
        if self.held is None or (self.last is not None and range_end <= self.last):
            return self
        return ShardMemory(self.lease_session, self.from_minute, self.last, None)


def ranges_to_skip(
    remembered: ShardMemory | None, lease_session: str, range_: Range, first_minute: int
) -> ArchivedRanges | None:
    """What to leave out of a range, as far as it is known; None: the archive has to be listed first.

    A range that was passed may come again (another attempt at the same batch), hence the question is not whether the
    stream has passed everything, but whether this range lies beyond it.
    """
    if (
        remembered is None
        or remembered.lease_session != lease_session
        or first_minute < remembered.from_minute
    ):
        return None
    if remembered.last is None or range_.first > remembered.last:
        return ArchivedRanges(remembered.from_minute, {}, None)
    return remembered.held


def archived_by_shard(keys: Iterable[ObjectKey], from_minute: int) -> Mapping[ShardId, ArchivedRanges]:
    """What a listing says, shard by shard."""
    ranges: defaultdict[ShardId, defaultdict[int, list[Range]]] = defaultdict(lambda: defaultdict(list))
    for key in keys:
        if key.minute >= from_minute:
            ranges[key.shard][key.minute].append(key.range)
    return {shard: _held(minutes, from_minute) for shard, minutes in ranges.items()}


def _held(minutes: Mapping[int, list[Range]], from_minute: int) -> ArchivedRanges:
    last = max((range_.last for ranges in minutes.values() for range_ in ranges), default=None)
    return ArchivedRanges(
        from_minute, {minute: RangeSet.of(ranges) for minute, ranges in minutes.items()}, last
    )


def runs_to_write(positions: Sequence[Position], done: RangeSet) -> Sequence[slice]:
    """Which of the records of one minute, given in order, are not done: in runs with nothing done between their ends.

    >>> done = RangeSet.of([Range(Position("20"), Position("30"))])
    >>> runs_to_write([Position("10"), Position("15"), Position("20"), Position("25"), Position("40")], done)
    [slice(0, 2, None), slice(4, 5, None)]
    """
    if not done:
        return [slice(0, len(positions))] if positions else []
    firsts, lasts = [each.first for each in done], [each.last for each in done]
    runs: list[slice] = []
    run_place = -1  # how many ranges that are done lie before the run
    for index, position in enumerate(positions):
        place = bisect_left(lasts, position)
        if place < len(firsts) and firsts[place] <= position:
            run_place = -1
        elif place == run_place:
            runs[-1] = slice(runs[-1].start, index + 1)
        else:
            runs.append(slice(index, index + 1))
            run_place = place
    return runs
