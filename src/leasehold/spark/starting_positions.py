"""Parses the options that say where a query starts: one start for all shards, or starts of single shards as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from leasehold.core.exactly_once.query_offset import ReadStart, read_start_from_text
from leasehold.core.initial_position import (
    AT_TIMESTAMP_NAME,
    FORMS,
    is_start_time,
    parse_initial_position,
    parse_json_object,
    position_name,
)
from leasehold.core.model import InitialPosition, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.core.time_text import parse_time
from leasehold.errors import ConfigError, InvalidPositionError

_SHARD_ID: Final = re.compile(r"shardId-[0-9]{12}")
# Kinesis issues sequence numbers of 56 digits. Numbers below 20 digits are times since 1970, in seconds to nanoseconds.
_SEQUENCE_NUMBER: Final = re.compile(r"[0-9]{20,}(/[0-9]{1,19})?")
_DEFAULT: Final = "default"
# The oldest record of the archive, or a time.
ARCHIVE: Final = "archive"
_SHARD_FORMS: Final = (
    "or a sequence number to read after, 'trim_horizon', or a time for each shard: "
    """'{"shardId-000000000000": "4959...", "default": "trim_horizon"}'"""
)


@dataclass(frozen=True, slots=True)
class StartingPositions:
    """Where a query without leases starts: all shards, and the shards with a start of their own."""

    initial: InitialPosition
    shards: Mapping[ShardId, ReadStart] = field(default_factory=dict)


def parse_starting_positions(text: str | None, starting_ms: int | None) -> StartingPositions:
    """Parse `startingPosition` with the time of `startingTimestamp`. Each is None if it is not given.

    Raises ConfigError, with all forms, unless the two have exactly one meaning.
    """
    if text is None:
        initial = (
            InitialPosition(LATEST) if starting_ms is None else InitialPosition(AT_TIMESTAMP, starting_ms)
        )
        return StartingPositions(initial)
    if position_name(text) == ARCHIVE:
        return parse_starting_positions(
            "trim_horizon" if starting_ms is None else AT_TIMESTAMP_NAME, starting_ms
        )
    try:
        members = parse_json_object(text) if text.strip().startswith("{") else None
        if members is not None and not is_start_time(members):
            return _parse_shards(members, starting_ms)
        return StartingPositions(_parse_initial(text, starting_ms))
    except (ConfigError, InvalidPositionError) as error:
        reason = str(error).removesuffix(f"; {FORMS}")
        raise ConfigError(f"option startingPosition={text!r}: {reason}; {FORMS}, {_SHARD_FORMS}") from error


def _parse_initial(text: str, starting_ms: int | None) -> InitialPosition:
    if position_name(text) != AT_TIMESTAMP_NAME:
        if starting_ms is not None:
            raise ConfigError(
                "startingTimestamp is given too, and belongs to startingPosition=at_timestamp: remove one"
            )
        return parse_initial_position(text)
    if starting_ms is None:
        raise ConfigError("at_timestamp has no time: set startingTimestamp")
    return InitialPosition(AT_TIMESTAMP, starting_ms)


def _parse_shards(members: Mapping[str, Any], starting_ms: int | None) -> StartingPositions:
    if not members:
        raise ConfigError("it names no shard")
    for name, text in members.items():
        if name != _DEFAULT and not _SHARD_ID.fullmatch(name):
            raise ConfigError(f"{name!r} is not the id of a shard")
        if not isinstance(text, str):
            raise ConfigError(f"{name} must be text in quotes")
    initial = _parse_initial(members.get(_DEFAULT, "latest"), starting_ms)
    starts = {ShardId(name): _parse_shard_start(text) for name, text in members.items() if name != _DEFAULT}
    return StartingPositions(initial, starts)


def _parse_shard_start(text: str) -> ReadStart:
    if position_name(text) in {"earliest", "trim_horizon"}:
        return ReadStart(TRIM_HORIZON)
    if _SEQUENCE_NUMBER.fullmatch(text.strip()):
        return read_start_from_text(text.strip())
    if text.strip().partition("/")[0].isdecimal():
        raise ConfigError(f"{text!r} is not a sequence number of Kinesis; write a time as text with its zone")
    return ReadStart(AT_TIMESTAMP, parse_time(text))
