"""Columns of records behave like a tuple of the same records, and cut it without creating records."""

import pytest

from leasehold.core.position import Position
from leasehold.core.record import Record, UserRecord
from leasehold.core.records.record_columns import (
    RecordColumns,
    UserRecordColumns,
    as_user_records,
    join_user_records,
)

RECORDS = tuple(
    UserRecord(b"x" * size, "ké", str(number), number, None, sub, None, sub > 0)
    for size, number, sub in ((3, 98, 0), (0, 99, 0), (5, 100, 0), (5, 100, 1), (7, 1000, 0))
)
COLUMNS = UserRecordColumns.of(RECORDS)


def test_columns_are_a_sequence_of_the_records() -> None:
    """Also one that is empty."""
    assert tuple(COLUMNS) == RECORDS
    assert len(COLUMNS) == 5
    assert [COLUMNS[index] for index in range(-5, 5)] == [RECORDS[index] for index in range(-5, 5)]
    assert isinstance(COLUMNS[0], UserRecord)
    assert COLUMNS == RECORDS
    assert RECORDS == COLUMNS
    assert RECORDS[:4] != COLUMNS
    assert tuple(UserRecordColumns.of(())) == ()
    assert not UserRecordColumns.of(())


@pytest.mark.parametrize(
    "part", [slice(1, 3), slice(None), slice(-2, None), slice(3, 3), slice(None, None, 2)]
)
def test_a_slice_has_the_same_records(part: slice) -> None:
    """The size is that of the slice."""
    assert COLUMNS[part] == RECORDS[part]
    assert COLUMNS[part].payload_bytes == sum(len(each.data) + 2 for each in RECORDS[part])


def test_records_up_to_a_position_are_counted_by_number_and_sub_sequence_number() -> None:
    """The order is numeric: 99 comes before 100."""
    positions = [Position("97"), *(each.position for each in RECORDS), Position("1001")]
    assert [COLUMNS.count_to(each) for each in positions] == [0, 1, 2, 3, 4, 5, 5]
    assert COLUMNS.count_to(Position("100", 5)) == 4


def test_records_within_a_size_are_counted_with_their_keys() -> None:
    """Keys count by characters."""
    sizes = [-1, 4, 5, 6, 7, 28, 29, 30, 100]
    assert [COLUMNS.count_within_bytes(each) for each in sizes] == [0, 0, 1, 1, 2, 4, 4, 5, 5]


def test_records_after_a_number_are_kept_in_any_order() -> None:
    """A server may send records in a wrong order, and numbers have different lengths."""
    numbers = ["99", "100", "7", "101", "0100"]
    records = RecordColumns.of([Record(b"", "k", number) for number in numbers])
    assert [each.sequence_number for each in records.after_number(99)] == ["100", "101", "0100"]
    assert records.after_number(101) == []
    assert records.after_number(6) == list(records)


def test_parts_of_several_representations_are_joined() -> None:
    """In order, and without the empty ones."""
    joined = join_user_records([COLUMNS[:2], (), COLUMNS[2:]])
    assert joined == RECORDS
    assert joined.payload_bytes == COLUMNS.payload_bytes
    assert join_user_records([RECORDS[:1], COLUMNS[1:]]) == RECORDS
    assert join_user_records([]) == ()
    assert as_user_records(COLUMNS) is COLUMNS


def test_extended_columns_have_all_records_and_their_size() -> None:
    columns = UserRecordColumns.of(())
    assert columns.payload_bytes == 0
    columns.extend(COLUMNS[:2])
    columns.extend(COLUMNS[2:])
    assert columns == RECORDS
    assert columns.payload_bytes == COLUMNS.payload_bytes
    assert COLUMNS == RECORDS
