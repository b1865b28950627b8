"""Checks an archive: is every record there once, in the object that its name promises?

What the archive alone can tell: overlaps (two objects of a shard and minute claim the same positions), duplicates (a
record in two objects, or twice in one), and damage (an object that cannot be read, or holds other records than its name
says). Sequence numbers have holes by nature, so gaps show only beside the stream: records that it still holds, between
the first and the last that were archived (or are done by the lease), and that the archive does not hold. What the
stream has trimmed cannot be checked any more.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, Final

import pyarrow.compute as pc

from leasehold.archive.archive import MARKER
from leasehold.archive.columns import SHARD_ID
from leasehold.archive.formats import decode_identity
from leasehold.archive.rows import arrival_minutes, positions_of
from leasehold.core.exactly_once.object_keys import ObjectKey, key_from_text
from leasehold.core.model import Shard, ShardId
from leasehold.core.position import Position
from leasehold.core.records.deaggregation import DeaggregationSettings, deaggregate_all
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import ThrottledError, UnavailableError
from leasehold.ports import Clock, ObjectStore, Page, Stream

READS_AT_ONCE: Final = 16
ATTEMPTS_MAX: Final = 8
RETRY_MS: Final = 500  # a live reader takes its share of five reads a second
RECORDS_A_CALL: Final = 10_000

# How many objects are done.
Progress = Callable[[int], None]


class ProblemKind(Enum):
    """What can be wrong."""

    OVERLAP = "overlap"
    DUPLICATE = "duplicate"
    DAMAGE = "damage"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `place` is an object, or a position in the shard."""

    wrong: ProblemKind
    shard: ShardId
    place: str
    detail: str


@dataclass(frozen=True, slots=True)
class ArchivedObject:
    """An object of the archive, by its name."""

    name: str
    key: ObjectKey
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """What there is, by shard and in stream order. `others` counts objects whose names are not ours."""

    shards: Mapping[ShardId, Sequence[ArchivedObject]]
    others: int


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One shard after it was checked."""

    shard: ShardId
    rows: int
    problems: Sequence[Problem]
    first: Position | None
    last: Position | None
    positions: frozenset[Position]  # of all its records, if they were asked for


async def list_archive(store: ObjectStore, prefix: str) -> ArchiveContents:
    """All objects below the prefix."""
    shards: defaultdict[ShardId, list[ArchivedObject]] = defaultdict(list)
    others = 0
    async for portion in store.list_after("", prefix=prefix):
        for each in portion:
            key = key_from_text(each.key, prefix)
            if key is not None:
                shards[key.shard].append(ArchivedObject(each.key, key, each.size_bytes))
            elif not each.key.endswith(MARKER):
                others += 1
    for objects in shards.values():
        objects.sort(key=lambda each: (_order(each.key.range.first), each.key.minute))
    return ArchiveContents(dict(sorted(shards.items())), others)


async def verify_shard(
    store: ObjectStore,
    shard: ShardId,
    objects: Sequence[ArchivedObject],
    progress: Progress,
    *,
    keep_positions: bool = False,
) -> ShardReport:
    """Read every object of a shard, in stream order, and compare them with their names and with each other."""
    problems = list(_overlaps(shard, objects))
    seen = _Seen(keep_all=keep_positions)
    async for each, positions, problem in _contents(store, objects):
        progress(1)
        if problem:
            problems.append(Problem(ProblemKind.DAMAGE, shard, each.name, problem))
        again = seen.add(each.key, positions)
        if again:
            problems.append(
                Problem(ProblemKind.DUPLICATE, shard, each.name, f"{again} of {len(positions)} records")
            )
    every = frozenset().union(*(positions for _, positions in seen.sets)) if keep_positions else frozenset()
    return ShardReport(shard, seen.rows, tuple(problems), seen.first, seen.last, every)


class _Seen:
    """The records that were met, as far as one that is still to come could be the same."""

    def __init__(self, *, keep_all: bool) -> None:
        self.rows = 0
        self.first: Position | None = None
        self.last: Position | None = None
        self.sets: list[tuple[Position, frozenset[Position]]] = []
        self._keep_all = keep_all

    def add(self, key: ObjectKey, positions: Sequence[Position]) -> int:
        """Note the records of the next object; returns how many were met before."""
        new = frozenset(positions)
        if not self._keep_all:
            # Objects come in the order of their first records: what ends before this one meets nobody any more.
            self.sets = [each for each in self.sets if each[0] >= key.range.first]
        known = new & frozenset().union(*(met for last, met in self.sets if last >= key.range.first))
        self.sets.append((key.range.last, new))
        self.rows += len(positions)
        ends = [each for each in (self.first, self.last, *positions[:1], *positions[-1:]) if each is not None]
        self.first, self.last = min(ends, key=_order, default=None), max(ends, key=_order, default=None)
        return len(positions) - len(new) + len(known)


async def find_gap(
    stream: Stream, shard: Shard, verdict: ShardReport, done: Position | None, *, clock: Clock
) -> Problem | None:
    """Whether the stream holds records of this shard that should be archived and are not.

    `done` is the checkpoint of the shard's lease, if that is known: what it calls done must be there.
    """
    done = done if done is not None and (done.is_record or done.is_shard_end) else None
    first = verdict.first or done
    until = max(filter(None, (verdict.last, done)), key=_order, default=None)
    if first is None or until is None:
        return None
    missing: list[Position] = []
    async for position in _positions_in(stream, shard, until, clock):
        is_ours = first <= position or (not verdict.positions and until.is_shard_end)
        if is_ours and position not in verdict.positions:
            missing.append(position)
    if not missing:
        return None
    detail = f"{len(missing)} records that the stream holds, to {missing[-1]}"
    return Problem(ProblemKind.GAP, shard.id, str(missing[0]), detail)


def _overlaps(shard: ShardId, objects: Sequence[ArchivedObject]) -> Iterator[Problem]:
    minutes: defaultdict[int, list[ArchivedObject]] = defaultdict(list)
    for each in objects:
        minutes[each.key.minute].append(each)
    for members in minutes.values():
        reaching = members[0]
        for each in members[1:]:
            if each.key.range.first <= reaching.key.range.last:
                yield Problem(ProblemKind.OVERLAP, shard, each.name, f"with {reaching.name}")
            reaching = max(reaching, each, key=lambda one: _order(one.key.range.last))


async def _contents(
    store: ObjectStore, objects: Sequence[ArchivedObject]
) -> AsyncIterator[tuple[ArchivedObject, Sequence[Position], str | None]]:
    """The positions in each object, in order, and what is wrong with it; some are read at a time."""
    for first in range(0, len(objects), READS_AT_ONCE):
        some = objects[first : first + READS_AT_ONCE]
        contents = await asyncio.gather(*(_content(store, each) for each in some))
        for each, (positions, problem) in zip(some, contents, strict=True):
            yield each, positions, problem


async def _content(store: ObjectStore, each: ArchivedObject) -> tuple[Sequence[Position], str | None]:
    body = await store.get(each.name)
    if body is None:
        return (), "it was listed, and is gone"
    try:
        table = await asyncio.to_thread(decode_identity, body, each.key.extension)
        positions = positions_of(table)
    except ValueError as error:
        return (), str(error)
    return positions, _broken_promise(each.key, table, positions)


def _broken_promise(key: ObjectKey, table: Any, positions: Sequence[Position]) -> str | None:
    """What the name of an object says and its content does not."""
    if not positions:
        return "it holds no records"
    if any(one >= other for one, other in pairwise(positions)):
        return "its records are out of order"
    ends = (key.range.first, key.range.last)
    if any(
        named < found or found < named
        for named, found in zip(ends, (positions[0], positions[-1]), strict=True)
    ):
        return f"it begins at {positions[0]} and ends at {positions[-1]}"
    if pc.unique(table[SHARD_ID]).to_pylist() != [key.shard]:
        return "it holds records of another shard"
    if pc.unique(arrival_minutes(table)).to_pylist() != [key.minute]:
        return "it holds records of another minute"
    return None


async def _positions_in(
    stream: Stream, shard: Shard, until: Position, clock: Clock
) -> AsyncIterator[Position]:
    """The positions of the records that the stream holds of a shard, up to `until`."""
    iterator: str | None = await stream.iterator(shard.id, IteratorStart(IteratorKind.TRIM_HORIZON))
    while iterator is not None:
        page = await _page(stream, iterator, clock)
        for record in deaggregate_all(page.records, shard.hash_range, DeaggregationSettings()).records:
            if record.position > until:
                return
            yield record.position
        if not page.records and not page.millis_behind:
            return
        iterator = page.next_iterator


async def _page(stream: Stream, iterator: str, clock: Clock) -> Page:
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return await stream.get_records(iterator, limit=RECORDS_A_CALL)
        except (ThrottledError, UnavailableError):
            await clock.sleep_ms(RETRY_MS)
    return await stream.get_records(iterator, limit=RECORDS_A_CALL)


def _order(position: Position) -> tuple[bool, int, int]:
    if position.is_shard_end:
        return True, 0, 0
    return False, position.number, position.sub_sequence_number
