"""Which leases of finished shards to delete, and why the others are kept.

A finished lease is a marker: its shard must not be read again, and its children may start. The marker is no longer
needed when every child has its own checkpoint. So each pass deletes the oldest generation:

* *passed*: no parent has a lease any more, and every child has a lease and has started. As in the Java KCL, a child at
  `LATEST` counts as started: it does not depend on the marker.
* *gone*: the shard has left the retention period, and cannot be read again.

In both cases every child must have a lease. If a child has none, the marker makes the next sync start this child at
TRIM_HORIZON instead of the initial position. A child whose lease was deleted while a descendant has one does not count:
it was read to its end, and never gets a lease again.

The children of a shard that is gone may be gone too, so the list does not show its descendants. Therefore such markers
are kept while hash keys have no unfinished lease. If all markers were deleted, the table would be empty, and an audit
would take the fleet for a new one: at LATEST it would skip what the descendants contain.

A marker is also kept for a while after its shard has ended. A delayed member that read the table before the lease
existed may still be about to create it. A scan whose pages were read at different times may show neither the lease nor
its children. While the row exists, neither can make the shard be read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from leasehold.core.model import (
    HashRange,
    Lease,
    LeaseKey,
    Shard,
    ShardId,
    StreamIdentifier,
    lease_key,
)
from leasehold.core.shards.hash_coverage import first_hole
from leasehold.core.shards.shard_graph import ShardGraph, format_shard_ids
from leasehold.errors import ShardListError

# Only the sequence number counts: a kcl-rust worker stores a time as sub-sequence number of AT_TIMESTAMP.
_NOT_STARTED: Final = frozenset({"TRIM_HORIZON", "AT_TIMESTAMP"})


class DeleteReason(Enum):
    """Why a lease may be deleted."""

    PASSED = "finished, and all its children are being read"
    GONE = "finished, and the shard no longer exists"


class KeepReason(Enum):
    """Why a lease is kept. `KeepLease.because_of` lists the shards concerned."""

    NOT_FINISHED = "its shard is not read to the end"
    GONE_UNFINISHED = "its shard no longer exists, and its owner has not finished it yet"
    CHILDREN_UNKNOWN = "finished, but its row does not contain its children; list the shards of the stream"
    CHILD_WITHOUT_LEASE = "finished, but a child has no lease; a shard sync will create it"
    PARENT_REMAINS = "finished, but the lease of a parent still exists and is deleted first"
    CHILD_NOT_STARTED = "finished, but a child has no checkpoint of its own yet"
    KEYS_NOT_COVERED = "finished and gone, but some hash keys have no lease; an audit will create it"
    JUST_FINISHED = "finished a moment ago; a delayed member may still be about to create it"


# When this member first saw each finished lease as finished, on its own clock.
EndedSince = Mapping[LeaseKey, int]


@dataclass(frozen=True, slots=True)
class DeleteLease:
    """A lease to delete."""

    key: LeaseKey
    reason: DeleteReason


@dataclass(frozen=True, slots=True)
class KeepLease:
    """A lease to keep, the reason, and the shards concerned."""

    key: LeaseKey
    reason: KeepReason
    because_of: tuple[ShardId, ...] = ()

    def __str__(self) -> str:
        which = f" ({format_shard_ids(self.because_of)})" if self.because_of else ""
        return f"lease {self.key} is kept: {self.reason.value}{which}"


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """Each lease of the stream is either deleted or kept.

    `found_children` are finished leases with children that are missing in their rows: write them there.
    """

    delete: tuple[DeleteLease, ...] = ()
    keep: tuple[KeepLease, ...] = ()
    found_children: tuple[Lease, ...] = ()


def next_ended_since(before: EndedSince, leases: Iterable[Lease], now_ms: int) -> EndedSince:
    """The times after one more refresh. Leases that were deleted, or are no longer finished, are forgotten."""
    return {lease.key: before.get(lease.key, now_ms) for lease in leases if lease.checkpoint.is_shard_end}


def plan_cleanup(
    leases: Iterable[Lease],
    shards: ShardGraph | None = None,
    *,
    stream: StreamIdentifier | None = None,
    just_finished: Collection[LeaseKey] = (),
    unreadable: Collection[ShardId] = (),
) -> CleanupPlan:
    """Decides which leases of the stream to delete.

    `shards` is an unfiltered list, read *after* the leases. Without a list no shard counts as gone, and only children
    in the rows are known. `unreadable` are the shards whose rows cannot be parsed: their parents and children are kept.
    Raises ShardListError if the open shards do not cover all hash keys: a shard missing from the list would seem gone.
    """
    if shards is not None:
        _refuse_partial(shards)
    here = {lease.key: lease for lease in leases if lease.stream == stream}
    passed = _passed(here, shards) - frozenset(unreadable)
    found_children = [_with_children(lease, shards) for lease in here.values()]
    are_keys_covered = _are_keys_covered(here.values(), shards)
    decided = [
        _keep_just_finished(
            _keep_child(
                lease,
                _keep_last_marker(_decide(lease, here, shards, passed), are_keys_covered),
                frozenset(unreadable),
            ),
            just_finished,
        )
        for lease in found_children
    ]
    return CleanupPlan(
        delete=tuple(each for each in decided if isinstance(each, DeleteLease)),
        keep=tuple(each for each in decided if isinstance(each, KeepLease)),
        found_children=tuple(lease for lease in found_children if lease.children != here[lease.key].children),
    )


def _keep_just_finished(
    decided: DeleteLease | KeepLease, just_finished: Collection[LeaseKey]
) -> DeleteLease | KeepLease:
    if isinstance(decided, DeleteLease) and decided.key in just_finished:
        return KeepLease(decided.key, KeepReason.JUST_FINISHED)
    return decided


def _keep_last_marker(decided: DeleteLease | KeepLease, are_keys_covered: bool) -> DeleteLease | KeepLease:
    if isinstance(decided, DeleteLease) and decided.reason is DeleteReason.GONE and not are_keys_covered:
        return KeepLease(decided.key, KeepReason.KEYS_NOT_COVERED)
    return decided


def _keep_child(
    lease: Lease, decided: DeleteLease | KeepLease, unreadable: frozenset[ShardId]
) -> DeleteLease | KeepLease:
    """Keep the lease of a child whose parent has a row that cannot be parsed: the parent is deleted first."""
    if isinstance(decided, DeleteLease) and (parents := sorted(lease.parents & unreadable)):
        return KeepLease(decided.key, KeepReason.PARENT_REMAINS, tuple(parents))
    return decided


def _passed(leases: Mapping[LeaseKey, Lease], shards: ShardGraph | None) -> AbstractSet[ShardId]:
    """The shards without a lease that have a descendant with a lease."""
    leased = {lease.shard_id for lease in leases.values()}
    return frozenset() if shards is None else shards.upward_from(leased) - leased


def _decide(
    lease: Lease,
    leases: Mapping[LeaseKey, Lease],
    shards: ShardGraph | None,
    passed: AbstractSet[ShardId],
) -> DeleteLease | KeepLease:
    if shards is not None and lease.shard_id not in shards.shards:
        return _decide_gone(lease, leases, set(shards.children_of(lease.shard_id)) - passed)
    if not lease.checkpoint.is_shard_end:
        return KeepLease(lease.key, KeepReason.NOT_FINISHED)
    if not lease.children:
        return KeepLease(lease.key, KeepReason.CHILDREN_UNKNOWN)
    needed = lease.children - passed
    if unleased := _without_lease(lease, needed, leases):
        return KeepLease(lease.key, KeepReason.CHILD_WITHOUT_LEASE, unleased)
    if parents := tuple(p for p in sorted(lease.parents) if lease_key(p, lease.stream) in leases):
        return KeepLease(lease.key, KeepReason.PARENT_REMAINS, parents)
    children = (leases[lease_key(child, lease.stream)] for child in sorted(needed))
    if waiting := tuple(child.shard_id for child in children if not _has_started(child)):
        return KeepLease(lease.key, KeepReason.CHILD_NOT_STARTED, waiting)
    return DeleteLease(lease.key, DeleteReason.PASSED)


def _decide_gone(
    lease: Lease, leases: Mapping[LeaseKey, Lease], children: Iterable[ShardId]
) -> DeleteLease | KeepLease:
    if not lease.checkpoint.is_shard_end:
        return KeepLease(lease.key, KeepReason.GONE_UNFINISHED)
    # Only children that still exist: a child that is gone too will never get a lease.
    if unleased := _without_lease(lease, children, leases):
        return KeepLease(lease.key, KeepReason.CHILD_WITHOUT_LEASE, unleased)
    return DeleteLease(lease.key, DeleteReason.GONE)


def _are_keys_covered(leases: Iterable[Lease], shards: ShardGraph | None) -> bool:
    """Whether the unfinished leases cover all hash keys. Rows of other programs may lack their hash range."""
    listed = shards.shards if shards is not None else {}
    unfinished = [lease for lease in leases if not lease.checkpoint.is_shard_end]
    known = (lease.hash_range or _listed_range(listed.get(lease.shard_id)) for lease in unfinished)
    return first_hole(each for each in known if each is not None) is None


def _listed_range(shard: Shard | None) -> HashRange | None:
    return shard.hash_range if shard else None


def _without_lease(
    lease: Lease, children: Iterable[ShardId], leases: Mapping[LeaseKey, Lease]
) -> tuple[ShardId, ...]:
    return tuple(child for child in sorted(children) if lease_key(child, lease.stream) not in leases)


def _has_started(lease: Lease) -> bool:
    return lease.checkpoint.sequence_number not in _NOT_STARTED


def _with_children(lease: Lease, shards: ShardGraph | None) -> Lease:
    """Adds the children from the list to a finished lease without children, if the list contains all of them."""
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
            f"the {len(shards.open_shards)} listed open shards do not cover hash keys {hole}: a page is "
            "missing, or the stream is being resharded; list again (nothing was deleted)"
        )
