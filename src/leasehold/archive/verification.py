"""Verifies an archive: every record is archived once, in the object whose key covers it.

The archive alone shows overlaps (two objects of a shard and minute have overlapping ranges), duplicates (a record is in
two objects, or twice in one), damage (an object cannot be read, or its records do not match its key), strays (files
that an interrupted writer left beside the objects, where readers read them) and omissions (readers ignore an object
that a compacted one replaces, but some of its records are not in that one). Sequence numbers have natural gaps,
so missing records show only in comparison with the stream: records that the stream retains between the first and the
last archived record, or up to the lease's checkpoint, and that the archive lacks. Trimmed records cannot be checked.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pyarrow.compute as pc

from leasehold.archive.archive import MARKER, read_marker
from leasehold.archive.columns import STREAM
from leasehold.archive.compaction_lock import LOCK_FOLDER
from leasehold.archive.decoding import decode_checked
from leasehold.archive.division import NOTE
from leasehold.archive.formats import count_payloads, require_library
from leasehold.archive.identity import IDENTITY_COLUMNS
from leasehold.archive.rows import (
    NO_RECORDS,
    arrival_minutes,
    ends_mismatch,
    positions_of,
    shard_mismatch,
    stream_mismatch,
)
from leasehold.core.exactly_once.archive_plan import NO_RANGES
from leasehold.core.exactly_once.compaction_plan import ArchivedObject, covered_objects, in_order
from leasehold.core.exactly_once.object_keys import ObjectKey, key_from_text, unfinished_key_from_text
from leasehold.core.exactly_once.position_ranges import Range, RangeSet
from leasehold.core.model import Shard, ShardId
from leasehold.core.position import Position
from leasehold.core.records.deaggregation import DeaggregationSettings, deaggregate_all
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.core.stream_lists import stream_name
from leasehold.errors import ConfigError
from leasehold.ports import Clock, ObjectStore, Page, Stream
from leasehold.tasks import all_of, retry

MAX_CONCURRENT_READS: Final = 16
ATTEMPTS_MAX: Final = 8
RETRY_MS: Final = 500  # a running consumer shares the five reads per second of the shard
RECORDS_PER_CALL: Final = 10_000
STRAY_DETAIL: Final = "an interrupted writer left this file, and readers do not ignore it: delete it"

GONE: Final = "it was listed, but does not exist any more"
# A new listing is needed if a compaction has created a large object since the last one, and deleted the small ones.
LISTINGS_MAX: Final = 10

# The positions of the records of an object in order, or their number if the object has no positions.
Content = Sequence[Position] | int

# Called with the number of objects that were checked since the last call.
Progress = Callable[[int], None]
# Lists the objects of one shard again.
ListShard = Callable[[], Awaitable[Sequence[ArchivedObject]]]
# Yields the content of each object, and its problem.
_ReadContents = Callable[
    [Sequence[ArchivedObject]], AsyncGenerator[tuple[ArchivedObject, Content, str | None], None]
]


class ProblemKind(Enum):
    """The kinds of problems that verification finds."""

    OVERLAP = "overlap"
    DUPLICATE = "duplicate"
    DAMAGE = "damage"
    STRAY = "stray"
    OMISSION = "omission"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `location` is an object key, or a position in the shard."""

    kind: ProblemKind
    shard: ShardId
    location: str
    detail: str


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """The objects of each shard, in stream order, and the strays. `others` counts objects with foreign keys."""

    shards: Mapping[ShardId, Sequence[ArchivedObject]]
    strays: Sequence[Problem]
    others: int

    @property
    def objects(self) -> Iterator[ArchivedObject]:
        """All objects."""
        return (each for objects in self.shards.values() for each in objects)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The result of verifying one shard."""

    shard: ShardId
    rows: int
    problems: Sequence[Problem]
    first: Position | None
    last: Position | None
    positions: frozenset[Position]  # of all its records, if `keep_positions` was set
    ranges: RangeSet = NO_RANGES  # of objects without positions: only their names show what they have

    def has(self, position: Position) -> bool:
        """Whether the archive has a record, as far as positions and names show."""
        return position in self.positions or position in self.ranges


async def list_archive(store: ObjectStore, prefix: str) -> ArchiveContents:
    """List all objects below the prefix."""
    shards: defaultdict[ShardId, list[ArchivedObject]] = defaultdict(list)
    strays: list[Problem] = []
    others = 0
    async for page in store.list_after("", prefix=prefix):
        for each in page:
            key = key_from_text(each.key, prefix)
            if key is not None:
                shards[key.shard].append(ArchivedObject(each.key, key, each.size_bytes, each.modified_ms))
            elif (unfinished := unfinished_key_from_text(each.key, prefix)) is not None:
                strays.append(Problem(ProblemKind.STRAY, unfinished.shard, each.key, STRAY_DETAIL))
            elif not each.key.endswith((MARKER, NOTE)) and f"{LOCK_FOLDER}/" not in each.key:
                others += 1
    require_library({each.key.extension for objects in shards.values() for each in objects})
    return ArchiveContents(
        {shard: in_order(objects) for shard, objects in sorted(shards.items())}, strays, others
    )


async def has_archive(store: ObjectStore, prefix: str) -> bool:
    """Whether an archive is below the prefix: an object, or the file that its writer has created before the first."""
    marker = _marker_name(prefix)
    async with aclosing(store.list_after("", prefix=prefix)) as pages:
        async for page in pages:
            if any(each.key == marker or key_from_text(each.key, prefix) is not None for each in page):
                return True
    return False


async def stored_stream(store: ObjectStore, prefix: str) -> str | None:
    """The stream that the archive is of. None: nothing in the archive names it."""
    return read_marker(await store.get(_marker_name(prefix)))[0]


def require_same_stream(found: str | None, stream: str) -> None:
    """Refuse the archive of another stream: its shards have the same ids."""
    if found is not None and stream_name(found) != stream_name(stream):
        raise ConfigError(
            f"the archive holds stream {found!r}, not {stream!r}: name the archive of this stream, and its prefix"
        )


def _marker_name(prefix: str) -> str:
    return f"{prefix}/{MARKER}" if prefix else MARKER


class _ObjectGoneError(Exception):
    """An object was listed, and does not exist any more. No listed object replaces it."""


async def verify_shard(
    store: ObjectStore,
    shard: ShardId,
    objects: Sequence[ArchivedObject],
    progress: Progress,
    *,
    keep_positions: bool = False,
    list_again: ListShard | None = None,
    stream: str | None = None,
) -> ShardReport:
    """Read every object of a shard, in stream order, and compare it with its key and with the other objects.

    A compaction may replace and delete an object between its listing and its reading. Then the shard is listed again
    with `list_again`, and verified from its beginning. `stream` is the one that the archive is of, if it is known.
    """
    contents = partial(_contents, store, stream)
    for _ in range(LISTINGS_MAX if list_again is not None else 0):
        try:
            return await _verify_listed(contents, shard, objects, progress, keep_positions, must_exist=True)
        except _ObjectGoneError:
            assert list_again is not None
            objects = await list_again()
    return await _verify_listed(contents, shard, objects, progress, keep_positions, must_exist=False)


async def _verify_listed(
    read: _ReadContents,
    shard: ShardId,
    objects: Sequence[ArchivedObject],
    progress: Progress,
    keep_positions: bool,
    *,
    must_exist: bool,
) -> ShardReport:
    """Verify the objects of a listing. With `must_exist`, raises _ObjectGoneError for one that was deleted since."""
    covered = covered_objects(objects)
    problems = list(_overlaps(shard, [each for each in objects if each.name not in covered]))
    seen = _SeenRecords(keep_all=keep_positions)
    async with aclosing(read(objects)) as contents:
        async for each, positions, problem in contents:
            progress(1)
            if problem == GONE and each.name in covered:
                continue  # a compaction has deleted it, after a comparison with the one that replaces it
            if problem == GONE and must_exist:
                raise _ObjectGoneError
            if problem:
                problems.append(Problem(ProblemKind.DAMAGE, shard, each.name, problem))
            if isinstance(positions, int):
                seen.add_unknown(each.key, positions)
            elif each.name in covered:
                if missing := seen.count_missing(each.key, positions):
                    detail = f"{missing} of {len(positions)} records are not in {covered[each.name].by.name}"
                    problems.append(Problem(ProblemKind.OMISSION, shard, each.name, detail))
            elif repeated := seen.add(each.key, positions):
                detail = f"{repeated} of {len(positions)} records"
                problems.append(Problem(ProblemKind.DUPLICATE, shard, each.name, detail))
    return seen.report(shard, problems)


class _SeenRecords:
    """The records seen so far that a later object could repeat."""

    def __init__(self, *, keep_all: bool) -> None:
        self.rows = 0
        self.first: Position | None = None
        self.last: Position | None = None
        self.sets: list[tuple[Position, frozenset[Position]]] = []
        self.ranges: list[Range] = []  # of objects without positions
        self._keep_all = keep_all

    def add(self, key: ObjectKey, positions: Sequence[Position]) -> int:
        """Add the records of the next object. Returns how many of them were seen before."""
        new = frozenset(positions)
        if not self._keep_all:
            # Objects are sorted by their first records. An object that ends before this one cannot overlap later ones.
            self.sets = [each for each in self.sets if each[0] >= key.range.first]
        known = new & self._near(key)
        self.sets.append((key.range.last, new))
        self.rows += len(positions)
        self._extend(*positions[:1], *positions[-1:])
        return len(positions) - len(new) + len(known)

    def add_unknown(self, key: ObjectKey, rows: int) -> None:
        """Add the next object, which has so many records without positions."""
        self.rows += rows
        if rows:
            self.ranges.append(key.range)
            self._extend(key.range.first, key.range.last)

    def _extend(self, *ends: Position) -> None:
        every = [each for each in (self.first, self.last, *ends) if each is not None]
        self.first, self.last = min(every, key=_order, default=None), max(every, key=_order, default=None)

    def count_missing(self, key: ObjectKey, positions: Sequence[Position]) -> int:
        """How many records of an object that a compacted object replaces were not seen before."""
        return len(frozenset(positions) - self._near(key))

    def report(self, shard: ShardId, problems: Sequence[Problem]) -> ShardReport:
        """The result, after the last object."""
        every = frozenset().union(*(each for _, each in self.sets)) if self._keep_all else frozenset()
        ranges = RangeSet.of(self.ranges)
        return ShardReport(shard, self.rows, tuple(problems), self.first, self.last, every, ranges)

    def _near(self, key: ObjectKey) -> frozenset[Position]:
        """The records of the objects that this one could repeat."""
        return frozenset().union(*(seen for last, seen in self.sets if last >= key.range.first))


async def find_gap(
    stream: Stream, shard: Shard, report: ShardReport, done: Position | None, *, clock: Clock
) -> Problem | None:
    """Find records of this shard that the stream holds and the archive lacks. Returns None if there are none.

    `done` is the checkpoint of the shard's lease, if it is known: all records up to it must be archived, from the first
    archived one on, or from the first that the stream holds if nothing is archived.
    """
    done = done if done is not None and (done.is_record or done.is_shard_end) else None
    until = max(filter(None, (report.last, done)), key=_order, default=None)
    if until is None:
        return None
    missing: list[Position] = []
    async for position in _positions_in(stream, shard, until, clock):
        is_expected = report.first is None or report.first <= position
        if is_expected and not report.has(position):
            missing.append(position)
    if not missing:
        return None
    detail = f"{len(missing)} records that the stream holds, to {missing[-1]}"
    return Problem(ProblemKind.GAP, shard.id, str(missing[0]), detail)


def _overlaps(shard: ShardId, objects: Sequence[ArchivedObject]) -> Iterator[Problem]:
    before: list[ArchivedObject] = []  # that end after the next one begins
    for each in objects:
        before = [one for one in before if one.key.range.last >= each.key.range.first]
        other = next((one for one in reversed(before) if _has_common_minute(one.key, each.key)), None)
        if other is not None:
            yield Problem(ProblemKind.OVERLAP, shard, each.name, f"with {other.name}")
        before.append(each)


def _has_common_minute(one: ObjectKey, other: ObjectKey) -> bool:
    return one.first_minute <= other.last_minute and other.first_minute <= one.last_minute


async def _contents(
    store: ObjectStore, stream: str | None, objects: Sequence[ArchivedObject]
) -> AsyncGenerator[tuple[ArchivedObject, Content, str | None], None]:
    """Yield the content of each object, and its problem.

    Requests some objects concurrently, and decodes them one after the other: all columns may need much memory.
    """
    for first in range(0, len(objects), MAX_CONCURRENT_READS):
        some = objects[first : first + MAX_CONCURRENT_READS]
        bodies = await all_of(*(store.get(each.name) for each in some))
        for each, body in zip(some, bodies, strict=True):
            positions, problem = await asyncio.to_thread(_content, each, stream, body)
            yield each, positions, problem


def _content(each: ArchivedObject, stream: str | None, body: bytes | None) -> tuple[Content, str | None]:
    if body is None:
        return (), GONE
    try:
        if not each.key.has_positions:
            rows = count_payloads(body, each.key.extension)
            return rows, None if rows else NO_RECORDS
        table = decode_checked(body, each.key.extension, (*IDENTITY_COLUMNS, STREAM))
        positions = positions_of(table)
    except ValueError as error:
        return () if each.key.has_positions else 0, str(error)
    return positions, key_mismatch(each.key, table, positions) or stream_mismatch(stream, table)


def key_mismatch(key: ObjectKey, table: Any, positions: Sequence[Position]) -> str | None:
    """Describe how the content of an object differs from its key. None if it matches."""
    if any(one >= other for one, other in pairwise(positions)):
        return "its records are out of order"
    if problem := ends_mismatch(key, table) or shard_mismatch(key, table):
        return problem
    minutes = pc.min_max(arrival_minutes(table)).as_py()
    if minutes["min"] < key.first_minute or key.last_minute < minutes["max"]:
        return f"it holds records of another {key.layout.value.removeprefix('hive-')}"
    return None


async def _positions_in(
    stream: Stream, shard: Shard, until: Position, clock: Clock
) -> AsyncIterator[Position]:
    """Yield the positions of the records that the stream holds of a shard, up to `until`."""
    iterator: str | None = await stream.get_iterator(shard.id, IteratorStart(IteratorKind.TRIM_HORIZON))
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
    return await retry(
        lambda: stream.get_records(iterator, limit=RECORDS_PER_CALL),
        clock=clock,
        rng=random.Random(),  # noqa: S311 - not used, since the pause is fixed
        attempts_max=ATTEMPTS_MAX,
        pause_ms=RETRY_MS,
    )


def _order(position: Position) -> tuple[bool, int, int]:
    if position.is_shard_end:
        return True, 0, 0
    return False, position.number, position.sub_sequence_number
