"""Keeps the leases that this member serves: starts to serve them, judges how serving ended, and releases them.

An assignment strategy decides which leases those are. The `serve` function decides what happens with a lease; it
returns when it is done, or is cancelled because the lease was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, KeysView, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.events import LeaseReleased, LeaseTaken, OperationFailed
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId, parent_keys
from leasehold.errors import (
    IteratorExpiredError,
    LeaseholdError,
    LeaseLostError,
    RecreatedStreamError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.fleet.heartbeat_loop import HeartbeatLoop
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.operations import Operations
from leasehold.fleet.read_health import ReadHealth
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.fleet.table_contact import TableContact
from leasehold.tasks import cancel_and_wait, first_of, wait_for

Serve = Callable[[HeldLease], Awaitable[None]]
NudgeWorker = Callable[[WorkerId], Awaitable[None]]


@dataclass(slots=True)
class _History:
    """What this process remembers of leases that it no longer serves."""

    cooling_until_ms: dict[LeaseKey, int] = field(default_factory=dict)
    ended: set[LeaseKey] = field(default_factory=set)
    released: int = 0


@dataclass(frozen=True, slots=True)
class _Departure:
    """The member is stopping: the next owner of each lease, and how to nudge it when it gets one."""

    next_owners: Mapping[LeaseKey, WorkerId]
    nudge: NudgeWorker


class HeldLeases:
    """The leases of one member. All of its tasks run in the member's task group."""

    def __init__(
        self,
        *,
        table: LeaseTable,
        serve: Serve,
        settings: FleetSettings,
        operations: Operations,
        group: asyncio.TaskGroup,
    ) -> None:
        self._table = table
        self._serve = serve
        self._settings = settings
        self._operations = operations
        self._group = group
        self._held: dict[LeaseKey, HeldLease] = {}
        self._tasks: dict[LeaseKey, asyncio.Task[None]] = {}
        self._history = _History()
        self._departure: _Departure | None = None
        self._health = ReadHealth(operations.clock, milliseconds(settings.cooldown_after_failure))
        self.contact = TableContact(operations.clock)
        self._heartbeats = HeartbeatLoop(self._held, milliseconds(settings.renew_every), operations, group)

    # -- for the assignment strategies -------------------------------------------------------------------------

    @property
    def keys(self) -> KeysView[LeaseKey]:
        """The leases that are served now."""
        return self._held.keys()

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that are served now, as they were last read or written."""
        return tuple(held.lease for held in self._held.values())

    @property
    def cooling_down(self) -> AbstractSet[LeaseKey]:
        """Leases that were given up a moment ago; other members should take them."""
        return self._history.cooling_until_ms.keys()

    @property
    def ended(self) -> AbstractSet[LeaseKey]:
        """Leases of shards that this member finished and whose children are not all known to be read."""
        return self._history.ended

    @property
    def released(self) -> int:
        """How many leases were released in an orderly way."""
        return self._history.released

    @property
    def may_take(self) -> bool:
        """Whether this member may take more leases."""
        return self._health.may_take

    @property
    def leases_max(self) -> int | None:
        """How many leases this member may have; None: no limit."""
        return self._health.leases_max(self._settings.max_leases)

    @property
    def read_refused(self) -> asyncio.Event:
        """Set when a service refused to read a shard: was its stream deleted and created again?"""
        return self._health.refused

    @property
    def is_healthy(self) -> bool:
        """Whether a leader can assign leases to this member: it can read, and its heartbeats get a response."""
        silent_ms = self._operations.clock.now_ms() - self.contact.last_response_ms if self._held else 0
        return self.may_take and silent_ms <= milliseconds(self._settings.failover_after)

    def note_leases(self, leases: Iterable[Lease]) -> None:
        """After a read of all leases: forget what they have made obsolete."""
        if any(held.has_progressed for held in self._held.values()):
            self._health.note_progress()
        self._history.ended &= {parent for lease in leases for parent in parent_keys(lease)}
        self.end_cooldowns()

    def end_cooldowns(self) -> None:
        """Allow leases to be served again whose cooldown is over."""
        now_ms, cooling = self._operations.clock.now_ms(), self._history.cooling_until_ms
        for key in [key for key, until_ms in cooling.items() if until_ms <= now_ms]:
            del cooling[key]

    def confirm_handoffs(self, leases: Iterable[Lease]) -> None:
        """Renew our leases for which a scan shows a handoff request: the response is certain, a scan may be stale."""
        for lease in leases:
            held = self._held.get(lease.key)
            is_requested = held is not None and lease.checkpoint_owner == held.lease.actual_owner
            if held is not None and is_requested and not held.draining.is_set():
                self._heartbeats.renew_now(held)

    # -- serving -----------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Send heartbeats until cancelled."""
        await self._heartbeats.run()

    async def begin(
        self,
        seen: Lease,
        write: Callable[[LeaseSessionId], Awaitable[Lease | Contended]],
        *,
        silent_ms: int | None,
    ) -> bool:
        """Send the write that makes a lease ours, and start to serve it. Return False if another member was first."""
        began_ms = self._operations.clock.now_ms()
        try:
            lease = await write(LeaseSessionId(f"{self._operations.rng.getrandbits(128):032x}"))
        except LeaseholdError as error:
            self._operations.report_failure(f"take {seen.key}", error)
            return False
        if not isinstance(lease, Lease):
            return False
        self.contact.on_response(lease.nudge != seen.nudge)
        # A lease that was assigned or handed over to this member has its name already.
        taken_from = None if seen.owner == lease.owner else seen.owner
        self._operations.observe(
            LeaseTaken(lease.key, lease.shard_id, taken_from, silent_ms, lease.counter, lease.checkpoint)
        )
        held = HeldLease(
            lease,
            table=self._table,
            operations=self._operations.for_stream(lease.stream),
            settings=self._settings,
            taken_at_ms=began_ms,
            on_response=self.contact.on_response,
            earlier_session=seen.session,
        )
        self._held[lease.key] = held
        self._tasks[lease.key] = self._group.create_task(self._run(held), name=f"serve {lease.key}")
        return True

    async def drain(self, next_owners: Mapping[LeaseKey, WorkerId], nudge: NudgeWorker) -> None:
        """For a stop: let every shard finish its records in flight, release all leases, and wait until that is done.

        Each lease goes to its next owner in `next_owners`, who is nudged when the lease is free.
        """
        self._departure = _Departure(next_owners, nudge)
        for held in self._held.values():
            held.drain()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def drain_unless(self, is_ours: Callable[[Lease], bool]) -> None:
        """Drain the shards of streams that are no longer ours, and release their leases."""
        for held in self._held.values():
            if not is_ours(held.lease):
                held.drain()

    def has_any_unless(self, is_ours: Callable[[Lease], bool]) -> bool:
        """Whether a lease of a stream that is no longer ours is still served."""
        return not all(is_ours(held.lease) for held in self._held.values())

    async def _run(self, held: HeldLease) -> None:
        """Serve one lease until its shard ends, stalls or fails, or until the lease is requested or lost."""
        is_finished = held.lease.checkpoint.is_shard_end
        serving = asyncio.ensure_future(self._keep_finished(held) if is_finished else self._serve(held))
        try:
            await first_of(
                wait_for(serving),
                held.lost.wait(),
                held.wait_for_expiry(),
                held.stalled.wait(),
                self._wait_for_overdue_drain(held),
            )
            # Invariant: nothing may serve the shard any more when the lease is released.
            await cancel_and_wait(serving)
            self._judge(held, serving)
            await self._release(held)
        finally:
            await cancel_and_wait(serving)
            del self._held[held.lease.key], self._tasks[held.lease.key]

    async def _keep_finished(self, held: HeldLease) -> None:
        """Hold the lease of a finished shard until it is deleted. A Java leader assigns such a lease like any other."""
        while not held.draining.is_set():
            held.note_progress()
            pause_ms = milliseconds(self._settings.renew_every)
            await first_of(held.draining.wait(), self._operations.clock.sleep_ms(pause_ms))

    async def _wait_for_overdue_drain(self, held: HeldLease) -> None:
        """Return when the member is stopping and the shard has not finished in time.

        If another member requested the lease, the shard keeps it until its records in flight are done: to stop earlier
        would process them twice. The handoff is declined, so that the requester does not take the lease by force.
        """
        await held.draining.wait()
        while True:
            await self._operations.clock.sleep_ms(milliseconds(self._settings.handoff_timeout))
            if self._departure is not None:
                return
            if held.lease.is_in_handoff:
                await self._operations.attempt(f"decline handoff of {held.lease.key}", held.decline_handoff)

    def _judge(self, held: HeldLease, serving: asyncio.Future[None]) -> None:
        """Remember how serving a lease ended, for the next assignments."""
        error = None if serving.cancelled() else serving.exception()
        if held.has_ended:
            self._history.ended.add(held.lease.key)
            self.contact.refresh_soon.set()
            return
        if error is not None and not isinstance(error, LeaseLostError):
            self._operations.observe(OperationFailed(f"serve {held.lease.key}", _safe_text(error)))
        if _is_refused(error):
            self.read_refused.set()
        if not held.draining.is_set():
            cooldown_ms = milliseconds(self._settings.cooldown_after_failure)
            self._history.cooling_until_ms[held.lease.key] = self._operations.clock.now_ms() + cooldown_ms
            self._judge_reading(held, error)

    def _judge_reading(self, held: HeldLease, error: BaseException | None) -> None:
        """Learn from a lease that was given up whether this member can read."""
        if held.has_progressed:
            self._health.note_progress()
        # A lease that was lost, or given up before the shard was read, says nothing: the table was not reached. Nor
        # does a shard of a recreated stream.
        elif not (
            held.lost.is_set() or held.is_waiting_for_parents or isinstance(error, RecreatedStreamError)
        ):
            self._health.note_unread_shard()

    async def _release(self, held: HeldLease) -> None:
        if held.lost.is_set():
            return
        key = held.lease.key
        next_owners = {} if self._departure is None or held.has_ended else self._departure.next_owners
        try:
            to = await held.release(next_owners.get(key))
        except LeaseholdError as error:
            self._operations.report_failure(f"release {key}", error)
            return
        self._history.released += 1
        self._operations.observe(LeaseReleased(key, held.shard, to))
        if to is not None and self._departure is not None:
            await self._departure.nudge(to)


def _is_refused(error: BaseException | None) -> bool:
    """Whether a service refused to read the shard, in a way that a retry does not cure."""
    is_transient = isinstance(error, ThrottledError | UnavailableError | IteratorExpiredError)
    return isinstance(error, RecreatedStreamError | ServiceError) and not is_transient


def _safe_text(error: BaseException) -> str:
    """The text of our own errors, which holds no secrets; only the type of any other, whose text may hold payloads."""
    return str(error) if isinstance(error, LeaseholdError) else type(error).__name__
