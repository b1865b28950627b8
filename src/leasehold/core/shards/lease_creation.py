"""Which leases to create, and the position where each begins. Takes a list of shards and the existing leases.

Leases are created on four occasions:

* `plan_first_leases`: the table is empty. Creates one lease for each shard that was open at the initial position.
* `plan_missing_leases`: leases are missing, because they were deleted or never written. Repairs more than the Java KCL,
  whose rule it follows without `repair`.
* `plan_lost_parents`: a merged shard is about to be read, and the lease of a parent is missing.
* `plan_children`: a shard has been read to its end. Its children always begin at `TRIM_HORIZON`. A later position would
  skip the records written since the reshard.

The returned leases are sorted by age, and must be written in this order. If a crash interrupts the writes, the older
shards have leases, and the next sync creates the rest. In another order, it would mistake the newer shards for the
oldest ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from leasehold.core.model import (
    ChildShard,
    InitialPosition,
    Lease,
    LeaseKey,
    Shard,
    ShardId,
    StreamIdentifier,
    lease_key,
)
from leasehold.core.position import LATEST, TRIM_HORIZON, Position, sequence_value
from leasehold.core.shards.hash_coverage import first_hole, first_overlap
from leasehold.core.shards.shard_graph import ShardGraph, format_shard_ids
from leasehold.errors import ConfigError, ShardListError

# As in the Java KCL: while the other parent has no lease, one of thirty attempts to finish releases the lease.
GIVE_UP_SHARE: Final = 1 / 30


class ShardFilterKind(Enum):
    """The time at which a shard must have been open to be listed."""

    AT_LATEST = auto()
    AT_TRIM_HORIZON = auto()
    AT_TIMESTAMP = auto()


_FILTER_KINDS: Final = {
    "LATEST": ShardFilterKind.AT_LATEST,
    "TRIM_HORIZON": ShardFilterKind.AT_TRIM_HORIZON,
    "AT_TIMESTAMP": ShardFilterKind.AT_TIMESTAMP,
}


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """Which shards to list. `timestamp_ms` is set only for `AT_TIMESTAMP`."""

    kind: ShardFilterKind
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CreateChildren:
    """Create these leases, and write `children` and the end of the shard into the finished lease."""

    leases: tuple[Lease, ...]
    children: frozenset[ShardId]


@dataclass(frozen=True, slots=True)
class WaitForOtherParent:
    """The other parent of a merge has no lease yet: create nothing, and retry later.

    With `give_up` the member releases the lease, so that it does not keep the lease for ever.
    """

    parent: ShardId
    give_up: bool


def initial_shard_filter(initial: InitialPosition) -> ShardFilter:
    """The filter of the shard list for `plan_first_leases`: shards that were open at the initial position."""
    return ShardFilter(_FILTER_KINDS[initial.sentinel.sequence_number], initial.timestamp_ms)


def refuse_mixed_streams(leases: Iterable[Lease], *, is_multi_stream: bool) -> None:
    """Raises ConfigError if the table has leases of another mode than this member.

    A table contains either the leases of a single stream, or leases of several streams with the stream in each key.
    With both, two leases of one shard could exist, and each record would be read twice. (The KCL does not check this:
    its multi-stream members skip leases without a stream, and its single-stream members request shards that do not
    exist.)
    """
    other = next((lease for lease in leases if (lease.stream is not None) != is_multi_stream), None)
    if other is None:
        return
    if not is_multi_stream:
        raise ConfigError(
            f"the lease table contains lease {other.key} of an application with several streams (streams=), and this "
            "member has a single one (stream=): use streams= here too, or another application name"
        )
    raise ConfigError(
        f"the lease table contains lease {other.key} of an application with a single stream (stream=), and this member "
        "has several (streams=): use another application name, or a stream that both read would be read twice"
    )


def plan_first_leases(
    graph: ShardGraph,
    initial: InitialPosition,
    *,
    stream: StreamIdentifier | None = None,
    ignore_unexpected_children: bool = False,
) -> tuple[Lease, ...]:
    """The leases for an empty table, from a list made with `initial_shard_filter`.

    Raises ShardListError if the list has a hole or an overlap in its hash keys. The shards of a hole would stay unread
    until the next audit, and from LATEST their records would be lost.
    """
    _refuse_unexpected_children(graph, ignore_unexpected_children)
    # At one point in time a shard and its parent are not both open. They may both be listed if the timestamp is the
    # very millisecond of a reshard. Then the parents cover all hash keys, and the children are created at their end.
    _refuse_holes_and_overlaps(graph.roots)
    return _oldest_first((_new_lease(shard, initial.sentinel, stream) for shard in graph.roots), graph)


def plan_missing_leases(
    graph: ShardGraph,
    leases: Iterable[Lease],
    initial: InitialPosition,
    *,
    stream: StreamIdentifier | None = None,
    ignore_unexpected_children: bool = False,
    repair: bool = True,
    unreadable: Collection[ShardId] = frozenset(),
) -> tuple[Lease, ...]:
    """The missing leases, so that every open shard is read at some time. `graph` is an unfiltered list of the stream.

    Leases of other streams are ignored. `unreadable` are the shards whose rows cannot be parsed. They count as leased,
    and it is not known whether they were read to their end, so no lease is created for their descendants. With `repair`
    the plan contains the lost shards (see `_lost`): no record is skipped, and no child overtakes its parent, whatever
    leases were deleted. Without it, and without any lease, the plan is exactly that of the Java KCL.
    """
    _refuse_unexpected_children(graph, ignore_unexpected_children)
    leased = {lease.shard_id: lease for lease in leases if lease.stream == stream}
    rows = leased.keys() | set(unreadable)
    if repair and leased:
        new = [
            _repaired_lease(graph.shards[each], leased, initial, stream)
            for each in _lost(graph, leased, rows)
        ]
    else:
        missing = _missing(graph, rows, initial)
        new = [_new_lease(graph.shards[each], initial.sentinel, stream) for each in missing]
    blocked = blocked_shards(graph, unreadable)
    return _oldest_first((lease for lease in new if lease.shard_id not in blocked), graph)


def blocked_shards(graph: ShardGraph, unreadable: Iterable[ShardId]) -> frozenset[ShardId]:
    """The listed shards that get no lease while these rows cannot be parsed: their shards and all descendants."""
    return graph.downward_from(_and_children(graph, unreadable))


def shards_of_leases(graph: ShardGraph, leases: Iterable[Lease]) -> frozenset[ShardId]:
    """The shards of these leases and all their listed descendants, which get leases when their parents end."""
    shards = frozenset(lease.shard_id for lease in leases)
    return shards | graph.downward_from(_and_children(graph, shards))


def parents_perhaps_lost(
    child: Lease, parents: Mapping[ShardId, bool | None], *, is_first_reading: bool
) -> tuple[ShardId, ...]:
    """The parents of a merged shard whose leases may have been deleted before their end was reached.

    `parents`: whether each parent has ended; None if it has no lease.

    The end of either parent creates the lease of a merged child, so this lease does not prove the end of the other one.
    A finished parent keeps its lease until the child has started (`lease_cleanup`). So a parent without a lease may be
    unread if the child has not started. A lease that was reset to TRIM_HORIZON, to read the shard again, is none of
    these: it is not the first reading, and both parents are gone.
    """
    missing = tuple(parent for parent, has_ended in parents.items() if has_ended is None)
    is_reset = len(missing) == len(parents) and not is_first_reading
    return () if child.checkpoint != TRIM_HORIZON or len(parents) < 2 or is_reset else missing


def plan_lost_parents(child: Lease, lost: Iterable[ShardId], graph: ShardGraph) -> tuple[Lease, ...]:
    """The leases of lost parents that still exist. They are read from their beginning, before `child`."""
    listed = (graph.shards[parent] for parent in lost if parent in graph.shards)
    return _oldest_first((_new_lease(shard, TRIM_HORIZON, child.stream) for shard in listed), graph)


def plan_children(
    ended: Lease, children: Sequence[ChildShard], leased: Collection[LeaseKey], *, draw: float
) -> CreateChildren | WaitForOtherParent:
    """What to do before the end of a shard may be written into its lease.

    `children` are those in the last response of the shard; empty if the shard no longer exists. `leased` are the keys
    of the children and their parents that have a lease. `draw` is a new random number in [0, 1) for each attempt.
    """
    _refuse_inconsistent_children(ended, children)
    every = (_new_lease(child, TRIM_HORIZON, ended.stream) for child in children)
    new = tuple(lease for lease in every if lease.key not in leased)
    if (parent := awaited_parent(children, leased, ended.stream)) is not None:
        return WaitForOtherParent(parent, give_up=draw < GIVE_UP_SHARE)
    return CreateChildren(new, frozenset(child.id for child in children))


def awaited_parent(
    children: Sequence[ChildShard], leased: Collection[LeaseKey], stream: StreamIdentifier | None
) -> ShardId | None:
    """The other parent of a merge that needs a lease before the end of this one may be written. None if there is none.

    Java also waits if the child has a lease: for ever, if the lease of the other parent was deleted meanwhile.
    """
    if len(children) != 1 or lease_key(children[0].id, stream) in leased:
        return None
    missing = [parent for parent in children[0].parents if lease_key(parent, stream) not in leased]
    return missing[0] if len(missing) == 1 else None


def _and_children(graph: ShardGraph, shards: Iterable[ShardId]) -> set[ShardId]:
    """Shards that need not be listed, and their listed children."""
    return {shard for each in shards for shard in (each, *graph.children_of(each))}


def _missing(graph: ShardGraph, leased: Collection[ShardId], initial: InitialPosition) -> Collection[ShardId]:
    """The missing shards by the rule of the Java KCL. It uses only whether a lease exists, not its checkpoint."""
    unexpected = graph.unexpected_children
    unleased = [
        shard.id for shard in graph.open_shards if shard.id not in leased and shard.id not in unexpected
    ]
    walked = graph.upward_from(unleased, avoiding=leased)
    if initial.sentinel != LATEST:
        return [shard_id for shard_id in walked if not graph.parents_of(shard_id)]
    covered = graph.downward_from(leased)
    # A merged child that descends from a lease also has to wait for its other parent, so that parent is needed too.
    other_parents = {parent for shard_id in walked & covered for parent in graph.parents_of(shard_id)}
    return (other_parents | set(unleased)) - covered


def _lost(
    graph: ShardGraph, leased: Mapping[ShardId, Lease], rows: AbstractSet[ShardId]
) -> frozenset[ShardId]:
    """Shards without a lease that no member will create, and that may hold records nobody has read.

    `rows` are the leased shards, and those whose rows cannot be parsed. They count as leased, and as unfinished.
    Only an unleased open shard, or an ancestor of one, can be lost. Each shard is in one of these states:

    * passed: a descendant has a lease, so the shard was read to its end, or the fleet began after it. It is never
      created again: its descendants may be running.
    * done: passed, or its lease is finished, or it left the retention period.
    * lost: not passed, and all its parents are done, so no end of a parent will create it. A merged shard is also lost
      if one parent left the retention period without a lease: the other parent would wait for this lease for ever.

    All others are created when a parent ends. The rule of the Java KCL looks only at the existence of leases: it
    creates nothing below a finished lease, and it begins at the roots, above shards that are being read.
    """
    unleased = [shard.id for shard in graph.open_shards if shard.id not in rows]
    passed = graph.upward_from(rows)
    finished = {shard_id for shard_id, lease in leased.items() if lease.checkpoint.is_shard_end}
    done = (passed - rows) | finished
    waits_for = {
        shard_id: [parent for parent in graph.parents_of(shard_id) if parent not in done]
        for shard_id in graph.upward_from(unleased, avoiding=rows) - passed - graph.unexpected_children
    }
    return frozenset(
        shard_id
        for shard_id, parents in waits_for.items()
        if not parents or (rows >= set(parents) and not _are_leased(graph, shard_id, rows))
    )


def _are_leased(graph: ShardGraph, shard_id: ShardId, leased: Collection[ShardId]) -> bool:
    """Whether every parent that left the retention period still has its lease."""
    return all(parent in leased for parent in graph.missing_parents_of(shard_id))


def _repaired_lease(
    shard: Shard,
    leased: Mapping[ShardId, Lease],
    initial: InitialPosition,
    stream: StreamIdentifier | None,
) -> Lease:
    """The new lease of a lost shard. It is unknown how far the lost lease was, so records are rather read twice.

    A child of a leased shard continues where its parent ended. Other shards begin at the initial position. LATEST now
    would skip the records since the fleet began. The leases with which it began show this time (`latest_at_ms`). The
    owner switch makes the reader begin there, because only a first reading begins at the tip.
    """
    if not leased.keys().isdisjoint(shard.parents):
        return _new_lease(shard, TRIM_HORIZON, stream)
    if initial.sentinel != LATEST:
        return _new_lease(shard, initial.sentinel, stream)
    began_ms = [lease.latest_at_ms for lease in leased.values() if lease.latest_at_ms is not None]
    if not began_ms:
        return _new_lease(shard, TRIM_HORIZON, stream)
    return replace(_new_lease(shard, LATEST, stream), latest_at_ms=min(began_ms), owner_switches=1)


def _oldest_first(leases: Iterable[Lease], graph: ShardGraph) -> tuple[Lease, ...]:
    def age(lease: Lease) -> tuple[int, ShardId]:
        return sequence_value(graph.shards[lease.shard_id].starting_sequence_number), lease.shard_id

    return tuple(sorted(leases, key=age))


def _new_lease(shard: Shard | ChildShard, at: Position, stream: StreamIdentifier | None) -> Lease:
    return Lease(
        key=lease_key(shard.id, stream),
        shard_id=shard.id,
        checkpoint=at,
        # Also trimmed parents: the list of another member may be older than ours.
        parents=frozenset(shard.parents),
        hash_range=shard.hash_range,
        stream=stream,
    )


def _refuse_unexpected_children(graph: ShardGraph, ignore: bool) -> None:
    if (found := graph.unexpected_children) and not ignore:
        raise ShardListError(
            f"{len(found)} shards ({format_shard_ids(sorted(found))}) are listed together with a parent that is still "
            "open: the stream was resharded while its pages were read; list again (nothing was created)"
        )


def _refuse_holes_and_overlaps(shards: Sequence[Shard]) -> None:
    ranges = [shard.hash_range for shard in shards]
    if hole := first_hole(ranges):
        raise ShardListError(
            f"the {len(shards)} listed shards do not cover hash keys {hole}: a page is missing, or the "
            "stream is being resharded; list again (nothing was created)"
        )
    if overlap := first_overlap(ranges):
        both = sorted(shard.id for shard in shards if shard.hash_range in overlap)
        raise ShardListError(
            f"shards {format_shard_ids(both)} both cover hash key {overlap[1].start}: some pages were read "
            "before a reshard and some after it; list again (nothing was created)"
        )


def _refuse_inconsistent_children(ended: Lease, children: Sequence[ChildShard]) -> None:
    for child in children:
        if ended.shard_id not in child.parents:
            raise ShardListError(
                f"the end of shard {format_shard_ids([ended.shard_id])} lists {format_shard_ids([child.id])} as a "
                f"child, whose parents are {format_shard_ids(child.parents) or 'none'}: it could start too early; "
                "read the end of the shard again"
            )
    if len(children) == 1 and len(set(children[0].parents)) != 2:
        raise ShardListError(
            f"the end of shard {format_shard_ids([ended.shard_id])} lists one child, "
            f"{format_shard_ids([children[0].id])}, which has no second parent: a merge has two parents, and a split "
            "two children; read the end of the shard again"
        )
