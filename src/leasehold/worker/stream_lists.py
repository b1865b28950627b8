"""The streams of a consumer of several: parses a list of them, and finds those of a listing or of a user's function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leasehold.core.initial_position import parse_initial_position, require_past
from leasehold.core.shards.followed_streams import FoundStream
from leasehold.errors import ConfigError, HandlerError
from leasehold.fleet.stream_discovery import FindStreams
from leasehold.ports import Clock, StreamDirectory, StreamFilter
from leasehold.worker.settings import ConsumerIdentity, ManyStreams, StreamSettings, StreamsFunction
from leasehold.worker.user_code.handler_runners import HandlerRunner, Raised


def parse_streams(value: object) -> ManyStreams:
    """Parse the setting `streams`: a list of streams, or a function that returns one."""
    return value if callable(value) else parse_stream_list(value)


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


def _stream_name(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            "expected a list of streams, such as ['orders', 'returns']; one of them has no name"
        )
    return value.strip()


def find_listed(identity: ConsumerIdentity, directory: StreamDirectory) -> FindStreams:
    """Return a function that finds the streams of the account with the prefix and the tag of the settings."""
    which = StreamFilter(identity.streams_with_prefix, identity.streams_with_tag)

    async def find() -> Mapping[str, FoundStream]:
        listed = await directory.list_streams(which)
        return {name: FoundStream(identity.initial_position, each) for name, each in listed.items()}

    return find


def find_by_function(
    identity: ConsumerIdentity, function: StreamsFunction, runner: HandlerRunner, clock: Clock
) -> FindStreams:
    """Return a function that calls the user's function, which never runs on the engine's event loop."""

    async def find() -> Mapping[str, FoundStream]:
        outcome = await runner.call(function)
        if isinstance(outcome, Raised):
            raise HandlerError(
                f"the function that `streams` names raised {type(outcome.error).__name__}; the streams stay as they are"
            ) from outcome.error
        try:
            starts = identity.starts(parse_stream_list(outcome.value))
        except ConfigError as error:
            raise ConfigError(f"the function that `streams` names returned something else: {error}") from None
        for start in starts.values():
            require_past(start.timestamp_ms, clock.wall_ms())
        return {name: FoundStream(start) for name, start in starts.items()}

    return find
