"""Builds and parses the keys of the archive's objects.

    <prefix>/yyyy/MM/dd/HH/mm/<shard>/<first>-<last>.<extension>

An object holds the records of one shard, one arrival minute (UTC) and one pinned range. `first` and `last` are the
positions of its first and last record, padded to a fixed width, so keys sort like records.

Keys consist of an allow-list of characters, and each segment begins with a letter or digit. So a key stays below the
root whatever a shard id or a prefix contains, and no reader treats the object as hidden. `key_from_text` returns None
for every text that `key_to_text` does not produce.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.errors import ConfigError, InvalidPositionError, InvalidRangeError

EXTENSIONS: Final = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")

SEQUENCE_DIGITS: Final = 56  # the length of the numbers that Kinesis issues
SUB_SEQUENCE_DIGITS: Final = 10  # the largest aggregate, 10 MB of empty records, has 5 million records

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE_MAX: Final = (datetime(9999, 12, 31, 23, 59, tzinfo=UTC) - _EPOCH) // timedelta(minutes=1)

_SEGMENT: Final = r"[A-Za-z0-9][A-Za-z0-9_.=-]{0,127}"
_IS_SEGMENT: Final = re.compile(_SEGMENT)
_POSITION: Final = rf"([0-9]{{{SEQUENCE_DIGITS}}})\.([0-9]{{{SUB_SEQUENCE_DIGITS}}})"
_NAME: Final = re.compile(
    r"([0-9]{4})/([0-9]{2})/([0-9]{2})/([0-9]{2})/([0-9]{2})/"
    rf"({_SEGMENT})/{_POSITION}-{_POSITION}\.({'|'.join(map(re.escape, EXTENSIONS))})"
)


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The parts of an object's key. `minute` counts from 1970."""

    minute: int
    shard: ShardId
    range: Range
    extension: str


def key_to_text(key: ObjectKey, prefix: str = "") -> str:
    """The key as text, relative to the root of the archive.

    >>> text = key_to_text(ObjectKey(0, ShardId("shardId-0"), Range(Position("7"), Position("8", 2)), "parquet"), "x")
    >>> text.replace("0" * 50, "…")
    'x/1970/01/01/00/00/shardId-0/…000007.0000000000-…000008.0000000002.parquet'
    """
    assert key.extension in EXTENSIONS
    name = f"{_position_text(key.range.first)}-{_position_text(key.range.last)}.{key.extension}"
    return f"{minute_path(key.minute, prefix)}/{validate_segment(key.shard, 'shard id')}/{name}"


def key_from_text(text: str, prefix: str = "") -> ObjectKey | None:
    """Parse a key. Returns None for the key of a foreign object."""
    below = f"{prefix}/" if prefix else ""
    match = _NAME.fullmatch(text[len(below) :]) if text.startswith(below) else None
    if match is None:
        return None
    *moment, shard, first, first_sub, last, last_sub, extension = match.groups()
    try:
        minute = (datetime(*map(int, moment), tzinfo=UTC) - _EPOCH) // timedelta(minutes=1)  # type: ignore[misc, arg-type]
        range_ = Range(_position_from_text(first, first_sub), _position_from_text(last, last_sub))
    except (ValueError, InvalidRangeError):
        return None
    return ObjectKey(minute, ShardId(shard), range_, extension) if minute >= 0 else None


def unfinished_key_from_text(text: str, prefix: str = "") -> ObjectKey | None:
    """The key of the object that an interrupted writer did not finish, from the name `<key>#<number>` of its file.

    obstore writes a file in a folder under such a name and renames it. Readers do not ignore it.
    """
    name, _, number = text.rpartition("#")
    return key_from_text(name, prefix) if number.isdecimal() else None


def minute_path(minute: int, prefix: str = "") -> str:
    """The path of a minute's objects. It sorts right before their keys.

    >>> minute_path(28_333_333, "orders")
    'orders/2023/11/14/22/13'
    """
    if not 0 <= minute <= _MINUTE_MAX:
        raise InvalidPositionError(f"minute {minute} since 1970 is outside the years 1970 to 9999")
    moment = _EPOCH + timedelta(minutes=minute)
    below = f"{prefix}/" if prefix else ""
    return f"{below}{moment.year:04}/{moment:%m/%d/%H/%M}"


def validate_prefix(prefix: str) -> str:
    """Return the prefix. Raises ConfigError if a part of it could lead out of the root."""
    for segment in prefix.split("/") if prefix else ():
        validate_segment(segment, f"prefix {prefix!r}: part")
    return prefix


def validate_segment(text: str, what: str) -> str:
    """Return the text. Raises ConfigError if it cannot be one segment of a key."""
    if not _IS_SEGMENT.fullmatch(text):
        raise ConfigError(
            f"{what} {text[:140]!r} cannot be part of an object's name: expected at most 128 letters, digits and "
            "_ . = - with a letter or digit first"
        )
    return text


def _position_text(position: Position) -> str:
    number, sub = str(position.number), str(position.sub_sequence_number)
    if len(number) > SEQUENCE_DIGITS or len(sub) > SUB_SEQUENCE_DIGITS:
        raise InvalidPositionError(
            f"{position} does not fit into an object key: Kinesis issues sequence numbers of "
            f"{SEQUENCE_DIGITS} digits, and aggregates hold less than 10^{SUB_SEQUENCE_DIGITS} records"
        )
    return f"{number:0>{SEQUENCE_DIGITS}}.{sub:0>{SUB_SEQUENCE_DIGITS}}"


def _position_from_text(number: str, sub: str) -> Position:
    return Position(str(int(number)), int(sub))
