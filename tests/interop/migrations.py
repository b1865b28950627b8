"""Reads the state of the KCL's two migrations, and performs the operator's steps."""

import time
from dataclasses import dataclass

from leasehold.core.coordinator.kcl_rows import MIGRATION_KEY, TABLE_MIGRATION_KEY
from tests.interop.fleet_tables import FleetTables

INDEX = "LeaseOwnerToLeaseKeyIndex"


@dataclass(frozen=True)
class Migrations:
    """The migrations of one application."""

    table: FleetTables

    def version(self) -> str:
        """The client version of the fleet: `UPGRADE_FROM_2X`, `3X_WITH_ROLLBACK`, ..."""
        return self._attribute(MIGRATION_KEY, "cv").removeprefix("CLIENT_VERSION_")

    def changed_by(self) -> str:
        """The worker that last changed the version."""
        return self._attribute(MIGRATION_KEY, "mb")

    def phase(self) -> str:
        """The phase of the move from three tables to one: `INIT`, `DEPLOYED`, `PENDING`, `COMPLETE`."""
        return self._attribute(TABLE_MIGRATION_KEY, "tm").removeprefix("TABLE_MIGRATION_STATUS_")

    def roll_back(self) -> None:
        """Do what the KCL's migration tool does: set the version to 2.x, and delete the index, which 2.x does not
        have.
        """
        row = next(row for row in self.table.rows() if row.get("leaseKey", {}).get("S") == MIGRATION_KEY)
        entry = {"M": {name: row[name] for name in ("cv", "mb", "mts")}}
        self.table.dynamodb.update_item(
            TableName=self.table.application,
            Key={"leaseKey": {"S": MIGRATION_KEY}},
            UpdateExpression="SET cv = :cv, mts = :mts, mb = :mb, h = :h",
            ConditionExpression="cv = :before",
            ExpressionAttributeValues={
                ":cv": {"S": "CLIENT_VERSION_2X"},
                ":before": {"S": "CLIENT_VERSION_3X_WITH_ROLLBACK"},
                ":mts": {"N": str(time.time_ns() // 1_000_000)},
                ":mb": {"S": "KclMigrationTool-rollback"},
                ":h": {"L": [entry, *row["h"]["L"]][:10]},
            },
        )
        self.table.dynamodb.update_table(
            TableName=self.table.application,
            GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": INDEX}}],
        )

    def _attribute(self, key: str, name: str) -> str:
        for row in (*self.table.rows("-CoordinatorState"), *self.table.rows()):
            if key in (row.get("key", {}).get("S"), row.get("leaseKey", {}).get("S")):
                return str(row[name]["S"])
        return ""
