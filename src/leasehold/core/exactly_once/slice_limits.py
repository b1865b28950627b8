"""Limits the size of a batch and of its slices, and assigns slices to tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from leasehold.core.record import UserRecord
from leasehold.core.records.record_columns import UserRecordSequence, as_user_records

T = TypeVar("T")

# A smaller slice is not worth its read calls and its pin.
SLICE_BYTES_MIN: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of a batch over all its shards. None: no limit."""

    records: int | None = None
    size_bytes: int | None = None
    arrival_span_ms: int | None = None
    records_min: int | None = None
    delay_ms_max: int = 0  # after the last batch, for a batch that has fewer records than `records_min`

    def may_delay(self, waiting_records: int, since_last_batch_ms: int | None) -> bool:
        """True if a batch of so few records should wait for more. The first batch of a run does not wait.

        >>> limits = BatchLimits(records_min=10, delay_ms_max=60_000)
        >>> limits.may_delay(9, 59_999), limits.may_delay(10, 0), limits.may_delay(9, 60_000), limits.may_delay(9, None)
        (True, False, False, False)
        """
        if self.records_min is None or since_last_batch_ms is None:
            return False
        return waiting_records < self.records_min and since_last_batch_ms < self.delay_ms_max


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """The limits of the slice of one shard. None: no limit."""

    records: int | None = None
    size_bytes: int | None = None
    arrival_span_ms: int | None = None


def limits_per_shard(limits: BatchLimits, shards: int) -> SliceLimits:
    """Divide the limits of a batch equally among shards. Each shard may read at least one record.

    >>> limits_per_shard(BatchLimits(records=10), 4).records, limits_per_shard(BatchLimits(records=3), 4).records
    (2, 1)
    """
    return SliceLimits(
        records=None if limits.records is None else max(1, limits.records // shards),
        size_bytes=None if limits.size_bytes is None else max(SLICE_BYTES_MIN, limits.size_bytes // shards),
        arrival_span_ms=limits.arrival_span_ms,
    )


def deal_round_robin(items: Sequence[T], groups: int) -> list[list[T]]:
    """Deal the items into at most `groups` lists of nearly equal length, none of them empty.

    >>> deal_round_robin("abcde", 2)
    [['a', 'c', 'e'], ['b', 'd']]
    """
    return [list(items[first::groups]) for first in range(min(groups, len(items)))]


def count_within(records: Sequence[UserRecord], limits: SliceLimits) -> int:
    """Count the records, from the first, that fit into a slice. The first record always fits, whatever its size."""
    columns = as_user_records(records)
    within = min(
        len(records) if limits.records is None else limits.records,
        len(records) if limits.size_bytes is None else columns.count_within_bytes(limits.size_bytes),
        _within_arrival(columns, limits),
    )
    return min(len(records), max(1, within))


def has_late_record(records: Sequence[UserRecord], limits: SliceLimits) -> bool:
    """True if the last record arrived too late to share a slice with the first."""
    if not records or limits.arrival_span_ms is None:
        return False
    return _is_late(records[-1].arrival_ms, records[0].arrival_ms, limits.arrival_span_ms)


def _within_arrival(records: UserRecordSequence, limits: SliceLimits) -> int:
    span_ms = limits.arrival_span_ms
    if not records or span_ms is None:
        return len(records)
    arrivals_ms = records.arrivals_ms()
    late = (index for index, each in enumerate(arrivals_ms) if _is_late(each, arrivals_ms[0], span_ms))
    return next(late, len(records))


def _is_late(arrival_ms: int | None, first_ms: int | None, span_ms: int) -> bool:
    """A record without an arrival time is not late, and none is late after it. Amazon Kinesis always sends the time."""
    if arrival_ms is None or first_ms is None:
        return False
    return arrival_ms > first_ms + span_ms
