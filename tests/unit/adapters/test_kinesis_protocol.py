"""GetRecords in CBOR where the server understands it, and in JSON elsewhere: no error reaches the caller, no record is
lost, and the choice is remembered.
"""

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cbor2
import pytest

from leasehold import cli
from leasehold.adapters.aws.call_counts import KinesisCalls
from leasehold.adapters.aws.clients import AwsAccess, kinesis_client
from leasehold.adapters.aws.http_response import Response
from leasehold.adapters.aws.kinesis_decoding import page_from_body
from leasehold.adapters.aws.kinesis_protocol import JSON_FOR_S, ProtocolChoice
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.aws.native_pages import page_from_cbor
from leasehold.adapters.native_decoder import native_decoder
from leasehold.cli.connections import Connection
from leasehold.config.connection import ConnectionSettings, KinesisProtocol
from leasehold.core.events import CallCount
from leasehold.errors import (
    ConfigError,
    IteratorExpiredError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.ports import Page
from tests.native.hostile_bodies import cbor_bodies

needs_native = pytest.mark.skipif(native_decoder() is None, reason="leasehold-native is not built")

JSON, CBOR = "application/x-amz-json-1.1", "application/x-amz-cbor-1.1"
RECORD = {"Data": b"hello", "PartitionKey": "k", "SequenceNumber": "7"}
PAGE = {"Records": [RECORD], "NextShardIterator": "next", "MillisBehindLatest": 0}
Answer = tuple[int, str, bytes]


def in_json(status: int, fields: dict[str, Any]) -> Answer:
    encoded = json.dumps(fields, default=lambda data: base64.b64encode(data).decode())
    return status, JSON, encoded.encode()


def in_cbor(status: int, fields: Any) -> Answer:
    return status, CBOR, cbor2.dumps(fields)


class Server(ThreadingHTTPServer):
    """Answers requests in JSON with a page, and requests in CBOR as the test says."""

    to_cbor: Callable[[], Answer]
    to_json: Answer
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = self.headers["Content-Type"]
        server.asked.append(asked)
        fields = cbor2.loads(body) if asked == CBOR else json.loads(body)
        assert fields == {"ShardIterator": "here", "Limit": 7}
        status, kind, answer = server.to_cbor() if asked == CBOR else server.to_json
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client(running: Server) -> Any:
    return kinesis_client(
        AwsAccess(region="eu-west-1", endpoint_url=f"http://127.0.0.1:{running.server_port}")
    )


@pytest.fixture
def server(running: Server) -> Server:
    running.asked = []
    running.to_json = in_json(200, PAGE)
    return running


def read(
    client: Any,
    times: int = 1,
    protocol: KinesisProtocol = KinesisProtocol.AUTO,
    calls: KinesisCalls | None = None,
) -> list[Page]:
    """One page of the same iterator after the other."""

    async def get_records() -> list[Page]:
        stream = KinesisStream(client, "orders", protocol=protocol, calls=calls)
        try:
            return [await stream.get_records("here", limit=7) for _ in range(times)]
        finally:
            await stream.close()

    return asyncio.run(get_records())


def data_of(pages: list[Page]) -> list[bytes]:
    return [record.data for page in pages for record in page.records]


REFUSALS: dict[str, Answer] = {
    "JSON error": in_json(400, {"__type": "SerializationException"}),
    "CBOR error": in_cbor(400, {"__type": "SerializationException"}),
    "unknown operation": in_cbor(400, {"__type": "UnknownOperationException"}),
    "unknown operation in JSON": in_json(404, {"__type": "com.amazon.coral#UnknownOperationException"}),
    "unsupported media type": (415, "", b""),
    "not acceptable": (406, "text/plain", b"no"),
    "HTML of a failed server": (500, "text/html", b"<html>'utf-8' codec can't decode byte"),
    "validation": in_json(400, {"__type": "ValidationException", "message": "invalid JSON"}),
    "nothing": (400, "", b""),
    "not CBOR at all": (200, CBOR, b"<html>"),
    "CBOR without records": in_cbor(200, {"NextShardIterator": "next"}),
    "a closed connection": (0, "", b""),
    "CBOR that is called JSON": (200, JSON, cbor2.dumps(PAGE)),
    "CBOR that is called nothing": (200, "", cbor2.dumps(PAGE)),
    "a cut page": (200, CBOR, cbor2.dumps(PAGE)[:-3]),
}


@needs_native
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_leads_to_json_at_once_and_is_remembered(
    server: Server, client: Any, refusal: Answer
) -> None:
    server.to_cbor = lambda: refusal
    assert data_of(read(client, times=3)) == [b"hello"] * 3
    assert server.asked == [CBOR, JSON, JSON, JSON]


@needs_native
def test_cbor_is_requested_as_long_as_it_is_sent(server: Server, client: Any) -> None:
    server.to_cbor = lambda: in_cbor(200, PAGE)
    assert data_of(read(client, times=2)) == [b"hello"] * 2
    assert server.asked == [CBOR, CBOR]


@needs_native
@pytest.mark.parametrize("kind", [JSON, "application/json; charset=utf-8", ""])
def test_a_page_in_json_is_read_and_remembered(server: Server, client: Any, kind: str) -> None:
    """The content type of the response decides, not the request."""
    status, _, body = in_json(200, PAGE)
    server.to_cbor = lambda: (status, kind, body)
    assert data_of(read(client, times=2)) == [b"hello"] * 2
    assert server.asked == [CBOR, JSON]


@needs_native
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "ExpiredIteratorException", IteratorExpiredError),
        (400, "com.amazonaws#ProvisionedThroughputExceededException", ThrottledError),
        (400, "InvalidArgumentException", ServiceError),
        (500, "InternalFailure", UnavailableError),
    ],
)
def test_errors_in_cbor_are_recognised(
    server: Server, client: Any, status: int, code: str, error: type[ServiceError]
) -> None:
    """They are no refusals: the server speaks CBOR, so the request is not repeated."""
    server.to_cbor = lambda: in_cbor(status, {"__type": code, "message": "why"})
    with pytest.raises(error, match=r"orders.*why"):
        read(client)
    assert server.asked == [CBOR]


@needs_native
def test_an_error_of_the_request_in_json_is_raised_and_nothing_is_remembered(
    server: Server, client: Any
) -> None:
    """A throttled or failing server says nothing about CBOR."""
    server.to_cbor = lambda: in_json(400, {"__type": "LimitExceededException"})
    server.to_json = in_json(400, {"__type": "LimitExceededException", "message": "slow"})

    async def get_records() -> None:
        stream = KinesisStream(client, "orders")
        try:
            for _ in range(2):
                with pytest.raises(ThrottledError, match="slow"):
                    await stream.get_records("here", limit=7)
        finally:
            await stream.close()

    asyncio.run(get_records())
    assert server.asked == [CBOR, JSON] * 2


@needs_native
def test_a_server_that_has_sent_cbor_may_fail_in_other_formats(server: Server, client: Any) -> None:
    """A load balancer in front of Kinesis answers in HTML. This is an error, and CBOR stays."""
    answers = iter(
        [in_cbor(200, PAGE), (503, "text/html", b"<html>"), in_json(200, PAGE), in_cbor(200, PAGE)]
    )
    server.to_cbor = lambda: next(answers)

    async def get_records() -> list[bytes]:
        stream = KinesisStream(client, "orders")
        try:
            first = await stream.get_records("here", limit=7)
            with pytest.raises(UnavailableError):
                await stream.get_records("here", limit=7)
            return data_of([first, *[await stream.get_records("here", limit=7) for _ in range(2)]])
        finally:
            await stream.close()

    assert asyncio.run(get_records()) == [b"hello"] * 3
    assert server.asked == [CBOR] * 4


@needs_native
def test_hostile_pages_in_cbor_are_read_in_json(server: Server, client: Any) -> None:
    """Every page is that of CBOR if it is valid, and otherwise that of JSON."""
    bodies = [*dict.fromkeys(cbor_bodies())][::10]
    server.to_json = in_json(200, PAGE | {"NextShardIterator": "of JSON"})
    in_other_encoding = page_from_body(server.to_json[2])
    repeated = 0
    for body in bodies:
        server.to_cbor = lambda body=body: (200, CBOR, body)  # type: ignore[misc]
        try:
            expected = page_from_cbor(body)
        except UnavailableError:
            expected, repeated = in_other_encoding, repeated + 1
        (page,) = read(client)
        assert (list(page.records), page.next_iterator, page.millis_behind, page.children) == (
            list(expected.records),
            expected.next_iterator,
            expected.millis_behind,
            expected.children,
        )
    assert 0 < repeated < len(bodies)
    assert server.asked.count(JSON) == repeated


@needs_native
@pytest.mark.parametrize(
    ("refusal", "throttled"),
    [
        *(
            (each, 0)
            for each in ("JSON error", "a closed connection", "a cut page", "unsupported media type")
        ),
        ("too many requests", 1),
    ],
)
def test_every_request_is_counted(server: Server, client: Any, refusal: str, throttled: int) -> None:
    """The refused one in CBOR has failed, or was throttled. It counts against the limits of the stream."""
    limit = in_json(400, {"__type": "ProvisionedThroughputExceededException"})
    answer = REFUSALS.get(refusal, limit)
    server.to_cbor = lambda: answer
    calls = KinesisCalls()
    read(client, times=2, calls=calls)
    assert server.asked == [CBOR, JSON, JSON]
    assert calls.take() == (CallCount("GetRecords", 3, throttled, 1 - throttled),)


@needs_native
def test_a_server_that_hangs_on_cbor_is_asked_in_json(server: Server) -> None:
    """Each attempt that times out is an error, as the caller expects it. Its next attempt is in JSON."""
    client = kinesis_client(
        AwsAccess(region="eu-west-1", endpoint_url=f"http://127.0.0.1:{server.server_port}"), response_s=0.5
    )
    is_over = threading.Event()

    def hang() -> Answer:
        is_over.wait(60)
        return 0, "", b""

    server.to_cbor = hang

    async def get_records() -> list[bytes]:
        stream = KinesisStream(client, "orders")
        try:
            with pytest.raises(UnavailableError):
                await stream.get_records("here", limit=7)
            for _ in range(20):  # on a busy machine a request in JSON may time out, too
                with suppress(UnavailableError):
                    return data_of([await stream.get_records("here", limit=7)])
            return []
        finally:
            await stream.close()

    try:
        assert asyncio.run(get_records()) == [b"hello"]
    finally:
        is_over.set()
    assert set(server.asked) == {CBOR, JSON}


def test_only_a_server_that_has_never_sent_cbor_is_doubted() -> None:
    """One request is in JSON after a timeout; if it fails too, the next one is in CBOR again."""
    choice = ProtocolChoice(KinesisProtocol.AUTO, is_cbor_readable=True)
    choice.note_silence(ConnectionResetError())
    assert not choice.take_doubt()
    choice.note_silence(TimeoutError())
    assert (choice.take_doubt(), choice.take_doubt(), choice.is_cbor_next(0)) == (True, False, True)
    choice.note_silence(TimeoutError())
    choice.note_page(Response(200, b"", CBOR), 1.0)
    choice.note_silence(TimeoutError())
    assert not choice.take_doubt()
    forced = ProtocolChoice(KinesisProtocol.CBOR, is_cbor_readable=True)
    forced.note_silence(TimeoutError())
    assert not forced.take_doubt()


@pytest.mark.parametrize("protocol", [KinesisProtocol.JSON, KinesisProtocol.AUTO])
@needs_native
def test_commands_use_the_protocol_of_the_settings(server: Server, protocol: KinesisProtocol) -> None:
    server.to_cbor = lambda: in_cbor(200, PAGE)
    settings = ConnectionSettings(
        region="eu-west-1",
        kinesis_endpoint=f"http://127.0.0.1:{server.server_port}",
        kinesis_protocol=protocol,
        kinesis_timeout=timedelta(seconds=77),
    )
    connection = Connection(settings=settings)

    async def get_records() -> Page:
        stream = connection.stream_opener(threads=1)("orders")
        try:
            return await stream.get_records("here", limit=7)
        finally:
            await stream.close()

    assert data_of([asyncio.run(get_records())]) == [b"hello"]
    assert server.asked == [JSON if protocol is KinesisProtocol.JSON else CBOR]
    assert connection.kinesis(threads=1).meta.config.read_timeout == 77


def test_commands_open_streams_only_by_their_connection() -> None:
    """A stream that a command opens by itself would ignore settings."""
    folder = Path(cli.__file__).parent
    found = {path.name for path in folder.glob("*.py") if "KinesisStream(" in path.read_text()}
    assert found == {"connections.py"}


@needs_native
def test_forced_cbor_does_not_return_to_json(server: Server, client: Any) -> None:
    server.to_cbor = lambda: in_json(400, {"__type": "SerializationException"})
    with pytest.raises(ServiceError, match="SerializationException"):
        read(client, protocol=KinesisProtocol.CBOR)
    server.to_cbor = lambda: (200, CBOR, b"<html>")
    with pytest.raises(UnavailableError, match="it is not CBOR"):
        read(client, protocol=KinesisProtocol.CBOR)
    assert JSON not in server.asked


def test_forced_json(server: Server, client: Any) -> None:
    assert data_of(read(client, protocol=KinesisProtocol.JSON)) == [b"hello"]
    assert server.asked == [JSON]


def test_without_the_native_decoder_json_is_requested() -> None:
    choice = ProtocolChoice(KinesisProtocol.AUTO, is_cbor_readable=False)
    assert not choice.is_cbor_next(0)
    with pytest.raises(ConfigError, match="leasehold-native"):
        ProtocolChoice(KinesisProtocol.CBOR, is_cbor_readable=False)


def test_cbor_is_tried_again_after_an_hour() -> None:
    choice = ProtocolChoice(KinesisProtocol.AUTO, is_cbor_readable=True)
    choice.note_page(Response(200, b"{}", JSON), 10.0)
    assert not choice.is_cbor_next(10.0 + JSON_FOR_S - 1)
    assert choice.is_cbor_next(10.0 + JSON_FOR_S)
