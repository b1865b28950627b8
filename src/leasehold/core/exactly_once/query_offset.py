"""The offsets of a Spark query: the plan of a generation, as JSON that Spark logs before any record is read.

An offset names the generation and where each shard of the query begins in it. The ends of the slices are not known yet
when Spark logs the offset; the leases hold them (`pinned_batch`). The positions in the offset are a copy. They reveal a
lease table that was deleted or restored from a backup (`lost_leases`), and they keep the meaning of "latest" across
restarts. For this, an offset also names shards that the query does not read any more:

* `released`: the lease left this query. The position is the last one that the query knew.
* `finished`: the query has read the shard to its end.

An offset does not grow for ever. If it names a shard, all ancestors of the shard are finished, so they need not be
named. Nor need a shard that has left the stream: no lease of it can be created again.

Shards of two streams have the same ids, so an offset names a shard by the key of its lease, which in a query of one
stream is the shard id. Decisions about families of shards are made stream by stream (`StreamOffset`).

Spark compares offsets as text, so the keys have a fixed order. The planner makes no plan that changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.model import (
    InitialPosition,
    Lease,
    LeaseKey,
    ShardId,
    StreamIdentifier,
    is_stream_identifier,
    lease_key,
    parse_lease_key,
)
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.core.shards.shard_graph import ShardGraph
from leasehold.errors import ConfigError, InvalidPositionError

# Constant, because Spark asks for it again when it repeats the first batch.
INITIAL_OFFSET: Final[Mapping[str, Any]] = {"generation": 0}
_FORMAT: Final = 2
_FORMAT_OF_SEVERAL_STREAMS: Final = 3
_FORMAT_WITHOUT_FORMER_SHARDS: Final = (
    1  # of a development version; its offsets name only shards that the query reads
)
T = TypeVar("T")

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
class StreamOffset:
    """What an offset says about the shards of one stream."""

    starts: Mapping[ShardId, ReadStart] = field(default_factory=dict)
    released: Mapping[ShardId, ReadStart] = field(default_factory=dict)
    finished: frozenset[ShardId] = frozenset()

    @property
    def known_starts(self) -> Mapping[ShardId, ReadStart]:
        """The last known position of each shard that the query has not finished."""
        return {**self.released, **self.starts}

    @property
    def shards(self) -> AbstractSet[ShardId]:
        """All shards that the offset names."""
        return self.starts.keys() | self.released.keys() | self.finished


@dataclass(frozen=True, slots=True)
class QueryOffset:
    """The plan of one generation: where each shard of the query begins, and what became of its former shards.

    `streams` are those of a query of several; a query of one stream has none, and its keys are shard ids.
    """

    generation_id: GenerationId
    starts: Mapping[LeaseKey, ReadStart]
    released: Mapping[LeaseKey, ReadStart] = field(default_factory=dict)
    finished: frozenset[LeaseKey] = frozenset()
    streams: frozenset[StreamIdentifier] = frozenset()

    @property
    def known_starts(self) -> Mapping[LeaseKey, ReadStart]:
        """The last known position of each shard that the query has not finished."""
        return {**self.released, **self.starts}

    def in_stream(self, stream: StreamIdentifier | None) -> StreamOffset:
        """The part of one stream; None: the only stream of the query."""
        return StreamOffset(
            shards_of_stream(self.starts, stream),
            shards_of_stream(self.released, stream),
            frozenset(shards_of_stream(dict.fromkeys(self.finished), stream)),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON that Spark logs."""
        several = {"streams": sorted(self.streams)} if self.streams else {}
        return {
            "format": _FORMAT_OF_SEVERAL_STREAMS if self.streams else _FORMAT,
            "query": self.generation_id.query_id,
            "generation": self.generation_id.number,
            **several,
            "from": {key: str(self.starts[key]) for key in sorted(self.starts)},
            "released": {key: str(self.released[key]) for key in sorted(self.released)},
            "finished": sorted(self.finished),
        }


def shards_of_stream(values: Mapping[LeaseKey, T], stream: StreamIdentifier | None) -> dict[ShardId, T]:
    """The values of the shards of one stream, by shard id."""
    parsed = ((parse_lease_key(key), value) for key, value in values.items())
    return {shard: value for (named, shard), value in parsed if named == stream}


def join_streams(
    generation_id: GenerationId, parts: Mapping[StreamIdentifier | None, StreamOffset]
) -> QueryOffset:
    """The offset of a generation with these parts, one for each stream of the query."""
    return QueryOffset(
        generation_id,
        {lease_key(shard, name): at for name, part in parts.items() for shard, at in part.starts.items()},
        {lease_key(shard, name): at for name, part in parts.items() for shard, at in part.released.items()},
        frozenset(lease_key(shard, name) for name, part in parts.items() for shard in part.finished),
        frozenset(name for name in parts if name is not None),
    )


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
    if not _QUERY_ID.fullmatch(query_id) or type(generation) is not int:
        raise ValueError(query_id)
    generation_id, starts = GenerationId(query_id, generation), _parse_starts(members["from"])
    if members["format"] == _FORMAT_WITHOUT_FORMER_SHARDS:
        return QueryOffset(generation_id, starts)
    finished = members["finished"]
    if not isinstance(finished, list):
        raise TypeError(finished)
    keys = frozenset(LeaseKey(_require_text(key)) for key in finished)
    return QueryOffset(
        generation_id, starts, _parse_starts(members["released"]), keys, _parse_streams(members)
    )


def _parse_streams(members: Mapping[str, Any]) -> frozenset[StreamIdentifier]:
    if members["format"] == _FORMAT:
        return frozenset()
    streams = members["streams"]
    if members["format"] != _FORMAT_OF_SEVERAL_STREAMS or not isinstance(streams, list) or not streams:
        raise ValueError(members["format"])
    if not all(is_stream_identifier(_require_text(each)) for each in streams):
        raise ValueError(streams)
    return frozenset(map(StreamIdentifier, streams))


def _parse_starts(starts: Mapping[str, Any]) -> Mapping[LeaseKey, ReadStart]:
    return {LeaseKey(key): read_start_from_text(text) for key, text in starts.items()}


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def finished_shards(logged: StreamOffset, graph: ShardGraph) -> frozenset[ShardId]:
    """The shards that are finished according to the log: those that it names, and the ancestors of all it names.

    A shard that is read again, because the user chose so, is not finished.
    """
    return (logged.finished | _strict_ancestors(logged.shards, graph)) - logged.starts.keys()


def _strict_ancestors(shards: Collection[ShardId], graph: ShardGraph) -> frozenset[ShardId]:
    parents = {parent for shard in shards if shard in graph.shards for parent in graph.parents_of(shard)}
    return graph.upward_from(parents)


def next_offset(
    logged: StreamOffset,
    starts: Mapping[ShardId, ReadStart],
    finished: AbstractSet[ShardId],
    graph: ShardGraph | None = None,
    forgotten: AbstractSet[ShardId] = frozenset(),
) -> StreamOffset:
    """The part of one stream after `logged`.

    `starts` are the shards that the query reads, `finished` those that it has finished. With the shards of the stream,
    shards that need not be named any more are dropped. `forgotten` shards are dropped, too: the user has chosen to read
    an ancestor of them again.
    """
    all_finished = (logged.finished | finished) - starts.keys() - forgotten
    gone = starts.keys() | all_finished | forgotten
    released = {shard: start for shard, start in logged.known_starts.items() if shard not in gone}
    offset = StreamOffset(starts, released, all_finished)
    return offset if graph is None else _without_obsolete(offset, graph)


def _without_obsolete(offset: StreamOffset, graph: ShardGraph) -> StreamOffset:
    ancestors = _strict_ancestors(offset.shards, graph)
    needed = graph.shards.keys() - ancestors
    released = {shard: start for shard, start in offset.released.items() if shard in needed}
    return replace(offset, released=released, finished=offset.finished & needed)


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
    """True if the lease is behind the committed offsets: its table was deleted, restored or reset."""
    end = lease.checkpoint if lease.pin is None else max(lease.checkpoint, lease.pin.end)
    return logged.position.is_record and end < logged.position
