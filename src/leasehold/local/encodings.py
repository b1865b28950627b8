"""The two encodings of the Kinesis protocol, JSON 1.1 and CBOR 1.1: bytes to plain values and back."""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from typing import Any, Final, Protocol

import cbor2
import orjson


class MalformedBodyError(Exception):
    """The body, or a value in it, does not match its content type."""


class Encoding(Protocol):
    """One encoding. It represents times (in milliseconds) and blobs (bytes) in its own way."""

    @property
    def content_type(self) -> str: ...

    def decode(self, body: bytes) -> Any: ...
    def encode(self, value: object) -> bytes: ...
    def encode_time(self, ms: int) -> object: ...
    def encode_blob(self, data: bytes) -> object: ...
    def decode_time(self, value: object) -> int: ...
    def decode_blob(self, value: object) -> bytes: ...


@dataclass(frozen=True, slots=True)
class JsonEncoding:
    """Blobs as base64, times as seconds with three decimals."""

    content_type: str = "application/x-amz-json-1.1"

    def decode(self, body: bytes) -> Any:
        # Counted in strings, too: 500 keys of 256 characters may consist of them.
        if body.count(b",") + body.count(b"[") + body.count(b"{") > JSON_SEPARATORS_MAX:
            raise MalformedBodyError("the body has more values than any request of Kinesis")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise MalformedBodyError("the body is not JSON") from error

    def encode(self, value: object) -> bytes:
        return orjson.dumps(value)

    def encode_time(self, ms: int) -> float:
        return ms / 1000

    def encode_blob(self, data: bytes) -> str:
        return binascii.b2a_base64(data, newline=False).decode()

    def decode_time(self, value: object) -> int:
        return _to_milliseconds(value, 1000)

    def decode_blob(self, value: object) -> bytes:
        if not isinstance(value, str):
            raise MalformedBodyError("a blob is not base64 text")
        try:
            return binascii.a2b_base64(value, strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise MalformedBodyError("a blob is not base64 text") from error


@dataclass(frozen=True, slots=True)
class CborEncoding:
    """Blobs as byte strings, times as tag 1 with milliseconds. (The standard of that tag uses seconds.)"""

    content_type: str = "application/x-amz-cbor-1.1"

    def decode(self, body: bytes) -> Any:
        _check_cbor_items(body)
        try:
            return cbor2.loads(body, semantic_decoders=_PLAIN_TIME, max_depth=16)
        except (cbor2.CBORDecodeError, ValueError, OverflowError) as error:
            raise MalformedBodyError("the body is not CBOR") from error

    def encode(self, value: object) -> bytes:
        return cbor2.dumps(value)

    def encode_time(self, ms: int) -> cbor2.CBORTag:
        return cbor2.CBORTag(1, ms)

    def encode_blob(self, data: bytes) -> bytes:
        return data

    def decode_time(self, value: object) -> int:
        return _to_milliseconds(value, 1)

    def decode_blob(self, value: object) -> bytes:
        if not isinstance(value, bytes):
            raise MalformedBodyError("a blob is not a byte string")
        return value


def _check_cbor_items(body: bytes) -> None:
    """Refuse a body with too many items, or with a tag other than that of a time, before it is decoded.

    Twenty megabytes of empty arrays take a minute and gigabytes of memory. Other tags make the decoder compile regular
    expressions, parse messages and share references. Damaged bytes are left to the decoder.
    """
    position, end = 0, len(body)
    for _ in range(CBOR_ITEMS_MAX):
        if position >= end:
            return
        major, info = body[position] >> 5, body[position] & 31
        position += 1
        value = info
        if 24 <= info <= 27:  # the value is in the next 1, 2, 4 or 8 bytes
            width = 1 << (info - 24)
            value = int.from_bytes(body[position : position + width])
            position += width
        if major in {2, 3} and info != 31:  # a string of this length. 31: of unknown length, in parts
            position += value
        elif major == 6 and value != 1:
            raise MalformedBodyError(f"the body has the CBOR tag {value}: only 1, a time, is known")
    raise MalformedBodyError("the body has more values than any request of Kinesis")


def _to_milliseconds(value: object, ms: int) -> int:
    """Convert a time in units of `ms` milliseconds. Refuse values that no 64-bit integer can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) * ms < _TIME_MAX_MS:
        raise MalformedBodyError("a timestamp is not a number in the range of times")
    return round(value * ms)


# PutRecords has at most 500 records of about eight items.
CBOR_ITEMS_MAX: Final = 20_000
JSON_SEPARATORS_MAX: Final = 200_000
_TIME_MAX_MS: Final = 2**53
# Tag 1 would become a datetime, which takes the milliseconds for seconds and overflows.
_PLAIN_TIME: Final = {1: lambda value, _immutable: value}
JSON: Final = JsonEncoding()
CBOR: Final = CborEncoding()


def encoding_for(content_type: str) -> Encoding | None:
    """Return the encoding of a content type, or None if the server does not support it."""
    found = content_type.partition(";")[0].strip().lower()
    if found == CBOR.content_type:
        return CBOR
    return JSON if found in {JSON.content_type, "application/json"} else None
