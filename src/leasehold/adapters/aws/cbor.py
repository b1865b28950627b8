"""CBOR (RFC 8949) for requests of GetRecords and for error responses, which are small. Records in CBOR are read by the
native decoder.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final

CONTENT_TYPE: Final = "application/x-amz-cbor-1.1"

_DEPTH_MAX: Final = 16
_BYTES_MAX: Final = 64 * 1024  # no error is larger, and a large body would block the event loop
_INDEFINITE: Final = 31
_BREAK: Final = 0xFF
_CONSTANTS: Final = {20: False, 21: True}
_FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}


class NotCborError(ValueError):
    """The bytes are not one item of CBOR with nothing after it."""


def encode(fields: dict[str, str | int]) -> bytes:
    """A map of texts and of integers from 0 on.

    >>> encode({"Limit": 10_000}).hex(" ")
    'a1 65 4c 69 6d 69 74 19 27 10'
    """
    items = [_encode_name(name) + _encode_value(value) for name, value in fields.items()]
    return _head(5, len(items)) + b"".join(items)


def _encode_value(value: str | int) -> bytes:
    return _encode_text(value) if isinstance(value, str) else _head(0, value)


@lru_cache(maxsize=16)  # requests have few names, and are sent again and again
def _encode_name(name: str) -> bytes:
    return _encode_text(name)


def _encode_text(text: str) -> bytes:
    encoded = text.encode()
    return _head(3, len(encoded)) + encoded


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    for info, code, limit in ((24, ">BB", 2**8), (25, ">BH", 2**16), (26, ">BI", 2**32), (27, ">BQ", 2**64)):
        if argument < limit:
            return struct.pack(code, major << 5 | info, argument)
    raise ValueError("a number beyond 64 bits")


def decode(body: bytes) -> Any:
    """The item in `body`. A tag is left out. Raises `NotCborError` for every other content, and for a large body."""
    if len(body) > _BYTES_MAX:
        raise NotCborError
    reader = _Reader(body)
    try:
        value = reader.read(0)
    except (IndexError, UnicodeDecodeError, struct.error, TypeError) as error:
        raise NotCborError from error
    if reader.at != len(body):
        raise NotCborError
    return value


class _Reader:
    """Reads one item after the other. No length is trusted: a string must lie within the bytes."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.at = 0

    def read(self, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise NotCborError
        first = self._body[self.at]
        major, info = first >> 5, first & 31
        argument = self._argument(info)
        match major:
            case 0:
                return _known(argument)
            case 1:
                return -1 - _known(argument)
            case 2:
                return self._string(2, argument)
            case 3:
                return self._string(3, argument).decode()
            case 4:
                return [self.read(depth + 1) for _ in self._entries(argument)]
            case 5:
                # A key comes before its value.
                return {self.read(depth + 1): self.read(depth + 1) for _ in self._entries(argument)}
            case 6:
                return self.read(depth + 1)
        return self._special(info, argument)

    def _argument(self, info: int) -> int | None:
        """The number in the head of an item; None for an item of unknown length."""
        self.at += 1
        if info < 24:
            return info
        if info == _INDEFINITE:
            return None
        if info > 27:
            raise NotCborError
        return int.from_bytes(self._take(1 << (info - 24)), "big")

    def _take(self, count: int) -> bytes:
        taken = self._body[self.at : self.at + count]
        if len(taken) != count:
            raise NotCborError
        self.at += count
        return taken

    def _string(self, major: int, length: int | None) -> bytes:
        if length is not None:
            return self._take(length)
        parts = []
        while not self._is_at_break():
            first = self._body[self.at]
            if first >> 5 != major:
                raise NotCborError
            parts.append(self._take(_known(self._argument(first & 31))))
        return b"".join(parts)

    def _entries(self, count: int | None) -> Any:
        if count is None:
            return iter(self._is_at_break, True)
        if count > len(self._body):
            raise NotCborError
        return range(count)

    def _is_at_break(self) -> bool:
        if self._body[self.at] != _BREAK:
            return False
        self.at += 1
        return True

    def _special(self, info: int, argument: int | None) -> Any:
        number = _known(argument)
        if info in _FLOATS:
            return struct.unpack(_FLOATS[info], number.to_bytes(1 << (info - 24), "big"))[0]
        return _CONSTANTS.get(info)


def _known(argument: int | None) -> int:
    if argument is None:
        raise NotCborError
    return argument
