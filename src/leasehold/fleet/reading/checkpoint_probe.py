"""Reads a shard once at the checkpoint of its lease: how old the first record after it is, and whether records were
trimmed.

The lag is that of the first record that is not done. That of the record at the checkpoint says nothing: on a shard that
was idle for hours, one new record would make it hours.

The read counts as one of the five reads a second that a shard allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from leasehold.core.model import InitialPosition, Lease
from leasehold.core.observing.explain.facts import LagRead
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.core.record import Record
from leasehold.core.records.iterators import gap_before, iterator_start
from leasehold.errors import InvalidArgumentError
from leasehold.ports import Clock, Page, Stream

LOST: Final = "the shard has ended and has no retained records: unprocessed records are lost"
FOREIGN: Final = (
    "the checkpoint is a position of another shard or stream: set it with `leasehold reset --shard`"
)
EMPTIED: Final = (
    "the record at the checkpoint has been trimmed, and no later record is retained: records are lost, unless the "
    "shard has been idle for longer than the retention"
)
TRIMMED: Final = "the record at the checkpoint has been trimmed, and maybe others after it"


@dataclass(frozen=True, slots=True)
class ShardLag:
    """The lag of one shard. If it is unknown, `note` gives the reason."""

    lease: Lease
    millis_behind: int | None
    note: str = ""
    is_trimmed: bool = False
    is_emptied: bool = False  # trimmed, and no later record is retained
    is_throttled: bool = False
    is_unavailable: bool = False  # Kinesis did not respond, or failed


async def probe_checkpoint(stream: Stream, lease: Lease, clock: Clock) -> ShardLag:
    """Read the record at the checkpoint, and the next one if there is one.

    Makes two or three calls, or none for a lease that begins at the tip or at a time.
    """
    if lease.checkpoint == LATEST:
        return ShardLag(lease, 0, "not started; starts at the tip")
    if lease.checkpoint == AT_TIMESTAMP:
        return ShardLag(lease, None, "not started; starts at a time that only the workers know")
    start = iterator_start(lease.checkpoint, InitialPosition(TRIM_HORIZON))
    try:
        iterator = await stream.get_iterator(lease.shard_id, start)
    except InvalidArgumentError:
        return ShardLag(lease, None, FOREIGN)
    page = await stream.get_records(iterator, limit=1)
    lag = _judge(lease, page)
    if not page.records or page.records[0].arrival_ms is None or page.millis_behind is None:
        return lag
    arrival_ms = page.records[0].arrival_ms
    if not _is_done(lease, page.records[0]):
        # At the tip Kinesis says 0, although this record is not done.
        return replace(lag, millis_behind=page.millis_behind or max(0, clock.wall_ms() - arrival_ms))
    if not page.millis_behind or page.next_iterator is None:
        return lag
    following = await stream.get_records(page.next_iterator, limit=1)
    if not following.records or following.records[0].arrival_ms is None:
        return lag
    idle_ms = following.records[0].arrival_ms - arrival_ms
    return replace(lag, millis_behind=max(0, page.millis_behind - idle_ms))


def lag_read(lag: ShardLag, at_ms: int) -> LagRead:
    """The lag as a fact for `explain_fleet`."""
    return LagRead(
        at_ms=at_ms,
        behind_ms=lag.millis_behind,
        is_trimmed=lag.is_trimmed,
        is_emptied=lag.is_emptied,
        is_throttled=lag.is_throttled,
        problem=lag.note,
        position=lag.lease.checkpoint,
    )


def _is_done(lease: Lease, record: Record) -> bool:
    return lease.checkpoint.is_record and int(record.sequence_number) <= lease.checkpoint.number


def _judge(lease: Lease, page: Page) -> ShardLag:
    records, lag = page.records, ShardLag(lease, page.millis_behind)
    if not records and page.next_iterator is None:
        return replace(lag, note=LOST, is_trimmed=True)
    if lease.checkpoint.is_sentinel:
        return replace(lag, note="not started")
    if records and gap_before(lease.checkpoint, records[0].sequence_number, None):
        return replace(lag, note=TRIMMED, is_trimmed=True)
    # At the tip, and the record at the checkpoint has not come back. Before the tip, a page may be empty by chance.
    if not records and page.millis_behind == 0:
        return replace(lag, note=EMPTIED, is_emptied=True)
    return lag
