"""Decides what a checkpoint request of a record processor does, by the rules of the KCL, and names its errors.

A position is accepted between the last checkpoint and the last delivered record. In `shardEnded`, the last delivered
record and everything after it means the end of the shard. In `initialize` and `leaseLost` nothing can be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.core.multilang.messages import ActionName, CheckpointRequest
from leasehold.core.position import SHARD_END, Position
from leasehold.errors import (
    CheckpointRejectedError,
    InvalidPositionError,
    LeaseholdError,
    LeaseLostError,
    MalformedRowError,
    NotFoundError,
    ServiceError,
    ThrottledError,
)

# Names of Java exceptions. Clients compare them with the names in their own code.
SHUTDOWN: Final = "ShutdownException"
THROTTLING: Final = "ThrottlingException"
INVALID_STATE: Final = "InvalidStateException"
DEPENDENCY: Final = "KinesisClientLibDependencyException"
ILLEGAL_ARGUMENT: Final = "IllegalArgumentException"

_STORING_ACTIONS: Final = {
    ActionName.PROCESS_RECORDS,
    ActionName.SHARD_ENDED,
    ActionName.SHUTDOWN_REQUESTED,
}


@dataclass(frozen=True, slots=True)
class StoreAt:
    """Store this position."""

    position: Position


@dataclass(frozen=True, slots=True)
class StoreShardEnd:
    """Store the end of the shard."""


@dataclass(frozen=True, slots=True)
class AlreadyStored:
    """The position is stored already: success, without a write."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with this error, and store nothing."""

    error: str


Decision = StoreAt | StoreShardEnd | AlreadyStored | Refuse


def decide_checkpoint(
    request: CheckpointRequest, during: ActionName, *, stored: Position, delivered: Position
) -> Decision:
    """Decide about a request during an action. `delivered` is the last position that the processor has got.

    >>> request = CheckpointRequest("20")
    >>> decide_checkpoint(request, ActionName.PROCESS_RECORDS, stored=Position("10"), delivered=Position("30"))
    StoreAt(position=Position(sequence_number='20', sub_sequence_number=0))
    """
    if during not in _STORING_ACTIONS:
        return Refuse(INVALID_STATE)
    at = delivered if request.sequence_number is None and request.is_readable else _position(request)
    if at is None:
        return Refuse(ILLEGAL_ARGUMENT)
    ends_shard = during is ActionName.SHARD_ENDED
    if ends_shard and at in {SHARD_END, delivered}:
        return StoreShardEnd()
    if not stored <= at <= delivered:
        return Refuse(ILLEGAL_ARGUMENT)
    if ends_shard and at >= delivered:
        return StoreShardEnd()
    if at <= stored:
        return AlreadyStored()
    # TRIM_HORIZON < LATEST in the KCL's order. To store a sentinel would skip or repeat records.
    return StoreAt(at) if at.is_record else Refuse(ILLEGAL_ARGUMENT)


def _position(request: CheckpointRequest) -> Position | None:
    """Return the position that a request names; None if it names none."""
    if not request.is_readable or request.sequence_number is None:
        return None
    try:
        at = Position(request.sequence_number, request.sub_sequence_number or 0)
    except InvalidPositionError:
        return None
    # Without leading zeros, which Kinesis would not accept from the next reader.
    return Position(str(at.number), at.sub_sequence_number) if at.is_record else at


def error_name(error: LeaseholdError) -> str:
    """Return the KCL's name of an error that prevented a checkpoint.

    >>> error_name(LeaseLostError("taken")), error_name(ThrottledError("slow down"))
    ('ShutdownException', 'ThrottlingException')
    """
    match error:
        case LeaseLostError():
            return SHUTDOWN
        case ThrottledError():
            return THROTTLING
        case NotFoundError() | MalformedRowError():
            return INVALID_STATE
        case CheckpointRejectedError() | InvalidPositionError():
            return ILLEGAL_ARGUMENT
        case ServiceError():
            return DEPENDENCY
        case _:
            return INVALID_STATE
