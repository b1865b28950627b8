"""HTTP/1.1 to one endpoint on the running event loop: kept-alive connections, one request at a time on each.

For frequent calls: no thread is involved, and bytes go straight from the socket to the parser (httptools). Follows no
redirects and never retries. Every failure is an `OSError`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import httptools

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """How many connections at a time, and how long to wait for a connection and for a response."""

    connections_max: int
    connect_s: float
    response_s: float


@dataclass(frozen=True, slots=True)
class Response:
    """The response of the server, with any status."""

    status: int
    body: bytes


class HttpEndpoint:
    """Posts to one URL, from one event loop at a time. After a change of loop, the old connections are dropped."""

    def __init__(self, url: str, limits: HttpLimits, tls: ssl.SSLContext | None) -> None:
        self._url = urlsplit(url)
        self._limits = limits
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(limits.connections_max)
        self._idle: list[_Connection] = []

    async def post(self, headers: Mapping[str, str], body: bytes) -> Response:
        """Send one request and wait for its response. If cancelled, the request may or may not have reached the
        server.
        """
        self._move_to_running_loop()
        request = _request(self._url, headers, body)
        async with self._slots:
            connection = await self._connection()
            async with asyncio.timeout(self._limits.response_s):
                response = await connection.send(request)
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
            if (connection := self._idle.pop()).is_open:
                return connection
        async with asyncio.timeout(self._limits.connect_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection,
                str(self._url.hostname),
                self._url.port or _DEFAULT_PORTS[self._url.scheme],
                ssl=self._tls,
            )
        return connection


class _Connection(asyncio.Protocol):
    """One connection. It notices at once when the server closes it, not only at the next use."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._response: asyncio.Future[Response] | None = None

    async def send(self, request: bytes) -> Response:
        """Send a request and wait for the whole response. After any failure the connection is closed."""
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._response
        finally:
            if self._response.cancelled() or self._response.exception() is not None:
                self.close()
            self._response = None

    def close(self) -> None:
        """Close immediately, without sending buffered data."""
        self.is_open = False
        self._transport.abort()

    # -- called by the event loop ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the response is not HTTP ({type(error).__name__})"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc if isinstance(exc, OSError) else ConnectionError("the server closed the connection"))

    # -- called by the parser ----------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        response = Response(self._parser.get_status_code(), b"".join(self._parts))
        self._parts.clear()
        is_last = not self._parser.should_keep_alive()
        if self._response is not None and not self._response.done():
            self._response.set_result(response)
        else:
            is_last = True  # no request is pending, so later bytes could be mistaken for another response
        if is_last:
            self.close()

    def _fail(self, error: OSError) -> None:
        self.close()
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)


def _request(to: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {to.path or '/'} HTTP/1.1",
        f"Host: {_host(to)}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body


def _host(to: SplitResult) -> str:
    """The Host header as it is signed: without the default port."""
    name = f"[{to.hostname}]" if ":" in (to.hostname or "") else to.hostname
    return f"{name}" if to.port in {None, _DEFAULT_PORTS[to.scheme]} else f"{name}:{to.port}"
