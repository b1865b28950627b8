"""CBOR bodies for the decoder in Python: read by cbor2, checked, and written as the JSON that means the same."""

import base64
import math
from typing import Any

import cbor2
import orjson

NOT_CBOR = "it is not CBOR"
_TIME = "ApproximateArrivalTimestamp"
_END = "end of the body"


class InexactError(Exception):
    """A time that a number of seconds cannot express: those have tests of their own."""


class _TagError(Exception):
    """A tag other than that of a time."""


def _refuse(_value: Any, _immutable: bool) -> Any:
    raise _TagError


# cbor2 knows the meaning of many tags. Only that of a time is allowed.
_TAGS: Any = dict.fromkeys((0, *range(2, 300)), _refuse) | {1: lambda value, _immutable: value}
_VISIBLE_TAGS: Any = _TAGS | {1: lambda value, _immutable: (value,)}


def to_json(body: bytes) -> bytes | None:
    """None if the body is not CBOR as Kinesis sends it."""
    try:
        value = cbor2.loads(body, semantic_decoders=_TAGS, max_depth=16)
        # cbor2 ignores bytes after the item; in a list, they would be the next item, or the tag of a time before it.
        _, end = cbor2.loads(
            b"\x82" + body + cbor2.dumps(_END), semantic_decoders=_VISIBLE_TAGS, max_depth=17
        )
    except (cbor2.CBORDecodeError, ValueError, OverflowError, _TagError):
        return None
    return orjson.dumps(_plain(value)) if end == _END and not _has_tag(value) else None


def _has_tag(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_tag, [*value, *value.values()]))
    return isinstance(value, cbor2.CBORTag) or (isinstance(value, list | tuple) and any(map(_has_tag, value)))


def _plain(value: Any, name: str = "") -> Any:
    """Values that JSON does not have become booleans: of a wrong type for every field, and as true or false."""
    if isinstance(value, dict):
        return {key: _plain(each, key) for key, each in value.items() if isinstance(key, str)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode() if name == "Data" else bool(value)
    if type(value) is int:
        if name != _TIME:
            return value if -(2**63) <= value < 2**64 else float(value)
        if abs(value) >= 2**53:
            raise InexactError
        return value / 1000  # from milliseconds
    if isinstance(value, float) and not math.isfinite(value):
        return True
    if value is None or isinstance(value, bool | float | str):
        return value
    return bool(value)
