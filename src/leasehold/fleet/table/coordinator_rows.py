"""Reads and writes the rows of the whole fleet: the leader lock, the workers' reports, the state of migrations.

They are stored in the lease table (KCL 3.5 and later), or in two separate tables (KCL 3.0 to 3.4). Separate tables are
used only if they exist: creating them for a fleet that has none would split the fleet in two.
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
from leasehold.core.leases.lease_row import COUNTER, KEY, OWNER, SESSION, LeaseListing, leases_from_rows
from leasehold.core.leases.row_writes import Row, RowWrite
from leasehold.core.model import WorkerId
from leasehold.errors import NotFoundError, ServiceError, ThrottledError, UnavailableError
from leasehold.fleet.table.write_and_confirm import write_and_confirm
from leasehold.ports import Applied, Refused, RowStore


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The leases, the workers' reports and the leader lock, read at one time.

    `rows` is the number of rows in the lease table. `migration` is the row `Migration3.0`, if the lease table has it.
    """

    leases: LeaseListing
    reports: ReportListing
    lock: LeaderLock | None
    rows: int
    migration: Row | None = None


class CoordinatorRows:
    """The rows of one fleet, in whichever table they are stored."""

    def __init__(
        self, leases: RowStore, *, coordinator: RowStore | None = None, metrics: RowStore | None = None
    ) -> None:
        self._leases = leases
        self._coordinator = coordinator
        self._metrics = metrics

    async def find(self, *, must_know: bool = True) -> FleetRows:
        """Read the rows from which a member resolves the mode of the fleet.

        With `must_know`, a coordinator table without read permission is an error; otherwise it counts as missing.
        """
        rows = await self._leases.scan()
        by_key = {row.get(KEY, {}).get("S"): row for row in rows}
        keys = (MIGRATION_KEY, TABLE_MIGRATION_KEY, LEADER_KEY)
        separate = {key: await self._separate_row(key, must_know) for key in keys}
        reports = any(map(is_report_row, rows))
        return FleetRows(
            migration=separate[MIGRATION_KEY][1] or by_key.get(MIGRATION_KEY),
            has_coordinator_table=separate[MIGRATION_KEY][0],
            table_migration=separate[TABLE_MIGRATION_KEY][1],
            has_lock=LEADER_KEY in by_key or separate[LEADER_KEY][1] is not None,
            has_reports=reports,
            has_reports_in_lease_table=reports,
            has_owners=any(OWNER in row for row in rows),
            foreign_counters=_foreign_counters(rows),
        )

    async def find_changes(self, *, must_know: bool = True) -> FleetRows:
        """The same for a member of a fleet that has a leader: a few single rows instead of a scan."""
        has_table, migration = await self._separate_row(MIGRATION_KEY, must_know)
        if has_table:
            # While a fleet moves to one table, the mode depends on where the reports are.
            return await self.find(must_know=must_know)
        return FleetRows(migration=migration or await self._leases.get(MIGRATION_KEY), has_lock=True)

    async def read_snapshot(self, mode: FleetMode) -> FleetSnapshot:
        """Read every lease and report, and the lock. A scan may miss the newest writes."""
        rows = await self._leases.scan()
        reports: Sequence[Row] = [row for row in rows if is_report_row(row)]
        listing = reports_from_rows(reports, KEY)
        if (
            mode.reports_layout is TableLayout.SEPARATE_TABLES
            or mode.lock_layout is TableLayout.SEPARATE_TABLES
        ):
            listing = _merge(
                listing, reports_from_rows(await self._separate_reports(), METRICS_KEY_ATTRIBUTE)
            )
        by_key = {row.get(KEY, {}).get("S"): row for row in rows}
        if mode.lock_layout is TableLayout.SINGLE_TABLE:
            found = by_key.get(LEADER_KEY)
            lock = None if found is None else lock_from_row(found)
        else:
            lock = await self.read_lock(mode.lock_layout)
        return FleetSnapshot(leases_from_rows(rows), listing, lock, len(rows), by_key.get(MIGRATION_KEY))

    async def read_lock(self, layout: TableLayout) -> LeaderLock | None:
        """Read the leader lock."""
        row = await self._store(layout, self._coordinator).get(LEADER_KEY)
        return None if row is None else lock_from_row(row)

    async def write_lock(self, layout: TableLayout, write: RowWrite) -> bool:
        """Acquire, renew or release the lock. Return whether the write was applied."""
        outcome = await write_and_confirm(self._store(layout, self._coordinator), write)
        return isinstance(outcome, Applied)

    async def read_migration(self) -> tuple[TableLayout, Row] | None:
        """Read the row that names the KCL version of the fleet, and where it is stored; None if there is none."""
        _, row = await self._separate_row(MIGRATION_KEY, must_know=True)
        if row is not None:
            return TableLayout.SEPARATE_TABLES, row
        row = await self._leases.get(MIGRATION_KEY)
        return None if row is None else (TableLayout.SINGLE_TABLE, row)

    async def write_migration(self, layout: TableLayout, write: RowWrite) -> bool:
        """Change the KCL version of the fleet. Return whether the write was applied."""
        outcome = await write_and_confirm(self._store(layout, self._coordinator), write)
        return isinstance(outcome, Applied)

    async def has_index(self) -> bool:
        """Whether the index of owners exists, so that leases can be found by their owner without a scan."""
        return await self._leases.keys_owned_by(LEADER_KEY) is not None

    async def write_report(self, layout: TableLayout, report: WorkerReport) -> None:
        """Write the report of a worker."""
        store, key_attribute = self._reports_at(layout)
        outcome = await write_and_confirm(store, update_report(report, key_attribute))
        if isinstance(outcome, Refused):
            await write_and_confirm(store, create_report(report, key_attribute))

    async def has_report(self, layout: TableLayout, worker: WorkerId) -> bool:
        """Whether a worker has a report. Sees every write that came before."""
        store, _ = self._reports_at(layout)
        return await store.get(worker) is not None

    async def withdraw_report(self, layout: TableLayout, report: WorkerReport) -> None:
        """Delete a report, unless a newer one was written."""
        store, _ = self._reports_at(layout)
        await write_and_confirm(store, delete_report(report))

    async def close(self) -> None:
        """Close the stores of the separate tables. The `LeaseTable` closes its own store."""
        for store in (self._coordinator, self._metrics):
            if store is not None:
                await store.close()

    def _store(self, layout: TableLayout, separate: RowStore | None) -> RowStore:
        if layout is TableLayout.SINGLE_TABLE:
            return self._leases
        assert separate is not None, "the layout says that there is a separate table"
        return separate

    def _reports_at(self, layout: TableLayout) -> tuple[RowStore, str]:
        key_attribute = KEY if layout is TableLayout.SINGLE_TABLE else METRICS_KEY_ATTRIBUTE
        return self._store(layout, self._metrics), key_attribute

    async def _separate_row(self, key: str, must_know: bool) -> tuple[bool, Row | None]:
        """Whether the separate coordinator table exists, and one of its rows."""
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
            # If an existing table counted as missing, a fleet of KCL 3.0 to 3.4 would be split in two.
            raise ServiceError(
                f"{error}; a member must know whether its fleet keeps the leader lock in that table before it joins: "
                "allow dynamodb:GetItem on it or, if there is no such table, set mode='leader' or 'peer'"
            ) from error

    async def _separate_reports(self) -> Sequence[Row]:
        if self._metrics is None:
            return ()
        try:
            return await self._metrics.scan()
        except NotFoundError as error:
            raise NotFoundError(
                f"{error}; the fleet has a coordinator table, so its worker reports are in a table too: if that table "
                "has another name (workerMetricsTableConfig), set worker_metrics_table (Spark: workerMetricsTable)"
            ) from error


def _foreign_counters(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """The owner and the counter of each owned lease that no member of ours has begun to serve."""
    owned = [row for row in rows if OWNER in row and SESSION not in row]
    return {
        str(row.get(KEY, {}).get("S", "")): (
            str(row[OWNER].get("S", "")),
            str(row.get(COUNTER, {}).get("N", "")),
        )
        for row in owned
    }


def _merge(first: ReportListing, second: ReportListing) -> ReportListing:
    """Merge two listings. Of two reports of the same worker, the newer one counts."""
    newest: dict[str, WorkerReport] = {}
    for report in first.reports + second.reports:
        known = newest.get(report.worker)
        if known is None or known.updated_s < report.updated_s:
            newest[report.worker] = report
    return ReportListing(tuple(newest.values()), first.rejected + second.rejected)


def lock_key_attribute(layout: TableLayout) -> str:
    """The name of the key attribute in the table that holds the lock."""
    return KEY if layout is TableLayout.SINGLE_TABLE else COORDINATOR_KEY_ATTRIBUTE
