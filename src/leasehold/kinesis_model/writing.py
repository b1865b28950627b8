"""PutRecord and PutRecords: validation, the choice of the shard, and the sequence number."""

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
    """One record of a PutRecord or PutRecords request."""

    partition_key: str
    data: bytes
    explicit_hash_key: int | None = None


class PutResult(NamedTuple):
    """The shard and the sequence number of a stored record."""

    shard_id: ShardId
    number: int


@dataclass(frozen=True, slots=True)
class PutFailure:
    """The reason why one record of a PutRecords call was not stored."""

    error_type: ErrorType
    message: str


def record_size(partition_key: str, data: bytes) -> int:
    """Return the bytes of a record that count towards the limits: those of its data and its partition key."""
    key_bytes = len(partition_key) if partition_key.isascii() else len(partition_key.encode())
    return len(data) + key_bytes


def put_record(stream: StreamState, entry: PutRequest, now_ms: int, *, enforce_limits: bool) -> PutResult:
    """Store one record, or refuse the request."""
    outcome = _put(stream, entry, _validate_and_measure(stream, entry), now_ms, enforce_limits=enforce_limits)
    if isinstance(outcome, PutFailure):
        raise throttled_error(outcome.message)
    return outcome


def put_records(
    stream: StreamState, entries: Sequence[PutRequest], now_ms: int, *, enforce_limits: bool
) -> list[PutResult | PutFailure]:
    """Store records in order. An invalid record fails the whole call, a throttled one only itself."""
    if not 1 <= len(entries) <= RECORDS_PER_PUT_MAX:
        raise validation_error(
            f"1 validation error detected: Value at 'records' failed to satisfy constraint: {len(entries)} records, "
            f"Member must have length between 1 and {RECORDS_PER_PUT_MAX}"
        )
    sizes = [_validate_and_measure(stream, entry) for entry in entries]
    _require_request_size(stream, sum(sizes))
    return [
        _put(stream, entry, size, now_ms, enforce_limits=enforce_limits)
        for entry, size in zip(entries, sizes, strict=True)
    ]


def _put(
    stream: StreamState, entry: PutRequest, size: int, now_ms: int, *, enforce_limits: bool
) -> PutResult | PutFailure:
    hash_key = entry.explicit_hash_key
    shard = stream.open_shard_for(hash_key_of(entry.partition_key) if hash_key is None else hash_key)
    if enforce_limits:
        if not shard.limits.may_write(now_ms, size):
            return PutFailure(
                ErrorType.THROTTLED,
                f"Rate exceeded for shard {shard.id} in stream {stream.label}.",
            )
        shard.limits.count_write(now_ms, size)
    return PutResult(shard.id, shard.append(entry.partition_key, entry.data, size, now_ms))


def _validate_and_measure(stream: StreamState, entry: PutRequest) -> int:
    """Validate a record and return its size."""
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
    if size > stream.config.record_kib_max * _KIB:
        raise validation_error(
            f"1 validation error detected: Value at 'data' failed to satisfy constraint: data and partition key "
            f"are {size} bytes, Member must have length less than or equal to {stream.config.record_kib_max * _KIB}. "
            "UpdateMaxRecordSize raises the limit up to 10 MiB."
        )
    return size


def _require_request_size(stream: StreamState, size: int) -> None:
    is_large = stream.config.record_kib_max > RECORD_KIB_DEFAULT
    allowed = _REQUEST_BYTES_MAX_LARGE if is_large else _REQUEST_BYTES_MAX
    if size > allowed:
        raise invalid_argument_error(
            f"Records size exceeds {allowed // _KIB // _KIB} MB limit: {size} bytes."
        )
