"""The streams of a consumer of several: parses a list of them, and finds those of a listing or of a user's function."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from leasehold.core.initial_position import require_past
from leasehold.core.shards.followed_streams import FoundStream
from leasehold.core.stream_lists import StreamSettings, parse_stream_list
from leasehold.errors import ConfigError, HandlerError
from leasehold.fleet.stream_discovery import FindStreams
from leasehold.ports import Clock, StreamDirectory, StreamFilter
from leasehold.tasks import first_of
from leasehold.worker.settings import ConsumerIdentity, ManyStreams, StreamsFunction
from leasehold.worker.user_code.handler_runners import HandlerRunner, Raised, Returned

T = TypeVar("T")

FUNCTION_LIMIT_MS: Final = 60_000


def parse_streams(value: object) -> ManyStreams:
    """Parse the setting `streams`: a list of streams, or a function that returns one."""
    return value if callable(value) else parse_stream_list(value)


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
    """Return a function that calls the user's function. Neither it nor what it returns, which may be a generator, runs
    on the engine's event loop.
    """

    async def find() -> Mapping[str, FoundStream]:
        answer = await _within_limit(_list_streams(function, runner), clock)
        try:
            starts = identity.starts(answer)
            for start in starts.values():
                require_past(start.timestamp_ms, clock.wall_ms())
        except ConfigError as error:
            raise _other_answer(error) from None
        return {name: FoundStream(start) for name, start in starts.items()}

    return find


async def _list_streams(function: StreamsFunction, runner: HandlerRunner) -> tuple[StreamSettings, ...]:
    outcome = await runner.call(function)
    if isinstance(outcome, Returned):
        outcome = await runner.call(parse_stream_list, outcome.value)
    match outcome:
        case Raised(error=ConfigError() as error):
            raise _other_answer(error) from None
        case Raised(error=error):
            raise HandlerError(
                f"the function that `streams` names raised {type(error).__name__}; the streams stay as they are"
            ) from error
        case Returned(value=streams):
            assert isinstance(streams, tuple)
            return streams


async def _within_limit(call: Coroutine[Any, Any, T], clock: Clock) -> T:
    """The result of a call. Without a limit, a call that never returns would also stop the audits of all streams."""
    results: list[T] = []

    async def keep_result() -> None:
        results.append(await call)

    await first_of(keep_result(), clock.sleep_ms(FUNCTION_LIMIT_MS))
    if not results:
        raise HandlerError(
            f"the function that `streams` names has not returned after {FUNCTION_LIMIT_MS // 1000} s; the streams stay "
            "as they are"
        )
    return results[0]


def _other_answer(error: ConfigError) -> ConfigError:
    return ConfigError(f"the function that `streams` names returned something else: {error}")
