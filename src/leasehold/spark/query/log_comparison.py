"""Compares the lease table with the offset log of a query before the query reads, and restores what the table lost.

The decisions are in `core.exactly_once.lost_leases`. Here the leases and shards are listed, the option `onLeasesBehind`
is applied, and the error is worded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from leasehold.core.exactly_once.lost_leases import (
    BehindLog,
    LostLease,
    SkipsRecords,
    Unfinished,
    find_lost_leases,
    plan_restore,
)
from leasehold.core.exactly_once.query_offset import QueryOffset, StreamOffset
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import Lease, StreamIdentifier, lease_key
from leasehold.core.position import LATEST
from leasehold.core.shards.shard_graph import ShardGraph, shard_graph
from leasehold.errors import NotFoundError, OffsetMismatchError, ShardListError
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock
from leasehold.spark.query_settings import OnLeasesBehind, QuerySettings
from leasehold.tasks import TRANSIENT_ERRORS, retry

_ATTEMPTS_MAX: Final = 11
# A list that was read during a reshard may contradict itself for a moment.
_LIST_ERRORS: Final[tuple[type[Exception], ...]] = (*TRANSIENT_ERRORS, ShardListError)

# What a lease lacks, and its stream. Shards of two streams have the same ids.
LostInStream = tuple[StreamIdentifier | None, LostLease]


@dataclass(frozen=True, slots=True)
class LogComparison:
    """The lease table and the streams of one query, to be compared with its log. Each stream is compared by itself."""

    table: LeaseTable
    streams: Streams
    settings: QuerySettings
    clock: Clock
    rng: random.Random

    async def list_leases(self) -> LeaseListing:
        """List all leases. A table that does not exist has none.

        The list is consistent. An earlier run may have written to the table and to the log a moment ago: a stale list
        would be behind the log, and would lack the stamps that show that a log is an old copy.
        """
        listing = partial(self.table.list, is_consistent=True)
        try:
            return await retry(listing, clock=self.clock, rng=self.rng, attempts_max=_ATTEMPTS_MAX)
        except NotFoundError:
            return LeaseListing(())

    async def list_shards(self, tracked: TrackedStream) -> ShardGraph | None:
        """List the shards of a stream. Returns None if they cannot be listed now."""
        try:
            return await _list_shards(tracked)
        except _LIST_ERRORS:
            return None

    async def require_leases(self, logged: QueryOffset) -> None:
        """Compare all leases with the log. Call it before the member starts, which would create missing leases.

        Raises OffsetMismatchError if leases are lost, unless the options choose a side. If they choose the log, this
        creates the missing leases; a lease that exists and is behind is corrected once this query owns it.
        """
        listing = await self.list_leases()
        compared = [await self._compare(tracked, listing, logged) for tracked in self.streams.known]
        behind = [each for each in compared if each.lost]
        if not behind or self.settings.on_leases_behind is OnLeasesBehind.LEASES:
            return
        if self.settings.on_leases_behind is OnLeasesBehind.FAIL:
            raise OffsetMismatchError(explain_lost_leases([each for some in behind for each in some.lost]))
        await self.table.prepare()
        for each in behind:
            await self._restore(each, listing)

    async def _compare(
        self, tracked: TrackedStream, listing: LeaseListing, logged: QueryOffset
    ) -> _ComparedStream:
        graph = await retry(
            partial(_list_shards, tracked),
            clock=self.clock,
            rng=self.rng,
            errors=_LIST_ERRORS,
            attempts_max=_ATTEMPTS_MAX,
        )
        part, unreadable = logged.in_stream(tracked.id), listing.unreadable_shards(tracked.id)
        lost = find_lost_leases(listing.of_stream(tracked.id), part, graph, unreadable)
        return _ComparedStream(tracked, graph, part, tuple((tracked.id, each) for each in lost))

    async def _restore(self, compared: _ComparedStream, listing: LeaseListing) -> None:
        stream = compared.tracked.id
        plan = plan_restore(
            listing.of_stream(stream),
            compared.logged,
            compared.graph,
            compared.tracked.initial,
            unreadable=listing.unreadable_shards(stream),
            stream=stream,
        )
        for lease in plan.delete:
            if lease.actual_owner is not None:
                raise OffsetMismatchError(
                    explain_lost_leases([(stream, SkipsRecords(lease.shard_id, lease))])
                )
            await self.table.delete(lease)
        for lease in plan.create:
            is_new = lease.checkpoint == LATEST and lease.latest_at_ms is None
            created = replace(lease, latest_at_ms=self.clock.wall_ms()) if is_new else lease
            await retry(
                partial(self.table.create, created),
                clock=self.clock,
                rng=self.rng,
                attempts_max=_ATTEMPTS_MAX,
            )


@dataclass(frozen=True, slots=True)
class _ComparedStream:
    """One stream, its part of the log, and what its leases lack."""

    tracked: TrackedStream
    graph: ShardGraph
    logged: StreamOffset
    lost: tuple[LostInStream, ...]


async def _list_shards(tracked: TrackedStream) -> ShardGraph:
    return shard_graph(await tracked.stream.list_shards())


def explain_lost_leases(lost: Sequence[LostInStream]) -> str:
    """The message of the error: the first contradiction, and the remedies."""
    others = len(lost) - 1
    subject = "One more shard contradicts" if others == 1 else f"{others} more shards contradict"
    more = f" {subject} it, too." if others else ""
    return (
        f"{_contradiction(*lost[0])}.{more} The lease table was deleted, restored from an older backup, or set back by "
        "`leasehold reset`. Restore the right table; or set onLeasesBehind=offsets to continue where the checkpoint "
        "location says (the last batch may be delivered twice); or set onLeasesBehind=leases to continue where the "
        "lease table says, as after a reset (what follows is delivered again, and the archive drops duplicates; "
        "from LATEST, records are skipped). If the checkpoint location is that of a query with another applicationName "
        "or streamName, use a new one for this query instead"
    )


def _contradiction(stream: StreamIdentifier | None, lost: LostLease) -> str:
    says = f"shard {lease_key(lost.shard, stream)}: according to the checkpoint location,"
    match lost:
        case BehindLog(logged=logged, lease=None):
            return f"{says} everything up to {logged} is committed, but the shard has no lease"
        case BehindLog(logged=logged, lease=Lease(checkpoint=found)):
            return f"{says} everything up to {logged} is committed, but the lease is at {found}"
        case Unfinished(lease=None):
            return f"{says} the shard is read to its end, but neither the shard nor a child of it has a lease"
        case Unfinished(lease=Lease(checkpoint=found)):
            return f"{says} the shard is read to its end, but the lease is at {found}"
        case SkipsRecords(lease=lease):
            owner = (
                f" {lease.actual_owner} owns the lease: stop this member first." if lease.actual_owner else ""
            )
            return (
                f"{says} a parent of the shard was read, so the shard begins at its first record, but the lease is at "
                f"{lease.checkpoint} and would skip records.{owner}"
            ).removesuffix(".")
    raise AssertionError(lost)
