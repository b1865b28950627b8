"""Leases of shards that have left the stream, and whose records an archive still has.

The stream no longer says which of these shards was whose parent. But a child begins after its parent has ended, and
sequence numbers rise with time. So a shard waits for all shards that ended before it began: its parents are among them.
A listed shard does so too if one of its parents is neither listed nor archived: that parent had no records, but its own
parents may have some.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from leasehold.core.model import InitialPosition, Lease, ShardId, StreamIdentifier, lease_key
from leasehold.core.position import sequence_value
from leasehold.core.shards.shard_graph import ShardGraph


@dataclass(frozen=True, slots=True)
class ArchivedShard:
    """A shard with archived records: the sequence numbers of the first and the last one."""

    id: ShardId
    first: int
    last: int


def plan_archived_leases(
    archived: Iterable[ArchivedShard],
    others: Collection[ShardId],
    initial: InitialPosition,
    *,
    stream: StreamIdentifier | None = None,
) -> tuple[Lease, ...]:
    """The leases of archived shards that no other lease leads to, oldest first.

    `others` are the shards that get their leases as in a stream without an archive. The planned leases have no hash
    range, because nobody may know it. They must be created before all other leases: these show that all of them were
    created.
    """
    gone = sorted(
        (each for each in archived if each.id not in others), key=lambda each: (each.first, each.id)
    )
    return tuple(
        Lease(
            key=lease_key(shard.id, stream),
            shard_id=shard.id,
            checkpoint=initial.sentinel,
            parents=_direct_predecessors(shard.first, gone),
            stream=stream,
        )
        for shard in gone
    )


def wait_for_archived(
    leases: Iterable[Lease], graph: ShardGraph, archived: Iterable[ArchivedShard]
) -> tuple[Lease, ...]:
    """New leases of listed shards, which also wait for archived shards if they may descend from them."""
    gone = [each for each in archived if each.id not in graph.shards]
    known = graph.shards.keys() | {each.id for each in gone}
    return tuple(
        lease if lease.parents <= known else _with_predecessors(lease, graph, gone) for lease in leases
    )


def _with_predecessors(lease: Lease, graph: ShardGraph, gone: Iterable[ArchivedShard]) -> Lease:
    first = sequence_value(graph.shards[lease.shard_id].starting_sequence_number)
    return replace(lease, parents=lease.parents | _direct_predecessors(first, gone))


def _direct_predecessors(first: int, gone: Iterable[ArchivedShard]) -> frozenset[ShardId]:
    """The shards that ended before a shard began, without those that another one of them already waits for."""
    before = [each for each in gone if each.last < first]
    latest_start = max((each.first for each in before), default=0)
    return frozenset(each.id for each in before if each.last >= latest_start)
