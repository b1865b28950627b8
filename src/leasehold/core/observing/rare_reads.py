"""Which shards a member reads at their checkpoint for its findings. Has no effects.

A worker knows from its events how far its shards are. Of a shard that no member serves, and of the shards of a Spark
query, which tasks read, nobody knows it. Such a shard is read once if its checkpoint has not moved for ten minutes, and
again every ten minutes while it does not. Few are read at a time, so the number of calls hardly grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from leasehold.core.model import Lease, LeaseKey
from leasehold.core.position import Position

PROBE_EVERY_MS: Final = 600_000
PROBES_MAX: Final = 2  # in one review: eight shards a minute, with two or three calls each


@dataclass(frozen=True, slots=True)
class UnmovedCheckpoint:
    """A checkpoint that has not moved since `since_ms`. `probed_ms` is when the shard was last read there."""

    checkpoint: Position
    since_ms: int
    probed_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Whether the shard should be read now."""
        last_ms = self.since_ms if self.probed_ms is None else self.probed_ms
        return now_ms - last_ms >= PROBE_EVERY_MS


def next_unmoved(
    before: Mapping[LeaseKey, UnmovedCheckpoint], leases: Iterable[Lease], now_ms: int
) -> dict[LeaseKey, UnmovedCheckpoint]:
    """Since when the checkpoints of these leases stand still. All others are forgotten."""
    found = {}
    for lease in leases:
        known = before.get(lease.key)
        is_same = known is not None and known.checkpoint == lease.checkpoint
        found[lease.key] = (
            known if known is not None and is_same else UnmovedCheckpoint(lease.checkpoint, now_ms)
        )
    return found


def leases_to_probe(
    unmoved: Mapping[LeaseKey, UnmovedCheckpoint], leases: Iterable[Lease], now_ms: int
) -> tuple[Lease, ...]:
    """The leases whose shards should be read now, those that were read longest ago first."""
    due = [lease for lease in leases if lease.key in unmoved and unmoved[lease.key].is_due(now_ms)]
    due.sort(key=lambda lease: (unmoved[lease.key].probed_ms or 0, lease.key))
    return tuple(due[:PROBES_MAX])
