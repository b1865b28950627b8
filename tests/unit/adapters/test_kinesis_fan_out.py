"""Subscriptions over HTTP/1.1 from a server that sends exactly these bytes: events, errors, cuts, back-pressure."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from leasehold.adapters.aws.clients import AwsAccess, kinesis_client
from leasehold.adapters.aws.kinesis_fan_out import KinesisFanOut
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import (
    AccessDeniedError,
    ConfigError,
    InUseError,
    LeaseholdError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.local import event_stream
from leasehold.ports import Subscription, SubscriptionEvent

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/orders/consumer/app:1"
SHARD = ShardId("shardId-000000000000")
START = IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number="49")
DEADLINE_S = 30
JSON = "application/x-amz-json-1.1"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
INITIAL = event_stream.event("initial-response", JSON, b"{}")
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(number: int, padding: int = 0) -> bytes:
    record = {"Data": "A" * padding, "PartitionKey": "k", "SequenceNumber": str(number)}
    fields = {"Records": [record], "ContinuationSequenceNumber": str(number), "MillisBehindLatest": 0}
    return event_stream.event("SubscribeToShardEvent", JSON, json.dumps(fields).encode())


def exception(code: str) -> bytes:
    return event_stream.exception(code, JSON, b'{"message":"because"}')


def refusal(status: int, code: str) -> bytes:
    body = json.dumps({"__type": f"com.amazonaws#{code}", "message": "because"}).encode()
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class Server:
    """Sends these bytes to each request, and then closes the connection or leaves it open.

    A test may replace the bytes before each request: a client takes long to create.
    """

    def __init__(self, *pieces: bytes, stays_open: bool = False, waits: bool = False) -> None:
        self.pieces: Sequence[bytes] = pieces
        self.stays_open = stays_open
        self.requests: list[bytes] = []
        self.bytes_accepted = 0
        self.has_client_left = asyncio.Event()
        self.goes_on = asyncio.Event()  # with `waits`, it is set for the second piece
        if not waits:
            self.goes_on.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        self.requests.append(head + await reader.readexactly(length))
        try:
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
                self.bytes_accepted += len(piece)
                await self.goes_on.wait()
            if self.stays_open:
                await reader.read()
        except ConnectionError:
            pass
        self.has_client_left.set()
        writer.transport.abort() if self.stays_open else writer.close()


@asynccontextmanager
async def fan_out_to(server: Server) -> AsyncIterator[KinesisFanOut]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    access = AwsAccess(region="us-east-1", endpoint_url=f"http://127.0.0.1:{port}")
    async with listener, asyncio.timeout(DEADLINE_S):
        fan_out = KinesisFanOut(kinesis_client(access), "orders", threads=1)
        try:
            yield fan_out
        finally:
            await fan_out.close()


async def subscribe(fan_out: KinesisFanOut) -> Subscription:
    return await fan_out.subscribe(ARN, SHARD, START)


async def collect(fan_out: KinesisFanOut) -> tuple[list[str | None], Exception | None]:
    """Where the events of a subscription continue, and the error with which it ends."""
    found: list[str | None] = []
    try:
        async for each in await subscribe(fan_out):
            found.append(each.continuation)  # noqa: PERF401 - the events before an error count
    except LeaseholdError as error:
        return found, error
    return found, None


def events_from(*scripts: Sequence[bytes]) -> list[tuple[list[str | None], Exception | None]]:
    """The outcome of a subscription for each script of a server."""

    async def main() -> list[tuple[list[str | None], Exception | None]]:
        server = Server()
        outcomes = []
        async with fan_out_to(server) as fan_out:
            for server.pieces in scripts:
                outcomes.append(await collect(fan_out))
        return outcomes

    return asyncio.run(main())


def run(server: Callable[[], Server], use: Callable[[KinesisFanOut, Server], Awaitable[None]]) -> None:
    async def main() -> None:
        there = server()
        async with fan_out_to(there) as fan_out:
            await use(fan_out, there)

    asyncio.run(main())


def test_the_request_is_signed_and_names_the_position() -> None:
    """As boto3 sends it, but with a time in milliseconds."""

    async def use(fan_out: KinesisFanOut, server: Server) -> None:
        await subscribe(fan_out)
        await fan_out.subscribe(
            ARN, SHARD, IteratorStart(IteratorKind.AT_TIMESTAMP, timestamp_ms=1_700_000_000_123)
        )
        by_number, by_time = (request.partition(b"\r\n\r\n") for request in server.requests)
        assert b"X-Amz-Target: Kinesis_20131202.SubscribeToShard\r\n" in by_number[0]
        assert b"Authorization: AWS4-HMAC-SHA256 Credential=" in by_number[0]
        assert json.loads(by_number[2]) == {
            "ConsumerARN": ARN,
            "ShardId": SHARD,
            "StartingPosition": {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "49"},
        }
        position = json.loads(by_time[2])["StartingPosition"]
        assert position == {"Type": "AT_TIMESTAMP", "Timestamp": 1_700_000_000.123}

    run(lambda: Server(HEAD + chunk(INITIAL) + END), use)


def test_events_do_not_depend_on_how_they_are_cut() -> None:
    """Neither chunks nor packets are messages."""
    raw = INITIAL + event(50) + event(51)
    scripts = [
        [HEAD, *(chunk(raw[at : at + size]) for at in range(0, len(raw), size)), END]
        for size in (1, 7, 100_000)
    ]
    assert events_from(*scripts) == [(["50", "51"], None)] * 3


def test_an_initial_response_may_be_missing_and_unknown_events_are_skipped() -> None:
    """As from kinesis-local: the first event counts as the acceptance, and is not lost."""
    unknown = event_stream.event("SomethingNew", JSON, b"{}")
    assert (
        events_from(
            [HEAD + chunk(event(50)) + END], [HEAD + chunk(INITIAL + unknown + event(50) + unknown) + END]
        )
        == [(["50"], None)] * 2
    )


def test_the_end_of_a_shard_ends_the_subscription() -> None:
    """Also if the server does not end the response."""
    child = {
        "ShardId": "shardId-000000000001",
        "ParentShards": [SHARD],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "1"},
    }
    fields = {
        "Records": [],
        "ContinuationSequenceNumber": None,
        "ChildShards": [child],
        "MillisBehindLatest": 0,
    }
    last = event_stream.event("SubscribeToShardEvent", JSON, json.dumps(fields).encode())

    async def use(fan_out: KinesisFanOut, server: Server) -> None:
        found = [each async for each in await subscribe(fan_out)]
        assert [(each.continuation, each.children[0].id) for each in found] == [
            (None, "shardId-000000000001")
        ]
        await server.has_client_left.wait()

    run(lambda: Server(HEAD + chunk(INITIAL + last), stays_open=True), use)


ERRORS = {
    "ResourceInUseException": InUseError,
    "ResourceNotFoundException": NotFoundError,
    "LimitExceededException": ThrottledError,
    "KMSThrottlingException": ThrottledError,
    "AccessDeniedException": AccessDeniedError,
    "KMSAccessDeniedException": AccessDeniedError,
    "KMSDisabledException": ServiceError,
    "InternalFailureException": UnavailableError,
}


def test_errors_are_translated_wherever_they_are() -> None:
    """In the response, as the first message, and after an event."""
    scripts = [
        ([refusal(500 if "Internal" in code else 400, code)], [], code)
        if place == 0
        else ([HEAD + chunk(exception(code)) + END], [], code)
        if place == 1
        else ([HEAD + chunk(INITIAL + event(50) + exception(code)) + END], ["50"], code)
        for code in ERRORS
        for place in range(3)
    ]
    outcomes = events_from(*(script for script, _, _ in scripts))
    for (_, numbers, code), (found, error) in zip(scripts, outcomes, strict=True):
        assert (found, type(error)) == (numbers, ERRORS[code])
        assert f"{code}: because" in str(error)


def test_a_response_may_end_with_the_connection() -> None:
    """The messages have lengths, so a cut in an event is noticed nevertheless."""
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    whole, cut = events_from([head + INITIAL + event(50)], [head + INITIAL + event(50) + event(51)[:-3]])
    assert whole == (["50"], None)
    assert (cut[0], type(cut[1])) == (["50"], UnavailableError)


def test_an_error_message_is_an_error() -> None:
    """The other kind of failure in an event stream, for which the service has no exception."""
    message = event_stream.frame(
        {":message-type": "error", ":error-code": "InternalFailure", ":error-message": "because"}, b""
    )
    ((found, error),) = events_from([HEAD + chunk(INITIAL + message) + END])
    assert (found, type(error)) == ([], UnavailableError)
    assert "because" in str(error)


WRONG_CHECKSUM = event(51)[:-1] + bytes([event(51)[-1] ^ 1])
BROKEN_ENDS = {
    "cut in an event": chunk(event(51)[:-3]),
    "ended in an event": chunk(event(51)[:-3]) + END,
    "cut after an event": b"",
    "wrong checksum": chunk(WRONG_CHECKSUM) + END,
    "garbage": chunk(b"garbage of some length") + END,
    "no object": chunk(event_stream.event("SubscribeToShardEvent", JSON, b"[]")),
    "neither children nor a number": chunk(
        event_stream.event("SubscribeToShardEvent", JSON, b'{"Records":[]}')
    ),
}


def test_what_is_not_an_orderly_end_is_an_error() -> None:
    """The events before it are delivered, and nothing after it."""
    outcomes = events_from(*([HEAD + chunk(INITIAL + event(50)), rest] for rest in BROKEN_ENDS.values()))
    for name, (found, error) in zip(BROKEN_ENDS, outcomes, strict=True):
        assert (found, type(error)) == (["50"], UnavailableError), name


NO_SUBSCRIPTION = {
    "no response": b"",
    "only a head": HEAD,
    "no message": HEAD + END,
    "garbage instead of a chunk": HEAD + chunk(INITIAL) + b"garbage of some length",
    "another transfer coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n" + INITIAL,
    "an endless head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    "the error of a proxy": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\n<html",
}


def test_a_response_that_is_no_subscription_is_unavailable() -> None:
    outcomes = events_from(*([response] for response in NO_SUBSCRIPTION.values()))
    for name, (found, error) in zip(NO_SUBSCRIPTION, outcomes, strict=True):
        assert (found, type(error)) == ([], UnavailableError), name


def test_a_waiting_reader_is_woken_by_close() -> None:
    """A half-open connection: nothing arrives, and nothing says that the server is gone."""

    async def use(fan_out: KinesisFanOut, server: Server) -> None:
        subscription = await subscribe(fan_out)
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        await subscription.close()
        with pytest.raises(UnavailableError):
            await waiting
        await server.has_client_left.wait()

    run(lambda: Server(HEAD + chunk(INITIAL), stays_open=True), use)


def test_a_part_of_an_event_has_been_received() -> None:
    """So that the reader can distinguish a slow connection from a broken one."""

    async def use(fan_out: KinesisFanOut, server: Server) -> None:
        subscription = await subscribe(fan_out)
        assert subscription.has_received()
        assert not subscription.has_received()
        reading = asyncio.ensure_future(anext(subscription))
        server.goes_on.set()
        while not subscription.has_received():  # noqa: ASYNC110 - it is a question of the reader
            await asyncio.sleep(0.01)
        assert not reading.done()
        await subscription.close()
        with pytest.raises(UnavailableError):
            await reading

    run(
        lambda: Server(
            HEAD + chunk(INITIAL), chunk(event(50, 10_000_000)[:10_000]), stays_open=True, waits=True
        ),
        use,
    )


def test_closing_fan_out_closes_its_subscriptions() -> None:
    async def main() -> None:
        server = Server(HEAD + chunk(INITIAL), stays_open=True)
        async with fan_out_to(server) as fan_out:
            await subscribe(fan_out)
            await fan_out.close()
            await server.has_client_left.wait()

    asyncio.run(main())


def test_a_cancelled_request_leaves_no_connection() -> None:
    """Before the head of the response, and before the first message."""

    async def use(fan_out: KinesisFanOut, server: Server) -> None:
        for server.pieces in ([b""], [HEAD]):
            server.requests.clear()
            server.has_client_left.clear()
            request = asyncio.ensure_future(subscribe(fan_out))
            while not server.requests:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.001)
            request.cancel()
            await server.has_client_left.wait()

    run(lambda: Server(stays_open=True), use)


def test_a_slow_caller_holds_the_server_back() -> None:
    """While no event is requested, the server can send only what fits into the buffers on the way."""
    count, padding = 80, 400_000

    async def use(fan_out: KinesisFanOut, server: Server) -> None:
        subscription = await subscribe(fan_out)
        accepted = -1
        while accepted != server.bytes_accepted:
            accepted = server.bytes_accepted
            await asyncio.sleep(0.2)
        assert accepted < count * padding / 2
        found: list[SubscriptionEvent] = [await anext(subscription) for _ in range(count)]
        assert [each.continuation for each in found] == [str(50 + number) for number in range(count)]

    pieces = [chunk(event(50 + number, padding)) for number in range(count)]
    run(lambda: Server(HEAD + chunk(INITIAL), *pieces, END), use)


def test_a_proxy_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one of the configuration, so a worker does not retry for ever."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    fan_out = KinesisFanOut(kinesis_client(AwsAccess(region="us-east-1")), "orders")

    async def main() -> Any:
        await subscribe(fan_out)

    with pytest.raises(ConfigError, match="NO_PROXY"):
        asyncio.run(main())
