"""Aggregates in a shard, and the events of reading."""

from datetime import timedelta

import pytest

from leasehold.config.settings import ReadSettings
from leasehold.core.events import (
    BatchHandled,
    DeaggregationFailed,
    Event,
    LeaseTaken,
    PageRead,
    ReadingStarted,
)
from leasehold.core.model import HASH_KEY_MAX, HashRange, LeaseKey
from leasehold.core.observing.health import Health, HealthLimits
from leasehold.core.observing.lag import LagTracker
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.records.deaggregation import DeaggregationSettings, OutOfRange, Unreadable
from leasehold.errors import (
    MalformedAggregateError,
)
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests import kpl_encoder
from tests.unit.fleet.reading.reading_world import (
    MIDDLE,
    SHARD,
    ReadWorld,
    data_of,
    numbers_of,
    seconds,
)

LOWER_HALF = HashRange(0, MIDDLE - 1)


def test_a_dropped_aggregate_is_reported_and_skipped() -> None:
    """User records of another shard are dropped as in Java. The event counts them, and `read_through` passes them."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(4, stray_key=HASH_KEY_MAX)
        async with world.read(hash_range=LOWER_HALF) as chunks:
            dropped = await world.next_chunk(chunks)
        assert (dropped.records, dropped.size_bytes) == ((), 0)
        assert dropped.read_through == Position(number, 3)
        assert world.events_of(DeaggregationFailed) == [
            DeaggregationFailed(SHARD, Position(number), "out-of-range", dropped=4)
        ]

    run_in_virtual_time(main())


def test_read_through_passes_a_dropped_record_at_the_end_of_an_aggregate() -> None:
    """If only records of another shard are dropped, a checkpoint after the others covers them too."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(4, stray_key=HASH_KEY_MAX)
        drop_record = DeaggregationSettings(out_of_range=OutOfRange.DROP_RECORD)
        async with world.read(hash_range=LOWER_HALF, deaggregation=drop_record) as chunks:
            found = await world.next_chunk(chunks)
        assert numbers_of(found.records) == [0, 1, 2]
        assert found.read_through == Position(number, 3)

    run_in_virtual_time(main())


def test_an_empty_aggregate_is_skipped() -> None:
    """An aggregate without user records delivers nothing, and is done."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_data(kpl_encoder.add_frame(kpl_encoder.partition_key(b"k")))
        async with world.read() as chunks:
            found = await world.next_chunk(chunks)
        assert (found.records, found.read_through) == ((), Position(number))

    run_in_virtual_time(main())


def test_an_unreadable_aggregate_is_an_error_if_configured() -> None:
    """With `unreadable=FAIL` the consumer gets the error, after the records of earlier pages."""

    async def main() -> None:
        world = ReadWorld()
        strict = DeaggregationSettings(unreadable=Unreadable.FAIL)
        world.put(2)
        async with world.read(deaggregation=strict) as chunks:
            assert numbers_of(await world.take(chunks, 2)) == [0, 1]
            bad = kpl_encoder.partition_key(b"k") + kpl_encoder.user_record(7, None, b"x")
            world.put_data(kpl_encoder.add_frame(bad))
            with pytest.raises(MalformedAggregateError):
                await world.take(chunks, 1)

    run_in_virtual_time(main())


def test_an_aggregate_counts_with_the_size_of_its_user_records() -> None:
    """Many tiny user records use more memory than their aggregate. The budget counts the user records."""

    async def main() -> None:
        world = ReadWorld()
        world.put_aggregate(2000)
        async with world.read() as chunks:
            found = await anext(chunks)
            assert found.size_bytes > 2000 * 200
            assert world.budget.used_bytes == found.size_bytes
            world.budget.release(found.size_bytes)

    run_in_virtual_time(main())


def test_each_page_is_reported() -> None:
    """The start is reported, and for each page its user records, their bytes, its lag, and its last position."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(records_per_call=2))
        world.put_aggregate(3)
        numbers = world.put(2, size=9)
        await world.clock.sleep_ms(5_000)
        async with world.read() as chunks:
            records = await world.take(chunks, 5)
            await world.next_chunk(chunks)
        assert data_of(records)[:3] == [b"0", b"1", b"2"]
        assert world.events == [
            ReadingStarted(SHARD, TRIM_HORIZON),
            PageRead(SHARD, 4, 3 * 2 + 11, 5_000, 0, Position(numbers[0])),
            PageRead(SHARD, 1, 11, 0, 0, Position(numbers[1])),
            PageRead(SHARD, 0, 0, 0, 0, None),
        ]

    run_in_virtual_time(main())


def test_the_last_position_of_a_page_is_the_last_user_record_of_its_aggregate() -> None:
    """A page that ends with an aggregate is done only when its last user record is done."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(3)
        async with world.read() as chunks:
            await world.next_chunk(chunks)
            await world.next_chunk(chunks)
        assert [page.last for page in world.events_of(PageRead)][:2] == [Position(number, 2), None]

    run_in_virtual_time(main())


def test_a_page_is_in_flight_until_all_its_batches_are_done() -> None:
    """After the first of several batches of a page, lag and health still count its records as in flight."""

    async def main() -> None:
        world = ReadWorld()
        world.put(10)
        lags, health = LagTracker(), Health(HealthLimits(failover_ms=10_000, stuck_after_ms=60_000), now_ms=0)

        def observe(event: Event) -> None:
            lags.observe(event, 0)
            health.observe(event, 0)

        def records_in_flight() -> tuple[int, int]:
            ((_, progress),), (shard,) = list(lags), health.report(0).shards
            return progress.records_in_flight, shard.records_in_flight

        observe(LeaseTaken(LeaseKey(SHARD), SHARD, None, None, 1, TRIM_HORIZON))
        async with world.read(observe=observe) as chunks:
            records = await world.take(chunks, 10)
            await world.next_chunk(chunks)
        for done, expected in ((records[3], 10), (records[8], 10), (records[9], 0)):
            observe(BatchHandled(SHARD, 1, 1, done.position, 1, 0))
            assert records_in_flight() == (expected, expected)

    run_in_virtual_time(main())


def test_the_poll_interval_is_used() -> None:
    """A reader with a poll interval of ten seconds makes one call in ten seconds."""

    async def main() -> None:
        world = ReadWorld(
            settings=ReadSettings(idle_poll_every=seconds(10), check_gaps_when_behind=timedelta(hours=1))
        )
        async with world.read() as chunks:
            for _ in range(11):
                await world.next_chunk(chunks)
        assert 90_000 <= world.clock.now_ms() <= 110_000

    run_in_virtual_time(main())
