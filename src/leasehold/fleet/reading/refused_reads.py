"""What a refused read means: the shard is gone, its stream was recreated, or neither."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.core.model import Shard, ShardId
from leasehold.core.position import Position
from leasehold.core.shards.recreated_stream import position_before_start
from leasehold.errors import NotFoundError, RecreatedStreamError, ServiceError
from leasehold.ports import Stream


async def is_shard_gone(stream: Stream, shard: ShardId, position: Position, error: ServiceError) -> bool:
    """Whether a shard no longer exists, after `error` refused to read it at `position`.

    Ending a shard without children is final, so a NotFoundError alone is not enough: the list of shards must agree.
    Raises RecreatedStreamError if the position cannot be in this shard. A retry would fail for ever.
    """
    shards = await _list_shards(stream)
    if isinstance(error, NotFoundError) and shards is not None and shard not in shards:
        return True
    found = (shards or {}).get(shard)
    fact = found and position_before_start(position, found)
    if fact:
        raise RecreatedStreamError(f"the stream was deleted and created again: {fact}")
    return False


async def _list_shards(stream: Stream) -> Mapping[ShardId, Shard] | None:
    """The shards of the stream, none if it was deleted; None if they cannot be listed."""
    try:
        return {shard.id: shard for shard in await stream.list_shards()}
    except NotFoundError:
        return {}
    except ServiceError:
        return None
