"""Resharding: the first shards, splits, merges and uniform scaling. Checks a request, then applies it to a stream.

Statuses and delays are the business of `service`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from leasehold.core.model import HASH_KEY_MAX, HashRange
from leasehold.kinesis_model.api_errors import invalid_argument_error, not_found_error, validation_error
from leasehold.kinesis_model.shard import ShardState
from leasehold.kinesis_model.stream import CreateShards, Merge, Reshard, Scale, Split, StreamMode, StreamState

_HASH_KEYS: Final = HASH_KEY_MAX + 1
# A boundary this close to the wanted one counts as equal.
_BOUNDARY_TOLERANCE: Final = 2**64


def uniform_ranges(count: int) -> list[HashRange]:
    """Divide the whole hash range into `count` parts of equal size.

    >>> [f"{part.start:x}" for part in uniform_ranges(4)][1:]
    ['40000000000000000000000000000000', '80000000000000000000000000000000', 'c0000000000000000000000000000000']
    """
    # Each boundary is rounded on its own, so the boundaries of 3 parts are among those of 6.
    return _ranges_from_starts([_HASH_KEYS * part // count for part in range(count)])


def check_reshard(stream: StreamState, reshard: Reshard) -> None:
    """Refuse a reshard that is not possible. The error names the shard and the value."""
    if stream.config.mode is StreamMode.ON_DEMAND and not isinstance(reshard, CreateShards):
        raise validation_error(
            f"Stream {stream.label} is ON_DEMAND: clients cannot change its shards. Switch it to PROVISIONED with "
            "UpdateStreamMode first."
        )
    match reshard:
        case Split():
            _check_split(stream, reshard)
        case Merge():
            _check_merge(stream, reshard)
        case Scale():
            _check_scale(stream, reshard)
        case CreateShards():
            pass


def apply_reshard(stream: StreamState, reshard: Reshard, due_ms: int) -> None:
    """Apply a reshard as of `due_ms`, or right after the last write if that was later."""
    if isinstance(reshard, CreateShards):
        stream.create_shards(uniform_ranges(reshard.count), due_ms)
        return
    at_ms = stream.clock.begin_reshard(due_ms)
    match reshard:
        case Split(shard_id, hash_key):
            _split(stream, stream.shard(shard_id), hash_key, at_ms)
        case Merge(lower, upper):
            _merge(stream, stream.shard(lower), stream.shard(upper), at_ms)
        case Scale(target):
            _scale(stream, _nearly_uniform(stream, target), at_ms)


def _split(stream: StreamState, shard: ShardState, hash_key: int, at_ms: int) -> None:
    whole = shard.hash_range
    halves = (HashRange(whole.start, hash_key - 1), HashRange(hash_key, whole.end))
    stream.replace_shards([shard], halves, at_ms)


def _merge(stream: StreamState, lower: ShardState, upper: ShardState, at_ms: int) -> None:
    stream.replace_shards([lower, upper], [HashRange(lower.hash_range.start, upper.hash_range.end)], at_ms)


def _nearly_uniform(stream: StreamState, target: int) -> list[HashRange]:
    """Return parts of equal size, but keep an existing boundary that is almost right.

    Users split at (start + end) / 2, which is one key below the boundary of `uniform_ranges`.
    """
    present = [shard.hash_range.start for shard in stream.open_shards]
    return _ranges_from_starts([_nearest_boundary(part.start, present) for part in uniform_ranges(target)])


def _nearest_boundary(boundary: int, present: Sequence[int]) -> int:
    """Return the existing boundary within the tolerance, or the wanted boundary if there is none."""
    above = bisect_left(present, boundary)
    nearest = min(present[max(0, above - 1) : above + 1], key=lambda other: abs(other - boundary))
    return nearest if abs(nearest - boundary) <= _BOUNDARY_TOLERANCE else boundary


def _ranges_from_starts(starts: Sequence[int]) -> list[HashRange]:
    ends = [start - 1 for start in starts[1:]] + [HASH_KEY_MAX]
    return [HashRange(start, end) for start, end in zip(starts, ends, strict=True)]


def _scale(stream: StreamState, wanted: Sequence[HashRange], at_ms: int) -> None:
    """Split at every wanted boundary that is missing, then merge the shards within each wanted range.

    The intermediate shards are open for no time and have no records. They exist because every child has one parent
    after a split or two parents after a merge, as in the service.
    """
    for part in wanted[1:]:
        around = stream.open_shard_for(part.start)
        if around.hash_range.start != part.start:
            _split(stream, around, part.start, at_ms)
    for part in wanted:
        while (lower := stream.open_shard_for(part.start)).hash_range.end != part.end:
            _merge(stream, lower, stream.open_shard_for(lower.hash_range.end + 1), at_ms)


def _check_split(stream: StreamState, split: Split) -> None:
    shard = _require_open_shard(stream, split.shard_id)
    whole = shard.hash_range
    if not whole.start + 1 < split.hash_key < whole.end:
        raise invalid_argument_error(
            f"NewStartingHashKey {split.hash_key} used in SplitShard() on shard {shard.id} in stream "
            f"{stream.label} is not both greater than one plus the shard's "
            f"StartingHashKey {whole.start} and less than the shard's EndingHashKey {whole.end}."
        )


def _check_merge(stream: StreamState, merge: Merge) -> None:
    lower, upper = _require_open_shard(stream, merge.lower), _require_open_shard(stream, merge.upper)
    if lower.hash_range.end + 1 != upper.hash_range.start:
        raise invalid_argument_error(
            f"Shards {lower.id} and {upper.id} in stream {stream.label} are not an "
            "adjacent pair of shards eligible for merging. ShardToMerge must end right below where "
            "AdjacentShardToMerge begins."
        )


def _check_scale(stream: StreamState, scale: Scale) -> None:
    current = len(stream.open_shards)
    counts = f"Current open shard count: {current} Target shard count: {scale.target}"
    if scale.target > 2 * current:
        raise invalid_argument_error(
            f"UpdateShardCount cannot scale up over double your current open shard count. {counts}"
        )
    if 2 * scale.target < current:
        raise invalid_argument_error(
            f"UpdateShardCount cannot scale down below half your current open shard count. {counts}"
        )


def _require_open_shard(stream: StreamState, shard_id: str) -> ShardState:
    location = f"in stream {stream.label}"
    if shard_id not in stream.shards:
        raise not_found_error(f"Could not find shard {shard_id} {location}.")
    shard = stream.shard(shard_id)
    if not shard.is_open:
        raise invalid_argument_error(
            f"Shard {shard_id} {location} has already been merged or split, and thus is not eligible for merging or "
            "splitting."
        )
    return shard
