"""Puts pinned ranges together again from the batches that reach a write task, and refuses anything but whole ones.

An object is named by the range that it holds. If only some rows of a range reached a task, it would write half a range
under a name that another attempt, with other rows, would use as well: records would be lost without a sound. The column
`slice` gives each row's place in its range, so that a shuffle, a filter or a limit on the way cannot go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.columns import SHARD_ID, SLICE
from leasehold.core.model import ShardId
from leasehold.errors import BrokenRangeError


@dataclass(frozen=True, slots=True)
class WholeRange:
    """All rows of one pinned range, in order."""

    shard: ShardId
    session: int
    table: Any


def assemble_ranges(batches: Iterable[Any]) -> Iterator[WholeRange]:
    """The ranges in the batches of one task, one after the other; only one is held at a time.

    Raises BrokenRangeError at the first row that is not the next one of its range.
    """
    gathering: _Gathering | None = None
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            gathering = gathering or _begun(batch, first)
            first += gathering.take(batch.slice(first))
            if gathering.is_whole:
                yield gathering.whole_range()
                gathering = None
    if gathering is not None:
        raise gathering.broken("the rest of it is missing")


@dataclass(slots=True)
class _Gathering:
    """A range of which some rows have come."""

    shard: str
    count: int
    session: int
    parts: list[Any] = field(default_factory=list)
    rows: int = 0

    @property
    def is_whole(self) -> bool:
        return self.rows == self.count

    def take(self, rows: Any) -> int:
        """Take from the front what belongs to this range; returns how many rows that was."""
        part = rows.slice(0, self.count - self.rows)
        expected = pa.array(range(self.rows, self.rows + part.num_rows), pa.int32())
        if not (
            _all_equal(part.column(SHARD_ID), self.shard)
            and _all_equal(_of_slice(part, "holding"), self.session)
            and _all_equal(_of_slice(part, "count"), self.count)
        ):
            raise self.broken("rows of another range came in between")
        if not _all_equal(_of_slice(part, "index"), expected):
            raise self.broken("rows are missing, doubled or out of order")
        self.parts.append(part)
        self.rows += part.num_rows
        return int(part.num_rows)

    def whole_range(self) -> WholeRange:
        return WholeRange(ShardId(self.shard), self.session, pa.Table.from_batches(self.parts))

    def broken(self, how: str) -> BrokenRangeError:
        return _broken(
            f"of a range of {self.count} rows of shard {self.shard} this task got {self.rows}: {how}"
        )


def _begun(batch: Any, row: int) -> _Gathering:
    shard = batch.column(SHARD_ID)[row].as_py()
    place = batch.column(SLICE)[row].as_py()
    if shard is None or place is None or None in place.values():
        raise _broken("a row has no shardId or no slice")
    if place["index"] != 0:
        raise _broken(f"the first row of shard {shard} in this task is number {place['index']} of its range")
    return _Gathering(shard, place["count"], place["holding"])


def _broken(what: str) -> BrokenRangeError:
    return BrokenRangeError(
        f"the archive writes whole pinned ranges, and {what}. Something between source and sink moves, drops or "
        "doubles rows, such as repartition, orderBy, join, filter, limit or dropDuplicates: write the stream as it was "
        "read (select and withColumn are fine), and filter when the archive is read"
    )


def _of_slice(batch: Any, name: str) -> Any:
    return pc.struct_field(batch.column(SLICE), name)


def _all_equal(column: Any, expected: Any) -> bool:
    return pc.all(pc.fill_null(pc.equal(column, expected), False)).as_py() is True
