"""The HTTP application of the dashboard: a page, its files, views as JSON and as server-sent events. It only reads.

Whatever rows contain reaches the page only as JSON, and the page shows it only as text. The policy of the page allows
neither inline scripts nor other hosts. A request must name this machine as its host: otherwise a web page could point
its own name to our address (DNS rebinding), and read the fleet through a browser on this machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from importlib.resources import files
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasehold.adapters.status_server import is_allowed_host
from leasehold.core.observing.dashboard.fleet_history import FleetHistory
from leasehold.core.observing.dashboard.view_changes import View
from leasehold.dashboard.recording import Playback, Points
from leasehold.dashboard.view_hub import ViewHub, encode

BROWSERS_MAX: Final = 64
SERIES_MAX: Final = 200
QUERY_BYTES_MAX: Final = 8_192
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Source(Protocol):
    """Where the views come from: a running fleet, or a recording."""

    @property
    def hub(self) -> ViewHub | None:
        """The views as they come; None for a recording."""
        ...

    @property
    def times(self) -> Iterable[int]:
        """The times of the recorded frames; none for a running fleet."""
        ...

    def view(self, frame: int) -> View:
        """The newest view, or that of a recorded frame."""
        ...

    def series(self, numbers: Iterable[int], frame: int) -> Mapping[int, Points]:
        """Lag and throughput of shards over time."""
        ...


class LiveSource(Source):
    """A running fleet."""

    def __init__(self, hub: ViewHub, history: FleetHistory) -> None:
        self._hub = hub
        self._history = history

    @property
    def hub(self) -> ViewHub | None:
        return self._hub

    @property
    def times(self) -> Iterable[int]:
        return ()

    def view(self, frame: int) -> View:  # noqa: ARG002 - a running fleet has one view
        return self._hub.view

    def series(self, numbers: Iterable[int], frame: int) -> Mapping[int, Points]:  # noqa: ARG002
        return self._history.series(numbers)


class RecordedSource(Source):
    """A recording."""

    def __init__(self, playback: Playback) -> None:
        self._playback = playback

    @property
    def hub(self) -> ViewHub | None:
        return None

    @property
    def times(self) -> Iterable[int]:
        return self._playback.times

    def view(self, frame: int) -> View:
        return self._playback.view(frame)

    def series(self, numbers: Iterable[int], frame: int) -> Mapping[int, Points]:
        return self._playback.series(numbers, frame)


def make_app(source: Source, *, listen_host: str) -> ASGIApp:
    """The application."""
    pages = _Pages(source, _read_files())
    routes = [
        Route("/", pages.index, methods=["GET"]),
        Route("/static/{name}", pages.static, methods=["GET"]),
        Route("/api/source", pages.describe, methods=["GET"]),
        Route("/api/view", pages.view, methods=["GET"]),
        Route("/api/series", pages.series, methods=["GET"]),
        Route("/api/events", pages.events, methods=["GET"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, listen_host=listen_host)])


class _Guard:
    """Refuses foreign host names and everything but GET and HEAD, and adds the security headers."""

    def __init__(self, app: ASGIApp, listen_host: str) -> None:
        self._app = app
        self._listen_host = listen_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        app = self._refusal(scope) or self._app
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not is_allowed_host(hosts[0], self._listen_host):
            return PlainTextResponse("Unknown host name: use 127.0.0.1 or localhost.\n", 421)
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("This page only reads.\n", 405, {"allow": "GET, HEAD"})
        if len(scope["query_string"]) > QUERY_BYTES_MAX:
            return PlainTextResponse("The query is too long.\n", 414)
        return None


def _read_files() -> Mapping[str, bytes]:
    """The files of the page. They are read once, so no request can name another file."""
    folder = files("leasehold.dashboard") / "static"
    return {
        each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES
    }


class _Pages:
    """The routes."""

    def __init__(self, source: Source, static: Mapping[str, bytes]) -> None:
        self._source = source
        self._static = static

    async def index(self, _request: Request) -> Response:
        return self._file("index.html")

    async def static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    async def describe(self, _request: Request) -> Response:
        return _json({"live": self._source.hub is not None, "times": list(self._source.times)})

    async def view(self, request: Request) -> Response:
        frame = _number(request.query_params.get("frame", "0"))
        if frame is None:
            return PlainTextResponse("frame: expected a number.\n", 400)
        return _json(self._source.view(frame))

    async def series(self, request: Request) -> Response:
        ids = [_number(text) for text in request.query_params.get("ids", "").split(",")[:SERIES_MAX]]
        frame = _number(request.query_params.get("frame", "0"))
        numbers = [number for number in ids if number is not None]
        if frame is None or len(numbers) != len(ids):
            return PlainTextResponse("ids and frame: expected numbers.\n", 400)
        return _json(self._source.series(numbers, frame))

    async def events(self, request: Request) -> Response:
        hub = self._source.hub
        if hub is None:
            return PlainTextResponse("A recording has no events.\n", 404)
        if hub.browsers >= BROWSERS_MAX:
            return PlainTextResponse(
                f"{BROWSERS_MAX} browsers are connected, and no more are served: close some of them.\n",
                503,
                {"connection": "close", "retry-after": "10"},
            )
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")  # a stream without a body would never end
        return _EventResponse(hub)

    def _file(self, name: str) -> Response:
        content = self._static.get(name)
        if content is None:
            return PlainTextResponse("Not found.\n", 404)
        return Response(content, headers={"content-type": _TYPES[name.rpartition(".")[2]]})


class _EventResponse(StreamingResponse):
    """The views for one browser. It counts from the first moment: of hundreds at once only so many get a stream."""

    def __init__(self, hub: ViewHub) -> None:
        super().__init__(_event_stream(hub), media_type="text/event-stream")
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._hub.browsers += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hub.browsers -= 1


async def _event_stream(hub: ViewHub) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    async with aclosing(hub.messages()) as messages:
        async for message in messages:
            if not message.event:
                yield b": no change\n\n"
            else:
                yield f"event: {message.event}\ndata: {message.data}\n\n".encode("ascii")


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else None
