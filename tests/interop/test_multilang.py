"""Java MultiLangDaemons are replaced by `leasehold multilang` one by one, and back, with the same properties."""

from collections.abc import Callable

import pytest

from tests.interop.build import WITHOUT_MAVEN
from tests.interop.daemon_members import start_java_daemon, start_our_daemon
from tests.interop.fleet_run import FleetRun
from tests.interop.mixed_fleet import MixedFleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.mark.kcl(WITHOUT_MAVEN)
def test_daemons_are_replaced_one_by_one_and_back(fleet_run: FleetRun) -> None:
    """Every record is handled, in order, and Java's log has no complaint about us."""
    fleet = fleet_run.fleet
    # One after the other: if two members create the tables at the same time, one of them may wait for ever.
    first = start_java_daemon(fleet)
    fleet_run.wait_until_read_by(first, leases=8)
    second = start_java_daemon(fleet)
    fleet_run.wait_until_read_by(second)
    members = [first, second]
    start: Callable[[MixedFleet], str]
    for start in (start_our_daemon, start_java_daemon):
        for leaving in tuple(members):
            joining = start(fleet)
            fleet_run.wait_until_read_by(joining)
            fleet_run.reshard()
            fleet_run.stop(leaving)
            members[members.index(leaving)] = joining
            fleet_run.wait_for_leader(*members)
    fleet_run.conclude()
