"""Reads an archive back: lists only the days that are wanted, skips minutes and shards by name, and reads in order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import aclosing, closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.obstore_objects import open_object_store
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.columns import ARRIVAL
from leasehold.archive.decoding import RECORD_COLUMNS
from leasehold.archive.formats import require_library
from leasehold.archive.settings import ArchiveSettings
from leasehold.archive.shard_rows import (
    ATTEMPTS_MAX,
    POSITION_COLUMNS,
    ArchiveStore,
    ShardObjects,
    read_shard_rows,
)
from leasehold.core.exactly_once.archive_reading import EVERYTHING, Section, day_paths
from leasehold.core.exactly_once.object_keys import ObjectKey, key_from_text, minute_path
from leasehold.core.model import ShardId
from leasehold.core.time_text import parse_time
from leasehold.errors import ConfigError
from leasehold.loop_thread import LoopThread
from leasehold.ports import StoredObject
from leasehold.tasks import retry

MINUTE_MS: Final = 60_000
ROWS_MAX: Final = 10_000  # of a batch
_BATCHES_AHEAD: Final = 4
_CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The arrival times of the wanted records, in milliseconds since 1970. None: from the oldest, to the newest."""

    start_ms: int | None = None
    end_ms: int | None = None  # not included

    @property
    def first_minute(self) -> int:
        """The minute of the start."""
        return max(0, self.start_ms or 0) // MINUTE_MS

    @property
    def last_minute(self) -> int | None:
        """The minute of the last millisecond."""
        return None if self.end_ms is None else (self.end_ms - 1) // MINUTE_MS

    def has(self, key: ObjectKey) -> bool:
        """Whether an object may have records of this time, by its name."""
        last = self.last_minute
        return key.last_minute >= self.first_minute and (last is None or key.first_minute <= last)

    def rows(self, table: Any) -> Any:
        """The rows that arrived in this time. Most tables lie within it as a whole."""
        if ARRIVAL not in table.column_names or (self.start_ms is None and self.end_ms is None):
            return table
        arrived = pc.fill_null(pc.cast(table[ARRIVAL], pa.int64()), 0)
        wanted = pc.greater_equal(arrived, 1000 * (self.start_ms or 0))
        if self.end_ms is not None:
            wanted = pc.and_(wanted, pc.less(arrived, 1000 * self.end_ms))
        return table if pc.all(wanted).as_py() else table.filter(wanted)


ALL_TIME: Final = TimeSpan()


def open_archive(settings: ArchiveSettings) -> ArchiveStore:
    """Open the store of an archive, to read it. A folder must exist."""
    access = AwsAccess(
        region=settings.region,
        profile=settings.profile,
        role_arn=settings.role_arn,
        role_external_id=settings.role_external_id,
        endpoint_url=settings.s3_endpoint,
    )
    store = open_object_store(settings.url, access, setting="url", extra="archive", make_folder=False)
    # The random numbers only spread the pauses between attempts.
    return ArchiveStore(store, settings.prefix, SystemClock(), random.Random())  # noqa: S311


async def list_objects(
    store: ArchiveStore, span: TimeSpan, shards: Iterable[str] | None = None
) -> Mapping[ShardId, ShardObjects]:
    """List the objects of each shard that may have records of this time."""
    wanted = None if shards is None else set(shards)
    found: defaultdict[ShardId, dict[ObjectKey, int]] = defaultdict(dict)
    offset = minute_path(span.first_minute, store.prefix)
    for path in day_paths(span.first_minute, span.last_minute, store.prefix):
        for each in await _list(store, offset, path):
            key = key_from_text(each.key, store.prefix)
            if key is not None and span.has(key) and (wanted is None or key.shard in wanted):
                _require_readable(key, each.key)
                found[key.shard][key] = each.size_bytes
    return dict(sorted(found.items()))


def _require_readable(key: ObjectKey, name: str) -> None:
    if not key.has_positions:
        raise ConfigError(
            f"object {name} has payloads without their positions, so an archive with it cannot be read in order: read "
            "such objects as files, one after the other"
        )
    require_library([key.extension])


async def _list(store: ArchiveStore, offset: str, path: str) -> Sequence[StoredObject]:
    async def attempt() -> Sequence[StoredObject]:
        return [each async for page in store.objects.list_after(offset, prefix=path) for each in page]

    return await retry(attempt, clock=store.clock, rng=store.rng, attempts_max=ATTEMPTS_MAX)


async def read_shard(
    store: ArchiveStore,
    shard: ShardId,
    span: TimeSpan,
    columns: Sequence[str] | None = None,
    *,
    objects: ShardObjects,
    section: Section = EVERYTHING,
) -> AsyncGenerator[Any, None]:
    """Yield tables with the rows of one shard that arrived in this time, in order. `objects` were listed for it."""

    async def list_again() -> ShardObjects:
        return (await list_objects(store, span, [shard])).get(shard, {})

    needed = None if columns is None else list(dict.fromkeys((*columns, *POSITION_COLUMNS, ARRIVAL)))
    async with aclosing(read_shard_rows(store, objects, needed, list_again, section)) as tables:
        async for table in tables:
            rows = span.rows(table)
            if rows.num_rows:
                yield (
                    rows
                    if columns is None
                    else rows.select([name for name in columns if name in rows.column_names])
                )


def read(
    archive: str | ArchiveSettings,
    *,
    start: datetime | str | None = None,
    end: datetime | str | None = None,
    shards: Iterable[str] | str | None = None,
    columns: Sequence[str] | str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of an archive as Arrow batches: shard after shard, and in order within each shard.

    `start` and `end` (not included) select records by arrival time. Objects of other minutes and shards are not
    opened. A time is a datetime with its zone, or text such as "2026-11-15T12:00:00Z". Without `columns`, a batch
    has all columns of its object. `shards` and `columns` may also be a text, with commas between the names.
    """
    settings = ArchiveSettings(url=archive) if isinstance(archive, str) else archive
    names = _names(columns)
    batches = read_store(open_archive(settings), time_span(start, end), _names(shards), names)
    return _with_columns(batches, names) if names else batches


def _names(given: Iterable[str] | str | None) -> list[str] | None:
    """The names in a list, or in a text with commas as in Spark. A text would otherwise be a list of letters."""
    if isinstance(given, str):
        given = filter(None, map(str.strip, given.split(",")))
    return None if given is None else list(given)


def _with_columns(
    batches: Generator[pa.RecordBatch, None, None], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches. Raises ConfigError for rows with none of the columns, and for a column that no object has."""
    missing: set[str] | None = None
    with closing(batches):
        for batch in batches:
            missing = (set(columns) if missing is None else missing).difference(batch.schema.names)
            if not batch.schema.names:
                break
            yield batch
    if missing:
        unknown = ", ".join(name for name in dict.fromkeys(columns) if name in missing)
        raise ConfigError(
            f"columns={list(columns)!r}: the records have no column {unknown}; every archive has "
            f"{', '.join(RECORD_COLUMNS)}, unless its writer has dropped some"
        )


def read_store(
    store: ArchiveStore,
    span: TimeSpan,
    shards: Iterable[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the records of an archive, as `read` does."""
    names = None if columns is None else list(columns)
    wanted = None if shards is None else list(shards)

    async def tables() -> AsyncGenerator[Any, None]:
        for shard, objects in (await list_objects(store, span, wanted)).items():
            async with aclosing(read_shard(store, shard, span, names, objects=objects)) as rows:
                async for table in rows:
                    yield table

    return _batches(tables)


def time_span(start: datetime | str | None, end: datetime | str | None) -> TimeSpan:
    """Parse a span of time. Raises ConfigError if it has no zone, or is empty."""
    parsed: dict[str, int | None] = {}
    for name, value in (("start", start), ("end", end)):
        try:
            parsed[name] = None if value is None else parse_time(value)
        except ConfigError as error:
            raise ConfigError(f"{name}={value!r}: {error}") from error
    span = TimeSpan(parsed["start"], parsed["end"])
    if span.end_ms is not None and span.end_ms <= (span.start_ms or 0):
        raise ConfigError("end is not after start: there are no records between them")
    return span


def _batches(tables: Callable[[], AsyncGenerator[Any, None]]) -> Generator[pa.RecordBatch, None, None]:
    """Yield the batches of an asynchronous iterator, which runs ahead on a thread of its own."""
    thread = LoopThread("leasehold-archive")
    try:
        yield from batches_ahead(thread, tables)
    finally:
        thread.close(timeout_s=_CLOSE_S)


def batches_ahead(
    thread: LoopThread, tables: Callable[[], AsyncGenerator[Any, None]]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an asynchronous iterator, which runs some tables ahead on the loop of a thread."""
    ready: asyncio.Queue[Any] = thread.run(_queue())

    async def fill() -> None:
        async with aclosing(tables()) as source:
            async for table in source:
                await ready.put(table)

    def finish(filled: Future[None]) -> None:
        if not filled.cancelled():
            thread.submit(ready.put(None))

    filling = thread.submit(fill())
    filling.add_done_callback(finish)
    try:
        while (table := thread.run(ready.get())) is not None:
            yield from table.to_batches(max_chunksize=ROWS_MAX)
        filling.result()
    finally:
        filling.cancel()


async def _queue() -> asyncio.Queue[Any]:
    return asyncio.Queue(_BATCHES_AHEAD)
