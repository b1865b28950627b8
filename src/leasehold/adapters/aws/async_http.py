"""HTTP/1.1 to one endpoint on the running event loop: kept-alive connections, one request at a time on each.

For frequent calls: no thread is involved, and the body of a response goes straight from the socket to where it stays.
Follows no redirects and never retries. Every failure is an `OSError`.

A response has no number that says to which request it belongs. So a connection is used again only while it is certain
that every byte received so far belongs to an earlier response. In every other case it is closed.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult, urlsplit

from leasehold.adapters.aws.http_response import Response, ResponseReader

DEFAULT_PORTS: Final = {"http": 80, "https": 443}


# The largest responses of Kinesis have about 20 MB: 10 MB of records in base64, and 10,000 keys and sequence numbers.
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
# Of the buffer for heads, and for what arrives with them.
_HEAD_BUFFER_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """How many connections at a time, how long to wait for a connection and for a response, and its largest size."""

    connections_max: int
    connect_s: float
    response_s: float
    response_bytes_max: int = RESPONSE_BYTES_MAX


class HttpEndpoint:
    """Posts to one URL, from one event loop at a time. After a change of loop, the old connections are dropped."""

    def __init__(self, url: str, limits: HttpLimits, tls: ssl.SSLContext | None) -> None:
        self._url = urlsplit(url)
        self._limits = limits
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(limits.connections_max)
        self._idle: list[_Connection] = []
        # One for all connections: the event loop fills it, and the connection empties it at once.
        self._head_buffer = memoryview(bytearray(_HEAD_BUFFER_BYTES))

    async def post(self, headers: Mapping[str, str], body: bytes) -> Response:
        """Send one request and wait for its response. If cancelled, the request may or may not have reached the
        server.
        """
        return await self.send(request_bytes(self._url, headers, body))

    async def send(self, request: bytes) -> Response:
        """Send a whole request, and wait for its response, as `post` does."""
        self._move_to_running_loop()
        async with self._slots:
            connection = await self._connection()
            try:
                response = await connection.send(request, self._limits)
            except BaseException:  # also a cancellation after the response has arrived
                connection.close()
                raise
            if connection.is_open:
                self._idle.append(connection)
            return response

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    def _move_to_running_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._idle.clear()  # the connections ended with their loop
            self._slots = asyncio.Semaphore(self._limits.connections_max)
            self._loop = loop

    async def _connection(self) -> _Connection:
        # Reuse the newest connection. Surplus connections stay unused until the server closes them.
        while self._idle:
            if (connection := self._idle.pop()).is_idle():
                return connection
            connection.close()
        async with asyncio.timeout(self._limits.connect_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self._head_buffer),
                str(self._url.hostname),
                self._url.port or DEFAULT_PORTS[self._url.scheme],
                ssl=self._tls,
            )
        if not connection.is_open:
            raise ConnectionError("the server closed the connection, or sent bytes before a request")
        return connection


class _Connection(asyncio.BufferedProtocol):
    """One connection. It notices at once when the server closes it or sends bytes without a request."""

    def __init__(self, head_buffer: memoryview) -> None:
        self.is_open = False
        self._head_buffer = head_buffer
        self._transport: asyncio.Transport
        self._unread = select.poll()
        # Both exist while a response is due.
        self._reader: ResponseReader | None = None
        self._response: asyncio.Future[Response] | None = None
        self._deadline_s = 0.0  # of the response that is due, by the clock of the loop
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, request: bytes, limits: HttpLimits) -> Response:
        """Send a request and wait for the whole response. After any failure the caller closes the connection."""
        loop = asyncio.get_running_loop()
        self._reader = ResponseReader(limits.response_bytes_max)
        self._response = loop.create_future()
        self._deadline_s = loop.time() + limits.response_s
        # One timer for many requests: to start and to stop one for each takes longer than to sign the request.
        if self._timer is None:
            self._timer = loop.call_at(self._deadline_s, self._check_deadline)
        self._transport.write(request)
        try:
            return await self._response
        finally:
            self._reader = self._response = None

    def is_idle(self) -> bool:
        """Whether it is open and no byte waits in the socket. Such a byte would become the start of the next response.

        With TLS, the byte may be harmless; then a new connection is opened unnecessarily.
        """
        return self.is_open and not self._unread.poll(0)

    def close(self) -> None:
        """Close immediately, without sending buffered data."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport.abort()

    # -- called by the event loop ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True
        endpoint = transport.get_extra_info("socket")
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._unread.register(endpoint.fileno(), select.POLLIN)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes are received: with the rest of a body, or with all that has to be parsed."""
        rest = self._reader.unfilled if self._reader is not None else None
        return self._head_buffer if rest is None else rest

    def buffer_updated(self, nbytes: int) -> None:
        if self._reader is None or self._response is None or self._response.done():
            self.close()  # no response is due
            return
        try:
            if self._reader.unfilled is None:
                response = self._reader.feed(bytes(self._head_buffer[:nbytes]))
            else:
                response = self._reader.note_received(nbytes)
        except OSError as error:
            self._fail(error)
            return
        if response is None:
            return
        # A server may respond before it has read the whole request. The rest would be taken for another request.
        is_sent = self._transport.get_write_buffer_size() == 0
        if not (self._reader.may_reuse_connection and is_sent):
            self.close()
        self._response.set_result(response)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._response is None:
            return  # the next request starts a timer
        loop = asyncio.get_running_loop()
        if loop.time() >= self._deadline_s:
            self._fail(TimeoutError())
        else:
            self._timer = loop.call_at(self._deadline_s, self._check_deadline)

    def eof_received(self) -> None:
        self._fail(ConnectionError("the server closed the connection before the end of the response"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc if isinstance(exc, OSError) else ConnectionError("the connection was closed"))

    def _fail(self, error: OSError) -> None:
        self.close()
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)


def request_bytes(to: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    """A POST request, as it is sent."""
    return f"{request_head(to, headers)}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def request_head(to: SplitResult, headers: Mapping[str, str]) -> str:
    """The head of a POST request, without the length of its body and without the empty line."""
    lines = [
        f"POST {to.path or '/'} HTTP/1.1",
        f"Host: {host_header(to)}",
        *(f"{name}: {printable_value(name, value)}" for name, value in headers.items()),
    ]
    return "".join(f"{line}\r\n" for line in lines)


def printable_value(name: str, value: str) -> str:
    """The value. Refuses one that would end its header and begin another one, without quoting it: it may be secret."""
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"the value of the header {name} has characters other than printable ASCII")
    return value


@lru_cache(maxsize=64)
def host_header(to: SplitResult) -> str:
    """The Host header as it is signed: without the default port."""
    name = f"[{to.hostname}]" if ":" in (to.hostname or "") else to.hostname
    return f"{name}" if to.port in {None, DEFAULT_PORTS[to.scheme]} else f"{name}:{to.port}"
