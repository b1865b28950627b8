"""Answers of GetRecords, from bytes straight to a `Page`. botocore's own parser takes many times as long, most of it
for time stamps: see benchmarks/decode.py. Knows the shape of the answer; asks nothing and retries nothing.

An answer that is not what the service promises is an `UnavailableError`: it blames the server, and the same iterator
may be used again. The error says which field is wrong, and never what was in it.
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

# What the few lines that decode raise when a field is missing or of another type.
_WRONG_SHAPE: Final = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


def page_from_body(body: bytes) -> Page:
    """The page that an answer with status 200 holds."""
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _malformed("it is not JSON") from None  # the cause would carry the body
    if not isinstance(members, dict):
        raise _malformed("it is not an object")
    next_iterator = _next_iterator(members)
    children = _children(members)
    # The Java KCL's rule. A missing iterator without children is what a stumbling server sends, not an end: to take
    # it for one would leave the rest of the shard unread, and its children without leases.
    if next_iterator is None and not children:
        raise _malformed("it has neither a NextShardIterator nor ChildShards")
    if next_iterator is not None and children:
        raise _malformed("it has both a NextShardIterator and ChildShards")
    return Page(_records(members), next_iterator, _behind_ms(members), children)


def _next_iterator(members: Mapping[str, Any]) -> str | None:
    text = members.get("NextShardIterator")
    if text is not None and not (isinstance(text, str) and text):
        raise _malformed("NextShardIterator is not text")
    return text


def _behind_ms(members: Mapping[str, Any]) -> int | None:
    behind_ms = members.get("MillisBehindLatest")
    if behind_ms is not None and (type(behind_ms) is not int or behind_ms < 0):
        raise _malformed("MillisBehindLatest is not a number of milliseconds")
    return behind_ms


def _children(members: Mapping[str, Any]) -> tuple[ChildShard, ...]:
    try:
        return tuple(_child(each) for each in members.get("ChildShards") or ())
    except (*_WRONG_SHAPE, ConfigError):
        raise _malformed("ChildShards lacks a ShardId, ParentShards or a HashKeyRange") from None


def _child(members: Mapping[str, Any]) -> ChildShard:
    keys = members["HashKeyRange"]
    parents = tuple(ShardId(_text(parent)) for parent in members["ParentShards"])
    if not parents:
        raise ValueError
    hash_range = HashRange(int(keys["StartingHashKey"]), int(keys["EndingHashKey"]))
    return ChildShard(ShardId(_text(members["ShardId"])), parents, hash_range)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _records(members: Mapping[str, Any]) -> Sequence[Record]:
    found = members.get("Records")
    if not isinstance(found, list):
        raise _malformed("it has no list of Records")
    try:
        records = _decoded(found)
        _require_text([record.partition_key for record in records])
        _require_numbers([record.sequence_number for record in records])
    except _WRONG_SHAPE:
        raise _malformed(_first_problem(found)) from None
    return records


def _decoded(members: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The hot loop: 2 us for a record of 1 kB. `tuple.__new__` in place of `Record(...)`: see `core.record`."""
    new = tuple.__new__
    return [
        new(
            Record,
            (
                b64decode(each["Data"], None, True),  # validating, which is also the faster way
                each["PartitionKey"],
                each["SequenceNumber"],
                # With a float on the left, text on the right is refused and not repeated a thousand times.
                None
                if (seconds := each.get("ApproximateArrivalTimestamp")) is None
                else round(1e3 * seconds),
                each.get("EncryptionType"),
            ),
        )
        for each in members
    ]


def _require_text(texts: Sequence[str]) -> str:
    """All of them as one: joining refuses what is no text, in one pass of C."""
    return "".join(texts)


def _require_numbers(texts: Sequence[str]) -> None:
    if texts and not (
        all(texts)
        and (digits := _require_text(texts)).isascii()
        and digits.isdigit()
        and max(map(len, texts)) <= SEQUENCE_DIGITS_MAX
    ):
        raise ValueError


def _first_problem(members: Sequence[Any]) -> str:
    """Which record is wrong, and in what; asked only once it is known that one is."""
    for index, each in enumerate(members):
        try:
            (record,) = _decoded([each])
            _require_text([record.partition_key])
            _require_numbers([record.sequence_number])
        except _WRONG_SHAPE:
            return f"record {index} of {len(members)} has no {_wrong_member(each)}"
    raise AssertionError("the page was refused, and each of its records is sound")


def _wrong_member(members: Any) -> str:
    if not isinstance(members, dict):
        return "members"
    if not isinstance(members.get("PartitionKey"), str):
        return "PartitionKey"
    if not isinstance(number := members.get("SequenceNumber"), str) or not number.isdecimal():
        return "SequenceNumber of at most 128 digits"
    if not isinstance(members.get("ApproximateArrivalTimestamp"), int | float | None):
        return "ApproximateArrivalTimestamp in seconds"
    return "Data in base64"


def _malformed(problem: str) -> UnavailableError:
    return UnavailableError(
        f"GetRecords: the answer is malformed: {problem}; it will be asked for again with the same iterator. If "
        "this does not end, the endpoint is not Kinesis or something on the way changes its answers"
    )
