"""A fleet without a leader: Java in the modes that live beside KCL 2.x, and Python among its peers."""

import pytest

from tests.interop.build import KCL_2, NEWEST, THREE_TABLES
from tests.interop.story import Story

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.core
def test_python_joins_java_peers(fleet_story: Story) -> None:
    """Beside a Java member that behaves as KCL 2.x, Python takes its share, writes no other rows, and outlives Java."""
    java = fleet_story.fleet.start_java(NEWEST, mode="COMPATIBLE_WITH_2X_PHASE1")
    fleet_story.wait_until_read_by(java, leases=8)
    python = fleet_story.fleet.start_python()
    fleet_story.wait_until_read_by(python, leases=3)
    fleet_story.reshard(2)
    assert fleet_story.table.leader() is None
    fleet_story.kill(java)
    fleet_story.wait_until_read_by(python, leases=8)
    assert fleet_story.table.tables() == {""}
    assert fleet_story.table.kinds() == {"LEASE"}
    fleet_story.conclude()


def test_java_joins_python_peers(fleet_story: Story) -> None:
    """A Java member that behaves as KCL 2.x takes its share of Python peers, and all of it when they are killed."""
    python = fleet_story.fleet.start_python(mode="peer")
    fleet_story.wait_until_read_by(python, leases=8)
    java = fleet_story.fleet.start_java(NEWEST, mode="COMPATIBLE_WITH_2X_PHASE1")
    fleet_story.wait_until_read_by(java, leases=3)
    fleet_story.reshard(2)
    fleet_story.kill(python)
    fleet_story.wait_until_read_by(java, leases=8)
    fleet_story.conclude()


def test_python_joins_kcl_2(fleet_story: Story) -> None:
    """Beside the real KCL 2.x, Python takes its share, gives it up when it is killed, and takes all when Java is."""
    java = fleet_story.fleet.start_java(KCL_2)
    fleet_story.wait_until_read_by(java, leases=8)
    first = fleet_story.fleet.start_python()
    fleet_story.wait_until_read_by(first, leases=3)
    fleet_story.reshard(2)
    fleet_story.kill(first)
    fleet_story.wait_until_read_by(java, leases=8)
    second = fleet_story.fleet.start_python()
    fleet_story.wait_until_read_by(second, leases=3)
    fleet_story.kill(java)
    fleet_story.wait_until_read_by(second, leases=8)
    assert fleet_story.table.tables() == {""}
    assert fleet_story.table.kinds() == {"LEASE"}
    fleet_story.conclude()


@pytest.mark.parametrize("version", [NEWEST, THREE_TABLES])
def test_python_lives_through_an_upgrade(version: str, fleet_story: Story) -> None:
    """While Java prepares its upgrade from 2.x, members are peers that already report; Python is one of them."""
    java = fleet_story.fleet.start_java(version, mode="COMPATIBLE_WITH_2X")
    fleet_story.wait_until_read_by(java, leases=8)
    python = fleet_story.fleet.start_python()
    fleet_story.wait_until_read_by(python, leases=3)
    fleet_story.wait_for_report_of(python)
    assert fleet_story.table.leader() is None
    fleet_story.reshard(2)
    fleet_story.stop(java)
    fleet_story.wait_until_read_by(python, leases=8)
    fleet_story.conclude()
