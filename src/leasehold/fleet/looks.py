"""When a member of a fleet with a leader looks next, and how it tells others to. The rules are `core.looking`'s."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from leasehold.core.events import StepFailed
from leasehold.core.leader_assignment import LeaderPlan
from leasehold.core.looking import Pace, Watch, leases_for_word, next_look_ms, rank_among
from leasehold.core.model import Lease, WorkerId
from leasehold.errors import LeaseholdError
from leasehold.fleet.holdings import Holdings
from leasehold.fleet.leadership import Leadership
from leasehold.fleet.lease_table import LeaseTable
from leasehold.fleet.steps import Steps
from leasehold.settings import FleetSettings, milliseconds

ALERT_EVERY_MS: Final = 500
# Three leases bring an answer within a look's time; on a busy machine it may be a little late.
EAR_LOOKS: Final = 1.25
# A leader beats twice in the duration of its lock, so the first who stands by sees a new version with every look.
STANDBY_LOCKS: Final = 0.7


@dataclass(slots=True, kw_only=True)
class Looks:
    """What one member knows that bears on its next look."""

    holdings: Holdings
    leadership: Leadership
    worker: WorkerId
    settings: FleetSettings
    steps: Steps
    _looked_ms: int = 0
    _jitter: float = 1.0
    _rank: int = 0
    _is_expecting: bool = False
    _look_at_ms: int | None = None
    _has_unclaimed: bool = False
    _is_unfinished: bool = False

    def note_look(self) -> None:
        """A look begins."""
        self._looked_ms = self.steps.clock.now_ms()
        # Members that started together must not keep looking together.
        self._jitter = 0.75 + self.steps.rng.random() / 2
        self._look_at_ms, self._has_unclaimed = None, False
        self._is_unfinished = True

    def note_seen(self, leases: Iterable[Lease]) -> None:
        """The look got through. One that did not is soon tried again: it may have been about what word was left of."""
        self._is_unfinished = False
        self._is_expecting = any(lease.owner == self.worker and lease.is_in_handoff for lease in leases)

    def note_members(self, workers: Iterable[WorkerId]) -> None:
        """Who stands by to lead beside us."""
        self._rank = rank_among(workers, self.worker, self.leadership.leader)

    def note_decision(self, plan: LeaderPlan) -> None:
        """As the leader: when there may be something to decide, and whether some leases are left to be given away."""
        self._look_at_ms, self._has_unclaimed = plan.look_at_ms, plan.unclaimed > 0

    def next_ms(self) -> int:
        """When to look again."""
        due_ms = next_look_ms(
            self._watch(),
            self._pace(),
            looked_ms=self._looked_ms,
            heard_ms=self.holdings.heard_ms,
            rank=self._rank,
        )
        if self.leadership.is_leading and self._look_at_ms is not None:
            return min(due_ms, max(self._look_at_ms, self._looked_ms + ALERT_EVERY_MS))
        return due_ms

    def _watch(self) -> Watch:
        if self.holdings.is_alert:
            return Watch.ALERT
        if self.leadership.is_leading:
            return Watch.ALONE if self._has_unclaimed else Watch.LEADING
        is_in_doubt = self._is_unfinished or self._is_expecting or self.leadership.is_suspicious
        if is_in_doubt or not self.leadership.leaves_word:
            return Watch.ALONE
        return Watch.LISTENING

    def _pace(self) -> Pace:
        look_ms = milliseconds(self.settings.look_every)
        return Pace(
            leading_ms=milliseconds(self.settings.lead_every),
            alert_ms=min(ALERT_EVERY_MS, look_ms),
            alone_ms=int(look_ms * self._jitter),
            ear_ms=int(look_ms * EAR_LOOKS),
            standby_ms=int(milliseconds(self.settings.leader_lock) * STANDBY_LOCKS * self._jitter),
        )


@dataclass(frozen=True, slots=True)
class Words:
    """Leaves word for other members. One that cannot be left costs time: they look by themselves, later."""

    table: LeaseTable
    steps: Steps

    async def leave(self, workers: AbstractSet[WorkerId], leases: Sequence[Lease]) -> None:
        """Tell these workers to look, in leases that they hold."""
        await asyncio.gather(*(self._leave_in(lease) for lease in leases_for_word(leases, workers)))

    async def _leave_in(self, lease: Lease) -> None:
        try:
            await self.table.leave_word(lease, f"{self.steps.rng.getrandbits(64):016x}")
        except LeaseholdError as error:
            self.steps.observe(StepFailed(f"leave word in {lease.key}", str(error)))
