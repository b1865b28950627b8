"""Assignment without a leader: this member reads all leases and takes its share, as every other member does.

`core.assignment.peer_assignment` makes the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from leasehold.config.settings import milliseconds
from leasehold.core.assignment.peer_assignment import (
    PeerLimits,
    PeerPlan,
    PeerView,
    plan_peer_assignment,
)
from leasehold.core.coordinator.fleet_mode import FleetMode
from leasehold.core.events import FleetRefreshed, HandoffRequested
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.leases.liveness import Observations, active_owners, next_observations, unchanged_for_ms
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.core.observing.explain.facts import TableRead
from leasehold.errors import LeaseholdError
from leasehold.fleet.assignment.strategy import AssignmentContext, AssignmentStrategy
from leasehold.fleet.table.lease_table import list_leases
from leasehold.tasks import all_of


class PeerStrategy(AssignmentStrategy):
    """One member among equals."""

    def __init__(self, context: AssignmentContext) -> None:
        self._context = context
        self._operations = context.operations
        self._held_leases = context.held_leases
        self._observations: Observations = {}
        # The leases that we have requested, each with its lease session at that time.
        self._requested: dict[LeaseKey, LeaseSessionId | None] = {}
        self._workers = 1
        self._is_first_peer = True
        self._next_refresh_ms = 0

    @property
    def maintainers(self) -> int:
        """The first member always maintains the leases, so that it knows the shards when it speaks for the fleet.

        Of all members chance picks about two each time: the first one may be another KCL's, or not reach the stream.
        """
        return 1 if self._is_first_peer else self._workers

    async def refresh(self) -> None:
        """Read all leases, and take or request those that should be ours."""
        clock = self._operations.clock
        began_ms = clock.now_ms()
        self._next_refresh_ms = began_ms + self._interval_ms()
        listing = await list_leases(self._context.table, self._operations.observe)
        now_ms = clock.now_ms()
        leases = self._context.streams.ours(listing.leases)
        self._observations = next_observations(self._observations, leases, now_ms)
        self._held_leases.note_leases(leases)
        plan = plan_peer_assignment(self._view(leases, listing, now_ms), self._limits())
        self._workers, self._is_first_peer = plan.workers, self._is_first(now_ms)
        mine = len(self._held_leases.keys)
        self._operations.observe(
            FleetRefreshed(
                len(leases),
                plan.unclaimed,
                mine,
                plan.workers,
                now_ms - began_ms,
                speaks_for_fleet=self._is_first_peer,
            )
        )
        if self._context.watch is not None:
            read = TableRead(at_ms=now_ms, leases=leases, rejected=tuple(listing.rejected))
            self._context.watch.note_read(read, self._observations, has_leader=False)
        self._held_leases.confirm_handoffs(leases)
        await self._execute(plan)

    def next_refresh_ms(self) -> int:
        """Peers refresh at a fixed interval: no member nudges them."""
        return self._next_refresh_ms

    def is_mode_current(self) -> bool:
        """Peers read only leases, which do not show the mode."""
        return False

    def confirm_mode(self, mode: FleetMode) -> None:
        """Peers do not use the mode."""

    async def next_owners(self) -> Mapping[LeaseKey, WorkerId]:
        """Peers read all leases anyway, and take those that are free."""
        return {}

    async def nudge_next_owner(self, worker: WorkerId) -> None:
        """Peers refresh without nudges."""

    async def run(self) -> None:
        """Peers do nothing between two refreshes."""

    async def release_remaining(self) -> None:
        """No member assigns a lease to a peer that has not requested it."""

    async def leave(self) -> None:
        """Peers have no tasks for the whole fleet."""

    def _is_first(self, now_ms: int) -> bool:
        failover_ms = milliseconds(self._context.settings.failover_after)
        active = active_owners(self._observations, now_ms=now_ms, failover_ms=failover_ms)
        return self._context.worker == min(active, default=self._context.worker)

    def _interval_ms(self) -> int:
        # Members that started together must not keep refreshing together.
        jitter = 0.75 + self._operations.rng.random() / 2
        return int(milliseconds(self._context.settings.refresh_every) * jitter)

    def _view(self, leases: Sequence[Lease], listing: LeaseListing, now_ms: int) -> PeerView:
        return PeerView(
            me=self._context.worker,
            now_ms=now_ms,
            leases=leases,
            observations=self._observations,
            held=self._held_leases.keys,
            cooling_down=self._held_leases.cooling_down,
            requested=self._requested,
            ended=self._held_leases.ended,
            unreadable={LeaseKey(error.key) for error in listing.rejected},
            may_take=self._held_leases.may_take,
            salt=self._operations.rng.getrandbits(32),
        )

    def _limits(self) -> PeerLimits:
        settings = self._context.settings
        return PeerLimits(
            failover_ms=milliseconds(settings.failover_after),
            handoff_timeout_ms=milliseconds(settings.handoff_timeout),
            leases_max=self._held_leases.leases_max,
            takes_per_refresh_max=settings.leases_to_acquire,
            requests_per_refresh_max=settings.leases_to_request,
            may_hand_off=settings.handoff,
        )

    async def _execute(self, plan: PeerPlan) -> None:
        """Try every line of the plan. Each is a race with other members that may be lost without harm."""
        begin = (self._begin(lease, taking=False) for lease in plan.begin_session)
        take = (self._begin(lease, taking=True) for lease in plan.take)
        request = (self._request_handoff(lease) for lease in plan.request_handoff)
        await all_of(*begin, *take, *request)
        if plan.has_more_free:
            self._held_leases.contact.refresh_soon.set()

    async def _begin(self, lease: Lease, *, taking: bool) -> None:
        table, now_ms = self._context.table, self._operations.clock.now_ms()
        write = partial(table.take if taking else table.begin_session, lease, self._context.worker)
        silent_ms = unchanged_for_ms(self._observations, lease.key, now_ms) if lease.owner else None
        if await self._held_leases.begin(lease, write, silent_ms=silent_ms):
            self._requested.pop(lease.key, None)

    async def _request_handoff(self, lease: Lease) -> None:
        """Request a lease from a member that has more than we do."""
        worker = self._context.worker
        try:
            result = await self._context.table.request_handoff(lease, worker)
        except LeaseholdError as error:
            self._operations.report_failure(f"request {lease.key}", error)
            return
        if isinstance(result, Lease) and result.checkpoint_owner is not None:
            self._requested[lease.key] = result.session
            self._operations.observe(HandoffRequested(lease.key, result.checkpoint_owner, worker))
