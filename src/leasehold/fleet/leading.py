"""Carries out what a leader has decided, line by line: each may fail on its own. Then tells whom it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from leasehold.core.events import HandoffAsked, LeaseAssigned, StepFailed
from leasehold.core.fleet_mode import Place
from leasehold.core.leader_assignment import Assignment, LeaderPlan
from leasehold.core.lease_observations import Observations
from leasehold.core.looking import whom_to_alert
from leasehold.core.model import Lease, WorkerId
from leasehold.core.worker_metrics import STALE_AFTER_MS, WorkerReport
from leasehold.errors import LeaseholdError
from leasehold.fleet.common_rows import FleetLook
from leasehold.fleet.lease_table import Contended, LeaseTable
from leasehold.fleet.looks import Words
from leasehold.fleet.steps import Steps
from leasehold.settings import FleetSettings, milliseconds

_Answer = Lease | Contended | None  # None: it could not be written


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan: the leases that were assigned, and whether a line could not be written."""

    assigned: Sequence[Lease]
    has_failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """The leader's hands."""

    table: LeaseTable
    reports_in: Place
    worker: WorkerId
    settings: FleetSettings
    steps: Steps
    words: Words

    async def carry_out(self, plan: LeaderPlan, seen: FleetLook, observations: Observations) -> Outcome:
        """Assign and hand off, leave word, and clear away what nobody has renewed for a day."""
        assigned = await asyncio.gather(*(self._assign(line) for line in plan.assign))
        handed = await asyncio.gather(*(self._hand_off(line) for line in plan.hand_off))
        await self.words.leave(self._whom_to_tell(plan, seen, observations), seen.leases.leases)
        await asyncio.gather(*(self._remove(report) for report in self._stale(seen)))
        return Outcome(
            [lease for lease in assigned if isinstance(lease, Lease)],
            has_failed=any(answer is None for answer in (*assigned, *handed)),
        )

    async def _assign(self, line: Assignment) -> _Answer:
        answer = await self._written(f"assign {line.lease.key}", self.table.assign(line.lease, line.to))
        if isinstance(answer, Lease):
            self.steps.observe(LeaseAssigned(line.lease.key, line.lease.actual_owner, line.to))
        return answer

    async def _hand_off(self, line: Assignment) -> _Answer:
        write = self.table.request_handoff(line.lease, line.to)
        answer = await self._written(f"hand off {line.lease.key}", write)
        if isinstance(answer, Lease) and answer.checkpoint_owner is not None:
            self.steps.observe(HandoffAsked(line.lease.key, answer.checkpoint_owner, line.to))
        return answer

    async def _written(self, what: str, write: Awaitable[Lease | Contended]) -> _Answer:
        try:
            return await write
        except LeaseholdError as error:
            self.steps.observe(StepFailed(what, str(error)))
            return None

    def _whom_to_tell(
        self, plan: LeaderPlan, seen: FleetLook, observations: Observations
    ) -> AbstractSet[WorkerId]:
        """Who has been given something, and who may be in a moment."""
        given = {line.to for line in (*plan.assign, *plan.hand_off)}
        failover_ms = milliseconds(self.settings.failover_after)
        alerted = whom_to_alert(seen.leases.leases, observations, self.steps.clock.now_ms(), failover_ms)
        return (given | alerted) - {self.worker}

    def _stale(self, seen: FleetLook) -> list[WorkerReport]:
        """Reports of workers that were not heard of for a day."""
        oldest_s = (self.steps.clock.wall_ms() - STALE_AFTER_MS) // 1000
        return [report for report in seen.reports.reports if report.updated_s < oldest_s]

    async def _remove(self, report: WorkerReport) -> None:
        remove = partial(self.table.common.take_back_report, self.reports_in, report)
        await self.steps.take(f"remove the report of {report.worker}", remove)
