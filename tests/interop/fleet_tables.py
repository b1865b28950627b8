"""Reads the tables of a fleet: the leader, the owners, and the reports."""

from dataclasses import dataclass
from typing import Any

from leasehold.core.coordinator.kcl_rows import LEADER_KEY
from leasehold.core.coordinator.leader_lock import lock_from_row
from leasehold.core.leases.lease_row import leases_from_rows
from leasehold.core.model import Lease


@dataclass(frozen=True)
class FleetTables:
    """The tables of one application in DynamoDB."""

    dynamodb: Any
    application: str

    def tables(self) -> set[str]:
        """The tables of the application, by the suffix after its name."""
        names: list[str] = self.dynamodb.list_tables()["TableNames"]
        return {name.removeprefix(self.application) for name in names if name.startswith(self.application)}

    def leader(self) -> str | None:
        """The owner of the leader lock, in whichever table it is."""
        for row in (*self.rows("-CoordinatorState"), *self.rows()):
            if LEADER_KEY in (row.get("key", {}).get("S"), row.get("leaseKey", {}).get("S")):
                return lock_from_row(row).owner
        return None

    def leases(self) -> list[Lease]:
        """Every lease. Fails if a row cannot be read."""
        listing = leases_from_rows(self.rows())
        assert not listing.rejected, listing.rejected
        return list(listing.leases)

    def owned_by(self, worker: str) -> set[str]:
        """The leases that a member reads: its own, and those that it has not handed over yet."""
        return {str(each.key) for each in self.unfinished_leases() if each.actual_owner == worker}

    def unfinished_leases(self) -> list[Lease]:
        """The leases of shards that have not ended."""
        return [lease for lease in self.leases() if not lease.checkpoint.is_shard_end]

    def entity_types(self) -> set[str]:
        """Which kinds of rows the lease table has."""
        return {row.get("entityType", {}).get("S", "LEASE") for row in self.rows()}

    def has_report_of(self, worker: str) -> bool:
        """Whether a member has reported its load, in any table."""
        return worker in self.workers_with_reports()

    def workers_with_reports(self) -> set[str]:
        """The members that have reported their load, in any table."""
        rows = (*self.rows("-WorkerMetricStats"), *self.rows())
        names = (row.get("wid") or row.get("leaseKey") or {} for row in rows if "lut" in row)
        return {name["S"] for name in names if "S" in name}

    def rows(self, suffix: str = "") -> list[dict[str, Any]]:
        """Every row of one of the tables; none if there is no such table."""
        if suffix not in self.tables():
            return []
        rows: list[dict[str, Any]] = self.dynamodb.scan(
            TableName=self.application + suffix, ConsistentRead=True
        )["Items"]
        return rows
