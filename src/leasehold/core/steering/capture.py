"""How a command gets a lease of a running fleet, as a member with a name of its own: the next step for one lease.

An owner that is alive is asked to hand over, as a leader would ask it, and finishes its batch first. Owners of KCL 1.x
and 2.x do not know the request: when they have not answered for longer than every other owner needs, the lease is
taken. Each step is a conditional write, so an owner that writes in between is never overruled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from leasehold.core.leases.liveness import Observation
from leasehold.core.model import Lease, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """How long to wait for owners. The times must be those of the fleet."""

    failover_ms: int
    handoff_timeout_ms: int
    may_hand_off: bool = True  # False: leases are taken without a request


class CaptureAction(Enum):
    """What to try now."""

    TAKE = auto()  # the lease has no living owner, or one that does not answer
    BEGIN = auto()  # the owner has handed it over
    REQUEST = auto()  # ask the owner
    WAIT = auto()


@dataclass(frozen=True, slots=True)
class CaptureStep:
    """The next step for a lease. `since_ms` is when the handoff that it waits for was first seen."""

    action: CaptureAction
    since_ms: int | None = None


def next_capture_step(
    lease: Lease, seen: Observation, me: WorkerId, *, now_ms: int, limits: CaptureLimits
) -> CaptureStep:
    """The next step to become the owner of a lease, which this member does not hold yet."""
    if lease.owner == me and not lease.is_in_handoff:
        return CaptureStep(CaptureAction.BEGIN)
    is_silent = now_ms - seen.unchanged_since_ms > limits.failover_ms
    # Nobody reads a finished shard, so there is nothing to finish first.
    if lease.owner is None or is_silent or lease.checkpoint.is_shard_end or not limits.may_hand_off:
        return CaptureStep(CaptureAction.TAKE)
    if not lease.is_in_handoff:
        return CaptureStep(CaptureAction.REQUEST)
    if lease.checkpoint_owner in {lease.owner, me}:
        # KCL 1.x and 2.x leave the old owner in the row when they take a lease, and another member may have asked this
        # one for a lease that it held. Nobody else will end such a handoff.
        return CaptureStep(CaptureAction.TAKE)
    since_ms = now_ms if seen.handoff_since_ms is None else seen.handoff_since_ms
    limit_ms = limits.handoff_timeout_ms + limits.failover_ms
    if lease.owner != me:
        # A handoff to another member is left to end: then that member is asked. One that has taken the lease and is of
        # KCL 1.x or 2.x does not end it.
        limit_ms += limits.failover_ms
    is_overdue = now_ms - since_ms > limit_ms
    return CaptureStep(CaptureAction.TAKE if is_overdue else CaptureAction.WAIT, since_ms)
