"""The refusal of SQLite leases on a cluster."""

import pytest

from leasehold.config.connection import ConnectionSettings
from leasehold.errors import ConfigError
from leasehold.spark.query.local_lease_guard import current_jvm, require_shared_lease_table

SQLITE = ConnectionSettings(leases="sqlite:///leases.sqlite")


def test_a_task_in_the_jvm_of_the_driver_may_use_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a local master, driver and task have the same block folders."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-1")
    require_shared_lease_table(SQLITE, driver_jvm=current_jvm())


def test_a_task_in_another_jvm_refuses_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file and both remedies."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/executor-7/blockmgr-2")
    with pytest.raises(ConfigError, match=r"sqlite:///leases\.sqlite.*'dynamodb'.*local\[\*\]"):
        require_shared_lease_table(SQLITE, driver_jvm="/tmp/blockmgr-1")


def test_tasks_in_any_jvm_may_use_dynamodb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine can reach DynamoDB."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/executor-7/blockmgr-2")
    require_shared_lease_table(ConnectionSettings(), driver_jvm="/tmp/blockmgr-1")
