"""HTTP/1.1 to one endpoint on the running event loop: kept-alive connections, one request at a time on each.

For calls that are made all the time: no thread is woken, and between the socket and the parser (httptools) there is
nothing. Knows no AWS, follows no redirect, retries nothing. What goes wrong is an `OSError`.
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
    """How many connections at one time, and how long to wait for one and for an answer."""

    connections_max: int
    connect_s: float
    response_s: float


@dataclass(frozen=True, slots=True)
class Response:
    """What the server said, whatever its status."""

    status: int
    body: bytes


class HttpEndpoint:
    """Posts to one URL. Used from one event loop at a time; whoever comes with another finds no old connections."""

    def __init__(self, url: str, limits: HttpLimits, tls: ssl.SSLContext | None) -> None:
        self._to = urlsplit(url)
        self._limits = limits
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = asyncio.Semaphore(limits.connections_max)
        self._idle: list[_Connection] = []

    async def post(self, headers: Mapping[str, str], body: bytes) -> Response:
        """One request and its answer. Who is cancelled does not know whether the server got it."""
        self._move_to_running_loop()
        request = _request(self._to, headers, body)
        async with self._turns:
            connection = await self._connection()
            async with asyncio.timeout(self._limits.response_s):
                answer = await connection.ask(request)
            if connection.is_open:
                self._idle.append(connection)
            return answer

    def close(self) -> None:
        """Give back the connections."""
        while self._idle:
            self._idle.pop().close()

    def _move_to_running_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._idle.clear()  # they died with their loop
            self._turns = asyncio.Semaphore(self._limits.connections_max)
            self._loop = loop

    async def _connection(self) -> _Connection:
        # The last one first: those that are not needed grow old, and the server closes them.
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        async with asyncio.timeout(self._limits.connect_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection,
                str(self._to.hostname),
                self._to.port or _DEFAULT_PORTS[self._to.scheme],
                ssl=self._tls,
            )
        return connection


class _Connection(asyncio.Protocol):
    """One connection. It is told of the server's end as soon as that comes, not when it is used next."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._answer: asyncio.Future[Response] | None = None

    async def ask(self, request: bytes) -> Response:
        """Send a request, and wait for the whole answer. After anything else the connection is of no more use."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            if self._answer.cancelled() or self._answer.exception() is not None:
                self.close()
            self._answer = None

    def close(self) -> None:
        """At once: nothing that is under way matters any more."""
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
            self._fail(ConnectionError(f"the answer is not HTTP ({type(error).__name__})"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc if isinstance(exc, OSError) else ConnectionError("the server closed the connection"))

    # -- called by the parser ----------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        answer = Response(self._parser.get_status_code(), b"".join(self._parts))
        self._parts.clear()
        is_last = not self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
        else:
            is_last = True  # nobody asked for this: whatever comes next could be taken for another answer
        if is_last:
            self.close()

    def _fail(self, error: OSError) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _request(to: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {to.path or '/'} HTTP/1.1",
        f"Host: {_host(to)}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body


def _host(to: SplitResult) -> str:
    """As it is signed: a port that goes without saying is not said."""
    name = f"[{to.hostname}]" if ":" in (to.hostname or "") else to.hostname
    return f"{name}" if to.port in {None, _DEFAULT_PORTS[to.scheme]} else f"{name}:{to.port}"
