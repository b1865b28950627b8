"""One fleet with a leader: Java leads Python, Python leads Java, and either may die."""

import pytest

from tests.interop.story import Story

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BY_COUNT = {"balance_by": "LEASE_COUNT_BASED"}


@pytest.mark.core
def test_java_leads_python_and_dies(fleet_story: Story) -> None:
    """A Java leader hands half of its shards to a Python member, which leads and reads them all once Java is killed."""
    java = fleet_story.fleet.start_java(**BY_COUNT)
    fleet_story.wait_until_read_by(java, leases=8)
    python = fleet_story.fleet.start_python()
    fleet_story.wait_until_read_by(python, leases=4)
    assert fleet_story.table.leader() == java
    assert len(fleet_story.fleet.told(java, "asked to stop")) >= 4
    fleet_story.reshard(2)
    fleet_story.kill(java)
    fleet_story.wait_for_leader(python)
    fleet_story.wait_until_read_by(python, leases=8)
    fleet_story.reshard()
