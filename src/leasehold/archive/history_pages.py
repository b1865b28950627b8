"""Pages of archived records, as a reader of the stream expects them: in order, and never with a part of an aggregate.

Reading runs ahead for each shard. It continues where the last page ended, or at the last record of that page, because a
reader that is far behind requests that record again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.archive_index import ArchiveIndex, ShardIndex
from leasehold.archive.columns import (
    ARRIVAL,
    DATA,
    EXPLICIT_HASH_KEY,
    PARTITION_KEY,
    SEQUENCE_NUMBER,
    SUB_SEQUENCE_NUMBER,
    arrow_schema,
)
from leasehold.archive.shard_rows import ShardObjects, read_shard_rows
from leasehold.core.exactly_once.archive_reading import Section
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.errors import ConfigError

PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
# Shards whose reading stays open for the next page, although nobody has asked for one for so long.
KEPT_OPEN_MS: Final = 60_000

_NEEDED: Final = (DATA, PARTITION_KEY, SEQUENCE_NUMBER, ARRIVAL, SUB_SEQUENCE_NUMBER)
_COLUMNS: Final = (*_NEEDED, EXPLICIT_HASH_KEY)


@dataclass(frozen=True, slots=True)
class PagePosition:
    """Where the next page begins and where the archive is left. All numbers are sequence numbers.

    `from_ms` is the time at which reading began, from which on the archive has to be listed. With `is_start`, earlier
    records are skipped. The archive is left at its last gap-free position, unless the stream does not hold the records
    behind it: then `before` is the oldest record of the stream, or `to_end` is set if the stream has none.
    """

    shard: ShardId
    next_number: int
    last: int | None = None  # the last record that was read
    from_ms: int | None = None
    is_start: bool = False
    before: int | None = None
    to_end: bool = False

    @property
    def is_final(self) -> bool:
        """Whether the archive is read beyond its gap-free position."""
        return self.to_end or self.before is not None

    def bound(self, index: ShardIndex) -> int | None:
        """The sequence number before which the archive is left."""
        return None if self.to_end else (self.before or index.settled_before)

    def to_json(self) -> dict[str, Any]:
        """The position as JSON. Numbers of 56 digits are text."""
        numbers = {name: None if value is None else str(value) for name, value in self._numbers().items()}
        return asdict(self) | numbers

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        given = cls(**fields)
        numbers = {name: None if value is None else int(value) for name, value in given._numbers().items()}
        return replace(given, **numbers)  # type: ignore[arg-type]

    def _numbers(self) -> Mapping[str, int | None]:
        return {"next_number": self.next_number, "last": self.last, "before": self.before}


class HistoryPages:
    """Reads pages of an archive, for all shards of a process."""

    def __init__(self, index: ArchiveIndex) -> None:
        self._index = index
        self._open: dict[ShardId, _OpenShard] = {}
        self._locks: defaultdict[ShardId, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def next(
        self, index: ShardIndex, position: PagePosition, limit: int
    ) -> tuple[Sequence[UserRecord], PagePosition] | None:
        """The records of the next page, about `limit`, and the position behind it. None: the archive is to be left."""
        async with self._locks[position.shard]:
            await self._close_unused()
            reading = await self._reading(index, position)
            reading.used_ms = self._index.store.clock.now_ms()
            try:
                table = await reading.take(limit)
            except BaseException:
                # The rows that follow are not known any more. Their iterator has ended, as at the end of the archive.
                self._open.pop(position.shard, None)
                raise
            if table is None:
                # A newer listing may have more. These rows would not show it.
                self._open.pop(position.shard, None)
                return None
            records = to_user_records(table)
            last = int(records[-1].sequence_number)
            return records, replace(position, next_number=last + 1, last=last, is_start=False)

    async def close(self) -> None:
        """Stop reading ahead."""
        for shard in list(self._open):
            await self._open.pop(shard).rows.aclose()

    async def _reading(self, index: ShardIndex, position: PagePosition) -> _OpenShard:
        bound = position.bound(index)
        found = self._open.get(position.shard)
        if found is not None and found.continues(index, bound, position.next_number):
            return found
        if found is not None:
            await self._open.pop(position.shard).rows.aclose()
        section = Section(
            Position(str(position.next_number)), None if bound is None else Position(str(bound))
        )
        rows = self._rows(index, section)
        new = _OpenShard(rows, index, bound, position)
        self._open[position.shard] = new
        return new

    async def _rows(self, index: ShardIndex, section: Section) -> AsyncGenerator[Any, None]:
        async def list_again() -> ShardObjects:
            newest = await self._index.get_newest(index.shard, max_age_ms=0)
            return {} if newest is None else newest.objects

        rows = read_shard_rows(self._index.store, index.objects, _COLUMNS, list_again, section)
        async with aclosing(rows) as tables:
            async for table in tables:
                missing = [name for name in _NEEDED if name not in table.column_names]
                if missing:
                    raise ConfigError(
                        f"the archive of shard {index.shard} has no column {missing[0]}, so its records cannot be "
                        "delivered again: read an archive with all columns, or begin in the stream"
                    )
                yield _with_record_types(table, index.shard)

    async def _close_unused(self) -> None:
        until_ms = self._index.store.clock.now_ms() - KEPT_OPEN_MS
        for shard in [shard for shard, each in self._open.items() if each.used_ms < until_ms]:
            if not self._locks[shard].locked():
                await self._open.pop(shard).rows.aclose()


class _OpenShard:
    """The rows of one shard from a number on, read ahead."""

    def __init__(
        self, rows: AsyncGenerator[Any, None], index: ShardIndex, bound: int | None, position: PagePosition
    ) -> None:
        self.rows = rows
        self.used_ms = 0
        self._index = index
        self._bound = bound
        self._next_number = position.next_number
        self._skip_before_ms = position.from_ms if position.is_start else None
        self._held: Any = None
        self._last_group: Any = None
        self._is_over = False

    def continues(self, index: ShardIndex, bound: int | None, number: int) -> bool:
        """Continue at a number, with the objects of a listing, up to a bound. False: that is not possible."""
        if bound != self._bound or (index is not self._index and index.has_new(self._index, number, bound)):
            return False
        self._index = index
        return self._move_to(number)

    def _move_to(self, number: int) -> bool:
        """Continue behind the last page, or at its last record."""
        if number == self._next_number:
            return True
        if self._last_group is None or number != self._next_number - 1:
            return False
        held = [each for each in (self._last_group, self._held) if each is not None]
        self._held, self._last_group = pa.concat_tables(held, promote_options="default"), None
        self._next_number = number
        return True

    async def take(self, limit: int) -> Any:
        """About `limit` rows, in whole Kinesis records. None if there are no more."""
        factor = 1
        while True:
            await self._fill(factor * limit, factor * PAGE_BYTES_MAX)
            if self._held is None or not self._held.num_rows:
                return None
            rows_in_bytes = max(1, PAGE_BYTES_MAX * self._held.num_rows // max(1, self._held.nbytes))
            count = _whole_records(self._held, factor * min(limit, rows_in_bytes), is_over=self._is_over)
            if count:
                return self._take(count)
            factor *= 2  # one aggregate is longer

    async def _fill(self, rows_min: int, bytes_min: int) -> None:
        """Hold more than so many rows, or than so many bytes, unless there are no more."""
        while not self._is_over and (
            self._held is None or (self._held.num_rows <= rows_min and self._held.nbytes <= bytes_min)
        ):
            table = await anext(self.rows, None)
            if table is None:
                self._is_over = True
                return
            table = self._skip(table)
            if self._held is not None and self._held.num_rows:
                table = pa.concat_tables([self._held, table], promote_options="default")
            self._held = table

    def _skip(self, table: Any) -> Any:
        """Skip rows until the first one that arrived at the start time, as Kinesis does."""
        if self._skip_before_ms is None:
            return table
        arrived = pc.fill_null(pc.cast(table[ARRIVAL], pa.int64()), 0)
        first = pc.index(pc.greater_equal(arrived, 1000 * self._skip_before_ms), value=True).as_py()
        if first < 0:
            return table.slice(0, 0)
        self._skip_before_ms = None
        return table.slice(first)

    def _take(self, count: int) -> Any:
        taken, self._held = self._held.slice(0, count), self._held.slice(count)
        numbers = taken[SEQUENCE_NUMBER]
        first = count - 1
        while first and numbers[first - 1] == numbers[count - 1]:
            first -= 1
        self._last_group, self._next_number = taken.slice(first), int(numbers[count - 1].as_py()) + 1
        return taken


def _whole_records(table: Any, rows_max: int, *, is_over: bool) -> int:
    """The number of rows, at most `rows_max`, at which a Kinesis record ends. 0: the first one may be longer."""
    if is_over and table.num_rows <= rows_max:
        return int(table.num_rows)
    numbers = table[SEQUENCE_NUMBER].slice(0, rows_max + 1).to_pylist()
    count = len(numbers) - 1
    while count and numbers[count - 1] == numbers[-1]:
        count -= 1
    return count


def _with_record_types(table: Any, shard: ShardId) -> Any:
    """The rows with the types that records have. Raises ConfigError for values that no record has.

    A program may have changed the columns before it archived them: payloads may be text.
    """
    for field in arrow_schema([name for name in _COLUMNS if name in table.column_names]):
        column, place = table[field.name], table.column_names.index(field.name)
        try:
            column = column if column.type == field.type else column.cast(field.type)
            is_valid = field.name not in {DATA, PARTITION_KEY} or not column.null_count
            if field.name == EXPLICIT_HASH_KEY:
                is_valid = pc.all(pc.match_substring_regex(column, "^[0-9]{1,39}$")).as_py() is not False
        except pa.ArrowException:
            is_valid = False
        if not is_valid:
            raise ConfigError(
                f"the archive of shard {shard} has values in column {field.name} that no record of a stream has, so "
                "its records cannot be delivered again: read an archive in which no program has changed this column, "
                "or begin in the stream"
            )
        table = table.set_column(place, field.name, column)
    return table


def to_user_records(table: Any) -> list[UserRecord]:
    """Convert archived rows to user records."""
    arrived = pc.cast(table[ARRIVAL], pa.int64()).to_pylist()
    subs = table[SUB_SEQUENCE_NUMBER].to_pylist()
    has_keys = EXPLICIT_HASH_KEY in table.column_names
    keys = table[EXPLICIT_HASH_KEY].to_pylist() if has_keys else [None] * table.num_rows
    columns = zip(
        table[DATA].to_pylist(),
        table[PARTITION_KEY].to_pylist(),
        table[SEQUENCE_NUMBER].to_pylist(),
        arrived,
        subs,
        keys,
        strict=True,
    )
    return [
        UserRecord(
            data,
            partition_key,
            number,
            None if arrival_us is None else arrival_us // 1000,
            None,
            sub,
            None if key is None else int(key),
            bool(sub) or key is not None,
        )
        for data, partition_key, number, arrival_us, sub, key in columns
    ]
