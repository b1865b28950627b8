"""A Spark query as a member of a fleet with Java: it joins, leads and leaves, and archives every record once."""

import pytest

from tests.interop.build import THREE_TABLES
from tests.interop.story import Story

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

BY_COUNT = {"balance_by": "LEASE_COUNT_BASED"}
BUSY, IDLE = {"load": 80}, {"load": 20}


def test_java_python_spark_java(fleet_story: Story) -> None:
    """Java is replaced by Python, Python by Spark, and Spark by Java, while shards are split and merged."""
    java = fleet_story.fleet.start_java(**BY_COUNT)
    fleet_story.wait_until_read_by(java, leases=8)
    python = fleet_story.fleet.start_python()
    fleet_story.wait_until_read_by(python, leases=3)
    fleet_story.reshard(2)
    fleet_story.stop(java)
    fleet_story.wait_for_leader(python)
    fleet_story.wait_until_read_by(python, leases=8)

    spark = fleet_story.start_spark()
    fleet_story.wait_until_read_by(spark, leases=3)
    assert fleet_story.table.leader() == python
    fleet_story.reshard(2)
    fleet_story.stop(python)
    fleet_story.wait_for_leader(spark)
    fleet_story.wait_until_read_by(spark, leases=8)
    fleet_story.reshard(2)

    last = fleet_story.fleet.start_java(**BY_COUNT)
    fleet_story.wait_until_read_by(last, leases=2)
    assert fleet_story.table.leader() == spark
    fleet_story.reshard()
    fleet_story.stop(spark)
    assert not fleet_story.table.owned_by(spark), "leases were not given back"
    fleet_story.wait_for_leader(last)
    fleet_story.wait_until_read_by(last, leases=8)
    fleet_story.conclude()
    assert all(lease.pin is None for lease in fleet_story.table.unfinished()), (
        "a pinned range was left behind"
    )


@pytest.mark.kcl(THREE_TABLES)
def test_spark_in_three_tables(fleet_story: Story) -> None:
    """A busy Java leader hands shards to an idle query, which leads in Java's tables, and is killed under another."""
    java = fleet_story.fleet.start_java(THREE_TABLES, **BUSY)
    fleet_story.wait_until_read_by(java, leases=8)
    spark = fleet_story.start_spark()
    fleet_story.wait_until_read_by(spark)
    assert fleet_story.table.leader() == java
    fleet_story.reshard(2)
    fleet_story.stop(java)
    fleet_story.wait_for_leader(spark)
    fleet_story.wait_until_read_by(spark, leases=8)

    heir = fleet_story.fleet.start_java(THREE_TABLES, **IDLE)
    fleet_story.wait_until_read_by(heir)
    assert fleet_story.table.leader() == spark
    fleet_story.kill(spark)
    fleet_story.wait_for_leader(heir)
    fleet_story.wait_until_read_by(heir, leases=8)
    assert fleet_story.table.kinds() == {"LEASE"}
    conclude(fleet_story)


def conclude(told: Story) -> None:
    """What Spark had pinned is archived, or was handed on and done by whoever has the lease now."""
    told.conclude()
    assert all(lease.pin is None for lease in told.table.unfinished()), "a pinned range was left behind"
