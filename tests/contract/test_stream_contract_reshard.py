"""Stream contract: split, merge and scaling; parents, children and hash ranges; and the end of a shard as a reader
sees it.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.contract.streams import (
    BAD_VALUE,
    HASH_KEY_MAX,
    MakeStream,
    ShardRead,
    Stream,
    expect_refusal,
    hash_key_of,
    hash_range,
)


def by_id(stream: Stream) -> dict[str, dict[str, Any]]:
    return {shard["ShardId"]: shard for shard in stream.shards()}


def covers_everything(shards: list[dict[str, Any]]) -> bool:
    """Whether the ranges, in order, cover the hash range without gap or overlap."""
    ranges = [hash_range(shard) for shard in shards]
    firsts = [0, *(last + 1 for _, last in ranges)]
    return firsts == [*(first for first, _ in ranges), HASH_KEY_MAX + 1]


def numbers_of(shard: Mapping[str, Any]) -> tuple[int, int]:
    """First and last sequence number of a closed shard."""
    numbers = shard["SequenceNumberRange"]
    return int(numbers["StartingSequenceNumber"]), int(numbers["EndingSequenceNumber"])


def child_facts(children: ShardRead) -> list[tuple[str, frozenset[str], tuple[int, int]]]:
    """The children at the end of a shard: id, parents, range; the lowest range first."""
    facts = [
        (child["ShardId"], frozenset(child["ParentShards"]), hash_range(child)) for child in children.children
    ]
    return sorted(facts, key=lambda fact: fact[2])


# Splitting


def test_a_split_divides_the_range_at_the_given_key(stream: Stream, shard_id: str) -> None:
    """The lower child ends just before the new starting hash key, the upper starts with it."""
    low, high = stream.split(shard_id, at=1000)
    shards = by_id(stream)
    assert (hash_range(shards[low]), hash_range(shards[high])) == ((0, 999), (1000, HASH_KEY_MAX))
    assert {shards[child]["ParentShardId"] for child in (low, high)} == {shard_id}
    assert all("AdjacentParentShardId" not in shards[child] for child in (low, high))
    assert [shards[child]["ShardId"] for child in (low, high)] == [
        "shardId-000000000001",
        "shardId-000000000002",
    ]


def test_a_split_closes_the_parent_and_keeps_its_records(stream: Stream, shard_id: str) -> None:
    """The parent gets an ending number; its old records lie within its numbers and can be read."""
    numbers = [int(stream.put(f"{number}".encode())["SequenceNumber"]) for number in range(3)]
    children = stream.split(shard_id)
    shards = by_id(stream)
    first, last = numbers_of(shards[shard_id])
    assert first <= numbers[0]
    assert numbers[-1] <= last or last == stream.kinesis.expects("the ending number of a closed shard", None)
    starts = [int(shards[child]["SequenceNumberRange"]["StartingSequenceNumber"]) for child in children]
    assert all(start > last for start in starts)
    assert stream.read_to_end(shard_id).data == [b"0", b"1", b"2"]


def test_new_records_go_to_the_children(stream: Stream, shard_id: str) -> None:
    """After a split, each key goes to the child whose range contains it, with numbers above all of the parent's."""
    before = int(stream.put(b"before")["SequenceNumber"])
    children = stream.split(shard_id)
    ranges = {shard: hash_range(found) for shard, found in by_id(stream).items()}
    for number in range(8):
        put = stream.put(f"{number}".encode(), key=f"key-{number}")
        first, last = ranges[put["ShardId"]]
        assert put["ShardId"] in children
        assert first <= hash_key_of(f"key-{number}") <= last
        assert int(put["SequenceNumber"]) > before
    read = [record for child in children for record in stream.read(child).data]
    assert sorted(read) == [f"{number}".encode() for number in range(8)]
    assert stream.read_to_end(shard_id).data == [b"before"]


def test_the_end_of_a_split_shard_names_its_children(stream: Stream, shard_id: str) -> None:
    """After the last record there is no iterator, and both children are listed with their ranges."""
    stream.put(b"last")
    low, high = stream.split(shard_id, at=2**127)
    read = stream.read_to_end(shard_id)
    assert read.data == [b"last"]
    parents = frozenset({shard_id})
    assert child_facts(read) == [(low, parents, (0, 2**127 - 1)), (high, parents, (2**127, HASH_KEY_MAX))]


def test_an_empty_shard_also_ends(stream: Stream, shard_id: str) -> None:
    """A shard without records ends like any other."""
    children = stream.split(shard_id)
    read = stream.read_to_end(shard_id)
    assert (read.data, [child["ShardId"] for child in read.children]) == ([], children)


def test_an_iterator_of_an_open_shard_reaches_its_end(stream: Stream, shard_id: str) -> None:
    """An iterator that was created before the split reaches the end after it."""
    iterator = stream.iterator(shard_id, "LATEST")
    stream.put(b"late")
    children = stream.split(shard_id)
    read = stream.read_on(iterator)
    assert (read.data, read.has_ended) == ([b"late"], True)
    assert sorted(child["ShardId"] for child in read.children) == children


def test_latest_of_a_closed_shard_is_its_end(stream: Stream, shard_id: str) -> None:
    """There is nothing after the last record of a closed shard."""
    stream.put(b"old")
    stream.split(shard_id)
    read = stream.read(shard_id, "LATEST")
    assert (read.data, read.has_ended) == ([], True)


def test_a_split_at_the_start_is_refused(stream: Stream, shard_id: str) -> None:
    """Both children must have a range."""
    with stream.kinesis.refuses("a split at the start", *BAD_VALUE):
        stream.client.split_shard(StreamName=stream.name, ShardToSplit=shard_id, NewStartingHashKey="0")


def test_a_split_beyond_the_hash_range_is_refused(stream: Stream, shard_id: str) -> None:
    """A refused split changes nothing."""
    with expect_refusal(*BAD_VALUE):
        stream.client.split_shard(
            StreamName=stream.name, ShardToSplit=shard_id, NewStartingHashKey=str(HASH_KEY_MAX + 1)
        )
    assert stream.shard_ids() == [shard_id]


def test_a_split_point_in_another_shard_is_refused(make_stream: MakeStream) -> None:
    """A shard can only be split within its own range."""
    stream = make_stream(shards=2)
    low, high = stream.open_shards()
    with expect_refusal(*BAD_VALUE):
        stream.client.split_shard(
            StreamName=stream.name,
            ShardToSplit=low["ShardId"],
            NewStartingHashKey=str(hash_range(high)[0] + 10),
        )


def test_a_closed_shard_is_not_split_again(stream: Stream, shard_id: str) -> None:
    """A second split is refused."""
    stream.split(shard_id)
    with stream.kinesis.refuses("a second split", "InvalidArgumentException"):
        stream.client.split_shard(
            StreamName=stream.name, ShardToSplit=shard_id, NewStartingHashKey=str(2**126)
        )
    assert len(stream.shards()) == 3


def test_splitting_an_unknown_shard_is_not_found(stream: Stream) -> None:
    """A shard that does not exist cannot be split."""
    with expect_refusal("ResourceNotFoundException"):
        stream.client.split_shard(
            StreamName=stream.name, ShardToSplit="shardId-000000000042", NewStartingHashKey=str(2**127)
        )


# Merging


def test_a_merge_joins_two_ranges(make_stream: MakeStream) -> None:
    """The child of a merge has both parents and both their ranges."""
    stream = make_stream(shards=2)
    low, high = (shard["ShardId"] for shard in stream.open_shards())
    child = stream.merge(low, high)
    merged = by_id(stream)[child]
    assert (merged["ParentShardId"], merged["AdjacentParentShardId"]) == (low, high)
    assert hash_range(merged) == (0, HASH_KEY_MAX)
    assert [shard["ShardId"] for shard in stream.open_shards()] == [child]


def test_both_parents_of_a_merge_list_the_child(make_stream: MakeStream) -> None:
    """The child lists both parents."""
    stream = make_stream(shards=2)
    low, high = (shard["ShardId"] for shard in stream.open_shards())
    for number in range(6):
        stream.put(f"{number}".encode(), key=f"key-{number}")
    child = stream.merge(low, high)
    reads = [stream.read_to_end(parent) for parent in (low, high)]
    expected = [(child, frozenset({low, high}), (0, HASH_KEY_MAX))]
    assert [child_facts(read) for read in reads] == [expected, expected]
    assert sorted(reads[0].data + reads[1].data) == [f"{number}".encode() for number in range(6)]


def test_shards_that_are_not_adjacent_are_not_merged(make_stream: MakeStream) -> None:
    """The refusal changes nothing."""
    stream = make_stream(shards=3)
    first, _, third = (shard["ShardId"] for shard in stream.open_shards())
    with expect_refusal("InvalidArgumentException"):
        stream.client.merge_shards(StreamName=stream.name, ShardToMerge=first, AdjacentShardToMerge=third)
    with expect_refusal("InvalidArgumentException"):
        stream.client.merge_shards(StreamName=stream.name, ShardToMerge=first, AdjacentShardToMerge=first)
    assert len(stream.open_shards()) == 3


def test_merging_an_unknown_shard_is_not_found(stream: Stream, shard_id: str) -> None:
    """A shard that does not exist cannot be merged."""
    with expect_refusal("ResourceNotFoundException"):
        stream.client.merge_shards(
            StreamName=stream.name, ShardToMerge=shard_id, AdjacentShardToMerge="shardId-000000000042"
        )


def test_a_history_of_splits_and_merges_can_be_read_parents_first(stream: Stream, shard_id: str) -> None:
    """Split, split, merge: following ChildShards from the root returns every record once, none too early."""
    stream.put_many([(f"key-{n}", b"a%d" % n) for n in range(6)])
    low, high = stream.split(shard_id)
    stream.put_many([(f"key-{n}", b"b%d" % n) for n in range(6)])
    _, low_right = stream.split(low)
    merged = stream.merge(low_right, high)
    stream.put_many([(f"key-{n}", b"c%d" % n) for n in range(6)])

    assert covers_everything(stream.open_shards())
    data, order = follow_children(stream, shard_id)
    assert sorted(data) == sorted(prefix + b"%d" % n for prefix in (b"a", b"b", b"c") for n in range(6))
    assert order.index(merged) > max(order.index(low_right), order.index(high))


def follow_children(stream: Stream, root: str) -> tuple[list[bytes], list[str]]:
    """Reads from the root: a child when all its parents have ended, as a consumer must."""
    data: list[bytes] = []
    order: list[str] = []
    waiting: dict[str, frozenset[str]] = {root: frozenset()}
    while waiting:
        shard = next(found for found, parents in waiting.items() if parents <= set(order))
        del waiting[shard]
        order.append(shard)
        is_open = shard in {found["ShardId"] for found in stream.open_shards()}
        read = stream.read(shard) if is_open else stream.read_to_end(shard)
        data += read.data
        waiting.update((child, parents) for child, parents, _ in child_facts(read))
    return data, order


# Scaling


def test_scaling_doubles_and_halves_with_correct_parents(make_stream: MakeStream) -> None:
    """UpdateShardCount splits and merges: the open shards cover the range and descend from the old ones."""
    stream = make_stream(shards=2)
    roots = set(stream.shard_ids())
    for target in (4, 2):
        scale(stream, target)
        shards = by_id(stream)
        assert len(stream.open_shards()) == target
        assert covers_everything(stream.open_shards())
        for shard in shards.values():
            assert shard["ShardId"] in roots or shard["ParentShardId"] in shards


def scale(stream: Stream, target: int) -> None:
    stream.client.update_shard_count(
        StreamName=stream.name, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
    )
    stream.wait_until_active()


def test_scaling_keeps_every_record(make_stream: MakeStream) -> None:
    """Records from before the scaling are read from the parents, to their ends."""
    stream = make_stream(shards=2)
    roots = stream.shard_ids()
    stream.put_many([(f"key-{n}", b"%d" % n) for n in range(10)])
    scale(stream, 4)
    assert sorted(entry for root in roots for entry in stream.read_to_end(root).data) == [
        b"%d" % n for n in range(10)
    ]


def test_uniform_scaling_ends_with_equal_ranges(stream: Stream, shard_id: str) -> None:
    """Whatever the ranges were before."""
    stream.split(shard_id, at=1000)
    scale(stream, 4)
    widths = [last - first for first, last in map(hash_range, stream.open_shards())]
    is_even = max(widths) - min(widths) <= 4
    assert is_even is (stream.kinesis.expects("uniform scaling", "even") == "even")


def test_scaling_to_an_odd_count_covers_the_range(make_stream: MakeStream) -> None:
    """Two shards become three: nothing is lost, and every key has exactly one open shard."""
    stream = make_stream(shards=2)
    roots = stream.shard_ids()
    stream.put_many([(f"key-{n}", b"%d" % n) for n in range(10)])
    scale(stream, 3)
    assert len(stream.open_shards()) == 3
    assert covers_everything(stream.open_shards())
    closed = {shard["ShardId"] for shard in stream.shards()} - {
        shard["ShardId"] for shard in stream.open_shards()
    }
    reads = [stream.read_to_end(root) if root in closed else stream.read(root) for root in roots]
    assert sorted(entry for read in reads for entry in read.data) == [b"%d" % n for n in range(10)]


def test_an_on_demand_stream_refuses_scaling(make_stream: MakeStream) -> None:
    """Scaling is for provisioned streams."""
    stream = make_stream(StreamModeDetails={"StreamMode": "ON_DEMAND"})
    with stream.kinesis.refuses("scaling an on-demand stream", *BAD_VALUE):
        stream.client.update_shard_count(
            StreamName=stream.name, TargetShardCount=8, ScalingType="UNIFORM_SCALING"
        )


def test_an_on_demand_stream_refuses_a_split(make_stream: MakeStream) -> None:
    """Splitting is for provisioned streams."""
    stream = make_stream(StreamModeDetails={"StreamMode": "ON_DEMAND"})
    first = stream.open_shards()[0]
    with stream.kinesis.refuses("splitting an on-demand stream", *BAD_VALUE):
        stream.client.split_shard(
            StreamName=stream.name,
            ShardToSplit=first["ShardId"],
            NewStartingHashKey=str(sum(hash_range(first)) // 2),
        )


@pytest.mark.parametrize("target", [0, 5])
def test_scaling_too_far_is_refused(make_stream: MakeStream, target: int) -> None:
    """One call can at most double the count, and never set it to zero."""
    stream = make_stream(shards=2)
    with expect_refusal(*BAD_VALUE, "LimitExceededException"):
        stream.client.update_shard_count(
            StreamName=stream.name, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
        )
    assert len(stream.open_shards()) == 2


def test_the_summary_counts_open_shards_only(stream: Stream, shard_id: str) -> None:
    """OpenShardCount does not include closed parents."""
    stream.split(shard_id)
    assert stream.summary()["OpenShardCount"] == 2
    assert len(stream.shards()) == 3
