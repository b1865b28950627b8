"""What an operator reads about a lease that stays."""

from leasehold.core.model import LeaseKey, ShardId
from leasehold.core.shards.lease_cleanup import CleanupPlan, KeepLease, KeepReason, plan_cleanup


def test_nothing_to_do() -> None:
    """An empty table needs no cleanup."""
    assert plan_cleanup([]) == CleanupPlan()


def test_a_kept_lease_explains_itself() -> None:
    """The sentence names the lease, the reason and the shards that keep it."""
    kept = KeepLease(LeaseKey("s-0"), KeepReason.CHILD_NOT_STARTED, (ShardId("s-1"), ShardId("s-2")))
    assert str(kept) == "lease s-0 is kept: finished, but a child has no checkpoint of its own yet (s-1, s-2)"


def test_a_reason_without_shards_ends_with_the_reason() -> None:
    """No empty brackets."""
    kept = KeepLease(LeaseKey("s-0"), KeepReason.NOT_FINISHED)
    assert str(kept) == "lease s-0 is kept: its shard is not read to the end"
