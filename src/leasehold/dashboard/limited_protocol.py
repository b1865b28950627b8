"""The HTTP protocol of the dashboard: uvicorn's, with limits for clients that do not send, or do not read.

Uvicorn waits without a limit for the head of a request, and for a client to read a response. Clients that do neither
would take all descriptors of the process, and memory for each response. So a connection is closed

- if the head of its request is not complete within a deadline, however slowly its bytes arrive,
- if the client reads nothing of what was sent to it within a deadline,
- if there are too many connections or too many unread bytes, and it is the one that has stalled longest.

An event stream that is read stays open. Between two requests uvicorn's own limit for idle connections applies until the
first byte of the next one. A connection is aborted: a transport that is closed waits until its client has read.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from leasehold.core.connection_limits import CONNECTIONS_MAX, ConnectionState, connections_to_close

HEAD_DEADLINE_S: Final = 5.0
READ_DEADLINE_S: Final = 10.0


class LimitedProtocol(HttpToolsProtocol):
    """One connection. It waits for a request, or a request of it is answered."""

    connections_max: int = CONNECTIONS_MAX

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._waits_since_s = self.loop.time()
        self._unread_since_s: float | None = None
        self._head_deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether no request of this connection is answered now."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def state(self) -> ConnectionState:
        """Since when the client has stalled, and how many bytes it has not read."""
        if self._unread_since_s is not None:
            return ConnectionState(self._unread_since_s, self.transport.get_write_buffer_size())
        return ConnectionState(self._waits_since_s if self.is_waiting else None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Start the deadline of the first request, and close surplus connections."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so `pause_writing` is called for the first unread byte
        self._start_head_deadline()
        self._close_surplus()

    def data_received(self, data: bytes) -> None:
        """Start the deadline with the first byte of each later request: uvicorn's own limit ends with it."""
        if self._head_deadline is None and self.is_waiting:
            self._start_head_deadline()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """End the deadline: the request is answered from now on."""
        self._end_head_deadline()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._waits_since_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the deadline for the client to read, and close surplus connections."""
        super().pause_writing()
        self._unread_since_s = self.loop.time()
        self._start_read_deadline()
        self._close_surplus()

    def resume_writing(self) -> None:
        """End the deadline: the client has read everything."""
        self._end_read_deadline()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._end_head_deadline()
        self._end_read_deadline()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection at once, whatever its client has not read, and count it no more."""
        self._end_head_deadline()
        self._end_read_deadline()
        self.connections.discard(self)
        self.transport.abort()

    def _close_surplus(self) -> None:
        members = [each for each in self.connections if isinstance(each, LimitedProtocol)]
        for number in connections_to_close([each.state for each in members], self.connections_max):
            members[number].close()

    def _start_head_deadline(self) -> None:
        self._head_deadline = self.loop.call_later(HEAD_DEADLINE_S, self.close)

    def _end_head_deadline(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _start_read_deadline(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._read_deadline = self.loop.call_later(READ_DEADLINE_S, self._check_progress, unread)

    def _check_progress(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() < unread:
            self._start_read_deadline()
        else:
            self.close()

    def _end_read_deadline(self) -> None:
        self._unread_since_s = None
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None
