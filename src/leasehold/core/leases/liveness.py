"""Which leases are silent, judged by the monotonic clock of one member.

The table contains no time. Each member remembers when *it* last saw the counter or the owner of a lease change. A lease
that has not changed for longer than the failover time is silent; wall clocks do not matter. A lease that is seen for
the first time counts as just changed. So does a lease with the same counter and owner in another session, or at another
checkpoint: its row was deleted and created again, and its owner may have begun just now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, StreamIdentifier, WorkerId, parse_lease_key
from leasehold.core.position import Position


@dataclass(frozen=True, slots=True)
class Observation:
    """What the last write of its owner left in a lease, since when it is unchanged, and since when it is in handoff.

    `assigned_ms` is when this member saw the lease change to its current owner, before that owner began a session. None
    if the current owner had the lease, or had begun, when it was first seen.
    """

    counter: int
    owner: WorkerId | None
    checkpoint_owner: WorkerId | None
    unchanged_since_ms: int
    handoff_since_ms: int | None
    assigned_ms: int | None = None
    session: LeaseSessionId | None = None
    checkpoint: Position | None = None


Observations = Mapping[LeaseKey, Observation]


def next_observations(before: Observations, leases: Iterable[Lease], now_ms: int) -> Observations:
    """The observations after one more refresh. Deleted leases are forgotten."""
    return {lease.key: _next_observation(before.get(lease.key), lease, now_ms) for lease in leases}


def _next_observation(before: Observation | None, lease: Lease, now_ms: int) -> Observation:
    is_same = before is not None and _is_unchanged(before, lease)
    unchanged_since_ms = before.unchanged_since_ms if before is not None and is_same else now_ms
    return Observation(
        lease.counter,
        lease.owner,
        lease.checkpoint_owner,
        unchanged_since_ms,
        _handoff_since_ms(before, lease, now_ms),
        _assigned_ms(before, lease, now_ms),
        lease.session,
        lease.checkpoint,
    )


def _is_unchanged(before: Observation, lease: Lease) -> bool:
    return (
        before.counter == lease.counter
        and before.owner == lease.owner
        and before.checkpoint_owner == lease.checkpoint_owner
        and before.session == lease.session
        and before.checkpoint == lease.checkpoint
    )


def _handoff_since_ms(before: Observation | None, lease: Lease, now_ms: int) -> int | None:
    if not lease.is_in_handoff:
        return None
    is_known = before is not None and (before.owner, before.checkpoint_owner, before.session) == (
        lease.owner,
        lease.checkpoint_owner,
        lease.session,
    )
    return before.handoff_since_ms if before is not None and is_known else now_ms


def _assigned_ms(before: Observation | None, lease: Lease, now_ms: int) -> int | None:
    if before is None or (before.checkpoint_owner or before.owner) == lease.actual_owner:
        return before.assigned_ms if before is not None else None
    # A new session was written by the new owner: it has begun. Java leaves the old session in the row.
    return now_ms if lease.session in {None, before.session} else None


def unchanged_for_ms(observations: Observations, key: LeaseKey, now_ms: int) -> int:
    """How long a lease has been unchanged, as far as this member knows."""
    return now_ms - observations[key].unchanged_since_ms


def active_owners(observations: Observations, *, now_ms: int, failover_ms: int) -> frozenset[WorkerId]:
    """The workers that have renewed a lease within the failover time."""
    owners = (
        each.checkpoint_owner or each.owner
        for each in observations.values()
        if now_ms - each.unchanged_since_ms <= failover_ms
    )
    return frozenset(owner for owner in owners if owner is not None)


def pick_other_reader(
    observations: Observations,
    stream: StreamIdentifier | None,
    me: WorkerId,
    *,
    now_ms: int,
    failover_ms: int,
) -> WorkerId | None:
    """Another living worker that reads the stream: the one with the fewest of its leases. None if there is none."""
    readers = Counter(
        seen.checkpoint_owner or seen.owner
        for key, seen in observations.items()
        if parse_lease_key(key)[0] == stream
        and now_ms - seen.unchanged_since_ms <= failover_ms
        and not was_just_assigned(observations, key)
    )
    others = [(number, worker) for worker, number in readers.items() if worker is not None and worker != me]
    return min(others)[1] if others else None


def was_just_assigned(observations: Observations, key: LeaseKey) -> bool:
    """Whether this member saw the lease change to its owner, and has seen no heartbeat since."""
    seen = observations[key]
    return seen.assigned_ms is not None and seen.assigned_ms == seen.unchanged_since_ms
