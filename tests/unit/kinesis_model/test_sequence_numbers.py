"""Sequence numbers."""

from hypothesis import given
from hypothesis import strategies as st

from leasehold.kinesis_model.sequence_numbers import SequenceNumberRange

EPOCHS = st.integers(1, 2**44 - 2)
INDEXES = st.integers(0, 2**24 - 1)
COUNTERS = st.integers(1, 2**64 - 2)
TIMES = st.integers(0, 2**44 - 1)


@given(EPOCHS, INDEXES, COUNTERS, TIMES)
def test_every_number_has_56_digits_and_lies_in_its_shard(
    epoch_ms: int, index: int, counter: int, at_ms: int
) -> None:
    """Start, records and end of a shard have 56 digits, in this order, and belong to the shard."""
    numbers = SequenceNumberRange(epoch_ms, index)
    start, record, end = numbers.start(at_ms), numbers.at(counter, at_ms), numbers.end(at_ms)
    assert start < record < end
    assert [len(str(number)) for number in (start, record, end)] == [56, 56, 56]
    assert all(number in numbers for number in (start, record, end))


@given(EPOCHS, INDEXES, COUNTERS, TIMES, TIMES)
def test_numbers_increase_with_the_counter_whatever_the_clock_does(
    epoch_ms: int, index: int, counter: int, earlier_ms: int, later_ms: int
) -> None:
    """A later record has the higher number even if its arrival time is lower."""
    numbers = SequenceNumberRange(epoch_ms, index)
    assert numbers.at(counter, earlier_ms) < numbers.at(counter + 1, later_ms)


@given(EPOCHS, INDEXES, INDEXES, TIMES, TIMES)
def test_numbers_of_a_child_are_above_those_of_its_parent(
    epoch_ms: int, parent: int, child: int, closed_ms: int, opened_ms: int
) -> None:
    """Every number of a child is above the end of its parent, for any indexes."""
    below, above = (
        SequenceNumberRange(epoch_ms, parent),
        SequenceNumberRange(epoch_ms + 1, child),
    )
    assert below.end(closed_ms) < above.start(opened_ms)


def test_shards_of_one_epoch_do_not_share_numbers() -> None:
    """A number identifies its shard also among shards that were created at the same moment."""
    first, second = SequenceNumberRange(1000, 0), SequenceNumberRange(1000, 1)
    assert first.at(7, 5) not in second
    assert first.end(5) < second.start(5)
