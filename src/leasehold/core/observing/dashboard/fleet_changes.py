"""What has changed between two reads of a fleet, as short sentences: leases that moved, shards that ended, leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from leasehold.core.model import Lease, LeaseKey, WorkerId
from leasehold.core.observing.explain.facts import TableRead
from leasehold.core.shown_text import shown

SINGLE_MAX: Final = 3  # more changes of one kind are counted in one sentence


@dataclass(frozen=True, slots=True)
class Change:
    """One sentence. `kind` is stable; `shard` is the lease key if it is about one shard."""

    at_ms: int
    kind: str
    text: str
    shard: LeaseKey | None = None


def describe_changes(before: TableRead, after: TableRead, wall_ms: int) -> Sequence[Change]:
    """The changes from one read to a later one."""
    found: defaultdict[tuple[str, str], list[LeaseKey]] = defaultdict(list)
    for key, lease in after.by_key.items():
        for kind, text in _lease_changes(before.by_key.get(key), lease):
            found[kind, text].append(key)
    for key in before.by_key.keys() - after.by_key.keys():
        found["deleted", "its lease was deleted"].append(key)
    changes = list(_leader_changes(before, after, wall_ms))
    for (kind, text), keys in sorted(found.items()):
        if len(keys) > SINGLE_MAX:
            changes.append(Change(wall_ms, kind, f"{len(keys):,} shards: {text}"))
        else:
            changes += [Change(wall_ms, kind, text, key) for key in sorted(keys)]
    return changes


def _leader_changes(before: TableRead, after: TableRead, wall_ms: int) -> Iterator[Change]:
    old, new = _leader(before), _leader(after)
    if old != new:
        text = f"{shown(new)} leads the fleet" if new is not None else "the leader released its lock"
        yield Change(wall_ms, "leader", text)


def _leader(read: TableRead) -> WorkerId | None:
    return None if read.lock is None or read.lock.is_released else read.lock.owner


def _lease_changes(before: Lease | None, after: Lease) -> Iterator[tuple[str, str]]:
    if before is None:
        yield "created", "its lease was created"
        return
    old, new = before.actual_owner, after.actual_owner
    if after.checkpoint.is_shard_end:
        if not before.checkpoint.is_shard_end:
            yield "ended", "it was read to its end"
    elif after.checkpoint < before.checkpoint:
        yield "moved_back", "its checkpoint was moved back"
    elif old != new:
        if new is None:
            yield "released", f"{shown(old or '')} released it"
        elif old is None:
            yield "taken", f"{shown(new)} has taken it"
        else:
            yield "moved", f"it moved from {shown(old)} to {shown(new)}"
    if after.is_in_handoff and not before.is_in_handoff and after.owner is not None:
        yield (
            "handoff",
            f"{shown(after.checkpoint_owner or '')} is asked to hand it over to {shown(after.owner)}",
        )
