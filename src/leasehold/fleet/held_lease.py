"""One lease while this member serves it: what a runtime may read of it, and every write that a runtime may send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.events import (
    HandoffRequested,
    ShardBlockedOnParents,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
)
from leasehold.core.leases.heartbeats import LastWrite
from leasehold.core.model import (
    ChildShard,
    Lease,
    LeaseKey,
    LeaseSessionId,
    ShardId,
    WorkerId,
    lease_key,
)
from leasehold.core.position import Position
from leasehold.core.shards.lease_creation import (
    CreateChildren,
    WaitForOtherParent,
    parents_perhaps_lost,
    plan_children,
    plan_lost_parents,
)
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import MalformedRowError, UnavailableError
from leasehold.fleet.lease_writer import LeaseWriter
from leasehold.fleet.operations import Operations
from leasehold.fleet.shard_activity import ShardActivity
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.ports import Stream
from leasehold.tasks import all_of, first_of

# A shard from which nothing was read at all is given up after this time, however long `stalled_after` is.
FIRST_PROGRESS_MS: Final = 60_000
# While the other parent of a merged child has no lease, the checks become up to so many times rarer.
_CHECK_PAUSES_MAX: Final = 8

# Called after each response of the table; True if another member has nudged us since the last response.
OnResponse = Callable[[bool], None]


class PendingCheckpoint(Protocol):
    """The progress of a runtime that is done and not stored yet."""

    async def store_with_heartbeat(self) -> bool:
        """Write a checkpoint if there is progress to store and no other write in flight. Return whether it wrote."""

    async def store_before_release(self) -> None:
        """Write a checkpoint if there is progress to store. Raises if that fails."""


class HeldLease:
    """A lease that this member owns, during one lease session. `HeldLeases` creates it and passes it to the runtime."""

    def __init__(
        self,
        lease: Lease,
        *,
        table: LeaseTable,
        operations: Operations,
        settings: FleetSettings,
        taken_at_ms: int,
        on_response: OnResponse,
        earlier_session: LeaseSessionId | None = None,
    ) -> None:
        self._table = table
        self._operations = operations
        self._settings = settings
        self._on_response = on_response
        # As it was taken, with the session in which a member served it before; None if it was assigned or released.
        self._taken = replace(lease, session=earlier_session)
        self._writer = LeaseWriter(
            lease,
            operations,
            valid_for_ms=milliseconds(settings.lease_valid_for),
            taken_at_ms=taken_at_ms,
            on_row=self._see_row,
        )
        self._activity = ShardActivity(lease.throughput_kbps, operations.clock)
        self._pending: PendingCheckpoint | None = None
        self._has_ended = False
        self._follows_parent: bool | None = False  # None while this waits for the parents
        self.draining = asyncio.Event()
        self.stalled = asyncio.Event()

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def lease(self) -> Lease:
        """The lease as this member last wrote or read it."""
        return self._writer.lease

    @property
    def shard(self) -> ShardId:
        """The shard of the lease."""
        return self.lease.shard_id

    @property
    def fencing_token(self) -> str:
        """A fencing token: it names this lease session and grows with every change of owner.

        A sink that remembers the highest token can refuse writes of an earlier owner.
        """
        return f"{self.lease.key}:{self._taken.counter}"

    @property
    def is_first_reading(self) -> bool:
        """Whether no member has read the shard before: it was taken, or assigned and begun, once and never by force.

        A worker that takes its own lease again, before the first heartbeat, finds the session in which it read.
        """
        taken = self._taken
        return taken.session is None and taken.counter <= 2 and taken.owner_switches == 0

    @property
    def follows_parent(self) -> bool:
        """Whether this fleet read a parent to its end and the parent's row still exists.

        Known after `wait_for_parents`.
        """
        return bool(self._follows_parent)

    @property
    def is_waiting_for_parents(self) -> bool:
        """Whether the shard is not read yet, because its parents have not ended or their rows could not be read."""
        return self._follows_parent is None

    @property
    def has_ended(self) -> bool:
        """Whether the end of the shard was written."""
        return self._has_ended

    @property
    def lost(self) -> asyncio.Event:
        """Set when the lease is no longer ours."""
        return self._writer.lost

    @property
    def last_write(self) -> LastWrite:
        """The last successful write. Every write is a heartbeat."""
        return self._writer.last_write

    @property
    def is_writing(self) -> bool:
        """Whether a write is in flight. It serves as a heartbeat."""
        return self._writer.is_writing

    @property
    def renew_ms(self) -> int:
        """The interval of heartbeats."""
        return milliseconds(self._settings.renew_every)

    @property
    def has_progressed(self) -> bool:
        """Whether the shard made any progress in this lease session."""
        return self._activity.has_progressed

    @property
    def is_idle_too_long(self) -> bool:
        """Whether the shard made no progress for so long that it counts as stalled."""
        patience_ms = milliseconds(self._settings.stalled_after)
        if not self.has_progressed:
            patience_ms = min(patience_ms, FIRST_PROGRESS_MS)
        return self._activity.idle_ms > patience_ms

    def is_valid(self) -> bool:
        """Whether the lease is surely ours at this moment, judged by our own clock alone."""
        return self._writer.is_valid()

    # -- what happens to the shard -----------------------------------------------------------------------------

    def note_progress(self) -> None:
        """Something shows that the shard is alive. The lease of a shard without progress is not renewed for ever."""
        self._activity.note_progress()

    def note_delivered(self, size_bytes: int) -> None:
        """Count records that were delivered. A leader balances by this throughput."""
        self._activity.note_delivered(size_bytes)

    def drain(self) -> None:
        """Ask the runtime to finish the records in flight and return."""
        self.draining.set()

    def mark_stalled(self) -> None:
        """The shard makes no progress: stop serving it."""
        self._operations.observe(ShardStalled(self.lease.key, self.shard, self._activity.idle_ms))
        self.stalled.set()

    async def wait_for_expiry(self) -> None:
        """Return, with the lease marked as lost, once no write has succeeded for too long."""
        await self._writer.wait_for_expiry()

    def check_expiry(self, now_ms: int) -> None:
        """Mark the lease as lost if no write has succeeded for too long."""
        self._writer.check_expiry(now_ms)

    async def wait_for_parents(self, stream: Stream) -> None:
        """Return once every parent has ended.

        A parent without a lease counts as ended: it was trimmed, or it was finished and its lease was deleted. If the
        lease may have been lost before that, it is created again, and this waits until the parent was read.
        """
        has_waited, self._follows_parent = False, None
        while True:
            parents = await self._parents_ended()
            running = [parent for parent, has_ended in parents.items() if has_ended is False]
            if running:
                has_waited = True
                self._operations.observe(ShardBlockedOnParents(self.shard, tuple(running)))
                await self._wait_for_other_shards()
                continue
            lost = parents_perhaps_lost(
                self.lease, parents, is_first_reading=has_waited or self.is_first_reading
            )
            if not lost or not await self._create_parents(lost, stream):
                self._follows_parent = any(parents.values())
                return

    # -- writes ------------------------------------------------------------------------------------------------

    def store_pending(self, pending: PendingCheckpoint) -> None:
        """From now on, let each heartbeat write the pending checkpoint instead of a bare renewal, and `release` too."""
        self._pending = pending

    async def renew(self) -> None:
        """Send a heartbeat, unless the lease was released or another write is in flight: every write is a heartbeat."""
        if self._writer.is_writing or self._writer.is_released:
            return
        if self._pending is not None and await self._pending.store_with_heartbeat():
            return
        kbps = self._activity.average_kbps()
        await self._writer.write(lambda lease: self._table.renew(lease, kbps))

    async def checkpoint(self, at: Position) -> None:
        """Write that everything up to `at` is done."""
        kbps = self._activity.average_kbps()
        await self._writer.write(lambda lease: self._table.checkpoint(lease, at, kbps))

    async def prepare_checkpoint(self, end: Position, state: bytes | None = None) -> None:
        """Write the first half of a two-phase checkpoint."""
        await self._writer.write(lambda lease: self._table.prepare_checkpoint(lease, end, state))

    async def refresh(self) -> Lease:
        """Read the lease again, to see what other processes of this member have written to it."""
        return await self._writer.refresh(lambda: self._table.get(self.lease.key))

    async def promote(self, end: Position) -> None:
        """Write that the batch pinned up to `end` is done. Any other pin stays as it is."""

        async def promote(lease: Lease) -> Lease | Contended:
            is_pinned = lease.pin is not None and lease.pin.end == end
            return await self._table.promote(lease) if is_pinned else lease

        await self._writer.write(promote)

    async def stamp(self, generation: tuple[str, int]) -> None:
        """Write the generation of a query that reads nothing from the shard."""
        await self._writer.write(lambda lease: self._table.stamp(lease, generation))

    async def finish(self, children: Sequence[ChildShard]) -> None:
        """Write the end of the shard together with the leases of its children.

        A merged child needs the leases of both parents. If the other parent has none yet, this waits for it.
        """
        plan = await self._children_to_create(children)
        await self._writer.write(lambda lease: self._table.finish(lease, plan))
        self._has_ended = True
        self._operations.observe(ShardEnded(self.shard, tuple(child.id for child in children)))

    async def decline_handoff(self) -> None:
        """Keep the lease for now although another member has requested it: the records in flight take longer."""
        await self._writer.write(self._table.decline_handoff)

    async def release(self, next_owner: WorkerId | None = None) -> WorkerId | None:
        """Release the lease to `next_owner`, if one is given. Return the next owner that the row names, if any.

        A member that has requested the lease gets it before `next_owner`. Stores the pending checkpoint first. If
        that fails, the lease is not released and expires: after a release the next owner repeats nothing.
        """
        if self._pending is not None:
            await self._pending.store_before_release()
        if next_owner is None:
            await self._writer.release(self._table.release)
        else:
            await self._writer.release(lambda lease: self._table.release_to(lease, next_owner))
        return self.lease.owner

    # -- parents and children ----------------------------------------------------------------------------------

    async def _parents_ended(self) -> dict[ShardId, bool | None]:
        parents = sorted(self.lease.parents)
        have_ended = await all_of(*map(self._has_parent_ended, parents))
        return dict(zip(parents, have_ended, strict=True))

    async def _create_parents(self, lost: Sequence[ShardId], stream: Stream) -> bool:
        """Create the leases of lost parents. Return False if none of them exists any more."""
        began_ms = self._operations.clock.now_ms()
        graph = shard_graph(await stream.list_shards())
        leases = plan_lost_parents(self.lease, lost, graph)
        created = [await self._table.create(lease) for lease in leases]
        took_ms = self._operations.clock.now_ms() - began_ms
        self._operations.observe(ShardsSynced(len(graph.shards), sum(created), took_ms))
        return bool(leases)

    async def _has_parent_ended(self, parent: ShardId) -> bool | None:
        """Whether a parent was read to its end; None if it has no lease.

        A row that cannot be parsed does not show it, so the shard waits.
        """
        try:
            lease = await self._table.get(lease_key(parent, self.lease.stream))
        except MalformedRowError:
            return False
        return None if lease is None else lease.checkpoint.is_shard_end

    async def _children_to_create(self, children: Sequence[ChildShard]) -> CreateChildren:
        waits = 0
        while True:
            leased = await self._leased_family(children)
            plan = plan_children(self.lease, children, leased, draw=self._operations.rng.random())
            if not isinstance(plan, WaitForOtherParent):
                return plan
            # A lease that must be released does not wait: of a stream that is no longer read, nobody creates the other.
            if plan.give_up or self.draining.is_set():
                raise UnavailableError(
                    f"shard {self.shard} ended in a merge, but its other parent {plan.parent} has no lease yet: "
                    "the lease is released, so that a shard sync can create it"
                )
            # Checks become rarer, because only an audit creates a lease that was lost.
            waits += 1
            pauses = min(waits, _CHECK_PAUSES_MAX)
            await first_of(self._wait_for_other_shards(pauses=pauses), self.draining.wait())

    async def _leased_family(self, children: Sequence[ChildShard]) -> set[LeaseKey]:
        """The keys of the children and of their parents that have a lease."""
        shards = {shard for child in children for shard in (child.id, *child.parents)}
        keys = sorted(lease_key(shard, self.lease.stream) for shard in shards)
        return {key for key in keys if await self._table.exists(key)}

    async def _wait_for_other_shards(self, *, pauses: int = 1) -> None:
        """Waiting for another shard is no stall."""
        self.note_progress()
        await self._operations.clock.sleep_ms(pauses * milliseconds(self._settings.check_parents_every))

    def _see_row(self, before: Lease, after: Lease) -> None:
        self._on_response(after.nudge != before.nudge)
        # A write whose response was lost is confirmed by reading the row, which may show a later handoff request.
        if after.checkpoint_owner is not None and after.owner is not None and not before.is_in_handoff:
            self._operations.observe(HandoffRequested(after.key, after.checkpoint_owner, after.owner))
            self.draining.set()
