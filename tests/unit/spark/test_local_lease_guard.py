"""SQLite leases and Spark's master, as a task finds out."""

import pytest

from leasehold.config.connection import ConnectionSettings
from leasehold.errors import ConfigError
from leasehold.spark.query.local_lease_guard import current_jvm, require_shared_lease_table

SQLITE = ConnectionSettings(leases="sqlite:///leases.sqlite")


def test_a_task_in_the_jvm_of_the_driver_may_use_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a local master both are told the same folders of blocks."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-1")
    require_shared_lease_table(SQLITE, driver_jvm=current_jvm())


def test_a_task_in_another_jvm_refuses_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the file and both ways out."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/executor-7/blockmgr-2")
    with pytest.raises(ConfigError, match=r"sqlite:///leases\.sqlite.*'dynamodb'.*local\[\*\]"):
        require_shared_lease_table(SQLITE, driver_jvm="/tmp/blockmgr-1")


def test_dynamodb_serves_tasks_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked where leases can be reached from every machine."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/executor-7/blockmgr-2")
    require_shared_lease_table(ConnectionSettings(), driver_jvm="/tmp/blockmgr-1")
