"""A listing contains what the archive held when a lease session began, from a minute on."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive.listings import Listings
from leasehold.archive.rows import PinnedRange
from leasehold.core.exactly_once.object_keys import ObjectKey, key_to_text
from leasehold.core.exactly_once.position_ranges import Range, RangeSet
from leasehold.core.position import Position
from leasehold.ports import StoredObject
from tests.unit.archive.archive_world import A, B, archive_on, numbers_in, records, run, table


class SlowListings(MemoryObjects):
    """A listing shows the objects of its beginning, and ends when `may_end` is set."""

    def __init__(self) -> None:
        super().__init__(page_size=1)
        self.offsets: list[str] = []
        self.concurrent = self.most_concurrent = 0
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

    async def list_after(
        self, offset: str, *, prefix: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        pages = [page async for page in super().list_after(offset, prefix=prefix)]
        self.offsets.append(offset)
        self.concurrent += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        self.began.set()
        await self.may_end.wait()
        self.concurrent -= 1
        for page in pages:
            yield page


def key(minute: int, number: int, prefix: str = "") -> str:
    position = Position(str(number))
    return key_to_text(ObjectKey(minute, A, Range(position, position), "parquet"), prefix)


async def archive_elsewhere(store: MemoryObjects, numbers: Sequence[int]) -> None:
    """Write a range of shard A as another process does, without a listing in this store."""
    other = MemoryObjects()
    await archive_on(other).write([PinnedRange(A, "former", table(records(numbers)))])
    store.objects |= other.objects


def test_a_listing_that_began_before_the_session_is_not_used() -> None:
    """The former owner writes while a listing for another shard is under way. Its records are archived once."""

    async def scenario() -> None:
        store = SlowListings()
        archive = archive_on(store)
        first = asyncio.ensure_future(archive.write([PinnedRange(B, "one", table(records([1]), shard=B))]))
        await store.began.wait()
        await archive_elsewhere(store, [1, 2])
        second = asyncio.ensure_future(archive.write([PinnedRange(A, "two", table(records([1, 2, 3])))]))
        await asyncio.sleep(0)
        store.may_end.set()
        await asyncio.gather(first, second)
        assert numbers_in(store) == [1, 1, 2, 3]  # record 1 of each shard

    run(scenario())


def test_a_listing_that_ended_before_the_session_is_not_used() -> None:
    """A listing stays in memory while the call that needed it continues."""

    async def scenario() -> None:
        store = SlowListings()
        store.may_end.set()
        listings = Listings(store, "")
        before = listings.since_now()
        kept = await before.from_minute(0)
        store.objects[key(10, 1)] = b""
        assert await before.from_minute(0) is kept
        after = await listings.since_now().from_minute(0)
        assert after.of(A).last == Position("1")
        assert kept.of(A).last is None

    run(scenario())


def test_a_listing_contains_all_pages_from_its_minute_on() -> None:
    """The first minute is included, earlier minutes are not, and the prefix is part of the names."""

    async def scenario() -> None:
        store = SlowListings()
        store.may_end.set()
        for minute, prefix in ((4, "orders"), (5, "orders"), (6, "orders"), (70, "orders"), (6, "others")):
            store.objects[key(minute, minute, prefix)] = b""
        found = (await Listings(store, "orders").since_now().from_minute(5)).of(A)
        assert (found.from_minute, found.last) == (5, Position("70"))
        listed = {minute: found.in_minute(minute) for minute in range(100) if found.in_minute(minute)}
        assert listed == {
            each: RangeSet.of([Range(Position(str(each)), Position(str(each)))]) for each in (5, 6, 70)
        }

    run(scenario())


def test_an_earlier_minute_needs_another_listing() -> None:
    """Each listing begins at the minute that it was made for, and says so for shards without objects."""

    async def scenario() -> None:
        store = SlowListings()
        store.may_end.set()
        since = Listings(store, "").since_now()
        listings = [await since.from_minute(minute) for minute in (20, 30, 19, 10, 15)]
        assert store.offsets == ["1970/01/01/00/20", "1970/01/01/00/19", "1970/01/01/00/10"]
        assert [listing.of(A).from_minute for listing in listings] == [20, 20, 19, 10, 10]

    run(scenario())


def test_a_call_that_has_ended_does_not_widen_later_listings() -> None:
    """Whether it succeeded or failed. Otherwise one old record would make all later listings long."""

    async def scenario() -> None:
        store = SlowListings()
        listings = Listings(store, "")
        cancelled = asyncio.ensure_future(listings.since_now().from_minute(1))
        await store.began.wait()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        store.may_end.set()
        for minute in (2, 50):
            await listings.since_now().from_minute(minute)
        assert store.offsets[1:] == ["1970/01/01/00/02", "1970/01/01/00/50"]

    run(scenario())


def test_one_listing_runs_at_a_time() -> None:
    """Callers that wait share the next listing."""

    async def scenario() -> None:
        store = SlowListings()
        listings = Listings(store, "")
        callers = [asyncio.ensure_future(listings.since_now().from_minute(minute)) for minute in (9, 8, 7, 6)]
        await store.began.wait()
        store.may_end.set()
        await asyncio.gather(*callers)
        assert store.most_concurrent == 1
        assert store.offsets == ["1970/01/01/00/09", "1970/01/01/00/06"]

    run(scenario())


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=24),
    st.sets(st.integers(1, 23)),
    st.sets(st.integers(1, 23)),
    st.integers(1, 24),
    st.integers(0, 23),
)
@example([9, 0, 9, 0], set(), {2}, 4, 0)  # the first record of a range is not its earliest
@example(
    [9, 3, 3, 3], set(), {1}, 4, 0
)  # a later range is earlier than the first one, by more than a listing's slack
def test_arrival_times_in_any_order_are_archived_once(
    minutes: list[int], first: set[int], second: set[int], until: int, begin: int
) -> None:
    """A second session reads from an earlier position, in other ranges. The minutes of neighbours differ by any amount.

    The listing of the second session must reach back to the earliest minute of each range that it writes.
    """
    store = MemoryObjects(page_size=3)
    count = len(minutes)

    async def write(session: str, begin: int, cuts: set[int], end: int) -> None:
        archive, ends = archive_on(store), sorted({cut for cut in cuts if begin < cut < end} | {end})
        for start, stop in zip([begin, *ends], ends, strict=False):
            rows = records(range(start + 1, stop + 1), minute=lambda number: 20 + minutes[number - 1])
            await archive.write([PinnedRange(A, session, table(rows))])

    async def scenario() -> None:
        stopped = min(until, count)
        await write("before", 0, first, stopped)
        await write("after", min(begin, stopped), second, count)

    run(scenario())
    assert numbers_in(store) == list(range(1, count + 1))
