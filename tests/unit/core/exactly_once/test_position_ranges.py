"""Sets of ranges: what a reader of the module would try first."""

import pytest

from leasehold.core.exactly_once.position_ranges import TEXT_CHARACTERS_MAX, Range, RangeSet
from leasehold.core.position import LATEST, SHARD_END, SUB_SEQUENCE_MAX, TRIM_HORIZON, Position
from leasehold.errors import InvalidRangeError, LeaseholdError


def span(first: int, last: int) -> Range:
    return Range(Position(str(first)), Position(str(last)))


def whole(first: int, last: int) -> Range:
    """With all user records that the last one may hold."""
    return Range(Position(str(first)), Position(str(last), SUB_SEQUENCE_MAX))


def test_an_empty_set_covers_nothing() -> None:
    """Emptiness is false, and has no last position."""
    assert not RangeSet()
    assert list(RangeSet()) == []
    assert RangeSet().last is None
    assert Position("0") not in RangeSet()
    assert RangeSet.from_text("") == RangeSet.of([]) == RangeSet()


def test_ranges_include_both_ends() -> None:
    """The first and the last record of an object are in it, their neighbours are not."""
    ranges = RangeSet.of([span(10, 20)])
    assert [Position(str(number)) in ranges for number in (9, 10, 15, 20, 21)] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_numbers_compare_as_numbers() -> None:
    """9 comes before 10, and 007 is 7."""
    ranges = RangeSet.of([span(9, 10)])
    assert Position("0010") in ranges
    assert Position("95") not in ranges


def test_a_range_may_end_within_an_aggregate() -> None:
    """What is written up to part 3 of record 20 leaves part 4 to be written."""
    ranges = RangeSet.of([Range(Position("10"), Position("20", 3))])
    assert Position("20", 3) in ranges
    assert Position("20", 4) not in ranges
    assert RangeSet.of([whole(15, 20)]) - ranges == RangeSet.of(
        [Range(Position("20", 4), Position("20", SUB_SEQUENCE_MAX))]
    )


def test_ranges_that_touch_are_one() -> None:
    """Between part 3 and part 4 of a record there is nothing."""
    parts = [Range(Position("10"), Position("10", 3)), Range(Position("10", 4), Position("12"))]
    assert list(RangeSet.of(parts)) == [span(10, 12)]


def test_neighbouring_numbers_do_not_touch() -> None:
    """Between record 20 and record 21 there may be parts of 20; only who covers these joins the two."""
    assert len(RangeSet.of([span(10, 20), span(21, 30)])) == 2
    assert list(RangeSet.of([whole(10, 20), span(21, 30)])) == [span(10, 30)]


def test_sentinels_are_in_no_set() -> None:
    """They name no record; asking is allowed, putting them in is not."""
    ranges = RangeSet.of([span(0, 30)])
    assert [sentinel in ranges for sentinel in (TRIM_HORIZON, LATEST, SHARD_END)] == [False, False, False]
    with pytest.raises(
        InvalidRangeError, match="TRIM_HORIZON-5: both ends of a range must be sequence numbers"
    ):
        Range(TRIM_HORIZON, Position("5"))
    with pytest.raises(InvalidRangeError, match="5-SHARD_END"):
        Range(Position("5"), SHARD_END)


def test_a_range_must_not_end_before_it_begins() -> None:
    """The message shows both ends."""
    with pytest.raises(InvalidRangeError, match="10/3-10/2: a range must not end before it begins"):
        Range(Position("10", 3), Position("10", 2))


def test_adding_leaves_the_old_set_alone() -> None:
    """Sets are values."""
    before = RangeSet.of([span(1, 2)])
    after = before.add(span(5, 6))
    assert (before.to_text(), after.to_text()) == ("1-2", "1-2,5-6")
    assert hash(after) == hash(RangeSet.of([span(5, 6), span(1, 2)]))


def test_one_place_is_written_as_one_position() -> None:
    """The text of a set is short, and there is only one."""
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
        *("1/9223372036854775808", "1" * 129, "1-" + "9" * 5000, "1/" + "9" * 5000),
    ],
)
def test_any_other_text_is_refused(text: str) -> None:
    """Garbage, a second spelling, numbers out of bounds: an error of ours that does not repeat all of it."""
    with pytest.raises(InvalidRangeError) as error:
        RangeSet.from_text(text)
    assert isinstance(error.value, LeaseholdError)
    assert isinstance(error.value, ValueError)
    assert len(str(error.value)) < 400


def test_a_text_too_long_is_refused_unread() -> None:
    """A hostile text costs nothing but its length."""
    with pytest.raises(InvalidRangeError, match="at most"):
        RangeSet.from_text("1," * (TEXT_CHARACTERS_MAX // 2 + 1))


def test_ten_thousand_ranges_round_trip() -> None:
    """A week of minutes of one shard is far below every limit."""
    start = 49590338271490256608559692538361571095921575989136588898
    ranges = RangeSet.of(span(start + 1000 * each, start + 1000 * each + 500) for each in range(10_080))
    text = ranges.to_text()
    assert len(text) < TEXT_CHARACTERS_MAX
    assert RangeSet.from_text(text) == ranges
    assert len(ranges) == 10_080
    assert ranges.covers(span(start + 5_000_100, start + 5_000_400))
    assert not ranges.covers(span(start + 5_000_100, start + 5_001_100))
