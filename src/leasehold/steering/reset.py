"""Resets leases of a running fleet: reads where they would move, and moves them once their owners have handed over."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import Lease, LeaseKey, ShardId, StreamIdentifier
from leasehold.core.position import Position
from leasehold.core.shards.recreated_stream import find_contradictions
from leasehold.core.shards.shard_graph import ShardGraph, shard_graph
from leasehold.core.steering.reset_plan import (
    ResetGroup,
    ResetPlan,
    group_by_family,
    moves_to_write,
    plan_reset,
    shards_to_reset,
    skips_records,
)
from leasehold.core.steering.reset_target import ResetTarget, ToLatest, ToTime
from leasehold.core.time_text import format_time
from leasehold.errors import ConfigError, NotFoundError, RecreatedStreamError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.steering.lease_capture import Held, LeaseCapture, Waiting
from leasehold.steering.shard_positions import CheckpointArrivals, ShardPositions


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """Which shards of a stream to reset (None: all), and to where."""

    target: ResetTarget
    shard: ShardId | None = None
    stream: StreamIdentifier | None = None


@dataclass(frozen=True, slots=True)
class ReadReset:
    """A plan, and the shards that it was made from."""

    plan: ResetPlan
    graph: ShardGraph


@dataclass
class ResetOutcome:
    """What a reset has done: leases that were moved, were past the target by then, or were created.

    `forward` are those whose unread records up to the new position are skipped: moved leases, as their owners have left
    them, and created ones of shards that were not read.
    `kept` are leases whose owners did not hand them over. `outdated` are shards for which the plan must be made again.
    """

    moved: set[LeaseKey] = field(default_factory=set)
    forward: set[LeaseKey] = field(default_factory=set)
    past: set[LeaseKey] = field(default_factory=set)
    created: set[LeaseKey] = field(default_factory=set)
    kept: tuple[Waiting, ...] = ()
    outdated: set[ShardId] = field(default_factory=set)


async def read_reset(
    table: LeaseTable,
    positions: ShardPositions,
    request: ResetRequest,
    *,
    only: Collection[ShardId] | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> ReadReset:
    """Read the leases and the stream, and plan. Writes nothing. `only` limits the plan to these shards."""
    require_retained(request.target, positions)
    listing = await table.list(is_consistent=True)
    if not listing.leases and not listing.rejected:
        raise NotFoundError(
            "the lease table has no leases: no member has run yet; set initial_position to choose where it begins"
        )
    graph = shard_graph(await positions.stream.list_shards())
    _require_same_stream(listing, graph, request.stream)
    shards = [each for each in shards_to_reset(graph, request.shard) if only is None or each in only]
    starts = await positions.find_starts((graph.shards[each] for each in shards), request.target, tell)
    here = [lease for lease in listing.leases if lease.stream == request.stream and lease.shard_id in starts]
    arrivals = await positions.find_arrivals(here)
    if request.shard is None and only is None:
        _require_own_checkpoints(arrivals)
    plan = plan_reset(
        graph,
        listing,
        starts,
        stream=request.stream,
        only_forward=isinstance(request.target, ToLatest),
        arrivals=arrivals.arrived_ms,
    )
    return ReadReset(plan, graph)


async def apply_reset(capture: LeaseCapture, read: ReadReset, *, timeout_ms: int) -> ResetOutcome:
    """Move the leases of each family of shards as soon as all their owners have handed over."""
    groups = group_by_family(read.plan, read.graph)
    group_of = {move.lease.key: group for group in groups for move in group.moves}
    writer = _FamilyWriter(capture.ports.table, read.graph)

    async def act(held: Held) -> bool:
        return await writer.write(group_of[next(iter(held))], held)

    for group in groups:
        if not group.moves:
            await writer.write(group, {})
    families = [tuple(move.lease.key for move in group.moves) for group in groups if group.moves]
    result = await capture.run(families, act, timeout_ms=timeout_ms)
    outcome = writer.outcome
    outcome.kept = result.kept
    outcome.outdated |= {move.lease.shard_id for move in read.plan.moves if move.lease.key in result.gone}
    return outcome


class _FamilyWriter:
    """Writes the changes of one family of shards after the other, and notes the outcome."""

    def __init__(self, table: LeaseTable, graph: ShardGraph) -> None:
        self.outcome = ResetOutcome()
        self._table = table
        self._order = {shard: index for index, shard in enumerate(graph.parents_first)}

    async def write(self, group: ResetGroup, held: Held) -> bool:
        """Write the changes of a family, and free what stays. Returns False if a lease was lost in between."""
        moves = moves_to_write(group, held)
        if moves is None:
            await self._give_up(group, held)
            return True
        moved = {lease.key for lease, _ in moves}
        changes: list[Lease | tuple[Lease, Position]] = [*(new.lease for new in group.create), *moves]
        changes.sort(key=lambda each: self._order[(each if isinstance(each, Lease) else each[0]).shard_id])
        if changes and not await self._table.reset_family(changes):
            if not group.create:
                return False
            # A member may have created one of the leases.
            await self._give_up(group, held)
            return True
        for key, lease in held.items():
            if key not in moved:
                await self._table.release(lease)
        self.outcome.moved |= moved
        self.outcome.forward |= {lease.key for lease, to in moves if skips_records(lease.checkpoint, to)}
        self.outcome.forward |= {new.lease.key for new in group.create if new.is_forward}
        self.outcome.past |= held.keys() - moved
        self.outcome.created |= {new.lease.key for new in group.create}
        return True

    async def _give_up(self, group: ResetGroup, held: Held) -> None:
        """Free the leases of a family whose plan is outdated."""
        self.outcome.outdated |= {move.lease.shard_id for move in group.moves}
        self.outcome.outdated |= {new.lease.shard_id for new in group.create}
        for lease in held.values():
            await self._table.release(lease)


def require_retained(target: ResetTarget, positions: ShardPositions) -> None:
    """Raise ConfigError if a target is in the future, or before what the stream retains."""
    if not isinstance(target, ToTime):
        return
    now_ms = positions.clock.wall_ms()
    if target.at_ms > now_ms:
        raise ConfigError(
            f"--to {format_time(target.at_ms)} is in the future: write latest, or check the zone of the time and the "
            "clock of this machine"
        )
    oldest_ms = now_ms - positions.retention_ms
    if target.at_ms < oldest_ms:
        raise ConfigError(
            f"--to {format_time(target.at_ms)}: the stream retains records since {format_time(oldest_ms)}, and older "
            "ones are lost; write trim-horizon to begin at the oldest record"
        )


def _require_own_checkpoints(arrivals: CheckpointArrivals) -> None:
    """Refuse a stream to which no checkpoint belongs. The checkpoint of a single shard can be repaired by its name."""
    if arrivals.foreign and len(arrivals.foreign) == len(arrivals.arrived_ms):
        raise RecreatedStreamError(
            f"the leases belong to another stream: Kinesis says of the checkpoint of {min(arrivals.foreign)}, and of "
            "each other one, that it is no position of its shard in this stream; check --stream, or name one shard "
            "with --shard to set its lease nevertheless"
        )


def _require_same_stream(listing: LeaseListing, graph: ShardGraph, stream: StreamIdentifier | None) -> None:
    found = [
        each
        for each in find_contradictions(graph.shards.values(), listing.leases, stream=stream)
        if each.is_certain
    ]
    if found:
        raise RecreatedStreamError(
            f"the leases belong to an earlier stream of this name, or to another stream: {found[0].fact}; check "
            "--stream, or see on_recreated_stream"
        )
