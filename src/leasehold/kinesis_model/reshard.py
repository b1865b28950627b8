"""How the hash range is divided: first shards, splits, merges, uniform scaling. Checks a wish, then carries
it out on a stream. Knows nothing of statuses and delays.
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
_HAIRS_BREADTH: Final = 2**64


def uniform_ranges(count: int) -> list[HashRange]:
    """The whole hash range in `count` parts of equal size.

    >>> [f"{part.start:x}" for part in uniform_ranges(4)][1:]
    ['40000000000000000000000000000000', '80000000000000000000000000000000', 'c0000000000000000000000000000000']
    """
    # Rounding each boundary by itself lets those of 3 parts be among those of 6.
    return _between([_HASH_KEYS * part // count for part in range(count)])


def check(stream: StreamState, reshard_change: Reshard) -> None:
    """Refuse what cannot be done, in words that name the shard and the value."""
    if stream.mode is StreamMode.ON_DEMAND and not isinstance(reshard_change, CreateShards):
        raise validation_error(
            f"Stream {stream.name} under account {stream.account_id} is ON_DEMAND: its shards are not changed by "
            "hand. Switch it to PROVISIONED with UpdateStreamMode first."
        )
    match reshard_change:
        case Split():
            _check_split(stream, reshard_change)
        case Merge():
            _check_merge(stream, reshard_change)
        case Scale():
            _check_scale(stream, reshard_change)
        case CreateShards():
            pass


def apply_reshard(stream: StreamState, reshard_change: Reshard, at_ms: int) -> None:
    """Do it, as of this time, or right after the last write if that was later."""
    if isinstance(reshard_change, CreateShards):
        stream.open(uniform_ranges(reshard_change.count), at_ms)
        return
    at_ms = stream.begin_reshard(at_ms)
    match reshard_change:
        case Split(shard_id, hash_key):
            _split(stream, stream.shard(shard_id), hash_key, at_ms)
        case Merge(lower, upper):
            _merge(stream, stream.shard(lower), stream.shard(upper), at_ms)
        case Scale(target):
            _scale(stream, _nearly_uniform(stream, target), at_ms)


def _split(stream: StreamState, shard: ShardState, hash_key: int, at_ms: int) -> None:
    whole = shard.hash_range
    halves = (HashRange(whole.start, hash_key - 1), HashRange(hash_key, whole.end))
    stream.replace([shard], halves, at_ms)


def _merge(stream: StreamState, lower: ShardState, upper: ShardState, at_ms: int) -> None:
    stream.replace([lower, upper], [HashRange(lower.hash_range.start, upper.hash_range.end)], at_ms)


def _nearly_uniform(stream: StreamState, target: int) -> list[HashRange]:
    """Parts of equal size, except that a boundary already there within a hair's breadth is left alone.

    People split at (start + end) / 2, which is one key beside the boundary that we would choose.
    """
    present = [shard.hash_range.start for shard in stream.open_shards]
    return _between([_snapped(part.start, present) for part in uniform_ranges(target)])


def _snapped(boundary: int, present: Sequence[int]) -> int:
    """The boundary, or the one already there that hardly differs."""
    above = bisect_left(present, boundary)
    nearest = min(present[max(0, above - 1) : above + 1], key=lambda other: abs(other - boundary))
    return nearest if abs(nearest - boundary) <= _HAIRS_BREADTH else boundary


def _between(starts: Sequence[int]) -> list[HashRange]:
    ends = [start - 1 for start in starts[1:]] + [HASH_KEY_MAX]
    return [HashRange(start, end) for start, end in zip(starts, ends, strict=True)]


def _scale(stream: StreamState, wanted: Sequence[HashRange], at_ms: int) -> None:
    """Split wherever a wanted boundary is missing, then merge what lies within one wanted range.

    The shards in between live for no time and hold no record, but they are there: every child has one parent
    by a split or two by a merge, as in the service.
    """
    for part in wanted[1:]:
        around = stream.open_shard_for(part.start)
        if around.hash_range.start != part.start:
            _split(stream, around, part.start, at_ms)
    for part in wanted:
        while (lower := stream.open_shard_for(part.start)).hash_range.end != part.end:
            _merge(stream, lower, stream.open_shard_for(lower.hash_range.end + 1), at_ms)


def _check_split(stream: StreamState, split: Split) -> None:
    shard = _eligible(stream, split.shard_id)
    whole = shard.hash_range
    if not whole.start + 1 < split.hash_key < whole.end:
        raise invalid_argument_error(
            f"NewStartingHashKey {split.hash_key} used in SplitShard() on shard {shard.id} in stream "
            f"{stream.name} under account {stream.account_id} is not both greater than one plus the shard's "
            f"StartingHashKey {whole.start} and less than the shard's EndingHashKey {whole.end}."
        )


def _check_merge(stream: StreamState, merge: Merge) -> None:
    lower, upper = _eligible(stream, merge.lower), _eligible(stream, merge.upper)
    if lower.hash_range.end + 1 != upper.hash_range.start:
        raise invalid_argument_error(
            f"Shards {lower.id} and {upper.id} in stream {stream.name} under account {stream.account_id} are not "
            "an adjacent pair of shards eligible for merging. ShardToMerge must end right below where "
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


def _eligible(stream: StreamState, shard_id: str) -> ShardState:
    place = f"in stream {stream.name} under account {stream.account_id}"
    if shard_id not in stream.shards:
        raise not_found_error(f"Could not find shard {shard_id} {place}.")
    shard = stream.shard(shard_id)
    if not shard.is_open:
        raise invalid_argument_error(
            f"Shard {shard_id} {place} has already been merged or split, and thus is not eligible for merging or "
            "splitting."
        )
    return shard
