"""KPL aggregates: the native functions give the user records, incidents and errors of those in Python."""

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.core.model import HASH_KEY_MAX, WHOLE_HASH_RANGE, HashRange
from leasehold.core.record import PutEntry, Record, UserRecord
from leasehold.core.records.aggregation import aggregate
from leasehold.core.records.deaggregation import DeaggregationSettings, OutOfRange, Unreadable
from tests.kpl_encoder import MAGIC, add_frame, delimited, hash_key, partition_key, user_record, varint
from tests.native.mutations import mutants
from tests.native.outcomes import USER as USER_SCHEMA
from tests.native.outcomes import (
    Split,
    Unsplit,
    raw_batch,
    rows_of,
    split_in_python,
    split_natively,
)

HALF = HashRange(0, HASH_KEY_MAX // 2)
SETTINGS = [
    DeaggregationSettings(),
    DeaggregationSettings(out_of_range=OutOfRange.DROP_RECORD),
    DeaggregationSettings(out_of_range=OutOfRange.KEEP),
    DeaggregationSettings(unreadable=Unreadable.FAIL),
    DeaggregationSettings(user_records_max=2, expanded_bytes_max=700),
    DeaggregationSettings(user_records_max=2, expanded_bytes_max=700, unreadable=Unreadable.FAIL),
    DeaggregationSettings(expanded_bytes_max=650),
]
KEY = partition_key(b"a")
USER = user_record(0, None, b"x")
MESSAGES = [
    b"", b"\x00", KEY, USER, KEY + USER, KEY + USER * 2, KEY + USER * 3, USER + KEY, KEY * 4 + USER,
    KEY + user_record(1, None, b"x"), KEY + user_record(2**64 - 1, None, b"x"), KEY + user_record(0, 0, b"x"),
    KEY + user_record(0, 2**64 - 1, b"x"), KEY + user_record(None, None, b"x"),
    KEY + user_record(0, None, None),
    KEY + user_record(0, None, b""), KEY + hash_key(b"7") + user_record(0, 0, b"x"),
    KEY + hash_key(b"007") + user_record(0, 0, b"x"), KEY + hash_key(b"000") + user_record(0, 0, b"x"),
    KEY + hash_key(b"") + user_record(0, 0, b"x"), KEY + hash_key(b"") + USER,
    KEY + hash_key(b"-1") + user_record(0, 0, b"x"),
    KEY + hash_key(b" 1") + user_record(0, 0, b"x"), KEY + hash_key(b"1" * 40) + user_record(0, 0, b"x"),
    KEY + hash_key(str(2**128 - 1).encode()) + user_record(0, 0, b"x"),
    KEY + hash_key(str(2**128).encode()) + user_record(0, 0, b"x"),
    KEY + hash_key(b"\xd9\xa1") + user_record(0, 0, b"x"),
    partition_key(b"\xff") + USER, partition_key(b"\xe2\x82") + USER,
    partition_key(b"\xf0\x90\x80a\xc0\x80") + USER,
    partition_key(b"\xed\xa0\x80") + USER, partition_key(b"") + USER, partition_key("größe".encode()) + USER,
    partition_key(b"k" * 400) + USER, partition_key(b"k" * 400) + USER * 3, KEY + USER + KEY[:-1],
    KEY + user_record(0, None, b"x", b"\x08\x00"), KEY + user_record(0, None, b"x", b"\x1a\x01y"),
    KEY + user_record(0, None, b"x", b"\x10\x00") + hash_key(b"5"),
    KEY + user_record(0, None, b"x", delimited(4, b"\x0a\x01k")),
    KEY + user_record(0, None, b"x", b"\x0a\x01\x00"), KEY + user_record(0, None, b"x", b"\x24"),
    KEY + USER + user_record(0, None, b"x", b"\x0a\x01\x80") + USER,
    KEY + USER + user_record(0, None, b"x", b"\x12\x01\x80") + USER,
    KEY + USER + b"\x23\x24",
    KEY + USER + b"\x23\x2c", KEY + USER + b"\x23", KEY + USER + b"\x24", KEY + USER + b"\x04",
    KEY + USER + b"\x02\x00",
    KEY + USER + b"\x23\x02\x00\x24", KEY + USER + b"\x0e", KEY + USER + b"\x0f", KEY + USER + b"\x08\x05",
    KEY + USER + b"\x09" + bytes(8), KEY + USER + b"\x09" + bytes(7), KEY + USER + b"\x0d" + bytes(4),
    KEY + USER + b"\x0d" + bytes(3), KEY + USER + b"\x1b\x08\x00\x1c",
    KEY + USER + b"\x8a\x80\x80\x80\x00\x01b",
    KEY + USER + b"\x8a\x80\x80\x80\x80\x00\x01b", KEY + USER + b"\x8a\x80\x80\x80\x10\x01b",
    KEY + USER + b"\x0a\x81\x80\x80\x80\x00b", KEY + USER + b"\x0a\x81\x80\x80\x80\x80\x00b",
    KEY + USER + b"\x0a\xff\xff\xff\xff\x0f", KEY + USER + b"\x0a\xff\xff\xff\xff\x07",
    KEY + USER + b"\x20" + b"\xff" * 9 + b"\x01",
    KEY + USER + b"\x20" + b"\xff" * 9 + b"\x7f", KEY + USER + b"\x20" + b"\xff" * 10 + b"\x01",
    KEY + delimited(3, b"\x08" + b"\xff" * 9 + b"\x7f\x1a\x00"), KEY + delimited(3, b"\x08\xff") + KEY,
    KEY + delimited(3, b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02\x1a\x00"),
    *(KEY + USER + b"\x23" * depth + b"\x24" * depth for depth in (99, 100, 101, 100_000)),

    *(KEY + user_record(0, None, b"x", b"\x23" * depth + b"\x24" * depth) for depth in (98, 99, 100, 100_000)),
    *(KEY + USER + varint(number << 3) + b"\x01" for number in (4, 19_000, 2**29 - 1, 2**29)),
]  # fmt: skip
DATA = [
    *map(add_frame, MESSAGES),
    b"", b"plain", MAGIC, MAGIC[:3], MAGIC + bytes(15), MAGIC + bytes(16), MAGIC + bytes(17), add_frame(b""),
    add_frame(KEY + USER, checksum=bytes(16)), add_frame(KEY + USER)[:-1], add_frame(KEY + USER) + b"\x00",
]  # fmt: skip


def records(data: Sequence[bytes]) -> list[Record]:
    kinds = [None, "KMS"]
    return [
        Record(each, f"outer-{index}", str(4711 + index), index if index % 3 else None, kinds[index % 2])
        for index, each in enumerate(data)
    ]


def check(found: Sequence[Record], shard: HashRange | None = None) -> None:
    for each in SETTINGS:
        native, python = split_natively(found, shard, each), split_in_python(found, shard, each)
        assert native == python, (shard, each, [record.data[:300].hex() for record in found])


@pytest.mark.parametrize("shard", [None, HALF, WHOLE_HASH_RANGE], ids=["no range", "half", "whole"])
def test_hostile_aggregates(shard: HashRange | None) -> None:
    """Each alone, because one that must not be skipped hides the others; then all of them in one batch."""
    for data in DATA:
        check(records([data]), shard)
    check(records(DATA), shard)


def test_an_aggregate_is_split() -> None:
    """The other tests compare; this one shows that there is something to compare."""
    made = aggregate([PutEntry(b"one", "a"), PutEntry(b"two", "b", 7)])
    found = split_natively([Record(made.data, "outer", "4711", 5, "KMS")])
    assert found == Split(
        [
            (b"one", "a", "4711", 5, "KMS", 0, None, True),
            (b"two", "b", "4711", 5, "KMS", 1, "7", True),
        ],
        [],
    )


def test_an_unreadable_aggregate_may_be_an_error() -> None:
    data = add_frame(KEY + user_record(1, None, b"x"))
    found = split_natively(records([data]), settings=DeaggregationSettings(unreadable=Unreadable.FAIL))
    assert isinstance(found, Unsplit)
    assert found.sequence_number == "4711"


@pytest.mark.parametrize("keys", [1, 2, 3, 8, 9, 40])
@pytest.mark.parametrize("length", [1, 55, 56, 63, 64, 65, 128, 250])
def test_a_key_is_routed_by_its_md5_whatever_its_length(keys: int, length: int) -> None:
    """Several keys are hashed side by side, in blocks of 64 bytes."""
    names = [f"{number}".rjust(length, "k")[-length:] for number in range(keys)]
    hashes = sorted(int.from_bytes(hashlib.md5(name.encode()).digest(), "big") for name in set(names))
    shard = HashRange(0, max(hashes[len(hashes) // 2], 1))
    settings = DeaggregationSettings(out_of_range=OutOfRange.DROP_RECORD)
    found = records([aggregate([PutEntry(b"", name) for name in names]).data])
    assert split_natively(found, shard, settings) == split_in_python(found, shard, settings)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 17])
def test_the_checksums_of_several_aggregates_of_different_lengths(count: int) -> None:
    """They are computed side by side; one of them is wrong."""
    data = [add_frame(KEY + user_record(0, None, bytes(37 * number))) for number in range(count)]
    data[count // 2] = data[count // 2][:-1] + b"?"
    check(records(data))


@pytest.mark.parametrize(
    "message",
    [
        KEY + user_record(0, None, b"") * 500_000,
        user_record(0, None, b"") * 20_000 + KEY,
        KEY * 1_000_000,
        b"\x1a\x00" * 2_000_000,
        partition_key(b"k" * 100_000) + user_record(0, None, b"") * 2_000,
        b"\x23\x24" * 2_000_000,
    ],
    ids=["500,000 records", "20,000 records", "keys", "empty records", "one long key", "groups"],
)
def test_a_forged_aggregate_of_megabytes(message: bytes) -> None:
    """It gets the outcome that it gets in Python, within the limits of memory that the settings give."""
    found = [Record(add_frame(message), "outer", "4711")]
    native = split_natively(found)
    python = split_in_python(found)
    assert native == python


@pytest.mark.parametrize(
    "found",
    [
        [Record(add_frame(KEY + USER * 200_000), "outer", "4711", None, "e" * 20_000)],
        [Record(add_frame(partition_key(b"k" * 50_000) + USER * 2_000), "outer", "4711")] * 3,
    ],
    ids=["one aggregate", "several with long keys"],
)
def test_user_records_that_repeat_too_many_bytes_are_an_error(found: list[Record]) -> None:
    """Each user record has its own copy of the key; hundreds of megabytes of copies are not allocated."""
    import leasehold_native

    with pytest.raises(OverflowError, match="split the batch"):
        leasehold_native.deaggregate(raw_batch(found))


def test_records_without_aggregates_share_the_columns() -> None:
    """Also those of a part of a batch."""
    import leasehold_native

    found = records([b"one", b"two", MAGIC, b"four", b"five"])
    batch = raw_batch(found)
    for start, count in ((0, 5), (1, 3), (4, 1), (5, 0), (2, 0)):
        part = batch.slice(start, count)
        users, incidents = leasehold_native.deaggregate(part)
        assert incidents == []
        assert leasehold_native.to_records(users, UserRecord) == [
            each.as_user_record() for each in found[start : start + count]
        ]
        assert [row[:5] for row in rows_of(users, USER_SCHEMA)] == [
            tuple(each) for each in found[start : start + count]
        ]


def test_a_part_of_a_batch_with_aggregates() -> None:
    import leasehold_native

    found = records([add_frame(KEY + USER * 2), b"plain", add_frame(KEY + USER), b"last"])
    batch = raw_batch(found)
    for start in range(5):
        users, _ = leasehold_native.deaggregate(batch.slice(start))
        expected = split_in_python(found[start:])
        assert isinstance(expected, Split)
        assert rows_of(users, USER_SCHEMA) == expected.rows


KEYS = st.sampled_from(["a", "b", "größe", "k" * 256]) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8
)
ENTRIES = st.builds(PutEntry, st.binary(max_size=20), KEYS, st.none() | st.integers(0, HASH_KEY_MAX))
SHARDS = st.none() | st.sampled_from([HALF, HashRange(1, HASH_KEY_MAX), HashRange(7, 8)])


@settings(max_examples=120, deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=12), SHARDS, st.integers(0), st.sampled_from(SETTINGS))
def test_generated_aggregates(
    entries: list[PutEntry], shard: HashRange | None, seed: int, each: DeaggregationSettings
) -> None:
    """Valid aggregates, aggregates with changed bytes and a valid checksum, and data with changed bytes."""
    data = aggregate(entries).data
    forged = [add_frame(message) for message in mutants(data[len(MAGIC) : -16], seed)]
    found = records([data, *forged, *mutants(data, seed, count=2)])
    for part in (found, *([record] for record in found)):
        assert split_natively(part, shard, each) == split_in_python(part, shard, each), [
            record.data.hex() for record in part
        ]
