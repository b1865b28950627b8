"""Where reading a shard begins and ends: every user record once and in order."""

import pytest

from leasehold.core.events import (
    IteratorExpired,
    ReadFailed,
)
from leasehold.core.model import HASH_KEY_MAX, HashRange, InitialPosition
from leasehold.core.position import AT_TIMESTAMP, LATEST, Position
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.errors import (
    ConfigError,
    IteratorExpiredError,
    NotFoundError,
    UnavailableError,
)
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.reading.reading_world import (
    HOUR_MS,
    MIDDLE,
    SIX_MINUTES_MS,
    ReadWorld,
    fail_reads_with,
    numbers_of,
)

LOWER_HALF = HashRange(0, MIDDLE - 1)


def test_every_record_comes_once_and_in_order() -> None:
    """Plain records and parts of aggregates are delivered in the order in which they were put."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        world.put_aggregate(4)
        world.put(500)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 507)) == list(range(507))
            world.put(2)
            assert numbers_of(await world.take(chunks, 2)) == [507, 508]

    run_in_virtual_time(main())


@pytest.mark.parametrize("with_last_records", [True, False])
def test_the_last_chunk_contains_the_children(with_last_records: bool) -> None:
    """A closed shard ends with its children, whether its end comes with the last records or in an empty response."""

    async def main() -> None:
        world = ReadWorld(service_settings=ServiceSettings(shard_end_with_last_records=with_last_records))
        world.put(700)
        last_number = world.put()[0]
        world.split()
        async with world.read() as chunks:
            records, last = await world.take_to_end(chunks)
            with pytest.raises(StopAsyncIteration):
                await anext(chunks)
        assert numbers_of(records) == list(range(701))
        assert bool(last.records) == with_last_records
        assert last.children is not None
        assert [child.id[-1] for child in last.children] == ["1", "2"]
        assert [child.hash_range for child in last.children] == [LOWER_HALF, HashRange(MIDDLE, HASH_KEY_MAX)]
        assert last.read_through == Position(last_number)

    run_in_virtual_time(main())


def test_only_the_last_of_many_chunks_contains_the_children() -> None:
    """If a page is cut into chunks, the last chunk ends the shard, not the first."""

    async def main() -> None:
        world = ReadWorld(service_settings=ServiceSettings(shard_end_with_last_records=True))
        world.put(3_000, size=3_000)
        world.split()
        async with world.read() as chunks:
            found = [each async for each in chunks]
        assert sum(len(each.records) for each in found) == 3_000
        assert not found[-2].ends_page  # of the last page
        assert [each.children is None for each in found] == [True] * (len(found) - 1) + [False]

    run_in_virtual_time(main())


def test_read_through_is_the_last_record_of_a_chunk_and_never_goes_back() -> None:
    """A checkpoint may use `read_through`: it is the last user record of each chunk, and never decreases."""

    async def main() -> None:
        world = ReadWorld()
        async with world.read() as chunks:
            assert (await world.next_chunk(chunks)).read_through is None
            number = world.put_aggregate(3)
            assert (await world.next_chunk(chunks)).read_through == Position(number, 2)
            assert (await world.next_chunk(chunks)).read_through == Position(number, 2)
            (plain,) = world.put()
            assert (await world.next_chunk(chunks)).read_through == Position(plain)

    run_in_virtual_time(main())


def test_a_trimmed_shard_ends_without_children() -> None:
    """A shard that the service does not know and does not list has ended."""

    async def main() -> None:
        world = ReadWorld()
        world.split()
        await world.clock.sleep_ms(30 * HOUR_MS)
        async with world.read() as chunks:
            records, last = await world.take_to_end(chunks)
        assert (records, last.children, last.read_through) == ([], (), None)

    run_in_virtual_time(main())


def test_a_deleted_stream_ends_its_shards() -> None:
    """If the stream is deleted, its shards end without children."""

    async def main() -> None:
        world = ReadWorld()
        async with world.read() as chunks:
            await world.next_chunk(chunks)
            world.service.delete_stream(world.clock.wall_ms(), "orders")
            _, last = await world.take_to_end(chunks)
        assert last.children == ()

    run_in_virtual_time(main())


def test_a_listed_shard_does_not_end() -> None:
    """A "not found" alone does not end a shard: its children would stay unread."""

    async def main() -> None:
        world = ReadWorld()
        world.put(5)
        world.stream.failure_for = fail_reads_with(
            NotFoundError("no such shard"), NotFoundError("no such shard")
        )
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 5)) == [0, 1, 2, 3, 4]
        assert len(world.events_of(ReadFailed)) == 2

    run_in_virtual_time(main())


@pytest.mark.parametrize("done", range(5))
def test_reading_resumes_inside_an_aggregate(done: int) -> None:
    """After a checkpoint inside an aggregate, exactly the later user records are delivered."""

    async def main() -> None:
        world = ReadWorld()
        world.put(2)
        number = world.put_aggregate(5)
        world.put(2)
        async with world.read(Position(number, done)) as chunks:
            assert numbers_of(await world.take(chunks, 6 - done)) == list(range(3 + done, 9))

    run_in_virtual_time(main())


def test_the_rest_of_an_aggregate_is_delivered_if_the_first_iterator_expires() -> None:
    """Until something was read, a new iterator begins at the record of the checkpoint. (Java's begins after it.)"""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(3)
        world.stream.failure_for = fail_reads_with(
            IteratorExpiredError("too old"), IteratorExpiredError("too old")
        )
        async with world.read(Position(number, 0)) as chunks:
            assert numbers_of(await world.take(chunks, 2)) == [1, 2]
        assert [start.sequence_number for start in world.stream.starts] == [number] * 3

    run_in_virtual_time(main())


def test_an_aggregate_that_is_now_delivered_raw_is_read_again_until_its_last_part_is_done() -> None:
    """If new limits deliver an aggregate as one raw record, it is read again rather than lost, and `read_through` does
    not go back behind the start.
    """

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(5)
        limits = DeaggregationSettings(user_records_max=3)
        async with world.read(Position(number, 2), deaggregation=limits) as chunks:
            raw = await world.next_chunk(chunks)
        assert [record.position for record in raw.records] == [Position(number, 4)]
        async with world.read(Position(number, 4), deaggregation=limits) as chunks:
            done = await world.next_chunk(chunks)
        assert (done.records, done.read_through) == ((), Position(number, 4))

    run_in_virtual_time(main())


def test_a_checkpoint_beyond_the_user_records_of_an_aggregate_is_kept() -> None:
    """If another member found more user records in a record than we do, the record is done."""

    async def main() -> None:
        world = ReadWorld()
        (number,) = world.put()
        async with world.read(Position(number, 4)) as chunks:
            done = await world.next_chunk(chunks)
        assert (done.records, done.read_through) == ((), Position(number, 4))

    run_in_virtual_time(main())


def test_latest_begins_with_the_next_record() -> None:
    """Earlier records are not delivered. All later records are."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        async with world.read(LATEST, initial=InitialPosition(LATEST)) as chunks:
            assert (await world.next_chunk(chunks)).records == ()
            world.put(2)
            assert numbers_of(await world.take(chunks, 2)) == [3, 4]

    run_in_virtual_time(main())


def test_latest_loses_nothing_when_its_iterator_is_renewed_before_the_first_record() -> None:
    """Records that arrive during an outage longer than the life of an iterator are delivered after it."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        await world.clock.sleep_ms(HOUR_MS)
        async with world.read(LATEST, initial=InitialPosition(LATEST)) as chunks:
            assert (await world.next_chunk(chunks)).records == ()
            world.stream.failure_for = lambda _: UnavailableError("the network is down")
            await world.clock.sleep_ms(SIX_MINUTES_MS)
            world.put(2)
            world.stream.failure_for = lambda _: None
            assert numbers_of(await world.take(chunks, 2)) == [3, 4]
        assert world.events_of(IteratorExpired)

    run_in_virtual_time(main())


def test_a_timestamp_begins_with_the_first_record_at_or_after_it() -> None:
    """The time comes from the settings: a lease does not contain it."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        await world.clock.sleep_ms(1000)
        initial = InitialPosition(AT_TIMESTAMP, world.clock.wall_ms())
        world.put(2)
        async with world.read(AT_TIMESTAMP, initial=initial) as chunks:
            assert numbers_of(await world.take(chunks, 2)) == [3, 4]

    run_in_virtual_time(main())


def test_a_missing_timestamp_is_an_error() -> None:
    """A retry cannot help, so the error is raised."""

    async def main() -> None:
        world = ReadWorld()
        async with world.read(AT_TIMESTAMP) as chunks:
            with pytest.raises(ConfigError, match="AT_TIMESTAMP"):
                await anext(chunks)

    run_in_virtual_time(main())
