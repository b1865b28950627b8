"""Leader mode: one member, elected, assigns the leases of all; each serves what is assigned to it.

A look of a small fleet is one scan: leases, reports and the lock together. In a large one only the leader scans; the
others ask the index for their own leases, and watch the lock. When the leader falls silent they scan again, so that
whoever takes over knows already which leases still move; otherwise only once in a long while, to see how large it is.
How often a member looks, and how it is told to, is said in `looks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from leasehold.config.settings import BalanceBy, FleetSettings, milliseconds
from leasehold.core.assignment.leader_assignment import (
    Decide,
    LeaderLimits,
    LeaderMemory,
    LeaderPlan,
    LeaderView,
    plan_assignment,
)
from leasehold.core.assignment.refresh_schedule import workers_to_nudge_on_resign
from leasehold.core.assignment.unassigned_leases import unassigned_leases
from leasehold.core.coordinator.fleet_mode import FleetMode, TableLayout
from leasehold.core.coordinator.kcl_rows import client_version
from leasehold.core.events import (
    FleetRefreshed,
    LeaseReleased,
    RowRejected,
)
from leasehold.core.leases.liveness import (
    Observations,
    next_observations,
    pick_other_reader,
    unchanged_for_ms,
    was_just_assigned,
)
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.errors import LeaseholdError
from leasehold.fleet.assignment.assignment_executor import AssignmentExecutor
from leasehold.fleet.assignment.leader_election import LeaderElection
from leasehold.fleet.assignment.refresh_schedule import Nudger, RefreshSchedule
from leasehold.fleet.assignment.strategy import AssignmentStrategy
from leasehold.fleet.held_leases import ALERT_MS, HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.coordinator_rows import FleetSnapshot
from leasehold.fleet.table.lease_table import LeaseTable

SMALL_TABLE_ROWS: Final = 200  # so many rows are one page, and cost no more than asking the index
SIZE_KNOWN_FOR_MS: Final = 600_000
MODE_KNOWN_FOR_MS: Final = 75_000  # the rarest looks at a small table are forty seconds apart
LEAVING: Final = "leaving"  # a lease is held for a moment to be released; nothing is read in this holding


@dataclass(slots=True, kw_only=True)
class LeaderStrategy(AssignmentStrategy):
    """One member of a fleet that has a leader; perhaps the leader."""

    table: LeaseTable
    streams: Streams
    held_leases: HeldLeases
    mode: FleetMode
    leadership: LeaderElection
    worker: WorkerId
    settings: FleetSettings
    operations: Operations
    decide: Decide = plan_assignment
    _observations: Observations = field(default_factory=dict)
    _memory: LeaderMemory | None = None
    _rows: int = 0
    _scanned_ms: int | None = None
    _version: str | None = None
    _told_ms: dict[WorkerId, int] = field(default_factory=dict)
    _leases: Sequence[Lease] = ()
    _looks: RefreshSchedule = field(init=False)
    _words: Nudger = field(init=False)
    _leading: AssignmentExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._words = Nudger(self.table, self.operations)
        self._looks = RefreshSchedule(
            held_leases=self.held_leases,
            leadership=self.leadership,
            worker=self.worker,
            settings=self.settings,
            operations=self.operations,
        )
        self._leading = AssignmentExecutor(
            table=self.table,
            reports_layout=self.mode.reports_layout,
            worker=self.worker,
            settings=self.settings,
            operations=self.operations,
            nudger=self._words,
        )

    @property
    def maintainers(self) -> int:
        """The leader tends the leases, and whoever holds one of a finished shard."""
        return 1 if self.leadership.is_leading else 0

    async def look(self) -> None:
        """See what is assigned to us; as the leader, assign first."""
        now_ms = self.operations.clock.now_ms()
        self._looks.note_look()
        self.held_leases.forget_rest(now_ms)
        if self._wants_everything(now_ms):
            ours = await self._look_at_everything()
        else:
            ours = await self._look_at_ours()
        of_us, of_others = self.streams.ours(ours), [lease for lease in ours if not self.streams.of(lease)]
        await asyncio.gather(
            *(self._begin(lease) for lease in of_us[: self._room()]),
            *(self._give_away(lease) for lease in of_others),
        )

    def next_refresh_ms(self) -> int:
        """Rarely, where word is left for us and a heartbeat brings it."""
        return self._looks.next_ms()

    def is_mode_current(self) -> bool:
        """Where everything is in one table, a scan shows what the fleet's mode is concluded from."""
        is_one_table = self.mode.lock_layout is self.mode.reports_layout is TableLayout.SINGLE_TABLE
        now_ms = self.operations.clock.now_ms()
        is_fresh = self._scanned_ms is not None and now_ms - self._scanned_ms <= MODE_KNOWN_FOR_MS
        return is_one_table and is_fresh and self._version == self.mode.version

    def confirm_mode(self, mode: FleetMode) -> None:
        """Looks that show this very version say that nothing has changed."""
        self.mode = mode

    def _wants_everything(self, now_ms: int) -> bool:
        is_small = self._rows <= SMALL_TABLE_ROWS
        is_known = self._scanned_ms is not None and now_ms - self._scanned_ms <= SIZE_KNOWN_FOR_MS
        return is_small or not is_known or self.leadership.is_leading

    async def _look_at_ours(self) -> list[Lease]:
        # The lock first: as it was at the last look, a leader that is well would seem to be silent now and then.
        await self.leadership.consider(await self.table.coordinator_rows.lock(self.mode.lock_layout))
        if self.leadership.is_leading or self.leadership.is_leader_late:
            return await self._look_at_everything()
        listing = await self.table.list_owned_by(self.worker, known=self.held_leases.keys)
        if len(self.streams.ours(listing.leases)) < len(listing.leases):
            return await self._look_at_everything()  # who reads the streams that are not ours?
        # What is not in the list is not ours to begin, and need not be remembered.
        now_ms = self.operations.clock.now_ms()
        self._observations = next_observations(self._observations, listing.leases, now_ms)
        self._looks.note_seen(listing.leases)
        return [lease for lease in listing.leases if self._is_ours(lease)]

    def _room(self) -> int | None:
        """How many more leases may be begun; those assigned beyond that fall silent, and go to others."""
        if not self.held_leases.may_take:
            return 0
        most = self.held_leases.leases_max
        return None if most is None else max(0, most - len(self.held_leases.keys))

    async def _look_at_everything(self) -> list[Lease]:
        began_ms = self.operations.clock.now_ms()
        seen = await self.table.coordinator_rows.look(self.mode)
        now_ms = self.operations.clock.now_ms()
        self._rows, self._scanned_ms, self._leases = seen.rows, now_ms, seen.leases.leases
        self._observations = next_observations(self._observations, seen.leases.leases, now_ms)
        for error in (*seen.leases.rejected, *seen.reports.rejected):
            self.operations.observe(RowRejected(error.key, error.problem))
        self.held_leases.note_look(seen.leases.leases)
        self.held_leases.notice_handoffs(seen.leases.leases)
        self.leadership.note_fleet(seen)
        self._version = client_version(seen.migration)
        await self.leadership.consider(seen.lock)
        plan = self._decision(seen, now_ms)
        self._looks.note_seen(seen.leases.leases)
        self._looks.note_members(plan.memory.members)
        self.operations.observe(
            FleetRefreshed(
                len(self.streams.ours(seen.leases.leases)),
                plan.unclaimed,
                len(self.held_leases.keys),
                max(1, plan.workers),
                now_ms - began_ms,
            )
        )
        ours = [lease for lease in seen.leases.leases if self._is_ours(lease)]
        if self.leadership.is_leading:
            return ours + await self._lead(plan, seen)
        if plan.unclaimed and self.held_leases.ended and self.leadership.leader is not None:
            # We have finished a shard, and nobody reads its children: the leader need not wait for its next look.
            await self._words.leave({self.leadership.leader}, seen.leases.leases)
        return ours + self._neglected(plan, now_ms)

    def _neglected(self, plan: LeaderPlan, now_ms: int) -> list[Lease]:
        """What the leader leaves lying, perhaps because it does not know the stream."""
        if not self.streams.is_multi_stream:
            return []
        return unassigned_leases(
            plan.assign,
            self._observations,
            me=self.worker,
            busy=self.held_leases.keys | self.held_leases.cooling_down,
            now_ms=now_ms,
            failover_ms=milliseconds(self.settings.failover_after),
            draw=self.operations.rng.random(),
        )

    def _is_ours(self, lease: Lease) -> bool:
        if lease.owner != self.worker or lease.is_in_handoff:
            return False
        is_busy = lease.key in self.held_leases.keys or lease.key in self.held_leases.cooling_down
        return not is_busy and self._is_not_begun(lease)

    def _is_not_begun(self, lease: Lease) -> bool:
        """A holding in the row may be an old one that Java left there, or that of a second process with our id."""
        unchanged_ms = unchanged_for_ms(self._observations, lease.key, self.operations.clock.now_ms())
        is_silent = unchanged_ms > milliseconds(self.settings.failover_after)
        return lease.session is None or is_silent or was_just_assigned(self._observations, lease.key)

    def _observe(self, leases: Iterable[Lease]) -> None:
        """Take note of some leases, without forgetting the others."""
        now_ms = self.operations.clock.now_ms()
        self._observations = {**self._observations, **next_observations(self._observations, leases, now_ms)}

    async def _begin(self, lease: Lease) -> None:
        write = self.table.begin_session if lease.owner == self.worker else self.table.take
        await self.held_leases.begin(lease, partial(write, lease, self.worker), silent_ms=None)

    async def _give_away(self, lease: Lease) -> None:
        """A leader gave us a lease of a stream that we do not know: to whoever reads that stream, or to nobody."""
        next_owner = pick_other_reader(
            self._observations,
            lease.stream,
            self.worker,
            now_ms=self.operations.clock.now_ms(),
            failover_ms=milliseconds(self.settings.failover_after),
        )
        await self.operations.attempt(f"give away {lease.key}", partial(self._let_go, lease, next_owner))

    async def _let_go(self, lease: Lease, next_owner: WorkerId | None) -> None:
        begun = await self.table.begin_session(lease, self.worker, LeaseSessionId(LEAVING))
        if isinstance(begun, Lease):
            await (
                self.table.release(begun) if next_owner is None else self.table.release_to(begun, next_owner)
            )
            self.operations.observe(LeaseReleased(lease.key, lease.shard_id, next_owner))

    # -- leading -----------------------------------------------------------------------------------------------

    def _decision(self, seen: FleetSnapshot, now_ms: int) -> LeaderPlan:
        """What a leader would do. Those who stand by decide as well, and so know the fleet when they take over."""
        plan = self.decide(self._view(seen, now_ms), self._limits())
        # What was only thought of was not moved.
        self._memory = plan.memory if self.leadership.is_leading else replace(plan.memory, moved_ms={})
        return plan

    def _view(self, seen: FleetSnapshot, now_ms: int) -> LeaderView:
        return LeaderView(
            now_ms=now_ms,
            wall_s=self.operations.clock.wall_ms() // 1000,
            leases=self.streams.ours(seen.leases.leases),
            observations=self._observations,
            reports=seen.reports.reports,
            unreadable={LeaseKey(error.key) for error in seen.leases.rejected},
            memory=self._memory or LeaderMemory(members_since_ms=now_ms),
        )

    async def _lead(self, plan: LeaderPlan, seen: FleetSnapshot) -> list[Lease]:
        """Carry out a decision. Returns what fell to ourselves, which need not wait for the next look."""
        self._looks.note_decision(plan)
        outcome = await self._leading.carry_out(plan, seen, self._observations)
        self.leadership.note_decision(failed=outcome.has_failed)
        return [lease for lease in outcome.assigned if self._is_ours(lease)]

    async def next_owners(self) -> Mapping[LeaseKey, WorkerId]:
        """What a leader would decide now that our report is gone. Those who stop together do not find each other's."""
        if self._rows > SMALL_TABLE_ROWS or not self.held_leases.keys:
            return {}
        try:
            seen = await self.table.coordinator_rows.look(self.mode)
        except LeaseholdError:
            return {}  # the leases are released instead, if that is possible
        now_ms, ours = self.operations.clock.now_ms(), self.held_leases.keys
        self._observe(seen.leases.leases)
        view = replace(
            self._view(seen, now_ms),
            leases=[
                replace(lease, owner=None) if lease.key in ours else lease
                for lease in self.streams.ours(seen.leases.leases)
            ],
        )
        plan = self.decide(view, self._limits())
        next_owners = {line.lease.key: line.to for line in plan.assign if line.lease.key in ours}
        await self._words.leave(frozenset(next_owners.values()), seen.leases.leases)
        self._told_ms = dict.fromkeys(next_owners.values(), now_ms)
        return next_owners

    async def nudge_next_owner(self, worker: WorkerId) -> None:
        """Whoever was told of its heritage a while ago no longer waits for it, and is told again."""
        now_ms = self.operations.clock.now_ms()
        if now_ms - self._told_ms.get(worker, 0) > ALERT_MS // 2:
            self._told_ms[worker] = now_ms
            await self._words.leave({worker}, self._leases)

    # -- life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """See to the index, without waiting for it, and keep the lead, if we have it."""
        await self.operations.attempt("make the index", self.table.create_owner_index)
        await self.leadership.run()

    async def release_remaining(self) -> None:
        """Free leases that were assigned to us while we were leaving: members that stop together name each other."""
        for lease in (await self.table.list_owned_by(self.worker)).leases:
            if lease.session is None and not lease.is_in_handoff:
                await self._let_go(lease, None)

    async def leave(self) -> None:
        """Let another lead, and tell the others to see who does: a Java leader leaves no word."""
        was_leading = self.leadership.is_leading
        await self.operations.attempt("resign", partial(self.leadership.resign, "it leaves the fleet"))
        if was_leading:
            await self._words.leave(workers_to_nudge_on_resign(self._leases, self.worker), self._leases)

    def _limits(self) -> LeaderLimits:
        return LeaderLimits(
            failover_ms=milliseconds(self.settings.failover_after),
            handoff_timeout_ms=milliseconds(self.settings.handoff_timeout),
            leases_max=self.settings.max_leases,
            kbps_max=self.settings.max_kbps,
            by_count=self.settings.balance_by is BalanceBy.COUNT,
        )
