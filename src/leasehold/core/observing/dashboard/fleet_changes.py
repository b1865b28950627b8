"""What has changed between two reads of a fleet, as short sentences: leases, shards that ended, leaders, workers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from leasehold.core.command_name import parse_command
from leasehold.core.finding import format_duration
from leasehold.core.model import Lease, LeaseKey, WorkerId
from leasehold.core.observing.dashboard.open_batch import OpenBatch, find_open_batch
from leasehold.core.observing.explain.facts import FleetFacts, TableRead
from leasehold.core.shown_text import shown

SINGLE_MAX: Final = 3  # more changes of one kind are counted in one sentence


@dataclass(frozen=True, slots=True)
class Change:
    """One sentence. `kind` is stable; `shard` is the lease key if it is about one shard."""

    at_ms: int
    kind: str
    text: str
    shard: LeaseKey | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """What has happened to one lease. `many` is the same without what differs between shards."""

    kind: str
    text: str
    many: str


def describe_changes(before: TableRead, after: TableRead, wall_ms: int) -> Sequence[Change]:
    """The changes of leases and of the leader from one read to a later one."""
    found: defaultdict[tuple[str, str], dict[LeaseKey, str]] = defaultdict(dict)
    for key, lease in after.by_key.items():
        for told in _lease_changes(before.by_key.get(key), lease):
            found[told.kind, told.many][key] = told.text
    for key in before.by_key.keys() - after.by_key.keys():
        found["deleted", "its lease was deleted"][key] = "its lease was deleted"
    changes = list(_leader_changes(before, after, wall_ms))
    for (kind, many), texts in sorted(found.items()):
        if len(texts) > SINGLE_MAX:
            changes.append(Change(wall_ms, kind, f"{len(texts):,} shards: {many}"))
        else:
            changes += [Change(wall_ms, kind, text, key) for key, text in sorted(texts.items())]
    return changes


def describe_workers(was_silent: Collection[WorkerId], facts: FleetFacts, wall_ms: int) -> Sequence[Change]:
    """Which workers have fallen silent with their leases, and which of those that were silent are active again."""
    owned = Counter(lease.actual_owner for lease in facts.after.leases if not lease.checkpoint.is_shard_end)
    silence = format_duration(facts.watched_ms)
    changes = [
        Change(
            wall_ms,
            "silent",
            f"{shown(worker)} is silent: it has sent no heartbeat for at least {silence}, and still owns "
            f"{owned[worker]:,} {'lease' if owned[worker] == 1 else 'leases'}",
        )
        for worker in sorted(find_silent(facts).difference(was_silent))
    ]
    again = facts.active_workers.intersection(was_silent)
    return changes + [
        Change(wall_ms, "active", f"{shown(worker)} is active again") for worker in sorted(again)
    ]


def find_silent(facts: FleetFacts) -> frozenset[WorkerId]:
    """The workers that own leases, renew none, and send no report. A command that was killed is no worker."""
    silent = facts.silent_owners - facts.active_workers
    return frozenset(worker for worker in silent if parse_command(worker) is None)


def _leader_changes(before: TableRead, after: TableRead, wall_ms: int) -> Iterator[Change]:
    old, new = _leader(before), _leader(after)
    if old != new:
        text = f"{shown(new)} leads the fleet" if new is not None else "the leader released its lock"
        yield Change(wall_ms, "leader", text)


def _leader(read: TableRead) -> WorkerId | None:
    return None if read.lock is None or read.lock.is_released else read.lock.owner


def _lease_changes(before: Lease | None, after: Lease) -> Iterator[_Told]:
    if before is None:
        yield _told("created", "its lease was created")
        return
    if after.checkpoint.is_shard_end:
        if not before.checkpoint.is_shard_end:
            yield _told("ended", "it was read to its end")
    elif after.checkpoint < before.checkpoint:
        yield _told("moved_back", "its checkpoint was moved back")
    else:
        yield from _owner_changes(before, after)
    if after.is_in_handoff and not before.is_in_handoff and after.owner is not None:
        asked, wants = shown(after.checkpoint_owner or ""), shown(after.owner)
        yield _told("handoff", f"{asked} is asked to hand it over to {wants}")


def _owner_changes(before: Lease, after: Lease) -> Iterator[_Told]:
    """A new owner, or a new lease session of the same one: the process was restarted."""
    old, new = before.actual_owner, after.actual_owner
    if new is None:
        if old is not None:
            yield _told("released", f"{shown(old)} released it")
        return
    has_begun = after.session not in {None, before.session}
    batch = find_open_batch(before) if has_begun else None
    if old is None:
        yield _told("taken", f"{shown(new)} has taken it", batch)
    elif old != new:
        yield _told("moved", f"it moved from {shown(old)} to {shown(new)}", batch)
    elif has_begun and before.session is not None:
        text = f"{shown(new)} began a new lease session"
        yield _told("session", text if batch else f"{text}, and reads on after the checkpoint", batch)
    elif batch is not None:
        yield _told("session", f"{shown(new)} began to read it", batch)


def _told(kind: str, text: str, batch: OpenBatch | None = None) -> _Told:
    if batch is None:
        return _Told(kind, text, text)
    then = "unless it was complete, exactly the same records are delivered again, and then those after them"
    return _Told(
        kind,
        f"{text}. A batch is pinned, {batch.words}: {then}",
        f"{text}. The batch of each is pinned: {then}",
    )
