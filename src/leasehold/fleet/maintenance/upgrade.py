"""A member's part in an upgrade from KCL 2.x: it enables the leader, if it is the member that has to decide.

`core.coordinator.upgrade` has the conditions. Every member, this one included, follows the new mode when it next
checks the mode of the fleet.
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

OPERATION: Final = "check the upgrade to a leader"


@dataclass(slots=True, kw_only=True)
class UpgradeWatch:
    """Checks once a minute, while the fleet is upgrading, whether it is ready for a leader."""

    coordinator_rows: CoordinatorRows
    mode: FleetMode
    worker: WorkerId
    operations: Operations
    _ready_since_ms: int | None = None

    async def run(self) -> None:
        """Check until cancelled. The member cancels it when the mode changes."""
        while True:
            await self.operations.clock.sleep_ms(upgrade.CHECK_EVERY_MS)
            await self.operations.attempt(OPERATION, self._check)

    async def _check(self) -> None:
        is_ready = await self._is_ready(await self.coordinator_rows.read_snapshot(self.mode))
        now_ms = self.operations.clock.now_ms()
        self._ready_since_ms = upgrade.next_ready_since(self._ready_since_ms, now_ms, ready=is_ready)
        if upgrade.may_enable_leader(self._ready_since_ms, now_ms):
            await self._enable_leader()

    async def _is_ready(self, snapshot: FleetSnapshot) -> bool:
        """Whether this member has to decide, and the fleet is ready."""
        leases = snapshot.leases.leases
        owners = (lease.owner for lease in leases if lease.owner is not None)
        if snapshot.leases.rejected or upgrade.upgrade_decider(owners) != self.worker:
            return False
        wall_s = self.operations.clock.wall_ms() // 1000
        has_index = await self.coordinator_rows.has_index()
        return upgrade.is_ready_for_leader(leases, snapshot.reports.reports, wall_s, has_index=has_index)

    async def _enable_leader(self) -> None:
        # Applied or refused, there is nothing more to decide until this member has checked the mode again.
        self._ready_since_ms = None
        found = await self.coordinator_rows.read_migration()
        if found is not None:
            layout, row = found
            write = upgrade.enable_leader(row, self.worker, self.operations.clock.wall_ms())
            if await self.coordinator_rows.write_migration(layout, write):
                self.operations.observe(FleetUpgraded(self.worker))
                return
        problem = f"the fleet is ready for a leader, but another process has changed or deleted the row {MIGRATION_KEY}"
        self.operations.observe(OperationFailed(OPERATION, problem))
