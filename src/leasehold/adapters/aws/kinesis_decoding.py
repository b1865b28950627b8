"""Decodes GetRecords responses from bytes straight to a `Page`. botocore's own parser takes many times as long, most
of it for timestamps: see benchmarks/decode.py.

An invalid response is an `UnavailableError`: the server is at fault, and the same iterator may be used again. The
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
from leasehold.ports import Page

# The errors that decoding raises when a field is missing or has the wrong type.
_WRONG_SHAPE: Final = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


def page_from_body(body: bytes) -> Page:
    """The page in the body of a response with status 200."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _malformed("it is not JSON") from None  # the cause would contain the body
    if not isinstance(fields, dict):
        raise _malformed("it is not an object")
    next_iterator = _next_iterator(fields)
    children = _children(fields)
    # The Java KCL's rule. A missing iterator without children is a server error, not the end of the shard. Treating
    # it as the end would leave the rest of the shard unread, and its children without leases.
    if next_iterator is None and not children:
        raise _malformed("it has neither a NextShardIterator nor ChildShards")
    if next_iterator is not None and children:
        raise _malformed("it has both a NextShardIterator and ChildShards")
    return Page(_records(fields), next_iterator, _millis_behind(fields), children)


def _next_iterator(fields: Mapping[str, Any]) -> str | None:
    text = fields.get("NextShardIterator")
    if text is not None and not (isinstance(text, str) and text):
        raise _malformed("NextShardIterator is not text")
    return text


def _millis_behind(fields: Mapping[str, Any]) -> int | None:
    behind_ms = fields.get("MillisBehindLatest")
    if behind_ms is not None and (type(behind_ms) is not int or behind_ms < 0):
        raise _malformed("MillisBehindLatest is not a number of milliseconds")
    return behind_ms


def _children(fields: Mapping[str, Any]) -> tuple[ChildShard, ...]:
    try:
        return tuple(_child(each) for each in fields.get("ChildShards") or ())
    except (*_WRONG_SHAPE, ConfigError):
        raise _malformed("ChildShards lacks a ShardId, ParentShards or a HashKeyRange") from None


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
        raise _malformed("it has no list of Records")
    try:
        return _check_records(_decode_records(found))
    except _WRONG_SHAPE:
        raise _malformed(_first_problem(found)) from None


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


def _malformed(problem: str) -> UnavailableError:
    return UnavailableError(
        f"GetRecords: the response is malformed: {problem}; the request will be retried with the same iterator. If "
        "this does not end, the endpoint is not Kinesis, or a proxy changes its responses"
    )
