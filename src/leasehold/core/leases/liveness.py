"""Which owners are silent, judged by one observer's own clock.

The table holds no time. An observer remembers when *it* last saw a lease's counter or owner change; a lease that has
not changed for longer than the failover time is silent, whatever any wall clock says. A lease seen for the first time
is fresh: nothing is known about the time before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, StreamIdentifier, WorkerId, parse_lease_key


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of a lease: its counter and owners, since when, and since when it is being handed over.

    `assigned_ms` is when we saw it come to the one who may read it now, who had not begun then; None if it was so when we
    first looked.
    """

    counter: int
    owner: WorkerId | None
    checkpoint_owner: WorkerId | None
    unchanged_since_ms: int
    handoff_since_ms: int | None
    assigned_ms: int | None = None
    session: LeaseSessionId | None = None


Observations = Mapping[LeaseKey, Observation]


def next_observations(before: Observations, leases: Iterable[Lease], now_ms: int) -> Observations:
    """What is remembered after one more look at all leases. Leases that are gone are forgotten."""
    return {lease.key: _next(before.get(lease.key), lease, now_ms) for lease in leases}


def _next(before: Observation | None, lease: Lease, now_ms: int) -> Observation:
    same = before is not None and (before.counter, before.owner, before.checkpoint_owner) == (
        lease.counter,
        lease.owner,
        lease.checkpoint_owner,
    )
    unchanged_since = before.unchanged_since_ms if before is not None and same else now_ms
    return Observation(
        lease.counter,
        lease.owner,
        lease.checkpoint_owner,
        unchanged_since,
        _handoff_since(before, lease, now_ms),
        _given(before, lease, now_ms),
        lease.session,
    )


def _handoff_since(before: Observation | None, lease: Lease, now_ms: int) -> int | None:
    if not lease.is_in_handoff:
        return None
    known = before is not None and (before.owner, before.checkpoint_owner) == (
        lease.owner,
        lease.checkpoint_owner,
    )
    return before.handoff_since_ms if before is not None and known else now_ms


def _given(before: Observation | None, lease: Lease, now_ms: int) -> int | None:
    if before is None or (before.checkpoint_owner or before.owner) == lease.actual_owner:
        return before.assigned_ms if before is not None else None
    # A holding that is new was written by the new owner: it has begun. One that stayed was left there by Java.
    return now_ms if lease.session in {None, before.session} else None


def unchanged_for_ms(observations: Observations, key: LeaseKey, now_ms: int) -> int:
    """How long a lease has not changed, as far as this observer knows."""
    return now_ms - observations[key].unchanged_since_ms


def pick_other_reader(
    observations: Observations,
    stream: StreamIdentifier | None,
    me: WorkerId,
    *,
    now_ms: int,
    failover_ms: int,
) -> WorkerId | None:
    """Who reads a stream, other than us: of those that are alive, the one with the fewest of its leases."""
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
    """Whether a lease came to its owner before our eyes, and has shown no sign of life since."""
    seen = observations[key]
    return seen.assigned_ms is not None and seen.assigned_ms == seen.unchanged_since_ms
