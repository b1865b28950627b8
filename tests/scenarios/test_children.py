"""Runs children/*.json: what happens when a shard has been read to its end.

`given`: the shard that `ended` and where its lease stood, the `children` that its last answer named, the
shards that are `leased`, and the `draw`. `expect`: the leases to `create` and the children to `note` on the
finished lease; or the parent to `wait_for`, and whether to `give_up` the lease; or the error. Where the Java
KCL waits and we do not, `expect` holds both answers, as `java` and `ours`.
"""

from typing import Any

import pytest

from leasehold.core.model import ChildShard
from leasehold.core.shards.lease_creation import CreateChildren, WaitForOtherParent, plan_children
from leasehold.errors import ShardListError
from tests.scenarios.scenario_files import Scenario, only, scenarios
from tests.scenarios.stream_files import keys, lease, new_leases, shard_id, shard_ids


@scenarios("children")
def test_children(scenario: Scenario) -> None:
    """The end of a shard creates the leases that the file says, or waits, or is refused."""
    given = only(
        scenario.given, required=["ended", "at", "children", "leased", "draw"], optional=["identifier"]
    )
    identifier, children = given.get("identifier"), [child(each) for each in given["children"]]
    ended = lease(given["ended"], given["at"], identifier)
    leased = {lease(number, "1", identifier).key for number in given["leased"]}
    if "error" in scenario.expect:
        with pytest.raises(ShardListError, match=only(scenario.expect, required=["error"])["error"]):
            plan_children(ended, children, leased, draw=given["draw"])
        return
    same = {"java": scenario.expect, "ours": scenario.expect}
    both = only(scenario.expect, required=["java", "ours"]) if "ours" in scenario.expect else same
    ours = plan_children(ended, children, leased, draw=given["draw"])
    assert ours == answer(both["ours"], children, identifier)
    assert java_waits(given) == ("wait_for" in both["java"])


def java_waits(given: dict[str, Any]) -> bool:
    """The Java KCL waits when exactly one of two parents has a lease, whether the child has one or not."""
    children = given["children"]
    return len(children) == 1 and len(set(children[0]["parents"]) & set(given["leased"])) == 1


def child(given: Any) -> ChildShard:
    only(given, required=["id", "parents", "keys"])
    return ChildShard(shard_id(given["id"]), shard_ids(given["parents"]), keys(given["keys"]))


def answer(
    expect: dict[str, Any], children: list[ChildShard], identifier: str | None
) -> CreateChildren | WaitForOtherParent:
    if "wait_for" in expect:
        only(expect, required=["wait_for", "give_up"])
        return WaitForOtherParent(shard_id(expect["wait_for"]), expect["give_up"])
    only(expect, required=["create", "note"])
    return CreateChildren(
        new_leases(expect["create"], {each.id: each for each in children}, identifier),
        frozenset(shard_ids(expect["note"])),
    )
