"""Reads one HTTP/1.1 response from the bytes of a connection: bytes in, a response or an error out.

httptools parses; this module decides which message is the response to the request. Interim responses (1xx) before it
are skipped. A response whose end cannot be determined, and bytes after the end, are errors: with either, nobody can
tell which bytes belong to which request. Every error is an `UnusableResponseError`, which is an `OSError`. The request
may have been executed, so a caller that changes something has to read it back.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import httptools

_WITHOUT_BODY: Final = frozenset({204, 304})
_TAIL_BYTES: Final = 5  # one more than the line ends at the end of a head, or of a chunked body
_LENGTH_DIGITS_MAX: Final = 19


class UnusableResponseError(ConnectionError):
    """The response is not valid HTTP/1.1, or not one that can be attributed to the request."""


@dataclass(frozen=True, slots=True)
class Response:
    """The response of the server, with any final status."""

    status: int
    body: bytes
    content_type: str = ""


class _ResponseParser:
    """Parses one response: skips interim responses, and checks that the end of the body can be determined.

    Each request gets its own parser, so no state passes to the next one.
    """

    def __init__(self, content_length_max: int) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._content_length_max = content_length_max
        self._length: int | None = None
        self._codings: list[bytes] = []
        self._content_type = b""
        self._parts: list[bytes] = []
        self._has_head = False  # of the response; those of interim responses do not count
        self._is_complete = False

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._is_complete:
                raise _bytes_after_the_end() from None
            raise UnusableResponseError(f"the response is not valid HTTP/1.1 ({error})") from None

    # -- called by the parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise _bytes_after_the_end()
        self._length = None
        self._codings.clear()
        self._content_type = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers also arrive here, after `on_headers_complete` has evaluated the headers.
        match name.lower():
            case b"content-length":
                self._length = self._length_of(value)
            case b"transfer-encoding":
                self._codings.append(value.lower())
            case b"content-type" if not self._has_head:
                self._content_type = value

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
        if status >= 200:
            self._has_head = True
            self._begin_response(status)

    def on_body(self, body: bytes) -> None:
        if not self._has_head:
            raise UnusableResponseError("an interim response has a body")
        self._parts.append(body)

    def on_message_complete(self) -> None:
        # After an interim response, the response to the request follows.
        if self._parser.get_status_code() >= 200:
            self._is_complete = True
            self._complete_response()

    # ----------------------------------------------------------------------------------------------------------

    def _begin_response(self, status: int) -> None:
        """The head of the response is known."""

    def _complete_response(self) -> None:
        """The last byte of the response was parsed."""

    def _length_of(self, value: bytes) -> int:
        # The parser accepts any number of zeros, and Python converts at most some thousand digits.
        digits = value.strip().lstrip(b"0")
        if len(digits) > _LENGTH_DIGITS_MAX:
            raise _too_large(self._content_length_max)
        return int(digits or b"0")

    def _check_that_the_end_is_known(self) -> None:
        if self._codings:
            if self._codings != [b"chunked"]:
                raise UnusableResponseError("the response has a transfer coding other than chunked")
        elif self._length is None:
            self._accept_unknown_length()
        elif self._length > self._content_length_max:
            raise _too_large(self._content_length_max)

    def _accept_unknown_length(self) -> None:
        raise UnusableResponseError(
            "the response has neither a Content-Length nor chunks, so its end cannot be determined; "
            "check the endpoint and proxies"
        )


class ResponseReader(_ResponseParser):
    """Reads the whole response to one request.

    The rest of a body whose length is known bypasses the parser: the caller receives it straight into `unfilled`, so
    that a large page is copied once, from the socket.
    """

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.may_reuse_connection = False  # known once the response is complete
        self.unfilled: memoryview | None = None  # where the rest of the body belongs, if its length is known
        self._body: BytesIO | None = None
        self._bytes_max = bytes_max
        self._bytes_received = 0
        self._tail = b""
        self._is_kept_alive = False
        self._status: int | None = None  # known once the head is complete
        self._response: Response | None = None

    def feed(self, data: bytes) -> Response | None:
        """The response, if these bytes complete it. After it, or after an error, the reader cannot be used again."""
        self._bytes_received += len(data)
        if self._bytes_received > self._bytes_max:
            raise _too_large(self._bytes_max)
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        self._parse(data)
        if self._response is not None:
            self.may_reuse_connection = self._is_kept_alive and self._ends_with(self._response)
            self._parser = (
                None  # the parser refers to this reader: without the cycle, the body is freed at once
            )
        elif self._status is not None and self._length is not None and not self._codings:
            self._expect_rest(self._length)
        return self._response

    def note_received(self, count: int) -> Response | None:
        """Count bytes that were received into `unfilled`. Returns the response, if they complete it."""
        assert self.unfilled is not None
        assert self._body is not None
        assert self._status is not None
        rest = self.unfilled[count:]
        self.unfilled.release()
        self.unfilled = rest or None
        if rest:
            return None
        rest.release()
        # There is room for this body only, so no byte after its end was received.
        self.may_reuse_connection = self._is_kept_alive
        return self._to_response(self._status, self._body.getvalue())  # not a copy

    def _expect_rest(self, length: int) -> None:
        """The parser has the head and the first part of the body, if any. It gets no more."""
        self._is_kept_alive = self._parser.should_keep_alive()
        self._parser = None
        first = b"".join(self._parts)
        self._parts.clear()
        self._body = BytesIO(bytes(length))
        whole = self._body.getbuffer()
        whole[: len(first)] = first
        self.unfilled = whole[len(first) :]

    def _begin_response(self, status: int) -> None:
        self._status = status

    def _complete_response(self) -> None:
        self._response = self._to_response(self._parser.get_status_code(), b"".join(self._parts))
        self._is_kept_alive = self._parser.should_keep_alive()  # the parser forgets it after this call

    def _to_response(self, status: int, body: bytes) -> Response:
        return Response(status, body, self._content_type.decode("latin-1"))

    def _ends_with(self, response: Response) -> bool:
        """Whether the last byte received is the last byte of the response.

        The parser silently skips line ends after a response. It reports all other bytes.
        """
        is_body_last = response.body and not self._codings
        expected = _count_line_ends(response.body[-_TAIL_BYTES:]) if is_body_last else 4
        return expected < _TAIL_BYTES and _count_line_ends(self._tail) == expected


class BodyReader(_ResponseParser):
    """Reads a response whose body has no limit, and passes the body on as it arrives.

    The body may also end with the connection. Its content says whether it is complete: the messages of an event stream
    have lengths.
    """

    def __init__(self, head_bytes_max: int) -> None:
        super().__init__(sys.maxsize)
        self.status: int | None = None  # known once the head is complete
        self._ends_with_connection = False
        self._head_bytes_left = head_bytes_max

    @property
    def is_complete(self) -> bool:
        """Whether the response has ended."""
        return self._is_complete

    def feed(self, data: bytes) -> bytes:
        """The part of the body in these bytes. After an error, the reader cannot be used again."""
        if self.status is None:
            self._head_bytes_left -= len(data)
        self._parse(data)
        if self.status is None and self._head_bytes_left < 0:
            raise UnusableResponseError("the head of the response has no end")
        body = b"".join(self._parts)
        self._parts.clear()
        return body

    def finish(self) -> None:
        """The connection has ended. Raises an error if the response is incomplete."""
        if not self._is_complete and not self._ends_with_connection:
            raise UnusableResponseError("the connection was closed before the end of the response")
        self._is_complete = True

    def _begin_response(self, status: int) -> None:
        self.status = status

    def _accept_unknown_length(self) -> None:
        self._ends_with_connection = True


def _count_line_ends(tail: bytes) -> int:
    """The number of CR and LF bytes at the end."""
    return len(tail) - len(tail.rstrip(b"\r\n"))


def _bytes_after_the_end() -> UnusableResponseError:
    return UnusableResponseError("the server sent more than one response to a request")


def _too_large(bytes_max: int) -> UnusableResponseError:
    return UnusableResponseError(f"the response is larger than {bytes_max} bytes")
