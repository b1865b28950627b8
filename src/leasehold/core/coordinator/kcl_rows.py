"""Names of the KCL's rows for a whole fleet: keys, entity types, and table names.

Since KCL 3.5 these rows are in the lease table, with an `entityType`. KCL 3.0 to 3.4 keep them in two separate tables,
whose key attributes have other names.
"""

from __future__ import annotations

from typing import Final

from leasehold.core.leases.row_writes import Row

MIGRATION_KEY: Final = "Migration3.0"
TABLE_MIGRATION_KEY: Final = "TableMigration3.5"
LEADER_KEY: Final = "Leader"

# The attribute `cv` of the row `Migration3.0`, and its values.
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
    """The KCL version of the fleet according to the migration row; None without such a row."""
    if migration is None:
        return None
    return str(migration.get(VERSION, {}).get("S", ""))
