"""Peer mode: this member looks at all leases and goes for its share; so do the others. The plan is `core`'s."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from leasehold.core.events import FleetSeen, HandoffAsked, Observe, RowRejected, StepFailed
from leasehold.core.fleet_mode import FleetMode
from leasehold.core.lease_observations import Observations, next_observations, unchanged_for_ms
from leasehold.core.model import HoldingId, Lease, LeaseKey, WorkerId
from leasehold.core.peer_assignment import PeerLimits, PeerPlan, PeerView, plan_peer
from leasehold.errors import LeaseholdError
from leasehold.fleet.holdings import Holdings
from leasehold.fleet.lease_table import LeaseTable
from leasehold.fleet.sharing import Sharing
from leasehold.fleet.streams import Streams
from leasehold.ports import Clock
from leasehold.settings import FleetSettings, milliseconds


@dataclass(slots=True, kw_only=True)
class PeerMode(Sharing):
    """One member among equals."""

    table: LeaseTable
    streams: Streams
    holdings: Holdings
    worker: WorkerId
    settings: FleetSettings
    clock: Clock
    rng: random.Random
    observe: Observe
    _observations: Observations = field(default_factory=dict)
    _asked: dict[LeaseKey, HoldingId | None] = field(default_factory=dict)
    _workers: int = 1
    _next_look_ms: int = 0

    @property
    def tenders(self) -> int:
        """In a fleet of many, about two members tend the leases each time; which ones is left to chance."""
        return self._workers

    async def look(self) -> None:
        """Look at all leases, and go for what should be ours."""
        began_ms = self.clock.now_ms()
        # Members that started together must not keep looking together.
        pause_ms = int(milliseconds(self.settings.look_every) * (0.75 + self.rng.random() / 2))
        self._next_look_ms = began_ms + pause_ms
        listing = await self.table.list()
        for error in listing.rejected:
            self.observe(RowRejected(error.key, error.problem))
        now_ms = self.clock.now_ms()
        leases = self.streams.ours(listing.leases)
        self._observations = next_observations(self._observations, leases, now_ms)
        self.holdings.note_look(leases)
        plan = plan_peer(
            PeerView(
                me=self.worker,
                now_ms=now_ms,
                leases=leases,
                observations=self._observations,
                held=self.holdings.keys,
                resting=self.holdings.resting,
                asked=self._asked,
                ended=self.holdings.ended,
                unreadable={LeaseKey(error.key) for error in listing.rejected},
                may_take=self.holdings.may_take,
                salt=self.rng.getrandbits(32),
            ),
            self._limits(),
        )
        self._workers = plan.workers
        mine = len(self.holdings.keys)
        self.observe(FleetSeen(len(leases), plan.unclaimed, mine, plan.workers, now_ms - began_ms))
        self.holdings.notice_handoffs(leases)
        await self._carry_out(plan)

    def next_look_ms(self) -> int:
        """Peers look all the time: nobody tells them anything."""
        return self._next_look_ms

    def is_sure_of_mode(self) -> bool:
        """Peers see leases and nothing else."""
        return False

    async def _carry_out(self, plan: PeerPlan) -> None:
        """Try every line of a plan; each is a race that may be lost without harm."""
        hold = (self._begin(lease, taking=False) for lease in plan.hold)
        take = (self._begin(lease, taking=True) for lease in plan.take)
        ask = (self._ask_for(lease) for lease in plan.ask)
        await asyncio.gather(*hold, *take, *ask)
        if plan.crowded:
            self.holdings.look_soon.set()

    async def _begin(self, lease: Lease, *, taking: bool) -> None:
        write = partial(self.table.take if taking else self.table.hold, lease, self.worker)
        silent_ms = (
            unchanged_for_ms(self._observations, lease.key, self.clock.now_ms()) if lease.owner else None
        )
        if await self.holdings.begin(lease, write, silent_ms=silent_ms):
            self._asked.pop(lease.key, None)

    async def _ask_for(self, lease: Lease) -> None:
        """Ask a richer member for a lease."""
        try:
            answer = await self.table.request_handoff(lease, self.worker)
        except LeaseholdError as error:
            self.observe(StepFailed(f"ask for {lease.key}", str(error)))
            return
        if isinstance(answer, Lease) and answer.checkpoint_owner is not None:
            self._asked[lease.key] = answer.holding
            self.observe(HandoffAsked(lease.key, answer.checkpoint_owner, self.worker))

    def note_mode(self, mode: FleetMode) -> None:
        """Peers go by nothing else."""

    async def heirs(self) -> Mapping[LeaseKey, WorkerId]:
        """Peers look at all leases anyway, and take what is free."""
        return {}

    async def tell_heir(self, worker: WorkerId) -> None:
        """Peers look all the time."""

    async def run(self) -> None:
        """Peers have nothing to do between two looks."""

    async def give_back_rest(self) -> None:
        """Nobody gives a peer what it has not asked for."""

    async def leave(self) -> None:
        """Peers leave nothing behind but their leases."""

    def _limits(self) -> PeerLimits:
        return PeerLimits(
            failover_ms=milliseconds(self.settings.failover_after),
            handoff_timeout_ms=milliseconds(self.settings.handoff_timeout),
            leases_max=self.holdings.leases_max,
            takes_per_look_max=self.settings.leases_to_acquire,
        )
