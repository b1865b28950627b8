"""GetRecords without boto3: signed as boto3 does, with the same errors, and only where boto3 is not needed."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from leasehold.adapters.aws.clients import AwsAccess, dynamodb_client, kinesis_client
from leasehold.adapters.aws.direct_calls import open_direct_calls
from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.native_decoder import native_decoder
from leasehold.config.connection import KinesisProtocol
from leasehold.core.leases.row_writes import Equals, UpdateRow, text
from leasehold.errors import ConfigError, IteratorExpiredError, ServiceError, ThrottledError, UnavailableError
from leasehold.ports import Applied, Refused

needs_native = pytest.mark.skipif(native_decoder() is None, reason="leasehold-native is not built")
TIP = b'{"Records":[],"NextShardIterator":"next","MillisBehindLatest":0}'


class Recorder(ThreadingHTTPServer):
    """Keeps the last request, and sends the response that the test has set."""

    response: tuple[int, bytes] = (200, TIP)
    headers: dict[str, str]
    body: bytes


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Recorder)
        self.server.headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.body = self.rfile.read(int(self.headers["Content-Length"]))
        status, body = self.server.response
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder(("127.0.0.1", 0), Handler) as recorder:
        thread = threading.Thread(target=recorder.serve_forever)
        thread.start()
        yield recorder
        recorder.shutdown()
        thread.join()


@pytest.fixture
def client(server: Recorder, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    return kinesis_client(
        AwsAccess(region="eu-west-1", endpoint_url=f"http://127.0.0.1:{server.server_port}")
    )


def read(client: Any, stream: str = "orders", protocol: KinesisProtocol = KinesisProtocol.JSON) -> Any:
    """One page of the stream."""

    async def get_records() -> Any:
        kinesis = KinesisStream(client, stream, protocol=protocol)
        try:
            return await kinesis.get_records("here", limit=7)
        finally:
            await kinesis.close()

    return asyncio.run(get_records())


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        (KinesisProtocol.JSON, b'{"ShardIterator":"here","Limit":7}'),
        pytest.param(KinesisProtocol.CBOR, b"\xa2mShardIteratordhereeLimit\x07", marks=needs_native),
    ],
)
def test_the_signature_is_valid(
    server: Recorder, client: Any, protocol: KinesisProtocol, body: bytes
) -> None:
    """The received request, signed again from its own headers and body, has the same signature."""
    assert open_direct_calls(client) is not None
    assert read(client, protocol=protocol).next_iterator == "next"
    sent = server.headers
    authorization = sent["authorization"]
    signed = authorization.split("SignedHeaders=")[1].split(",")[0].split(";")
    again = AWSRequest("POST", f"http://{sent['host']}/", data=server.body)
    for name in signed:
        again.headers[name] = sent[name]
    again.context["timestamp"] = sent["x-amz-date"]
    auth = SigV4Auth(Credentials("AKIDEXAMPLE", "secret", "token"), "kinesis", "eu-west-1")
    signature = auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again)
    assert authorization.endswith(f"Signature={signature}")
    assert {"host", "x-amz-date", "x-amz-security-token"} <= set(signed)
    assert sent["x-amz-target"] == "Kinesis_20131202.GetRecords"
    assert sent["content-type"] == f"application/x-amz-{protocol.value}-1.1"
    assert server.body == body


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (400, b'{"__type":"ExpiredIteratorException","message":"old"}', IteratorExpiredError),
        (400, b'{"__type":"com.amazonaws#ProvisionedThroughputExceededException"}', ThrottledError),
        (400, b'{"__type":"InvalidArgumentException","message":"no"}', ServiceError),
        (500, b'{"__type":"InternalFailure"}', UnavailableError),
        (503, b"<html>busy</html>", UnavailableError),
        (302, b"[]", ServiceError),
    ],
)
def test_errors_are_the_same_as_with_boto3(
    server: Recorder, client: Any, status: int, body: bytes, error: type[Exception]
) -> None:
    """Every response with another status than 200 is one of our errors, of the right class."""
    server.response = (status, body)
    with pytest.raises(error, match="orders"):
        read(client)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b'{"Attributes":{"leaseKey":{"S":"b"},"leaseCounter":{"N":"2"}}}'),
        (400, b'{"__type":"ConditionalCheckFailedException","Item":{"leaseKey":{"S":"b"}}}'),
    ],
)
def test_the_row_of_another_request_is_refused(
    server: Recorder, status: int, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the write was applied is then unknown, so the caller reads the row."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server.response = (status, body)
    url = f"http://127.0.0.1:{server.server_port}"

    async def write(key: str) -> Applied | Refused:
        rows = DynamoDbRows(dynamodb_client(AwsAccess(region="eu-west-1", endpoint_url=url)), "leases")
        try:
            return await rows.write(UpdateRow(key=key, when=(Equals("leaseKey", text(key)),), proof=()))
        finally:
            await rows.close()

    with pytest.raises(UnavailableError, match="row a of table leases: the response has another row"):
        asyncio.run(write("a"))
    assert asyncio.run(write("b"))


def test_no_response_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing server may come back later."""
    client = kinesis_client(AwsAccess(region="eu-west-1", endpoint_url="http://127.0.0.1:9"))
    with pytest.raises(UnavailableError):
        read(client)


def test_boto3_is_used_with_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the environment names a proxy, boto3 sends the call through it."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert open_direct_calls(kinesis_client(AwsAccess(region="eu-west-1"))) is None


def test_boto3_is_used_for_a_stream_by_arn(server: Recorder, client: Any) -> None:
    """An ARN may mean another endpoint, which only boto3 can determine. Here the ARN is part of the request."""
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    read(client, arn)
    assert b"StreamARN" in server.body


def test_credentials_of_a_role_are_renewed_off_the_event_loop(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal may take seconds, and heartbeats must not wait for it."""
    renewing: list[threading.Thread] = []

    class Renewable(Credentials):  # type: ignore[misc]
        def refresh_needed(self) -> bool:
            return not renewing

        def get_frozen_credentials(self) -> Any:
            renewing.append(threading.current_thread())
            return super().get_frozen_credentials()

    monkeypatch.setattr(client._request_signer, "_credentials", Renewable("AKIDEXAMPLE", "secret"))
    assert read(client).next_iterator == "next"
    assert renewing
    assert renewing[0] is not threading.main_thread()


@pytest.mark.parametrize(
    ("variable", "ending"),
    [
        ("AWS_SESSION_TOKEN", "\r\nX-Other: 1"),
        ("AWS_SESSION_TOKEN", "\u0151"),
        ("AWS_SESSION_TOKEN", "\u00e9"),
        ("AWS_ACCESS_KEY_ID", "\r"),
        ("AWS_SECRET_ACCESS_KEY", " "),
    ],
)
@pytest.mark.parametrize("direct", [True, False])
def test_credentials_that_no_header_can_hold_are_refused(
    server: Recorder, monkeypatch: pytest.MonkeyPatch, variable: str, ending: str, direct: bool
) -> None:
    """They would begin another header. The error names the field and does not quote it; nothing is sent."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "SECRET" + (ending if name == variable else ""))
    url = f"http://127.0.0.1:{server.server_port}"
    client = kinesis_client(AwsAccess(region="eu-west-1", endpoint_url=url))

    async def get_records() -> None:
        stream = KinesisStream(client, "orders", direct=direct)
        try:
            await stream.get_records("here", limit=7)
        finally:
            await stream.close()

    server.body = b"nothing was sent"
    with pytest.raises(ConfigError, match="of the AWS credentials contains a line break") as refused:
        asyncio.run(get_records())
    assert "SECRET" not in str(refused.value)
    assert server.body == b"nothing was sent"
