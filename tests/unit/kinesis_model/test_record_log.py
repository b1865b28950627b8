"""The records of one shard."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.kinesis_model.record_log import RecordLog, StoredRecord


def log_of(count: int, size: int = 10) -> RecordLog:
    """Return a log of records with numbers 10, 20, 30, ... that arrived at 100, 200, 300, ..."""
    log = RecordLog()
    for record in range(1, count + 1):
        log.append(10 * record, 100 * record, f"key-{record}", b"%d" % record, size)
    return log


def page(log: RecordLog, index: int, records_max: int = 100, bytes_max: int = 10_000) -> list[StoredRecord]:
    return list(log.page(index, records_max=records_max, bytes_max=bytes_max))


def test_a_record_is_found_by_its_number_or_the_next() -> None:
    """A number without a record leads to the following record."""
    log = log_of(3)
    assert [log.first_index_from_number(number) for number in (0, 10, 11, 30, 31)] == [0, 0, 1, 2, 3]


def test_a_record_is_found_by_its_arrival_time_or_the_next() -> None:
    """A time between two arrivals leads to the later record."""
    log = log_of(3)
    assert [log.first_index_from_time(time) for time in (0, 100, 101, 300, 301)] == [0, 0, 1, 2, 3]


def test_a_page_keeps_both_limits() -> None:
    """A page ends before it would exceed the allowed records or bytes."""
    log = log_of(10)
    assert [record.number for record in page(log, 2, records_max=3)] == [30, 40, 50]
    assert [record.number for record in page(log, 2, bytes_max=45)] == [30, 40, 50, 60]


def test_a_page_holds_at_least_one_record() -> None:
    """A record above the limit is returned alone."""
    assert [record.number for record in page(log_of(3, size=50), 1, bytes_max=5)] == [20]


def test_the_size_of_a_page_is_the_sum_of_its_records() -> None:
    """Trimmed records do not count."""
    log = log_of(5, size=7)
    log.trim_before(250)
    found = log.page(log.first_index_from_number(0), records_max=2, bytes_max=1000)
    assert (len(found), found.size) == (2, 14)


def test_a_page_can_be_indexed_like_a_list() -> None:
    """Its records are accessible by index, from the end, and as a slice."""
    found = log_of(4).page(0, records_max=10, bytes_max=1000)
    assert found[-1] == StoredRecord(40, 400, "key-4", b"4")
    assert [record.number for record in found[1:3]] == [20, 30]


def test_trimming_removes_records_before_the_horizon() -> None:
    """A record that arrived at the horizon stays."""
    log = log_of(5)
    log.trim_before(300)
    assert (len(log), [record.number for record in page(log, log.first_index_from_number(0))]) == (
        3,
        [30, 40, 50],
    )


def test_pages_keep_their_limits_after_trimming() -> None:
    """Bytes count from the start of the page, however many records before it were trimmed."""
    log = log_of(5_000)
    log.trim_before(100 * 4_000)
    found = log.page(log.first_index_from_number(0), records_max=100, bytes_max=45)
    assert ([record.number for record in found], found.size) == ([40_000, 40_010, 40_020, 40_030], 40)


def test_a_fully_trimmed_log_accepts_records() -> None:
    """Appending after all records were trimmed works as in a new log."""
    log = log_of(3)
    log.trim_before(10_000)
    assert (len(log), log.number_at(log.first_index_from_time(0))) == (0, None)
    log.append(40, 10_000, "key", b"new", 3)
    assert [record.data for record in page(log, log.first_index_from_number(0))] == [b"new"]


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 5_000)), max_size=12))
def test_trimming_and_appending_agree_with_a_plain_list(steps: list[tuple[int, int]]) -> None:
    """After any sequence of appends and trims the log equals a plain list."""
    log, plain, number = RecordLog(), list[StoredRecord](), 0
    for appended, step_ms in steps:
        for _ in range(appended):
            number += 1
            log.append(number, number, "k", b"d", 2)
            plain.append(StoredRecord(number, number, "k", b"d"))
        horizon_ms = number - step_ms
        log.trim_before(horizon_ms)
        plain = [record for record in plain if record.arrival_ms >= horizon_ms]
        index = log.first_index_from_number(0)
        assert list(log.page(index, records_max=sys.maxsize, bytes_max=sys.maxsize)) == plain


@pytest.mark.parametrize("kept", [1, 500, 100_000])
def test_trimmed_records_free_their_memory(kept: int) -> None:
    """Memory use follows the retained records."""
    log = RecordLog()
    for number in range(1, 3 * kept + 5_000):
        log.append(number, number, "k", b"d", 2)
        log.trim_before(number - kept + 1)
    assert len(log) == kept
    assert len(log._numbers) <= max(2 * kept, 1024 + kept)
