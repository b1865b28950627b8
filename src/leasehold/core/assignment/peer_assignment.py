"""Which leases one member should take in a fleet without a leader.

Takes one listing of the leases; returns a plan for this member. The other members plan for themselves from the same
rows. If two members want the same lease, the conditional write decides.

* *Free* leases (without an owner, or silent for longer than the failover time) are taken up to a fair share: the leases
  that can be read now, divided by the number of living members. Children of shards that this member has just finished
  come first, because their records are the next ones.
* If no lease is free, and another member has at least two leases more, the plan requests a handoff of one. The owner
  finishes its work first, so no record is read twice. If the owner does not respond, the lease is taken by force; with
  `may_hand_off` false, at once.
* Leases that stay free for much longer are taken beyond the fair share: an unread shard is worse than an uneven fleet.

A lease can be read when its parents have ended. A lease is not taken while the row of a parent is malformed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from leasehold.core.leases.liveness import Observations, unchanged_for_ms
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId, parent_keys
from leasehold.core.shards.shard_graph import readable_leases

# As in the KCL: a lease that is free for three failover times may be taken beyond the fair share.
OVERDUE_FAILOVERS: Final = 3
# A member that sees no other member may be the first of several that start together. It takes a part at a time.
PARTS_WHEN_ALONE: Final = 4
_UNLIMITED: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """How long to wait for other members, and how many leases to take."""

    failover_ms: int
    handoff_timeout_ms: int
    leases_max: int | None = None
    takes_per_refresh_max: int | None = None
    requests_per_refresh_max: int | None = None
    may_hand_off: bool = True  # False: leases of other members are taken instead of requested


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """The leases as one member reads them, and its own state.

    `held` leases are served by this member. `cooling_down` leases were given up by it a moment ago and are left to
    others. `requested` leases are those it requested a handoff of, with the session that they had then. `ended` leases
    are those whose shards it has just finished. `unreadable` are the keys of malformed rows. Without `may_take` it
    takes no more leases. `salt` is random for each member and refresh. It breaks ties, so that members do not all try
    to take the same lease.
    """

    me: WorkerId
    now_ms: int
    leases: Sequence[Lease]
    observations: Observations
    held: AbstractSet[LeaseKey] = field(default_factory=frozenset)
    cooling_down: AbstractSet[LeaseKey] = field(default_factory=frozenset)
    requested: Mapping[LeaseKey, LeaseSessionId | None] = field(default_factory=dict)
    ended: AbstractSet[LeaseKey] = field(default_factory=frozenset)
    unreadable: AbstractSet[LeaseKey] = field(default_factory=frozenset)
    may_take: bool = True
    salt: int


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """What to try now. Each write may fail on its own; the next refresh plans again.

    `begin_session`: leases that already name this member as their owner. `take`: leases that are free or silent, or
    whose handoff is overdue. `request_handoff`: leases of the member with the most. `has_more_free`: more leases are
    free than one refresh may take, so the next refresh should follow soon. `unclaimed` (leases without a reader) and
    `workers` (living members) are for reporting.
    """

    begin_session: tuple[Lease, ...] = ()
    take: tuple[Lease, ...] = ()
    request_handoff: tuple[Lease, ...] = ()
    has_more_free: bool = False
    unclaimed: int = 0
    workers: int = 1


def plan_peer_assignment(view: PeerView, limits: PeerLimits) -> PeerPlan:
    """Decides which leases this member should begin, take and request."""
    readable = readable_leases(view.leases, view.unreadable)
    free = [lease for lease in readable if _is_free(lease, view, limits)]
    shares = _shares(readable, free, view)
    begin_session = [lease for lease in readable if _is_ours_to_begin(lease, view)]
    reachable = [
        lease
        for lease in free
        if view.may_take and lease.key not in view.cooling_down and lease not in begin_session
    ]
    take = _leases_to_take(reachable, len(readable), shares, view, limits)
    overdue_handoffs = [lease for lease in readable if _is_overdue_handoff(lease, view, limits)]
    room = _room(shares[view.me], limits)
    wanted = [] if free or begin_session or not view.may_take else _requests(readable, shares, view, limits)
    return PeerPlan(
        begin_session=tuple(begin_session),
        take=(*take, *overdue_handoffs, *(() if limits.may_hand_off else wanted)),
        request_handoff=tuple(wanted) if limits.may_hand_off else (),
        has_more_free=len(take) < min(len(reachable), room, _missing(len(readable), shares, view.me)),
        unclaimed=len(free),
        workers=len(shares),
    )


def _is_free(lease: Lease, view: PeerView, limits: PeerLimits) -> bool:
    if lease.key in view.held:
        return False
    return (
        lease.owner is None
        or unchanged_for_ms(view.observations, lease.key, view.now_ms) > limits.failover_ms
    )


def _is_ours_to_begin(lease: Lease, view: PeerView) -> bool:
    """Whether the lease names this member as its owner, and no process has begun to serve it.

    Our members remove the session from the row when they hand over a lease. Java leaves the old session there. Any
    other session belongs to a second process with the same worker id.
    """
    return (
        lease.owner == view.me
        and not lease.is_in_handoff
        and lease.key not in view.held | view.cooling_down
        and (lease.session is None or lease.session == view.requested.get(lease.key))
    )


def _is_overdue_handoff(lease: Lease, view: PeerView, limits: PeerLimits) -> bool:
    """Whether a handoff to this member takes too long: its owner does not support handoffs (KCL 2.x), or hangs."""
    since = view.observations[lease.key].handoff_since_ms
    patience = limits.handoff_timeout_ms + limits.failover_ms
    return lease.owner == view.me and since is not None and view.now_ms - since > patience


def _shares(readable: Iterable[Lease], free: Sequence[Lease], view: PeerView) -> Counter[WorkerId]:
    """How many leases each living member has, or will have when its handoffs end. Includes this member."""
    unclaimed = {lease.key for lease in free}
    shares = Counter({view.me: 0})
    shares.update(lease.owner for lease in readable if lease.owner is not None and lease.key not in unclaimed)
    return shares


def _leases_to_take(
    free: Sequence[Lease], readable: int, shares: Counter[WorkerId], view: PeerView, limits: PeerLimits
) -> list[Lease]:
    """Free leases up to the fair share, then leases that have been free for long; within all limits."""
    is_alone = len(shares) == 1
    missing = _missing(readable, shares, view.me)
    per_refresh = limits.takes_per_refresh_max or (-(-readable // PARTS_WHEN_ALONE) if is_alone else readable)
    most = max(0, min(per_refresh, _room(shares[view.me], limits)))
    overdue_ms = OVERDUE_FAILOVERS * limits.failover_ms
    candidates = sorted(
        free, key=lambda lease: (view.ended.isdisjoint(parent_keys(lease)), _random_key(view.salt, lease.key))
    )
    wanted = candidates[:missing]
    overdue = (
        lease
        for lease in candidates[len(wanted) :]
        if unchanged_for_ms(view.observations, lease.key, view.now_ms) > overdue_ms
    )
    return list(chain(wanted, overdue))[:most]


def _missing(readable: int, shares: Counter[WorkerId], me: WorkerId) -> int:
    """How many leases this member lacks to an even share, rounded up."""
    return max(0, -(-readable // len(shares)) - shares[me])


def _requests(
    readable: Sequence[Lease], shares: Counter[WorkerId], view: PeerView, limits: PeerLimits
) -> list[Lease]:
    """Leases to request from the member with the most: a part of what this member lacks.

    It requests fewer than would make the two members change places.
    """
    ours, room = shares[view.me], _room(shares[view.me], limits)
    average = len(readable) // len(shares)
    richest, most = max(shares.items(), key=lambda item: (item[1], _random_key(view.salt, item[0])))
    if room <= 0 or ours > average or most < max(average + 1, ours + 2):
        return []
    most_wanted = limits.requests_per_refresh_max or max(1, (average - ours) // PARTS_WHEN_ALONE)
    number = min(room, most_wanted, (most - ours) // 2)
    theirs = [
        lease
        for lease in readable
        if lease.owner == richest and not lease.is_in_handoff and lease.key not in view.cooling_down
    ]
    return sorted(theirs, key=lambda lease: _random_key(view.salt, lease.key))[:number]


def _room(ours: int, limits: PeerLimits) -> int:
    return _UNLIMITED if limits.leases_max is None else limits.leases_max - ours


def _random_key(salt: int, name: str) -> bytes:
    """A sort key that is random for each salt, and the same for the same salt.

    A CRC does not work: CRCs of names of one length keep much of their order from salt to salt.
    """
    return hashlib.blake2b(f"{salt}:{name}".encode(), digest_size=8).digest()
