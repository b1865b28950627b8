"""A world for tests of reading: a stream in memory, a virtual clock, and a reader of one of its shards."""

import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from leasehold.adapters.memory.stream import MemoryFanOut, MemoryStream
from leasehold.config.settings import FanOutSettings, ReadSettings, Retrieval
from leasehold.core.events import Event
from leasehold.core.model import (
    HASH_KEY_MAX,
    HashRange,
    InitialPosition,
    Shard,
    ShardId,
    StreamIdentifier,
    stream_identifier,
)
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.record import PutEntry, UserRecord
from leasehold.core.records.aggregation import aggregate
from leasehold.core.records.deaggregation import DEFAULT_DEAGGREGATION
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.chunking import ReadChunk
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.shard_reader import read_shard
from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.kinesis_model.writing import PutRequest
from leasehold.ports import (
    ConsumerDescription,
    FanOut,
    Page,
    Stream,
    Subscription,
    SubscriptionEvent,
)
from leasehold.simulation.virtual_time import VirtualClock

T = TypeVar("T")
E = TypeVar("E")

SHARD = ShardId("shardId-000000000000")
CHILD = ShardId("shardId-000000000001")  # once it is split
FROM_THE_START = InitialPosition(TRIM_HORIZON)
MIDDLE = (HASH_KEY_MAX + 1) // 2
# Longer than an iterator lives.
SIX_MINUTES_MS = 360_000
HOUR_MS = 3_600_000


class FailingStream(Stream):
    """Records the time of each call, raises what `failure_for(operation)` returns, and otherwise passes the call on."""

    def __init__(self, stream: Stream, clock: VirtualClock) -> None:
        self._stream = stream
        self._clock = clock
        self.failure_for: Callable[[str], Exception | None] = lambda _: None
        self.limit_for: Callable[[int], int] = lambda limit: limit
        self.calls: list[tuple[int, str]] = []
        self.starts: list[IteratorStart] = []
        self.limits: list[int] = []
        self.empty_pages_first = 0  # the service returns such pages before a range without records

    def times(self, operation: str) -> list[int]:
        """When an operation was called."""
        return [at_ms for at_ms, called in self.calls if called == operation]

    async def get_identifier(self) -> StreamIdentifier:
        return stream_identifier("000000000000", "orders", 1)

    async def get_retention_ms(self) -> int:
        return 24 * 3_600_000

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        return await self._through("list_shards", lambda: self._stream.list_shards(shard_filter))

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        self.starts.append(start)
        return await self._through("iterator", lambda: self._stream.get_iterator(shard, start))

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        self.limits.append(limit)
        limit = self.limit_for(limit)
        page = await self._through("get_records", lambda: self._stream.get_records(iterator, limit=limit))
        if self.empty_pages_first:
            self.empty_pages_first -= 1
            return Page((), iterator, millis_behind=1_000_000)
        return page

    async def close(self) -> None:
        await self._stream.close()

    async def _through(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append((self._clock.now_ms(), operation))
        failure = self.failure_for(operation)
        if failure:
            raise failure
        return await call()


class FailingSubscription(Subscription):
    """Passes events on, unless `failure_for` fails the read or `change_event` changes the event."""

    def __init__(self, subscription: Subscription, fan_out: "FailingFanOut") -> None:
        self._subscription = subscription
        self._fan_out = fan_out
        self._has_ended = False
        fan_out.open_subscriptions += 1

    def __aiter__(self) -> "FailingSubscription":
        return self

    async def __anext__(self) -> SubscriptionEvent:
        event = await self._fan_out.through("event", lambda: anext(self._subscription))
        return self._fan_out.change_event(event)

    def has_received(self) -> bool:
        return self._fan_out.slow_ms > 0

    async def close(self) -> None:
        if not self._has_ended:
            self._fan_out.open_subscriptions -= 1
        self._has_ended = True
        await self._subscription.close()


class FailingFanOut(FanOut):
    """As `FailingStream`. The operations are register, describe, list, require_stream, subscribe and event."""

    def __init__(self, fan_out: FanOut, clock: VirtualClock) -> None:
        self._fan_out = fan_out
        self._clock = clock
        self.failure_for: Callable[[str], Exception | None] = lambda _: None
        self.change_event: Callable[[SubscriptionEvent], SubscriptionEvent] = lambda event: event
        self.calls: list[tuple[int, str]] = []
        self.starts: list[IteratorStart] = []
        self.open_subscriptions = 0
        self.silent_reads = 0  # reads of an event that never return
        self.slow_ms = 0  # how long the bytes of an event take to arrive

    def times(self, operation: str) -> list[int]:
        """When an operation was called."""
        return [at_ms for at_ms, called in self.calls if called == operation]

    async def register_consumer(self, name: str) -> ConsumerDescription:
        return await self.through("register", lambda: self._fan_out.register_consumer(name))

    async def describe_consumer(self, name_or_arn: str) -> ConsumerDescription:
        return await self.through("describe", lambda: self._fan_out.describe_consumer(name_or_arn))

    async def list_consumers(self) -> Sequence[ConsumerDescription]:
        return await self.through("list", self._fan_out.list_consumers)

    async def deregister_consumer(self, arn: str) -> None:
        await self._fan_out.deregister_consumer(arn)

    async def require_stream(self) -> None:
        await self.through("require_stream", self._fan_out.require_stream)

    async def subscribe(self, consumer_arn: str, shard: ShardId, start: IteratorStart) -> Subscription:
        self.starts.append(start)
        subscription = await self.through(
            "subscribe", lambda: self._fan_out.subscribe(consumer_arn, shard, start)
        )
        return FailingSubscription(subscription, self)

    async def close(self) -> None:
        await self._fan_out.close()

    async def through(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append((self._clock.now_ms(), operation))
        if operation == "event" and self.silent_reads:
            self.silent_reads -= 1
            await self._clock.sleep_ms(1_000 * HOUR_MS)
        if operation == "event" and self.slow_ms:
            await self._clock.sleep_ms(self.slow_ms)
        failure = self.failure_for(operation)
        if failure:
            raise failure
        return await call()


def fail_reads_with(*failures: Exception | None) -> Callable[[str], Exception | None]:
    """Fail the first calls of GetRecords with these errors, one after the other. None lets a call succeed."""
    following = iter(failures)
    return lambda operation: next(following, None) if operation == "get_records" else None


@dataclass
class ReadWorld:
    """A stream with one shard by default. Create it inside the virtual loop."""

    shards: int = 1
    service_settings: ServiceSettings = field(default_factory=ServiceSettings)
    settings: ReadSettings = field(default_factory=ReadSettings)
    clock: VirtualClock = field(default_factory=VirtualClock)
    events: list[Event] = field(default_factory=list)
    fan_out_settings: FanOutSettings = field(
        default_factory=lambda: FanOutSettings(retrieval=ReadWorld.retrieval)
    )

    # How readers read by default. Tests of both ways change it.
    retrieval: ClassVar[Retrieval] = Retrieval.POLLING

    def __post_init__(self) -> None:
        self.service = KinesisModel(settings=self.service_settings)
        self.service.create_stream(self.clock.wall_ms(), "orders", shard_count=self.shards)
        self.stream = FailingStream(MemoryStream(self.service, "orders", self.clock), self.clock)
        self.fan_out = FailingFanOut(MemoryFanOut(self.service, "orders", self.clock), self.clock)
        self.consumer = self.make_consumer() if self.fan_out_settings.is_fan_out else None
        self.budget = ByteBudget(self.settings.buffer_bytes)
        self._names = itertools.count()

    def make_consumer(self) -> StreamConsumer:
        """The registered consumer, as another process of the application uses it."""
        return StreamConsumer(
            self.fan_out,
            self.fan_out_settings,
            stream="orders",
            application="billing",
            clock=self.clock,
            rng=random.Random(2),
            observe=self.events.append,
        )

    def put(self, count: int = 1, *, size: int = 0, hash_key: int = 0) -> list[str]:
        """Put plain records, each with unique data. Returns their sequence numbers."""
        return [self._put(PutEntry(self.data(size), "k", hash_key)) for _ in range(count)]

    def put_aggregate(self, count: int, *, hash_key: int = 0, stray_key: int | None = None) -> str:
        """Put one aggregate. `stray_key` is the hash key of its last user record. Returns its sequence number."""
        entries = [PutEntry(self.data(), "k", hash_key) for _ in range(count)]
        if stray_key is not None:
            entries[-1] = entries[-1]._replace(explicit_hash_key=stray_key)
        return self._put(aggregate(entries)._replace(explicit_hash_key=hash_key))

    def put_data(self, data: bytes) -> str:
        """Put one record with exactly these bytes."""
        return self._put(PutEntry(data, "k", 0))

    def data(self, size: int = 0) -> bytes:
        """Return data that no other record has."""
        return b"%d" % next(self._names) + bytes(size)

    def split(self) -> None:
        self.service.split_shard(self.clock.wall_ms(), "orders", SHARD, MIDDLE)

    def read(
        self,
        start: Position = TRIM_HORIZON,
        *,
        shard: ShardId = SHARD,
        initial: InitialPosition = FROM_THE_START,
        hash_range: HashRange | None = None,
        **changes: Any,
    ) -> AbstractAsyncContextManager[AsyncIterator[ReadChunk]]:
        """Read a shard. `changes` are fields of `ReadRequest` or `ReadContext`."""
        context = ReadContext(
            stream=self.stream,
            settings=self.settings,
            deaggregation=DEFAULT_DEAGGREGATION,
            budget=self.budget,
            clock=self.clock,
            rng=random.Random(1),
            observe=self.events.append,
            subscribes_once=False,
            consumer=self.consumer,
        )
        names = {each.name for each in fields(ReadContext)}
        of_context = {name: value for name, value in changes.items() if name in names}
        of_request = {name: value for name, value in changes.items() if name not in names}
        request = ReadRequest(shard=shard, start=start, initial=initial, hash_range=hash_range, **of_request)
        return read_shard(request, replace(context, **of_context))

    async def take(self, chunks: AsyncIterator[ReadChunk], count: int) -> list[UserRecord]:
        """Read at least `count` user records, and release the bytes of each chunk."""
        records: list[UserRecord] = []
        while len(records) < count:
            records += (await self.next_chunk(chunks)).records
        return records

    async def take_to_end(self, chunks: AsyncIterator[ReadChunk]) -> tuple[list[UserRecord], ReadChunk]:
        """Read every user record up to the end of the shard. Returns them and the last chunk."""
        records: list[UserRecord] = []
        async for each in chunks:
            self.budget.release(each.size_bytes)
            records += each.records
            last = each
        return records, last

    async def next_chunk(self, chunks: AsyncIterator[ReadChunk]) -> ReadChunk:
        found = await anext(chunks)
        self.budget.release(found.size_bytes)
        return found

    def events_of(self, kind: type[E]) -> list[E]:
        """The reported events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def _put(self, entry: PutEntry) -> str:
        stored = self.service.put_record(
            self.clock.wall_ms(),
            "orders",
            PutRequest(entry.partition_key, entry.data, entry.explicit_hash_key),
        )
        return str(stored.number)


def data_of(records: Sequence[UserRecord]) -> list[bytes]:
    return [record.data for record in records]


def numbers_of(records: Sequence[UserRecord]) -> list[int]:
    """The numbers in the data that `ReadWorld.data` returned."""
    return [int(record.data.rstrip(b"\x00")) for record in records]


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)
