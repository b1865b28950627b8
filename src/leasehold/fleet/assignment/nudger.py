"""Nudges other members: writes a random value to leases that they hold, so that they refresh soon."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from leasehold.core.assignment.refresh_schedule import leases_to_nudge
from leasehold.core.model import Lease, WorkerId
from leasehold.errors import LeaseholdError
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.tasks import all_of


@dataclass(frozen=True, slots=True)
class Nudger:
    """Nudges members. A failed nudge costs only time: the member refreshes later on its own."""

    table: LeaseTable
    operations: Operations

    async def nudge(self, workers: AbstractSet[WorkerId], leases: Sequence[Lease]) -> None:
        """Nudge these workers through leases that they hold, found among `leases`."""
        await all_of(*(self._nudge_owner_of(lease) for lease in leases_to_nudge(leases, workers)))

    async def _nudge_owner_of(self, lease: Lease) -> None:
        try:
            await self.table.nudge(lease, f"{self.operations.rng.getrandbits(64):016x}")
        except LeaseholdError as error:
            self.operations.report_failure(f"nudge the owner of {lease.key}", error)
