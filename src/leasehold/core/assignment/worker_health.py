"""Which workers a leader may give leases to, and what a lease costs each of them. Remembers, as a value, what one
leader has seen; nothing of it is in any table.

A worker may be given leases while its report keeps coming. Whether it does is judged by our own clock; its wall clock
matters only for the very first sight of it. A worker all of whose leases are silent is a *suspect*: its report may
still look fresh for a minute, but it gets nothing until it reports again; so is one that has lost all its leases to
others. Leases that it was given a moment ago say nothing for it. So a dead worker never blocks its own fail-over, nor
the next one.

What a kilobyte costs a worker is learned slowly from its processor use, and only while its leases stay as they are: a
young worker's figures, and those just after a move, say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from leasehold.core.coordinator.worker_metrics import EXPIRED_AFTER_MS, REPORT_EVERY_MS, WorkerReport
from leasehold.core.model import Lease, LeaseKey, WorkerId

# Learning a worker's cost (spec: measured in simulation; without the waiting it made more moves than it saved).
REPORTS_BEFORE_LEARNING: Final = 4
CALM_BEFORE_LEARNING_MS: Final = 150_000
LEARNING_RATE: Final = 0.3
# What is learned is acted upon for all together, once it is this near to what most of them show: those who learn
# earlier would be given too much. Not all of them: in a large fleet the figures of some always tremble.
LEARNED_WITHIN: Final = 0.07
LEARNED_BY: Final = 0.8
COST_TOLERANCE: Final = 0.15  # closer to the others than this counts as equal
COST_MIN, COST_MAX = 1 / 3, 3.0
BASE_UTILISATION: Final = 2.0  # what a worker uses without any lease
UTILISATION_WORTH_LEARNING: Final = 10.0
LATE_AFTER_MS: Final = 5_000
KBPS_WORTH_LEARNING: Final = 0.25  # of the mean; whoever delivers little is busy with something else


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHistory:
    """What a leader remembers of one worker."""

    updated_s: int
    last_report_ms: int
    suspected_at_s: int | None = None
    leases: frozenset[LeaseKey] = frozenset()
    stable_since_ms: int = 0
    reports_while_stable: int = 0
    learned_cost: float = 1.0
    applied_cost: float = 1.0

    @property
    def cost(self) -> float:
        """How much more than others it pays for the same throughput, as far as that is settled."""
        return 1.0 if abs(self.applied_cost - 1) <= COST_TOLERANCE else self.applied_cost


WorkerHistories = Mapping[WorkerId, WorkerHistory]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """The workers that may be given leases, and how to treat them."""

    reports: Mapping[WorkerId, WorkerReport] = field(default_factory=dict)
    records: WorkerHistories = field(default_factory=dict)
    assignable: AbstractSet[WorkerId] = frozenset()
    doubtful: AbstractSet[WorkerId] = frozenset()  # of these, those that may be dead: give to them last
    suspects: AbstractSet[WorkerId] = frozenset()

    def is_hot(self, worker: WorkerId) -> bool:
        """It works above the range that it wants: give it nothing if there is another, and take from it."""
        return self.reports[worker].is_above_range

    @property
    def mean_utilisation(self) -> float | None:
        """Of those that measure it."""
        figures = [self.reports[worker].utilisation for worker in self.assignable]
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
    """How every worker stands after one more look. Leases that were `just_assigned` need not be begun yet."""
    owned = _owned(leases)
    served, young = frozenset().union(*owned.values()), just_assigned - silent
    records: dict[WorkerId, WorkerHistory] = {}
    for report in reports:
        known = before.get(report.worker) or _first_record(report, now_ms, wall_s)
        theirs = owned.get(report.worker, frozenset())
        telling = theirs - young
        is_suspect = telling <= silent if telling else not theirs and _was_emptied(known, report, served)
        records[report.worker] = _next_record(known, report, theirs, now_ms, is_suspect=is_suspect)
    heard = [report for report in reports if _is_heard(records[report.worker], report, now_ms)]
    suspects = {worker for worker, record in records.items() if record.suspected_at_s is not None}
    trusted = {report.worker for report in heard} - suspects
    standing = WorkerHealth(
        reports={report.worker: report for report in reports},
        records=records,
        # A suspect is better than nobody.
        assignable=trusted or {report.worker for report in heard},
        doubtful={
            report.worker
            for report in heard
            if _is_doubtful(
                owned.get(report.worker, frozenset()) - young, silent, records[report.worker], now_ms
            )
        },
        suspects=suspects,
    )
    return replace(standing, records=_learn(before, standing, _delivered_kbps(leases), now_ms))


def _was_emptied(before: WorkerHistory, report: WorkerReport, served: AbstractSet[LeaseKey]) -> bool:
    """Others serve all that it had, and it has said nothing since: whoever led then may have found it dead.

    A standby sees no more of that than this; without it, it would give leases to the dead as soon as it leads.
    """
    return report.updated_s == before.updated_s and not before.leases.isdisjoint(served)


def _is_doubtful(
    telling: AbstractSet[LeaseKey], silent: AbstractSet[LeaseKey], record: WorkerHistory, now_ms: int
) -> bool:
    """The first of its leases fell silent, and the others may follow; or none tells of it, and its report is late."""
    return not silent.isdisjoint(telling) or (not telling and _is_late(record, now_ms))


def _is_late(record: WorkerHistory, now_ms: int) -> bool:
    """A report should have come by now. Nothing else tells of a worker without a lease that it renews."""
    return now_ms - record.last_report_ms > REPORT_EVERY_MS + LATE_AFTER_MS


def _is_heard(record: WorkerHistory, report: WorkerReport, now_ms: int) -> bool:
    return now_ms - record.last_report_ms <= EXPIRED_AFTER_MS and not report.is_failing


def _delivered_kbps(leases: Iterable[Lease]) -> dict[WorkerId, float]:
    """What each worker delivers."""
    delivered: dict[WorkerId, float] = {}
    for lease in leases:
        if lease.actual_owner is not None and lease.throughput_kbps is not None:
            so_far = delivered.get(lease.actual_owner, 0.0)
            delivered[lease.actual_owner] = so_far + float(lease.throughput_kbps)
    return delivered


def _owned(leases: Iterable[Lease]) -> dict[WorkerId, frozenset[LeaseKey]]:
    owned: dict[WorkerId, set[LeaseKey]] = {}
    for lease in leases:
        if lease.actual_owner is not None:
            owned.setdefault(lease.actual_owner, set()).add(lease.key)
    return {worker: frozenset(keys) for worker, keys in owned.items()}


def _first_record(report: WorkerReport, now_ms: int, wall_s: int) -> WorkerHistory:
    # A clock that is ahead of ours makes nobody younger than now.
    age_ms = max(0, wall_s - report.updated_s) * 1000
    return WorkerHistory(updated_s=report.updated_s, last_report_ms=now_ms - age_ms, stable_since_ms=now_ms)


def _next_record(
    before: WorkerHistory,
    report: WorkerReport,
    leases: frozenset[LeaseKey],
    now_ms: int,
    *,
    is_suspect: bool,
) -> WorkerHistory:
    has_reported = report.updated_s != before.updated_s
    is_calm = leases == before.leases
    return replace(
        before,
        updated_s=report.updated_s,
        last_report_ms=now_ms if has_reported else before.last_report_ms,
        suspected_at_s=report.updated_s if is_suspect else None if has_reported else before.suspected_at_s,
        leases=leases,
        stable_since_ms=before.stable_since_ms if is_calm else now_ms,
        reports_while_stable=before.reports_while_stable + has_reported if is_calm else 0,
    )


def _learn(
    before: WorkerHistories, standing: WorkerHealth, kbps: Mapping[WorkerId, float], now_ms: int
) -> WorkerHistories:
    """Move the learned cost of each worker that has just reported in calm a little towards what it shows."""
    worth_kbps = KBPS_WORTH_LEARNING * sum(kbps.values()) / max(1, len(standing.assignable))
    shown = {
        worker: (utilisation - BASE_UTILISATION) / kbps[worker]
        for worker in standing.assignable
        if (utilisation := standing.reports[worker].utilisation or 0.0) >= UTILISATION_WORTH_LEARNING
        and kbps.get(worker, 0.0) > worth_kbps
        and _is_settled(standing.records[worker], now_ms)
    }
    # It takes most of a fleet, and three at least, to tell who is unusual.
    if len(shown) < 3 or 2 * len(shown) <= len(standing.assignable):
        return standing.records
    typical = median(shown.values())
    towards = {worker: max(COST_MIN, min(COST_MAX, cost / typical)) for worker, cost in shown.items()}
    learned = dict(standing.records)
    for worker, cost in towards.items():
        record = learned[worker]
        if worker in before and before[worker].updated_s != record.updated_s:
            step = LEARNING_RATE * (cost - record.learned_cost)
            learned[worker] = replace(record, learned_cost=record.learned_cost + step)
    near = sum(abs(cost - learned[worker].learned_cost) <= LEARNED_WITHIN for worker, cost in towards.items())
    if near >= LEARNED_BY * len(towards):
        for worker in towards:
            learned[worker] = replace(learned[worker], applied_cost=learned[worker].learned_cost)
    return learned


def _is_settled(record: WorkerHistory, now_ms: int) -> bool:
    calm_ms = now_ms - record.stable_since_ms
    return record.reports_while_stable >= REPORTS_BEFORE_LEARNING and calm_ms >= CALM_BEFORE_LEARNING_MS
