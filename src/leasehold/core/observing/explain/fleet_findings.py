"""Findings about a fleet as a whole: its workers, its leader, its tables, its streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from leasehold.core.coordinator.leader_lock import LeaderLock
from leasehold.core.finding import MORE, Finding, Severity, format_duration
from leasehold.core.leases.rejected_row import consequence_of
from leasehold.core.model import WorkerId
from leasehold.core.observing.explain.facts import FleetFacts
from leasehold.errors import MalformedRowError

ROWS_SHOWN_MAX: Final = 8


def silence_of(facts: FleetFacts, worker: WorkerId) -> str:
    """How long a worker is known to be silent, as words.

    Heartbeats carry no time, and a worker may have sent some after its last report.
    """
    silence = f"for at least {format_duration(facts.watched_ms)}"
    report = facts.report_of(worker)
    if report is None or not facts.is_report_expired(worker):
        return silence
    return f"{silence} (its last report is {format_duration((facts.wall_s - report.updated_s) * 1000)} old)"


def fleet_findings(facts: FleetFacts) -> Iterator[Finding]:
    """The findings about the fleet. None if there is nothing to say."""
    yield from _worker_findings(facts)
    yield from _leader_findings(facts)
    yield from _table_findings(facts)
    for stream in facts.streams.values():
        if stream.is_missing:
            yield Finding(
                code="stream_missing",
                severity=Severity.PROBLEM,
                text=f"stream {stream.name} does not exist",
                remedy="check the name, the region and the account, or delete its leases",
                subject=stream.name,
            )


def _worker_findings(facts: FleetFacts) -> Iterator[Finding]:
    if not facts.active_workers and any(not lease.checkpoint.is_shard_end for lease in facts.after.leases):
        yield Finding(
            code="no_active_worker",
            severity=Severity.PROBLEM,
            text=f"no worker is active: none has sent a heartbeat or a report in {format_duration(facts.watched_ms)}",
            remedy="start a worker with this application name, and look at the logs of those that should run",
        )
    for address in sorted(set(facts.worker_findings) - set(facts.after.by_key)):
        for finding in facts.worker_findings[address]:
            yield replace(finding, text=f"{address}: {finding.text}", subject=address)


def _leader_findings(facts: FleetFacts) -> Iterator[Finding]:
    if not facts.has_leader or not facts.active_workers:
        return
    lock = facts.after.lock
    if lock is None or lock.owner is None or lock.is_released:
        was_free = facts.before.lock is None or facts.before.lock.is_released
        yield Finding(
            code="no_leader",
            severity=Severity.PROBLEM if was_free else Severity.NOTICE,
            text="the fleet has no leader, so nobody assigns free leases",
            remedy="a worker takes the lock within seconds; if none does, look at the logs of the workers for failed "
            "writes to the lease table",
        )
    elif _is_leader_silent(facts, lock, lock.owner):
        yield Finding(
            code="leader_silent",
            severity=Severity.PROBLEM,
            text=f"leader {lock.owner} is silent {silence_of(facts, lock.owner)}, so nobody assigns free leases",
            remedy=f"another worker takes over {format_duration(lock.duration_ms)} after its last heartbeat; if that "
            "does not happen, no other worker runs",
        )


def _is_leader_silent(facts: FleetFacts, lock: LeaderLock, owner: WorkerId) -> bool:
    before = facts.before.lock
    is_unchanged = before is not None and before.version == lock.version
    return is_unchanged and (facts.is_report_expired(owner) or facts.watched_ms > lock.duration_ms)


def _problem(error: MalformedRowError) -> str:
    """What is wrong with a row, without the advice for those who see only the error: a finding has its remedy."""
    return error.problem.removesuffix("; repair or delete the row")


def _table_findings(facts: FleetFacts) -> Iterator[Finding]:
    for error in facts.after.rejected[:ROWS_SHOWN_MAX]:
        yield Finding(
            code="unreadable_row",
            severity=Severity.PROBLEM,
            text=f"row {error.key!r} of the lease table cannot be read: {_problem(error)}; "
            f"{consequence_of(error.key)}",
            remedy="repair the row, or delete it if it is not a lease",
            subject=error.key,
        )
    if (more := len(facts.after.rejected) - ROWS_SHOWN_MAX) > 0:
        yield Finding(
            code="unreadable_row",
            severity=Severity.PROBLEM,
            text=f"{more} more rows of the lease table cannot be read",
            remedy="repair these rows, or delete those that are no leases; `leasehold leases` lists them",
            subject=MORE,
        )
    if facts.has_two_layouts:
        yield Finding(
            code="two_table_layouts",
            severity=Severity.NOTICE,
            text="worker reports are both in the lease table (KCL 3.5 and later) and in a table of their own (KCL 3.0 "
            "to 3.4)",
            remedy="this is right while a fleet moves to one table; if no move is under way, two fleets use one "
            "application name",
        )
    if facts.has_leader and not facts.has_index:
        yield Finding(
            code="index_not_ready",
            severity=Severity.NOTICE,
            text="the index of owners does not exist or is still being built: until then each worker scans the table",
            remedy="wait for DynamoDB to build it; a worker with the permission dynamodb:UpdateTable creates it",
        )
