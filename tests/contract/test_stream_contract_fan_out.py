"""Stream contract: enhanced fan-out as boto3 sees it, on our server and on ministack, two independent servers.

`test_stream_contract_local.py` covers the parts that ministack lacks (the end of a shard, merges).
"""

import http.client
import json
import time
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
from botocore.eventstream import EventStreamBuffer, EventStreamMessage
from botocore.exceptions import EventStreamError

from tests.contract.streams import KinesisUnderTest, Stream, connect, expect_refusal
from tests.contract.subscriptions import LATEST, TRIM_HORIZON, Consumer, MakeConsumer, after, data_of

TAKEOVER_S = 5  # from then on, another subscription replaces the first


@pytest.fixture(params=["local_kinesis", "ministack"])
def kinesis(request: pytest.FixtureRequest) -> KinesisUnderTest:
    """A Kinesis server with fan-out."""
    return connect(request, request.param)


@pytest.fixture
def consumer(make_consumer: MakeConsumer, stream: Stream) -> Consumer:
    return make_consumer(stream)


def test_a_subscription_delivers_old_and_new_records(consumer: Consumer, shard_id: str) -> None:
    """From TRIM_HORIZON, records arrive in order, byte for byte."""
    stream = consumer.stream
    stream.put(bytes(range(256)), key="Schlüssel ✓")
    subscription = consumer.subscribe(shard_id)
    (record,) = subscription.until_records(1)[-1]["Records"]
    assert (record["Data"], record["PartitionKey"]) == (bytes(range(256)), "Schlüssel ✓")
    assert abs(datetime.now(UTC) - record["ApproximateArrivalTimestamp"]) < timedelta(minutes=5)
    numbers = [stream.put(b"%d" % n)["SequenceNumber"] for n in range(3)]
    events = subscription.until_records(3)
    assert data_of(events) == [b"0", b"1", b"2"]
    assert [record["SequenceNumber"] for event in events for record in event["Records"]] == numbers


def test_latest_delivers_only_new_records(consumer: Consumer, shard_id: str) -> None:
    """From LATEST, earlier records are not sent."""
    consumer.stream.put(b"before")
    subscription = consumer.subscribe(shard_id, LATEST)
    consumer.stream.put(b"after")
    assert data_of(subscription.until_records(1)) == [b"after"]


@pytest.mark.parametrize(
    ("kind", "expected"), [("AT_SEQUENCE_NUMBER", [b"1", b"2"]), ("AFTER_SEQUENCE_NUMBER", [b"2"])]
)
def test_a_subscription_starts_at_or_after_a_number(
    consumer: Consumer, shard_id: str, kind: str, expected: list[bytes]
) -> None:
    """AT a number includes its record, AFTER a number does not."""
    numbers = [consumer.stream.put(b"%d" % n)["SequenceNumber"] for n in range(3)]
    subscription = consumer.subscribe(shard_id, {"Type": kind, "SequenceNumber": numbers[1]})
    assert data_of(subscription.until_records(len(expected))) == expected


def test_a_subscription_starts_at_a_time(consumer: Consumer, shard_id: str) -> None:
    """AT_TIMESTAMP before the first record delivers everything."""
    consumer.stream.put(b"old")
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    subscription = consumer.subscribe(shard_id, {"Type": "AT_TIMESTAMP", "Timestamp": an_hour_ago})
    assert data_of(subscription.until_records(1)) == [b"old"]


def test_a_subscription_can_be_continued(consumer: Consumer, shard_id: str) -> None:
    """After a disconnect, the last continuation number continues without loss or repetition."""
    consumer.stream.put_many([("k", b"a"), ("k", b"b")])
    first = consumer.subscribe(shard_id)
    events = first.until_records(2)
    first.disconnect()
    consumer.stream.put_many([("k", b"c"), ("k", b"d")])
    second = consumer.subscribe_when_free(shard_id, after(events[-1]["ContinuationSequenceNumber"]))
    assert data_of(events) + data_of(second.until_records(2)) == [b"a", b"b", b"c", b"d"]


def test_an_idle_subscription_sends_empty_events(consumer: Consumer, shard_id: str) -> None:
    """At the tip, events without records arrive regularly, zero milliseconds behind, with a continuation number."""
    subscription = consumer.subscribe(shard_id, TRIM_HORIZON)
    event = subscription.next_event()
    assert (event["Records"], event["MillisBehindLatest"]) == ([], 0)
    assert event["ContinuationSequenceNumber"]


def test_a_consumer_has_one_subscription_per_shard(
    make_consumer: MakeConsumer, stream: Stream, shard_id: str
) -> None:
    """A second subscription right after the first is refused, and the first continues. If it came too late, because
    the machine is busy, there is another try.
    """
    for number in range(3):
        consumer = make_consumer(stream, f"reader-{number}")
        began_s = time.monotonic()
        first = consumer.subscribe(shard_id)
        try:
            consumer.subscribe(shard_id)
        except stream.client.exceptions.ResourceInUseException:
            break
        assert time.monotonic() - began_s >= TAKEOVER_S
    else:
        pytest.fail("each second subscription came too late")
    stream.put(b"for the first")
    assert data_of(first.until_records(1)) == [b"for the first"]


def test_a_later_subscription_replaces_the_first(consumer: Consumer, shard_id: str) -> None:
    """After five seconds a second subscription is accepted, and the first ends with ResourceInUse."""
    first = consumer.subscribe(shard_id)
    second = consumer.subscribe_when_free(shard_id)
    with pytest.raises(EventStreamError, match="ResourceInUse"):
        first.until_end()
    consumer.stream.put(b"for the second")
    assert data_of(second.until_records(1)) == [b"for the second"]


def test_every_consumer_gets_all_records(make_consumer: MakeConsumer, stream: Stream, shard_id: str) -> None:
    """Consumers do not share records."""
    readers = [make_consumer(stream, name).subscribe(shard_id) for name in ("one", "two")]
    stream.put_many([("k", b"a"), ("k", b"b")])
    assert [data_of(reader.until_records(2)) for reader in readers] == [[b"a", b"b"]] * 2


def test_an_unknown_consumer_is_not_found(consumer: Consumer, shard_id: str) -> None:
    """A subscription for a consumer that was never registered is refused before any event."""
    with expect_refusal("ResourceNotFoundException"):
        Consumer(consumer.stream, f"{consumer.stream.arn}/consumer/nobody:1").subscribe(shard_id)


def test_an_unknown_shard_is_not_found(consumer: Consumer) -> None:
    """A subscription to a shard that the stream does not have is refused before any event."""
    with expect_refusal("ResourceNotFoundException"):
        consumer.subscribe("shardId-000000000099")


def test_the_frames_are_those_of_an_aws_event_stream(consumer: Consumer, shard_id: str) -> None:
    """On the wire: an initial response first, then events with type, content type and a JSON payload."""
    consumer.stream.put(b"framed")
    response, frames = raw_subscription(consumer, shard_id, frames=2)
    assert response.getheader("content-type") == "application/vnd.amazon.eventstream"
    initial, event = frames
    assert initial.headers[":message-type"] == "event"
    assert initial.headers[":event-type"] == "initial-response"
    assert event.headers[":message-type"] == "event"
    assert event.headers[":event-type"] == "SubscribeToShardEvent"
    assert event.headers[":content-type"] in {"application/x-amz-json-1.1", "application/json"}
    assert {"Records", "ContinuationSequenceNumber", "MillisBehindLatest"} <= json.loads(event.payload).keys()


def raw_subscription(
    consumer: Consumer, shard_id: str, frames: int
) -> tuple[http.client.HTTPResponse, list[EventStreamMessage]]:
    """A subscription without an SDK: the response, and its first frames."""
    url = urlsplit(consumer.stream.client.meta.endpoint_url)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
    request = {"ConsumerARN": consumer.arn, "ShardId": shard_id, "StartingPosition": TRIM_HORIZON}
    headers = {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": "Kinesis_20131202.SubscribeToShard",
        "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/kinesis/aws4_request, "
        "SignedHeaders=host, Signature=0",
    }
    connection.request("POST", "/", json.dumps(request), headers)
    response = connection.getresponse()
    buffer = EventStreamBuffer()
    found: list[EventStreamMessage] = []
    while len(found) < frames:
        buffer.add_data(response.read1(65536))
        found += buffer
    response.close()
    connection.close()
    return response, found[:frames]
