"""Reads one HTTP/1.1 response from the bytes of a connection: bytes in, a response or an error out.

httptools parses; this module decides which message is the response to the request. Interim responses (1xx) before it
are skipped. A response whose end cannot be determined, and bytes after the end, are errors: with either, nobody can
tell which bytes belong to which request. Every error is an `UnusableResponseError`, which is an `OSError`. The request
may have been executed, so a caller that changes something has to read it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import httptools

_WITHOUT_BODY: Final = frozenset({204, 304})
_TAIL_BYTES: Final = 5  # one more than the line ends at the end of a head, or of a chunked body


class UnusableResponseError(ConnectionError):
    """The response is not valid HTTP/1.1, or not one that can be attributed to the request."""


@dataclass(frozen=True, slots=True)
class Response:
    """The response of the server, with any final status."""

    status: int
    body: bytes


class ResponseReader:
    """Reads the response to one request. Each request gets its own reader, so no state passes to the next one."""

    def __init__(self, bytes_max: int) -> None:
        self.may_reuse_connection = False  # known once the response is complete
        self._parser: Any = httptools.HttpResponseParser(self)
        self._bytes_max = bytes_max
        self._bytes_received = 0
        self._tail = b""
        self._is_kept_alive = False
        self._length: int | None = None
        self._codings: list[bytes] = []
        self._parts: list[bytes] = []
        self._response: Response | None = None

    def feed(self, data: bytes) -> Response | None:
        """The response, if these bytes complete it. After it, or after an error, the reader cannot be used again."""
        self._bytes_received += len(data)
        if self._bytes_received > self._bytes_max:
            raise self._too_large()
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._response is not None:
                raise _bytes_after_the_end() from None
            raise UnusableResponseError(f"the response is not valid HTTP/1.1 ({error})") from None
        if self._response is not None:
            self.may_reuse_connection = self._is_kept_alive and self._ends_with(self._response)
            self._parser = (
                None  # the parser refers to this reader: without the cycle, the body is freed at once
            )
        return self._response

    # -- called by the parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._response is not None:
            raise _bytes_after_the_end()
        self._length = None
        self._codings.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers also arrive here, after `on_headers_complete` has evaluated the headers.
        match name.lower():
            case b"content-length":
                self._length = int(value)
            case b"transfer-encoding":
                self._codings.append(value.lower())

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101:
            raise UnusableResponseError(
                "the server switched to another protocol, which was not requested; check the endpoint and proxies"
            )
        if status < 100:
            raise UnusableResponseError(f"the response has the invalid status {status}")
        if status >= 200 and status not in _WITHOUT_BODY:
            self._check_that_the_end_is_known()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # an interim response: the response to the request follows
        self._response = Response(status, b"".join(self._parts))
        self._is_kept_alive = self._parser.should_keep_alive()  # the parser forgets it after this call

    # ----------------------------------------------------------------------------------------------------------

    def _check_that_the_end_is_known(self) -> None:
        if self._codings:
            if self._codings != [b"chunked"]:
                raise UnusableResponseError("the response has a transfer coding other than chunked")
        elif self._length is None:
            raise UnusableResponseError(
                "the response has neither a Content-Length nor chunks, so its end cannot be determined; "
                "check the endpoint and proxies"
            )
        elif self._length > self._bytes_max:
            raise self._too_large()

    def _ends_with(self, response: Response) -> bool:
        """Whether the last byte received is the last byte of the response.

        The parser silently skips line ends after a response. It reports all other bytes.
        """
        is_body_last = response.body and not self._codings
        expected = _count_line_ends(response.body[-_TAIL_BYTES:]) if is_body_last else 4
        return expected < _TAIL_BYTES and _count_line_ends(self._tail) == expected

    def _too_large(self) -> UnusableResponseError:
        return UnusableResponseError(f"the response is larger than {self._bytes_max} bytes")


def _count_line_ends(tail: bytes) -> int:
    """The number of CR and LF bytes at the end."""
    return len(tail) - len(tail.rstrip(b"\r\n"))


def _bytes_after_the_end() -> UnusableResponseError:
    return UnusableResponseError("the server sent more than one response to a request")
