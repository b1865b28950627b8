"""A finding: one sentence about a fleet or a shard, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from leasehold.core.model import LeaseKey

# The subject of a finding that counts what is not named one by one.
MORE: Final = "more"


class Severity(Enum):
    """Whether somebody has to act."""

    OK = "ok"
    NOTICE = "notice"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Why a shard moves or does not. `code` is stable, for scripts; `shard` is None if it is about the whole fleet.

    `subject` tells findings with the same code apart that are about no shard: it names a row, a stream or a worker. The
    text cannot do that, because it changes while a finding lasts.
    """

    code: str
    severity: Severity
    text: str
    remedy: str = ""
    shard: LeaseKey | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class FindingKind:
    """What all findings with one code have in common, for docs/reference/findings.md."""

    severity: str  # in words, because it may depend on the circumstances
    text: str
    source: str = "the tables and the stream"


_HEALTH: Final = "`/health` of a Leasehold worker"

# Every code. A test compares the list with the findings in the code.
FINDING_KINDS: Final[Mapping[str, FindingKind]] = {
    "at_tip": FindingKind("ok", "The shard is read, and at most ten seconds behind its tip."),
    "catching_up": FindingKind(
        "ok", "The lag becomes smaller; with the time to the tip at the present rate."
    ),
    "behind": FindingKind(
        "ok",
        "The shard is behind, and its lag neither grows nor falls; or it grows because the position stands still.",
    ),
    "ended": FindingKind(
        "ok; notice if the stream was recreated and only the earlier shard ended",
        "The shard was read to its end. Of a shard without a lease, only `leasehold explain SHARD` says so.",
    ),
    "waits_for_parents": FindingKind(
        "ok",
        "The shard begins when its parents have ended; with the owner and the lag of each parent. It may have no lease "
        "until then.",
    ),
    "falling_behind": FindingKind(
        "notice above a minute, else ok",
        "The lag grows although the position moves; with the rate, and when records are lost at this rate.",
    ),
    "stuck": FindingKind(
        "problem",
        "The owner renews the lease, but the checkpoint does not move and is over a minute behind; no worker says why "
        "(`no_progress`, `handler_fails`).",
    ),
    "handler_fails": FindingKind(
        "problem",
        "The handler has failed at least three times on the same records; with their position, and with one record "
        "if [bisection](docs/worker.md#when-a-handler-fails) has found it.",
        _HEALTH,
    ),
    "no_progress": FindingKind(
        "problem",
        "A shard has had work and made no progress for `stuck_after`: [unhealthy](docs/observing.md#health).",
        _HEALTH,
    ),
    "member_unhealthy": FindingKind(
        "problem", "What makes a member as a whole [unhealthy](docs/observing.md#health).", _HEALTH
    ),
    "process_silent": FindingKind(
        "problem",
        "One of [several processes](docs/observing.md#several-processes) does not answer.",
        _HEALTH,
    ),
    "process_start_hangs": FindingKind(
        "problem", "It has not opened its connections two minutes after its start.", _HEALTH
    ),
    "worker_unhealthy": FindingKind("problem", "A worker does not answer `--status`.", _HEALTH),
    "owner_silent": FindingKind(
        "problem", "The owner sends no heartbeats; with the age of its last report if that is old."
    ),
    "free": FindingKind(
        "problem if it lasts, else ok",
        "Nobody owns the lease: no worker is active, the leader does not assign it, or all workers have `max_leases`.",
    ),
    "handoff_pending": FindingKind(
        "notice if it lasts, else ok",
        "The old owner has not finished its records, and hands over to another worker or to a "
        "[command](docs/steering.md); or a command holds the lease for a moment.",
    ),
    "handoff_to_silent_worker": FindingKind(
        "problem", "A lease is handed over to a worker that is no longer active."
    ),
    "parent_without_lease": FindingKind(
        "notice; problem without workers",
        "The shard has not begun, and the lease of its parent was deleted.",
    ),
    "position_trimmed": FindingKind(
        "problem; if no later record is retained either: notice, or ok while a worker serves the shard",
        "The record at the checkpoint is no longer retained. If no later one is either, the shard may also have been "
        "idle for longer than the retention.",
    ),
    "retention_nearly_reached": FindingKind(
        "problem",
        "The lag is more than three quarters of the retention; with the time until records are lost.",
    ),
    "reads_throttled": FindingKind(
        "notice",
        "Several programs poll the shard; names the worker of this application. Kinesis does not tell which the others "
        "are.",
    ),
    "hot_shard": FindingKind("notice", "The shard delivers more than 80 % of what a shard accepts."),
    "lag_unknown": FindingKind(
        "notice; ok if it was not measured", "The lag could not be measured, and why."
    ),
    "shard_gone": FindingKind("notice", "The stream no longer has this shard."),
    "not_a_shard": FindingKind(
        "notice", "The stream never had a shard with the id of this lease: the row is not of this stream."
    ),
    "no_lease": FindingKind("notice; problem without workers", "A listed shard has no lease."),
    "unreadable_row": FindingKind("problem", "A row of the lease table cannot be read."),
    "blocked_by_unreadable_row": FindingKind(
        "problem", "A shard gets no lease, because its row or that of an ancestor cannot be read."
    ),
    "no_active_worker": FindingKind("problem", "Nobody serves the leases."),
    "no_leader": FindingKind(
        "problem; notice at first", "The fleet has no leader, so nobody assigns leases."
    ),
    "leader_silent": FindingKind("problem", "The leader sends no heartbeats, so nobody assigns leases."),
    "stream_missing": FindingKind("problem", "The stream does not exist."),
    "stream_recreated": FindingKind("problem", "The stream is another one of the same name."),
    "two_table_layouts": FindingKind("notice", "A fleet moves from KCL 3.4 to 3.5, or there are two fleets."),
    "index_not_ready": FindingKind("notice", "The index of owners is missing."),
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The findings about the fleet, and at least one about each shard, sorted by lease key."""

    fleet: tuple[Finding, ...]
    shards: Mapping[LeaseKey, tuple[Finding, ...]]

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """The findings about the fleet, then those about its shards."""
        return self.fleet + tuple(each for findings in self.shards.values() for each in findings)

    @property
    def has_problem(self) -> bool:
        """Whether somebody has to act."""
        return any(each.severity is Severity.PROBLEM for each in self.all_findings)


def finding_to_json(finding: Finding) -> Mapping[str, Any]:
    """A finding as JSON values."""
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "text": finding.text,
        "remedy": finding.remedy or None,
    }


def finding_from_json(value: Any) -> Finding | None:
    """A finding from the JSON of another program, which is untrusted; None if it is not a finding."""
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("code", "text")):
        return None
    severity = next((each for each in Severity if each.value == value.get("severity")), None)
    if severity is None:
        return None
    return Finding(
        code=value["code"],
        severity=severity,
        text=value["text"],
        remedy=value["remedy"] if isinstance(value.get("remedy"), str) else "",
        shard=LeaseKey(value["shard"]) if isinstance(value.get("shard"), str) else None,
    )


def worst_severity(findings: Iterable[Finding]) -> Severity:
    """The highest severity of these findings; OK if there are none."""
    order = list(Severity)
    return max((each.severity for each in findings), key=order.index, default=Severity.OK)


def format_duration(duration_ms: int) -> str:
    """Format a duration with its two largest units.

    >>> format_duration(0), format_duration(1_500), format_duration(90_000), format_duration(90_000_000)
    ('0 s', '1.5 s', '1 min 30 s', '1 d 1 h')
    """
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.3g} s"
    seconds = duration_ms // 1000
    for size, large, small_size, small in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            return f"{seconds // size} {large} {seconds % size // small_size} {small}"
    raise AssertionError("unreachable: the duration is at least a minute")
