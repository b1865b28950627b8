"""Iterators, pages of records, and the end of a shard."""

from typing import Any

import pytest

from leasehold.core.model import ChildShard, HashRange
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from tests.unit.kinesis_model.model_under_test import BEGIN_MS, HOUR_MS, MIDDLE, ModelUnderTest, shard_id_of


def model_with_records(records: int = 4, **settings: Any) -> tuple[ModelUnderTest, list[str]]:
    """Return a model with records 0, 1, 2, ... that arrived a second apart, and their sequence numbers."""
    model = ModelUnderTest(**settings)
    numbers = []
    for record in range(records):
        numbers.append(str(model.put(b"%d" % record).number))
        model.now_ms += 1000
    return model, numbers


# Where an iterator begins


def test_every_iterator_type_starts_at_its_position() -> None:
    """TRIM_HORIZON, AT and AFTER a number, AT_TIMESTAMP, and LATEST."""
    model, numbers = model_with_records()
    assert model.read(kind="TRIM_HORIZON") == [b"0", b"1", b"2", b"3"]
    assert model.read(kind="AT_SEQUENCE_NUMBER", number=numbers[2]) == [b"2", b"3"]
    assert model.read(kind="AFTER_SEQUENCE_NUMBER", number=numbers[2]) == [b"3"]
    assert model.read(kind="AT_TIMESTAMP", time_ms=BEGIN_MS + 1000) == [b"1", b"2", b"3"]
    assert model.read(kind="AT_TIMESTAMP", time_ms=BEGIN_MS + 1001) == [b"2", b"3"]
    assert model.read(kind="AT_TIMESTAMP", time_ms=0) == [b"0", b"1", b"2", b"3"]
    assert model.read(kind="LATEST") == []


def test_latest_is_fixed_when_the_iterator_is_issued() -> None:
    """Records put after the iterator was issued are read, however late the first read is."""
    model, _ = model_with_records()
    iterator = model.iterator(kind="LATEST")
    model.put(b"new")
    page, _ = model.get(iterator)
    assert list(page.records.data) == [b"new"]


def test_any_number_of_the_shard_is_a_valid_position() -> None:
    """The shard's start and end, a number without a record, and a trimmed one."""
    model, numbers = model_with_records()
    between = str(int(numbers[1]) + 1)
    assert model.read(kind="AT_SEQUENCE_NUMBER", number=between) == [b"2", b"3"]
    model.split()
    shard = model.stream.shard(shard_id_of(0)).to_shard()
    assert model.read(kind="AT_SEQUENCE_NUMBER", number=shard.starting_sequence_number)[0] == b"0"
    assert model.read(kind="AFTER_SEQUENCE_NUMBER", number=shard.ending_sequence_number) == []
    model.now_ms += 24 * HOUR_MS - 2000
    assert model.read(kind="AT_SEQUENCE_NUMBER", number=numbers[0]) == [b"2", b"3"]


@pytest.mark.parametrize("number", ["0", "abc", "-1", "٣", "1" * 56, "9" * 5000], ids=lambda text: text[:6])
def test_a_number_of_no_shard_is_refused(number: str) -> None:
    """Garbage and foreign numbers are an invalid argument. The error names the shard."""
    model, _ = model_with_records()
    with pytest.raises(KinesisApiError, match=shard_id_of(0)) as error:
        model.iterator(kind="AT_SEQUENCE_NUMBER", number=number)
    assert error.value.error_type == ErrorType.INVALID_ARGUMENT


def test_a_number_of_another_shard_is_refused() -> None:
    """A record's number is a position in its own shard only."""
    model = ModelUnderTest(shards=2)
    stored = model.put(hash_key=0)
    assert stored.shard_id == shard_id_of(0)
    with pytest.raises(KinesisApiError, match="did not come from this shard"):
        model.iterator(1, "AFTER_SEQUENCE_NUMBER", str(stored.number))


@pytest.mark.parametrize(
    ("kind", "number"),
    [("TRIM_HORIZON", "5"), ("LATEST", "5"), ("AT_SEQUENCE_NUMBER", None), ("AT_TIMESTAMP", None)],
)
def test_a_position_with_missing_or_unneeded_values_is_refused(kind: str, number: str | None) -> None:
    """An unneeded number, and a type without its number or time, are refused."""
    with pytest.raises(KinesisApiError, match="Must"):
        ModelUnderTest().iterator(kind=kind, number=number)


def test_a_time_in_the_future_is_refused() -> None:
    """AT_TIMESTAMP accepts the present, and refuses the next millisecond."""
    model, _ = model_with_records()
    assert model.read(kind="AT_TIMESTAMP", time_ms=model.now_ms) == []
    with pytest.raises(KinesisApiError, match="cannot be greater than the currentTimestampInMillis"):
        model.iterator(kind="AT_TIMESTAMP", time_ms=model.now_ms + 1)


# How long an iterator lives


def test_an_iterator_expires_after_five_minutes() -> None:
    """It is valid at five minutes and expired a millisecond later. Each page returns a new one."""
    model, _ = model_with_records()
    iterator = model.iterator()
    model.now_ms += 300_000
    _, following = model.get(iterator)
    model.now_ms += 1
    with pytest.raises(KinesisApiError, match="tolerated delay of 300000") as error:
        model.get(iterator)
    assert error.value.error_type == ErrorType.ITERATOR_EXPIRED
    assert following
    model.get(following)


def test_an_iterator_of_an_earlier_stream_of_the_same_name_is_refused() -> None:
    """A stream that is created again is another stream."""
    model, _ = model_with_records()
    iterator = model.iterator()
    model.service.delete_stream(model.now_ms, "s")
    model.service.create_stream(model.now_ms, "s", shard_count=1)
    with pytest.raises(KinesisApiError, match="an earlier stream") as error:
        model.get(iterator)
    assert error.value.error_type == ErrorType.INVALID_ARGUMENT


@pytest.mark.parametrize("text", ["", "x", "AAAAAAAAAAE" + "A" * 200, "é" * 50, "\0"])
def test_text_that_is_no_iterator_is_refused(text: str) -> None:
    """Garbage is an invalid argument. The error says how to get an iterator."""
    with pytest.raises(KinesisApiError, match="GetShardIterator") as error:
        ModelUnderTest().get(text)
    assert error.value.error_type == ErrorType.INVALID_ARGUMENT


# Pages


def test_pages_follow_each_other_without_gap_or_repetition() -> None:
    """The limit ends a page and the next iterator continues. The same iterator returns the same page again."""
    model, _ = model_with_records(5)
    first, following = model.get(model.iterator(), limit=2)
    assert following
    second, last = model.get(following, limit=2)
    again, _ = model.get(following, limit=2)
    assert last
    third, _ = model.get(last, limit=2)
    assert [list(page.records.data) for page in (first, second, third)] == [
        [b"0", b"1"],
        [b"2", b"3"],
        [b"4"],
    ]
    assert again == second


def test_a_page_holds_at_most_ten_mebibytes() -> None:
    """A full page stays below 10 MiB of data and partition keys."""
    model = ModelUnderTest()
    for _ in range(11):
        model.put(bytes(1024 * 1024 - 1), key="k")
    page, following = model.get(model.iterator())
    assert len(page.records) == 10
    assert following
    assert len(model.get(following)[0].records) == 1


def test_millis_behind_latest_is_the_age_of_the_last_record_of_the_page() -> None:
    """It is measured against the current time, not the newest record, and it is 0 at the tip."""
    model, _ = model_with_records(3)
    model.now_ms = BEGIN_MS + 60_000
    page, following = model.get(model.iterator(), limit=2)
    assert page.millis_behind_latest == 59_000
    assert following
    page, _ = model.get(following)
    assert (len(page.records), page.millis_behind_latest) == (1, 0)


def test_a_trimmed_position_continues_at_the_oldest_retained_record() -> None:
    """An iterator to a trimmed record reads the records that are left."""
    model, numbers = model_with_records(4)
    model.now_ms = BEGIN_MS + 24 * HOUR_MS + 1500
    assert model.read(kind="AFTER_SEQUENCE_NUMBER", number=numbers[0]) == [b"2", b"3"]
    assert model.read() == [b"2", b"3"]


# The end of a shard

CHILDREN = [
    ChildShard(shard_id_of(1), (shard_id_of(0),), HashRange(0, MIDDLE - 1)),
    ChildShard(shard_id_of(2), (shard_id_of(0),), HashRange(MIDDLE, 2**128 - 1)),
]


def test_a_closed_shard_ends_in_an_empty_page_after_its_records() -> None:
    """The service mostly does so: records with an iterator, then an empty page with the children."""
    model, _ = model_with_records(2)
    model.split()
    page, following = model.get(model.iterator())
    assert (list(page.records.data), list(page.children)) == ([b"0", b"1"], [])
    assert following
    end, none = model.get(following)
    assert (len(end.records), none, list(end.children), end.millis_behind_latest) == (0, None, CHILDREN, 0)


def test_a_closed_shard_can_end_with_its_last_records() -> None:
    """By setting, the page with the last records has the children and no iterator."""
    model, _ = model_with_records(2, shard_end_with_last_records=True)
    model.split()
    page, following = model.get(model.iterator(), limit=1)
    assert (len(page.records), list(page.children)) == (1, [])
    assert following
    end, none = model.get(following)
    assert (list(end.records.data), none, list(end.children)) == ([b"1"], None, CHILDREN)


def test_both_parents_of_a_merge_name_its_child() -> None:
    """Both last pages name the same child, which names both parents."""
    model = ModelUnderTest(shards=2)
    model.merge(0, 1)
    ends = [model.get(model.iterator(shard))[0].children for shard in (0, 1)]
    merged = ChildShard(shard_id_of(2), (shard_id_of(0), shard_id_of(1)), HashRange(0, 2**128 - 1))
    assert [list(children) for children in ends] == [[merged], [merged]]


def test_a_shard_without_retained_records_does_not_exist() -> None:
    """An iterator for a shard that closed before the trim horizon is ResourceNotFound."""
    model, _ = model_with_records(1)
    model.split()
    iterator = model.iterator(kind="TRIM_HORIZON")
    model.service.stream(model.now_ms, "s").trim_all_records()
    for attempt in (lambda: model.get(iterator), lambda: model.iterator(kind="LATEST")):
        with pytest.raises(KinesisApiError, match="past the retention period") as error:
            attempt()
        assert error.value.error_type == ErrorType.NOT_FOUND


# Limits


def test_reads_are_throttled_when_limits_are_enforced() -> None:
    """The sixth call of a second is refused. The same iterator works later."""
    model, _ = model_with_records(1, enforce_limits=True)
    iterator = model.iterator()
    for _ in range(5):
        model.get(iterator)
    with pytest.raises(KinesisApiError, match=f"Rate exceeded for shard {shard_id_of(0)}") as error:
        model.get(iterator)
    assert error.value.error_type == ErrorType.THROTTLED
    model.now_ms += 200
    model.get(iterator)


def test_reads_are_not_throttled_by_default() -> None:
    """Without limits a test may read as fast as it can."""
    model, _ = model_with_records(1)
    iterator = model.iterator()
    for _ in range(100):
        model.get(iterator)
