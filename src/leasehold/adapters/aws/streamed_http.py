"""Responses that last for minutes, read as they arrive; and how they are read over HTTP/1.1, with one connection for
each.

Bytes are taken from the socket only while the caller reads or the buffer is small, so a slow caller slows the server
down. A connection is never used again. Every failure is an `OSError`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import SplitResult

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


class PendingResponse(StreamedResponse, Protocol):
    """A response whose head may not have arrived yet."""

    async def wait_for_head(self) -> None:
        """Wait until the status is known."""
        ...


class SharedConnection(asyncio.Protocol, ABC):
    """A connection that several responses share."""

    @property
    @abstractmethod
    def may_post(self) -> bool:
        """Whether another request may be sent on it."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether it has no responses."""

    @abstractmethod
    def post(self, to: SplitResult, headers: Mapping[str, str], body: bytes) -> PendingResponse:
        """Send a request."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection at once. All of its responses fail."""


class Http1Response(StreamedResponse):
    """One connection, and the only response on it."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.Transport) -> None:
        self._reader = reader
        self._transport = transport
        self._parser = BodyReader(_HEAD_BYTES_MAX)
        self._received = b""  # the beginning of the body, if it arrived with the head
        self._is_closed = False

    @property
    def status(self) -> int:
        """The final status."""
        assert self._parser.status is not None, "the head has arrived"
        return self._parser.status

    async def send(self, request: bytes) -> None:
        """Send the request, and wait for the head of the response."""
        self._transport.write(request)
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
        self._is_closed = True
        self._transport.abort()

    async def _receive(self) -> bytes:
        data = await self._reader.read(BUFFER_BYTES)
        if data:
            return self._parser.feed(data)
        if self._is_closed:
            raise ConnectionError("the response was closed")
        self._parser.finish()
        return b""
