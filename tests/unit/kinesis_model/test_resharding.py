"""Split, merge and uniform scaling."""

from itertools import pairwise

import pytest

from leasehold.core.model import HASH_KEY_MAX, HashRange
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.resharding import uniform_ranges
from leasehold.kinesis_model.stream import StreamMode
from tests.unit.kinesis_model.model_under_test import BEGIN_MS, MIDDLE, ModelUnderTest, shard_id_of


def parents_by_shard(model: ModelUnderTest) -> dict[int, tuple[int, ...]]:
    """Return the parents of each listed shard, by index."""
    return {
        shard.index: tuple(int(parent.removeprefix("shardId-")) for parent in shard.parents)
        for shard in model.stream.shards.values()
    }


def open_ranges(model: ModelUnderTest) -> list[HashRange]:
    return [shard.hash_range for shard in model.stream.open_shards]


def refusal(error: pytest.ExceptionInfo[KinesisApiError]) -> tuple[ErrorType, str]:
    return error.value.error_type, error.value.message


def test_uniform_ranges_cover_the_hash_range_and_nest() -> None:
    """Equal parts have no gap, and the boundaries of 3 are among those of 6 and 12."""
    for count in (1, 2, 3, 7, 1000):
        parts = uniform_ranges(count)
        assert parts[0].start == 0
        assert parts[-1].end == HASH_KEY_MAX
        assert all(left.end + 1 == right.start for left, right in pairwise(parts))
    starts = [{part.start for part in uniform_ranges(count)} for count in (3, 6, 12)]
    assert starts[0] < starts[1] < starts[2]


def test_a_split_opens_two_children_and_closes_the_parent() -> None:
    """The children divide the parent's range at the given key."""
    model = ModelUnderTest()
    model.split(0, at=1000)
    assert open_ranges(model) == [HashRange(0, 999), HashRange(1000, HASH_KEY_MAX)]
    assert parents_by_shard(model) == {0: (), 1: (0,), 2: (0,)}
    assert not model.stream.shard(shard_id_of(0)).is_open


def test_a_merge_opens_one_child_with_two_parents() -> None:
    """The child covers both parents' ranges and names the lower parent first."""
    model = ModelUnderTest(shards=3)
    model.merge(1, 2)
    assert parents_by_shard(model)[3] == (1, 2)
    assert open_ranges(model) == [uniform_ranges(3)[0], HashRange(uniform_ranges(3)[1].start, HASH_KEY_MAX)]


def test_children_have_higher_numbers_even_within_one_millisecond() -> None:
    """After splits and merges at one moment, every child starts above the end of its parents."""
    model = ModelUnderTest()
    model.split(0)
    model.merge(1, 2)
    model.split(3)
    shards = [shard.to_shard() for shard in model.stream.shards.values()]
    by_id = {shard.id: shard for shard in shards}
    for shard in shards:
        for parent in shard.parents:
            assert int(by_id[parent].ending_sequence_number or 0) < int(shard.starting_sequence_number)


@pytest.mark.parametrize("key", [0, 1, HASH_KEY_MAX, HASH_KEY_MAX + 1])
def test_a_split_leaves_both_children_more_than_one_key(key: int) -> None:
    """A key at the edge of the shard or outside is refused. The error names the shard's bounds."""
    with pytest.raises(KinesisApiError) as error:
        ModelUnderTest().split(0, at=key)
    assert refusal(error)[0] == ErrorType.INVALID_ARGUMENT
    assert str(HASH_KEY_MAX) in refusal(error)[1]


@pytest.mark.parametrize(("lower", "upper"), [(0, 2), (1, 0), (1, 1)], ids=["apart", "inverted", "itself"])
def test_only_adjacent_shards_are_merged(lower: int, upper: int) -> None:
    """Shards that are apart, in the wrong order, or identical are refused."""
    with pytest.raises(KinesisApiError, match="not an adjacent pair"):
        ModelUnderTest(shards=3).merge(lower, upper)


def test_a_closed_shard_is_not_resharded_again() -> None:
    """Splitting or merging a shard that has children is refused."""
    model = ModelUnderTest(shards=2)
    model.split(0, at=1000)
    with pytest.raises(KinesisApiError, match="already been merged or split"):
        model.split(0, at=2000)
    with pytest.raises(KinesisApiError, match="already been merged or split"):
        model.merge(0, 1)


def test_an_unknown_shard_is_not_resharded() -> None:
    """Splitting an unknown shard is ResourceNotFound. The error names it."""
    with pytest.raises(KinesisApiError) as error:
        ModelUnderTest().split(7)
    assert refusal(error)[0] == ErrorType.NOT_FOUND
    assert shard_id_of(7) in refusal(error)[1]


@pytest.mark.parametrize(
    ("before", "after", "made"), [(2, 4, 4), (4, 2, 2), (2, 3, 5), (3, 2, 4), (3, 6, 6), (5, 5, 0)]
)
def test_scaling_gives_equal_shards_by_splits_and_merges(before: int, after: int, made: int) -> None:
    """There are as many open shards as requested, of equal size. Each child has one parent or two."""
    model = ModelUnderTest(shards=before)
    assert model.service.update_shard_count(model.now_ms, "s", after) == before
    assert open_ranges(model) == uniform_ranges(after)
    parents = parents_by_shard(model)
    assert len(parents) == before + made
    for shard, named in parents.items():
        if shard >= before:
            ranges = [model.stream.shards[shard_id_of(parent)].hash_range for parent in named]
            child = model.stream.shards[shard_id_of(shard)].hash_range
            if len(named) == 2:
                assert child == HashRange(ranges[0].start, ranges[1].end)
            else:
                assert ranges[0].start <= child.start
                assert child.end <= ranges[0].end


def test_scaling_keeps_an_almost_equal_boundary() -> None:
    """A split at (start + end) / 2 is one key off the middle. Scaling creates no shard of one key for it."""
    model = ModelUnderTest()
    model.split(0, at=HASH_KEY_MAX // 2)
    model.service.update_shard_count(model.now_ms, "s", 4)
    starts = [part.start for part in open_ranges(model)]
    assert starts == [0, 2**126, HASH_KEY_MAX // 2, 3 * 2**126]


@pytest.mark.parametrize("target", [1, 9])
def test_scaling_beyond_half_or_double_is_refused(target: int) -> None:
    """The error names both counts."""
    model = ModelUnderTest(shards=4)
    with pytest.raises(KinesisApiError, match=f"Current open shard count: 4 Target shard count: {target}"):
        model.service.update_shard_count(model.now_ms, "s", target)


def test_scaling_is_limited_to_ten_times_a_day_when_limits_are_enforced() -> None:
    """The eleventh time within 24 hours is refused, and allowed a day after the first."""
    model = ModelUnderTest(shards=2, enforce_limits=True)
    for turn in range(10):
        model.service.update_shard_count(model.now_ms, "s", 3 if turn % 2 == 0 else 2)
    with pytest.raises(KinesisApiError) as error:
        model.service.update_shard_count(model.now_ms, "s", 3)
    assert error.value.error_type == ErrorType.LIMIT_EXCEEDED
    model.now_ms += 25 * 3_600_000
    assert model.service.update_shard_count(model.now_ms, "s", 3) == 2


def test_an_on_demand_stream_cannot_be_resharded_by_clients() -> None:
    """The error says how to make it provisioned first."""
    model = ModelUnderTest()
    model.service.create_stream(model.now_ms, "od", mode=StreamMode.ON_DEMAND)
    with pytest.raises(KinesisApiError, match="UpdateStreamMode") as error:
        model.service.split_shard(model.now_ms, "od", shard_id_of(0), 1000)
    assert error.value.error_type == ErrorType.VALIDATION


def test_an_account_has_a_shard_limit() -> None:
    """A split beyond the limit is refused. The error names the numbers."""
    model = ModelUnderTest(shards=2, shards_max=2)
    with pytest.raises(KinesisApiError, match=r"shard count for the account: 2\. Limit: 2"):
        model.split(0, at=1000)


def test_a_reshard_is_later_than_every_earlier_write() -> None:
    """Within one millisecond, the parent's records are before its close and the children's after it."""
    model = ModelUnderTest()
    model.put(b"before")
    model.split(0, at=MIDDLE)
    model.put(b"after", hash_key=0)
    parent, child = model.stream.shard(shard_id_of(0)), model.stream.shard(shard_id_of(1))
    assert parent.closed_ms == child.opened_ms == BEGIN_MS + 1
    arrivals = [model.get(model.iterator(shard))[0].records[0].arrival_ms for shard in (0, 1)]
    assert arrivals == [BEGIN_MS, BEGIN_MS + 1]
