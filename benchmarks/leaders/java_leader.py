"""A port of the Java KCL's default assignment strategy, written from a description, for comparison with ours.

It has only what the comparison needs: one metric (CPU use, range 100), no caps, threshold 10 %, dampening 60 %,
overshoot. In one point it is better than the original: its queue keeps the order of workers with equal load.
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
class _LeaseState:
    """The state of a lease in the last run. A handoff in progress is left alone until `handoff_deadline_ms`."""

    counter: int
    owners: tuple[WorkerId | None, WorkerId | None]
    counter_changed_ms: int
    handoff_deadline_ms: int


@dataclass(slots=True)
class JavaLeader:
    """A replacement for `plan_assignment`. It plans nothing unless it leads."""

    rng: random.Random
    _is_leading: bool = False
    _runs: int = 0
    _ran_ms: int | None = None
    _states: dict[LeaseKey, _LeaseState] = field(default_factory=dict)

    def set_leading(self, *, is_leading: bool) -> None:
        """Start to lead, with an empty memory, or stop."""
        self._is_leading, self._runs, self._ran_ms, self._states = is_leading, 0, None, {}

    def __call__(self, view: LeaderView, limits: LeaderLimits) -> LeaderPlan:
        """Plan every 20 seconds, and balance in every third run, starting with the first."""
        is_due = self._ran_ms is None or view.now_ms - self._ran_ms >= RUN_EVERY_MS
        if not self._is_leading or not is_due:
            return LeaderPlan(memory=view.memory)
        self._ran_ms = view.now_ms
        self._states = {lease.key: self._next_state(lease, view.now_ms, limits) for lease in view.leases}
        run = _Run(view)
        expired = [lease for lease in view.leases if self._is_expired(lease, view.now_ms, limits)]
        run.assign_all(sorted(expired, key=lambda lease: self._states[lease.key].counter_changed_ms))
        if self._runs % BALANCE_EVERY_RUNS == 0:
            run.balance(self.rng)
        self._runs += 1
        return self._plan(run, {lease.key for lease in expired}, view)

    def _next_state(self, lease: Lease, now_ms: int, limits: LeaderLimits) -> _LeaseState:
        before = self._states.get(lease.key)
        owners = lease.owner, lease.checkpoint_owner
        counter_changed_ms = 0 if before is None and lease.actual_owner is None else now_ms
        handoff_deadline_ms = now_ms + limits.handoff_timeout_ms + limits.failover_ms
        if before is not None:
            counter_changed_ms = now_ms if lease.counter > before.counter else before.counter_changed_ms
            handoff_deadline_ms = (
                before.handoff_deadline_ms if owners == before.owners else handoff_deadline_ms
            )
        return _LeaseState(lease.counter, owners, counter_changed_ms, handoff_deadline_ms)

    def _is_expired(self, lease: Lease, now_ms: int, limits: LeaderLimits) -> bool:
        return (
            lease.actual_owner is None
            or now_ms - self._states[lease.key].counter_changed_ms > limits.failover_ms
        )

    def _plan(self, run: _Run, expired: set[LeaseKey], view: LeaderView) -> LeaderPlan:
        """Hand off leases that are read, and assign the others. Leave handoffs alone until their deadline."""
        assign, hand_off = [], []
        for lease in view.leases:
            to = run.moves.get(lease.key)
            is_in_time = lease.is_in_handoff and view.now_ms < self._states[lease.key].handoff_deadline_ms
            if to is None or (is_in_time and lease.key not in expired):
                continue
            if lease.key in expired or lease.is_in_handoff:
                assign.append(Assignment(lease, to))
                owners = to, None
                self._states[lease.key] = _LeaseState(lease.counter + 1, owners, view.now_ms, view.now_ms)
            else:
                hand_off.append(Assignment(lease, to))
        return LeaderPlan(
            assign=tuple(assign), hand_off=tuple(hand_off), workers=len(run.loads), memory=view.memory
        )


class _Run:
    """One run: the expected loads after each planned move, and the queue of receiving workers."""

    def __init__(self, view: LeaderView) -> None:
        self.moves: dict[LeaseKey, WorkerId] = {}
        self.loads = {
            report.worker: report.utilisation() or 0.0
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

    def assign_all(self, leases: Sequence[Lease]) -> None:
        """Assign leases that no worker reads. A dead worker that still counts as alive may keep its own leases."""
        for lease in leases:
            if not self._queue:
                return
            _, to = heapq.heappop(self._queue)
            if lease.actual_owner == to and not lease.is_in_handoff:
                self._push(to)
            else:
                self._move(lease.key, to)

    def balance(self, rng: random.Random) -> None:
        """Move up to 60 % of the excess load of workers above the threshold to the workers with the most headroom."""
        upper, lower = self._mean * (1 + THRESHOLD), self._mean * (1 - THRESHOLD)
        if all(lower <= load <= upper and load <= RANGE for load in self.loads.values()):
            return
        sources = [worker for worker, load in self.loads.items() if load >= upper or load > RANGE]
        sources = sources or [max(self.loads, key=lambda worker: self.loads[worker])]
        excess = {worker: self._excess_kbps(worker) for worker in sources if self.loads[worker]}
        for source in sorted(excess, key=lambda worker: -excess[worker]):
            self._relieve(source, self._choose(source, excess[source], rng))

    def _relieve(self, source: WorkerId, leases: Sequence[LeaseKey]) -> None:
        for key in leases:
            if not self._queue:
                return
            _, to = heapq.heappop(self._queue)
            if self.loads[to] + self._added_load(key) > min(self._mean, RANGE):
                return  # neither this receiver nor the source is used again in this run
            if to == source:
                self._push(to)
            else:
                self._move(key, to)

    def _choose(self, source: WorkerId, take_kbps: float, rng: random.Random) -> list[LeaseKey]:
        held = self._held(source)
        if not held or not self._throughput_kbps(source):
            return held[:1]
        chosen = []
        for key in rng.sample(held, len(held)):
            if take_kbps - self._kbps[key] > 0:
                take_kbps -= self._kbps[key]
                chosen.append(key)
        return chosen or [min(held, key=lambda key: self._kbps[key])]

    def _excess_kbps(self, worker: WorkerId) -> float:
        load = self.loads[worker]
        return self._throughput_kbps(worker) * (load - self._mean) / load * DAMPENING

    def _held(self, worker: WorkerId) -> list[LeaseKey]:
        return [key for key, owner in self._owners.items() if owner == worker]

    def _throughput_kbps(self, worker: WorkerId) -> float:
        return sum(self._kbps[key] for key in self._held(worker))

    def _move(self, key: LeaseKey, to: WorkerId) -> None:
        self.loads[to] += self._added_load(key)
        self._owners[key] = self.moves[key] = to
        self._push(to)

    def _added_load(self, key: LeaseKey) -> float:
        if self._target_kbps > 0:
            return self._kbps[key] * self._mean / self._target_kbps
        return self._mean / self._target_leases

    def _push(self, worker: WorkerId) -> None:
        heapq.heappush(self._queue, (-self._headroom(worker), worker))

    def _headroom(self, worker: WorkerId) -> float:
        load = self.loads[worker]
        return 1.0 if load == 0 else (self._mean - load) / load
