"""The trace of a run: one line per event with time, process, verb, shard and details."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from leasehold.core.events import (
    Checkpointed,
    DeaggregationFailed,
    Event,
    FleetUpgraded,
    GapFound,
    HandlerFailed,
    HandoffRequested,
    HandoffWithdrawn,
    IteratorExpired,
    LeadershipEnded,
    LeadershipTaken,
    LeaseAssigned,
    LeaseDeleted,
    LeaseLost,
    LeaseReleased,
    LeaseRestarted,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    OperationFailed,
    ReadingStarted,
    RecordDeadLettered,
    RowIgnored,
    RowRecovered,
    RowRejected,
    ShardBlockedOnParents,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
    StreamRecreated,
    StreamsChanged,
    Subscribed,
    SubscriptionEnded,
    SubscriptionLost,
    WorkerFailed,
)
from leasehold.core.leases.lease_view import short_position

WORLD: Final = "world"


class Trace:
    """The lines of one run. `show` gets each line when it is added."""

    def __init__(self, now_ms: Callable[[], int], show: Callable[[str], object] | None = None) -> None:
        self.lines: list[str] = []
        self._now_ms = now_ms
        self._show = show

    def add(self, who: str, verb: str, shard: str = "", detail: str = "") -> None:
        """Add a line."""
        line = f"{self._now_ms() / 1000:9.3f}s  {who:<6} {verb:<11} {short_shard(shard):<6} {detail}".rstrip()
        self.lines.append(line)
        if self._show is not None:
            self._show(line)

    def digest(self) -> str:
        """Return a hash of all lines. Two runs with the same lines have the same digest."""
        return hashlib.blake2b("\n".join(self.lines).encode(), digest_size=8).hexdigest()


def short_shard(shard: str) -> str:
    """Return a short name of a shard.

    >>> short_shard("shardId-000000000007"), short_shard("1:orders:1700000000:shardId-000000000007")
    ('s7', 'orders/s7')
    """
    stream, _, name = shard.rpartition(":")
    head, _, number = name.partition("-")
    if head != "shardId" or not number.isdecimal():
        return shard
    return f"{stream.split(':')[1]}/s{int(number)}" if stream.count(":") == 2 else f"s{int(number)}"


def event_line(event: Event) -> tuple[str, str, str] | None:
    """Return verb, shard and details of an event; None for events that are too frequent to show."""
    match event:
        case LeaseTaken(
            shard_key=shard, taken_from=before, silent_ms=silent_ms, counter=counter, checkpoint=at
        ):
            why = f"from {before}, silent for {silent_ms} ms" if before else "free"
            return "takes", shard, f"{why}, counter {counter}, at {short_position(at)}"
        case LeaseLost(shard_key=shard, owner=owner, reason=reason):
            return "loses", shard, f"to {owner or 'no owner'}: {reason}"
        case LeaseReleased(shard_key=shard, to=to):
            return "releases", shard, f"to {to}" if to else ""
        case HandoffRequested(key=key, owner=owner, to=to):
            return "handoff", key, f"{owner} -> {to}"
        case HandoffWithdrawn(key=key, owner=owner, to=to):
            return "withdraws", key, f"{owner} keeps it, not {to}"
        case Checkpointed(shard_key=shard, position=position):
            return "checkpoints", shard, short_position(position)
        case ShardEnded(shard_key=shard, children=children):
            return "ends", shard, "children " + " ".join(map(short_shard, children))
        case ReadingStarted(shard_key=shard, position=position):
            return "reads", shard, f"from {short_position(position)}"
        case ShardBlockedOnParents(shard_key=shard, parents=parents):
            return "waits", shard, "for " + " ".join(map(short_shard, parents))
        case GapFound(shard_key=shard, gap=gap):
            return "gap", shard, f"after {short_position(gap.after)}"
        case RecordDeadLettered(shard_key=shard, position=position, error=error):
            return "dead-letters", shard, f"{short_position(position)} {error}"
        case HandlerFailed(shard_key=shard, records=records, attempt=attempt, error=error):
            return "fails", shard, f"{error} on {records} records, attempt {attempt}"
        case DeaggregationFailed(shard_key=shard, reason=reason):
            return "aggregate", shard, reason
        case IteratorExpired(shard_key=shard):
            return "expired", shard, ""
        case Subscribed(shard_key=shard, start=start):
            return "subscribes", shard, f"{start.kind.name} {start.sequence_number or ''}".strip()
        case SubscriptionEnded(shard_key=shard, events=events):
            return "unsubscribed", shard, f"after {events} events"
        case SubscriptionLost(shard_key=shard, reason=reason):
            return "unsubscribed", shard, reason
        case ShardStalled(shard_key=shard, idle_ms=idle_ms):
            return "stalls", shard, f"idle for {idle_ms} ms"
        case _:
            return _member_line(event)


def _member_line(event: Event) -> tuple[str, str, str] | None:
    match event:
        case MemberStarted(worker=worker):
            return "starts", "", worker
        case MemberStopped(released=released):
            return "stops", "", f"{released} leases released"
        case ShardsSynced(shards=shards, created=created):
            return ("syncs", "", f"{shards} shards, {created} leases created") if created else None
        case LeaseAssigned(key=key, to=to):
            return "assigns", key, f"to {to}"
        case LeadershipTaken(taken_from=taken_from):
            return "leads", "", f"after {taken_from}" if taken_from else ""
        case LeadershipEnded(reason=reason):
            return "stops to lead", "", reason
        case FleetUpgraded():
            return "upgrades", "", "the fleet has a leader now"
        case LeaseDeleted(key=key):
            return "deletes", key, ""
        case RowRejected(key=key, problem=problem):
            return "rejects", key, problem
        case StreamRecreated(name=name, problem=problem):
            return "recreated", name, problem
        case StreamsChanged(added=added, removed=removed):
            return "streams", "", f"added {added}, removed {removed}"
        case LeaseRestarted(key=key, checkpoint=checkpoint):
            return "restarts", key, f"before at {checkpoint}"
        case RowIgnored(key=key, problem=problem):
            return "ignores", key, problem
        case RowRecovered(key=key):
            return "can read", key, ""
        case OperationFailed(operation=operation, error=error):
            return "fails", "", f"{operation}: {error}"
        case WorkerFailed(error=error):
            return "fails", "", error
        case _:
            return None
