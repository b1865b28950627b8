"""Decodes GetRecords responses and SubscribeToShard events from bytes straight to a `Page` or a `SubscriptionEvent`.
botocore's own parser takes many times as long, most of it for timestamps: see benchmarks/decode.py.

Invalid content is an `UnavailableError`: the server is at fault, and the caller may try again at the same place. The
error says which field is wrong, but never its content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from pybase64 import b64decode

from leasehold.core.model import ChildShard, HashRange, ShardId
from leasehold.core.position import SEQUENCE_DIGITS_MAX
from leasehold.core.record import Record
from leasehold.errors import ConfigError, UnavailableError
from leasehold.ports import Page, SubscriptionEvent

# The errors that decoding raises when a field is missing or has the wrong type.
_WRONG_SHAPE: Final = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
_LIKELY_CAUSE: Final = "If this does not end, the endpoint is not Kinesis, or a proxy changes its responses"


class _MalformedError(Exception):
    """A response or an event is invalid. The message names the field."""


def page_from_body(body: bytes) -> Page:
    """The page in the body of a response with status 200."""
    try:
        fields = _object(body)
        next_iterator, children = _text(fields, "NextShardIterator"), _children(fields)
        _check_end(next_iterator, children, "a NextShardIterator")
        return Page(_records(fields), next_iterator, _millis_behind(fields), children)
    except _MalformedError as error:
        raise UnavailableError(
            f"GetRecords: the response is malformed: {error}; the request will be retried with the same iterator. "
            f"{_LIKELY_CAUSE}"
        ) from None  # the cause would contain the body


def event_from_payload(payload: bytes) -> SubscriptionEvent:
    """The event in the payload of a SubscribeToShardEvent message."""
    try:
        fields = _object(payload)
        continuation, children = _text(fields, "ContinuationSequenceNumber"), _children(fields)
        _check_end(continuation, children, "a ContinuationSequenceNumber")
        _check_sequence_number(continuation)
        return SubscriptionEvent(_records(fields), continuation, _millis_behind(fields), children)
    except _MalformedError as error:
        raise UnavailableError(
            f"SubscribeToShard: an event is malformed: {error}; the subscription will be renewed where it was. "
            f"{_LIKELY_CAUSE}"
        ) from None


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
        raise _MalformedError(f"it has neither {name} nor ChildShards")
    if next_place is not None and children:
        raise _MalformedError(f"it has both {name} and ChildShards")


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    text = fields.get(name)
    if text is not None and not (isinstance(text, str) and text):
        raise _MalformedError(f"{name} is not text")
    return text


def _check_sequence_number(text: str | None) -> None:
    if text is not None and not (text.isascii() and text.isdigit() and len(text) <= SEQUENCE_DIGITS_MAX):
        raise _MalformedError("ContinuationSequenceNumber is not a sequence number")


def _millis_behind(fields: Mapping[str, Any]) -> int | None:
    behind_ms = fields.get("MillisBehindLatest")
    if behind_ms is not None and (type(behind_ms) is not int or behind_ms < 0):
        raise _MalformedError("MillisBehindLatest is not a number of milliseconds")
    return behind_ms


def _children(fields: Mapping[str, Any]) -> tuple[ChildShard, ...]:
    try:
        return tuple(_child(each) for each in fields.get("ChildShards") or ())
    except (*_WRONG_SHAPE, ConfigError):
        raise _MalformedError("ChildShards lacks a ShardId, ParentShards or a HashKeyRange") from None


def _child(fields: Mapping[str, Any]) -> ChildShard:
    keys, parents = fields["HashKeyRange"], fields["ParentShards"]
    if not isinstance(parents, list) or not parents:
        raise TypeError
    hash_range = HashRange(int(keys["StartingHashKey"]), int(keys["EndingHashKey"]))
    return ChildShard(_shard_id(fields["ShardId"]), tuple(map(_shard_id, parents)), hash_range)


def _shard_id(value: Any) -> ShardId:
    if not isinstance(value, str) or not value:
        raise TypeError
    return ShardId(value)


def _records(fields: Mapping[str, Any]) -> Sequence[Record]:
    found = fields.get("Records")
    if not isinstance(found, list):
        raise _MalformedError("it has no list of Records")
    try:
        return _check_records(_decode_records(found))
    except _WRONG_SHAPE:
        raise _MalformedError(_first_problem(found)) from None


def _decode_records(entries: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The hot loop: 2 us per record of 1 kB. Uses `tuple.__new__` instead of `Record(...)`: see `core.record`."""
    new = tuple.__new__
    return [
        new(
            Record,
            (
                b64decode(each["Data"], None, True),  # validation is also the faster way
                each["PartitionKey"],
                each["SequenceNumber"],
                # With a float on the left, a string on the right raises; an int would repeat the string.
                None
                if (seconds := each.get("ApproximateArrivalTimestamp")) is None
                else round(1e3 * seconds),
                each.get("EncryptionType"),
            ),
        )
        for each in entries
    ]


def _check_records(records: list[Record]) -> list[Record]:
    """The records, if all keys are text and all sequence numbers are digits. Checks all of them together, in a few
    passes of C.
    """
    "".join([record.partition_key for record in records])
    numbers = [record.sequence_number for record in records]
    digits = "".join(numbers)
    if records and not (
        all(numbers)
        and digits.isascii()
        and digits.isdigit()
        and max(map(len, numbers)) <= SEQUENCE_DIGITS_MAX
    ):
        raise ValueError
    return records


def _first_problem(entries: Sequence[Any]) -> str:
    """The first invalid record and its invalid field. Called only after decoding has failed."""
    problems = (
        f"record {index} of {len(entries)} has no {_invalid_field(each)}"
        for index, each in enumerate(entries)
        if not _is_valid(each)
    )
    return next(problems)


def _invalid_field(fields: Any) -> str:
    if not isinstance(fields, dict):
        return "fields"
    return next(
        field for name, field in _FIELD_NAMES.items() if not _is_valid(_VALID | {name: fields.get(name)})
    )


def _is_valid(fields: Any) -> bool:
    try:
        _check_records(_decode_records([fields]))
    except _WRONG_SHAPE:
        return False
    return True


_VALID: Final = {"Data": "", "PartitionKey": "", "SequenceNumber": "0"}
_FIELD_NAMES: Final = {
    "Data": "Data in base64",
    "PartitionKey": "PartitionKey",
    "SequenceNumber": f"SequenceNumber of 1 to {SEQUENCE_DIGITS_MAX} digits",
    "ApproximateArrivalTimestamp": "ApproximateArrivalTimestamp in seconds",
}
