"""Finds the rows that show how the members of a fleet take part in it, before this member joins.

If owners run another KCL and no row shows a leader, this waits for the failover time: an owner that renews its leases
meanwhile is alive, so its leader, if it has one, keeps its rows in tables that this member does not know.
"""

from __future__ import annotations

from dataclasses import replace

from leasehold.config.settings import FleetSettings, Mode, milliseconds
from leasehold.core.coordinator.fleet_mode import (
    FleetMode,
    FleetRows,
    TableLayout,
    may_hide_leader,
    renewing_owners,
)
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.ports import Clock


async def find_fleet(
    rows: CoordinatorRows, before: FleetMode, settings: FleetSettings, clock: Clock
) -> FleetRows:
    """Read the rows of the fleet. `before` is the mode in which this member takes part until now."""
    must_know = settings.mode is Mode.AUTO or before.lock_layout is TableLayout.SEPARATE_TABLES
    find = rows.find_changes if before.has_leader else rows.find
    found = await find(must_know=must_know)
    if before.has_leader:
        # A fleet that had a leader a moment ago still has one, although the lock may be free just now.
        return replace(found, has_lock=True)
    if not may_hide_leader(found, settings.mode) or not await rows.has_index():
        return found
    first, until_ms = found, clock.now_ms() + milliseconds(settings.failover_after)
    while may_hide_leader(found, settings.mode) and clock.now_ms() < until_ms:
        await clock.sleep_ms(milliseconds(settings.refresh_every))
        found = await rows.find(must_know=must_know)
        if (owners := renewing_owners(first, found)) and may_hide_leader(found, settings.mode):
            return replace(found, hidden_owners=owners)
    return found
