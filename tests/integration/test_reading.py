"""Reading a shard over HTTP, with the server's clock, retention and limits under control; and once on kinesis-local."""

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
class Shore:
    """One stream on a server, from both sides: who puts, and who reads."""

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
        """Put plain records of their own data; returns their sequence numbers."""
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
        )
        return read_shard(request, replace(context, **changes))

    async def take(self, slices: AsyncIterator[ReadChunk], count: int) -> list[int]:
        """The names of so many user records."""
        names: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(names) < count:
                found = await anext(slices)
                self.budget.release(found.size_bytes)
                names += [int(record.data.rstrip(b"\x00")) for record in found.records]
        return names

    async def to_end(self, slices: AsyncIterator[ReadChunk]) -> tuple[list[int], ReadChunk]:
        names: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            async for found in slices:
                self.budget.release(found.size_bytes)
                names += [int(record.data.rstrip(b"\x00")) for record in found.records]
        return names, found

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def _data(self, size: int) -> bytes:
        self.produced += 1
        return b"%d" % (self.produced - 1) + bytes(size)

    def _put(self, entry: PutEntry) -> str:
        answer = self.client.put_record(
            StreamName=self.name,
            Data=entry.data,
            PartitionKey=entry.partition_key,
            ExplicitHashKey=str(entry.hash_key),
        )
        return str(answer["SequenceNumber"])


@pytest.fixture
def server() -> Iterator[LocalKinesis]:
    """A server whose clock and settings nobody else depends on."""
    with LocalKinesis.in_thread() as running:
        yield running


def test_expired_iterators_cost_nothing(server: LocalKinesis) -> None:
    """When the server's clock jumps past the life of an iterator, each record still comes once."""
    shore = Shore(server.endpoint_url)

    async def main() -> None:
        async with shore.stream() as stream, shore.read(stream) as slices:
            for _ in range(3):
                shore.put(2)
                shore.put_aggregate(3)
                server.advance(timedelta(minutes=6))
                shore.put(1)
                names.extend(await shore.take(slices, 6))

    names: list[int] = []
    asyncio.run(main())
    assert names == list(range(18))
    assert shore.told(IteratorExpired)


def test_trimmed_records_are_reported(server: LocalKinesis) -> None:
    """A reader that comes back after the retention is told where records are missing, and goes on behind the gap."""
    shore = Shore(server.endpoint_url)
    numbers = shore.put(6)
    server.advance(timedelta(hours=23))
    (kept,) = shore.put(1)
    server.advance(timedelta(hours=2))

    async def main() -> list[int]:
        async with shore.stream() as stream, shore.read(stream, Position(numbers[2])) as slices:
            return await shore.take(slices, 1)

    assert asyncio.run(main()) == [6]
    (found,) = shore.told(GapFound)
    assert (found.gap.after, found.gap.resumes_at) == (Position(numbers[2]), kept)


def test_a_refused_reader_waits_and_loses_nothing(server: LocalKinesis) -> None:
    """With limits on, a reader that believes to be allowed ten times as much is refused for seconds, and goes on."""
    shore = Shore(server.endpoint_url)
    shore.put(95, size=100_000)
    server.settings(enforce_limits=True)
    hasty = ReadSettings(idle_poll_every=timedelta(milliseconds=200), bytes_per_second=20_000_000)

    async def main() -> list[int]:
        async with shore.stream() as stream, shore.read(stream, settings=hasty) as slices:
            names = await shore.take(slices, 95)
            shore.put(5)
            return names + await shore.take(slices, 5)

    assert asyncio.run(main()) == list(range(100))
    assert shore.told(ReadThrottled)


@pytest.mark.parametrize("with_last_records", [True, False])
def test_a_shard_is_read_to_its_end(server: LocalKinesis, with_last_records: bool) -> None:
    """In both ways in which a server may tell the end."""
    server.settings(shard_end_with_last_records=with_last_records)
    shore = Shore(server.endpoint_url)
    shore.put(5)
    shore.put_aggregate(5)
    shore.split()

    async def main() -> tuple[list[int], ReadChunk]:
        async with shore.stream() as stream, shore.read(stream) as slices:
            return await shore.to_end(slices)

    names, last = asyncio.run(main())
    assert names == list(range(10))
    assert bool(last.records) == with_last_records
    assert last.children is not None
    assert [child.parents for child in last.children] == [(SHARD,), (SHARD,)]


def test_a_shard_of_kinesis_local_is_read_to_its_end(
    kinesis_local: Server, unique_name: Callable[[str], str]
) -> None:
    """A second implementation of the service: resumed inside an aggregate, then to the end and its children."""
    shore = Shore(kinesis_local.url, unique_name("reading"))
    shore.put(5)
    number = shore.put_aggregate(5)
    shore.put(5)
    shore.split()

    async def main() -> tuple[list[int], ReadChunk]:
        async with shore.stream() as stream, shore.read(stream, Position(number, 1)) as slices:
            return await shore.to_end(slices)

    names, last = asyncio.run(main())
    assert names == list(range(7, 15))
    assert last.children is not None
    assert len(last.children) == 2
    assert not shore.told(GapFound)
    shore.client.delete_stream(StreamName=shore.name)
