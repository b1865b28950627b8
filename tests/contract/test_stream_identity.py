"""The facts by which a recreated stream is recognised hold on every server, whatever happens to a stream.

A checkpoint is the number of a record. If one server numbered a record below the start of its shard, or changed the
hash range of a shard, a normal stream would be mistaken for a recreated one.
"""

import time
from collections.abc import Callable

import pytest

from tests.contract.streams import KinesisUnderTest, Stream, connect, eventually, hash_range

SERVERS = ("local_kinesis", "kinesis_local", "ministack")


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> KinesisUnderTest:
    return connect(request, request.param)


def _create(server: KinesisUnderTest, name: str, shards: int) -> Stream:
    server.client.create_stream(StreamName=name, ShardCount=shards)
    stream = Stream(server, name)
    stream.wait_until_active()
    return stream


def _starts(stream: Stream) -> dict[str, int]:
    return {
        shard["ShardId"]: int(shard["SequenceNumberRange"]["StartingSequenceNumber"])
        for shard in stream.shards()
    }


def _put_into_every_shard(stream: Stream) -> dict[str, list[int]]:
    """The numbers of new records, by shard."""
    numbers: dict[str, list[int]] = {}
    for shard in stream.open_shards():
        put = stream.put(ExplicitHashKey=str(hash_range(shard)[0]))
        numbers.setdefault(put["ShardId"], []).append(int(put["SequenceNumber"]))
    return numbers


def test_no_record_is_numbered_below_the_start_of_its_shard(
    server: KinesisUnderTest, unique_name: Callable[[str], str]
) -> None:
    """Before and after a split and a merge. The start and the hash range of a shard never change."""
    stream = _create(server, unique_name("identity"), 2)
    before = {shard["ShardId"]: hash_range(shard) for shard in stream.shards()}
    starts = _starts(stream)
    records = _put_into_every_shard(stream)
    first, second = sorted(before)
    stream.split(first)
    _put_into_every_shard(stream)
    others = [shard["ShardId"] for shard in stream.open_shards()]
    stream.merge(others[0], others[1])
    for shard, numbers in _put_into_every_shard(stream).items():
        records.setdefault(shard, []).extend(numbers)
    after = _starts(stream)
    assert second in after
    kept = before.keys() & after.keys()  # ministack does not list closed shards
    assert {shard: after[shard] for shard in kept} == {shard: starts[shard] for shard in kept}
    ranges = {shard["ShardId"]: hash_range(shard) for shard in stream.shards()}
    assert {shard: ranges[shard] for shard in kept} == {shard: before[shard] for shard in kept}
    listed = {shard: numbers for shard, numbers in records.items() if shard in after}
    assert all(number >= after[shard] for shard, numbers in listed.items() for number in numbers)


def test_the_shards_of_a_recreated_stream_start_after_all_earlier_records(
    server: KinesisUnderTest, unique_name: Callable[[str], str]
) -> None:
    """So an old checkpoint lies below the start of the new shard with the same id."""
    name = unique_name("identity")
    stream = _create(server, name, 1)
    records = _put_into_every_shard(stream)
    created = time.time()
    # The numbers of kinesis-local, like those of Kinesis, contain the creation of the shard in seconds.
    eventually(lambda: time.time() > created + 1.5, "the next second begins")
    server.client.delete_stream(StreamName=name, EnforceConsumerDeletion=True)
    eventually(lambda: name not in server.client.list_streams()["StreamNames"], "the stream is gone")
    again = _create(server, name, 1)
    starts = _starts(again)
    assert starts.keys() == records.keys()
    assert all(max(numbers) < starts[shard] for shard, numbers in records.items())
