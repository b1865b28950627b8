"""Iterators, pages of records, and the end of a shard."""

from typing import Any

import pytest

from leasehold.core.model import ChildShard, HashRange
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from tests.unit.kinesis_model.model_under_test import BEGIN_MS, HOUR_MS, MIDDLE, ModelUnderTest, shard_id_of


def filled(records: int = 4, **settings: Any) -> tuple[ModelUnderTest, list[str]]:
    """A shard with records 0, 1, 2, ... that arrived a second apart, and their numbers."""
    world = ModelUnderTest(**settings)
    numbers = []
    for record in range(records):
        numbers.append(str(world.put(b"%d" % record).number))
        world.now_ms += 1000
    return world, numbers


# Where an iterator begins


def test_every_iterator_type_begins_where_it_says() -> None:
    """Oldest, at and after a number, at a time, and nothing but what comes."""
    world, numbers = filled()
    assert world.read(kind="TRIM_HORIZON") == [b"0", b"1", b"2", b"3"]
    assert world.read(kind="AT_SEQUENCE_NUMBER", number=numbers[2]) == [b"2", b"3"]
    assert world.read(kind="AFTER_SEQUENCE_NUMBER", number=numbers[2]) == [b"3"]
    assert world.read(kind="AT_TIMESTAMP", time_ms=BEGIN_MS + 1000) == [b"1", b"2", b"3"]
    assert world.read(kind="AT_TIMESTAMP", time_ms=BEGIN_MS + 1001) == [b"2", b"3"]
    assert world.read(kind="AT_TIMESTAMP", time_ms=0) == [b"0", b"1", b"2", b"3"]
    assert world.read(kind="LATEST") == []


def test_latest_is_fixed_when_the_iterator_is_made() -> None:
    """What is put after LATEST was asked for is read, however long the first read takes."""
    world, _ = filled()
    iterator = world.iterator(kind="LATEST")
    world.put(b"new")
    page, _ = world.get(iterator)
    assert list(page.records.data) == [b"new"]


def test_any_number_of_the_shard_is_a_position() -> None:
    """Its start, its end, a number that no record has, and one that was trimmed."""
    world, numbers = filled()
    between = str(int(numbers[1]) + 1)
    assert world.read(kind="AT_SEQUENCE_NUMBER", number=between) == [b"2", b"3"]
    world.split()
    shard = world.stream.shard(shard_id_of(0)).to_shard()
    assert world.read(kind="AT_SEQUENCE_NUMBER", number=shard.starting_sequence_number)[0] == b"0"
    assert world.read(kind="AFTER_SEQUENCE_NUMBER", number=shard.ending_sequence_number) == []
    world.now_ms += 24 * HOUR_MS - 2000
    assert world.read(kind="AT_SEQUENCE_NUMBER", number=numbers[0]) == [b"2", b"3"]


@pytest.mark.parametrize("number", ["0", "abc", "-1", "٣", "1" * 56, "9" * 5000], ids=lambda text: text[:6])
def test_a_number_that_is_not_the_shards_is_refused(number: str) -> None:
    """Garbage and numbers from elsewhere are an invalid argument that names the shard."""
    world, _ = filled()
    with pytest.raises(KinesisApiError, match=shard_id_of(0)) as error:
        world.iterator(kind="AT_SEQUENCE_NUMBER", number=number)
    assert error.value.error_type == ErrorType.INVALID_ARGUMENT


def test_a_number_of_the_neighbour_is_refused() -> None:
    """A record's number is a position only in the shard that holds it."""
    world = ModelUnderTest(shards=2)
    stored = world.put(hash_key=0)
    assert stored.shard_id == shard_id_of(0)
    with pytest.raises(KinesisApiError, match="did not come from this shard"):
        world.iterator(1, "AFTER_SEQUENCE_NUMBER", str(stored.number))


@pytest.mark.parametrize(
    ("kind", "number"),
    [("TRIM_HORIZON", "5"), ("LATEST", "5"), ("AT_SEQUENCE_NUMBER", None), ("AT_TIMESTAMP", None)],
)
def test_a_position_has_exactly_what_it_needs(kind: str, number: str | None) -> None:
    """A number without need, and a type without its number or time, are refused."""
    with pytest.raises(KinesisApiError, match="Must"):
        ModelUnderTest().iterator(kind=kind, number=number)


def test_a_time_in_the_future_is_refused() -> None:
    """AT_TIMESTAMP takes the present, and not a millisecond more."""
    world, _ = filled()
    assert world.read(kind="AT_TIMESTAMP", time_ms=world.now_ms) == []
    with pytest.raises(KinesisApiError, match="cannot be greater than the currentTimestampInMillis"):
        world.iterator(kind="AT_TIMESTAMP", time_ms=world.now_ms + 1)


# How long an iterator lives


def test_an_iterator_lives_five_minutes() -> None:
    """At five minutes it still works, a millisecond later it has expired; each page gives a fresh one."""
    world, _ = filled()
    iterator = world.iterator()
    world.now_ms += 300_000
    _, following = world.get(iterator)
    world.now_ms += 1
    with pytest.raises(KinesisApiError, match="tolerated delay of 300000") as error:
        world.get(iterator)
    assert error.value.error_type == ErrorType.ITERATOR_EXPIRED
    assert following
    world.get(following)


def test_an_iterator_of_an_earlier_stream_of_the_same_name_is_refused() -> None:
    """A stream made anew is another stream."""
    world, _ = filled()
    iterator = world.iterator()
    world.service.delete_stream(world.now_ms, "s")
    world.service.create_stream(world.now_ms, "s", shard_count=1)
    with pytest.raises(KinesisApiError, match="another stream") as error:
        world.get(iterator)
    assert error.value.error_type == ErrorType.INVALID_ARGUMENT


@pytest.mark.parametrize("text", ["", "x", "AAAAAAAAAAE" + "A" * 200, "é" * 50, "\0"])
def test_text_that_is_no_iterator_is_refused(text: str) -> None:
    """Garbage is an invalid argument that says how to get a real one."""
    with pytest.raises(KinesisApiError, match="GetShardIterator") as error:
        ModelUnderTest().get(text)
    assert error.value.error_type == ErrorType.INVALID_ARGUMENT


# Pages


def test_pages_follow_each_other_without_gap_or_repetition() -> None:
    """Limit cuts a page; the next iterator goes on; the same iterator gives the same page."""
    world, _ = filled(5)
    first, following = world.get(world.iterator(), limit=2)
    assert following
    second, last = world.get(following, limit=2)
    again, _ = world.get(following, limit=2)
    assert last
    third, _ = world.get(last, limit=2)
    assert [list(page.records.data) for page in (first, second, third)] == [
        [b"0", b"1"],
        [b"2", b"3"],
        [b"4"],
    ]
    assert again == second


def test_a_page_holds_at_most_ten_mebibytes() -> None:
    """A full page stops before 10 MiB, counting keys with data."""
    world = ModelUnderTest()
    for _ in range(11):
        world.put(bytes(1024 * 1024 - 1), key="k")
    page, following = world.get(world.iterator())
    assert len(page.records) == 10
    assert following
    assert len(world.get(following)[0].records) == 1


def test_behind_is_the_age_of_the_last_record_given_and_zero_at_the_tip() -> None:
    """How far behind is told by the wall clock, not by the newest record."""
    world, _ = filled(3)
    world.now_ms = BEGIN_MS + 60_000
    page, following = world.get(world.iterator(), limit=2)
    assert page.millis_behind_latest == 59_000
    assert following
    page, _ = world.get(following)
    assert (len(page.records), page.millis_behind_latest) == (1, 0)


def test_a_trimmed_position_goes_on_at_the_oldest_record_left() -> None:
    """An iterator whose place has passed the retention reads what is left."""
    world, numbers = filled(4)
    world.now_ms = BEGIN_MS + 24 * HOUR_MS + 1500
    assert world.read(kind="AFTER_SEQUENCE_NUMBER", number=numbers[0]) == [b"2", b"3"]
    assert world.read() == [b"2", b"3"]


# The end of a shard

CHILDREN = [
    ChildShard(shard_id_of(1), (shard_id_of(0),), HashRange(0, MIDDLE - 1)),
    ChildShard(shard_id_of(2), (shard_id_of(0),), HashRange(MIDDLE, 2**128 - 1)),
]


def test_a_closed_shard_ends_in_an_empty_page_after_its_records() -> None:
    """As the service mostly does: records with an iterator, then none with the children."""
    world, _ = filled(2)
    world.split()
    page, following = world.get(world.iterator())
    assert (list(page.records.data), list(page.children)) == ([b"0", b"1"], [])
    assert following
    end, none = world.get(following)
    assert (len(end.records), none, list(end.children), end.millis_behind_latest) == (0, None, CHILDREN, 0)


def test_a_closed_shard_can_end_together_with_its_last_records() -> None:
    """The other form: the last records come without an iterator, with the children."""
    world, _ = filled(2, shard_end_with_last_records=True)
    world.split()
    page, following = world.get(world.iterator(), limit=1)
    assert (len(page.records), list(page.children)) == (1, [])
    assert following
    end, none = world.get(following)
    assert (list(end.records.data), none, list(end.children)) == ([b"1"], None, CHILDREN)


def test_both_parents_of_a_merge_name_its_child() -> None:
    """Either end leads to the same child, which names both parents."""
    world = ModelUnderTest(shards=2)
    world.merge(0, 1)
    ends = [world.get(world.iterator(shard))[0].children for shard in (0, 1)]
    merged = ChildShard(shard_id_of(2), (shard_id_of(0), shard_id_of(1)), HashRange(0, 2**128 - 1))
    assert [list(children) for children in ends] == [[merged], [merged]]


def test_a_shard_whose_records_are_all_gone_does_not_exist() -> None:
    """Iterators to a shard that closed before the trim horizon are ResourceNotFound."""
    world, _ = filled(1)
    world.split()
    iterator = world.iterator(kind="TRIM_HORIZON")
    world.service.stream(world.now_ms, "s").trim_all_records()
    for attempt in (lambda: world.get(iterator), lambda: world.iterator(kind="LATEST")):
        with pytest.raises(KinesisApiError, match="past the retention period") as error:
            attempt()
        assert error.value.error_type == ErrorType.NOT_FOUND


# Limits


def test_reading_is_throttled_when_limits_hold() -> None:
    """The sixth call of a second is refused and the same iterator works later."""
    world, _ = filled(1, enforce_limits=True)
    iterator = world.iterator()
    for _ in range(5):
        world.get(iterator)
    with pytest.raises(KinesisApiError, match=f"Rate exceeded for shard {shard_id_of(0)}") as error:
        world.get(iterator)
    assert error.value.error_type == ErrorType.THROTTLED
    world.now_ms += 200
    world.get(iterator)


def test_reading_is_not_throttled_by_default() -> None:
    """Without limits a test may read as fast as it likes."""
    world, _ = filled(1)
    iterator = world.iterator()
    for _ in range(100):
        world.get(iterator)
