"""Parses the values of settings: durations, numbers, booleans, choices.

Each function takes a value from a keyword, a TOML file or an environment variable. It raises ConfigError with an
example if it cannot parse the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from leasehold.errors import ConfigError

E = TypeVar("E", bound=Enum)

_DURATION_MAX: Final = timedelta(days=36_500)
_NUMBER_MAX: Final = 2**63 - 1
_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?\s*")
_UNITS: Final[Mapping[str | None, timedelta]] = {
    None: timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_BOOLEANS: Final = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


def duration(value: object) -> timedelta:
    """Parse a length of time: "500ms", "1s", "2m", "1h", "1d", a timedelta, or a number of seconds.

    >>> duration("1.5s").total_seconds(), duration(2).total_seconds(), duration("250ms").total_seconds()
    (1.5, 2.0, 0.25)
    """
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    try:
        if isinstance(value, timedelta):
            parsed = value
        elif match is not None:
            parsed = float(match[1]) * _UNITS[match[2]]
        elif isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            parsed = timedelta(seconds=value)
        else:
            raise ConfigError("expected a duration such as '500ms', '1s', '2m', '1h', or a number of seconds")
    except OverflowError:
        parsed = timedelta.max
    # Sums and products of durations must not overflow.
    if abs(parsed) > _DURATION_MAX:
        raise ConfigError(f"expected a duration of at most {_DURATION_MAX.days} days")
    return parsed


def boolean(value: object) -> bool:
    """Parse true or false."""
    if isinstance(value, bool):
        return value
    parsed = _BOOLEANS.get(value.strip().lower()) if isinstance(value, str) else None
    if parsed is None:
        raise ConfigError("expected true or false")
    return parsed


def whole_number(value: object) -> int:
    """Parse an integer of 64 bits, with or without underscores."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return _refuse_number()
    try:
        parsed = int(value)
    except ValueError:
        return _refuse_number()
    if abs(parsed) > _NUMBER_MAX:
        raise ConfigError(f"expected a whole number of at most {_NUMBER_MAX}")
    return parsed


def _refuse_number() -> int:
    raise ConfigError("expected a whole number")


def real_number(value: object) -> float:
    """Parse a number, which is neither infinite nor NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigError("expected a number")
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        raise ConfigError("expected a number") from None
    if not math.isfinite(parsed):
        raise ConfigError("expected a number that is finite")
    return parsed


def text(value: object) -> str:
    """Require a string."""
    if isinstance(value, str):
        return value
    raise ConfigError("expected text")


def pairs(value: object) -> tuple[tuple[str, str], ...]:
    """Parse names and values: a mapping, or text.

    >>> pairs("team=billing, stage=prod")
    (('team', 'billing'), ('stage', 'prod'))
    """
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",")]
        value = {name.strip(): found.strip() for name, sign, found in parts if sign}
        if len(value) < len(parts):
            value = None
    if not isinstance(value, Mapping) or not all(isinstance(each, str) and each for each in value):
        raise ConfigError("expected names and values, such as 'team=billing,stage=prod'")
    return tuple((name, str(found)) for name, found in value.items())


def url_or_function(value: object) -> object:
    """Parse a path, a URL, or a function."""
    if isinstance(value, Path):
        return str(value)
    if callable(value) or isinstance(value, str):
        return value
    raise ConfigError("expected a file, a URL such as 's3://bucket/prefix', or a function")


def choice(kind: type[E]) -> Callable[[object], E]:
    """Return a parser for the values of an enumeration, in upper or lower case, with dashes or underscores."""
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
    """Return a parser that also accepts None and the text "none"."""

    def parse_if_given(value: object) -> object:
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        return parse(value)

    return parse_if_given
