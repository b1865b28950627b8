"""Leases of shards that only an archive still has."""

from leasehold.core.leases.lease_row import lease_from_row, lease_to_row
from leasehold.core.model import HASH_KEY_MAX, HashRange, InitialPosition, Shard, ShardId
from leasehold.core.position import AT_TIMESTAMP, TRIM_HORIZON
from leasehold.core.shards.archived_shards import ArchivedShard, plan_archived_leases, wait_for_archived
from leasehold.core.shards.lease_creation import plan_first_leases
from leasehold.core.shards.shard_graph import shard_graph


def shard(name: str, first: int, last: int) -> ArchivedShard:
    return ArchivedShard(ShardId(name), first, last)


def parents(*archived: ArchivedShard, listed: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """The parents in the planned leases, in the order of the plan."""
    plan = plan_archived_leases(archived, [ShardId(name) for name in listed], InitialPosition(TRIM_HORIZON))
    return {lease.shard_id: set(lease.parents) for lease in plan}


def test_a_shard_waits_for_those_that_ended_before_it_began() -> None:
    """A was split into b and c, which were merged into d."""
    found = parents(shard("d", 31, 40), shard("a", 1, 10), shard("c", 12, 30), shard("b", 11, 25))
    assert found == {"a": set(), "b": {"a"}, "c": {"a"}, "d": {"b", "c"}}
    assert list(found) == ["a", "b", "c", "d"]


def test_listed_shards_get_their_leases_as_always() -> None:
    assert parents(shard("a", 1, 10), shard("b", 11, 25), listed=("b",)) == {"a": set()}


def test_a_lease_begins_at_the_initial_position_and_has_no_hash_range() -> None:
    (lease,) = plan_archived_leases([shard("a", 1, 10)], [], InitialPosition(AT_TIMESTAMP, 5))
    assert (lease.checkpoint, lease.hash_range, lease.owner) == (AT_TIMESTAMP, None, None)


def first_parents(parent: str, *archived: ArchivedShard) -> set[str]:
    """The parents in the first lease of a listed shard that begins at 100, and has a parent that is not listed."""
    child = Shard(ShardId("child"), HashRange(0, HASH_KEY_MAX), "100", parents=(ShardId(parent),))
    graph = shard_graph([child])
    leases = plan_first_leases(graph, InitialPosition(TRIM_HORIZON))
    (lease,) = wait_for_archived(leases, graph, archived)
    return set(lease.parents)


def test_a_listed_shard_waits_for_archived_shards_behind_a_parent_without_records() -> None:
    """A was split into b and c. B became d, which got no records, and d became the listed child."""
    archived = shard("a", 1, 10), shard("b", 11, 25), shard("c", 12, 120)
    assert first_parents("d", *archived) == {"d", "b"}


def test_a_listed_shard_whose_parent_is_archived_waits_for_it_only() -> None:
    assert first_parents("b", shard("a", 1, 10), shard("b", 11, 25), shard("c", 12, 30)) == {"b"}


def test_a_row_contains_as_many_parents_as_an_archived_generation_had_shards() -> None:
    before = [shard(f"shardId-{number:012}", number, 500 + number) for number in range(100)]
    *_, last = plan_archived_leases([*before, shard("z", 1_000, 1_001)], [], InitialPosition(TRIM_HORIZON))
    assert last.parents == {each.id for each in before}
    assert lease_from_row(lease_to_row(last)).parents == last.parents
