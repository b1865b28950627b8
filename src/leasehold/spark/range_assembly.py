"""Reassembles pinned ranges from the batches that reach a write task, and refuses incomplete ranges.

An object is named after the range that it holds. A task with only some rows of a range would write a part of it under
the name of the whole, another attempt with other rows would use the same name, and records would be lost silently. The
column `slice` holds the index of each row in its range, so this module detects a shuffle, a filter or a limit between
source and sink. A range without any row left is detected by comparison with what the source has delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.columns import SHARD_ID, SLICE
from leasehold.archive.rows import PinnedRange, range_of
from leasehold.core.model import ShardId
from leasehold.errors import BrokenRangeError
from leasehold.spark.delivery_reports import RangeName


def assemble_ranges(batches: Iterable[Any]) -> Iterator[PinnedRange]:
    """Yield the ranges in the batches of one task, one after the other. Holds one range at a time.

    Raises BrokenRangeError at the first row that is not the next row of its range.
    """
    partial: _PartialRange | None = None
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            partial = partial or _begin_range(batch, first)
            first += partial.add(batch.slice(first))
            if partial.is_complete:
                yield partial.to_range()
                partial = None
    if partial is not None:
        raise partial.broken("the rest of it is missing")


@dataclass(slots=True)
class _PartialRange:
    """The first rows of a range."""

    shard: str
    count: int
    session: int
    stream: str | None  # in a query of several streams
    parts: list[Any] = field(default_factory=list)
    rows: int = 0

    @property
    def is_complete(self) -> bool:
        return self.rows == self.count

    def add(self, rows: Any) -> int:
        """Add the leading rows that belong to this range. Returns their number."""
        part = rows.slice(0, self.count - self.rows)
        expected = pa.array(range(self.rows, self.rows + part.num_rows), pa.int32())
        if not (
            _all_equal(part.column(SHARD_ID), self.shard)
            and _all_equal(_slice_field(part, "session"), self.session)
            and _all_equal(_slice_field(part, "count"), self.count)
            and _has_stream(part, self.stream)
        ):
            raise self.broken("rows of another range came in between")
        if not _all_equal(_slice_field(part, "index"), expected):
            raise self.broken("rows are missing, doubled or out of order")
        self.parts.append(part)
        self.rows += part.num_rows
        return int(part.num_rows)

    def to_range(self) -> PinnedRange:
        table = pa.Table.from_batches(self.parts)
        return PinnedRange(ShardId(self.shard), str(self.session), table, self.stream)

    def broken(self, how: str) -> BrokenRangeError:
        named = _shard_text(self.shard, self.stream)
        return _broken(f"of a range of {self.count} rows of {named} this task got {self.rows}: {how}")


def range_name(pinned: PinnedRange) -> RangeName:
    """The name of a range that has reached the sink."""
    rows = pinned.table.num_rows
    first = str(range_of(pinned.table).first)
    return RangeName(pinned.stream or "", pinned.shard, int(pinned.lease_session), rows, first)


def require_delivered(delivered: frozenset[RangeName], received: frozenset[RangeName]) -> None:
    """Raise BrokenRangeError if no row of a delivered range has reached the sink."""
    missing = sorted(delivered - received)
    if missing:
        rows, example = sum(each.rows for each in missing), missing[0]
        raise _broken(
            f"of {len(delivered)} ranges that the source delivered in this batch, {len(missing)} with {rows} rows did "
            f"not reach the sink, such as {example.rows} rows of {_shard_text(example.shard, example.stream)}"
        )


def _begin_range(batch: Any, row: int) -> _PartialRange:
    shard = batch.column(SHARD_ID)[row].as_py()
    place = batch.column(SLICE)[row].as_py()
    if shard is None or place is None or None in (place[name] for name in ("index", "count", "session")):
        raise _broken("a row has no shardId or no slice")
    if place["index"] != 0:
        named = _shard_text(shard, place.get("stream"))
        raise _broken(f"the first row of {named} in this task is number {place['index']} of its range")
    return _PartialRange(shard, place["count"], place["session"], place.get("stream"))


def _shard_text(shard: str, stream: str | None) -> str:
    """Shards of two streams have the same ids."""
    return f"shard {shard} of stream {stream}" if stream else f"shard {shard}"


def _broken(what: str) -> BrokenRangeError:
    return BrokenRangeError(
        f"the archive writes whole pinned ranges, and {what}. An operation between source and sink moves, drops or "
        "doubles rows, such as repartition, orderBy, join, filter, limit or dropDuplicates: write the stream as it was "
        "read (select and withColumn are fine), and filter when you read the archive"
    )


def _has_stream(batch: Any, stream: str | None) -> bool:
    if stream is not None:
        return _all_equal(_slice_field(batch, "stream"), stream)
    is_named = any(field.name == "stream" for field in batch.column(SLICE).type)
    return not is_named or _slice_field(batch, "stream").null_count == batch.num_rows


def _slice_field(batch: Any, name: str) -> Any:
    return pc.struct_field(batch.column(SLICE), name)


def _all_equal(column: Any, expected: Any) -> bool:
    return pc.all(pc.fill_null(pc.equal(column, expected), False)).as_py() is True
