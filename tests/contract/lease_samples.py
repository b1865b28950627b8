"""Leases, workers and sessions for the contract tests of leases."""

from leasehold.core.model import (
    Lease,
    LeaseSessionId,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
)
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.shards.lease_creation import CreateChildren
from leasehold.fleet.table.lease_table import Contended

A, B = WorkerId("worker-a"), WorkerId("worker-b")

S1, S2 = LeaseSessionId("session-1"), LeaseSessionId("session-2")


def new_lease(number: int, stream: str | None = None) -> Lease:
    """A free lease of shard `number`."""
    shard = ShardId(f"shardId-{number:012d}")
    identifier = StreamIdentifier(stream) if stream else None
    return Lease(key=lease_key(shard, identifier), shard_id=shard, checkpoint=TRIM_HORIZON, stream=identifier)


def with_child(number: int) -> CreateChildren:
    """The plan for a shard that ended with one child."""
    return CreateChildren((new_lease(number),), frozenset({new_lease(number).shard_id}))


def applied_lease(outcome: Lease | Contended) -> Lease:
    """The lease, if the write was applied."""
    assert isinstance(outcome, Lease), outcome
    return outcome
