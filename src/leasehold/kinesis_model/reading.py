"""Reading a shard: starting positions, iterators, pages of records, and the children at the end of a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from leasehold.core.model import ChildShard
from leasehold.core.position import sequence_value
from leasehold.errors import InvalidPositionError
from leasehold.kinesis_model.api_errors import (
    ErrorType,
    KinesisApiError,
    invalid_argument_error,
    throttled_error,
)
from leasehold.kinesis_model.record_log import RecordColumns
from leasehold.kinesis_model.shard import ShardState
from leasehold.kinesis_model.stream import StreamState
from leasehold.kinesis_model.tokens import decode_token, encode_token

RECORDS_PER_PAGE_MAX: Final = 10_000
BYTES_PER_PAGE_MAX: Final = 10 * 1024 * 1024


class IteratorType(StrEnum):
    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"
    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class StartingPosition:
    """A starting position in a shard, as GetShardIterator and SubscribeToShard take it."""

    type: IteratorType
    sequence_number: str | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ShardIterator:
    """A decoded iterator: the next number to read in a shard, and the time of issue."""

    stream_name: str
    shard_id: str
    next_number: int
    issued_ms: int


@dataclass(frozen=True, slots=True)
class RecordsPage:
    """One page of records, in order. At the end of a shard `next_number` is None and `children` are set.

    A reader that starts AFTER_SEQUENCE_NUMBER `continuation_number` continues at `next_number`.
    """

    records: RecordColumns
    next_number: int | None
    continuation_number: int | None
    millis_behind_latest: int
    children: Sequence[ChildShard] = ()


def resolve_start(stream: StreamState, shard: ShardState, start: StartingPosition, now_ms: int) -> int:
    """Return the next number to read for a starting position."""
    match start.type:
        case IteratorType.TRIM_HORIZON:
            _require_no_sequence_number(start)
            return shard.start_number
        case IteratorType.LATEST:
            _require_no_sequence_number(start)
            return shard.tip
        case IteratorType.AT_TIMESTAMP:
            return shard.number_at_time(_require_past_time(start, now_ms))
        case IteratorType.AT_SEQUENCE_NUMBER:
            return _require_sequence_number(stream, shard, start)
        case IteratorType.AFTER_SEQUENCE_NUMBER:
            return _require_sequence_number(stream, shard, start) + 1


def iterator_to_text(iterator: ShardIterator) -> str:
    return encode_token(
        "iterator", iterator.issued_ms, iterator.stream_name, iterator.shard_id, str(iterator.next_number)
    )


def iterator_from_text(text: str, now_ms: int, lifetime_ms: int) -> ShardIterator:
    """Decode an iterator. Refuse it if this server did not issue it or if it has expired."""
    fields = decode_token("iterator", text)
    if fields is None:
        raise invalid_argument_error(
            "Invalid ShardIterator: it is damaged, or it does not come from this server. Get a new one with "
            "GetShardIterator."
        )
    issued_ms, name, shard_id, next_number = fields
    iterator = ShardIterator(str(name), str(shard_id), int(next_number or 0), int(issued_ms or 0))
    age_ms = now_ms - iterator.issued_ms
    if age_ms > lifetime_ms:
        raise KinesisApiError(
            ErrorType.ITERATOR_EXPIRED,
            f"Iterator expired. The iterator was created at time {iterator.issued_ms} while right now it is "
            f"{now_ms} which is further in the future than the tolerated delay of {lifetime_ms} milliseconds.",
        )
    return iterator


def require_number_in_shard(shard: ShardState, next_number: int) -> None:
    """Refuse an iterator of an earlier, deleted stream with the same name."""
    if next_number not in shard.numbers:
        raise invalid_argument_error(
            f"Invalid ShardIterator: it comes from an earlier stream that also had a shard {shard.id}."
        )


def read_page(
    stream: StreamState,
    shard: ShardState,
    next_number: int,
    now_ms: int,
    *,
    records_max: int = RECORDS_PER_PAGE_MAX,
    bytes_max: int = BYTES_PER_PAGE_MAX,
    ends_with_last_records: bool = False,
) -> RecordsPage:
    """Return the records from `next_number` on. If that record was trimmed, begin with the oldest one that is left."""
    index = shard.log.first_index_from_number(next_number)
    records = shard.log.page(index, records_max=records_max, bytes_max=bytes_max)
    is_at_tip = shard.log.is_beyond_tip(index + len(records))
    may_end = not records or ends_with_last_records
    if is_at_tip and may_end and not shard.is_open:
        children = [child.to_child_shard() for child in stream.children_of(shard)]
        return RecordsPage(records, None, None, 0, children)
    behind_ms = 0 if is_at_tip else max(0, now_ms - records[-1].arrival_ms)
    following = records[-1].number + 1 if records else next_number
    return RecordsPage(records, following, max(following - 1, shard.start_number), behind_ms)


def require_read_capacity(stream: StreamState, shard: ShardState, now_ms: int) -> None:
    if not shard.limits.may_read(now_ms):
        raise throttled_error(
            f"Rate exceeded for shard {shard.id} in stream {stream.label}: 5 calls and 2 MB a second, shared "
            "by all readers. Wait and use the same iterator again."
        )


def _require_no_sequence_number(start: StartingPosition) -> None:
    if start.sequence_number is not None:
        raise invalid_argument_error(
            "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and StartingSequenceNumber or (2) "
            f"TRIM_HORIZON or LATEST and no StartingSequenceNumber. Request specified {start.type} and also a "
            "StartingSequenceNumber."
        )


def _require_past_time(start: StartingPosition, now_ms: int) -> int:
    if start.timestamp_ms is None:
        raise invalid_argument_error(
            "Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP. Current request has no "
            "timestamp parameter."
        )
    if start.timestamp_ms > now_ms:
        raise invalid_argument_error(
            "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
            f"timestampInMillis: {start.timestamp_ms}, currentTimestampInMillis: {now_ms}"
        )
    return start.timestamp_ms


def _require_sequence_number(stream: StreamState, shard: ShardState, start: StartingPosition) -> int:
    """Return the requested number if it belongs to this shard. A record with this number need not exist."""
    text = start.sequence_number
    if text is None:
        raise invalid_argument_error(
            "Must either specify (1) AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER and StartingSequenceNumber or (2) "
            f"TRIM_HORIZON or LATEST and no StartingSequenceNumber. Request specified {start.type} and no "
            "StartingSequenceNumber."
        )
    try:
        number = sequence_value(text)
    except InvalidPositionError as error:
        raise invalid_argument_error(f"StartingSequenceNumber for shard {shard.id}: {error}.") from error
    if number not in shard.numbers:
        raise invalid_argument_error(
            f"StartingSequenceNumber {text[:128]} used in GetShardIterator on shard {shard.id} in stream "
            f"{stream.label} is invalid because it did not come from this shard."
        )
    return number
