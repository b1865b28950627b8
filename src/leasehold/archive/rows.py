"""Rows of a pinned range: their positions, their minutes, and the parts that become objects. Reaches nothing."""

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
from leasehold.core.position import Position
from leasehold.errors import ConfigError

_MINUTE_US: Final = 60_000_000
_ARRIVAL_TYPE: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that become one object: of one minute, in order, with nothing between them that the archive holds."""

    minute: int
    range: Range
    table: Any


def to_archive_rows(table: Any) -> Any:
    """The rows as they are archived: without `slice`, and with arrival times in UTC whatever zone they came in."""
    missing = [name for name in IDENTITY_COLUMNS if name not in table.column_names]
    if missing:
        raise ConfigError(
            f"rows without {', '.join(missing)} cannot be archived: read the stream with "
            '.option("columns", "archive"), and keep these columns'
        )
    if SLICE in table.column_names:
        table = table.drop_columns([SLICE])
    place = table.column_names.index(ARRIVAL)
    return table.set_column(place, ARRIVAL, table[ARRIVAL].cast(_ARRIVAL_TYPE))


def arrival_minutes(table: Any) -> Any:
    """The arrival minute of each row, counted from 1970; a record without arrival time counts as one of 1970."""
    arrived_us = table[ARRIVAL].cast(pa.int64()).fill_null(0)
    return pc.divide(arrived_us, _MINUTE_US)


def range_of(table: Any) -> Range:
    """From the first row to the last."""
    return Range(_position_at(table, 0), _position_at(table, table.num_rows - 1))


def positions_of(table: Any) -> Sequence[Position]:
    """The position of each row."""
    numbers, subs = table[SEQUENCE_NUMBER].to_pylist(), table[SUB_SEQUENCE_NUMBER].to_pylist()
    return [Position(number, sub) for number, sub in zip(numbers, subs, strict=True)]


def parts_to_write(table: Any, minutes: Any, held: ArchivedRanges) -> Iterator[Part]:
    """What of a range is to be written, cut into objects."""
    every = pc.unique(minutes).to_pylist()
    for minute in sorted(every):
        rows = table if len(every) == 1 else table.filter(pc.equal(minutes, minute))
        done = held.in_minute(minute)
        # Positions cost more than all the rest; in normal operation nobody asks for them.
        runs = runs_to_write(positions_of(rows), done) if done else [slice(0, rows.num_rows)]
        for run in runs:
            part = rows.slice(run.start, run.stop - run.start)
            yield Part(minute, range_of(part), part)


def same_records(one: Any, other: Any) -> bool:
    """Whether two tables hold the same records in the same order, judged by shard and position."""
    return all(
        one[name].combine_chunks().equals(other[name].combine_chunks())
        for name in IDENTITY_COLUMNS
        if name != ARRIVAL
    )


def _position_at(table: Any, row: int) -> Position:
    return Position(table[SEQUENCE_NUMBER][row].as_py(), table[SUB_SEQUENCE_NUMBER][row].as_py())
