"""A member's part in an upgrade from KCL 2.x: it gives the fleet a leader, if it is the one who has to decide it.

What has to be so, and for how long, is `core.upgrade`'s. The change-over itself is the member's own business, here as
on every other member, once the row says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.core.coordinator import upgrade
from leasehold.core.coordinator.fleet_mode import FleetMode
from leasehold.core.coordinator.kcl_rows import MIGRATION_KEY
from leasehold.core.events import FleetUpgraded, OperationFailed
from leasehold.core.model import WorkerId
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.coordinator_rows import CoordinatorRows, FleetSnapshot

STEP: Final = "see whether the fleet may have a leader"


@dataclass(slots=True, kw_only=True)
class UpgradeWatch:
    """Looks once a minute, while the upgrade lasts, whether it is done."""

    coordinator_rows: CoordinatorRows
    mode: FleetMode
    worker: WorkerId
    operations: Operations
    _ready_since_ms: int | None = None

    async def run(self) -> None:
        """Until cancelled, by the change-over if by nothing else."""
        while True:
            await self.operations.clock.sleep_ms(upgrade.CHECK_EVERY_MS)
            await self.operations.attempt(STEP, self._check)

    async def _check(self) -> None:
        seen = await self.coordinator_rows.read_snapshot(self.mode)
        ready = await self._is_ready(seen)
        now_ms = self.operations.clock.now_ms()
        self._ready_since_ms = upgrade.next_ready_since(self._ready_since_ms, now_ms, ready=ready)
        if upgrade.may_enable_leader(self._ready_since_ms, now_ms):
            await self._change_over()

    async def _is_ready(self, seen: FleetSnapshot) -> bool:
        """Whether we are the one to ask, and the fleet is ready."""
        leases = seen.leases.leases
        owners = (lease.owner for lease in leases if lease.owner is not None)
        if seen.leases.rejected or upgrade.upgrade_decider(owners) != self.worker:
            return False
        wall_s = self.operations.clock.wall_ms() // 1000
        has_index = await self.coordinator_rows.has_index()
        return upgrade.is_ready_for_leader(leases, seen.reports.reports, wall_s, has_index=has_index)

    async def _change_over(self) -> None:
        # Written or refused: until we change over, there is nothing more to decide.
        self._ready_since_ms = None
        found = await self.coordinator_rows.migration()
        if found is not None:
            place, row = found
            write = upgrade.enable_leader(row, self.worker, self.operations.clock.wall_ms())
            if await self.coordinator_rows.write_migration(place, write):
                self.operations.observe(FleetUpgraded(self.worker))
                return
        problem = (
            f"the fleet is ready for a leader, but another has changed or removed the row {MIGRATION_KEY}"
        )
        self.operations.observe(OperationFailed(STEP, problem))
