"""How much of each shard a batch may take, and which task reads which shards. Values in, values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from leasehold.core.record import UserRecord

T = TypeVar("T")

# Below this a slice costs more in calls and writes than it brings.
SLICE_BYTES_MIN: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a whole batch may take, over all its shards; None: no such limit."""

    records: int | None = None
    size_bytes: int | None = None
    arrival_span_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """What one shard's slice may take."""

    records: int | None = None
    size_bytes: int | None = None
    arrival_span_ms: int | None = None


def limits_per_shard(limits: BatchLimits, shards: int) -> SliceLimits:
    """An equal share for each of so many shards, and one record at least.

    >>> limits_per_shard(BatchLimits(records=10), 4).records, limits_per_shard(BatchLimits(records=3), 4).records
    (2, 1)
    """
    return SliceLimits(
        records=None if limits.records is None else max(1, limits.records // shards),
        size_bytes=None if limits.size_bytes is None else max(SLICE_BYTES_MIN, limits.size_bytes // shards),
        arrival_span_ms=limits.arrival_span_ms,
    )


def deal_round_robin(items: Sequence[T], hands: int) -> list[list[T]]:
    """The items in at most so many groups of nearly equal length, none of them empty.

    >>> deal_round_robin("abcde", 2)
    [['a', 'c', 'e'], ['b', 'd']]
    """
    return [list(items[first::hands]) for first in range(min(hands, len(items)))]


def count_within(records: Sequence[UserRecord], limits: SliceLimits) -> int:
    """How many of the records, from the first on, a slice may hold; one at least, however large it is."""
    within = min(
        len(records) if limits.records is None else limits.records,
        _within_bytes(records, limits),
        _within_arrival(records, limits),
    )
    return min(len(records), max(1, within))


def has_late_record(records: Sequence[UserRecord], limits: SliceLimits) -> bool:
    """Whether the last record arrived too late to stand in one slice with the first."""
    if not records or limits.arrival_span_ms is None:
        return False
    return (records[-1].arrival_ms or 0) > (records[0].arrival_ms or 0) + limits.arrival_span_ms


def _within_arrival(records: Sequence[UserRecord], limits: SliceLimits) -> int:
    if not records or limits.arrival_span_ms is None:
        return len(records)
    last_ms = (records[0].arrival_ms or 0) + limits.arrival_span_ms
    late = (place for place, record in enumerate(records) if (record.arrival_ms or 0) > last_ms)
    return next(late, len(records))


def _within_bytes(records: Sequence[UserRecord], limits: SliceLimits) -> int:
    left = limits.size_bytes
    if left is None:
        return len(records)
    for place, record in enumerate(records):
        left -= len(record.data) + len(record.partition_key)
        if left < 0:
            return place
    return len(records)
