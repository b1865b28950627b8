"""A tiny HTTP server for whoever watches this process: read-only, in a thread of its own, on loopback by default.

It outlives trouble of the event loop, so that it can tell of it. A request must name a host by which we may be called:
otherwise a page in a browser on this machine could read the answers by giving its own name our address.
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
    """What a route says."""

    status: int
    content_type: str
    body: bytes


Route = Callable[[], Response]


class StatusServer:
    """Serves `routes` at http://host:port until it is closed. Port 0 takes any free one, see `url`."""

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
        """Where it can be asked."""
        host, port = self._server.server_address[:2]
        name = str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def close(self) -> None:
        """Stop serving, and end the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def is_allowed_host(host_header: str | None, listens_on: str) -> bool:
    """Whether a request that names this host is meant for us, and not for a name that points here by trickery.

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
    if name in _LOOPBACK_NAMES or name == listens_on.lower():
        return True
    # An address cannot be redirected as a name can, so it is safe wherever we are meant to be reached from outside.
    return _is_address(name) and not _is_loopback(listens_on)


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
        self.listens_on = host
        self.routes = routes
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nobody's concern."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "leasehold"
    sys_version = ""
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        self._send(self._answer(), with_body=True)

    def do_HEAD(self) -> None:
        self._send(self._answer(), with_body=False)

    def _answer(self) -> Response:
        if not is_allowed_host(self.headers.get("Host"), self.server.listens_on):
            return Response(421, "text/plain", b"This server does not go by that name.\n")
        route = self.server.routes.get(urlsplit(self.path).path)
        if route is None:
            paths = ", ".join(self.server.routes)
            return Response(404, "text/plain", f"There is {paths}, and nothing else.\n".encode())
        return route()

    def _send(self, answer: Response, *, with_body: bool) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Being asked is not news."""
