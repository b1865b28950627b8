"""Decodes GetRecords responses and SubscribeToShard events in JSON straight to a `Page` or a `SubscriptionEvent`.
botocore's own parser takes many times as long, most of it for timestamps: see benchmarks/decode.py.

msgspec checks the types while it parses, and creates nothing but the values of the columns. It does not say what is
wrong in our words, and hardly looks at fields that it does not know. So a body that it refuses, that has such fields,
or that fails a later check, is decoded again, field by field: the first problem is named, or there is none.

Invalid content is an `UnavailableError`: the server is at fault, and the caller may try again at the same place. The
error says which field is wrong, but never its content.

Imported for the first page in JSON, because msgspec takes 6 MB of memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import orjson
from pybase64 import b64decode

from leasehold.adapters.aws.native_pages import ARROW_BYTES_MIN, LIKELY_CAUSE, decode_natively
from leasehold.adapters.native_decoder import NativeDecoder, native_decoder
from leasehold.core.model import HASH_KEY_MAX, ChildShard, HashRange, ShardId
from leasehold.core.position import SEQUENCE_DIGITS_MAX
from leasehold.core.records.record_columns import RecordColumns
from leasehold.errors import ConfigError, UnavailableError
from leasehold.ports import Page, SubscriptionEvent

# The errors that decoding raises when a field is missing or has the wrong type.
_WRONG_SHAPE: Final = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
# Those of msgspec: `MsgspecError` is no ValueError in all cases, and deep nesting is a RecursionError.
_REFUSED: Final = (*_WRONG_SHAPE, msgspec.MsgspecError, RecursionError, ConfigError)
_HASH_KEY_DIGITS_MAX: Final = len(str(HASH_KEY_MAX))
_MILLIS_MAX: Final = 2**63 - 1
# From this distance between two records on, pybase64 takes less time than msgspec's own base64: benchmarks/decode.py.
_LARGE_RECORD_BYTES: Final = 1_000


class _MalformedError(Exception):
    """A response or an event is invalid. The message names the field."""


class _Record(msgspec.Struct, gc=False, rename="pascal", forbid_unknown_fields=True):
    """A record with its data in bytes, decoded from base64 by msgspec."""

    data: bytes
    partition_key: str
    sequence_number: str
    approximate_arrival_timestamp: int | float | None = None
    encryption_type: str | None = None


class _LargeRecord(msgspec.Struct, gc=False, rename="pascal", forbid_unknown_fields=True):
    """A record with its data in base64."""

    data: str
    partition_key: str
    sequence_number: str
    approximate_arrival_timestamp: int | float | None = None
    encryption_type: str | None = None


class _Fields(msgspec.Struct, gc=False, rename="pascal", forbid_unknown_fields=True):
    records: list[_Record]
    # Of any type, because only one of the two is looked at.
    next_shard_iterator: Any = None
    continuation_sequence_number: Any = None
    millis_behind_latest: int | None = None
    child_shards: Any = None


class _LargeFields(msgspec.Struct, gc=False, rename="pascal", forbid_unknown_fields=True):
    records: list[_LargeRecord]
    # Of any type, because only one of the two is looked at.
    next_shard_iterator: Any = None
    continuation_sequence_number: Any = None
    millis_behind_latest: int | None = None
    child_shards: Any = None


_AnyFields: TypeAlias = _Fields | _LargeFields
_decode_fields: Final = msgspec.json.Decoder(_Fields).decode
_decode_large_fields: Final = msgspec.json.Decoder(_LargeFields).decode


def page_from_body(body: bytes) -> Page:
    """The page in the body of a response with status 200."""
    try:
        if (native := _native_for(body)) is not None:
            return Page(*decode_natively(native, native.decode_page, body))
        return _page(body)
    except (*_REFUSED, _MalformedError):
        pass
    try:
        return Page(*_decode_by_fields(body, "NextShardIterator"))
    except _MalformedError as error:
        raise UnavailableError(
            f"GetRecords: the response is malformed: {error}; the request will be retried with the same iterator. "
            f"{LIKELY_CAUSE}"
        ) from None  # the cause would contain the body


def event_from_payload(payload: bytes) -> SubscriptionEvent:
    """The event in the payload of a SubscribeToShardEvent message."""
    try:
        if (native := _native_for(payload)) is not None:
            return SubscriptionEvent(*decode_natively(native, native.decode_event, payload))
        return _event(payload)
    except (*_REFUSED, _MalformedError):
        pass
    try:
        return SubscriptionEvent(*_decode_by_fields(payload, "ContinuationSequenceNumber"))
    except _MalformedError as error:
        raise UnavailableError(
            f"SubscribeToShard: an event is malformed: {error}; the subscription will be renewed where it was. "
            f"{LIKELY_CAUSE}"
        ) from None


def _native_for(body: bytes) -> NativeDecoder | None:
    return native_decoder() if len(body) >= ARROW_BYTES_MIN else None


def _page(body: bytes) -> Page:
    fields = _parse(body)
    next_iterator, children = fields.next_shard_iterator, _children(fields.child_shards)
    _check_text(next_iterator, "NextShardIterator")
    _check_end(next_iterator, children, "NextShardIterator")
    _check_millis_behind(fields.millis_behind_latest)
    return Page(_columns(fields.records), next_iterator, fields.millis_behind_latest, children)


def _event(payload: bytes) -> SubscriptionEvent:
    fields = _parse(payload)
    continuation, children = fields.continuation_sequence_number, _children(fields.child_shards)
    _check_text(continuation, "ContinuationSequenceNumber")
    _check_end(continuation, children, "ContinuationSequenceNumber")
    _check_sequence_number(continuation)
    _check_millis_behind(fields.millis_behind_latest)
    return SubscriptionEvent(_columns(fields.records), continuation, fields.millis_behind_latest, children)


def _parse(body: bytes) -> _AnyFields:
    # msgspec does not look at the bytes of a text that it skips.
    if not body.isascii():
        body.decode()
    first = body.find(b'"Data"')
    is_large = first >= 0 and body.find(b'"Data"', first + 1, first + _LARGE_RECORD_BYTES) < 0
    return _decode_large_fields(body) if is_large else _decode_fields(body)


def _columns(records: list[_Record] | list[_LargeRecord]) -> RecordColumns:
    """The records as columns. Checks all sequence numbers together, in a few passes of C."""
    numbers = [record.sequence_number for record in records]
    _check_numbers(numbers)
    seconds = [record.approximate_arrival_timestamp for record in records]
    # With a float on the left, a huge integer raises.
    arrivals = [None if each is None else round(1e3 * each) for each in seconds]
    array("q", filter(None, arrivals))  # raises if a time is beyond 64 bits
    data = [record.data for record in records]
    return RecordColumns(
        [
            # Validation is also the faster way.
            [b64decode(text, None, True) for text in data] if records and isinstance(data[0], str) else data,
            [record.partition_key for record in records],
            numbers,
            arrivals,
            [record.encryption_type for record in records],
        ]
    )


def _check_numbers(numbers: Sequence[str]) -> None:
    digits = "".join(numbers)
    if numbers and not (
        all(numbers)
        and digits.isascii()
        and digits.isdigit()
        and max(map(len, numbers)) <= SEQUENCE_DIGITS_MAX
    ):
        raise ValueError


def _decode_by_fields(
    body: bytes, place: str
) -> tuple[RecordColumns, str | None, int | None, tuple[ChildShard, ...]]:
    """The fields of a `Page` or a `SubscriptionEvent`, or an error that names the first problem.

    `place` is the field with which reading continues.
    """
    fields = _object(body)
    next_place = fields.get(place)
    _check_text(next_place, place)
    children = _children(fields.get("ChildShards"))
    _check_end(next_place, children, place)
    if place == "ContinuationSequenceNumber":
        _check_sequence_number(next_place)
    records = _check_records(fields.get("Records"))
    _check_millis_behind(fields.get("MillisBehindLatest"))
    return records, next_place, fields.get("MillisBehindLatest"), children


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _MalformedError("it is not JSON") from None
    if not isinstance(fields, dict):
        raise _MalformedError("it is not an object")
    return fields


def _check_end(next_place: str | None, children: tuple[ChildShard, ...], name: str) -> None:
    """Exactly one of the two is present: the Java KCL's rule. Nothing to continue with and no children is a server
    error, not the end of the shard. Treating it as the end would leave the rest of the shard unread, and its children
    without leases.
    """
    if next_place is None and not children:
        raise _MalformedError(f"it has neither a {name} nor ChildShards")
    if next_place is not None and children:
        raise _MalformedError(f"it has both a {name} and ChildShards")


def _check_text(text: Any, name: str) -> None:
    if text is not None and not (isinstance(text, str) and text):
        raise _MalformedError(f"{name} is not text")


def _check_sequence_number(text: str | None) -> None:
    if text is not None and not (text.isascii() and text.isdigit() and len(text) <= SEQUENCE_DIGITS_MAX):
        raise _MalformedError("ContinuationSequenceNumber is not a sequence number")


def _check_millis_behind(behind_ms: Any) -> None:
    if behind_ms is not None and (type(behind_ms) is not int or not 0 <= behind_ms <= _MILLIS_MAX):
        raise _MalformedError("MillisBehindLatest is not a number of milliseconds")


def _children(found: Any) -> tuple[ChildShard, ...]:
    try:
        if found and not isinstance(found, list):
            raise TypeError
        return tuple(_child(each) for each in found or ())
    except (*_WRONG_SHAPE, ConfigError):
        raise _MalformedError("ChildShards lacks a ShardId, ParentShards or a HashKeyRange") from None


def _child(fields: Mapping[str, Any]) -> ChildShard:
    keys, parents = fields["HashKeyRange"], fields["ParentShards"]
    if not isinstance(parents, list) or not parents:
        raise TypeError
    hash_range = HashRange(_hash_key(keys["StartingHashKey"]), _hash_key(keys["EndingHashKey"]))
    return ChildShard(_shard_id(fields["ShardId"]), tuple(map(_shard_id, parents)), hash_range)


def _hash_key(value: Any) -> int:
    if not (
        isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _HASH_KEY_DIGITS_MAX
    ):
        raise TypeError
    return int(value)


def _shard_id(value: Any) -> ShardId:
    if not isinstance(value, str) or not value:
        raise TypeError
    return ShardId(value)


def _check_records(found: Any) -> RecordColumns:
    """The records. Raises an error that names the first invalid record and its invalid field."""
    if not isinstance(found, list):
        raise _MalformedError("it has no list of Records")
    for index, each in enumerate(found):
        if not _is_valid(each):
            raise _MalformedError(f"record {index} of {len(found)} has no {_invalid_field(each)}")
    return _columns([_to_record(each) for each in found])


def _invalid_field(fields: Any) -> str:
    if not isinstance(fields, dict):
        return "fields"
    return next(
        field for name, field in _FIELD_NAMES.items() if not _is_valid(_VALID | {name: fields.get(name)})
    )


def _is_valid(fields: Any) -> bool:
    try:
        _columns([_to_record(fields)])
    except _REFUSED:
        return False
    return True


def _to_record(fields: Any) -> _LargeRecord:
    known = {name: value for name, value in fields.items() if name in _FIELD_NAMES}
    return msgspec.convert(known, _LargeRecord)


_VALID: Final = {"Data": "", "PartitionKey": "", "SequenceNumber": "0"}
_FIELD_NAMES: Final = {
    "Data": "Data in base64",
    "PartitionKey": "PartitionKey",
    "SequenceNumber": f"SequenceNumber of 1 to {SEQUENCE_DIGITS_MAX} digits",
    "ApproximateArrivalTimestamp": "ApproximateArrivalTimestamp in seconds",
    "EncryptionType": "EncryptionType as text",
}
