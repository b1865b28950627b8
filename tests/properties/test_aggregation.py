"""Properties of every aggregate, valid or forged."""

from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasehold.core.model import HASH_KEY_MAX, HashRange
from leasehold.core.position import Position
from leasehold.core.record import PutEntry, Record, UserRecord
from leasehold.core.records.aggregation import Aggregator, aggregate
from leasehold.core.records.deaggregation import (
    DeaggregationOutcome,
    DeaggregationResult,
    DeaggregationSettings,
    OutOfRange,
    deaggregate,
    deaggregate_all,
    records_after,
)
from tests.kpl_encoder import MAGIC, add_frame, hash_key, partition_key, user_record

HASH_KEYS = st.integers(0, HASH_KEY_MAX) | st.integers(0, 3) | st.integers(HASH_KEY_MAX - 3, HASH_KEY_MAX)
# Few different keys make shared table entries likely, long data makes lengths of several bytes.
KEYS = st.sampled_from(["a", "b", "größe", "k" * 256]) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8
)
DATA = st.binary(max_size=20) | st.sampled_from([127, 128, 16_383, 16_384]).map(bytes)
ENTRIES = st.builds(PutEntry, DATA, KEYS, st.none() | HASH_KEYS)
SHARDS = st.builds(
    lambda a, b: HashRange(min(a, b), max(a, b) + (a == b)), HASH_KEYS, st.integers(0, HASH_KEY_MAX - 1)
)


def record(data: bytes) -> Record:
    return Record(data, "outer", "4711", 1_700_000_000_000)


def as_put(users: tuple[UserRecord, ...]) -> list[PutEntry]:
    return [PutEntry(user.data, user.partition_key, user.explicit_hash_key) for user in users]


@settings(max_examples=500, deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=30))
def test_splitting_inverts_aggregating(entries: list[PutEntry]) -> None:
    """The user records come out in order, numbered from 0."""
    result = deaggregate(record(aggregate(entries).data))
    assert (result.outcome, result.dropped) == (DeaggregationOutcome.AGGREGATED, 0)
    assert as_put(result.records) == entries
    assert [user.position for user in result.records] == [
        Position("4711", sub) for sub in range(len(entries))
    ]
    assert all(user.aggregated and user.arrival_ms == 1_700_000_000_000 for user in result.records)


@settings(max_examples=500, deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=30))
def test_size_equals_the_length_of_the_data(entries: list[PutEntry]) -> None:
    """After every added record."""
    for count in range(1, len(entries) + 1):
        aggregator = Aggregator()
        for entry in entries[:count]:
            assert aggregator.add(entry)
        assert aggregator.size == len(aggregator.flush().data)


@settings(max_examples=20, deadline=None)
@given(st.integers(100, 400), st.booleans())
def test_size_is_right_with_two_byte_indices(count: int, with_hash_keys: bool) -> None:
    """With so many keys that an index takes two bytes."""
    aggregator = Aggregator()
    for number in range(count):
        aggregator.add(PutEntry(b"x", f"key-{number}", number if with_hash_keys else None))
    assert aggregator.size == len(aggregator.flush().data)


@settings(max_examples=500, deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=20), SHARDS, st.sampled_from(OutOfRange))
def test_out_of_range_records_are_counted_or_kept(
    entries: list[PutEntry], shard: HashRange, policy: OutOfRange
) -> None:
    """Each policy keeps the right records, by the hash key that Kinesis uses, and counts the others."""
    inside = [entry for entry in entries if entry.hash_key in shard]
    kept = {
        OutOfRange.DROP_AGGREGATE: entries if len(inside) == len(entries) else [],
        OutOfRange.DROP_RECORD: inside,
        OutOfRange.KEEP: entries,
    }[policy]
    result = deaggregate(record(aggregate(entries).data), shard, DeaggregationSettings(out_of_range=policy))
    assert as_put(result.records) == kept
    assert result.dropped == len(entries) - len(kept)
    assert result.outcome is (
        DeaggregationOutcome.OUT_OF_RANGE if result.dropped else DeaggregationOutcome.AGGREGATED
    )


@dataclass(frozen=True)
class Forged:
    """A well-formed message with arbitrary indices, and the number of its user records."""

    message: bytes
    count: int


@st.composite
def forged(draw: st.DrawFn) -> Forged:
    indices = st.integers(0, 3) | st.sampled_from([127, 128, 2**31, 2**32, 2**63, 2**64 - 1])
    keys = draw(st.lists(st.binary(max_size=5), max_size=3))
    hash_keys = draw(
        st.lists(st.sampled_from([b"5", b"007", b"", b"x", b"-1", b"9" * 39, b"1" * 50]), max_size=3)
    )
    inner = st.tuples(indices, st.none() | indices, st.binary(max_size=5))
    records = draw(st.lists(inner, max_size=8))
    parts = [*map(partition_key, keys), *map(hash_key, hash_keys), *(user_record(*each) for each in records)]
    return Forged(b"".join(draw(st.permutations(parts))), len(records))


SOME_SETTINGS = st.builds(
    DeaggregationSettings,
    out_of_range=st.sampled_from(OutOfRange),
    user_records_max=st.sampled_from([1, 4, 200_000]),
    expanded_bytes_max=st.sampled_from([1, 500, 2**27]),
)


def check_nothing_is_lost(given_record: Record, result: DeaggregationResult) -> None:
    """Either the user records, with the missing ones counted, or the raw record."""
    if result.outcome in {DeaggregationOutcome.AGGREGATED, DeaggregationOutcome.OUT_OF_RANGE}:
        assert all(user.aggregated for user in result.records)
        assert (result.dropped > 0) == (result.outcome is DeaggregationOutcome.OUT_OF_RANGE)
    else:
        (user,) = result.records
        assert user[:5] == given_record
        assert not user.aggregated
        assert result.dropped == 0


@settings(max_examples=500, deadline=None)
@given(forged(), st.none() | SHARDS, SOME_SETTINGS)
@example(Forged(b"", 0), None, DeaggregationSettings())
def test_no_user_record_is_lost_without_being_counted(
    forged: Forged, shard: HashRange | None, chosen: DeaggregationSettings
) -> None:
    """Every user record is delivered, reported as dropped, or covered by the raw record."""
    given_record = record(add_frame(forged.message))
    result = deaggregate(given_record, shard, chosen)
    check_nothing_is_lost(given_record, result)
    if result.outcome in {DeaggregationOutcome.AGGREGATED, DeaggregationOutcome.OUT_OF_RANGE}:
        assert len(result.records) + result.dropped == forged.count
    elif forged.count:
        assert result.records[0].sub_sequence_number >= forged.count - 1


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=200), st.booleans(), SOME_SETTINGS)
def test_any_bytes_are_delivered(content: bytes, with_frame: bool, chosen: DeaggregationSettings) -> None:
    """Arbitrary bytes, in a correct frame or after the magic bytes only, never raise and are never lost."""
    given_record = record(add_frame(content) if with_frame else MAGIC + content)
    check_nothing_is_lost(given_record, deaggregate(given_record, HashRange(0, 2**127), chosen))


@settings(max_examples=500, deadline=None)
@given(forged(), st.data())
def test_damaged_messages_are_delivered(forged: Forged, data: st.DataObject) -> None:
    """A valid message with some bytes changed, but a correct checksum, never raises and is never lost."""
    message = bytearray(forged.message)
    for _ in range(data.draw(st.integers(1, 4))) if message else ():
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    given_record = record(add_frame(bytes(message)))
    check_nothing_is_lost(given_record, deaggregate(given_record))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.binary(max_size=30) | st.lists(ENTRIES, min_size=1, max_size=5), max_size=8),
    st.none() | SHARDS,
)
def test_a_batch_equals_its_single_records(
    contents: list[bytes | list[PutEntry]], shard: HashRange | None
) -> None:
    """Splitting a batch is the same as splitting each of its records."""
    records = [
        Record(each if isinstance(each, bytes) else aggregate(each).data, "outer", str(number))
        for number, each in enumerate(contents)
    ]
    singles = [deaggregate(each, shard) for each in records]
    batch = deaggregate_all(records, shard)
    assert batch.records == tuple(user for single in singles for user in single.records)
    assert sum(each.dropped for each in batch.incidents) == sum(each.dropped for each in singles)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), unique=True).map(sorted),
    st.integers(0, 20),
    st.integers(0, 3),
)
def test_resuming_keeps_the_records_after_the_checkpoint(
    places: list[tuple[int, int]], number: int, sub: int
) -> None:
    """Sequence numbers compare as numbers."""
    users = [UserRecord(b"", "k", str(each), sub_sequence_number=part) for each, part in places]
    left = records_after(users, Position(str(number), sub))
    assert [(int(user.sequence_number), user.sub_sequence_number) for user in left] == [
        place for place in places if place > (number, sub)
    ]
