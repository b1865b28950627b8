"""Parses where leases are to be set: `latest`, `trim-horizon`, a time, or the position of a record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from leasehold.core.initial_position import position_name
from leasehold.core.position import Position
from leasehold.core.time_text import EXAMPLE, parse_time
from leasehold.errors import ConfigError

FORMS: Final = (
    f"expected latest, trim-horizon, a time with its zone such as {EXAMPLE}, or with --shard the sequence number of "
    "a record, for an aggregate with the number of its user record (4959...:3)"
)
_POSITION: Final = re.compile(r"(?P<number>[0-9]+)(?:[:/](?P<sub>[0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class ToOldest:
    """The oldest record that is retained."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """After the newest record, at the time when the shard is looked at."""


@dataclass(frozen=True, slots=True)
class ToTime:
    """The first record that arrived at this time or later."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class ToRecord:
    """After this record, as a checkpoint: the record and all before it are done."""

    position: Position


ResetTarget = ToOldest | ToLatest | ToTime | ToRecord


def parse_reset_target(text: str, *, option: str = "--to", forms: str = FORMS) -> ResetTarget:
    """Parse the text of an option. Raises ConfigError with all forms of this option.

    >>> parse_reset_target("trim-horizon"), parse_reset_target("2026-11-15T12:00:00Z")
    (ToOldest(), ToTime(at_ms=1794744000000))
    """
    name = position_name(text)
    if name == "latest":
        return ToLatest()
    if name in {"trim_horizon", "earliest"}:
        return ToOldest()
    if found := _POSITION.fullmatch(text.strip()):
        return ToRecord(Position(found["number"], int(found["sub"] or 0)))
    try:
        return ToTime(parse_time(text))
    except ConfigError as error:
        raise ConfigError(f"{option} {text!r}: {error}; {forms}") from error
