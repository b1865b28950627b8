"""Compacts an archive: merges small objects into large ones, and later deletes the small ones.

Every step can be interrupted at any moment and repeated. The large object is created as a whole and only if it is
absent; from then on it covers the small ones, and readers ignore them by their names. So a reader sees each record
once, before and after. The small ones stay for a while, for readers that have already listed them; then they are
deleted, after a comparison with the large one. `core.exactly_once.compaction_plan` decides what is merged.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.columns import SEQUENCE_NUMBER, SUB_SEQUENCE_NUMBER
from leasehold.archive.compaction_lock import CompactionLock
from leasehold.archive.decoding import decode_checked
from leasehold.archive.decompression import decoded_limit
from leasehold.archive.formats import decode_identity
from leasehold.archive.merging import ObjectMerger, decode_rows, merge_rows
from leasehold.archive.rows import positions_of, range_of, same_records
from leasehold.archive.shard_rows import rows_before, rows_up_to
from leasehold.archive.verification import has_archive, key_mismatch, list_archive
from leasehold.core.exactly_once.compaction_plan import (
    ArchivedObject,
    Chain,
    CompactionLimits,
    CoveredObject,
    Group,
    covered_objects,
    plan_compaction,
)
from leasehold.core.exactly_once.object_keys import key_to_text
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.errors import CompactionLockedError, ConfigError
from leasehold.ports import Clock, Created, ObjectStore
from leasehold.tasks import all_of, cancel_and_wait, retry

T = TypeVar("T")

READS_AT_ONCE: Final = 16
READ_BYTES_AT_ONCE: Final = 16 * 1024 * 1024
ATTEMPTS_MAX: Final = 6
_MINUTE_MS: Final = 60_000

# Called with the number of objects that were merged or deleted since the last call.
Progress = Callable[[int], None]
InThread = Callable[..., Awaitable[Any]]
MergeAll = Callable[[Sequence[Group], Progress], Awaitable["CompactionReport"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """What to compact, and when to delete what was compacted."""

    prefix: str = ""
    target_bytes: int = 128 * 1024 * 1024
    older_than_ms: int = 24 * 60 * _MINUTE_MS  # of the records, and of the objects in the store
    delete_after_ms: int = 60 * _MINUTE_MS
    compression: str = "zstd"  # of Parquet

    def __post_init__(self) -> None:
        if self.target_bytes < 1:
            raise ConfigError(f"target_bytes={self.target_bytes}: expected at least 1")
        if self.older_than_ms < _MINUTE_MS:
            raise ConfigError("older_than: expected at least one minute: the current minute is still written")
        if self.delete_after_ms < _MINUTE_MS:
            raise ConfigError(
                "delete_after: expected at least one minute: a reader whose listing is under way may have missed the "
                "large object, and would then find none of the small ones"
            )


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The groups to merge, and the objects that a large one replaced long enough ago."""

    groups: Sequence[Group]
    deletions: Sequence[CoveredObject]
    waiting: int = 0  # objects that a large one replaces, and that are deleted later
    without_positions: int = 0  # objects that cannot be merged, because they have payloads only

    @property
    def remarks(self) -> Sequence[str]:
        """Sentences about what stays as it is."""
        if not self.without_positions:
            return ()
        sentence = (
            f"{self.without_positions} objects stay as they are: they have payloads without positions, so nothing "
            "would show that a larger one has all of their records"
        )
        return (sentence,)


@dataclass(slots=True)
class CompactionReport:
    """What a compaction did."""

    merged: int = 0  # small objects
    created: int = 0  # large objects
    deleted: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    skipped: list[str] = field(default_factory=list)  # sentences

    def add(self, other: CompactionReport) -> None:
        """Add the numbers of another report."""
        self.merged += other.merged
        self.created += other.created
        self.deleted += other.deleted
        self.bytes_read += other.bytes_read
        self.bytes_written += other.bytes_written
        self.skipped += other.skipped


class _SkipGroupError(Exception):
    """A group cannot be merged. Its objects stay as they are."""


class Compactor:
    """Merges and deletes objects of one archive."""

    def __init__(
        self,
        store: ObjectStore,
        settings: CompactionSettings,
        *,
        clock: Clock,
        rng: random.Random,
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        self.settings = settings
        self._store = store
        self._clock = clock
        self._rng = rng
        self._in_thread = in_thread
        # Called before each attempt at a change, so that a process that lost the lock stops.
        self.require_lock: Callable[[], None] = lambda: None

    async def has_archive(self) -> bool:
        """Whether there is an archive. Otherwise nothing may be created at this place, not even the lock."""
        return await self._retry(lambda: has_archive(self._store, self.settings.prefix))

    async def plan(self, *, store_time_ms: int | None) -> CompactionPlan:
        """List the archive and decide what to do. `store_time_ms` is the time by the clock of the store."""
        settings = self.settings
        contents = await self._retry(lambda: list_archive(self._store, settings.prefix))
        covered = covered_objects(contents.objects)
        closed = (self._clock.wall_ms() - settings.older_than_ms) // _MINUTE_MS
        stored = None if store_time_ms is None else store_time_ms - settings.older_than_ms
        limits = CompactionLimits(settings.target_bytes, closed, stored)
        groups = [
            group
            for objects in contents.shards.values()
            for group in plan_compaction((each for each in objects if each.name not in covered), limits)
        ]
        deletions = [each for each in covered.values() if self._may_delete(each, store_time_ms)]
        raw = sum(not each.key.has_positions for each in contents.objects)
        return CompactionPlan(groups, deletions, len(covered) - len(deletions), raw)

    def _may_delete(self, covered: CoveredObject, store_time_ms: int | None) -> bool:
        created_ms = covered.by.modified_ms
        if store_time_ms is None or created_ms is None:
            return False
        return store_time_ms - created_ms >= self.settings.delete_after_ms

    async def merge(self, group: Group, progress: Progress = lambda _: None) -> CompactionReport:
        """Merge the objects of a group. If their columns change in between, they become several objects."""
        report, todo = CompactionReport(), deque([group])
        while todo:
            each = todo.popleft()
            try:
                split = await self._merge(each, report)
            except _SkipGroupError as error:
                report.skipped.append(str(error))
                split = None
            if split is not None:
                todo.extendleft(reversed(each.split(split)))
        progress(len(group.objects))
        return report

    async def merge_all(self, groups: Sequence[Group], progress: Progress) -> CompactionReport:
        """Merge groups, one after the other: each may need as much memory as allowed."""
        report = CompactionReport()
        for group in groups:
            report.add(await self.merge(group, progress))
        return report

    async def _merge(self, group: Group, report: CompactionReport) -> int | None:
        """Merge a group. Returns the index of the chain at which to split it, if it cannot become one object.

        That is the first one with other columns, or the middle one if readers could not read the object: it would be
        too large, or JSON lines have values of one column that no type can hold together.
        """
        merger: ObjectMerger | None = None
        index = 0
        for chains in _windows(group.chains):
            bodies = await all_of(*(self._get(each) for chain in chains for each in chain.objects))
            tables = await self._in_thread(_decode_all, chains, bodies)
            report.bytes_read += sum(map(len, bodies))
            for table in tables:
                merger = merger or self._begin(table, group)
                if not merger.has_schema_of(table):
                    return index
                await self._in_thread(merger.add, table)
                index += 1
        assert merger is not None
        body = await self._in_thread(merger.finish)
        records = None
        if merger.decoded_bytes <= decoded_limit(len(body)):
            records = await self._in_thread(_readable_identity, body, group.key.extension)
        if records is None and index == 1:
            raise _SkipGroupError(
                f"{group.objects[0].name}: merged with those that it overlaps, nobody could read it"
            )
        if records is None:
            return index // 2
        # Each object was compared with its name, so its records are in order. This finds a bug of the merge.
        if records.num_rows != merger.rows or range_of(records) != group.key.range:
            raise _SkipGroupError(f"{group.objects[0].name}: not merged, because records would be missing")
        await self._create(group, body, records)
        report.merged += len(group.objects)
        report.created += 1
        report.bytes_written += len(body)
        return None

    def _begin(self, table: Any, group: Group) -> ObjectMerger:
        return ObjectMerger(table.schema, group.key.extension, self.settings.compression)

    async def _create(self, group: Group, body: bytes, records: Any) -> None:
        name, extension = key_to_text(group.key, self.settings.prefix), group.key.extension
        if isinstance(await self._change(lambda: self._store.put_if_absent(name, body)), Created):
            return
        found = await self._retry(lambda: self._store.get(name))
        existing = None if found is None else await self._in_thread(_checked_identity, found, name, extension)
        if existing is None or not same_records(existing, records):
            raise _SkipGroupError(f"{name}: exists with other records; its small objects stay")

    async def delete(
        self, covered: Sequence[CoveredObject], progress: Progress = lambda _: None
    ) -> CompactionReport:
        """Delete objects that a large one replaces, after a comparison of their records."""
        report = CompactionReport()
        large: dict[str, ArchivedObject] = {each.by.name: each.by for each in covered}
        members: defaultdict[str, list[ArchivedObject]] = defaultdict(list)
        for each in covered:
            members[each.by.name].append(each.object)
        for name, objects in members.items():
            try:
                records = await self._get_checked_identity(large[name])
            except _SkipGroupError as error:
                report.skipped.append(f"{error}; the objects that it replaces stay")
                progress(len(objects))
                continue
            for chain in _windows([Chain((each,)) for each in objects]):
                some = [each.objects[0] for each in chain]
                done = await all_of(*(self._delete(each, records) for each in some))
                report.deleted += done.count(None)
                report.skipped += [problem for problem in done if problem is not None]
                progress(len(some))
        return report

    async def _delete(self, small: ArchivedObject, records: Any) -> str | None:
        """Delete an object. Returns a sentence if its records are not in the large one."""
        try:
            body = await self._get(small)
        except _SkipGroupError:
            return None  # it was deleted by an interrupted run
        try:
            own = await self._in_thread(_identity, body, small.name, small.key.extension)
        except _SkipGroupError as error:
            return str(error)
        if not _has_all(records, own, small.key.range):
            return f"{small.name}: kept, because some of its records are not in the object that replaces it"
        await self._change(lambda: self._store.delete(small.name))
        return None

    async def _get_checked_identity(self, each: ArchivedObject) -> Any:
        return await self._in_thread(_checked_identity, await self._get(each), each.name, each.key.extension)

    async def _get(self, each: ArchivedObject) -> bytes:
        body = await self._retry(lambda: self._store.get(each.name))
        if body is None:
            raise _SkipGroupError(f"{each.name}: was listed, but does not exist any more")
        return body

    async def _change(self, call: Callable[[], Awaitable[T]]) -> T:
        """Change the archive. Attempts may take minutes, so each of them requires the lock."""

        async def change() -> T:
            self.require_lock()
            return await call()

        return await self._retry(change)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(call, clock=self._clock, rng=self._rng, attempts_max=ATTEMPTS_MAX)


async def compact(
    compactor: Compactor,
    lock: CompactionLock,
    *,
    on_plan: Callable[[CompactionPlan], Progress] = lambda _plan: lambda _objects: None,
    on_wait: Callable[[str], None] = lambda _: None,
    merge_all: MergeAll | None = None,
) -> CompactionReport:
    """Compact an archive. `on_plan` gets the plan, and returns the function that is called with the progress.

    `merge_all` merges the groups elsewhere; None: here, one after the other.
    """
    await lock.acquire(on_wait)
    try:
        async with requiring_lock(compactor, lock):
            plan = await compactor.plan(store_time_ms=await lock.store_time_ms())
            progress = on_plan(plan)
            report = await (merge_all or compactor.merge_all)(plan.groups, progress)
            report.add(await compactor.delete(plan.deletions, progress))
            report.skipped += plan.remarks
            return report
    finally:
        await lock.release()


@asynccontextmanager
async def requiring_lock(compactor: Compactor, lock: CompactionLock) -> AsyncIterator[None]:
    """Renew a held lock while the block runs, and let the compactor check it before each change."""
    renewal = asyncio.ensure_future(lock.keep())

    def require_lock() -> None:
        if renewal.done():
            raise CompactionLockedError
        lock.require_held()

    compactor.require_lock = require_lock
    try:
        yield
    finally:
        await cancel_and_wait(renewal)


def _windows(chains: Sequence[Chain]) -> Iterator[Sequence[Chain]]:
    """Consecutive chains whose objects are read at one time."""
    some: list[Chain] = []
    objects = size = 0
    for chain in chains:
        is_full = objects + len(chain.objects) > READS_AT_ONCE or size + chain.size_bytes > READ_BYTES_AT_ONCE
        if some and is_full:
            yield some
            some, objects, size = [], 0, 0
        some.append(chain)
        objects, size = objects + len(chain.objects), size + chain.size_bytes
    if some:
        yield some


def _decode_all(chains: Sequence[Chain], bodies: Sequence[bytes]) -> Sequence[Any]:
    """The rows of each chain. The bodies are those of all objects, in order."""
    remaining = iter(bodies)
    tables: list[Any] = []
    for chain in chains:
        decoded = [_decode(each, next(remaining)) for each in chain.objects]
        if any(not table.schema.equals(decoded[0].schema) for table in decoded):
            raise _SkipGroupError(
                f"{chain.objects[0].name}: overlaps with an object that has other columns, so both stay"
            )
        tables.append(merge_rows(decoded))
    return tables


def _decode(each: ArchivedObject, body: bytes) -> Any:
    try:
        table = decode_rows(body, each.key.extension)
        problem = key_mismatch(each.key, table, positions_of(table))
    except (ValueError, KeyError) as error:
        raise _SkipGroupError(f"{each.name}: {error}") from error
    if problem is not None:
        raise _SkipGroupError(f"{each.name}: {problem}")
    return table


def _identity(body: bytes, name: str, extension: str) -> Any:
    """The columns that identify the records of an object."""
    try:
        return decode_identity(body, extension)
    except ValueError as error:
        raise _SkipGroupError(f"{name}: {error}") from error


def _checked_identity(body: bytes, name: str, extension: str) -> Any:
    """The same of an object that replaces others, so all of it must be readable."""
    try:
        return decode_checked(body, extension)
    except ValueError as error:
        raise _SkipGroupError(f"{name}: {error}") from error


def _readable_identity(body: bytes, extension: str) -> Any:
    """The same of an object that is not created yet. None if readers could not read it."""
    try:
        return decode_checked(body, extension)
    except ValueError:
        return None


def _has_all(records: Any, own: Any, range_: Range) -> bool:
    """True if the records of a large object include all those of a small one. Compares only those in its range."""
    first, end = rows_before(records, range_.first), rows_up_to(records, range_.last)
    same_range = _texts(records.slice(first, end - first))
    return pc.all(pc.is_in(_texts(own), value_set=same_range)).as_py() is True


def _texts(table: Any) -> Any:
    """A text for each record that differs from those of all other records of the shard."""
    subs = table[SUB_SEQUENCE_NUMBER].cast(pa.string())
    return pc.binary_join_element_wise(table[SEQUENCE_NUMBER], subs, "/").combine_chunks()
