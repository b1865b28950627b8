"""Expired iterators lose nothing, and trimmed records are reported as a gap."""

import asyncio

import pytest

from leasehold.config.settings import ReadSettings, Retrieval
from leasehold.core.events import (
    GapFound,
    IteratorExpired,
)
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.records.iterators import Gap
from leasehold.errors import (
    IteratorExpiredError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from tests.unit.fleet.reading.reading_world import (
    CHILD,
    HOUR_MS,
    MIDDLE,
    SHARD,
    SIX_MINUTES_MS,
    ReadWorld,
    fail_reads_with,
    numbers_of,
    seconds,
)


@pytest.fixture(params=[Retrieval.POLLING, Retrieval.FAN_OUT])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with polling and with fan-out."""
    monkeypatch.setattr(ReadWorld, "retrieval", request.param)


def test_a_slow_consumer_loses_nothing_when_iterators_expire() -> None:
    """A consumer that takes six minutes for each chunk gets every record once, although iterators live for five."""

    async def main() -> None:
        world = ReadWorld()
        world.put(50, size=200_000)
        produced = 50
        seen: list[int] = []
        async with world.read() as chunks:
            while len(seen) < produced:
                found = await world.next_chunk(chunks)
                seen += numbers_of(found.records)
                await world.clock.sleep_ms(SIX_MINUTES_MS)
                if produced < 150:
                    world.put_aggregate(5)
                    world.put(5)
                    produced += 10
        assert seen == list(range(150))
        assert world.events_of(IteratorExpired)
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_records_trimmed_before_a_restart_are_a_gap_with_both_ends() -> None:
    """After a restart, the gap is reported with its first and last position."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        await world.clock.sleep_ms(23 * HOUR_MS)
        arrival_ms = world.clock.wall_ms()
        (kept,) = world.put()
        await world.clock.sleep_ms(2 * HOUR_MS)
        async with world.read(Position(numbers[4])) as chunks:
            assert numbers_of(await world.take(chunks, 1)) == [10]
        assert world.events_of(GapFound) == [GapFound(SHARD, Gap(Position(numbers[4]), kept, arrival_ms))]

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_trimmed_records_of_an_ended_shard_are_a_gap_with_an_open_end() -> None:
    """If the rest of a shard was trimmed before it was read, a gap is reported at its end."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        await world.clock.sleep_ms(23 * HOUR_MS)
        world.split()
        await world.clock.sleep_ms(2 * HOUR_MS)
        async with world.read(Position(numbers[2])) as chunks:
            records, last = await world.take_to_end(chunks)
        assert (records, len(last.children or ())) == ([], 2)
        assert world.events_of(GapFound) == [GapFound(SHARD, Gap(Position(numbers[2]), None, None))]

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_a_shard_trimmed_after_a_checkpoint_is_a_gap_with_an_open_end() -> None:
    """If the shard was deleted before the rest was read, a gap is reported."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        world.split()
        await world.clock.sleep_ms(30 * HOUR_MS)
        async with world.read(Position(numbers[2])) as chunks:
            records, last = await world.take_to_end(chunks)
        assert (records, last.children) == ([], ())
        assert world.events_of(GapFound) == [GapFound(SHARD, Gap(Position(numbers[2]), None, None))]

    run_in_virtual_time(main())


def test_a_stream_deleted_before_everything_was_read_is_a_gap() -> None:
    """Records of a deleted stream that were not read are reported as a gap."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(records_per_call=1))
        numbers = world.put(10)
        await world.clock.sleep_ms(HOUR_MS)
        async with world.read() as chunks:
            await world.take(chunks, 1)
            world.service.delete_stream(world.clock.wall_ms(), "orders", with_consumers=True)
            rest, _ = await world.take_to_end(chunks)
        (found,) = world.events_of(GapFound)
        assert found.gap == Gap(Position(numbers[len(rest)]), None, None)

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_a_stream_deleted_after_everything_was_read_has_no_gap() -> None:
    """A reader at the tip reports no gap if the stream is deleted."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        async with world.read() as chunks:
            await world.take(chunks, 3)
            await world.next_chunk(chunks)
            world.service.delete_stream(world.clock.wall_ms(), "orders", with_consumers=True)
            await world.take_to_end(chunks)
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_a_trimmed_shard_read_from_trim_horizon_has_no_gap() -> None:
    """TRIM_HORIZON means the oldest record that still exists."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.split()
        await world.clock.sleep_ms(30 * HOUR_MS)
        async with world.read() as chunks:
            await world.take_to_end(chunks)
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_a_child_whose_beginning_was_trimmed_has_a_gap() -> None:
    """If the parent was read to its end, records that are missing in its child are reported."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        world.put(3)
        await world.clock.sleep_ms(23 * HOUR_MS)
        arrival_ms = world.clock.wall_ms()
        (kept,) = world.put()
        await world.clock.sleep_ms(2 * HOUR_MS)
        began = next(shard for shard in await world.stream.list_shards() if shard.id == CHILD)
        async with world.read(shard=CHILD, follows_parent=True) as chunks:
            assert numbers_of(await world.take(chunks, 1)) == [3]
        gap = Gap(Position(began.starting_sequence_number), kept, arrival_ms)
        assert world.events_of(GapFound) == [GapFound(CHILD, gap)]

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_a_child_that_is_read_in_time_has_no_gap() -> None:
    """Its first record may arrive long after its start. Nothing was trimmed, so no gap is reported."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        await world.clock.sleep_ms(20 * HOUR_MS)
        world.put(3)
        async with world.read(shard=CHILD, follows_parent=True) as chunks:
            assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_a_child_trimmed_before_it_was_read_has_a_gap() -> None:
    """No record of the child is left, and none was read."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        world.put(3)
        world.service.split_shard(world.clock.wall_ms(), "orders", CHILD, MIDDLE // 2)
        await world.clock.sleep_ms(30 * HOUR_MS)
        async with world.read(shard=CHILD, follows_parent=True) as chunks:
            assert (await world.take_to_end(chunks))[0] == []
        assert world.events_of(GapFound) == [GapFound(CHILD, Gap(TRIM_HORIZON, None, None))]

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("failure", "calls"),
    [(ServiceError("denied"), 1), (ThrottledError("slowly"), 2), (UnavailableError("gone"), 2)],
)
@pytest.mark.usefixtures("both_ways")
def test_a_child_is_read_even_if_its_first_position_cannot_be_listed(failure: Exception, calls: int) -> None:
    """A temporary failure is retried. A permanent one does not leave the shard unread."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        world.put(3)
        failures = iter([failure])
        world.stream.failure_for = lambda operation: (
            next(failures, None) if operation == "list_shards" else None
        )
        async with world.read(shard=CHILD, follows_parent=True) as chunks:
            assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
        assert len(world.stream.times("list_shards")) == calls
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_a_shard_that_ends_with_its_checkpoint_has_no_gap() -> None:
    """A reader that starts at the last record of an ended shard reads it again, so nothing is missing."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        await world.clock.sleep_ms(HOUR_MS)
        world.split()
        world.stream.empty_pages_first = 2
        async with world.read(Position(numbers[9])) as chunks:
            records, last = await world.take_to_end(chunks)
        assert (records, len(last.children or ())) == ([], 2)
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


def test_a_shard_that_ends_after_a_long_idle_time_has_no_gap() -> None:
    """A reader that was always at the tip knows that the trimmed record was the last one."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(idle_poll_every=seconds(60)))
        world.put()
        async with world.read() as chunks:
            await world.take(chunks, 1)
            while world.clock.now_ms() < 30 * HOUR_MS:
                await world.next_chunk(chunks)
            world.stream.failure_for = fail_reads_with(IteratorExpiredError("too old"))
            world.split()
            await world.take_to_end(chunks)
        assert world.events_of(IteratorExpired)
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_a_trimmed_checkpoint_at_the_end_of_a_shard_may_be_a_gap() -> None:
    """A new reader cannot know whether the trimmed record was the last one, so it reports a gap."""

    async def main() -> None:
        world = ReadWorld()
        (number,) = world.put()
        await world.clock.sleep_ms(25 * HOUR_MS)
        world.split()
        async with world.read(Position(number)) as chunks:
            await world.take_to_end(chunks)
        assert world.events_of(GapFound) == [GapFound(SHARD, Gap(Position(number), None, None))]

    run_in_virtual_time(main())


@pytest.mark.usefixtures("both_ways")
def test_no_gap_is_reported_where_nothing_is_missing() -> None:
    """If the first record still exists, no later record was trimmed."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        await world.clock.sleep_ms(23 * HOUR_MS)
        world.put()
        async with world.read(Position(numbers[4])) as chunks:
            assert numbers_of(await world.take(chunks, 6)) == [5, 6, 7, 8, 9, 10]
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


def test_a_reader_that_falls_behind_the_retention_reports_the_gap() -> None:
    """A consumer that is slower than the stream for days gets a report of every lost record, although no iterator
    expired unused.
    """

    async def main() -> None:
        settings = ReadSettings(records_per_call=1)
        world = ReadWorld(settings=settings)
        numbers: list[str] = []
        seen: list[int] = []
        for _ in range(100):
            numbers += world.put()
            await world.clock.sleep_ms(HOUR_MS // 6)
        async with world.read() as chunks:
            while len(seen) < 60:
                seen += numbers_of((await world.next_chunk(chunks)).records)
                await world.clock.sleep_ms(HOUR_MS // 6 * 3)
                numbers += world.put(3)
        lost = sorted(set(range(seen[0], seen[-1] + 1)) - set(seen))
        gaps = [event.gap for event in world.events_of(GapFound)]
        reported = [
            index
            for gap in gaps
            for index, number in enumerate(numbers)
            if gap.resumes_at and gap.after.number < int(number) < int(gap.resumes_at) and index < seen[-1]
        ]
        assert lost
        assert reported == lost

    run_in_virtual_time(main())


def test_a_reader_that_is_far_behind_makes_progress() -> None:
    """A new iterator before each page repeats the last record, but never the same page for ever."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(records_per_call=1))
        world.put(20)
        await world.clock.sleep_ms(22 * HOUR_MS)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 20)) == list(range(20))
        assert not world.events_of(GapFound)
        assert len(world.stream.times("iterator")) > 10

    run_in_virtual_time(main())


def test_a_shard_that_was_idle_for_days_has_no_gap() -> None:
    """If no record follows the last one, it can be trimmed without a loss."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(idle_poll_every=seconds(60)))
        world.put()
        async with world.read() as chunks:
            await world.take(chunks, 1)

            async def drain() -> None:
                while True:
                    await world.next_chunk(chunks)

            idle = asyncio.create_task(drain())
            await world.clock.sleep_ms(72 * HOUR_MS)
            idle.cancel()
            world.stream.failure_for = fail_reads_with(IteratorExpiredError("too old"))
            world.put()
            assert numbers_of(await world.take(chunks, 1)) == [1]
        assert world.events_of(IteratorExpired)
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


class SuspendedClock(VirtualClock):
    """The clock of a machine whose monotonic time stops while it is suspended."""

    suspended_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.suspended_ms


@pytest.mark.usefixtures("both_ways")
def test_a_suspended_machine_reports_trimmed_records() -> None:
    """After two days of suspension, trimmed records are reported, although the monotonic clock advanced little."""

    async def main() -> None:
        clock = SuspendedClock()
        world = ReadWorld(clock=clock)
        (number,) = world.put()
        async with world.read() as chunks:
            await world.take(chunks, 1)
            world.put(3)
            clock.suspended_ms = 48 * HOUR_MS
            world.put()
            assert numbers_of(await world.take(chunks, 1)) == [4]
        assert [event.gap.after for event in world.events_of(GapFound)] == [Position(number)]

    run_in_virtual_time(main())
