"""What a member helps itself to though another leads."""

from decimal import Decimal

import pytest

from leasehold.core.assignment.leader_assignment import Assignment, LeaderLimits, LeaderView, plan_assignment
from leasehold.core.assignment.unassigned_leases import UNASSIGNED_FAILOVERS, unassigned_leases
from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.leases.liveness import Observations, next_observations
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import Position

ME, LEADER = WorkerId("me"), WorkerId("leader")
FAILOVER_MS = 10_000
LATE_MS = UNASSIGNED_FAILOVERS * FAILOVER_MS + 1
WALL_S = 1_700_000_000


def lease(key: str, owner: WorkerId | None = None, kbps: int = 100) -> Lease:
    """A lease; whoever owns it holds it."""
    session = None if owner is None else LeaseSessionId(f"of {owner}")
    return Lease(
        key=LeaseKey(key),
        shard_id=ShardId(key),
        checkpoint=Position("1"),
        owner=owner,
        session=session,
        throughput_kbps=Decimal(kbps),
    )


def taken(
    leases: list[Lease], *, now_ms: int = LATE_MS, busy: frozenset[LeaseKey] = frozenset(), draw: float = 0.0
) -> list[LeaseKey]:
    """What we take of leases that we would give away, all of them seen at 0 and never since."""
    neglected = unassigned_leases(
        [Assignment(each, LEADER) for each in leases],
        next_observations({}, leases, 0),
        me=ME,
        busy=busy,
        now_ms=now_ms,
        failover_ms=FAILOVER_MS,
        draw=draw,
    )
    return [each.key for each in neglected]


def test_a_leader_is_given_time() -> None:
    """Even a slow one: nothing is taken before."""
    assert not taken([lease("a")], now_ms=LATE_MS - 1)
    assert taken([lease("a"), lease("b", WorkerId("dead"))], now_ms=LATE_MS) == ["a"]


def test_what_we_have_or_let_rest_is_not_neglected() -> None:
    """Nor what is ours already, which is begun in another way."""
    assert not taken([lease("a")], busy=frozenset({LeaseKey("a")}))
    assert not taken([lease("a", ME)])


@pytest.mark.parametrize(("draw", "part"), [(0.0, "ab"), (0.5, "ef"), (0.99, "ha")])
def test_others_should_have_some_too(draw: float, part: str) -> None:
    """A quarter in each look, beginning where the lot falls."""
    assert taken([lease(key) for key in "hgfedcba"], draw=draw) == list(part)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (LeaderLimits(failover_ms=FAILOVER_MS, handoff_timeout_ms=30_000), ["free"]),
        (LeaderLimits(failover_ms=FAILOVER_MS, handoff_timeout_ms=30_000, kbps_max=90), []),
        (LeaderLimits(failover_ms=FAILOVER_MS, handoff_timeout_ms=30_000, leases_max=1), []),
    ],
    ids=["neglected", "max_kbps", "max_leases"],
)
def test_what_a_leader_leaves_free_for_want_of_room_stays_free(
    limits: LeaderLimits, expected: list[str]
) -> None:
    """Everybody has as much as may be: in the leader's place we would not give it away either."""
    busy = [lease("mine", ME), lease("the leader's", LEADER)]
    leases = [*busy, lease("free")]
    observations: Observations = {
        **next_observations({}, leases, 0),
        **next_observations({}, busy, LATE_MS),  # these are renewed
    }
    view = LeaderView(
        now_ms=LATE_MS,
        wall_s=WALL_S,
        leases=leases,
        observations=observations,
        reports=[WorkerReport(worker=worker, updated_s=WALL_S) for worker in (ME, LEADER)],
    )
    neglected = unassigned_leases(
        plan_assignment(view, limits).assign,
        observations,
        me=ME,
        busy=frozenset({LeaseKey("mine")}),
        now_ms=LATE_MS,
        failover_ms=FAILOVER_MS,
        draw=0.3,
    )
    assert [each.key for each in neglected] == expected
