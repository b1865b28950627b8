"""Whether a member does its work, judged by progress and not by being alive. Holds no clock; emits nothing.

A shard is not healthy when it has something to do and has not moved for `stuck_after_ms`: records lie in hand and none
gets done; no page comes; or pages come and the tip does not get nearer. While it moves it is healthy, however far
behind; at its tip it is healthy, however idle; and so it is while it waits for its parents.

A member is not healthy when it holds leases and has not renewed them for longer than the failover time, since others
may take them then; nor when nothing has been heard from the lease table for three failover times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from leasehold.core.events import (
    Event,
    FleetRefreshed,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    ShardsSynced,
)
from leasehold.core.model import LeaseKey, ShardId
from leasehold.core.observing.lag import LagTracker, ShardProgress

TABLE_UNHEARD_FAILOVERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """What counts as too long."""

    failover_ms: int
    stuck_after_ms: int


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """One shard, by the key of its lease, and what is wrong with it, if anything is."""

    shard: LeaseKey
    problem: str | None
    lag_ms: int | None
    idle_ms: int
    records_in_flight: int
    parents: tuple[ShardId, ...]


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The answer: healthy if nobody has a problem."""

    state: str
    problem: str | None
    shards: tuple[ShardHealth, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether all is well."""
        return self.problem is None and all(shard.problem is None for shard in self.shards)


class Health:
    """Folds events into the answer to "is this member doing its work?"."""

    def __init__(self, limits: HealthLimits, now_ms: int) -> None:
        self._limits = limits
        self._lags = LagTracker()
        self._state = "starting"
        self._table_heard_ms = now_ms
        self._renewed_ms = now_ms

    def observe(self, event: Event, now_ms: int) -> None:
        """Take one event into account."""
        had_leases = len(self._lags) > 0
        self._lags.observe(event, now_ms)
        match event:
            case MemberStarted():
                self._state = "running"
            case MemberStopped():
                self._state = "stopped"
            case LeasesRenewed(renewed=renewed, failed=failed) if renewed or not failed:
                self._renewed_ms = self._table_heard_ms = now_ms
            case FleetRefreshed() | ShardsSynced():
                self._table_heard_ms = now_ms
            case LeaseTaken() if not had_leases:
                self._renewed_ms = self._table_heard_ms = now_ms  # taking is the first heartbeat
            case _:
                pass  # the shards' events are folded by `Lags`

    def report(self, now_ms: int) -> HealthReport:
        """How things are at this moment."""
        shards = tuple(
            ShardHealth(
                shard,
                self._shard_problem(progress, now_ms),
                progress.lag_ms(now_ms),
                now_ms - progress.last_progress_ms,
                progress.records_in_flight,
                progress.parents,
            )
            for shard, progress in sorted(self._lags, key=itemgetter(0))
        )
        return HealthReport(self._state, self._member_problem(now_ms), shards)

    def _member_problem(self, now_ms: int) -> str | None:
        if self._state == "stopped":
            return "the member has stopped"
        unrenewed_ms = now_ms - self._renewed_ms
        if len(self._lags) and unrenewed_ms > self._limits.failover_ms:
            return (
                f"leases were last renewed {_seconds(unrenewed_ms)} ago, and others may take them after "
                f"{_seconds(self._limits.failover_ms)}: is the lease table reachable, the process starved?"
            )
        unheard_ms = now_ms - self._table_heard_ms
        if unheard_ms > TABLE_UNHEARD_FAILOVERS * self._limits.failover_ms:
            return f"nothing was heard from the lease table for {_seconds(unheard_ms)}: is it reachable?"
        return None

    def _shard_problem(self, progress: ShardProgress, now_ms: int) -> str | None:
        idle_ms = now_ms - progress.last_progress_ms
        if progress.parents or idle_ms <= self._limits.stuck_after_ms:
            return None
        because = f"; {progress.trouble}, {progress.failures} times" if progress.trouble else ""
        return f"has not moved for {_seconds(idle_ms)}: {_standstill(progress)}{because}"


def _standstill(progress: ShardProgress) -> str:
    if progress.pages_in_flight:
        return f"{progress.records_in_flight} records are in hand and none gets done"
    if progress.page_ms is None or progress.page_ms <= progress.last_progress_ms:
        return "no page was read"
    return "pages are read, but the tip does not get nearer"


def health_to_json(report: HealthReport) -> Mapping[str, Any]:
    """The answer as plain values; `problems` says in sentences why, if it is not ok."""
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
    return {"ok": report.is_healthy, "state": report.state, "problems": problems, "shards": shards}


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.0f} s"
