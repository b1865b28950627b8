"""Which leases of finished shards to delete, and why the others stay. Reads a snapshot of the leases and, if
there is one, a list of the shards; returns a plan. Deletes nothing, and asks nobody for children.

A finished lease is a marker: it says that its shard must not be read again, and lets its children start. It
has done its work when every child has a checkpoint of its own. Lineages therefore go oldest first, a
generation in a pass:

* *passed*: no parent has a lease any more, and every child has one and has started. A child at `LATEST`
  counts as started, as in the Java KCL: it does not lean on the marker.
* *gone*: the shard left the retention period. Nobody can read it again, with or without a marker.

In neither case may a child be without a lease: the marker is then what tells the next sync to begin it at the
start and not at the initial position.

A marker also stays for a while after its shard has ended. A member that looked at the table before there was such a
lease, and was held up, may still be about to create it; a scan whose pages are of different moments may show neither it
nor its children. While the row is there, neither can bring the shard back to life.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from leasehold.core.model import Lease, LeaseKey, ShardId, StreamIdentifier, lease_key
from leasehold.core.shards.hash_coverage import first_hole
from leasehold.core.shards.shard_graph import ShardGraph, format_shard_ids
from leasehold.errors import ShardListError

# The word alone decides: a kcl-rust worker stores a time beside AT_TIMESTAMP, and that is no progress.
_NOT_STARTED: Final = frozenset({"TRIM_HORIZON", "AT_TIMESTAMP"})


class DeleteReason(Enum):
    """Why a lease has done its work."""

    PASSED = "finished, and all its children are being read"
    GONE = "finished, and the shard no longer exists"


class KeepReason(Enum):
    """Why a lease stays; the shards that go with it are in `Kept.because_of`."""

    NOT_FINISHED = "its shard is not read to the end"
    GONE_UNFINISHED = "its shard no longer exists, and its owner has yet to find out and finish it"
    CHILDREN_UNKNOWN = "finished, but nobody noted its children; ask the stream for them"
    CHILD_WITHOUT_LEASE = "finished, but a child has no lease; a shard sync will create it"
    PARENT_REMAINS = "finished, but a parent's lease is still there and goes first"
    CHILD_NOT_STARTED = "finished, but a child has no checkpoint of its own yet"
    JUST_FINISHED = "finished only a moment ago; a slow member may still be about to create it"


# When one observer first saw each finished lease finished, by its own clock.
EndedSince = Mapping[LeaseKey, int]


@dataclass(frozen=True, slots=True)
class DeleteLease:
    """A lease to delete."""

    key: LeaseKey
    reason: DeleteReason


@dataclass(frozen=True, slots=True)
class KeepLease:
    """A lease that stays, and the shards that keep it."""

    key: LeaseKey
    reason: KeepReason
    because_of: tuple[ShardId, ...] = ()

    def __str__(self) -> str:
        which = f" ({format_shard_ids(self.because_of)})" if self.because_of else ""
        return f"lease {self.key} stays: {self.reason.value}{which}"


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """Every lease of the stream is in one of the two; `learned` are finished leases whose children were not
    noted: write them into their rows.
    """

    delete: tuple[DeleteLease, ...] = ()
    keep: tuple[KeepLease, ...] = ()
    found_children: tuple[Lease, ...] = ()


def next_ended_since(before: EndedSince, leases: Iterable[Lease], now_ms: int) -> EndedSince:
    """What is remembered after one more look at all leases. Those that are gone, or run again, are forgotten."""
    return {lease.key: before.get(lease.key, now_ms) for lease in leases if lease.checkpoint.is_shard_end}


def plan_cleanup(
    leases: Iterable[Lease],
    shards: ShardGraph | None = None,
    *,
    stream: StreamIdentifier | None = None,
    just_finished: Collection[LeaseKey] = (),
) -> CleanupPlan:
    """Which leases of the stream to delete.

    `shards` is an unfiltered list, read *after* the leases; without one nothing counts as gone, and only
    children that were noted at the shard's end are known. A list that does not reach over all hash keys is a
    `ShardListError`: what it leaves out would look gone.
    """
    if shards is not None:
        _refuse_partial(shards)
    here = {lease.key: lease for lease in leases if lease.stream == stream}
    found_children = [_with_children(lease, shards) for lease in here.values()]
    decided = [_spared(_decide(lease, here, shards), just_finished) for lease in found_children]
    return CleanupPlan(
        delete=tuple(each for each in decided if isinstance(each, DeleteLease)),
        keep=tuple(each for each in decided if isinstance(each, KeepLease)),
        found_children=tuple(lease for lease in found_children if lease.children != here[lease.key].children),
    )


def _spared(decided: DeleteLease | KeepLease, just_finished: Collection[LeaseKey]) -> DeleteLease | KeepLease:
    if isinstance(decided, DeleteLease) and decided.key in just_finished:
        return KeepLease(decided.key, KeepReason.JUST_FINISHED)
    return decided


def _decide(
    lease: Lease, leases: Mapping[LeaseKey, Lease], shards: ShardGraph | None
) -> DeleteLease | KeepLease:
    if shards is not None and lease.shard_id not in shards.shards:
        return _decide_gone(lease, leases, shards)
    if not lease.checkpoint.is_shard_end:
        return KeepLease(lease.key, KeepReason.NOT_FINISHED)
    if not lease.children:
        return KeepLease(lease.key, KeepReason.CHILDREN_UNKNOWN)
    if unleased := _without_lease(lease, lease.children, leases):
        return KeepLease(lease.key, KeepReason.CHILD_WITHOUT_LEASE, unleased)
    if parents := tuple(p for p in sorted(lease.parents) if lease_key(p, lease.stream) in leases):
        return KeepLease(lease.key, KeepReason.PARENT_REMAINS, parents)
    children = (leases[lease_key(child, lease.stream)] for child in sorted(lease.children))
    if waiting := tuple(child.shard_id for child in children if not _has_started(child)):
        return KeepLease(lease.key, KeepReason.CHILD_NOT_STARTED, waiting)
    return DeleteLease(lease.key, DeleteReason.PASSED)


def _decide_gone(
    lease: Lease, leases: Mapping[LeaseKey, Lease], shards: ShardGraph
) -> DeleteLease | KeepLease:
    if not lease.checkpoint.is_shard_end:
        return KeepLease(lease.key, KeepReason.GONE_UNFINISHED)
    # Only children that still exist: one that is gone too will never get a lease.
    if unleased := _without_lease(lease, shards.children_of(lease.shard_id), leases):
        return KeepLease(lease.key, KeepReason.CHILD_WITHOUT_LEASE, unleased)
    return DeleteLease(lease.key, DeleteReason.GONE)


def _without_lease(
    lease: Lease, children: Iterable[ShardId], leases: Mapping[LeaseKey, Lease]
) -> tuple[ShardId, ...]:
    return tuple(child for child in sorted(children) if lease_key(child, lease.stream) not in leases)


def _has_started(lease: Lease) -> bool:
    return lease.checkpoint.sequence_number not in _NOT_STARTED


def _with_children(lease: Lease, shards: ShardGraph | None) -> Lease:
    """The lease of a finished shard with its children from the list, if nobody noted them and the list has
    them all.
    """
    if shards is None or lease.children or not lease.checkpoint.is_shard_end:
        return lease
    shard = shards.shards.get(lease.shard_id)
    children = [shards.shards[child] for child in shards.children_of(lease.shard_id)]
    if shard is None or first_hole((child.hash_range for child in children), within=shard.hash_range):
        return lease
    return replace(lease, children=frozenset(child.id for child in children))


def _refuse_partial(shards: ShardGraph) -> None:
    if hole := first_hole(shard.hash_range for shard in shards.open_shards):
        raise ShardListError(
            f"the {len(shards.open_shards)} listed open shards leave hash keys {hole} to nobody: a page is "
            "missing, or a reshard is under way; list again (nothing was deleted)"
        )
