"""Responses over HTTP/2: they share a connection, but neither their pace nor their end. The server is our own."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme

from leasehold.adapters.aws.async_http import HttpLimits
from leasehold.adapters.aws.http2_streams import WINDOW_BYTES
from leasehold.adapters.aws.streamed_http import StreamedResponse
from leasehold.adapters.aws.streaming_endpoint import StreamingEndpoint
from leasehold.local.http2 import Http2Connection

DEADLINE_S = 30
PART = bytes(100_000)


class Server:
    """Responds as the body of each request says, and keeps the connections."""

    def __init__(self) -> None:
        self.connections: set[Http2Connection] = set()
        self.opened = 0
        self.parts_sent: dict[bytes, int] = {}
        self.disconnected: list[bytes] = []

    def connect(self) -> Http2Connection:
        self.opened += 1
        return Http2Connection(self.serve, self.connections)

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        command, _, count = body.partition(b" ")
        if command == b"never":
            await receive()
            return
        status = 400 if command == b"refuse" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        for number in range(int(count or 1)):
            await send({"type": "http.response.body", "body": PART, "more_body": True})
            self.parts_sent[body] = number + 1
        if command == b"wait":
            assert (await receive())["type"] == "http.disconnect"
            self.disconnected.append(body)
        elif command != b"cut":
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def endpoint_to(
    server: Server,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    response_s: float = DEADLINE_S,
) -> AsyncIterator[StreamingEndpoint]:
    theirs, ours = tls or (None, None)
    listener = await asyncio.get_running_loop().create_server(server.connect, "127.0.0.1", 0, ssl=theirs)
    port = listener.sockets[0].getsockname()[1]
    url = f"https://127.0.0.1:{port}/" if tls else f"http://127.0.0.1:{port}/"
    http_limits = HttpLimits(connections_max=1, connect_s=DEADLINE_S, response_s=response_s)
    endpoint = StreamingEndpoint(url, http_limits, ours, http2=True)
    async with listener, asyncio.timeout(DEADLINE_S):
        try:
            yield endpoint
        finally:
            endpoint.close()
            for connection in list(server.connections):
                connection._transport.abort()


def run(use: Callable[[StreamingEndpoint, Server], Awaitable[None]], response_s: float = DEADLINE_S) -> None:
    async def main() -> None:
        server = Server()
        async with endpoint_to(server, response_s=response_s) as endpoint:
            await use(endpoint, server)

    asyncio.run(main())


async def read_all(response: StreamedResponse) -> int:
    length = 0
    while data := await response.read():
        length += len(data)
    return length


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.001)


def test_responses_share_a_connection_up_to_a_limit() -> None:
    """Also requests that begin together, before the first connection is open."""

    async def use(endpoint: StreamingEndpoint, server: Server) -> None:
        requests = [endpoint.post({}, b"wait") for _ in range(101)]
        responses = await asyncio.gather(*requests)
        assert server.opened == 2
        for response in responses:
            response.close()
        await wait_until(lambda: len(server.disconnected) == 101)
        assert await read_all(await endpoint.post({"X-Name": "v"}, b"send 3")) == 3 * len(PART)
        assert server.opened == 2

    run(use)


def test_a_slow_caller_holds_only_its_own_response_back() -> None:
    """The server can send what fits into the window, and another response is not delayed."""

    async def use(endpoint: StreamingEndpoint, server: Server) -> None:
        slow = await endpoint.post({}, b"slow 40")
        assert await read_all(await endpoint.post({}, b"fast 40")) == 40 * len(PART)
        assert server.parts_sent[b"slow 40"] <= WINDOW_BYTES // len(PART)
        assert await read_all(slow) == 40 * len(PART)
        assert server.opened == 1

    run(use)


def test_an_abandoned_response_gives_its_part_of_the_connection_back() -> None:
    """Many times more bytes than the window of a connection has at first."""

    async def use(endpoint: StreamingEndpoint, server: Server) -> None:
        for _ in range(10):
            response = await endpoint.post({}, b"wait 5")
            await response.read()
            response.close()
            response.close()
        await wait_until(lambda: len(server.disconnected) == 10)
        assert await read_all(await endpoint.post({}, b"send 20")) == 20 * len(PART)

    run(use)


def test_an_incomplete_response_is_an_error() -> None:
    """Bytes before the cut are returned before the error. Other responses continue."""

    async def use(endpoint: StreamingEndpoint, server: Server) -> None:
        other = await endpoint.post({}, b"wait 2")
        cut = await endpoint.post({}, b"cut 2")
        length = 0
        with pytest.raises(ConnectionError, match="reset the response"):  # noqa: PT012 - bytes come first
            while data := await cut.read():
                length += len(data)
        assert length == 2 * len(PART)
        assert await other.read()
        refused = await endpoint.post({}, b"refuse")
        assert refused.status == 400
        assert server.opened == 1

    run(use)


def test_a_broken_connection_ends_all_of_its_responses() -> None:
    """The next request opens another connection."""

    async def use(endpoint: StreamingEndpoint, server: Server) -> None:
        responses = [await endpoint.post({}, b"wait 0") for _ in range(3)]
        waiting = [asyncio.ensure_future(response.read()) for response in responses]
        (connection,) = server.connections
        connection._transport.abort()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionError] * 3
        assert await read_all(await endpoint.post({}, b"send")) == len(PART)
        assert server.opened == 2

    run(use)


def test_a_server_that_ends_the_connection_ends_all_of_its_responses() -> None:
    """A GOAWAY frame, as during a deployment of the service."""

    async def use(endpoint: StreamingEndpoint, server: Server) -> None:
        response = await endpoint.post({}, b"wait 0")
        (connection,) = server.connections
        connection._h2.close_connection()
        connection._flush()
        with pytest.raises(ConnectionError, match="ends the connection"):
            await response.read()
        assert await read_all(await endpoint.post({}, b"send")) == len(PART)

    run(use)


def test_garbage_ends_the_connection() -> None:
    async def use(endpoint: StreamingEndpoint, server: Server) -> None:
        response = await endpoint.post({}, b"wait 0")
        (connection,) = server.connections
        connection._transport.write(bytes(range(256)) * 10)
        with pytest.raises(ConnectionError):
            await response.read()

    run(use)


def test_a_connection_without_a_response_is_not_used_again() -> None:
    """It may be half-open. The request times out, and the next one opens another connection."""

    async def use(endpoint: StreamingEndpoint, server: Server) -> None:
        with pytest.raises(TimeoutError):
            await endpoint.post({}, b"never")
        assert await read_all(await endpoint.post({}, b"send")) == len(PART)
        assert server.opened == 2

    run(use, response_s=3)


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_with_tls_the_server_chooses_the_protocol(protocol: str) -> None:
    """HTTP/2 if the server offers it."""
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    theirs.set_alpn_protocols([protocol])

    async def main() -> None:
        server = Server()
        if protocol != "h2":
            server.connect = lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), respond)  # type: ignore[method-assign, assignment, return-value]
        async with endpoint_to(server, (theirs, ours)) as endpoint:
            assert await read_all(await endpoint.post({}, b"send")) == len(PART)
            assert len(endpoint._shared) == (protocol == "h2")

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"send")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PART) + PART)

    asyncio.run(main())
