"""New leases, apart from the choice of shards that the scenario files cover."""

import pytest

from leasehold.core.model import (
    WHOLE_HASH_RANGE,
    InitialPosition,
    Lease,
    LeaseKey,
    Shard,
    ShardId,
    StreamIdentifier,
)
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON
from leasehold.core.shards.lease_creation import (
    ShardFilter,
    ShardFilterKind,
    initial_shard_filter,
    plan_first_leases,
    plan_missing_leases,
)
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import InvalidPositionError

ORDERS = StreamIdentifier("123456789012:orders:1700000000")


@pytest.mark.parametrize(
    ("initial", "expected"),
    [
        (InitialPosition(LATEST), ShardFilter(ShardFilterKind.AT_LATEST)),
        (InitialPosition(TRIM_HORIZON), ShardFilter(ShardFilterKind.AT_TRIM_HORIZON)),
        (InitialPosition(AT_TIMESTAMP, 1_700_000), ShardFilter(ShardFilterKind.AT_TIMESTAMP, 1_700_000)),
    ],
)
def test_each_position_has_its_filter(initial: InitialPosition, expected: ShardFilter) -> None:
    """An empty table is filled from the shards that were open at the initial position."""
    assert initial_shard_filter(initial) == expected


def test_a_new_lease_is_free_and_says_all_that_is_known() -> None:
    """No owner, counter 0, a sentinel with sub-sequence 0; all parents, also trimmed ones; the range."""
    trimmed = (ShardId("s-0"), ShardId("s-1"))
    shard = Shard(ShardId("s-2"), WHOLE_HASH_RANGE, "5", parents=trimmed)
    assert plan_first_leases(shard_graph([shard]), InitialPosition(LATEST), stream=ORDERS) == (
        Lease(
            key=LeaseKey(f"{ORDERS}:s-2"),
            shard_id=ShardId("s-2"),
            checkpoint=LATEST,
            counter=0,
            owner=None,
            owner_switches=0,
            parents=frozenset(trimmed),
            hash_range=WHOLE_HASH_RANGE,
            stream=ORDERS,
        ),
    )


def test_age_is_compared_as_a_number() -> None:
    """Sequence numbers differ in length: 9 is older than 10, and goes first."""
    shards = [
        Shard(ShardId("s-a"), WHOLE_HASH_RANGE, "10"),
        Shard(ShardId("s-c"), WHOLE_HASH_RANGE, "9"),
        Shard(ShardId("s-b"), WHOLE_HASH_RANGE, "9"),
    ]
    plan = plan_missing_leases(shard_graph(shards), [], InitialPosition(TRIM_HORIZON))
    assert [lease.shard_id for lease in plan] == ["s-b", "s-c", "s-a"]


def test_a_shard_without_a_sequence_number_is_refused() -> None:
    """A list with text where a number belongs creates nothing."""
    shard = Shard(ShardId("s-0"), WHOLE_HASH_RANGE, "soon")
    with pytest.raises(InvalidPositionError, match="'soon' is not a position"):
        plan_first_leases(shard_graph([shard]), InitialPosition(LATEST))


@pytest.mark.parametrize("initial", [InitialPosition(LATEST), InitialPosition(TRIM_HORIZON)])
def test_ten_thousand_generations_with_a_finished_root(initial: InitialPosition) -> None:
    """A chain far deeper than Python's stack is planned, and repaired one generation at a time."""
    chain = [
        Shard(ShardId(f"s-{i}"), WHOLE_HASH_RANGE, str(i), "9", (ShardId(f"s-{i - 1}"),) if i else ())
        for i in range(10_000)
    ]
    tip = Shard(ShardId("s-tip"), WHOLE_HASH_RANGE, "10000", parents=(chain[-1].id,))
    root = Lease(key=LeaseKey("s-0"), shard_id=ShardId("s-0"), checkpoint=SHARD_END)
    plan = plan_missing_leases(shard_graph([*chain, tip]), [root], initial)
    assert [(lease.shard_id, lease.checkpoint) for lease in plan] == [("s-1", TRIM_HORIZON)]
