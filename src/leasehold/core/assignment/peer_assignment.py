"""Which leases this member should go for now, when no leader shares them out. Reads one look at the table; returns a
plan. Decides for this member only: the others decide for themselves from the same rows, and conditional writes settle
who was first.

* *Free* leases (no owner, or an owner silent for longer than the failover time) are taken until we have our share:
  all leases that can be read now, divided by the members that are alive. Children of shards that we have just ended
  come first: their records are the next ones.
* Only when nothing is free: if someone has at least two more than we do, ask for one of theirs. Asking is a handoff, so
  its owner finishes what it has in hand and nothing is read twice. An owner that does not react is overruled in the
  end.
* Leases that stay free although everyone has had ample time are taken beyond our share: an unread shard is worse than
  an uneven one.

A lease can be read when its parents have ended. One whose parent's row cannot be understood is left alone.
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
from leasehold.core.shards.shard_graph import unfinished_parents

# The KCL's: a lease that was nobody's for three failover times is anybody's.
OVERDUE_FAILOVERS: Final = 3
# A member that sees nobody else may be the first of several that start together, so it does not take everything.
SHARE_WHEN_ALONE: Final = 4
_UNLIMITED: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """How long to wait for others, and how much to take."""

    failover_ms: int
    handoff_timeout_ms: int
    leases_max: int | None = None
    takes_per_refresh_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """One look at the table by one member.

    `held` are the leases that it serves now, `resting` those that it has just given up and leaves to others for a
    while, `asked` those that it has asked for, with the holding that they had then, `ended` those whose shards it
    has just finished, `unreadable` the keys of rows that cannot be understood. A member that may not take (`may_take`)
    only keeps what it has. `salt` differs from member to member and look to look: equals are chosen by it, so that
    members do not all go for the same lease.
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
    salt: int = 0


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """What to try now; each line may fail on its own, and the next look decides anew.

    `hold`: ours by name already, begin to serve them. `take`: free or silent, or asked for in vain. `ask`: request a
    handoff. `has_more_free`: more is free than one look may take, so look again soon. The rest is for telling: how many
    leases nobody serves, and how many members are alive.
    """

    begin_session: tuple[Lease, ...] = ()
    take: tuple[Lease, ...] = ()
    request_handoff: tuple[Lease, ...] = ()
    has_more_free: bool = False
    unclaimed: int = 0
    workers: int = 1


def plan_peer_assignment(view: PeerView, limits: PeerLimits) -> PeerPlan:
    """What this member should go for after one look at the table."""
    active = _active(view)
    free = [lease for lease in active if _is_free(lease, view, limits)]
    shares = _shares(active, free, view)
    begin_session = [lease for lease in active if _is_given_to_us(lease, view)]
    reachable = [
        lease
        for lease in free
        if view.may_take and lease.key not in view.cooling_down and lease not in begin_session
    ]
    take = _takes(reachable, len(active), shares, view, limits)
    overruled = [lease for lease in active if _is_overdue_handoff(lease, view, limits)]
    room = _room(shares[view.me], limits)
    request_handoff = [] if free or begin_session or not view.may_take else _asks(active, shares, room, view)
    return PeerPlan(
        begin_session=tuple(begin_session),
        take=(*take, *overruled),
        request_handoff=tuple(request_handoff),
        has_more_free=len(take) < min(len(reachable), room, _fair(len(active), shares, view.me)),
        unclaimed=len(free),
        workers=len(shares),
    )


def _active(view: PeerView) -> list[Lease]:
    """Leases that can be read now: not finished, and not waiting for a parent."""
    by_key = {lease.key: lease for lease in view.leases}
    return [
        lease
        for lease in view.leases
        if not lease.checkpoint.is_shard_end
        and not unfinished_parents(lease, by_key)
        and view.unreadable.isdisjoint(parent_keys(lease))
    ]


def _is_free(lease: Lease, view: PeerView, limits: PeerLimits) -> bool:
    if lease.key in view.held:
        return False
    return (
        lease.owner is None
        or unchanged_for_ms(view.observations, lease.key, view.now_ms) > limits.failover_ms
    )


def _is_given_to_us(lease: Lease, view: PeerView) -> bool:
    """Handed or assigned to us and not begun by anyone: whoever hands over takes the holding out of the row.

    Java leaves the one that was there; any other is that of a second process with our id.
    """
    return (
        lease.owner == view.me
        and not lease.is_in_handoff
        and lease.key not in view.held | view.cooling_down
        and (lease.session is None or lease.session == view.requested.get(lease.key))
    )


def _is_overdue_handoff(lease: Lease, view: PeerView, limits: PeerLimits) -> bool:
    """We asked, its owner is alive, and nothing happened: it does not know handoffs (KCL 2.x), or is stuck."""
    since = view.observations[lease.key].handoff_since_ms
    patience = limits.handoff_timeout_ms + limits.failover_ms
    return lease.owner == view.me and since is not None and view.now_ms - since > patience


def _shares(active: Iterable[Lease], free: Sequence[Lease], view: PeerView) -> Counter[WorkerId]:
    """How many leases each living member has, or will have when its handoffs end. We are always among them."""
    nobodys = {lease.key for lease in free}
    shares = Counter({view.me: 0})
    shares.update(lease.owner for lease in active if lease.owner is not None and lease.key not in nobodys)
    return shares


def _takes(
    free: Sequence[Lease], active: int, shares: Counter[WorkerId], view: PeerView, limits: PeerLimits
) -> list[Lease]:
    """Free leases up to our share, then those that nobody else has wanted for long; within all limits."""
    alone = len(shares) == 1
    fair = _fair(active, shares, view.me)
    per_look = limits.takes_per_refresh_max or (-(-active // SHARE_WHEN_ALONE) if alone else active)
    most = max(0, min(per_look, _room(shares[view.me], limits)))
    overdue_ms = OVERDUE_FAILOVERS * limits.failover_ms
    chosen = sorted(
        free, key=lambda lease: (view.ended.isdisjoint(parent_keys(lease)), _draw(view.salt, lease.key))
    )
    wanted = chosen[:fair]
    left_over = (
        lease
        for lease in chosen[len(wanted) :]
        if unchanged_for_ms(view.observations, lease.key, view.now_ms) > overdue_ms
    )
    return list(chain(wanted, left_over))[:most]


def _fair(active: int, shares: Counter[WorkerId], me: WorkerId) -> int:
    """How many leases we lack to an even share, rounded up."""
    return max(0, -(-active // len(shares)) - shares[me])


def _asks(active: Sequence[Lease], shares: Counter[WorkerId], room: int, view: PeerView) -> list[Lease]:
    """Leases to ask the richest member for: some of our shortfall, never so many that the two would change places."""
    ours = shares[view.me]
    average = len(active) // len(shares)
    richest, most = max(shares.items(), key=lambda item: (item[1], _draw(view.salt, item[0])))
    if room <= 0 or ours > average or most < max(average + 1, ours + 2):
        return []
    number = min(room, max(1, (average - ours) // SHARE_WHEN_ALONE))
    theirs = [
        lease
        for lease in active
        if lease.owner == richest and not lease.is_in_handoff and lease.key not in view.cooling_down
    ]
    return sorted(theirs, key=lambda lease: _draw(view.salt, lease.key))[:number]


def _room(ours: int, limits: PeerLimits) -> int:
    return _UNLIMITED if limits.leases_max is None else limits.leases_max - ours


def _draw(salt: int, name: str) -> bytes:
    """Something to sort names by that looks random, and is the same for the same salt.

    A checksum would not do: CRCs of names of one length keep much of their order from salt to salt.
    """
    return hashlib.blake2b(f"{salt}:{name}".encode(), digest_size=8).digest()
