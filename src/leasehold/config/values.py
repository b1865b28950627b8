"""Values as people write them: durations, starting points, switches.

Each function takes what a keyword, a TOML file or an environment variable can hold, and raises ConfigError with an
example for what it does not understand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from leasehold.core.model import InitialPosition
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.errors import ConfigError

E = TypeVar("E", bound=Enum)

_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?\s*")
_UNITS: Final[Mapping[str | None, timedelta]] = {
    None: timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_SWITCHES: Final = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip
_STARTS: Final = {"latest": LATEST, "trim_horizon": TRIM_HORIZON}


def duration(value: object) -> timedelta:
    """A length of time: "500ms", "1s", "2m", "1h", "1d", a timedelta, or a number of seconds.

    >>> duration("1.5s").total_seconds(), duration(2).total_seconds(), duration("250ms").total_seconds()
    (1.5, 2.0, 0.25)
    """
    if isinstance(value, timedelta):
        return value
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < timedelta.max.total_seconds()
    ):
        return timedelta(seconds=value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError("expected a duration such as '500ms', '1s', '2m', '1h', or a number of seconds")
    return float(match[1]) * _UNITS[match[2]]


def initial_position(value: object) -> InitialPosition:
    """Where a fleet without history begins: "trim_horizon", "latest", or a time with its zone.

    >>> initial_position("2026-11-15T12:00:00Z").timestamp_ms
    1794744000000
    """
    if isinstance(value, InitialPosition):
        return value
    if isinstance(value, str) and (start := _STARTS.get(value.strip().lower().replace("-", "_"))) is not None:
        return InitialPosition(start)
    moment = _moment(value)
    if moment is None or moment.tzinfo is None:
        raise ConfigError(
            "expected 'trim_horizon', 'latest', or a time with its zone such as '2026-11-15T12:00:00Z'"
        )
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return InitialPosition(AT_TIMESTAMP, (moment - epoch) // timedelta(milliseconds=1))


def _moment(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def boolean(value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    found = _SWITCHES.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise ConfigError("expected true or false")
    return found


def whole_number(value: object) -> int:
    """An integer, written with or without underscores."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(value) if isinstance(value, str) else _no_number()
    except ValueError:
        return _no_number()


def _no_number() -> int:
    raise ConfigError("expected a whole number")


def real_number(value: object) -> float:
    """A number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        return float(value) if isinstance(value, str) else _no_number()
    except ValueError:
        raise ConfigError("expected a number") from None


def text(value: object) -> str:
    """Some text."""
    if isinstance(value, str):
        return value
    raise ConfigError("expected text")


def url_or_function(value: object) -> object:
    """A path or URL, or a function."""
    if isinstance(value, Path):
        return str(value)
    if callable(value) or isinstance(value, str):
        return value
    raise ConfigError("expected a file, a URL such as 's3://bucket/prefix', or a function")


def choice(kind: type[E]) -> Callable[[object], E]:
    """One of the values of an enumeration, written as there, in either case, with dashes or underscores."""
    known = {str(member.value).replace("-", "_"): member for member in kind}

    def parse(value: object) -> E:
        if isinstance(value, kind):
            return value
        found = known.get(value.strip().lower().replace("-", "_")) if isinstance(value, str) else None
        if found is None:
            raise ConfigError("expected " + " or ".join(repr(member.value) for member in kind))
        return found

    return parse


def optional(parse: Callable[[object], object]) -> Callable[[object], object]:
    """The same, or nothing: None, or the word "none"."""

    def parse_if_given(value: object) -> object:
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        return parse(value)

    return parse_if_given
