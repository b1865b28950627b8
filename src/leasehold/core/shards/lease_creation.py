"""Which leases to create, and the position where each begins. Takes a list of shards and the existing leases.

Leases are created on three occasions:

* `plan_first_leases`: the table is empty. Creates one lease for each shard that was open at the initial position.
* `plan_missing_leases`: leases are missing. Follows the rule of the Java KCL, so that it does not matter which member
  of a mixed fleet leads. Adds one repair that Java does not make.
* `plan_children`: a shard has been read to its end. Its children always begin at `TRIM_HORIZON`. A later position would
  skip the records written since the reshard.

The returned leases are sorted by age, and must be written in this order. If a crash interrupts the writes, the older
shards have leases, and the next sync creates the rest. In another order, it would mistake the newer shards for the
oldest ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    return _oldest_first(((shard, initial.sentinel) for shard in graph.roots), stream)


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
    and it is not known whether they were read to their end, so no lease is created for their descendants. `repair`
    also creates the leases of lost children (see `_lost_children`). Without it the plan is exactly that of the Java
    KCL.
    """
    _refuse_unexpected_children(graph, ignore_unexpected_children)
    leased = {lease.shard_id: lease for lease in leases if lease.stream == stream}
    lost = _lost_children(graph, leased) if repair else frozenset()
    lost -= graph.upward_from(unreadable)
    # The repaired leases cover their descendants, like any other lease.
    missing = _missing(graph, leased.keys() | lost | set(unreadable), initial)
    blocked = blocked_shards(graph, unreadable)
    beginnings = dict.fromkeys(lost, TRIM_HORIZON) | dict.fromkeys(missing, initial.sentinel)
    return _oldest_first(
        ((graph.shards[shard_id], at) for shard_id, at in beginnings.items() if shard_id not in blocked),
        stream,
    )


def blocked_shards(graph: ShardGraph, unreadable: Iterable[ShardId]) -> frozenset[ShardId]:
    """The listed shards that get no lease while these rows cannot be parsed: their shards and all descendants."""
    starts = {shard for each in unreadable for shard in (each, *graph.children_of(each))}
    return graph.downward_from(starts)


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
    # Java also waits if the child has a lease: for ever, if the lease of the other parent was deleted meanwhile.
    if len(children) == 1 and new:
        missing = [parent for parent in children[0].parents if lease_key(parent, ended.stream) not in leased]
        if len(missing) == 1:
            return WaitForOtherParent(missing[0], give_up=draw < GIVE_UP_SHARE)
    return CreateChildren(new, frozenset(child.id for child in children))


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


def _lost_children(graph: ShardGraph, leased: Mapping[ShardId, Lease]) -> frozenset[ShardId]:
    """Children of leased shards that only a sync can still create.

    Normally the member that finishes a shard creates the leases of its children, so the rule of the Java KCL creates
    none below an existing lease. This fails in two cases. The parent was finished, but its children were not created.
    Or the parent left the retention period, so that no response names its children any more. Java then leaves the
    children unread while the lease of the parent exists, or starts them at the initial position; from LATEST it skips
    their records. Here they begin at TRIM_HORIZON, because they continue where the parent ended.

    A parent that is listed and not finished creates its children itself. An ancestor of a leased shard is not lost: it
    was finished, and its lease was deleted.
    """
    ended = {shard_id for shard_id, lease in leased.items() if lease.checkpoint.is_shard_end}
    unread = graph.shards.keys() - ended
    read = leased.keys() - unread
    not_lost = graph.upward_from(leased) | graph.unexpected_children
    return frozenset(
        shard.id
        for shard in graph.shards.values()
        if shard.id not in not_lost
        and not read.isdisjoint(shard.parents)
        and unread.isdisjoint(shard.parents)
    )


def _oldest_first(
    beginnings: Iterable[tuple[Shard, Position]], stream: StreamIdentifier | None
) -> tuple[Lease, ...]:
    oldest_first = sorted(beginnings, key=lambda pair: _age(pair[0]))
    return tuple(_new_lease(shard, at, stream) for shard, at in oldest_first)


def _age(shard: Shard) -> tuple[int, ShardId]:
    return sequence_value(shard.starting_sequence_number), shard.id


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
