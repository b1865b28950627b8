"""Decides, from a lease alone, which records of a shard belong to a batch of a query.

A Spark query reads the stream in *generations*. A task that reads a shard for a generation pins the end of its slice in
the lease, together with metadata that names the generation. The pin is the record of what the generation delivered. A
retry, a speculative copy or a replay reads to the same end, and the next generation begins there. Records beyond the
pin were not delivered.

An empty slice is pinned too, at its own beginning. Otherwise a late second attempt could find records and pin them for
a generation that was committed without them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from leasehold.core.model import ChildShard, HashRange, Lease, ShardId
from leasehold.core.position import Position
from leasehold.errors import LeaseholdError

# Metadata takes some hundred bytes. The limit bounds the cost of parsing a row that another program wrote.
PIN_METADATA_BYTES_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class GenerationId:
    """One generation of one query. The query id is random, and drawn once for each checkpoint location."""

    query_id: str
    number: int

    @property
    def next(self) -> GenerationId:
        """The id of the following generation."""
        return GenerationId(self.query_id, self.number + 1)


@dataclass(frozen=True, slots=True)
class PinMetadata:
    """What a task stores with a pin, for the plan of the next generation."""

    generation_id: GenerationId
    records: int = 0
    size_bytes: int = 0
    millis_behind: int | None = None
    has_more: bool = False  # the slice ended at a limit: more records can be read at once
    children: tuple[ChildShard, ...] | None = None  # set if the slice reached the end of the shard
    record_weight: int | None = None  # bytes of a Kinesis record: sizes the first call of the next reader
    quota_at_ms: int | None = None  # wall-clock time at which the next reader has its quota of bytes again


def pin_metadata_to_bytes(metadata: PinMetadata) -> bytes:
    """Encode metadata as the state of a pin."""
    fields: dict[str, Any] = {
        "query": metadata.generation_id.query_id,
        "generation": metadata.generation_id.number,
        "records": metadata.records,
        "bytes": metadata.size_bytes,
        "behind": metadata.millis_behind,
        "more": metadata.has_more,
    }
    if metadata.record_weight is not None:
        fields["weight"] = metadata.record_weight
    if metadata.quota_at_ms is not None:
        fields["quotaAt"] = metadata.quota_at_ms
    if metadata.children is not None:
        fields["children"] = [
            [child.id, list(child.parents), str(child.hash_range.start), str(child.hash_range.end)]
            for child in metadata.children
        ]
    return json.dumps(fields, separators=(",", ":")).encode()


def pin_metadata(lease: Lease) -> PinMetadata | None:
    """Decode the metadata of a lease's pin. Returns None without a pin, or if another application wrote the state."""
    state = lease.pin.state if lease.pin else None
    if state is None or len(state) > PIN_METADATA_BYTES_MAX:
        return None
    try:
        return _parse_metadata(json.loads(state))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, LeaseholdError):
        return None


def _parse_metadata(fields: dict[str, Any]) -> PinMetadata:
    generation, records, size_bytes = (fields[name] for name in ("generation", "records", "bytes"))
    behind, weight, quota_at_ms = fields["behind"], fields.get("weight"), fields.get("quotaAt")
    optional = [number for number in (behind, weight, quota_at_ms) if number is not None]
    for number in (generation, records, size_bytes, *optional):
        if type(number) is not int or number < 0:
            raise ValueError(number)
    if type(fields["query"]) is not str:
        raise ValueError(fields["query"])
    generation_id = GenerationId(fields["query"], generation)
    has_more = fields["more"] is True
    children = _parse_children(fields)
    return PinMetadata(generation_id, records, size_bytes, behind, has_more, children, weight, quota_at_ms)


def _parse_children(fields: dict[str, Any]) -> tuple[ChildShard, ...] | None:
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
    """The next slice begins after `after`. Everything before it is delivered and committed."""

    after: Position


@dataclass(frozen=True, slots=True)
class Redeliver:
    """An owner pinned a slice and did not finish it. Deliver the whole slice again, from the checkpoint to `end`."""

    after: Position
    end: Position


@dataclass(frozen=True, slots=True)
class ShardFinished:
    """The last slice of the shard is delivered and committed. Only the end of the shard has to be written."""

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class LeaseAheadOfLog:
    """The lease has a later generation of this query than the query's own log: the log is an old copy."""

    generation_id: GenerationId


def next_slice(
    lease: Lease, committed: GenerationId, planned_at: Position | None = None
) -> ContinueReading | Redeliver | ShardFinished | LeaseAheadOfLog:
    """Decide where a shard continues in the generation after `committed`, which Spark has committed as a whole.

    `planned_at` is the beginning of the shard's slice in the plan of `committed`; None if the lease was not held then.
    """
    pin, metadata = lease.pin, pin_metadata(lease)
    latest = latest_generation(lease, committed.query_id)
    if latest is not None and latest.number > committed.number:
        return LeaseAheadOfLog(latest)
    if pin is None:
        return ContinueReading(lease.checkpoint)
    unfinished = (
        Redeliver(lease.checkpoint, pin.end)
        if pin.end > lease.checkpoint
        else ContinueReading(lease.checkpoint)
    )
    if metadata is None or metadata.generation_id.query_id != committed.query_id:
        return unfinished
    pinned_in = metadata.generation_id
    if pinned_in.number < committed.number and planned_at is not None and planned_at < pin.end:
        # A late task pinned after its generation was committed without it. Its records were not delivered.
        return unfinished
    return ContinueReading(pin.end) if metadata.children is None else ShardFinished(metadata.children)


def latest_generation(lease: Lease, query_id: str) -> GenerationId | None:
    """The last generation of a query that pinned a batch of this lease. None if the row knows none.

    The row keeps it after the pin was promoted, or removed by a member that knows nothing of queries.
    """
    metadata = pin_metadata(lease)
    pinned = [] if metadata is None else [metadata.generation_id]
    stamped = [GenerationId(*each) for each in lease.generations]
    own = (each for each in (*pinned, *stamped) if each.query_id == query_id)
    return max(own, key=lambda each: each.number, default=None)


def generation_end(lease: Lease | None, generation_id: GenerationId) -> Position | None:
    """Where a generation ends in this shard. None if the generation delivered nothing from it."""
    metadata = pin_metadata(lease) if lease else None
    if lease is None or lease.pin is None or metadata is None:
        return None
    return lease.pin.end if metadata.generation_id == generation_id else None


@dataclass(frozen=True, slots=True)
class DeliverUpTo:
    """Another attempt has pinned this slice. Deliver exactly up to `end`."""

    end: Position


@dataclass(frozen=True, slots=True)
class RetryPin:
    """The row changed, but the slice still belongs to this task. Retry the pin with this copy of the lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class DeliverNothing:
    """The slice belongs to another owner or a later batch. This task must not deliver any record."""

    reason: str


def resolve_refused_pin(
    planned: Lease, generation_id: GenerationId, now: Lease | None
) -> DeliverUpTo | RetryPin | DeliverNothing:
    """Decide what a task does after its pin was refused, from the lease in the plan and the lease now."""
    if now is None:
        return DeliverNothing("the lease was deleted")
    # This comes first: if another attempt pinned the slice, its end is final even if the lease has a new owner.
    if (end := generation_end(now, generation_id)) is not None:
        return DeliverUpTo(end)
    if now.session != planned.session or now.actual_owner != planned.actual_owner:
        return DeliverNothing(f"{now.actual_owner or 'no worker'} owns the lease now")
    latest = latest_generation(now, generation_id.query_id)
    if latest is not None and latest.number >= generation_id.number:
        return DeliverNothing(
            "this batch is committed without records of the shard, or a later one has begun"
        )
    begins_at = planned.checkpoint if planned.pin is None else planned.pin.end
    is_as_planned = now.checkpoint == planned.checkpoint and now.pin == planned.pin
    is_promoted = now.pin is None and now.checkpoint == begins_at
    if is_as_planned or is_promoted:
        return RetryPin(now)
    return DeliverNothing("a later batch has begun")
