"""The arguments of a control request: a JSON object whose names and types are checked before anything changes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson

from leasehold.config.did_you_mean import did_you_mean
from leasehold.errors import ConfigError


def parse_arguments(body: bytes) -> dict[str, Any]:
    """The object in the body. Without a body, an empty one."""
    try:
        arguments = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise ConfigError("the body is not JSON") from error
    if not isinstance(arguments, dict):
        raise ConfigError("the body is not a JSON object")
    return arguments


def require_known(arguments: dict[str, Any], known: Collection[str], noun: str = "name") -> None:
    """Refuse an unknown name. A misspelled name that is ignored could make a request mean all streams."""
    for name in arguments:
        if name not in known:
            otherwise = (
                f"known {noun}s are {', '.join(known)}" if known else "this request takes no arguments"
            )
            raise ConfigError(f"unknown {noun} {name!r}: {did_you_mean(name, known, otherwise=otherwise)}")


def optional_text(arguments: dict[str, Any], name: str) -> str | None:
    """A text, or None if it is absent, null or empty."""
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name}={value!r:.80}: expected a text")
    return value or None


def whole_number(arguments: dict[str, Any], name: str, *, default: int | None = None) -> int:
    """An integer. True and false are none."""
    value = arguments.get(name, default)
    if type(value) is not int:
        raise ConfigError(f"{name}={value!r:.80}: expected a whole number")
    return value
