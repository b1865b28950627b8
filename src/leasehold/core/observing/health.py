"""Decides whether a member is healthy: whether it makes progress, not only whether it runs. Has no clock.

A shard is unhealthy when it has work and has made no progress for `stuck_after_ms`: records are in flight and none
gets done; no page comes; or pages come and the tip gets no nearer. A shard that makes progress is healthy, however
far behind it is. A shard at its tip is healthy, and so is one that waits for its parents.

A member is unhealthy when it owns leases and has not renewed them for longer than the failover time, because then
other members may take them. It is also unhealthy when no request to the lease table has succeeded for three failover
times.

A row of the lease table that cannot be read is a warning: it names the row, the consequence and the remedy, but the
member is healthy, because a restart would not help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final

from leasehold.core.events import (
    CallCount,
    Event,
    FindingsReviewed,
    FleetRefreshed,
    HandlerFailed,
    KinesisCallsCounted,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    RowRecovered,
    RowRejected,
    ShardsSynced,
    StreamRecreated,
)
from leasehold.core.finding import (
    MORE,
    Finding,
    Severity,
    finding_to_json,
    worst_severity,
)
from leasehold.core.model import LeaseKey, ShardId
from leasehold.core.observing.lag import LagTracker, ShardProgress, handler_failure

TABLE_SILENCE_FAILOVERS_MAX: Final = 3
CALLS_FRESH_FOR_MS: Final = 30_000  # calls are reported every ten seconds while there are some
WARNINGS_MAX: Final = 8  # a table may contain any number of such rows
ATTEMPTS_TOLD: Final = (
    3  # a handler that failed once or twice has usually succeeded by the time somebody looks
)
_OWN_CODES: Final = frozenset({"member_unhealthy", "no_progress", "handler_fails", "unreadable_row"})
# The findings of a member or of its supervisor about itself, which nobody can see from outside.
WORKER_CODES: Final = frozenset(
    {"member_unhealthy", "no_progress", "handler_fails", "process_silent", "process_start_hangs"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """The limits beyond which a member or a shard is unhealthy."""

    failover_ms: int
    stuck_after_ms: int


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """The health of one shard. `shard` is its lease key; `problem` is None if it is healthy."""

    shard: LeaseKey
    problem: str | None
    lag_ms: int | None
    idle_ms: int
    records_in_flight: int
    parents: tuple[ShardId, ...]
    failing: HandlerFailed | None = None  # the handler has failed several times since the last progress


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The health of a member and its shards."""

    state: str
    problem: str | None
    shards: tuple[ShardHealth, ...]
    warnings: tuple[Finding, ...] = ()
    reviewed: tuple[Finding, ...] = ()  # what the member has found besides
    calls: KinesisCallsCounted | None = None  # the last report of the calls to Kinesis; None if it is old
    recreated: str | None = None  # the stream that was deleted and created again, for which the member stops

    @property
    def is_healthy(self) -> bool:
        """Whether neither the member nor any shard has a problem."""
        return self.problem is None and all(shard.problem is None for shard in self.shards)


class Health:
    """Computes the health of a member from its events."""

    def __init__(self, limits: HealthLimits, now_ms: int) -> None:
        self._limits = limits
        self._lag_tracker = LagTracker()
        self._state = "starting"
        self._table_response_ms = now_ms
        self._renewed_ms = now_ms
        self._recreated: StreamRecreated | None = None
        self._rejected_rows: dict[str, RowRejected] = {}
        self._reviewed: tuple[Finding, ...] = ()
        self._calls: KinesisCallsCounted | None = None
        self._calls_ms = now_ms

    def observe(self, event: Event, now_ms: int) -> None:
        """Process one event."""
        had_leases = len(self._lag_tracker) > 0
        self._lag_tracker.observe(event, now_ms)
        match event:
            case MemberStarted():
                self._state = "running"
            case MemberStopped():
                self._state = "stopped"
            case LeasesRenewed(renewed=renewed, failed=failed) if renewed or not failed:
                self._renewed_ms = self._table_response_ms = now_ms
            case FleetRefreshed() | ShardsSynced():
                self._table_response_ms = now_ms
            case StreamRecreated(is_fatal=True):
                self._recreated = event
            case RowRejected(key=key):
                self._rejected_rows[key] = event
            case RowRecovered(key=key):
                self._rejected_rows.pop(key, None)
            case FindingsReviewed(findings=findings):
                self._reviewed = findings
            case KinesisCallsCounted():
                self._calls, self._calls_ms = event, now_ms
            case LeaseTaken() if not had_leases:
                self._renewed_ms = self._table_response_ms = now_ms  # taking a lease is its first heartbeat
            case _:
                pass  # `LagTracker` processes the events of shards

    @property
    def progress(self) -> LagTracker:
        """The progress of all shards that the member serves."""
        return self._lag_tracker

    def report(self, now_ms: int) -> HealthReport:
        """The health at `now_ms`."""
        shards = tuple(
            ShardHealth(
                shard,
                self._shard_problem(progress, now_ms),
                progress.lag_ms(now_ms),
                now_ms - progress.last_progress_ms,
                progress.records_in_flight,
                progress.parents,
                _failing(progress),
            )
            for shard, progress in sorted(self._lag_tracker, key=itemgetter(0))
        )
        problem = self._member_problem(now_ms)
        is_fresh = self._calls is not None and now_ms - self._calls_ms <= CALLS_FRESH_FOR_MS
        calls = self._calls if is_fresh else None
        recreated = None if self._recreated is None else self._recreated.name
        return HealthReport(self._state, problem, shards, self._warnings(), self._reviewed, calls, recreated)

    def _warnings(self) -> tuple[Finding, ...]:
        rows = sorted(self._rejected_rows.values(), key=attrgetter("key"))
        shown = [
            _unreadable_row(
                f"row {row.key!r} of the lease table cannot be read: {row.problem}; {row.consequence}",
                row.key,
            )
            for row in rows[:WARNINGS_MAX]
        ]
        if len(rows) > WARNINGS_MAX:
            text = f"{len(rows) - WARNINGS_MAX} more rows of the lease table cannot be read"
            shown.append(_unreadable_row(text, MORE))
        return tuple(shown)

    def _member_problem(self, now_ms: int) -> str | None:
        if self._recreated is not None:
            return self._recreated.problem
        if self._state == "stopped":
            return "the member has stopped"
        unrenewed_ms = now_ms - self._renewed_ms
        if len(self._lag_tracker) and unrenewed_ms > self._limits.failover_ms:
            return (
                f"leases were last renewed {_seconds(unrenewed_ms)} ago, and other members may take them after "
                f"{_seconds(self._limits.failover_ms)}: is the lease table reachable, "
                "or does the process lack CPU time?"
            )
        silent_ms = now_ms - self._table_response_ms
        if silent_ms > TABLE_SILENCE_FAILOVERS_MAX * self._limits.failover_ms:
            return f"no request to the lease table has succeeded for {_seconds(silent_ms)}: is it reachable?"
        return None

    def _shard_problem(self, progress: ShardProgress, now_ms: int) -> str | None:
        idle_ms = now_ms - progress.last_progress_ms
        if progress.parents or idle_ms <= self._limits.stuck_after_ms:
            return None
        because = (
            f"; {progress.last_failure}, {_times_failed(progress)} times" if progress.last_failure else ""
        )
        return f"has made no progress for {_seconds(idle_ms)}: {_describe_stall(progress)}{because}"


def _times_failed(progress: ShardProgress) -> int:
    """How often the last failure came. Of a handler: on the same records, as `handler_fails` counts it.

    While a batch is bisected, the handler also fails on larger parts of it.
    """
    failed = progress.failed_handler
    is_handler = failed is not None and progress.last_failure == handler_failure(failed)
    return failed.attempt if failed is not None and is_handler else progress.failures


def _describe_stall(progress: ShardProgress) -> str:
    if progress.pages_in_flight:
        # A page counts as a whole until its last record is done: of the first page, some records may be done.
        return f"up to {progress.records_in_flight} records are in flight, and the first of them does not get done"
    if progress.page_ms is None or progress.page_ms <= progress.last_progress_ms:
        return "no page was read"
    return "pages are read, but the tip does not get nearer"


def _failing(progress: ShardProgress) -> HandlerFailed | None:
    failed = progress.failed_handler
    return failed if failed is not None and failed.attempt >= ATTEMPTS_TOLD else None


def own_findings(report: HealthReport) -> Iterator[Finding]:
    """What a member finds about itself and its shards."""
    if report.problem and report.recreated is not None:
        yield Finding(
            code="stream_recreated",
            severity=Severity.PROBLEM,
            text=report.problem,
            remedy="set on_recreated_stream = 'start_over' to read the new stream from its beginning, or use another "
            "application name; then start the member again",
            subject=report.recreated,
        )
    elif report.problem:
        yield Finding(
            code="member_unhealthy",
            severity=Severity.PROBLEM,
            text=report.problem,
            remedy="look at the log of this member; restart it if it hangs",
        )
    yield from report.warnings
    for shard in report.shards:
        if shard.failing is not None:
            yield _failing_handler(shard.shard, shard.failing)
        if shard.problem:
            yield Finding(
                code="no_progress",
                severity=Severity.PROBLEM,
                text=f"it {shard.problem}",
                remedy="look at the log of its worker; if the handler hangs, restart the worker",
                shard=shard.shard,
            )


def _unreadable_row(text: str, row: str) -> Finding:
    return Finding(
        code="unreadable_row",
        severity=Severity.PROBLEM,
        text=text,
        remedy="repair the row, or delete it if it is not a lease",
        subject=row,
    )


def _failing_handler(shard: LeaseKey, failed: HandlerFailed) -> Finding:
    subject = (
        f"the record at {failed.end}"
        if failed.records == 1
        else f"{failed.records} records up to {failed.end}"
    )
    return Finding(
        code="handler_fails",
        severity=Severity.PROBLEM,
        text=f"its handler has failed {failed.attempt} times on {subject}: {failed.error}"
        f"{failed.reason and f': {failed.reason}'}",
        remedy="mend the handler; to pass by a record that fails each time, set dead_letters, and its records are kept "
        "there",
        shard=shard,
    )


def all_findings(report: HealthReport) -> tuple[Finding, ...]:
    """The findings about the member itself, at this moment, and those of its last review about everything else."""
    own = tuple(own_findings(report))
    told = {(each.code, each.subject) for each in own if each.shard is None}
    others = (each for each in report.reviewed if each.code not in _OWN_CODES)
    return (
        *own,
        *(each for each in others if (each.code, each.subject) not in told or each.shard is not None),
    )


def health_to_json(report: HealthReport) -> Mapping[str, Any]:
    """The report as JSON values. `problems` and `warnings` are lists of sentences."""
    findings = all_findings(report)
    shards = {
        shard.shard: {
            "ok": shard.problem is None,
            "lag_ms": shard.lag_ms,
            "idle_ms": shard.idle_ms,
            "records_in_flight": shard.records_in_flight,
            "waits_for": list(shard.parents),
        }
        for shard in report.shards
    }
    problems = [report.problem] if report.problem else []
    problems += [f"{shard.shard} {shard.problem}" for shard in report.shards if shard.problem]
    return {
        "ok": report.is_healthy,
        "state": report.state,
        "problems": problems,
        "warnings": [warning.text for warning in report.warnings],
        "severity": worst_severity(findings).value,
        "findings": [{"shard": each.shard, **finding_to_json(each)} for each in findings],
        "kinesis_calls": _calls_to_json(report.calls),
        "shards": shards,
    }


def _calls_to_json(calls: KinesisCallsCounted | None) -> Mapping[str, Mapping[str, float]]:
    """Calls to Kinesis a second, by operation, in the last ten seconds or so."""

    def rates(count: CallCount, seconds: float) -> Mapping[str, float]:
        return {
            "per_s": round(count.calls / seconds, 2),
            "throttled_per_s": round(count.throttled / seconds, 2),
        }

    if calls is None:
        return {}
    return {each.operation: rates(each, calls.time_ms / 1000) for each in calls.counts}


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.0f} s"
