"""Compares the leases of a fleet with the offset log of a query, and finds what a lost or restored table has lost.

The log knows how far the query has read each shard, and which shards it has finished (`query_offset`). A lease that is
behind the log would make the query deliver records again; a lease that begins at the tip, below a shard of the log,
would make it skip records. The log also suffices to restore the leases (`plan_restore`).

All functions compare one stream: its leases, its shards, and its part of the log.

A missing lease is no loss if a descendant of the shard has one: then the shard was finished, and cleanup has deleted
its lease. Nor if the shard has left the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from leasehold.core.exactly_once.query_offset import (
    ReadStart,
    StreamOffset,
    finished_shards,
    is_lease_behind_log,
)
from leasehold.core.model import (
    ChildShard,
    InitialPosition,
    Lease,
    Shard,
    ShardId,
    StreamIdentifier,
    lease_key,
)
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, Position
from leasehold.core.shards.lease_creation import plan_missing_leases
from leasehold.core.shards.shard_graph import ShardGraph


@dataclass(frozen=True, slots=True)
class BehindLog:
    """The query has read the shard further than its lease says. `lease` is None if the row is missing."""

    shard: ShardId
    logged: ReadStart
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The query has finished the shard, but the lease says otherwise.

    `lease` is None if the shard and all its descendants have no lease: then the leases of the children are lost.
    """

    shard: ShardId
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class SkipsRecords:
    """The lease begins at the tip or at a time, although the log names an ancestor: the shard begins where it ended."""

    shard: ShardId
    lease: Lease


LostLease = BehindLog | Unfinished | SkipsRecords


@dataclass(frozen=True, slots=True)
class LoggedShards:
    """What the log says about the shards of the stream. `logged_shards` creates it."""

    starts: Mapping[ShardId, ReadStart]
    finished: AbstractSet[ShardId]
    descendants: AbstractSet[ShardId]  # of all shards that the log names


def logged_shards(logged: StreamOffset, graph: ShardGraph | None) -> LoggedShards:
    """Without the shards of the stream (`graph`), only shards that the log names are known."""
    if graph is None:
        return LoggedShards(logged.known_starts, logged.finished, frozenset())
    children = [child for shard in logged.shards for child in graph.children_of(shard)]
    return LoggedShards(
        logged.known_starts, finished_shards(logged, graph), graph.downward_from(children) - logged.shards
    )


def compare_lease(lease: Lease, logged: LoggedShards) -> LostLease | None:
    """Compare one lease with the log. Returns None if they agree."""
    shard, known = lease.shard_id, logged.starts.get(lease.shard_id)
    if shard in logged.finished:
        return None if lease.checkpoint.is_shard_end else Unfinished(shard, lease)
    if known is not None:
        return BehindLog(shard, known, lease) if is_lease_behind_log(lease, known) else None
    if shard in logged.descendants and _begins_late(lease):
        return SkipsRecords(shard, lease)
    return None


def find_lost_leases(
    leases: Collection[Lease],
    logged: StreamOffset,
    graph: ShardGraph,
    unreadable: Collection[ShardId] = frozenset(),
) -> list[LostLease]:
    """Find every lease that the log contradicts. `unreadable` are shards whose rows exist and cannot be parsed."""
    present, shards = {lease.shard_id for lease in leases} | set(unreadable), logged_shards(logged, graph)
    lost = [found for lease in leases if (found := compare_lease(lease, shards)) is not None]
    return [*lost, *_missing(present, logged, graph)]


def _missing(present: Collection[ShardId], logged: StreamOffset, graph: ShardGraph) -> Iterator[LostLease]:
    finished, covered = finished_shards(logged, graph), graph.upward_from(present)
    known = logged.known_starts
    for shard in sorted(logged.shards & graph.shards.keys() - covered):
        if shard not in finished:
            yield BehindLog(shard, known[shard], None)
        elif shard in logged.finished:
            yield Unfinished(shard, None)
        # Otherwise the log names a descendant, which has no lease either and is reported.


def _begins_late(lease: Lease) -> bool:
    end = lease.checkpoint if lease.pin is None else lease.pin.end
    return end in {LATEST, AT_TIMESTAMP}


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The rows to delete first, and the leases to create then, in this order."""

    delete: tuple[Lease, ...]
    create: tuple[Lease, ...]


def plan_restore(
    leases: Collection[Lease],
    logged: StreamOffset,
    graph: ShardGraph,
    initial: InitialPosition,
    *,
    unreadable: Collection[ShardId] = frozenset(),
    stream: StreamIdentifier | None = None,
) -> RestorePlan:
    """Plan the leases that the log knows and the table lacks.

    Leases that exist and are behind are not in the plan: only their owner may write them. Shards that the query does
    not know begin where shard sync lets them begin.
    """
    shards = logged_shards(logged, graph)
    delete = [lease for lease in leases if isinstance(compare_lease(lease, shards), SkipsRecords)]
    deleted = {lease.shard_id for lease in delete}
    kept = {lease.shard_id: lease for lease in leases if lease.shard_id not in deleted}
    # Compared without the leases to delete: a lease that skips records does not show that its parents were finished.
    known = [
        _restored(graph.shards[each.shard], each.logged, initial, stream)
        for each in find_lost_leases(kept.values(), logged, graph, unreadable)
        if isinstance(each, BehindLog) and each.lease is None
    ]
    leased = kept.keys() | {lease.shard_id for lease in known}
    markers = _finished_markers(logged, graph, leased, stream)
    present = [*kept.values(), *known, *markers]
    missing = plan_missing_leases(
        graph, present, initial, stream=stream, unreadable=unreadable, ignore_unexpected_children=True
    )
    # Known positions first: while they are missing, another member could create them at another position.
    return RestorePlan(tuple(delete), (*known, *markers, *missing))


def _finished_markers(
    logged: StreamOffset,
    graph: ShardGraph,
    leased: Collection[ShardId],
    stream: StreamIdentifier | None,
) -> list[Lease]:
    """Leases of finished shards with a child that has no record yet, or no lease: the marker lets the child begin.

    A merged child without a record also needs it: otherwise it would wait for a parent without a lease, which seems
    unread.
    """
    finished, starts = finished_shards(logged, graph), logged.known_starts
    begun = {shard for shard, start in starts.items() if start.position.is_record}
    accounted = {*begun, *finished, *(shard for shard in leased if shard not in starts)}
    return [
        Lease(
            key=lease_key(shard, stream),
            shard_id=shard,
            checkpoint=SHARD_END,
            parents=frozenset(graph.shards[shard].parents),
            children=frozenset(graph.children_of(shard)),
            hash_range=graph.shards[shard].hash_range,
            stream=stream,
        )
        for shard in sorted(finished & graph.shards.keys() - set(leased))
        if not accounted.issuperset(graph.children_of(shard))
    ]


def _restored(
    shard: Shard, start: ReadStart, initial: InitialPosition, stream: StreamIdentifier | None
) -> Lease:
    checkpoint, latest_at_ms = _checkpoint_of(start, initial)
    return Lease(
        key=lease_key(shard.id, stream),
        shard_id=shard.id,
        checkpoint=checkpoint,
        parents=frozenset(shard.parents),
        hash_range=shard.hash_range,
        stream=stream,
        latest_at_ms=latest_at_ms,
    )


def _checkpoint_of(start: ReadStart, initial: InitialPosition) -> tuple[Position, int | None]:
    """The checkpoint of a lease for this start, and the time that LATEST means. A row cannot contain another time."""
    if start.timestamp_ms is None or initial.timestamp_ms == start.timestamp_ms:
        return start.position, None
    return LATEST, start.timestamp_ms


def children_in(graph: ShardGraph, shard: ShardId) -> tuple[ChildShard, ...]:
    """The children of a finished shard, as its last response listed them."""
    children = (graph.shards[child] for child in graph.children_of(shard))
    return tuple(ChildShard(child.id, child.parents, child.hash_range) for child in children)
