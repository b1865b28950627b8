"""Executes a LeaderPlan: assigns leases, requests handoffs, nudges members, deletes stale reports.

Each write may fail on its own; the next plan starts afresh.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from leasehold.config.settings import milliseconds
from leasehold.core.assignment.leader_assignment import Assignment, LeaderPlan
from leasehold.core.assignment.refresh_schedule import workers_to_nudge_before_failover
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.worker_metrics import STALE_AFTER_MS, WorkerReport
from leasehold.core.events import HandoffRequested, HandoffWithdrawn, LeaseAssigned
from leasehold.core.leases.liveness import Observations
from leasehold.core.model import Lease, WorkerId
from leasehold.errors import LeaseholdError
from leasehold.fleet.assignment.nudger import Nudger
from leasehold.fleet.assignment.strategy import AssignmentContext
from leasehold.fleet.table.coordinator_rows import FleetSnapshot
from leasehold.fleet.table.lease_table import Contended
from leasehold.tasks import all_of

_Result = Lease | Contended | None  # None: the write failed


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The leases that were assigned, how many handoffs were requested, and whether a write failed."""

    assigned: Sequence[Lease]
    handed_off: int
    has_failed: bool


@dataclass(frozen=True, slots=True)
class AssignmentExecutor:
    """Executes the plans of a leader."""

    context: AssignmentContext
    reports_layout: TableLayout
    nudger: Nudger

    async def execute(
        self, plan: LeaderPlan, snapshot: FleetSnapshot, observations: Observations
    ) -> ExecutionResult:
        """Assign leases, request and withdraw handoffs, nudge members, delete reports not renewed for a day."""
        by_force = () if self.context.settings.handoff else plan.hand_off
        by_handoff = plan.hand_off if self.context.settings.handoff else ()
        assigned = await all_of(*(self._assign(line) for line in (*plan.assign, *by_force)))
        handed = await all_of(*(self._request_handoff(line) for line in by_handoff))
        withdrawn = await all_of(*(self._withdraw_handoff(lease) for lease in plan.withdraw))
        # Invariant: members are nudged after the writes, so that they find them.
        workers = self._workers_to_nudge(plan, snapshot, observations)
        await self.nudger.nudge(workers, snapshot.leases.leases)
        await all_of(*(self._delete(report) for report in self._stale_reports(snapshot)))
        return ExecutionResult(
            [lease for lease in assigned if isinstance(lease, Lease)],
            sum(isinstance(lease, Lease) for lease in handed),
            has_failed=any(result is None for result in (*assigned, *handed, *withdrawn)),
        )

    async def _assign(self, line: Assignment) -> _Result:
        write = self.context.table.assign(line.lease, line.to)
        result = await self._write(f"assign {line.lease.key}", write)
        if isinstance(result, Lease):
            event = LeaseAssigned(line.lease.key, line.lease.actual_owner, line.to)
            self.context.operations.observe(event)
        return result

    async def _request_handoff(self, line: Assignment) -> _Result:
        write = self.context.table.request_handoff(line.lease, line.to)
        result = await self._write(f"hand off {line.lease.key}", write)
        if isinstance(result, Lease) and result.checkpoint_owner is not None:
            event = HandoffRequested(line.lease.key, result.checkpoint_owner, line.to)
            self.context.operations.observe(event)
        return result

    async def _withdraw_handoff(self, lease: Lease) -> _Result:
        write = self.context.table.withdraw_handoff(lease)
        result = await self._write(f"withdraw the handoff of {lease.key}", write)
        if isinstance(result, Lease) and lease.owner is not None and lease.checkpoint_owner is not None:
            event = HandoffWithdrawn(lease.key, lease.checkpoint_owner, lease.owner)
            self.context.operations.observe(event)
        return result

    async def _write(self, name: str, write: Awaitable[Lease | Contended]) -> _Result:
        try:
            return await write
        except LeaseholdError as error:
            self.context.operations.report_failure(name, error)
            return None

    def _workers_to_nudge(
        self, plan: LeaderPlan, snapshot: FleetSnapshot, observations: Observations
    ) -> AbstractSet[WorkerId]:
        """The workers that get a lease now, and those that may get one in a moment."""
        receivers = {line.to for line in (*plan.assign, *plan.hand_off)}
        failover_ms = milliseconds(self.context.settings.failover_after)
        now_ms = self.context.operations.clock.now_ms()
        soon = workers_to_nudge_before_failover(snapshot.leases.leases, observations, now_ms, failover_ms)
        return (receivers | soon) - {self.context.worker}

    def _stale_reports(self, snapshot: FleetSnapshot) -> list[WorkerReport]:
        oldest_s = (self.context.operations.clock.wall_ms() - STALE_AFTER_MS) // 1000
        return [report for report in snapshot.reports.reports if report.updated_s < oldest_s]

    async def _delete(self, report: WorkerReport) -> None:
        delete = partial(self.context.table.coordinator_rows.withdraw_report, self.reports_layout, report)
        await self.context.operations.attempt(f"delete the report of {report.worker}", delete)
