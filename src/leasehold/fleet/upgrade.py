"""A member's part in an upgrade from KCL 2.x: it gives the fleet a leader, if it is the one who has to decide it.

What has to be so, and for how long, is `core.upgrade`'s. The change-over itself is the member's own business, here as
on every other member, once the row says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.core import upgrade
from leasehold.core.coordinator import MIGRATION_KEY
from leasehold.core.events import FleetUpgraded, StepFailed
from leasehold.core.fleet_mode import FleetMode
from leasehold.core.model import WorkerId
from leasehold.fleet.common_rows import CommonRows, FleetLook
from leasehold.fleet.steps import Steps

STEP: Final = "see whether the fleet may have a leader"


@dataclass(slots=True, kw_only=True)
class UpgradeWatch:
    """Looks once a minute, while the upgrade lasts, whether it is done."""

    common: CommonRows
    mode: FleetMode
    worker: WorkerId
    steps: Steps
    _ready_since_ms: int | None = None

    async def run(self) -> None:
        """Until cancelled, by the change-over if by nothing else."""
        while True:
            await self.steps.clock.sleep_ms(upgrade.CHECK_EVERY_MS)
            await self.steps.take(STEP, self._check)

    async def _check(self) -> None:
        seen = await self.common.look(self.mode)
        ready = await self._is_ready(seen)
        now_ms = self.steps.clock.now_ms()
        self._ready_since_ms = upgrade.next_ready_since(self._ready_since_ms, now_ms, ready=ready)
        if upgrade.may_change_over(self._ready_since_ms, now_ms):
            await self._change_over()

    async def _is_ready(self, seen: FleetLook) -> bool:
        """Whether we are the one to ask, and the fleet is ready."""
        leases = seen.leases.leases
        owners = (lease.owner for lease in leases if lease.owner is not None)
        if seen.leases.rejected or upgrade.decider_of(owners) != self.worker:
            return False
        wall_s = self.steps.clock.wall_ms() // 1000
        has_index = await self.common.has_index()
        return upgrade.is_ready(leases, seen.reports.reports, wall_s, has_index=has_index)

    async def _change_over(self) -> None:
        # Written or refused: until we change over, there is nothing more to decide.
        self._ready_since_ms = None
        found = await self.common.migration()
        if found is not None:
            place, row = found
            write = upgrade.change_over(row, self.worker, self.steps.clock.wall_ms())
            if await self.common.write_migration(place, write):
                self.steps.observe(FleetUpgraded(self.worker))
                return
        problem = (
            f"the fleet is ready for a leader, but another has changed or removed the row {MIGRATION_KEY}"
        )
        self.steps.observe(StepFailed(STEP, problem))
