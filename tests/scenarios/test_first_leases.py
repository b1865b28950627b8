"""Runs first_leases/*.json: which leases an empty table gets.

`stream`: the history. `given.trim_horizon`: the epoch where retained data begins; `given.unlisted`: shards
that the answer misses. `expect`: for each initial position the new leases in the order of their creation, or
the error.
"""

from typing import Any

import pytest

from leasehold.core.model import Lease, Shard
from leasehold.core.shards.lease_creation import initial_shard_filter, plan_first_leases
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import ShardListError
from tests.scenarios.scenario_files import Scenario, only, scenarios
from tests.scenarios.stream_files import new_leases, position, stream

GIVEN = ["unlisted", "identifier", "ignore_unexpected_children"]


@scenarios("first_leases", shared=["stream"])
def test_first_leases(scenario: Scenario) -> None:
    """An empty table gets the leases that the file says, in that order, or the error that it says."""
    given = only(scenario.given, required=["trim_horizon"], optional=GIVEN)
    assert scenario.expect, "a scenario must expect something"
    for name, answer in scenario.expect.items():
        listed = answered(scenario, name)
        if isinstance(answer, dict):
            with pytest.raises(ShardListError, match=only(answer, required=["error"])["error"]):
                plan(listed, given, name)
        else:
            expected = new_leases(answer, {shard.id: shard for shard in listed}, given.get("identifier"))
            assert plan(listed, given, name) == expected, name


def answered(scenario: Scenario, initial: str) -> tuple[Shard, ...]:
    whole = stream(scenario.shared["stream"]).without(scenario.given.get("unlisted", []))
    return whole.listed(initial_shard_filter(position(initial)), scenario.given["trim_horizon"])


def plan(listed: tuple[Shard, ...], given: dict[str, Any], initial: str) -> tuple[Lease, ...]:
    return plan_first_leases(
        shard_graph(listed),
        position(initial),
        stream=given.get("identifier"),
        ignore_unexpected_children=given.get("ignore_unexpected_children", False),
    )
