"""HTTP/2 responses that last for minutes, read as they arrive: many on one connection.

The library h2 implements the protocol. Each response has its own flow-control window, so a slow caller slows its own
response down, and no other. Every failure is an `OSError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from leasehold.adapters.aws.async_http import host_header, printable_value
from leasehold.adapters.aws.streamed_http import PendingResponse, SharedConnection

# How many bytes of a response the server may send before they are read.
WINDOW_BYTES: Final = 512 * 1024
# The window of the connection is as large as it can be: only the windows of responses hold the server back.
_CONNECTION_WINDOW_BYTES: Final = 2**31 - 1
_FRAME_BYTES_MAX: Final = 256 * 1024
# A connection that breaks ends all of its responses, so not all of them are on one.
_RESPONSES_MAX: Final = 100
# A healthy connection with responses receives an event about every five seconds. After a longer silence it may be
# half-open, and is not used for more requests.
_SILENCE_S: Final = 15.0


class Http2Connection(SharedConnection):
    """One connection to a server that speaks HTTP/2."""

    def __init__(self) -> None:
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._responses: dict[int, Http2Response] = {}
        self._received_at = self._loop.time()
        self._is_open = False

    @property
    def may_post(self) -> bool:
        """Whether another request may be sent on it."""
        if not self._is_open or self._loop.time() - self._received_at > _SILENCE_S:
            return False
        allowed = min(_RESPONSES_MAX, self._h2.remote_settings.max_concurrent_streams)
        return len(self._responses) < allowed

    @property
    def is_idle(self) -> bool:
        """Whether it has no responses."""
        return not self._responses

    def post(self, to: SplitResult, headers: Mapping[str, str], body: bytes) -> Http2Response:
        """Send a request."""
        try:
            stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, _header_list(to, headers, body))
            self._h2.send_data(stream_id, body, end_stream=True)
        except ProtocolError as error:
            self._fail(error)
            raise ConnectionError(f"the request cannot be sent over HTTP/2: {error}") from error
        response = self._responses[stream_id] = Http2Response(self, stream_id)
        self._flush()
        return response

    def acknowledge(self, response: Http2Response, length: int) -> None:
        """Allow the server to send as many bytes again."""
        if self._is_open and length:
            self._h2.acknowledge_received_data(length, response.stream_id)
            self._flush()

    def forget(self, response: Http2Response) -> None:
        """End a response. The server is told if it has not ended it itself."""
        if self._responses.pop(response.stream_id, None) is None or not self._is_open:
            return
        if not response.is_complete:
            try:
                self._h2.reset_stream(response.stream_id, ErrorCodes.CANCEL)
            except ProtocolError as error:
                self._fail(error)
                return
        self._flush()

    def close(self) -> None:
        """Close the connection at once. All of its responses fail."""
        self._fail(ConnectionError("the connection was closed"))

    # -- called by the event loop ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_open = True
        # From the first frame on: h2 applies later changes too late if the server responds to them at once.
        self._h2.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                SettingCodes.MAX_FRAME_SIZE: _FRAME_BYTES_MAX,
            },
        )
        self._h2.max_inbound_frame_size = _FRAME_BYTES_MAX
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(
            _CONNECTION_WINDOW_BYTES - self._h2.inbound_flow_control_window
        )
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        try:
            for event in self._h2.receive_data(data):
                self._handle(event)
        except ProtocolError as error:
            self._fail(error)
        else:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionError("the server closed the connection"))

    # ----------------------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            # h2 accepts no frames after it, so the responses cannot be read to their end.
            self._fail(ConnectionError("the server ends the connection"))
            return
        response = self._responses.get(getattr(event, "stream_id", None) or 0)
        if response is None:
            if isinstance(event, DataReceived):  # of a response that was abandoned
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return
        match event:
            case ResponseReceived(headers=headers):
                response.begin(int(dict(headers)[b":status"]))
            case DataReceived(data=data, flow_controlled_length=length):
                response.add(data, length)
            case StreamEnded():
                response.complete()
            case StreamReset(error_code=code):
                self._responses.pop(response.stream_id)
                response.fail(ConnectionError(f"the server reset the response (error {code})"))
            case _:
                pass

    def _fail(self, error: Exception) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._transport.abort()
        while self._responses:
            _, response = self._responses.popitem()
            response.fail(ConnectionError(f"the connection over HTTP/2 broke: {error}"))

    def _flush(self) -> None:
        if self._is_open and (data := self._h2.data_to_send()):
            self._transport.write(data)


class Http2Response(PendingResponse):
    """One response on a connection."""

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self.stream_id = stream_id
        self.is_complete = False
        self._connection = connection
        self._status: int | None = None
        self._parts: list[bytes] = []
        self._unacknowledged = 0
        self._error: ConnectionError | None = None
        self._progress = asyncio.Event()

    @property
    def status(self) -> int:
        """The final status."""
        assert self._status is not None, "the head has arrived"
        return self._status

    async def wait_for_head(self) -> None:
        """Wait until the status is known."""
        while self._status is None:
            if self.is_complete:
                raise ConnectionError("the response over HTTP/2 has no head")
            await self._wait()

    async def read(self) -> bytes:
        """The next bytes of the body; empty at its end. Bytes before an error are returned before it."""
        while not self._parts:
            if self.is_complete:
                self._connection.forget(self)
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        length, self._unacknowledged = self._unacknowledged, 0
        self._connection.acknowledge(self, length)
        return data

    def close(self) -> None:
        """Abandon the response at once."""
        self._connection.acknowledge(self, self._unacknowledged)
        self._unacknowledged = 0
        self._connection.forget(self)
        self.fail(ConnectionError("the response was closed"))

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._progress.clear()
        await self._progress.wait()

    # -- called by the connection ------------------------------------------------------------------------------

    def begin(self, status: int) -> None:
        """The head has arrived."""
        self._status = status
        self._progress.set()

    def add(self, data: bytes, length: int) -> None:
        """A part of the body has arrived. `length` counts for flow control."""
        self._unacknowledged += length
        if data:
            self._parts.append(data)
            self._progress.set()

    def complete(self) -> None:
        """The last byte has arrived."""
        self.is_complete = True
        self._progress.set()

    def fail(self, error: ConnectionError) -> None:
        """No more bytes will arrive."""
        self._error = self._error or error
        self._progress.set()


def _header_list(to: SplitResult, headers: Mapping[str, str], body: bytes) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", to.scheme),
        (":authority", host_header(to)),
        (":path", to.path or "/"),
        ("content-length", str(len(body))),
        *((name.lower(), printable_value(name, value)) for name, value in headers.items()),
    ]
