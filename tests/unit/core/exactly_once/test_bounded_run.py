"""The leases that a bounded run may still get."""

from dataclasses import replace
from itertools import pairwise

from leasehold.core.exactly_once.bounded_run import (
    FirstSeen,
    leases_that_may_come,
    must_wait_for_parent,
    next_first_seen,
    will_create_leases,
)
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import (
    HASH_KEY_MAX,
    ChildShard,
    HashRange,
    InitialPosition,
    Lease,
    LeaseKey,
    Shard,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
)
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import MalformedRowError

ME, OTHER = WorkerId("me"), WorkerId("other")
PARENT, CHILD = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


def lease(
    key: LeaseKey, owner: WorkerId | None, counter: int = 5, *, at: Position = TRIM_HORIZON, parents: str = ""
) -> Lease:
    family = frozenset({ShardId(parents)}) if parents else frozenset[ShardId]()
    shard = ShardId(key)
    return Lease(key=key, shard_id=shard, owner=owner, counter=counter, checkpoint=at, parents=family)


def seen(*keys: LeaseKey) -> dict[LeaseKey, FirstSeen]:
    """These leases belonged to the other member, with counter 5, when they were first seen."""
    return {key: FirstSeen(OTHER, 5) for key in keys}


def test_the_run_waits_for_free_and_silent_leases() -> None:
    """No live member reads them, so this member will get them."""
    assert leases_that_may_come([lease(PARENT, None)], ME, set(), seen(PARENT)) == {PARENT}
    assert leases_that_may_come([lease(PARENT, OTHER)], ME, set(), seen(PARENT)) == {PARENT}
    assert leases_that_may_come([lease(PARENT, ME)], ME, set(), seen(PARENT)) == {PARENT}


def test_the_run_does_not_wait_for_leases_that_it_reads_or_that_have_ended() -> None:
    assert not leases_that_may_come([lease(PARENT, ME)], ME, {PARENT}, {})
    assert not leases_that_may_come([lease(PARENT, None, at=SHARD_END)], ME, set(), {})


def test_a_live_member_reads_its_leases_and_their_children() -> None:
    """A child cannot begin before its parent ends."""
    family = [lease(PARENT, OTHER, 6), lease(CHILD, None, parents=PARENT)]
    assert not leases_that_may_come(family, ME, set(), seen(PARENT, CHILD))


def test_the_run_waits_for_the_children_of_its_shards() -> None:
    """The member gets them, or another member that then renews them."""
    family = [lease(PARENT, ME), lease(CHILD, None, parents=PARENT)]
    assert leases_that_may_come(family, ME, {PARENT}, {}) == {CHILD}


def test_the_run_waits_for_a_shard_whose_parent_has_ended() -> None:
    """Whether the lease of the parent is kept or deleted."""
    child = lease(CHILD, None, parents=PARENT)
    assert leases_that_may_come([child], ME, set(), {}) == {CHILD}
    assert leases_that_may_come([lease(PARENT, None, at=SHARD_END), child], ME, set(), {}) == {CHILD}


def test_the_run_does_not_wait_for_the_children_of_a_shard_that_it_leaves_to_the_next_run() -> None:
    """They were created after its tip was read, so they have no record that existed when the run began."""
    family = [lease(PARENT, ME), lease(CHILD, None, parents=PARENT)]
    assert not leases_that_may_come(family, ME, {PARENT}, {}, {ShardId(PARENT)})


def test_an_end_waits_for_the_lease_of_the_other_parent() -> None:
    """Not if the merged child has a lease, or if the row of the parent exists and cannot be parsed."""
    other = LeaseKey("shardId-000000000007")
    merged = [ChildShard(ShardId(CHILD), (ShardId(PARENT), ShardId(other)), HashRange(0, 9))]
    assert must_wait_for_parent(merged, LeaseListing((lease(PARENT, ME),)))
    assert not must_wait_for_parent(merged, LeaseListing((lease(PARENT, ME), lease(other, None))))
    assert not must_wait_for_parent(merged, LeaseListing((lease(PARENT, ME), lease(CHILD, None))))
    unreadable = MalformedRowError(other, "damaged")
    assert not must_wait_for_parent(merged, LeaseListing((lease(PARENT, ME),), (unreadable,)))


EVERY_KEY = HashRange(0, HASH_KEY_MAX)
CHILD_ONLY = shard_graph([Shard(ShardId(CHILD), EVERY_KEY, "10", None, (ShardId(PARENT),))])
FAMILY = shard_graph([Shard(ShardId(PARENT), EVERY_KEY, "1", "9"), *CHILD_ONLY.shards.values()])
FROM_START = InitialPosition(TRIM_HORIZON)


def test_the_run_waits_for_leases_that_an_audit_will_create() -> None:
    """The parent was trimmed before it was read, and its end has named no child."""
    ended = LeaseListing((replace(lease(PARENT, ME, at=SHARD_END), hash_range=EVERY_KEY),))
    assert will_create_leases(ended, CHILD_ONLY, FROM_START)


def test_the_run_does_not_wait_for_leases_that_nobody_creates() -> None:
    """The child exists, or its parent is still read."""
    whole = replace(lease(PARENT, ME), hash_range=EVERY_KEY)
    assert not will_create_leases(LeaseListing((whole,)), FAMILY, FROM_START)
    child = replace(lease(CHILD, ME, parents=PARENT), hash_range=EVERY_KEY)
    assert not will_create_leases(LeaseListing((child,)), FAMILY, FROM_START)


def test_the_run_does_not_wait_for_leases_below_a_row_that_cannot_be_parsed() -> None:
    """The hash keys have no lease, but no audit creates one before the row is mended."""
    damaged = (MalformedRowError(PARENT, "damaged"),)
    assert not will_create_leases(LeaseListing((), damaged), FAMILY, FROM_START)
    other = LeaseKey("shardId-000000000007")
    ended = replace(lease(other, ME, at=SHARD_END), hash_range=EVERY_KEY)
    assert not will_create_leases(LeaseListing((ended,), damaged), FAMILY, FROM_START)


def test_a_list_of_shards_from_the_middle_of_a_reshard_does_not_fail_the_run() -> None:
    """The run asks only whether to wait; the next list shows the children as they are."""
    low, high = HashRange(0, HASH_KEY_MAX // 2), HashRange(HASH_KEY_MAX // 2 + 1, HASH_KEY_MAX)
    other = ShardId("shardId-000000000007")
    graph = shard_graph(
        [
            Shard(ShardId(PARENT), low, "1"),
            Shard(ShardId(CHILD), low, "10", None, (ShardId(PARENT),)),
            Shard(other, high, "1"),
        ]
    )
    read = replace(lease(PARENT, ME), hash_range=low)
    assert will_create_leases(LeaseListing((read,)), graph, FROM_START), "the other shard has no lease"
    both = (read, replace(lease(LeaseKey(other), ME), hash_range=high))
    assert not will_create_leases(LeaseListing(both), graph, FROM_START)


def test_many_reshards_cost_little() -> None:
    """Each ancestor is visited once, although splits and merges connect two shards in 2**30 ways."""
    merges = [ShardId(f"merge-{number}") for number in range(31)]
    family = [lease(LeaseKey(merges[0]), ME)]
    for above, below in pairwise(merges):
        halves = frozenset({ShardId(f"{below}-left"), ShardId(f"{below}-right")})
        family += [lease(LeaseKey(half), None, parents=above) for half in sorted(halves)]
        family.append(replace(lease(LeaseKey(below), None), parents=halves))
    coming = leases_that_may_come(family, ME, {LeaseKey(merges[0])}, {})
    assert coming == {each.key for each in family[1:]}


def test_a_lease_that_is_assigned_to_a_dead_member_may_come() -> None:
    """The leader has increased the counter, not the owner. The owner itself increases it with its first heartbeat."""
    first = next_first_seen({}, [lease(PARENT, None, 2)])
    assigned = lease(PARENT, OTHER, 3)
    then = next_first_seen(first, [assigned])
    assert leases_that_may_come([assigned], ME, set(), then) == {PARENT}
    renewed = lease(PARENT, OTHER, 4)
    assert not leases_that_may_come([renewed], ME, set(), next_first_seen(then, [renewed]))


def test_leases_of_another_stream_with_the_same_shard_ids_say_nothing() -> None:
    """Neither about the other parent of a merge, nor about hash keys without a lease."""
    orders, returns = StreamIdentifier("1:orders:17"), StreamIdentifier("1:returns:17")
    other = LeaseKey("shardId-000000000007")
    merged = [ChildShard(ShardId(CHILD), (ShardId(PARENT), ShardId(other)), HashRange(0, 9))]

    def leased(key: LeaseKey, stream: StreamIdentifier) -> Lease:
        prefixed = lease_key(ShardId(key), stream)
        return replace(lease(key, ME), key=prefixed, stream=stream, hash_range=EVERY_KEY)

    listing = LeaseListing((leased(PARENT, orders), leased(other, returns)))
    assert must_wait_for_parent(merged, listing, orders)
    ended = replace(leased(PARENT, orders), checkpoint=SHARD_END)
    listing = LeaseListing((ended, leased(CHILD, returns)))
    assert will_create_leases(listing, CHILD_ONLY, FROM_START, orders)
    assert not will_create_leases(listing, CHILD_ONLY, FROM_START, returns)
