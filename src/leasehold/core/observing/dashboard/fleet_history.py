"""What a dashboard remembers of earlier reads: numbers of shards, lag and throughput over time, what has changed."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from leasehold.core.model import Lease, LeaseKey, WorkerId
from leasehold.core.observing.dashboard.fleet_changes import (
    Change,
    describe_changes,
    describe_workers,
    find_silent,
)
from leasehold.core.observing.explain.facts import FleetFacts, TableRead
from leasehold.core.position import Position

POINTS_MAX: Final = 120
CHANGES_MAX: Final = 40
UNKNOWN: Final = -1


class Series:
    """The lag and the throughput of one shard over time. Arrays, because a fleet may have ten thousand shards."""

    def __init__(self) -> None:
        self._at_s = array("q")
        self._lag_ms = array("q")
        self._kbps = array("d")

    def add(self, at_s: int, lag_ms: int | None, kbps: float | None) -> None:
        """Add a point, and forget the oldest one if there are too many."""
        self._at_s.append(at_s)
        self._lag_ms.append(UNKNOWN if lag_ms is None else lag_ms)
        self._kbps.append(UNKNOWN if kbps is None else kbps)
        if len(self._at_s) > POINTS_MAX:
            del self._at_s[0], self._lag_ms[0], self._kbps[0]

    def points(self) -> Sequence[tuple[int, int | None, float | None]]:
        """Time in seconds, lag in milliseconds and throughput in kB a second; None if unknown. Oldest first."""
        return [
            (at_s, None if lag == UNKNOWN else lag, None if kbps == UNKNOWN else kbps)
            for at_s, lag, kbps in zip(self._at_s, self._lag_ms, self._kbps, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class CheckpointAge:
    """Since when a checkpoint is where it is. If `is_exact` is false, it was there when the watch began."""

    checkpoint: Position
    since_ms: int
    is_exact: bool


@dataclass(slots=True)
class Numbers:
    """Gives each name a small number, so that a name of any length is sent to a browser once."""

    known: dict[str, int] = field(default_factory=dict)
    next: int = 1

    def number_of(self, name: str) -> int:
        """The number of a name, a new one if it has none."""
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = self.next
            self.next += 1
        return found

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget all other names."""
        kept = set(names)
        for name in [name for name in self.known if name not in kept]:
            del self.known[name]


class FleetHistory:
    """Remembers what one read cannot show."""

    def __init__(self) -> None:
        self.shards = Numbers()
        self.workers = Numbers()
        self.changes: deque[Change] = deque(maxlen=CHANGES_MAX)
        self.began_ms: int | None = None  # when the first read was added
        self.mode: str | None = None  # the last one that the rows have shown
        self.trend: deque[tuple[int, int | None, float, int]] = deque(maxlen=POINTS_MAX)
        self._series: dict[LeaseKey, Series] = {}
        self._ages: dict[LeaseKey, CheckpointAge] = {}
        self._measured_ms: dict[LeaseKey, int] = {}
        self._sessions: dict[LeaseKey, int] = {}
        self._silent: frozenset[WorkerId] = frozenset()
        self._before: TableRead | None = None

    def observe(self, facts: FleetFacts, wall_ms: int, *, is_judged: bool) -> None:
        """Add one read."""
        if self._before is None:
            self.began_ms = wall_ms
        else:
            self.changes.extend(describe_changes(self._before, facts.after, wall_ms))
            self._count_sessions(self._before, facts.after)
        if is_judged:
            self.changes.extend(describe_workers(self._silent, facts, wall_ms))
            self._silent = find_silent(facts)
        for lease in facts.after.leases:
            self._observe_lease(lease, facts, wall_ms, is_judged=is_judged)
        for known in (self._series, self._ages, self._measured_ms, self._sessions):
            for key in [key for key in known if key not in facts.after.by_key]:
                del known[key]
        self._before = facts.after

    def age_of(self, key: LeaseKey) -> CheckpointAge | None:
        """Since when the checkpoint of a lease is where it is."""
        return self._ages.get(key)

    def sessions_of(self, lease: Lease) -> int | None:
        """How many lease sessions have begun since the first read; None if its members write no session id."""
        return self._sessions.get(lease.key, None if lease.session is None else 0)

    def series(self, numbers: Iterable[int]) -> Mapping[int, Sequence[tuple[int, int | None, float | None]]]:
        """Lag and throughput of these shards over time. Unknown numbers are left out."""
        wanted = set(numbers)
        keys = {number: LeaseKey(key) for key, number in self.shards.known.items() if number in wanted}
        return {number: self._series[key].points() for number, key in keys.items() if key in self._series}

    def _count_sessions(self, before: TableRead, after: TableRead) -> None:
        for key, lease in after.by_key.items():
            known = before.by_key.get(key)
            if lease.session is not None and (known is None or known.session != lease.session):
                self._sessions[key] = self._sessions.get(key, 0) + 1

    def _observe_lease(self, lease: Lease, facts: FleetFacts, wall_ms: int, *, is_judged: bool) -> None:
        known = self._ages.get(lease.key)
        if known is None or known.checkpoint != lease.checkpoint:
            is_exact = self._before is not None
            self._ages[lease.key] = CheckpointAge(lease.checkpoint, wall_ms, is_exact)
        reads = facts.lags.get(lease.key, ())
        if not reads or self._measured_ms.get(lease.key) == reads[-1].at_ms:
            return
        self._measured_ms[lease.key] = reads[-1].at_ms
        series = self._series.setdefault(lease.key, Series())
        kbps = finite(lease.throughput_kbps) if is_read_now(lease, facts, is_judged=is_judged) else None
        series.add(wall_ms // 1000, reads[-1].behind_ms, kbps)


def is_read_now(lease: Lease, facts: FleetFacts, *, is_judged: bool) -> bool:
    """Whether a worker reads the shard. If not, the throughput in its row is an old report.

    Before the fleet is judged, each owner counts as active.
    """
    if lease.checkpoint.is_shard_end or lease.actual_owner is None:
        return False
    return not is_judged or lease.actual_owner in facts.active_workers


def finite(value: Decimal | None) -> float | None:
    """A number of a row as JSON; None if it is no finite number. JSON has no infinity."""
    if value is None or not math.isfinite(number := float(value)):
        return None
    return round(number, 1)
