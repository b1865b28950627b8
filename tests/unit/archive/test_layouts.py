"""An archive with any layout of its folders has each record once, also after the loss of the lease table."""

import random
from typing import Any

import pytest

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive import WriteReport
from leasehold.archive.archive import MARKER
from leasehold.archive.reading import TimeSpan, list_objects, read_shard
from leasehold.archive.rows import PinnedRange
from leasehold.archive.shard_rows import ArchiveStore
from leasehold.core.exactly_once.archive_reading import UNSETTLED_OBJECTS
from leasehold.core.exactly_once.object_keys import Layout
from leasehold.errors import ConfigError
from tests.unit.archive.archive_world import A, archive_on, keys_in, numbers_in, records, run, table
from tests.unit.archive.test_compaction import World
from tests.unit.archive.test_verification import verify

COUNT = 120
LAYOUTS = [each.value for each in Layout]


def write(store: MemoryObjects, size: int, session: str, **settings: Any) -> WriteReport:
    """Write records of two days, in ranges of `size` records. Their arrival times are not in order."""
    pinned = [
        PinnedRange(A, session, table(records(range(n, min(n + size, COUNT)), minute=_minute)))
        for n in range(0, COUNT, size)
    ]
    return run(archive_on(store, **settings).write(pinned))


def _minute(number: int) -> int:
    return 20 * number + (45 if number % 3 else 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_count_as_archived_in_every_layout(layout: str) -> None:
    """The lease table is lost, and the stream is split into other ranges. All keys have the layout."""
    store = MemoryObjects()
    write(store, 7, "one", layout=layout)
    assert {key.layout for key in keys_in(store)} == {Layout(layout)}
    again = write(store, 11, "two", layout=layout)
    assert (again.dropped_rows + again.already_there_rows, again.rows) == (COUNT, 0)
    assert numbers_in(store) == list(range(COUNT))
    assert verify(store)[0].problems == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_by_time(layout: str) -> None:
    """Objects of other days are not listed, and objects of other hours are not opened."""
    store = MemoryObjects()
    write(store, 7, "one", layout=layout)
    opened = ArchiveStore(store, "", SystemClock(), random.Random(1))
    span = TimeSpan(300 * 60_000, 600 * 60_000)

    async def read() -> list[int]:
        objects = (await list_objects(opened, span))[A]
        assert all(key.first_minute < 600 and key.last_minute >= 300 for key in objects)
        tables = [each async for each in read_shard(opened, A, span, ["sequenceNumber"], objects=objects)]
        return [int(number) for each in tables for number in each["sequenceNumber"].to_pylist()]

    assert run(read()) == [number for number in range(COUNT) if 300 <= _minute(number) < 600]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_compacted(layout: str) -> None:
    """Compacted records are read once, and count as archived."""
    world = World(layout=layout)
    assert world.compact_and_delete().skipped == []
    assert len(keys_in(world.store)) == UNSETTLED_OBJECTS + 1
    assert {key.layout for key in keys_in(world.store)} == {Layout(layout)}
    numbers = world.read()
    assert world.write([range(9), range(9, len(numbers))], session="two") == len(numbers)
    assert world.read() == numbers == list(range(len(numbers)))
    assert verify(world.store)[0].problems == ()


def test_a_writer_with_another_layout_is_refused() -> None:
    """Its records would not count as archived. The marker names the layout, unless it is the default."""
    store = MemoryObjects()
    write(store, 50, "one", layout="hour")
    assert store.objects[MARKER] == b'{"stream":"orders","layout":"hour"}'
    with pytest.raises(ConfigError, match="has layout 'hour', not 'minute'"):
        write(store, 50, "one")
    default = MemoryObjects()
    write(default, 50, "one")
    assert default.objects[MARKER] == b'{"stream":"orders"}'
    with pytest.raises(ConfigError, match="has layout 'minute', not 'hive-day'"):
        write(default, 50, "one", layout="hive-day")
    with pytest.raises(ConfigError, match="expected 'minute' or 'hour'"):
        write(default, 50, "one", layout="weekly")


def test_the_layout_is_also_checked_for_rows_that_name_no_stream() -> None:
    """A program may have dropped the column. The marker then has the layout alone, and any stream is accepted."""
    rows = table(records(range(5)))
    pinned, without = PinnedRange(A, "one", rows), PinnedRange(A, "one", rows.drop_columns(["stream"]))
    store = MemoryObjects()
    assert run(archive_on(store, layout="hour").write([without, pinned])).already_there_rows == 5
    assert store.objects[MARKER] == b'{"layout":"hour"}'
    for each in (without, pinned):
        with pytest.raises(ConfigError, match="has layout 'hour', not 'minute'"):
            run(archive_on(store).write([each]))
    named = MemoryObjects()
    run(archive_on(named, layout="day").write([pinned, without]))
    with pytest.raises(ConfigError, match="has layout 'day', not 'minute'"):
        run(archive_on(named).write([without]))
    for damaged in (b"{}", b"?", b"[1]", b'{"stream":1}', b'{"stream":"orders","layout":null}'):
        named.objects[MARKER] = damaged
        with pytest.raises(ConfigError, match="damaged"):
            run(archive_on(named, layout="day").write([without]))
