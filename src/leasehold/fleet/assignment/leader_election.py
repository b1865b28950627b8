"""Leading, or standing by to lead: takes the lock when nobody holds it, keeps it with heartbeats, lets it go.

The lock is believed to be ours for one duration after each heartbeat that succeeded, counted from before it was sent.
A leader whose decisions keep failing, or do not come at all, resigns and lets others try first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.coordinator import leader_lock, table_move
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.leader_lock import (
    LeaderLock,
    LockObservation,
    is_leader_late,
    may_acquire,
    next_lock_observation,
)
from leasehold.core.coordinator.upgrade import next_ready_since
from leasehold.core.events import LeadershipEnded, LeadershipTaken
from leasehold.core.model import WorkerId
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.coordinator_rows import CoordinatorRows, FleetSnapshot, lock_key_attribute

# A heartbeat comes twice in a duration, and one that does not get through is put again after a tenth of it.
BEAT_AFTER: Final = 0.5
BEAT_AGAIN_AFTER: Final = 0.1
FAILURES_MAX: Final = 3  # decisions that fail in a row before a leader resigns, as in the KCL
DECISION_OVERDUE_MS: Final = 60_000  # a leader that decides nothing for so long is no leader
REST_DURATIONS: Final = 2  # how long a leader that resigned leaves the lock to others, in lock durations


@dataclass(slots=True)
class _Held:
    """The lock while we hold it."""

    version: str
    valid_until_ms: int
    decided_ms: int
    failures: int = 0


class LeaderElection:
    """One member's part in having a leader."""

    def __init__(
        self,
        coordinator_rows: CoordinatorRows,
        place: TableLayout,
        worker: WorkerId,
        settings: FleetSettings,
        operations: Operations,
    ) -> None:
        self._common = coordinator_rows
        self._place = place
        self._worker = worker
        self._duration_ms = milliseconds(settings.leader_lock_duration)
        self._operations = operations
        self._clock = operations.clock
        self._held: _Held | None = None
        self._lock: LeaderLock | None = None
        self._watch: LockObservation | None = None
        self._seen_ms = 0
        self._resting_until_ms = 0
        self._could_move_since_ms: int | None = None
        self._free_since_ms: int | None = None
        self._gave_way_ms: int | None = None

    @property
    def is_leading(self) -> bool:
        """Whether this member surely leads at this moment, judged by its own clock alone."""
        return self._held is not None and self._clock.now_ms() < self._held.valid_until_ms

    @property
    def is_leader_late(self) -> bool:
        """Whether the leader may be gone: then it is time to watch the leases."""
        return is_leader_late(self._lock, self._watch, self._seen_ms)

    @property
    def leader(self) -> WorkerId | None:
        """Who leads, as far as we have seen."""
        return None if self._lock is None else self._lock.owner

    @property
    def sends_nudges(self) -> bool:
        """Whether the leader tells members when there is something to see."""
        return self._lock is not None and self._lock.sends_nudges

    async def consider(self, lock: LeaderLock | None) -> None:
        """Having seen the lock: take it, if nobody has it and we may."""
        now_ms = self._clock.now_ms()
        self._lock, self._watch, self._seen_ms = (
            lock,
            next_lock_observation(self._watch, lock, now_ms),
            now_ms,
        )
        if self._held is not None or now_ms < self._resting_until_ms:
            return
        is_free = may_acquire(lock, self._watch, now_ms)
        self._free_since_ms = next_ready_since(self._free_since_ms, now_ms, ready=is_free)
        if self._free_since_ms is None or self._is_left_to_java(self._free_since_ms, now_ms):
            return
        version = self._new_version()
        key_attribute = lock_key_attribute(self._place)
        write = leader_lock.acquire(lock, self._worker, version, self._duration_ms, key_attribute)
        if await self._common.write_lock(self._place, write):
            self._held = _Held(version, now_ms + self._duration_ms, self._clock.now_ms())
            self._free_since_ms = None
            taken_from = None if lock is None or lock.is_released else lock.owner
            self._operations.observe(LeadershipTaken(self._worker, taken_from))

    def note_fleet(self, seen: FleetSnapshot) -> None:
        """Having seen the fleet: a move from three tables to one is left to a Java leader, if there may be one."""
        if self._place is TableLayout.SEPARATE_TABLES:
            leases, reports = seen.leases.leases, seen.reports.reports
            ready = table_move.may_move(leases, reports, self._clock.wall_ms() // 1000)
            since_ms, now_ms = self._could_move_since_ms, self._clock.now_ms()
            self._could_move_since_ms = next_ready_since(since_ms, now_ms, ready=ready)

    def _is_java_wanted(self, now_ms: int) -> bool:
        return table_move.is_java_preferred(self._could_move_since_ms, now_ms)

    def _is_left_to_java(self, free_since_ms: int, now_ms: int) -> bool:
        return self._is_java_wanted(now_ms) and now_ms - free_since_ms < table_move.JAVA_FIRST_MS

    def _gives_way(self, now_ms: int) -> bool:
        """Whether a Java member should lead in our place; not if none did when we last gave way."""
        may_try = self._gave_way_ms is None or now_ms - self._gave_way_ms > table_move.GIVE_WAY_EVERY_MS
        return may_try and self._is_java_wanted(now_ms)

    def note_decision(self, *, failed: bool = False) -> None:
        """A decision was made and carried out, or not."""
        if self._held is not None:
            self._held.decided_ms = self._clock.now_ms() if not failed else self._held.decided_ms
            self._held.failures = self._held.failures + 1 if failed else 0

    async def run(self) -> None:
        """Heartbeats, until cancelled."""
        is_kept = True
        while True:
            await self._clock.sleep_ms(int(self._duration_ms * (BEAT_AFTER if is_kept else BEAT_AGAIN_AFTER)))
            if self._held is not None:
                is_kept = await self._operations.attempt("keep the lead", self._beat)

    async def _beat(self) -> None:
        held = self._held
        assert held is not None
        now_ms = self._clock.now_ms()
        if now_ms >= held.valid_until_ms:
            self._end("its heartbeats did not get through in time")
        elif held.failures >= FAILURES_MAX:
            await self.resign("its decisions keep failing", rest=True)
        elif now_ms - held.decided_ms > DECISION_OVERDUE_MS:
            await self.resign("it decides nothing", rest=True)
        elif self._gives_way(now_ms):
            self._gave_way_ms = now_ms
            await self.resign("a Java member is to move the tables")
        else:
            version = self._new_version()
            write = leader_lock.heartbeat(self._worker, held.version, version, self._duration_ms)
            if await self._common.write_lock(self._place, write):
                held.version, held.valid_until_ms = version, now_ms + self._duration_ms
            else:
                self._end("another member leads")

    async def resign(self, reason: str, *, rest: bool = False) -> None:
        """Let another lead; with `rest`, let others go first."""
        held = self._held
        if held is None:
            return
        if rest:
            self._resting_until_ms = self._clock.now_ms() + REST_DURATIONS * self._duration_ms
        self._end(reason)
        await self._common.write_lock(self._place, leader_lock.release(self._worker, held.version))

    def _end(self, reason: str) -> None:
        self._held = None
        self._operations.observe(LeadershipEnded(self._worker, reason))

    def _new_version(self) -> str:
        """A random UUID, as the KCL writes it; drawn here, so that a simulated fleet can be replayed."""
        digits = f"{self._operations.rng.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
