"""One fleet with a leader, in the KCL's single table: Java leads Python, Python leads Java, and either may die."""

import pytest

from tests.interop.fleet_run import FleetRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BY_COUNT = {"balance_by": "LEASE_COUNT_BASED"}


@pytest.mark.core
def test_java_leads_python_and_dies(fleet_run: FleetRun) -> None:
    """A Java leader hands half of its shards to a Python member, which leads and reads them all once Java is killed."""
    java = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=4)
    assert fleet_run.table.leader() == java
    assert len(fleet_run.fleet.told(java, "asked to stop")) >= 4
    fleet_run.reshard(2)
    fleet_run.kill(java)
    fleet_run.wait_for_leader(python)
    fleet_run.wait_until_read_by(python, leases=8)
    fleet_run.reshard()
    fleet_run.conclude()


@pytest.mark.core
def test_python_leads_java(fleet_run: FleetRun) -> None:
    """A Python leader hands half of its shards to a Java member, and both go on when shards are split."""
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=8)
    java = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=4)
    assert fleet_run.table.leader() == python
    fleet_run.reshard(3)
    fleet_run.wait_until_all_is_handled()
    fleet_run.wait_until_nothing_is_stuck()
    assert fleet_run.table.leader() == python
    fleet_run.conclude()


def test_a_python_leader_dies(fleet_run: FleetRun) -> None:
    """Java takes the lead from a Python leader that was killed, and reads its shards."""
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=8)
    java = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=2)
    fleet_run.reshard(2)
    fleet_run.kill(python)
    fleet_run.wait_for_leader(java)
    fleet_run.wait_until_read_by(java, leases=8)
    fleet_run.conclude()


def test_members_die_under_either_leader(fleet_run: FleetRun) -> None:
    """A killed member that does not lead is survived under a Java leader, and then under a Python one."""
    java = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=4)
    fleet_run.kill(python)
    fleet_run.wait_until_read_by(java, leases=8)
    heir = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(heir, leases=4)
    fleet_run.stop(java)
    fleet_run.wait_for_leader(heir)
    fleet_run.wait_until_read_by(heir, leases=8)
    last = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(last, leases=4)
    fleet_run.kill(last)
    fleet_run.wait_until_read_by(heir, leases=8)
    fleet_run.conclude()


def test_leads_change_with_every_stop(fleet_run: FleetRun) -> None:
    """Java is replaced by Python and Python by Java, one by one: everything is handled, and nothing twice."""
    # One after the other: of two that make the tables together, one may wait for them for ever.
    first = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(first, leases=8)
    second = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(first, leases=3)
    fleet_run.wait_until_read_by(second, leases=3)
    members = [first, second]
    for kind in ("python", "java"):
        for leaving in tuple(members):
            joining = (
                fleet_run.fleet.start_python() if kind == "python" else fleet_run.fleet.start_java(**BY_COUNT)
            )
            fleet_run.wait_until_read_by(joining)
            fleet_run.reshard()
            fleet_run.stop(leaving)
            members[members.index(leaving)] = joining
            fleet_run.wait_for_leader(*members)
    for worker in members:
        fleet_run.wait_until_read_by(worker, leases=2)
    assert fleet_run.conclude().repeated == 0
