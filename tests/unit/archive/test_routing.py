"""Rows are divided between archives by a column, and failed records go to an archive of their own: each once."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive import Archive, ArchiveSettings, WriteReport
from leasehold.archive.archive_index import ArchiveIndex
from leasehold.archive.division import NOTE, require_undivided
from leasehold.archive.routing import RoutedArchive, _folder_value, open_writer, settings_of_stream
from leasehold.archive.rows import PinnedRange
from leasehold.archive.shard_rows import ArchiveStore
from leasehold.core.exactly_once.object_keys import validate_segment
from leasehold.errors import ConfigError
from tests.unit.archive.archive_world import A, NoWaiting, archive_on, numbers_in, records, run, table
from tests.unit.archive.test_verification import verify

COUNT = 40
REGIONS = ["eu", "us", None]
SETTINGS: dict[str, Any] = {
    "prefix": "orders",
    "partition_column": "region",
    "error_column": "problem",
    "error_prefix": "failed",
}


def rows(first: int, last: int) -> Any:
    """Rows with a region, of which every fifth has failed."""
    numbers = range(first, last)
    regions = pa.array([REGIONS[number % 3] for number in numbers], pa.string())
    problems = pa.array(["not JSON" if number % 5 == 0 else None for number in numbers], pa.string())
    made = table(records(numbers, minute=lambda number: number // 9))
    return made.append_column("region", regions).append_column("problem", problems)


def write(store: MemoryObjects, size: int, session: str) -> WriteReport:
    def open_archive(settings: ArchiveSettings) -> Archive:
        return archive_on(store, prefix=settings.prefix)

    writer = RoutedArchive(ArchiveSettings(url="memory://", **SETTINGS), open_archive)
    ranges = [
        PinnedRange(A, session, rows(first, min(first + size, COUNT))) for first in range(0, COUNT, size)
    ]
    return run(writer.write(ranges))


def test_every_record_is_in_one_archive_once() -> None:
    """Attempts are repeated, and after the loss of the lease table the ranges are others."""
    store = MemoryObjects()
    assert write(store, 7, "one").rows == COUNT
    assert write(store, 7, "one").rows == 0
    assert write(store, 11, "two").rows == 0
    expected = {
        f"orders/region={text}": [n for n in range(COUNT) if n % 5 and REGIONS[n % 3] == region]
        for region, text in (("eu", "eu"), ("us", "us"), (None, "_null"))
    }
    expected["failed"] = list(range(0, COUNT, 5))
    assert {prefix: numbers_in(store, prefix) for prefix in expected} == expected
    failed = MemoryObjects()
    names = [name for name in store.objects if name.startswith("failed/")]
    failed.objects = {name.removeprefix("failed/"): store.objects[name] for name in names}
    assert verify(failed)[0].problems == ()


def test_without_such_a_column_one_archive_is_written() -> None:
    store = MemoryObjects()
    plain = open_writer(ArchiveSettings(url="memory://"), lambda _: archive_on(store))
    run(plain.write([PinnedRange(A, "one", table(records(range(3))))]))
    assert numbers_in(store) == [0, 1, 2]


def of_stream(stream: str, numbers: range) -> PinnedRange:
    """A range of shard A of one of several streams. Both streams have a shard with this id."""
    return PinnedRange(A, "one", table(records(numbers), stream=stream), stream)


def test_each_of_several_streams_has_an_archive_of_its_own() -> None:
    """In one archive, the record of one stream would count as that of the other with the same shard and position."""
    store = MemoryObjects()
    settings = ArchiveSettings(url="memory://", prefix="all")
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/returns"
    ranges = [of_stream("orders", range(5)), of_stream(arn, range(5)), of_stream("orders", range(5, 9))]
    for rows_written in (14, 0):
        writer = open_writer(settings, lambda chosen: archive_on(store, prefix=chosen.prefix))
        assert run(writer.write(iter(ranges))).rows == rows_written
    assert numbers_in(store, "all/stream=orders") == list(range(9))
    assert numbers_in(store, "all/stream=returns") == list(range(5))
    assert numbers_in(store, "all") == []


def test_the_archive_of_a_stream_does_not_depend_on_how_the_stream_is_named() -> None:
    """Nor on the column `stream`, which a program may replace: the range names its stream."""
    store = MemoryObjects()
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
    replaced = PinnedRange(A, "one", table(records(range(8, 9)), stream="anything"), "orders")
    for some in (of_stream("orders", range(5)), of_stream(arn, range(5, 8)), replaced):
        writer = open_writer(
            ArchiveSettings(url="memory://"), lambda each: archive_on(store, prefix=each.prefix)
        )
        run(writer.write([some]))
    assert numbers_in(store, "stream=orders") == list(range(9))


def test_a_stream_may_have_the_longest_name() -> None:
    """Kinesis allows 128 characters, as many as a folder may have."""
    store = MemoryObjects()
    names = ["n" * 121, "n" * 122, "n" * 128]
    writer = open_writer(ArchiveSettings(url="memory://"), lambda each: archive_on(store, prefix=each.prefix))
    run(writer.write([of_stream(name, range(5)) for name in names]))
    folders = {key.partition("/")[0] for key in store.objects if key != NOTE}
    assert f"stream={names[0]}" in folders
    assert len(folders) == 3
    for folder in folders:
        assert numbers_in(store, folder) == list(range(5))


def test_failed_records_of_several_streams_stay_apart() -> None:
    settings = ArchiveSettings(url="memory://", **SETTINGS)
    chosen = settings_of_stream(settings, "orders")
    assert (chosen.prefix, chosen.error_prefix) == ("orders/stream=orders", "failed/stream=orders")
    with pytest.raises(ConfigError, match="remove partitionColumn"):
        settings_of_stream(ArchiveSettings(url="memory://", partition_column="stream"), "orders")


def test_rows_without_the_column_are_refused() -> None:
    """A typing error in an option must not archive everything in one place."""
    writer = RoutedArchive(
        ArchiveSettings(url="memory://", partition_column="regoin"), lambda _: archive_on(MemoryObjects())
    )
    with pytest.raises(ConfigError, match="no column 'regoin'"):
        run(writer.write([PinnedRange(A, "one", rows(0, 3))]))
    wrongs: list[dict[str, Any]] = [{"error_column": "x"}, {"error_prefix": "x"}, {"partition_column": "a/b"}]
    for wrong in wrongs:
        with pytest.raises(ConfigError):
            ArchiveSettings(url="memory://", **wrong)


@pytest.mark.parametrize(
    ("prefix", "column", "errors"),
    [
        ("x", None, "x"),
        ("x", None, "x/errors"),
        ("x/y", None, "x"),
        ("", "region", "region=errors"),
        ("x", "region", "x/region=errors"),
        ("", "region", "region=eu/errors"),
    ],
)
def test_errors_do_not_share_a_prefix_with_records(prefix: str, column: str | None, errors: str) -> None:
    """Failed records would count as the others, or the others as failed ones, and would not be written."""
    with pytest.raises(ConfigError, match="choose"):
        ArchiveSettings(
            url="memory://",
            prefix=prefix,
            partition_column=column,
            error_column="problem",
            error_prefix=errors,
        )


@pytest.mark.parametrize(("prefix", "errors"), [("", "errors"), ("x", "x-errors"), ("x", "region=errors")])
def test_errors_may_have_a_prefix_beside_that_of_the_records(prefix: str, errors: str) -> None:
    ArchiveSettings(
        url="memory://",
        prefix=prefix,
        partition_column="region",
        error_column="problem",
        error_prefix=errors,
    )


@given(st.one_of(st.none(), st.text(max_size=8)), st.one_of(st.none(), st.text(max_size=8)))
def test_different_values_have_different_folders(one: str | None, other: str | None) -> None:
    """Any text becomes a part of a name that stays below the prefix."""
    values = [_folder_value(value) for value in (one, other)]
    assert (values[0] == values[1]) == (one == other)
    for value in values:
        validate_segment(f"region={value}", "folder")


@pytest.mark.parametrize("column", ["region", "r" * 64])
def test_a_long_value_is_shortened(column: str) -> None:
    """A value comes from a record, so none may stop the query. Long values that begin alike have different folders."""
    texts = ["a" * 101 + end for end in ("", "b", "c")] + ["é" * 300, "short"]
    made = table(records(range(len(texts)))).append_column(column, pa.array(texts))
    settings, store = ArchiveSettings(url="memory://", partition_column=column), MemoryObjects()
    writer = RoutedArchive(settings, lambda _: archive_on(store))
    assert run(writer.write([PinnedRange(A, "one", made)])).rows == len(texts)
    folders = {name.partition("/")[0] for name in store.objects if name != NOTE}
    assert len(folders) == len(texts)
    assert f"{column}=short" in folders
    with pytest.raises(ConfigError, match="at most 64"):
        ArchiveSettings(url="memory://", partition_column="r" * 65)


def test_the_archives_of_all_values_share_one_store_and_few_stay_open() -> None:
    """Values come from records, so there may be any number. An archive that is opened again finds what it has."""
    store, opened = MemoryObjects(), list[ArchiveSettings]()

    def open_archive(settings: ArchiveSettings) -> Archive:
        opened.append(settings)
        return archive_on(store, prefix=settings.prefix)

    writer = RoutedArchive(ArchiveSettings(url="memory://", **SETTINGS), open_archive, archives_max=2)
    for expected in (COUNT, 0):
        ranges = [PinnedRange(A, "one", rows(first, first + 10)) for first in range(0, COUNT, 10)]
        assert run(writer.write(ranges)).rows == expected
        assert len(writer._archives) == 2
    assert len(opened) == 1


@pytest.mark.parametrize("prefix", ["orders", "orders/region=eu", "orders/region=_null", "failed"])
def test_a_part_of_the_records_is_no_history(prefix: str) -> None:
    """The records in the other archives would be skipped without a report, and would look like gaps."""
    store = MemoryObjects()
    write(store, 7, "one")
    index = ArchiveIndex(ArchiveStore(store, prefix, NoWaiting(), random.Random(1)))
    with pytest.raises(
        ConfigError, match=r"by column 'region', failed ones below prefix 'failed'.*as history"
    ):
        run(index.get(A))
    with pytest.raises(ConfigError, match="cannot be used for a test: name an archive"):
        run(require_undivided(store, prefix, purpose="for a test"))


def test_an_archive_that_was_divided_later_is_no_history() -> None:
    """Its writer got an error prefix, and the failed records that followed are elsewhere."""
    store = MemoryObjects()
    run(archive_on(store).write([PinnedRange(A, "one", table(records(range(5))))]))
    index = ArchiveIndex(ArchiveStore(store, "", NoWaiting(), random.Random(1)))
    assert run(index.get(A)) is not None
    settings = ArchiveSettings(url="memory://", error_column="problem", error_prefix="failed")
    made = table(records(range(5, 9))).append_column("problem", pa.array(["x", None, None, None]))
    writer = open_writer(settings, lambda each: archive_on(store, prefix=each.prefix))
    run(writer.write([PinnedRange(A, "one", made)]))
    with pytest.raises(ConfigError, match="failed ones below prefix 'failed'"):
        run(index.get_newest(A, max_age_ms=0))


def test_the_place_of_several_streams_is_no_history() -> None:
    store = MemoryObjects()
    writer = open_writer(ArchiveSettings(url="memory://"), lambda each: archive_on(store, prefix=each.prefix))
    run(writer.write([PinnedRange(A, "one", table(records(range(5))), "orders")]))
    index = ArchiveIndex(ArchiveStore(store, "", NoWaiting(), random.Random(1)))
    with pytest.raises(
        ConfigError, match="name the archive of one stream by its prefix, such as stream=orders"
    ):
        run(index.get(A))
    of_one = ArchiveIndex(ArchiveStore(store, "stream=orders", NoWaiting(), random.Random(1)))
    assert run(of_one.get(A)) is not None


@pytest.mark.parametrize("note", [b"", b"[]", b"{}", b"\xff"])
def test_a_note_that_cannot_be_read_counts(note: bytes) -> None:
    store = MemoryObjects()
    store.objects[NOTE] = note
    with pytest.raises(ConfigError, match="divided them \\(in some way\\)"):
        run(require_undivided(store, "", purpose="for a test"))
