"""Decides whether a bounded run may still get leases to read. Spark calls such a run `availableNow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId


def leases_that_may_come(
    leases: Iterable[Lease],
    me: WorkerId,
    reading: Collection[LeaseKey],
    first_counters: Mapping[LeaseKey, int],
) -> set[LeaseKey]:
    """The unfinished leases that this member does not read yet and may still get.

    Such a lease has no owner, or its owner has not renewed it since it was first seen, or this member owns it and has
    not begun to read. If its counter has changed, another live member reads the shard, and also its descendants: a
    child cannot begin before its parent ends.
    """
    unfinished = {lease.shard_id: lease for lease in leases if not lease.checkpoint.is_shard_end}
    read_by_others = {
        shard
        for shard, lease in unfinished.items()
        if lease.actual_owner not in {None, me}
        and lease.counter != first_counters.get(lease.key, lease.counter)
    }
    return {
        lease.key
        for shard, lease in unfinished.items()
        if lease.key not in reading and not _has_ancestor_in(read_by_others, shard, unfinished)
    }


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
