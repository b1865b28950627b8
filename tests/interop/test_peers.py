"""A fleet without a leader: Java in the modes that work beside KCL 2.x, and Python as a peer."""

import pytest

from tests.interop.build import KCL_1, KCL_2, NEWEST, THREE_TABLES
from tests.interop.fleet_run import FleetRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.core
def test_python_joins_java_peers(fleet_run: FleetRun) -> None:
    """Beside a Java member that behaves as KCL 2.x, Python takes its share, writes only leases, and takes over when
    Java is killed.
    """
    java = fleet_run.fleet.start_java(NEWEST, mode="COMPATIBLE_WITH_2X_PHASE1")
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=3)
    fleet_run.reshard(2)
    assert fleet_run.table.leader() is None
    fleet_run.kill(java)
    fleet_run.wait_until_read_by(python, leases=8)
    assert fleet_run.table.tables() == {""}
    assert fleet_run.table.entity_types() == {"LEASE"}
    fleet_run.conclude()


def test_java_joins_python_peers(fleet_run: FleetRun) -> None:
    """A Java member that behaves as KCL 2.x takes its share of Python peers, and all of it when they are killed."""
    python = fleet_run.fleet.start_python(mode="peer")
    fleet_run.wait_until_read_by(python, leases=8)
    java = fleet_run.fleet.start_java(NEWEST, mode="COMPATIBLE_WITH_2X_PHASE1")
    fleet_run.wait_until_read_by(java, leases=3)
    fleet_run.reshard(2)
    fleet_run.kill(python)
    fleet_run.wait_until_read_by(java, leases=8)
    fleet_run.conclude()


def test_python_joins_kcl_2(fleet_run: FleetRun) -> None:
    """Beside the real KCL 2.x, Python takes its share. When either is killed, the other takes all shards."""
    java = fleet_run.fleet.start_java(KCL_2)
    fleet_run.wait_until_read_by(java, leases=8)
    first = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(first, leases=3)
    fleet_run.reshard(2)
    fleet_run.kill(first)
    fleet_run.wait_until_read_by(java, leases=8)
    second = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(second, leases=3)
    fleet_run.kill(java)
    fleet_run.wait_until_read_by(second, leases=8)
    assert fleet_run.table.tables() == {""}
    assert fleet_run.table.entity_types() == {"LEASE"}
    fleet_run.conclude()


@pytest.mark.kcl(KCL_1)
def test_python_joins_kcl_1(fleet_run: FleetRun) -> None:
    """Beside the real KCL 1.x, Python takes its share. When either is killed, the other takes all shards and continues
    at its checkpoints, of aggregates too; both read the rows that the other has written.
    """
    java = fleet_run.fleet.start_java(KCL_1)
    fleet_run.wait_until_read_by(java, leases=8)
    first = fleet_run.fleet.start_python(handoff=False)
    fleet_run.wait_until_read_by(first, leases=3)
    fleet_run.reshard(2)
    fleet_run.kill(first)
    fleet_run.wait_until_read_by(java, leases=6)
    second = fleet_run.fleet.start_python(handoff=False)
    fleet_run.wait_until_read_by(second, leases=3)
    fleet_run.reshard(2)
    fleet_run.kill(java)
    fleet_run.wait_until_read_by(second, leases=5)
    third = fleet_run.fleet.start_java(KCL_1)
    fleet_run.wait_until_read_by(third, leases=2)
    fleet_run.stop(second)
    fleet_run.wait_until_read_by(third, leases=5)
    assert fleet_run.table.tables() == {""}
    assert fleet_run.table.entity_types() == {"LEASE"}
    fleet_run.conclude()


@pytest.mark.kcl(KCL_1)
def test_python_joins_kcl_1_and_kcl_3(fleet_run: FleetRun) -> None:
    """Beside a KCL 3.5 that behaves as 2.x and a KCL 1.x, as peers, each of the three takes its share. When two of them
    are killed, the third takes all shards.
    """
    oldest = fleet_run.fleet.start_java(KCL_1)
    fleet_run.wait_until_read_by(oldest, leases=8)
    newest = fleet_run.fleet.start_java(NEWEST, mode="COMPATIBLE_WITH_2X_PHASE1")
    fleet_run.wait_until_read_by(newest, leases=3)
    python = fleet_run.fleet.start_python(handoff=False)
    fleet_run.wait_until_read_by(python, leases=2)
    fleet_run.reshard(2)
    fleet_run.kill(newest)
    fleet_run.wait_until_read_by(python, leases=3)
    newest = fleet_run.fleet.start_java(NEWEST, mode="COMPATIBLE_WITH_2X_PHASE1")
    fleet_run.wait_until_read_by(newest, leases=2)
    fleet_run.kill(oldest)
    fleet_run.kill(newest)
    fleet_run.wait_until_read_by(python, leases=8)
    assert fleet_run.table.tables() == {""}
    assert fleet_run.table.entity_types() == {"LEASE"}
    fleet_run.conclude()


@pytest.mark.parametrize("version", [NEWEST, THREE_TABLES])
def test_python_works_during_an_upgrade(version: str, fleet_run: FleetRun) -> None:
    """While Java prepares its upgrade from 2.x, members, also Python, are peers that already report."""
    java = fleet_run.fleet.start_java(version, mode="COMPATIBLE_WITH_2X")
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=3)
    fleet_run.wait_for_report_of(python)
    assert fleet_run.table.leader() is None
    fleet_run.reshard(2)
    fleet_run.stop(java)
    fleet_run.wait_until_read_by(python, leases=8)
    fleet_run.conclude()
