"""Whether a run that reads what there is may still get something to read."""

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


def test_free_and_silent_leases_are_waited_for() -> None:
    """Nobody reads them, so they will be ours."""
    assert leases_that_may_come([lease(PARENT, None)], ME, set(), {PARENT: 5}) == {PARENT}
    assert leases_that_may_come([lease(PARENT, OTHER)], ME, set(), {PARENT: 5}) == {PARENT}
    assert leases_that_may_come([lease(PARENT, ME)], ME, set(), {PARENT: 5}) == {PARENT}


def test_what_we_read_and_what_has_ended_is_not() -> None:
    """Nothing more comes of it."""
    assert not leases_that_may_come([lease(PARENT, ME)], ME, {PARENT}, {})
    assert not leases_that_may_come([lease(PARENT, None, at=SHARD_END)], ME, set(), {})


def test_leases_of_a_living_member_and_their_children_are_that_members() -> None:
    """A child cannot begin before its parent ends."""
    family = [lease(PARENT, OTHER, 6), lease(CHILD, None, parents=PARENT)]
    assert not leases_that_may_come(family, ME, set(), {PARENT: 5, CHILD: 5})


def test_children_of_a_shard_that_we_read_are_waited_for() -> None:
    """They become ours, or another's who then shows a heartbeat."""
    family = [lease(PARENT, ME), lease(CHILD, None, parents=PARENT)]
    assert leases_that_may_come(family, ME, {PARENT}, {}) == {CHILD}
