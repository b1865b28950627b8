"""Findings about the lag of a shard: at the tip, catching up, falling behind, stuck, trimmed or about to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from leasehold.core.finding import Finding, Severity, format_duration
from leasehold.core.model import Lease
from leasehold.core.observing.explain.facts import FleetFacts, LagRead

AT_TIP_MS: Final = 10_000  # pages of an idle shard are seconds apart, and batches are collected for a while
STUCK_BEHIND_MS: Final = 60_000  # many programs checkpoint once a minute
FALLING_BEHIND_MIN_MS: Final = 60_000  # the lag of a busy shard varies by some seconds
RETENTION_WARNING: Final = 0.75  # the part of the retention after which records are in danger
# With these, a worker itself says why a shard does not move.
_REASONS: Final = frozenset({"no_progress", "handler_fails"})
HOT_KBPS: Final = 0.8 * 1_024  # a shard accepts one megabyte a second


def lag_findings(lease: Lease, facts: FleetFacts, *, is_served: bool) -> Iterator[Finding]:
    """The findings about a shard that may be read now. At least one if a worker serves it.

    If none does, another finding says why, and is a problem if it lasts. The lag is its consequence.
    """
    reads = facts.lags.get(lease.key, ())
    if not reads:
        if is_served:
            yield _finding(
                lease, "lag_unknown", Severity.OK, f"{lease.actual_owner} reads it; its lag was not measured"
            )
            yield from facts.worker_findings.get(lease.key, ())
        return
    last = reads[-1]
    if last.is_throttled:
        yield _finding(
            lease,
            "reads_throttled",
            Severity.NOTICE,
            f"reads of the shard are throttled: {lease.actual_owner or 'no worker'} polls it for this application, and "
            "another program does so too; all of them share five reads and two megabytes a second",
            "stop other programs that poll this stream, or give each its own throughput with enhanced fan-out",
        )
    if _is_trimmed(lease, last, facts):
        yield _finding(
            lease,
            "position_trimmed",
            Severity.PROBLEM,
            "the record at its checkpoint is no longer retained: records after it may be lost",
            "raise the retention of the stream, and read on; the worker reports the gap",
        )
    elif last.is_emptied:
        yield _finding(
            lease,
            "position_trimmed",
            Severity.OK if is_served else Severity.NOTICE,
            "the record at its checkpoint is no longer retained, and no later record is: records are lost, unless the "
            "shard has been idle for longer than the retention",
            "compare with the producers whether they wrote records since the checkpoint",
        )
    yield from _retention_findings(lease, last, facts)
    if is_served:
        yield from _progress_findings(lease, reads, facts)
    elif last.behind_ms is None and last.problem:
        yield _unknown_lag(lease, last)
    elif last.behind_ms:
        yield _finding(lease, "behind", Severity.OK, f"it is {format_duration(last.behind_ms)} behind")
    if is_served and lease.throughput_kbps is not None and lease.throughput_kbps >= HOT_KBPS:
        yield _finding(
            lease,
            "hot_shard",
            Severity.NOTICE,
            f"the shard delivers {lease.throughput_kbps:.0f} kB a second, and a shard accepts 1,024",
            "split the shard, or choose partition keys that spread the records",
        )


def _retention_findings(lease: Lease, last: LagRead, facts: FleetFacts) -> Iterator[Finding]:
    retention_ms = _retention_ms(lease, facts)
    if retention_ms is None or last.behind_ms is None or _is_trimmed(lease, last, facts):
        return
    if last.behind_ms >= RETENTION_WARNING * retention_ms:
        left_ms = max(0, retention_ms - last.behind_ms)
        yield _finding(
            lease,
            "retention_nearly_reached",
            Severity.PROBLEM,
            f"it is {format_duration(last.behind_ms)} behind, and the stream keeps records for "
            f"{format_duration(retention_ms)}: the first records are lost in {format_duration(left_ms)}",
            "raise the retention of the stream now, then make the shard move",
        )


def _progress_findings(lease: Lease, reads: tuple[LagRead, ...], facts: FleetFacts) -> Iterator[Finding]:
    last, told = reads[-1], facts.worker_findings.get(lease.key, ())
    yield from told
    if last.behind_ms is None:
        yield _unknown_lag(lease, last)
    elif last.behind_ms <= AT_TIP_MS:
        yield _finding(lease, "at_tip", Severity.OK, _at_tip(lease, last.behind_ms))
    elif any(each.code in _REASONS for each in told):
        text = f"{lease.actual_owner} reads it, {format_duration(last.behind_ms)} behind"
        yield _finding(lease, "behind", Severity.OK, text)
    elif facts.own_worker is None and _is_unmoved(lease, facts) and last.behind_ms >= STUCK_BEHIND_MS:
        yield _unmoved_finding(lease, last.behind_ms, facts)
    else:
        yield _rate_finding(lease, reads, last.behind_ms, facts)


def _unmoved_finding(lease: Lease, behind_ms: int, facts: FleetFacts) -> Finding:
    """A checkpoint stands still while a handler takes long for a batch. Only the worker knows whether it hangs."""
    watched, behind = format_duration(facts.watched_ms), format_duration(behind_ms)
    idle_ms = (facts.worker_idle_ms or {}).get(lease.key)
    if idle_ms is not None:
        text = (
            f"{lease.actual_owner} reads it, {behind} behind; its checkpoint has not moved in {watched}, and its "
            f"worker finds it healthy: when asked, it had made progress {format_duration(idle_ms)} before"
        )
        return _finding(lease, "behind", Severity.OK, text)
    remedy = "its handler hangs, fails each time, or does not checkpoint: look at its log"
    return _finding(
        lease,
        "stuck",
        Severity.PROBLEM,
        f"{lease.actual_owner} renews the lease, but its checkpoint has not moved in {watched} and is {behind} behind",
        f"{remedy}, and at /health of a Leasehold worker (--status)"
        if facts.worker_idle_ms is None
        else f"{remedy}; no worker that was asked says that it reads this shard",
    )


def _unknown_lag(lease: Lease, last: LagRead) -> Finding:
    text = f"its lag is not known: {last.problem or 'no answer'}"
    return _finding(lease, "lag_unknown", Severity.NOTICE, text)


def _rate_finding(lease: Lease, reads: tuple[LagRead, ...], behind_ms: int, facts: FleetFacts) -> Finding:
    text = f"{lease.actual_owner} reads it, {format_duration(behind_ms)} behind"
    known = [read for read in reads if read.behind_ms is not None]
    gained_ms, elapsed_ms = _gain(known)
    if not elapsed_ms:
        return _finding(lease, "behind", Severity.OK, text)
    if gained_ms > 0:
        left_ms = behind_ms * elapsed_ms // gained_ms
        text += f" and catching up: about {format_duration(left_ms)} to the tip at the present rate"
        return _finding(lease, "catching_up", Severity.OK, text)
    if gained_ms == 0:
        text += f", and no nearer than {format_duration(elapsed_ms)} ago"
        return _finding(lease, "behind", Severity.OK, text)
    # The lag of a shard that stands still grows by itself. Only while it moves is its worker too slow.
    moved = _last_move(known)
    if moved < len(known) - 1:
        # The shard stopped between this read and the one before, so this lag is already one of a shard that stands.
        gained_ms, elapsed_ms = _gain(known[: max(1, moved)])
    if gained_ms >= 0:
        text += f"; its position has not moved for at least {format_duration(known[-1].at_ms - known[moved].at_ms)}"
        return _finding(lease, "behind", Severity.OK, text)
    return _finding(
        lease,
        "falling_behind",
        Severity.NOTICE if behind_ms >= FALLING_BEHIND_MIN_MS else Severity.OK,
        f"{text} and falling behind: the lag grew by {format_duration(-gained_ms)} "
        f"in {format_duration(elapsed_ms)}{_loss(lease, behind_ms, -gained_ms / elapsed_ms, facts)}",
        "a faster handler, more workers, or more shards",
    )


def _gain(reads: Sequence[LagRead]) -> tuple[int, int]:
    """By how much the lag fell from the first of these reads to the last, and in what time."""
    first, last = reads[0], reads[-1]
    return (first.behind_ms or 0) - (last.behind_ms or 0), last.at_ms - first.at_ms


def _last_move(reads: Sequence[LagRead]) -> int:
    """The number of the read since which the shard has not moved; the last one if it moves."""
    for number in range(len(reads) - 1, 0, -1):
        if reads[number].has_moved_since(reads[number - 1]):
            return number
    return 0


def _loss(lease: Lease, behind_ms: int, growth: float, facts: FleetFacts) -> str:
    """When the first records are lost if the lag keeps growing by `growth` milliseconds a millisecond."""
    retention_ms = _retention_ms(lease, facts)
    if retention_ms is None or behind_ms >= retention_ms:
        return ""
    return f"; at this rate the first records are lost in {format_duration(int((retention_ms - behind_ms) / growth))}"


def _is_trimmed(lease: Lease, last: LagRead, facts: FleetFacts) -> bool:
    """A member has no read at the checkpoint, but it knows when the next record is older than the retention."""
    retention_ms = _retention_ms(lease, facts)
    is_past = retention_ms is not None and last.behind_ms is not None and last.behind_ms >= retention_ms
    return last.is_trimmed or (facts.own_worker is not None and is_past)


def _retention_ms(lease: Lease, facts: FleetFacts) -> int | None:
    stream = facts.streams.get(lease.stream)
    return None if stream is None else stream.retention_ms


def _is_unmoved(lease: Lease, facts: FleetFacts) -> bool:
    before = facts.before.by_key.get(lease.key)
    return before is not None and before.checkpoint == lease.checkpoint and before.owner == lease.owner


def _at_tip(lease: Lease, behind_ms: int) -> str:
    place = f"{format_duration(behind_ms)} behind" if behind_ms else "at the tip"
    return f"{lease.actual_owner} reads it, {place}"


def _finding(lease: Lease, code: str, severity: Severity, text: str, remedy: str = "") -> Finding:
    return Finding(code=code, severity=severity, text=text, remedy=remedy, shard=lease.key)
