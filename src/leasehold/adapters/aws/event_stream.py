"""Decodes `application/vnd.amazon.eventstream`: bytes in any cuts become messages, with both checksums verified.

total length (4) | headers length (4) | CRC32 of these eight (4) | headers | payload | CRC32 of all before (4)
one header: name length (1) | name | type (1) | value

Kinesis uses headers of text only; headers of other types are skipped. botocore has a decoder, too. It copies all bytes
of an incomplete message with each piece that arrives, and accepts lengths that contradict each other.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# The largest events have about 20 MB: 10 MB of records in base64, and 10,000 keys and sequence numbers.
MESSAGE_BYTES_MAX: Final = 32 * 1024 * 1024

_PRELUDE: Final = struct.Struct("!III")
_CRC: Final = struct.Struct("!I")
_LENGTH: Final = struct.Struct("!H")
_TEXT_TYPE: Final = 7
_BYTES_TYPE: Final = 6
# The length of the value for each type with a fixed one: booleans, integers, a time, a UUID.
_FIXED_LENGTHS: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}


class BrokenEventStreamError(ConnectionError):
    """The bytes are not an event stream, or were changed on the way. The connection cannot be used any more."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its headers of text, and its payload."""

    headers: Mapping[str, str]
    payload: bytes


class MessageDecoder:
    """Collects the bytes of one event stream. After an error it cannot be used again."""

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._start = 0  # the first byte in the buffer that belongs to no earlier message
        self._lengths: tuple[int, int] | None = None  # total and headers, once the prelude is complete

    def feed(self, data: bytes) -> None:
        """Add bytes. Take all messages before the next call."""
        del self._buffer[: self._start]
        self._start = 0
        self._buffer += data

    def next_message(self) -> Message | None:
        """The next message, or None if it is incomplete. Messages before a broken one are returned before its error."""
        start = self._start
        with memoryview(self._buffer) as received:
            if self._lengths is None and len(received) - start >= _PRELUDE.size:
                self._lengths = _read_prelude(received[start : start + _PRELUDE.size], self._bytes_max)
            if self._lengths is None or len(received) - start < self._lengths[0]:
                return None
            total, headers_length = self._lengths
            message = _read_message(received[start : start + total], headers_length)
        self._start += total
        self._lengths = None
        return message

    def finish(self) -> None:
        """Check, at the end of the bytes, that no message is incomplete."""
        if len(self._buffer) > self._start:
            raise BrokenEventStreamError("the event stream ends in the middle of a message")


def _read_prelude(prelude: memoryview, bytes_max: int) -> tuple[int, int]:
    """The total length and the length of the headers. Nothing is collected before both are known to be plausible."""
    total, headers_length, checksum = _PRELUDE.unpack(prelude)
    if zlib.crc32(prelude[:8]) != checksum:
        raise BrokenEventStreamError("a message has a wrong checksum of its lengths")
    if total > bytes_max:
        raise BrokenEventStreamError(f"a message of {total} bytes is larger than the limit of {bytes_max}")
    if total < _PRELUDE.size + headers_length + _CRC.size:
        raise BrokenEventStreamError("a message is shorter than its headers")
    return total, headers_length


def _read_message(message: memoryview, headers_length: int) -> Message:
    end = len(message) - _CRC.size
    if zlib.crc32(message[:end]) != _CRC.unpack(message[end:])[0]:
        raise BrokenEventStreamError("a message has a wrong checksum")
    headers_end = _PRELUDE.size + headers_length
    try:
        headers = _read_headers(bytes(message[_PRELUDE.size : headers_end]))
    except (IndexError, KeyError, UnicodeDecodeError, struct.error):
        raise BrokenEventStreamError("a message has invalid headers") from None
    return Message(headers, bytes(message[headers_end:end]))


def _read_headers(encoded: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    at = 0
    while at < len(encoded):
        name_end = at + 1 + encoded[at]
        name, kind = encoded[at + 1 : name_end], encoded[name_end]
        at = name_end + 1
        if kind in {_BYTES_TYPE, _TEXT_TYPE}:
            length = _LENGTH.unpack_from(encoded, at)[0]
            at += _LENGTH.size
        else:
            length = _FIXED_LENGTHS[kind]
        if at + length > len(encoded):
            raise IndexError
        if kind == _TEXT_TYPE:
            headers[name.decode()] = encoded[at : at + length].decode()
        at += length
    return headers
