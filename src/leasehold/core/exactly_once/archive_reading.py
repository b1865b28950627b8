"""Decides which objects of an archive to read, so that each record is read once, and how far the archive has no gap.

Several objects may hold the same record: compaction merges objects of a shard into a larger one, and deletes the small
ones later. Within its shard and minutes an object holds every record between its ends, so its name says which records
it holds. An object whose minutes and range lie within those of a larger one is not read.

Names do not show gaps, because sequence numbers are not consecutive. But a writer creates the objects of a shard in
order, at most `PUTS_AHEAD` at a time, and begins a pinned range when the one before is complete. So only the newest
objects of a shard may have a gap before or between them, while a writer runs or after it was killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from leasehold.core.exactly_once.object_keys import Layout, ObjectKey, minute_path
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.position import Position

# Objects of one pinned range that a writer creates concurrently. It begins the next ones when these exist.
PUTS_AHEAD: Final = 8
# The newest objects of a shard, before which a gap is possible: those of one unfinished put of PUTS_AHEAD objects, and
# as many again, because records of neighbouring minutes interleave.
UNSETTLED_OBJECTS: Final = 2 * PUTS_AHEAD

MINUTES_PER_DAY: Final = 1_440
# A listing of single days stops early. Of more days, it is cheaper to list everything from the first one on.
DAYS_LISTED_MAX: Final = 62


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """An object to read. Of its records, only those after `after` are taken; None: all of them."""

    key: ObjectKey
    after: Position | None = None

    @property
    def range(self) -> Range:
        """The range of the records that are taken. Its first position is a bound, if `after` is set."""
        return Range(self.after or self.key.range.first, self.key.range.last)


@dataclass(frozen=True, slots=True)
class Section:
    """The positions of a shard from `first` on and before `before`. None: from the oldest record, to the newest."""

    first: Position | None = None
    before: Position | None = None

    def has(self, key: ObjectKey) -> bool:
        """Whether an object has positions of this section, by its name."""
        begins_before = self.before is None or key.range.first < self.before
        return begins_before and (self.first is None or key.range.last >= self.first)


EVERYTHING: Final = Section()


def plan_sections(objects: Mapping[ObjectKey, int], bytes_max: int) -> Sequence[Section]:
    """Divide the objects of a shard, given with their sizes, into sections of about `bytes_max`.

    Each record is in exactly one section. An object at the border of two sections may belong to both.
    """
    firsts: list[Position] = []
    size_bytes = 0
    for part in parts_to_read(objects):
        if size_bytes and size_bytes + objects[part.key] > bytes_max:
            firsts.append(part.range.first)
            size_bytes = 0
        size_bytes += objects[part.key]
    bounds = [None, *firsts, None]
    return [Section(first, before) for first, before in pairwise(bounds)] if objects else []


def parts_to_read(keys: Iterable[ObjectKey]) -> Sequence[ObjectPart]:
    """The objects of one shard to read, in the order of their first records, with each record in exactly one part.

    Objects that a larger object covers are left out. If two objects overlap otherwise, the later one is read from the
    end of the earlier one on. Parts of different minutes may interleave: the reader merges them by position.
    """
    partitions: defaultdict[tuple[int, int], list[ObjectKey]] = defaultdict(list)
    for key in _without_compacted(keys):
        partitions[key.first_minute, key.last_minute].append(key)
    parts = [part for members in partitions.values() for part in _without_covered(members)]
    return sorted(parts, key=lambda part: (part.range.first, part.key.minute))


def unsettled_from(keys: Iterable[ObjectKey]) -> Position | None:
    """The first position of a shard from which on the archive may have a gap. None: the shard has no objects.

    All records with lower sequence numbers are archived, from the first archived record on. Compaction must not cover
    positions from here on: a writer would take the range of the merged object for its own missing object.
    """
    parts = parts_to_read(keys)
    newest = sorted(parts, key=lambda part: (part.key.minute, part.range.first))[-UNSETTLED_OBJECTS:]
    return min((part.range.first for part in newest), default=None)


def day_paths(first_minute: int, last_minute: int | None, prefix: str = "") -> Sequence[str]:
    """The paths to list for the objects of some minutes: of single days, or of everything if they are many.

    >>> day_paths(28_333_333, 28_333_333, "orders")
    ['orders/2023/11/14', 'orders/dt=2023-11-14']
    """
    if last_minute is None or last_minute - first_minute > DAYS_LISTED_MAX * MINUTES_PER_DAY:
        return [prefix]
    days = range(first_minute // MINUTES_PER_DAY, last_minute // MINUTES_PER_DAY + 1)
    layouts = Layout.DAY, Layout.HIVE_DAY  # the folders of every layout are below one of these
    return [minute_path(day * MINUTES_PER_DAY, prefix, layout) for layout in layouts for day in days]


def _without_compacted(keys: Iterable[ObjectKey]) -> Iterable[ObjectKey]:
    """The objects that no compacted object replaces."""
    larger: list[ObjectKey] = []  # that end after the next object begins
    for key in in_order(keys):
        larger = [each for each in larger if each.range.last >= key.range.first]
        if not any(each.covers(key) for each in larger):
            yield key
            if key.is_compacted:
                larger.append(key)


def in_order(keys: Iterable[ObjectKey]) -> Sequence[ObjectKey]:
    """The objects of one shard by their first records. An object comes after those that cover it."""
    # Two sorts, of which the second keeps the order of the first: positions cannot be negated.
    by_end = sorted(keys, key=lambda each: (each.range.last, each.is_compacted), reverse=True)
    return sorted(by_end, key=lambda each: each.range.first)


def _without_covered(keys: Sequence[ObjectKey]) -> Iterable[ObjectPart]:
    """The parts of one shard and the same minutes."""
    furthest: Position | None = None
    for key in in_order(keys):
        if furthest is None or key.range.first > furthest:
            yield ObjectPart(key)
        elif key.range.last > furthest:
            yield ObjectPart(key, after=furthest)
        else:
            continue
        furthest = key.range.last
