"""Splits the rows of a pinned range into the rows of single objects, by arrival minute and by what is archived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.columns import ARRIVAL, SEQUENCE_NUMBER, SLICE, SUB_SEQUENCE_NUMBER
from leasehold.archive.formats import IDENTITY_COLUMNS
from leasehold.core.exactly_once.archive_plan import ArchivedRanges, runs_to_write
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.errors import ConfigError

_MINUTE_US: Final = 60_000_000
_ARRIVAL_TYPE: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """All rows of one pinned range, in order. `lease_session` names the session in which the range was pinned."""

    shard: ShardId
    lease_session: str
    table: Any


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


def arrival_minutes(table: Any) -> Any:
    """The arrival minute of each row, counted from 1970. A record without arrival time gets minute 0."""
    arrived_us = table[ARRIVAL].cast(pa.int64()).fill_null(0)
    return pc.divide(arrived_us, _MINUTE_US)


def range_of(table: Any) -> Range:
    """The range from the first row to the last."""
    return Range(_position_at(table, 0), _position_at(table, table.num_rows - 1))


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
    """True if two tables hold the same records in the same order. Compares shard and position."""
    return all(
        one[name].combine_chunks().equals(other[name].combine_chunks())
        for name in IDENTITY_COLUMNS
        if name != ARRIVAL
    )


def _position_at(table: Any, row: int) -> Position:
    return Position(table[SEQUENCE_NUMBER][row].as_py(), table[SUB_SEQUENCE_NUMBER][row].as_py())
