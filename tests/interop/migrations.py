"""The KCL's two migrations, seen from the side, and what an operator does in their course."""

import time
from dataclasses import dataclass

from leasehold.core.coordinator.kcl_rows import MIGRATION_KEY, TABLE_MIGRATION_KEY
from tests.interop.fleet_tables import FleetTables

INDEX = "LeaseOwnerToLeaseKeyIndex"


@dataclass(frozen=True)
class Migrations:
    """Of one application."""

    table: FleetTables

    def version(self) -> str:
        """What the fleet runs by: `UPGRADE_FROM_2X`, `3X_WITH_ROLLBACK`, ..."""
        return self._said(MIGRATION_KEY, "cv").removeprefix("CLIENT_VERSION_")

    def changed_by(self) -> str:
        """Who said so."""
        return self._said(MIGRATION_KEY, "mb")

    def phase(self) -> str:
        """How far the move from three tables to one has come: `INIT`, `DEPLOYED`, `PENDING`, `COMPLETE`."""
        return self._said(TABLE_MIGRATION_KEY, "tm").removeprefix("TABLE_MIGRATION_STATUS_")

    def roll_back(self) -> None:
        """What the KCL's migration tool does: say that the fleet runs as 2.x, and remove the index that 2.x has not."""
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

    def _said(self, key: str, name: str) -> str:
        for row in (*self.table.rows("-CoordinatorState"), *self.table.rows()):
            if key in (row.get("key", {}).get("S"), row.get("leaseKey", {}).get("S")):
                return str(row[name]["S"])
        return ""
