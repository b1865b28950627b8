"""Since when a lease is unchanged, in handoff or assigned, as one member sees it, and whom it hands leases to."""

from dataclasses import replace

import pytest

from leasehold.core.leases.liveness import (
    Observation,
    Observations,
    active_owners,
    next_observations,
    pick_other_reader,
    unchanged_for_ms,
    was_just_assigned,
)
from leasehold.core.model import (
    Lease,
    LeaseKey,
    LeaseSessionId,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
)
from leasehold.core.position import TRIM_HORIZON, Position

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
FIRST, SECOND = LeaseSessionId("session-1"), LeaseSessionId("session-2")
ORDERS, RETURNS = StreamIdentifier("1:orders:1700000000"), StreamIdentifier("1:returns:1700000000")
LATER = Position("100")
FAILOVER_MS = 10_000


def lease_of(owner: WorkerId | None, shard: str = "s-1", stream: StreamIdentifier | None = None) -> Lease:
    key = lease_key(ShardId(shard), stream)
    return Lease(
        key=key,
        shard_id=ShardId(shard),
        checkpoint=TRIM_HORIZON,
        counter=7,
        owner=owner,
        session=FIRST,
        stream=stream,
    )


HELD = lease_of(A)
IN_HANDOFF = replace(HELD, owner=B, checkpoint_owner=A)


def observe(*leases: Lease, every_ms: int = 1_000) -> Observation:
    """What a member knows after it has seen these versions of one lease, a second apart, the first at 1,000 ms."""
    seen: Observations = {}
    for number, lease in enumerate(leases, start=1):
        seen = next_observations(seen, [lease], number * every_ms)
    return seen[leases[0].key]


@pytest.mark.parametrize(
    ("then", "since_ms"),
    [
        pytest.param(HELD, 1_000, id="nothing"),
        pytest.param(replace(HELD, counter=8), 2_000, id="a heartbeat"),
        pytest.param(replace(HELD, counter=3), 2_000, id="a row that was created again"),
        pytest.param(replace(HELD, owner=B), 2_000, id="another owner"),
        pytest.param(replace(HELD, owner=None), 2_000, id="a release"),
        pytest.param(IN_HANDOFF, 2_000, id="a requested handoff"),
        pytest.param(replace(HELD, checkpoint_owner=A), 2_000, id="a handoff to the owner itself"),
        pytest.param(
            replace(HELD, session=SECOND), 2_000, id="a row that was created again, with this counter"
        ),
        pytest.param(replace(HELD, checkpoint=LATER), 2_000, id="the same in the row of a Java member"),
        pytest.param(replace(HELD, nudge="n"), 1_000, id="a nudge is no heartbeat"),
    ],
)
def test_a_change_of_counter_or_owners_shows_that_a_lease_lives(then: Lease, since_ms: int) -> None:
    """The time since the last change decides who is silent. A row that was created again begins to count anew, so its
    counter may be the one that was seen before.
    """
    assert observe(HELD, then).unchanged_since_ms == since_ms


def test_silence_is_counted_from_the_last_change() -> None:
    """A lease that is seen for the first time counts as just changed, and a deleted one is forgotten."""
    other = lease_of(B, "s-2")
    seen = next_observations({}, [HELD], 1_000)
    seen = next_observations(seen, [HELD, other], 5_000)
    assert unchanged_for_ms(seen, HELD.key, 6_000) == 5_000
    assert unchanged_for_ms(seen, other.key, 6_000) == 1_000
    assert next_observations(seen, [other], 7_000).keys() == {other.key}


@pytest.mark.parametrize(
    ("versions", "since_ms"),
    [
        pytest.param([HELD], None, id="no handoff"),
        pytest.param([HELD, IN_HANDOFF], 2_000, id="requested"),
        pytest.param([IN_HANDOFF], 1_000, id="found in handoff"),
        pytest.param([HELD, IN_HANDOFF, replace(IN_HANDOFF, counter=8)], 2_000, id="the old owner renews"),
        pytest.param([IN_HANDOFF, replace(IN_HANDOFF, owner=C)], 2_000, id="requested for another member"),
        pytest.param(
            [IN_HANDOFF, replace(IN_HANDOFF, checkpoint_owner=C)], 2_000, id="requested from another member"
        ),
        pytest.param([IN_HANDOFF, replace(HELD, owner=B, counter=8)], None, id="completed"),
        pytest.param([IN_HANDOFF, HELD, IN_HANDOFF], 3_000, id="declined and requested again"),
        pytest.param([IN_HANDOFF, replace(IN_HANDOFF, session=SECOND)], 2_000, id="of a row created again"),
    ],
)
def test_a_handoff_is_overdue_from_its_own_request_on(versions: list[Lease], since_ms: int | None) -> None:
    """Heartbeats of the old owner do not prolong it."""
    assert observe(*versions).handoff_since_ms == since_ms


@pytest.mark.parametrize(
    ("versions", "assigned_ms"),
    [
        pytest.param([HELD], None, id="first seen"),
        pytest.param([HELD, replace(HELD, counter=8)], None, id="renewed"),
        pytest.param([HELD, replace(HELD, owner=B, session=None)], 2_000, id="assigned"),
        pytest.param([HELD, replace(HELD, owner=B)], 2_000, id="assigned by Java, which keeps the session"),
        pytest.param([HELD, replace(HELD, owner=B, session=SECOND)], None, id="taken"),
        pytest.param([HELD, IN_HANDOFF], None, id="in handoff the old owner serves it"),
        pytest.param([IN_HANDOFF, replace(HELD, owner=B, session=None)], 2_000, id="handed over"),
        pytest.param([HELD, *[replace(HELD, owner=B, session=None)] * 2], 2_000, id="assigned a while ago"),
    ],
)
def test_an_assignment_is_noticed_until_the_new_owner_begins(
    versions: list[Lease], assigned_ms: int | None
) -> None:
    """A new session was written by the new owner."""
    assert observe(*versions).assigned_ms == assigned_ms


def test_a_heartbeat_ends_the_time_in_which_a_lease_counts_as_just_assigned() -> None:
    """From then on its owner is judged by its heartbeats."""
    assigned = replace(HELD, owner=B, session=None)
    seen = {HELD.key: observe(HELD, assigned)}
    assert was_just_assigned(seen, HELD.key)
    begun = next_observations(seen, [replace(assigned, counter=8, session=SECOND)], 3_000)
    assert not was_just_assigned(begun, HELD.key)
    assert not was_just_assigned({HELD.key: observe(HELD)}, HELD.key)


def living(*leases: Lease) -> dict[LeaseKey, Observation]:
    return dict(next_observations({}, leases, 1_000))


def pick(
    seen: Observations, *, stream: StreamIdentifier | None = None, now_ms: int = 1_000
) -> WorkerId | None:
    return pick_other_reader(seen, stream, A, now_ms=now_ms, failover_ms=FAILOVER_MS)


def test_the_other_reader_with_the_fewest_leases_is_picked() -> None:
    """Never this member itself, and never a free lease."""
    free, mine = lease_of(None, "s-0"), lease_of(A, "s-1")
    busy = [lease_of(B, "s-2"), lease_of(B, "s-3")]
    assert pick(living(free, mine)) is None
    assert pick(living(free, mine, *busy)) == B
    assert pick(living(free, mine, *busy, lease_of(C, "s-4"))) == C


def test_the_reader_of_a_lease_in_handoff_is_its_old_owner() -> None:
    """The next owner may not run yet."""
    assert pick(living(replace(lease_of(C), checkpoint_owner=B))) == B


def test_a_silent_reader_is_not_picked() -> None:
    """One that renewed its lease exactly one failover time ago still counts."""
    seen = living(lease_of(B))
    assert pick(seen, now_ms=1_000 + FAILOVER_MS) == B
    assert pick(seen, now_ms=1_001 + FAILOVER_MS) is None


def test_a_reader_that_has_not_begun_is_not_picked() -> None:
    """A lease was assigned to it, and it may not run."""
    assigned = next_observations(living(lease_of(C)), [replace(lease_of(B), session=None)], 2_000)
    assert pick(assigned, now_ms=2_000) is None


def test_only_readers_of_the_same_stream_are_picked() -> None:
    """A member may read some of the streams only."""
    seen = living(lease_of(B, "s-1", ORDERS), lease_of(C, "s-1", RETURNS))
    assert pick(seen, stream=ORDERS) == B
    assert pick(seen, stream=RETURNS) == C
    assert pick(seen) is None


def test_an_owner_is_active_for_the_failover_time_after_its_last_write() -> None:
    """The worker that gives a lease by handoff is still its reader. A lease without an owner shows none."""
    seen = next_observations(
        {}, [HELD, replace(lease_of(C, "s-2"), owner=C, checkpoint_owner=B), lease_of(None, "s-3")], 1_000
    )
    for now_ms, active in ((1_000, {A, B}), (1_000 + FAILOVER_MS, {A, B}), (1_001 + FAILOVER_MS, set())):
        assert active_owners(seen, now_ms=now_ms, failover_ms=FAILOVER_MS) == active
