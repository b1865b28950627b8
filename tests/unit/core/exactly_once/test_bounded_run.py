"""The leases that a bounded run may still get."""

from leasehold.core.exactly_once.bounded_run import leases_that_may_come
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position

ME, OTHER = WorkerId("me"), WorkerId("other")
PARENT, CHILD = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")


def lease(
    key: LeaseKey, owner: WorkerId | None, counter: int = 5, *, at: Position = TRIM_HORIZON, parents: str = ""
) -> Lease:
    family = frozenset({ShardId(parents)}) if parents else frozenset[ShardId]()
    shard = ShardId(key)
    return Lease(key=key, shard_id=shard, owner=owner, counter=counter, checkpoint=at, parents=family)


def test_the_run_waits_for_free_and_silent_leases() -> None:
    """No live member reads them, so this member will get them."""
    assert leases_that_may_come([lease(PARENT, None)], ME, set(), {PARENT: 5}) == {PARENT}
    assert leases_that_may_come([lease(PARENT, OTHER)], ME, set(), {PARENT: 5}) == {PARENT}
    assert leases_that_may_come([lease(PARENT, ME)], ME, set(), {PARENT: 5}) == {PARENT}


def test_the_run_does_not_wait_for_leases_that_it_reads_or_that_have_ended() -> None:
    assert not leases_that_may_come([lease(PARENT, ME)], ME, {PARENT}, {})
    assert not leases_that_may_come([lease(PARENT, None, at=SHARD_END)], ME, set(), {})


def test_a_live_member_reads_its_leases_and_their_children() -> None:
    """A child cannot begin before its parent ends."""
    family = [lease(PARENT, OTHER, 6), lease(CHILD, None, parents=PARENT)]
    assert not leases_that_may_come(family, ME, set(), {PARENT: 5, CHILD: 5})


def test_the_run_waits_for_the_children_of_its_shards() -> None:
    """The member gets them, or another member that then renews them."""
    family = [lease(PARENT, ME), lease(CHILD, None, parents=PARENT)]
    assert leases_that_may_come(family, ME, {PARENT}, {}) == {CHILD}
