"""Where balancing stops, with loads that are exact numbers."""

from leasehold.core.assignment.lease_loads import Caps, Weights, WorkerLoads
from leasehold.core.assignment.rebalancing import Balancing, plan_moves
from leasehold.core.model import LeaseKey, WorkerId


def _moves(threshold: float, leases: dict[str, list[int]]) -> list[tuple[str, str]]:
    """The source and the target of each move. Each worker has leases of these weights."""
    weights = {
        LeaseKey(f"{worker}{number}"): float(weight)
        for worker, its_leases in leases.items()
        for number, weight in enumerate(its_leases)
    }
    loads = WorkerLoads(
        map(WorkerId, leases),
        {},
        above_range=frozenset(),
        unreliable=frozenset(),
        weights=Weights(weights, weights),
        caps=Caps(),
    )
    for key in weights:
        loads.add(WorkerId(key[0]), key, movable=True)
    return [(move.source, move.to) for move in plan_moves(loads, 10, Balancing(threshold=threshold))]


def test_balancing_stops_at_four_fifths_of_the_threshold() -> None:
    """The mean is 400, and loads from 200 to 600 are even enough. After one move B has 200, A 570 and C 270."""
    others = {"C": [80], "D": [140] * 4}
    assert _moves(0.625, {"A": [190] * 4, "B": [100] * 2, **others}) == [("A", "C")]
    assert _moves(0.625, {"A": [190] * 4, "B": [99] * 2, **others}) == [("A", "C"), ("D", "B")]
