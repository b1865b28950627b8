"""Families of shards: what the scenario files cannot say, or would say at too great a length."""

from dataclasses import replace

import pytest

from leasehold.core.model import (
    WHOLE_HASH_RANGE,
    Lease,
    LeaseKey,
    Shard,
    ShardId,
    StreamIdentifier,
    lease_key,
)
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.shard_graph import format_shard_ids, shard_graph, unfinished_parents
from leasehold.errors import ShardListError

DEEP = 10_000


def shard(number: int, *parents: int, open_: bool = False) -> Shard:
    ids = tuple(ShardId(f"s-{parent}") for parent in parents)
    return Shard(ShardId(f"s-{number}"), WHOLE_HASH_RANGE, str(number), None if open_ else "9", ids)


def test_a_shard_listed_twice_counts_once() -> None:
    """Two pages may overlap; the same shard on both is one shard."""
    assert shard_graph([shard(0), shard(1, 0), shard(0)]) == shard_graph([shard(0), shard(1, 0)])


def test_two_versions_of_a_shard_are_refused() -> None:
    """A shard that was closed between two pages makes the list one of two moments."""
    with pytest.raises(
        ShardListError, match=r"s-0 is listed twice with different contents \(closed.*; open.*list again"
    ):
        shard_graph([shard(0), replace(shard(0), ending_sequence_number=None)])


def test_a_parent_named_twice_is_one_parent() -> None:
    """A list may give the same shard as parent and as adjacent parent; it is one tie in both directions."""
    graph = shard_graph([shard(0), shard(1, 0, 0)])
    assert (graph.parents_of(ShardId("s-1")), graph.children_of(ShardId("s-0"))) == (("s-0",), ("s-1",))


def test_ten_thousand_generations() -> None:
    """A chain far deeper than Python's stack is walked in both directions."""
    chain = [shard(i, *([i - 1] if i else [])) for i in range(DEEP)]
    graph = shard_graph(reversed(chain))
    everyone = frozenset(each.id for each in chain)
    assert graph.parents_first == tuple(each.id for each in chain)
    assert graph.upward_from([chain[-1].id]) == everyone
    assert graph.downward_from([chain[0].id]) == everyone


def test_a_ring_of_ten_thousand_is_named_briefly() -> None:
    """A hostile list cannot make a message of any length."""
    ring = [shard(i, (i + 1) % DEEP) for i in range(DEEP)]
    with pytest.raises(
        ShardListError, match=r"10000 shards are their own ancestors .* and 9992 more\)"
    ) as raised:
        shard_graph(ring)
    assert len(str(raised.value)) < 400


def test_hostile_ids_are_made_harmless_in_messages() -> None:
    """Control characters in an id do not reach a terminal."""
    assert format_shard_ids([ShardId("s-\x1b[2J\n")]) == r"s-\x1b[2J\n"


def test_a_walk_up_stops_at_what_it_avoids() -> None:
    """What lies behind an avoided shard is not reached, unless there is another way."""
    graph = shard_graph([shard(0), shard(1, 0), shard(2, 0), shard(3, 1, 2), shard(4, 1)])
    by_number = {int(each[2:]): each for each in graph.shards}
    above = {each: graph.upward_from([by_number[each]], avoiding={by_number[1]}) for each in (3, 4)}
    assert above == {3: {by_number[n] for n in (3, 2, 0)}, 4: {by_number[4]}}


def test_walks_ignore_what_is_not_listed() -> None:
    """A lease of a trimmed shard is no place to walk from."""
    graph = shard_graph([shard(1, 0)])
    stale = [ShardId("s-0")]
    assert (graph.upward_from(stale), graph.downward_from(stale)) == (frozenset(), frozenset())


def lease(number: int, at: Position, *parents: int, stream: StreamIdentifier | None = None) -> Lease:
    shard_id = ShardId(f"s-{number}")
    named = frozenset(ShardId(f"s-{parent}") for parent in parents)
    return Lease(
        key=lease_key(shard_id, stream), shard_id=shard_id, checkpoint=at, parents=named, stream=stream
    )


def table(*leases: Lease) -> dict[LeaseKey, Lease]:
    return {each.key: each for each in leases}


def test_a_merge_child_waits_for_both_parents() -> None:
    """One parent that is still being read is enough to wait, and it is named."""
    child = lease(2, TRIM_HORIZON, 0, 1)
    assert unfinished_parents(child, table(lease(0, SHARD_END), lease(1, Position("7")))) == ("s-1",)
    assert unfinished_parents(child, table(lease(0, Position("3")), lease(1, Position("7")))) == (
        "s-0",
        "s-1",
    )
    assert unfinished_parents(child, table(lease(0, SHARD_END), lease(1, SHARD_END))) == ()


def test_a_parent_without_a_lease_holds_nobody_up() -> None:
    """It was trimmed, or finished and cleaned away."""
    assert unfinished_parents(lease(2, TRIM_HORIZON, 0, 1), table(lease(1, SHARD_END))) == ()


def test_parents_are_looked_up_in_the_same_stream() -> None:
    """In multi-stream mode a shard of the same name elsewhere is not the parent."""
    orders, clicks = StreamIdentifier("1:orders:1"), StreamIdentifier("1:clicks:1")
    child, elsewhere = lease(1, TRIM_HORIZON, 0, stream=orders), lease(0, Position("7"), stream=clicks)
    assert unfinished_parents(child, table(elsewhere)) == ()
    assert unfinished_parents(child, table(elsewhere, lease(0, Position("7"), stream=orders))) == ("s-0",)
