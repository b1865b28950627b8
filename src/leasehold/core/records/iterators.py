"""Where to start reading a shard, and whether records are missing there.

Reading always starts *at* the last record that is done, not after it. The record may be an aggregate of which only a
part is done. And if it comes back, no record after it was trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from leasehold.core.model import InitialPosition, Lease, Shard, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.errors import ConfigError

# How far our clock may be ahead of the service's. Records that arrived this long before LATEST may be delivered, too.
CLOCK_ERROR_MAX_MS: Final = 30_000


class IteratorKind(Enum):
    """AWS's ShardIteratorType."""

    TRIM_HORIZON = auto()
    LATEST = auto()
    AT_TIMESTAMP = auto()
    AT_SEQUENCE_NUMBER = auto()
    AFTER_SEQUENCE_NUMBER = auto()


@dataclass(frozen=True, slots=True)
class IteratorStart:
    """Where an iterator starts. The sequence number or the timestamp is set if the kind needs it."""

    kind: IteratorKind
    sequence_number: str | None = None
    timestamp_ms: int | None = None


def iterator_start(position: Position, initial: InitialPosition) -> IteratorStart:
    """Where to request an iterator for a lease with checkpoint `position`, or to continue after a record.

    A lease at AT_TIMESTAMP uses the configured timestamp, because the row has none.
    """
    assert not position.is_shard_end, "a finished shard is never read"
    if position.is_record:
        return IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=position.sequence_number)
    if position == AT_TIMESTAMP:
        if initial.timestamp_ms is None:
            raise ConfigError(
                f"a lease starts AT_TIMESTAMP, but the configured initial position is {initial.sentinel}, which "
                "has no timestamp: configure the timestamp that the fleet was started with"
            )
        return IteratorStart(IteratorKind.AT_TIMESTAMP, timestamp_ms=initial.timestamp_ms)
    kinds = {TRIM_HORIZON: IteratorKind.TRIM_HORIZON, LATEST: IteratorKind.LATEST}
    return IteratorStart(kinds[position])


def lease_start(
    lease: Lease, initial: InitialPosition, *, is_first_reading: bool
) -> tuple[Position, InitialPosition]:
    """Where to start reading a lease, and the initial position to use with it.

    LATEST means the tip at the time of the request. If the first reader failed before its first checkpoint, the next
    reader would skip the records that arrived in between. So it starts at the creation time of the lease instead.
    """
    if lease.checkpoint != LATEST or lease.latest_at_ms is None or is_first_reading:
        return lease.checkpoint, initial
    return AT_TIMESTAMP, InitialPosition(AT_TIMESTAMP, max(0, lease.latest_at_ms - CLOCK_ERROR_MAX_MS))


def replacement_start(
    position: Position, initial: InitialPosition, first_request_wall_ms: int
) -> IteratorStart:
    """Where to request another iterator, if the first one was requested for `position` at `first_request_wall_ms`.

    LATEST means the tip at the time of the request. A second request would skip the records that arrived in between.
    So it uses the time of the first request instead, minus the possible difference between the clocks.
    """
    if position == LATEST:
        return IteratorStart(
            IteratorKind.AT_TIMESTAMP, timestamp_ms=first_request_wall_ms - CLOCK_ERROR_MAX_MS
        )
    return iterator_start(position, initial)


@dataclass(frozen=True, slots=True)
class Gap:
    """Records after `after` may be missing, because they were trimmed before they were read. Reading continues at
    `resumes_at`; None means that nothing of the shard was left.

    A gap is reported when the record at `after` does not come back. So that record was trimmed, and there may have
    been others after it that were trimmed, too. A shard that was idle for longer than the retention, and then opened
    again, is also reported, although nothing was lost: a false alarm is better than a silent loss.
    """

    after: Position
    resumes_at: str | None
    resumes_at_arrival_ms: int | None


def gap_before(entered_at: Position, first_number: str, first_arrival_ms: int | None) -> Gap | None:
    """A gap, if the first record that came back lies after the record at which reading started.

    >>> gap_before(Position("100"), "100", None) is None
    True
    >>> gap_before(Position("100"), "117", None).after
    Position(sequence_number='100', sub_sequence_number=0)
    """
    if not entered_at.is_record or int(first_number) <= entered_at.number:
        return None
    return Gap(entered_at, first_number, first_arrival_ms)


def trimmed_beginning(shard: ShardId, open_at_horizon: Iterable[Shard]) -> Position | None:
    """The start of a shard, if it has been trimmed: the shard was already open at the time of the oldest retained
    record.

    None if the start is retained. Also None if the list contains a parent of the shard: the two were never open at
    the same time, so the server has ignored the filter and listed all shards.
    """
    found = {each.id: each for each in open_at_horizon}
    if shard not in found or not found.keys().isdisjoint(found[shard].parents):
        return None
    return Position(found[shard].starting_sequence_number)
