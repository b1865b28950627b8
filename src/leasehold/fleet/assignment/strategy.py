"""The seam between a member and the way in which its fleet shares out leases: as peers, or by a leader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from leasehold.core.coordinator.fleet_mode import FleetMode
from leasehold.core.model import LeaseKey, WorkerId


class AssignmentStrategy(Protocol):
    """A way of sharing out leases. The member calls `look` again and again; what is ours by then is served."""

    @property
    def maintainers(self) -> int:
        """Among how many members the tending of leases (audit, cleaning up) is shared; 0: others do it."""
        ...

    async def look(self) -> None:
        """See what is ours, and begin to serve it."""
        ...

    def next_refresh_ms(self) -> int:
        """When the next look is worthwhile, as far as is known now."""
        ...

    def is_mode_current(self) -> bool:
        """Whether looks of late have shown that the fleet did not change over."""
        ...

    def confirm_mode(self, mode: FleetMode) -> None:
        """The fleet's mode was concluded anew, and is what it was."""
        ...

    async def next_owners(self) -> Mapping[LeaseKey, WorkerId]:
        """Who should have the leases that we hold, as far as we can tell; for the moment in which we leave."""
        ...

    async def nudge_next_owner(self, worker: WorkerId) -> None:
        """A lease that we held goes to this worker now."""
        ...

    async def run(self) -> None:
        """What goes on beside the looks, until cancelled."""
        ...

    async def release_remaining(self) -> None:
        """At a stop, after the last lease that we served was given back: free what came to us meanwhile."""
        ...

    async def leave(self) -> None:
        """Take back what concerns the whole fleet: before the leases are given back, or when the fleet changes over."""
        ...
