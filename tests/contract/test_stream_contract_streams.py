"""Stream contract: creation and deletion of streams, their settings, and their consumers."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.contract.streams import (
    BAD_VALUE,
    HASH_KEY_MAX,
    KinesisUnderTest,
    MakeStream,
    Stream,
    eventually,
    expect_refusal,
    hash_range,
)


def test_a_new_stream_has_the_requested_shards(make_stream: MakeStream) -> None:
    """CreateStream creates open shards that cover the whole hash range without a gap."""
    stream = make_stream(shards=3)
    ranges = [hash_range(shard) for shard in stream.open_shards()]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == HASH_KEY_MAX
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]


def test_shards_of_a_new_stream_are_numbered_from_zero(make_stream: MakeStream) -> None:
    """Shard ids are twelve digits, count up, and have no parents."""
    shards = make_stream(shards=3).shards()
    assert [shard["ShardId"] for shard in shards] == [f"shardId-{number:012d}" for number in range(3)]
    assert all("ParentShardId" not in shard and "AdjacentParentShardId" not in shard for shard in shards)


def test_the_summary_describes_a_provisioned_stream(make_stream: MakeStream) -> None:
    """DescribeStreamSummary returns name, status, mode, retention and counts."""
    stream = make_stream(shards=2)
    summary = dict(stream.summary())
    created = summary.pop("StreamCreationTimestamp")
    arn = summary.pop("StreamARN")
    expected = {
        "StreamName": stream.name,
        "StreamStatus": "ACTIVE",
        "StreamModeDetails": {"StreamMode": "PROVISIONED"},
        "RetentionPeriodHours": 24,
        "OpenShardCount": 2,
        "ConsumerCount": 0,
    }
    assert {key: summary[key] for key in expected} == expected
    assert abs(datetime.now(UTC) - created) < timedelta(minutes=10)
    assert re.fullmatch(rf"arn:aws:kinesis:us-east-1:\d{{12}}:stream/{stream.name}", arn)


def test_describe_stream_lists_the_shards(make_stream: MakeStream) -> None:
    """The older DescribeStream returns pages of the same shards."""
    stream = make_stream(shards=3)
    first = stream.client.describe_stream(StreamName=stream.name, Limit=2)["StreamDescription"]
    assert (len(first["Shards"]), first["HasMoreShards"]) == (2, True)
    rest = stream.client.describe_stream(
        StreamName=stream.name, ExclusiveStartShardId=first["Shards"][-1]["ShardId"]
    )["StreamDescription"]
    assert rest["HasMoreShards"] is False
    assert [shard["ShardId"] for shard in first["Shards"] + rest["Shards"]] == stream.shard_ids()


def test_an_on_demand_stream_starts_with_four_shards(make_stream: MakeStream) -> None:
    """It accepts no shard count."""
    stream = make_stream(StreamModeDetails={"StreamMode": "ON_DEMAND"})
    assert stream.summary()["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}
    assert len(stream.open_shards()) == 4


def test_a_stream_can_change_its_mode(stream: Stream) -> None:
    """UpdateStreamMode turns a provisioned stream into an on-demand one."""
    stream.client.update_stream_mode(StreamARN=stream.arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    stream.wait_until_active()
    assert stream.summary()["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}


def test_streams_are_listed_by_name(make_stream: MakeStream) -> None:
    """ListStreams returns pages of all streams in the order of their names."""
    names = sorted(make_stream().name for _ in range(3))
    client = make_stream().client
    found: list[str] = []
    response = {"HasMoreStreams": True, "NextToken": None}
    while response["HasMoreStreams"]:
        start = {"ExclusiveStartStreamName": found[-1]} if found else {}
        response = client.list_streams(Limit=2, **start)
        found += response["StreamNames"]
    assert found == sorted(found)
    assert set(names) <= set(found)


def test_a_deleted_stream_is_gone(stream: Stream) -> None:
    """After DeleteStream the name is unknown and may be used again."""
    stream.client.delete_stream(StreamName=stream.name)
    eventually(lambda: stream.name not in all_stream_names(stream), f"{stream.name} is gone")
    with expect_refusal("ResourceNotFoundException"):
        stream.summary()
    stream.client.create_stream(StreamName=stream.name, ShardCount=1)
    stream.wait_until_active()


def test_a_stream_that_is_created_again_is_empty(stream: Stream, shard_id: str) -> None:
    """It has no record of the deleted stream."""
    stream.put(b"of the old one")
    stream.client.delete_stream(StreamName=stream.name)
    eventually(lambda: stream.name not in all_stream_names(stream), f"{stream.name} is gone")
    stream.client.create_stream(StreamName=stream.name, ShardCount=1)
    stream.wait_until_active()
    stream.put(b"of the new one")
    assert stream.read(shard_id).data == [b"of the new one"]


def test_an_iterator_of_a_deleted_stream_is_refused(stream: Stream, shard_id: str) -> None:
    """With ResourceNotFound."""
    iterator = stream.iterator(shard_id)
    stream.client.delete_stream(StreamName=stream.name)
    eventually(lambda: stream.name not in all_stream_names(stream), f"{stream.name} is gone")
    with expect_refusal("ResourceNotFoundException"):
        stream.client.get_records(ShardIterator=iterator)


def all_stream_names(stream: Stream) -> list[str]:
    response = stream.client.list_streams(Limit=10_000)
    assert not response["HasMoreStreams"]
    return list(response["StreamNames"])


def test_a_stream_name_is_unique(stream: Stream) -> None:
    """A second stream of the same name is refused."""
    with expect_refusal("ResourceInUseException"):
        stream.client.create_stream(StreamName=stream.name, ShardCount=1)


@pytest.mark.parametrize("count", [0, -1])
def test_a_stream_needs_a_shard(
    kinesis: KinesisUnderTest, unique_name: Callable[[str], str], count: int
) -> None:
    """A shard count below one is refused."""
    with kinesis.refuses("a stream of no shards", *BAD_VALUE):
        kinesis.client.create_stream(StreamName=unique_name("contract"), ShardCount=count)


@pytest.mark.parametrize("name", ["a b", "naïve", "x" * 129], ids=["blank", "accent", "long"])
def test_a_stream_name_has_valid_characters(kinesis: KinesisUnderTest, name: str) -> None:
    """Up to 128 letters, digits, dots, dashes and underscores."""
    with expect_refusal(*BAD_VALUE):
        kinesis.client.create_stream(StreamName=name, ShardCount=1)


def test_an_unknown_stream_is_not_found(kinesis: KinesisUnderTest, unique_name: Callable[[str], str]) -> None:
    """Every operation on it fails with ResourceNotFound."""
    missing = {"StreamName": unique_name("missing")}
    client, shard, other = kinesis.client, "shardId-000000000000", "shardId-000000000001"
    calls: list[Callable[[], object]] = [
        lambda: client.describe_stream(**missing),
        lambda: client.describe_stream_summary(**missing),
        lambda: client.list_shards(**missing),
        lambda: client.put_record(**missing, Data=b"x", PartitionKey="k"),
        lambda: client.put_records(**missing, Records=[{"Data": b"x", "PartitionKey": "k"}]),
        lambda: client.get_shard_iterator(**missing, ShardId=shard, ShardIteratorType="LATEST"),
        lambda: client.split_shard(**missing, ShardToSplit=shard, NewStartingHashKey="5"),
        lambda: client.merge_shards(**missing, ShardToMerge=shard, AdjacentShardToMerge=other),
        lambda: client.update_shard_count(**missing, TargetShardCount=2, ScalingType="UNIFORM_SCALING"),
        lambda: client.increase_stream_retention_period(**missing, RetentionPeriodHours=48),
        lambda: client.delete_stream(**missing),
    ]
    for call in calls:
        with expect_refusal("ResourceNotFoundException"):
            call()


def test_an_arn_works_wherever_a_name_does(stream: Stream) -> None:
    """Every operation on a stream accepts its ARN instead of its name."""
    client, arn = stream.client, {"StreamARN": stream.arn}
    (shard,) = client.list_shards(**arn)["Shards"]
    put = client.put_record(**arn, Data=b"by arn", PartitionKey="k")
    assert (
        client.put_records(**arn, Records=[{"Data": b"two", "PartitionKey": "k"}])["FailedRecordCount"] == 0
    )
    iterator = client.get_shard_iterator(**arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")
    records = client.get_records(**arn, ShardIterator=iterator["ShardIterator"])["Records"]
    assert [record["Data"] for record in records] == [b"by arn", b"two"]
    assert put["ShardId"] == shard["ShardId"]
    client.split_shard(**arn, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(2**127))
    stream.wait_until_active()
    assert client.describe_stream(**arn)["StreamDescription"]["StreamName"] == stream.name
    assert client.describe_stream_summary(**arn)["StreamDescriptionSummary"]["OpenShardCount"] == 2


def test_the_retention_can_be_raised_and_lowered(stream: Stream) -> None:
    """From 24 hours to a year, with Increase and Decrease."""
    stream.client.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=8760)
    stream.wait_until_active()
    assert stream.summary()["RetentionPeriodHours"] == 8760
    stream.client.decrease_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=25)
    stream.wait_until_active()
    assert stream.summary()["RetentionPeriodHours"] == 25


def test_a_retention_out_of_range_is_refused(stream: Stream) -> None:
    """Less than a day, more than a year, and the wrong direction are refused, and nothing changes."""
    stream.client.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=48)
    stream.wait_until_active()
    with expect_refusal(*BAD_VALUE):
        stream.client.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=8761)
    with expect_refusal(*BAD_VALUE):
        stream.client.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=36)
    with expect_refusal(*BAD_VALUE):
        stream.client.decrease_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=72)
    with expect_refusal(*BAD_VALUE):
        stream.client.decrease_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=23)
    assert stream.summary()["RetentionPeriodHours"] == 48


def test_a_consumer_is_registered_described_listed_and_removed(stream: Stream) -> None:
    """A fan-out consumer has an ARN, becomes active, and is gone after Deregister."""
    client = stream.client
    registered = client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="reader")["Consumer"]
    assert re.fullmatch(re.escape(stream.arn) + r"/consumer/reader:\d+", registered["ConsumerARN"])
    by_arn = {"ConsumerARN": registered["ConsumerARN"]}
    eventually(lambda: consumer_status(stream, by_arn) == "ACTIVE", "the consumer becomes ACTIVE")
    by_name = {"StreamARN": stream.arn, "ConsumerName": "reader"}
    described = client.describe_stream_consumer(**by_name)["ConsumerDescription"]
    assert described == client.describe_stream_consumer(**by_arn)["ConsumerDescription"]
    assert described["StreamARN"] == stream.arn
    listed = client.list_stream_consumers(StreamARN=stream.arn)["Consumers"]
    assert [consumer["ConsumerName"] for consumer in listed] == ["reader"]
    assert stream.summary()["ConsumerCount"] == 1

    client.deregister_stream_consumer(**by_arn)
    eventually(lambda: consumer_status(stream, by_arn) is None, "the consumer is gone")
    assert client.list_stream_consumers(StreamARN=stream.arn)["Consumers"] == []


def consumer_status(stream: Stream, which: dict[str, str]) -> str | None:
    try:
        response = stream.client.describe_stream_consumer(**which)
    except stream.client.exceptions.ResourceNotFoundException:
        return None
    return str(response["ConsumerDescription"]["ConsumerStatus"])


def test_a_consumer_name_is_unique(stream: Stream) -> None:
    """A second consumer of the same name on the same stream is refused."""
    stream.client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="reader")
    with expect_refusal("ResourceInUseException"):
        stream.client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="reader")


def test_an_unknown_consumer_is_not_found(stream: Stream) -> None:
    """Describing or removing a consumer that was never registered is refused."""
    which = {"StreamARN": stream.arn, "ConsumerName": "nobody"}
    with expect_refusal("ResourceNotFoundException"):
        stream.client.describe_stream_consumer(**which)
    with expect_refusal("ResourceNotFoundException"):
        stream.client.deregister_stream_consumer(**which)


def test_a_stream_with_consumers_is_not_deleted_by_default(stream: Stream) -> None:
    """DeleteStream needs EnforceConsumerDeletion."""
    stream.client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="reader")
    eventually(
        lambda: consumer_status(stream, {"StreamARN": stream.arn, "ConsumerName": "reader"}) == "ACTIVE",
        "ACTIVE",
    )
    with expect_refusal("ResourceInUseException"):
        stream.client.delete_stream(StreamName=stream.name)
    is_kept = stream.name in all_stream_names(stream)
    assert is_kept is (stream.kinesis.expects("a refused deletion", "kept") == "kept")


def test_enforce_consumer_deletion_deletes_the_consumers(stream: Stream) -> None:
    """Together with the stream."""
    stream.client.register_stream_consumer(StreamARN=stream.arn, ConsumerName="reader")
    stream.client.delete_stream(StreamName=stream.name, EnforceConsumerDeletion=True)
    eventually(lambda: stream.name not in all_stream_names(stream), f"{stream.name} is gone")
