"""The limits of slices, and the assignment of slices to tasks."""

import pytest

from leasehold.core.exactly_once.slice_limits import (
    SLICE_BYTES_MIN,
    BatchLimits,
    SliceLimits,
    count_within,
    deal_round_robin,
    has_late_record,
    limits_per_shard,
)
from leasehold.core.record import UserRecord


def records(*arrivals_ms: int | None, size: int = 9) -> list[UserRecord]:
    """Records of `size` + 1 bytes."""
    return [
        UserRecord(bytes(size), "k", str(place), at_ms) for place, at_ms in enumerate(arrivals_ms, start=1)
    ]


def test_every_shard_gets_an_equal_share() -> None:
    """Each share is at least one record, and enough bytes to be worth a call: 256 KiB."""
    assert SLICE_BYTES_MIN == 2**18
    share = limits_per_shard(BatchLimits(records=10, size_bytes=100 * SLICE_BYTES_MIN, arrival_span_ms=7), 4)
    assert share == SliceLimits(2, 25 * SLICE_BYTES_MIN, 7)
    assert limits_per_shard(BatchLimits(records=1, size_bytes=1), 9) == SliceLimits(1, SLICE_BYTES_MIN, None)
    assert limits_per_shard(BatchLimits(), 3) == SliceLimits()


def test_without_a_longest_delay_no_batch_waits() -> None:
    """However few records there are, and however short ago the last batch was."""
    assert not BatchLimits(records_min=10).may_delay(waiting_records=1, since_last_batch_ms=0)


@pytest.mark.parametrize(("items", "groups"), [(0, 3), (2, 3), (7, 3), (300, 2)])
def test_all_items_are_dealt_evenly(items: int, groups: int) -> None:
    """No group is empty, and the sizes differ by at most one."""
    dealt = deal_round_robin(range(items), groups)
    assert sorted(item for group in dealt for item in group) == list(range(items))
    assert len(dealt) == min(items, groups)
    assert not dealt or max(map(len, dealt)) - min(map(len, dealt)) <= 1


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (SliceLimits(), 4),
        (SliceLimits(records=3), 3),
        (SliceLimits(records=9), 4),
        (SliceLimits(size_bytes=19), 1),  # data and key of a record are 10 bytes
        (SliceLimits(size_bytes=20), 2),
        (SliceLimits(size_bytes=29), 2),
        (SliceLimits(size_bytes=1), 1),  # at least one record, or the shard would never progress
        (SliceLimits(arrival_span_ms=10), 2),
        (SliceLimits(arrival_span_ms=0), 1),
        (SliceLimits(records=3, size_bytes=100, arrival_span_ms=10), 2),
    ],
)
def test_a_slice_ends_at_the_first_limit(limits: SliceLimits, kept: int) -> None:
    """The limits are records, bytes and arrival time."""
    assert count_within(records(100, 110, 111, 105), limits) == kept


def test_an_empty_slice_has_no_records() -> None:
    """It has no first record to measure the arrival time from."""
    assert count_within([], SliceLimits(records=1, size_bytes=1, arrival_span_ms=1)) == 0
    assert not has_late_record([], SliceLimits(arrival_span_ms=1))


def test_reading_stops_at_a_record_that_arrived_too_late() -> None:
    """It does not continue to the tip."""
    assert has_late_record(records(100, 111), SliceLimits(arrival_span_ms=10))
    assert not has_late_record(records(100, 110), SliceLimits(arrival_span_ms=10))
    assert not has_late_record(records(100, 10_000), SliceLimits())


@pytest.mark.parametrize("unknown", [(None, 10_000), (100, None), (None, None)])
def test_a_record_without_an_arrival_time_does_not_end_a_slice(unknown: tuple[int | None, ...]) -> None:
    """Neither does it as the first record: there is no time to measure from."""
    assert count_within(records(*unknown), SliceLimits(arrival_span_ms=10)) == 2
    assert not has_late_record(records(*unknown), SliceLimits(arrival_span_ms=10))


def test_the_arrival_times_after_an_unknown_one_count() -> None:
    assert count_within(records(100, None, 111), SliceLimits(arrival_span_ms=10)) == 2
    assert has_late_record(records(100, None, 111), SliceLimits(arrival_span_ms=10))
