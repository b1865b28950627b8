"""Reads the tables of a fleet that has a leader, and remembers what the last reads have shown.

In a small fleet every refresh is one scan of leases, reports and the lock. In a large one only the leader scans; the
other members read their own leases through the index of owners, and the lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from leasehold.core.coordinator.fleet_mode import FleetMode, TableLayout
from leasehold.core.coordinator.kcl_rows import client_version
from leasehold.core.coordinator.leader_lock import LeaderLock
from leasehold.core.leases.liveness import Observations, next_observations
from leasehold.core.model import Lease, LeaseKey
from leasehold.fleet.assignment.strategy import AssignmentContext
from leasehold.fleet.table.coordinator_rows import FleetSnapshot

SMALL_TABLE_ROWS: Final = (
    200  # a scan of so many rows is one page and costs no more than a query of the index
)
SIZE_KNOWN_FOR_MS: Final = 600_000
MODE_KNOWN_FOR_MS: Final = 75_000  # scans of a small table are at most forty seconds apart


class FleetReader:
    """One member's view of its fleet: the leases, since when each is unchanged, the size of the table, the mode."""

    def __init__(self, context: AssignmentContext, mode: FleetMode) -> None:
        self._context = context
        self._mode = mode
        self._rows = 0
        self._client_version: str | None = None
        self.scanned_ms: int | None = None
        self.leases: Sequence[Lease] = ()
        self.observations: Observations = {}

    @property
    def mode(self) -> FleetMode:
        """The mode of the fleet when it was last resolved."""
        return self._mode

    @property
    def is_small_table(self) -> bool:
        """Whether a scan costs no more than a query of the index."""
        return self._rows <= SMALL_TABLE_ROWS

    @property
    def needs_scan(self) -> bool:
        """Whether a member that does not lead should scan: a scan is cheap, or the size of the table is not known."""
        return self.is_small_table or not self._is_scanned_within(SIZE_KNOWN_FOR_MS)

    def is_mode_current(self) -> bool:
        """Whether a recent scan has shown that the mode is unchanged. Only a scan of a single table shows it."""
        is_one_table = self._mode.lock_layout is self._mode.reports_layout is TableLayout.SINGLE_TABLE
        is_same = self._client_version == self._mode.version
        return is_one_table and is_same and self._is_scanned_within(MODE_KNOWN_FOR_MS)

    def confirm_mode(self, mode: FleetMode) -> None:
        """Compare the next scans with this mode."""
        self._mode = mode

    async def scan(self) -> FleetSnapshot:
        """Read everything: leases, reports and the lock. Report rows that cannot be parsed."""
        snapshot = await self._context.table.coordinator_rows.read_snapshot(self._mode)
        now_ms = self._now_ms()
        leases = snapshot.leases.leases
        self._rows, self.scanned_ms, self.leases = snapshot.rows, now_ms, leases
        self._client_version = client_version(snapshot.migration)
        self.observations = next_observations(self.observations, leases, now_ms)
        observe = self._context.operations.observe
        self._context.table.rejected_rows.report(snapshot.leases, observe)
        self._context.table.rejected_rows.report_worker_reports(snapshot.reports.rejected, observe)
        return snapshot

    async def scan_once_more(self) -> FleetSnapshot:
        """Read everything for a stop: leases that are missing from this scan are not forgotten."""
        snapshot = await self._context.table.coordinator_rows.read_snapshot(self._mode)
        observed = next_observations(self.observations, snapshot.leases.leases, self._now_ms())
        self.observations = {**self.observations, **observed}
        return snapshot

    async def read_lock(self) -> LeaderLock | None:
        """Read the leader lock alone."""
        return await self._context.table.coordinator_rows.read_lock(self._mode.lock_layout)

    async def list_assigned(self, known: Collection[LeaseKey]) -> Sequence[Lease]:
        """Read the leases that are assigned to us, without the `known` ones, through the index of owners."""
        listing = await self._context.table.list_owned_by(self._context.worker, known=known)
        return listing.leases

    def observe_only(self, leases: Sequence[Lease]) -> None:
        """Remember these leases and forget all others: we cannot begin a lease that is not assigned to us."""
        self.observations = next_observations(self.observations, leases, self._now_ms())

    def _is_scanned_within(self, time_ms: int) -> bool:
        return self.scanned_ms is not None and self._now_ms() - self.scanned_ms <= time_ms

    def _now_ms(self) -> int:
        return self._context.operations.clock.now_ms()
