"""The HTTP protocol of the dashboard: uvicorn's, with a limit for connections whose next request is not complete.

Uvicorn waits without a limit for the head of a request. A client that sends half of it on many connections would take
all connections, or all descriptors of the process. So a connection is closed if the head of its request is not
complete within a deadline, however slowly its bytes arrive. Above a number of such connections the one that has waited
longest is closed. Closing that one, and not refusing the newest, lets a browser through meanwhile.

While a request is answered, nothing is limited: an event stream stays open. Between two requests uvicorn's own limit
for idle connections applies until the first byte of the next one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_DEADLINE_S: Final = 5.0
WAITING_MAX: Final = 512


class HeadDeadlineProtocol(HttpToolsProtocol):
    """One connection. It waits, or a request of it is answered."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.waits_since_s = self.loop.time()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether no request of this connection is answered now."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Start the deadline of the first request. If too many connections wait, close the oldest of them."""
        super().connection_made(transport)
        self._start_deadline()
        waiting = [
            each for each in self.connections if isinstance(each, HeadDeadlineProtocol) and each.is_waiting
        ]
        if len(waiting) > WAITING_MAX:
            min(waiting, key=lambda each: each.waits_since_s).close()

    def data_received(self, data: bytes) -> None:
        """Start the deadline with the first byte of each later request: uvicorn's own limit ends with it."""
        if self._deadline is None and self.is_waiting:
            self._start_deadline()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """End the deadline: the request is answered from now on."""
        self._end_deadline()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.waits_since_s = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._end_deadline()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection, and count it no more."""
        self._end_deadline()
        self.connections.discard(self)
        self.transport.close()

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEAD_DEADLINE_S, self.close)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
