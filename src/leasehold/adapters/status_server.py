"""A small read-only HTTP server for health and metrics, on its own thread, on loopback by default.

Its own thread lets it report a blocked event loop. A request must name an allowed host. Otherwise a web page could
point its own host name to our address (DNS rebinding) and read the responses through a browser on this machine.

A client can take neither all descriptors nor all threads of the process: each request must be complete within a
deadline, however slowly its bytes arrive, and above a number of connections the oldest one is closed. Closing the
oldest, and not refusing the newest, lets a probe through while another client keeps all its connections open.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from urllib.parse import urlsplit

from leasehold.errors import ConfigError

REQUEST_DEADLINE_S: Final = 5.0
CONNECTIONS_MAX: Final = 32
_CHECK_EVERY_S: Final = 0.1
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a route."""

    status: int
    content_type: str
    body: bytes


Route = Callable[[], Response]


class StatusServer:
    """Serves `routes` at http://host:port until it is closed. Port 0 takes any free port, see `url`."""

    def __init__(
        self, host: str, port: int, routes: Mapping[str, Route], *, deadline_s: float = REQUEST_DEADLINE_S
    ) -> None:
        try:
            self._server = _Server(host, port, routes, deadline_s)
        except OSError as error:
            raise ConfigError(
                f"status_host={host!r}, status_port={port}: cannot listen there ({error}); "
                "choose a free port, or 0 for any"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_CHECK_EVERY_S,), name="leasehold-status", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the server."""
        host, port = self._server.server_address[:2]
        name = str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def close(self) -> None:
        """Stop serving and end the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def is_allowed_host(host_header: str | None, listen_host: str) -> bool:
    """Whether the Host header of a request is a name of this server, and not a foreign name that points to it.

    >>> is_allowed_host("localhost:8080", "127.0.0.1"), is_allowed_host("evil.example", "127.0.0.1")
    (True, False)
    >>> is_allowed_host("10.1.2.3:8080", "0.0.0.0"), is_allowed_host("10.1.2.3:8080", "127.0.0.1")
    (True, False)
    """
    try:
        name = urlsplit(f"//{host_header or ''}").hostname
    except ValueError:
        return False
    if name is None:
        return False
    if name in _LOOPBACK_NAMES or name == listen_host.lower():
        return True
    # An IP address cannot be rebound as a name can, so it is safe wherever the server is meant to be reachable from
    # outside.
    return _is_address(name) and not _is_loopback(listen_host)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


class _Server(ThreadingMixIn, TCPServer):
    """One thread for each connection, which serves one request (HTTP/1.0)."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, host: str, port: int, routes: Mapping[str, Route], deadline_s: float) -> None:
        self.listen_host = host
        self.routes = routes
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._opened_s: dict[socket.socket, float] = {}  # by age: the oldest connection is first
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._opened_s[request] = time.monotonic()
            surplus = list(self._opened_s)[:-CONNECTIONS_MAX]
            self._end(surplus)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._opened_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called by `serve_forever` after each request, and at least every `_CHECK_EVERY_S`."""
        oldest_allowed_s = time.monotonic() - self._deadline_s
        with self._lock:
            self._end([each for each, opened_s in self._opened_s.items() if opened_s < oldest_allowed_s])

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            self._end(list(self._opened_s))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""

    def _end(self, connections: list[socket.socket]) -> None:
        """End the reads and writes of connections. Their threads then close them."""
        for connection in connections:
            del self._opened_s[connection]
            with suppress(OSError):  # the client has disconnected
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "leasehold"
    sys_version = ""

    def do_GET(self) -> None:
        self._send(self._respond(), with_body=True)

    def do_HEAD(self) -> None:
        self._send(self._respond(), with_body=False)

    def _respond(self) -> Response:
        if not is_allowed_host(self.headers.get("Host"), self.server.listen_host):
            return Response(421, "text/plain", b"Unknown host name.\n")
        route = self.server.routes.get(urlsplit(self.path).path)
        if route is None:
            paths = ", ".join(self.server.routes)
            return Response(404, "text/plain", f"Not found. Available: {paths}\n".encode())
        return route()

    def _send(self, response: Response, *, with_body: bool) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if with_body:
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing: requests are not worth a line."""
