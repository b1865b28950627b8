"""Writes pinned ranges as objects, each exactly once: split by minute, named by range, created only if absent.

Any number of attempts at a range, in any number of processes, result in the same objects. This relies on the caller: it
pins a range before it writes it, so every attempt has the same rows, and it always writes whole ranges. After the loss
of the lease table the stream is split into other ranges; `core.exactly_once.archive_plan` decides what is written then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Final, Self, TypeVar

import orjson
import pyarrow.compute as pc

from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.obstore_objects import open_object_store
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.columns import STREAM
from leasehold.archive.division import Division, note_name
from leasehold.archive.formats import decode_identity, decode_payloads, encode, require_library
from leasehold.archive.listings import Listings, ListingsSince
from leasehold.archive.raw_objects import payloads_of
from leasehold.archive.rows import (
    ObjectRows,
    PinnedRange,
    arrival_minutes,
    parts_to_write,
    range_of,
    same_records,
    to_archive_rows,
)
from leasehold.archive.settings import ArchiveSettings
from leasehold.core.backoff import backoff_ms
from leasehold.core.exactly_once.archive_plan import (
    SLACK_MINUTES,
    ArchivedRanges,
    ShardMemory,
    ranges_to_skip,
)
from leasehold.core.exactly_once.archive_reading import PUTS_AHEAD
from leasehold.core.exactly_once.object_keys import Layout, ObjectKey, key_to_text
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.stream_lists import may_be_same_stream
from leasehold.errors import ArchiveConflictError, ConfigError, UnavailableError
from leasehold.ports import Clock, Created, ObjectStore
from leasehold.tasks import all_of, retry

T = TypeVar("T")

ATTEMPTS_MAX: Final = 6

# Names the stream of an archive, and its layout. The underscore hides the object from Spark.
MARKER: Final = "_leasehold.json"


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What `Archive.write` did with the rows."""

    objects: int = 0  # that were created
    rows: int = 0  # in the created objects
    bytes: int = 0
    already_there: int = 0  # objects that an earlier attempt wrote
    already_there_rows: int = 0
    dropped_rows: int = 0  # rows that the archive holds in other objects

    def __add__(self, other: WriteReport) -> WriteReport:
        return WriteReport(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class Archive:
    """One archive, used from one event loop. It caches what it learned about each shard, so create it once."""

    def __init__(
        self,
        store: ObjectStore,
        settings: ArchiveSettings,
        *,
        clock: Clock,
        rng: random.Random,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self.settings = settings
        self.store = store
        self._clock = clock
        self._rng = rng
        self._in_thread = in_thread  # the simulator runs without threads
        self._puts = asyncio.Semaphore(settings.max_concurrent_puts)
        self._listings = Listings(store, settings.prefix, settings.folders)
        self._memories: dict[ShardId, ShardMemory] = {}
        self._accepted: set[str | None] = (
            set()
        )  # streams that the marker allows; None: rows that name no stream
        self._noted: Division | None = None

    @classmethod
    def open(cls, settings: ArchiveSettings) -> Self:
        """Open the archive of the settings. This reads and writes nothing."""
        require_library([settings.extension])
        access = AwsAccess(
            region=settings.region,
            profile=settings.profile,
            role_arn=settings.role_arn,
            role_external_id=settings.role_external_id,
            endpoint_url=settings.s3_endpoint,
        )
        store = open_object_store(settings.url, access, setting="url", extra="archive")
        # The random numbers only spread the pauses between attempts.
        return cls(store, settings, clock=SystemClock(), rng=random.Random())  # noqa: S311

    def beside(self, settings: ArchiveSettings) -> Archive:
        """Another archive in the same store."""
        return Archive(self.store, settings, clock=self._clock, rng=self._rng, in_thread=self._in_thread)

    async def write(self, ranges: Iterable[PinnedRange]) -> WriteReport:
        """Write pinned ranges as objects, one range after the other. Every column is kept except `slice`.

        The iterable may be lazy: only one range is held at a time. All ranges share one listing of the archive, so
        their lease sessions must have begun before this call. Raises ArchiveConflictError if an object has the name of
        a range and holds other records, UnavailableError if the store cannot be reached. After UnavailableError, write
        the same ranges again.
        """
        listings, total = self._listings.since_now(), WriteReport()
        for each in ranges:
            if each.table.num_rows:
                total += await self._write_range(each, listings)
        return total

    async def note_division(self, division: Division) -> None:
        """Note that this archive has only a part of the records. Call it before the first write of such a part."""
        if division != self._noted:
            await self._create_or_find(note_name(self.settings.prefix), division.to_note())
            self._noted = division

    async def _write_range(self, pinned: PinnedRange, listings: ListingsSince) -> WriteReport:
        table = to_archive_rows(pinned.table)
        await self._require_stream_and_layout(pinned.stream or _stream_in(table))
        whole, minutes = range_of(table), arrival_minutes(table, self.settings.folders.minutes)
        first_minute = pc.min(minutes).as_py()
        memory, archived = await self._recall(pinned, whole, first_minute, listings)
        report = await self._put_all(pinned.shard, parts_to_write(table, minutes, archived))
        # Only now: a range that could not be written is listed again at the next attempt.
        self._memories[pinned.shard] = memory.after(whole.last)
        dropped = table.num_rows - report.rows - report.already_there_rows
        return report + WriteReport(dropped_rows=dropped)

    async def _recall(
        self, pinned: PinnedRange, whole: Range, first_minute: int, listings: ListingsSince
    ) -> tuple[ShardMemory, ArchivedRanges]:
        """Return the archived ranges to skip. Lists the archive if they are not known for this lease session."""
        memory = self._memories.get(pinned.shard)
        archived = ranges_to_skip(memory, pinned.lease_session, whole, first_minute)
        if memory is not None and archived is not None:
            return memory, archived
        from_minute = max(0, first_minute - SLACK_MINUTES)
        from_minute -= from_minute % self.settings.folders.minutes
        listing = await self._retry(lambda: listings.from_minute(from_minute))
        archived = listing.of(pinned.shard)
        return ShardMemory.of(pinned.lease_session, archived), archived

    async def _put_all(self, shard: ShardId, parts: Iterable[ObjectRows]) -> WriteReport:
        total, rest = WriteReport(), iter(parts)
        # Invariant: an object is begun only when all but the last PUTS_AHEAD before it exist. So a reader knows which
        # objects may have a gap before them.
        while some := list(islice(rest, PUTS_AHEAD)):
            total = sum(await all_of(*(self._put(shard, part) for part in some)), total)
        return total

    async def _put(self, shard: ShardId, part: ObjectRows) -> WriteReport:
        extension = self.settings.extension
        named = ObjectKey(part.minute, shard, part.range, extension, layout=self.settings.folders)
        key = key_to_text(named, self.settings.prefix)
        async with self._puts:
            body = await self._in_thread(encode, part.table, extension, self.settings.compression)
            if await self._create(key, body, part):
                return WriteReport(1, part.table.num_rows, len(body))
        return WriteReport(already_there=1, already_there_rows=part.table.num_rows)

    async def _create(self, key: str, body: bytes, part: ObjectRows) -> bool:
        """Create an object. Returns False if it already exists with the same records."""
        size = await self._create_or_find(key, body)
        if size not in {None, len(body)}:
            await self._require_same_records(key, part)
        return size is None

    async def _create_or_find(self, key: str, body: bytes) -> int | None:
        """Create an object and return None, or return the size of the object that has this name."""
        for attempt in range(ATTEMPTS_MAX):
            if isinstance(await self._retry(lambda: self.store.put_if_absent(key, body)), Created):
                return None
            size = await self._retry(lambda: self.store.size(key))
            if size is not None:
                return size
            # Another attempt was in flight and failed. S3 answers in that case as if the object existed.
            await self._pause(attempt)
        raise UnavailableError(
            f"object {key}: the store refuses to create it because it exists, but does not find it; try again"
        )

    async def _require_same_records(self, key: str, part: ObjectRows) -> None:
        """Compare records. Another version of pyarrow may write the same records with another size."""
        body, extension = await self._retry(lambda: self.store.get(key)), self.settings.extension
        decode = decode_payloads if self.settings.is_raw else decode_identity
        try:
            stored: Any = await self._in_thread(decode, body or b"", extension)
        except ValueError as error:
            raise ArchiveConflictError(key, str(error)) from error
        is_same = (
            stored == payloads_of(part.table) if self.settings.is_raw else same_records(stored, part.table)
        )
        if not is_same:
            raise ArchiveConflictError(
                key, f"holds other records ({len(stored)}, expected {part.table.num_rows})"
            )

    async def _require_stream_and_layout(self, stream: str | None) -> None:
        """Refuse a second stream: its shards have the same ids, so its records would count as archived.

        With another layout, archived records would not count. So it is checked for rows that name no stream, too.
        """
        if stream in self._accepted:
            return
        marker = f"{self.settings.prefix}/{MARKER}" if self.settings.prefix else MARKER
        mine = {} if stream is None else {"stream": stream}
        if stream is None or self.settings.folders is not Layout.MINUTE:
            mine["layout"] = self.settings.layout
        await self._create_or_find(marker, orjson.dumps(mine))
        found, layout = read_marker(await self._retry(lambda: self.store.get(marker)))
        archive = f"the archive at {self.settings.url} with prefix {self.settings.prefix!r}"
        if layout is None:
            ours = "this stream" if stream is None else repr(stream)
            raise ConfigError(f"{archive} has a damaged {MARKER}: delete it if the archive holds {ours}")
        if found is not None and stream is not None and not may_be_same_stream(found, stream):
            raise ConfigError(
                f"{archive} holds stream {found!r}, not {stream!r}: give each stream its own prefix"
            )
        if layout != self.settings.layout:
            raise ConfigError(
                f"{archive} has layout {layout!r}, not {self.settings.layout!r}: its records would not count as "
                f"archived; set layout={layout!r}, or use a separate prefix"
            )
        self._accepted.add(stream)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry a call. All calls are safe to repeat: none of them replaces an object."""
        return await retry(call, clock=self._clock, rng=self._rng, attempts_max=ATTEMPTS_MAX)

    async def _pause(self, attempt: int) -> None:
        await self._clock.sleep_ms(backoff_ms(attempt, self._rng.random()))


def _stream_in(table: Any) -> str | None:
    """The stream in the column of this name. A program may have dropped the column, or given it another content."""
    found = table[STREAM][0].as_py() if STREAM in table.column_names else None
    return found if isinstance(found, str) else None


def read_marker(marker: bytes | None) -> tuple[str | None, str | None]:
    """The stream and the layout that a marker names. No layout: it is damaged. No stream: the rows name none."""
    try:
        content = orjson.loads(marker or b"")
        layout = content.get("layout", Layout.MINUTE.value)
        found = None if content.keys() == {"layout"} else content["stream"]
    except (ValueError, LookupError, AttributeError):
        return None, None
    is_valid = isinstance(layout, str) and (isinstance(found, str) or "stream" not in content)
    return (found, layout) if is_valid else (None, None)
