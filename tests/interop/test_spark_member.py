"""A Spark query as a member of a fleet with Java: it joins, leads and stops, and archives every record once."""

import pytest

from tests.interop.build import THREE_TABLES
from tests.interop.fleet_run import FleetRun
from tests.interop.mixed_fleet import BY_COUNT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

BUSY, IDLE = {"load": 80}, {"load": 20}


def test_java_python_spark_java(fleet_run: FleetRun) -> None:
    """Java is replaced by Python, Python by Spark, and Spark by Java, while shards are split and merged."""
    java = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=3)
    fleet_run.reshard(2)
    fleet_run.stop(java)
    fleet_run.wait_for_leader(python)
    fleet_run.wait_until_read_by(python, leases=8)

    spark = fleet_run.start_spark()
    fleet_run.wait_until_read_by(spark, leases=3)
    assert fleet_run.table.leader() == python
    fleet_run.reshard(2)
    fleet_run.stop(python)
    fleet_run.wait_for_leader(spark)
    fleet_run.wait_until_read_by(spark, leases=8)
    fleet_run.reshard(2)

    last = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(last, leases=2)
    assert fleet_run.table.leader() == spark
    fleet_run.reshard()
    fleet_run.stop(spark)
    assert not fleet_run.table.owned_by(spark), "leases were not given back"
    fleet_run.wait_for_leader(last)
    fleet_run.wait_until_read_by(last, leases=8)
    fleet_run.conclude()
    assert all(lease.pin is None for lease in fleet_run.table.unfinished_leases()), (
        "a pin was left in a lease"
    )


@pytest.mark.kcl(THREE_TABLES)
def test_spark_in_three_tables(fleet_run: FleetRun) -> None:
    """A busy Java leader hands shards to an idle query, which then leads in Java's tables, and is killed under
    another leader.
    """
    java = fleet_run.fleet.start_java(THREE_TABLES, **BUSY)
    fleet_run.wait_until_read_by(java, leases=8)
    spark = fleet_run.start_spark()
    fleet_run.wait_until_read_by(spark)
    assert fleet_run.table.leader() == java
    fleet_run.reshard(2)
    fleet_run.stop(java)
    fleet_run.wait_for_leader(spark)
    fleet_run.wait_until_read_by(spark, leases=8)

    next_owner = fleet_run.fleet.start_java(THREE_TABLES, **IDLE)
    fleet_run.wait_until_read_by(next_owner)
    assert fleet_run.table.leader() == spark
    fleet_run.kill(spark)
    fleet_run.wait_for_leader(next_owner)
    fleet_run.wait_until_read_by(next_owner, leases=8)
    assert fleet_run.table.entity_types() == {"LEASE"}
    conclude(fleet_run)


def conclude(run: FleetRun) -> None:
    """Check that every record that Spark pinned is archived, or was handled by the next owner of the lease."""
    run.conclude()
    assert all(lease.pin is None for lease in run.table.unfinished_leases()), "a pin was left in a lease"
