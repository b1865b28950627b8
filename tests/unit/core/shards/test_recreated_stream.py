"""Leases of an earlier stream with the same name are recognised by facts that never change for a shard."""

from dataclasses import replace

import pytest

from leasehold.core.model import (
    HASH_KEY_MAX,
    WHOLE_HASH_RANGE,
    HashRange,
    Lease,
    Pin,
    Shard,
    ShardId,
    StreamIdentifier,
    lease_key,
)
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.recreated_stream import find_contradictions, plan_start_over
from leasehold.core.shards.shard_graph import shard_graph

LOW, HIGH = HashRange(0, 99), HashRange(100, HASH_KEY_MAX)
SHARD = Shard(ShardId("s-0"), WHOLE_HASH_RANGE, "1000")
CLOSED = replace(SHARD, ending_sequence_number="2000")


def lease(checkpoint: Position, shard: Shard = SHARD, **more: object) -> Lease:
    base = Lease(
        key=lease_key(shard.id), shard_id=shard.id, checkpoint=checkpoint, hash_range=shard.hash_range
    )
    return replace(base, **more)  # type: ignore[arg-type] # attributes of a lease


@pytest.mark.parametrize(
    ("shard", "its_lease"),
    [
        (SHARD, lease(Position("1000"))),
        (SHARD, lease(Position("1001", 7))),
        (SHARD, lease(Position("99999"))),
        (SHARD, lease(TRIM_HORIZON)),
        (SHARD, lease(LATEST)),
        (SHARD, lease(AT_TIMESTAMP)),
        (SHARD, lease(TRIM_HORIZON, pin=Pin(Position("1001")))),
        (SHARD, lease(TRIM_HORIZON, hash_range=None)),
        (CLOSED, lease(SHARD_END)),
        # Some servers show an ending number that is too small.
        (CLOSED, lease(Position("99999"))),
        # A trimmed shard is not listed any more.
        (SHARD, lease(Position("5"), Shard(ShardId("s-9"), LOW, "1"))),
        (SHARD, lease(Position("5"), stream=StreamIdentifier("1:other:1"))),
    ],
)
def test_normal_leases_contradict_nothing(shard: Shard, its_lease: Lease) -> None:
    """Reshards, trimming and idle shards change none of the facts."""
    assert find_contradictions([shard], [its_lease]) == ()


@pytest.mark.parametrize(
    ("its_lease", "fact"),
    [
        (lease(Position("999")), "position 999 of s-0 lies before the start of this shard, 1000"),
        (lease(Position("999", 3)), "lies before the start"),
        (lease(TRIM_HORIZON, pin=Pin(Position("999"))), "lies before the start"),
        (lease(TRIM_HORIZON, hash_range=LOW), "has hash keys 0..99, the shard has 0.."),
        (lease(SHARD_END), "s-0 was read to its end, but is open"),
    ],
)
def test_a_lease_of_an_earlier_stream_is_recognised(its_lease: Lease, fact: str) -> None:
    """The fact is part of the error message."""
    (found,) = find_contradictions([SHARD], [its_lease])
    assert fact in found.fact
    assert found.is_certain


def test_an_end_with_children_is_not_certain() -> None:
    """The list of shards may be older than the reshard."""
    ended = lease(SHARD_END, children=frozenset({ShardId("s-1"), ShardId("s-2")}))
    (found,) = find_contradictions([SHARD], [ended])
    assert not found.is_certain


def test_a_start_over_skips_no_record_of_the_new_stream() -> None:
    """New shards get leases first. The leases that show the recreation restart last."""
    shards = {
        name: Shard(ShardId(name), HashRange(100 * number, 100 * number + 99), "1000")
        for number, name in enumerate(("evidence", "latest", "ended", "read", "untouched"))
    }
    shards["new"] = Shard(ShardId("new"), HashRange(500, HASH_KEY_MAX), "1000")
    shards["ended"] = replace(shards["ended"], ending_sequence_number="2000")
    leases = [
        lease(Position("5"), shards["evidence"]),
        lease(LATEST, shards["latest"]),
        lease(SHARD_END, shards["ended"]),
        lease(Position("1005"), shards["read"]),
        lease(TRIM_HORIZON, shards["untouched"]),
        lease(Position("5"), Shard(ShardId("not-listed"), LOW, "1")),
    ]
    found = find_contradictions(shards.values(), leases)
    assert [each.lease.key for each in found] == ["evidence"]
    plan = plan_start_over(shard_graph(shards.values()), leases, found)
    assert [(each.key, each.checkpoint) for each in plan.create] == [("new", TRIM_HORIZON)]
    assert [each.key for each, _ in plan.restart] == ["ended", "latest", "evidence"]


def test_a_parent_whose_earlier_lease_was_cleaned_up_gets_one_again() -> None:
    """Its children have leases of the earlier stream, in which the parent was finished. The new parent was not read."""
    parent = replace(CLOSED, ending_sequence_number="1999")
    children = [
        Shard(ShardId("s-1"), LOW, "2000", parents=(parent.id,)),
        Shard(ShardId("s-2"), HIGH, "2000", parents=(parent.id,)),
    ]
    graph = shard_graph([parent, *children])
    old = [lease(Position("5"), child, parents=frozenset({parent.id})) for child in children]
    plan = plan_start_over(graph, old, find_contradictions(graph.shards.values(), old))
    assert [each.shard_id for each in plan.create] == [parent.id]
    assert len(plan.restart) == 2


def test_a_parent_that_was_finished_in_the_new_stream_gets_no_lease() -> None:
    """One child has been read in the new stream; an interrupted start over is continued for the other one."""
    parent = replace(CLOSED, ending_sequence_number="1999")
    children = [
        Shard(ShardId("s-1"), LOW, "2000", parents=(parent.id,)),
        Shard(ShardId("s-2"), HIGH, "2000", parents=(parent.id,)),
    ]
    graph = shard_graph([parent, *children])
    parents = frozenset({parent.id})
    leases = [
        lease(Position("2005"), children[0], parents=parents),
        lease(Position("5"), children[1], parents=parents),
    ]
    plan = plan_start_over(graph, leases, find_contradictions(graph.shards.values(), leases))
    assert plan.create == ()
    assert [each.shard_id for each, _ in plan.restart] == [ShardId("s-2")]
