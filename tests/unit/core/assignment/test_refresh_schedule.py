"""Looks are rare where word is left, and frequent where nobody would tell us anything."""

from dataclasses import replace

from leasehold.core.assignment.refresh_schedule import (
    NUDGED_WORKERS_MAX,
    NUDGES_PER_WORKER,
    RefreshIntervals,
    RefreshReason,
    leases_to_nudge,
    next_refresh_ms,
    standby_rank,
    workers_to_nudge_before_failover,
    workers_to_nudge_on_resign,
)
from leasehold.core.leases.liveness import next_observations
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import SHARD_END, Position

PACE = RefreshIntervals(
    leading_ms=4_000, nudged_ms=500, polling_ms=1_500, contact_ms_max=1_800, standby_ms=10_000
)
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def lease(key: str, owner: WorkerId | None = A, *, counter: int = 1, session: str | None = "h") -> Lease:
    """A lease that somebody of ours may be serving."""
    return Lease(
        key=LeaseKey(key),
        shard_id=ShardId(key),
        checkpoint=Position("1"),
        counter=counter,
        owner=owner,
        session=None if session is None else LeaseSessionId(session),
    )


def test_heartbeats_put_a_look_off() -> None:
    """A member whose heartbeats are answered all the time looks only to see who leads."""
    for last_response_ms in (0, 1_000, 5_000, 8_000):
        due_ms = next_refresh_ms(
            RefreshReason.STANDBY, PACE, refreshed_ms=0, last_response_ms=last_response_ms, rank=0
        )
        assert due_ms == last_response_ms + 1_800
    assert (
        next_refresh_ms(RefreshReason.STANDBY, PACE, refreshed_ms=0, last_response_ms=9_900, rank=0) == 10_000
    )


def test_who_stands_further_back_looks_more_rarely() -> None:
    """But nobody so rarely that the death of several at once leaves the fleet alone for minutes."""
    due_ms = [
        next_refresh_ms(RefreshReason.STANDBY, PACE, refreshed_ms=0, last_response_ms=90_000, rank=rank)
        for rank in range(8)
    ]
    assert due_ms == [10_000, 20_000, *([30_000] * 6)]


def test_whom_nobody_tells_looks_whatever_it_hears() -> None:
    """So do a leader and whoever was told that something is about to happen."""
    for watch, pause_ms in (
        (RefreshReason.POLLING, 1_500),
        (RefreshReason.LEADING, 4_000),
        (RefreshReason.NUDGED, 500),
    ):
        assert (
            next_refresh_ms(watch, PACE, refreshed_ms=1_000, last_response_ms=5_000, rank=3)
            == 1_000 + pause_ms
        )


def test_a_rank_is_the_place_among_those_who_stand_by() -> None:
    """The leader is not among them, and every place is somebody's."""
    workers = [WorkerId(f"w-{number}") for number in range(9)]
    standing = workers[1:]
    assert sorted(standby_rank(workers, each, workers[0]) for each in standing) == list(range(8))
    assert [standby_rank(workers, each, workers[0]) for each in standing] != list(range(8))
    assert standby_rank([], B, leader=None) == 0


def test_word_is_left_where_it_is_heard() -> None:
    """In leases that the worker holds and goes on holding; not in those of a Java member, and in few, far apart."""
    chosen = leases_to_nudge(
        [
            lease("free", None),
            lease("java", B, session=None),
            Lease(
                key=LeaseKey("done"),
                shard_id=ShardId("done"),
                checkpoint=SHARD_END,
                owner=A,
                session=LeaseSessionId("h"),
            ),
            lease("other", C),
            *(lease(f"s-{number}") for number in range(9)),
        ],
        {A, B},
    )
    assert [each.key for each in chosen] == ["s-0", "s-3", "s-6"]
    assert len(chosen) <= NUDGES_PER_WORKER


def test_a_member_with_nothing_but_finished_leases_is_nudged_there() -> None:
    """It renews them, and would otherwise learn late that a lease was assigned to it."""
    finished = replace(lease("done", A), checkpoint=SHARD_END)
    assert leases_to_nudge([finished, lease("other", B)], {A}) == [finished]
    assert leases_to_nudge([finished, lease("s-0", A)], {A}) == [lease("s-0", A)]


def test_all_others_are_alerted_when_an_owner_is_late() -> None:
    """They look often by the time its leases are given away. One that is long silent is no news."""
    leases = [lease("s-0", A), lease("s-1", B), lease("s-2", C)]
    seen = next_observations({}, leases, 0)
    assert workers_to_nudge_before_failover(leases, seen, 7_000, 10_000) == frozenset()
    living = [lease("s-0", A), lease("s-1", B, counter=2), lease("s-2", C, counter=2)]
    later = next_observations(seen, living, 7_500)
    assert workers_to_nudge_before_failover(living, later, 7_500, 10_000) == {B, C}
    assert workers_to_nudge_before_failover(living, later, 10_500, 10_000) == frozenset()


def test_a_leader_that_leaves_tells_the_others() -> None:
    """Everyone who holds a lease, but not itself; in a large fleet only some."""
    leases = [lease("s-0", A), lease("s-1", B), lease("s-2", C), lease("s-3", None)]
    assert workers_to_nudge_on_resign(leases, A) == {B, C}
    many = [lease(f"s-{number}", WorkerId(f"w-{number}")) for number in range(100)]
    assert len(workers_to_nudge_on_resign(many, A)) == NUDGED_WORKERS_MAX
