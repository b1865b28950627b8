"""Plays the scenarios of joining: how a member takes part in the fleet that it finds."""

import pytest

from leasehold.core.fleet_mode import FleetMode, FleetRows, Place, conclude_mode
from leasehold.errors import ConfigError
from leasehold.settings import Mode
from tests.scenarios.reading import Scenario, only, scenarios

FLAGS = ("has_coordinator_table", "has_lock", "has_reports", "has_reports_in_lease_table", "has_owners")


@scenarios("fleet_mode")
def test_fleet_mode(scenario: Scenario) -> None:
    """These rows are joined in this way."""
    given = only(scenario.given, optional=("wanted", "cv", "tm", *FLAGS))
    expect = only(scenario.expect, optional=("has_leader", "reports", "lock_in", "reports_in", "error"))
    found = FleetRows(
        migration={"cv": {"S": given["cv"]}} if "cv" in given else None,
        table_migration={"tm": {"S": given["tm"]}} if "tm" in given else None,
        **{flag: given.get(flag, False) for flag in FLAGS},
    )
    wanted = Mode(given.get("wanted", "auto"))
    if "error" in expect:
        with pytest.raises(ConfigError, match=expect["error"]):
            conclude_mode(found, wanted, "billing")
        return
    assert conclude_mode(found, wanted, "billing") == FleetMode(
        has_leader=expect["has_leader"],
        reports=expect["reports"],
        lock_in=Place[expect.get("lock_in", "LEASE_TABLE")],
        reports_in=Place[expect.get("reports_in", "LEASE_TABLE")],
    )
