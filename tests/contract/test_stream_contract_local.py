"""Stream contract: behaviour that only our server can show, because only its clock can be set, its limits enabled,
and its fan-out subscriptions see the end of a shard. Each test has its own server, because all streams of a server
share clock and settings.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from botocore.exceptions import EventStreamError

from leasehold.local import LocalKinesis
from leasehold.local.server import LocalServer, ServerOptions
from tests.contract.streams import (
    HASH_KEY_MAX,
    KinesisUnderTest,
    MakeStream,
    Stream,
    connect,
    expect_refusal,
    hash_range,
)
from tests.contract.subscriptions import LATEST, Consumer, MakeConsumer, after, data_of

THROTTLED = "ProvisionedThroughputExceededException"


@pytest.fixture
def server() -> Iterator[LocalKinesis]:
    with LocalKinesis.in_thread() as running:
        yield running


@pytest.fixture
def kinesis(request: pytest.FixtureRequest) -> KinesisUnderTest:
    return connect(request, "server")


@pytest.fixture
def consumer(make_consumer: MakeConsumer, stream: Stream) -> Consumer:
    return make_consumer(stream)


# Time


def test_records_are_trimmed_when_their_retention_is_over(
    server: LocalKinesis, stream: Stream, shard_id: str
) -> None:
    """After 24 hours a record is gone; younger ones stay, and keep their numbers."""
    stream.put(b"old")
    server.advance(timedelta(hours=23))
    young = stream.put(b"young")["SequenceNumber"]
    server.advance(timedelta(hours=2))
    read = stream.read(shard_id)
    assert (read.data, read.numbers) == ([b"young"], [int(young)])


def test_a_longer_retention_keeps_records_longer(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """Retention is a setting of the stream, counted from the arrival of each record."""
    stream.client.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=48)
    stream.put(b"kept")
    server.advance(timedelta(hours=47))
    assert stream.read(shard_id).data == [b"kept"]
    server.advance(timedelta(hours=2))
    assert stream.read(shard_id).data == []


def test_a_trimmed_number_is_still_a_position(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """A trimmed checkpoint leads to the oldest retained record."""
    trimmed = stream.put(b"trimmed")["SequenceNumber"]
    server.advance(timedelta(hours=25))
    stream.put(b"left")
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert stream.read(shard_id, kind, StartingSequenceNumber=trimmed).data == [b"left"]


def test_a_closed_shard_disappears_after_its_records(
    server: LocalKinesis, stream: Stream, shard_id: str
) -> None:
    """A closed shard is listed as long as its records are retained; then it is unknown, and its children are roots."""
    stream.put(b"old")
    children = stream.split(shard_id)
    server.advance(timedelta(hours=23))
    assert stream.shard_ids() == [shard_id, *children]
    server.advance(timedelta(hours=2))
    assert stream.shard_ids() == children
    assert stream.shard_ids(ShardFilter={"Type": "AT_TRIM_HORIZON"}) == children
    with expect_refusal("ResourceNotFoundException"):
        stream.iterator(shard_id)


def test_an_iterator_expires_after_five_minutes(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """It works until then, and is refused as expired afterwards."""
    stream.put(b"x")
    iterator = stream.iterator(shard_id)
    server.advance(timedelta(minutes=4, seconds=30))
    assert stream.read_on(iterator).data == [b"x"]
    server.advance(timedelta(minutes=1))
    with expect_refusal("ExpiredIteratorException"):
        stream.client.get_records(ShardIterator=iterator)


def test_a_list_token_expires_after_five_minutes(server: LocalKinesis, make_stream: MakeStream) -> None:
    """Afterwards it is refused as expired."""
    stream = make_stream(shards=2)
    token = stream.client.list_shards(StreamName=stream.name, MaxResults=1)["NextToken"]
    server.advance(timedelta(minutes=6))
    with expect_refusal("ExpiredNextTokenException"):
        stream.client.list_shards(NextToken=token)


def test_at_timestamp_is_exact_to_the_millisecond(
    server: LocalKinesis, stream: Stream, shard_id: str
) -> None:
    """AT_TIMESTAMP at a record's arrival includes it; a millisecond later does not."""
    stream.put(b"first")
    server.advance(timedelta(milliseconds=5))
    stream.put(b"second")
    arrival = stream.read(shard_id).records[-1]["ApproximateArrivalTimestamp"]
    assert stream.read(shard_id, "AT_TIMESTAMP", Timestamp=arrival).data == [b"second"]
    just_after = arrival + timedelta(milliseconds=1)
    assert stream.read(shard_id, "AT_TIMESTAMP", Timestamp=just_after).data == []


def test_millis_behind_latest_counts_from_now(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """It is the time from the last read record until now, not until the newest record."""
    stream.put_many([("k", b"a"), ("k", b"b")])
    server.advance(timedelta(hours=1))
    response = stream.client.get_records(ShardIterator=stream.iterator(shard_id), Limit=1)
    hour_ms, minute_ms = 3_600_000, 60_000
    assert hour_ms <= response["MillisBehindLatest"] < hour_ms + 5 * minute_ms


def test_changes_can_be_delayed(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """With a delay, a stream is UPDATING after a split, and refuses another split until the delay is over."""
    server.settings(status_delay_ms=60_000)
    split = {"StreamName": stream.name, "ShardToSplit": shard_id, "NewStartingHashKey": str(2**127)}
    stream.client.split_shard(**split)
    assert stream.summary()["StreamStatus"] == "UPDATING"
    with expect_refusal("ResourceInUseException"):
        stream.client.split_shard(**split | {"ShardToSplit": "shardId-000000000001"})
    server.advance(timedelta(minutes=2))
    assert stream.summary()["StreamStatus"] == "ACTIVE"
    assert len(stream.open_shards()) == 2


def test_creation_and_deletion_can_be_delayed(server: LocalKinesis, kinesis: KinesisUnderTest) -> None:
    """With a delay, a stream is CREATING at first, and DELETING before it is gone."""
    server.settings(status_delay_ms=60_000)
    kinesis.client.create_stream(StreamName="slow", ShardCount=1)
    stream = Stream(kinesis, "slow")
    assert stream.summary()["StreamStatus"] == "CREATING"
    server.advance(timedelta(minutes=2))
    assert stream.summary()["StreamStatus"] == "ACTIVE"
    kinesis.client.delete_stream(StreamName="slow")
    assert stream.summary()["StreamStatus"] == "DELETING"
    server.advance(timedelta(minutes=2))
    with expect_refusal("ResourceNotFoundException"):
        stream.summary()


# Volume


def test_a_response_holds_at_most_ten_thousand_records(stream: Stream, shard_id: str) -> None:
    """The next response continues after them."""
    for _ in range(21):
        stream.put_many([("k", b"x")] * 500)
    first = stream.client.get_records(ShardIterator=stream.iterator(shard_id))
    assert len(first["Records"]) == 10_000
    assert len(stream.read_on(first["NextShardIterator"]).records) == 500


def test_put_records_accepts_ten_mebibytes_in_total(stream: Stream) -> None:
    """A larger request is refused as a whole."""
    with expect_refusal("InvalidArgumentException", "ValidationException"):
        stream.put_many([("k", bytes(1024 * 1024 - 1))] * 11)
    assert stream.read(stream.shard_ids()[0]).records == []


# Limits


def test_nothing_is_throttled_by_default(stream: Stream, shard_id: str) -> None:
    """A development server responds as fast as it can."""
    iterator = stream.iterator(shard_id)
    for _ in range(20):
        stream.client.get_records(ShardIterator=iterator)


def test_five_reads_per_second_are_allowed(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """With limits enabled, the sixth read is throttled; a second later reading works again."""
    server.settings(enforce_limits=True)
    iterator = stream.iterator(shard_id)
    with expect_refusal(THROTTLED):
        for _ in range(20):
            stream.client.get_records(ShardIterator=iterator)
    server.advance(timedelta(seconds=2))
    stream.client.get_records(ShardIterator=iterator)


def test_two_megabytes_per_second_can_be_read(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """A larger response is returned, but then reads are throttled until its bytes are within the limit."""
    for _ in range(10):
        stream.put(bytes(1_000_000))
    server.settings(enforce_limits=True)
    iterator = stream.iterator(shard_id)
    assert len(stream.client.get_records(ShardIterator=iterator)["Records"]) == 10
    server.advance(timedelta(milliseconds=1_100))
    with expect_refusal(THROTTLED):
        stream.client.get_records(ShardIterator=iterator)
    server.advance(timedelta(seconds=5))
    stream.client.get_records(ShardIterator=iterator)


def test_a_thousand_records_per_second_can_be_written(
    server: LocalKinesis, stream: Stream, shard_id: str
) -> None:
    """Above that, single entries of PutRecords fail, and only those."""
    server.settings(enforce_limits=True)
    put = {"StreamName": stream.name, "Records": [{"Data": b"x", "PartitionKey": "k"}] * 500}
    responses = [stream.client.put_records(**put) for _ in range(20)]
    failed = sum(response["FailedRecordCount"] for response in responses)
    entries = [entry for response in responses for entry in response["Records"]]
    assert failed > 0
    assert failed == sum(entry.get("ErrorCode") == THROTTLED for entry in entries)
    assert all(("ErrorCode" in entry) != ("SequenceNumber" in entry) for entry in entries)
    server.settings(enforce_limits=False)
    assert len(stream.read(shard_id).records) == 10_000 - failed


def test_one_mebibyte_per_second_can_be_written(server: LocalKinesis, stream: Stream) -> None:
    """Above that a put is throttled; a second later it is accepted."""
    server.settings(enforce_limits=True)
    with expect_refusal(THROTTLED):
        for _ in range(50):  # until the first refusal: a slow machine puts less than a record in a second
            stream.put(bytes(900_000))
    server.advance(timedelta(seconds=2))
    stream.put(bytes(900_000))


def test_limits_are_per_shard(server: LocalKinesis, make_stream: MakeStream) -> None:
    """Throttling of one shard does not affect another one."""
    stream = make_stream(shards=2)
    server.settings(enforce_limits=True)
    busy, quiet = (stream.iterator(shard_id) for shard_id in stream.shard_ids())
    with expect_refusal(THROTTLED):
        for _ in range(20):
            stream.client.get_records(ShardIterator=busy)
    stream.client.get_records(ShardIterator=quiet)


# The end of a shard


@pytest.mark.parametrize(
    "with_last_records", [True, False], ids=["with the last records", "in an empty response"]
)
def test_a_shard_can_end_in_two_ways(
    server: LocalKinesis, stream: Stream, shard_id: str, with_last_records: bool
) -> None:
    """The missing iterator and the children come with the last records, or in a separate empty response after them."""
    server.settings(shard_end_with_last_records=with_last_records)
    stream.put_many([("k", b"a"), ("k", b"b")])
    children = stream.split(shard_id)
    responses = [stream.client.get_records(ShardIterator=stream.iterator(shard_id))]
    while responses[-1].get("NextShardIterator"):
        responses.append(stream.client.get_records(ShardIterator=responses[-1]["NextShardIterator"]))
    assert [len(response["Records"]) for response in responses] == ([2] if with_last_records else [2, 0])
    assert [child["ShardId"] for child in responses[-1]["ChildShards"]] == children
    assert all("ChildShards" not in response for response in responses[:-1])


# Fan-out to the end


def test_a_subscription_ends_with_its_shard(consumer: Consumer, shard_id: str) -> None:
    """After a split, a subscription delivers the remaining records, then the children without a continuation number,
    then ends.
    """
    stream = consumer.stream
    stream.put(b"first")
    subscription = consumer.subscribe(shard_id)
    subscription.until_records(1)
    stream.put(b"last")
    low, high = stream.split(shard_id, at=2**127)
    events = subscription.until_end()
    assert data_of(events) == [b"last"]
    assert not events[-1].get("ContinuationSequenceNumber")
    children = [
        (child["ShardId"], child["ParentShards"], hash_range(child)) for child in events[-1]["ChildShards"]
    ]
    assert children == [(low, [shard_id], (0, 2**127 - 1)), (high, [shard_id], (2**127, HASH_KEY_MAX))]
    assert all(event["ContinuationSequenceNumber"] and not event.get("ChildShards") for event in events[:-1])


def test_a_closed_shard_can_be_subscribed_to(consumer: Consumer, shard_id: str) -> None:
    """A subscription that starts after the split delivers the old records and then the end."""
    consumer.stream.put_many([("k", b"a"), ("k", b"b")])
    children = consumer.stream.split(shard_id)
    events = consumer.subscribe(shard_id).until_end()
    assert data_of(events) == [b"a", b"b"]
    assert [child["ShardId"] for child in events[-1]["ChildShards"]] == children


def test_latest_of_a_closed_shard_is_its_end(consumer: Consumer, shard_id: str) -> None:
    """A subscription from LATEST to a closed shard delivers only the end."""
    consumer.stream.put(b"old")
    children = consumer.stream.split(shard_id)
    events = consumer.subscribe(shard_id, LATEST).until_end()
    assert data_of(events) == []
    assert [child["ShardId"] for child in events[-1]["ChildShards"]] == children


def test_both_parents_of_a_merge_end_with_the_child(
    make_stream: MakeStream, make_consumer: MakeConsumer
) -> None:
    """The subscriptions to both parents of a merge end with the same child and both parents."""
    stream = make_stream(shards=2)
    consumer = make_consumer(stream)
    parents = stream.shard_ids()
    subscriptions = [consumer.subscribe(parent) for parent in parents]
    child = stream.merge(*parents)
    for subscription in subscriptions:
        (child_shard,) = subscription.until_end()[-1]["ChildShards"]
        assert (child_shard["ShardId"], sorted(child_shard["ParentShards"])) == (child, parents)


def test_a_subscription_ends_after_five_minutes_and_can_be_continued(
    server: LocalKinesis, consumer: Consumer, shard_id: str
) -> None:
    """The continuation number continues without loss or repetition."""
    server.settings(subscription_lifetime_ms=3_000, takeover_after_ms=0, heartbeat_ms=100)
    consumer.stream.put(b"a")
    events = consumer.subscribe(shard_id).until_end()
    assert data_of(events) == [b"a"]
    consumer.stream.put(b"b")
    again = consumer.subscribe_when_free(shard_id, after(events[-1]["ContinuationSequenceNumber"]))
    assert data_of(again.until_end()) == [b"b"]


def test_events_have_millis_behind_latest(server: LocalKinesis, consumer: Consumer, shard_id: str) -> None:
    """The first event of a consumer that catches up shows how far it was behind, the last shows zero."""
    consumer.stream.put(b"old")
    server.advance(timedelta(hours=1))
    subscription = consumer.subscribe(shard_id)
    events = subscription.until_records(1)
    while events[-1]["MillisBehindLatest"] > 0:
        events.append(subscription.next_event())
    assert data_of(events) == [b"old"]


def test_a_large_backlog_comes_in_several_events(consumer: Consumer, shard_id: str) -> None:
    """Each event has at most 10,000 records; they are in order and complete."""
    for batch in range(21):
        consumer.stream.put_many([("k", b"%d" % (batch * 500 + n)) for n in range(500)])
    events = consumer.subscribe(shard_id).until_records(10_500)
    assert data_of(events) == [b"%d" % n for n in range(10_500)]
    assert max(len(event["Records"]) for event in events) <= 10_000


def test_deregistering_ends_the_subscription(consumer: Consumer, shard_id: str) -> None:
    """A deregistered consumer gets no more events and cannot subscribe again."""
    subscription = consumer.subscribe(shard_id)
    consumer.stream.client.deregister_stream_consumer(ConsumerARN=consumer.arn)
    with suppress(EventStreamError):  # both a clean end and an error frame are valid
        subscription.until_end()
    with expect_refusal("ResourceNotFoundException"):
        consumer.subscribe(shard_id)


# The wire


def test_small_responses_are_sent_at_once() -> None:
    """Asyncio disables Nagle's algorithm only if the protocol number is given.

    Otherwise every call on a kept-alive connection takes 40 ms.
    """
    server = LocalServer(ServerOptions())
    with server._socket as listening:
        assert listening.proto == socket.IPPROTO_TCP
