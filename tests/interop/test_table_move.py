"""KCL 3.5 replaces KCL 3.4 and moves the fleet, with a Python member, from three tables to one; with shorter
intervals.
"""

import pytest

from tests.interop.build import NEWEST, THREE_TABLES
from tests.interop.fleet_run import FleetRun
from tests.interop.migrations import Migrations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Half a minute for each phase instead of an hour.
JAVA_HURRY = {"hurry": 120}
# Java's heartbeats and reports are as in other tests, so these intervals must not shrink as much.
PYTHON_HURRY = {"hurry": 6}
TWO_PHASES = [{}, {"one_table": True}]


def test_a_fleet_moves_to_one_table(fleet_run: FleetRun) -> None:
    """Java needs two deployments. Lock and reports move, Python follows, and no record is lost."""
    migrations = Migrations(fleet_run.table)
    java = fleet_run.fleet.start_java(THREE_TABLES)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python(**PYTHON_HURRY)
    fleet_run.wait_for_report_of(python)
    for phase, options in zip(("DEPLOYED", "COMPLETE"), TWO_PHASES, strict=True):
        old, java = java, fleet_run.fleet.start_java(NEWEST, **JAVA_HURRY, **options)
        # Java reports its throughput here, Python its processor use. A Java leader does not compare the two, so the new
        # member gets only shards that are free.
        fleet_run.wait_for_report_of(java)
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
