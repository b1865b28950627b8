"""Plans a reset: which leases move where, which must be created, and which have to move together.

The records of a child come after those of its parents. So a shard that is opened again takes its descendants with it:
they are set to their first record, and wait. Descendants whose finished leases were deleted get one again, or their
own children would not wait for them.

Each shard has a *start*: where the target lies in it. A start at the end means that the target is later than all of
its records. A lease is never set to the end itself: it is set to the last record, and a member finds the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from leasehold.core.finding import format_duration
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.leases.lease_view import position_to_json, short_position
from leasehold.core.model import Lease, LeaseKey, Shard, ShardId, StreamIdentifier, lease_key
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.shard_graph import ShardGraph
from leasehold.errors import BlockedLeasesError, NotFoundError


@dataclass(frozen=True, slots=True)
class ShardStart:
    """Where a target lies in a shard: after `position`. `arrival_ms` is when the record at `position` arrived.

    `is_at_end`: the shard is closed, and has no record after it. `is_newest`: the shard is open, and has none yet.
    """

    position: Position
    is_at_end: bool = False
    is_newest: bool = False
    arrival_ms: int | None = None


OLDEST = ShardStart(TRIM_HORIZON)


@dataclass(frozen=True, slots=True)
class LeaseMove:
    """Set an existing lease to a position. With `only_forward`, a lease that has read past it by then stays.

    `is_forward` compares with the stored checkpoint, which may be older than what the owner has delivered.
    `arrived_ms` and `arrives_ms` are the arrivals of the records at the old and at the new position, if known.
    """

    lease: Lease
    to: Position
    is_forward: bool
    only_forward: bool = False
    is_reopened: bool = False
    arrived_ms: int | None = None
    arrives_ms: int | None = None

    @property
    def is_same_position(self) -> bool:
        """Whether the stored checkpoint stays. The lease is taken from its owner, which may have delivered more."""
        return self.to == self.lease.checkpoint


@dataclass(frozen=True, slots=True)
class NewLease:
    """Create a lease for a shard that has none.

    `was_read`: the shard was read to its end, and its lease deleted since. Otherwise nothing shows that its records
    were read, and those up to the position of the new lease are skipped.
    """

    lease: Lease
    was_read: bool

    @property
    def is_forward(self) -> bool:
        """Whether records are skipped that were not read."""
        return self.lease.checkpoint.is_record and not self.was_read


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset changes. `moves` and `create` have parents first; `unchanged` leases are already there."""

    moves: tuple[LeaseMove, ...] = ()
    create: tuple[NewLease, ...] = ()
    unchanged: tuple[Lease, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.moves and not self.create


@dataclass(frozen=True, slots=True)
class ResetGroup:
    """Leases of one family of shards, which are written together once all of them are held."""

    moves: tuple[LeaseMove, ...]
    create: tuple[NewLease, ...]


def shards_to_reset(graph: ShardGraph, shard: ShardId | None) -> tuple[ShardId, ...]:
    """The shards whose starts a plan needs: all that are listed, or one. Parents come first."""
    if shard is None:
        return graph.parents_first
    if shard not in graph.shards:
        raise NotFoundError(
            f"shard {shard}: the stream has no such shard, or retains none of its records; `leasehold lag` shows them"
        )
    return (shard,)


def plan_reset(
    graph: ShardGraph,
    listing: LeaseListing,
    starts: Mapping[ShardId, ShardStart],
    *,
    stream: StreamIdentifier | None = None,
    only_forward: bool = False,
    arrivals: Mapping[LeaseKey, int | None] | None = None,
) -> ResetPlan:
    """Plan a reset of the shards in `starts`, and of the descendants of those that are opened again.

    With `only_forward` no lease is set back: records are only skipped. `arrivals` are the arrivals of the records at
    the checkpoints of leases, for display.
    """
    leases = {lease.shard_id: lease for lease in listing.leases if lease.stream == stream}
    reopened = _reopened(graph, leases, starts)
    held_back = graph.downward_from(reopened) - reopened
    wanted = {**starts, **dict.fromkeys(held_back, OLDEST)}
    _require_readable(listing, stream, wanted)
    passed = _passed(graph, leases)
    moves: list[LeaseMove] = []
    create: list[NewLease] = []
    unchanged: list[Lease] = []
    for shard in (each for each in graph.parents_first if each in wanted):
        start, lease = wanted[shard], leases.get(shard)
        if lease is None:
            if _needs_lease(shard, start, starts, passed):
                created = _new_lease(graph, shard, start.position, stream)
                create.append(NewLease(created, was_read=shard in passed))
        elif _is_there(lease, start, only_forward=only_forward):
            unchanged.append(lease)
        else:
            moves.append(_move(lease, start, arrivals or {}, only_forward=only_forward))
    markers = _finished_markers(graph, leases, {**starts, **wanted}, stream, passed)
    return ResetPlan(tuple(moves), (*markers, *create), tuple(unchanged))


def group_by_family(plan: ResetPlan, graph: ShardGraph) -> tuple[ResetGroup, ...]:
    """Divide a plan into groups that do not depend on each other: shards that are connected by changed relatives."""
    shards = [*(move.lease.shard_id for move in plan.moves), *(new.lease.shard_id for new in plan.create)]
    family = {shard: shard for shard in shards}

    def root(shard: ShardId) -> ShardId:
        while family[shard] != shard:
            family[shard] = family[family[shard]]
            shard = family[shard]
        return shard

    for shard in shards:
        for parent in graph.parents_of(shard):
            if parent in family:
                family[root(shard)] = root(parent)
    groups: dict[ShardId, tuple[list[LeaseMove], list[NewLease]]] = {}
    for move in plan.moves:
        groups.setdefault(root(move.lease.shard_id), ([], []))[0].append(move)
    for new in plan.create:
        groups.setdefault(root(new.lease.shard_id), ([], []))[1].append(new)
    return tuple(ResetGroup(tuple(moves), tuple(create)) for moves, create in groups.values())


def moves_to_write(group: ResetGroup, held: Mapping[LeaseKey, Lease]) -> list[tuple[Lease, Position]] | None:
    """What to write for a group, from its leases as they are now. None: the plan is outdated, and must be made again.

    Owners have read on since the plan. One may have finished its shard: then its children have begun, and the plan
    does not hold them back.
    """
    for move in group.moves:
        lease = held.get(move.lease.key)
        was_finished = lease is not None and lease.checkpoint.is_shard_end and not move.is_reopened
        if lease is None or (was_finished and not move.only_forward):
            return None
    return [
        (held[move.lease.key], move.to) for move in group.moves if not is_past(move, held[move.lease.key])
    ]


def is_past(move: LeaseMove, lease: Lease) -> bool:
    """Whether a lease that should only skip records has read them in the meantime."""
    return move.only_forward and lease.checkpoint >= move.to


def skips_records(checkpoint: Position, to: Position) -> bool:
    """Whether a lease that moves from a checkpoint to a position passes records that were not read."""
    return _is_comparable(checkpoint) and to > checkpoint


def describe_move(move: LeaseMove) -> str:
    """The effect of a move on the records of the shard."""
    if move.is_same_position:
        return "unchanged; what its owner has not checkpointed comes again"
    if move.to == TRIM_HORIZON:
        return "all retained records again" if move.lease.checkpoint.is_record else "from its first record"
    if move.arrived_ms is None or move.arrives_ms in {None, move.arrived_ms}:
        return "records are skipped" if move.is_forward else "records come again"
    duration = format_duration(abs(move.arrived_ms - move.arrives_ms))
    return f"{duration} skipped" if move.is_forward else f"{duration} again"


def describe_new(new: NewLease) -> str:
    """The effect of a new lease on the records of the shard."""
    if new.lease.checkpoint.is_shard_end:
        return "stays finished"
    if new.is_forward:
        return "records before it are skipped"
    return "is read again" if new.was_read else "from its first record"


def plan_to_rows(plan: ResetPlan) -> list[tuple[str, str, str, str, str]]:
    """The plan as a table: shard, owner, old position, new position, effect."""
    moved = [
        (
            str(move.lease.key),
            str(move.lease.actual_owner or "-"),
            short_position(move.lease.checkpoint),
            short_position(move.to),
            describe_move(move),
        )
        for move in plan.moves
    ]
    created = [
        (str(new.lease.key), "-", "no lease", short_position(new.lease.checkpoint), describe_new(new))
        for new in plan.create
    ]
    return sorted([*moved, *created])


def plan_to_json(plan: ResetPlan) -> dict[str, Any]:
    """The plan as JSON, with complete sequence numbers."""
    return {
        "moves": [
            {
                "key": move.lease.key,
                "owner": move.lease.actual_owner,
                "from": position_to_json(move.lease.checkpoint),
                "to": position_to_json(move.to),
                "is_forward": move.is_forward,
                "millis": None
                if move.arrived_ms is None or move.arrives_ms is None
                else abs(move.arrived_ms - move.arrives_ms),
            }
            for move in plan.moves
        ],
        "create": [
            {
                "key": new.lease.key,
                "to": position_to_json(new.lease.checkpoint),
                "is_forward": new.is_forward,
            }
            for new in plan.create
        ],
        "unchanged": [lease.key for lease in plan.unchanged],
    }


def _passed(graph: ShardGraph, leases: Collection[ShardId]) -> AbstractSet[ShardId]:
    """Shards without a lease that were read to their end: a descendant has a lease."""
    return graph.upward_from(leases) - set(leases)


def _reopened(
    graph: ShardGraph, leases: Mapping[ShardId, Lease], starts: Mapping[ShardId, ShardStart]
) -> frozenset[ShardId]:
    """Shards that were read to their end, and have records after the target."""
    passed = _passed(graph, leases)
    finished = {shard for shard, lease in leases.items() if lease.checkpoint.is_shard_end} | passed
    return frozenset(shard for shard, start in starts.items() if shard in finished and not start.is_at_end)


def _needs_lease(
    shard: ShardId, start: ShardStart, starts: Mapping[ShardId, ShardStart], passed: AbstractSet[ShardId]
) -> bool:
    """Whether a shard without a lease gets one.

    A passed shard before the target needs none. A shard that has never had a lease would get one at its first record,
    or at the initial position: in a reset of all shards it begins at the target. A descendant that is held back needs
    one only if it was passed: otherwise the end of its parent creates it.
    """
    return not start.is_at_end if shard in passed else shard in starts


def _is_there(lease: Lease, start: ShardStart, *, only_forward: bool) -> bool:
    if start.is_at_end and lease.checkpoint.is_shard_end:
        return True
    if only_forward:
        return _is_comparable(lease.checkpoint) and lease.checkpoint >= start.position
    # An owner may have delivered more than it has stored, unless it has not begun or the shard has no more records.
    has_more = not (start.is_newest or start.is_at_end)
    may_be_further = lease.pin is not None or (lease.actual_owner is not None and has_more)
    return lease.checkpoint == start.position and not may_be_further


def _is_comparable(checkpoint: Position) -> bool:
    """LATEST and AT_TIMESTAMP do not show where reading has begun."""
    return checkpoint.is_record or checkpoint in {TRIM_HORIZON, SHARD_END}


def _move(
    lease: Lease, start: ShardStart, arrivals: Mapping[LeaseKey, int | None], *, only_forward: bool
) -> LeaseMove:
    return LeaseMove(
        lease,
        start.position,
        is_forward=skips_records(lease.checkpoint, start.position),
        only_forward=only_forward and _is_comparable(lease.checkpoint),
        is_reopened=lease.checkpoint.is_shard_end,
        arrived_ms=arrivals.get(lease.key),
        arrives_ms=start.arrival_ms,
    )


def _new_lease(
    graph: ShardGraph, shard: ShardId, checkpoint: Position, stream: StreamIdentifier | None
) -> Lease:
    listed: Shard = graph.shards[shard]
    return Lease(
        key=lease_key(shard, stream),
        shard_id=shard,
        checkpoint=checkpoint,
        parents=frozenset(listed.parents),
        children=frozenset(graph.children_of(shard)) if checkpoint.is_shard_end else frozenset(),
        hash_range=listed.hash_range,
        stream=stream,
    )


def _finished_markers(
    graph: ShardGraph,
    leases: Mapping[ShardId, Lease],
    wanted: Mapping[ShardId, ShardStart],
    stream: StreamIdentifier | None,
    passed: AbstractSet[ShardId],
) -> Sequence[NewLease]:
    """Leases at their end for passed parents of merged shards that begin anew.

    A merged shard that was not started waits for parents without a lease, because they may be unread, and a member
    would read them again.
    """
    begins = {
        shard for shard, start in wanted.items() if not start.position.is_record and shard in graph.shards
    }
    merged = (shard for shard in begins if len(graph.shards[shard].parents) > 1)
    parents = {parent for shard in merged for parent in graph.parents_of(shard)}
    done = {parent for parent in parents & passed if parent not in wanted or wanted[parent].is_at_end}
    return [
        NewLease(_new_lease(graph, shard, SHARD_END, stream), was_read=True)
        for shard in graph.parents_first
        if shard in done - leases.keys()
    ]


def _require_readable(
    listing: LeaseListing, stream: StreamIdentifier | None, shards: Iterable[ShardId]
) -> None:
    unreadable = sorted(listing.unreadable_shards(stream) & set(shards))
    if unreadable:
        raise BlockedLeasesError(
            f"the row of shard {unreadable[0]} cannot be read, so nothing is changed; `leasehold leases` shows what is "
            "wrong with it: repair or delete the row first"
        )
