"""The rows that a whole fleet has in common: the leader lock, the workers' reports, the state of migrations.

They lie among the leases (KCL 3.5 and later), or in two tables of their own (KCL 3.0 to 3.4), which are only used where
they exist: to create them in a fleet without them would split it in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.core.coordinator.fleet_mode import FleetMode, FleetRows, TableLayout
from leasehold.core.coordinator.kcl_rows import (
    COORDINATOR_KEY_ATTRIBUTE,
    LEADER_KEY,
    METRICS_KEY_ATTRIBUTE,
    MIGRATION_KEY,
    TABLE_MIGRATION_KEY,
)
from leasehold.core.coordinator.leader_lock import LeaderLock, lock_from_row
from leasehold.core.coordinator.worker_metrics import (
    ReportListing,
    WorkerReport,
    create_report,
    delete_report,
    is_report_row,
    reports_from_rows,
    update_report,
)
from leasehold.core.leases.lease_row import KEY, OWNER, LeaseListing, leases_from_rows
from leasehold.core.leases.row_writes import Row, RowWrite, was_applied
from leasehold.errors import NotFoundError, ServiceError, ThrottledError, UnavailableError
from leasehold.fleet.table.write_and_confirm import write_and_confirm
from leasehold.ports import Applied, Refused, RowStore


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """One look at everything: leases, workers' reports, the lock. `rows` is how many rows the lease table has.

    `migration` is the row `Migration3.0` as far as the lease table has it.
    """

    leases: LeaseListing
    reports: ReportListing
    lock: LeaderLock | None
    rows: int
    migration: Row | None = None


class CoordinatorRows:
    """What the members of a fleet have in common, wherever it lies."""

    def __init__(
        self, leases: RowStore, *, coordinator: RowStore | None = None, metrics: RowStore | None = None
    ) -> None:
        self._leases = leases
        self._coordinator = coordinator
        self._metrics = metrics

    async def find(self, *, must_know: bool = True) -> FleetRows:
        """What is there, for a member that wants to join.

        With `must_know`, a coordinator's table that may not be read is an error; otherwise it counts as missing.
        """
        rows = await self._leases.scan()
        by_key = {row.get(KEY, {}).get("S"): row for row in rows}
        keys = (MIGRATION_KEY, TABLE_MIGRATION_KEY, LEADER_KEY)
        own = {key: await self._own_row(key, must_know) for key in keys}
        reports = any(map(is_report_row, rows))
        return FleetRows(
            migration=own[MIGRATION_KEY][1] or by_key.get(MIGRATION_KEY),
            has_coordinator_table=own[MIGRATION_KEY][0],
            table_migration=own[TABLE_MIGRATION_KEY][1],
            has_lock=LEADER_KEY in by_key or own[LEADER_KEY][1] is not None,
            has_reports=reports,
            has_reports_in_lease_table=reports,
            has_owners=any(OWNER in row for row in rows),
        )

    async def find_changes(self, *, must_know: bool = True) -> FleetRows:
        """The same for a member of a fleet that has a leader, without a scan: it is told by single rows."""
        has_own_table, migration = await self._own_row(MIGRATION_KEY, must_know)
        if has_own_table:
            # While a fleet moves to one table, it matters where the reports are.
            return await self.find(must_know=must_know)
        return FleetRows(migration=migration or await self._leases.get(MIGRATION_KEY), has_lock=True)

    async def read_snapshot(self, mode: FleetMode) -> FleetSnapshot:
        """Every lease and report, and the lock. May be a little behind."""
        rows = await self._leases.scan()
        reports: Sequence[Row] = [row for row in rows if is_report_row(row)]
        listing = reports_from_rows(reports, KEY)
        if (
            mode.reports_layout is TableLayout.SEPARATE_TABLES
            or mode.lock_layout is TableLayout.SEPARATE_TABLES
        ):
            listing = _together(listing, reports_from_rows(await self._own_reports(), METRICS_KEY_ATTRIBUTE))
        by_key = {row.get(KEY, {}).get("S"): row for row in rows}
        if mode.lock_layout is TableLayout.SINGLE_TABLE:
            found = by_key.get(LEADER_KEY)
            lock = None if found is None else lock_from_row(found)
        else:
            lock = await self.lock(mode.lock_layout)
        return FleetSnapshot(leases_from_rows(rows), listing, lock, len(rows), by_key.get(MIGRATION_KEY))

    async def lock(self, place: TableLayout) -> LeaderLock | None:
        """The leader lock as it is now."""
        row = await self._store(place, self._coordinator).get(LEADER_KEY)
        return None if row is None else lock_from_row(row)

    async def write_lock(self, place: TableLayout, write: RowWrite) -> bool:
        """Take, keep or release the lock. Says whether it happened."""
        outcome = await write_and_confirm(self._store(place, self._coordinator), write)
        return isinstance(outcome, Applied) or was_applied(write, outcome.row)

    async def migration(self) -> tuple[TableLayout, Row] | None:
        """The row that names the generation of the fleet, and where it lies; None if there is none."""
        _, row = await self._own_row(MIGRATION_KEY, must_know=True)
        if row is not None:
            return TableLayout.SEPARATE_TABLES, row
        row = await self._leases.get(MIGRATION_KEY)
        return None if row is None else (TableLayout.SINGLE_TABLE, row)

    async def write_migration(self, place: TableLayout, write: RowWrite) -> bool:
        """Change the generation of the fleet, if nobody else has. Says whether it happened."""
        outcome = await write_and_confirm(self._store(place, self._coordinator), write)
        return isinstance(outcome, Applied) or was_applied(write, outcome.row)

    async def has_index(self) -> bool:
        """Whether leases can be found by their owner without reading all of them."""
        return await self._leases.keys_owned_by(LEADER_KEY) is not None

    async def report(self, place: TableLayout, report: WorkerReport) -> None:
        """Tell how busy a worker is."""
        store, key_attribute = self._reports_at(place)
        outcome = await write_and_confirm(store, update_report(report, key_attribute))
        if isinstance(outcome, Refused):
            await write_and_confirm(store, create_report(report, key_attribute))

    async def withdraw_report(self, place: TableLayout, report: WorkerReport) -> None:
        """Remove a report that has not been renewed since."""
        store, _ = self._reports_at(place)
        await write_and_confirm(store, delete_report(report))

    async def close(self) -> None:
        """Give back what the stores hold open; the leases' is closed by whoever opened it."""
        for store in (self._coordinator, self._metrics):
            if store is not None:
                await store.close()

    def _store(self, place: TableLayout, own: RowStore | None) -> RowStore:
        if place is TableLayout.SINGLE_TABLE:
            return self._leases
        assert own is not None, "a table of its own was found, so there is one"
        return own

    def _reports_at(self, place: TableLayout) -> tuple[RowStore, str]:
        key_attribute = KEY if place is TableLayout.SINGLE_TABLE else METRICS_KEY_ATTRIBUTE
        return self._store(place, self._metrics), key_attribute

    async def _own_row(self, key: str, must_know: bool) -> tuple[bool, Row | None]:
        """Whether the coordinator's own table exists, and a row of it."""
        if self._coordinator is None:
            return False, None
        try:
            return True, await self._coordinator.get(key)
        except NotFoundError:
            return False, None
        except (ThrottledError, UnavailableError):
            raise
        except ServiceError as error:
            if not must_know:
                return False, None
            # To take it for missing would split a fleet of KCL 3.0 to 3.4 in two.
            raise ServiceError(
                f"{error}; whether the fleet of this application keeps its lock in that table must be known before "
                "joining it: allow dynamodb:GetItem on it, or, if there is no such table, set mode='leader' or 'peer'"
            ) from error

    async def _own_reports(self) -> Sequence[Row]:
        if self._metrics is None:
            return ()
        return await self._metrics.scan()


def _together(first: ReportListing, second: ReportListing) -> ReportListing:
    """Reports of both places, the newer of two of the same worker."""
    newest: dict[str, WorkerReport] = {}
    for report in first.reports + second.reports:
        known = newest.get(report.worker)
        if known is None or known.updated_s < report.updated_s:
            newest[report.worker] = report
    return ReportListing(tuple(newest.values()), first.rejected + second.rejected)


# The key attribute of the lock's own table, for whoever writes it.
def lock_key_attribute(place: TableLayout) -> str:
    """What the key of the lock is called in a place."""
    return KEY if place is TableLayout.SINGLE_TABLE else COORDINATOR_KEY_ATTRIBUTE
