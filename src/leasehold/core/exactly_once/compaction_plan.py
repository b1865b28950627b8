"""Decides which small objects of an archive become one large object, from the names and sizes of the objects.

A compacted object claims all records of its shard in its minutes and between its ends. So readers and writers need only
names: an object that lies within a compacted one is *covered*, and is ignored. The claim must be true, now and later:

- A group of objects is cut only where ranges do not overlap. So no object outside the group lies within its claim.
- The newest objects of a shard, before which a writer may still create one, are left out (`unsettled_from`). A writer
  may also add older records, so everything from the first object on that was stored recently is left out, too.
- A group stays within one day (UTC), so a reader of some hours knows where to look.

Objects are rewritten a logarithmic number of times: no object of a group is larger than all others together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from leasehold.core.exactly_once import archive_reading
from leasehold.core.exactly_once.archive_reading import unsettled_from
from leasehold.core.exactly_once.object_keys import ObjectKey
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position

MINUTES_PER_DAY: Final = 1_440


@dataclass(frozen=True, slots=True)
class ArchivedObject:
    """An object of the archive, as a listing shows it."""

    name: str
    key: ObjectKey
    size_bytes: int
    modified_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CoveredObject:
    """An object, and the compacted one that replaces it."""

    object: ArchivedObject
    by: ArchivedObject


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """What may be compacted: objects whose minutes are before `closed_minute`, up to `target_bytes` together."""

    target_bytes: int
    closed_minute: int
    stored_before_ms: int | None = None  # by the clock of the store; None: the store reports no times


@dataclass(frozen=True, slots=True)
class Chain:
    """Objects of a shard whose ranges overlap, one with the next: as around the change of a minute. Often just one."""

    objects: tuple[ArchivedObject, ...]

    @property
    def size_bytes(self) -> int:
        """The size of its objects."""
        return sum(each.size_bytes for each in self.objects)

    @property
    def last(self) -> Position:
        """The last position of its objects."""
        return max(each.key.range.last for each in self.objects)


@dataclass(frozen=True, slots=True)
class Group:
    """Objects that become one, in order."""

    chains: tuple[Chain, ...]

    @property
    def objects(self) -> Sequence[ArchivedObject]:
        """The objects to merge."""
        return [each for chain in self.chains for each in chain.objects]

    @property
    def size_bytes(self) -> int:
        """The size of the objects."""
        return sum(each.size_bytes for each in self.chains)

    @property
    def key(self) -> ObjectKey:
        """The key of the object that replaces them."""
        objects = self.objects
        keys = [each.key for each in objects]
        return ObjectKey(
            max(key.minute for key in keys),
            keys[0].shard,
            Range(min(key.range.first for key in keys), max(key.range.last for key in keys)),
            keys[0].extension,
            min(key.first_minute for key in keys),
            keys[0].layout,
        )

    def split(self, chain: int) -> Sequence[Group]:
        """Two groups that end and begin at a chain. Leaves out those with a single object."""
        halves = Group(self.chains[:chain]), Group(self.chains[chain:])
        return [half for half in halves if len(half.objects) > 1]


def in_order(objects: Iterable[ArchivedObject]) -> list[ArchivedObject]:
    """The objects of one shard by their first records. An object comes after those that cover it."""
    by_key = {each.key: each for each in objects}
    return [by_key[key] for key in archive_reading.in_order(by_key)]


def covered_objects(objects: Iterable[ArchivedObject]) -> Mapping[str, CoveredObject]:
    """The objects that a compacted object replaces, by name. A reader ignores them."""
    covered: dict[str, CoveredObject] = {}
    shards: defaultdict[ShardId, list[ArchivedObject]] = defaultdict(list)
    for each in objects:
        shards[each.key.shard].append(each)
    for members in shards.values():
        larger: list[ArchivedObject] = []  # compacted objects that may cover the next ones
        for each in in_order(members):
            larger = [one for one in larger if one.key.range.last >= each.key.range.first]
            by = next((one for one in larger if one.key.covers(each.key)), None)
            if by is not None:
                covered[each.name] = CoveredObject(each, by)
            elif each.key.is_compacted:
                larger.append(each)
    return covered


def plan_compaction(objects: Iterable[ArchivedObject], limits: CompactionLimits) -> Sequence[Group]:
    """The groups of objects that become one object each. `objects` are those of one shard that nothing covers."""
    ordered = in_order(objects)
    unsettled = _unsettled_from(ordered, limits)
    groups: list[Group] = []
    current: list[Chain] = []
    current_bytes = 0
    for chain in _chains(ordered):
        may_be_merged = (
            unsettled is not None
            and chain.last < unsettled
            and _is_mergeable(chain, limits)
            and chain.size_bytes <= limits.target_bytes
        )
        is_full = current_bytes + chain.size_bytes > limits.target_bytes
        if current and (is_full or not may_be_merged or not _belong_together(current[0], chain)):
            groups += _worthwhile(current)
            current, current_bytes = [], 0
        if may_be_merged:
            current.append(chain)
            current_bytes += chain.size_bytes
    return [*groups, *_worthwhile(current)]


def _unsettled_from(objects: Sequence[ArchivedObject], limits: CompactionLimits) -> Position | None:
    """The first position that must not be compacted yet.

    A writer goes from lower to higher positions. So the first object that was stored recently shows where one may work:
    its next objects come after this one, and those that it creates concurrently come shortly before or after.
    """
    recent = [each.key.range.first for each in objects if _is_recent(each, limits)]
    if not recent:
        return unsettled_from(each.key for each in objects)
    written = min(recent)
    settled = unsettled_from(each.key for each in objects if each.key.range.first <= written)
    return written if settled is None else min(written, settled)


def _is_recent(each: ArchivedObject, limits: CompactionLimits) -> bool:
    """True if a writer stored the object recently. Compaction stored the large ones."""
    if each.key.is_compacted or each.modified_ms is None or limits.stored_before_ms is None:
        return False
    return each.modified_ms >= limits.stored_before_ms


def _chains(objects: Sequence[ArchivedObject]) -> Sequence[Chain]:
    chains: list[list[ArchivedObject]] = []
    last: Position | None = None
    for each in objects:
        if last is not None and each.key.range.first <= last:
            chains[-1].append(each)
            last = max(last, each.key.range.last)
        else:
            chains.append([each])
            last = each.key.range.last
    return [Chain(tuple(chain)) for chain in chains]


def _is_mergeable(chain: Chain, limits: CompactionLimits) -> bool:
    keys = [each.key for each in chain.objects]
    days = {minute // MINUTES_PER_DAY for key in keys for minute in (key.first_minute, key.minute)}
    formats = {(key.extension, key.layout) for key in keys}
    return (
        len(days) == 1
        and len(formats) == 1
        and all(key.last_minute < limits.closed_minute and key.has_positions for key in keys)
    )


def _belong_together(one: Chain, other: Chain) -> bool:
    first, next_ = one.objects[0].key, other.objects[0].key
    return (first.extension, first.layout, first.minute // MINUTES_PER_DAY) == (
        next_.extension,
        next_.layout,
        next_.minute // MINUTES_PER_DAY,
    )


def _worthwhile(chains: Sequence[Chain]) -> Sequence[Group]:
    """The groups of these chains in which no chain is larger than all others together."""
    if sum(len(each.objects) for each in chains) < 2:
        return []
    sizes = [each.size_bytes for each in chains]
    largest = max(range(len(chains)), key=sizes.__getitem__)
    if len(chains) == 1 or 2 * sizes[largest] <= sum(sizes):
        return [Group(tuple(chains))]
    return [*_worthwhile(chains[:largest]), *_worthwhile(chains[largest + 1 :])]
