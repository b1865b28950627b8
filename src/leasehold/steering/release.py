"""Makes owners hand over leases, so that other workers read these shards. Nothing is repeated or skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from leasehold.config.settings import Mode
from leasehold.core.coordinator.fleet_mode import FleetMode, resolve_mode
from leasehold.core.model import Lease, LeaseKey, WorkerId
from leasehold.core.steering.release_plan import (
    FleetRead,
    NextOwners,
    ReleaseRequest,
    is_still_to_release,
    leases_to_release,
    next_owners,
)
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock
from leasehold.steering.lease_capture import CaptureResult, Held, LeaseCapture

HEARTBEATS_PER_FAILOVER: Final = 2
MARGIN_MS: Final = 1_000  # for a heartbeat that is late, and a read that is not consistent


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """The leases to release, and the fleet at that time, with which the next owners are chosen."""

    leases: Sequence[Lease]
    mode: FleetMode
    read: FleetRead
    at_ms: int
    drained: WorkerId | None = None


async def plan_release(table: LeaseTable, clock: Clock, request: ReleaseRequest) -> PlannedRelease:
    """Read the fleet and find the leases. Writes nothing."""
    mode = resolve_mode(await table.coordinator_rows.find(must_know=False), Mode.AUTO, "")
    read = await _read(table, mode)
    return PlannedRelease(
        leases_to_release(read.leases, request), mode, read, clock.now_ms(), drained=request.worker
    )


async def release_leases(
    capture: LeaseCapture, planned: PlannedRelease, *, timeout_ms: int
) -> tuple[CaptureResult, dict[LeaseKey, WorkerId | None]]:
    """Get each lease from its owner and give it to the next one. Returns the next owner of each; None: it is free.

    A lease that its owner has lost or handed to another worker in the meantime is left there.
    """
    table = capture.ports.table
    given: dict[LeaseKey, WorkerId | None] = {}
    owners = {lease.key: lease.actual_owner for lease in planned.leases}
    chosen = await _choose_owners(capture, planned)

    def is_wanted(lease: Lease) -> bool:
        if is_still_to_release(lease, owners[lease.key], capture.names):
            return True
        given[lease.key] = lease.actual_owner
        return False

    async def give(held: Held) -> bool:
        ((key, lease),) = held.items()
        to = chosen.choose(key)
        outcome = await (table.release(lease) if to is None else table.release_to(lease, to))
        if isinstance(outcome, Lease):
            given[key] = outcome.owner
        return isinstance(outcome, Lease)

    capture.is_wanted = is_wanted
    result = await capture.run([(lease.key,) for lease in planned.leases], give, timeout_ms=timeout_ms)
    return result, given


async def _choose_owners(capture: LeaseCapture, planned: PlannedRelease) -> NextOwners:
    """Read the fleet again after a heartbeat of each worker, so that a lease is given to none that has ended.

    No lease is held meanwhile. Without a leader the leases are freed, and nobody is chosen.
    """
    if not planned.mode.has_leader or not planned.leases:
        return NextOwners(living=())
    clock = capture.ports.clock
    watch_ms = capture.limits.failover_ms // HEARTBEATS_PER_FAILOVER + MARGIN_MS
    await clock.sleep_ms(max(0, planned.at_ms + watch_ms - clock.now_ms()))
    return next_owners(
        planned.leases,
        planned.read,
        await _read(capture.ports.table, planned.mode),
        wall_s=clock.wall_ms() // 1000,
        drained=planned.drained,
    )


async def _read(table: LeaseTable, mode: FleetMode) -> FleetRead:
    snapshot = await table.coordinator_rows.read_snapshot(mode)
    return FleetRead(snapshot.leases.leases, snapshot.reports.reports)
