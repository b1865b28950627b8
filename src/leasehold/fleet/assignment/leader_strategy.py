"""Assignment by a leader: one elected member assigns the leases of all; each member serves what is assigned to it.

Every refresh of a small fleet is one scan, from which the `follower` begins our leases and, if we lead, the `leader`
assigns leases first. In a large fleet only the leader scans. When the leader is late, all members scan, so that the
next leader already knows which leases are renewed. `refresh_schedule` decides how often a member refreshes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from leasehold.core.assignment.leader_assignment import Decide, LeaderPlan, plan_assignment
from leasehold.core.assignment.refresh_schedule import workers_to_nudge_on_resign
from leasehold.core.coordinator.fleet_mode import FleetMode
from leasehold.core.events import FleetDecided, FleetRefreshed
from leasehold.core.model import Lease, LeaseKey, WorkerId
from leasehold.core.observing.explain.facts import TableRead
from leasehold.errors import LeaseholdError
from leasehold.fleet.assignment.assignment_executor import AssignmentExecutor, ExecutionResult
from leasehold.fleet.assignment.fleet_reader import FleetReader
from leasehold.fleet.assignment.follower import Follower
from leasehold.fleet.assignment.leader import Leader
from leasehold.fleet.assignment.leader_election import LeaderElection
from leasehold.fleet.assignment.nudger import Nudger
from leasehold.fleet.assignment.refresh_schedule import RefreshSchedule
from leasehold.fleet.assignment.strategy import AssignmentContext, AssignmentStrategy
from leasehold.fleet.table.coordinator_rows import FleetSnapshot
from leasehold.fleet.table_contact import ALERT_MS


class LeaderStrategy(AssignmentStrategy):
    """One member of a fleet that has a leader; perhaps the leader."""

    def __init__(self, context: AssignmentContext, mode: FleetMode, decide: Decide = plan_assignment) -> None:
        worker, settings, operations = context.worker, context.settings, context.operations
        self._context = context
        self._reports_layout = mode.reports_layout
        self._election = LeaderElection(
            context.table.coordinator_rows, mode.lock_layout, worker, settings, operations
        )
        self._reader = FleetReader(context, mode)
        self._leader = Leader(context, decide)
        self._follower = Follower(context)
        self._nudger = Nudger(context.table, operations)
        self._executor = AssignmentExecutor(context, mode.reports_layout, self._nudger)
        self._schedule = RefreshSchedule(
            contact=context.held_leases.contact,
            election=self._election,
            worker=worker,
            settings=settings,
            operations=operations,
        )
        self._nudged_ms: dict[WorkerId, int] = {}
        self._next_owners: Mapping[LeaseKey, WorkerId] = {}

    @property
    def maintainers(self) -> int:
        """Only the leader maintains leases."""
        return 1 if self._election.is_leading else 0

    async def refresh(self) -> None:
        """Find out what is assigned to us, and begin it; as the leader, assign leases first."""
        self._schedule.begin_refresh()
        self._context.held_leases.end_cooldowns()
        if self._election.is_leading or self._reader.needs_scan:
            leases = await self._refresh_from_scan()
        else:
            leases = await self._refresh_from_index()
        await self._follower.begin(leases, self._reader.observations)

    def next_refresh_ms(self) -> int:
        """Rarely, if the leader nudges us and our heartbeats show its nudges."""
        return self._schedule.next_ms()

    def is_mode_current(self) -> bool:
        """A scan of a single table shows the mode."""
        return self._reader.is_mode_current()

    def confirm_mode(self, mode: FleetMode) -> None:
        """Compare the next scans with this mode."""
        self._reader.confirm_mode(mode)

    async def next_owners(self) -> Mapping[LeaseKey, WorkerId]:
        """Decide as a leader would now that our report is withdrawn, and nudge the next owners."""
        ours = self._context.held_leases.keys
        if not ours or not self._reader.is_small_table:
            return {}
        try:
            snapshot = await self._reader.scan_once_more()
        except LeaseholdError:
            return {}  # the leases are released without a next owner
        now_ms = self._context.operations.clock.now_ms()
        owners = self._leader.plan_next_owners(snapshot, self._reader.observations, now_ms, ours)
        await self._nudger.nudge(frozenset(owners.values()), snapshot.leases.leases)
        self._nudged_ms = dict.fromkeys(owners.values(), now_ms)
        self._next_owners = owners
        return owners

    async def nudge_next_owner(self, worker: WorkerId) -> None:
        """Nudge the next owner again if the first nudge is older than `ALERT_MS / 2`."""
        now_ms = self._context.operations.clock.now_ms()
        if now_ms - self._nudged_ms.get(worker, 0) > ALERT_MS // 2:
            self._nudged_ms[worker] = now_ms
            await self._nudger.nudge({worker}, self._reader.leases)

    async def run(self) -> None:
        """Create the index of owners, without waiting until it is ready, and renew the leader lock while we hold it."""
        create_index = self._context.table.create_owner_index
        await self._context.operations.attempt("create the index of owners", create_index)
        await self._election.run()

    async def release_remaining(self) -> None:
        """Release leases that were assigned to us while we were stopping, and those that went to a stopped member."""
        await self._follower.release_unbegun()
        # Invariant: read after our leases were released, and a member withdraws its report before it looks for leases
        # that it got meanwhile. So one of the two of us finds every lease.
        rows, layout = self._context.table.coordinator_rows, self._reports_layout
        for worker in sorted(set(self._next_owners.values())):
            if not await rows.has_report(layout, worker):
                keys = [key for key, owner in self._next_owners.items() if owner == worker]
                await self._follower.release_from(worker, keys)

    async def leave(self) -> None:
        """Resign, and nudge the others to see the next leader, which may be a Java member that sends no nudges."""
        was_leading = self._election.is_leading
        resign = partial(self._election.resign, "it leaves the fleet")
        await self._context.operations.attempt("resign", resign)
        if was_leading:
            leases = self._reader.leases
            await self._nudger.nudge(workers_to_nudge_on_resign(leases, self._context.worker), leases)

    # -- refreshing --------------------------------------------------------------------------------------------

    async def _refresh_from_index(self) -> list[Lease]:
        """Read the lock and our own leases. Fall back to a scan if those do not tell enough."""
        # Invariant: the lock is read first. As it was at the last refresh, a healthy leader may seem to be late.
        await self._election.note_lock(await self._reader.read_lock())
        if self._election.is_leading or self._election.is_leader_late:
            return await self._refresh_from_scan()
        leases = await self._reader.list_assigned(known=self._context.held_leases.keys)
        if len(self._context.streams.ours(leases)) < len(leases):
            return (
                await self._refresh_from_scan()
            )  # it shows which members read the streams that we do not read
        self._reader.observe_only(leases)
        self._schedule.finish_refresh(leases)
        return self._follower.leases_to_begin(leases, self._reader.observations)

    async def _refresh_from_scan(self) -> list[Lease]:
        """Read everything, decide, and execute the decision if we lead. Return the leases to begin."""
        began_ms = self._context.operations.clock.now_ms()
        snapshot = await self._reader.scan()
        now_ms = self._context.operations.clock.now_ms()
        leases = snapshot.leases.leases
        self._context.held_leases.note_leases(leases)
        self._context.held_leases.confirm_handoffs(leases)
        self._election.note_fleet(snapshot)
        # Invariant: the election comes before the plan, so that a new leader executes its first plan at once.
        await self._election.note_lock(snapshot.lock)
        plan = self._leader.plan(
            snapshot, self._reader.observations, now_ms, is_leading=self._election.is_leading
        )
        self._schedule.finish_refresh(leases)
        self._schedule.note_members(plan.memory.members)
        self._report(snapshot, plan, now_ms - began_ms)
        self._note_read(snapshot, now_ms)
        # Invariant: chosen before the plan is executed, which may assign more leases to us.
        assigned = self._follower.leases_to_begin(leases, self._reader.observations)
        if self._election.is_leading:
            return [*assigned, *await self._lead(plan, snapshot)]
        return [*assigned, *await self._follow(plan, snapshot, now_ms)]

    async def _lead(self, plan: LeaderPlan, snapshot: FleetSnapshot) -> list[Lease]:
        """Execute a plan. Return the leases that it assigned to ourselves: they need not wait for the next refresh."""
        clock = self._context.operations.clock
        began_ms = clock.now_ms()
        self._schedule.note_plan(plan)
        result = await self._executor.execute(plan, snapshot, self._reader.observations)
        self._election.note_decision(failed=result.has_failed)
        self._report_decision(snapshot, plan, result, clock.now_ms() - began_ms)
        return self._follower.leases_to_begin(result.assigned, self._reader.observations)

    async def _follow(self, plan: LeaderPlan, snapshot: FleetSnapshot, now_ms: int) -> list[Lease]:
        """Nudge the leader if the children of our shards are unassigned. Return leases that it does not assign."""
        leader = self._election.leader
        if plan.unclaimed and self._context.held_leases.ended and leader is not None:
            await self._nudger.nudge({leader}, snapshot.leases.leases)
        return list(self._follower.leases_to_take(plan, self._reader.observations, now_ms))

    def _note_read(self, snapshot: FleetSnapshot, now_ms: int) -> None:
        if self._context.watch is not None:
            read = TableRead(
                at_ms=now_ms,
                leases=self._context.streams.ours(snapshot.leases.leases),
                rejected=tuple(snapshot.leases.rejected),
                lock=snapshot.lock,
                reports=snapshot.reports.reports,
            )
            self._context.watch.note_read(
                read,
                self._reader.observations,
                has_leader=True,
                is_leading=self._election.is_leading,
                is_leader_late=self._election.is_leader_late,
            )

    def _report(self, snapshot: FleetSnapshot, plan: LeaderPlan, time_ms: int) -> None:
        self._context.operations.observe(
            FleetRefreshed(
                len(self._context.streams.ours(snapshot.leases.leases)),
                plan.unclaimed,
                len(self._context.held_leases.keys),
                max(1, plan.workers),
                time_ms,
                speaks_for_fleet=self._election.is_leading,
            )
        )

    def _report_decision(
        self, snapshot: FleetSnapshot, plan: LeaderPlan, result: ExecutionResult, time_ms: int
    ) -> None:
        written = len(result.assigned) + result.handed_off
        self._context.operations.observe(
            FleetDecided(
                leases=len(self._context.streams.ours(snapshot.leases.leases)),
                workers=plan.workers,
                expired=plan.unclaimed,
                left_free=plan.left_free,
                assigned=len(result.assigned),
                handed_off=result.handed_off,
                failed=len(plan.assign) + len(plan.hand_off) - written,
                unreadable_rows=len(snapshot.leases.rejected),
                unreadable_reports=len(snapshot.reports.rejected),
                failing_workers=sum(report.is_failing for report in snapshot.reports.reports),
                time_ms=time_ms,
            )
        )
