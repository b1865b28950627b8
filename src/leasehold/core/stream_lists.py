"""A list of streams, as settings give it: names, and the streams with a start of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leasehold.core.initial_position import parse_initial_position
from leasehold.core.model import InitialPosition, is_stream_identifier
from leasehold.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """One of several streams: its name, ARN or identifier, and its own start if it differs from the common one."""

    name: str
    initial_position: InitialPosition | None = None


def parse_stream_list(value: object) -> tuple[StreamSettings, ...]:
    """Parse several streams: a list of names, a mapping of names to starts, or text such as "orders,returns=latest".

    >>> [each.name for each in parse_stream_list("orders, returns=latest")]
    ['orders', 'returns']
    """
    if isinstance(value, str):
        parts = (part.partition("=") for part in value.split(","))
        given: list[tuple[object, object]] = [(name, at if sign else None) for name, sign, at in parts]
    elif isinstance(value, Mapping):
        given = list(value.items())
    elif isinstance(value, Iterable):
        given = [(name, None) for name in value]
    else:
        raise ConfigError("expected a list of streams, such as ['orders', 'returns']")
    return tuple(
        StreamSettings(_stream_name(name), None if at is None else parse_initial_position(at))
        for name, at in given
    )


def require_distinct(streams: Sequence[StreamSettings]) -> None:
    """Raise ConfigError if a stream is listed twice, as far as the texts show it.

    Kinesis is asked for a stream by its ARN, or else by its name alone: an identifier stands for its name, whichever
    account and time it contains.
    """
    names = [each.name for each in streams]
    requested = [name if name.startswith("arn:") else stream_name(name) for name in names]
    for name in requested:
        if requested.count(name) > 1:
            raise ConfigError(f"streams={names}: {name} is listed twice")


def stream_name(text: str) -> str:
    """The name of a stream that is given by its name, its ARN or its KCL stream identifier.

    >>> stream_name("arn:aws:kinesis:us-east-1:123456789012:stream/orders")
    'orders'
    >>> stream_name("123456789012:orders:1700000000")
    'orders'
    """
    return text.split(":")[1] if is_stream_identifier(text) else text.rpartition("/")[2]


def may_be_same_stream(one: str, other: str) -> bool:
    """Whether two texts, each a name, an ARN or an identifier, may name one stream.

    A name says nothing about the account. An identifier says nothing about the region, and its time may be made up.

    >>> may_be_same_stream("orders", "arn:aws:kinesis:us-east-1:123456789012:stream/orders")
    True
    >>> may_be_same_stream("1:orders:17", "arn:aws:kinesis:us-east-1:123456789012:stream/orders")
    False
    """
    if stream_name(one) != stream_name(other):
        return False
    return all(
        None in {a, b} or a == b for a, b in zip(_region_account(one), _region_account(other), strict=True)
    )


def _region_account(text: str) -> tuple[str | None, str | None]:
    """The region and the account of a stream, as far as the text contains them."""
    parts = text.split(":")
    if is_stream_identifier(text):
        return None, parts[0]
    return (parts[3], parts[4]) if text.startswith("arn:") and len(parts) > 4 else (None, None)


def _stream_name(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            "expected a list of streams, such as ['orders', 'returns']; one of them has no name"
        )
    return value.strip()
