"""The local server over HTTP/2 without TLS, as the Java and JavaScript SDKs use it. The client uses h2."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.eventstream import EventStreamBuffer
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded

from leasehold.local import LocalKinesis
from tests.integration.local_server_clients import MIDDLE, PARENT, client_of


class Http2Client:
    """One connection with many requests."""

    def __init__(self, server: LocalKinesis) -> None:
        address = urlsplit(server.endpoint_url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.h2 = H2Connection()
        self.h2.initiate_connection()
        self.bodies: dict[int, bytearray] = {}
        self.statuses: dict[int, int] = {}
        self.ended: set[int] = set()
        self.flush()

    def flush(self) -> None:
        # The server may have closed the connection already; what it said before is still to be read.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(self.h2.data_to_send())

    def read_until_closed(self) -> None:
        with suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass

    def send_request(
        self, operation: str, members: dict[str, Any], path: str = "/", host: str = "localhost"
    ) -> int:
        """Send a request and return its stream id."""
        stream: int = self.h2.get_next_available_stream_id()
        body = memoryview(json.dumps(members).encode())
        headers = [
            (":method", "POST"),
            (":path", path),
            (":scheme", "http"),
            (":authority", host),
            ("content-type", "application/x-amz-json-1.1"),
            ("x-amz-target", f"Kinesis_20131202.{operation}"),
        ]
        self.h2.send_headers(stream, headers)
        self.bodies[stream] = bytearray()
        while body:
            window = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            self.h2.send_data(stream, body[:window])
            body = body[window:]
            self.flush()
            if body and not self.h2.local_flow_control_window(stream):
                self.receive()
        self.h2.end_stream(stream)
        self.flush()
        return stream

    def receive(self, *, acknowledge: bool = True) -> list[Event]:
        """Receive and process the next data."""
        data = self.socket.recv(65536)
        assert data, "the server closed the connection"
        events = self.h2.receive_data(data)
        for event in events:
            match event:
                case ResponseReceived(stream_id=stream, headers=headers):
                    self.statuses[stream] = int(dict(headers)[b":status"])
                case DataReceived(stream_id=stream, data=data, flow_controlled_length=length):
                    self.bodies[stream] += data
                    if acknowledge and length:
                        self.h2.acknowledge_received_data(length, stream)
                case StreamEnded(stream_id=stream):
                    self.ended.add(stream)
        self.flush()
        return list(events)

    def response(self, stream: int) -> tuple[int, Any]:
        while stream not in self.ended:
            self.receive()
        body = self.bodies[stream]
        return self.statuses[stream], json.loads(body) if body else None

    def call(self, operation: str, members: dict[str, Any]) -> Any:
        status, response = self.response(self.send_request(operation, members))
        assert status == 200, response
        return response


@contextmanager
def connected(server: LocalKinesis) -> Iterator[Http2Client]:
    client = Http2Client(server)
    try:
        yield client
    finally:
        client.socket.close()


@pytest.fixture
def server() -> Iterator[LocalKinesis]:
    with LocalKinesis.in_thread(streams={"orders": 1}) as running:
        yield running


@pytest.fixture
def http2(server: LocalKinesis) -> Iterator[Http2Client]:
    with connected(server) as client:
        yield client


def iterator(client: Http2Client) -> str:
    request = {"StreamName": "orders", "ShardId": PARENT, "ShardIteratorType": "TRIM_HORIZON"}
    return str(client.call("GetShardIterator", request)["ShardIterator"])


def test_requests_and_refusals_work_as_over_http1(http2: Http2Client) -> None:
    """Put, read and an error on one connection."""
    http2.call("PutRecord", {"StreamName": "orders", "Data": "aGVsbG8=", "PartitionKey": "k"})
    page = http2.call("GetRecords", {"ShardIterator": iterator(http2)})
    assert [record["Data"] for record in page["Records"]] == ["aGVsbG8="]
    status, error = http2.response(http2.send_request("GetRecords", {"ShardIterator": "garbage"}))
    assert (status, error["__type"]) == (400, "InvalidArgumentException")
    assert http2.response(http2.send_request("", {}, path="/_leasehold/trim"))[0] == 200


@pytest.mark.parametrize("path", ["/", "/_leasehold/reset"])
def test_a_request_for_another_host_is_refused(http2: Http2Client, path: str) -> None:
    """A web page cannot reach the server by pointing its own host name to this machine."""
    stream = http2.send_request("ListStreams", {}, path, host="evil.example")
    while stream not in http2.ended:
        http2.receive()
    assert http2.statuses[stream] == 403


def test_large_bodies_are_sent_and_received(server: LocalKinesis, http2: Http2Client) -> None:
    """Five megabytes in, ten out: much more than a flow-control window."""
    large = "A" * 1_300_000
    records = [{"Data": large, "PartitionKey": "k"}] * 5
    for _ in range(2):
        assert (
            http2.call("PutRecords", {"StreamName": "orders", "Records": records})["FailedRecordCount"] == 0
        )
    page = http2.call("GetRecords", {"ShardIterator": iterator(http2)})
    assert [record["Data"] for record in page["Records"]] == [large] * 10


def test_many_requests_share_a_connection(http2: Http2Client) -> None:
    """Fifty concurrent requests each get their own response."""
    streams = [
        http2.send_request("PutRecord", {"StreamName": "orders", "Data": "", "PartitionKey": f"{turn}"})
        for turn in range(50)
    ]
    assert [http2.response(stream)[0] for stream in streams] == [200] * 50
    page = http2.call("GetRecords", {"ShardIterator": iterator(http2)})
    assert len({record["PartitionKey"] for record in page["Records"]}) == 50


def test_a_client_that_does_not_read_blocks_no_other_client(server: LocalKinesis, http2: Http2Client) -> None:
    """A response that fills its window waits while another connection is served. Then the rest follows."""
    records = [{"Data": "A" * 1_300_000, "PartitionKey": "k"}] * 5
    http2.call("PutRecords", {"StreamName": "orders", "Records": records})
    page = http2.send_request("GetRecords", {"ShardIterator": iterator(http2)})
    while not http2.bodies[page]:
        http2.receive(acknowledge=False)
    with connected(server) as other:
        assert other.call("ListStreams", {})["StreamNames"] == ["orders"]
    # The window was never opened, so most of the response is still to come.
    assert len(http2.bodies[page]) <= 65_535
    http2.h2.increment_flow_control_window(20_000_000)
    http2.h2.increment_flow_control_window(20_000_000, page)
    http2.flush()
    while page not in http2.ended:
        http2.receive(acknowledge=False)
    assert len(json.loads(http2.bodies[page])["Records"]) == 5


def test_a_subscription_and_other_requests_share_a_connection(
    server: LocalKinesis, http2: Http2Client
) -> None:
    """Events of a shard up to its end, while the same connection puts and splits."""
    arn = http2.call("DescribeStreamSummary", {"StreamName": "orders"})["StreamDescriptionSummary"][
        "StreamARN"
    ]
    consumer = http2.call("RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": "reader"})["Consumer"]
    position = {"Type": "TRIM_HORIZON"}
    request = {"ConsumerARN": consumer["ConsumerARN"], "ShardId": PARENT, "StartingPosition": position}
    stream = http2.send_request("SubscribeToShard", request)
    http2.call("PutRecord", {"StreamName": "orders", "Data": "aGVsbG8=", "PartitionKey": "k"})
    while b"aGVsbG8=" not in http2.bodies[stream]:
        http2.receive()
    http2.call("SplitShard", {"StreamName": "orders", "ShardToSplit": PARENT, "NewStartingHashKey": MIDDLE})
    while stream not in http2.ended:
        http2.receive()
    buffer = EventStreamBuffer()
    buffer.add_data(bytes(http2.bodies[stream]))
    types = [message.headers[":event-type"] for message in buffer]
    assert types == ["initial-response", "SubscribeToShardEvent", "SubscribeToShardEvent"]


def test_a_client_can_reset_a_request(server: LocalKinesis, http2: Http2Client) -> None:
    """Resetting a subscription ends it on the server. The connection stays open."""
    arn = http2.call("DescribeStreamSummary", {"StreamName": "orders"})["StreamDescriptionSummary"][
        "StreamARN"
    ]
    consumer = http2.call("RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": "reader"})["Consumer"]
    request = {
        "ConsumerARN": consumer["ConsumerARN"],
        "ShardId": PARENT,
        "StartingPosition": {"Type": "LATEST"},
    }
    stream = http2.send_request("SubscribeToShard", request)
    while not http2.bodies[stream]:
        http2.receive()
    http2.h2.reset_stream(stream)
    http2.flush()
    assert http2.call("ListStreams", {})["StreamNames"] == ["orders"]


def test_an_invalid_frame_closes_only_its_connection(server: LocalKinesis) -> None:
    """The server continues."""
    with connected(server) as client:
        data_of_no_request = b"\x00\x00\x05\x00\x00\x00\x00\x00\x01hello"
        client.socket.sendall(data_of_no_request)
        client.read_until_closed()
    assert client_of(server).list_streams()["StreamNames"] == ["orders"]


def test_the_server_stops_with_open_connections(server: LocalKinesis, http2: Http2Client) -> None:
    """An idle HTTP/2 connection is closed with GOAWAY."""
    http2.call("ListStreams", {})
    server.stop()
    seen: list[Event] = []
    while not any(isinstance(event, ConnectionTerminated) for event in seen):
        seen += http2.receive()
