"""Writes pinned ranges as objects, each exactly once: cut by minute, named by range, created only if absent.

Any number of attempts at a range, in any number of processes, end with the same objects. That rests on two things that
others see to: a range is *pinned* before it is written (so every attempt has the same rows), and it is written whole.
What happens when the lease table was lost, and ranges are cut anew, is decided in `core.archive_plan`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Self, TypeVar

import orjson
import pyarrow.compute as pc

from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.obstore_objects import open_object_store
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.columns import STREAM
from leasehold.archive.formats import decode_identity, encode
from leasehold.archive.listings import Listing, Listings
from leasehold.archive.rows import (
    Part,
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
from leasehold.core.exactly_once.object_keys import ObjectKey, key_to_text
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.errors import ArchiveConflictError, ConfigError, ThrottledError, UnavailableError
from leasehold.ports import Clock, Created, ObjectStore

T = TypeVar("T")

ATTEMPTS_MAX: Final = 6

# Says which stream an archive is of. The underscore hides it from Spark.
MARKER: Final = "_leasehold.json"


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What became of the rows of one range, or of several together."""

    objects: int = 0  # created
    rows: int = 0  # in these
    bytes: int = 0
    already_there: int = 0  # objects that an earlier attempt had written
    already_there_rows: int = 0
    dropped_rows: int = 0  # that the archive held in other objects

    def __add__(self, other: WriteReport) -> WriteReport:
        return WriteReport(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class Archive:
    """One archive, used from one event loop. Keep it: it remembers what it has found out about each shard."""

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
        self._in_thread = in_thread  # the simulator has none
        self._puts = asyncio.Semaphore(settings.max_concurrent_puts)
        self._listings = Listings(store, settings.prefix)
        self._remembered: dict[ShardId, ShardMemory] = {}
        self._stream: str | None = None

    @classmethod
    def open(cls, settings: ArchiveSettings) -> Self:
        """The archive that the settings name. Nothing is read or written yet."""
        access = AwsAccess(
            region=settings.region,
            profile=settings.profile,
            role_arn=settings.role_arn,
            role_external_id=settings.role_external_id,
            endpoint_url=settings.s3_endpoint,
        )
        store = open_object_store(settings.url, access, setting="url", extra="archive")
        # It only spreads the waits between attempts.
        return cls(store, settings, clock=SystemClock(), rng=random.Random())  # noqa: S311

    async def write(self, shard: ShardId, lease_session: str, table: Any) -> WriteReport:
        """Write the rows of one whole pinned range, in order. Whatever columns they have are kept, except `slice`.

        `ownership` names the holding of the lease in which the range was pinned. Raises ArchiveConflictError if other
        records are stored under the range's name, UnavailableError if the store cannot be reached; then write the
        same range again.
        """
        return await self.session().write(shard, lease_session, table)

    def session(self) -> ArchiveSession:
        """For writing several ranges whose ownerships have all begun by now: they share one listing."""
        return ArchiveSession(self, self._listings.started)

    async def write_in(
        self, session: ArchiveSession, shard: ShardId, lease_session: str, table: Any
    ) -> WriteReport:
        """What `ArchiveSession.write` does."""
        if not table.num_rows:
            return WriteReport()
        table = to_archive_rows(table)
        await self._require_stream(table)
        whole, minutes = range_of(table), arrival_minutes(table)
        first_minute = pc.min(minutes).as_py()
        remembered, held = await self._held(session, shard, lease_session, whole, first_minute)
        report = await self._put_all(shard, parts_to_write(table, minutes, held))
        self._remembered[shard] = remembered.after(whole.last)
        dropped = table.num_rows - report.rows - report.already_there_rows
        return report + WriteReport(dropped_rows=dropped)

    async def _held(
        self, session: ArchiveSession, shard: ShardId, lease_session: str, whole: Range, first_minute: int
    ) -> tuple[ShardMemory, ArchivedRanges]:
        """What to leave out of a range; lists the archive if that is not known."""
        remembered = self._remembered.get(shard)
        held = ranges_to_skip(remembered, lease_session, whole, first_minute)
        if remembered is None or held is None:
            from_minute = max(0, first_minute - SLACK_MINUTES)
            session.listing = await self._patiently(
                lambda: self._listings.newer_than(session.after_listing, from_minute)
            )
            held = session.listing.of(shard)
            remembered = ShardMemory.of(lease_session, held)
        return remembered, held

    async def _put_all(self, shard: ShardId, parts: Iterable[Part]) -> WriteReport:
        try:
            async with asyncio.TaskGroup() as tasks:
                puts = [tasks.create_task(self._put(shard, part)) for part in parts]
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return sum((put.result() for put in puts), WriteReport())

    async def _put(self, shard: ShardId, part: Part) -> WriteReport:
        extension = self.settings.extension
        key = key_to_text(ObjectKey(part.minute, shard, part.range, extension), self.settings.prefix)
        async with self._puts:
            body = await self._in_thread(encode, part.table, extension, self.settings.compression)
            if await self._create(key, body, part):
                return WriteReport(1, part.table.num_rows, len(body))
        return WriteReport(already_there=1, already_there_rows=part.table.num_rows)

    async def _create(self, key: str, body: bytes, part: Part) -> bool:
        """Whether this attempt created the object; otherwise the very same records are there already."""
        for attempt in range(ATTEMPTS_MAX):
            if isinstance(await self._patiently(lambda: self.store.put_if_absent(key, body)), Created):
                return True
            size = await self._patiently(lambda: self.store.size(key))
            if size is not None:
                if size != len(body):
                    await self._require_same_records(key, part)
                return False
            # Another attempt was at it and came to nothing; S3 answers that like an object that is there.
            await self._pause(attempt)
        raise UnavailableError(
            f"object {key}: the store says that it exists, and that it does not; try again"
        )

    async def _require_same_records(self, key: str, part: Part) -> None:
        """Another size may be another version of the writing library. Other records are a conflict."""
        body = await self._patiently(lambda: self.store.get(key))
        try:
            stored = await self._in_thread(decode_identity, body or b"", self.settings.extension)
        except ValueError as error:
            raise ArchiveConflictError(key, str(error)) from error
        if not same_records(stored, part.table):
            raise ArchiveConflictError(
                key, f"holds other records ({stored.num_rows}, expected {part.table.num_rows})"
            )

    async def _require_stream(self, table: Any) -> None:
        """Refuse a second stream: its shards have the same ids, and its records would count as written."""
        if STREAM not in table.column_names:
            return
        stream = table[STREAM][0].as_py()
        if stream == self._stream:
            return
        marker = f"{self.settings.prefix}/{MARKER}" if self.settings.prefix else MARKER
        await self._patiently(lambda: self.store.put_if_absent(marker, orjson.dumps({"stream": stream})))
        body = await self._patiently(lambda: self.store.get(marker))
        found = orjson.loads(body or b"{}").get("stream")
        if found != stream:
            raise ConfigError(
                f"the archive at {self.settings.url} with prefix {self.settings.prefix!r} is of stream {found!r}, not "
                f"{stream!r}: give each stream a prefix of its own"
            )
        self._stream = stream

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Every call may be repeated: nothing here replaces anything."""
        for attempt in range(ATTEMPTS_MAX - 1):
            try:
                return await call()
            except (UnavailableError, ThrottledError):
                await self._pause(attempt)
        return await call()

    async def _pause(self, attempt: int) -> None:
        await self._clock.sleep_ms(backoff_ms(attempt, self._rng.random()))


class ArchiveSession:
    """A round of writes, for ownerships that had all begun when it was made."""

    def __init__(self, archive: Archive, after_listing: int) -> None:
        self.after_listing = after_listing
        self.listing: Listing | None = None  # kept, so that the ranges to come find it
        self._archive = archive

    async def write(self, shard: ShardId, lease_session: str, table: Any) -> WriteReport:
        """Like `Archive.write`."""
        return await self._archive.write_in(self, shard, lease_session, table)
