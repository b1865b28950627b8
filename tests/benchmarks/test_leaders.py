"""Our assignment strategy balances with few moves, and Java's strategy then finds nothing to move."""

import random
from collections.abc import Sequence

import pytest

from benchmarks.leaders.comparison import CASES, CaseResult, run_case, table_lines
from benchmarks.leaders.java_leader import JavaLeader
from leasehold.core.assignment import worker_costs
from leasehold.core.assignment.leader_assignment import LeaderLimits, LeaderView
from leasehold.core.coordinator.worker_metrics import CPU, WorkerReport
from leasehold.core.leases.liveness import next_observations
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import Position

LIMITS = LeaderLimits(failover_ms=10_000, handoff_timeout_ms=30_000)


@pytest.mark.parametrize("case", CASES)
def test_a_fleet_is_balanced_with_few_moves(case: str) -> None:
    """The load becomes even. The moves exceed the lower bound by at most a tenth, or two. Then no lease moves."""
    result = run_case(case, is_java=False, seed=1, workers=8, shards=80)
    assert result.even_ms is not None
    assert result.moved <= 1.1 * result.moved_min + 2
    assert result.moved_later == 0
    assert result.moved_by_other <= 1


@pytest.mark.parametrize("workers", [2, 3])
def test_a_slow_worker_of_a_small_fleet_is_relieved(workers: int) -> None:
    """One becomes twice as slow, which no throughput shows. Within ten minutes the load is even, and stays so."""
    result = run_case("skewed CPU", is_java=False, seed=1, workers=workers, shards=10 * workers)
    assert result.even_ms is not None
    assert result.even_ms < 600_000
    assert 0 < result.moved <= result.moved_min + 2
    assert result.moved_later == 0


def test_a_leader_that_ignores_processor_use_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the load never becomes even."""
    monkeypatch.setattr(worker_costs, "WORKERS_MIN", 10**6)
    result = run_case("skewed CPU", is_java=False, seed=1, workers=2, shards=20)
    assert result.even_ms is None
    assert result.moved == 0


def test_a_case_is_the_same_each_time() -> None:
    """A seed decides everything, with Java's strategy too."""
    first, second = (run_case("10 % lost", is_java=True, seed=3, workers=10, shards=20) for _ in range(2))
    assert first == second
    assert first.moved >= first.moved_min > 0


def test_the_table_has_a_line_for_each_strategy() -> None:
    """A line has medians, and the worst values in brackets."""
    one = CaseResult(
        case="scale-in",
        is_java=False,
        seed=1,
        even_ms=2_000,
        moved=3,
        moved_min=3,
        moved_later=0,
        moved_by_other=0,
    )
    other = CaseResult(
        case="scale-in",
        is_java=True,
        seed=1,
        even_ms=None,
        moved=9,
        moved_min=3,
        moved_later=0,
        moved_by_other=1,
    )
    assert table_lines([one, other])[2:] == [
        "| scale-in | ours | 2 s (2 s) | 3 (3) | 3 (3) | 0 (0) | 0 (0) |",
        "| scale-in | Java | never (never) | 9 (9) | 3 (3) | 0 (0) | 1 (1) |",
    ]


def java_moves(busy: dict[str, tuple[float, list[int]]], *, free: Sequence[int] = ()) -> dict[str, int]:
    """Count the leases that Java's strategy moves to each worker in its first run.

    A worker is given as its load and the throughput of its leases.
    """
    owned = [(worker, kbps) for worker, (_, leases) in busy.items() for kbps in leases]
    leases = [
        Lease(
            key=LeaseKey(f"l{number}"),
            shard_id=ShardId(f"l{number}"),
            checkpoint=Position("1"),
            owner=None if worker is None else WorkerId(worker),
            throughput_kbps=kbps,  # type: ignore[arg-type]  # an int works here
        )
        for number, (worker, kbps) in enumerate([*owned, *((None, kbps) for kbps in free)])
    ]
    leader = JavaLeader(random.Random(1))
    leader.set_leading(is_leading=True)
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


def test_the_port_plans_as_java_does() -> None:
    """Examples of the KCL's strategy: two of its unit tests, an even fleet, an overshoot, a cold start."""
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
