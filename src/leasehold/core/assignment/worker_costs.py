"""What the same throughput costs each worker, learned from its reported utilisation.

A worker on a slower machine uses more of its processor for the same throughput. Its cost is the ratio to the usual cost
in the fleet: a worker with cost 2.0 counts as loaded twice as much. So a fleet in which all costs are learned is even
when the utilisation of its workers is even.

Nobody can see which part of the utilisation the leases cause. As long as the cost is plausible, all of it counts as
caused by them. Then a worker that is busy with something else is relieved in several small steps, because each lease
seems to be more expensive than it is. What remains counts as *other* load, which does not move with any lease: a worker
that is busy without leases gets none.

A cost is learned slowly, and only while the leases of the worker stay the same: utilisation lags behind after a worker
starts and after a lease moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from statistics import median
from typing import Final

from leasehold.core.assignment.worker_health import WorkerHealth, leases_by_owner
from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.model import Lease, LeaseKey, WorkerId

# Without these delays the simulated fleets made more moves than learning saved.
REPORTS_BEFORE_LEARNING: Final = 4
STABLE_BEFORE_LEARNING_MS: Final = 150_000
LEARNING_RATE: Final = 0.3
FAST_LEARNING_RATE: Final = (
    0.5  # if a cost differs from the learned one by more than this share, which noise does not
)
FAST_ABOVE: Final = 0.15
# Learned costs are applied to all workers at once, when most of them are this close to their measured cost. Applied one
# by one, the workers that learn first would be assigned too much. Not all workers have to be close: in a large fleet
# the figures of some always fluctuate.
APPLY_WITHIN: Final = 0.07  # of the measured cost
APPLY_WHEN_SHARE: Final = 0.8
COST_TOLERANCE: Final = 0.05  # a cost closer to 1 than this counts as 1
COST_MIN, COST_MAX = 1 / 3, 3.0
WORKERS_MIN: Final = 2  # a single worker shows no difference
# The utilisation that reports show includes most of the effect of a change of leases after this time.
SETTLED_AFTER_MS: Final = 90_000
BASE_UTILISATION: Final = 2.0  # percent that a worker uses without any lease
POINTS_MIN: Final = 8.0  # of utilisation above the base; fewer are noise
KBPS_SHARE_MIN: Final = 0.25  # of the mean; a worker that delivers less is busy with something else
FORGETTING_RATE: Final = 0.05  # with each report of a worker that is idle while others work


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCost:
    """What a leader has learned about the cost of one worker.

    `learned` follows each report. `applied` is the learned cost that assignment uses. `other_kbps` is the load that no
    lease causes, as the throughput that causes as much on a usual worker. `updated_s` and `leases` are the worker's
    last report and leases, to detect a new report and a change of leases. `kbps` is its throughput, smoothed over its
    reports as its utilisation is: otherwise the cost would seem to change when the throughput does. `report_kbps` is
    the throughput at its last report.
    """

    updated_s: int
    leases: frozenset[LeaseKey] = field(default_factory=frozenset)
    stable_since_ms: int = 0
    reports_while_stable: int = 0
    learned: float = 1.0
    applied: float = 1.0
    other_kbps: float = 0.0
    kbps: float | None = None
    report_kbps: float = 0.0

    def factor(self, *, is_exact: bool = False) -> float:
        """The load of this worker for one unit of throughput, relative to the usual worker."""
        is_usual = not is_exact and abs(self.applied - 1) <= COST_TOLERANCE
        return 1.0 if is_usual else self.applied

    def is_settled(self, now_ms: int) -> bool:
        """Whether the reported utilisation is that of its current leases."""
        return now_ms - self.stable_since_ms >= SETTLED_AFTER_MS


WorkerCosts = Mapping[WorkerId, WorkerCost]


@dataclass(frozen=True, slots=True)
class _Usage:
    """What a stable worker delivers, and the utilisation above that of an idle worker, in points."""

    kbps: float
    points: float


def next_worker_costs(
    before: WorkerCosts, health: WorkerHealth, leases: Sequence[Lease], now_ms: int
) -> WorkerCosts:
    """The costs after one more refresh. A worker without a report is forgotten."""
    owned, kbps = leases_by_owner(leases), _delivered_kbps(leases)
    costs = {
        worker: _with_throughput(
            _next_cost(before.get(worker), report, owned.get(worker, frozenset()), now_ms),
            before.get(worker),
            kbps.get(worker, 0.0),
            health.newest_weight,
        )
        for worker, report in health.reports.items()
    }
    kbps_min = KBPS_SHARE_MIN * sum(kbps.values()) / max(1, len(health.assignable))
    usages = _usages(costs, health, now_ms)
    points_per_kbps = _points_per_kbps(usages, kbps_min)
    # The usual cost is known only if most of the fleet is measured.
    is_known = len(points_per_kbps) >= WORKERS_MIN and 2 * len(points_per_kbps) > len(health.assignable)
    usual = _usual(points_per_kbps) if is_known else _usual_by_costs(points_per_kbps, costs)
    if usual is None:
        return costs
    measured = {worker: _clamp(each / usual) for worker, each in points_per_kbps.items() if is_known}
    # While the usual cost is not known, nothing is learned about workers that deliver enough to be measured.
    shown = {
        worker: usage
        for worker, usage in usages.items()
        if worker in measured or worker not in points_per_kbps
    }
    return _apply(_learn(before, costs, measured, shown, usual), measured)


def _next_cost(
    before: WorkerCost | None, report: WorkerReport, leases: frozenset[LeaseKey], now_ms: int
) -> WorkerCost:
    if before is None:
        return WorkerCost(updated_s=report.updated_s, leases=leases, stable_since_ms=now_ms)
    if leases != before.leases:
        return replace(
            before,
            updated_s=report.updated_s,
            leases=leases,
            stable_since_ms=now_ms,
            reports_while_stable=0,
        )
    has_reported = report.updated_s != before.updated_s
    reports = before.reports_while_stable + has_reported
    return replace(before, updated_s=report.updated_s, reports_while_stable=reports)


def _with_throughput(
    cost: WorkerCost, before: WorkerCost | None, kbps: float, newest_weight: float
) -> WorkerCost:
    """Adds the throughput at a new report. A report is an average since the last one, and so is the throughput."""
    if before is None or cost.kbps is None:
        return replace(cost, kbps=kbps, report_kbps=kbps)
    if before.updated_s == cost.updated_s:
        return cost
    since_last = (cost.report_kbps + kbps) / 2
    smoothed = cost.kbps + newest_weight * (since_last - cost.kbps)
    return replace(cost, kbps=smoothed, report_kbps=kbps)


def _usages(costs: WorkerCosts, health: WorkerHealth, now_ms: int) -> dict[WorkerId, _Usage]:
    """The usage of each assignable worker that reports its utilisation and whose leases are stable."""
    return {
        worker: _Usage(costs[worker].kbps or 0.0, max(0.0, utilisation - BASE_UTILISATION))
        for worker in health.assignable
        if (utilisation := health.utilisation(worker)) is not None and _is_stable(costs[worker], now_ms)
    }


def _points_per_kbps(usages: Mapping[WorkerId, _Usage], kbps_min: float) -> dict[WorkerId, float]:
    """What throughput costs each worker that delivers enough; nothing in a fleet that is hardly used.

    A worker that is hardly used itself is cheap. How cheap is noise, so it counts as used a little more.
    """
    used = [usage.points for usage in usages.values()]
    if not used or sum(used) / len(used) < POINTS_MIN:
        return {}
    return {
        worker: max(POINTS_MIN, usage.points) / usage.kbps
        for worker, usage in usages.items()
        if usage.kbps > kbps_min
    }


def _usual(points_per_kbps: Mapping[WorkerId, float]) -> float:
    """What is usual: the median. Of two workers it is the geometric mean, so that both are equally far from it."""
    return exp(median(map(log, points_per_kbps.values())))


def _usual_by_costs(points_per_kbps: Mapping[WorkerId, float], costs: WorkerCosts) -> float | None:
    """What is usual according to the few workers that are measured, and to what was learned about them before."""
    known = [points / costs[worker].applied for worker, points in points_per_kbps.items()]
    return median(known) if known else None


def _clamp(cost: float) -> float:
    return max(COST_MIN, min(COST_MAX, cost))


def _learn(
    before: WorkerCosts,
    costs: WorkerCosts,
    measured: Mapping[WorkerId, float],
    usages: Mapping[WorkerId, _Usage],
    usual: float,
) -> dict[WorkerId, WorkerCost]:
    """Moves what is known about each worker that has just reported a step towards what it shows now."""
    learned = dict(costs)
    for worker, usage in usages.items():
        cost = costs[worker]
        if worker not in before or before[worker].updated_s == cost.updated_s:
            continue
        other_points = usage.points - measured.get(worker, cost.applied) * usual * usage.kbps
        other_kbps = other_points / usual if other_points >= POINTS_MIN else 0.0
        cost = replace(cost, other_kbps=_step(cost.other_kbps, other_kbps))
        if worker in measured:
            learned[worker] = replace(cost, learned=_step(cost.learned, measured[worker]))
        else:
            learned[worker] = _forget(cost) if usage.points < POINTS_MIN else cost
    return learned


def _step(before: float, target: float) -> float:
    rate = FAST_LEARNING_RATE if abs(target - before) > FAST_ABOVE * target else LEARNING_RATE
    return before + rate * (target - before)


def _forget(cost: WorkerCost) -> WorkerCost:
    """Moves the cost of a worker that is idle while others work a small step towards 1.

    Nothing else would show that it has become cheaper: a worker that is too expensive for any lease gets none.
    """
    applied = cost.applied + FORGETTING_RATE * (1 - cost.applied)
    return replace(cost, learned=applied, applied=applied)


def _apply(costs: dict[WorkerId, WorkerCost], measured: Mapping[WorkerId, float]) -> WorkerCosts:
    """Applies the learned costs of the measured workers, if most of them are close to what is measured."""
    close = [
        worker
        for worker, target in measured.items()
        if abs(target - costs[worker].learned) <= APPLY_WITHIN * target
    ]
    if len(close) < APPLY_WHEN_SHARE * len(measured):
        return costs
    return costs | {worker: replace(costs[worker], applied=costs[worker].learned) for worker in measured}


def _delivered_kbps(leases: Iterable[Lease]) -> dict[WorkerId, float]:
    """The throughput of each worker."""
    delivered: dict[WorkerId, float] = {}
    for lease in leases:
        if lease.actual_owner is not None and lease.throughput_kbps is not None:
            so_far = delivered.get(lease.actual_owner, 0.0)
            delivered[lease.actual_owner] = so_far + float(lease.throughput_kbps)
    return delivered


def _is_stable(cost: WorkerCost, now_ms: int) -> bool:
    has_reports = cost.reports_while_stable >= REPORTS_BEFORE_LEARNING
    return has_reports and now_ms - cost.stable_since_ms >= STABLE_BEFORE_LEARNING_MS
