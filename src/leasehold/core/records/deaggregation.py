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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import dropwhile
from typing import Any, Final

from google.protobuf.message import DecodeError

from leasehold.core.model import HASH_KEY_MAX, WHOLE_HASH_RANGE, HashRange
from leasehold.core.position import Position
from leasehold.core.record import UNAGGREGATED, Record, UserRecord, hash_key_bytes
from leasehold.core.records.kpl_message import (
    FRAME_BYTES,
    INDEX_ABSENT,
    MAGIC,
    AggregatedRecord,
    count_entries,
    remove_frame,
)
from leasehold.errors import ConfigError, MalformedAggregateError

# Partition key and explicit hash key: they decide the shard of a user record.
_Keys = tuple[str, int | None]

_HASH_KEY_DIGITS_MAX: Final = len(str(HASH_KEY_MAX))

# Memory of one user record beside its data and key, rounded up: the tuple, the headers of two objects.
_USER_RECORD_BYTES: Final = 200
# The parser needs up to 40 bytes of memory per byte before it creates an object (10 MiB of empty records: 400 MB).
_PARSED_BYTES_PER_BYTE: Final = 40
_ENTRY_BYTES_MIN: Final = 2

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
    unreadable: Unreadable = Unreadable.DELIVER_RAW
    user_records_max: int = 200_000
    expanded_bytes_max: int = 128 * 1024 * 1024

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

    records: tuple[UserRecord, ...]
    incidents: tuple[Incident, ...] = ()


def deaggregate_all(
    records: Iterable[Record],
    shard: HashRange | None = None,
    settings: DeaggregationSettings = DEFAULT_DEAGGREGATION,
) -> DeaggregatedBatch:
    """The user records of all `records`, in order; see `deaggregate`."""
    user_records: list[UserRecord] = []
    incidents: list[Incident] = []
    new = tuple.__new__
    for record in records:
        # Most streams carry no aggregates, so a plain record costs only this test and a new tuple. The line is
        # `as_user_record` inlined, which is a quarter faster.
        if not record.data.startswith(MAGIC):
            user_records.append(new(UserRecord, record + UNAGGREGATED))
            continue
        result = deaggregate(record, shard, settings)
        user_records += result.records
        if result.outcome not in _WITHOUT_INCIDENT:
            incidents.append(Incident(record.sequence_number, result.outcome, result.dropped))
    return DeaggregatedBatch(tuple(user_records), tuple(incidents))


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
    data = record.data
    # Too short for an aggregate: the data starts with the magic bytes by chance.
    if not data.startswith(MAGIC) or len(data) <= FRAME_BYTES:
        return DeaggregationResult((record.as_user_record(),), DeaggregationOutcome.PLAIN)
    payload = remove_frame(data)
    if payload is None:
        return DeaggregationResult((record.as_user_record(),), DeaggregationOutcome.RAW_BAD_CHECKSUM)
    try:
        user_records = _user_records(record, payload, settings)
    except DecodeError:
        return DeaggregationResult((record.as_user_record(),), DeaggregationOutcome.RAW_MALFORMED)
    except _CannotSplitError as error:
        if settings.unreadable is Unreadable.FAIL:
            raise MalformedAggregateError(record.sequence_number, error.problem) from None
        return DeaggregationResult((_raw_record(error.count, record),), error.outcome)
    return _apply_range(shard, user_records, settings.out_of_range)


def records_after(records: Iterable[UserRecord], checkpoint: Position) -> tuple[UserRecord, ...]:
    """The records of one shard that remain when everything up to `checkpoint` is done.

    Reading resumes *at* the checkpoint's Kinesis record, because the checkpoint may lie within an aggregate. The
    records must be in shard order, because only the first ones are compared. Out of order, some would be delivered
    twice.
    """
    return tuple(dropwhile(lambda record: record.position <= checkpoint, records))


def _raw_record(count: int, record: Record) -> UserRecord:
    return record.as_user_record()._replace(sub_sequence_number=count - 1)


class _CannotSplitError(Exception):
    """The aggregate holds `count` user records and must be delivered raw."""

    def __init__(self, outcome: DeaggregationOutcome, count: int, problem: str) -> None:
        super().__init__(problem)
        self.outcome = outcome
        self.count = count
        self.problem = problem


def _user_records(record: Record, payload: bytes, settings: DeaggregationSettings) -> list[UserRecord]:
    _check_before_parsing(payload, settings)
    message = AggregatedRecord()
    message.ParseFromString(payload)
    # The protobuf runtime accepts a message without its required fields; Java does not.
    if not message.IsInitialized():
        raise DecodeError
    if not message.records:
        return []
    _check_counts(message, settings)
    table = list(message.partition_key_table)
    try:
        _check_expansion(message, table, len(payload), settings)
        return _build(record, message, table)
    except LookupError:
        raise _CannotSplitError(
            DeaggregationOutcome.RAW_BAD_KEY,
            len(message.records),
            "a user record refers to a partition key or an explicit hash key that is not in the aggregate's table, "
            "or to an explicit hash key that is not a number from 0 to 2^128-1; check its producer",
        ) from None


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
    message: Any, table: Sequence[bytes], payload_bytes: int, settings: DeaggregationSettings
) -> None:
    """Every user record repeats its partition key, so one long key and many short records can expand to gigabytes."""
    count = len(message.records)
    expanded = payload_bytes + count * _USER_RECORD_BYTES
    if expanded + count * max(map(len, table), default=0) <= settings.expanded_bytes_max:
        return  # fits even if all records use the longest key; the exact sum takes a pass over the records
    expanded += sum(len(table[inner.partition_key_index]) for inner in message.records)
    if expanded > settings.expanded_bytes_max:
        raise _CannotSplitError(
            DeaggregationOutcome.RAW_TOO_LARGE,
            count,
            f"its {count} user records expand to {expanded} bytes, more than "
            f"expanded_bytes_max={settings.expanded_bytes_max}; {_IF_TRUSTED}",
        )


def _build(record: Record, message: Any, table: Sequence[bytes]) -> list[UserRecord]:
    # Java also replaces invalid UTF-8 before it hashes the key.
    partition_keys = [key.decode("utf-8", "replace") for key in table]
    hash_keys = _hash_keys(message.explicit_hash_key_table)
    _, _, sequence_number, arrival_ms, encryption_type = record
    # The hot loop: 0.7 us per user record. Calling `UserRecord(...)` would take a fifth longer; see `record`.
    new = tuple.__new__
    user_records: list[UserRecord] = []
    for sub_sequence_number, inner in enumerate(message.records):
        index = inner.explicit_hash_key_index
        fields = (
            inner.data,
            partition_keys[inner.partition_key_index],
            sequence_number,
            arrival_ms,
            encryption_type,
            sub_sequence_number,
            None if index == INDEX_ABSENT else hash_keys[index],
            True,
        )
        user_records.append(new(UserRecord, fields))
    return user_records


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
    shard: HashRange | None, user_records: list[UserRecord], policy: OutOfRange
) -> DeaggregationResult:
    if shard is None or shard == WHOLE_HASH_RANGE or policy is OutOfRange.KEEP:
        return DeaggregationResult(tuple(user_records), DeaggregationOutcome.AGGREGATED)
    out_of_range = _keys_outside(
        shard, {(record.partition_key, record.explicit_hash_key) for record in user_records}
    )
    if not out_of_range:
        return DeaggregationResult(tuple(user_records), DeaggregationOutcome.AGGREGATED)
    kept: tuple[UserRecord, ...] = ()
    if policy is OutOfRange.DROP_RECORD:
        kept = tuple(
            record
            for record in user_records
            if (record.partition_key, record.explicit_hash_key) not in out_of_range
        )
    return DeaggregationResult(kept, DeaggregationOutcome.OUT_OF_RANGE, dropped=len(user_records) - len(kept))


def _keys_outside(shard: HashRange, keys: Iterable[_Keys]) -> set[_Keys]:
    # Big-endian bytes compare like the numbers; converting them to numbers takes longer than comparing.
    start, end = _as_bytes(shard.start), _as_bytes(shard.end)
    return {each for each in keys if not start <= _routing_bytes(*each) <= end}


def _routing_bytes(partition_key: str, explicit_hash_key: int | None) -> bytes:
    return hash_key_bytes(partition_key) if explicit_hash_key is None else _as_bytes(explicit_hash_key)


def _as_bytes(hash_key: int) -> bytes:
    return hash_key.to_bytes(16, "big")
