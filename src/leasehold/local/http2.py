"""HTTP/2 without TLS, for clients that start with it: the Java SDK's asynchronous client (and so the Java KCL) and the
JavaScript SDK. One connection carries many requests, which the same application serves as over HTTP/1.1.

The library h2 implements the protocol. This module converts its events to ASGI messages, and splits responses into
frames that fit the client's flow-control windows. (Uvicorn's own HTTP/2 needs a parser that is still in alpha.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from leasehold.local.asgi import Message, Receive, Scope, Send

# The first bytes of every HTTP/2 connection. HTTP/1.1 has no method PRI.
PREFACE_START: Final = b"PRI"

App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Exchange:
    """One request and its response."""

    stream_id: int
    messages: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    is_disconnected: bool = False
    has_ended: bool = False

    def add_body(self, body: bytes, *, more: bool) -> None:
        self.messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def disconnect(self) -> None:
        """Mark the request as abandoned: the client reset it or closed the connection."""
        self.is_disconnected = True
        self.messages.put_nowait({"type": "http.disconnect"})


class Http2Connection(asyncio.Protocol):
    """One connection of a client that uses HTTP/2."""

    def __init__(self, app: App, connections: set[Any]) -> None:
        self._app = app
        self._connections = connections
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._exchanges: dict[int, _Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport
        # Set when waiting senders should check again: a window opened, or the client disconnected.
        self._progress = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_closing = False

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._connections.discard(self)
        for exchange in self._exchanges.values():
            exchange.disconnect()
        self._may_write.set()
        self._progress.set()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._handle(event)
        except ProtocolError:
            # h2 has queued a GOAWAY frame with the reason.
            self._flush()
            self._transport.close()
        else:
            self._flush()
            self._close_if_done()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def shutdown(self) -> None:
        """Accept no new requests, and close the connection when the current ones have ended."""
        self._is_closing = True
        self._close_if_done()

    # Events from the client

    def _handle(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=stream_id, headers=headers):
                self._start_exchange(stream_id, [(bytes(name), bytes(value)) for name, value in headers])
            case DataReceived(stream_id=stream_id, data=data, flow_controlled_length=length):
                self._h2.acknowledge_received_data(length, stream_id)
                if stream_id in self._exchanges:
                    self._exchanges[stream_id].add_body(data, more=True)
            case StreamEnded(stream_id=stream_id) if stream_id in self._exchanges:
                self._exchanges[stream_id].add_body(b"", more=False)
            case StreamReset(stream_id=stream_id) if stream_id in self._exchanges:
                self._exchanges[stream_id].disconnect()
                self._progress.set()
            case WindowUpdated():
                self._progress.set()
            case ConnectionTerminated():
                self._is_closing = True
            case _:
                pass

    def _start_exchange(self, stream_id: int, headers: list[tuple[bytes, bytes]]) -> None:
        pseudo = {name: value.decode("latin-1") for name, value in headers if name.startswith(b":")}
        # The application checks the host. HTTP/2 has it in :authority, and a client may send either or both.
        host = [(b"host", value) for name, value in headers if name == b":authority"]
        scope: Scope = {
            "type": "http",
            "method": pseudo.get(b":method", ""),
            "path": pseudo.get(b":path", "/").partition("?")[0],
            "headers": host + [(name, value) for name, value in headers if not name.startswith(b":")],
        }
        exchange = self._exchanges[stream_id] = _Exchange(stream_id)
        task = asyncio.create_task(self._serve(scope, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Responses to the client

    async def _serve(self, scope: Scope, exchange: _Exchange) -> None:
        async def send(message: Message) -> None:
            await self._send(exchange, message)

        try:
            await self._app(scope, exchange.messages.get, send)
        finally:
            self._reset_unless_ended(exchange)
            del self._exchanges[exchange.stream_id]
            self._close_if_done()

    async def _send(self, exchange: _Exchange, message: Message) -> None:
        try:
            if message["type"] == "http.response.start":
                self._send_start(exchange, message)
            else:
                end = not message.get("more_body", False)
                await self._send_body(exchange, message.get("body", b""), end=end)
        except ProtocolError:
            # The client closed the request or the connection, so the rest of the response is dropped.
            exchange.disconnect()

    def _send_start(self, exchange: _Exchange, message: Message) -> None:
        if exchange.is_disconnected:
            return
        status = (b":status", b"%d" % message["status"])
        # HTTP/2 forbids connection-specific headers.
        headers = [item for item in message["headers"] if item[0] != b"connection"]
        self._h2.send_headers(exchange.stream_id, [status, *headers])
        self._flush()

    async def _send_body(self, exchange: _Exchange, body: bytes, *, end: bool) -> None:
        rest = memoryview(body)
        while rest and not exchange.is_disconnected:
            window = self._h2.local_flow_control_window(exchange.stream_id)
            if window <= 0:
                self._progress.clear()
                await self._progress.wait()
                continue
            frame = rest[: min(window, self._h2.max_outbound_frame_size)]
            self._h2.send_data(exchange.stream_id, frame)
            rest = rest[len(frame) :]
            self._flush()
            await self._may_write.wait()
        if end and not exchange.is_disconnected:
            self._h2.end_stream(exchange.stream_id)
            exchange.has_ended = True
            self._flush()

    def _reset_unless_ended(self, exchange: _Exchange) -> None:
        """Tell the client that no more of an incomplete response follows."""
        if exchange.has_ended or exchange.is_disconnected or self._transport.is_closing():
            return
        with suppress(ProtocolError):
            self._h2.reset_stream(exchange.stream_id, ErrorCodes.INTERNAL_ERROR)
        self._flush()

    def _flush(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._h2.data_to_send())

    def _close_if_done(self) -> None:
        if self._is_closing and not self._exchanges and not self._transport.is_closing():
            self._h2.close_connection()
            self._flush()
            self._transport.close()
