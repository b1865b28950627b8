"""Which workers a leader assigns leases to."""

from leasehold.core.assignment.leader_assignment import (
    LeaderLimits,
    LeaderMemory,
    LeaderView,
    plan_assignment,
)
from leasehold.core.assignment.move_cooldowns import RecentMove, RecentMoves
from leasehold.core.assignment.worker_health import WorkerHistory
from leasehold.core.coordinator.worker_metrics import CPU, WorkerReport
from leasehold.core.leases.liveness import next_observations
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import Position

A, B = WorkerId("A"), WorkerId("B")
KEY = LeaseKey("shard-1")
LIMITS = LeaderLimits(failover_ms=10_000, handoff_timeout_ms=30_000)


def _members(moved: RecentMoves) -> set[WorkerId]:
    """Return the members after B has got the only lease of A, and A has not reported since."""
    lease = Lease(key=KEY, shard_id=ShardId(KEY), checkpoint=Position("1"), owner=B, counter=7)
    histories = {
        A: WorkerHistory(updated_s=100, last_report_ms=100_000, leases=frozenset({KEY})),
        B: WorkerHistory(updated_s=100, last_report_ms=100_000),
    }
    view = LeaderView(
        now_ms=110_000,
        wall_s=110,
        leases=[lease],
        observations=next_observations({}, [lease], 110_000),
        reports=[
            WorkerReport(worker=each, updated_s=100, samples={CPU: (10.0,)}, ranges={CPU: (100,)})
            for each in (A, B)
        ],
        memory=LeaderMemory(workers=histories, moved=moved),
    )
    return set(plan_assignment(view, LIMITS).memory.members)


def test_a_worker_that_gave_its_last_lease_stays_a_member() -> None:
    """Otherwise it would get no lease until its next report, and nothing would move for 45 seconds twice."""
    assert _members({KEY: RecentMove(109_000)}) == {A, B}


def test_a_worker_whose_last_lease_another_leader_took_is_a_suspect() -> None:
    """That leader may have found it dead."""
    assert _members({}) == {B}
