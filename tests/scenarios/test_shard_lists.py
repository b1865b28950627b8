"""Runs shard_lists/*.json: how a list of shards is understood, and which lists are refused.

`given.shards`: the list. `expect`: its `roots`, `open` shards, `unexpected_children` (beside an open parent)
and `missing_parents`, or the error.
"""

import pytest

from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import ShardListError
from tests.scenarios.scenario_files import Scenario, only, scenarios
from tests.scenarios.stream_files import shard, shard_ids


@scenarios("shard_lists")
def test_shard_list(scenario: Scenario) -> None:
    """A list is understood as the file says, or refused with the error that it says."""
    listed = [shard(*each) for each in only(scenario.given, required=["shards"])["shards"].items()]
    if "error" in scenario.expect:
        with pytest.raises(ShardListError, match=only(scenario.expect, required=["error"])["error"]):
            shard_graph(listed)
        return
    expect = only(scenario.expect, required=["roots", "open", "unexpected_children", "missing_parents"])
    graph = shard_graph(listed)
    missing = (graph.missing_parents_of(shard.id) for shard in listed)
    assert tuple(shard.id for shard in graph.roots) == shard_ids(expect["roots"])
    assert tuple(shard.id for shard in graph.open_shards) == shard_ids(expect["open"])
    assert tuple(sorted(graph.unexpected_children)) == shard_ids(expect["unexpected_children"])
    assert sorted({parent for each in missing for parent in each}) == list(
        shard_ids(expect["missing_parents"])
    )
