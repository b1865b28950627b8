"""Parses times that users write: ISO 8601 with a zone, or the letters of Java's date patterns.

A time without a zone is refused, and so is a zone that has several meanings. A start position must not depend on the
machine that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from leasehold.errors import ConfigError

EXAMPLE: Final = "2026-11-15T12:00:00Z"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ZONE: Final = r"(?P<zone>[A-Za-z_/]+(?:[+-][0-9:]+)?|[+-][0-9:]+)"
_ISO: Final = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})[Tt ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})"
    rf"(?::(?P<second>[0-9]{{2}})(?:[.,](?P<fraction>[0-9]{{1,9}}))?)? ?{_ZONE}?"
)
_OFFSET: Final = re.compile(r"(?:UTC|GMT)?([+-])([0-9]{2})(?::?([0-9]{2}))?")
# The names of RFC 822, without CST, which is also China's time.
_ZONE_HOURS: Final[Mapping[str, int]] = {
    "Z": 0, "UTC": 0, "UT": 0, "GMT": 0,
    "EST": -5, "EDT": -4, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7,
}  # fmt: skip
_PATTERN_PARTS: Final[Mapping[str, str]] = {
    "yyyy": r"(?P<year>[0-9]{4})",
    "MM": r"(?P<month>[0-9]{2})",
    "dd": r"(?P<day>[0-9]{2})",
    "HH": r"(?P<hour>[0-9]{2})",
    "mm": r"(?P<minute>[0-9]{2})",
    "ss": r"(?P<second>[0-9]{2})",
    "SSS": r"(?P<fraction>[0-9]{3})",
    **dict.fromkeys(("Z", "ZZ", "ZZZ", "z", "zz", "zzz", "X", "XX", "XXX"), _ZONE),
}
_PATTERN_TOKEN: Final = re.compile(
    r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z'])"
)
_FIELDS: Final = ("year", "month", "day", "hour", "minute", "second", "fraction")


def parse_time(value: object) -> int:
    """Parse a time with its zone to milliseconds since 1970. The value is ISO 8601 text or a datetime.

    >>> parse_time("2026-11-15T12:00:00Z"), parse_time("2026-11-15 13:00:00.250+01:00")
    (1794744000000, 1794744000250)
    """
    if isinstance(value, datetime):
        return _to_epoch_ms(value)
    match = _ISO.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"it is not a time with its zone such as '{EXAMPLE}'")
    return _moment(match)


def format_time(epoch_ms: int) -> str:
    """Write a time in a form that `parse_time` accepts, in whole seconds.

    >>> format_time(1794744000250)
    '2026-11-15T12:00:00Z'
    """
    return (_EPOCH + timedelta(milliseconds=epoch_ms)).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time_in_format(text: str, pattern: str) -> int:
    """Parse a time that is written in a Java date pattern to milliseconds since 1970.

    >>> parse_time_in_format("06/25/2020 10:23:45 PDT", "MM/dd/yyyy HH:mm:ss ZZZ")
    1593105825000
    """
    match = _compile_pattern(pattern).fullmatch(text)
    if match is None:
        raise ConfigError(f"the time {text!r} does not have the format {pattern!r}")
    return _moment(match)


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    parts = list(_pattern_parts(pattern))
    names = [name for part in parts for name in re.findall(r"\?P<(\w+)>", part)]
    if len(set(names)) < len(names):
        raise ConfigError(f"the format {pattern!r} has a field twice")
    if "zone" not in names:
        raise ConfigError(
            f"the format {pattern!r} has no zone: add ' XXX' to it, and 'Z' or '-07:00' to the time"
        )
    missing = [name for name in _FIELDS if name not in names]
    if len(missing) > 4 or missing != list(_FIELDS[len(_FIELDS) - len(missing) :]):
        raise ConfigError(
            f"the format {pattern!r} leaves out a part of the time: write yyyy, MM and dd, and then as many of HH, mm, "
            "ss and SSS as the time has"
        )
    return re.compile("".join(parts))


def _pattern_parts(pattern: str) -> Iterator[str]:
    """Yield a regular expression for each token of a Java date pattern."""
    at = 0
    while at < len(pattern):
        token = _PATTERN_TOKEN.match(pattern, at)
        if token is None:
            raise ConfigError(f"the format {pattern!r} has a quote without its end")
        at = token.end()
        if token["letters"] is not None:
            if token["letters"] not in _PATTERN_PARTS:
                raise ConfigError(
                    f"the format {pattern!r} contains {token['letters']!r}: known are yyyy, MM, dd, HH, mm, ss, SSS, "
                    "for the zone Z, ZZZ, z or XXX, and text in quotes"
                )
            yield _PATTERN_PARTS[token["letters"]]
        elif token["other"] is not None:
            yield re.escape(token["other"])
        else:
            # Two quotes are a quote, inside and outside of quoted text.
            yield re.escape(token["quoted"].replace("''", "'") or "'")


def _moment(match: re.Match[str]) -> int:
    found = match.groupdict()
    if not found["zone"]:
        raise ConfigError(f"the time {match[0]!r} has no zone: add Z for UTC, or an offset such as -07:00")
    zone = timezone(_zone_offset(found["zone"]))
    year, month, day, hour, minute, second = (int(found.get(name) or 0) for name in _FIELDS[:-1])
    milliseconds = int(((found.get("fraction") or "") + "000")[:3])
    try:
        moment = datetime(year, month, day, hour, minute, second, milliseconds * 1000, tzinfo=zone)
    except ValueError as error:
        raise ConfigError(f"the time {match[0]!r} does not exist: {error}") from None
    return _to_epoch_ms(moment)


def _zone_offset(text: str) -> timedelta:
    hours = _ZONE_HOURS.get(text.upper())
    if hours is not None:
        return timedelta(hours=hours)
    match = _OFFSET.fullmatch(text.upper())
    if match is not None and int(match[2]) < 24 and int(match[3] or 0) < 60:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        return -offset if match[1] == "-" else offset
    raise ConfigError(
        f"the zone {text!r} is unknown, or has several meanings: write Z for UTC or an offset such as -07:00 (names: "
        f"{', '.join(_ZONE_HOURS)})"
    )


def _to_epoch_ms(moment: datetime) -> int:
    if moment.utcoffset() is None:
        raise ConfigError(
            f"the time {moment.isoformat()!r} has no zone: add Z for UTC, or an offset such as -07:00"
        )
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    if milliseconds < 0:
        raise ConfigError(
            f"the time {moment.isoformat()!r} is before 1970: write trim_horizon for the oldest record"
        )
    return milliseconds
