"""The messages of the KCL's MultiLang protocol: one JSON object a line, in both directions.

The daemon writes *actions* and *checkpoint replies* to the child, byte for byte as the Java daemon does, except that
its JSON is ASCII, so that no locale of a client matters. The child writes *statuses* and *checkpoint requests*. A line
of the child may contain anything: a line that is no message is `Junk`, and never an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import orjson
import pybase64

from leasehold.core.position import Position
from leasehold.core.record import UserRecord

# A sequence number of Kinesis has 56 digits. Text that is longer than this is no sequence number.
_NUMBER_LENGTH_MAX: Final = 200
# The name of an action is shorter. Messages wait in memory, so they are kept small.
_NAME_LENGTH_MAX: Final = 100
_COMPACT: Final = (",", ":")


def _parse_integer(digits: str) -> int | str:
    """Parse an integer; thousands of digits stay text, since Python refuses to parse them."""
    return int(digits) if len(digits) <= _NUMBER_LENGTH_MAX else digits


_DECODER: Final = json.JSONDecoder(parse_int=_parse_integer)


class ActionName(Enum):
    """The actions that a daemon sends."""

    INITIALIZE = "initialize"
    PROCESS_RECORDS = "processRecords"
    LEASE_LOST = "leaseLost"
    SHARD_ENDED = "shardEnded"
    SHUTDOWN_REQUESTED = "shutdownRequested"


@dataclass(frozen=True, slots=True)
class Initialize:
    """The first action: the shard, and the checkpoint of its lease."""

    shard_id: str
    checkpoint: Position
    name = ActionName.INITIALIZE


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    """Records in shard order."""

    records: Sequence[UserRecord]
    millis_behind_latest: int | None
    name = ActionName.PROCESS_RECORDS


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The member no longer owns the shard, or releases it now."""

    name = ActionName.LEASE_LOST


@dataclass(frozen=True, slots=True)
class ShardEnded:
    """The shard has no more records. The child must checkpoint."""

    name = ActionName.SHARD_ENDED


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """The lease will be released: the last chance to checkpoint."""

    name = ActionName.SHUTDOWN_REQUESTED


Action = Initialize | ProcessRecords | LeaseLost | ShardEnded | ShutdownRequested


@dataclass(frozen=True, slots=True)
class Status:
    """The child has finished an action, whatever its result."""

    response_for: str | None


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """The child wants to store a position; without a sequence number, all that it has got."""

    sequence_number: str | None = None
    sub_sequence_number: int | None = None
    is_readable: bool = True  # False: a field has a type that no sequence number has
    is_early: bool = False  # written before the action during which it is answered


@dataclass(frozen=True, slots=True)
class Junk:
    """A line that is no message. `may_be_logged` is False if it repeats what the daemon sent, payloads included."""

    text: str
    may_be_logged: bool = True


ChildMessage = Status | CheckpointRequest | Junk


# -- to the child ------------------------------------------------------------------------------------------------------


def encode_action(action: Action, *, legacy_shutdown: bool = False) -> bytes:
    """Return the line of an action, with its line end.

    With `legacy_shutdown`, the end of a shard and of a lease are the message `shutdown` of the daemon 1.x.

    >>> encode_action(Initialize("shardId-000000000000", Position("TRIM_HORIZON")))[:60]
    b'{"action":"initialize","shardId":"shardId-000000000000","seq'
    """
    match action:
        case Initialize(shard_id, checkpoint):
            return _line(
                {
                    "action": action.name.value,
                    "shardId": shard_id,
                    "sequenceNumber": checkpoint.sequence_number,
                    "subSequenceNumber": checkpoint.sub_sequence_number,
                }
            )
        case ProcessRecords(records, millis_behind):
            return _line(
                {
                    "action": action.name.value,
                    "records": [_record_members(record) for record in records],
                    "millisBehindLatest": millis_behind,
                }
            )
        case LeaseLost() | ShardEnded() if legacy_shutdown:
            reason = "ZOMBIE" if isinstance(action, LeaseLost) else "TERMINATE"
            return _line({"action": "shutdown", "reason": reason})
        case _:
            return _line({"action": action.name.value})


def encode_checkpoint_reply(request: CheckpointRequest, error: str | None) -> bytes:
    """Return the line that answers a checkpoint request: its numbers, and the name of a KCL exception or null."""
    return _line(
        {
            "action": "checkpoint",
            "sequenceNumber": request.sequence_number,
            "subSequenceNumber": request.sub_sequence_number,
            "error": error,
        }
    )


def _record_members(record: UserRecord) -> Mapping[str, object]:
    return {
        "data": pybase64.b64encode_as_string(record.data),
        "partitionKey": record.partition_key,
        "sequenceNumber": record.sequence_number,
        "approximateArrivalTimestamp": record.arrival_ms or 0,  # kclpy fails on null
        "subSequenceNumber": record.sub_sequence_number,
        "action": "record",
    }


def _line(message: Mapping[str, object]) -> bytes:
    try:
        encoded = orjson.dumps(message)
    except orjson.JSONEncodeError:  # half of a surrogate pair, as the text of a child may contain
        encoded = b"\xff"
    if not encoded.isascii():  # only a key of a record, or the text of a child
        encoded = json.dumps(message, separators=_COMPACT).encode()
    return encoded + b"\n"


# -- from the child ----------------------------------------------------------------------------------------------------


def decode_line(line: bytes) -> ChildMessage:
    """Return the message of a line, without its line end. Accepts all that the Java daemon accepts, and more.

    Unknown members are ignored, `checkpoint` is another name of `sequenceNumber` (clients of 1.x), and text after the
    object is ignored.

    >>> decode_line(b'{"action": "status", "responseFor": "initialize"}')
    Status(response_for='initialize')
    >>> decode_line(b'ready')
    Junk(text='ready', may_be_logged=True)
    """
    text = line.decode("utf-8", "replace").strip()
    members = _parse_object(text)
    if members is None:
        return Junk(text)
    match members.get("action"):
        case "status":
            response_for = members.get("responseFor")
            return Status(response_for[:_NAME_LENGTH_MAX] if isinstance(response_for, str) else None)
        case "checkpoint":
            number = members.get("sequenceNumber", members.get("checkpoint"))
            return checkpoint_request(number, members.get("subSequenceNumber"))
        case _:
            # A child that writes back what it reads, such as `cat`, must not write records into a log.
            return Junk(text, may_be_logged="records" not in members and "data" not in members)


def decode_part(part: bytes) -> Junk:
    """Return what a part of a line is that is too long for a message. It may be an action that was written back."""
    text = part.decode("utf-8", "replace").strip()
    return Junk(text, may_be_logged=not text.startswith("{"))


def _parse_object(text: str) -> Mapping[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        found, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def checkpoint_request(sequence_number: object, sub_sequence_number: object) -> CheckpointRequest:
    """Return the request for numbers of any type, as user code gives them."""
    number, is_number = _as_text(sequence_number)
    sub_number, is_sub_number = _as_integer(sub_sequence_number)
    return CheckpointRequest(number, sub_number, is_number and is_sub_number)


def _as_text(value: object) -> tuple[str | None, bool]:
    """Return a sequence number as text, and whether the value can be one."""
    if value is None:
        return None, True
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None, False
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return None, False
    return (text, True) if len(text) <= _NUMBER_LENGTH_MAX else (None, False)


def _as_integer(value: object) -> tuple[int | None, bool]:
    """Return a sub-sequence number without its fraction, as Java does, and whether the value can be one."""
    if value is None:
        return None, True
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None, False
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None, False
    return (number, True) if abs(number) < 2**63 else (None, False)
