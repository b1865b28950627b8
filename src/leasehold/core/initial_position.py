"""Parses the text that says where to start reading. Workers, Spark and pipeline files accept the same forms.

Each text has exactly one meaning, or it is refused with a list of the forms. A text that was taken for another one
would skip records, and nobody would notice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from leasehold.core.model import InitialPosition
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.core.time_text import EXAMPLE, parse_time, parse_time_in_format
from leasehold.errors import ConfigError

FORMS: Final = (
    f"expected 'trim_horizon', 'latest', 'earliest', a time with its zone such as '{EXAMPLE}', "
    f"'at_timestamp {EXAMPLE}', or "
    """'{"at_timestamp": "11/15/2026 12:00:00 PST", "format": "MM/dd/yyyy HH:mm:ss ZZZ"}'"""
)
AT_TIMESTAMP_NAME: Final = "at_timestamp"
_FORMAT: Final = "format"
_SENTINELS: Final = {"latest": LATEST, "trim_horizon": TRIM_HORIZON, "earliest": TRIM_HORIZON}


def parse_initial_position(value: object) -> InitialPosition:
    """Parse a start for all shards. Raises ConfigError, with all forms, if the value has none of them.

    >>> parse_initial_position("AT_TIMESTAMP 2026-11-15T12:00:00Z").timestamp_ms
    1794744000000
    """
    if isinstance(value, InitialPosition):
        return value
    try:
        sentinel = _SENTINELS.get(position_name(value)) if isinstance(value, str) else None
        return (
            InitialPosition(AT_TIMESTAMP, _parse_start_time(value))
            if sentinel is None
            else InitialPosition(sentinel)
        )
    except ConfigError as error:
        raise ConfigError(f"{error}; {FORMS}") from error


def position_name(text: str) -> str:
    """Return the name of a position in its canonical spelling.

    >>> position_name(" Trim-Horizon")
    'trim_horizon'
    """
    return text.strip().lower().replace("-", "_")


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ConfigError if the text is none, or names a key twice."""

    def to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise ConfigError("the JSON names a key twice")
        return members

    try:
        found = json.loads(text, object_pairs_hook=to_dict)
    except (ValueError, RecursionError) as error:
        raise ConfigError("it is not valid JSON") from error
    if not isinstance(found, dict):
        raise ConfigError("it is JSON, but no JSON object")
    return found


def is_start_time(members: Mapping[str, Any]) -> bool:
    """True if a JSON object names a time for all shards, rather than a start for each shard."""
    return any(position_name(name) in {AT_TIMESTAMP_NAME, _FORMAT} for name in members)


def require_past(timestamp_ms: int | None, now_ms: int) -> None:
    """Raise ConfigError for a start in the future: Kinesis accepts none."""
    if timestamp_ms is not None and timestamp_ms > now_ms:
        seconds = -(-(timestamp_ms - now_ms) // 1000)
        raise ConfigError(
            f"the start position is {seconds} s in the future, and Kinesis can only start at a time in the past: write "
            "latest to start now, start later, or check the zone of the time and the clock of this machine"
        )


def _parse_start_time(value: object) -> int:
    if not isinstance(value, str):
        return parse_time(value)
    text = value.strip()
    if text.startswith("{"):
        return _parse_json_time(parse_json_object(text))
    name, _, time = text.partition(" ")
    if position_name(name) == AT_TIMESTAMP_NAME:
        if not time.strip():
            raise ConfigError(f"at_timestamp has no time: write 'at_timestamp {EXAMPLE}'")
        return parse_time(time)
    return parse_time(text)


def _parse_json_time(members: Mapping[str, Any]) -> int:
    found = {position_name(name): value for name, value in members.items()}
    unknown = found.keys() - {AT_TIMESTAMP_NAME, _FORMAT}
    if unknown or AT_TIMESTAMP_NAME not in found or len(found) < len(members):
        raise ConfigError("the JSON must have the key at_timestamp, may have the key format, and no other")
    for name, text in found.items():
        if not isinstance(text, str):
            raise ConfigError(f"{name} must be text in quotes")
    time = found[AT_TIMESTAMP_NAME]
    return parse_time_in_format(time, found[_FORMAT]) if _FORMAT in found else parse_time(time)
