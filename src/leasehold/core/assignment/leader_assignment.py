"""Which worker should have which lease, decided by a leader for the whole fleet.

Takes one snapshot of the tables and the leader's memory; returns a plan and the next memory. Has no effects.

1. *Fail-over.* Leases without a reader (free, or silent for the failover time) are assigned at once, heaviest first,
   each to the least loaded worker. So the leases of a dead worker are spread over the others in one pass. A child goes
   to the worker of its parent, unless this worker would then be loaded above the mean.
2. *Handoffs* that take too long are ended by force.
3. *Balancing* moves leases one by one by handoff (see `rebalancing`). It never moves an idle lease, nor one that was
   moved recently. It waits while workers come and go: the worker that replaces another one then gets its leases, and
   each lease moves once.

Leases that cannot be read now (finished, or waiting for parents) are not assigned. Two leaders with the same snapshot
and memory make the same decision: ties are broken by load, number of leases and name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from leasehold.core.assignment.lease_loads import (
    Caps,
    Cost,
    Weights,
    WorkerLoads,
    smoothed_kbps,
    weigh_leases,
)
from leasehold.core.assignment.move_cooldowns import RecentMoves, next_recent_moves, with_moves
from leasehold.core.assignment.rebalancing import Balancing, is_uneven, plan_moves
from leasehold.core.assignment.worker_costs import BASE_UTILISATION, WorkerCosts, next_worker_costs
from leasehold.core.assignment.worker_health import (
    WorkerHealth,
    WorkerHistories,
    next_worker_health,
    without_leases,
)
from leasehold.core.coordinator.worker_metrics import ALPHA, WorkerReport
from leasehold.core.leases.liveness import Observations, unchanged_for_ms, was_just_assigned
from leasehold.core.model import Lease, LeaseKey, WorkerId, lease_key
from leasehold.core.shards.shard_graph import readable_leases

# A worker sees a new lease at its next refresh (a Java worker after up to ten seconds), and only then renews it.
PICK_UP_FAILOVERS: Final = 2
# The members of a new fleet start a moment apart. Waiting for them saves moving half of the leases later.
STARTUP_WAIT_MS: Final = 2_000
# No balancing for this long after a worker came or went: a rolling deployment then moves each lease once.
REBALANCE_DELAY_MS: Final = 45_000
# Loads must be uneven for this long: figures follow a change slowly, and a short peak passes by itself.
UNEVEN_FOR_MS: Final = 30_000
HANDOFFS_SHARE_MAX: Final = 0.25  # of the leases may be in handoff at one time
# Balancing uses only this share of a worker's operating range. At its end, noise would move the lease back.
RANGE_SHARE_MAX: Final = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLimits:
    """How long to wait for workers, how much to assign to each, and when to balance.

    `newest_weight` is the weight of a worker's newest report in its utilisation. `placed_max` is how many free leases
    one decision assigns to a worker, `moved_max` how many leases it moves between workers.
    """

    failover_ms: int
    handoff_timeout_ms: int
    leases_max: int | None = None
    kbps_max: int | None = None
    placed_max: int | None = None
    moved_max: int | None = None
    balancing: Balancing = field(default_factory=Balancing)
    newest_weight: float = ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMemory:
    """What a leader remembers from one decision to the next. A new leader starts with an empty memory.

    `moved` holds the leases that balancing moved recently, `members` the assignable workers and since when they are the
    same, `kbps` the smoothed throughput of each lease, `balanced_ms` the time of the last round of balancing.
    """

    workers: WorkerHistories = field(default_factory=dict)
    costs: WorkerCosts = field(default_factory=dict)
    moved: RecentMoves = field(default_factory=dict)
    members: AbstractSet[WorkerId] = frozenset()
    members_since_ms: int = 0
    uneven_since_ms: int | None = None
    kbps: Mapping[LeaseKey, float] = field(default_factory=dict)
    decided_ms: int = 0
    balanced_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """One snapshot of the fleet. `unreadable` are the keys of malformed rows."""

    now_ms: int
    wall_s: int
    leases: Sequence[Lease]
    observations: Observations
    reports: Sequence[WorkerReport]
    unreadable: AbstractSet[LeaseKey] = frozenset()
    memory: LeaderMemory = field(default_factory=LeaderMemory)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A lease as it was read, and the worker that should have it."""

    lease: Lease
    to: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderPlan:
    """The writes of a leader. Each may fail on its own; the next refresh decides again.

    `assign` takes effect at once, `hand_off` when the owner has finished its work. The handoffs of the leases in
    `withdraw` are withdrawn: their owners keep them. `unclaimed` leases had no reader; `left_free` of them stay so,
    because no worker has room or the fleet is still starting. `refresh_at_ms` is when the next decision may be needed:
    a lease may be silent by then, or the startup wait is over.
    """

    assign: tuple[Assignment, ...] = ()
    hand_off: tuple[Assignment, ...] = ()
    withdraw: tuple[Lease, ...] = ()
    left_free: int = 0
    unclaimed: int = 0
    workers: int = 0
    refresh_at_ms: int | None = None
    memory: LeaderMemory = field(default_factory=LeaderMemory)


Decide = Callable[[LeaderView, LeaderLimits], LeaderPlan]


def plan_assignment(view: LeaderView, limits: LeaderLimits) -> LeaderPlan:
    """Decides which worker should have which lease now."""
    fleet = _assess(view, limits)
    loads = _current_loads(fleet)
    free = [lease for lease in fleet.readable if lease.owner is None or lease.key in fleet.silent]
    is_starting = _is_starting(fleet, free)
    # The order matters: placing a lease adds it to `loads`, and balancing has to count the leases placed before it.
    placed = [] if is_starting else _place(free, fleet, loads)
    overdue = _overdue_handoffs(fleet)
    uneven_since_ms = _uneven_since_ms(fleet, loads)
    moved = _balance(fleet, loads, uneven_since_ms)
    return LeaderPlan(
        assign=(*placed, *overdue),
        hand_off=tuple(moved),
        withdraw=tuple(_handoffs_to_withdraw(fleet)),
        left_free=len(free) - len(placed),
        unclaimed=len(free),
        workers=len(loads.of),
        refresh_at_ms=_startup_end_ms(fleet) if is_starting else _next_silence_ms(fleet),
        memory=_memory_after(fleet, overdue, moved, uneven_since_ms),
    )


# -- assessing the snapshot ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    """The snapshot, and everything that follows from it before the leader decides."""

    view: LeaderView
    limits: LeaderLimits
    readable: Sequence[Lease]
    just_assigned: AbstractSet[LeaseKey]
    silent: AbstractSet[LeaseKey]
    health: WorkerHealth
    memory: LeaderMemory
    weights: Weights

    def patience_ms(self, lease: Lease) -> int:
        """How long a lease may stay unchanged before it counts as silent."""
        return _patience_ms(lease, self.just_assigned, self.limits)


def _assess(view: LeaderView, limits: LeaderLimits) -> _Fleet:
    readable = readable_leases(view.leases, view.unreadable)
    just_assigned = {lease.key for lease in readable if was_just_assigned(view.observations, lease.key)}
    silent = {
        lease.key
        for lease in readable
        if lease.owner is not None
        and unchanged_for_ms(view.observations, lease.key, view.now_ms)
        > _patience_ms(lease, just_assigned, limits)
    }
    health = next_worker_health(
        without_leases(view.memory.workers, view.memory.moved.keys()),
        view.reports,
        leases=readable,
        silent=silent,
        just_assigned=just_assigned,
        now_ms=view.now_ms,
        wall_s=view.wall_s,
    )
    health = replace(health, newest_weight=limits.newest_weight)
    memory = _next_memory(view, health, readable)
    return _Fleet(
        view=view,
        limits=limits,
        readable=readable,
        just_assigned=just_assigned,
        # Not before `health`: a just assigned lease proves nothing about its owner, but a dead owner makes it silent.
        silent=silent | _assigned_to_dead(readable, just_assigned, health),
        health=health,
        memory=memory,
        weights=weigh_leases(readable, memory.kbps, by_count=limits.balancing.by_count),
    )


def _patience_ms(lease: Lease, just_assigned: AbstractSet[LeaseKey], limits: LeaderLimits) -> int:
    return (PICK_UP_FAILOVERS if lease.key in just_assigned else 1) * limits.failover_ms


def _assigned_to_dead(
    readable: Sequence[Lease], just_assigned: AbstractSet[LeaseKey], health: WorkerHealth
) -> set[LeaseKey]:
    """The leases that were just assigned to a worker that is dead: they need not be waited for."""
    dead = health.suspects - health.assignable
    return {lease.key for lease in readable if lease.key in just_assigned and lease.actual_owner in dead}


def _next_memory(view: LeaderView, health: WorkerHealth, readable: Sequence[Lease]) -> LeaderMemory:
    before, now_ms = view.memory, view.now_ms
    is_same = health.assignable == before.members
    return LeaderMemory(
        workers=health.histories,
        costs=next_worker_costs(before.costs, health, readable, now_ms),
        moved=next_recent_moves(
            before.moved, now_ms, is_same_fleet=health.histories.keys() == before.workers.keys()
        ),
        members=before.members if is_same else frozenset(health.assignable),
        members_since_ms=before.members_since_ms if is_same else now_ms,
        kbps=smoothed_kbps(before.kbps, readable, now_ms - before.decided_ms),
        decided_ms=now_ms,
        balanced_ms=before.balanced_ms,
    )


def _memory_after(
    fleet: _Fleet,
    overdue: Sequence[Assignment],
    moved: Sequence[Assignment],
    uneven_since_ms: int | None,
) -> LeaderMemory:
    now_ms, recent = fleet.view.now_ms, fleet.memory.moved
    # A handoff that is ended by force is no second move.
    ended = [line.lease.key for line in overdue if line.lease.key not in recent]
    keys = [*ended, *(line.lease.key for line in moved)]
    return replace(
        fleet.memory,
        moved=with_moves(recent, keys, now_ms),
        uneven_since_ms=uneven_since_ms,
        balanced_ms=now_ms if moved else fleet.memory.balanced_ms,
    )


def _current_loads(fleet: _Fleet) -> WorkerLoads:
    """The loads before the decision. A lease in handoff counts for its next owner."""
    health, limits = fleet.health, fleet.limits
    by_count = limits.balancing.by_count
    above_range = frozenset() if by_count else health.above_range
    costs, now_ms = fleet.memory.costs, fleet.view.now_ms
    # Until the reports show the effect of the last move, a worker is not relieved of more leases.
    to_relieve = {worker for worker in above_range if costs[worker].is_settled(now_ms)}
    loads = WorkerLoads(
        health.assignable,
        {} if by_count else _costs(fleet, is_exact=bool(to_relieve)),
        above_range=to_relieve,
        unreliable=health.unreliable | above_range,
        weights=fleet.weights,
        caps=Caps(limits.leases_max, limits.kbps_max),
    )
    for lease in fleet.readable:
        if lease.owner is not None and lease.owner in loads.of and lease.key not in fleet.silent:
            loads.add(lease.owner, lease.key, movable=_is_movable(lease, fleet))
    if not by_count:
        loads.most = _loads_within_range(fleet, loads.of)
    return loads


def _costs(fleet: _Fleet, *, is_exact: bool) -> dict[WorkerId, Cost]:
    """The cost of each worker. Without throughput, leases have no weight that could be compared with other load."""
    has_throughput = any(fleet.weights.kbps.values())
    return {
        worker: Cost(cost.factor(is_exact=is_exact), cost.other_kbps if has_throughput else 0.0)
        for worker, cost in fleet.memory.costs.items()
    }


def _loads_within_range(fleet: _Fleet, loads: Mapping[WorkerId, float]) -> dict[WorkerId, float]:
    """The load with which each worker that has an operating range would stay within it."""
    health = fleet.health
    points = {
        worker: max(0.0, utilisation - BASE_UTILISATION)
        for worker in loads
        if (utilisation := health.utilisation(worker)) is not None
    }
    total = sum(loads[worker] for worker in points)
    points_per_load = sum(points.values()) / total if total else 0.0
    most = {}
    for worker, shown in points.items():
        room = health.room(worker, share=RANGE_SHARE_MAX)
        if room is None or not points_per_load:
            continue
        if not fleet.memory.costs[worker].is_settled(fleet.view.now_ms):
            # Its report does not show its newest leases yet.
            room -= max(0.0, points_per_load * loads[worker] - shown)
        most[worker] = loads[worker] + room / points_per_load
    return most


def _is_movable(lease: Lease, fleet: _Fleet) -> bool:
    """Whether balancing may move a lease: it is neither moving, nor was it moved recently, nor is it idle."""
    if lease.is_in_handoff or lease.key in fleet.just_assigned:
        return False
    # By count all leases are equal. None would move back, so they need no cooldown.
    move = fleet.memory.moved.get(lease.key)
    is_cool = fleet.limits.balancing.by_count or move is None or move.may_move(fleet.view.now_ms)
    return is_cool and lease.key not in fleet.weights.idle


def _next_silence_ms(fleet: _Fleet) -> int | None:
    """When the next lease counts as silent if it is not renewed before."""
    times = (
        fleet.view.observations[lease.key].unchanged_since_ms + fleet.patience_ms(lease) + 1
        for lease in fleet.readable
        if lease.owner is not None and lease.key not in fleet.silent
    )
    return min(times, default=None)


# -- fail-over -----------------------------------------------------------------------------------------------------


def _is_starting(fleet: _Fleet, free: Sequence[Lease]) -> bool:
    """Whether a fleet that reads nothing yet should wait a moment for members that start at the same time."""
    unchanged_ms = fleet.view.now_ms - fleet.memory.members_since_ms
    return len(free) == len(fleet.readable) and unchanged_ms < STARTUP_WAIT_MS


def _startup_end_ms(fleet: _Fleet) -> int:
    return fleet.memory.members_since_ms + STARTUP_WAIT_MS


def _place(free: Sequence[Lease], fleet: _Fleet, loads: WorkerLoads) -> list[Assignment]:
    """Assigns leases without a reader, the heaviest first. Adds them to `loads`."""
    if not loads.of:
        return []
    weights = fleet.weights.of
    by_key = {lease.key: lease for lease in fleet.view.leases}
    total = sum(loads.of.values()) + sum(weights[lease.key] for lease in free)
    mean = total / len(loads.of)
    placed: list[Assignment] = []
    placed_on: Counter[WorkerId] = Counter()
    for lease in sorted(free, key=lambda each: (-weights[each.key], each.key)):
        to = _worker_of_parent(lease, by_key, loads, mean) or _lightest_other(lease, loads)
        if to is not None:
            loads.add(to, lease.key)
            placed.append(Assignment(lease, to))
            placed_on[to] += 1
            if placed_on[to] == fleet.limits.placed_max:
                loads.close(to)
    loads.open_all()
    return placed


def _lightest_other(lease: Lease, loads: WorkerLoads) -> WorkerId | None:
    """The least loaded worker. The silent owner of the lease only if no other worker has room."""
    return loads.lightest(but=lease.actual_owner) or loads.lightest()


def _worker_of_parent(
    lease: Lease, by_key: Mapping[LeaseKey, Lease], loads: WorkerLoads, mean: float
) -> WorkerId | None:
    """The worker of the parent, for a child that never had an owner; None if it would be loaded above the mean."""
    if lease.owner is not None:
        return None
    parents = (by_key.get(lease_key(parent, lease.stream)) for parent in sorted(lease.parents))
    for parent in parents:
        worker = None if parent is None else parent.owner
        if worker is not None and worker in loads.of and loads.has_room(worker):
            return worker if loads.load_with(worker, lease.key) <= mean else None
    return None


def _overdue_handoffs(fleet: _Fleet) -> list[Assignment]:
    """Ends handoffs whose old owner keeps reading: it does not support handoffs (KCL 2.x), or it hangs."""
    limit_ms = fleet.limits.handoff_timeout_ms + fleet.limits.failover_ms
    return [
        Assignment(lease, lease.owner)
        for lease in _handoffs_longer_than(fleet, limit_ms)
        if lease.owner is not None and lease.owner in fleet.health.assignable
    ]


def _handoffs_to_withdraw(fleet: _Fleet) -> list[Lease]:
    """Overdue handoffs to a worker that takes no leases: it has stopped, or it is a command (`leasehold release`).

    To assign such a lease to its current reader would end the reader's session, and its batch would be repeated. A
    command may take a lease by force when its owner does not answer. It gets the time for that.
    """
    limit_ms = fleet.limits.handoff_timeout_ms + 2 * fleet.limits.failover_ms
    return [
        lease
        for lease in _handoffs_longer_than(fleet, limit_ms)
        if lease.owner not in fleet.health.assignable and lease.checkpoint_owner in fleet.health.assignable
    ]


def _handoffs_longer_than(fleet: _Fleet, limit_ms: int) -> list[Lease]:
    """The leases whose handoff takes longer than this, and whose reader is not silent."""
    now_ms, observations = fleet.view.now_ms, fleet.view.observations
    return [
        lease
        for lease in fleet.readable
        if lease.key not in fleet.silent
        and (since_ms := observations[lease.key].handoff_since_ms) is not None
        and now_ms - since_ms > limit_ms
    ]


# -- balancing -----------------------------------------------------------------------------------------------------


def _uneven_since_ms(fleet: _Fleet, loads: WorkerLoads) -> int | None:
    """Since when the loads are uneven enough for balancing; None if they are even."""
    balancing = fleet.limits.balancing
    if not balancing.by_count and not is_uneven(loads, fleet.health.mean_utilisation, balancing):
        return None
    since_ms = fleet.view.memory.uneven_since_ms
    return fleet.view.now_ms if since_ms is None else since_ms


def _balance(fleet: _Fleet, loads: WorkerLoads, uneven_since_ms: int | None) -> list[Assignment]:
    """Moves leases between workers, if the fleet is uneven for long enough and its members are stable."""
    if uneven_since_ms is None or not _may_balance(fleet, uneven_since_ms):
        return []
    by_key = {lease.key: lease for lease in fleet.readable}
    moves = plan_moves(loads, _moves_max(fleet), fleet.limits.balancing)
    return [Assignment(by_key[move.key], move.to) for move in moves]


def _may_balance(fleet: _Fleet, uneven_since_ms: int) -> bool:
    now_ms, balancing, balanced_ms = fleet.view.now_ms, fleet.limits.balancing, fleet.memory.balanced_ms
    if now_ms - fleet.memory.members_since_ms < REBALANCE_DELAY_MS:
        return False
    is_due = balanced_ms is None or now_ms - balanced_ms >= balancing.every_ms
    return balancing.by_count or (is_due and now_ms - uneven_since_ms >= UNEVEN_FOR_MS)


def _moves_max(fleet: _Fleet) -> int:
    in_handoff = sum(lease.is_in_handoff for lease in fleet.readable)
    by_need = len(fleet.readable)
    if not fleet.limits.balancing.by_count:
        by_need = ceil(HANDOFFS_SHARE_MAX * len(fleet.readable)) - in_handoff
    moved_max = fleet.limits.moved_max
    return by_need if moved_max is None else min(by_need, moved_max - in_handoff)
