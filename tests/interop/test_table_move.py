"""KCL 3.5 replaces KCL 3.4 and moves the fleet from three tables to one, a Python member in it; by faster clocks."""

import pytest

from tests.interop.build import NEWEST, THREE_TABLES
from tests.interop.migrations import Migrations
from tests.interop.story import Story

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Half a minute instead of an hour for each phase.
JAVA_HURRY = {"hurry": 120}
# Java's own heartbeats and reports are as in other stories, so these minutes must not shrink as much.
PYTHON_HURRY = {"hurry": 6}
TWO_PHASES = [{}, {"one_table": True}]


def test_a_fleet_moves_to_one_table(fleet_story: Story) -> None:
    """Two deployments, as Java wants it; lock and reports move, Python follows, and neither loses a record."""
    migrations = Migrations(fleet_story.table)
    java = fleet_story.fleet.start_java(THREE_TABLES)
    fleet_story.wait_until_read_by(java, leases=8)
    python = fleet_story.fleet.start_python(**PYTHON_HURRY)
    fleet_story.wait_for_report_of(python)
    for phase, options in zip(("DEPLOYED", "COMPLETE"), TWO_PHASES, strict=True):
        old, java = java, fleet_story.fleet.start_java(NEWEST, **JAVA_HURRY, **options)
        fleet_story.stop(old)
        fleet_story.wait_until_read_by(java)
        fleet_story.reshard()
        fleet_story.wait(lambda phase=phase: migrations.phase() == phase, f"the tables are {phase}", 480)
        fleet_story.wait_until_all_is_handled()
    leader = fleet_story.wait_for_leader(java, python)
    fleet_story.wait(lambda: {"LEADER", "WORKER_METRIC_STATS"} <= fleet_story.table.kinds(), "one table")
    fleet_story.kill(leader)
    fleet_story.wait_for_leader(*({java, python} - {leader}))
    fleet_story.conclude()
