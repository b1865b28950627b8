"""The settings of a streaming query, apart from those of its fleet member and of its connections."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.initial_position import require_past
from leasehold.core.model import InitialPosition, ShardId
from leasehold.errors import ConfigError


class OnLeasesBehind(Enum):
    """The reaction to a lease that is behind the committed offsets: its table was deleted or restored from a backup."""

    FAIL = "fail"
    OFFSETS = "offsets"  # continue after the committed offsets
    LEASES = "leases"  # continue after the lease's checkpoint: records are delivered again


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """How a query reads its shards."""

    initial: InitialPosition
    starting: Mapping[ShardId, ReadStart] = field(
        default_factory=dict
    )  # overrides `initial` for single shards
    poll_every: timedelta = timedelta(seconds=1)
    on_leases_behind: OnLeasesBehind = OnLeasesBehind.FAIL
    max_leases: int | None = None

    def require_past_start(self, now_ms: int) -> None:
        """Raise ConfigError if a start is in the future."""
        require_past(self.initial.timestamp_ms, now_ms)
        for start in self.starting.values():
            require_past(start.timestamp_ms, now_ms)

    def require_known_shards(self, known: Collection[ShardId]) -> None:
        """Raise ConfigError if a shard with a start of its own is not among the shards of the stream."""
        unknown = sorted(self.starting.keys() - known)
        if unknown:
            raise ConfigError(
                f"startingPosition names {', '.join(unknown)}, but the stream has {', '.join(sorted(known)[:10])}"
                f"{' and more' if len(known) > 10 else ''}: name only shards that the stream has"
            )
