"""When a member of a fleet with a leader refreshes next. The rules are in `core.assignment.refresh_schedule`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.assignment.leader_assignment import LeaderPlan
from leasehold.core.assignment.refresh_schedule import (
    RefreshIntervals,
    RefreshReason,
    next_refresh_ms,
    standby_rank,
)
from leasehold.core.model import Lease, WorkerId
from leasehold.fleet.assignment.leader_election import LeaderElection
from leasehold.fleet.operations import Operations
from leasehold.fleet.table_contact import TableContact

NUDGED_REFRESH_MS: Final = 500
# With three leases, a heartbeat gets a response within the refresh interval; on a busy machine it is a little late.
CONTACT_REFRESHES: Final = 1.25
# A leader renews its lock twice within its duration, so the first standby sees a new version with every refresh.
STANDBY_REFRESH_LOCKS: Final = 0.7


@dataclass(slots=True, kw_only=True)
class RefreshSchedule:
    """What one member knows about its next refresh."""

    contact: TableContact
    election: LeaderElection
    worker: WorkerId
    settings: FleetSettings
    operations: Operations
    _refreshed_ms: int = 0
    _jitter: float = 1.0
    _rank: int = 0
    _expects_handoff: bool = False
    _refresh_at_ms: int | None = None
    _has_unclaimed: bool = False
    _is_unfinished: bool = False

    def begin_refresh(self) -> None:
        """A refresh begins."""
        self._refreshed_ms = self.operations.clock.now_ms()
        # Members that started together must not keep refreshing together.
        self._jitter = 0.75 + self.operations.rng.random() / 2
        self._refresh_at_ms, self._has_unclaimed = None, False
        self._is_unfinished = True

    def finish_refresh(self, leases: Iterable[Lease]) -> None:
        """The refresh succeeded. A failed one is retried soon: the nudge that caused it may still be unanswered."""
        self._is_unfinished = False
        self._expects_handoff = any(lease.owner == self.worker and lease.is_in_handoff for lease in leases)

    def note_members(self, workers: Iterable[WorkerId]) -> None:
        """Compute our rank among the standbys."""
        self._rank = standby_rank(workers, self.worker, self.election.leader)

    def note_plan(self, plan: LeaderPlan) -> None:
        """As the leader: when there may be something to decide, and whether leases are left to assign."""
        self._refresh_at_ms, self._has_unclaimed = plan.refresh_at_ms, plan.unclaimed > 0

    def next_ms(self) -> int:
        """When to refresh again."""
        due_ms = next_refresh_ms(
            self._reason(),
            self._intervals(),
            refreshed_ms=self._refreshed_ms,
            last_response_ms=self.contact.last_response_ms,
            rank=self._rank,
        )
        if self.election.is_leading and self._refresh_at_ms is not None:
            return min(due_ms, max(self._refresh_at_ms, self._refreshed_ms + NUDGED_REFRESH_MS))
        return due_ms

    def _reason(self) -> RefreshReason:
        if self.contact.was_nudged:
            return RefreshReason.NUDGED
        if self.election.is_leading:
            return RefreshReason.POLLING if self._has_unclaimed else RefreshReason.LEADING
        is_uncertain = self._is_unfinished or self._expects_handoff or self.election.is_leader_late
        if is_uncertain or not self.election.leader_sends_nudges:
            return RefreshReason.POLLING
        return RefreshReason.STANDBY

    def _intervals(self) -> RefreshIntervals:
        refresh_ms = milliseconds(self.settings.refresh_every)
        lock_ms = milliseconds(self.settings.leader_lock_duration)
        return RefreshIntervals(
            leading_ms=milliseconds(self.settings.leader_refresh_every),
            nudged_ms=min(NUDGED_REFRESH_MS, refresh_ms),
            polling_ms=int(refresh_ms * self._jitter),
            contact_ms_max=int(refresh_ms * CONTACT_REFRESHES),
            standby_ms=int(lock_ms * STANDBY_REFRESH_LOCKS * self._jitter),
        )
