"""Our leader in the stories of a fleet: it comes to rest with few moves, and Java's finds nothing to move then."""

import random
from collections.abc import Sequence

import pytest

from benchmarks.leaders.comparison import STORIES, StoryResult, run_story, table_lines
from benchmarks.leaders.java_leader import JavaLeader
from leasehold.core.assignment.leader_assignment import LeaderLimits, LeaderView
from leasehold.core.coordinator.worker_metrics import CPU, WorkerReport
from leasehold.core.leases.liveness import next_observations
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import Position

LIMITS = LeaderLimits(failover_ms=10_000, handoff_timeout_ms=30_000)


@pytest.mark.parametrize("story", STORIES)
def test_a_fleet_comes_to_rest_with_few_moves(story: str) -> None:
    """It is even in the end; at most a tenth more leases have moved than had to, or one or two; and then none."""
    played = run_story(story, is_java=False, seed=1, workers=8, shards=80)
    assert played.even_ms is not None
    assert played.moved <= 1.1 * played.moved_least + 2
    assert played.moved_later == 0
    assert played.moved_by_other <= 1


def test_a_story_is_the_same_each_time() -> None:
    """A seed decides everything, also under the other leader."""
    first, second = (run_story("10 % lost", is_java=True, seed=3, workers=10, shards=20) for _ in range(2))
    assert first == second
    assert first.moved >= first.moved_least > 0


def test_the_table_has_a_line_for_each_leader() -> None:
    """Medians, and the worst in brackets."""
    one = StoryResult(
        story="scale-in",
        is_java=False,
        seed=1,
        even_ms=2_000,
        moved=3,
        moved_least=3,
        moved_later=0,
        moved_by_other=0,
    )
    other = StoryResult(
        story="scale-in",
        is_java=True,
        seed=1,
        even_ms=None,
        moved=9,
        moved_least=3,
        moved_later=0,
        moved_by_other=1,
    )
    assert table_lines([one, other])[2:] == [
        "| scale-in | ours | 2 s (2 s) | 3 (3) | 3 (3) | 0 (0) | 0 (0) |",
        "| scale-in | Java | never (never) | 9 (9) | 3 (3) | 0 (0) | 1 (1) |",
    ]


def java_moves(busy: dict[str, tuple[float, list[int]]], *, free: Sequence[int] = ()) -> dict[str, int]:
    """How many leases Java's leader moves to each worker, in its first run. A worker: its load, and its leases."""
    owned = [(worker, kbps) for worker, (_, leases) in busy.items() for kbps in leases]
    leases = [
        Lease(
            key=LeaseKey(f"l{number}"),
            shard_id=ShardId(f"l{number}"),
            checkpoint=Position("1"),
            owner=None if worker is None else WorkerId(worker),
            throughput_kbps=kbps,  # type: ignore[arg-type]  # a whole number will do
        )
        for number, (worker, kbps) in enumerate([*owned, *((None, kbps) for kbps in free)])
    ]
    leader = JavaLeader(random.Random(1))
    leader.lead(is_leading=True)
    view = LeaderView(
        now_ms=60_000,
        wall_s=60,
        leases=leases,
        observations=next_observations({}, leases, 60_000),
        reports=[
            WorkerReport(worker=WorkerId(worker), updated_s=60, samples={CPU: (load,)}, ranges={CPU: (100,)})
            for worker, (load, _) in busy.items()
        ],
    )
    plan = leader(view, LIMITS)
    moves = [line.to for line in plan.assign + plan.hand_off]
    return {worker: moves.count(worker) for worker in sorted(set(moves))}


def test_the_port_decides_as_java_does() -> None:
    """Worked examples of the KCL's strategy: two of its unit tests, an even fleet, an overshoot, a cold start."""
    assert java_moves({"A": (70, [100] * 7), "B": (40, [100] * 4)}) == {"B": 1}
    assert java_moves({"A": (70, [10] * 70), "B": (40, [10] * 40)}) == {"B": 8}
    assert java_moves({"A": (52, [100] * 5), "B": (50, [100] * 5), "C": (48, [100] * 5)}) == {}
    assert java_moves({"A": (12, [50, 0, 0, 0]), "B": (8, [50])}) == {"B": 3}
    cold: dict[str, tuple[float, list[int]]] = {
        "w0": (5.0, []),
        "w1": (10.0, []),
        "w2": (15.0, []),
        "w3": (10.0, []),
    }
    assert java_moves(cold, free=[0] * 8) == {"w0": 3, "w1": 2, "w2": 1, "w3": 2}
