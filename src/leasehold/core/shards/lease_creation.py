"""Which leases to create, and where each begins. Reads a list of shards and the leases there are; returns new
leases in the order in which they must be written. Lists nothing, writes nothing, draws no lots.

Leases come into being at three moments, and each has its function here:

* `plan_first_leases`: the table is empty. One lease for each shard that was open at the initial position.
* `plan_missing_leases`: the table is not empty, and something is missing. The Java KCL's rule, so that it
  does not matter which member of a mixed fleet leads, plus one repair that Java does not make.
* `plan_children`: a shard has been read to its end. Its children begin at `TRIM_HORIZON` whatever the initial
  position is, since anything later would skip what was written since the reshard.

The order is by age. A crash half-way then leaves the older shards leased, and the next sync completes the
rest instead of taking the newer ones for the beginning of history.
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

# The Java KCL gives a lease up in one of thirty attempts to finish it while the other parent has no lease.
GIVE_UP_SHARE: Final = 1 / 30


class ShardFilterKind(Enum):
    """At which moment a shard must have been open to be listed."""

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
    """Which shards to list. `timestamp_ms` goes with `AT_TIMESTAMP`, and only with it."""

    kind: ShardFilterKind
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CreateChildren:
    """Create these leases, note the children on the finished lease, and only then write that it ended."""

    leases: tuple[Lease, ...]
    children: frozenset[ShardId]


@dataclass(frozen=True, slots=True)
class WaitForOtherParent:
    """The other parent of a merge has no lease yet: create nothing, and try again later.

    `give_up` says to let go of the lease, so that a stuck member does not sit on it for ever.
    """

    parent: ShardId
    give_up: bool


def initial_shard_filter(initial: InitialPosition) -> ShardFilter:
    """What to ask the stream for before `plan_first_leases`: the shards that were open at the initial
    position.
    """
    return ShardFilter(_FILTER_KINDS[initial.sentinel.sequence_number], initial.timestamp_ms)


def refuse_mixed_streams(leases: Iterable[Lease], *, is_multi_stream: bool) -> None:
    """A table holds the leases of one stream, or of several with their names before the keys, and never both.

    Two sets of leases of the same shards would have each record read twice. (The KCL does not look: a member of several
    streams passes over leases without a name, and one of a single stream asks Kinesis for shards that do not exist.)
    """
    other = next((lease for lease in leases if (lease.stream is not None) != is_multi_stream), None)
    if other is None:
        return
    if not is_multi_stream:
        raise ConfigError(
            f"the lease table holds lease {other.key} of an application with several streams (streams=), and this "
            "member has a single one (stream=): use streams= here too, or another application name"
        )
    raise ConfigError(
        f"the lease table holds lease {other.key} of an application with a single stream (stream=), and this member "
        "has several (streams=): use another application name; where both read a stream, it would be read twice"
    )


def plan_first_leases(
    graph: ShardGraph,
    initial: InitialPosition,
    *,
    stream: StreamIdentifier | None = None,
    ignore_unexpected_children: bool = False,
) -> tuple[Lease, ...]:
    """The leases that an empty table needs, from a list made with `initial_shard_filter`.

    A list that leaves hash keys to nobody, or gives them to two shards, is a `ShardListError` and creates
    nothing: a hole would go unread until the next audit, and from LATEST its records would be lost.
    """
    _refuse_unexpected_children(graph, ignore_unexpected_children)
    # At a single moment nobody is listed beside its parent. When the timestamp falls on a reshard to the
    # millisecond both may be; the parents alone are the whole answer then, and the children come when they
    # end.
    _refuse_unless_whole(graph.roots)
    return _in_order(((shard, initial.sentinel) for shard in graph.roots), stream)


def plan_missing_leases(
    graph: ShardGraph,
    leases: Iterable[Lease],
    initial: InitialPosition,
    *,
    stream: StreamIdentifier | None = None,
    ignore_unexpected_children: bool = False,
    repair: bool = True,
) -> tuple[Lease, ...]:
    """The leases that are missing for every open shard to be reached, from an unfiltered list of the stream.

    `leases` may hold those of other streams; they do not count. `repair` also creates children that were lost
    when their parent was finished (see `_lost_children`); without it the plan is the Java KCL's to the
    letter.
    """
    _refuse_unexpected_children(graph, ignore_unexpected_children)
    leased = {lease.shard_id: lease for lease in leases if lease.stream == stream}
    lost = _lost_children(graph, leased) if repair else frozenset()
    # What the repair creates covers its descendants, like any other lease.
    missing = _missing(graph, leased.keys() | lost, initial)
    beginnings = dict.fromkeys(lost, TRIM_HORIZON) | dict.fromkeys(missing, initial.sentinel)
    return _in_order(((graph.shards[shard_id], at) for shard_id, at in beginnings.items()), stream)


def plan_children(
    ended: Lease, children: Sequence[ChildShard], leased: Collection[LeaseKey], *, draw: float
) -> CreateChildren | WaitForOtherParent:
    """What to do before the end of a shard may be written into its lease.

    `children` are as the last answer of the shard named them; none when the shard vanished. `leased` holds
    the keys, among those of the children and their parents, that have a lease. `draw` is a number in [0, 1),
    drawn anew for each attempt.
    """
    _refuse_strange_children(ended, children)
    every = (_new_lease(child, TRIM_HORIZON, ended.stream) for child in children)
    new = tuple(lease for lease in every if lease.key not in leased)
    # Java waits even when the child has a lease: for ever, if the other parent was cleaned away meanwhile.
    if len(children) == 1 and new:
        missing = [parent for parent in children[0].parents if lease_key(parent, ended.stream) not in leased]
        if len(missing) == 1:
            return WaitForOtherParent(missing[0], give_up=draw < GIVE_UP_SHARE)
    return CreateChildren(new, frozenset(child.id for child in children))


def _missing(graph: ShardGraph, leased: Collection[ShardId], initial: InitialPosition) -> Collection[ShardId]:
    """The Java KCL's choice, in closed form. Only whether a lease exists matters to it, not how far it is."""
    unexpected = graph.unexpected_children
    unleased = [
        shard.id for shard in graph.open_shards if shard.id not in leased and shard.id not in unexpected
    ]
    walked = graph.upward_from(unleased, avoiding=leased)
    if initial.sentinel != LATEST:
        return [shard_id for shard_id in walked if not graph.parents_of(shard_id)]
    covered = graph.downward_from(leased)
    # A merge child that one line of leases will reach must wait for its other parent, so that one is needed
    # too.
    other_parents = {parent for shard_id in walked & covered for parent in graph.parents_of(shard_id)}
    return (other_parents | set(unleased)) - covered


def _lost_children(graph: ShardGraph, leased: Mapping[ShardId, Lease]) -> frozenset[ShardId]:
    """Shards that continue a lease, and that nobody but a sync will create any more.

    Children are created by whoever finishes their parent, so the Java KCL's rule leaves them alone below any
    lease. Two things break that chain: the parent was finished, but the creation was lost; or the parent left
    the retention period, and the answer that would have named its children with it. Java then leaves them
    unread for as long as the parent's lease exists, or begins them at the initial position, and from LATEST
    skips what they hold. They continue where the parent ended, so they begin at their start.

    A parent that is listed and not finished will name its children itself. Nothing is created above a leased
    shard: it is not lost, it was finished and cleaned away.
    """
    ended = {shard_id for shard_id, lease in leased.items() if lease.checkpoint.is_shard_end}
    unread = graph.shards.keys() - ended
    behind = leased.keys() - unread
    settled = graph.upward_from(leased) | graph.unexpected_children
    return frozenset(
        shard.id
        for shard in graph.shards.values()
        if shard.id not in settled
        and not behind.isdisjoint(shard.parents)
        and unread.isdisjoint(shard.parents)
    )


def _in_order(
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
        # All of them, also those that are trimmed: what another member listed may be older than what we did.
        parents=frozenset(shard.parents),
        hash_range=shard.hash_range,
        stream=stream,
    )


def _refuse_unexpected_children(graph: ShardGraph, ignore: bool) -> None:
    if (found := graph.unexpected_children) and not ignore:
        raise ShardListError(
            f"{len(found)} shards ({format_shard_ids(sorted(found))}) are listed beside a parent that is still open: "
            "the stream was resharded while its pages were read; list again (nothing was created)"
        )


def _refuse_unless_whole(shards: Sequence[Shard]) -> None:
    ranges = [shard.hash_range for shard in shards]
    if hole := first_hole(ranges):
        raise ShardListError(
            f"the {len(shards)} listed shards leave hash keys {hole} to nobody: a page is missing, or a "
            "reshard is under way; list again (nothing was created)"
        )
    if overlap := first_overlap(ranges):
        both = sorted(shard.id for shard in shards if shard.hash_range in overlap)
        raise ShardListError(
            f"shards {format_shard_ids(both)} both hold hash key {overlap[1].start}: the list mixes moments before and "
            "after a reshard; list again (nothing was created)"
        )


def _refuse_strange_children(ended: Lease, children: Sequence[ChildShard]) -> None:
    for child in children:
        if ended.shard_id not in child.parents:
            raise ShardListError(
                f"shard {format_shard_ids([ended.shard_id])} ended and named {format_shard_ids([child.id])} as its child, which "
                f"names {format_shard_ids(child.parents) or 'nobody'} as parents: it could start too early; ask again"
            )
    if len(children) == 1 and len(set(children[0].parents)) != 2:
        raise ShardListError(
            f"shard {format_shard_ids([ended.shard_id])} ended and named a single child, {format_shard_ids([children[0].id])}, "
            "that has no second parent: a merge has two parents, a split two children; ask again"
        )
