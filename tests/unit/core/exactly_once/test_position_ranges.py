"""Examples of sets of ranges."""

import pytest

from leasehold.core.exactly_once.position_ranges import TEXT_CHARACTERS_MAX, Range, RangeSet
from leasehold.core.position import (
    LATEST,
    SEQUENCE_DIGITS_MAX,
    SHARD_END,
    SUB_SEQUENCE_MAX,
    TRIM_HORIZON,
    Position,
)
from leasehold.errors import InvalidRangeError, LeaseholdError


def span(first: int, last: int) -> Range:
    return Range(Position(str(first)), Position(str(last)))


def whole(first: int, last: int) -> Range:
    """A range that includes all user records of its last aggregate."""
    return Range(Position(str(first)), Position(str(last), SUB_SEQUENCE_MAX))


def test_an_empty_set_covers_nothing() -> None:
    """The empty set is false and has no last position."""
    assert not RangeSet()
    assert list(RangeSet()) == []
    assert RangeSet().last is None
    assert Position("0") not in RangeSet()
    assert RangeSet.from_text("") == RangeSet.of([]) == RangeSet()


def test_ranges_include_both_ends() -> None:
    """The first and the last position are in the range, their neighbours are not."""
    ranges = RangeSet.of([span(10, 20)])
    assert [Position(str(number)) in ranges for number in (9, 10, 15, 20, 21)] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_numbers_compare_as_numbers() -> None:
    """9 comes before 10, and 007 equals 7."""
    ranges = RangeSet.of([span(9, 10)])
    assert Position("0010") in ranges
    assert Position("95") not in ranges


def test_a_range_may_end_within_an_aggregate() -> None:
    """A range up to user record 3 of aggregate 20 does not contain user record 4."""
    ranges = RangeSet.of([Range(Position("10"), Position("20", 3))])
    assert Position("20", 3) in ranges
    assert Position("20", 4) not in ranges
    assert RangeSet.of([whole(15, 20)]) - ranges == RangeSet.of(
        [Range(Position("20", 4), Position("20", SUB_SEQUENCE_MAX))]
    )


def test_adjacent_ranges_are_joined() -> None:
    """There is no position between user records 3 and 4 of an aggregate."""
    parts = [Range(Position("10"), Position("10", 3)), Range(Position("10", 4), Position("12"))]
    assert list(RangeSet.of(parts)) == [span(10, 12)]


def test_consecutive_sequence_numbers_are_not_adjacent() -> None:
    """User records of aggregate 20 may lie between 20 and 21. A range that covers them joins the two."""
    assert len(RangeSet.of([span(10, 20), span(21, 30)])) == 2
    assert list(RangeSet.of([whole(10, 20), span(21, 30)])) == [span(10, 30)]


def test_sentinels_are_in_no_set() -> None:
    """They are no positions of records: `in` returns False, and a range with them is refused."""
    ranges = RangeSet.of([span(0, 30)])
    assert [sentinel in ranges for sentinel in (TRIM_HORIZON, LATEST, SHARD_END)] == [False, False, False]
    with pytest.raises(
        InvalidRangeError, match="TRIM_HORIZON-5: both ends of a range must be sequence numbers"
    ):
        Range(TRIM_HORIZON, Position("5"))
    with pytest.raises(InvalidRangeError, match="5-SHARD_END"):
        Range(Position("5"), SHARD_END)


def test_a_range_must_not_end_before_it_begins() -> None:
    """The error message shows both ends."""
    with pytest.raises(InvalidRangeError, match="10/3-10/2: a range must not end before it begins"):
        Range(Position("10", 3), Position("10", 2))


def test_adding_does_not_change_the_old_set() -> None:
    """Sets are immutable."""
    before = RangeSet.of([span(1, 2)])
    after = before.add(span(5, 6))
    assert (before.to_text(), after.to_text()) == ("1-2", "1-2,5-6")
    assert hash(after) == hash(RangeSet.of([span(5, 6), span(1, 2)]))


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        pytest.param("", "5-6", "5-6", id="the first range"),
        pytest.param("1-4", "5-6", "1-4,5-6", id="after the end, with a gap"),
        pytest.param("1-4/3", "4/4-6", "1-6", id="right after the end"),
        pytest.param("1-4/3", "4/5-6", "1-4/3,4/5-6", id="after the end, with a gap of one position"),
        pytest.param("1-4", "4-6", "1-6", id="begins at the end"),
        pytest.param("1,3-9", "4-12", "1,3-12", id="extends the last range"),
        pytest.param("1,3-9", "4-5", "1,3-9", id="within the last range"),
        pytest.param("1,3-9", "3-12", "1,3-12", id="begins with the last range"),
        pytest.param("1,3-9", "2-12", "1,2-12", id="begins before the last range"),
        pytest.param("1-2,5-6", "2-5", "1-6", id="joins two ranges"),
        pytest.param("3-4", "1-1/7", "1-1/7,3-4", id="before all"),
        pytest.param("3-4", "1-9", "1-9", id="around all"),
    ],
)
def test_a_range_is_added_at_its_place(before: str, added: str, after: str) -> None:
    """Ranges that overlap or touch become one, and nothing that was covered is lost."""
    (range_,) = RangeSet.from_text(added)
    assert RangeSet.from_text(before).add(range_).to_text() == after


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [
        pytest.param("0-9", "0-4", "4/1-9", id="from the smallest position"),
        pytest.param("0-9", "0/1-9", "0", id="all but the smallest position"),
        pytest.param("5-9", "6-6/4", f"5-5/{SUB_SEQUENCE_MAX},6/5-9", id="from the middle"),
        pytest.param("5-9", "7-12", f"5-6/{SUB_SEQUENCE_MAX}", id="beyond the end"),
        pytest.param("5-5/9", "5-5/3,5/5-5/9", "5/4", id="all but one position"),
        pytest.param("5-5/9", "5/1-5/8", "5,5/9", id="all but the ends"),
        pytest.param("5-9,20-30", "1,12,40", "5-9,20-30", id="nothing"),
        pytest.param("5-9,20-30", "5-30", "", id="everything"),
        pytest.param("5-9,20-30", "5-9,20-30", "", id="itself"),
        pytest.param("", "5-9", "", id="from the empty set"),
        pytest.param("5-9", "", "5-9", id="the empty set"),
    ],
)
def test_what_is_subtracted_is_gone_and_the_rest_stays(ours: str, theirs: str, difference: str) -> None:
    """The positions next to what is subtracted stay."""
    assert (RangeSet.from_text(ours) - RangeSet.from_text(theirs)).to_text() == difference


def test_a_single_position_is_written_once() -> None:
    """The text of a set is canonical."""
    ranges = RangeSet.of([span(25, 25), Range(Position("10"), Position("20", 3)), span(7, 7)])
    assert ranges.to_text() == "7,10-20/3,25"
    assert RangeSet.from_text("7,10-20/3,25") == ranges


@pytest.mark.parametrize(
    "text",
    [
        *(
            " ",
            ",",
            "-",
            "1-",
            "-1",
            "1,",
            "1-2-3",
            "1/",
            "/1",
            "x",
            "LATEST",
            "1 - 2",
            "+1",
            "1_0",
            "٣",
            "1\n",
        ),
        *("2-1", "1/5-1/4", "5,3", "1,1", "1-5,5-9", "1-5,3", "10/1,10/2", "01", "1/0", "1/01", "1-1"),
        *("1/9223372036854775808", "1" * 130, "1-" + "9" * 5000, "1/" + "9" * 5000),
    ],
)
def test_any_other_text_is_refused(text: str) -> None:
    """Invalid text, another spelling, numbers out of bounds: the error quotes only the beginning."""
    with pytest.raises(InvalidRangeError) as error:
        RangeSet.from_text(text)
    assert isinstance(error.value, LeaseholdError)
    assert isinstance(error.value, ValueError)
    assert len(str(error.value)) < 400


def test_a_text_that_is_too_long_is_refused_without_parsing() -> None:
    """Hostile input does not cost parsing time."""
    with pytest.raises(InvalidRangeError, match="at most"):
        RangeSet.from_text("1" * (TEXT_CHARACTERS_MAX + 1))
    with pytest.raises(InvalidRangeError, match="is not a range"):
        RangeSet.from_text("1" * TEXT_CHARACTERS_MAX)


def test_the_largest_position_is_in_the_difference() -> None:
    """Nothing is subtracted beyond the other set."""
    largest = Position("9" * SEQUENCE_DIGITS_MAX, SUB_SEQUENCE_MAX)
    ranges = RangeSet.of([Range(Position("5"), largest)])
    assert (ranges - RangeSet()).last == largest
    assert (
        ranges - RangeSet.of([span(1, 7)])
    ).to_text() == f"7/1-{'9' * SEQUENCE_DIGITS_MAX}/{SUB_SEQUENCE_MAX}"
    assert RangeSet.from_text(ranges.to_text()) == ranges


def test_ten_thousand_ranges_round_trip() -> None:
    """One week of one shard, with a range for each minute, is far below every limit."""
    start = 49590338271490256608559692538361571095921575989136588898
    ranges = RangeSet.of(span(start + 1000 * each, start + 1000 * each + 500) for each in range(10_080))
    text = ranges.to_text()
    assert len(text) < TEXT_CHARACTERS_MAX
    assert RangeSet.from_text(text) == ranges
    assert len(ranges) == 10_080
    assert ranges.covers(span(start + 5_000_100, start + 5_000_400))
    assert not ranges.covers(span(start + 5_000_100, start + 5_001_100))
