"""Where a fleet begins to read: at the oldest record, at the tip of the stream, or at a time.

If it does not begin at the oldest record, the stream has records that are older than the fleet. They must not be
delivered. With LATEST, records that arrive before the first request for a shard need not be delivered either, so
producers wait until every shard has been read.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Final

from leasehold.core.model import InitialPosition, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.simulation.faults import Fault, FaultMix
from leasehold.simulation.virtual_time import START_WALL_MS
from leasehold.simulation.world import World

# The old records are older than clocks may differ: LATEST may include records of the last 30 seconds.
OLD_RECORDS_AGE_MS: Final = 40_000
_TIME_MS: Final = START_WALL_MS + OLD_RECORDS_AGE_MS - 1_000


class Start(Enum):
    """The initial position of a fleet."""

    OLDEST = "oldest"
    LATEST = "latest"
    AT_TIME = "at a time"

    @property
    def initial(self) -> InitialPosition:
        """The setting."""
        match self:
            case Start.OLDEST:
                return InitialPosition(TRIM_HORIZON)
            case Start.LATEST:
                return InitialPosition(LATEST)
            case Start.AT_TIME:
                return InitialPosition(AT_TIMESTAMP, _TIME_MS)


def draw_start(rng: random.Random, mix: FaultMix) -> Start:
    """Draw the start of a seed.

    After a loss of leases, old records may be delivered. A clock that is wrong by an hour dates LATEST wrongly.
    """
    start = rng.choices((Start.OLDEST, Start.LATEST, Start.AT_TIME), (4, 1, 1))[0]
    if mix.has(Fault.DELETIONS) or (start is Start.LATEST and mix.has(Fault.CLOCK_JUMPS)):
        return Start.OLDEST
    return start


def has_read_every_shard(world: World, stream: str) -> bool:
    """Return whether a process has read every open shard, or an ancestor: then its records will be read, too."""
    streams = world.services.streams
    shards = streams.state(stream).shards

    def is_read(shard: ShardId) -> bool:
        parents = shards[shard].parents if shard in shards else ()
        return streams.key_of(stream, shard) in world.shards_read or any(
            is_read(parent) for parent in parents
        )

    return all(is_read(each.id) for each in streams.state(stream).open_shards)
