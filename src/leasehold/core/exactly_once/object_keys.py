"""Builds and parses the keys of the archive's objects.

    <prefix>/<folders of the time>/<shard>/<first>-<last>.<extension>
    <prefix>/<folders of the time>/<shard>/<first>-<last>.since-<yyyyMMddHHmm>.<extension>

An object holds the records of one shard, one unit of arrival time (UTC) and one pinned range. `first` and `last` are
the positions of its first and last record, padded to a fixed width, so keys sort like records. The unit is a minute, or
an hour or a day if the archive has another `Layout`. The folders show the layout, so any key can be parsed.

The second form is a compacted object, with the records of one unit or of several. It lies in the folder of its last
unit, so a listing from a time on finds every object with records of that time.

Keys consist of an allow-list of characters, and each segment begins with a letter or digit. So a key stays below the
root whatever a shard id or a prefix contains, and no reader treats the object as hidden. `key_from_text` returns None
for every text that `key_to_text` does not produce.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.errors import ConfigError, InvalidPositionError, InvalidRangeError

# Objects with these extensions have payloads only. The positions of their records are not known.
RAW_EXTENSIONS: Final = ("raw", "raw.gz", "raw.zst", "txt", "txt.gz", "txt.zst")
EXTENSIONS: Final = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst", "avro", *RAW_EXTENSIONS)

SEQUENCE_DIGITS: Final = 56  # the length of the numbers that Kinesis issues
SUB_SEQUENCE_DIGITS: Final = 10  # the largest aggregate, 10 MB of empty records, has 5 million records

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE_MAX: Final = (datetime(9999, 12, 31, 23, 59, tzinfo=UTC) - _EPOCH) // timedelta(minutes=1)

SEGMENT_CHARACTERS_MAX: Final = 128
_SEGMENT: Final = rf"[A-Za-z0-9][A-Za-z0-9_.=-]{{0,{SEGMENT_CHARACTERS_MAX - 1}}}"
_IS_SEGMENT: Final = re.compile(_SEGMENT)
_POSITION: Final = rf"([0-9]{{{SEQUENCE_DIGITS}}})\.([0-9]{{{SUB_SEQUENCE_DIGITS}}})"
_NAME: Final = re.compile(
    r"(?P<time>[0-9]{4}(?:/[0-9]{2}){2,4}|dt=[0-9]{4}-[0-9]{2}-[0-9]{2}(?:/hr=[0-9]{2})?)/"
    rf"({_SEGMENT})/{_POSITION}-{_POSITION}(?:\.since-([0-9]{{12}}))?\.({'|'.join(map(re.escape, EXTENSIONS))})"
)
_DIGITS: Final = re.compile(r"[0-9]+")
_SINCE: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})")


class Layout(Enum):
    """The folders of an archive: how finely objects are divided by time, and what the folders are called."""

    MINUTE = "minute"  # yyyy/MM/dd/HH/mm
    HOUR = "hour"  # yyyy/MM/dd/HH
    DAY = "day"  # yyyy/MM/dd
    HIVE_HOUR = "hive-hour"  # dt=yyyy-MM-dd/hr=HH
    HIVE_DAY = "hive-day"  # dt=yyyy-MM-dd

    @property
    def minutes(self) -> int:
        """The minutes of a unit, whose records an object holds."""
        return _UNITS[self]


_UNITS: Final[Mapping[Layout, int]] = {
    Layout.MINUTE: 1,
    Layout.HOUR: 60,
    Layout.DAY: 1_440,
    Layout.HIVE_HOUR: 60,
    Layout.HIVE_DAY: 1_440,
}
# The layout of folders, by whether they have names, and their number.
_LAYOUTS: Final[Mapping[tuple[bool, int], Layout]] = {
    (False, 5): Layout.MINUTE,
    (False, 4): Layout.HOUR,
    (False, 3): Layout.DAY,
    (True, 2): Layout.HIVE_HOUR,
    (True, 1): Layout.HIVE_DAY,
}


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The parts of an object's key. `minute` counts from 1970: the minute of its records, or the first of its unit.

    In a compacted object, it is that of the last records.
    """

    minute: int
    shard: ShardId
    range: Range
    extension: str
    since: int | None = None  # the first minute of a compacted object
    layout: Layout = Layout.MINUTE

    @property
    def first_minute(self) -> int:
        """The first minute that its records may have."""
        return self.minute if self.since is None else self.since

    @property
    def last_minute(self) -> int:
        """The last minute that its records may have."""
        return self.minute + self.layout.minutes - 1

    @property
    def is_compacted(self) -> bool:
        """True if compaction made this object from others."""
        return self.since is not None

    @property
    def has_positions(self) -> bool:
        """True if the object has the position of each record."""
        return self.extension not in RAW_EXTENSIONS

    def covers(self, other: ObjectKey) -> bool:
        """True if this compacted object replaces another one: by their names, it has all of the other's records."""
        return (
            self.is_compacted
            and self != other
            and self.shard == other.shard
            and self.first_minute <= other.first_minute
            and other.last_minute <= self.last_minute
            and self.range.first <= other.range.first
            and other.range.last <= self.range.last
        )


def key_to_text(key: ObjectKey, prefix: str = "") -> str:
    """The key as text, relative to the root of the archive.

    >>> text = key_to_text(ObjectKey(0, ShardId("shardId-0"), Range(Position("7"), Position("8", 2)), "parquet"), "x")
    >>> text.replace("0" * 50, "…")
    'x/1970/01/01/00/00/shardId-0/…000007.0000000000-…000008.0000000002.parquet'
    """
    assert key.extension in EXTENSIONS
    since = "" if key.since is None else f".since-{_compact_minute(key.since)}"
    name = f"{_position_text(key.range.first)}-{_position_text(key.range.last)}{since}.{key.extension}"
    folders = minute_path(key.minute, prefix, key.layout)
    return f"{folders}/{validate_segment(key.shard, 'shard id')}/{name}"


def key_from_text(text: str, prefix: str = "") -> ObjectKey | None:
    """Parse a key. Returns None for the key of a foreign object."""
    below = f"{prefix}/" if prefix else ""
    match = _NAME.fullmatch(text[len(below) :]) if text.startswith(below) else None
    if match is None:
        return None
    time, shard, first, first_sub, last, last_sub, since, extension = match.groups()
    layout = _LAYOUTS[time.startswith("dt="), time.count("/") + 1]
    try:
        minute = _minute_of(*_DIGITS.findall(time))
        first_minute = None if since is None else _minute_of(*_SINCE.fullmatch(since).groups())  # type: ignore[union-attr]
        range_ = Range(_position_from_text(first, first_sub), _position_from_text(last, last_sub))
    except (ValueError, InvalidRangeError):
        return None
    if minute < 0 or (first_minute is not None and not 0 <= first_minute <= minute):
        return None
    if first_minute is not None and first_minute % layout.minutes:
        return None
    return ObjectKey(minute, ShardId(shard), range_, extension, first_minute, layout)


def unfinished_key_from_text(text: str, prefix: str = "") -> ObjectKey | None:
    """The key of the object that an interrupted writer did not finish, from the name `<key>#<number>` of its file.

    obstore writes a file in a folder under such a name and renames it. Readers do not ignore it.
    """
    name, _, number = text.rpartition("#")
    return key_from_text(name, prefix) if number.isdecimal() else None


def minute_path(minute: int, prefix: str = "", layout: Layout = Layout.MINUTE) -> str:
    """The path of a minute's objects. It sorts right before their keys.

    >>> minute_path(28_333_333, "orders")
    'orders/2023/11/14/22/13'
    >>> minute_path(28_333_333, "orders", Layout.HIVE_HOUR)
    'orders/dt=2023-11-14/hr=22'
    """
    moment = _moment(minute)
    folders = {
        Layout.MINUTE: f"{moment.year:04}/{moment:%m/%d/%H/%M}",
        Layout.HOUR: f"{moment.year:04}/{moment:%m/%d/%H}",
        Layout.DAY: f"{moment.year:04}/{moment:%m/%d}",
        Layout.HIVE_HOUR: f"dt={moment.year:04}-{moment:%m-%d}/hr={moment:%H}",
        Layout.HIVE_DAY: f"dt={moment.year:04}-{moment:%m-%d}",
    }
    return f"{prefix}/{folders[layout]}" if prefix else folders[layout]


def _compact_minute(minute: int) -> str:
    moment = _moment(minute)
    return f"{moment.year:04}{moment:%m%d%H%M}"


def _moment(minute: int) -> datetime:
    if not 0 <= minute <= _MINUTE_MAX:
        raise InvalidPositionError(f"minute {minute} since 1970 is outside the years 1970 to 9999")
    return _EPOCH + timedelta(minutes=minute)


def _minute_of(year: str, month: str, day: str, hour: str = "0", minute: str = "0") -> int:
    moment = datetime(int(year), int(month), int(day), int(hour), int(minute), tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(minutes=1)


def validate_prefix(prefix: str) -> str:
    """Return the prefix. Raises ConfigError if a part of it could lead out of the root."""
    for segment in prefix.split("/") if prefix else ():
        validate_segment(segment, f"prefix {prefix!r}: part")
    return prefix


def validate_segment(text: str, what: str) -> str:
    """Return the text. Raises ConfigError if it cannot be one segment of a key."""
    if not _IS_SEGMENT.fullmatch(text):
        raise ConfigError(
            f"{what} {text[:140]!r} cannot be part of an object's name: expected at most "
            f"{SEGMENT_CHARACTERS_MAX} letters, digits and _ . = - with a letter or digit first"
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
