"""Sends requests whose responses last for minutes, over HTTP/1.1 or HTTP/2.

Over HTTP/1.1, each response has its own connection. Over HTTP/2, they share connections. With TLS, the server chooses
between the two. Every failure is an `OSError`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from leasehold.adapters.aws.async_http import DEFAULT_PORTS, HttpLimits, request_bytes
from leasehold.adapters.aws.streamed_http import (
    BUFFER_BYTES,
    Http1Response,
    SharedConnection,
    StreamedResponse,
)
from leasehold.errors import ConfigError

_HTTP2: Final = "h2"

# A connection of its own for one response, or one that responses share.
_Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.Transport] | SharedConnection


class StreamingEndpoint:
    """Posts to one URL from one event loop, and returns the responses once their head has arrived.

    With `http2` and TLS, HTTP/2 is offered to the server; without TLS, it is used without asking. HTTP/1.1 takes a
    quarter less processor time for each byte; HTTP/2 takes one connection for a hundred responses.
    """

    def __init__(self, url: str, limits: HttpLimits, tls: ssl.SSLContext | None, *, http2: bool) -> None:
        self._url = urlsplit(url)
        self._limits = limits
        self._tls = tls
        self._open_http2 = http2_factory() if http2 else None
        self._may_share = http2  # false once the server has chosen HTTP/1.1
        self._shared: list[SharedConnection] = []
        self._connecting = asyncio.Lock()
        if http2 and tls is not None:
            tls.set_alpn_protocols([_HTTP2, "http/1.1"])

    async def post(self, headers: Mapping[str, str], body: bytes) -> StreamedResponse:
        """Send a request, and wait for the head of the response."""
        async with asyncio.timeout(self._limits.connect_s):
            connection = await self._connection()
        if not isinstance(connection, tuple):
            return await self._post_shared(connection, headers, body)
        response = Http1Response(*connection)
        try:
            async with asyncio.timeout(self._limits.response_s):
                await response.send(request_bytes(self._url, headers, body))
        except BaseException:  # also a cancellation
            response.close()
            raise
        return response

    def close(self) -> None:
        """Close the shared connections. The other ones belong to their responses."""
        while self._shared:
            self._shared.pop().close()

    async def _post_shared(
        self, connection: SharedConnection, headers: Mapping[str, str], body: bytes
    ) -> StreamedResponse:
        response = connection.post(self._url, headers, body)
        try:
            async with asyncio.timeout(self._limits.response_s):
                await response.wait_for_head()
        except TimeoutError:
            connection.close()  # the other responses on it are as dead, and are requested again at once
            raise
        except BaseException:  # also a cancellation
            response.close()
            raise
        return response

    async def _connection(self) -> _Connection:
        if not self._may_share:
            return await self._connect()
        # One after the other, so that requests that begin together share a connection.
        async with self._connecting:
            for connection in list(self._shared):
                if connection.may_post:
                    return connection
                if connection.is_idle:
                    self._shared.remove(connection)
                    connection.close()
            opened = await self._connect()
            if isinstance(opened, tuple):
                self._may_share = False
            else:
                self._shared.append(opened)
            return opened

    async def _connect(self) -> _Connection:
        transport, chooser = await asyncio.get_running_loop().create_connection(
            lambda: _ProtocolChooser(self._open_http2),
            str(self._url.hostname),
            self._url.port or DEFAULT_PORTS[self._url.scheme],
            ssl=self._tls,
        )
        return chooser.shared or (chooser.reader, transport)


class _ProtocolChooser(asyncio.Protocol):
    """Passes a new connection on to the protocol that the server has chosen, before its first byte arrives."""

    def __init__(self, open_http2: Callable[[], SharedConnection] | None) -> None:
        self._open_http2 = open_http2
        self.shared: SharedConnection | None = None
        self.reader = asyncio.StreamReader(limit=BUFFER_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        tls = transport.get_extra_info("ssl_object")
        protocol: asyncio.BaseProtocol
        if self._open_http2 and (tls is None or tls.selected_alpn_protocol() == _HTTP2):
            protocol = self.shared = self._open_http2()
        else:
            protocol = asyncio.StreamReaderProtocol(self.reader)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def http2_factory() -> Callable[[], SharedConnection]:
    """What opens a connection over HTTP/2. ConfigError if the extra is not installed."""
    try:
        from leasehold.adapters.aws.http2_streams import Http2Connection  # noqa: PLC0415 - it needs an extra
    except ImportError as error:
        raise ConfigError(
            "HTTP/2 needs the extra http2: pip install 'leasehold[http2]', or use HTTP/1.1"
        ) from error
    return Http2Connection
