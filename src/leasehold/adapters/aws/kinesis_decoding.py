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
    keys, parents = members["HashKeyRange"], members["ParentShards"]
    if not isinstance(parents, list) or not parents:
        raise TypeError
    hash_range = HashRange(int(keys["StartingHashKey"]), int(keys["EndingHashKey"]))
    return ChildShard(_shard_id(members["ShardId"]), tuple(map(_shard_id, parents)), hash_range)


def _shard_id(value: Any) -> ShardId:
    if not isinstance(value, str) or not value:
        raise TypeError
    return ShardId(value)


def _records(members: Mapping[str, Any]) -> Sequence[Record]:
    found = members.get("Records")
    if not isinstance(found, list):
        raise _malformed("it has no list of Records")
    try:
        return _checked(_decoded(found))
    except _WRONG_SHAPE:
        raise _malformed(_first_problem(found)) from None


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


def _checked(records: list[Record]) -> list[Record]:
    """The records, if keys are text and sequence numbers are digits: all looked at together, in a few passes of C."""
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


def _first_problem(members: Sequence[Any]) -> str:
    """Which record is wrong, and in what; asked only once it is known that one is."""
    problems = (
        f"record {index} of {len(members)} has no {_wrong_member(each)}"
        for index, each in enumerate(members)
        if not _is_sound(each)
    )
    return next(problems)


def _wrong_member(members: Any) -> str:
    if not isinstance(members, dict):
        return "members"
    return next(
        meaning for name, meaning in _MEANINGS.items() if not _is_sound(_SOUND | {name: members.get(name)})
    )


def _is_sound(members: Any) -> bool:
    try:
        _checked(_decoded([members]))
    except _WRONG_SHAPE:
        return False
    return True


_SOUND: Final = {"Data": "", "PartitionKey": "", "SequenceNumber": "0"}
_MEANINGS: Final = {
    "Data": "Data in base64",
    "PartitionKey": "PartitionKey",
    "SequenceNumber": f"SequenceNumber of 1 to {SEQUENCE_DIGITS_MAX} digits",
    "ApproximateArrivalTimestamp": "ApproximateArrivalTimestamp in seconds",
}


def _malformed(problem: str) -> UnavailableError:
    return UnavailableError(
        f"GetRecords: the answer is malformed: {problem}; it will be asked for again with the same iterator. If "
        "this does not end, the endpoint is not Kinesis or something on the way changes its answers"
    )
