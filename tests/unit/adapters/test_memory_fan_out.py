"""Enhanced fan-out in memory: consumers, and the life of a subscription."""

import pytest

from leasehold.adapters.memory.stream import MemoryFanOut
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import InUseError, NotFoundError
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time

SHARD = ShardId("shardId-000000000000")
FROM_THE_START = IteratorStart(IteratorKind.TRIM_HORIZON)


class _World:
    """A stream of one shard with one consumer. Create it inside the virtual loop."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.service = KinesisModel()
        self.service.create_stream(self.clock.wall_ms(), "orders", shard_count=1)
        self.fan_out = MemoryFanOut(self.service, "orders", self.clock)

    def put(self, data: bytes) -> str:
        result = self.service.put_record(self.clock.wall_ms(), "orders", PutRequest("k", data))
        return str(result.number)


def test_a_consumer_is_registered_described_and_deregistered() -> None:
    async def scenario() -> None:
        fan_out = _World().fan_out
        registered = await fan_out.register_consumer("app")
        assert registered.is_active
        assert await fan_out.describe_consumer("app") == registered
        assert await fan_out.describe_consumer(registered.arn) == registered
        with pytest.raises(InUseError):
            await fan_out.register_consumer("app")
        await fan_out.deregister_consumer(registered.arn)
        assert await fan_out.list_consumers() == []
        with pytest.raises(NotFoundError):
            await fan_out.subscribe(registered.arn, SHARD, FROM_THE_START)

    run_in_virtual_time(scenario())


def test_a_subscription_sends_records_pauses_and_the_end_of_the_shard() -> None:
    async def scenario() -> None:
        world = _World()
        consumer = await world.fan_out.register_consumer("app")
        number = world.put(b"one")
        subscription = await world.fan_out.subscribe(consumer.arn, SHARD, FROM_THE_START)
        first = await anext(subscription)
        assert ([record.data for record in first.records], first.continuation) == ([b"one"], number)
        began_ms = world.clock.now_ms()
        assert (await anext(subscription)).records == []
        assert 5_000 <= world.clock.now_ms() - began_ms < 6_000
        world.service.split_shard(world.clock.wall_ms(), "orders", SHARD, 2**127)
        last = await anext(subscription)
        assert (last.continuation, len(last.children)) == (None, 2)
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)

    run_in_virtual_time(scenario())


def test_a_subscription_ends_after_five_minutes_and_is_replaced_after_five_seconds() -> None:
    async def scenario() -> None:
        world = _World()
        consumer = await world.fan_out.register_consumer("app")
        first = await world.fan_out.subscribe(consumer.arn, SHARD, FROM_THE_START)
        with pytest.raises(InUseError):
            await world.fan_out.subscribe(consumer.arn, SHARD, FROM_THE_START)
        await world.clock.sleep_ms(5_000)
        second = await world.fan_out.subscribe(consumer.arn, SHARD, FROM_THE_START)
        with pytest.raises(InUseError):
            await anext(first)
        began_ms = world.clock.now_ms()
        events = len([event async for event in second])
        assert 50 <= events <= 60  # about every five seconds
        assert 300_000 <= world.clock.now_ms() - began_ms < 301_000
        # The service freed the shard when it ended the subscription.
        await world.fan_out.subscribe(consumer.arn, SHARD, FROM_THE_START)

    run_in_virtual_time(scenario())
