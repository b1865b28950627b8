"""Splitting, merging, scaling."""

from itertools import pairwise

import pytest

from leasehold.core.model import HASH_KEY_MAX, HashRange
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.reshard import uniform_ranges
from leasehold.kinesis_model.stream import StreamMode
from tests.unit.kinesis_model.model_under_test import BEGIN_MS, MIDDLE, ModelUnderTest, shard_id_of


def genealogy(world: ModelUnderTest) -> dict[int, tuple[int, ...]]:
    """Parents of each listed shard, by index."""
    return {
        shard.index: tuple(int(parent.removeprefix("shardId-")) for parent in shard.parents)
        for shard in world.stream.shards.values()
    }


def open_ranges(world: ModelUnderTest) -> list[HashRange]:
    return [shard.hash_range for shard in world.stream.open_shards]


def refusal(error: pytest.ExceptionInfo[KinesisApiError]) -> tuple[ErrorType, str]:
    return error.value.error_type, error.value.message


def test_uniform_ranges_tile_the_hash_range_and_nest() -> None:
    """Equal parts have no gap, and the boundaries of 3 are among those of 6 and 12."""
    for count in (1, 2, 3, 7, 1000):
        parts = uniform_ranges(count)
        assert parts[0].start == 0
        assert parts[-1].end == HASH_KEY_MAX
        assert all(left.end + 1 == right.start for left, right in pairwise(parts))
    starts = [{part.start for part in uniform_ranges(count)} for count in (3, 6, 12)]
    assert starts[0] < starts[1] < starts[2]


def test_a_split_opens_two_children_where_the_parent_was() -> None:
    """The children share the parent's range at the key given, and the parent is closed."""
    world = ModelUnderTest()
    world.split(0, at=1000)
    assert open_ranges(world) == [HashRange(0, 999), HashRange(1000, HASH_KEY_MAX)]
    assert genealogy(world) == {0: (), 1: (0,), 2: (0,)}
    assert not world.stream.shard(shard_id_of(0)).is_open


def test_a_merge_opens_one_child_with_two_parents() -> None:
    """The child covers both parents' ranges and names the lower one first."""
    world = ModelUnderTest(shards=3)
    world.merge(1, 2)
    assert genealogy(world)[3] == (1, 2)
    assert open_ranges(world) == [uniform_ranges(3)[0], HashRange(uniform_ranges(3)[1].start, HASH_KEY_MAX)]


def test_children_number_above_their_parents_even_within_one_millisecond() -> None:
    """Split and merge in the same moment: every generation starts above the end of the one before."""
    world = ModelUnderTest()
    world.split(0)
    world.merge(1, 2)
    world.split(3)
    shards = [shard.to_shard() for shard in world.stream.shards.values()]
    by_id = {shard.id: shard for shard in shards}
    for shard in shards:
        for parent in shard.parents:
            assert int(by_id[parent].ending_sequence_number or 0) < int(shard.starting_sequence_number)


@pytest.mark.parametrize("key", [0, 1, HASH_KEY_MAX, HASH_KEY_MAX + 1])
def test_a_split_leaves_both_children_more_than_one_key(key: int) -> None:
    """A key at the edge of the shard, or outside, is refused with the shard's bounds."""
    with pytest.raises(KinesisApiError) as error:
        ModelUnderTest().split(0, at=key)
    assert refusal(error)[0] == ErrorType.INVALID_ARGUMENT
    assert str(HASH_KEY_MAX) in refusal(error)[1]


@pytest.mark.parametrize(("lower", "upper"), [(0, 2), (1, 0), (1, 1)], ids=["apart", "inverted", "itself"])
def test_only_a_shard_and_its_upper_neighbour_are_merged(lower: int, upper: int) -> None:
    """Shards that are apart, in the wrong order, or the same are refused, as by the service."""
    with pytest.raises(KinesisApiError, match="not an adjacent pair"):
        ModelUnderTest(shards=3).merge(lower, upper)


def test_a_closed_shard_is_not_resharded_again() -> None:
    """Splitting or merging a shard that has children is refused."""
    world = ModelUnderTest(shards=2)
    world.split(0, at=1000)
    with pytest.raises(KinesisApiError, match="already been merged or split"):
        world.split(0, at=2000)
    with pytest.raises(KinesisApiError, match="already been merged or split"):
        world.merge(0, 1)


def test_an_unknown_shard_is_not_resharded() -> None:
    """Splitting a shard that is not there is ResourceNotFound, and names it."""
    with pytest.raises(KinesisApiError) as error:
        ModelUnderTest().split(7)
    assert refusal(error)[0] == ErrorType.NOT_FOUND
    assert shard_id_of(7) in refusal(error)[1]


@pytest.mark.parametrize(
    ("before", "after", "made"), [(2, 4, 4), (4, 2, 2), (2, 3, 5), (3, 2, 4), (3, 6, 6), (5, 5, 0)]
)
def test_scaling_gives_equal_shards_by_true_splits_and_merges(before: int, after: int, made: int) -> None:
    """The open shards are as many as asked for, of equal size; each child has one parent or two."""
    world = ModelUnderTest(shards=before)
    assert world.service.update_shard_count(world.now_ms, "s", after) == before
    assert open_ranges(world) == uniform_ranges(after)
    parents = genealogy(world)
    assert len(parents) == before + made
    for shard, named in parents.items():
        if shard >= before:
            ranges = [world.stream.shards[shard_id_of(parent)].hash_range for parent in named]
            child = world.stream.shards[shard_id_of(shard)].hash_range
            if len(named) == 2:
                assert child == HashRange(ranges[0].start, ranges[1].end)
            else:
                assert ranges[0].start <= child.start
                assert child.end <= ranges[0].end


def test_scaling_leaves_a_boundary_alone_that_is_almost_right() -> None:
    """Who split at (start + end) / 2 is one key beside the middle; scaling does not make shards of one key."""
    world = ModelUnderTest()
    world.split(0, at=HASH_KEY_MAX // 2)
    world.service.update_shard_count(world.now_ms, "s", 4)
    starts = [part.start for part in open_ranges(world)]
    assert starts == [0, 2**126, HASH_KEY_MAX // 2, 3 * 2**126]


@pytest.mark.parametrize("target", [1, 9])
def test_scaling_goes_to_half_or_double_at_most(target: int) -> None:
    """More than double or less than half is refused, with both counts."""
    world = ModelUnderTest(shards=4)
    with pytest.raises(KinesisApiError, match=f"Current open shard count: 4 Target shard count: {target}"):
        world.service.update_shard_count(world.now_ms, "s", target)


def test_scaling_is_limited_to_ten_times_a_day_when_limits_hold() -> None:
    """The eleventh time within 24 hours is refused, and allowed again when a day has passed."""
    world = ModelUnderTest(shards=2, enforce_limits=True)
    for turn in range(10):
        world.service.update_shard_count(world.now_ms, "s", 3 if turn % 2 == 0 else 2)
    with pytest.raises(KinesisApiError) as error:
        world.service.update_shard_count(world.now_ms, "s", 3)
    assert error.value.error_type == ErrorType.LIMIT_EXCEEDED
    world.now_ms += 25 * 3_600_000
    assert world.service.update_shard_count(world.now_ms, "s", 3) == 2


def test_an_on_demand_stream_is_not_resharded_by_hand() -> None:
    """It says how to make it provisioned first."""
    world = ModelUnderTest()
    world.service.create_stream(world.now_ms, "od", mode=StreamMode.ON_DEMAND)
    with pytest.raises(KinesisApiError, match="UpdateStreamMode") as error:
        world.service.split_shard(world.now_ms, "od", shard_id_of(0), 1000)
    assert error.value.error_type == ErrorType.VALIDATION


def test_an_account_has_only_so_many_shards() -> None:
    """A split beyond the account's shard limit is refused with the numbers."""
    world = ModelUnderTest(shards=2, shards_max=2)
    with pytest.raises(KinesisApiError, match=r"shard count for the account: 2\. Limit: 2"):
        world.split(0, at=1000)


def test_a_reshard_happens_after_everything_written_before_it() -> None:
    """Within one millisecond, the parent's records are before its close and the children's after it."""
    world = ModelUnderTest()
    world.put(b"before")
    world.split(0, at=MIDDLE)
    world.put(b"after", hash_key=0)
    parent, child = world.stream.shard(shard_id_of(0)), world.stream.shard(shard_id_of(1))
    assert parent.closed_ms == child.opened_ms == BEGIN_MS + 1
    arrivals = [world.get(world.iterator(shard))[0].records[0].arrival_ms for shard in (0, 1)]
    assert arrivals == [BEGIN_MS, BEGIN_MS + 1]
