"""Refuses leases in a SQLite file on a cluster: a file serves one machine.

A task cannot see Spark's master. But each Python process gets an environment variable with the block folders of the JVM
that started it, and each JVM creates folders with new names. With a local master, the driver's reader and the tasks
have the same folders; with any other master they differ.
"""

from __future__ import annotations

import os

from leasehold.config.connection import ConnectionSettings
from leasehold.errors import ConfigError

_BLOCK_FOLDERS = "SPARK_LOCAL_DIRS"


def current_jvm() -> str:
    """An identifier of the JVM that started this process. Empty if Spark did not start the process."""
    return os.environ.get(_BLOCK_FOLDERS, "")


def require_shared_lease_table(connection: ConnectionSettings, driver_jvm: str) -> None:
    """Raise ConfigError if the leases are in SQLite and this task does not run in the driver's JVM."""
    if connection.lease_file is not None and current_jvm() != driver_jvm:
        raise ConfigError(
            f"leases={connection.leases!r} is a file on one machine, but this query runs on a cluster: each task would "
            "find another file, or none. Keep the leases in DynamoDB: .option('leases', "
            "'dynamodb'); or run the query with .master('local[*]')"
        )
