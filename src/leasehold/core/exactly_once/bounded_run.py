"""Decides whether a bounded run may still get leases to read. Spark calls such a run `availableNow`.

A bounded run reads each shard up to its tip, once. A shard with records that arrived later is left to the next run, and
so are its descendants: they were created after its tip was read, so they contain nothing that existed when the run
began. The run must not wait for them, nor for the end of another shard that only one of them can bring about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import (
    ChildShard,
    InitialPosition,
    Lease,
    LeaseKey,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
)
from leasehold.core.shards.lease_audit import Sightings, audit_leases
from leasehold.core.shards.lease_creation import awaited_parent, plan_missing_leases
from leasehold.core.shards.shard_graph import ShardGraph


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """The owner of a lease, and the counter with which this owner was first seen."""

    owner: WorkerId | None
    counter: int


def next_first_seen(
    before: Mapping[LeaseKey, FirstSeen], leases: Iterable[Lease]
) -> dict[LeaseKey, FirstSeen]:
    """What is known after one more list. Another owner is seen for the first time: a leader may have assigned the lease
    to a member that has just died, and has increased the counter itself.
    """
    now = {lease.key: FirstSeen(lease.actual_owner, lease.counter) for lease in leases}
    return {
        key: before[key] if key in before and before[key].owner == seen.owner else seen
        for key, seen in now.items()
    }


def leases_that_may_come(
    leases: Iterable[Lease],
    me: WorkerId,
    reading: Collection[LeaseKey],
    first_seen: Mapping[LeaseKey, FirstSeen],
    left_over: Collection[ShardId] = frozenset(),
) -> set[LeaseKey]:
    """The unfinished leases that this member does not read yet and may still get.

    Such a lease has no owner, or its owner has not renewed it since it was first seen, or this member owns it and has
    not begun to read. If its counter has changed, another live member reads the shard, and also its descendants: a
    child cannot begin before its parent ends. For the same reason the descendants of `left_over` do not come: shards
    whose rest this run leaves to the next one. All leases and shards are of one stream.
    """
    unfinished = {lease.shard_id: lease for lease in leases if not lease.checkpoint.is_shard_end}
    read_by_others = {
        shard
        for shard, lease in unfinished.items()
        if lease.actual_owner not in {None, me}
        and lease.key in first_seen
        and lease.counter != first_seen[lease.key].counter
    }
    unread_here = read_by_others.union(left_over)
    return {
        lease.key
        for shard, lease in unfinished.items()
        if lease.key not in reading and not _has_ancestor_in(unread_here, shard, unfinished)
    }


def must_wait_for_parent(
    children: Sequence[ChildShard], listing: LeaseListing, stream: StreamIdentifier | None = None
) -> bool:
    """True if the end of a shard with these children cannot be written yet: the other parent of a merge has no lease.

    That parent gets its lease at the end of its own parent. If this run can bring that end about, another shard shows
    it: one that is not read to its tip, or a lease that may come, or that an audit will create.
    """
    unreadable = {lease_key(shard, stream) for shard in listing.unreadable_shards(stream)}
    leased = {lease.key for lease in listing.leases} | unreadable
    return awaited_parent(children, leased, stream) is not None


def will_create_leases(
    listing: LeaseListing,
    graph: ShardGraph,
    initial: InitialPosition,
    stream: StreamIdentifier | None = None,
) -> bool:
    """True if shards have lost their leases, and the audits of the fleet will create them.

    A shard that was trimmed before it was read ends without naming its children, so nobody has created their leases
    yet. An audit acts on hash keys without a lease; only then is it certain that missing leases are created.
    """
    ranges = {shard.id: shard.hash_range for shard in graph.shards.values()}
    audit = audit_leases(listing.leases, Sightings(), stream=stream, known_ranges=ranges, sightings_needed=1)
    return audit.sync_now and bool(
        plan_missing_leases(
            graph,
            listing.leases,
            initial,
            stream=stream,
            ignore_unexpected_children=True,
            unreadable=listing.unreadable_shards(stream),
        )
    )


def _has_ancestor_in(wanted: set[ShardId], shard: ShardId, unfinished: Mapping[ShardId, Lease]) -> bool:
    """True if the shard or one of its unfinished ancestors is in `wanted`."""
    pending, seen = [shard], set[ShardId]()
    while pending:
        each = pending.pop()
        if each in wanted:
            return True
        if each in unfinished and each not in seen:
            seen.add(each)
            pending.extend(unfinished[each].parents)
    return False
