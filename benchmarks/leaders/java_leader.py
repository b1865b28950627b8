"""How a leader of the Java KCL decides (its default strategy), written from a description, to be compared with ours.

Only what a comparison needs: one metric (processor use, range 100), no caps, threshold 10 %, dampening 60 %, overshoot.
Kinder than the original in one point: workers that are loaded alike are not mixed up by its queue.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.assignment.leader_assignment import Assignment, LeaderLimits, LeaderPlan, LeaderView
from leasehold.core.coordinator.worker_metrics import EXPIRED_AFTER_MS
from leasehold.core.model import Lease, LeaseKey, WorkerId

RUN_EVERY_MS: Final = 20_000
BALANCE_EVERY_RUNS: Final = 3
THRESHOLD, DAMPENING, RANGE = 0.1, 0.6, 100.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one run remembers of a lease for the next. `patience_until_ms` is of a handoff under way."""

    counter: int
    owners: tuple[WorkerId | None, WorkerId | None]
    moved_ms: int
    patience_until_ms: int


@dataclass(slots=True)
class JavaLeader:
    """One decision at a time; call it as `plan_assignment`. Whoever does not lead decides nothing."""

    rng: random.Random
    _is_leading: bool = False
    _runs: int = 0
    _ran_ms: int | None = None
    _seen: dict[LeaseKey, _Seen] = field(default_factory=dict)

    def lead(self, *, is_leading: bool) -> None:
        """Begin to lead, knowing nothing, or end."""
        self._is_leading, self._runs, self._ran_ms, self._seen = is_leading, 0, None, {}

    def __call__(self, view: LeaderView, limits: LeaderLimits) -> LeaderPlan:
        """Decide every 20 seconds, and balance in every third run, the first included."""
        is_due = self._ran_ms is None or view.now_ms - self._ran_ms >= RUN_EVERY_MS
        if not self._is_leading or not is_due:
            return LeaderPlan(memory=view.memory)
        self._ran_ms = view.now_ms
        self._seen = {lease.key: self._look(lease, view.now_ms, limits) for lease in view.leases}
        run = _Run(view)
        expired = [lease for lease in view.leases if self._is_expired(lease, view.now_ms, limits)]
        run.give_all(sorted(expired, key=lambda lease: self._seen[lease.key].moved_ms))
        if self._runs % BALANCE_EVERY_RUNS == 0:
            run.balance(self.rng)
        self._runs += 1
        return self._plan(run, {lease.key for lease in expired}, view)

    def _look(self, lease: Lease, now_ms: int, limits: LeaderLimits) -> _Seen:
        before = self._seen.get(lease.key)
        owners = lease.owner, lease.checkpoint_owner
        moved_ms = 0 if before is None and lease.actual_owner is None else now_ms
        patience_until_ms = now_ms + limits.handoff_timeout_ms + limits.failover_ms
        if before is not None:
            moved_ms = now_ms if lease.counter > before.counter else before.moved_ms
            patience_until_ms = before.patience_until_ms if owners == before.owners else patience_until_ms
        return _Seen(lease.counter, owners, moved_ms, patience_until_ms)

    def _is_expired(self, lease: Lease, now_ms: int, limits: LeaderLimits) -> bool:
        return lease.actual_owner is None or now_ms - self._seen[lease.key].moved_ms > limits.failover_ms

    def _plan(self, run: _Run, expired: set[LeaseKey], view: LeaderView) -> LeaderPlan:
        """Handoffs for what is read, plain assignments for the rest; a handoff that is young enough is let be."""
        assign, hand_off = [], []
        for lease in view.leases:
            to = run.moves.get(lease.key)
            is_young = lease.is_in_handoff and view.now_ms < self._seen[lease.key].patience_until_ms
            if to is None or (is_young and lease.key not in expired):
                continue
            if lease.key in expired or lease.is_in_handoff:
                assign.append(Assignment(lease, to))
                owners = to, None
                self._seen[lease.key] = _Seen(lease.counter + 1, owners, view.now_ms, view.now_ms)
            else:
                hand_off.append(Assignment(lease, to))
        return LeaderPlan(
            assign=tuple(assign), hand_off=tuple(hand_off), workers=len(run.loads), memory=view.memory
        )


class _Run:
    """What one run works on: loads as they would be after each line of it, and the queue of receivers."""

    def __init__(self, view: LeaderView) -> None:
        self.moves: dict[LeaseKey, WorkerId] = {}
        self.loads = {
            report.worker: report.utilisation or 0.0
            for report in view.reports
            if (view.wall_s - report.updated_s) * 1000 <= EXPIRED_AFTER_MS and not report.is_failing
        }
        known = [float(lease.throughput_kbps) for lease in view.leases if lease.throughput_kbps is not None]
        average = sum(known) / max(1, len(known))
        self._kbps = {
            lease.key: average if lease.throughput_kbps is None else float(lease.throughput_kbps)
            for lease in view.leases
        }
        self._owners = {lease.key: lease.actual_owner for lease in view.leases}
        self._mean = sum(self.loads.values()) / max(1, len(self.loads))
        self._target_kbps = sum(self._kbps.values()) / max(1, len(self.loads))
        self._target_leases = max(1, len(view.leases) // max(1, len(self.loads)))
        self._queue = [(-self._headroom(worker), worker) for worker in sorted(self.loads)]
        heapq.heapify(self._queue)

    def give_all(self, leases: Sequence[Lease]) -> None:
        """Leases that nobody reads. A dead worker that still counts as alive is in the way of its own."""
        for lease in leases:
            if not self._queue:
                return
            _, to = heapq.heappop(self._queue)
            if lease.actual_owner == to and not lease.is_in_handoff:
                self._push(to)
            else:
                self._give(lease.key, to)

    def balance(self, rng: random.Random) -> None:
        """From workers above the threshold, up to 60 % of what is too much, to those with most room."""
        upper, lower = self._mean * (1 + THRESHOLD), self._mean * (1 - THRESHOLD)
        if all(lower <= load <= upper and load <= RANGE for load in self.loads.values()):
            return
        sources = [worker for worker, load in self.loads.items() if load >= upper or load > RANGE]
        sources = sources or [max(self.loads, key=lambda worker: self.loads[worker])]
        excess = {worker: self._excess_kbps(worker) for worker in sources if self.loads[worker]}
        for source in sorted(excess, key=lambda worker: -excess[worker]):
            self._relieve(source, self._chosen(source, excess[source], rng))

    def _relieve(self, source: WorkerId, leases: Sequence[LeaseKey]) -> None:
        for key in leases:
            if not self._queue:
                return
            _, to = heapq.heappop(self._queue)
            if self.loads[to] + self._added(key) > min(self._mean, RANGE):
                return  # this receiver is gone for the rest of the run, and so is the source
            if to == source:
                self._push(to)
            else:
                self._give(key, to)

    def _chosen(self, source: WorkerId, take_kbps: float, rng: random.Random) -> list[LeaseKey]:
        held = self._held(source)
        if not held or not self._delivered(source):
            return held[:1]
        chosen = []
        for key in rng.sample(held, len(held)):
            if take_kbps - self._kbps[key] > 0:
                take_kbps -= self._kbps[key]
                chosen.append(key)
        return chosen or [min(held, key=lambda key: self._kbps[key])]

    def _excess_kbps(self, worker: WorkerId) -> float:
        load = self.loads[worker]
        return self._delivered(worker) * (load - self._mean) / load * DAMPENING

    def _held(self, worker: WorkerId) -> list[LeaseKey]:
        return [key for key, owner in self._owners.items() if owner == worker]

    def _delivered(self, worker: WorkerId) -> float:
        return sum(self._kbps[key] for key in self._held(worker))

    def _give(self, key: LeaseKey, to: WorkerId) -> None:
        self.loads[to] += self._added(key)
        self._owners[key] = self.moves[key] = to
        self._push(to)

    def _added(self, key: LeaseKey) -> float:
        if self._target_kbps > 0:
            return self._kbps[key] * self._mean / self._target_kbps
        return self._mean / self._target_leases

    def _push(self, worker: WorkerId) -> None:
        heapq.heappush(self._queue, (-self._headroom(worker), worker))

    def _headroom(self, worker: WorkerId) -> float:
        load = self.loads[worker]
        return 1.0 if load == 0 else (self._mean - load) / load
