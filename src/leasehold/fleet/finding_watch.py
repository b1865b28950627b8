"""Reviews, every 15 seconds, what a member knows about itself and its fleet, and reports findings that begin and end.

The findings are those of `leasehold explain`. They come from the member's events, from its leases in memory, from the
reads of the lease table that assignment needs, and from the lists of shards that audits make, so a review makes no
calls. What cannot be learned so is read rarely (`rare_facts`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from leasehold.core.events import Event, FindingsReviewed, Observer, OperationFailed
from leasehold.core.finding import Finding
from leasehold.core.leases.liveness import Observations
from leasehold.core.model import LeaseKey, WorkerId
from leasehold.core.observing.explain.facts import LagRead, TableRead
from leasehold.core.observing.explain.lag_findings import RETENTION_WARNING
from leasehold.core.observing.finding_review import Review, review_findings
from leasehold.core.observing.health import Health, HealthLimits
from leasehold.core.observing.own_view import (
    FleetReads,
    OwnView,
    compare_reads,
    find_out,
    leases_without_reader,
)
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.rare_facts import RareFacts
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.ports import Clock

REVIEW_EVERY_MS: Final = 15_000
WATCH_MS_MIN: Final = 15_000  # a state that lasts for a shorter time is no finding
LAGS_KEPT: Final = 5  # so rates are those of the last minute
READS_FRESH_FOR_MS: Final = 90_000  # members of a small fleet read the table every forty seconds
RETENTION_MIN_MS: Final = 24 * 3_600_000  # no stream has less
THROTTLED_READS_TOLD: Final = 3
HEARTBEAT_EXPECTED_WITHIN: Final = 0.6  # of the failover time; owners send one in half of it


@dataclass(frozen=True, slots=True)
class _Fleet:
    """What the last reads of the whole table have shown."""

    read: TableRead
    observations: Observations
    has_leader: bool
    is_leading: bool
    is_leader_late: bool


class FindingWatch:
    """The findings of one member. `observe` must get all of its events.

    With `has_progress` the member handles records, so its events show whether a shard makes progress.
    """

    def __init__(
        self, worker: WorkerId, streams: Streams, limits: HealthLimits, clock: Clock, *, has_progress: bool
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._has_progress = has_progress
        self._watch_ms = max(WATCH_MS_MIN, int(HEARTBEAT_EXPECTED_WITHIN * limits.failover_ms))
        self._health = Health(limits, clock.now_ms())
        self._fleet: _Fleet | None = None
        self._lags: dict[LeaseKey, deque[LagRead]] = {}
        self.rare = RareFacts(streams, clock)
        self._review = Review()

    @property
    def lasting(self) -> tuple[Finding, ...]:
        """The notices and problems that last now."""
        return self._review.lasting

    def observe(self, event: Event) -> None:
        """Process one event."""
        self._health.observe(event, self._clock.now_ms())

    def then(self, observe: Observer) -> Observer:
        """An observer that passes every event to this watch, and then to another observer."""

        def observe_both(event: Event) -> None:
            self.observe(event)
            observe(event)

        return observe_both

    def note_read(
        self,
        read: TableRead,
        observations: Observations,
        *,
        has_leader: bool,
        is_leading: bool = False,
        is_leader_late: bool = False,
    ) -> None:
        """The member has read the whole lease table, and has observed since when each lease is unchanged."""
        self._fleet = _Fleet(read, observations, has_leader, is_leading, is_leader_late)

    async def run(self, held_leases: HeldLeases, rows: CoordinatorRows, operations: Operations) -> None:
        """Review until cancelled."""
        while True:
            await self._clock.sleep_ms(REVIEW_EVERY_MS)
            try:
                await self._read_rarely(held_leases, rows, operations)
                self.review(held_leases, operations.observe)
            except Exception as error:  # noqa: BLE001 - a sentence about the fleet must not end its member
                operations.observe(OperationFailed("review", type(error).__name__))

    def review(self, held_leases: HeldLeases, observe: Observer) -> None:
        """Report the findings that have begun or ended since the last review, and all that last."""
        now_ms = self._clock.now_ms()
        self._note_lags(now_ms)
        had_findings = bool(self._review.lasting)
        self._review = review_findings(self._review, find_out(self._view(held_leases, now_ms)), now_ms)
        for began in self._review.began:
            observe(began)
        for ended in self._review.ended:
            observe(ended)
        if had_findings or self._review.lasting:
            observe(FindingsReviewed(self._review.lasting))

    def _view(self, held_leases: HeldLeases, now_ms: int) -> OwnView:
        report = self._health.report(now_ms)
        if not self._has_progress:
            report = replace(report, shards=())
        if self._fleet is not None and now_ms - self._fleet.read.at_ms > READS_FRESH_FOR_MS:
            self._fleet = None
        fleet = self._fleet
        return OwnView(
            worker=self._worker,
            now_ms=now_ms,
            wall_s=self._clock.wall_ms() // 1000,
            report=report,
            held=held_leases.leases,
            lags={key: (read,) for key, read in self.rare.probes.items()}
            | {key: tuple(lags) for key, lags in self._lags.items()},
            streams=self.rare.streams(now_ms),
            tables=self.rare.tables,
            reads=self._compare_reads(),
            has_leader=fleet is not None and fleet.has_leader,
            is_leading=fleet is not None and fleet.is_leading,
            is_leader_late=fleet is not None and fleet.is_leader_late,
        )

    def _compare_reads(self) -> FleetReads | None:
        fleet = self._fleet
        if fleet is None:
            return None
        return compare_reads(
            fleet.read,
            fleet.observations,
            watch_ms=self._watch_ms,
            is_leader_late=fleet.is_leader_late,
        )

    def _note_lags(self, now_ms: int) -> None:
        if not self._has_progress:
            return
        lags: dict[LeaseKey, deque[LagRead]] = {}
        for key, progress in self._health.progress:
            if (behind_ms := progress.lag_ms(now_ms)) is None:
                continue
            lags[key] = self._lags.get(key, deque(maxlen=LAGS_KEPT))
            is_throttled = progress.throttled_reads >= THROTTLED_READS_TOLD
            read = LagRead(
                at_ms=now_ms,
                behind_ms=behind_ms,
                is_trimmed=progress.gap is not None,
                is_throttled=is_throttled,
                progress_ms=progress.last_progress_ms,
            )
            lags[key].append(read)
        self._lags = lags

    async def _read_rarely(
        self, held_leases: HeldLeases, rows: CoordinatorRows, operations: Operations
    ) -> None:
        """Make the reads that are due, which are few."""
        if self._fleet is not None and self._fleet.is_leading:
            await self.rare.check_index(rows, operations)
        unread = leases_without_reader(self._view(held_leases, self._clock.now_ms()))
        if not self._has_progress:
            unread += held_leases.leases
        await self.rare.probe(unread, operations)
        far_behind = [lease for lease in (*held_leases.leases, *unread) if self._is_far_behind(lease.key)]
        await self.rare.read_retentions(far_behind, operations)

    def _is_far_behind(self, key: LeaseKey) -> bool:
        lags = self._lags.get(key)
        last = lags[-1] if lags else self.rare.probes.get(key)
        return last is not None and (last.behind_ms or 0) >= RETENTION_WARNING * RETENTION_MIN_MS
