"""Makes owners hand over leases, so that other workers read these shards. Nothing is repeated or skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.config.settings import Mode
from leasehold.core.coordinator.fleet_mode import resolve_mode
from leasehold.core.model import Lease, LeaseKey, WorkerId
from leasehold.core.steering.release_plan import NextOwners, ReleaseRequest, leases_to_release, next_owners
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock
from leasehold.steering.lease_capture import CaptureResult, Held, LeaseCapture


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """The leases to release, and the choice of their next owners."""

    leases: Sequence[Lease]
    owners: NextOwners


async def plan_release(table: LeaseTable, clock: Clock, request: ReleaseRequest) -> PlannedRelease:
    """Read the fleet and find the leases. Writes nothing."""
    mode = resolve_mode(await table.coordinator_rows.find(must_know=False), Mode.AUTO, "")
    snapshot = await table.coordinator_rows.read_snapshot(mode)
    leases = snapshot.leases.leases
    chosen = leases_to_release(leases, request)
    owners = next_owners(
        leases,
        chosen,
        snapshot.reports.reports if mode.has_leader else (),
        wall_s=clock.wall_ms() // 1000,
        drained=request.worker,
    )
    return PlannedRelease(chosen, owners)


async def release_leases(
    capture: LeaseCapture, planned: PlannedRelease, *, timeout_ms: int
) -> tuple[CaptureResult, dict[LeaseKey, WorkerId | None]]:
    """Get each lease from its owner and give it to the next one. Returns the next owner of each; None: it is free.

    A lease that its owner has lost or handed to another worker in the meantime is left there.
    """
    table = capture.ports.table
    given: dict[LeaseKey, WorkerId | None] = {}
    owners = {lease.key: lease.actual_owner for lease in planned.leases}

    def is_wanted(lease: Lease) -> bool:
        if lease.actual_owner == owners[lease.key] or lease.actual_owner in capture.names:
            return True
        given[lease.key] = lease.actual_owner
        return False

    async def give(held: Held) -> bool:
        ((key, lease),) = held.items()
        to = planned.owners.choose(key)
        outcome = await (table.release(lease) if to is None else table.release_to(lease, to))
        if isinstance(outcome, Lease):
            given[key] = outcome.owner
        return isinstance(outcome, Lease)

    capture.is_wanted = is_wanted
    result = await capture.run([(lease.key,) for lease in planned.leases], give, timeout_ms=timeout_ms)
    return result, given
