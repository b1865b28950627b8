"""The settings of a streaming query, apart from those of its fleet member and of its connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.model import InitialPosition, ShardId


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
