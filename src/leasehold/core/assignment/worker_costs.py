"""What the same throughput costs each worker, learned from its reported utilisation.

A worker on a slower machine uses more of its processor for the same throughput. Its cost is the ratio to the median of
the fleet: a worker with cost 2.0 counts as loaded twice as much. A cost is learned slowly, and only while the leases of
the worker stay the same: utilisation lags behind after a worker starts and after a lease moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from leasehold.core.assignment.worker_health import WorkerHealth, leases_by_owner
from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.model import Lease, LeaseKey, WorkerId

# Without these delays the simulated fleets made more moves than learning saved.
REPORTS_BEFORE_LEARNING: Final = 4
STABLE_BEFORE_LEARNING_MS: Final = 150_000
LEARNING_RATE: Final = 0.3
# Learned costs are applied to all workers at once, when most of them are this close to their measured cost. Applied one
# by one, the workers that learn first would be assigned too much. Not all workers have to be close: in a large fleet
# the figures of some always fluctuate.
APPLY_WITHIN: Final = 0.07
APPLY_WHEN_SHARE: Final = 0.8
COST_TOLERANCE: Final = 0.15  # a cost closer to 1 than this counts as 1
COST_MIN, COST_MAX = 1 / 3, 3.0
WORKERS_MIN: Final = 3  # fewer measured workers do not show what is usual
BASE_UTILISATION: Final = 2.0  # percent that a worker uses without any lease
UTILISATION_MIN: Final = 10.0  # below this, the measured cost is noise
KBPS_SHARE_MIN: Final = 0.25  # of the mean; a worker that delivers less is busy with something else


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCost:
    """What a leader has learned about the cost of one worker.

    `learned` follows each report. `applied` is the learned cost that assignment uses. `updated_s` and `leases` are the
    worker's last report and leases, to detect a new report and a change of leases.
    """

    updated_s: int
    leases: frozenset[LeaseKey] = field(default_factory=frozenset)
    stable_since_ms: int = 0
    reports_while_stable: int = 0
    learned: float = 1.0
    applied: float = 1.0

    @property
    def factor(self) -> float:
        """The load of this worker for one unit of throughput, relative to the median worker."""
        return 1.0 if abs(self.applied - 1) <= COST_TOLERANCE else self.applied


WorkerCosts = Mapping[WorkerId, WorkerCost]


def next_worker_costs(
    before: WorkerCosts, health: WorkerHealth, leases: Sequence[Lease], now_ms: int
) -> WorkerCosts:
    """The costs after one more refresh. A worker without a report is forgotten."""
    owned = leases_by_owner(leases)
    costs = {
        worker: _next_cost(before.get(worker), report, owned.get(worker, frozenset()), now_ms)
        for worker, report in health.reports.items()
    }
    measured = _measure(costs, health, _delivered_kbps(leases), now_ms)
    # The median shows what is usual only if most of the fleet is measured.
    if len(measured) < WORKERS_MIN or 2 * len(measured) <= len(health.assignable):
        return costs
    return _apply(_learn(before, costs, measured), measured)


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


def _measure(
    costs: WorkerCosts, health: WorkerHealth, kbps: Mapping[WorkerId, float], now_ms: int
) -> dict[WorkerId, float]:
    """The cost that each stable, busy worker shows now, relative to their median."""
    kbps_min = KBPS_SHARE_MIN * sum(kbps.values()) / max(1, len(health.assignable))
    percent_per_kbps = {
        worker: (utilisation - BASE_UTILISATION) / kbps[worker]
        for worker in health.assignable
        if (utilisation := health.reports[worker].utilisation or 0.0) >= UTILISATION_MIN
        and kbps.get(worker, 0.0) > kbps_min
        and _is_stable(costs[worker], now_ms)
    }
    if not percent_per_kbps:
        return {}
    usual = median(percent_per_kbps.values())
    return {worker: max(COST_MIN, min(COST_MAX, cost / usual)) for worker, cost in percent_per_kbps.items()}


def _learn(
    before: WorkerCosts, costs: WorkerCosts, measured: Mapping[WorkerId, float]
) -> dict[WorkerId, WorkerCost]:
    """Moves the learned cost of each worker that has just reported a step towards its measured cost."""
    learned = dict(costs)
    for worker, target in measured.items():
        cost = costs[worker]
        if worker in before and before[worker].updated_s != cost.updated_s:
            learned[worker] = replace(cost, learned=cost.learned + LEARNING_RATE * (target - cost.learned))
    return learned


def _apply(costs: dict[WorkerId, WorkerCost], measured: Mapping[WorkerId, float]) -> WorkerCosts:
    """Applies the learned costs of the measured workers, if most of them are close to what is measured."""
    close = sum(abs(target - costs[worker].learned) <= APPLY_WITHIN for worker, target in measured.items())
    if close < APPLY_WHEN_SHARE * len(measured):
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
