"""A Java fleet of KCL 3.x that ran as 2.x gets a leader, with Python members in it; with shorter intervals."""

import pytest

from leasehold.core.coordinator.upgrade import upgrade_decider
from leasehold.core.model import WorkerId
from tests.interop.build import KCL_2, NEWEST, THREE_TABLES
from tests.interop.fleet_run import FleetRun
from tests.interop.migrations import Migrations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Half a minute instead of ten minutes, and a check every three seconds instead of every minute.
HURRY = {"hurry": 20}
UPGRADING = {"mode": "COMPATIBLE_WITH_2X", **HURRY}


def test_java_decides_and_the_operator_rolls_back(fleet_run: FleetRun) -> None:
    """Java upgrades the fleet, and Python follows. After a rollback both are peers, and Python takes over when Java
    is killed.
    """
    migrations = Migrations(fleet_run.table)
    java = fleet_run.fleet.start_java(NEWEST, **UPGRADING)
    fleet_run.wait(lambda: migrations.version() == "UPGRADE_FROM_2X", "the upgrade has begun")
    # Not later: the upgrade ends half a minute after every lease has an owner that reports, and then a Java leader
    # moves no lease to a member that measures its processor.
    python = fleet_run.fleet.start_python(**HURRY)
    assert upgrade_decider([WorkerId(java), WorkerId(python)]) == java
    fleet_run.wait_until_read_by(java, leases=3)
    fleet_run.wait_until_read_by(python, leases=3)
    fleet_run.wait(lambda: migrations.version() == "3X_WITH_ROLLBACK", "the fleet may have a leader")
    assert migrations.changed_by() == java
    fleet_run.wait_for_leader(java, python)
    fleet_run.reshard(2)
    fleet_run.wait_until_all_is_handled()
    migrations.roll_back()
    fleet_run.wait(lambda: fleet_run.table.leader() is None, "no worker leads")
    fleet_run.reshard(2)
    fleet_run.wait_until_read_by(java, leases=2)
    fleet_run.wait_until_read_by(python, leases=2)
    fleet_run.kill(java)
    fleet_run.wait_until_read_by(python, leases=8)
    assert fleet_run.table.leader() is None
    fleet_run.conclude()


@pytest.mark.parametrize(
    ("before", "after"), [(NEWEST, NEWEST), (KCL_2, THREE_TABLES)], ids=["to one table", "to three tables"]
)
def test_python_decides(before: str, after: str, fleet_run: FleetRun) -> None:
    """A deployment replaces KCL 2.x. If a Python member has to decide the upgrade, Java members follow it."""
    migrations = Migrations(fleet_run.table)
    old = fleet_run.fleet.start_java(before, mode="COMPATIBLE_WITH_2X_PHASE1")
    fleet_run.wait_until_read_by(old, leases=8)
    javas = [fleet_run.fleet.start_java(after, **UPGRADING)]
    # If two members of KCL 3.5 write the row at the same time, the later one ends.
    fleet_run.wait(lambda: migrations.version() == "UPGRADE_FROM_2X", "the upgrade has begun")
    javas.append(fleet_run.fleet.start_java(after, **UPGRADING))
    python = fleet_run.fleet.start_python(**HURRY)
    for worker in (*javas, python):
        fleet_run.wait_until_read_by(worker)
    assert migrations.version() == "UPGRADE_FROM_2X"
    fleet_run.stop(old)
    assert upgrade_decider(map(WorkerId, [*javas, python])) == python
    fleet_run.wait(lambda: migrations.version() == "3X_WITH_ROLLBACK", "the fleet may have a leader")
    assert migrations.changed_by() == python
    leader = fleet_run.wait_for_leader(*javas, python)
    fleet_run.reshard(2)
    fleet_run.wait_until_all_is_handled()
    fleet_run.kill(leader)
    fleet_run.wait_for_leader(*({*javas, python} - {leader}))
    fleet_run.conclude()
