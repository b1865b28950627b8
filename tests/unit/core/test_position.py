"""Positions in a shard: parsing, formatting, and the order of the sentinels."""

import pytest

from leasehold.core.position import (
    AT_TIMESTAMP,
    LATEST,
    SEQUENCE_DIGITS_MAX,
    SHARD_END,
    SUB_SEQUENCE_MAX,
    TRIM_HORIZON,
    Position,
    sequence_value,
)
from leasehold.errors import InvalidPositionError


def test_sentinels_sort_below_and_above_all_numbers() -> None:
    """AT_TIMESTAMP, TRIM_HORIZON, LATEST, then numbers, then SHARD_END, as in the Java KCL."""
    shuffled = [SHARD_END, LATEST, Position("9" * 56), AT_TIMESTAMP, Position("0"), TRIM_HORIZON]
    in_order = [AT_TIMESTAMP, TRIM_HORIZON, LATEST, Position("0"), Position("9" * 56), SHARD_END]
    assert sorted(shuffled) == in_order


def test_numbers_are_compared_as_numbers() -> None:
    """Their lengths differ, so text order would put 10 before 9."""
    assert Position("9") < Position("10")
    assert Position("0010") > Position("9")


def test_sub_sequence_numbers_break_ties() -> None:
    """The later of two user records in one aggregate sorts after the other, also with a sentinel."""
    assert Position("5", 1) < Position("5", 2) < Position("6", 0)
    assert Position("LATEST", 1) > LATEST


def test_all_shard_ends_have_the_same_order() -> None:
    """The sub-sequence number of SHARD_END does not count for order, but it does for equality."""
    odd = Position("SHARD_END", 5)
    assert odd <= SHARD_END <= odd
    assert odd != SHARD_END


def test_the_text_is_kept_as_received() -> None:
    """007 and 7 have the same order but are not equal: the service gets back its own text."""
    assert Position("007") <= Position("7") <= Position("007")
    assert Position("007") != Position("7")
    assert Position("007").sequence_number == "007"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "12 ",
        "-1",
        "+1",
        "1.0",
        "1e5",
        "0x1f",
        "\u0663",
        "\u00b2",
        "latest",
        "SHARD_END ",
        "12\n",
        "None",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """Neither digits nor a sentinel: signs, digits of other scripts, and anything with a space."""
    with pytest.raises(InvalidPositionError, match="is not a position: expected decimal digits"):
        Position(text)


def test_very_long_numbers_are_refused() -> None:
    """129 digits are accepted, as in the API of Kinesis, 130 are not, and the message does not repeat them all."""
    assert SEQUENCE_DIGITS_MAX == 129
    assert sequence_value("9" * SEQUENCE_DIGITS_MAX) == 10**SEQUENCE_DIGITS_MAX - 1
    with pytest.raises(InvalidPositionError, match="a sequence number of 130 digits") as raised:
        Position("9" * (SEQUENCE_DIGITS_MAX + 1))
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("sub", [-1, SUB_SEQUENCE_MAX + 1])
def test_sub_sequence_numbers_fit_a_java_long(sub: int) -> None:
    """Java could not read a larger one."""
    with pytest.raises(InvalidPositionError, match="outside 0"):
        Position("5", sub)


def test_kinds_of_positions() -> None:
    """A number is the position of a record; the four sentinels are not; only SHARD_END is the end."""
    places = [AT_TIMESTAMP, TRIM_HORIZON, LATEST, SHARD_END, Position("0"), Position("SHARD_END", 3)]
    assert [place.is_sentinel for place in places] == [True, True, True, True, False, True]
    assert [place.is_record for place in places] == [False, False, False, False, True, False]
    assert [place.is_shard_end for place in places] == [False, False, False, True, False, True]


def test_the_number_of_a_record() -> None:
    """Only the position of a record has an integer value."""
    assert Position("0042", 7).number == 42
    with pytest.raises(AssertionError, match="LATEST is not the position of a record"):
        _ = LATEST.number


def test_the_text_of_a_position() -> None:
    """A plain number, a number with its sub-sequence number, or a sentinel."""
    assert [str(place) for place in (Position("42"), Position("42", 7), LATEST)] == ["42", "42/7", "LATEST"]
