"""Recognises leases of a stream that was deleted and created again under the same name, and plans how to start over.

The shards of both streams have the same ids, so a lease of the earlier stream looks like one of the new stream. The
shard list shows the difference, because some facts about a shard never change:

* Its records come after its starting sequence number, and the shards of a later stream start at later numbers. So a
  checkpoint before the start of its shard belongs to an earlier stream.
* Its hash range. A lease with another one belongs to a stream with another number of shards.
* A shard that has ended is not open again. A lease at the end of a shard that is listed as open belongs to an earlier
  stream. If its row names children, the list may be older than a reshard, so this must be seen several times.

Trimming removes records and shards from the front, and a reshard adds shards. Neither changes these facts. The ending
sequence number is not used: not every server shows the real one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leasehold.core.model import InitialPosition, Lease, Shard, StreamIdentifier
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position, sequence_value
from leasehold.core.shards.lease_creation import plan_missing_leases
from leasehold.core.shards.shard_graph import ShardGraph


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A lease that cannot belong to the listed shard. If not `is_certain`, the list may only be out of date."""

    lease: Lease
    fact: str
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class StartOverPlan:
    """First create the leases of new shards, then restart the others in this order, each at the listed shard.

    The leases that show the contradiction come last. If a crash interrupts the writes, they show it again, and the
    next attempt does the rest.
    """

    create: tuple[Lease, ...]
    restart: tuple[tuple[Lease, Shard], ...]


def find_contradictions(
    shards: Iterable[Shard], leases: Iterable[Lease], *, stream: StreamIdentifier | None = None
) -> tuple[Contradiction, ...]:
    """The leases of a stream that cannot belong to its listed shards. The list must be read after the leases."""
    listed = {shard.id: shard for shard in shards}
    here = (lease for lease in leases if lease.stream == stream and lease.shard_id in listed)
    found = (_contradiction(lease, listed[lease.shard_id]) for lease in here)
    return tuple(each for each in found if each is not None)


def position_before_start(position: Position, shard: Shard) -> str | None:
    """The contradiction between a position and the start of its shard; None if there is none."""
    if not position.is_record or position.number >= sequence_value(shard.starting_sequence_number):
        return None
    return (
        f"position {position.sequence_number} of {shard.id} lies before the start of this shard, "
        f"{shard.starting_sequence_number}"
    )


def plan_start_over(
    graph: ShardGraph,
    leases: Iterable[Lease],
    contradictions: Iterable[Contradiction],
    *,
    stream: StreamIdentifier | None = None,
) -> StartOverPlan:
    """Let all leases of the earlier stream begin at TRIM_HORIZON of the new one.

    A lease whose checkpoint is a record of the new stream is left alone. Leases at the end of a shard, at LATEST or at
    a time may belong to either stream: they start over too, so that no record is lost. Leases of shards that are not
    listed are left to their owners, which find that these shards no longer exist.
    """
    evidence = {each.lease.key for each in contradictions}
    here = [lease for lease in leases if lease.stream == stream]
    listed = [(lease, graph.shards[lease.shard_id]) for lease in here if lease.shard_id in graph.shards]
    old = [pair for pair in listed if pair[0].key in evidence or _may_be_old(*pair)]
    # A shard without a lease was finished and cleaned up in the earlier stream; or in the new one, if a descendant has
    # been read there.
    read = {lease.shard_id for lease, _ in listed if lease.checkpoint.is_record and lease.key not in evidence}
    present = {lease.shard_id for lease in here} | graph.upward_from(read)
    first = plan_missing_leases(graph, (), InitialPosition(TRIM_HORIZON), stream=stream)
    return StartOverPlan(
        create=tuple(lease for lease in first if lease.shard_id not in present),
        restart=tuple(sorted(old, key=lambda pair: (pair[0].key in evidence, pair[0].key))),
    )


def _contradiction(lease: Lease, shard: Shard) -> Contradiction | None:
    for position in (lease.checkpoint, *([lease.pin.end] if lease.pin else [])):
        if fact := position_before_start(position, shard):
            return Contradiction(lease, fact)
    if lease.hash_range is not None and lease.hash_range != shard.hash_range:
        return Contradiction(
            lease,
            f"the lease of {shard.id} has hash keys {lease.hash_range.start}..{lease.hash_range.end}, the shard has "
            f"{shard.hash_range.start}..{shard.hash_range.end}",
        )
    if lease.checkpoint.is_shard_end and shard.is_open:
        fact = f"{shard.id} was read to its end, but is open"
        return Contradiction(lease, fact, is_certain=not lease.children)
    return None


def _may_be_old(lease: Lease, shard: Shard) -> bool:
    is_elsewhere = lease.checkpoint.is_shard_end or lease.checkpoint in {LATEST, AT_TIMESTAMP}
    return is_elsewhere or lease.parents != frozenset(shard.parents)
