"""Stream contract: what only our server can show, because no other lets the clock be moved, limits be switched on,
or a fan-out subscription see the end of its shard. Each test has a server of its own: clock and settings are shared
by all streams of a server.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from botocore.exceptions import EventStreamError

from leasehold.local import LocalKinesis
from leasehold.local.server import LocalServer, ServerOptions
from tests.contract.conftest import MakeStream, connect
from tests.contract.streams import HASH_KEY_MAX, KinesisUnderTest, Stream, hash_range, refused
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
    """A checkpoint that has been trimmed away leads to the oldest record that is left."""
    trimmed = stream.put(b"trimmed")["SequenceNumber"]
    server.advance(timedelta(hours=25))
    stream.put(b"left")
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert stream.read(shard_id, kind, StartingSequenceNumber=trimmed).data == [b"left"]


def test_a_closed_shard_disappears_after_its_records(
    server: LocalKinesis, stream: Stream, shard_id: str
) -> None:
    """A closed shard is listed as long as its records are kept; then it is unknown, and its children are roots."""
    stream.put(b"old")
    children = stream.split(shard_id)
    server.advance(timedelta(hours=23))
    assert stream.shard_ids() == [shard_id, *children]
    server.advance(timedelta(hours=2))
    assert stream.shard_ids() == children
    assert stream.shard_ids(ShardFilter={"Type": "AT_TRIM_HORIZON"}) == children
    with refused("ResourceNotFoundException"):
        stream.iterator(shard_id)


def test_an_iterator_lives_five_minutes(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """An iterator works for five minutes and is refused as expired after that."""
    stream.put(b"x")
    iterator = stream.iterator(shard_id)
    server.advance(timedelta(minutes=4, seconds=30))
    assert stream.read_on(iterator).data == [b"x"]
    server.advance(timedelta(minutes=1))
    with refused("ExpiredIteratorException"):
        stream.client.get_records(ShardIterator=iterator)


def test_a_list_token_lives_five_minutes(server: LocalKinesis, make_stream: MakeStream) -> None:
    """A token of ListShards is refused as expired after five minutes."""
    stream = make_stream(shards=2)
    token = stream.client.list_shards(StreamName=stream.name, MaxResults=1)["NextToken"]
    server.advance(timedelta(minutes=6))
    with refused("ExpiredNextTokenException"):
        stream.client.list_shards(NextToken=token)


def test_a_time_is_a_position_to_the_millisecond(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """AT_TIMESTAMP at a record's arrival includes it; a millisecond later does not."""
    stream.put(b"first")
    server.advance(timedelta(milliseconds=5))
    stream.put(b"second")
    arrival = stream.read(shard_id).records[-1]["ApproximateArrivalTimestamp"]
    assert stream.read(shard_id, "AT_TIMESTAMP", Timestamp=arrival).data == [b"second"]
    just_after = arrival + timedelta(milliseconds=1)
    assert stream.read(shard_id, "AT_TIMESTAMP", Timestamp=just_after).data == []


def test_a_reader_behind_is_told_how_far_by_the_clock(
    server: LocalKinesis, stream: Stream, shard_id: str
) -> None:
    """MillisBehindLatest counts from now back to what was read, not to the newest record."""
    stream.put_many([("k", b"a"), ("k", b"b")])
    server.advance(timedelta(hours=1))
    answer = stream.client.get_records(ShardIterator=stream.iterator(shard_id), Limit=1)
    hour_ms, minute_ms = 3_600_000, 60_000
    assert hour_ms <= answer["MillisBehindLatest"] < hour_ms + 5 * minute_ms


def test_changes_can_take_their_time(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """With a delay, a stream is UPDATING after a split until the time has passed, and refuses another split."""
    server.settings(status_delay_ms=60_000)
    split = {"StreamName": stream.name, "ShardToSplit": shard_id, "NewStartingHashKey": str(2**127)}
    stream.client.split_shard(**split)
    assert stream.summary()["StreamStatus"] == "UPDATING"
    with refused("ResourceInUseException"):
        stream.client.split_shard(**split | {"ShardToSplit": "shardId-000000000001"})
    server.advance(timedelta(minutes=2))
    assert stream.summary()["StreamStatus"] == "ACTIVE"
    assert len(stream.open_shards()) == 2


def test_a_new_stream_can_take_its_time(server: LocalKinesis, kinesis: KinesisUnderTest) -> None:
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
    with refused("ResourceNotFoundException"):
        stream.summary()


# Volume


def test_an_answer_holds_at_most_ten_thousand_records(stream: Stream, shard_id: str) -> None:
    """However many lie there, an answer stops at 10,000, and the next one goes on."""
    for _ in range(21):
        stream.put_many([("k", b"x")] * 500)
    first = stream.client.get_records(ShardIterator=stream.iterator(shard_id))
    assert len(first["Records"]) == 10_000
    assert len(stream.read_on(first["NextShardIterator"]).records) == 500


def test_put_records_takes_ten_mebibytes_in_all(stream: Stream) -> None:
    """A request whose records are too large together is refused whole."""
    with refused("InvalidArgumentException", "ValidationException"):
        stream.put_many([("k", bytes(1024 * 1024 - 1))] * 11)
    assert stream.read(stream.shard_ids()[0]).records == []


# Limits


def test_nothing_is_throttled_unless_asked_for(stream: Stream, shard_id: str) -> None:
    """A server for development answers as fast as it can."""
    iterator = stream.iterator(shard_id)
    for _ in range(20):
        stream.client.get_records(ShardIterator=iterator)


def test_five_reads_a_second(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """With limits on, a burst of reads is refused after the fifth, and a second later reading goes on."""
    server.settings(enforce_limits=True)
    iterator = stream.iterator(shard_id)
    with refused(THROTTLED):
        for _ in range(20):
            stream.client.get_records(ShardIterator=iterator)
    server.advance(timedelta(seconds=2))
    stream.client.get_records(ShardIterator=iterator)


def test_two_megabytes_out_a_second(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """A large answer is given, and paid for by refusals until its bytes are worked off."""
    for _ in range(10):
        stream.put(bytes(1_000_000))
    server.settings(enforce_limits=True)
    iterator = stream.iterator(shard_id)
    assert len(stream.client.get_records(ShardIterator=iterator)["Records"]) == 10
    server.advance(timedelta(seconds=2))
    with refused(THROTTLED):
        stream.client.get_records(ShardIterator=iterator)
    server.advance(timedelta(seconds=5))
    stream.client.get_records(ShardIterator=iterator)


def test_a_thousand_records_in_a_second(server: LocalKinesis, stream: Stream, shard_id: str) -> None:
    """Above a thousand records a second, entries of PutRecords fail one by one, and only those."""
    server.settings(enforce_limits=True)
    put = {"StreamName": stream.name, "Records": [{"Data": b"x", "PartitionKey": "k"}] * 500}
    answers = [stream.client.put_records(**put) for _ in range(5)]
    failed = sum(answer["FailedRecordCount"] for answer in answers)
    entries = [entry for answer in answers for entry in answer["Records"]]
    assert failed > 0
    assert failed == sum(entry.get("ErrorCode") == THROTTLED for entry in entries)
    assert all(("ErrorCode" in entry) != ("SequenceNumber" in entry) for entry in entries)
    server.settings(enforce_limits=False)
    assert len(stream.read(shard_id).records) == 2500 - failed


def test_one_megabyte_in_a_second(server: LocalKinesis, stream: Stream) -> None:
    """Above a mebibyte a second a put is refused, and a second later it is taken."""
    server.settings(enforce_limits=True)
    with refused(THROTTLED):
        for _ in range(5):
            stream.put(bytes(900_000))
    server.advance(timedelta(seconds=2))
    stream.put(bytes(900_000))


def test_limits_are_per_shard(server: LocalKinesis, make_stream: MakeStream) -> None:
    """A shard that is read too fast does not slow another one down."""
    stream = make_stream(shards=2)
    server.settings(enforce_limits=True)
    busy, quiet = (stream.iterator(shard_id) for shard_id in stream.shard_ids())
    with refused(THROTTLED):
        for _ in range(20):
            stream.client.get_records(ShardIterator=busy)
    stream.client.get_records(ShardIterator=quiet)


# The end of a shard, in both forms that consumers meet


@pytest.mark.parametrize(
    "with_last_records", [True, False], ids=["with the last records", "in an empty answer"]
)
def test_the_end_comes_in_either_form(
    server: LocalKinesis, stream: Stream, shard_id: str, with_last_records: bool
) -> None:
    """The missing iterator and the children come with the last records, or in an answer of their own after them."""
    server.settings(shard_end_with_last_records=with_last_records)
    stream.put_many([("k", b"a"), ("k", b"b")])
    children = stream.split(shard_id)
    answers = [stream.client.get_records(ShardIterator=stream.iterator(shard_id))]
    while answers[-1].get("NextShardIterator"):
        answers.append(stream.client.get_records(ShardIterator=answers[-1]["NextShardIterator"]))
    assert [len(answer["Records"]) for answer in answers] == ([2] if with_last_records else [2, 0])
    assert [child["ShardId"] for child in answers[-1]["ChildShards"]] == children
    assert all("ChildShards" not in answer for answer in answers[:-1])


# Fan-out to the end


def test_a_subscription_ends_with_its_shard(consumer: Consumer, shard_id: str) -> None:
    """A split during a subscription: the rest of the records, then the children and no way to go on, then the end."""
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
    """A subscription from LATEST to a closed shard has nothing to deliver but the end."""
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
        (told,) = subscription.until_end()[-1]["ChildShards"]
        assert (told["ShardId"], sorted(told["ParentShards"])) == (child, parents)


def test_a_subscription_ends_after_its_time_and_goes_on(
    server: LocalKinesis, consumer: Consumer, shard_id: str
) -> None:
    """The server ends a subscription after its time; the continuation number leads on without loss or repetition."""
    server.settings(subscription_lifetime_ms=500, takeover_after_ms=0, heartbeat_ms=100)
    consumer.stream.put(b"a")
    events = consumer.subscribe(shard_id).until_end()
    assert data_of(events) == [b"a"]
    consumer.stream.put(b"b")
    again = consumer.subscribe_when_free(shard_id, after(events[-1]["ContinuationSequenceNumber"]))
    assert data_of(again.until_end()) == [b"b"]


def test_a_subscription_behind_is_told_how_far(
    server: LocalKinesis, consumer: Consumer, shard_id: str
) -> None:
    """The first event of a reader who catches up says how far behind it was, the last says zero."""
    consumer.stream.put(b"old")
    server.advance(timedelta(hours=1))
    subscription = consumer.subscribe(shard_id)
    events = subscription.until_records(1)
    while events[-1]["MillisBehindLatest"] > 0:
        events.append(subscription.next_event())
    assert data_of(events) == [b"old"]


def test_a_large_backlog_comes_in_several_events(consumer: Consumer, shard_id: str) -> None:
    """Catching up is cut into events that a reader can hold: none above 10,000 records, in order, complete."""
    for batch in range(21):
        consumer.stream.put_many([("k", b"%d" % (batch * 500 + n)) for n in range(500)])
    events = consumer.subscribe(shard_id).until_records(10_500)
    assert data_of(events) == [b"%d" % n for n in range(10_500)]
    assert max(len(event["Records"]) for event in events) <= 10_000


def test_deregistering_ends_the_subscription(consumer: Consumer, shard_id: str) -> None:
    """A consumer that is removed gets no more events and cannot subscribe again."""
    subscription = consumer.subscribe(shard_id)
    consumer.stream.client.deregister_stream_consumer(ConsumerARN=consumer.arn)
    with suppress(EventStreamError):  # a clean end and an error frame are both an end
        subscription.until_end()
    with refused("ResourceNotFoundException"):
        consumer.subscribe(shard_id)


# The wire


def test_small_answers_are_not_held_back() -> None:
    """The kernel sends each answer at once: asyncio turns Nagle's delay off only where the protocol is named.

    Without it, every call of a client that keeps its connection takes 40 ms.
    """
    server = LocalServer(ServerOptions())
    with server._socket as listening:
        assert listening.proto == socket.IPPROTO_TCP
