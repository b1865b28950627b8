"""Splits KPL aggregates into user records, and decides what to do with aggregates that are invalid or malicious. Logs
and counts nothing: the result says what happened, and the caller reports it.

The rules are the Java KCL's, so that all members of a fleet agree on positions: user records are numbered 0, 1, 2,
... by their place within the Kinesis record. Four rules differ (tests/scenarios/aggregation shows each, with the
reason):

* A key index outside its table, or an explicit hash key that is not a number below 2^128. Java keeps the user records
  before it and loses the rest, or drops everything. Here the whole Kinesis record is delivered raw.

* More user records, or more bytes when expanded, than the settings allow: delivered raw. Java has no limit.

* User records of another shard: Java's rule is the default (all user records of that Kinesis record are dropped), but
  the result says how many, and the settings can drop only those outside the shard, or none.

* Malformed tags are ignored together with valid ones; Java would deliver such a Kinesis record raw.

A raw record that replaces n user records gets the number n-1 of the last one (higher only if counting them would
itself be the attack). So a checkpoint at it covers all of them. It also lies after any checkpoint among them that a
member with other rules or limits wrote: the remaining user records are then read twice rather than lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from typing import Any, Final

from google.protobuf.message import DecodeError, EncodeError

from leasehold.core.model import HASH_KEY_MAX, WHOLE_HASH_RANGE, HashRange
from leasehold.core.position import Position
from leasehold.core.record import Record, UserRecord, md5, md5_digests
from leasehold.core.records.kpl_message import (
    FRAME_BYTES,
    INDEX_ABSENT,
    MAGIC,
    count_entries,
    new_aggregated_columns,
    new_aggregated_keyed_record,
    new_aggregated_record,
    remove_frame,
)
from leasehold.core.records.record_columns import (
    DATA,
    EXPLICIT_HASH_KEY,
    RecordColumns,
    UserRecordColumns,
    UserRecordSequence,
    as_user_records,
)
from leasehold.errors import ConfigError, MalformedAggregateError

_HASH_KEY_DIGITS_MAX: Final = len(str(HASH_KEY_MAX))

# Memory of one user record beside its data and key, rounded up: the tuple, the headers of two objects.
_USER_RECORD_BYTES: Final = 200
# The parser needs up to 40 bytes of memory per byte before it creates an object (10 MiB of empty records: 400 MB).
_PARSED_BYTES_PER_BYTE: Final = 40
_ENTRY_BYTES_MIN: Final = 2

# The first sub-sequence numbers. To copy them takes a fifth of the time of `range`, which creates those above 256.
_SUB_NUMBERS: Final = list(range(4_096))

_IF_TRUSTED: Final = "raise that limit if you trust the producer"


class OutOfRange(Enum):
    """What to do with user records whose hash key belongs to another shard.

    They occur when a shard is split or merged between batching and arrival. The KPL notices and sends again: old
    versions the whole aggregate, recent ones only the user records outside the shard. Hence DROP_AGGREGATE loses
    records of recent KPLs, DROP_RECORD repeats records of old ones, and KEEP repeats the records outside the shard of
    both.
    """

    DROP_AGGREGATE = "drop-aggregate"
    DROP_RECORD = "drop-record"
    KEEP = "keep"


class Unreadable(Enum):
    """What to do with an aggregate that has a valid checksum but cannot be split, or exceeds a limit."""

    DELIVER_RAW = "deliver-raw"
    FAIL = "fail"


class DeaggregationOutcome(Enum):
    """What happened to one Kinesis record. The RAW outcomes deliver it unchanged, as one record."""

    PLAIN = "plain"
    AGGREGATED = "aggregated"
    OUT_OF_RANGE = "out-of-range"
    RAW_BAD_CHECKSUM = "raw-bad-checksum"
    RAW_MALFORMED = "raw-malformed"
    RAW_BAD_KEY = "raw-bad-key"
    RAW_TOO_MANY = "raw-too-many"
    RAW_TOO_LARGE = "raw-too-large"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeaggregationSettings:
    """How aggregates are split. No aggregate of the KPL exceeds the default limits.

    1 MiB, the largest aggregate of the KPL, holds at most 174,758 user records; with keys of 256 characters they
    expand to 80 MB. Kinesis itself accepts up to 10 MiB, and anyone with put permission may forge an aggregate.
    """

    out_of_range: OutOfRange = OutOfRange.DROP_AGGREGATE
    """What to do with parts of a KPL aggregate that belong to another shard: `drop-aggregate` (as the KCL),
    `drop-record`, `keep`.

    """
    unreadable: Unreadable = Unreadable.DELIVER_RAW
    """What to do with an aggregate that cannot be deaggregated: `deliver-raw` or `fail`."""
    user_records_max: int = 200_000
    """The most user records of one aggregate; one with more is unreadable.

    Unit: records
    """
    expanded_bytes_max: int = 128 * 1024 * 1024
    """The most bytes of one aggregate when it is deaggregated; one with more is unreadable.

    Unit: bytes
    """

    def __post_init__(self) -> None:
        if self.user_records_max < 1 or self.expanded_bytes_max < 1:
            raise ConfigError(
                f"user_records_max={self.user_records_max}, expanded_bytes_max={self.expanded_bytes_max}: both "
                "limits must be at least 1"
            )


DEFAULT_DEAGGREGATION: Final = DeaggregationSettings()


@dataclass(frozen=True, slots=True)
class DeaggregationResult:
    """The user records of one Kinesis record, and what happened to it.

    `dropped` counts the user records of other shards that were left out. No record is left out for another reason.
    """

    records: tuple[UserRecord, ...]
    outcome: DeaggregationOutcome
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Incident:
    """A Kinesis record that could not be split completely: worth a count and a warning."""

    sequence_number: str
    outcome: DeaggregationOutcome
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class DeaggregatedBatch:
    """The user records of many Kinesis records, in order, and the incidents among them."""

    records: UserRecordSequence
    incidents: tuple[Incident, ...] = ()


class SelfDeaggregating(ABC):
    """Kinesis records in a representation that has its own deaggregation, with the same results."""

    @abstractmethod
    def deaggregate(self, shard: HashRange | None, settings: DeaggregationSettings) -> DeaggregatedBatch:
        """The user records of all records, in order; see `deaggregate`."""


def deaggregate_all(
    records: Sequence[Record],
    shard: HashRange | None = None,
    settings: DeaggregationSettings = DEFAULT_DEAGGREGATION,
) -> DeaggregatedBatch:
    """The user records of all `records`, in order; see `deaggregate`."""
    if isinstance(records, SelfDeaggregating):
        return records.deaggregate(shard, settings)
    columns = RecordColumns.of(records)
    framed = [index for index, data in enumerate(columns.columns[DATA]) if data.startswith(MAGIC)]
    if not framed:  # as in most streams
        return DeaggregatedBatch(UserRecordColumns.unaggregated(columns))
    users = UserRecordColumns.of(())
    incidents: list[Incident] = []
    after = 0
    for index in framed:
        if after < index:
            users.extend(UserRecordColumns.unaggregated(columns[after:index]))
        record = columns[index]
        split = _split(record, shard, settings)
        # At once, while the processor still has the new values in its cache.
        users.extend(split.users)
        if split.outcome not in _WITHOUT_INCIDENT:
            incidents.append(Incident(record.sequence_number, split.outcome, split.dropped))
        after = index + 1
    users.extend(UserRecordColumns.unaggregated(columns[after:]))
    return DeaggregatedBatch(users, tuple(incidents))


def as_archived(records: Sequence[object]) -> DeaggregatedBatch | None:
    """The records of an archive's page, which are user records already. None for records of the stream.

    A page has only one of the two kinds.
    """
    if isinstance(records, UserRecordSequence):
        return DeaggregatedBatch(records)
    if not records or not isinstance(records[0], UserRecord):
        return None
    return DeaggregatedBatch(UserRecordColumns.of(each for each in records if isinstance(each, UserRecord)))


_WITHOUT_INCIDENT: Final = {DeaggregationOutcome.PLAIN, DeaggregationOutcome.AGGREGATED}


def deaggregate(
    record: Record,
    shard: HashRange | None = None,
    settings: DeaggregationSettings = DEFAULT_DEAGGREGATION,
) -> DeaggregationResult:
    """The user records within `record`, or `record` itself if it is not an aggregate. Raises only if the settings say
    so.

    `shard` is the hash range of the shard that was read, never of a child. Without it, no user record is out of
    range.
    """
    if (archived := as_archived([record])) is not None:
        return DeaggregationResult(tuple(archived.records), DeaggregationOutcome.PLAIN)
    split = _split(record, shard, settings)
    return DeaggregationResult(tuple(split.users), split.outcome, split.dropped)


@dataclass(frozen=True, slots=True)
class _Split:
    """As `DeaggregationResult`, with the user records as columns."""

    users: UserRecordColumns
    outcome: DeaggregationOutcome
    dropped: int = 0


def _split(record: Record, shard: HashRange | None, settings: DeaggregationSettings) -> _Split:
    data = record.data
    # Too short for an aggregate: the data starts with the magic bytes by chance.
    if not data.startswith(MAGIC) or len(data) <= FRAME_BYTES:
        return _whole(record, DeaggregationOutcome.PLAIN)
    payload = remove_frame(data)
    if payload is None:
        return _whole(record, DeaggregationOutcome.RAW_BAD_CHECKSUM)
    try:
        return _split_message(record, payload, shard, settings)
    except DecodeError:
        return _whole(record, DeaggregationOutcome.RAW_MALFORMED)
    except _CannotSplitError as error:
        if settings.unreadable is Unreadable.FAIL:
            raise MalformedAggregateError(record.sequence_number, error.problem) from None
        return _whole(record, error.outcome, sub_sequence_number=error.count - 1)


def _whole(record: Record, outcome: DeaggregationOutcome, sub_sequence_number: int = 0) -> _Split:
    user = record.as_user_record()._replace(sub_sequence_number=sub_sequence_number)
    return _Split(UserRecordColumns.of([user]), outcome)


def records_after(records: Sequence[UserRecord], checkpoint: Position) -> UserRecordSequence:
    """The records of one shard that remain when everything up to `checkpoint` is done.

    Reading resumes *at* the checkpoint's Kinesis record, because the checkpoint may lie within an aggregate. The
    records must be in shard order, because only the first ones are compared. Out of order, some would be delivered
    twice.
    """
    # Not by iteration, which would make an object of every record of a page.
    columns = as_user_records(records)
    later = (index for index in range(len(columns)) if columns.position(index) > checkpoint)
    return columns[next(later, len(columns)) :]


class _CannotSplitError(Exception):
    """The aggregate holds `count` user records and must be delivered raw."""

    def __init__(self, outcome: DeaggregationOutcome, count: int, problem: str) -> None:
        super().__init__(problem)
        self.outcome = outcome
        self.count = count
        self.problem = problem


def _split_message(
    record: Record, payload: bytes, shard: HashRange | None, settings: DeaggregationSettings
) -> _Split:
    _check_before_parsing(payload, settings)
    message = new_aggregated_record()
    message.ParseFromString(payload)
    _check_required_fields(message)
    if not message.records:
        return _Split(UserRecordColumns.of(()), DeaggregationOutcome.AGGREGATED)
    _check_counts(message, settings)
    table = list(message.partition_key_table)
    rows = _rows(message, payload)
    try:
        _check_expansion(rows, table, len(payload), settings)
        keys = _Keys(table)
        users = _build(record, rows, keys, message.explicit_hash_key_table)
    except LookupError:
        raise _CannotSplitError(
            DeaggregationOutcome.RAW_BAD_KEY,
            len(message.records),
            "a user record refers to a partition key or an explicit hash key that is not in the aggregate's table, "
            "or to an explicit hash key that is not a number from 0 to 2^128-1; check its producer",
        ) from None
    if shard is None or shard == WHOLE_HASH_RANGE or settings.out_of_range is OutOfRange.KEEP:
        return _Split(users, DeaggregationOutcome.AGGREGATED)
    outside = keys.outside(shard, rows, users.columns[EXPLICIT_HASH_KEY])
    return _apply_range(users, rows, outside, settings.out_of_range)


def _check_required_fields(message: Any) -> None:
    """Raise DecodeError if a required field is absent, as Java does. The protobuf runtime parses such a message."""
    try:
        # It checks the fields, too, in half of the time of `IsInitialized`.
        message.SerializeToString()
    except EncodeError:
        raise DecodeError from None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The fields of all user records of an aggregate. `hash_key_indexes` is empty if no user record has one."""

    data: list[bytes]
    key_indexes: list[int]
    hash_key_indexes: list[int]

    @property
    def has_only_hash_keys(self) -> bool:
        """Whether every user record has an explicit hash key."""
        # No index is higher than that of an absent key.
        return bool(self.hash_key_indexes) and max(self.hash_key_indexes) != INDEX_ABSENT

    def distinct_keys(self) -> Iterable[tuple[int, int]]:
        """Each pair of indexes that occurs."""
        if self.hash_key_indexes:
            return set(zip(self.key_indexes, self.hash_key_indexes, strict=True))
        return zip(set(self.key_indexes), repeat(INDEX_ABSENT))


def _rows(message: Any, payload: bytes) -> _Rows:
    """The fields of the user records, from the parser's columns if these are aligned."""
    try:
        columns = _aligned_rows(len(message.records), payload)
    except DecodeError:
        # In the columns, a field that is unknown to the message may be a packed list, and an invalid one.
        columns = None
    return columns or _Rows(
        [inner.data for inner in message.records],
        [inner.partition_key_index for inner in message.records],
        [inner.explicit_hash_key_index for inner in message.records],
    )


def _aligned_rows(count: int, payload: bytes) -> _Rows | None:
    """The parser's columns; None if a user record has a field several times, or only some have a hash key."""
    merged = new_aggregated_columns()
    merged.ParseFromString(payload)
    columns = merged.records
    data, keys, hash_keys = columns.data, columns.partition_key_index, columns.explicit_hash_key_index
    # Every user record has each required field at least once, because the message is initialized. So if the numbers
    # are equal, each has it exactly once. The lengths are compared first: a malicious user record may repeat a field
    # a million times.
    if len(data) == len(keys) == count and _are_aligned(hash_keys, count, payload):
        return _Rows(list(data), list(keys), list(hash_keys))
    return None


def _are_aligned(hash_keys: Sequence[int], count: int, payload: bytes) -> bool:
    """True if no user record has an explicit hash key, or each has exactly one."""
    if not hash_keys:
        return True
    if len(hash_keys) != count:
        return False
    keyed = new_aggregated_keyed_record()
    keyed.ParseFromString(payload)
    return bool(keyed.IsInitialized())


def _check_before_parsing(payload: bytes, settings: DeaggregationSettings) -> None:
    if len(payload) * _PARSED_BYTES_PER_BYTE <= settings.expanded_bytes_max:
        return
    entries_max = 3 * settings.user_records_max  # user records and two tables
    if count_entries(payload, stop_after=entries_max) > entries_max:
        raise _CannotSplitError(
            DeaggregationOutcome.RAW_TOO_MANY,
            len(payload) // _ENTRY_BYTES_MIN,  # an upper bound; counting all of them is the attack
            f"it holds more than {entries_max} user records and keys, three times "
            f"user_records_max={settings.user_records_max}; {_IF_TRUSTED}",
        )


def _check_counts(message: Any, settings: DeaggregationSettings) -> None:
    records = len(message.records)
    keys = max(len(message.partition_key_table), len(message.explicit_hash_key_table))
    if max(records, keys) > settings.user_records_max:
        raise _CannotSplitError(
            DeaggregationOutcome.RAW_TOO_MANY,
            records,
            f"it holds {records} user records and up to {keys} keys per table, more than "
            f"user_records_max={settings.user_records_max}; {_IF_TRUSTED}",
        )


def _check_expansion(
    rows: _Rows, table: Sequence[bytes], payload_bytes: int, settings: DeaggregationSettings
) -> None:
    """Every user record repeats its partition key, so one long key and many short records can expand to gigabytes."""
    count = len(rows.data)
    expanded = payload_bytes + count * _USER_RECORD_BYTES
    # No key is longer than the aggregate.
    if expanded + count * payload_bytes <= settings.expanded_bytes_max:
        return
    if expanded + count * max(map(len, table), default=0) <= settings.expanded_bytes_max:
        return  # fits even if all records use the longest key; the exact sum takes a pass over the records
    expanded += sum(len(table[index]) for index in rows.key_indexes)
    if expanded > settings.expanded_bytes_max:
        raise _CannotSplitError(
            DeaggregationOutcome.RAW_TOO_LARGE,
            count,
            f"its {count} user records expand to {expanded} bytes, more than "
            f"expanded_bytes_max={settings.expanded_bytes_max}; {_IF_TRUSTED}",
        )


class _Keys:
    """The partition keys of an aggregate, to which user records refer by index."""

    def __init__(self, partition_keys: Sequence[bytes]) -> None:
        try:
            self.texts = list(map(bytes.decode, partition_keys))
            self._hashed = partition_keys
        except UnicodeDecodeError:
            # Java also replaces invalid UTF-8 before it hashes the key.
            self.texts = [key.decode("utf-8", "replace") for key in partition_keys]
            self._hashed = [text.encode() for text in self.texts]

    def outside(self, shard: HashRange, rows: _Rows, hash_keys: Sequence[int | None]) -> set[tuple[int, int]]:
        """The pairs of indexes whose hash key lies outside the shard. `hash_keys` are the explicit ones, by row."""
        if rows.has_only_hash_keys:
            known = [each for each in hash_keys if each is not None]
            if shard.start <= min(known) and max(known) <= shard.end:
                return set()
        elif not rows.hash_key_indexes and self._are_all_inside(shard, len(rows.data)):
            return set()
        start, end = _as_bytes(shard.start), _as_bytes(shard.end)
        by_index = dict(zip(rows.hash_key_indexes, hash_keys, strict=False))
        return {
            pair
            for pair in rows.distinct_keys()
            if not start <= self._routing_bytes(pair[0], by_index.get(pair[1])) <= end
        }

    def _are_all_inside(self, shard: HashRange, count: int) -> bool:
        """True if all keys of the table belong to the shard, so those that user records refer to do as well.

        False if this is unknown because the table has more keys than there are user records: each costs an MD5.
        """
        if len(self._hashed) > count:
            return False
        # Big-endian bytes compare like the numbers; converting them to numbers takes longer than comparing.
        digests = md5_digests(self._hashed)
        return _as_bytes(shard.start) <= min(digests) and max(digests) <= _as_bytes(shard.end)

    def _routing_bytes(self, key_index: int, hash_key: int | None) -> bytes:
        return md5(self._hashed[key_index]).digest() if hash_key is None else _as_bytes(hash_key)


def _build(record: Record, rows: _Rows, keys: _Keys, hash_key_table: Sequence[bytes]) -> UserRecordColumns:
    """The user records of an aggregate. Raises LookupError for an index outside its table."""
    count = len(rows.data)
    _, _, sequence_number, arrival_ms, encryption_type = record
    hash_keys = (
        _find_hash_keys(rows.hash_key_indexes, list(hash_key_table))
        if rows.hash_key_indexes
        else [None] * count
    )
    return UserRecordColumns(
        [
            rows.data,
            list(map(keys.texts.__getitem__, rows.key_indexes)),
            [sequence_number] * count,
            [arrival_ms] * count,
            [encryption_type] * count,
            _SUB_NUMBERS[:count] if count <= len(_SUB_NUMBERS) else list(range(count)),
            hash_keys,
            [True] * count,
        ]
    )


def _find_hash_keys(indexes: Sequence[int], table: Sequence[bytes]) -> list[int | None]:
    """The explicit hash key of each user record. Raises LookupError for an index outside the table."""
    is_valid = max(indexes) < len(table) and all(table) and b"".join(table).isdigit()
    if is_valid and max(map(len, table)) <= _HASH_KEY_DIGITS_MAX:
        # As in every aggregate of the KPL.
        numbers = list(map(int, table))
        if max(numbers) <= HASH_KEY_MAX:
            return list(map(numbers.__getitem__, indexes))
    known: dict[int, int | None] = {**_hash_keys(table), INDEX_ABSENT: None}
    return [known[index] for index in indexes]


def _hash_keys(table: Iterable[bytes]) -> dict[int, int]:
    """Index -> explicit hash key. Invalid keys are left out: they matter only if a user record refers to them."""
    # bytes.isdigit accepts ASCII digits only. The length is checked first, because int() takes quadratic time.
    numbers = {
        index: int(text)
        for index, text in enumerate(table)
        if len(text) <= _HASH_KEY_DIGITS_MAX and text.isdigit()
    }
    return {index: number for index, number in numbers.items() if number <= HASH_KEY_MAX}


def _apply_range(
    users: UserRecordColumns, rows: _Rows, outside: set[tuple[int, int]], policy: OutOfRange
) -> _Split:
    if not outside:
        return _Split(users, DeaggregationOutcome.AGGREGATED)
    kept = users[:0]
    if policy is OutOfRange.DROP_RECORD:
        pairs = zip(rows.key_indexes, rows.hash_key_indexes or repeat(INDEX_ABSENT), strict=False)
        kept = users.take([index for index, pair in enumerate(pairs) if pair not in outside])
    return _Split(kept, DeaggregationOutcome.OUT_OF_RANGE, dropped=len(users) - len(kept))


def _as_bytes(hash_key: int) -> bytes:
    return hash_key.to_bytes(16, "big")
