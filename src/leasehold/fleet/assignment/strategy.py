"""The seam between a member and the way its fleet assigns leases: as peers, or by a leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from leasehold.config.settings import FleetSettings
from leasehold.core.coordinator.fleet_mode import FleetMode
from leasehold.core.model import LeaseKey, WorkerId
from leasehold.fleet.finding_watch import FindingWatch
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentContext:
    """What every strategy uses."""

    table: LeaseTable
    streams: Streams
    held_leases: HeldLeases
    worker: WorkerId
    settings: FleetSettings
    operations: Operations
    watch: FindingWatch | None = None


class AssignmentStrategy(Protocol):
    """Finds out which leases are ours. The member calls `refresh` again and again; each one begins new leases."""

    @property
    def maintainers(self) -> int:
        """How many members share lease maintenance (audit, clean-up); 0: other members do it."""
        ...

    async def refresh(self) -> None:
        """Read the leases, and begin those that are ours now."""
        ...

    def next_refresh_ms(self) -> int:
        """When the next refresh is due, as far as is known now."""
        ...

    def is_mode_current(self) -> bool:
        """Whether recent refreshes have shown that the mode of the fleet is unchanged."""
        ...

    def confirm_mode(self, mode: FleetMode) -> None:
        """The mode of the fleet was resolved again, and is unchanged."""
        ...

    async def next_owners(self) -> Mapping[LeaseKey, WorkerId]:
        """For a stop: which member should get each of our leases, as far as we can tell. May nudge these members."""
        ...

    async def nudge_next_owner(self, worker: WorkerId) -> None:
        """One of our leases was released to this worker: make it refresh."""
        ...

    async def run(self) -> None:
        """What runs besides the refreshes, until cancelled."""
        ...

    async def release_remaining(self) -> None:
        """For a stop, after the last held lease was released: release leases that were assigned to us meanwhile."""
        ...

    async def leave(self) -> None:
        """Give up the tasks for the whole fleet: before the leases are released, or when the fleet changes its mode."""
        ...
