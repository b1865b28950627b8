"""Runs the application on loopback with uvicorn, beside the poller, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from leasehold.dashboard.head_deadline import HeadDeadlineProtocol
from leasehold.dashboard.view_hub import ViewHub
from leasehold.errors import ConfigError

HOST: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 1_024


class FirstOfEachMessage(logging.Filter):
    """Lets each message pass once. Uvicorn repeats a warning for every connection above the limit."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is new."""
        is_new = str(record.msg) not in self._seen
        self._seen.add(str(record.msg))
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
        log, once = logging.getLogger("uvicorn.error"), FirstOfEachMessage()
        log.addFilter(once)
        try:
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            log.removeFilter(once)
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._hub is not None:
            self._hub.close()
        await super().shutdown(sockets)


def _uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=HeadDeadlineProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=2,
    )


def _listening_socket(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"{HOST}:{port} cannot be used: {error.strerror}. Choose another --port, or 0 for any free port."
        ) from error
    return listening
