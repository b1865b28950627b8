"""HTTP on the event loop: connections are reused, and a failure on one does not affect the next request."""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
import trustme

from leasehold.adapters.aws.async_http import HttpEndpoint, HttpLimits, _Connection
from leasehold.adapters.aws.http_response import Response

T = TypeVar("T")
LIMITS = HttpLimits(connections_max=2, connect_s=30, response_s=30)
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
OTHER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"
LARGE_BODY = bytes(range(256)) * 1_200
LARGE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE_BODY) + LARGE_BODY
DEADLINE_S = 30


class Server:
    """Sends the next of its responses to each request, when the test allows it; None closes the connection.

    `last_writer` is the newest connection, on which a test can send bytes that no request asked for.
    """

    def __init__(self, *responses: bytes | None) -> None:
        self.responses = list(responses)
        self.requests: list[bytes] = []
        self.connections = 0
        self.last_writer: asyncio.StreamWriter
        self.received = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.last_writer = writer
        try:
            while response := await self._next_response(reader):
                writer.write(response)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass  # the client has closed
        finally:
            writer.close()

    async def _next_response(self, reader: asyncio.StreamReader) -> bytes | None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        self.received.set()
        await self.go_on.wait()
        return self.responses.pop(0) if self.responses else GOOD


@asynccontextmanager
async def serving(server: Server, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port on which the server listens."""
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    async with listener:
        yield listener.sockets[0].getsockname()[1]


def with_endpoint(
    server: Callable[[], Server],
    use: Callable[[HttpEndpoint, Server], Awaitable[T]],
    limits: HttpLimits = LIMITS,
) -> T:
    """Run `use` with an endpoint that leads to the server."""

    async def main() -> T:
        there = server()
        async with serving(there) as port:
            endpoint = HttpEndpoint(f"http://127.0.0.1:{port}/", limits, None)
            try:
                return await use(endpoint, there)
            finally:
                endpoint.close()

    return asyncio.run(main())


def tls_contexts(*, is_known: bool = True) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and of a client, which trusts the authority of the server if that is known."""
    authority, other_authority = trustme.CA(), trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    (authority if is_known else other_authority).issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    return theirs, ours


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - no event tells of bytes in a socket
            await asyncio.sleep(0.001)


def test_a_connection_is_reused() -> None:
    """Head and body arrive unchanged, and the next request uses the same connection."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({"X-Name": "value"}, b"abc") == Response(200, b"{}")
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 1
        assert server.requests[0].startswith(b"POST / HTTP/1.1\r\nHost: 127.0.0.1:")
        assert server.requests[0].endswith(b"\r\nX-Name: value\r\nContent-Length: 3\r\n\r\nabc")

    with_endpoint(Server, use)


def test_a_chunked_response_is_joined() -> None:
    """The body of a chunked response is complete, and the connection can be reused."""
    chunked = b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({}, b"") == Response(400, b"abcde")
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 1

    with_endpoint(lambda: Server(chunked), use)


def test_a_connection_that_the_server_closes_is_not_reused() -> None:
    """The server announces it, or closes after the response."""
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 2
        server.last_writer.close()
        await wait_until(lambda: not any(each.is_idle() for each in endpoint._idle))
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 3

    with_endpoint(lambda: Server(last), use)


def test_interim_responses_are_skipped() -> None:
    """The response to a request is the first final one. The connection is reused."""
    own = [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number for number in range(5)]

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        answers = [await endpoint.post({}, b"") for _ in own]
        assert answers == [Response(200, b"%d" % number) for number in range(5)]
        assert server.connections == 1

    with_endpoint(lambda: Server(*(INTERIM * 3 + each for each in own)), use)


@pytest.mark.parametrize("unrequested", [OTHER, INTERIM, b"\r\n", b"HTTP/1.1 2", b"\x00"])
def test_unrequested_bytes_on_an_idle_connection_close_it(unrequested: bytes) -> None:
    """They never become the start of the next response."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        server.last_writer.write(unrequested)
        await wait_until(lambda: not any(each.is_idle() for each in endpoint._idle))
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 2

    with_endpoint(Server, use)


@pytest.mark.parametrize("unrequested", [OTHER, INTERIM, b"\r\n", b"x"])
def test_unread_bytes_on_an_idle_connection_close_it(unrequested: bytes) -> None:
    """Also bytes that have arrived, but that the event loop has not read when the next request is sent."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        (connection,) = endpoint._idle
        connection._transport.pause_reading()
        server.last_writer.write(unrequested)
        await wait_until(lambda: not connection.is_idle())
        assert connection.is_open
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 2

    with_endpoint(Server, use)


@pytest.mark.parametrize("extra", [OTHER, INTERIM, b"x"])
def test_a_second_response_in_the_same_segment_is_an_error(extra: bytes) -> None:
    """Nobody knows which of the two answers the request. The next request uses a new connection."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        with pytest.raises(OSError, match="more than one response"):
            await endpoint.post({}, b"")
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 2

    with_endpoint(lambda: Server(GOOD + extra), use)


@pytest.mark.parametrize("extra", [OTHER, INTERIM, b"x", b"\r\n"])
def test_bytes_after_a_body_that_arrives_in_parts_close_the_connection(extra: bytes) -> None:
    """The body is received into its place, and the bytes after it are not taken for the next response."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({}, b"") == Response(200, LARGE_BODY)
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 2

    with_endpoint(lambda: Server(LARGE + extra), use)


@pytest.mark.parametrize(("extra", "connections"), [(b"", 1), (b"x", 2), (OTHER, 2)])
def test_bytes_after_a_large_body_over_tls_close_the_connection(extra: bytes, connections: int) -> None:
    """Their record may be decrypted together with the end of the body. Then no byte waits in the socket."""
    theirs, ours = tls_contexts()

    async def main() -> None:
        server = Server(LARGE + extra)
        async with serving(server, theirs) as port:
            endpoint = HttpEndpoint(f"https://127.0.0.1:{port}/", LIMITS, ours)
            try:
                assert await endpoint.post({}, b"") == Response(200, LARGE_BODY)
                assert await endpoint.post({}, b"") == Response(200, b"{}")
                assert server.connections == connections
            finally:
                endpoint.close()

    asyncio.run(main())


def test_a_line_end_after_a_response_closes_the_connection() -> None:
    """The response is complete, and a line end cannot be another one."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 2

    with_endpoint(lambda: Server(GOOD + b"\r\n"), use)


def test_a_server_that_speaks_first_is_refused() -> None:
    """Its bytes arrive before a request, so they are no response."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(OTHER)

    async def main() -> None:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            connect = asyncio.get_running_loop().create_connection(
                lambda: _Connection(memoryview(bytearray(100))), "127.0.0.1", port
            )
            _, connection = await connect
            await wait_until(lambda: not connection.is_open)
            writers[0].close()

    writers: list[asyncio.StreamWriter] = []
    asyncio.run(main())


def test_a_response_before_the_end_of_the_request_closes_the_connection() -> None:
    """The server has not read the rest of the request, and could take it for another one."""

    async def respond_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")

    async def main() -> None:
        async with await asyncio.start_server(respond_early, "127.0.0.1", 0, limit=1024) as listener:
            port = listener.sockets[0].getsockname()[1]
            endpoint = HttpEndpoint(f"http://127.0.0.1:{port}/", LIMITS, None)
            for _ in range(2):
                assert await endpoint.post({}, bytes(50_000_000)) == Response(413, b"{}")
            assert len(writers) == 2
            assert not endpoint._idle
            for writer in writers:
                writer.close()
                await writer.wait_closed()

    writers: list[asyncio.StreamWriter] = []
    asyncio.run(main())


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (None, "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not valid HTTP"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
            "another protocol",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "neither a Content-Length nor chunks"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "larger than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + bytes(1001), "larger than 1000"),
        (INTERIM * 100, "larger than 1000 bytes"),
    ],
)
def test_a_failed_request_is_an_os_error(response: bytes | None, problem: str) -> None:
    """The error says why there is no usable response; the next request uses a new connection."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        with pytest.raises(ConnectionError, match=problem):
            await endpoint.post({}, b"")
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 2

    with_endpoint(
        lambda: Server(response),
        use,
        HttpLimits(connections_max=2, connect_s=30, response_s=30, response_bytes_max=1000),
    )


@pytest.mark.parametrize(
    "whole", [GOOD, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
)
def test_a_truncated_response_is_an_error(whole: bytes) -> None:
    """A response is never returned before its last byte has arrived."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        request = asyncio.create_task(endpoint.post({}, b""))
        await wait_until(lambda: not server.responses)
        server.last_writer.close()
        with pytest.raises(ConnectionError, match="before the end of the response"):
            await request
        assert await endpoint.post({}, b"") == Response(200, b"{}")

    with_endpoint(lambda: Server(INTERIM + whole[:-1]), use)


def test_a_response_has_a_timeout() -> None:
    """After the timeout the request fails with an OSError."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        server.go_on.clear()
        with pytest.raises(TimeoutError):
            await endpoint.post({}, b"")

    with_endpoint(Server, use, HttpLimits(connections_max=2, connect_s=30, response_s=0.05))


def test_the_timeout_of_each_request_begins_when_it_is_sent() -> None:
    """On a connection that had requests before: not earlier, and a request without a response still fails."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + 2.5 * limits.response_s
        while loop.time() < until:
            assert await endpoint.post({}, b"") == Response(200, b"{}")
        server.go_on.clear()
        began = loop.time()
        with pytest.raises(TimeoutError):
            await endpoint.post({}, b"")
        assert loop.time() - began >= limits.response_s
        assert server.connections == 1

    limits = HttpLimits(connections_max=2, connect_s=30, response_s=1)
    with_endpoint(Server, use, limits)


def test_requests_on_one_connection_share_a_timer() -> None:
    """Hundreds of requests a second leave no timers behind, also after the connection is closed."""

    async def use(endpoint: HttpEndpoint, _server: Server) -> list[object]:
        for _ in range(20):
            await endpoint.post({}, b"")
        return list(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]

    assert len(with_endpoint(Server, use)) == 1


def test_a_late_response_to_a_cancelled_request_is_dropped() -> None:
    """The next request does not receive the response to a cancelled one."""
    late = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate"

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        server.go_on.clear()
        asking = asyncio.create_task(endpoint.post({}, b""))
        await server.received.wait()
        asking.cancel()
        await asyncio.wait([asking])
        server.go_on.set()
        assert await endpoint.post({}, b"") == Response(200, b"{}")

    with_endpoint(lambda: Server(late), use)


@pytest.mark.parametrize("part", [INTERIM, GOOD[:20], GOOD[:-1]])
def test_the_rest_of_a_cancelled_request_is_dropped(part: bytes) -> None:
    """The response has begun, so the connection is closed."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        request = asyncio.create_task(endpoint.post({}, b""))
        await wait_until(lambda: not server.responses)
        for _ in range(10):
            await asyncio.sleep(0)  # the part arrives
        request.cancel()
        await asyncio.wait([request])
        server.last_writer.write((INTERIM + GOOD)[len(part) :])
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 2

    with_endpoint(lambda: Server(part), use)


def test_a_request_that_is_cancelled_when_its_response_arrives_closes_its_connection() -> None:
    """The connection is neither reused nor forgotten while it is open."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        server.go_on.clear()
        request = asyncio.create_task(endpoint.post({}, b""))
        await server.received.wait()
        connection = next(
            each for each in gc.get_objects() if isinstance(each, _Connection) and each._response
        )
        connection.get_buffer(-1)[: len(GOOD)] = GOOD
        connection.buffer_updated(len(GOOD))
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled()
        assert not connection.is_open
        assert not endpoint._idle

    with_endpoint(Server, use)


def test_the_number_of_connections_is_limited() -> None:
    """A request beyond the limit waits for a free connection."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        responses = await asyncio.gather(*(endpoint.post({}, b"") for _ in range(20)))
        assert responses == [Response(200, b"{}")] * 20
        assert server.connections <= LIMITS.connections_max

    with_endpoint(Server, use)


def test_an_endpoint_works_on_a_second_event_loop() -> None:
    """Connections of a closed loop are not used on the next one."""
    endpoint: HttpEndpoint | None = None

    async def use() -> None:
        nonlocal endpoint
        async with serving(Server()) as port:
            endpoint = endpoint or HttpEndpoint(f"http://127.0.0.1:{port}/", LIMITS, None)
            endpoint._url = endpoint._url._replace(netloc=f"127.0.0.1:{port}")
            # More requests than connections, so that some wait on the semaphore, which belongs to a loop.
            await asyncio.gather(*(there.post({}, b"") for there in [endpoint] * 5))
            endpoint.close()

    asyncio.run(use())
    asyncio.run(use())


@pytest.mark.parametrize("is_known", [True, False])
def test_the_certificate_of_the_server_is_verified(is_known: bool) -> None:
    """With TLS, only a certificate of a trusted authority opens a connection."""
    theirs, ours = tls_contexts(is_known=is_known)

    async def main() -> Response:
        async with serving(Server(), theirs) as port:
            endpoint = HttpEndpoint(f"https://127.0.0.1:{port}/", LIMITS, ours)
            try:
                return await endpoint.post({}, b"")
            finally:
                endpoint.close()

    if is_known:
        assert asyncio.run(main()) == Response(200, b"{}")
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            asyncio.run(main())


@pytest.mark.parametrize(
    "value", ["secret\r\nX-Other: 1", "secret\n", "secret\u0151", "secret\u00e9", "secret\0"]
)
def test_a_header_cannot_begin_another_one(value: str) -> None:
    """The error names the header, and does not quote the value. Nothing is sent."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        with pytest.raises(ValueError, match="the header X-Amz-Security-Token has") as refused:
            await endpoint.post({"X-Amz-Security-Token": value}, b"")
        assert "secret" not in str(refused.value)
        assert server.connections == 0

    with_endpoint(Server, use)
