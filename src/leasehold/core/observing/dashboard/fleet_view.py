"""The view of a fleet: everything that the dashboard shows, as JSON values, from facts and their history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leasehold.core.finding import Explanation, Finding, Severity
from leasehold.core.model import Lease, WorkerId
from leasehold.core.observing.dashboard.fleet_history import FleetHistory
from leasehold.core.observing.dashboard.shard_views import (
    STATES,
    finding_view,
    view_shards,
)
from leasehold.core.observing.dashboard.view_changes import View
from leasehold.core.observing.explain.explain_fleet import explain_fleet
from leasehold.core.observing.explain.facts import FleetFacts
from leasehold.core.shown_text import shown, shown_sentence

PAUSE_MS_PER_LEASE: Final = 2
# The lag of a shard is in the first of these classes that it does not exceed.
LAG_CLASSES_MS: Final = (10_000, 60_000, 600_000, 3_600_000)
LEADER_MODE: Final = "leader"
PEER_MODE: Final = "peers"
UNKNOWN_MODE: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSettings:
    """What does not change while a dashboard runs. A finding needs two reads that are `watch_ms` apart."""

    application: str
    watch_ms: int
    every_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCosts:
    """The calls of the dashboard itself a second, and what it could not read.

    `worker_calls` are the calls to Kinesis a second of the workers that tell it, by operation: all, and those that were
    throttled. None if no status address of a worker is known.
    """

    table_reads_per_s: float = 0.0
    kinesis_calls_per_s: float = 0.0
    worker_calls: Mapping[str, tuple[float, float]] | None = None
    problems: tuple[str, ...] = ()


def pause_ms(settings: ViewSettings, leases: int) -> int:
    """The time between two reads. A scan of ten thousand rows costs hundreds of read units: it is made every 20 s."""
    return max(settings.every_ms, PAUSE_MS_PER_LEASE * leases)


def judge_fleet(facts: FleetFacts, settings: ViewSettings) -> Explanation | None:
    """Explain the fleet. None if the two reads are too close, because then every owner would seem silent."""
    # A tenth less than the wanted time, because the reads themselves take time.
    return explain_fleet(facts) if facts.watched_ms >= settings.watch_ms * 0.9 else None


def view_fleet(
    facts: FleetFacts,
    judged: Explanation | None,
    history: FleetHistory,
    settings: ViewSettings,
    *,
    costs: ReadCosts,
    wall_ms: int,
) -> View:
    """The view of one read. Adds the read to the history."""
    is_judged, explanation = judged is not None, judged or Explanation((), {})
    history.observe(facts, wall_ms, is_judged=is_judged)
    shards = view_shards(facts, explanation, history, is_judged=is_judged)
    workers = view_workers(facts, shards, history, is_judged=is_judged)
    totals = _totals(facts, shards, workers, explanation)
    history.mode = decide_mode(facts, history.mode)
    history.trend.append((wall_ms // 1000, totals["lag"], totals["kbps"], totals["problems"]))
    return {
        "at": wall_ms,
        "application": shown(settings.application),
        "mode": history.mode or UNKNOWN_MODE,
        "leader": _leader(facts),
        "judged": is_judged,
        "watch": settings.watch_ms,
        "began": history.began_ms,
        "every": pause_ms(settings, len(facts.after.leases)),
        "unread": [shown_sentence(problem) for problem in costs.problems],
        "totals": totals,
        "trend": [list(point) for point in history.trend],
        "findings": [finding_view(finding) for finding in explanation.fleet],
        "groups": group_findings(explanation),
        "changes": _changes(history),
        "calls": _calls(facts, costs),
        "streams": _streams(facts),
        "workers": workers,
        "shards": shards,
    }


def decide_mode(facts: FleetFacts, known: str | None) -> str | None:
    """Whether the fleet has a leader or peers; None if nothing shows it. `known` is what earlier reads have shown.

    The last worker that stops deletes its report, releases its leases and, as the leader, its lock. Then the rows are
    those of a fleet that has not begun, except for the throughput, which only fleets with a leader write.
    """
    if facts.has_leader:
        return LEADER_MODE
    owners = {lease.actual_owner for lease in facts.after.leases} - {None}
    # A leader that stops may have deleted its lock, and not yet have released all leases. So after other reads, only
    # an owner that is heard without a leader is a peer.
    if owners and (known is None or owners & facts.heard_workers):
        return PEER_MODE
    if known is None and any(lease.throughput_kbps is not None for lease in facts.after.leases):
        return LEADER_MODE
    return known


def with_problem(view: View, problem: str) -> View:
    """The last view, with the reason why there is no newer one."""
    return {**view, "unread": [shown_sentence(problem)]}


def empty_view(settings: ViewSettings, wall_ms: int, problem: str = "") -> View:
    """The view before the first read."""
    return {
        "at": wall_ms,
        "application": shown(settings.application),
        "mode": None,
        "leader": None,
        "judged": False,
        "watch": settings.watch_ms,
        "began": None,
        "every": settings.every_ms,
        "unread": [shown_sentence(problem)] if problem else [],
        "totals": None,
        "trend": [],
        "findings": [],
        "groups": [],
        "changes": [],
        "calls": None,
        "streams": [],
        "workers": {},
        "shards": {},
    }


def view_workers(
    facts: FleetFacts, shards: Mapping[str, Mapping[str, Any]], history: FleetHistory, *, is_judged: bool
) -> Mapping[str, Mapping[str, Any]]:
    """One row for each worker that owns a lease or has reported, by the number of the worker."""
    owned: dict[WorkerId, list[Lease]] = {report.worker: [] for report in facts.after.reports}
    for lease in facts.after.leases:
        if lease.actual_owner is not None and not lease.checkpoint.is_shard_end:
            owned.setdefault(lease.actual_owner, []).append(lease)
        if lease.is_in_handoff and lease.owner is not None:
            owned.setdefault(lease.owner, [])
    history.workers.keep_only(owned)
    expected = Counter(lease.owner for lease in facts.after.leases if lease.is_in_handoff)
    rows: dict[str, Mapping[str, Any]] = {}
    for worker in sorted(owned):
        numbers = [history.shards.number_of(lease.key) for lease in owned[worker]]
        rows[str(history.workers.number_of(worker))] = {
            "name": shown(worker),
            "active": worker in facts.active_workers or not is_judged,
            "leader": worker == _leader_id(facts),
            "busy": _busy(facts, worker),
            "reported": None if (report := facts.report_of(worker)) is None else report.updated_s,
            "leases": len(numbers),
            "handing_over": sum(lease.is_in_handoff for lease in owned[worker]),
            "expecting": expected[worker],
            **_sums([shards[str(number)] for number in numbers]),
        }
    return rows


def _sums(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    severities = Counter(row["severity"] for row in rows)
    return {
        "lag": max((row["lag"] for row in rows if row["lag"] is not None), default=None),
        "kbps": round(sum(row["kbps"] or 0 for row in rows), 1),
        "problems": severities["problem"],
        "notices": severities["notice"],
    }


def _busy(facts: FleetFacts, worker: WorkerId) -> float | None:
    report = facts.report_of(worker)
    used = None if report is None or facts.is_report_expired(worker) else report.utilisation()
    return None if used is None else round(used, 1)


def _leader_id(facts: FleetFacts) -> WorkerId | None:
    lock = facts.after.lock
    return None if not facts.has_leader or lock is None or lock.is_released else lock.owner


def _leader(facts: FleetFacts) -> str | None:
    leader = _leader_id(facts)
    return None if leader is None else shown(leader)


def _totals(
    facts: FleetFacts,
    shards: Mapping[str, Mapping[str, Any]],
    workers: Mapping[str, Mapping[str, Any]],
    explanation: Explanation,
) -> dict[str, Any]:
    rows = list(shards.values())
    states = Counter(row["state"] for row in rows)
    # Findings are counted, not shards, so that the numbers are those of the list of findings.
    found = Counter(finding.severity for finding in explanation.all_findings)
    return {
        **{state: states[state] for state in STATES},
        **_sums(rows),
        "shards": len(rows),
        "problems": found[Severity.PROBLEM],
        "notices": found[Severity.NOTICE],
        "handoffs": sum(row["next"] is not None for row in rows),
        "workers": len(workers),
        "active": sum(bool(row["active"]) for row in workers.values()),
        "lags": classify_lags([row["lag"] for row in rows if row["state"] in {"read", "silent", "free"}]),
        "measures_load": any(lease.throughput_kbps is not None for lease in facts.after.leases),
    }


def classify_lags(lags_ms: Sequence[int | None]) -> Sequence[int]:
    """How many lags are in each class of `LAG_CLASSES_MS`, above the last one, and unknown.

    >>> classify_lags([0, 10_000, 11_000, 10**9, None])
    [2, 1, 0, 0, 1, 1]
    """
    counts = [0] * (len(LAG_CLASSES_MS) + 2)
    for lag_ms in lags_ms:
        if lag_ms is None:
            counts[-1] += 1
        else:
            counts[sum(lag_ms > limit for limit in LAG_CLASSES_MS)] += 1
    return counts


def group_findings(explanation: Explanation) -> Sequence[Mapping[str, Any]]:
    """The problems and notices about shards by code and severity: how many, and the first one as an example."""
    groups: dict[tuple[str, Severity], list[Finding]] = {}
    for findings in explanation.shards.values():
        for finding in findings:
            if finding.severity is not Severity.OK:
                groups.setdefault((finding.code, finding.severity), []).append(finding)
    ordered = sorted(
        groups.values(), key=lambda found: (found[0].severity is not Severity.PROBLEM, -len(found))
    )
    return [
        {
            **finding_view(found[0]),
            "count": len(found),
            "example": shown(found[0].shard or ""),
        }
        for found in ordered
    ]


def _changes(history: FleetHistory) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "at": change.at_ms,
            "kind": change.kind,
            "text": change.text,
            "shard": None if change.shard is None else shown(change.shard),
        }
        for change in reversed(history.changes)
    ]


def _worker_calls(calls: Mapping[str, tuple[float, float]]) -> Sequence[Mapping[str, Any]]:
    """The operations, the most frequent ones first."""
    ordered = sorted(calls.items(), key=lambda each: (-each[1][0], each[0]))
    return [
        {"operation": shown(operation), "per_s": round(rate, 2), "throttled_per_s": round(throttled, 2)}
        for operation, (rate, throttled) in ordered
    ]


def _calls(facts: FleetFacts, costs: ReadCosts) -> Mapping[str, Any]:
    """The calls a second. Every heartbeat adds one to a counter in a row, whichever program sends it."""
    before = facts.before.by_key
    beats = sum(
        max(0, lease.counter - before[lease.key].counter)
        for lease in facts.after.leases
        if lease.key in before
    )
    seconds = facts.watched_ms / 1000
    return {
        "heartbeats": round(beats / seconds, 2) if seconds else None,
        "table_reads": round(costs.table_reads_per_s, 2),
        "kinesis": round(costs.kinesis_calls_per_s, 1),
        "workers": None if costs.worker_calls is None else _worker_calls(costs.worker_calls),
    }


def _streams(facts: FleetFacts) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "name": shown(about.name),
            "exists": not about.is_missing,
            "open": sum(shard.is_open for shard in about.shards or ()),
            "retention": about.retention_ms,
        }
        for about in facts.streams.values()
    ]
