"""Which records belong to a shard's part of a query's batch, decided from the lease alone.

A Spark query cuts the stream in *generations*. Every task that reads a shard for a generation writes where its slice
ends into the lease, as a pin, together with a note that names the generation. The note is the record of what that
generation delivered: a retry, a copy or a replay reads to the same end, and the next generation begins there. What is
not pinned was not delivered. A slice without records is pinned as well, where it began: otherwise a second attempt that
comes late, and finds records, would pin them for a generation that is long committed without them.

Knows rows and notes, neither Spark nor how a slice is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from leasehold.core.model import ChildShard, HashRange, Lease, ShardId
from leasehold.core.position import Position
from leasehold.errors import LeaseholdError

# A note of ours takes some hundred bytes; the limit keeps a hostile row from costing more.
PIN_METADATA_BYTES_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class GenerationId:
    """One generation of one query. The epoch is drawn once for each checkpoint location and never comes back."""

    query_id: str
    generation: int

    @property
    def next(self) -> GenerationId:
        """The generation after it."""
        return GenerationId(self.query_id, self.generation + 1)


@dataclass(frozen=True, slots=True)
class PinMetadata:
    """What a task notes beside the end of its slice, for whoever plans the next generation."""

    generation_id: GenerationId
    records: int = 0
    size_bytes: int = 0
    millis_behind: int | None = None
    has_more: bool = False  # the slice ended at a limit; there is more to read at once
    children: tuple[ChildShard, ...] | None = None  # who goes on, where the slice ends with its shard
    record_weight: int | None = None  # of a Kinesis record, for the size of the next reader's first call


def pin_metadata_to_bytes(note: PinMetadata) -> bytes:
    """A note as the state of a pin."""
    fields: dict[str, Any] = {
        "epoch": note.generation_id.query_id,
        "generation": note.generation_id.generation,
        "records": note.records,
        "bytes": note.size_bytes,
        "behind": note.millis_behind,
        "more": note.has_more,
    }
    if note.record_weight is not None:
        fields["weight"] = note.record_weight
    if note.children is not None:
        fields["children"] = [
            [child.id, list(child.parents), str(child.hash_range.start), str(child.hash_range.end)]
            for child in note.children
        ]
    return json.dumps(fields, separators=(",", ":")).encode()


def pin_metadata(lease: Lease) -> PinMetadata | None:
    """The note of a lease's pin; None where there is no pin, or one of a stranger, who may note what they like."""
    state = lease.pin.state if lease.pin else None
    if state is None or len(state) > PIN_METADATA_BYTES_MAX:
        return None
    try:
        return _note(json.loads(state))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, LeaseholdError):
        return None


def _note(fields: dict[str, Any]) -> PinMetadata:
    generation, records, size_bytes = (fields[name] for name in ("generation", "records", "bytes"))
    behind, weight = fields["behind"], fields.get("weight")
    for number in (generation, records, size_bytes, behind or 0, weight or 0):
        if type(number) is not int or number < 0:
            raise ValueError(number)
    if type(fields["epoch"]) is not str:
        raise ValueError(fields["epoch"])
    generation_id = GenerationId(fields["epoch"], generation)
    return PinMetadata(
        generation_id, records, size_bytes, behind, fields["more"] is True, _children(fields), weight
    )


def _children(fields: dict[str, Any]) -> tuple[ChildShard, ...] | None:
    if "children" not in fields:
        return None
    return tuple(
        ChildShard(
            ShardId(str(shard)),
            tuple(ShardId(str(parent)) for parent in parents),
            HashRange(int(first), int(last)),
        )
        for shard, parents, first, last in fields["children"]
    )


@dataclass(frozen=True, slots=True)
class ContinueReading:
    """The next slice begins after `after`. What lies before it is delivered and committed."""

    after: Position


@dataclass(frozen=True, slots=True)
class Redeliver:
    """Someone pinned a slice and did not finish it: it is delivered again first, as a whole, from the checkpoint on."""

    after: Position
    end: Position


@dataclass(frozen=True, slots=True)
class ShardFinished:
    """The last slice of the shard is delivered and committed; what is left is to write its end."""

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class LeaseAheadOfLog:
    """The lease says that this query has come further than its own log knows: the log is an old copy."""

    generation_id: GenerationId


def next_slice(
    lease: Lease, committed: GenerationId, planned_at: Position | None = None
) -> ContinueReading | Redeliver | ShardFinished | LeaseAheadOfLog:
    """Where a shard goes on in the generation after `committed`, all of which Spark has committed.

    `planned_at` is where the shard stood when `committed` was planned, if it was held then.
    """
    pin, note = lease.pin, pin_metadata(lease)
    if pin is None:
        return ContinueReading(lease.checkpoint)
    unfinished = (
        Redeliver(lease.checkpoint, pin.end)
        if pin.end > lease.checkpoint
        else ContinueReading(lease.checkpoint)
    )
    if note is None or note.generation_id.query_id != committed.query_id:
        return unfinished
    if note.generation_id.generation > committed.generation:
        return LeaseAheadOfLog(note.generation_id)
    if (
        note.generation_id.generation < committed.generation
        and planned_at is not None
        and planned_at < pin.end
    ):
        # The generation of the note was committed without it: a task that nobody waited for has pinned later.
        return unfinished
    return ContinueReading(pin.end) if note.children is None else ShardFinished(note.children)


def generation_end(lease: Lease | None, generation_id: GenerationId) -> Position | None:
    """Where a generation that is done once more ends in this shard; None if it delivered nothing from it."""
    note = pin_metadata(lease) if lease else None
    return lease.pin.end if lease and lease.pin and note and note.generation_id == generation_id else None


@dataclass(frozen=True, slots=True)
class DeliverUpTo:
    """Another attempt has pinned this slice: deliver exactly up to `end`."""

    end: Position


@dataclass(frozen=True, slots=True)
class RetryPin:
    """The row has changed in a way that leaves the slice ours to pin: try again with this copy."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class DeliverNothing:
    """The slice is another's by now. Nothing may be given away."""

    reason: str


def resolve_refused_pin(
    planned: Lease, generation_id: GenerationId, now: Lease | None
) -> DeliverUpTo | RetryPin | DeliverNothing:
    """What a task does whose pin was refused, from the lease as it was planned and as it is."""
    if now is None:
        return DeliverNothing("the lease is gone")
    if (end := generation_end(now, generation_id)) is not None:
        return DeliverUpTo(end)
    if now.session != planned.session or now.actual_owner != planned.actual_owner:
        return DeliverNothing(f"{now.actual_owner or 'nobody'} holds the lease now")
    begins_at = planned.checkpoint if planned.pin is None else planned.pin.end
    is_as_planned = now.checkpoint == planned.checkpoint and now.pin == planned.pin
    is_promoted = now.pin is None and now.checkpoint == begins_at
    if is_as_planned or is_promoted:
        return RetryPin(now)
    return DeliverNothing("a later batch has begun")
