"""The offsets of a Spark query: the plan of a generation, as JSON that Spark logs before anything is read.

An offset names the generation and where each shard of the query begins in it. Where the slices end is not known when it
is logged; the leases tell (`core.pinned_batch`). The positions here are a copy, so that a lease table that was lost or
put back is noticed, and so that "latest" keeps its meaning over a restart.

Spark compares offsets as text: keys are in a fixed order, and a plan that changes nothing is not made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.model import InitialPosition, Lease, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.errors import ConfigError, InvalidPositionError

# A constant: Spark asks for it again when it repeats the first batch.
INITIAL_OFFSET: Final[Mapping[str, Any]] = {"generation": 0}
_FORMAT: Final = 1
_EPOCH: Final = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, slots=True)
class ReadStart:
    """Where a slice begins: after a record, or at one of the ends of the stream, or at a time."""

    position: Position
    timestamp_ms: int | None = None  # goes with AT_TIMESTAMP

    @property
    def initial(self) -> InitialPosition:
        """What a reader needs beside the position."""
        if self.timestamp_ms is None:
            return InitialPosition(TRIM_HORIZON)
        return InitialPosition(AT_TIMESTAMP, self.timestamp_ms)

    def __str__(self) -> str:
        time = "" if self.timestamp_ms is None else f":{self.timestamp_ms}"
        return f"{self.position}{time}"


def read_start_from_text(text: str) -> ReadStart:
    """The inverse of `str`.

    >>> read_start_from_text("4959/3").position, read_start_from_text("AT_TIMESTAMP:1700000000000").timestamp_ms
    (Position(sequence_number='4959', sub_sequence_number=3), 1700000000000)
    """
    word, _, time = text.partition(":")
    number, _, sub = word.partition("/")
    if word == AT_TIMESTAMP.sequence_number and time.isascii() and time.isdigit():
        return ReadStart(AT_TIMESTAMP, int(time))
    is_without_time = word == AT_TIMESTAMP.sequence_number
    if time or is_without_time or (sub and not (sub.isascii() and sub.isdigit())):
        raise InvalidPositionError(f"{text[:48]!r} is not a place to read from")
    return ReadStart(Position(number, int(sub or 0)))


@dataclass(frozen=True, slots=True)
class QueryOffset:
    """The plan of one generation: where every shard that the query holds begins."""

    generation_id: GenerationId
    starts: Mapping[ShardId, ReadStart]

    def to_json(self) -> dict[str, Any]:
        """What Spark logs."""
        return {
            "format": _FORMAT,
            "epoch": self.generation_id.query_id,
            "generation": self.generation_id.generation,
            "from": {shard: str(self.starts[shard]) for shard in sorted(self.starts)},
        }


def offset_from_json(members: Mapping[str, Any]) -> QueryOffset | None:
    """The inverse of `to_json`; None for the initial offset. Anything else is none of ours."""
    if members == INITIAL_OFFSET:
        return None
    try:
        return _offset(members)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            "the checkpoint location holds an offset that this source did not write (another source's, or a newer "
            "version's): give the query a checkpoint location of its own"
        ) from error


def _offset(members: Mapping[str, Any]) -> QueryOffset:
    query_id, generation = members["epoch"], members["generation"]
    if members["format"] != _FORMAT or not _EPOCH.fullmatch(query_id) or type(generation) is not int:
        raise ValueError(query_id)
    starts = {ShardId(shard): read_start_from_text(text) for shard, text in members["from"].items()}
    return QueryOffset(GenerationId(query_id, generation), starts)


def resolve_start(
    after: Position, known: ReadStart | None, initial: InitialPosition, latest_ms: int
) -> ReadStart:
    """Where to read from, for a shard that goes on after `after`.

    A lease that was never read holds a word. What the word means is settled once, in the first offset that names the
    shard, and `known` then: "latest" is one moment, `latest_ms`, however often the query is restarted before the first
    record.
    """
    if after.is_record:
        return ReadStart(after)
    if known is not None:
        return known
    if after == LATEST:
        return ReadStart(AT_TIMESTAMP, latest_ms)
    if after == AT_TIMESTAMP:
        if initial.timestamp_ms is None:
            raise ConfigError(
                "a lease begins AT_TIMESTAMP, but the options name no time: set startingPosition=at_timestamp and the "
                "startingTimestamp that the fleet was started with"
            )
        return ReadStart(AT_TIMESTAMP, initial.timestamp_ms)
    return ReadStart(after)


def is_lease_behind_log(lease: Lease, logged: ReadStart) -> bool:
    """Whether a lease stands before what the query's log knows to be done: the table was lost, or put back."""
    end = lease.checkpoint if lease.pin is None else max(lease.checkpoint, lease.pin.end)
    return logged.position.is_record and end < logged.position
