"""Reading one shard: every user record once and in order, whatever happens to iterators, calls and consumers."""

import asyncio
import random
from datetime import timedelta
from itertools import pairwise

import pytest

from leasehold.config.settings import ReadSettings
from leasehold.core.events import (
    BatchHandled,
    DeaggregationFailed,
    Event,
    GapFound,
    IteratorExpired,
    LeaseTaken,
    PageRead,
    ReadFailed,
    ReadingStarted,
    ReadThrottled,
)
from leasehold.core.model import HASH_KEY_MAX, HashRange, InitialPosition, LeaseKey, Shard
from leasehold.core.observing.health import Health, HealthLimits
from leasehold.core.observing.lag import LagTracker
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.core.records.deaggregation import DeaggregationSettings, OutOfRange, Unreadable
from leasehold.core.records.iterators import Gap, IteratorKind
from leasehold.errors import (
    ConfigError,
    IteratorExpiredError,
    MalformedAggregateError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from tests import kpl_encoder
from tests.unit.fleet.reading.reading_world import (
    CHILD,
    HOUR_MS,
    MIDDLE,
    SHARD,
    SIX_MINUTES_MS,
    ReadWorld,
    data_of,
    in_turn,
    names_of,
    seconds,
)

LOWER_HALF = HashRange(0, MIDDLE - 1)

# -- from the first record to the end ------------------------------------------------------------------------------


def test_every_record_comes_once_and_in_order() -> None:
    """Plain records and parts of aggregates are delivered in the order in which they were put."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.put_aggregate(4)
        world.put(500)
        async with world.read() as slices:
            assert names_of(await world.take(slices, 507)) == list(range(507))
            world.put(2)
            assert names_of(await world.take(slices, 2)) == [507, 508]

    run_in_virtual_time(main())


@pytest.mark.parametrize("with_last_records", [True, False])
def test_the_last_slice_names_the_children(with_last_records: bool) -> None:
    """A closed shard ends with its children, whether its end comes with the last records or in an empty answer."""

    async def main() -> None:
        world = ReadWorld(service_settings=ServiceSettings(shard_end_with_last_records=with_last_records))
        world.put(700)
        last_number = world.put()[0]
        world.split()
        async with world.read() as slices:
            records, last = await world.to_end(slices)
            with pytest.raises(StopAsyncIteration):
                await anext(slices)
        assert names_of(records) == list(range(701))
        assert bool(last.records) == with_last_records
        assert last.children is not None
        assert [child.id[-1] for child in last.children] == ["1", "2"]
        assert [child.hash_range for child in last.children] == [LOWER_HALF, HashRange(MIDDLE, HASH_KEY_MAX)]
        assert last.read_through == Position(last_number)

    run_in_virtual_time(main())


def test_only_the_last_of_many_slices_names_the_children() -> None:
    """A page that is cut into slices ends the shard with the last one, not with the first."""

    async def main() -> None:
        world = ReadWorld(service_settings=ServiceSettings(shard_end_with_last_records=True))
        world.put(20, size=100_000)
        world.split()
        async with world.read() as slices:
            found = [each async for each in slices]
        assert len(found) > 1
        assert [each.children is None for each in found] == [True] * (len(found) - 1) + [False]

    run_in_virtual_time(main())


def test_through_covers_what_was_seen_and_never_goes_back() -> None:
    """A checkpoint may follow `through`: it is the last user record of each slice, and rises."""

    async def main() -> None:
        world = ReadWorld()
        async with world.read() as slices:
            assert (await world.next_slice(slices)).read_through is None
            number = world.put_aggregate(3)
            assert (await world.next_slice(slices)).read_through == Position(number, 2)
            assert (await world.next_slice(slices)).read_through == Position(number, 2)
            (plain,) = world.put()
            assert (await world.next_slice(slices)).read_through == Position(plain)

    run_in_virtual_time(main())


def test_a_vanished_shard_ends_without_children() -> None:
    """A shard that the service no longer knows, and no longer lists, is over."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        await world.clock.sleep_ms(30 * HOUR_MS)
        async with world.read() as slices:
            records, last = await world.to_end(slices)
        assert (records, last.children, last.read_through) == ([], (), None)

    run_in_virtual_time(main())


def test_a_deleted_stream_ends_its_shards() -> None:
    """When the whole stream is gone there is nothing to list, and nothing to wait for."""

    async def main() -> None:
        world = ReadWorld()
        async with world.read() as slices:
            await world.next_slice(slices)
            world.service.delete_stream(world.clock.wall_ms(), "orders")
            _, last = await world.to_end(slices)
        assert last.children == ()

    run_in_virtual_time(main())


def test_a_shard_is_not_over_while_it_is_listed() -> None:
    """One answer that a shard does not exist is not believed: to end it would leave its children unread."""

    async def main() -> None:
        world = ReadWorld()
        world.put(5)
        world.stream.trouble_for = in_turn(NotFoundError("no such shard"), NotFoundError("no such shard"))
        async with world.read() as slices:
            assert names_of(await world.take(slices, 5)) == [0, 1, 2, 3, 4]
        assert len(world.told(ReadFailed)) == 2

    run_in_virtual_time(main())


# -- where to begin ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", range(5))
def test_reading_resumes_inside_an_aggregate(done: int) -> None:
    """After a checkpoint at the k-th part of an aggregate, the parts from k+1 on are delivered, and nothing twice."""

    async def main() -> None:
        world = ReadWorld()
        world.put(2)
        number = world.put_aggregate(5)
        world.put(2)
        async with world.read(Position(number, done)) as slices:
            assert names_of(await world.take(slices, 6 - done)) == list(range(3 + done, 9))

    run_in_virtual_time(main())


def test_the_rest_of_an_aggregate_survives_an_iterator_that_expires_first() -> None:
    """As long as nothing was read, a renewed iterator begins at the record of the checkpoint (Java's begins after)."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(3)
        world.stream.trouble_for = in_turn(IteratorExpiredError("too old"), IteratorExpiredError("too old"))
        async with world.read(Position(number, 0)) as slices:
            assert names_of(await world.take(slices, 2)) == [1, 2]
        assert [start.sequence_number for start in world.stream.starts] == [number] * 3

    run_in_virtual_time(main())


def test_a_checkpoint_stands_when_its_aggregate_is_now_delivered_raw() -> None:
    """Where other limits make one raw record of an aggregate, it is read again rather than lost, and `through` does
    not fall back behind the start.
    """

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(5)
        limits = DeaggregationSettings(user_records_max=3)
        async with world.read(Position(number, 2), deaggregation=limits) as slices:
            raw = await world.next_slice(slices)
        assert [record.position for record in raw.records] == [Position(number, 4)]
        async with world.read(Position(number, 4), deaggregation=limits) as slices:
            done = await world.next_slice(slices)
        assert (done.records, done.read_through) == ((), Position(number, 4))

    run_in_virtual_time(main())


def test_a_checkpoint_beyond_the_parts_that_we_see_stands() -> None:
    """Where another member counted more parts in a record than we do, it is done, and `through` stays where it was."""

    async def main() -> None:
        world = ReadWorld()
        (number,) = world.put()
        async with world.read(Position(number, 4)) as slices:
            done = await world.next_slice(slices)
        assert (done.records, done.read_through) == ((), Position(number, 4))

    run_in_virtual_time(main())


def test_latest_begins_with_the_next_record() -> None:
    """What was there before is not delivered; what comes after is, without a pause in between."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        async with world.read(LATEST, initial=InitialPosition(LATEST)) as slices:
            assert (await world.next_slice(slices)).records == ()
            world.put(2)
            assert names_of(await world.take(slices, 2)) == [3, 4]

    run_in_virtual_time(main())


def test_latest_loses_nothing_when_its_iterator_is_renewed_before_the_first_record() -> None:
    """Records that arrive during an outage longer than an iterator's life are delivered when it is over."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        await world.clock.sleep_ms(HOUR_MS)
        async with world.read(LATEST, initial=InitialPosition(LATEST)) as slices:
            assert (await world.next_slice(slices)).records == ()
            world.stream.trouble_for = lambda _: UnavailableError("the network is down")
            await world.clock.sleep_ms(SIX_MINUTES_MS)
            world.put(2)
            world.stream.trouble_for = lambda _: None
            assert names_of(await world.take(slices, 2)) == [3, 4]
        assert world.told(IteratorExpired)

    run_in_virtual_time(main())


def test_a_timestamp_begins_with_the_first_record_from_then_on() -> None:
    """The time comes from the settings, since a lease holds none."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        await world.clock.sleep_ms(1000)
        initial = InitialPosition(AT_TIMESTAMP, world.clock.wall_ms())
        world.put(2)
        async with world.read(AT_TIMESTAMP, initial=initial) as slices:
            assert names_of(await world.take(slices, 2)) == [3, 4]

    run_in_virtual_time(main())


def test_a_timestamp_that_is_not_configured_is_the_consumers_problem() -> None:
    """Waiting does not cure it, so it is raised."""

    async def main() -> None:
        world = ReadWorld()
        async with world.read(AT_TIMESTAMP) as slices:
            with pytest.raises(ConfigError, match="AT_TIMESTAMP"):
                await anext(slices)

    run_in_virtual_time(main())


# -- iterators that expire, records that are trimmed ---------------------------------------------------------------


def test_a_slow_consumer_loses_nothing_when_iterators_expire() -> None:
    """A consumer that takes six minutes for each slice gets every record once, over iterators that live five."""

    async def main() -> None:
        world = ReadWorld()
        world.put(50, size=200_000)
        produced = 50
        seen: list[int] = []
        async with world.read() as slices:
            while len(seen) < produced:
                found = await world.next_slice(slices)
                seen += names_of(found.records)
                await world.clock.sleep_ms(SIX_MINUTES_MS)
                if produced < 150:
                    world.put_aggregate(5)
                    world.put(5)
                    produced += 10
        assert seen == list(range(150))
        assert world.told(IteratorExpired)
        assert not world.told(GapFound)

    run_in_virtual_time(main())


def test_records_trimmed_before_a_restart_are_a_gap_with_its_extent() -> None:
    """A fleet that comes back after the retention is told from where to where records are missing."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        await world.clock.sleep_ms(23 * HOUR_MS)
        arrival_ms = world.clock.wall_ms()
        (kept,) = world.put()
        await world.clock.sleep_ms(2 * HOUR_MS)
        async with world.read(Position(numbers[4])) as slices:
            assert names_of(await world.take(slices, 1)) == [10]
        assert world.told(GapFound) == [GapFound(SHARD, Gap(Position(numbers[4]), kept, arrival_ms))]

    run_in_virtual_time(main())


def test_trimmed_records_of_an_ended_shard_are_a_gap_with_an_open_end() -> None:
    """Where the rest of a shard was trimmed before it was read, its end is not passed over in silence."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        await world.clock.sleep_ms(23 * HOUR_MS)
        world.split()
        await world.clock.sleep_ms(2 * HOUR_MS)
        async with world.read(Position(numbers[2])) as slices:
            records, last = await world.to_end(slices)
        assert (records, len(last.children or ())) == ([], 2)
        assert world.told(GapFound) == [GapFound(SHARD, Gap(Position(numbers[2]), None, None))]

    run_in_virtual_time(main())


def test_a_shard_that_vanished_after_a_checkpoint_is_a_gap_with_an_open_end() -> None:
    """Where the whole shard is gone before its rest was read, that is told."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        world.split()
        await world.clock.sleep_ms(30 * HOUR_MS)
        async with world.read(Position(numbers[2])) as slices:
            records, last = await world.to_end(slices)
        assert (records, last.children) == ([], ())
        assert world.told(GapFound) == [GapFound(SHARD, Gap(Position(numbers[2]), None, None))]

    run_in_virtual_time(main())


def test_a_shard_that_vanishes_while_it_is_far_behind_is_a_gap() -> None:
    """A stream that is deleted before everything was read leaves records unread, and that is told."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(records_per_call=1))
        numbers = world.put(10)
        await world.clock.sleep_ms(HOUR_MS)
        async with world.read() as slices:
            await world.take(slices, 1)
            world.service.delete_stream(world.clock.wall_ms(), "orders")
            rest, _ = await world.to_end(slices)
        (found,) = world.told(GapFound)
        assert found.gap == Gap(Position(numbers[len(rest)]), None, None)

    run_in_virtual_time(main())


def test_a_shard_that_vanishes_while_it_is_read_to_its_tip_has_no_gap() -> None:
    """Who had just read everything is not alarmed when the stream is deleted."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        async with world.read() as slices:
            await world.take(slices, 3)
            await world.next_slice(slices)
            world.service.delete_stream(world.clock.wall_ms(), "orders")
            await world.to_end(slices)
        assert not world.told(GapFound)

    run_in_virtual_time(main())


def test_a_vanished_shard_of_which_nothing_was_read_has_no_gap() -> None:
    """Who asked for what is there gets what is there, be it nothing."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.split()
        await world.clock.sleep_ms(30 * HOUR_MS)
        async with world.read() as slices:
            await world.to_end(slices)
        assert not world.told(GapFound)

    run_in_virtual_time(main())


def test_a_child_whose_beginning_was_trimmed_has_a_gap() -> None:
    """Where the parent was read to its end, what is missing of a child that nobody read in time is told."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        world.put(3)
        await world.clock.sleep_ms(23 * HOUR_MS)
        arrival_ms = world.clock.wall_ms()
        (kept,) = world.put()
        await world.clock.sleep_ms(2 * HOUR_MS)
        began = next(shard for shard in await world.stream.list_shards() if shard.id == CHILD)
        async with world.read(shard=CHILD, follows_parent=True) as slices:
            assert names_of(await world.take(slices, 1)) == [3]
        gap = Gap(Position(began.starting_sequence_number), kept, arrival_ms)
        assert world.told(GapFound) == [GapFound(CHILD, gap)]

    run_in_virtual_time(main())


def test_a_child_that_is_read_in_time_has_no_gap() -> None:
    """Its first record may have come long after its start: nothing was trimmed, so nothing is told."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        await world.clock.sleep_ms(20 * HOUR_MS)
        world.put(3)
        async with world.read(shard=CHILD, follows_parent=True) as slices:
            assert names_of(await world.take(slices, 3)) == [0, 1, 2]
        assert not world.told(GapFound)

    run_in_virtual_time(main())


def test_a_child_that_is_gone_before_it_was_read_has_a_gap() -> None:
    """Nothing of it is left, and it was wanted."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        world.put(3)
        world.service.split_shard(world.clock.wall_ms(), "orders", CHILD, MIDDLE // 2)
        await world.clock.sleep_ms(30 * HOUR_MS)
        async with world.read(shard=CHILD, follows_parent=True) as slices:
            assert (await world.to_end(slices))[0] == []
        assert world.told(GapFound) == [GapFound(CHILD, Gap(TRIM_HORIZON, None, None))]

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("trouble", "asked"),
    [(ServiceError("denied"), 1), (ThrottledError("slowly"), 2), (UnavailableError("gone"), 2)],
)
def test_a_child_is_read_even_if_its_beginning_cannot_be_asked_for(trouble: Exception, asked: int) -> None:
    """What may pass is waited for; what will not is no reason to leave a shard unread."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        world.put(3)
        troubles = iter([trouble])
        world.stream.trouble_for = lambda operation: (
            next(troubles, None) if operation == "list_shards" else None
        )
        async with world.read(shard=CHILD, follows_parent=True) as slices:
            assert names_of(await world.take(slices, 3)) == [0, 1, 2]
        assert len(world.stream.times("list_shards")) == asked
        assert not world.told(GapFound)

    run_in_virtual_time(main())


def test_a_shard_that_ends_with_its_checkpoint_has_no_gap() -> None:
    """The last record of an ended shard comes back to whoever begins there: nothing is missing."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        await world.clock.sleep_ms(HOUR_MS)
        world.split()
        world.stream.empty_pages_first = 2
        async with world.read(Position(numbers[9])) as slices:
            records, last = await world.to_end(slices)
        assert (records, len(last.children or ())) == ([], 2)
        assert not world.told(GapFound)

    run_in_virtual_time(main())


def test_a_shard_that_ends_after_long_idleness_has_no_gap_for_its_reader() -> None:
    """Who has been at the tip all the time knows that the trimmed last record was the last."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(idle_poll_every=seconds(60)))
        world.put()
        async with world.read() as slices:
            await world.take(slices, 1)
            while world.clock.now_ms() < 30 * HOUR_MS:
                await world.next_slice(slices)
            world.stream.trouble_for = in_turn(IteratorExpiredError("too old"))
            world.split()
            await world.to_end(slices)
        assert world.told(IteratorExpired)
        assert not world.told(GapFound)

    run_in_virtual_time(main())


def test_a_trimmed_checkpoint_at_the_end_of_a_shard_may_be_a_gap() -> None:
    """Nobody can tell whether a trimmed record was the last, so whoever begins there hears that some may be missing."""

    async def main() -> None:
        world = ReadWorld()
        (number,) = world.put()
        await world.clock.sleep_ms(25 * HOUR_MS)
        world.split()
        async with world.read(Position(number)) as slices:
            await world.to_end(slices)
        assert world.told(GapFound) == [GapFound(SHARD, Gap(Position(number), None, None))]

    run_in_virtual_time(main())


def test_no_gap_is_reported_where_nothing_is_missing() -> None:
    """A start whose record is still there proves that nothing after it was trimmed."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(10)
        await world.clock.sleep_ms(23 * HOUR_MS)
        world.put()
        async with world.read(Position(numbers[4])) as slices:
            assert names_of(await world.take(slices, 6)) == [5, 6, 7, 8, 9, 10]
        assert not world.told(GapFound)

    run_in_virtual_time(main())


def test_a_reader_that_falls_behind_the_retention_reports_the_gap() -> None:
    """A consumer that is slower than the stream for days is told what it lost, although no iterator ever expired for
    lack of use.
    """

    async def main() -> None:
        settings = ReadSettings(records_per_call=1)
        world = ReadWorld(settings=settings)
        numbers: list[str] = []
        seen: list[int] = []
        for _ in range(100):
            numbers += world.put()
            await world.clock.sleep_ms(HOUR_MS // 6)
        async with world.read() as slices:
            while len(seen) < 60:
                seen += names_of((await world.next_slice(slices)).records)
                await world.clock.sleep_ms(HOUR_MS // 6 * 3)
                numbers += world.put(3)
        lost = sorted(set(range(seen[0], seen[-1] + 1)) - set(seen))
        gaps = [event.gap for event in world.told(GapFound)]
        reported = [
            index
            for gap in gaps
            for index, number in enumerate(numbers)
            if gap.resumes_at and gap.after.number < int(number) < int(gap.resumes_at) and index < seen[-1]
        ]
        assert lost
        assert reported == lost

    run_in_virtual_time(main())


def test_far_behind_reading_still_moves_on() -> None:
    """Entering the shard anew before each page repeats the last record, and never the same page for ever."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(records_per_call=1))
        world.put(20)
        await world.clock.sleep_ms(22 * HOUR_MS)
        async with world.read() as slices:
            assert names_of(await world.take(slices, 20)) == list(range(20))
        assert not world.told(GapFound)
        assert len(world.stream.times("iterator")) > 10

    run_in_virtual_time(main())


def test_a_shard_that_was_idle_for_days_has_no_gap() -> None:
    """The last record read may be trimmed without any loss, when there was nothing after it."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(idle_poll_every=seconds(60)))
        world.put()
        async with world.read() as slices:
            await world.take(slices, 1)

            async def drain() -> None:
                while True:
                    await world.next_slice(slices)

            idle = asyncio.create_task(drain())
            await world.clock.sleep_ms(72 * HOUR_MS)
            idle.cancel()
            world.stream.trouble_for = in_turn(IteratorExpiredError("too old"))
            world.put()
            assert names_of(await world.take(slices, 1)) == [1]
        assert world.told(IteratorExpired)
        assert not world.told(GapFound)

    run_in_virtual_time(main())


class SuspendedClock(VirtualClock):
    """A machine whose monotonic clock does not count the time that it slept."""

    slept_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.slept_ms


def test_a_suspended_machine_notices_what_it_missed() -> None:
    """After two days with the lid closed, trimmed records are reported though little time seems to have passed."""

    async def main() -> None:
        clock = SuspendedClock()
        world = ReadWorld(clock=clock)
        (number,) = world.put()
        async with world.read() as slices:
            await world.take(slices, 1)
            world.put(3)
            clock.slept_ms = 48 * HOUR_MS
            world.put()
            assert names_of(await world.take(slices, 1)) == [4]
        assert [event.gap.after for event in world.told(GapFound)] == [Position(number)]

    run_in_virtual_time(main())


# -- refusals and failures -----------------------------------------------------------------------------------------


def test_refused_calls_are_repeated_later_and_later() -> None:
    """Throttling costs time and nothing else, and each refusal is told with the wait that follows it."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.stream.trouble_for = in_turn(*[ThrottledError("too fast")] * 8)
        async with world.read() as slices:
            assert names_of(await world.take(slices, 3)) == [0, 1, 2]
        waits = [event.wait_ms for event in world.told(ReadThrottled)]
        times = world.stream.times("get_records")
        assert len(waits) == 8
        assert [after - before for before, after in pairwise(times)] == waits
        assert all(200 <= wait <= 10_200 for wait in waits)
        assert sum(waits[4:]) > sum(waits[:4])

    run_in_virtual_time(main())


def test_an_unreachable_server_is_asked_again_with_the_same_iterator() -> None:
    """An answer that did not come says nothing about the iterator."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.stream.trouble_for = in_turn(*[UnavailableError("no answer")] * 3)
        async with world.read() as slices:
            assert names_of(await world.take(slices, 3)) == [0, 1, 2]
        assert len(world.stream.starts) == 1
        assert [event.error for event in world.told(ReadFailed)] == ["no answer"] * 3

    run_in_virtual_time(main())


def test_an_iterator_that_the_server_does_not_like_is_replaced() -> None:
    """Whatever the server finds wrong with an iterator, reading goes on at the same place with another."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(3)
        async with world.read() as slices:
            await world.take(slices, 3)
            world.stream.trouble_for = in_turn(ServiceError("InvalidArgumentException: what is this?"))
            world.put(2)
            assert names_of(await world.take(slices, 2)) == [3, 4]
        assert [start.kind for start in world.stream.starts] == [
            IteratorKind.TRIM_HORIZON,
            IteratorKind.AT_SEQUENCE_NUMBER,
        ]
        assert world.stream.starts[1].sequence_number == numbers[2]
        assert len(world.told(ReadFailed)) == 1

    run_in_virtual_time(main())


class Unlucky(random.Random):
    """Always draws the longest wait."""

    def random(self) -> float:
        return 1.0


def test_a_good_answer_ends_the_back_off() -> None:
    """After a success the next failure is the first again."""

    async def main() -> None:
        world = ReadWorld()
        failing = [ThrottledError("too fast")] * 12
        world.stream.trouble_for = in_turn(*failing, None, ThrottledError("too fast"))
        async with world.read(rng=Unlucky()) as slices:
            await world.next_slice(slices)
            await world.next_slice(slices)
        waits = [event.wait_ms for event in world.told(ReadThrottled)]
        assert waits == [700, 1_200, 2_200, 4_200, 8_200, *[10_200] * 7, 700]

    run_in_virtual_time(main())


def test_an_unexpected_error_reaches_the_consumer() -> None:
    """A bug below is not swallowed by the task that reads ahead; what was read before it is delivered first."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.stream.trouble_for = in_turn(None, RuntimeError("a bug"))
        async with world.read() as slices:
            assert names_of(await world.take(slices, 3)) == [0, 1, 2]
            with pytest.raises(RuntimeError, match="a bug"):
                await anext(slices)
            with pytest.raises(StopAsyncIteration):
                await anext(slices)
        assert world.budget.used_bytes == 0

    run_in_virtual_time(main())


# -- pace ----------------------------------------------------------------------------------------------------------


def test_a_shard_never_refuses_us_for_our_own_reading() -> None:
    """Catching up with limits switched on: 5 calls and 2 MB a second are kept to without a single refusal."""

    async def main() -> None:
        world = ReadWorld()
        for _ in range(40):
            world.put(20, size=25_000)
        world.put(3000, size=10)
        world.service.settings = ServiceSettings(enforce_limits=True)
        async with world.read() as slices:
            assert names_of(await world.take(slices, 3800)) == list(range(3800))
        assert not world.told(ReadThrottled)
        # 20 MB at 2 MB a second, and no dawdling.
        assert 9_000 <= world.clock.now_ms() <= 13_000

    run_in_virtual_time(main())


def test_an_idle_shard_is_asked_about_once_a_second() -> None:
    """At the tip the pause is the setting's, give or take a tenth, so that shards do not march in step."""

    async def main() -> None:
        world = ReadWorld()
        async with world.read() as slices:
            for _ in range(100):
                await world.next_slice(slices)
        times = world.stream.times("get_records")
        pauses = [after - before for before, after in pairwise(times)]
        assert all(900 <= pause <= 1_100 for pause in pauses)
        assert len(set(pauses)) > 50

    run_in_virtual_time(main())


def test_an_empty_stretch_is_crossed_without_idling() -> None:
    """Empty answers that are not at the tip are followed by the next call as soon as the limits allow."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.stream.empty_pages_first = 50
        async with world.read() as slices:
            assert names_of(await world.take(slices, 3)) == [0, 1, 2]
        assert world.clock.now_ms() == 50 * 200

    run_in_virtual_time(main())


# -- bytes ---------------------------------------------------------------------------------------------------------


def test_a_slow_consumer_stops_the_reading() -> None:
    """A process holds no more than its budget, and one slice in hand, however far ahead it could read."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(buffer_bytes=2_000_000))
        world.put(300, size=100_000)
        held = 0
        async with world.read() as slices:
            for _ in range(20):
                found = await anext(slices)
                await world.clock.sleep_ms(10_000)
                held = max(held, world.budget.used_bytes)
                world.budget.release(found.size_bytes)
        assert held <= 2_000_000
        assert world.budget.used_bytes == 0

    run_in_virtual_time(main())


def test_many_readers_share_one_budget() -> None:
    """Ten shards behind by megabytes stay within the bytes of the process and all come to their end."""

    async def main() -> None:
        world = ReadWorld(shards=10, settings=ReadSettings(buffer_bytes=4_000_000))
        shards = await world.stream.list_shards()
        for shard in shards:
            world.put(40, size=100_000, hash_key=shard.hash_range.start)
        peak = 0

        async def consume(shard: Shard) -> int:
            nonlocal peak
            count = 0
            async with world.read(shard=shard.id) as slices:
                while count < 40:
                    found = await anext(slices)
                    peak = max(peak, world.budget.used_bytes)
                    await world.clock.sleep_ms(50)
                    world.budget.release(found.size_bytes)
                    count += len(found.records)
            return count

        assert await asyncio.gather(*map(consume, shards)) == [40] * 10
        assert peak <= 4_000_000
        assert world.budget.used_bytes == 0

    run_in_virtual_time(main())


def test_a_record_larger_than_the_budget_still_comes() -> None:
    """When nothing else is held, a single record may be larger than everything that the budget allows."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(buffer_bytes=1_048_576))
        world.service.set_record_size(world.clock.wall_ms(), "orders", 10_240)
        world.put(4, size=5_000_000)
        async with world.read() as slices:
            assert names_of(await world.take(slices, 4)) == [0, 1, 2, 3]

    run_in_virtual_time(main())


@pytest.mark.parametrize("after_ms", [0, 1, 150, 1_000, 30_000])
def test_leaving_gives_back_every_byte_that_nobody_asked_for(after_ms: int) -> None:
    """Wherever reading is interrupted, only the slices that the consumer has are left in the budget."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(buffer_bytes=1_500_000))
        world.put(100, size=100_000)
        world.stream.trouble_for = in_turn(None, ThrottledError("too fast"))
        async with world.read() as slices, world.read():
            found = await anext(slices)
            await world.clock.sleep_ms(after_ms)
        assert world.budget.used_bytes == found.size_bytes

    run_in_virtual_time(main())


def test_waiting_for_a_slice_may_be_interrupted() -> None:
    """A consumer that waits only so long for the next slice loses none by it."""

    async def main() -> None:
        world = ReadWorld()
        seen: list[int] = []
        async with world.read() as slices:
            for _ in range(200):
                world.put()
                try:
                    async with asyncio.timeout(0.3):
                        seen += names_of((await world.next_slice(slices)).records)
                except TimeoutError:
                    continue
            seen += names_of(await world.take(slices, 200 - len(seen)))
        assert seen == list(range(200))

    run_in_virtual_time(main())


# -- aggregates ----------------------------------------------------------------------------------------------------


def test_a_dropped_aggregate_is_told_and_passed() -> None:
    """User records of another shard are dropped as in Java; the event counts them, and `through` goes past them."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(4, stray_key=HASH_KEY_MAX)
        async with world.read(hash_range=LOWER_HALF) as slices:
            dropped = await world.next_slice(slices)
        assert (dropped.records, dropped.size_bytes) == ((), 0)
        assert dropped.read_through == Position(number, 3)
        assert world.told(DeaggregationFailed) == [
            DeaggregationFailed(SHARD, Position(number), "out-of-range", dropped=4)
        ]

    run_in_virtual_time(main())


def test_through_passes_a_stray_at_the_end_of_an_aggregate() -> None:
    """Where only strays are dropped, a checkpoint after the rest does not bring them back."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(4, stray_key=HASH_KEY_MAX)
        only_strays = DeaggregationSettings(out_of_range=OutOfRange.DROP_RECORD)
        async with world.read(hash_range=LOWER_HALF, deaggregation=only_strays) as slices:
            found = await world.next_slice(slices)
        assert names_of(found.records) == [0, 1, 2]
        assert found.read_through == Position(number, 3)

    run_in_virtual_time(main())


def test_an_empty_aggregate_is_passed() -> None:
    """An aggregate of no user records delivers nothing, and is done."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_data(kpl_encoder.add_frame(kpl_encoder.partition_key(b"k")))
        async with world.read() as slices:
            found = await world.next_slice(slices)
        assert (found.records, found.read_through) == ((), Position(number))

    run_in_virtual_time(main())


def test_an_aggregate_that_must_not_be_delivered_raw_is_raised() -> None:
    """With `unreadable=FAIL` the consumer gets the error, after everything that came in earlier pages."""

    async def main() -> None:
        world = ReadWorld()
        strict = DeaggregationSettings(unreadable=Unreadable.FAIL)
        world.put(2)
        async with world.read(deaggregation=strict) as slices:
            assert names_of(await world.take(slices, 2)) == [0, 1]
            bad = kpl_encoder.partition_key(b"k") + kpl_encoder.user_record(7, None, b"x")
            world.put_data(kpl_encoder.add_frame(bad))
            with pytest.raises(MalformedAggregateError):
                await world.take(slices, 1)

    run_in_virtual_time(main())


def test_an_expanding_aggregate_counts_for_what_it_became() -> None:
    """Many tiny user records weigh more than the record that they came in, and the budget knows it."""

    async def main() -> None:
        world = ReadWorld()
        world.put_aggregate(2000)
        async with world.read() as slices:
            found = await anext(slices)
            assert found.size_bytes > 2000 * 200
            assert world.budget.used_bytes == found.size_bytes
            world.budget.release(found.size_bytes)

    run_in_virtual_time(main())


# -- events --------------------------------------------------------------------------------------------------------


def test_each_page_is_told() -> None:
    """The start, and for each answer its user records, their bytes, how far behind it was, and where it ends."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(records_per_call=2))
        world.put_aggregate(3)
        numbers = world.put(2, size=9)
        await world.clock.sleep_ms(5_000)
        async with world.read() as slices:
            records = await world.take(slices, 5)
            await world.next_slice(slices)
        assert data_of(records)[:3] == [b"0", b"1", b"2"]
        assert world.events == [
            ReadingStarted(SHARD, TRIM_HORIZON),
            PageRead(SHARD, 4, 3 * 2 + 11, 5_000, 0, Position(numbers[0])),
            PageRead(SHARD, 1, 11, 0, 0, Position(numbers[1])),
            PageRead(SHARD, 0, 0, 0, 0, None),
        ]

    run_in_virtual_time(main())


def test_a_page_tells_the_last_part_of_its_last_aggregate() -> None:
    """A page that ends within an aggregate is done only when the last part of it is."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(3)
        async with world.read() as slices:
            await world.next_slice(slices)
            await world.next_slice(slices)
        assert [page.last for page in world.told(PageRead)][:2] == [Position(number, 2), None]

    run_in_virtual_time(main())


def test_a_page_stays_in_hand_until_all_its_batches_are_done() -> None:
    """After the first of several batches of a page, lag and health still count its records as in hand."""

    async def main() -> None:
        world = ReadWorld()
        world.put(10)
        lags, health = LagTracker(), Health(HealthLimits(failover_ms=10_000, stuck_after_ms=60_000), now_ms=0)

        def observe(event: Event) -> None:
            lags.observe(event, 0)
            health.observe(event, 0)

        def in_hand() -> tuple[int, int]:
            ((_, progress),), (shard,) = list(lags), health.report(0).shards
            return progress.records_in_flight, shard.records_in_flight

        observe(LeaseTaken(LeaseKey(SHARD), SHARD, None, None, 1, TRIM_HORIZON))
        async with world.read(observe=observe) as slices:
            records = await world.take(slices, 10)
            await world.next_slice(slices)
        for done, expected in ((records[3], 10), (records[8], 10), (records[9], 0)):
            observe(BatchHandled(SHARD, 1, 1, done.position, 1, 0))
            assert in_hand() == (expected, expected)

    run_in_virtual_time(main())


def test_settings_of_the_pace_are_used() -> None:
    """A reader told to poll every ten seconds does."""

    async def main() -> None:
        world = ReadWorld(
            settings=ReadSettings(idle_poll_every=seconds(10), check_gaps_when_behind=timedelta(hours=1))
        )
        async with world.read() as slices:
            for _ in range(11):
                await world.next_slice(slices)
        assert 90_000 <= world.clock.now_ms() <= 110_000

    run_in_virtual_time(main())
