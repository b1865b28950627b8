"""Enhanced fan-out of the local server over HTTP: subscriptions through boto3."""

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
    """Run a server for this test only, because it changes the clock and the settings."""
    with LocalKinesis.in_thread(streams={"orders": 1}) as running:
        yield running


@pytest.fixture
def client(server: LocalKinesis) -> Any:
    return client_of(server)


@pytest.fixture
def consumer(client: Any) -> str:
    """Register a consumer and return its ARN."""
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    return str(
        client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"]["ConsumerARN"]
    )


@contextmanager
def subscription(
    client: Any, consumer: str, shard: str = PARENT, **position: Any
) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the events of a subscription."""
    start = position or {"Type": "TRIM_HORIZON"}
    response = client.subscribe_to_shard(ConsumerARN=consumer, ShardId=shard, StartingPosition=start)
    with closing(response["EventStream"]) as stream:
        yield (event["SubscribeToShardEvent"] for event in stream)


def put(client: Any, data: bytes) -> str:
    return str(client.put_record(StreamName="orders", Data=data, PartitionKey="k")["SequenceNumber"])


def test_existing_and_new_records_are_sent_in_order(client: Any, consumer: str) -> None:
    """Existing records come first, later ones follow. Each event has a continuation number."""
    number = put(client, b"old")
    with subscription(client, consumer) as events:
        first = next(events)
        assert [record["Data"] for record in first["Records"]] == [b"old"]
        assert (first["ContinuationSequenceNumber"], first["MillisBehindLatest"]) == (number, 0)
        put(client, b"new")
        assert [record["Data"] for record in next(events)["Records"]] == [b"new"]


def test_the_last_event_of_a_closed_shard_names_the_children(client: Any, consumer: str) -> None:
    """It has no continuation number, and the event stream ends after it."""
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


def test_a_closed_shard_can_be_subscribed(client: Any, consumer: str) -> None:
    """Its records are sent, then its end. It can be subscribed again at once."""
    put(client, b"kept")
    client.split_shard(StreamName="orders", ShardToSplit=PARENT, NewStartingHashKey=MIDDLE)
    for _ in range(2):
        with subscription(client, consumer) as events:
            records, end = list(events)
        assert [record["Data"] for record in records["Records"]] == [b"kept"]
        assert [child["ShardId"] for child in end["ChildShards"]] == CHILDREN


def test_a_subscription_ends_after_five_minutes(server: LocalKinesis, client: Any, consumer: str) -> None:
    """It ends without an error by the server's clock, and can be renewed at once."""
    with subscription(client, consumer) as events:
        put(client, b"x")
        last = next(events)["ContinuationSequenceNumber"]
        server.advance(timedelta(minutes=5))
        assert list(events) == []
    put(client, b"y")
    position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": last}
    with subscription(client, consumer, **position) as events:
        assert [record["Data"] for record in next(events)["Records"]] == [b"y"]


def test_the_lifetime_of_a_subscription_is_a_setting(
    server: LocalKinesis, client: Any, consumer: str
) -> None:
    """A tenth of a second, without advancing the clock."""
    server.settings(subscription_lifetime_ms=100)
    with subscription(client, consumer) as events:
        assert list(events) == []


def test_empty_events_are_sent_as_heartbeats(server: LocalKinesis, client: Any, consumer: str) -> None:
    """At the tip, events without records have a continuation number from which no record is missed."""
    server.settings(heartbeat_ms=20)
    with subscription(client, consumer, Type="LATEST") as events:
        heartbeats = [next(events) for _ in range(3)]
    assert [(heartbeat["Records"], heartbeat["MillisBehindLatest"]) for heartbeat in heartbeats] == [
        ([], 0)
    ] * 3
    put(client, b"after the heartbeat")
    position = {"StartingSequenceNumber": heartbeats[-1]["ContinuationSequenceNumber"]}
    found = records_of(client, "orders", kind="AFTER_SEQUENCE_NUMBER", **position)
    assert [record["Data"] for record in found] == [b"after the heartbeat"]


def test_a_later_subscription_replaces_the_first(server: LocalKinesis, client: Any, consumer: str) -> None:
    """It is refused within the takeover time and accepted after it. The first ends with ResourceInUse."""
    server.settings(takeover_after_ms=60_000)  # no machine is so busy that the second request comes after it
    with subscription(client, consumer) as first:
        with pytest.raises(ClientError, match="ResourceInUse"), subscription(client, consumer):
            pass
        server.advance(timedelta(seconds=60))
        with subscription(client, consumer) as second:
            with pytest.raises(EventStreamError, match="ResourceInUse"):
                list(first)
            put(client, b"for the second")
            assert [record["Data"] for record in next(second)["Records"]] == [b"for the second"]


def test_deregistering_a_consumer_ends_its_subscription(client: Any, consumer: str) -> None:
    """The event stream ends with an error."""
    with subscription(client, consumer) as events:
        client.deregister_stream_consumer(ConsumerARN=consumer)
        with pytest.raises(EventStreamError):
            list(events)


def test_deleting_a_stream_ends_its_subscriptions(client: Any, consumer: str) -> None:
    """The event stream ends with an error."""
    with subscription(client, consumer) as events:
        client.delete_stream(StreamName="orders", EnforceConsumerDeletion=True)
        with pytest.raises(EventStreamError):
            list(events)


def test_a_put_wakes_the_subscription(server: LocalKinesis, client: Any, consumer: str) -> None:
    """With a heartbeat once an hour, a record still arrives at once: the server does not poll."""
    server.settings(heartbeat_ms=3_600_000)
    with subscription(client, consumer, Type="LATEST") as events:
        for number in range(5):
            put(client, b"%d" % number)
            assert [record["Data"] for record in next(events)["Records"]] == [b"%d" % number]


def test_a_backlog_is_sent_in_events_of_bounded_size(client: Any, consumer: str) -> None:
    """Twenty records of 200 KB are sent in several events, and none is lost."""
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


def test_the_server_stops_with_an_open_subscription() -> None:
    """The event stream ends and the server's thread has ended."""
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
