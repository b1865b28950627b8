"""History from the archive, then the stream: each record once, in order, whatever the stream has trimmed."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive import Archive, ArchiveSettings
from leasehold.archive.archive import MARKER
from leasehold.archive.archive_index import ArchiveIndex, ShardIndex
from leasehold.archive.archived_stream import ArchivedStream
from leasehold.archive.columns import (
    ARRIVAL,
    DATA,
    EXPLICIT_HASH_KEY,
    PARTITION_KEY,
    SEQUENCE_NUMBER,
    SUB_SEQUENCE_NUMBER,
)
from leasehold.archive.history_pages import (
    PAGE_BYTES_MAX,
    HistoryPages,
    PagePosition,
    _OpenShard,
    to_user_records,
)
from leasehold.archive.rows import PinnedRange
from leasehold.archive.shard_rows import ArchiveStore
from leasehold.core.events import GapFound
from leasehold.core.exactly_once.object_keys import key_from_text
from leasehold.core.model import InitialPosition, ShardId
from leasehold.core.position import AT_TIMESTAMP, TRIM_HORIZON, Position
from leasehold.core.record import UserRecord
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import ConfigError, ThrottledError, UnavailableError
from leasehold.ports import Page
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.archive.archive_world import NoWaiting, archive_on, records, run, table
from tests.unit.fleet.reading.reading_world import (
    CHILD,
    FROM_THE_START,
    HOUR_MS,
    SHARD,
    ReadWorld,
    numbers_of,
)

RANGE_RECORDS = 7
NO_OBJECTS = ShardIndex(SHARD, {})


async def call_directly(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@dataclass
class History:
    """A stream whose records an archive gets every hour. The stream keeps them for a day."""

    world: ReadWorld = field(default_factory=ReadWorld)
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    archived_to: dict[ShardId, Position] = field(default_factory=dict)
    records: int = 0

    async def hours(self, count: int, *, is_archiving: bool = True) -> None:
        """Let hours pass, with a few records in each."""
        for _ in range(count):
            self.world.put(2)
            self.world.put_aggregate(3)
            await self.world.clock.sleep_ms(HOUR_MS)
            if is_archiving:
                await self.archive(SHARD)

    async def archive(self, shard: ShardId) -> None:
        """Archive what the stream has got of a shard, in ranges that may end within an aggregate."""
        start = self.archived_to.get(shard, TRIM_HORIZON)
        found: list[UserRecord] = []
        async with self.world.read(start, shard=shard) as chunks:
            async for chunk in chunks:
                self.world.budget.release(chunk.size_bytes)
                found += chunk.records
                if not chunk.millis_behind:
                    break
        archive = Archive(
            self.objects,
            ArchiveSettings(url="memory://"),
            clock=self.world.clock,
            rng=random.Random(1),
            in_thread=call_directly,
        )
        for first in range(0, len(found), RANGE_RECORDS):
            some = found[first : first + RANGE_RECORDS]
            await archive.write([PinnedRange(shard, "one", table(some, shard=shard))])
            self.archived_to[shard] = some[-1].position

    def stream(self) -> ArchivedStream:
        """The stream with its archive, as a new process opens it."""
        store = ArchiveStore(self.objects, "", self.world.clock, random.Random(1), call_directly)
        index = ArchiveIndex(store)
        return ArchivedStream(self.world.stream, index, HistoryPages(index), self.world.clock)

    async def read(
        self,
        start: Position = TRIM_HORIZON,
        initial: InitialPosition = FROM_THE_START,
        shard: ShardId = SHARD,
        count: int | None = None,
    ) -> list[UserRecord]:
        """Read a shard to its tip or its end, or at least `count` records, as a new process does."""
        stream, found = self.stream(), list[UserRecord]()
        async with self.world.read(start, initial=initial, shard=shard, stream=stream) as chunks:
            async for chunk in chunks:
                self.world.budget.release(chunk.size_bytes)
                found += chunk.records
                is_at_tip = chunk.ends_page and chunk.millis_behind == 0
                if chunk.children is not None or is_at_tip or (count is not None and len(found) >= count):
                    break
        await stream._pages.close()
        return found

    @property
    def gaps(self) -> Sequence[GapFound]:
        """The reported gaps."""
        return self.world.events_of(GapFound)


def test_history_then_the_stream_with_no_gap_and_nothing_twice() -> None:
    async def main() -> None:
        history = History()
        await history.hours(50)
        await history.hours(3, is_archiving=False)
        found = await history.read()
        assert numbers_of(found) == list(range(53 * 5))
        assert [each.position for each in found] == sorted({each.position for each in found})
        assert not history.gaps

    run_in_virtual_time(main())


def test_reading_continues_at_every_record() -> None:
    """A reader that was killed anywhere goes on at its checkpoint: in the archive, at the seam, and in the stream."""

    async def main() -> None:
        history = History()
        await history.hours(40)
        await history.hours(1, is_archiving=False)
        found = await history.read()
        for index in (0, 1, 7, 50, 73, 81, 82, 83, 84, 85, 119, 120, 160, 200):
            rest = await history.read(found[index].position, count=20)
            assert rest[:20] == found[index + 1 : index + 21], index
        assert not history.gaps

    run_in_virtual_time(main())


def test_a_gap_that_a_killed_writer_left_is_read_from_the_stream() -> None:
    """The newest objects are not trusted while the stream has their records."""

    async def main() -> None:
        history = History()
        await history.hours(60)
        names = sorted(name for name in history.objects.objects if key_from_text(name))
        for name in names[-4:-1]:
            del history.objects.objects[name]
        assert numbers_of(await history.read()) == list(range(60 * 5))
        assert not history.gaps

    run_in_virtual_time(main())


class UnreliableObjects(MemoryObjects):
    """A store that fails for a while, again and again."""

    gets = 0
    is_failing = False

    async def get(self, key: str) -> bytes | None:
        self.gets += self.is_failing
        if self.gets % 12 > 4:  # more often in a row than a call is repeated
            raise UnavailableError("injected")
        return await super().get(key)


def test_a_store_that_fails_is_not_the_end_of_the_archive() -> None:
    """The stream has trimmed most records, so a reader that left the archive early would skip some."""

    async def main() -> None:
        objects = UnreliableObjects()
        history = History(objects=objects)
        for _ in range(14):
            history.world.put(1)
            await history.world.clock.sleep_ms(5 * HOUR_MS)
            await history.archive(SHARD)
        objects.is_failing = True
        assert numbers_of(await history.read()) == list(range(14))

    run_in_virtual_time(main())


def test_records_that_were_trimmed_and_not_archived_are_a_gap() -> None:
    async def main() -> None:
        history = History()
        await history.hours(40)
        await history.hours(40, is_archiving=False)
        found = numbers_of(await history.read())
        assert found[:200] == list(range(200))
        assert found[200] > 200
        (gap,) = history.gaps
        assert gap.gap.resumes_at is not None
        assert gap.gap.after == Position((await history.read(count=200))[199].sequence_number)

    run_in_virtual_time(main())


def test_a_slow_shard_is_read_from_the_archive_up_to_the_oldest_record_of_the_stream() -> None:
    """Fewer objects than a writer has in flight span more than the retention."""

    async def main() -> None:
        history = History()
        for _ in range(10):
            history.world.put(1)
            await history.world.clock.sleep_ms(5 * HOUR_MS)
            await history.archive(SHARD)
        assert numbers_of(await history.read()) == list(range(10))
        assert not history.gaps

    run_in_virtual_time(main())


def test_reading_begins_at_a_time_before_the_retention() -> None:
    async def main() -> None:
        history = History()
        began_ms = history.world.clock.wall_ms()
        await history.hours(60)
        at = InitialPosition(AT_TIMESTAMP, began_ms + 10 * HOUR_MS)
        assert numbers_of(await history.read(AT_TIMESTAMP, at)) == list(range(50, 300))
        recent = InitialPosition(AT_TIMESTAMP, history.world.clock.wall_ms() - 2 * HOUR_MS - HOUR_MS // 2)
        assert numbers_of(await history.read(AT_TIMESTAMP, recent)) == list(range(290, 300))

    run_in_virtual_time(main())


def test_a_shard_that_has_left_the_stream_is_read_to_its_end() -> None:
    """Its lease has no hash range, and its child waits for it."""

    async def main() -> None:
        history = History()
        await history.hours(30)
        history.world.split()
        await history.archive(SHARD)
        await history.world.clock.sleep_ms(60 * HOUR_MS)
        stream = history.stream()
        assert SHARD not in {shard.id for shard in await stream.list_shards()}
        assert [each.id for each in await stream.list_archived()] == [SHARD]
        found = await history.read()
        assert numbers_of(found) == list(range(150))
        assert await history.read(found[-1].position) == []
        assert numbers_of(await history.read(found[70].position)) == list(range(71, 150))
        assert not history.gaps

    run_in_virtual_time(main())


def test_a_shard_that_leaves_the_stream_while_it_is_read_is_read_to_its_end() -> None:
    """The reader began when the stream still had the shard, and meanwhile all its records were trimmed."""

    async def main() -> None:
        history = History()
        await history.hours(30)
        history.world.split()
        await history.archive(SHARD)
        stream, found = history.stream(), list[UserRecord]()
        iterator: str | None = await stream.get_iterator(SHARD, IteratorStart(IteratorKind.TRIM_HORIZON))
        for _ in range(50):
            if iterator is None:
                break
            page = await stream.get_records(iterator, limit=10)
            found += cast("Sequence[UserRecord]", page.records)
            iterator = page.next_iterator
            if len(found) == 10:
                await history.world.clock.sleep_ms(60 * HOUR_MS)
                assert SHARD not in {shard.id for shard in await stream.list_shards()}
        assert iterator is None
        assert numbers_of(found) == list(range(150))
        await stream._pages.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("is_child_archived", [True, False])
def test_the_end_of_a_closed_shard_whose_records_are_trimmed(is_child_archived: bool) -> None:
    """If a child has archived records, its parent was archived to the end. Otherwise records may be missing."""

    async def main() -> None:
        history = History()
        await history.hours(30)
        await history.world.clock.sleep_ms(30 * HOUR_MS)
        history.world.split()
        if is_child_archived:
            history.world.put(20)
            await history.archive(CHILD)
        assert numbers_of(await history.read()) == list(range(150))
        assert len(history.gaps) == (0 if is_child_archived else 1)

    run_in_virtual_time(main())


def test_a_reader_in_the_stream_does_not_list_the_archive() -> None:
    async def main() -> None:
        history = History()
        await history.hours(20)
        stream = history.stream()
        last = (await history.read())[-1].position
        async with history.world.read(last, stream=stream) as chunks:
            history.world.put(1)
            await asyncio.wait_for(history.world.take(chunks, 1), 60)
        assert stream._index.known(SHARD) is None

    run_in_virtual_time(main())


def test_a_failed_call_does_not_make_reading_skip_the_archive() -> None:
    """The iterator of the first call is used again, and the records that the stream has trimmed are archived."""

    async def main() -> None:
        history = History()
        await history.hours(50)
        found = await history.read()
        failures = iter([ThrottledError("injected"), UnavailableError("injected")])
        history.world.stream.failure_for = lambda operation: (
            next(failures, None) if operation == "get_records" else None
        )
        rest = await history.read(found[10].position, count=20)
        assert rest[:20] == found[11:31]
        assert next(failures, None) is None

    run_in_virtual_time(main())


@pytest.mark.parametrize("data_bytes", [5, 200])
def test_a_record_of_many_user_records_is_never_split(data_bytes: int) -> None:
    """Its rows take more than a page may have."""

    async def main() -> None:
        count = 60_000
        columns = {
            DATA: pa.array([b"d" * data_bytes] * count),
            PARTITION_KEY: pa.array(["k"] * count),
            SEQUENCE_NUMBER: pa.array(["4" * 56] * count),
            ARRIVAL: pa.array([0] * count, pa.timestamp("us", tz="UTC")),
            SUB_SEQUENCE_NUMBER: pa.array(range(count), pa.int64()),
            EXPLICIT_HASH_KEY: pa.nulls(count, pa.string()),
        }
        aggregate = pa.table(columns)
        after = aggregate.slice(0, 1).set_column(2, SEQUENCE_NUMBER, pa.array(["5" * 56]))
        assert aggregate.nbytes > PAGE_BYTES_MAX

        async def rows() -> AsyncGenerator[Any, None]:
            yield aggregate
            yield after

        shard = _OpenShard(rows(), NO_OBJECTS, None, PagePosition(SHARD, 0))
        pages: list[int] = []
        while (page := await shard.take(10_000)) is not None:
            pages.append(page.num_rows)
        assert pages in ([count, 1], [count + 1])

    run_in_virtual_time(main())


def test_a_page_of_large_records_does_not_wait_for_the_number_of_rows() -> None:
    """Otherwise a process would hold ten thousand records of up to a mebibyte for each shard."""

    async def main() -> None:
        objects_read = 0

        async def rows() -> AsyncGenerator[Any, None]:
            nonlocal objects_read
            for number in range(40):
                objects_read += 1
                yield pa.table({DATA: [bytes(1024 * 1024)], SEQUENCE_NUMBER: [str(number)]})

        taken = await _OpenShard(rows(), NO_OBJECTS, None, PagePosition(SHARD, 0)).take(10_000)
        assert taken.num_rows in (3, 4)
        assert objects_read <= 5

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("data_bytes", "limit", "rows"),
    [(1, 10, {10}), (1, 1_000, {100}), (1024 * 1024, 10_000, {3, 4}), (1024 * 1024, 2, {2})],
)
def test_a_page_has_as_many_records_as_requested_unless_they_are_large(
    data_bytes: int, limit: int, rows: set[int]
) -> None:
    """Of an object with 100 records."""

    async def main() -> None:
        numbers = [str(number) for number in range(100)]

        async def one_object() -> AsyncGenerator[Any, None]:
            yield pa.table({DATA: pa.array([bytes(data_bytes)] * 100), SEQUENCE_NUMBER: numbers})

        taken = await _OpenShard(one_object(), NO_OBJECTS, None, PagePosition(SHARD, 0)).take(limit)
        assert taken.num_rows in rows

    run_in_virtual_time(main())


@pytest.mark.parametrize("has_keys", [True, False])
def test_records_keep_their_explicit_hash_keys(has_keys: bool) -> None:
    """An archive that was written with fewer columns has none."""
    given = [
        UserRecord(b"a", "k", "7", 5, None, 0, 2**100 if has_keys else None, has_keys),
        UserRecord(b"b", "k", "8", 6, None, 0, None, False),
    ]
    rows = table(given)
    found = to_user_records(rows if has_keys else rows.drop_columns([EXPLICIT_HASH_KEY]))
    assert [each.explicit_hash_key for each in found] == [2**100 if has_keys else None, None]
    assert found == given


class PausingStream(ArchivedStream):
    """A stream whose reader pauses once: records arrive and are archived meanwhile, and the stream trims others."""

    history: "PausingHistory"
    pause_before = 0
    calls = 0

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        self.calls += 1
        if self.calls == self.pause_before:
            await self.history.pairs(3)
        return await super().get_records(iterator, limit=limit)


@dataclass
class PausingHistory(History):
    """History with a reader that pauses before a certain call."""

    pause_before: int = 0

    async def pairs(self, count: int) -> None:
        """Let hours pass, with fewer records than a writer has in flight within the retention."""
        for _ in range(count):
            self.world.put(2)
            await self.world.clock.sleep_ms(2 * HOUR_MS)
            await self.archive(SHARD)

    def stream(self) -> ArchivedStream:
        plain = super().stream()
        stream = PausingStream(self.world.stream, plain._index, plain._pages, self.world.clock)
        stream.history, stream.pause_before = self, self.pause_before
        return stream


@pytest.mark.parametrize("pause_before", range(1, 8))
def test_records_that_the_stream_trims_during_a_pause_are_read_in_the_archive(pause_before: int) -> None:
    async def main() -> None:
        history = PausingHistory(pause_before=pause_before)
        await history.pairs(25)
        found = numbers_of(await history.read())
        assert found == list(range(56))
        assert not history.gaps

    run_in_virtual_time(main())


class LateObjects(ArchivedStream):
    """A stream to whose archive a slow writer adds objects, just before the archive is read to its end."""

    late: dict[str, bytes]
    objects: MemoryObjects

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        if '"before":"' in iterator and self.late:
            await self._clock.sleep_ms(60_000)
            self.objects.objects |= self.late
            self.late = {}
        return await super().get_records(iterator, limit=limit)


def test_objects_that_are_written_late_are_read_before_the_archive_is_left() -> None:
    """The stream has trimmed their records when their writer creates them."""

    async def main() -> None:
        history = PausingHistory()
        await history.pairs(25)
        await history.world.clock.sleep_ms(HOUR_MS)  # so that nothing is trimmed while it is read
        names = sorted(name for name in history.objects.objects if key_from_text(name))
        late = {name: history.objects.objects.pop(name) for name in names[5:]}
        plain = history.stream()
        stream = LateObjects(history.world.stream, plain._index, plain._pages, history.world.clock)
        stream.late, stream.objects = late, history.objects
        found: list[UserRecord] = []
        async with history.world.read(TRIM_HORIZON, stream=stream) as chunks:
            async for chunk in chunks:
                history.world.budget.release(chunk.size_bytes)
                found += chunk.records
                if chunk.ends_page and chunk.millis_behind == 0:
                    break
        assert not stream.late
        assert numbers_of(found) == list(range(50))

    run_in_virtual_time(main())


@pytest.mark.parametrize("hours_later", [1, 40])
def test_reading_begins_at_a_time_after_the_last_archived_record_of_its_minute(hours_later: int) -> None:
    async def main() -> None:
        history = History()
        clock = history.world.clock
        await history.hours(20)
        history.world.put(2)
        await clock.sleep_ms(1_000)
        await history.archive(SHARD)
        await clock.sleep_ms(1_000)
        at = InitialPosition(AT_TIMESTAMP, clock.wall_ms())
        await clock.sleep_ms(1_000)
        if hours_later == 1:
            history.world.put(3)
        await clock.sleep_ms(hours_later * HOUR_MS)
        history.world.put(3)
        found = await asyncio.wait_for(history.read(AT_TIMESTAMP, at), 60)
        assert numbers_of(found) == list(range(102, 108 if hours_later == 1 else 105))

    run_in_virtual_time(main())


def test_shards_that_begin_together_list_the_archive_once() -> None:
    async def main() -> None:
        history = History()
        await history.hours(2)
        index = history.stream()._index
        listings = 0
        list_from = index._list_from

        async def count_listings(minute: int) -> None:
            nonlocal listings
            listings += 1
            await asyncio.sleep(1)
            await list_from(minute)

        index._list_from = count_listings  # type: ignore[method-assign]
        await asyncio.gather(*(index.get(SHARD) for _ in range(10)))
        assert listings == 1
        await history.world.clock.sleep_ms(60_000)
        await asyncio.gather(*(index.get_newest(SHARD) for _ in range(10)))
        assert listings == 2

    run_in_virtual_time(main())


def test_a_place_without_an_archive_is_refused() -> None:
    """A mistyped prefix would otherwise pass all older records. An archive without records is an archive."""

    async def list_shards(objects: MemoryObjects, prefix: str = "") -> int:
        store = ArchiveStore(objects, prefix, NoWaiting(), random.Random(1), call_directly)
        return len(await ArchiveIndex(store, "orders").shards())

    objects = MemoryObjects()
    with pytest.raises(ConfigError, match=r"there is no archive .* below prefix 'order'"):
        run(list_shards(objects, "order"))
    run(objects.put_if_absent(MARKER, b'{"stream":"orders"}'))
    assert run(list_shards(objects)) == 0
    objects = MemoryObjects()
    run(archive_on(objects).write([PinnedRange(SHARD, "one", table(records(range(1, 4)), shard=SHARD))]))
    del objects.objects[MARKER]  # an archive may have lost its marker
    assert run(list_shards(objects)) == 1
