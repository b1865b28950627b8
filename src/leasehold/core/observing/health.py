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

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final

from leasehold.core.events import (
    Event,
    FleetRefreshed,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    RowRecovered,
    RowRejected,
    ShardsSynced,
    StreamRecreated,
)
from leasehold.core.model import LeaseKey, ShardId
from leasehold.core.observing.lag import LagTracker, ShardProgress

TABLE_SILENCE_FAILOVERS_MAX: Final = 3
WARNINGS_MAX: Final = 8  # a table may contain any number of such rows


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


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The health of a member and its shards."""

    state: str
    problem: str | None
    shards: tuple[ShardHealth, ...]
    warnings: tuple[str, ...] = ()

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
        self._recreated: str | None = None
        self._rejected_rows: dict[str, RowRejected] = {}

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
            case StreamRecreated(problem=problem, is_fatal=True):
                self._recreated = problem
            case RowRejected(key=key):
                self._rejected_rows[key] = event
            case RowRecovered(key=key):
                self._rejected_rows.pop(key, None)
            case LeaseTaken() if not had_leases:
                self._renewed_ms = self._table_response_ms = now_ms  # taking a lease is its first heartbeat
            case _:
                pass  # `LagTracker` processes the events of shards

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
            )
            for shard, progress in sorted(self._lag_tracker, key=itemgetter(0))
        )
        return HealthReport(self._state, self._member_problem(now_ms), shards, self._warnings())

    def _warnings(self) -> tuple[str, ...]:
        rows = sorted(self._rejected_rows.values(), key=attrgetter("key"))
        shown = [
            f"row {row.key!r} of the lease table cannot be read: {row.problem}; {row.consequence}"
            for row in rows[:WARNINGS_MAX]
        ]
        if len(rows) > WARNINGS_MAX:
            shown.append(f"{len(rows) - WARNINGS_MAX} more rows of the lease table cannot be read")
        return tuple(shown)

    def _member_problem(self, now_ms: int) -> str | None:
        if self._recreated is not None:
            return self._recreated
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
        because = f"; {progress.last_failure}, {progress.failures} times" if progress.last_failure else ""
        return f"has made no progress for {_seconds(idle_ms)}: {_describe_stall(progress)}{because}"


def _describe_stall(progress: ShardProgress) -> str:
    if progress.pages_in_flight:
        return f"{progress.records_in_flight} records are in flight and none gets done"
    if progress.page_ms is None or progress.page_ms <= progress.last_progress_ms:
        return "no page was read"
    return "pages are read, but the tip does not get nearer"


def health_to_json(report: HealthReport) -> Mapping[str, Any]:
    """The report as JSON values. `problems` and `warnings` are lists of sentences."""
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
        "warnings": list(report.warnings),
        "shards": shards,
    }


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.0f} s"
