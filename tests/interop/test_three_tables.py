"""A fleet of KCL 3.0 to 3.4, with lock and reports in separate tables, balanced by load."""

import pytest

from tests.interop.build import NEWEST, THREE_TABLES, WITHOUT_MAVEN, is_built
from tests.interop.fleet_run import FleetRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALL_TABLES = {"", "-CoordinatorState", "-WorkerMetricStats"}
BUSY, IDLE = {"load": 80}, {"load": 20}


def test_a_fleet_with_three_tables(fleet_run: FleetRun) -> None:
    """A busy Java leader hands shards to an idle Python member, which leads in the same tables after Java has
    stopped.
    """
    java = fleet_run.fleet.start_java(THREE_TABLES, **BUSY)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python(balance_by="load", **IDLE)
    fleet_run.wait_until_read_by(python, leases=2)
    assert fleet_run.table.leader() == java
    fleet_run.reshard(2)
    fleet_run.kill(java)
    fleet_run.wait_for_leader(python)
    fleet_run.wait_until_read_by(python, leases=8)
    next_owner = fleet_run.fleet.start_java(THREE_TABLES, **IDLE)
    fleet_run.wait_until_read_by(next_owner)
    assert fleet_run.table.leader() == python
    assert fleet_run.table.tables() == ALL_TABLES
    assert fleet_run.table.entity_types() == {"LEASE"}
    fleet_run.conclude()


def test_a_newer_java_in_three_tables(fleet_run: FleetRun) -> None:
    """A KCL 3.5 that joins an old fleet uses its three tables, and so does Python."""
    old = fleet_run.fleet.start_java(THREE_TABLES, **BUSY)
    fleet_run.wait_until_read_by(old, leases=8)
    python = fleet_run.fleet.start_python(**IDLE)
    fleet_run.wait_until_read_by(python)
    new = fleet_run.fleet.start_java(NEWEST, **IDLE)
    fleet_run.wait_until_read_by(new)
    fleet_run.stop(old)
    fleet_run.wait_for_leader(python, new)
    fleet_run.wait_until_read_by(python, leases=2)
    fleet_run.wait_until_read_by(new, leases=2)
    assert fleet_run.table.entity_types() == {"LEASE"}
    fleet_run.conclude()


# Part of the core tests if no other version can be built.
@pytest.mark.kcl(WITHOUT_MAVEN)
@(pytest.mark.core if not is_built(NEWEST) else pytest.mark.slow)
def test_a_fleet_with_an_early_kcl_3(fleet_run: FleetRun) -> None:
    """With the KCL in `kclpy-ext`: a busy Java leader hands shards over, stops, and joins again under a Python
    leader.
    """
    java = fleet_run.fleet.start_java(WITHOUT_MAVEN, **BUSY)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python(balance_by="load", **IDLE)
    fleet_run.wait_until_read_by(python, leases=2)
    assert fleet_run.table.leader() == java
    fleet_run.reshard(2)
    fleet_run.stop(java)
    fleet_run.wait_for_leader(python)
    fleet_run.wait_until_read_by(python, leases=8)
    next_owner = fleet_run.fleet.start_java(WITHOUT_MAVEN, **IDLE)
    fleet_run.wait_until_read_by(next_owner)
    assert fleet_run.table.tables() == ALL_TABLES
    assert fleet_run.table.entity_types() == {"LEASE"}
    fleet_run.conclude()
