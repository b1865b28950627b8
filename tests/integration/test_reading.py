"""Reading a shard over HTTP, with control of the server's clock, retention and limits; and once on kinesis-local."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from leasehold.adapters.aws.clients import AwsAccess, kinesis_client
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.system_clock import SystemClock
from leasehold.config.settings import ReadSettings
from leasehold.core.events import Event, GapFound, IteratorExpired, ReadThrottled
from leasehold.core.model import InitialPosition, ShardId
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import aggregate
from leasehold.core.records.deaggregation import DEFAULT_DEAGGREGATION
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.chunking import ReadChunk
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.shard_reader import read_shard
from leasehold.local import LocalKinesis
from leasehold.ports import Stream
from tests.servers import Server, aws_client

SHARD = ShardId("shardId-000000000000")
SETTINGS = ReadSettings(idle_poll_every=timedelta(milliseconds=200))
MIDDLE = 2**127
DEADLINE_S = 120


@dataclass
class StreamUnderTest:
    """One stream on a server, with a producer and a reader."""

    url: str
    name: str = "orders"
    events: list[Event] = field(default_factory=list)
    budget: ByteBudget = field(default_factory=lambda: ByteBudget(SETTINGS.buffer_bytes))
    produced: int = 0

    def __post_init__(self) -> None:
        self.client = aws_client("kinesis", self.url)
        self.client.create_stream(StreamName=self.name, ShardCount=1)
        self.client.get_waiter("stream_exists").wait(
            StreamName=self.name, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )

    def put(self, count: int, size: int = 0) -> list[str]:
        """Put records that are not aggregated, and return their sequence numbers."""
        return [self._put(PutEntry(self._data(size), "k")) for _ in range(count)]

    def put_aggregate(self, count: int) -> str:
        return self._put(aggregate(PutEntry(self._data(0), "k") for _ in range(count)))

    def split(self) -> None:
        self.client.split_shard(StreamName=self.name, ShardToSplit=SHARD, NewStartingHashKey=str(MIDDLE))

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Stream]:
        stream = KinesisStream(
            kinesis_client(AwsAccess(region="us-east-1", endpoint_url=self.url)), self.name
        )
        try:
            yield stream
        finally:
            await stream.close()

    def read(
        self, stream: Stream, start: Position = TRIM_HORIZON, **changes: Any
    ) -> AbstractAsyncContextManager[AsyncIterator[ReadChunk]]:
        request = ReadRequest(shard=SHARD, start=start, initial=InitialPosition(TRIM_HORIZON))
        context = ReadContext(
            stream=stream,
            settings=SETTINGS,
            deaggregation=DEFAULT_DEAGGREGATION,
            budget=self.budget,
            clock=SystemClock(),
            rng=random.Random(7),
            observe=self.events.append,
            subscribes_once=False,
        )
        return read_shard(request, replace(context, **changes))

    async def take(self, chunks: AsyncIterator[ReadChunk], count: int) -> list[int]:
        """Read `count` user records and return their numbers."""
        numbers: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(numbers) < count:
                found = await anext(chunks)
                self.budget.release(found.size_bytes)
                numbers += [int(record.data.rstrip(b"\x00")) for record in found.records]
        return numbers

    async def to_end(self, chunks: AsyncIterator[ReadChunk]) -> tuple[list[int], ReadChunk]:
        numbers: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            async for found in chunks:
                self.budget.release(found.size_bytes)
                numbers += [int(record.data.rstrip(b"\x00")) for record in found.records]
        return numbers, found

    def events_of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def _data(self, size: int) -> bytes:
        self.produced += 1
        return b"%d" % (self.produced - 1) + bytes(size)

    def _put(self, entry: PutEntry) -> str:
        response = self.client.put_record(
            StreamName=self.name,
            Data=entry.data,
            PartitionKey=entry.partition_key,
            ExplicitHashKey=str(entry.hash_key),
        )
        return str(response["SequenceNumber"])


@pytest.fixture
def server() -> Iterator[LocalKinesis]:
    """Run a server for this test only, because it changes the clock and the settings."""
    with LocalKinesis.in_thread() as running:
        yield running


def test_expired_iterators_lose_no_record(server: LocalKinesis) -> None:
    """When the server's clock passes the lifetime of an iterator, each record is still read once."""
    subject = StreamUnderTest(server.endpoint_url)

    async def main() -> None:
        async with subject.stream() as stream, subject.read(stream) as chunks:
            for _ in range(3):
                subject.put(2)
                subject.put_aggregate(3)
                server.advance(timedelta(minutes=6))
                subject.put(1)
                numbers.extend(await subject.take(chunks, 6))

    numbers: list[int] = []
    asyncio.run(main())
    assert numbers == list(range(18))
    assert subject.events_of(IteratorExpired)


def test_trimmed_records_are_reported(server: LocalKinesis) -> None:
    """A reader that resumes after the retention period reports the gap and continues after it."""
    subject = StreamUnderTest(server.endpoint_url)
    numbers = subject.put(6)
    server.advance(timedelta(hours=23))
    (kept,) = subject.put(1)
    server.advance(timedelta(hours=2))

    async def main() -> list[int]:
        async with subject.stream() as stream, subject.read(stream, Position(numbers[2])) as chunks:
            return await subject.take(chunks, 1)

    assert asyncio.run(main()) == [6]
    (found,) = subject.events_of(GapFound)
    assert (found.gap.after, found.gap.resumes_at) == (Position(numbers[2]), kept)


def test_a_throttled_reader_loses_no_record(server: LocalKinesis) -> None:
    """A reader that expects ten times the limit is throttled for seconds, and then continues."""
    subject = StreamUnderTest(server.endpoint_url)
    subject.put(95, size=100_000)
    server.settings(enforce_limits=True)
    fast = ReadSettings(idle_poll_every=timedelta(milliseconds=200), bytes_per_second=20_000_000)

    async def main() -> list[int]:
        async with subject.stream() as stream, subject.read(stream, settings=fast) as chunks:
            numbers = await subject.take(chunks, 95)
            subject.put(5)
            return numbers + await subject.take(chunks, 5)

    assert asyncio.run(main()) == list(range(100))
    assert subject.events_of(ReadThrottled)


@pytest.mark.parametrize("with_last_records", [True, False])
def test_a_shard_is_read_to_its_end(server: LocalKinesis, with_last_records: bool) -> None:
    """In both forms in which a server ends a shard."""
    server.settings(shard_end_with_last_records=with_last_records)
    subject = StreamUnderTest(server.endpoint_url)
    subject.put(5)
    subject.put_aggregate(5)
    subject.split()

    async def main() -> tuple[list[int], ReadChunk]:
        async with subject.stream() as stream, subject.read(stream) as chunks:
            return await subject.to_end(chunks)

    numbers, last = asyncio.run(main())
    assert numbers == list(range(10))
    assert bool(last.records) == with_last_records
    assert last.children is not None
    assert [child.parents for child in last.children] == [(SHARD,), (SHARD,)]


def test_a_shard_of_kinesis_local_is_read_to_its_end(
    kinesis_local: Server, unique_name: Callable[[str], str]
) -> None:
    """On another implementation of the service: the reader resumes inside an aggregate and reads up to the children."""
    subject = StreamUnderTest(kinesis_local.url, unique_name("reading"))
    subject.put(5)
    number = subject.put_aggregate(5)
    subject.put(5)
    subject.split()

    async def main() -> tuple[list[int], ReadChunk]:
        async with subject.stream() as stream, subject.read(stream, Position(number, 1)) as chunks:
            return await subject.to_end(chunks)

    numbers, last = asyncio.run(main())
    assert numbers == list(range(7, 15))
    assert last.children is not None
    assert len(last.children) == 2
    assert not subject.events_of(GapFound)
    subject.client.delete_stream(StreamName=subject.name)
