"""What a pinned range leaves to be written."""

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


def test_a_listing_is_told_by_shard_and_minute() -> None:
    """Ranges of one minute say nothing about another, and what lies before the first minute is left out."""
    held = archived_by_shard([key(A, 7, 10, 20), key(A, 8, 15, 30), key(B, 7, 1, 2), key(A, 4, 1, 5)], 5)
    assert held[A].in_minute(7) == RangeSet.of([span(10, 20)])
    assert held[A].in_minute(8) == RangeSet.of([span(15, 30)])
    assert held[A].in_minute(4) == RangeSet()
    assert held[A].last == at(30)
    assert held[B].last == at(2)


spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 10)).map(lambda pair: span(pair[0], sum(pair))), max_size=6
)


@given(st.sets(st.integers(0, 70)), spans)
def test_exactly_what_is_not_done_is_written_and_in_ranges_apart(
    numbers: set[int], done: list[Range]
) -> None:
    """Runs hold every record that is not done, in order, and no run reaches over something that is done."""
    positions = [at(number) for number in sorted(numbers)]
    covered = RangeSet.of(done)
    runs = runs_to_write(positions, covered)
    written = [position for run in runs for position in positions[run]]
    assert written == [position for position in positions if position not in covered]
    for run in runs:
        reach = RangeSet.of([Range(positions[run][0], positions[run][-1])])
        assert not reach & covered


@given(st.sets(st.integers(0, 70), min_size=1), spans, st.data())
def test_an_attempt_with_a_newer_list_makes_the_same_names_or_some_of_them(
    numbers: set[int], done: list[Range], data: st.DataObject
) -> None:
    """One attempt dies after some objects; the next lists them, and writes exactly the others."""
    positions = [at(number) for number in sorted(numbers)]
    names = [_name(positions, run) for run in runs_to_write(positions, RangeSet.of(done))]
    survivors = data.draw(st.lists(st.sampled_from(names), unique=True) if names else st.just([]))
    again = [_name(positions, run) for run in runs_to_write(positions, RangeSet.of([*done, *survivors]))]
    assert again == [name for name in names if name not in survivors]


def _name(positions: list[Position], run: slice) -> Range:
    return Range(positions[run][0], positions[run][-1])


HELD = ArchivedRanges(5, {7: RangeSet.of([span(10, 20)])}, at(20))


def test_a_new_ownership_lists_again() -> None:
    """Nothing is known of an ownership that was never seen, and nothing carries over from another."""
    assert ranges_to_skip(None, "one", span(1, 2), 7) is None
    assert ranges_to_skip(ShardMemory.of("one", HELD), "two", span(1, 2), 7) is None


def test_records_of_an_earlier_minute_than_was_listed_list_again() -> None:
    """A list from minute 5 on says nothing about minute 4, even when the stream has passed it."""
    assert ranges_to_skip(ShardMemory.of("one", HELD), "one", span(1, 2), 4) is None
    assert ranges_to_skip(ShardMemory.of("one", HELD).after(at(30)), "one", span(31, 32), 4) is None


def test_what_the_stream_has_passed_is_forgotten() -> None:
    """Beyond everything that was listed there is nothing to leave out, and nothing is kept in memory for it."""
    remembered = ShardMemory.of("one", HELD)
    assert ranges_to_skip(remembered, "one", span(15, 30), 7) == HELD
    assert remembered.after(at(19)) == remembered
    passed = remembered.after(at(30))
    assert passed.archived is None
    beyond = ranges_to_skip(passed, "one", span(31, 40), 7)
    assert beyond is not None
    assert not beyond.in_minute(7)


def test_a_range_that_comes_again_after_it_was_passed_is_not_taken_for_new() -> None:
    """Another attempt at a batch that was written around existing objects must not write it whole."""
    passed = ShardMemory.of("one", HELD).after(at(30))
    assert ranges_to_skip(passed, "one", span(15, 30), 7) is None


def test_an_archive_without_the_shard_leaves_nothing_out() -> None:
    """The normal case: the list was empty, and is not asked for again."""
    remembered = ShardMemory.of("one", ArchivedRanges(5, {}, None))
    held = ranges_to_skip(remembered.after(at(3)), "one", span(1, 3), 5)
    assert held is not None
    assert not held.in_minute(5)
