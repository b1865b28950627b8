"""Reads the rows of one shard of an archive, in the order of their positions, with the next objects read ahead.

Objects of neighbouring minutes may interleave in position. So rows are held back while the next object begins before
them, and merged with its rows. A compaction may delete an object between the listing and the read: then the shard is
listed again, and reading continues after the last row that was returned.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.columns import SEQUENCE_NUMBER, SHARD_ID, SUB_SEQUENCE_NUMBER
from leasehold.archive.decoding import decode
from leasehold.archive.rows import ends_mismatch, shard_mismatch
from leasehold.core.exactly_once.archive_reading import EVERYTHING, ObjectPart, Section, parts_to_read
from leasehold.core.exactly_once.object_keys import SEQUENCE_DIGITS, ObjectKey, key_to_text
from leasehold.core.position import Position
from leasehold.errors import ConfigError, DamagedObjectError, UnavailableError
from leasehold.ports import Clock, ObjectStore
from leasehold.tasks import retry

# Objects that are read ahead of the caller: so many, and of so many bytes together (one may be larger).
OBJECTS_AHEAD: Final = 8
BYTES_AHEAD: Final = 64 * 1024 * 1024
ATTEMPTS_MAX: Final = 6
# Compaction deletes an object long after it has created the larger one. So one new listing is enough, unless the
# reader pauses for long.
LISTINGS_MAX: Final = 10

POSITION_COLUMNS: Final = (SEQUENCE_NUMBER, SUB_SEQUENCE_NUMBER)


@dataclass(frozen=True, slots=True)
class ArchiveStore:
    """The objects of one archive, and how to call their store."""

    objects: ObjectStore
    prefix: str
    clock: Clock
    rng: random.Random
    in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread  # the simulator runs without threads
    objects_ahead: int = OBJECTS_AHEAD
    bytes_ahead: int = BYTES_AHEAD

    async def get(self, key: ObjectKey) -> bytes | None:
        """The content of an object; None if it does not exist any more."""
        name = key_to_text(key, self.prefix)
        return await retry(
            lambda: self.objects.get(name), clock=self.clock, rng=self.rng, attempts_max=ATTEMPTS_MAX
        )


# The objects of a shard, with their sizes in bytes.
ShardObjects = Mapping[ObjectKey, int]
# Lists the objects of the shard to read.
ListShard = Callable[[], Awaitable[ShardObjects]]


class _ObjectGoneError(Exception):
    """An object was listed, and does not exist any more."""


async def read_shard_rows(
    store: ArchiveStore,
    objects: ShardObjects,
    columns: Sequence[str] | None,
    list_again: ListShard,
    section: Section = EVERYTHING,
) -> AsyncGenerator[Any, None]:
    """Yield tables with the rows of one section of a shard, each record once, in order.

    `columns` includes POSITION_COLUMNS.
    """
    last: Position | None = None
    for _ in range(LISTINGS_MAX):
        parts = _after([part for part in parts_to_read(objects) if section.has(part.key)], last)
        rows = _ordered(_read_ahead(store, [(part, objects[part.key]) for part in parts], columns))
        try:
            async with aclosing(rows) as tables:
                async for table in tables:
                    last = position_at(table, table.num_rows - 1)
                    wanted = rows_in(table, section)
                    if wanted.num_rows:
                        yield wanted
        except _ObjectGoneError:
            objects = await list_again()
            continue
        return
    raise UnavailableError(
        f"the archive: objects were deleted {LISTINGS_MAX} times between their listing and their reading; another "
        "program deletes objects, or this one is too slow: read fewer shards or a shorter time at once"
    )


def position_at(table: Any, row: int) -> Position:
    """The position of a row."""
    return Position(table[SEQUENCE_NUMBER][row].as_py(), table[SUB_SEQUENCE_NUMBER][row].as_py())


def rows_before(table: Any, bound: Position) -> int:
    """The number of rows of an ordered table before a position."""
    low, high = 0, table.num_rows
    while low < high:
        middle = (low + high) // 2
        if position_at(table, middle) < bound:
            low = middle + 1
        else:
            high = middle
    return low


def rows_in(table: Any, section: Section) -> Any:
    """The rows of an ordered table that lie in a section."""
    first = 0 if section.first is None else rows_before(table, section.first)
    stop = table.num_rows if section.before is None else rows_before(table, section.before)
    return table.slice(first, max(0, stop - first))


def rows_up_to(table: Any, bound: Position) -> int:
    """The number of rows of an ordered table up to a position, that position included."""
    count = rows_before(table, bound)
    return count + (count < table.num_rows and position_at(table, count) <= bound)


def _after(parts: Sequence[ObjectPart], last: Position | None) -> Sequence[ObjectPart]:
    """The rest of the parts after a position. Rows are ordered across all objects, so nothing before it is missing."""
    if last is None:
        return parts
    left = (part for part in parts if part.key.range.last > last)
    return [ObjectPart(part.key, max(part.after or last, last)) for part in left]


async def _read_ahead(
    store: ArchiveStore, parts: Sequence[tuple[ObjectPart, int]], columns: Sequence[str] | None
) -> AsyncGenerator[tuple[ObjectPart, Any], None]:
    waiting = deque(parts)
    reading: deque[tuple[ObjectPart, int, asyncio.Task[Any]]] = deque()
    try:
        while waiting or reading:
            while waiting and _has_room(store, [size for _, size, _ in reading], waiting[0][1]):
                part, size = waiting.popleft()
                reading.append((part, size, asyncio.create_task(_read(store, part, columns))))
            part, _, task = reading[0]
            table = await task
            reading.popleft()
            yield part, table
    finally:
        for _, _, task in reading:
            task.cancel()
        for _, _, task in reading:
            with suppress(asyncio.CancelledError, Exception):
                await task


def _has_room(store: ArchiveStore, sizes: Sequence[int], size: int) -> bool:
    return not sizes or (len(sizes) < store.objects_ahead and sum(sizes) + size <= store.bytes_ahead)


async def _read(store: ArchiveStore, part: ObjectPart, columns: Sequence[str] | None) -> Any:
    body = await store.get(part.key)
    if body is None:
        raise _ObjectGoneError
    try:
        table = await store.in_thread(_decode, body, part.key, columns)
    except ValueError as error:
        raise DamagedObjectError(key_to_text(part.key, store.prefix), str(error)) from error
    return table if part.after is None else table.slice(rows_up_to(table, part.after))


def _decode(body: bytes, key: ObjectKey, columns: Sequence[str] | None) -> Any:
    """Decode an object and compare it with its key. Raises ValueError if it is damaged.

    Some formats have no end of their own: an object that was cut between two records can be read without an error.
    """
    needed = columns if columns is None or SHARD_ID in columns else [*columns, SHARD_ID]
    table = decode(body, key.extension, needed)
    try:
        problem = ends_mismatch(key, table) or shard_mismatch(key, table)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("its records have no positions") from error
    if problem is not None:
        raise ValueError(problem)
    return (
        table if needed is columns or SHARD_ID not in table.column_names else table.drop_columns([SHARD_ID])
    )


async def _ordered(parts: AsyncGenerator[tuple[ObjectPart, Any], None]) -> AsyncGenerator[Any, None]:
    """Merge the rows of parts that interleave. Parts come in the order of their first positions."""
    held: Any = None
    async with aclosing(parts) as tables:
        async for part, table in tables:
            if held is None or not held.num_rows:
                held = table
                continue
            ready = rows_before(held, part.range.first)
            if ready:
                yield held.slice(0, ready)
            held = _merge(held.slice(ready), table) if ready < held.num_rows else table
    if held is not None and held.num_rows:
        yield held


def _merge(one: Any, other: Any) -> Any:
    try:
        # Text and bytes become bytes: a program may have made payloads text at some time.
        both = pa.concat_tables([one, other], promote_options="permissive")
    except pa.ArrowException as error:
        raise ConfigError(
            f"two objects of the archive whose records interleave have different types in a column: {error}; read "
            "without this column, by naming the others in `columns`"
        ) from error
    padded = pc.utf8_lpad(both[SEQUENCE_NUMBER], SEQUENCE_DIGITS, "0")
    keys = pa.table({"number": padded, "sub": both[SUB_SEQUENCE_NUMBER]})
    return both.take(pc.sort_indices(keys, sort_keys=[("number", "ascending"), ("sub", "ascending")]))
