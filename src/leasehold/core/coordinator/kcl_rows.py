"""The rows of the KCL that concern a whole fleet: their keys, their kinds, and the tables in which they may lie.

Since KCL 3.5 they lie in the lease table, told apart by `entityType`. KCL 3.0 to 3.4 keep them in two tables of their
own, whose key attributes have other names.
"""

from __future__ import annotations

from typing import Final

from leasehold.core.leases.row_writes import Row

MIGRATION_KEY: Final = "Migration3.0"
TABLE_MIGRATION_KEY: Final = "TableMigration3.5"
LEADER_KEY: Final = "Leader"

# What `Migration3.0` says in its attribute `cv`.
VERSION: Final = "cv"
UPGRADING: Final = "CLIENT_VERSION_UPGRADE_FROM_2X"
HAS_LEADER: Final = "CLIENT_VERSION_3X"
HAS_LEADER_WITH_ROLLBACK: Final = "CLIENT_VERSION_3X_WITH_ROLLBACK"

COORDINATOR_TABLE_SUFFIX: Final = "-CoordinatorState"
COORDINATOR_KEY_ATTRIBUTE: Final = "key"
METRICS_TABLE_SUFFIX: Final = "-WorkerMetricStats"
METRICS_KEY_ATTRIBUTE: Final = "wid"

LEADER_ENTITY: Final = "LEADER"
METRICS_ENTITY: Final = "WORKER_METRIC_STATS"


def client_version(migration: Row | None) -> str | None:
    """What the migration row says the fleet runs; None if there is no such row."""
    if migration is None:
        return None
    return str(migration.get(VERSION, {}).get("S", ""))
