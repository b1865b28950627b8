"""The minute of a record, and the rows of single objects."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive.rows import (
    PinnedRange,
    arrival_minutes,
    parts_to_write,
    positions_of,
    range_of,
    same_records,
    to_archive_rows,
)
from leasehold.core.exactly_once.archive_plan import ArchivedRanges
from leasehold.core.exactly_once.object_keys import minute_path
from leasehold.core.exactly_once.position_ranges import Range, RangeSet
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from tests.unit.archive.archive_world import A, B, archive_on, records, run, spans_in, table


def at_ms(*arrivals: int | None) -> list[UserRecord]:
    """Records 1, 2, ... with these arrival times."""
    return [UserRecord(b"", "key", str(number), ms) for number, ms in enumerate(arrivals, 1)]


def aggregate(*subs: int) -> list[UserRecord]:
    """The records of one aggregate."""
    return [UserRecord(b"", "key", "7", 1, None, sub) for sub in subs]


@pytest.mark.parametrize(
    ("arrival_ms", "minute"),
    [
        (0, 0),
        (59_999, 0),
        (60_000, 1),
        (60_001, 1),
        (119_999, 1),
        (120_000, 2),
        (1_700_000_039_999, 28_333_333),
    ],
)
def test_a_minute_begins_at_its_first_millisecond(arrival_ms: int, minute: int) -> None:
    """The last millisecond before it belongs to the minute before."""
    assert arrival_minutes(table(at_ms(arrival_ms))).to_pylist() == [minute]


@given(st.integers(0, 4_000_000_000_000), st.sampled_from([-1, 0, 1]))
def test_the_path_of_a_record_is_its_arrival_time_in_utc(around_ms: int, offset_ms: int) -> None:
    """Tested at any time, and around each full minute."""
    for arrival_ms in (around_ms, max(0, around_ms // 60_000 * 60_000 + offset_ms)):
        (minute,) = arrival_minutes(table(at_ms(arrival_ms))).to_pylist()
        moment = datetime.fromtimestamp(arrival_ms // 1000, UTC)
        assert minute_path(minute) == f"{moment.year:04}/{moment:%m/%d/%H/%M}"


def test_times_with_microseconds_stay_in_their_minute() -> None:
    """Spark's timestamps have microseconds, in any time zone."""
    times = pa.array([59_999_999, 60_000_000], pa.timestamp("us", tz="Asia/Kolkata"))
    rows = table(at_ms(0, 0))
    rows = to_archive_rows(
        rows.set_column(
            rows.column_names.index("approximateArrivalTimestamp"), "approximateArrivalTimestamp", times
        )
    )
    assert arrival_minutes(rows).to_pylist() == [0, 1]


def test_records_on_both_sides_of_a_minute_are_in_two_objects() -> None:
    """A record without an arrival time counts as one of 1970."""
    store = MemoryObjects()
    rows = table(at_ms(119_999, 120_000, None))
    run(archive_on(store).write([PinnedRange(A, "one", rows)]))
    assert spans_in(store) == [(0, 3, 3), (1, 1, 1), (2, 2, 2)]


def test_the_ends_of_a_range_are_records_within_aggregates() -> None:
    """A position is a sequence number and a sub-sequence number."""
    rows = table(aggregate(2, 3, 5))
    assert range_of(rows) == Range(Position("7", 2), Position("7", 5))
    assert positions_of(rows) == [Position("7", 2), Position("7", 3), Position("7", 5)]
    done = RangeSet.of([Range(Position("7", 3), Position("7", 3))])
    parts = parts_to_write(rows, arrival_minutes(rows), ArchivedRanges(0, {0: done}, Position("7", 3)))
    assert [str(part.range) for part in parts] == ["7/2-7/2", "7/5-7/5"]


@given(
    st.sets(st.integers(0, 40), min_size=1),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=6),
)
def test_an_object_holds_the_missing_records_of_one_run(
    numbers: set[int], archived: list[tuple[int, int]]
) -> None:
    """Any number of archived ranges may lie between the records. Each record that is missing is in one object."""
    rows = table(records(sorted(numbers)))
    done = RangeSet.of(Range(Position(str(first)), Position(str(first + more))) for first, more in archived)
    parts = list(parts_to_write(rows, arrival_minutes(rows), ArchivedRanges(0, {10: done}, done.last)))
    written = [position for part in parts for position in positions_of(part.table)]
    assert written == [position for position in positions_of(rows) if position not in done]
    for part in parts:
        assert part.range == range_of(part.table)
        assert not RangeSet.of([part.range]) & done


@pytest.mark.parametrize(
    ("others", "shard"), [(aggregate(1, 3), A), (aggregate(1), A), (records([1, 2]), A), (aggregate(1, 2), B)]
)
def test_records_are_the_same_if_shard_and_positions_are_equal(others: list[UserRecord], shard: str) -> None:
    """Every part of the identity counts. The chunks of a table do not."""
    rows = table(aggregate(1, 2))
    assert same_records(rows, pa.concat_tables([table(aggregate(1)), table(aggregate(2))]))
    assert not same_records(rows, table(others, shard=shard))  # type: ignore[arg-type]
