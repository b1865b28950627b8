"""Failed and throttled calls are retried, and calls are paced."""

import random
from itertools import pairwise

import pytest

from leasehold.core.events import (
    ReadFailed,
    ReadThrottled,
)
from leasehold.core.records.iterators import IteratorKind
from leasehold.core.records.pacing import IDLE_TICK_MS
from leasehold.errors import (
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.reading.reading_world import (
    ReadWorld,
    fail_reads_with,
    numbers_of,
)


def test_throttled_calls_are_retried_with_growing_waits() -> None:
    """Throttling costs only time. Each throttled call is reported with the wait after it."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.stream.failure_for = fail_reads_with(*[ThrottledError("too fast")] * 8)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
        waits = [event.wait_ms for event in world.events_of(ReadThrottled)]
        times = world.stream.times("get_records")
        assert len(waits) == 8
        assert [after - before for before, after in pairwise(times)] == waits
        assert all(200 <= wait <= 10_200 for wait in waits)
        assert sum(waits[4:]) > sum(waits[:4])

    run_in_virtual_time(main())


def test_an_unreachable_server_is_called_again_with_the_same_iterator() -> None:
    """A missing response does not invalidate the iterator."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.stream.failure_for = fail_reads_with(*[UnavailableError("no response")] * 3)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
        assert len(world.stream.starts) == 1
        assert [event.error for event in world.events_of(ReadFailed)] == ["no response"] * 3

    run_in_virtual_time(main())


def test_an_iterator_that_the_server_rejects_is_replaced() -> None:
    """Reading continues at the same position with a new iterator."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(3)
        async with world.read() as chunks:
            await world.take(chunks, 3)
            world.stream.failure_for = fail_reads_with(
                ServiceError("InvalidArgumentException: what is this?")
            )
            world.put(2)
            assert numbers_of(await world.take(chunks, 2)) == [3, 4]
        assert [start.kind for start in world.stream.starts] == [
            IteratorKind.TRIM_HORIZON,
            IteratorKind.AT_SEQUENCE_NUMBER,
        ]
        assert world.stream.starts[1].sequence_number == numbers[2]
        assert len(world.events_of(ReadFailed)) == 1

    run_in_virtual_time(main())


class LongestWaits(random.Random):
    """Always draws the longest wait."""

    def random(self) -> float:
        return 1.0


def test_a_successful_call_resets_the_backoff() -> None:
    """After a success the next failure waits as long as the first one."""

    async def main() -> None:
        world = ReadWorld()
        failing = [ThrottledError("too fast")] * 12
        world.stream.failure_for = fail_reads_with(*failing, None, ThrottledError("too fast"))
        async with world.read(rng=LongestWaits()) as chunks:
            await world.next_chunk(chunks)
            await world.next_chunk(chunks)
        waits = [event.wait_ms for event in world.events_of(ReadThrottled)]
        assert waits == [700, 1_200, 2_200, 4_200, 8_200, *[10_200] * 7, 700]

    run_in_virtual_time(main())


def test_an_unexpected_error_reaches_the_consumer() -> None:
    """The read-ahead task passes an unexpected error on, after the records that were read before it."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.stream.failure_for = fail_reads_with(None, RuntimeError("a bug"))
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
            with pytest.raises(RuntimeError, match="a bug"):
                await anext(chunks)
            with pytest.raises(StopAsyncIteration):
                await anext(chunks)
        assert world.budget.used_bytes == 0

    run_in_virtual_time(main())


def test_reading_stays_within_the_limits_of_a_shard() -> None:
    """A reader that catches up makes at most 5 calls and reads at most 2 MB a second, and is never throttled."""

    async def main() -> None:
        world = ReadWorld()
        for _ in range(40):
            world.put(20, size=25_000)
        world.put(3000, size=10)
        world.service.settings = ServiceSettings(enforce_limits=True)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 3800)) == list(range(3800))
        assert not world.events_of(ReadThrottled)
        # 20 MB at 2 MB a second, without further waits.
        assert 9_000 <= world.clock.now_ms() <= 13_000

    run_in_virtual_time(main())


def test_an_idle_shard_is_polled_about_once_a_second() -> None:
    """At the tip the wait is the setting plus or minus a tenth, so that polls of shards spread over the ticks."""

    async def main() -> None:
        world = ReadWorld()
        async with world.read() as chunks:
            for _ in range(100):
                await world.next_chunk(chunks)
        times = world.stream.times("get_records")
        pauses = [after - before for before, after in pairwise(times)]
        assert all(900 <= pause <= 1_100 for pause in pauses)
        assert set(pauses) == {900, 950, 1_000, 1_050, 1_100}
        assert not [time for time in times[1:] if time % IDLE_TICK_MS]

    run_in_virtual_time(main())


def test_empty_pages_before_the_tip_are_read_without_idle_waits() -> None:
    """An empty response before the tip is followed by the next call as soon as the limits allow."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.stream.empty_pages_first = 50
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
        assert world.clock.now_ms() == 50 * 200

    run_in_virtual_time(main())
