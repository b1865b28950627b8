"""Putting records: what is accepted, which shard takes it, and which number it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from leasehold.core.model import HASH_KEY_MAX, ShardId
from leasehold.core.record import hash_key_of
from leasehold.core.stream_model.refusal import ErrorType, invalid_argument, throttled, validation
from leasehold.core.stream_model.stream import RECORD_KIB_DEFAULT, Stream

RECORDS_PER_PUT_MAX: Final = 500
_KIB: Final = 1024
_REQUEST_BYTES_MAX: Final = 5 * _KIB * _KIB
_REQUEST_BYTES_MAX_LARGE: Final = 10 * _KIB * _KIB


class Entry(NamedTuple):
    """A record to put."""

    partition_key: str
    data: bytes
    explicit_hash_key: int | None = None


class Stored(NamedTuple):
    """Where a record went."""

    shard_id: ShardId
    number: int


@dataclass(frozen=True, slots=True)
class NotStored:
    """A record of a larger put that was refused on its own."""

    error_type: ErrorType
    message: str


def record_size(partition_key: str, data: bytes) -> int:
    """What a record counts for in limits: its data and its key."""
    key_bytes = len(partition_key) if partition_key.isascii() else len(partition_key.encode())
    return len(data) + key_bytes


def put_record(stream: Stream, entry: Entry, now_ms: int, *, limited: bool) -> Stored:
    """Store one record or refuse it."""
    outcome = _put(stream, entry, _checked_size(stream, entry), now_ms, limited=limited)
    if isinstance(outcome, NotStored):
        raise throttled(outcome.message)
    return outcome


def put_records(
    stream: Stream, entries: Sequence[Entry], now_ms: int, *, limited: bool
) -> list[Stored | NotStored]:
    """Store records one by one, in order. A bad one refuses the whole call, a throttled one only itself."""
    if not 1 <= len(entries) <= RECORDS_PER_PUT_MAX:
        raise validation(
            f"1 validation error detected: Value at 'records' failed to satisfy constraint: {len(entries)} records, "
            f"Member must have length between 1 and {RECORDS_PER_PUT_MAX}"
        )
    sizes = [_checked_size(stream, entry) for entry in entries]
    _require_request_size(stream, sum(sizes))
    return [
        _put(stream, entry, size, now_ms, limited=limited) for entry, size in zip(entries, sizes, strict=True)
    ]


def _put(stream: Stream, entry: Entry, size: int, now_ms: int, *, limited: bool) -> Stored | NotStored:
    hash_key = entry.explicit_hash_key
    shard = stream.open_shard_for(hash_key_of(entry.partition_key) if hash_key is None else hash_key)
    if limited:
        if not shard.limits.may_write(now_ms, size):
            return NotStored(
                ErrorType.THROTTLED,
                f"Rate exceeded for shard {shard.id} in stream {stream.name} under account {stream.account_id}.",
            )
        shard.limits.count_write(now_ms, size)
    return Stored(shard.id, shard.append(entry.partition_key, entry.data, size, now_ms))


def _checked_size(stream: Stream, entry: Entry) -> int:
    """The size of a record that may be stored."""
    key = entry.partition_key
    if not 1 <= len(key) <= 256:
        raise validation(
            f"1 validation error detected: Value at 'partitionKey' of {len(key)} characters failed to satisfy "
            "constraint: Member must have length between 1 and 256"
        )
    if entry.explicit_hash_key is not None and not 0 <= entry.explicit_hash_key <= HASH_KEY_MAX:
        raise invalid_argument(
            "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was "
            f"{entry.explicit_hash_key}"
        )
    size = record_size(key, entry.data)
    if size > stream.record_kib_max * _KIB:
        raise validation(
            f"1 validation error detected: Value at 'data' failed to satisfy constraint: data and partition key "
            f"are {size} bytes, Member must have length less than or equal to {stream.record_kib_max * _KIB}. "
            "UpdateMaxRecordSize raises it to at most 10 MiB."
        )
    return size


def _require_request_size(stream: Stream, size: int) -> None:
    is_large = stream.record_kib_max > RECORD_KIB_DEFAULT
    allowed = _REQUEST_BYTES_MAX_LARGE if is_large else _REQUEST_BYTES_MAX
    if size > allowed:
        raise invalid_argument(f"Records size exceeds {allowed // _KIB // _KIB} MB limit: {size} bytes.")
