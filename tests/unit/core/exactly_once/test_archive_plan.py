"""The records of a pinned range that are still to be written."""

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.exactly_once.archive_plan import (
    ArchivedRanges,
    ShardMemory,
    archived_by_shard,
    ranges_to_skip,
    runs_to_write,
)
from leasehold.core.exactly_once.object_keys import ObjectKey
from leasehold.core.exactly_once.position_ranges import Range, RangeSet
from leasehold.core.model import ShardId
from leasehold.core.position import Position

A, B = ShardId("a"), ShardId("b")


def at(number: int) -> Position:
    return Position(str(number))


def span(first: int, last: int) -> Range:
    return Range(at(first), at(last))


def key(shard: ShardId, minute: int, first: int, last: int) -> ObjectKey:
    return ObjectKey(minute, shard, span(first, last), "parquet")


def test_a_listing_is_grouped_by_shard_and_minute() -> None:
    """Ranges of one minute say nothing about another. Objects before the first minute are ignored."""
    held = archived_by_shard([key(A, 7, 10, 20), key(A, 8, 15, 30), key(B, 7, 1, 2), key(A, 4, 1, 5)], 5)
    assert held[A].in_minute(7) == RangeSet.of([span(10, 20)])
    assert held[A].in_minute(8) == RangeSet.of([span(15, 30)])
    assert held[A].in_minute(4) == RangeSet()
    assert held[A].last == at(30)
    assert held[B].last == at(2)
    assert held[A].from_minute == 5
    assert archived_by_shard([key(A, 5, 1, 2)], 5)[A].in_minute(5) == RangeSet.of([span(1, 2)])
    # The last record may be in an earlier minute than another one.
    assert archived_by_shard([key(A, 7, 10, 40), key(A, 8, 15, 30)], 5)[A].last == at(40)


spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 10)).map(lambda pair: span(pair[0], sum(pair))), max_size=6
)


@given(st.sets(st.integers(0, 70)), spans)
def test_exactly_the_missing_records_are_written_in_separate_ranges(
    numbers: set[int], done: list[Range]
) -> None:
    """The runs contain every missing record in order, and no run spans an archived record."""
    positions = [at(number) for number in sorted(numbers)]
    covered = RangeSet.of(done)
    runs = runs_to_write(positions, covered)
    written = [position for run in runs for position in positions[run]]
    assert written == [position for position in positions if position not in covered]
    for run in runs:
        reach = RangeSet.of([Range(positions[run][0], positions[run][-1])])
        assert not reach & covered


@given(st.sets(st.integers(0, 70), min_size=1), spans, st.data())
def test_an_attempt_with_a_newer_listing_makes_the_same_keys_or_some_of_them(
    numbers: set[int], done: list[Range], data: st.DataObject
) -> None:
    """One attempt fails after some objects. The next attempt lists them and writes exactly the others."""
    positions = [at(number) for number in sorted(numbers)]
    names = [_name(positions, run) for run in runs_to_write(positions, RangeSet.of(done))]
    survivors = data.draw(st.lists(st.sampled_from(names), unique=True) if names else st.just([]))
    again = [_name(positions, run) for run in runs_to_write(positions, RangeSet.of([*done, *survivors]))]
    assert again == [name for name in names if name not in survivors]


def _name(positions: list[Position], run: slice) -> Range:
    return Range(positions[run][0], positions[run][-1])


ARCHIVED = ArchivedRanges(5, {7: RangeSet.of([span(10, 20)])}, at(20))


def test_a_new_lease_session_lists_again() -> None:
    """The memory of one lease session is not valid for another."""
    assert ranges_to_skip(None, "one", span(1, 2), 7) is None
    assert ranges_to_skip(ShardMemory.of("one", ARCHIVED), "two", span(1, 2), 7) is None


def test_a_record_from_before_the_listed_minutes_causes_another_listing() -> None:
    """A listing from minute 5 says nothing about minute 4, even after reading has passed it."""
    assert ranges_to_skip(ShardMemory.of("one", ARCHIVED), "one", span(1, 2), 4) is None
    assert ranges_to_skip(ShardMemory.of("one", ARCHIVED).after(at(30)), "one", span(31, 32), 4) is None


def test_ranges_that_reading_has_passed_are_dropped() -> None:
    """Nothing has to be skipped beyond the last listed range, so the ranges are not kept in memory."""
    memory = ShardMemory.of("one", ARCHIVED)
    assert ranges_to_skip(memory, "one", span(15, 30), 7) == ARCHIVED
    assert ranges_to_skip(memory, "one", span(20, 30), 7) == ARCHIVED
    assert memory.after(at(19)) == memory
    assert memory.after(at(20)) == memory  # the range that ends there may be written again
    passed = memory.after(at(30))
    assert passed.archived is None
    beyond = ranges_to_skip(passed, "one", span(31, 40), 7)
    assert beyond is not None
    assert not beyond.in_minute(7)


def test_a_range_that_is_written_again_is_not_treated_as_new() -> None:
    """A second attempt at a range must skip the objects that the first attempt skipped."""
    passed = ShardMemory.of("one", ARCHIVED).after(at(30))
    assert ranges_to_skip(passed, "one", span(15, 30), 7) is None


def test_nothing_is_skipped_if_the_archive_has_no_object_of_the_shard() -> None:
    """The normal case: the listing was empty, and is not repeated."""
    memory = ShardMemory.of("one", ArchivedRanges(5, {}, None))
    held = ranges_to_skip(memory.after(at(3)), "one", span(1, 3), 5)
    assert held is not None
    assert not held.in_minute(5)
