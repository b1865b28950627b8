"""Reads request bodies and sends responses over ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

# PutRecords accepts at most 10 MiB of records. Base64 adds a third, and each record has some JSON around it.
BODY_BYTES_MAX: Final = 24 * 1024 * 1024


class BodyTooLargeError(Exception):
    """The body is larger than any operation allows."""


class DisconnectedError(Exception):
    """The client disconnected before the end of its request."""


async def read_body(receive: Receive) -> bytes:
    """Read the whole body, up to the limit."""
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise BodyTooLargeError
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


async def send_response(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a complete response."""
    await send_response_start(send, status, [*headers, (b"content-length", b"%d" % len(body))])
    await send({"type": "http.response.body", "body": body})


async def send_response_start(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def send_chunk(send: Send, chunk: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": more})
