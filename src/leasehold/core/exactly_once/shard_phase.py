"""The phases of one shard of a Spark query, and the transitions between them.

A query holds the lease of a shard and reads the shard in batches. Spark logs a batch before it is read and commits it
afterwards; it asks for the next plan only once the batch before is committed.

| phase   | leaves by                             | to                  |
|---------|---------------------------------------|---------------------|
| Taken   | the next plan reads the lease         | Idle, Ready, Ended  |
| Idle    | a poll finds records, or the end      | Ready, Ended        |
| Ready   | a plan includes the shard             | InBatch             |
| InBatch | the next plan reads the pin           | Idle, Ready, Ended  |
| Ended   | the end of the shard is written       | Finished            |

After a restart, Spark replays a batch that was logged and not committed. A replay moves a shard to InBatch from every
phase except Finished. `next_phase` is the only decision; it is a pure function of the lease and the offset log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import ClassVar, Final

from leasehold.core.exactly_once.pinned_batch import (
    ContinueReading,
    LeaseAheadOfLog,
    PinMetadata,
    Redeliver,
    ShardFinished,
    next_slice,
    pin_metadata,
)
from leasehold.core.exactly_once.query_offset import QueryOffset, ReadStart
from leasehold.core.model import ChildShard, Lease
from leasehold.core.position import Position


@dataclass(frozen=True, slots=True)
class Taken:
    """The lease was taken. The next plan decides where reading continues."""

    start: ClassVar[ReadStart | None] = None
    committed_to: ClassVar[Position | None] = None


@dataclass(frozen=True, slots=True)
class Idle:
    """Everything delivered is committed, and no new record has been seen."""

    lease: Lease  # the copy that `start` was computed from
    start: ReadStart
    committed_to: Position | None  # end of a pin whose batch is committed: may become the checkpoint
    was_read_to_tip: bool = False  # the committed batch read up to the tip of the shard


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything delivered is committed, and the next batch has something to read."""

    lease: Lease
    start: ReadStart
    committed_to: Position | None
    redeliver_to: Position | None = None  # a slice that an earlier owner pinned and did not finish
    iterator: str | None = None  # points right behind `start`


@dataclass(frozen=True, slots=True)
class InBatch:
    """A batch reads the shard. Its result is the pin in the lease."""

    start: ReadStart | None = None
    committed_to: Position | None = None  # by the batch before
    is_replay: bool = False  # an earlier run decided where the slice ends


@dataclass(frozen=True, slots=True)
class Ended:
    """The shard is delivered and committed to its end. The end is not yet written to the lease."""

    children: tuple[ChildShard, ...]
    start: ReadStart | None = None
    committed_to: Position | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end is written. The lease needs no more work."""

    start: ClassVar[ReadStart | None] = None
    committed_to: ClassVar[Position | None] = None


ShardPhase = Taken | Idle | Ready | InBatch | Ended | Finished


def next_start(phase: ShardPhase) -> ReadStart | None:
    """Where the next slice of a shard begins: after everything that is committed. None if that is not known now.

    A shard that has ended may have to wait for the other parent of a merge before its end is written. Meanwhile the
    offset log names its last record, as for every other shard.
    """
    match phase:
        case Idle(start=start) | Ready(start=start):
            return start
        case Ended(start=start, committed_to=committed_to):
            return ReadStart(committed_to) if committed_to is not None and committed_to.is_record else start
        case _:
            return None


TRANSITIONS: Final[Mapping[type, frozenset[type]]] = {
    Taken: frozenset({Idle, Ready, Ended, InBatch}),
    Idle: frozenset({Ready, Ended, InBatch}),
    Ready: frozenset({InBatch}),
    InBatch: frozenset({Idle, Ready, Ended, InBatch}),
    Ended: frozenset({Finished, InBatch}),
    Finished: frozenset(),
}


def require_transition(before: ShardPhase, after: ShardPhase) -> None:
    """Raise AssertionError for a transition that is not in the table: a bug in the caller."""
    assert type(after) in TRANSITIONS[type(before)], f"{type(before).__name__} -> {type(after).__name__}"


class TipProgress(IntEnum):
    """How close to its tip a shard has been read. It never falls. A bounded run ends when all shards caught up."""

    BEHIND = auto()
    READ_TO_TIP = (
        auto()
    )  # a batch has read up to the tip; the next poll shows whether the shard continues there
    CAUGHT_UP = auto()


@dataclass(frozen=True, slots=True)
class PhaseDecision:
    """The phase of a shard once the logged generation is committed."""

    phase: Idle | Ready | Ended
    delivered: PinMetadata | None = (
        None  # of the committed slice; None if the generation did not read the shard
    )
    tip: TipProgress = TipProgress.BEHIND


def next_phase(
    before: Taken | InBatch,
    lease: Lease,
    logged: QueryOffset,
    resolve_start: Callable[[Position], ReadStart],
) -> PhaseDecision | LeaseAheadOfLog:
    """Decide where a shard continues, from its lease, now that Spark has committed the logged generation.

    `resolve_start` translates a position of the lease, which may be LATEST, into a place to read from.
    """
    known = logged.starts.get(lease.key)
    committed_to = lease.pin.end if lease.pin else None
    match next_slice(lease, logged.generation_id, known.position if known else None):
        case ContinueReading(after):
            return _continue_reading(before, lease, logged, resolve_start(after), committed_to)
        case Redeliver(after, end):
            # The pin is not committed, so it must not become the checkpoint.
            return PhaseDecision(Ready(lease, resolve_start(after), None, redeliver_to=end))
        case ShardFinished(children):
            ended = Ended(children, before.start, committed_to)
            return PhaseDecision(ended, delivered=pin_metadata(lease))
        case LeaseAheadOfLog() as ahead:
            return ahead


def _continue_reading(
    before: Taken | InBatch,
    lease: Lease,
    logged: QueryOffset,
    start: ReadStart,
    committed_to: Position | None,
) -> PhaseDecision:
    is_new, metadata = isinstance(before, Taken), pin_metadata(lease)
    # The pin of a shard that the committed generation did not read is of an older generation.
    was_read = not is_new and metadata is not None and metadata.generation_id == logged.generation_id
    has_more = metadata is not None and metadata.has_more and (is_new or was_read)
    was_never_read = is_new and not start.position.is_record
    was_read_to_tip = was_read and not has_more
    phase = (
        Ready(lease, start, committed_to)
        if was_never_read or has_more
        else Idle(lease, start, committed_to, was_read_to_tip)
    )
    # An earlier run chose the end of a replayed slice: it says nothing about the tip of today.
    is_at_tip = was_read_to_tip and isinstance(before, InBatch) and not before.is_replay
    return PhaseDecision(
        phase,
        delivered=metadata if was_read else None,
        tip=TipProgress.READ_TO_TIP if is_at_tip else TipProgress.BEHIND,
    )
