"""Runs missing_leases/*.json: which leases are added to a table that is not empty.

`stream`: the history. `given`: shards with a lease that is `reading` or `ended`, shards with an `unreadable` row,
shards that were `trimmed` from the list (their leases may remain). `expect`: for each initial position the new
leases in the order of their creation. Where the Java KCL does less than we do, `expect` holds both answers, as `java`
and `ours`; otherwise both must give the same.
"""

from typing import Any

import pytest

from leasehold.core.model import Lease, StreamIdentifier
from leasehold.core.shards.lease_creation import plan_missing_leases
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import ShardListError
from tests.scenarios.scenario_files import Scenario, only, scenarios
from tests.scenarios.stream_files import Stream, lease, new_leases, position, shard_ids, stream

GIVEN = [
    "reading",
    "ended",
    "trimmed",
    "unreadable",
    "ignore_unexpected_children",
    "identifier",
    "reading_in_other_streams",
]


@scenarios("missing_leases", shared=["stream"])
def test_missing_leases(scenario: Scenario) -> None:
    """A table gets the leases that the file says and no others, in that order, or the error that it says."""
    given = only(scenario.given, optional=GIVEN)
    answers = scenario.expect
    if "error" in answers:
        with pytest.raises(ShardListError, match=only(answers, required=["error"])["error"]):
            plan(scenario, given, "LATEST", repair=True)
        return
    same = {"java": answers, "ours": answers}
    both = only(answers, required=["java", "ours"]) if "ours" in answers else same
    shards = {shard.id: shard for shard in listed(scenario).shards}
    for who, by_position in both.items():
        assert by_position, "a scenario must expect something"
        for name, answer in by_position.items():
            expected = new_leases(answer, shards, given.get("identifier"))
            assert plan(scenario, given, name, repair=who == "ours") == expected, (who, name)


def plan(scenario: Scenario, given: dict[str, Any], initial: str, *, repair: bool) -> tuple[Lease, ...]:
    identifier = given.get("identifier")
    leases = [
        *(lease(number, "11", identifier) for number in given.get("reading", [])),
        *(lease(number, "SHARD_END", identifier) for number in given.get("ended", [])),
        *(lease(number, "11", "1:other:1") for number in given.get("reading_in_other_streams", [])),
    ]
    return plan_missing_leases(
        shard_graph(listed(scenario).shards),
        leases,
        position(initial),
        stream=StreamIdentifier(identifier) if identifier else None,
        ignore_unexpected_children=given.get("ignore_unexpected_children", False),
        repair=repair,
        unreadable=shard_ids(given.get("unreadable", [])),
    )


def listed(scenario: Scenario) -> Stream:
    return stream(scenario.shared["stream"]).without(scenario.given.get("trimmed", []))
