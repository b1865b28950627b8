"""Splits the rows of a pinned range into the rows of single objects, by arrival minute and by what is archived."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.columns import ARRIVAL, SEQUENCE_NUMBER, SHARD_ID, SLICE, STREAM, SUB_SEQUENCE_NUMBER
from leasehold.archive.formats import IDENTITY_COLUMNS, is_text
from leasehold.core.exactly_once.archive_plan import ArchivedRanges, runs_to_write
from leasehold.core.exactly_once.object_keys import ObjectKey
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.core.stream_lists import may_be_same_stream
from leasehold.errors import ConfigError

NO_RECORDS: Final = "it holds no records"
_MINUTE_US: Final = 60_000_000
_POSITION_TYPES: Final[Mapping[str, Any]] = {
    SHARD_ID: pa.string(),
    SEQUENCE_NUMBER: pa.string(),
    SUB_SEQUENCE_NUMBER: pa.int64(),
}
_ARRIVAL_TYPE: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """All rows of one pinned range, in order. `lease_session` names the session in which the range was pinned.

    `stream` is set if the shards of several streams are written: then each stream has an archive of its own.
    """

    shard: ShardId
    lease_session: str
    table: Any
    stream: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectRows:
    """The rows of one object: of one minute, in order, with no archived record between them."""

    minute: int
    range: Range
    table: Any


def to_archive_rows(table: Any) -> Any:
    """Convert rows to the archived form: without `slice`, and with arrival times in UTC."""
    missing = [name for name in IDENTITY_COLUMNS if name not in table.column_names]
    if missing:
        raise ConfigError(
            f"rows without {', '.join(missing)} cannot be archived: read the stream with "
            '.option("columns", "archive"), and keep these columns'
        )
    if SLICE in table.column_names:
        table = table.drop_columns([SLICE])
    index = table.column_names.index(ARRIVAL)
    return table.set_column(index, ARRIVAL, table[ARRIVAL].cast(_ARRIVAL_TYPE))


def arrival_minutes(table: Any, unit: int = 1) -> Any:
    """The arrival minute of each row, counted from 1970. A record without arrival time gets minute 0.

    With a `unit` of several minutes, such as an hour, the first minute of its unit.
    """
    arrived_us = table[ARRIVAL].cast(pa.int64()).fill_null(0)
    return pc.multiply(pc.divide(arrived_us, unit * _MINUTE_US), unit)


def range_of(table: Any) -> Range:
    """The range from the first row to the last."""
    return Range(_position_at(table, 0), _position_at(table, table.num_rows - 1))


def ends_mismatch(key: ObjectKey, table: Any) -> str | None:
    """Describe how the first and the last row of an object differ from its key. None if they match."""
    if not table.num_rows:
        return NO_RECORDS
    found = range_of(table)
    ends = ((key.range.first, found.first), (key.range.last, found.last))
    if any(named < other or other < named for named, other in ends):
        return f"it begins at {found.first} and ends at {found.last}"
    return None


def shard_mismatch(key: ObjectKey, table: Any) -> str | None:
    """Say that an object has a row of another shard than its key. None if all match, or the rows name no shard."""
    if (
        SHARD_ID not in table.column_names
        or pc.all(pc.equal(table[SHARD_ID], key.shard)).as_py() is not False
    ):
        return None
    return "it holds records of another shard"


def stream_mismatch(stream: str | None, table: Any) -> str | None:
    """Say that an object has a row of another stream. None if all match, or the stream or the rows name none."""
    if stream is None or STREAM not in table.column_names or not is_text(table.schema.field(STREAM).type):
        return None
    found = pc.unique(table[STREAM]).to_pylist()
    if all(each is None or may_be_same_stream(stream, each) for each in found):
        return None
    return "it holds records of another stream"


def positions_of(table: Any) -> Sequence[Position]:
    """The position of each row."""
    numbers, subs = table[SEQUENCE_NUMBER].to_pylist(), table[SUB_SEQUENCE_NUMBER].to_pylist()
    return [Position(number, sub) for number, sub in zip(numbers, subs, strict=True)]


def parts_to_write(table: Any, minutes: Any, archived: ArchivedRanges) -> Iterator[ObjectRows]:
    """Split the rows of a range into objects. Leaves out the archived records."""
    every = pc.unique(minutes).to_pylist()
    for minute in sorted(every):
        rows = table if len(every) == 1 else table.filter(pc.equal(minutes, minute))
        done = archived.in_minute(minute)
        # Positions are expensive to compute. In normal operation nothing is archived yet, and they are not needed.
        runs = runs_to_write(positions_of(rows), done) if done else [slice(0, rows.num_rows)]
        for run in runs:
            part = rows.slice(run.start, run.stop - run.start)
            yield ObjectRows(minute, range_of(part), part)


def same_records(one: Any, other: Any) -> bool:
    """True if two tables hold the same records in the same order. Compares shard and position.

    A program may have other types for the same values, which a format does not keep.
    """
    return all(
        one[name].cast(kind).combine_chunks().equals(other[name].cast(kind).combine_chunks())
        for name, kind in _POSITION_TYPES.items()
    )


def _position_at(table: Any, row: int) -> Position:
    return Position(table[SEQUENCE_NUMBER][row].as_py(), table[SUB_SEQUENCE_NUMBER][row].as_py())
