"""A stream in memory, on the same model as the local server: for unit tests and the simulator.

Iterators expire, records are trimmed, and shards throttle (if the service's settings say so) as they do over HTTP.
Each error becomes the class that the AWS adapter would raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leasehold.core.model import Shard, ShardId, StreamIdentifier, stream_identifier
from leasehold.core.record import Record
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import (
    IteratorExpiredError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.kinesis_model import listing
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.listing import FilterType, ListQuery
from leasehold.kinesis_model.reading import IteratorType, RecordsPage, StartingPosition
from leasehold.kinesis_model.service import KinesisModel
from leasehold.ports import Clock, Page, Stream

_ERROR_TYPES: Final[dict[ErrorType, type[ServiceError]]] = {
    ErrorType.ITERATOR_EXPIRED: IteratorExpiredError,
    ErrorType.LIMIT_EXCEEDED: ThrottledError,
    ErrorType.THROTTLED: ThrottledError,
    ErrorType.NOT_FOUND: NotFoundError,
    ErrorType.IN_USE: UnavailableError,
}


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
        try:
            stream = self._service.stream(self._clock.wall_ms(), self._name)
        except KinesisApiError as error:
            raise _translate_error(error) from error
        return stream_identifier(self._service.account.id, self._name, stream.created_ms // 1000)

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """Every shard that is still retained, or those that match the filter."""
        now_ms = self._clock.wall_ms()
        shards: list[Shard] = []
        try:
            page = self._service.list_shards(now_ms, ListQuery(self._name, _listing_filter(shard_filter)))
            shards += page.shards
            while page.next_token:
                query = self._service.list_query_from_token(now_ms, page.next_token)
                page = self._service.list_shards(now_ms, query)
                shards += page.shards
        except KinesisApiError as error:
            raise _translate_error(error) from error
        return shards

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        """A shard iterator that starts at `start`."""
        wanted = StartingPosition(IteratorType(start.kind.name), start.sequence_number, start.timestamp_ms)
        try:
            return self._service.shard_iterator(self._clock.wall_ms(), self._name, shard, wanted)
        except KinesisApiError as error:
            raise _translate_error(error) from error

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """The next records."""
        now_ms = self._clock.wall_ms()
        try:
            place = self._service.iterator(now_ms, iterator)
            page = self._service.get_records(now_ms, place, limit)
        except KinesisApiError as error:
            raise _translate_error(error) from error
        return _page(page, self._service.next_iterator(now_ms, place, page))

    async def close(self) -> None:
        """Nothing to close; the service keeps the records."""


def _listing_filter(shard_filter: ShardFilter | None) -> listing.ShardFilter:
    if shard_filter is None:
        return listing.ShardFilter()
    return listing.ShardFilter(FilterType(shard_filter.kind.name), timestamp_ms=shard_filter.timestamp_ms)


def _page(page: RecordsPage, next_iterator: str | None) -> Page:
    records = [
        Record(stored.data, stored.partition_key, str(stored.number), stored.arrival_ms)
        for stored in page.records
    ]
    return Page(records, next_iterator, page.millis_behind_latest, tuple(page.children))


def _translate_error(error: KinesisApiError) -> ServiceError:
    return _ERROR_TYPES.get(error.error_type, ServiceError)(f"{error.error_type}: {error.message}")
