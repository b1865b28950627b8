"""Limits the size of a batch and of its slices, and assigns slices to tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from leasehold.core.record import UserRecord

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
    within = min(
        len(records) if limits.records is None else limits.records,
        _within_bytes(records, limits),
        _within_arrival(records, limits),
    )
    return min(len(records), max(1, within))


def has_late_record(records: Sequence[UserRecord], limits: SliceLimits) -> bool:
    """True if the last record arrived too late to share a slice with the first."""
    if not records or limits.arrival_span_ms is None:
        return False
    return _is_late(records[-1], records[0], limits.arrival_span_ms)


def _within_arrival(records: Sequence[UserRecord], limits: SliceLimits) -> int:
    span_ms = limits.arrival_span_ms
    if not records or span_ms is None:
        return len(records)
    late = (index for index, record in enumerate(records) if _is_late(record, records[0], span_ms))
    return next(late, len(records))


def _is_late(record: UserRecord, first: UserRecord, span_ms: int) -> bool:
    """A record without an arrival time is not late, and none is late after it. Amazon Kinesis always sends the time."""
    if record.arrival_ms is None or first.arrival_ms is None:
        return False
    return record.arrival_ms > first.arrival_ms + span_ms


def _within_bytes(records: Sequence[UserRecord], limits: SliceLimits) -> int:
    left = limits.size_bytes
    if left is None:
        return len(records)
    for index, record in enumerate(records):
        left -= len(record.data) + len(record.partition_key)
        if left < 0:
            return index
    return len(records)
