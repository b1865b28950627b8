"""The streams for the contract of the `Stream` port: in memory, on our server, on kinesis-local. Tests can write to
each of them, reshard it and, if its clock can be set, age it.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from leasehold.adapters.aws.clients import AwsAccess, kinesis_client
from leasehold.adapters.aws.kinesis_fan_out import KinesisFanOut
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.memory.stream import MemoryFanOut, MemoryStream
from leasehold.adapters.system_clock import SystemClock
from leasehold.core.model import HASH_KEY_MAX, ShardId
from leasehold.core.record import Record
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import InUseError
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.kinesis_model.writing import PutRequest
from leasehold.local import LocalKinesis
from leasehold.ports import ConsumerDescription, FanOut, Page, Stream, Subscription, SubscriptionEvent
from tests.contract.streams import eventually
from tests.servers import aws_client

T = TypeVar("T")
MIDDLE = (HASH_KEY_MAX + 1) // 2
FROM_THE_START = IteratorStart(IteratorKind.TRIM_HORIZON)


class StreamCase(ABC):
    """One stream behind the port, and the operations that change it."""

    server: str
    name: str
    port: Stream
    fan_out: FanOut

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call of the port; one event loop for the whole test."""
        return self._runner.run(call)

    def close(self) -> None:
        self.run(self.port.close())
        self.run(self.fan_out.close())
        self._runner.close()

    @abstractmethod
    def put(self, data: bytes, *, hash_key: int = 0, key: str = "k") -> str:
        """Put a record; returns its sequence number."""

    @abstractmethod
    def split(self, shard: ShardId) -> None: ...

    @abstractmethod
    def merge(self, lower: ShardId, upper: ShardId) -> None: ...

    @abstractmethod
    def delete(self) -> None: ...

    @abstractmethod
    def advance(self, by: timedelta) -> None: ...

    @abstractmethod
    def settings(self, **changes: Any) -> None: ...

    @abstractmethod
    def now_ms(self) -> int: ...

    def shard_ids(self) -> list[ShardId]:
        return sorted(shard.id for shard in self.run(self.port.list_shards()))

    def read(self, shard: ShardId, start: IteratorStart = FROM_THE_START) -> tuple[list[Record], Page]:
        """All records from a start to the tip or the end, and the last page."""
        iterator: str | None = self.run(self.port.get_iterator(shard, start))
        records: list[Record] = []
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert iterator
            page = self.run(self.port.get_records(iterator, limit=1000))
            records += page.records
            iterator = page.next_iterator
            if iterator is None or not (page.records or page.millis_behind):
                return records, page
        raise AssertionError("neither tip nor end within a minute")

    def read_to_end(self, shard: ShardId) -> tuple[list[Record], Page]:
        """All records up to the end of a closed shard."""
        found: tuple[list[Record], Page] = eventually(
            lambda: (read := self.read(shard))[1].next_iterator is None and read, f"{shard} ends"
        )
        return found

    # Fan-out

    def register(self, name: str = "reader") -> ConsumerDescription:
        """Register a consumer, and wait until it is active."""
        registered = self.run(self.fan_out.register_consumer(name))
        found: ConsumerDescription = eventually(
            lambda: (each := self.run(self.fan_out.describe_consumer(registered.arn))).is_active and each,
            f"consumer {name} becomes ACTIVE",
        )
        return found

    def subscribe(
        self, consumer: ConsumerDescription, shard: ShardId, start: IteratorStart = FROM_THE_START
    ) -> Subscription:
        """Subscribe. If an earlier subscription is in the way, wait until the server allows another one."""

        def attempt() -> Subscription | None:
            try:
                return self.run(self.fan_out.subscribe(consumer.arn, shard, start))
            except InUseError:
                return None

        subscription: Subscription = eventually(attempt, f"a subscription to {shard} is allowed")
        return subscription

    def events_until(self, subscription: Subscription, records: int) -> list[SubscriptionEvent]:
        """The events up to the one that completes this number of records."""

        async def collect() -> list[SubscriptionEvent]:
            found: list[SubscriptionEvent] = []
            async with asyncio.timeout(60):
                while sum(len(event.records) for event in found) < records:
                    found.append(await anext(subscription))
            return found

        return self.run(collect())

    def rest_of(self, subscription: Subscription) -> list[SubscriptionEvent]:
        """The events until the subscription ends."""

        async def collect() -> list[SubscriptionEvent]:
            async with asyncio.timeout(60):
                return [event async for event in subscription]

        return self.run(collect())


class MovableSystemClock(SystemClock):
    """The system clock with an offset that the test sets."""

    offset_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.offset_ms


class MemoryCase(StreamCase):
    server = "memory"

    def __init__(self, name: str, shards: int) -> None:
        super().__init__()
        self.clock = MovableSystemClock()
        self.service = KinesisModel()
        self.name = name
        self.service.create_stream(self.now_ms(), name, shard_count=shards)
        self.port = MemoryStream(self.service, name, self.clock)
        self.fan_out = MemoryFanOut(self.service, name, self.clock)

    def put(self, data: bytes, *, hash_key: int = 0, key: str = "k") -> str:
        return str(self.service.put_record(self.now_ms(), self.name, PutRequest(key, data, hash_key)).number)

    def split(self, shard: ShardId) -> None:
        self.service.split_shard(self.now_ms(), self.name, shard, MIDDLE)

    def merge(self, lower: ShardId, upper: ShardId) -> None:
        self.service.merge_shards(self.now_ms(), self.name, lower, upper)

    def delete(self) -> None:
        self.service.delete_stream(self.now_ms(), self.name, with_consumers=True)

    def advance(self, by: timedelta) -> None:
        self.clock.offset_ms += by // timedelta(milliseconds=1)

    def settings(self, **changes: Any) -> None:
        self.service.settings = ServiceSettings(**changes)

    def now_ms(self) -> int:
        return self.clock.wall_ms()


@cache
def _clients_of(url: str) -> tuple[Any, Any]:
    """A client for tests, and one for our adapters. Both take a tenth of a second, and streams may share them."""
    return aws_client("kinesis", url), kinesis_client(AwsAccess(region="us-east-1", endpoint_url=url))


class ServerCase(StreamCase):
    """A stream on a real server, through the AWS adapter."""

    def __init__(
        self,
        server: str,
        url: str,
        name: str,
        shards: int,
        *,
        local: LocalKinesis | None = None,
        by_arn: bool = False,
        http2: bool = False,
    ) -> None:
        super().__init__()
        self.server = server
        self.name = name
        self._local = local
        self._client, ours = _clients_of(url)
        self._client.create_stream(StreamName=name, ShardCount=shards)
        self._wait_until_active()
        arn = self._client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
        self.port = KinesisStream(ours, arn if by_arn else name)
        self.fan_out = KinesisFanOut(ours, arn if by_arn else name, http2=http2)

    def put(self, data: bytes, *, hash_key: int = 0, key: str = "k") -> str:
        response = self._client.put_record(
            StreamName=self.name, Data=data, PartitionKey=key, ExplicitHashKey=str(hash_key)
        )
        return str(response["SequenceNumber"])

    def split(self, shard: ShardId) -> None:
        self._client.split_shard(StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=str(MIDDLE))
        self._wait_until_active()

    def merge(self, lower: ShardId, upper: ShardId) -> None:
        self._client.merge_shards(StreamName=self.name, ShardToMerge=lower, AdjacentShardToMerge=upper)
        self._wait_until_active()

    def delete(self) -> None:
        self._client.delete_stream(StreamName=self.name, EnforceConsumerDeletion=True)

    def advance(self, by: timedelta) -> None:
        assert self._local
        self._local.advance(by)

    def settings(self, **changes: Any) -> None:
        assert self._local
        self._local.settings(**changes)

    def now_ms(self) -> int:
        return self._local.now_ms() if self._local else SystemClock().wall_ms()

    def _wait_until_active(self) -> None:
        def is_active() -> bool:
            response = self._client.describe_stream_summary(StreamName=self.name)
            return bool(response["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE")

        eventually(is_active, f"{self.name} becomes ACTIVE")
