"""The keys of archived objects."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.exactly_once.object_keys import (
    EXTENSIONS,
    Layout,
    ObjectKey,
    key_from_text,
    key_to_text,
    minute_path,
    unfinished_key_from_text,
    validate_prefix,
)
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.errors import ConfigError, InvalidPositionError

FIRST, LAST = Position("49" * 28), Position("49" * 28, 3)
KEY = ObjectKey(28_333_333, ShardId("shardId-000000000001"), Range(FIRST, LAST), "parquet")
TEXT = f"orders/2023/11/14/22/13/shardId-000000000001/{'49' * 28}.0000000000-{'49' * 28}.0000000003.parquet"

positions = st.builds(
    Position, st.integers(0, 10**56 - 1).map(str), st.one_of(st.just(0), st.integers(0, 10**10 - 1))
)
keys = st.builds(
    ObjectKey,
    st.integers(0, 4_000_000_000),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}", fullmatch=True).map(ShardId),
    st.tuples(positions, positions).map(lambda pair: Range(*sorted(pair, key=lambda each: each._order))),
    st.sampled_from(EXTENSIONS),
)


def test_a_key_consists_of_minute_shard_and_range() -> None:
    """The minute is in UTC, and both positions have their full width."""
    assert key_to_text(KEY, "orders") == TEXT
    assert key_from_text(TEXT, "orders") == KEY


@given(keys, st.sampled_from(["", "orders", "a/b=c/d"]))
def test_keys_are_parsed_as_they_were_written(key: ObjectKey, prefix: str) -> None:
    """Every key can be parsed again, and is below its prefix and minute."""
    text = key_to_text(key, prefix)
    assert key_from_text(text, prefix) == key
    assert text.startswith(minute_path(key.minute, prefix) + "/")


@given(
    keys,
    st.sampled_from(Layout),
    st.sampled_from(["", "orders", "a/b=c/d", "2026/11", "dt=x"]),
    st.booleans(),
)
def test_keys_of_every_layout_are_parsed_as_they_were_written(
    key: ObjectKey, layout: Layout, prefix: str, is_compacted: bool
) -> None:
    """The folders alone show the layout: no two layouts have a name in common."""
    minute = key.minute - key.minute % layout.minutes
    placed = replace(key, minute=minute, layout=layout, since=minute if is_compacted else None)
    text = key_to_text(placed, prefix)
    assert key_from_text(text, prefix) == placed
    assert text.startswith(minute_path(key.minute, prefix, layout) + "/")
    assert (placed.first_minute, placed.last_minute) == (minute, minute + layout.minutes - 1)


@pytest.mark.parametrize(
    ("layout", "folders", "minutes"),
    [
        (Layout.MINUTE, "2023/11/14/22/13", 1),
        (Layout.HOUR, "2023/11/14/22", 60),
        (Layout.DAY, "2023/11/14", 1_440),
        (Layout.HIVE_HOUR, "dt=2023-11-14/hr=22", 60),
        (Layout.HIVE_DAY, "dt=2023-11-14", 1_440),
    ],
)
def test_the_folders_show_the_layout_and_the_minutes_of_an_object(
    layout: Layout, folders: str, minutes: int
) -> None:
    """An object has the records of a minute, an hour or a day."""
    first = KEY.minute - KEY.minute % minutes
    key, text = replace(KEY, minute=first, layout=layout), TEXT.replace("2023/11/14/22/13", folders)
    assert key_to_text(key, "orders") == text
    assert key_from_text(text, "orders") == key
    assert (key.first_minute, key.last_minute) == (first, first + minutes - 1)


@pytest.mark.parametrize(
    "folders",
    [
        "2023/11",
        "2023/11/14/22/13/05",
        "dt=2023-11-14/22",
        "dt=2023/hr=22",
        "dt=2023-13-14",
        "2023/11/14/hr=22",
    ],
)
def test_other_folders_are_foreign(folders: str) -> None:
    """A key has the folders of a layout, and a real time."""
    assert key_from_text(TEXT.replace("2023/11/14/22/13", folders), "orders") is None


@given(keys, st.integers(0, 2_000))
def test_compacted_keys_are_parsed_as_they_were_written(key: ObjectKey, minutes: int) -> None:
    """The first minute is part of the name. The object lies in the folder of its last minute."""
    compacted = replace(key, since=max(0, key.minute - minutes))
    text = key_to_text(compacted, "orders")
    assert key_from_text(text, "orders") == compacted
    assert text.startswith(minute_path(key.minute, "orders") + "/")
    assert compacted.covers(key)
    assert not key.covers(compacted)
    assert not compacted.covers(compacted)


def test_a_compacted_key_names_its_first_minute() -> None:
    """It must be a minute, and not later than the last one."""
    text = TEXT.replace(".parquet", ".since-202311142100.parquet")
    assert key_to_text(replace(KEY, since=KEY.minute - 73), "orders") == text
    for wrong in ("202311142214", "202313142100", "2023111421", "999999999999"):
        assert key_from_text(text.replace("202311142100", wrong), "orders") is None


@given(st.lists(keys, min_size=2, max_size=5))
def test_the_keys_of_a_shard_and_minute_sort_in_stream_order(many: list[ObjectKey]) -> None:
    """Sorting keys sorts positions."""
    alike = [ObjectKey(5, ShardId("s"), key.range, "parquet") for key in many]
    by_name = sorted(alike, key=key_to_text)
    firsts = [key.range.first for key in by_name]
    assert all(first <= second for first, second in pairwise(firsts))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders/2023/11/14/22/13/readme.txt",
        TEXT.replace("orders/", "order/"),
        TEXT.replace("orders/", "clicks/"),
        TEXT.replace("2023/11", "2023/13"),
        TEXT.replace("2023/11/14/22/13", "1969/11/14/22/13"),
        TEXT.replace("/22/13", "/24/13"),
        TEXT.replace(".parquet", ".exe"),
        TEXT.replace("shardId-000000000001", ".."),
        TEXT.replace("shardId-000000000001", "a/b"),
        TEXT.replace(".0000000000-", ".0000000004-"),
        TEXT.replace("49", "4٩", 1),
        TEXT + "\n",
        TEXT.replace("0000000003", "03"),
    ],
)
def test_a_foreign_key_is_parsed_as_none(text: str) -> None:
    """Examples are foreign objects, damaged keys and ranges that end before they begin."""
    assert key_from_text(text, "orders") is None


def test_the_file_of_an_interrupted_writer_is_recognised() -> None:
    """Only by a number after the whole name of an object."""
    assert unfinished_key_from_text(f"{TEXT}#1", "orders") == KEY
    for other in (TEXT, f"{TEXT}#", f"{TEXT}#x", f"{TEXT}1", "#1", "1", f"x{TEXT}#1"):
        assert unfinished_key_from_text(other, "orders") is None


@pytest.mark.parametrize(
    "shard", ["..", ".", "", "a/b", "/", "../../etc", "a\x00b", "_hidden", ".hidden", "ä", "a b", "x" * 129]
)
def test_a_hostile_shard_id_cannot_leave_the_root(shard: str) -> None:
    """Only letters, digits and a few other characters are allowed in a key."""
    with pytest.raises(ConfigError, match="shard id"):
        key_to_text(ObjectKey(0, ShardId(shard), Range(FIRST, LAST), "parquet"))


@pytest.mark.parametrize("prefix", ["..", "a/../b", "/a", "a/", "a//b", "a/./b", "_a", "a\\b"])
def test_a_hostile_prefix_cannot_leave_the_root(prefix: str) -> None:
    """Every part of a prefix is checked like a shard id."""
    with pytest.raises(ConfigError, match="prefix"):
        validate_prefix(prefix)


def test_positions_that_do_not_fit_are_refused() -> None:
    """A key of another width would break the sort order of keys."""
    for position in (Position("1" * 57), Position("1" * 56, 10**10)):
        with pytest.raises(InvalidPositionError, match="does not fit"):
            key_to_text(ObjectKey(0, ShardId("s"), Range(position, position), "parquet"))
    last_minute = 4_223_371_679
    assert minute_path(last_minute) == "9999/12/31/23/59"
    for minute in (-1, last_minute + 1):
        with pytest.raises(InvalidPositionError, match="1970 to 9999"):
            minute_path(minute)
