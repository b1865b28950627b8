"""The values of the model: which are invalid, and their properties."""

from dataclasses import replace

import pytest

from leasehold.core.model import (
    HASH_KEY_MAX,
    WHOLE_HASH_RANGE,
    HashRange,
    InitialPosition,
    Lease,
    LeaseKey,
    Shard,
    ShardId,
    WorkerId,
    lease_key,
    parent_keys,
    stream_identifier,
)
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.errors import ConfigError


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5), (-1, 5), (0, HASH_KEY_MAX + 1)])
def test_invalid_hash_ranges_are_refused(start: int, end: int) -> None:
    """Java cannot read a range of one key, a reversed one, or one outside 0..2^128-1."""
    with pytest.raises(ConfigError, match=r"expected 0 <= start < end <= 2\^128-1"):
        HashRange(start, end)


def test_both_ends_of_a_range_are_in_it() -> None:
    """Ranges are inclusive, as in Kinesis."""
    middle = HashRange(10, 20)
    assert [key in middle for key in (9, 10, 20, 21)] == [False, True, True, False]
    assert HASH_KEY_MAX in WHOLE_HASH_RANGE


def test_a_shard_is_open_until_it_has_an_end() -> None:
    """Any ending sequence number closes a shard."""
    ends = [Shard(ShardId("s-0"), WHOLE_HASH_RANGE, "1", ending) for ending in (None, "2", "")]
    assert [shard.is_open for shard in ends] == [True, False, False]


def lease(owner: str | None = None, checkpoint_owner: str | None = None) -> Lease:
    return Lease(
        key=LeaseKey("s-0"),
        shard_id=ShardId("s-0"),
        checkpoint=LATEST,
        owner=WorkerId(owner) if owner else None,
        checkpoint_owner=WorkerId(checkpoint_owner) if checkpoint_owner else None,
    )


def test_during_a_handoff_the_old_owner_still_reads() -> None:
    """The next owner is in the row already, but only the old one may checkpoint."""
    free, held, moving = lease(), lease("w-1"), lease("w-2", "w-1")
    assert [each.actual_owner for each in (free, held, moving)] == [None, "w-1", "w-1"]
    assert [each.is_in_handoff for each in (free, held, moving)] == [False, False, True]


def test_the_key_of_a_lease_is_the_shard_in_single_stream_mode() -> None:
    """Without a stream identifier there is no prefix."""
    assert lease_key(ShardId("shardId-000000000003")) == "shardId-000000000003"


@pytest.mark.parametrize("sentinel", [SHARD_END, Position("42")])
def test_an_initial_position_must_be_valid_for_all_shards(sentinel: Position) -> None:
    """The end of a shard, or a sequence number of one shard, is not."""
    with pytest.raises(ConfigError, match="expected LATEST, TRIM_HORIZON or AT_TIMESTAMP"):
        InitialPosition(sentinel)


@pytest.mark.parametrize(("sentinel", "time"), [(AT_TIMESTAMP, None), (LATEST, 5), (TRIM_HORIZON, 0)])
def test_a_timestamp_is_for_at_timestamp_only(sentinel: Position, time: int | None) -> None:
    """AT_TIMESTAMP needs one, and another sentinel must not have one."""
    with pytest.raises(
        ConfigError, match="a timestamp is required for AT_TIMESTAMP, and allowed only with it"
    ):
        InitialPosition(sentinel, time)


def test_the_keys_of_parents_contain_the_stream() -> None:
    """Shards of other streams have the same ids."""
    stream = stream_identifier("000000000000", "orders", 1)
    child = Lease(
        key=lease_key(ShardId("s-2"), stream),
        shard_id=ShardId("s-2"),
        checkpoint=TRIM_HORIZON,
        parents=frozenset({ShardId("s-0"), ShardId("s-1")}),
        stream=stream,
    )
    assert parent_keys(child) == {f"{stream}:s-0", f"{stream}:s-1"}
    assert parent_keys(replace(child, stream=None)) == {"s-0", "s-1"}
