"""Plays the scenarios of joining: how a member takes part in the fleet that it finds."""

import pytest

from leasehold.config.settings import Mode
from leasehold.core.coordinator.fleet_mode import FleetMode, FleetRows, TableLayout, resolve_mode
from leasehold.errors import ConfigError
from tests.scenarios.scenario_files import Scenario, only, scenarios

FLAGS = ("has_coordinator_table", "has_lock", "has_reports", "has_reports_in_lease_table", "has_owners")


@scenarios("fleet_mode")
def test_fleet_mode(scenario: Scenario) -> None:
    """These rows are joined in this way."""
    given = only(scenario.given, optional=("wanted", "cv", "tm", "hidden_owners", *FLAGS))
    expect = only(
        scenario.expect, optional=("has_leader", "sends_reports", "lock_layout", "reports_layout", "error")
    )
    found = FleetRows(
        migration={"cv": {"S": given["cv"]}} if "cv" in given else None,
        table_migration={"tm": {"S": given["tm"]}} if "tm" in given else None,
        hidden_owners=tuple(given.get("hidden_owners", ())),
        **{flag: given.get(flag, False) for flag in FLAGS},
    )
    wanted = Mode(given.get("wanted", "auto"))
    if "error" in expect:
        with pytest.raises(ConfigError, match=expect["error"]):
            resolve_mode(found, wanted, "billing")
        return
    assert resolve_mode(found, wanted, "billing") == FleetMode(
        has_leader=expect["has_leader"],
        sends_reports=expect["sends_reports"],
        lock_layout=TableLayout[expect.get("lock_layout", "SINGLE_TABLE")],
        reports_layout=TableLayout[expect.get("reports_layout", "SINGLE_TABLE")],
    )
