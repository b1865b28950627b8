"""Begins the leases that a leader has assigned to this member, and releases those of streams that it does not read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from leasehold.config.settings import milliseconds
from leasehold.core.assignment.leader_assignment import LeaderPlan
from leasehold.core.assignment.unassigned_leases import unassigned_leases
from leasehold.core.events import LeaseReleased
from leasehold.core.leases.liveness import (
    Observations,
    pick_other_reader,
    unchanged_for_ms,
    was_just_assigned,
)
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.fleet.assignment.strategy import AssignmentContext
from leasehold.tasks import all_of

# The lease session of a lease that is begun only to be released; nothing is read in it.
RELEASING: Final = LeaseSessionId("leaving")


class Follower:
    """A member of a fleet with a leader; the leader follows its own assignments, too."""

    def __init__(self, context: AssignmentContext) -> None:
        self._context = context
        self._held_leases = context.held_leases
        self._operations = context.operations
        self._worker = context.worker
        self._failover_ms = milliseconds(context.settings.failover_after)

    def leases_to_begin(self, leases: Iterable[Lease], observations: Observations) -> list[Lease]:
        """The leases that are assigned to us and that no process serves."""
        return [lease for lease in leases if self._may_begin(lease, observations)]

    def leases_to_take(self, plan: LeaderPlan, observations: Observations, now_ms: int) -> Sequence[Lease]:
        """Leases that the leader does not assign, perhaps because it does not know their stream."""
        if not self._context.streams.is_multi_stream:
            return ()
        return unassigned_leases(
            plan.assign,
            observations,
            me=self._worker,
            busy=self._held_leases.keys | self._held_leases.cooling_down,
            now_ms=now_ms,
            failover_ms=self._failover_ms,
            draw=self._operations.rng.random(),
        )

    async def begin(self, leases: Sequence[Lease], observations: Observations) -> None:
        """Begin as many of these leases as we may have. Release those of streams that we do not read."""
        streams = self._context.streams
        ours, others = streams.ours(leases), [lease for lease in leases if not streams.of(lease)]
        await all_of(
            *(self._begin(lease) for lease in ours[: self._room()]),
            *(self._give_away(lease, observations) for lease in others),
        )

    async def release_unbegun(self) -> None:
        """Release leases that were assigned to us and not begun. Members that stop together assign to each other."""
        for lease in (await self._context.table.list_owned_by(self._worker)).leases:
            if lease.session is None and not lease.is_in_handoff:
                await self._release(lease, None)

    async def release_from(self, stopped: WorkerId, keys: Iterable[LeaseKey]) -> None:
        """Release leases that we released to a member which has stopped meanwhile, and which has not begun them."""
        table = self._context.table
        for lease in await all_of(*map(table.get, keys)):
            if lease is not None and lease.owner == stopped and lease.session is None:
                taken = await table.take(lease, self._worker, RELEASING)
                if isinstance(taken, Lease):
                    await table.release(taken)

    def _may_begin(self, lease: Lease, observations: Observations) -> bool:
        if lease.owner != self._worker or lease.is_in_handoff:
            return False
        is_busy = lease.key in self._held_leases.keys or lease.key in self._held_leases.cooling_down
        return not is_busy and self._is_not_served(lease, observations)

    def _is_not_served(self, lease: Lease, observations: Observations) -> bool:
        """Whether no process serves the lease.

        A session in the row may be an old one that a Java member left there, or that of a second process with our id.
        """
        unchanged_ms = unchanged_for_ms(observations, lease.key, self._operations.clock.now_ms())
        is_silent = unchanged_ms > self._failover_ms
        return lease.session is None or is_silent or was_just_assigned(observations, lease.key)

    def _room(self) -> int | None:
        """How many more leases we may begin; None: no limit. The others fall silent, and the leader reassigns them."""
        if not self._held_leases.may_take:
            return 0
        leases_max = self._held_leases.leases_max
        return None if leases_max is None else max(0, leases_max - len(self._held_leases.keys))

    async def _begin(self, lease: Lease) -> None:
        table = self._context.table
        write = table.begin_session if lease.owner == self._worker else table.take
        await self._held_leases.begin(lease, partial(write, lease, self._worker), silent_ms=None)

    async def _give_away(self, lease: Lease, observations: Observations) -> None:
        """Release a lease of a stream that we do not read: to a member that reads it, if there is one."""
        next_owner = pick_other_reader(
            observations,
            lease.stream,
            self._worker,
            now_ms=self._operations.clock.now_ms(),
            failover_ms=self._failover_ms,
        )
        await self._operations.attempt(f"give away {lease.key}", partial(self._release, lease, next_owner))

    async def _release(self, lease: Lease, next_owner: WorkerId | None) -> None:
        table = self._context.table
        begun = await table.begin_session(lease, self._worker, RELEASING)
        if isinstance(begun, Lease):
            await (table.release(begun) if next_owner is None else table.release_to(begun, next_owner))
            self._operations.observe(LeaseReleased(lease.key, lease.shard_id, next_owner))
