"""One fleet with a leader, in the KCL's single table: Java leads Python, Python leads Java, and either is killed."""

import pytest

from tests.interop.fleet_run import FleetRun
from tests.interop.mixed_fleet import BY_COUNT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.core
def test_a_java_leader_is_killed(fleet_run: FleetRun) -> None:
    """A Java leader hands half of its shards to a Python member, which leads and reads all shards once Java is
    killed.
    """
    java = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=4)
    assert fleet_run.table.leader() == java
    assert len(fleet_run.fleet.java_events(java, "asked to stop")) >= 4
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


def test_a_python_leader_is_killed(fleet_run: FleetRun) -> None:
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


def test_members_are_killed_under_either_leader(fleet_run: FleetRun) -> None:
    """The fleet recovers from the kill of a follower under a Java leader, and then under a Python leader."""
    java = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=4)
    fleet_run.kill(python)
    fleet_run.wait_until_read_by(java, leases=8)
    next_owner = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(next_owner, leases=4)
    fleet_run.stop(java)
    fleet_run.wait_for_leader(next_owner)
    fleet_run.wait_until_read_by(next_owner, leases=8)
    last = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(last, leases=4)
    fleet_run.kill(last)
    fleet_run.wait_until_read_by(next_owner, leases=8)
    fleet_run.conclude()


def test_leaders_change_with_every_stop(fleet_run: FleetRun) -> None:
    """Java is replaced by Python and Python by Java, one by one: everything is handled, and nothing twice."""
    # One after the other: if two members create the tables at the same time, one of them may wait for ever.
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
