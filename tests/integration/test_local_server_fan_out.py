"""The local server over HTTP, fan-out: subscriptions through boto3, and what no other server shows."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from leasehold.local import LocalKinesis
from tests.integration.local_server_clients import MIDDLE, PARENT, client_of, records_of

CHILDREN = ["shardId-000000000001", "shardId-000000000002"]


@pytest.fixture
def server() -> Iterator[LocalKinesis]:
    """A server of the test's own, because it moves the clock and the settings."""
    with LocalKinesis.in_thread(streams={"orders": 1}) as running:
        yield running


@pytest.fixture
def client(server: LocalKinesis) -> Any:
    return client_of(server)


@pytest.fixture
def consumer(client: Any) -> str:
    """The ARN of a registered consumer."""
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    return str(
        client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"]["ConsumerARN"]
    )


@contextmanager
def subscription(
    client: Any, consumer: str, shard: str = PARENT, **position: Any
) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a subscription, as boto3 yields them."""
    start = position or {"Type": "TRIM_HORIZON"}
    answer = client.subscribe_to_shard(ConsumerARN=consumer, ShardId=shard, StartingPosition=start)
    with closing(answer["EventStream"]) as stream:
        yield (event["SubscribeToShardEvent"] for event in stream)


def put(client: Any, data: bytes) -> str:
    return str(client.put_record(StreamName="orders", Data=data, PartitionKey="k")["SequenceNumber"])


def test_old_and_new_records_are_pushed_in_order(client: Any, consumer: str) -> None:
    """What is there comes first, what is put later follows, each event with a way to go on."""
    number = put(client, b"old")
    with subscription(client, consumer) as events:
        first = next(events)
        assert [record["Data"] for record in first["Records"]] == [b"old"]
        assert (first["ContinuationSequenceNumber"], first["MillisBehindLatest"]) == (number, 0)
        put(client, b"new")
        assert [record["Data"] for record in next(events)["Records"]] == [b"new"]


def test_a_shard_that_closes_ends_its_subscription_with_the_children(client: Any, consumer: str) -> None:
    """The last event names the children and has no continuation; then the stream is over."""
    with subscription(client, consumer) as events:
        put(client, b"last")
        assert len(next(events)["Records"]) == 1
        client.split_shard(StreamName="orders", ShardToSplit=PARENT, NewStartingHashKey=MIDDLE)
        (end,) = list(events)
    assert ([child["ShardId"] for child in end["ChildShards"]], end["Records"]) == (CHILDREN, [])
    assert "ContinuationSequenceNumber" not in end
    with subscription(client, consumer, CHILDREN[0]) as events:
        client.put_record(StreamName="orders", Data=b"child", PartitionKey="k", ExplicitHashKey="0")
        assert [record["Data"] for record in next(events)["Records"]] == [b"child"]


def test_a_closed_shard_can_be_subscribed_to_and_ends(client: Any, consumer: str) -> None:
    """Its records come, then its end; and it can be done again at once."""
    put(client, b"kept")
    client.split_shard(StreamName="orders", ShardToSplit=PARENT, NewStartingHashKey=MIDDLE)
    for _ in range(2):
        with subscription(client, consumer) as events:
            records, end = list(events)
        assert [record["Data"] for record in records["Records"]] == [b"kept"]
        assert [child["ShardId"] for child in end["ChildShards"]] == CHILDREN


def test_a_subscription_ends_after_its_time(server: LocalKinesis, client: Any, consumer: str) -> None:
    """After five minutes by the server's clock it is over, cleanly, and can be renewed at once."""
    with subscription(client, consumer) as events:
        put(client, b"x")
        last = next(events)["ContinuationSequenceNumber"]
        server.advance(timedelta(minutes=5))
        assert list(events) == []
    put(client, b"y")
    position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": last}
    with subscription(client, consumer, **position) as events:
        assert [record["Data"] for record in next(events)["Records"]] == [b"y"]


def test_the_length_of_a_subscription_can_be_set(server: LocalKinesis, client: Any, consumer: str) -> None:
    """A tenth of a second, without moving the clock."""
    server.settings(subscription_lifetime_ms=100)
    with subscription(client, consumer) as events:
        assert list(events) == []


def test_empty_events_show_life_and_where_to_go_on(server: LocalKinesis, client: Any, consumer: str) -> None:
    """At the tip an event without records comes at every heartbeat; its continuation misses nothing."""
    server.settings(heartbeat_ms=20)
    with subscription(client, consumer, Type="LATEST") as events:
        beats = [next(events) for _ in range(3)]
    assert [(beat["Records"], beat["MillisBehindLatest"]) for beat in beats] == [([], 0)] * 3
    put(client, b"after the beat")
    position = {"StartingSequenceNumber": beats[-1]["ContinuationSequenceNumber"]}
    found = records_of(client, "orders", kind="AFTER_SEQUENCE_NUMBER", **position)
    assert [record["Data"] for record in found] == [b"after the beat"]


def test_a_later_subscription_takes_over(server: LocalKinesis, client: Any, consumer: str) -> None:
    """Refused within five seconds, let in after; the first learns it by ResourceInUse."""
    with subscription(client, consumer) as first:
        with pytest.raises(ClientError, match="ResourceInUse"), subscription(client, consumer):
            pass
        server.advance(timedelta(seconds=5))
        with subscription(client, consumer) as second:
            with pytest.raises(EventStreamError, match="ResourceInUse"):
                list(first)
            put(client, b"for the second")
            assert [record["Data"] for record in next(second)["Records"]] == [b"for the second"]


def test_a_consumer_that_is_removed_loses_its_subscription(client: Any, consumer: str) -> None:
    """The stream ends with an error, not in silence."""
    with subscription(client, consumer) as events:
        client.deregister_stream_consumer(ConsumerARN=consumer)
        with pytest.raises(EventStreamError):
            list(events)


def test_a_stream_that_is_deleted_ends_its_subscriptions(client: Any, consumer: str) -> None:
    """Also with an error."""
    with subscription(client, consumer) as events:
        client.delete_stream(StreamName="orders", EnforceConsumerDeletion=True)
        with pytest.raises(EventStreamError):
            list(events)


def test_a_put_wakes_the_subscription(server: LocalKinesis, client: Any, consumer: str) -> None:
    """No polling in between: with a heartbeat once in an hour, a record still arrives before the deadline."""
    server.settings(heartbeat_ms=3_600_000)
    with subscription(client, consumer, Type="LATEST") as events:
        for number in range(5):
            put(client, b"%d" % number)
            assert [record["Data"] for record in next(events)["Records"]] == [b"%d" % number]


def test_large_backlogs_come_in_events_of_bounded_size(client: Any, consumer: str) -> None:
    """Twenty records of 200 KB are spread over several events, none lost."""
    for number in range(20):
        put(client, b"%02d" % number + bytes(200_000))
    sizes: list[int] = []
    found: list[bytes] = []
    with subscription(client, consumer) as events:
        while len(found) < 20:
            event = next(events)
            sizes.append(sum(len(record["Data"]) for record in event["Records"]))
            found += [record["Data"][:2] for record in event["Records"]]
    assert found == [b"%02d" % number for number in range(20)]
    assert max(sizes) <= 1024 * 1024


def test_a_subscription_does_not_keep_the_server_from_stopping() -> None:
    """The stream ends, and the server is gone."""
    before = set(threading.enumerate())
    server = LocalKinesis.in_thread(streams={"orders": 1})
    client = client_of(server)
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"][
        "ConsumerARN"
    ]
    with subscription(client, consumer) as events:
        server.stop()
        assert list(events) == []
    assert not [
        thread for thread in threading.enumerate() if "leasehold" in thread.name and thread not in before
    ]
