"""A small read-only HTTP server for health and metrics, on its own thread, on loopback by default.

Its own thread lets it report a blocked event loop. A request must name an allowed host. Otherwise a web page could
point its own host name to our address (DNS rebinding) and read the responses through a browser on this machine.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from urllib.parse import urlsplit

from leasehold.errors import ConfigError

REQUEST_TIMEOUT_S: Final = 5
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

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        try:
            self._server = _Server(host, port, routes)
        except OSError as error:
            raise ConfigError(
                f"status_host={host!r}, status_port={port}: cannot listen there ({error}); "
                "choose a free port, or 0 for any"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="leasehold-status", daemon=True
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
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self.listen_host = host
        self.routes = routes
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "leasehold"
    sys_version = ""
    timeout = REQUEST_TIMEOUT_S

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
