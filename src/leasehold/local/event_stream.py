"""Frames of `application/vnd.amazon.eventstream`: lengths, headers, payload, and two checksums.

total length (4) | headers length (4) | CRC32 of these eight (4) | headers | payload | CRC32 of all before (4)
one header: name length (1) | name | type 7 (1) | value length (2) | value
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

_PRELUDE_BYTES: Final = 12
_CRC_BYTES: Final = 4
_STRING_TYPE: Final = 7


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """Encode one message of an event stream."""
    encoded = b"".join(_header(name, value) for name, value in headers.items())
    total = _PRELUDE_BYTES + len(encoded) + len(payload) + _CRC_BYTES
    lengths = struct.pack("!II", total, len(encoded))
    message = lengths + struct.pack("!I", zlib.crc32(lengths)) + encoded + payload
    return message + struct.pack("!I", zlib.crc32(message))


def event(event_type: str, content_type: str, payload: bytes) -> bytes:
    """Encode a message with an event."""
    headers = {":event-type": event_type, ":content-type": content_type, ":message-type": "event"}
    return frame(headers, payload)


def exception(exception_type: str, content_type: str, payload: bytes) -> bytes:
    """Encode a message that ends the stream with an error."""
    headers = {
        ":exception-type": exception_type,
        ":content-type": content_type,
        ":message-type": "exception",
    }
    return frame(headers, payload)


def _header(name: str, value: str) -> bytes:
    raw_name, raw_value = name.encode(), value.encode()
    return (
        struct.pack("!B", len(raw_name))
        + raw_name
        + struct.pack("!BH", _STRING_TYPE, len(raw_value))
        + raw_value
    )
