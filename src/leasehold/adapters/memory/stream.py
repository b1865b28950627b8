"""A stream in memory, on the same model as the local server: for unit tests and the simulator.

Iterators expire, records are trimmed, shards throttle (if the service's settings say so), and subscriptions end or are
replaced, as they do over HTTP. Each error becomes the class that the AWS adapter would raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

from leasehold.core.model import Shard, ShardId, StreamIdentifier, stream_identifier
from leasehold.core.record import Record
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import (
    InUseError,
    InvalidArgumentError,
    IteratorExpiredError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.kinesis_model import listing
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.consumers import Consumer
from leasehold.kinesis_model.listing import FilterType, ListQuery
from leasehold.kinesis_model.reading import IteratorType, RecordsPage, StartingPosition
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.service import Subscription as ModelSubscription
from leasehold.kinesis_model.stream import HOUR_MS, StreamStatus
from leasehold.ports import (
    Clock,
    ConsumerDescription,
    FanOut,
    Page,
    Stream,
    Subscription,
    SubscriptionEvent,
)

# How soon a subscription in memory notices a new record: soon after the last one, later in an idle shard.
LOOK_AFTER_MIN_MS: Final = 50
LOOK_AFTER_MAX_MS: Final = 1_000

_ERROR_TYPES: Final[dict[ErrorType, type[ServiceError]]] = {
    ErrorType.ITERATOR_EXPIRED: IteratorExpiredError,
    ErrorType.LIMIT_EXCEEDED: ThrottledError,
    ErrorType.THROTTLED: ThrottledError,
    ErrorType.NOT_FOUND: NotFoundError,
    ErrorType.INVALID_ARGUMENT: InvalidArgumentError,
    ErrorType.IN_USE: UnavailableError,
}
# For a stream, "in use" means that it is being created or deleted; for a consumer, that it exists or is subscribed.
_CONSUMER_ERROR_TYPES: Final = _ERROR_TYPES | {ErrorType.IN_USE: InUseError}


class MemoryStream(Stream):
    """One stream of a `StreamService`. The caller may also write to the service, reshard it and trim it.

    Several of these may share one service, like several clients. No call ever waits.
    """

    def __init__(self, service: KinesisModel, name: str, clock: Clock) -> None:
        self._service = service
        self._name = name
        self._clock = clock

    async def get_identifier(self) -> StreamIdentifier:
        """Account, name, and creation time in seconds."""
        with _translated_errors():
            stream = self._service.stream(self._clock.wall_ms(), self._name)
        return stream_identifier(self._service.account.id, self._name, stream.created_ms // 1000)

    async def get_retention_ms(self) -> int:
        """How long the stream keeps a record."""
        with _translated_errors():
            return self._service.stream(self._clock.wall_ms(), self._name).config.retention_hours * HOUR_MS

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """Every shard that is still retained, or those that match the filter."""
        now_ms = self._clock.wall_ms()
        shards: list[Shard] = []
        with _translated_errors():
            page = self._service.list_shards(now_ms, ListQuery(self._name, _listing_filter(shard_filter)))
            shards += page.shards
            while page.next_token:
                query = self._service.list_query_from_token(now_ms, page.next_token)
                page = self._service.list_shards(now_ms, query)
                shards += page.shards
        return shards

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        """A shard iterator that starts at `start`."""
        with _translated_errors():
            return self._service.shard_iterator(
                self._clock.wall_ms(), self._name, shard, _starting_position(start)
            )

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """The next records."""
        now_ms = self._clock.wall_ms()
        with _translated_errors():
            place = self._service.iterator(now_ms, iterator)
            page = self._service.get_records(now_ms, place, limit)
        return _page(page, self._service.next_iterator(now_ms, place, page))

    async def close(self) -> None:
        """Nothing to close; the service keeps the records."""


class MemoryFanOut(FanOut):
    """The consumers of one stream of a `KinesisModel`, and their subscriptions. Only a subscription ever waits."""

    def __init__(self, service: KinesisModel, name: str, clock: Clock) -> None:
        self._service = service
        self._name = name
        self._clock = clock

    async def register_consumer(self, name: str) -> ConsumerDescription:
        """Register a consumer."""
        with _translated_errors(_CONSUMER_ERROR_TYPES):
            return self._describe(self._service.register_consumer(self._clock.wall_ms(), self._name, name))

    async def describe_consumer(self, name_or_arn: str) -> ConsumerDescription:
        """Describe a consumer."""
        with _translated_errors(_CONSUMER_ERROR_TYPES):
            return self._describe(self._find(name_or_arn))

    async def list_consumers(self) -> Sequence[ConsumerDescription]:
        """All consumers, by name."""
        with _translated_errors(_CONSUMER_ERROR_TYPES):
            consumers = self._service.stream(self._clock.wall_ms(), self._name).consumers
        return [self._describe(consumer) for _, consumer in sorted(consumers.items())]

    async def deregister_consumer(self, arn: str) -> None:
        """Delete a consumer."""
        with _translated_errors(_CONSUMER_ERROR_TYPES):
            self._service.deregister_consumer(self._clock.wall_ms(), self._name, self._find(arn).name)

    async def require_stream(self) -> None:
        """Raise NotFoundError if the stream does not exist, or is being deleted."""
        with _translated_errors(_CONSUMER_ERROR_TYPES):
            stream = self._service.stream(self._clock.wall_ms(), self._name)
        if stream.status is StreamStatus.DELETING:
            raise NotFoundError(f"stream {self._name} is being deleted")

    async def subscribe(self, consumer_arn: str, shard: ShardId, start: IteratorStart) -> MemorySubscription:
        """Subscribe a consumer to a shard."""
        with _translated_errors(_CONSUMER_ERROR_TYPES):
            subscription = self._service.subscribe(
                self._clock.wall_ms(), consumer_arn, shard, _starting_position(start)
            )
        return MemorySubscription(self._service, subscription, self._clock)

    async def close(self) -> None:
        """Nothing to close; the service keeps the consumers."""

    def _find(self, name_or_arn: str) -> Consumer:
        now_ms = self._clock.wall_ms()
        if not name_or_arn.startswith("arn:"):
            return self._service.consumer(now_ms, self._name, name_or_arn)
        name, stream_name = self._service.account.parse_consumer_arn(name_or_arn)
        return self._service.consumer(now_ms, stream_name, name)

    def _describe(self, consumer: Consumer) -> ConsumerDescription:
        status = consumer.status(self._clock.wall_ms())
        return ConsumerDescription(consumer.name, consumer.arn, status, consumer.created_ms)


class MemorySubscription(Subscription):
    """A subscription to a shard of the model. It looks for new records again and again."""

    def __init__(self, service: KinesisModel, subscription: ModelSubscription, clock: Clock) -> None:
        self._service = service
        self._subscription = subscription
        self._clock = clock
        self._next_number: int | None = subscription.next_number
        self._last_event_ms = clock.wall_ms()
        self._is_closed = False

    def __aiter__(self) -> MemorySubscription:
        return self

    async def __anext__(self) -> SubscriptionEvent:
        look_after_ms = LOOK_AFTER_MIN_MS
        while not self._is_closed and not self.has_ended():
            event = self.poll()
            if event is not None:
                return event
            await self._clock.sleep_ms(look_after_ms)
            look_after_ms = min(2 * look_after_ms, LOOK_AFTER_MAX_MS)
        raise StopAsyncIteration

    async def close(self) -> None:
        """Stop. The service notices it only when it replaces the subscription, as over HTTP."""
        self._is_closed = True

    def has_ended(self) -> bool:
        """True after the end of the shard, and once the service has ended the subscription."""
        now_ms = self._clock.wall_ms()
        if self._next_number is not None and now_ms < self._subscription.ends_ms:
            return False
        self._service.end_subscription(now_ms, self._subscription)
        return True

    def end_early(self) -> None:
        """End it from the server's side, as after five minutes."""
        self._service.end_subscription(self._clock.wall_ms(), self._subscription)
        self._is_closed = True

    def poll(self) -> SubscriptionEvent | None:
        """The next event, if one is due now: records, an empty event after a pause, or the end of the shard."""
        assert self._next_number is not None, "the subscription has ended"
        now_ms = self._clock.wall_ms()
        with _translated_errors(_CONSUMER_ERROR_TYPES):
            if not self._service.is_current_subscription(now_ms, self._subscription):
                self._raise_lost(now_ms)
            page = self._service.read_subscription(now_ms, self._subscription, self._next_number)
        is_pause_over = now_ms - self._last_event_ms >= self._service.settings.heartbeat_ms
        if not page.records and page.next_number is not None and not is_pause_over:
            return None
        self._next_number, self._last_event_ms = page.next_number, now_ms
        continuation = None if page.next_number is None else str(page.continuation_number)
        return SubscriptionEvent(
            _records(page), continuation, page.millis_behind_latest, tuple(page.children)
        )

    def _raise_lost(self, now_ms: int) -> NoReturn:
        subscription = self._subscription
        self._service.consumer(now_ms, subscription.stream_name, subscription.consumer_name)
        raise InUseError(f"another subscription replaced this one on shard {subscription.shard_id}")


def _starting_position(start: IteratorStart) -> StartingPosition:
    return StartingPosition(IteratorType(start.kind.name), start.sequence_number, start.timestamp_ms)


def _listing_filter(shard_filter: ShardFilter | None) -> listing.ShardFilter:
    if shard_filter is None:
        return listing.ShardFilter()
    return listing.ShardFilter(FilterType(shard_filter.kind.name), timestamp_ms=shard_filter.timestamp_ms)


def _page(page: RecordsPage, next_iterator: str | None) -> Page:
    return Page(_records(page), next_iterator, page.millis_behind_latest, tuple(page.children))


def _records(page: RecordsPage) -> Sequence[Record]:
    return [
        Record(stored.data, stored.partition_key, str(stored.number), stored.arrival_ms)
        for stored in page.records
    ]


@contextmanager
def _translated_errors(
    error_types: Mapping[ErrorType, type[ServiceError]] = _ERROR_TYPES,
) -> Iterator[None]:
    try:
        yield
    except KinesisApiError as error:
        error_class = error_types.get(error.error_type, ServiceError)
        raise error_class(f"{error.error_type}: {error.message}") from error
