"""Runs the application on loopback with uvicorn, beside the poller, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from leasehold.core.connection_limits import CONNECTIONS_MAX, connections_max
from leasehold.dashboard.limited_protocol import LimitedProtocol
from leasehold.dashboard.view_hub import ViewHub
from leasehold.errors import ConfigError

HOST: Final = "127.0.0.1"
# Asyncio accepts so many connections before it makes the first of them known, and none of them is limited until then.
ACCEPTED_AT_ONCE: Final = 1
QUEUED_MAX: Final = 128
# The kernel would keep megabytes for a client that does not read, and it would take as long to notice.
SEND_BUFFER_BYTES: Final = 128 * 1_024
_LOGGERS: Final = ("uvicorn.error", "asyncio")


class FirstOfEachMessage(logging.Filter):
    """Lets each message pass once. Uvicorn and asyncio repeat some for every connection.

    The first line and the kind of error count: asyncio names an address in memory, or a descriptor, in further lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[str, object]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is new."""
        error = record.exc_info[0] if record.exc_info else None
        message = str(record.msg).partition("\n")[0], error
        is_new = message not in self._seen
        self._seen.add(message)
        return is_new


class DashboardServer:
    """Serves one application. It accepts connections once it is created, and answers them while it runs."""

    def __init__(self, app: ASGIApp, port: int, hub: ViewHub | None = None) -> None:
        self._socket = _listening_socket(port)
        self._uvicorn = _Uvicorn(_uvicorn_config(app), hub)

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{host}:{port}/"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._uvicorn.server_state.connections)

    def stop(self) -> None:
        """Stop the server. Any thread may call this."""
        self._uvicorn.should_exit = True

    async def run(self, background: Coroutine[Any, Any, None] | None = None) -> None:
        """Serve, and run `background` beside it, until `stop`. In the main thread, SIGINT and SIGTERM stop it too.

        If the background ends with an error, the server stops and raises it.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        task = None if background is None else asyncio.create_task(background)
        if task is not None:
            task.add_done_callback(lambda _task: self.stop())
        try:
            with _few_messages():
                await self._uvicorn.serve(sockets=[self._socket])
        finally:
            self._socket.close()
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


class _Uvicorn(uvicorn.Server):
    """Uvicorn, except that it installs no signal handlers, and ends event streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, hub: ViewHub | None) -> None:
        super().__init__(config)
        self._hub = hub

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Uvicorn would raise the signal again after a clean stop, so the exit code would not be 0.
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(QUEUED_MAX)  # asyncio has set the queue to what it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._hub is not None:
            self._hub.close()
        await super().shutdown(sockets)


@contextmanager
def _few_messages() -> Iterator[None]:
    with ExitStack() as stack:
        for name in _LOGGERS:
            log, once = logging.getLogger(name), FirstOfEachMessage()
            log.addFilter(once)
            stack.callback(log.removeFilter, once)
        yield


def _uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    class Protocol(LimitedProtocol):
        connections_max = _connections_max()

    return uvicorn.Config(
        app,
        loop="asyncio",
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=2,
    )


def _connections_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else connections_max(soft)


def _listening_socket(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # connections inherit it
    try:
        listening.bind((HOST, port))
        listening.listen(QUEUED_MAX)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"{HOST}:{port} cannot be used: {error.strerror}. Choose another --port, or 0 for any free port."
        ) from error
    return listening
