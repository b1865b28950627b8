"""HTTP/1.1 responses that last for minutes, read as they arrive: one connection for each.

Bytes are taken from the socket only while the caller reads or the buffer is small, so a slow caller slows the server
down. A connection is never used again. Every failure is an `OSError`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import urlsplit

from leasehold.adapters.aws.async_http import DEFAULT_PORTS, HttpLimits, request_bytes
from leasehold.adapters.aws.http_response import BodyReader

# Reading from the socket pauses while more than twice as many bytes wait for the caller.
BUFFER_BYTES: Final = 64 * 1024
_HEAD_BYTES_MAX: Final = 64 * 1024


class StreamedResponse(Protocol):
    """A response whose body is read as it arrives."""

    @property
    def status(self) -> int:
        """The final status."""
        ...

    async def read(self) -> bytes:
        """The next bytes of the body; empty at its end. An OSError if the connection ends before the body."""
        ...

    def close(self) -> None:
        """Abandon the response at once. A waiting `read` fails. Safe to call more than once."""
        ...


class StreamingEndpoint:
    """Posts to one URL, and returns the responses once their head has arrived."""

    def __init__(self, url: str, limits: HttpLimits, tls: ssl.SSLContext | None) -> None:
        self._url = urlsplit(url)
        self._limits = limits
        self._tls = tls

    async def post(self, headers: Mapping[str, str], body: bytes) -> StreamedResponse:
        """Send a request on a new connection, and wait for the head of the response."""
        async with asyncio.timeout(self._limits.connect_s):
            reader, writer = await asyncio.open_connection(
                str(self._url.hostname),
                self._url.port or DEFAULT_PORTS[self._url.scheme],
                ssl=self._tls,
                limit=BUFFER_BYTES,
            )
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        response = _Http1Response(reader, writer)
        try:
            async with asyncio.timeout(self._limits.response_s):
                await response.send(request_bytes(self._url, headers, body))
        except BaseException:  # also a cancellation
            response.close()
            raise
        return response


class _Http1Response(StreamedResponse):
    """One connection, and the only response on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = BodyReader(_HEAD_BYTES_MAX)
        self._received = b""  # the beginning of the body, if it arrived with the head

    @property
    def status(self) -> int:
        """The final status."""
        assert self._parser.status is not None, "the head has arrived"
        return self._parser.status

    async def send(self, request: bytes) -> None:
        """Send the request, and wait for the head of the response."""
        self._writer.write(request)
        while self._parser.status is None:
            self._received += await self._receive()

    async def read(self) -> bytes:
        """The next bytes of the body."""
        received, self._received = self._received, b""
        while not received and not self._parser.is_complete:
            received = await self._receive()
        if self._parser.is_complete:
            self.close()
        return received

    def close(self) -> None:
        """Close the connection without sending buffered data. `_receive` then fails."""
        self._writer.transport.abort()

    async def _receive(self) -> bytes:
        data = await self._reader.read(BUFFER_BYTES)
        if not data:
            raise ConnectionError("the connection was closed before the end of the response")
        return self._parser.feed(data)
