"""Which objects of an archive are read, and how far the archive has no gap."""

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.exactly_once.archive_reading import (
    UNSETTLED_OBJECTS,
    ObjectPart,
    day_paths,
    parts_to_read,
    unsettled_from,
)
from leasehold.core.exactly_once.object_keys import ObjectKey
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position


def at(number: int) -> Position:
    return Position(str(number))


def key(minute: int, first: int, last: int) -> ObjectKey:
    return ObjectKey(minute, ShardId("a"), Range(at(first), at(last)), "parquet")


def test_objects_that_a_larger_one_covers_are_not_read() -> None:
    merged = key(7, 10, 30)
    assert parts_to_read([key(7, 10, 15), key(7, 16, 20), merged, key(7, 25, 30), key(7, 31, 40)]) == [
        ObjectPart(merged),
        ObjectPart(key(7, 31, 40)),
    ]


def test_ranges_of_another_minute_cover_nothing() -> None:
    objects = [key(7, 10, 30), key(8, 20, 25)]
    assert parts_to_read(objects) == [ObjectPart(each) for each in objects]


def test_an_object_that_overlaps_is_read_from_the_end_of_the_other() -> None:
    assert parts_to_read([key(7, 20, 40), key(7, 10, 30)]) == [
        ObjectPart(key(7, 10, 30)),
        ObjectPart(key(7, 20, 40), after=at(30)),
    ]


def test_a_range_with_two_extensions_is_read_once() -> None:
    other = ObjectKey(7, ShardId("a"), Range(at(10), at(20)), "jsonl")
    assert len(parts_to_read([key(7, 10, 20), other])) == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 6)), max_size=12))
def test_each_record_is_read_once(objects: list[tuple[int, int, int]]) -> None:
    """Every position that an object covers is in exactly one part, whatever the objects are."""
    keys = [key(minute, first, first + length) for minute, first, length in objects]
    expected = {
        (each.minute, n) for each in keys for n in range(each.range.first.number, each.range.last.number + 1)
    }
    taken = [
        (part.key.minute, n)
        for part in parts_to_read(keys)
        for n in range(part.key.range.first.number, part.key.range.last.number + 1)
        if part.after is None or n > part.after.number
    ]
    assert len(taken) == len(set(taken))
    assert set(taken) == expected


def test_the_newest_objects_of_a_shard_may_have_a_gap() -> None:
    keys = [key(minute, 10 * minute, 10 * minute + 9) for minute in range(UNSETTLED_OBJECTS + 3)]
    assert unsettled_from(keys) == at(30)
    assert unsettled_from(keys[:2]) == at(0)
    assert unsettled_from([]) is None


def test_merged_objects_count_once() -> None:
    """Small objects that were not deleted yet do not make newer ones settled."""
    small = [key(minute, 10 * minute, 10 * minute + 9) for minute in range(UNSETTLED_OBJECTS)]
    copies = [key(each.minute, each.range.first.number, each.range.first.number + 3) for each in small]
    assert unsettled_from([key(0, 0, 5), *small, *copies]) == at(0)


def test_each_day_of_a_time_is_listed() -> None:
    """From the day of the first minute to that of the last one. More days than two months are one listing."""
    day = 24 * 60
    assert day_paths(5 * day - 1, 5 * day, "a") == [
        "a/1970/01/05",
        "a/1970/01/06",
        "a/dt=1970-01-05",
        "a/dt=1970-01-06",
    ]
    assert len(day_paths(0, 62 * day)) == 2 * 63
    assert day_paths(0, 62 * day + 1) == [""]
