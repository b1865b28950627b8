"""When a member of a fleet with a leader looks next, and how it tells others to. The rules are `core.looking`'s."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.assignment.leader_assignment import LeaderPlan
from leasehold.core.assignment.refresh_schedule import (
    RefreshIntervals,
    RefreshReason,
    leases_to_nudge,
    next_refresh_ms,
    standby_rank,
)
from leasehold.core.events import OperationFailed
from leasehold.core.model import Lease, WorkerId
from leasehold.errors import LeaseholdError
from leasehold.fleet.assignment.leader_election import LeaderElection
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.lease_table import LeaseTable

ALERT_EVERY_MS: Final = 500
# Three leases bring an answer within a look's time; on a busy machine it may be a little late.
EAR_LOOKS: Final = 1.25
# A leader beats twice in the duration of its lock, so the first who stands by sees a new version with every look.
STANDBY_REFRESH_LOCKS: Final = 0.7


@dataclass(slots=True, kw_only=True)
class RefreshSchedule:
    """What one member knows that bears on its next look."""

    held_leases: HeldLeases
    leadership: LeaderElection
    worker: WorkerId
    settings: FleetSettings
    operations: Operations
    _looked_ms: int = 0
    _jitter: float = 1.0
    _rank: int = 0
    _is_expecting: bool = False
    _look_at_ms: int | None = None
    _has_unclaimed: bool = False
    _is_unfinished: bool = False

    def note_look(self) -> None:
        """A look begins."""
        self._looked_ms = self.operations.clock.now_ms()
        # Members that started together must not keep looking together.
        self._jitter = 0.75 + self.operations.rng.random() / 2
        self._look_at_ms, self._has_unclaimed = None, False
        self._is_unfinished = True

    def note_seen(self, leases: Iterable[Lease]) -> None:
        """The look got through. One that did not is soon tried again: it may have been about what word was left of."""
        self._is_unfinished = False
        self._is_expecting = any(lease.owner == self.worker and lease.is_in_handoff for lease in leases)

    def note_members(self, workers: Iterable[WorkerId]) -> None:
        """Who stands by to lead beside us."""
        self._rank = standby_rank(workers, self.worker, self.leadership.leader)

    def note_decision(self, plan: LeaderPlan) -> None:
        """As the leader: when there may be something to decide, and whether some leases are left to be given away."""
        self._look_at_ms, self._has_unclaimed = plan.refresh_at_ms, plan.unclaimed > 0

    def next_ms(self) -> int:
        """When to look again."""
        due_ms = next_refresh_ms(
            self._watch(),
            self._pace(),
            refreshed_ms=self._looked_ms,
            last_response_ms=self.held_leases.last_response_ms,
            rank=self._rank,
        )
        if self.leadership.is_leading and self._look_at_ms is not None:
            return min(due_ms, max(self._look_at_ms, self._looked_ms + ALERT_EVERY_MS))
        return due_ms

    def _watch(self) -> RefreshReason:
        if self.held_leases.was_nudged:
            return RefreshReason.NUDGED
        if self.leadership.is_leading:
            return RefreshReason.POLLING if self._has_unclaimed else RefreshReason.LEADING
        is_in_doubt = self._is_unfinished or self._is_expecting or self.leadership.is_leader_late
        if is_in_doubt or not self.leadership.sends_nudges:
            return RefreshReason.POLLING
        return RefreshReason.STANDBY

    def _pace(self) -> RefreshIntervals:
        look_ms = milliseconds(self.settings.refresh_every)
        return RefreshIntervals(
            leading_ms=milliseconds(self.settings.leader_refresh_every),
            nudged_ms=min(ALERT_EVERY_MS, look_ms),
            polling_ms=int(look_ms * self._jitter),
            contact_ms_max=int(look_ms * EAR_LOOKS),
            standby_ms=int(
                milliseconds(self.settings.leader_lock_duration) * STANDBY_REFRESH_LOCKS * self._jitter
            ),
        )


@dataclass(frozen=True, slots=True)
class Nudger:
    """Leaves word for other members. One that cannot be left costs time: they look by themselves, later."""

    table: LeaseTable
    operations: Operations

    async def leave(self, workers: AbstractSet[WorkerId], leases: Sequence[Lease]) -> None:
        """Tell these workers to look, in leases that they hold."""
        await asyncio.gather(*(self._leave_in(lease) for lease in leases_to_nudge(leases, workers)))

    async def _leave_in(self, lease: Lease) -> None:
        try:
            await self.table.nudge(lease, f"{self.operations.rng.getrandbits(64):016x}")
        except LeaseholdError as error:
            self.operations.observe(OperationFailed(f"leave word in {lease.key}", str(error)))
