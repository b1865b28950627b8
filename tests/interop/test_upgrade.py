"""A Java fleet of KCL 3.x that ran as 2.x gets its leader, with Python members in it; by clocks that run faster."""

import pytest

from leasehold.core.model import WorkerId
from leasehold.core.upgrade import decider_of
from tests.interop.build import KCL_2, NEWEST, THREE_TABLES
from tests.interop.migrations import Migrations
from tests.interop.story import Story

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Half a minute instead of ten minutes, and looks every three seconds instead of every minute.
HURRY = {"hurry": 20}
UPGRADING = {"mode": "COMPATIBLE_WITH_2X", **HURRY}


def test_java_decides_and_the_operator_goes_back(fleet_story: Story) -> None:
    """Java gives the fleet its leader, Python follows; after a rollback both are peers, and Python outlives Java."""
    migrations = Migrations(fleet_story.table)
    java = fleet_story.fleet.start_java(NEWEST, **UPGRADING)
    fleet_story.wait_until_read_by(java, leases=8)
    python = fleet_story.fleet.start_python(**HURRY)
    assert decider_of([WorkerId(java), WorkerId(python)]) == java
    fleet_story.wait_until_read_by(python, leases=3)
    assert migrations.version() == "UPGRADE_FROM_2X"
    fleet_story.wait(lambda: migrations.version() == "3X_WITH_ROLLBACK", "the fleet may have a leader")
    assert migrations.changed_by() == java
    fleet_story.wait_for_leader(java, python)
    fleet_story.reshard(2)
    fleet_story.wait_until_all_is_handled()
    migrations.roll_back()
    fleet_story.wait(lambda: fleet_story.table.leader() is None, "nobody leads")
    fleet_story.reshard(2)
    fleet_story.wait_until_read_by(java, leases=2)
    fleet_story.wait_until_read_by(python, leases=2)
    fleet_story.kill(java)
    fleet_story.wait_until_read_by(python, leases=8)
    assert fleet_story.table.leader() is None
    fleet_story.conclude()


@pytest.mark.parametrize(
    ("before", "after"), [(NEWEST, NEWEST), (KCL_2, THREE_TABLES)], ids=["to one table", "to three tables"]
)
def test_python_decides(before: str, after: str, fleet_story: Story) -> None:
    """A deployment replaces KCL 2.x; where it then falls to a Python member to decide, Java members follow it."""
    migrations = Migrations(fleet_story.table)
    old = fleet_story.fleet.start_java(before, mode="COMPATIBLE_WITH_2X_PHASE1")
    fleet_story.wait_until_read_by(old, leases=8)
    javas = [fleet_story.fleet.start_java(after, **UPGRADING)]
    # Two members of KCL 3.5 that write the row at the same time are one too many: the later one gives up.
    fleet_story.wait(lambda: migrations.version() != "", "the upgrade has begun")
    javas.append(fleet_story.fleet.start_java(after, **UPGRADING))
    python = fleet_story.fleet.start_python(**HURRY)
    for worker in (*javas, python):
        fleet_story.wait_until_read_by(worker)
    assert migrations.version() == "UPGRADE_FROM_2X"
    fleet_story.stop(old)
    assert decider_of(map(WorkerId, [*javas, python])) == python
    fleet_story.wait(lambda: migrations.version() == "3X_WITH_ROLLBACK", "the fleet may have a leader")
    assert migrations.changed_by() == python
    leader = fleet_story.wait_for_leader(*javas, python)
    fleet_story.reshard(2)
    fleet_story.wait_until_all_is_handled()
    fleet_story.kill(leader)
    fleet_story.wait_for_leader(*({*javas, python} - {leader}))
    fleet_story.conclude()
