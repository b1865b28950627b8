"""The offsets of a Spark query: the plan of a generation, as JSON that Spark logs before any record is read.

An offset names the generation and where each shard of the query begins in it. The ends of the slices are not known yet
when Spark logs the offset; the leases hold them (`pinned_batch`). The positions in the offset are a copy. They reveal a
lease table that was deleted or restored from a backup, and they keep the meaning of "latest" across restarts.

Spark compares offsets as text, so the keys have a fixed order. The planner makes no plan that changes nothing.
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

# Constant, because Spark asks for it again when it repeats the first batch.
INITIAL_OFFSET: Final[Mapping[str, Any]] = {"generation": 0}
_FORMAT: Final = 1
_QUERY_ID: Final = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, slots=True)
class ReadStart:
    """Where a slice begins: after a record, at one of the ends of the shard, or at a time."""

    position: Position
    timestamp_ms: int | None = None  # set only with AT_TIMESTAMP

    @property
    def initial(self) -> InitialPosition:
        """The initial position that a reader needs besides `position`."""
        if self.timestamp_ms is None:
            return InitialPosition(TRIM_HORIZON)
        return InitialPosition(AT_TIMESTAMP, self.timestamp_ms)

    def __str__(self) -> str:
        time = "" if self.timestamp_ms is None else f":{self.timestamp_ms}"
        return f"{self.position}{time}"


def read_start_from_text(text: str) -> ReadStart:
    """Parse the text that `str` of a ReadStart returns.

    >>> read_start_from_text("4959/3").position, read_start_from_text("AT_TIMESTAMP:1700000000000").timestamp_ms
    (Position(sequence_number='4959', sub_sequence_number=3), 1700000000000)
    """
    position, _, time = text.partition(":")
    number, _, sub = position.partition("/")
    if position == AT_TIMESTAMP.sequence_number and time.isascii() and time.isdigit():
        return ReadStart(AT_TIMESTAMP, int(time))
    is_without_time = position == AT_TIMESTAMP.sequence_number
    if time or is_without_time or (sub and not (sub.isascii() and sub.isdigit())):
        raise InvalidPositionError(f"{text[:48]!r} is not a position to read from")
    return ReadStart(Position(number, int(sub or 0)))


@dataclass(frozen=True, slots=True)
class QueryOffset:
    """The plan of one generation: where each shard of the query begins."""

    generation_id: GenerationId
    starts: Mapping[ShardId, ReadStart]

    def to_json(self) -> dict[str, Any]:
        """The JSON that Spark logs."""
        return {
            "format": _FORMAT,
            "query": self.generation_id.query_id,
            "generation": self.generation_id.number,
            "from": {shard: str(self.starts[shard]) for shard in sorted(self.starts)},
        }


def offset_from_json(members: Mapping[str, Any]) -> QueryOffset | None:
    """Parse the JSON of `to_json`. Returns None for the initial offset, raises ConfigError for a foreign offset."""
    if members == INITIAL_OFFSET:
        return None
    try:
        return _parse_offset(members)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            "the checkpoint location holds an offset that this source did not write; another source or a newer version "
            "wrote it: give the query its own checkpoint location"
        ) from error


def _parse_offset(members: Mapping[str, Any]) -> QueryOffset:
    query_id, generation = members["query"], members["generation"]
    if members["format"] != _FORMAT or not _QUERY_ID.fullmatch(query_id) or type(generation) is not int:
        raise ValueError(query_id)
    starts = {ShardId(shard): read_start_from_text(text) for shard, text in members["from"].items()}
    return QueryOffset(GenerationId(query_id, generation), starts)


def resolve_start(
    after: Position, known: ReadStart | None, initial: InitialPosition, latest_ms: int
) -> ReadStart:
    """Translate the position of a lease into a place to read from.

    The lease of an unread shard holds LATEST, TRIM_HORIZON or AT_TIMESTAMP. The first offset that names the shard fixes
    the meaning, and later calls pass it as `known`. So "latest" stays one moment, `latest_ms`, even if the query
    restarts before it reads the first record.
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
                "a lease begins AT_TIMESTAMP, but the options have no timestamp: set startingPosition=at_timestamp and "
                "the startingTimestamp that the fleet was started with"
            )
        return ReadStart(AT_TIMESTAMP, initial.timestamp_ms)
    return ReadStart(after)


def is_lease_behind_log(lease: Lease, logged: ReadStart) -> bool:
    """True if the lease is behind the committed offsets: its table was deleted, or restored from a backup."""
    end = lease.checkpoint if lease.pin is None else max(lease.checkpoint, lease.pin.end)
    return logged.position.is_record and end < logged.position
