"""Where in a shard to begin reading, and whether something is missing there. Asks nobody; the reader does.

A shard is always entered *at* the last record that is done, not after it: the record may be an aggregate of which
only a part is done, and that it comes back shows that nothing in between was trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from leasehold.core.model import InitialPosition, Lease, Shard, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.errors import ConfigError

# How far ahead of the service's clock ours may be. Records that arrived this long before LATEST may come, too.
CLOCK_ERROR_MAX_MS: Final = 30_000


class IteratorKind(Enum):
    """How the service finds the first record."""

    TRIM_HORIZON = auto()
    LATEST = auto()
    AT_TIMESTAMP = auto()
    AT_SEQUENCE_NUMBER = auto()
    AFTER_SEQUENCE_NUMBER = auto()


@dataclass(frozen=True, slots=True)
class IteratorStart:
    """A place to begin. One of the two details goes with the kind that needs it."""

    kind: IteratorKind
    sequence_number: str | None = None
    timestamp_ms: int | None = None


def iterator_start(position: Position, initial: InitialPosition) -> IteratorStart:
    """Where to ask for an iterator, for a lease whose checkpoint is `position`, or to read on after a record.

    A lease at AT_TIMESTAMP takes the time from the configuration, since the row holds none.
    """
    assert not position.is_shard_end, "a finished shard is not read"
    if position.is_record:
        return IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=position.sequence_number)
    if position == AT_TIMESTAMP:
        if initial.timestamp_ms is None:
            raise ConfigError(
                f"a lease begins AT_TIMESTAMP, but the configured initial position is {initial.sentinel}, which "
                "names no time: configure the timestamp that the fleet was started with"
            )
        return IteratorStart(IteratorKind.AT_TIMESTAMP, timestamp_ms=initial.timestamp_ms)
    kinds = {TRIM_HORIZON: IteratorKind.TRIM_HORIZON, LATEST: IteratorKind.LATEST}
    return IteratorStart(kinds[position])


def lease_start(
    lease: Lease, initial: InitialPosition, *, is_first_reading: bool
) -> tuple[Position, InitialPosition]:
    """Where to begin reading a lease, and the settings that go with it.

    LATEST is the tip of the moment, and nothing has been checkpointed since: whoever follows a reader that died before
    its first checkpoint would skip what arrived meanwhile. So the time at which the lease was made is taken instead.
    """
    if lease.checkpoint != LATEST or lease.latest_at_ms is None or is_first_reading:
        return lease.checkpoint, initial
    return AT_TIMESTAMP, InitialPosition(AT_TIMESTAMP, max(0, lease.latest_at_ms - CLOCK_ERROR_MAX_MS))


def replacement_start(
    position: Position, initial: InitialPosition, asked_first_wall_ms: int
) -> IteratorStart:
    """Where to ask for another iterator, when `position` is where the first one, asked for at that time, was taken.

    LATEST is the tip of the moment: asked for again, it would skip what arrived meanwhile. So the time of the first
    asking is taken in its place, and a little more, because our clock is not the service's.
    """
    if position == LATEST:
        return IteratorStart(IteratorKind.AT_TIMESTAMP, timestamp_ms=asked_first_wall_ms - CLOCK_ERROR_MAX_MS)
    return iterator_start(position, initial)


@dataclass(frozen=True, slots=True)
class Gap:
    """Records after `after` may be missing: they were trimmed before they were read. Reading goes on at `resumes_at`,
    or is over if that is None: nothing of the shard was left.

    What is known is that the record at `after`, which should have come back, did not. So it is gone, and nobody can
    tell whether there were others behind it. A shard that was idle for longer than the retention, and whose reading
    began anew after that, is reported too, though nothing was lost: rather a false alarm than a silent loss.
    """

    after: Position
    resumes_at: str | None
    resumes_at_arrival_ms: int | None


def gap_before(entered_at: Position, first_number: str, first_arrival_ms: int | None) -> Gap | None:
    """Whether records are missing between the record at which a shard was entered and the first one that came back.

    >>> gap_before(Position("100"), "100", None) is None
    True
    >>> gap_before(Position("100"), "117", None).after
    Position(sequence_number='100', sub_sequence_number=0)
    """
    if not entered_at.is_record or int(first_number) <= entered_at.number:
        return None
    return Gap(entered_at, first_number, first_arrival_ms)


def trimmed_beginning(shard: ShardId, open_at_horizon: Iterable[Shard]) -> Position | None:
    """Where a shard began, if that is trimmed by now: it was open already at the time of the oldest retained records.

    None if its beginning is retained, or if the list cannot be what it should be: a shard and its parent were never
    open together, so some server has left the question aside and listed everything.
    """
    found = {each.id: each for each in open_at_horizon}
    if shard not in found or not found.keys().isdisjoint(found[shard].parents):
        return None
    return Position(found[shard].starting_sequence_number)
