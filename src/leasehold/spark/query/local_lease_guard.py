"""Leases in a SQLite file serve one machine: a task that runs anywhere but in the driver's own JVM refuses them.

A reader cannot see Spark's master. But every Python process is told where the JVM that started it keeps its blocks, and
the names of those folders are made up anew by every JVM. With a local master the driver's reader and its tasks are told
the same; with any other, they are not.
"""

from __future__ import annotations

import os

from leasehold.config.connection import SQLITE, ConnectionSettings
from leasehold.errors import ConfigError

_BLOCK_FOLDERS = "SPARK_LOCAL_DIRS"


def current_jvm() -> str:
    """What tells the JVM that started this process from all others; empty where Spark did not start it."""
    return os.environ.get(_BLOCK_FOLDERS, "")


def require_shared_lease_table(connection: ConnectionSettings, driver_jvm: str) -> None:
    """Refuse SQLite leases in a task whose JVM is not the driver's."""
    if connection.leases.startswith(SQLITE) and current_jvm() != driver_jvm:
        raise ConfigError(
            f"leases={connection.leases!r} is a file, which serves one machine, and this query runs on a cluster: its "
            "tasks would each find a file of their own, or none. Keep the leases in DynamoDB: .option('leases', "
            "'dynamodb'); or run the query with .master('local[*]')"
        )
