"""Runs cleanup/*.json: which leases of finished shards go, and why the others stay.

`given.leases`: shard -> where its lease is `at`, the `parents` and `children` noted in it; `given.listed`:
the shards that the stream still has, if a list was made; `given.just_finished`: shards that have only just
ended. `expect`: shard -> reason for what to `delete` and
what to `keep`, the shards that a kept one waits for, and `learned` children to note; or the error.
"""

from typing import Any

import pytest

from leasehold.core.model import Lease, StreamIdentifier
from leasehold.core.position import Position
from leasehold.core.shards.lease_cleanup import (
    CleanupPlan,
    DeleteLease,
    DeleteReason,
    KeepLease,
    KeepReason,
    plan_cleanup,
)
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import ShardListError
from tests.scenarios.scenario_files import Scenario, only, scenarios
from tests.scenarios.stream_files import lease, shard, shard_ids


@scenarios("cleanup")
def test_cleanup(scenario: Scenario) -> None:
    """The leases that the file says are deleted, and every other one stays for the reason that it says."""
    given = only(
        scenario.given,
        required=["leases"],
        optional=["listed", "identifier", "in_other_streams", "just_finished", "unreadable"],
    )
    identifier = given.get("identifier")
    leases = {number: _lease(number, each, identifier) for number, each in given["leases"].items()}
    others = [_lease(number, each, "1:other:1") for number, each in given.get("in_other_streams", {}).items()]
    listed = shard_graph(shard(*each) for each in given["listed"].items()) if "listed" in given else None
    stream = StreamIdentifier(identifier) if identifier else None
    if "error" in scenario.expect:
        with pytest.raises(ShardListError, match=only(scenario.expect, required=["error"])["error"]):
            plan_cleanup([*leases.values(), *others], listed, stream=stream)
    else:
        young = {leases[str(number)].key for number in given.get("just_finished", [])}
        unreadable = shard_ids(given.get("unreadable", []))
        plan = plan_cleanup(
            [*leases.values(), *others], listed, stream=stream, just_finished=young, unreadable=unreadable
        )
        assert plan == _plan(scenario.expect, leases)


def _lease(number: str, given: Any, identifier: str | None) -> Lease:
    only(given, required=["at"], optional=["parents", "children"])
    word, _, sub = given["at"].partition("/")
    bare = lease(number, word, identifier)
    return Lease(
        key=bare.key,
        shard_id=bare.shard_id,
        checkpoint=Position(word, int(sub or 0)),
        parents=frozenset(shard_ids(given.get("parents", []))),
        children=frozenset(shard_ids(given.get("children", []))),
        stream=bare.stream,
    )


def _plan(expect: dict[str, Any], leases: dict[str, Lease]) -> CleanupPlan:
    only(expect, required=["delete", "keep"], optional=["learned"])
    return CleanupPlan(
        delete=tuple(DeleteLease(leases[n].key, DeleteReason[why]) for n, why in expect["delete"].items()),
        keep=tuple(_kept(leases[n], *why) for n, why in expect["keep"].items()),
        found_children=tuple(
            _noted(leases[n], children) for n, children in expect.get("learned", {}).items()
        ),
    )


def _kept(lease: Lease, why: str, because_of: list[int] | None = None) -> KeepLease:
    return KeepLease(lease.key, KeepReason[why], shard_ids(because_of or []))


def _noted(lease: Lease, children: list[int]) -> Lease:
    return Lease(
        key=lease.key,
        shard_id=lease.shard_id,
        checkpoint=lease.checkpoint,
        parents=lease.parents,
        children=frozenset(shard_ids(children)),
        stream=lease.stream,
    )
