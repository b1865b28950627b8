"""HTTP on the event loop: connections are reused, and a failure on one does not affect the next request."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
import trustme

from leasehold.adapters.aws.async_http import HttpEndpoint, HttpLimits, Response

T = TypeVar("T")
LIMITS = HttpLimits(connections_max=2, connect_s=30, response_s=30)
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Sends the next of its responses to each request, when the test allows it; None closes the connection."""

    def __init__(self, *responses: bytes | None) -> None:
        self.responses = list(responses)
        self.requests: list[bytes] = []
        self.connections = 0
        self.received = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
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


def test_a_connection_is_reused() -> None:
    """Head and body arrive unchanged, and the next request uses the same connection."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({"X-Name": "value"}, b"abc") == Response(200, b"{}")
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 1
        assert server.requests[0].startswith(b"POST / HTTP/1.1\r\nHost: 127.0.0.1:")
        assert server.requests[0].endswith(b"\r\nContent-Length: 3\r\nX-Name: value\r\n\r\nabc")

    with_endpoint(Server, use)


def test_a_chunked_response_is_joined() -> None:
    """The body of a chunked response is complete, and the connection can be reused."""
    chunked = b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({}, b"") == Response(400, b"abcde")
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 1

    with_endpoint(lambda: Server(chunked), use)


@pytest.mark.parametrize(
    "last", [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", GOOD + GOOD]
)
def test_an_unreliable_connection_is_not_reused(last: bytes) -> None:
    """Neither a connection that the server closes, nor one on which an unrequested response arrived."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert await endpoint.post({}, b"") == Response(200, b"{}")
        assert server.connections == 2

    with_endpoint(lambda: Server(last), use)


@pytest.mark.parametrize("response", [None, b"SSH-2.0-OpenSSH\r\n\r\n"])
def test_a_failed_request_is_an_os_error(response: bytes | None) -> None:
    """A server that closes the connection or does not speak HTTP raises OSError; the next request uses a new
    connection.
    """

    async def use(endpoint: HttpEndpoint, _server: Server) -> None:
        with pytest.raises(ConnectionError):
            await endpoint.post({}, b"")
        assert await endpoint.post({}, b"") == Response(200, b"{}")

    with_endpoint(lambda: Server(response), use)


def test_a_response_has_a_timeout() -> None:
    """After the timeout the request fails with an OSError."""

    async def use(endpoint: HttpEndpoint, server: Server) -> None:
        server.go_on.clear()
        with pytest.raises(TimeoutError):
            await endpoint.post({}, b"")

    with_endpoint(Server, use, HttpLimits(connections_max=2, connect_s=30, response_s=0.05))


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
    authority, other_authority = trustme.CA(), trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    (authority if is_known else other_authority).issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)

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
