"""Reading stays within the byte budget."""

import asyncio

import pytest

from leasehold.config.settings import ReadSettings
from leasehold.core.events import ReadThrottled
from leasehold.core.model import Shard
from leasehold.errors import (
    ThrottledError,
)
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.reading.reading_world import (
    ReadWorld,
    fail_reads_with,
    numbers_of,
)


def test_a_slow_consumer_stops_the_reading() -> None:
    """A process never buffers more than its budget, however far ahead it could read."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(buffer_bytes=2_000_000))
        world.put(300, size=100_000)
        held = 0
        async with world.read() as chunks:
            for _ in range(20):
                found = await anext(chunks)
                await world.clock.sleep_ms(10_000)
                held = max(held, world.budget.used_bytes)
                world.budget.release(found.size_bytes)
        assert held <= 2_000_000
        assert world.budget.used_bytes == 0

    run_in_virtual_time(main())


def test_many_readers_share_one_budget() -> None:
    """Ten shards that are megabytes behind stay within the budget of the process, and each one is read completely."""

    async def main() -> None:
        world = ReadWorld(shards=10, settings=ReadSettings(buffer_bytes=4_000_000))
        shards = await world.stream.list_shards()
        for shard in shards:
            world.put(40, size=100_000, hash_key=shard.hash_range.start)
        peak = 0

        async def consume(shard: Shard) -> int:
            nonlocal peak
            count = 0
            async with world.read(shard=shard.id) as chunks:
                while count < 40:
                    found = await anext(chunks)
                    peak = max(peak, world.budget.used_bytes)
                    await world.clock.sleep_ms(50)
                    world.budget.release(found.size_bytes)
                    count += len(found.records)
            return count

        assert await asyncio.gather(*map(consume, shards)) == [40] * 10
        assert peak <= 4_000_000
        assert world.budget.used_bytes == 0

    run_in_virtual_time(main())


def test_a_record_larger_than_the_budget_is_delivered() -> None:
    """If nothing else is buffered, a single record may exceed the budget."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(buffer_bytes=1_048_576))
        world.service.set_record_size(world.clock.wall_ms(), "orders", 10_240)
        world.put(4, size=5_000_000)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 4)) == [0, 1, 2, 3]

    run_in_virtual_time(main())


@pytest.mark.parametrize("after_ms", [0, 1, 150, 1_000, 30_000])
def test_a_closed_reader_releases_every_byte_that_was_not_delivered(after_ms: int) -> None:
    """Wherever reading is interrupted, the budget counts only the chunks that the consumer has."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(buffer_bytes=1_500_000))
        world.put(100, size=100_000)
        world.stream.failure_for = fail_reads_with(None, ThrottledError("too fast"))
        async with world.read() as chunks, world.read():
            found = await anext(chunks)
            await world.clock.sleep_ms(after_ms)
        assert world.budget.used_bytes == found.size_bytes

    run_in_virtual_time(main())


def test_a_failed_call_gives_its_room_back() -> None:
    """Otherwise a reader that is throttled for a while would leave no room to the other readers."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(buffer_bytes=20_000_000))
        world.stream.failure_for = fail_reads_with(*[ThrottledError("too fast")] * 5)
        async with world.read():
            used = []
            while len(world.events_of(ReadThrottled)) < 5:
                await world.clock.sleep_ms(50)
                used.append(world.budget.used_bytes)
        assert max(used) == 0

    run_in_virtual_time(main())


def test_a_timeout_while_waiting_for_a_chunk_loses_nothing() -> None:
    """A consumer can cancel its wait for the next chunk."""

    async def main() -> None:
        world = ReadWorld()
        seen: list[int] = []
        async with world.read() as chunks:
            for _ in range(200):
                world.put()
                try:
                    async with asyncio.timeout(0.3):
                        seen += numbers_of((await world.next_chunk(chunks)).records)
                except TimeoutError:
                    continue
            seen += numbers_of(await world.take(chunks, 200 - len(seen)))
        assert seen == list(range(200))

    run_in_virtual_time(main())
