"""One response is read from bytes, however they are cut. Everything that cannot be attributed to the request fails."""

import pytest

from leasehold.adapters.aws.http_response import Response, ResponseReader, UnusableResponseError

BYTES_MAX = 400
OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"Content-Length: 2\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nContent-Length: 9\r\n\r\nHTTP/1.1 199 \r\n\r\n"
)


def read(*segments: bytes) -> tuple[Response | None, bool]:
    """The response, and whether the connection may be reused. No segment may follow the response."""
    reader = ResponseReader(BYTES_MAX)
    responses = [receive(reader, segment) for segment in segments]
    assert not any(responses[:-1])
    return responses[-1], reader.may_reuse_connection


def receive(reader: ResponseReader, segment: bytes) -> Response | None:
    """Pass a segment on as a connection does: the rest of a body of known length goes straight to its place."""
    if reader.unfilled is None:
        return reader.feed(segment)
    part = segment[: len(reader.unfilled)]
    reader.unfilled[: len(part)] = part
    return reader.note_received(len(part))


def cuts(raw: bytes) -> list[list[bytes]]:
    """The whole, every cut in two, and single bytes."""
    pairs = [[raw[:at], raw[at:]] for at in range(1, len(raw))]
    return [[raw], *pairs, [raw[at : at + 1] for at in range(len(raw))]]


@pytest.mark.parametrize(
    ("raw", "response", "may_reuse"),
    [
        (OK + LENGTH + b"\r\n{}", Response(200, b"{}"), True),
        (INTERIM + OK + LENGTH + b"\r\n{}", Response(200, b"{}"), True),
        (INTERIM + OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n", Response(200, b"{}"), True),
        (OK + LENGTH + b"\r\n}\n", Response(200, b"}\n"), True),
        (OK + b"Content-Length: 0\r\n\r\n", Response(200, b""), True),
        (OK + CHUNKED + b"\r\n0\r\n\r\n", Response(200, b""), True),
        (OK + b"Content-Length: 0002\r\n\r\n{}", Response(200, b"{}"), True),
        # A trailer says nothing about the body.
        (
            OK + b"Content-Type: a\r\n" + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nContent-Type: b\r\n\r\n",
            Response(200, b"{}", "a"),
            True,
        ),
        (OK + CHUNKED + b'\r\n1;a;b="c d"\r\n{\r\n1\r\n}\r\n0;e\r\n\r\n', Response(200, b"{}"), True),
        (OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nX-Sum: 1\r\nX-Empty:\r\n\r\n", Response(200, b"{}"), True),
        (OK + b"Connection: close\r\n" + LENGTH + b"\r\n{}", Response(200, b"{}"), False),
        (b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\n{}", Response(200, b"{}"), False),
        # An offer to upgrade is no upgrade. Apache sends it with ordinary responses.
        (OK + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + LENGTH + b"\r\n{}", Response(200, b"{}"), True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Response(204, b""), True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", Response(304, b""), True),
        (b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\n" + LENGTH + b"\r\n{}", Response(503, b"{}"), True),
    ],
)
def test_a_response_is_read(raw: bytes, response: Response, may_reuse: bool) -> None:
    """The cut into segments makes no difference."""
    for segments in cuts(raw):
        assert read(*segments) == (response, may_reuse), segments


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
            "another protocol",
        ),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "another protocol"),
        (INTERIM + OK + b"\r\n", "neither a Content-Length nor chunks"),
        (b"HTTP/1.0 200 OK\r\n\r\n", "neither a Content-Length nor chunks"),
        # Its body must not become a part of the response.
        (
            b"HTTP/1.1 199 Wait\r\nContent-Length: 2\r\n\r\nxy" + OK + LENGTH + b"\r\n{}",
            "interim response has",
        ),
        (b"HTTP/1.1 199 Wait\r\n" + CHUNKED + b"\r\n2\r\nxy\r\n0\r\n\r\n" + OK, "interim response has"),
        (OK + b"Transfer-Encoding: gzip\r\n\r\n", "transfer coding"),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "transfer coding"),
        (OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", "transfer coding"),
        (OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "transfer coding"),
        (OK + LENGTH + CHUNKED + b"\r\n", "not valid HTTP/1.1"),
        (OK + CHUNKED + LENGTH + b"\r\n", "not valid HTTP/1.1"),
        (OK + LENGTH + LENGTH + b"\r\n", "not valid HTTP/1.1"),
        (OK + b"Content-Length: -2\r\n\r\n", "not valid HTTP/1.1"),
        (OK + b"Content-Length: 2, 2\r\n\r\n", "not valid HTTP/1.1"),
        (OK + b"Content-Length: 99999999999999999999999999\r\n\r\n", "not valid HTTP/1.1"),
        (OK + b"X-A: b\r\n folded\r\n" + LENGTH + b"\r\n{}", "not valid HTTP/1.1"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", "not valid HTTP/1.1"),
        (b"HTTP/1.1 099 OK\r\n\r\n", "invalid status 99"),
        (OK + CHUNKED + b"\r\n2\r\n{}X\r\n0\r\n\r\n", "not valid HTTP/1.1"),
        (OK + CHUNKED + b"\r\nx\r\n", "not valid HTTP/1.1"),
        (OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nContent-Length: 2\r\n\r\n", "not valid HTTP/1.1"),
        (OK + b"Content-Length: %d\r\n\r\n" % (BYTES_MAX + 1), "larger than 400 bytes"),
        (OK + CHUNKED + b"\r\n200\r\n" + bytes(0x200), "larger than 400 bytes"),
        (OK + b"X-A: " + b"a" * BYTES_MAX, "larger than 400 bytes"),
        (INTERIM * 5, "larger than 400 bytes"),
    ],
)
def test_an_unusable_response_is_refused(raw: bytes, problem: str) -> None:
    """As soon as its bytes show it, and however they are cut."""
    for segments in cuts(raw):
        with pytest.raises(UnusableResponseError, match=problem):
            read(*segments)


@pytest.mark.parametrize(
    ("head", "body"),
    [(OK + LENGTH + b"\r\n", b"\r\n"), (OK + b"Content-Length: 5\r\n\r\n", b"\n\n\n\n\n")],
)
def test_a_body_of_line_ends_that_arrives_with_its_head_prevents_reuse(head: bytes, body: bytes) -> None:
    """It may be empty, with an empty line after it. A body that arrives later has a place of its own length."""
    assert read(head + body) == (Response(200, body), False)
    for at in range(1, len(head + body)):
        rest = (head + body)[at:]
        assert read((head + body)[:at], rest) == (Response(200, body), at >= len(head)), rest


def test_a_body_is_received_into_its_place() -> None:
    """Bytes after its end have no room there, so the connection gets them separately."""
    reader = ResponseReader(BYTES_MAX)
    assert reader.feed(OK + b"Content-Length: 300\r\n\r\nfirst") is None
    assert reader.unfilled is not None
    assert len(reader.unfilled) == 295
    reader.unfilled[:200] = b"x" * 200
    assert reader.note_received(200) is None
    assert len(reader.unfilled) == 95
    reader.unfilled[:] = b"y" * 95
    assert reader.note_received(95) == Response(200, b"first" + b"x" * 200 + b"y" * 95)


def test_a_length_of_any_number_of_zeros_is_read() -> None:
    """Python refuses to convert so many digits. A length that is too large is refused, however it is written."""
    zeros = b"0" * 5_000
    reader = ResponseReader(10_000)
    assert reader.feed(OK + b"Content-Length: " + zeros + b"2\r\n\r\n{}") == Response(200, b"{}")
    with pytest.raises(UnusableResponseError, match="larger than 10000 bytes"):
        ResponseReader(10_000).feed(OK + b"Content-Length: " + zeros + b"10001\r\n\r\n")


@pytest.mark.parametrize("end", [LENGTH + b"\r\n{}", CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n"])
@pytest.mark.parametrize("extra", [b"x", b"\x00", b"\r\nx", INTERIM, OK, OK + LENGTH + b"\r\n{}"])
@pytest.mark.parametrize("connection", [b"", b"Connection: close\r\n"])
def test_more_than_one_response_is_refused(end: bytes, extra: bytes, connection: bytes) -> None:
    """If the bytes after the end arrive later, the connection has no reader for them (see `async_http`)."""
    whole = OK + connection + end
    with pytest.raises(UnusableResponseError, match="more than one response"):
        read(whole + extra)
    if b"chunked" in end:
        with pytest.raises(UnusableResponseError, match="more than one response"):
            read(whole[:-1], whole[-1:] + extra)


@pytest.mark.parametrize(
    "whole",
    [
        OK + LENGTH + b"\r\n{}",
        OK + LENGTH + b"\r\n}\n",
        OK + b"Content-Length: 0\r\n\r\n",
        OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
@pytest.mark.parametrize("line_ends", [b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\r\n" * 5])
def test_line_ends_after_a_response_prevent_reuse(whole: bytes, line_ends: bytes) -> None:
    """The parser skips them, so they are found by their number."""
    response, may_reuse = read(whole)
    assert may_reuse
    assert read(whole + line_ends) == (response, False)
    if not whole.endswith((b"{}", b"}\n")):  # the rest of a body of known length has no room for them
        assert read(whole[:-1], whole[-1:] + line_ends) == (response, False)
