"""A request over HTTP gets its own response or an error, never the response to another request.

A real server on loopback echoes the id of each request. It frames and cuts its responses at random, adds interim
responses and bytes that no request asked for, and closes connections at any byte; the client cancels requests.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.adapters.aws.async_http import HttpEndpoint, HttpLimits
from leasehold.adapters.aws.http_response import Response

DEADLINE_S = 20
LIMITS = HttpLimits(
    connections_max=2, connect_s=DEADLINE_S, response_s=DEADLINE_S, response_bytes_max=100_000
)
STRAY_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<nobody>\n"


class Framing(Enum):
    """How the server marks the end of a body, correctly or not."""

    LENGTH = "Content-Length"
    CHUNKED = "chunks"
    NONE = "the end of the connection"
    TOO_LONG = "a Content-Length that is larger than the body"
    TOO_SHORT = "a Content-Length that is smaller than the body"
    BOTH = "Content-Length and chunks"
    TWO_LENGTHS = "two lengths"


@dataclass(frozen=True)
class Exchange:
    """How the server responds to one request, and what happens to the connection and to the request."""

    framing: Framing
    padding: int
    interim: Sequence[int]
    chunks: Sequence[int]
    extension: bytes
    trailers: bytes
    segments: Sequence[int]  # their lengths; the rest is the last one
    stray: bytes = b""  # sent after the response
    close_at: int | None = None  # the server closes the connection after this number of bytes
    cancel_at: int | None = None  # the client cancels its request after this number of segments

    def render(self, request: bytes) -> bytes:
        """All bytes that the server sends because of the request."""
        interim = b"".join(b"HTTP/1.1 %d Wait\r\nX-Hint: a\r\n\r\n" % status for status in self.interim)
        raw = interim + b"HTTP/1.1 200 OK\r\n" + self._render_body(self.body(request)) + self.stray
        return raw if self.close_at is None else raw[: self.close_at]

    def body(self, request: bytes) -> bytes:
        """The body of the response: the id of the request, and a mark at the end."""
        return b"<" + request + b"." * self.padding + b">"

    def _render_body(self, body: bytes) -> bytes:
        length, chunked = b"Content-Length: %d\r\n", b"Transfer-Encoding: chunked\r\n"
        match self.framing:
            case Framing.LENGTH:
                return length % len(body) + b"\r\n" + body
            case Framing.CHUNKED:
                return chunked + b"\r\n" + self._cut_into_chunks(body)
            case Framing.NONE:
                return b"\r\n" + body
            case Framing.TOO_LONG:
                return length % (len(body) + 1000) + b"\r\n" + body
            case Framing.TOO_SHORT:
                return length % (len(body) - 1) + b"\r\n" + body
            case Framing.BOTH:
                return length % len(body) + chunked + b"\r\n" + self._cut_into_chunks(body)
            case Framing.TWO_LENGTHS:
                return length % len(body) + length % 1 + b"\r\n" + body

    def _cut_into_chunks(self, body: bytes) -> bytes:
        parts = cut(body, self.chunks)
        written = [b"%x" % len(part) + self.extension + b"\r\n" + part + b"\r\n" for part in parts]
        return b"".join(written) + b"0\r\n" + self.trailers + b"\r\n"

    @property
    def has_stray_bytes(self) -> bool:
        """Whether bytes follow the response."""
        return bool(self.stray) or self.framing is Framing.TOO_SHORT

    @property
    def ends_connection(self) -> bool:
        """Whether the server closes the connection: at a given byte, or because the client waits for more."""
        return self.close_at is not None or self.framing in {Framing.NONE, Framing.TOO_LONG}

    def is_valid(self, request: bytes) -> bool:
        """Whether the client must get the response."""
        is_whole = self.close_at is None or self.close_at > len(self.render(request))
        is_plain = self.framing in {Framing.LENGTH, Framing.CHUNKED} and not self.stray
        return is_plain and is_whole and self.cancel_at is None


def cut(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Parts of the given lengths. The last part is the rest."""
    parts = []
    for length in lengths:
        parts.append(data[:length])
        data = data[length:]
    return [part for part in (*parts, data) if part]


@dataclass
class FramingServer:
    """Responds to request number n, whose body is n, as the n-th exchange says."""

    exchanges: Sequence[Exchange]
    segments_sent: list[int] = field(init=False)
    is_done: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.segments_sent = [0] * len(self.exchanges)
        self.is_done = [False] * len(self.exchanges)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            is_open = True
            while is_open:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                is_open = await self._respond(await reader.readexactly(length), writer)
        writer.close()

    async def _respond(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        number = int(request)
        exchange = self.exchanges[number]
        try:
            for segment in cut(exchange.render(request), exchange.segments):
                writer.write(segment)
                await writer.drain()
                self.segments_sent[number] += 1
                for _ in range(4):
                    await asyncio.sleep(0)  # the client reads the segment
        finally:
            if exchange.ends_connection:
                writer.close()
            self.is_done[number] = True
        return not exchange.ends_connection


@asynccontextmanager
async def endpoint_of(server: FramingServer) -> AsyncIterator[HttpEndpoint]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        endpoint = HttpEndpoint(f"http://127.0.0.1:{port}/", LIMITS, None)
        try:
            yield endpoint
        finally:
            endpoint.close()
            listener.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others)  # every connection is closed, so the server's tasks end


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - no event tells of bytes in a socket
            await asyncio.sleep(0)


async def send(endpoint: HttpEndpoint, server: FramingServer, number: int) -> Response | None:
    """The response; None after an error. Raises CancelledError if the request was cancelled."""
    request = asyncio.create_task(endpoint.post({}, b"%d" % number))
    cancel_at = server.exchanges[number].cancel_at
    if cancel_at is not None:
        await wait_until(
            lambda: request.done() or server.is_done[number] or server.segments_sent[number] >= cancel_at
        )
        request.cancel()
    with suppress(OSError):
        return await request
    return None


def check(exchange: Exchange, number: int, response: Response | None) -> None:
    own = exchange.body(b"%d" % number)
    if exchange.is_valid(b"%d" % number):
        assert response == Response(200, own)
    elif response is not None:
        # By its length, the body has ended one byte early. The client cannot know better if that byte arrives later.
        assert response.body == (own[:-1] if exchange.framing is Framing.TOO_SHORT else own)
        assert exchange.framing in {Framing.LENGTH, Framing.CHUNKED, Framing.TOO_SHORT}


VALID = {
    "framing": st.sampled_from([Framing.LENGTH, Framing.CHUNKED]),
    "padding": st.sampled_from([0, 1, 3, 100, 70_000]),
    "interim": st.lists(st.sampled_from([100, 102, 103, 150, 199]), max_size=6),
    "chunks": st.lists(st.integers(1, 40), max_size=6),
    "extension": st.sampled_from([b"", b";a", b";a=b", b';a="b c"']),
    "trailers": st.sampled_from([b"", b"X-Sum: 1\r\n", b"X-Sum: 1\r\nX-Empty:\r\n"]),
    "segments": st.lists(st.integers(1, 120), max_size=6),
}
BROKEN = {
    **VALID,
    "framing": st.sampled_from(Framing),
    "close_at": st.none() | st.integers(0, 300),
    "cancel_at": st.none() | st.integers(0, 4),
}
STRAY = st.sampled_from(
    [
        b"",
        b"\r\n",
        b"\n",
        b"x",
        b"HTTP/1.1 2",
        STRAY_RESPONSE,
        b"\r\n" + STRAY_RESPONSE,
        STRAY_RESPONSE * 2,
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\n\r\n" + STRAY_RESPONSE,
    ]
) | st.binary(min_size=1, max_size=20)


@settings(max_examples=300)
@given(
    st.lists(
        st.builds(Exchange, **VALID) | st.builds(Exchange, stray=STRAY, **BROKEN), min_size=2, max_size=6
    )
)
def test_requests_in_sequence_get_their_own_responses(exchanges: list[Exchange]) -> None:
    """Stray bytes and closed connections are noticed before the next request."""

    async def main() -> None:
        server = FramingServer(exchanges)
        async with endpoint_of(server) as endpoint:
            for number, exchange in enumerate(exchanges):
                try:
                    response = await send(endpoint, server, number)
                except asyncio.CancelledError:
                    continue  # its connection is closed
                check(exchange, number, response)
                await wait_until(partial(server.is_done.__getitem__, number))
                if exchange.has_stray_bytes or exchange.ends_connection:
                    await wait_until(lambda: not any(each.is_idle() for each in endpoint._idle))

    asyncio.run(main())


@settings(max_examples=100)
@given(st.lists(st.builds(Exchange, **VALID), min_size=2, max_size=12))
def test_concurrent_requests_get_their_own_responses(exchanges: list[Exchange]) -> None:
    """More requests than connections: every connection is reused, and none mixes two responses."""

    async def main() -> None:
        server = FramingServer(exchanges)
        async with endpoint_of(server) as endpoint:
            responses = await asyncio.gather(
                *(send(endpoint, server, number) for number in range(len(exchanges)))
            )
        for number, exchange in enumerate(exchanges):
            check(exchange, number, responses[number])

    asyncio.run(main())
