"""Makes a leader's decisions and executes them. Standbys decide as well, so that they know the fleet when they lead."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from leasehold.config.settings import BalanceBy, milliseconds
from leasehold.core.assignment.leader_assignment import (
    Decide,
    LeaderLimits,
    LeaderMemory,
    LeaderPlan,
    LeaderView,
)
from leasehold.core.assignment.rebalancing import Balancing
from leasehold.core.leases.liveness import Observations
from leasehold.core.model import LeaseKey, WorkerId
from leasehold.fleet.assignment.strategy import AssignmentContext
from leasehold.fleet.table.coordinator_rows import FleetSnapshot


class Leader:
    """The decisions of a member that leads, or that stands by to lead. `decide` is a pure function of `core`."""

    def __init__(self, context: AssignmentContext, decide: Decide) -> None:
        self._context = context
        self._decide = decide
        self._memory: LeaderMemory | None = None

    def plan(
        self, snapshot: FleetSnapshot, observations: Observations, now_ms: int, *, is_leading: bool
    ) -> LeaderPlan:
        """What a leader should do now. The memory of a standby holds no moves, because it executes none."""
        plan = self._decide(self._view(snapshot, observations, now_ms), self._limits())
        self._memory = plan.memory if is_leading else replace(plan.memory, moved={})
        return plan

    def plan_next_owners(
        self, snapshot: FleetSnapshot, observations: Observations, now_ms: int, ours: AbstractSet[LeaseKey]
    ) -> Mapping[LeaseKey, WorkerId]:
        """Which workers should get our leases, once our report is withdrawn and the leases are free.

        Members that stop at the same time decide without each other's leases.
        """
        view = self._view(snapshot, observations, now_ms)
        leases = [replace(lease, owner=None) if lease.key in ours else lease for lease in view.leases]
        plan = self._decide(replace(view, leases=leases), self._limits())
        return {line.lease.key: line.to for line in plan.assign if line.lease.key in ours}

    def _view(self, snapshot: FleetSnapshot, observations: Observations, now_ms: int) -> LeaderView:
        return LeaderView(
            now_ms=now_ms,
            wall_s=self._context.operations.clock.wall_ms() // 1000,
            leases=self._context.streams.ours(snapshot.leases.leases),
            observations=observations,
            reports=snapshot.reports.reports,
            unreadable={LeaseKey(error.key) for error in snapshot.leases.rejected},
            memory=self._memory or LeaderMemory(members_since_ms=now_ms),
        )

    def _limits(self) -> LeaderLimits:
        settings = self._context.settings
        return LeaderLimits(
            failover_ms=milliseconds(settings.failover_after),
            handoff_timeout_ms=milliseconds(settings.handoff_timeout),
            leases_max=settings.max_leases,
            kbps_max=settings.max_kbps,
            placed_max=settings.leases_to_acquire,
            moved_max=settings.leases_to_request,
            balancing=Balancing(
                threshold=settings.balance_threshold / 100,
                step=settings.balance_step / 100,
                every_ms=milliseconds(settings.balance_every),
                may_overshoot=settings.balance_overshoot,
                by_count=settings.balance_by is BalanceBy.COUNT,
            ),
            newest_weight=settings.newest_report_weight,
        )
