"""One member's part in the election of a leader: acquires the lock when it is free, renews it, and releases it.

After each successful write the lock counts as ours for one duration, counted from before the write was sent. A leader
whose decisions keep failing, or that makes none, resigns and lets other members lead first.
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

# In durations of the lock: when a heartbeat is due, and when a failed one is retried.
HEARTBEAT_AFTER: Final = 0.5
RETRY_HEARTBEAT_AFTER: Final = 0.1
FAILURES_MAX: Final = 3  # a leader resigns after so many failed decisions in a row, as in the KCL
DECISION_OVERDUE_MS: Final = 60_000  # a leader without a decision for so long resigns
COOLDOWN_DURATIONS: Final = 2  # for so many lock durations a leader that resigned lets others lead


@dataclass(slots=True)
class _HeldLock:
    """The lock while we hold it."""

    version: str
    valid_until_ms: int
    decided_ms: int
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _SeenLock:
    """The lock as it was last read, since when it is unchanged, and when it was read."""

    lock: LeaderLock | None = None
    observation: LockObservation | None = None
    seen_ms: int = 0


class _JavaPreference:
    """Whether a Java member should lead: only a Java leader can move a fleet from three tables to one."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self._may_move_since_ms: int | None = None
        self._stepped_back_ms: int | None = None

    def note_fleet(self, snapshot: FleetSnapshot, wall_s: int, now_ms: int) -> None:
        """Check whether the fleet may move to one table."""
        if self._layout is TableLayout.SEPARATE_TABLES:
            leases, reports = snapshot.leases.leases, snapshot.reports.reports
            is_ready = table_move.may_move(leases, reports, wall_s)
            self._may_move_since_ms = next_ready_since(self._may_move_since_ms, now_ms, ready=is_ready)

    def should_wait(self, free_since_ms: int, now_ms: int) -> bool:
        """Whether to leave a free lock to Java members a little longer."""
        return self._is_preferred(now_ms) and now_ms - free_since_ms < table_move.JAVA_FIRST_MS

    def should_step_back(self, now_ms: int) -> bool:
        """Whether we, as the leader, should make way; not if no Java member took the lead after the last time."""
        last_ms = self._stepped_back_ms
        may_retry = last_ms is None or now_ms - last_ms > table_move.GIVE_WAY_EVERY_MS
        return may_retry and self._is_preferred(now_ms)

    def note_step_back(self, now_ms: int) -> None:
        """We made way for a Java leader."""
        self._stepped_back_ms = now_ms

    def _is_preferred(self, now_ms: int) -> bool:
        return table_move.is_java_preferred(self._may_move_since_ms, now_ms)


class LeaderElection:
    """The election as one member sees it; it may be the leader itself."""

    def __init__(
        self,
        coordinator_rows: CoordinatorRows,
        layout: TableLayout,
        worker: WorkerId,
        settings: FleetSettings,
        operations: Operations,
    ) -> None:
        self._coordinator_rows = coordinator_rows
        self._layout = layout
        self._worker = worker
        self._duration_ms = milliseconds(settings.leader_lock_duration)
        self._operations = operations
        self._held: _HeldLock | None = None
        self._seen = _SeenLock()
        self._java = _JavaPreference(layout)
        self._cooling_until_ms = 0
        self._free_since_ms: int | None = None

    @property
    def is_leading(self) -> bool:
        """Whether this member surely leads at this moment, judged by its own clock alone."""
        return self._held is not None and self._now_ms() < self._held.valid_until_ms

    @property
    def is_leader_late(self) -> bool:
        """Whether the leader may be gone: then it is time to watch the leases."""
        return is_leader_late(self._seen.lock, self._seen.observation, self._seen.seen_ms)

    @property
    def leader(self) -> WorkerId | None:
        """The leader, as the lock was last read."""
        return None if self._seen.lock is None else self._seen.lock.owner

    @property
    def leader_sends_nudges(self) -> bool:
        """Whether the leader nudges members when leases change. A Java leader does not."""
        return self._seen.lock is not None and self._seen.lock.sends_nudges

    async def note_lock(self, lock: LeaderLock | None) -> None:
        """The lock was read: acquire it if it is free and we may lead."""
        now_ms = self._now_ms()
        observation = next_lock_observation(self._seen.observation, lock, now_ms)
        self._seen = _SeenLock(lock, observation, now_ms)
        if self._held is not None or now_ms < self._cooling_until_ms:
            return
        is_free = may_acquire(lock, observation, now_ms)
        self._free_since_ms = next_ready_since(self._free_since_ms, now_ms, ready=is_free)
        if self._free_since_ms is None or self._java.should_wait(self._free_since_ms, now_ms):
            return
        await self._acquire(lock, now_ms)

    def note_fleet(self, snapshot: FleetSnapshot) -> None:
        """The fleet was read: check whether a Java member should lead, to move the tables."""
        self._java.note_fleet(snapshot, self._operations.clock.wall_ms() // 1000, self._now_ms())

    def note_decision(self, *, failed: bool = False) -> None:
        """As the leader, we have executed a decision, completely or not."""
        if self._held is not None:
            self._held.decided_ms = self._held.decided_ms if failed else self._now_ms()
            self._held.failures = self._held.failures + 1 if failed else 0

    async def run(self) -> None:
        """Renew the lock while we hold it, until cancelled."""
        is_renewed = True
        while True:
            after = HEARTBEAT_AFTER if is_renewed else RETRY_HEARTBEAT_AFTER
            await self._operations.clock.sleep_ms(int(self._duration_ms * after))
            if self._held is not None:
                is_renewed = await self._operations.attempt("renew the leader lock", self._renew)

    async def resign(self, reason: str, *, cool_down: bool = False) -> None:
        """Release the lock, if we hold it. With `cool_down`, let other members lead first."""
        held = self._held
        if held is None:
            return
        if cool_down:
            self._cooling_until_ms = self._now_ms() + COOLDOWN_DURATIONS * self._duration_ms
        self._end(reason)
        write = leader_lock.release(self._worker, held.version)
        await self._coordinator_rows.write_lock(self._layout, write)

    async def _acquire(self, lock: LeaderLock | None, now_ms: int) -> None:
        version = self._new_version()
        key_attribute = lock_key_attribute(self._layout)
        write = leader_lock.acquire(lock, self._worker, version, self._duration_ms, key_attribute)
        if await self._coordinator_rows.write_lock(self._layout, write):
            self._held = _HeldLock(version, now_ms + self._duration_ms, self._now_ms())
            self._free_since_ms = None
            taken_from = None if lock is None or lock.is_released else lock.owner
            self._operations.observe(LeadershipTaken(self._worker, taken_from))

    async def _renew(self) -> None:
        held = self._held
        assert held is not None
        # Invariant: validity counts from before the write is sent.
        now_ms = self._now_ms()
        if now_ms >= held.valid_until_ms:
            self._end("its heartbeats did not get through in time")
        elif held.failures >= FAILURES_MAX:
            await self.resign("its decisions keep failing", cool_down=True)
        elif now_ms - held.decided_ms > DECISION_OVERDUE_MS:
            await self.resign("it decides nothing", cool_down=True)
        elif self._java.should_step_back(now_ms):
            self._java.note_step_back(now_ms)
            await self.resign("a Java member is to move the tables")
        else:
            version = self._new_version()
            write = leader_lock.heartbeat(self._worker, held.version, version, self._duration_ms)
            if await self._coordinator_rows.write_lock(self._layout, write):
                held.version, held.valid_until_ms = version, now_ms + self._duration_ms
            else:
                self._end("another member leads")

    def _end(self, reason: str) -> None:
        self._held = None
        self._operations.observe(LeadershipEnded(self._worker, reason))

    def _now_ms(self) -> int:
        return self._operations.clock.now_ms()

    def _new_version(self) -> str:
        """A random UUID, as the KCL writes it, from our own random source, so that simulations can be repeated."""
        digits = f"{self._operations.rng.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
