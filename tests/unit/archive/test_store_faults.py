"""The archive with a store that refuses, loses, delays and misreports requests."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.adapters.memory.faults import FaultyObjects, ObjectFault, StoreFault
from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive import Archive, ArchiveSettings, WriteReport
from leasehold.archive.archive import ATTEMPTS_MAX
from leasehold.archive.rows import PinnedRange
from leasehold.core.exactly_once.archive_reading import PUTS_AHEAD
from leasehold.core.exactly_once.object_keys import key_from_text, key_to_text
from leasehold.errors import ArchiveConflictError, ConfigError, UnavailableError
from leasehold.ports import Created, Exists
from tests.unit.archive.archive_world import (
    A,
    NoWaiting,
    archive_on,
    keys_in,
    numbers_in,
    records,
    run,
    spans_in,
    table,
    with_faults,
)

MARKER_PUT = None  # the first put of an archive creates its marker
Faults = Sequence[StoreFault | ObjectFault | None]


def range_of(numbers: Sequence[int], session: str = "one") -> PinnedRange:
    """One pinned range in which every record has its own minute, so that it becomes several objects."""
    return PinnedRange(A, session, table(records(numbers, minute=lambda number: 10 + number)))


class CountingPauses(NoWaiting):
    """Counts the pauses."""

    def __init__(self) -> None:
        self.pauses = 0

    async def sleep_ms(self, duration_ms: int) -> None:
        assert duration_ms > 0
        self.pauses += 1


def test_objects_after_a_missing_one_are_not_begun() -> None:
    """A reader relies on it: only the newest objects of a shard may have a gap before them."""
    store = MemoryObjects()
    faulty = FaultyObjects(
        store,
        lambda operation, key: (
            StoreFault.REQUEST_LOST if operation == "put" and "0003.0000000000-" in key else None
        ),
    )
    with pytest.raises(UnavailableError):
        run(archive_on(faulty).write([range_of(range(1, 40))]))
    assert set(numbers_in(store)) <= set(range(1, PUTS_AHEAD + 1)) - {3}
    run(archive_on(store).write([range_of(range(1, 40))]))
    assert numbers_in(store) == list(range(1, 40))


# -- "exists" -----------------------------------------------------------------------------------------------------


def test_exists_because_of_our_own_put_is_success() -> None:
    """The client repeated a request whose response was lost. The object is complete, and no error is raised."""
    store = MemoryObjects()
    faulty = with_faults(store, {"put": [ObjectFault.EXISTS_BY_OWN_PUT] * 3})
    report = run(archive_on(faulty).write([range_of([1, 2])]))
    assert numbers_in(store) == [1, 2]
    assert (report.objects, report.already_there, report.already_there_rows) == (0, 2, 2)


@pytest.mark.parametrize("times", [1, ATTEMPTS_MAX - 1])
def test_exists_without_an_object_is_retried_after_a_pause(times: int) -> None:
    """S3 refuses the loser of two puts, even if the winner then fails."""
    store, clock = MemoryObjects(), CountingPauses()
    faulty = with_faults(store, {"put": [MARKER_PUT, *[ObjectFault.EXISTS_WITHOUT_OBJECT] * times]})
    archive = Archive(faulty, ArchiveSettings(url="memory://"), clock=clock, rng=random.Random(1))
    report = run(archive.write([range_of([1])]))
    assert (report.objects, clock.pauses) == (1, times)
    assert numbers_in(store) == [1]


def test_exists_without_an_object_for_ever_is_an_error() -> None:
    """It must not count as written: the range would be checkpointed and lost."""
    store = MemoryObjects()
    faulty = with_faults(store, {"put": [MARKER_PUT, *[ObjectFault.EXISTS_WITHOUT_OBJECT] * ATTEMPTS_MAX]})
    archive = archive_on(faulty)
    with pytest.raises(
        UnavailableError, match="refuses to create it because it exists, but does not find it"
    ):
        run(archive.write([range_of([1])]))
    assert run(archive.write([range_of([1])])).objects == 1


@pytest.mark.parametrize("length", [-1, 1])
def test_an_existing_object_of_another_size_is_read(length: int) -> None:
    """A shorter and a longer object are compared by their records."""
    store = MemoryObjects()
    archive, rows = archive_on(store), range_of([1])
    run(archive.write([rows]))
    (name,) = [key_to_text(key) for key in keys_in(store)]
    store.objects[name] = store.objects[name][:-1] if length < 0 else store.objects[name] + b"x"
    with pytest.raises(ArchiveConflictError, match=name):
        run(archive.write([rows]))


def test_an_object_that_disappears_while_it_is_compared_is_a_conflict() -> None:
    """Another program deletes objects. The range must not count as written."""

    class Disappearing(MemoryObjects):
        async def get(self, key: str) -> bytes | None:
            return None if key_from_text(key) else await super().get(key)

    store = Disappearing()
    archive = archive_on(store)
    run(archive.write([range_of([1])]))
    (name,) = [key_to_text(key) for key in keys_in(store)]
    store.objects[name] += b"x"
    with pytest.raises(ArchiveConflictError, match=name):
        run(archive.write([range_of([1])]))


@pytest.mark.parametrize("marker", [b"", b"{}", b"{", b"[]", b"\xff", b'{"stream": null}', b'{"stream": 7}'])
def test_a_damaged_marker_is_an_error(marker: bytes) -> None:
    """An archive whose stream is unknown is refused, because it may hold another stream."""
    store = MemoryObjects()
    store.objects["_leasehold.json"] = marker
    with pytest.raises(
        ConfigError, match=r"has a damaged _leasehold\.json: delete it if the archive holds 'orders'"
    ):
        run(archive_on(store).write([range_of([1])]))
    assert numbers_in(store) == []


def test_a_marker_that_another_process_is_creating_is_awaited() -> None:
    """Two processes begin an archive at the same time. A marker that does not exist yet is not a damaged marker."""
    store = MemoryObjects()
    faulty = with_faults(store, {"put": [ObjectFault.EXISTS_WITHOUT_OBJECT] * 2})
    assert run(archive_on(faulty).write([range_of([1])])).objects == 1


# -- late and lost answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["put", "size", "get", "list"])
@pytest.mark.parametrize("fault", StoreFault)
@pytest.mark.parametrize("before", range(4))
def test_one_failure_of_any_call_is_retried(operation: str, fault: StoreFault, before: int) -> None:
    """The calls are those of a range whose second object exists with other bytes."""
    store = MemoryObjects()
    outdated = archive_on(with_faults(store, {operation: [*[None] * before, fault]}))
    run(outdated.write([range_of([1])]))
    run(archive_on(store, compression="snappy").write([range_of([2], "two")]))
    report = run(outdated.write([range_of([1, 2])]))
    assert numbers_in(store) == [1, 2]
    assert report.already_there_rows == 2


def test_a_put_that_is_executed_after_its_retry_changes_nothing() -> None:
    """The request was delayed in the network. The retry has created the object."""
    store = MemoryObjects()
    faulty = with_faults(store, {"put": [MARKER_PUT, ObjectFault.EXECUTED_LATE, ObjectFault.EXECUTED_LATE]})
    report = run(archive_on(faulty).write([range_of([1, 2])]))
    before = dict(store.objects)
    run(faulty.execute_late_puts())
    assert (report.objects, store.objects) == (2, before)


def test_a_put_that_is_executed_after_the_next_owner_has_listed_changes_nothing() -> None:
    """The next owner writes the same pinned range, so both create the same objects."""
    store = MemoryObjects()
    faulty = with_faults(store, {"put": [MARKER_PUT, *[ObjectFault.EXECUTED_LATE] * ATTEMPTS_MAX]})
    with pytest.raises(UnavailableError):
        run(archive_on(faulty).write([range_of([1])]))

    class LateBetween(FaultyObjects):
        """The delayed request arrives between the listing and the put."""

        async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
            if key_from_text(key):
                await faulty.execute_late_puts()
            return await super().put_if_absent(key, body)

    report = run(archive_on(LateBetween(store, lambda *_: None)).write([range_of([1], "two")]))
    assert report == WriteReport(already_there=1, already_there_rows=1)
    assert numbers_in(store) == [1]


def test_a_listing_that_breaks_off_is_made_again() -> None:
    """The objects on its later pages count as archived too."""
    store = MemoryObjects(page_size=1)
    run(archive_on(store).write([range_of([1, 2, 3])]))
    faulty = with_faults(store, {"list": [ObjectFault.LISTING_INTERRUPTED] * 2})
    report = run(archive_on(faulty).write([range_of([1, 2, 3, 4], "two")]))
    assert (report.objects, report.dropped_rows) == (1, 3)


# -- failures in the middle ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", range(6))
@pytest.mark.parametrize("is_same_process", [True, False])
def test_a_range_that_failed_in_the_middle_is_completed(written: int, *, is_same_process: bool) -> None:
    """Some of its objects were created. The next attempt creates the others."""
    store = MemoryObjects()
    down = [MARKER_PUT, *[None] * written, *[StoreFault.REQUEST_LOST] * 100]
    is_down = True
    left = iter(down)
    faulty = FaultyObjects(store, lambda call, _: next(left) if call == "put" and is_down else None)
    archive = archive_on(faulty, max_concurrent_puts=1)
    with pytest.raises(UnavailableError):
        run(archive.write([range_of(range(1, 7))]))
    is_down = False
    assert len(keys_in(store)) == written
    again = archive if is_same_process else archive_on(store)
    report = run(again.write([range_of(range(1, 7), "one" if is_same_process else "two")]))
    assert (report.objects, report.already_there + report.dropped_rows) == (6 - written, written)
    assert numbers_in(store) == list(range(1, 7))


def test_at_most_so_many_puts_are_sent_at_one_time() -> None:
    """A range of many minutes does not open a connection for each."""

    class Concurrent(MemoryObjects):
        now = most = 0

        async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            return await super().put_if_absent(key, body)

    store = Concurrent()
    run(archive_on(store, max_concurrent_puts=3).write([range_of(range(1, 21))]))
    assert (store.most, len(keys_in(store))) == (3, 20)


put_faults = st.lists(st.sampled_from([None, None, *StoreFault, *ObjectFault]), max_size=40)


@settings(max_examples=60)
@given(
    put_faults,
    st.lists(st.sampled_from([None, *StoreFault, ObjectFault.LISTING_INTERRUPTED]), max_size=20),
    st.lists(st.integers(0, 6), min_size=1, max_size=20),
    st.sets(st.integers(1, 19)),
    st.sets(st.integers(1, 19)),
    st.lists(st.sampled_from(["stay", "move", "late"]), max_size=12),
)
def test_whatever_the_store_does_every_record_is_archived_once(
    puts: Faults, lists: Faults, minutes: list[int], first: set[int], second: set[int], turns: list[str]
) -> None:
    """The stream is archived, and then again in other ranges. Meanwhile the lease moves, and late requests arrive."""
    store, count = MemoryObjects(page_size=2), len(minutes)
    faulty = with_faults(store, {"put": puts, "list": lists})
    rows = [range_in(start, stop, minutes) for start, stop in _cut(first, count)]
    again = [range_in(start, stop, minutes) for start, stop in _cut(second, count)]

    async def scenario() -> None:
        await _archive_in_sessions(faulty, rows, "before", iter(turns))
        await faulty.execute_late_puts()  # requests of a table that is deleted have ended
        await _archive_in_sessions(faulty, again, "after", iter(turns))
        await faulty.execute_late_puts()

    run(scenario())
    assert numbers_in(store) == list(range(1, count + 1))
    for one, other in pairwise(spans_in(store)):
        assert one[0] != other[0] or one[2] < other[1]


def range_in(start: int, stop: int, minutes: list[int]) -> object:
    return table(records(range(start + 1, stop + 1), minute=lambda number: 20 + minutes[number - 1]))


def _cut(cuts: set[int], count: int) -> list[tuple[int, int]]:
    ends = sorted({cut for cut in cuts if cut < count} | {count})
    return list(zip([0, *ends], ends, strict=False))


async def _archive_in_sessions(
    store: FaultyObjects, ranges: list[object], name: str, turns: Iterator[str]
) -> None:
    """Write every range until it succeeds. `turns` says what happens before each attempt."""
    archive, sessions = archive_on(store), 0
    for rows in ranges:
        is_written = False
        while not is_written:
            turn = next(turns, "stay")
            if turn == "move":
                archive, sessions = archive_on(store), sessions + 1
            elif turn == "late":
                await store.execute_late_puts()
            try:
                await archive.write([PinnedRange(A, f"{name}-{sessions}", rows)])
                is_written = True
            except UnavailableError:
                continue
