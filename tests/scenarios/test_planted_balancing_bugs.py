"""Planted bugs of balancing: each is a small patch of the leader's decision, and a scenario notices it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from leasehold.core.assignment import leader_assignment, move_cooldowns, rebalancing, worker_costs
from leasehold.core.assignment.rebalancing import Balancing
from leasehold.core.assignment.worker_costs import WorkerCost
from leasehold.core.assignment.worker_health import WorkerHealth
from leasehold.core.coordinator.worker_metrics import WorkerReport
from tests.scenarios.scenario_files import HERE, Scenario, read
from tests.scenarios.test_leader import test_leader as check_one_decision
from tests.scenarios.test_leader_over_time import test_leader_over_time as check_over_time

CHECKS: dict[str, Callable[[Scenario], None]] = {
    "leader": check_one_decision,
    "leader_over_time": check_over_time,
}
ORIGINAL_UNEVEN, ORIGINAL_FIGURES = rebalancing.is_uneven, WorkerReport.figures


@dataclass(frozen=True)
class PlantedBug:
    """What is patched, and the scenario that notices it."""

    name: str
    owner: Any
    attribute: str
    patch: Any
    folder: str
    scenario: str


def _costs_without_other_load(fleet: Any, *, is_exact: bool) -> Any:
    costs = {worker: replace(cost, other_kbps=0.0) for worker, cost in fleet.memory.costs.items()}
    memory = replace(fleet.memory, costs=costs)
    return ORIGINAL_COSTS(replace(fleet, memory=memory), is_exact=is_exact)


ORIGINAL_COSTS = leader_assignment._costs
BUGS = [
    PlantedBug(
        "processor use is ignored", worker_costs, "WORKERS_MIN", 10**6,
        "leader_over_time", "three workers, one of them slow",
    ),
    PlantedBug(
        "processor use is ignored among two", worker_costs, "WORKERS_MIN", 3,
        "leader_over_time", "two workers, one of them slow",
    ),
    PlantedBug(
        "small differences of cost are ignored", worker_costs, "COST_TOLERANCE", 0.15,
        "leader_over_time", "a difference just above the threshold",
    ),
    PlantedBug(
        "a cost is learned from one report", worker_costs, "_step", lambda _before, target: target,
        "leader_over_time", "noise of a few points among five",
    ),
    PlantedBug(
        "throughput is compared with the utilisation of earlier minutes", worker_costs, "_with_throughput",
        lambda cost, _before, kbps, _weight: replace(cost, kbps=kbps),
        "leader_over_time", "a shard becomes hot",
    ),
    PlantedBug(
        "other load is ignored", leader_assignment, "_costs", _costs_without_other_load,
        "leader_over_time", "another program uses a whole machine",
    ),
    PlantedBug(
        "a lease may move back and forth", move_cooldowns, "COOLDOWN_GROWTH", 1,
        "leader_over_time", "a single lease that is expensive on every machine",
    ),
    PlantedBug(
        "the threshold is ignored", leader_assignment, "is_uneven",
        lambda loads, mean, _: ORIGINAL_UNEVEN(loads, mean, Balancing()),
        "leader", "a lower threshold",
    ),
    PlantedBug(
        "the step is ignored", rebalancing._Round, "_left_to_give", lambda _self, _source: float("inf"),
        "leader", "a part of the excess in each round",
    ),
    PlantedBug(
        "overshooting is always allowed", rebalancing._Round, "_may_give", lambda _self, _source, _load: True,
        "leader", "no lease that is larger than the excess",
    ),
    PlantedBug(
        "rounds follow each other at once", leader_assignment, "_may_balance", lambda _fleet, _since: True,
        "leader", "the next round comes later",
    ),
    PlantedBug(
        "the weight of the newest report is ignored", WorkerReport, "figures",
        lambda self, _weight=0.5: ORIGINAL_FIGURES(self),
        "leader", "the newest report alone",
    ),
    PlantedBug(
        "operating ranges are ignored", WorkerHealth, "above_range", frozenset(),
        "leader", "F5: a worker above its range is relieved",
    ),
    PlantedBug(
        "the range of the receiver is ignored", rebalancing._Round, "_has_room", lambda _self, _to, _burden: True,
        "leader", "balancing keeps within the range of the receiver",
    ),
    PlantedBug(
        "a worker is relieved again before it reports", WorkerCost, "is_settled", lambda _self, _now_ms: True,
        "leader", "above its range, and just relieved",
    ),
]  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario passes without the bug (its own test), and fails with it."""
    scenario = _scenario(bug.folder, bug.scenario)
    monkeypatch.setattr(bug.owner, bug.attribute, bug.patch)
    with pytest.raises(AssertionError):
        CHECKS[bug.folder](scenario)


def _scenario(folder: str, name: str) -> Scenario:
    found = [
        scenario
        for path in (HERE / folder).glob("*.json")
        for scenario in read(path.read_text())
        if scenario.name == name
    ]
    assert len(found) == 1, f"{len(found)} scenarios in {folder} are called {name!r}"
    return found[0]
