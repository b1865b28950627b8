"""The next step of a command that wants a lease."""

from dataclasses import replace

import pytest

from leasehold.core.leases.liveness import next_observations
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import SHARD_END, Position
from leasehold.core.steering.capture import CaptureAction, CaptureLimits, next_capture_step

ME, ANNA, BERT = (WorkerId(name) for name in ("me", "anna", "bert"))
LIMITS = CaptureLimits(failover_ms=10_000, handoff_timeout_ms=30_000)
FORCED = CaptureLimits(failover_ms=10_000, handoff_timeout_ms=30_000, may_hand_off=False)
TAKE, BEGIN, REQUEST, WAIT = CaptureAction


def lease(owner: WorkerId | None, checkpoint_owner: WorkerId | None = None, at: str = "100") -> Lease:
    checkpoint = SHARD_END if at == "SHARD_END" else Position(at)
    return Lease(
        key=LeaseKey("s-0"),
        shard_id=ShardId("s-0"),
        checkpoint=checkpoint,
        owner=owner,
        checkpoint_owner=checkpoint_owner,
    )


@pytest.mark.parametrize(
    ("seen", "age_s", "limits", "action"),
    [
        (lease(None), 0, LIMITS, TAKE),
        (lease(ANNA), 0, LIMITS, REQUEST),
        (lease(ANNA), 0, FORCED, TAKE),
        (lease(ANNA), 11, LIMITS, TAKE),  # silent
        (lease(ANNA, at="SHARD_END"), 0, LIMITS, TAKE),  # nobody reads it
        (lease(ME), 0, LIMITS, BEGIN),
        (lease(ME, ANNA), 9, LIMITS, WAIT),
        (lease(BERT, ANNA), 9, LIMITS, WAIT),
        (lease(ANNA, ANNA), 0, LIMITS, TAKE),  # KCL 2.x has taken it during a handoff
        (
            lease(BERT, ME),
            0,
            LIMITS,
            TAKE,
        ),  # a member asked this one for it, and then perhaps KCL 2.x took it
    ],
)
def test_steps(seen: Lease, age_s: int, limits: CaptureLimits, action: CaptureAction) -> None:
    """From the owners of the lease, and from how long it is unchanged."""
    observed = next_observations({}, [seen], 0)[seen.key]
    assert next_capture_step(seen, observed, ME, now_ms=age_s * 1000, limits=limits).action is action


@pytest.mark.parametrize(("owner", "limit_s"), [(ME, 40), (BERT, 50)])
def test_a_lease_whose_handoff_does_not_end_is_taken(owner: WorkerId, limit_s: int) -> None:
    """After the handoff timeout and the failover time, counted from when the handoff was first seen.

    A handoff to another member gets more time: that member takes the lease first, unless it is of KCL 2.x, which
    leaves the old owner in the row and reads.
    """
    observations = next_observations({}, [lease(owner, ANNA)], 0)
    for counter in range(1, limit_s + 2):
        renewed = replace(lease(owner, ANNA), counter=counter)
        observations = next_observations(observations, [renewed], counter * 1_000)
        step = next_capture_step(
            renewed, observations[renewed.key], ME, now_ms=counter * 1_000, limits=LIMITS
        )
        assert step.action is (TAKE if counter > limit_s else WAIT)
        assert step.since_ms == 0
