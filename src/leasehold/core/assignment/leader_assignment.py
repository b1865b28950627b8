"""Which worker should have which lease, decided by a leader for its whole fleet. Reads one look at the tables and what
this leader remembers; returns a plan and the next memory. Never writes, never waits.

1. *Fail-over.* Leases that nobody reads (free, or silent for the failover time) are given away at once, heaviest first,
   each to the worker that is loaded least. A dead worker's leases are spread over the living in one pass. A child goes
   to the worker of its parent while that one is not loaded above the others.
2. *Handoffs* that do not end within their time are ended by force.
3. *Balancing* moves leases one by one, each time the one that evens out most, by handoff. It begins only where the
   difference is worth it, ends at a narrower band, never moves an idle lease, nor one that was moved a moment ago, and
   waits while workers come and go: whoever replaces a worker then finds its leases, and each lease moves once.

Leases that cannot be read now (finished, or waiting for parents) are left alone. Two leaders with one picture decide
alike: ties are broken by load, number and name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from leasehold.core.assignment.lease_loads import Caps, WorkerLoads, smoothed_kbps, weigh_leases
from leasehold.core.assignment.worker_health import WorkerHistories, next_worker_health
from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.leases.liveness import Observations, unchanged_for_ms, was_just_assigned
from leasehold.core.model import Lease, LeaseKey, WorkerId, lease_key
from leasehold.core.shards.shard_graph import unfinished_parents

# A worker finds a new lease at its next look, which for a Java worker is up to ten seconds away, then it renews.
PICK_UP_FAILOVERS: Final = 2
# Members of a new fleet start a moment apart; waiting for each other saves moving half of the leases later.
GATHERING_MS: Final = 2_000
# No balancing for so long after a worker came or went: a rolling deployment then moves each lease once.
REBALANCE_DELAY_MS: Final = 45_000
LASTING_MS: Final = (
    30_000  # so long must a fleet be uneven: figures take a while to show all of a change, or to pass
)
COOLING_MS: Final = 120_000  # before the same lease is moved again
BEGIN_BAND: Final = 0.10  # a load further than this from the mean is worth balancing, as for the KCL ...
BEGIN_POINTS_MIN: Final = 2.0  # ... if it is as many points of processor use; idle fleets only seem uneven
BEGIN_ANYWAY_BAND: Final = 0.5
END_BAND: Final = 0.08
SOURCES_TRIED: Final = 3
ROUNDING: Final = 1e-9
MOVES_SHARE_MAX: Final = 0.25  # of the leases may be in handoff at one time


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLimits:
    """How long to wait for workers, and how much to give them."""

    failover_ms: int
    handoff_timeout_ms: int
    leases_max: int | None = None
    kbps_max: int | None = None
    by_count: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMemory:
    """What a leader remembers from one decision to the next. A new leader begins with an empty one."""

    workers: WorkerHistories = field(default_factory=dict)
    moved_ms: Mapping[LeaseKey, int] = field(default_factory=dict)
    members: AbstractSet[WorkerId] = frozenset()
    members_since_ms: int = 0
    uneven_since_ms: int | None = None
    kbps: Mapping[LeaseKey, float] = field(default_factory=dict)
    decided_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """One look at the fleet. `unreadable` are keys of rows that cannot be understood."""

    now_ms: int
    wall_s: int
    leases: Sequence[Lease]
    observations: Observations
    reports: Sequence[WorkerReport]
    unreadable: AbstractSet[LeaseKey] = frozenset()
    memory: LeaderMemory = field(default_factory=LeaderMemory)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A lease, as it was seen, and who should have it."""

    lease: Lease
    to: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderPlan:
    """What to write; each line may fail on its own, and the next look decides anew.

    `assign` at once, `hand_off` when the owner is ready. `left_free` leases found no worker with room. `refresh_at_ms` is
    when there may be something to decide: the next lease may turn out to be silent, or a new fleet has gathered.
    """

    assign: tuple[Assignment, ...] = ()
    hand_off: tuple[Assignment, ...] = ()
    left_free: int = 0
    unclaimed: int = 0
    workers: int = 0
    refresh_at_ms: int | None = None
    memory: LeaderMemory = field(default_factory=LeaderMemory)


Decide = Callable[[LeaderView, LeaderLimits], LeaderPlan]


def plan_assignment(view: LeaderView, limits: LeaderLimits) -> LeaderPlan:
    """Who should have which lease now."""
    return _Decision(view, limits).plan()


def readable_leases(leases: Sequence[Lease], unreadable: AbstractSet[LeaseKey]) -> list[Lease]:
    """Leases that can be read: not finished, and not waiting for a parent."""
    by_key = {lease.key: lease for lease in leases}
    return [
        lease
        for lease in leases
        if not lease.checkpoint.is_shard_end
        and not unfinished_parents(lease, by_key)
        and unreadable.isdisjoint(lease_key(parent, lease.stream) for parent in lease.parents)
    ]


class _Decision:
    """One decision: the view, what follows from it, and a ledger in which each line of the plan is entered at once."""

    def __init__(self, view: LeaderView, limits: LeaderLimits) -> None:
        self._view = view
        self._limits = limits
        self._working = readable_leases(view.leases, view.unreadable)
        self._just_given = {
            lease.key for lease in self._working if was_just_assigned(view.observations, lease.key)
        }
        self._silent = {lease.key for lease in self._working if self._is_silent(lease)}
        self._standing = next_worker_health(
            view.memory.workers,
            view.reports,
            leases=self._working,
            silent=self._silent,
            just_assigned=self._just_given,
            now_ms=view.now_ms,
            wall_s=view.wall_s,
        )
        self._silent |= self._given_in_vain()
        self._memory = self._next_memory()
        self._weights = weigh_leases(self._working, self._memory.kbps, by_count=limits.by_count)
        self._ledger = self._loads_as_they_are()

    def plan(self) -> LeaderPlan:
        free = [lease for lease in self._working if lease.owner is None or lease.key in self._silent]
        is_gathering = self._is_gathering(free)
        given = [] if is_gathering else self._placed(free)
        overdue = self._overdue_handoffs()
        uneven_since_ms = self._uneven_since()
        moved = self._balancing_moves(uneven_since_ms)
        return LeaderPlan(
            assign=(*given, *overdue),
            hand_off=tuple(moved),
            left_free=len(free) - len(given),
            unclaimed=len(free),
            workers=len(self._ledger.loads),
            refresh_at_ms=self._gathered_ms() if is_gathering else self._next_silence(),
            memory=self._memory_after((*overdue, *moved), uneven_since_ms),
        )

    # -- what follows from the view ----------------------------------------------------------------------------

    def _patience_ms(self, lease: Lease) -> int:
        failovers = PICK_UP_FAILOVERS if lease.key in self._just_given else 1
        return failovers * self._limits.failover_ms

    def _is_silent(self, lease: Lease) -> bool:
        unchanged_ms = unchanged_for_ms(self._view.observations, lease.key, self._view.now_ms)
        return lease.owner is not None and unchanged_ms > self._patience_ms(lease)

    def _given_in_vain(self) -> set[LeaseKey]:
        """Leases that went to a worker of which it has turned out that it is dead; they need not be waited for."""
        lost = self._standing.suspects - self._standing.assignable
        return {
            lease.key
            for lease in self._working
            if lease.key in self._just_given and lease.actual_owner in lost
        }

    def _next_silence(self) -> int | None:
        times = (
            self._view.observations[lease.key].unchanged_since_ms + self._patience_ms(lease) + 1
            for lease in self._working
            if lease.owner is not None and lease.key not in self._silent
        )
        return min(times, default=None)

    def _next_memory(self) -> LeaderMemory:
        before, now_ms = self._view.memory, self._view.now_ms
        same = self._standing.assignable == before.members
        return LeaderMemory(
            workers=self._standing.records,
            moved_ms={key: at_ms for key, at_ms in before.moved_ms.items() if now_ms - at_ms < COOLING_MS},
            members=before.members if same else frozenset(self._standing.assignable),
            members_since_ms=before.members_since_ms if same else now_ms,
            kbps=smoothed_kbps(before.kbps, self._working, now_ms - before.decided_ms),
            decided_ms=now_ms,
        )

    def _memory_after(self, moves: Sequence[Assignment], uneven_since_ms: int | None) -> LeaderMemory:
        moved = dict.fromkeys((move.lease.key for move in moves), self._view.now_ms)
        moved_ms = {**self._memory.moved_ms, **moved}
        return replace(self._memory, moved_ms=moved_ms, uneven_since_ms=uneven_since_ms)

    def _loads_as_they_are(self) -> WorkerLoads:
        """Each lease counted where it is heading."""
        standing, limits = self._standing, self._limits
        costs = {} if limits.by_count else {name: record.cost for name, record in standing.records.items()}
        ledger = WorkerLoads(
            standing.assignable,
            costs,
            hot={worker for worker in standing.assignable if self._is_hot(worker)},
            doubtful=standing.doubtful,
            weights=self._weights,
            caps=Caps(limits.leases_max, limits.kbps_max),
        )
        for lease in self._working:
            if lease.owner in ledger.loads and lease.owner is not None and lease.key not in self._silent:
                ledger.put(lease.owner, lease.key, movable=self._is_movable(lease))
        return ledger

    def _is_movable(self, lease: Lease) -> bool:
        """For balance: neither on its way, nor moved a moment ago, nor idle."""
        if lease.is_in_handoff or lease.key in self._just_given:
            return False
        # Equal leases do not come back, so they need not cool down.
        is_cool = self._limits.by_count or lease.key not in self._memory.moved_ms
        return is_cool and lease.key not in self._weights.idle

    def _is_hot(self, worker: WorkerId) -> bool:
        return not self._limits.by_count and self._standing.is_hot(worker)

    # -- fail-over ---------------------------------------------------------------------------------------------

    def _is_gathering(self, free: Sequence[Lease]) -> bool:
        """A fleet of which nobody reads anything yet waits a moment for whoever starts at the same time."""
        together_ms = self._view.now_ms - self._memory.members_since_ms
        return len(free) == len(self._working) and together_ms < GATHERING_MS

    def _gathered_ms(self) -> int:
        return self._memory.members_since_ms + GATHERING_MS

    def _placed(self, free: Sequence[Lease]) -> list[Assignment]:
        """Leases that nobody reads, each with the worker that is loaded least; none is left without need."""
        ledger, weights = self._ledger, self._weights.of
        by_key = {lease.key: lease for lease in self._view.leases}
        mean = (sum(ledger.loads.values()) + sum(weights[lease.key] for lease in free)) / max(
            1, len(ledger.loads)
        )
        given: list[Assignment] = []
        for lease in sorted(free, key=lambda each: (-weights[each.key], each.key)):
            to = self._beside_its_parent(lease, by_key, mean) or self._another(lease)
            if to is not None:
                ledger.put(to, lease.key)
                given.append(Assignment(lease, to))
        return given

    def _another(self, lease: Lease) -> WorkerId | None:
        """The worker that is loaded least, other than the one that does not read the lease if there is another."""
        return self._ledger.lightest(but=lease.actual_owner) or self._ledger.lightest()

    def _beside_its_parent(
        self, lease: Lease, by_key: Mapping[LeaseKey, Lease], mean: float
    ) -> WorkerId | None:
        """The worker that has the parent, for a shard that nobody has had yet; unless it is loaded above the mean."""
        parents = (by_key.get(lease_key(parent, lease.stream)) for parent in sorted(lease.parents))
        for parent in parents:
            worker = None if parent is None or lease.owner is not None else parent.owner
            if worker is not None and worker in self._ledger.loads and self._ledger.has_room(worker):
                return worker if self._ledger.added(worker, lease.key) <= mean else None
        return None

    def _overdue_handoffs(self) -> list[Assignment]:
        """Leases whose owner goes on reading and does not let go: it knows no handoffs (KCL 2.x), or is stuck."""
        patience_ms = self._limits.handoff_timeout_ms + self._limits.failover_ms
        overdue = []
        for lease in self._working:
            since_ms = self._view.observations[lease.key].handoff_since_ms
            is_over = since_ms is not None and self._view.now_ms - since_ms > patience_ms
            # For whom it was meant, if that one is well; otherwise it stays where it is read.
            to = lease.owner if lease.owner in self._ledger.loads else lease.checkpoint_owner
            if is_over and to is not None and lease.key not in self._silent:
                overdue.append(Assignment(lease, to))
        return overdue

    # -- balancing ---------------------------------------------------------------------------------------------

    def _uneven_since(self) -> int | None:
        """Since when the loads are so uneven that moving is worth its price; None if they are not."""
        if not self._limits.by_count and not self._is_worth_it(self._ledger.mean):
            return None
        since_ms = self._view.memory.uneven_since_ms
        return self._view.now_ms if since_ms is None else since_ms

    def _balancing_moves(self, uneven_since_ms: int | None) -> list[Assignment]:
        now_ms = self._view.now_ms
        if uneven_since_ms is None or now_ms - self._memory.members_since_ms < REBALANCE_DELAY_MS:
            return []
        if not self._limits.by_count and now_ms - uneven_since_ms < LASTING_MS:
            return []
        mean = self._ledger.mean
        by_key = {lease.key: lease for lease in self._working}
        moves: list[Assignment] = []
        most = self._moves_max()
        self._ledger.rank_heaviest()
        while len(moves) < most and (move := self._best_move(mean)):
            self._ledger.move(move.key, move.source, move.to)
            self._ledger.put_back((move.source,))
            moves.append(Assignment(by_key[move.key], move.to))
        return moves

    def _moves_max(self) -> int:
        if self._limits.by_count:
            return len(self._working)
        in_handoff = sum(lease.is_in_handoff for lease in self._working)
        return ceil(MOVES_SHARE_MAX * len(self._working)) - in_handoff

    def _is_worth_it(self, mean: float) -> bool:
        """Whether the loads are so uneven that moving is worth its price."""
        if mean == 0 or len(self._ledger.loads) < 2:
            return False
        worst = max(abs(load - mean) for load in self._ledger.loads.values()) / mean
        utilisation = self._standing.mean_utilisation
        is_felt = utilisation is None or BEGIN_BAND * utilisation >= BEGIN_POINTS_MIN
        is_hot = any(self._is_hot(worker) for worker in self._ledger.loads)
        return is_hot or worst > BEGIN_ANYWAY_BAND or (is_felt and worst > BEGIN_BAND)

    def _best_move(self, mean: float) -> _Move | None:
        """The move from one of the heaviest workers to the lightest that evens out most; None when even enough."""
        to = self._ledger.lightest()
        if to is None or self._is_hot(to) or to in self._standing.doubtful:
            return None
        moves: list[_Move] = []
        while len(moves) < SOURCES_TRIED and (source := self._ledger.next_heaviest()) is not None:
            # A worker without a lease to gain by is not asked again: the lightest only becomes heavier.
            if source != to and (move := self._best_lease(source, to, mean)) is not None:
                moves.append(move)
        best = max(moves, key=lambda move: (move.fall, move.key), default=None)
        self._ledger.put_back(move.source for move in moves if move is not best)
        return best

    def _best_lease(self, source: WorkerId, to: WorkerId, mean: float) -> _Move | None:
        ledger = self._ledger
        heavy, light = ledger.loads[source], ledger.loads[to]
        if not self._limits.by_count and not self._is_hot(source) and _is_even(heavy, light, mean):
            return None
        # The lease after whose move the two loads are nearest to each other. A unit costs the one more than the other.
        earned, paid = ledger.cost(source), ledger.cost(to)
        level = (heavy - light) / (earned + paid)
        moves = [
            _Move(key, source, to, fall=(earned + paid) * weight * (2 * level - weight))
            for weight, key in ledger.nearest(source, level)
            if _is_gain(heavy - (light + paid * weight), at_least=min(BEGIN_BAND * mean, earned * weight))
        ]
        return max(moves, key=lambda move: move.fall, default=None)


@dataclass(frozen=True, slots=True)
class _Move:
    key: LeaseKey
    source: WorkerId
    to: WorkerId
    fall: float


def _is_gain(gain: float, *, at_least: float) -> bool:
    """Whether a move makes enough of a difference: less may be noise, and the lease would come back."""
    return gain > ROUNDING and gain >= at_least - ROUNDING


def _is_even(heavy: float, light: float, mean: float) -> bool:
    return heavy <= (1 + END_BAND) * mean and light >= (1 - END_BAND) * mean
