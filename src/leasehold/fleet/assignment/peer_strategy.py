"""Peer mode: this member looks at all leases and goes for its share; so do the others. The plan is `core`'s."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.assignment.peer_assignment import PeerLimits, PeerPlan, PeerView, plan_peer_assignment
from leasehold.core.coordinator.fleet_mode import FleetMode
from leasehold.core.events import FleetRefreshed, HandoffRequested, Observer, OperationFailed, RowRejected
from leasehold.core.leases.liveness import Observations, next_observations, unchanged_for_ms
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.errors import LeaseholdError
from leasehold.fleet.assignment.strategy import AssignmentStrategy
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock


@dataclass(slots=True, kw_only=True)
class PeerStrategy(AssignmentStrategy):
    """One member among equals."""

    table: LeaseTable
    streams: Streams
    held_leases: HeldLeases
    worker: WorkerId
    settings: FleetSettings
    clock: Clock
    rng: random.Random
    observe: Observer
    _observations: Observations = field(default_factory=dict)
    _asked: dict[LeaseKey, LeaseSessionId | None] = field(default_factory=dict)
    _workers: int = 1
    _next_look_ms: int = 0

    @property
    def maintainers(self) -> int:
        """In a fleet of many, about two members tend the leases each time; which ones is left to chance."""
        return self._workers

    async def look(self) -> None:
        """Look at all leases, and go for what should be ours."""
        began_ms = self.clock.now_ms()
        # Members that started together must not keep looking together.
        pause_ms = int(milliseconds(self.settings.refresh_every) * (0.75 + self.rng.random() / 2))
        self._next_look_ms = began_ms + pause_ms
        listing = await self.table.list()
        for error in listing.rejected:
            self.observe(RowRejected(error.key, error.problem))
        now_ms = self.clock.now_ms()
        leases = self.streams.ours(listing.leases)
        self._observations = next_observations(self._observations, leases, now_ms)
        self.held_leases.note_look(leases)
        plan = plan_peer_assignment(
            PeerView(
                me=self.worker,
                now_ms=now_ms,
                leases=leases,
                observations=self._observations,
                held=self.held_leases.keys,
                cooling_down=self.held_leases.cooling_down,
                requested=self._asked,
                ended=self.held_leases.ended,
                unreadable={LeaseKey(error.key) for error in listing.rejected},
                may_take=self.held_leases.may_take,
                salt=self.rng.getrandbits(32),
            ),
            self._limits(),
        )
        self._workers = plan.workers
        mine = len(self.held_leases.keys)
        self.observe(FleetRefreshed(len(leases), plan.unclaimed, mine, plan.workers, now_ms - began_ms))
        self.held_leases.notice_handoffs(leases)
        await self._carry_out(plan)

    def next_refresh_ms(self) -> int:
        """Peers look all the time: nobody tells them anything."""
        return self._next_look_ms

    def is_mode_current(self) -> bool:
        """Peers see leases and nothing else."""
        return False

    async def _carry_out(self, plan: PeerPlan) -> None:
        """Try every line of a plan; each is a race that may be lost without harm."""
        begin_session = (self._begin(lease, taking=False) for lease in plan.begin_session)
        take = (self._begin(lease, taking=True) for lease in plan.take)
        request_handoff = (self._ask_for(lease) for lease in plan.request_handoff)
        await asyncio.gather(*begin_session, *take, *request_handoff)
        if plan.has_more_free:
            self.held_leases.refresh_soon.set()

    async def _begin(self, lease: Lease, *, taking: bool) -> None:
        write = partial(self.table.take if taking else self.table.begin_session, lease, self.worker)
        silent_ms = (
            unchanged_for_ms(self._observations, lease.key, self.clock.now_ms()) if lease.owner else None
        )
        if await self.held_leases.begin(lease, write, silent_ms=silent_ms):
            self._asked.pop(lease.key, None)

    async def _ask_for(self, lease: Lease) -> None:
        """Ask a richer member for a lease."""
        try:
            answer = await self.table.request_handoff(lease, self.worker)
        except LeaseholdError as error:
            self.observe(OperationFailed(f"ask for {lease.key}", str(error)))
            return
        if isinstance(answer, Lease) and answer.checkpoint_owner is not None:
            self._asked[lease.key] = answer.session
            self.observe(HandoffRequested(lease.key, answer.checkpoint_owner, self.worker))

    def confirm_mode(self, mode: FleetMode) -> None:
        """Peers go by nothing else."""

    async def next_owners(self) -> Mapping[LeaseKey, WorkerId]:
        """Peers look at all leases anyway, and take what is free."""
        return {}

    async def nudge_next_owner(self, worker: WorkerId) -> None:
        """Peers look all the time."""

    async def run(self) -> None:
        """Peers have nothing to do between two looks."""

    async def release_remaining(self) -> None:
        """Nobody gives a peer what it has not asked for."""

    async def leave(self) -> None:
        """Peers leave nothing behind but their leases."""

    def _limits(self) -> PeerLimits:
        return PeerLimits(
            failover_ms=milliseconds(self.settings.failover_after),
            handoff_timeout_ms=milliseconds(self.settings.handoff_timeout),
            leases_max=self.held_leases.leases_max,
            takes_per_refresh_max=self.settings.leases_to_acquire,
        )
