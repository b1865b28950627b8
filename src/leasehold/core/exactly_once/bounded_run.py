"""Whether a member that wants to read everything there is may still get leases to read. For bounded runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId


def leases_that_may_come(
    leases: Iterable[Lease],
    me: WorkerId,
    reading: Collection[LeaseKey],
    first_counters: Mapping[LeaseKey, int],
) -> set[LeaseKey]:
    """The unfinished leases that are not read by us and may come to us: free, silent so far, or ours and not begun.

    A lease whose counter has moved since it was first seen belongs to a living member, and is that member's to read.
    So are its descendants: nobody can begin them before it ends.
    """
    unfinished = {lease.shard_id: lease for lease in leases if not lease.checkpoint.is_shard_end}
    foreign = {
        shard
        for shard, lease in unfinished.items()
        if lease.actual_owner not in {None, me}
        and lease.counter != first_counters.get(lease.key, lease.counter)
    }
    return {
        lease.key
        for shard, lease in unfinished.items()
        if lease.key not in reading and not _waits_for(shard, foreign, unfinished)
    }


def _waits_for(shard: ShardId, foreign: set[ShardId], unfinished: Mapping[ShardId, Lease]) -> bool:
    family, seen = [shard], set[ShardId]()
    while family:
        each = family.pop()
        if each in foreign:
            return True
        if each in unfinished and each not in seen:
            seen.add(each)
            family.extend(unfinished[each].parents)
    return False
