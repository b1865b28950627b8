"""Messages of an event stream arrive whole and unchanged, however the bytes are cut. Changed bytes are an error."""

import struct
import zlib
from collections.abc import Sequence

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from leasehold.adapters.aws.event_stream import BrokenEventStreamError, Message, MessageDecoder
from leasehold.local.event_stream import frame

NAMES = st.text(min_size=1, max_size=20)
MESSAGES = st.lists(
    st.builds(Message, st.dictionaries(NAMES, st.text(max_size=40), max_size=4), st.binary(max_size=2_000)),
    max_size=5,
)
CUTS = st.lists(st.integers(1, 300), max_size=30)
BYTES_MAX = 100_000


def pieces_of(raw: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Cut bytes into pieces of these lengths; the rest is the last piece."""
    pieces = []
    for length in lengths:
        pieces.append(raw[:length])
        raw = raw[length:]
    return [*pieces, raw]


def decode(pieces: Sequence[bytes]) -> tuple[list[Message], Exception | None]:
    """The messages, and the error that ended them."""
    decoder = MessageDecoder(BYTES_MAX)
    found: list[Message] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (message := decoder.next_message()) is not None:
                found.append(message)
        decoder.finish()
    except BrokenEventStreamError as error:
        return found, error
    return found, None


def encode(messages: Sequence[Message]) -> bytes:
    return b"".join(frame(dict(message.headers), message.payload) for message in messages)


@given(MESSAGES, CUTS)
def test_messages_do_not_depend_on_the_cuts(messages: list[Message], cuts: list[int]) -> None:
    """The decoder of botocore returns the same."""
    raw = encode(messages)
    assert decode(pieces_of(raw, cuts)) == (messages, None)
    expected = EventStreamBuffer()
    expected.add_data(raw)
    assert [Message(each.headers, each.payload) for each in expected] == messages


@given(st.data(), MESSAGES.filter(bool), CUTS)
def test_a_changed_byte_is_an_error(data: st.DataObject, messages: list[Message], cuts: list[int]) -> None:
    """Exactly the messages before the changed byte are returned, whichever byte it is."""
    raw = bytearray(encode(messages))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    found, error = decode(pieces_of(bytes(raw), cuts))
    assert error is not None
    assert found == messages[: len(found)]
    assert len(encode(found)) <= at < len(encode(messages[: len(found) + 1]))


@given(MESSAGES.filter(bool), st.data(), CUTS)
def test_a_cut_in_a_message_is_an_error(
    messages: list[Message], data: st.DataObject, cuts: list[int]
) -> None:
    """The whole messages before the cut are returned."""
    last = frame(dict(messages[-1].headers), messages[-1].payload)
    raw = encode(messages)[: -data.draw(st.integers(1, len(last) - 1))]
    found, error = decode(pieces_of(raw, cuts))
    assert found == messages[:-1]
    assert "middle of a message" in str(error)


@given(st.binary(max_size=300), CUTS)
def test_garbage_is_an_error_or_incomplete(garbage: bytes, cuts: list[int]) -> None:
    """Garbage with a right checksum of its lengths and of its content raises no other error either."""
    for raw in (garbage, _with_checksums(garbage)):
        decode(pieces_of(raw, cuts))


def _with_checksums(garbage: bytes) -> bytes:
    """A message that consists of headers only, all of which are garbage."""
    lengths = struct.pack("!II", len(garbage) + 16, len(garbage))
    message = lengths + struct.pack("!I", zlib.crc32(lengths)) + garbage
    return message + struct.pack("!I", zlib.crc32(message))


@pytest.mark.parametrize(
    ("total", "headers_length"),
    [(0, 0), (15, 0), (16, 1), (20, 2**32 - 1), (BYTES_MAX + 1, 0), (2**32 - 1, 0)],
)
def test_impossible_lengths_are_an_error_at_once(total: int, headers_length: int) -> None:
    """No further bytes are awaited or collected."""
    lengths = struct.pack("!II", total, headers_length)
    decoder = MessageDecoder(BYTES_MAX)
    decoder.feed(lengths + struct.pack("!I", zlib.crc32(lengths)))
    with pytest.raises(BrokenEventStreamError):
        decoder.next_message()


def test_headers_of_other_types_are_skipped() -> None:
    """A later version of the service may send numbers, booleans, times or identifiers."""
    others = b"".join(
        bytes([1, 0x61 + kind, kind]) + value
        for kind, value in enumerate(
            [b"", b"", bytes(1), bytes(2), bytes(4), bytes(8), b"\0\2xy", b"\0\3abc", bytes(8), bytes(16)]
        )
    )
    assert decode([_with_checksums(others)]) == ([Message({"h": "abc"}, b"")], None)
