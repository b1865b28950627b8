"""Which streams a member that discovers its streams follows from now on, and which leases of former streams to delete.

A stream that is no longer listed is not read any more, and its leases stay: if it is listed again, reading continues
at their checkpoints. They are deleted only if the settings say so, and only leases that no member has written to for
the whole waiting time: a member whose list differs from ours still renews them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from leasehold.core.model import InitialPosition, Lease, LeaseKey, LeaseSessionId, StreamIdentifier


@dataclass(frozen=True, slots=True)
class FoundStream:
    """A stream that is listed: where reading starts if it has no leases, and its identifier if the listing shows it."""

    initial: InitialPosition
    id: StreamIdentifier | None = None


@dataclass(frozen=True, slots=True)
class StreamChanges:
    """The names of streams to add and to remove. A stream that was deleted and created again is in both."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LastChange:
    """The counter and session of a lease, and since when this member has seen them unchanged, on its own clock."""

    counter: int
    session: LeaseSessionId | None
    since_ms: int


UnusedLeases = Mapping[LeaseKey, LastChange]


def plan_stream_changes(
    followed: Mapping[str, StreamIdentifier | None], found: Mapping[str, FoundStream]
) -> StreamChanges:
    """Compare the followed streams with those of a new listing.

    >>> from leasehold.core.position import TRIM_HORIZON
    >>> known = StreamIdentifier("1:orders:1700000000")
    >>> again = FoundStream(InitialPosition(TRIM_HORIZON), StreamIdentifier("1:orders:1800000000"))
    >>> plan_stream_changes({"orders": known, "returns": None}, {"orders": again})
    StreamChanges(added=('orders',), removed=('orders', 'returns'))
    """
    recreated = {
        name
        for name, stream in found.items()
        if stream.id is not None and followed.get(name, stream.id) not in {None, stream.id}
    }
    return StreamChanges(
        added=tuple(name for name in found if name not in followed or name in recreated),
        removed=tuple(name for name in followed if name not in found or name in recreated),
    )


def next_unused(
    before: UnusedLeases, leases: Iterable[Lease], followed: AbstractSet[StreamIdentifier], now_ms: int
) -> UnusedLeases:
    """Since when each lease of a stream that is not followed is unchanged."""
    after = {}
    for lease in leases:
        if lease.stream is not None and lease.stream not in followed:
            last = before.get(lease.key)
            is_unchanged = last is not None and (last.counter, last.session) == (lease.counter, lease.session)
            after[lease.key] = (
                last if last and is_unchanged else LastChange(lease.counter, lease.session, now_ms)
            )
    return after


def leases_to_delete(
    unused: UnusedLeases, leases: Iterable[Lease], now_ms: int, wait_ms: int
) -> tuple[Lease, ...]:
    """The leases of former streams that no member has written to for the whole waiting time."""
    return tuple(
        lease for lease in leases if lease.key in unused and now_ms - unused[lease.key].since_ms >= wait_ms
    )
