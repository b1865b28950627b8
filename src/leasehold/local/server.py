"""Runs the application: a socket on loopback, uvicorn, and a clean stop."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from leasehold.errors import ConfigError
from leasehold.kinesis_model.account import Account
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.local.app import LocalApp
from leasehold.local.http2 import PREFACE_START, App, Http2Connection
from leasehold.local.state import ServerState
from leasehold.local.state_file import read_state, save_periodically, save_state


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server starts. Port 0 means any free port."""

    host: str = "127.0.0.1"
    port: int = 0
    account: Account = field(default_factory=Account)
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    state_file: Path | None = None
    # Streams to create if they do not exist: name to number of shards.
    streams: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _is_loopback(self.host):
            raise ConfigError(
                f"host={self.host!r} is not a loopback address: this server verifies no signatures, so it "
                "serves only this machine. Use 127.0.0.1."
            )
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port={self.port}: expected 1 to 65535, or 0 for any free port")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class LocalServer:
    """One server. It accepts connections once it is created, and answers them while it runs."""

    def __init__(self, options: ServerOptions) -> None:
        self.state = ServerState(KinesisModel(options.account, options.settings))
        self._state_file = options.state_file
        if options.state_file:
            read_state(options.state_file, self.state.service, self.state.clock)
        self._create_streams(options.streams)
        if options.state_file:
            # Fail now, not at the end, if the file cannot be written.
            save_state(self.state, options.state_file)
        self._socket = _listening_socket(options.host, options.port)
        self._uvicorn = _Uvicorn(_uvicorn_config(LocalApp(self.state)), self.state)

    @property
    def endpoint_url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Serve until `stop` is called. In the main thread, SIGINT and SIGTERM call it too."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """Stop the server. Any thread may call this."""
        self._uvicorn.should_exit = True

    async def _run(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        if self._state_file is None:
            await self._uvicorn.serve(sockets=[self._socket])
            return
        stopped = asyncio.Event()
        saving = asyncio.create_task(save_periodically(self.state, self._state_file, stopped))
        try:
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            stopped.set()
            await saving

    def _create_streams(self, streams: Mapping[str, int]) -> None:
        now_ms = self.state.clock.now_ms()
        missing = streams.keys() - self.state.service.streams.keys()
        for name in sorted(missing):
            self.state.service.create_stream(now_ms, name, shard_count=streams[name])


class _Uvicorn(uvicorn.Server):
    """Uvicorn, except that it installs no signal handlers, and ends subscriptions before it waits for them."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Uvicorn would raise the signal again after a clean stop, so the exit code would not be 0.
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.stop()
        await super().shutdown(sockets)


class _Http1Or2(HttpToolsProtocol):
    """HTTP/1.1 by uvicorn, unless the first bytes of a connection are those of HTTP/2."""

    _is_new = True

    def data_received(self, data: bytes) -> None:
        if self._is_new and data.startswith(PREFACE_START):
            self.connections.discard(self)
            http2 = Http2Connection(cast("App", self.config.app), self.connections)
            self.transport.set_protocol(http2)
            http2.connection_made(self.transport)
            http2.data_received(data)
            return
        self._is_new = False
        super().data_received(data)


def _uvicorn_config(app: LocalApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Http1Or2,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        # Longer than the pause between two polls of an idle consumer.
        timeout_keep_alive=60,
        # A client that keeps its connection open must not delay the stop for longer.
        timeout_graceful_shutdown=2,
    )


def _listening_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol, asyncio disables Nagle's algorithm. Otherwise each response is delayed by 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"{host}:{port} cannot be used: {error.strerror}. Choose another --port, or 0 for any free port."
        ) from error
    return listening
