"""Which workers a leader may assign leases to, judged by their reports and by the heartbeats of their leases.

A leader remembers, as a value, when each worker last reported. No table holds any of this.

A worker is assignable while its reports keep coming. This is judged by the leader's own clock; the wall clock of the
worker matters only when the leader sees its first report. A report stays valid for a minute after its worker died, so
the leader also uses the leases. A worker is a *suspect* if all its leases are silent, or if other workers now serve
the leases that it had. A suspect is assigned nothing until it reports again. Leases that a worker was just assigned
prove nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from leasehold.core.coordinator.worker_metrics import (
    ALPHA,
    EXPIRED_AFTER_MS,
    REPORT_EVERY_MS,
    WorkerReport,
)
from leasehold.core.model import Lease, LeaseKey, WorkerId

LATE_AFTER_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHistory:
    """What a leader remembers of one worker.

    `updated_s` is the time in its last report, `last_report_ms` when the leader first saw that report on its own
    clock. `suspected_at_s` is the `updated_s` of the report that was current when the worker became a suspect.
    """

    updated_s: int
    last_report_ms: int
    suspected_at_s: int | None = None
    leases: frozenset[LeaseKey] = frozenset()


WorkerHistories = Mapping[WorkerId, WorkerHistory]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """The workers that may be assigned leases, and what is known about them.

    `unreliable` workers may be dead: they are assigned leases only if no other worker has room. `newest_weight` is the
    weight of the newest figure in a smoothed utilisation.
    """

    reports: Mapping[WorkerId, WorkerReport] = field(default_factory=dict)
    histories: WorkerHistories = field(default_factory=dict)
    assignable: AbstractSet[WorkerId] = frozenset()
    unreliable: AbstractSet[WorkerId] = frozenset()
    suspects: AbstractSet[WorkerId] = frozenset()
    newest_weight: float = ALPHA

    def utilisation(self, worker: WorkerId) -> float | None:
        """The smoothed utilisation of a worker in percent; None if it reports none."""
        return self.reports[worker].utilisation(self.newest_weight)

    def room(self, worker: WorkerId, *, share: float = 1.0) -> float | None:
        """The points of utilisation below this share of its operating range; None if it has none."""
        return self.reports[worker].room(self.newest_weight, share=share)

    @property
    def above_range(self) -> AbstractSet[WorkerId]:
        """The assignable workers that use more than the operating range in their report."""
        return {worker for worker in self.assignable if (self.room(worker) or 0.0) < 0}

    @property
    def mean_utilisation(self) -> float | None:
        """The mean over the assignable workers that report a utilisation."""
        figures = [self.utilisation(worker) for worker in self.assignable]
        known = [figure for figure in figures if figure is not None]
        return sum(known) / len(known) if known else None


def next_worker_health(
    before: WorkerHistories,
    reports: Sequence[WorkerReport],
    *,
    leases: Sequence[Lease],
    silent: AbstractSet[LeaseKey],
    just_assigned: AbstractSet[LeaseKey],
    now_ms: int,
    wall_s: int,
) -> WorkerHealth:
    """Judges every worker after one more refresh. The owners of `just_assigned` leases need not serve them yet."""
    owned = leases_by_owner(leases)
    served = frozenset[LeaseKey]().union(*owned.values())
    pending = just_assigned - silent
    histories: dict[WorkerId, WorkerHistory] = {}
    unreliable: set[WorkerId] = set()
    for report in reports:
        worker = report.worker
        known = before.get(worker) or _first_history(report, now_ms, wall_s)
        current = owned.get(worker, frozenset())
        renewed = current - pending  # leases whose heartbeats, or silence, say something about their owner
        lost_leases = not current and _lost_its_leases(known, report, served)
        is_suspect = renewed <= silent if renewed else lost_leases
        histories[worker] = _next_history(known, report, current, now_ms, is_suspect=is_suspect)
        if _is_unreliable(renewed, silent, histories[worker], now_ms):
            unreliable.add(worker)
    reporting = {
        report.worker for report in reports if _is_reporting(histories[report.worker], report, now_ms)
    }
    suspects = {worker for worker, history in histories.items() if history.suspected_at_s is not None}
    return WorkerHealth(
        reports={report.worker: report for report in reports},
        histories=histories,
        # If only suspects report, they are assigned leases: one of them may be alive.
        assignable=reporting - suspects or reporting,
        unreliable=unreliable & reporting,
        suspects=suspects,
    )


def without_leases(histories: WorkerHistories, moved: AbstractSet[LeaseKey]) -> WorkerHistories:
    """Forgets that workers had these leases, which this leader has moved by handoff.

    A worker that gave its last lease would seem to be dead, as if another leader had found it so.
    """
    return {
        worker: history
        if history.leases.isdisjoint(moved)
        else replace(history, leases=history.leases - moved)
        for worker, history in histories.items()
    }


def leases_by_owner(leases: Iterable[Lease]) -> dict[WorkerId, frozenset[LeaseKey]]:
    """The keys of the leases that each worker serves now."""
    owned: dict[WorkerId, set[LeaseKey]] = {}
    for lease in leases:
        if lease.actual_owner is not None:
            owned.setdefault(lease.actual_owner, set()).add(lease.key)
    return {worker: frozenset(keys) for worker, keys in owned.items()}


def _lost_its_leases(before: WorkerHistory, report: WorkerReport, served: AbstractSet[LeaseKey]) -> bool:
    """True if other workers serve a lease that it had, and it has not reported since.

    The previous leader may have found the worker dead. A standby sees no other sign of this, and without this rule it
    would assign leases to the dead worker as soon as it leads.
    """
    return report.updated_s == before.updated_s and not before.leases.isdisjoint(served)


def _is_unreliable(
    renewed: AbstractSet[LeaseKey], silent: AbstractSet[LeaseKey], history: WorkerHistory, now_ms: int
) -> bool:
    """True if one of its leases is silent, or if it renews no lease and its report is late."""
    return not silent.isdisjoint(renewed) or (not renewed and _is_late(history, now_ms))


def _is_late(history: WorkerHistory, now_ms: int) -> bool:
    return now_ms - history.last_report_ms > REPORT_EVERY_MS + LATE_AFTER_MS


def _is_reporting(history: WorkerHistory, report: WorkerReport, now_ms: int) -> bool:
    return now_ms - history.last_report_ms <= EXPIRED_AFTER_MS and not report.is_failing


def _first_history(report: WorkerReport, now_ms: int, wall_s: int) -> WorkerHistory:
    # The clock of the worker may be ahead of ours: the age is never negative.
    age_ms = max(0, wall_s - report.updated_s) * 1000
    return WorkerHistory(updated_s=report.updated_s, last_report_ms=now_ms - age_ms)


def _next_history(
    before: WorkerHistory,
    report: WorkerReport,
    leases: frozenset[LeaseKey],
    now_ms: int,
    *,
    is_suspect: bool,
) -> WorkerHistory:
    has_reported = report.updated_s != before.updated_s
    suspected_at_s = None if has_reported else before.suspected_at_s
    return replace(
        before,
        updated_s=report.updated_s,
        last_report_ms=now_ms if has_reported else before.last_report_ms,
        suspected_at_s=report.updated_s if is_suspect else suspected_at_s,
        leases=leases,
    )
