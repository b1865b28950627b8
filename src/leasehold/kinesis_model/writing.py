"""Putting records: what is accepted, which shard takes it, and which number it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from leasehold.core.model import HASH_KEY_MAX, ShardId
from leasehold.core.record import hash_key_of
from leasehold.kinesis_model.api_errors import (
    ErrorType,
    invalid_argument_error,
    throttled_error,
    validation_error,
)
from leasehold.kinesis_model.stream import RECORD_KIB_DEFAULT, StreamState

RECORDS_PER_PUT_MAX: Final = 500
_KIB: Final = 1024
_REQUEST_BYTES_MAX: Final = 5 * _KIB * _KIB
_REQUEST_BYTES_MAX_LARGE: Final = 10 * _KIB * _KIB


class PutRequest(NamedTuple):
    """A record to put."""

    partition_key: str
    data: bytes
    explicit_hash_key: int | None = None


class PutResult(NamedTuple):
    """Where a record went."""

    shard_id: ShardId
    number: int


@dataclass(frozen=True, slots=True)
class PutFailure:
    """A record of a larger put that was refused on its own."""

    error_type: ErrorType
    message: str


def record_size(partition_key: str, data: bytes) -> int:
    """What a record counts for in limits: its data and its key."""
    key_bytes = len(partition_key) if partition_key.isascii() else len(partition_key.encode())
    return len(data) + key_bytes


def put_record(stream: StreamState, entry: PutRequest, now_ms: int, *, limited: bool) -> PutResult:
    """Store one record or refuse it."""
    outcome = _put(stream, entry, _checked_size(stream, entry), now_ms, limited=limited)
    if isinstance(outcome, PutFailure):
        raise throttled_error(outcome.message)
    return outcome


def put_records(
    stream: StreamState, entries: Sequence[PutRequest], now_ms: int, *, limited: bool
) -> list[PutResult | PutFailure]:
    """Store records one by one, in order. A bad one refuses the whole call, a throttled one only itself."""
    if not 1 <= len(entries) <= RECORDS_PER_PUT_MAX:
        raise validation_error(
            f"1 validation error detected: Value at 'records' failed to satisfy constraint: {len(entries)} records, "
            f"Member must have length between 1 and {RECORDS_PER_PUT_MAX}"
        )
    sizes = [_checked_size(stream, entry) for entry in entries]
    _require_request_size(stream, sum(sizes))
    return [
        _put(stream, entry, size, now_ms, limited=limited) for entry, size in zip(entries, sizes, strict=True)
    ]


def _put(
    stream: StreamState, entry: PutRequest, size: int, now_ms: int, *, limited: bool
) -> PutResult | PutFailure:
    hash_key = entry.explicit_hash_key
    shard = stream.open_shard_for(hash_key_of(entry.partition_key) if hash_key is None else hash_key)
    if limited:
        if not shard.limits.may_write(now_ms, size):
            return PutFailure(
                ErrorType.THROTTLED,
                f"Rate exceeded for shard {shard.id} in stream {stream.name} under account {stream.account_id}.",
            )
        shard.limits.count_write(now_ms, size)
    return PutResult(shard.id, shard.append(entry.partition_key, entry.data, size, now_ms))


def _checked_size(stream: StreamState, entry: PutRequest) -> int:
    """The size of a record that may be stored."""
    key = entry.partition_key
    if not 1 <= len(key) <= 256:
        raise validation_error(
            f"1 validation error detected: Value at 'partitionKey' of {len(key)} characters failed to satisfy "
            "constraint: Member must have length between 1 and 256"
        )
    if entry.explicit_hash_key is not None and not 0 <= entry.explicit_hash_key <= HASH_KEY_MAX:
        raise invalid_argument_error(
            "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was "
            f"{entry.explicit_hash_key}"
        )
    size = record_size(key, entry.data)
    if size > stream.record_kib_max * _KIB:
        raise validation_error(
            f"1 validation error detected: Value at 'data' failed to satisfy constraint: data and partition key "
            f"are {size} bytes, Member must have length less than or equal to {stream.record_kib_max * _KIB}. "
            "UpdateMaxRecordSize raises it to at most 10 MiB."
        )
    return size


def _require_request_size(stream: StreamState, size: int) -> None:
    is_large = stream.record_kib_max > RECORD_KIB_DEFAULT
    allowed = _REQUEST_BYTES_MAX_LARGE if is_large else _REQUEST_BYTES_MAX
    if size > allowed:
        raise invalid_argument_error(
            f"Records size exceeds {allowed // _KIB // _KIB} MB limit: {size} bytes."
        )
