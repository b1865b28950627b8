"""Carries out what a leader has decided, line by line: each may fail on its own. Then tells whom it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.assignment.leader_assignment import Assignment, LeaderPlan
from leasehold.core.assignment.refresh_schedule import workers_to_nudge_before_failover
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.worker_metrics import STALE_AFTER_MS, WorkerReport
from leasehold.core.events import HandoffRequested, LeaseAssigned, OperationFailed
from leasehold.core.leases.liveness import Observations
from leasehold.core.model import Lease, WorkerId
from leasehold.errors import LeaseholdError
from leasehold.fleet.assignment.refresh_schedule import Nudger
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.coordinator_rows import FleetSnapshot
from leasehold.fleet.table.lease_table import Contended, LeaseTable

_Answer = Lease | Contended | None  # None: it could not be written


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan: the leases that were assigned, and whether a line could not be written."""

    assigned: Sequence[Lease]
    has_failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentExecutor:
    """The leader's hands."""

    table: LeaseTable
    reports_layout: TableLayout
    worker: WorkerId
    settings: FleetSettings
    operations: Operations
    nudger: Nudger

    async def carry_out(self, plan: LeaderPlan, seen: FleetSnapshot, observations: Observations) -> Outcome:
        """Assign and hand off, leave word, and clear away what nobody has renewed for a day."""
        assigned = await asyncio.gather(*(self._assign(line) for line in plan.assign))
        handed = await asyncio.gather(*(self._hand_off(line) for line in plan.hand_off))
        await self.nudger.leave(self._whom_to_tell(plan, seen, observations), seen.leases.leases)
        await asyncio.gather(*(self._remove(report) for report in self._stale(seen)))
        return Outcome(
            [lease for lease in assigned if isinstance(lease, Lease)],
            has_failed=any(answer is None for answer in (*assigned, *handed)),
        )

    async def _assign(self, line: Assignment) -> _Answer:
        answer = await self._written(f"assign {line.lease.key}", self.table.assign(line.lease, line.to))
        if isinstance(answer, Lease):
            self.operations.observe(LeaseAssigned(line.lease.key, line.lease.actual_owner, line.to))
        return answer

    async def _hand_off(self, line: Assignment) -> _Answer:
        write = self.table.request_handoff(line.lease, line.to)
        answer = await self._written(f"hand off {line.lease.key}", write)
        if isinstance(answer, Lease) and answer.checkpoint_owner is not None:
            self.operations.observe(HandoffRequested(line.lease.key, answer.checkpoint_owner, line.to))
        return answer

    async def _written(self, what: str, write: Awaitable[Lease | Contended]) -> _Answer:
        try:
            return await write
        except LeaseholdError as error:
            self.operations.observe(OperationFailed(what, str(error)))
            return None

    def _whom_to_tell(
        self, plan: LeaderPlan, seen: FleetSnapshot, observations: Observations
    ) -> AbstractSet[WorkerId]:
        """Who has been given something, and who may be in a moment."""
        given = {line.to for line in (*plan.assign, *plan.hand_off)}
        failover_ms = milliseconds(self.settings.failover_after)
        alerted = workers_to_nudge_before_failover(
            seen.leases.leases, observations, self.operations.clock.now_ms(), failover_ms
        )
        return (given | alerted) - {self.worker}

    def _stale(self, seen: FleetSnapshot) -> list[WorkerReport]:
        """Reports of workers that were not heard of for a day."""
        oldest_s = (self.operations.clock.wall_ms() - STALE_AFTER_MS) // 1000
        return [report for report in seen.reports.reports if report.updated_s < oldest_s]

    async def _remove(self, report: WorkerReport) -> None:
        remove = partial(self.table.coordinator_rows.withdraw_report, self.reports_layout, report)
        await self.operations.attempt(f"remove the report of {report.worker}", remove)
