"""KCL 3.5 replaces KCL 3.4 and moves the fleet from three tables to one, a Python member in it; by faster clocks."""

import pytest

from tests.interop.build import NEWEST, THREE_TABLES
from tests.interop.fleet_run import FleetRun
from tests.interop.migrations import Migrations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Half a minute instead of an hour for each phase.
JAVA_HURRY = {"hurry": 120}
# Java's own heartbeats and reports are as in other stories, so these minutes must not shrink as much.
PYTHON_HURRY = {"hurry": 6}
TWO_PHASES = [{}, {"one_table": True}]


def test_a_fleet_moves_to_one_table(fleet_run: FleetRun) -> None:
    """Two deployments, as Java wants it; lock and reports move, Python follows, and neither loses a record."""
    migrations = Migrations(fleet_run.table)
    java = fleet_run.fleet.start_java(THREE_TABLES)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python(**PYTHON_HURRY)
    fleet_run.wait_for_report_of(python)
    for phase, options in zip(("DEPLOYED", "COMPLETE"), TWO_PHASES, strict=True):
        old, java = java, fleet_run.fleet.start_java(NEWEST, **JAVA_HURRY, **options)
        fleet_run.stop(old)
        fleet_run.wait_until_read_by(java)
        fleet_run.reshard()
        fleet_run.wait(lambda phase=phase: migrations.phase() == phase, f"the tables are {phase}", 480)
        fleet_run.wait_until_all_is_handled()
    leader = fleet_run.wait_for_leader(java, python)
    fleet_run.wait(lambda: {"LEADER", "WORKER_METRIC_STATS"} <= fleet_run.table.entity_types(), "one table")
    fleet_run.kill(leader)
    fleet_run.wait_for_leader(*({java, python} - {leader}))
    fleet_run.conclude()
