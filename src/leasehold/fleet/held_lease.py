"""One lease while this member serves it: the only way for a runtime to write to it, and the proof that it is ours.

A lease is *proven* for a while after each write that succeeded, counted on our own clock from before the write was
sent. Others wait longer than that before they take it, so whoever stops when the proof runs out stops in time, even if
every message to the table is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.assignment.throughput import Throughput
from leasehold.core.backoff import backoff_ms
from leasehold.core.events import HandoffRequested, LeaseLost, Observer, ShardBlockedOnParents, ShardEnded
from leasehold.core.leases.heartbeats import LastWrite
from leasehold.core.leases.lease_rules import Lost, interpret_failed_renewal
from leasehold.core.model import ChildShard, Lease, LeaseKey, ShardId, WorkerId, lease_key
from leasehold.core.position import Position
from leasehold.core.shards.lease_creation import CreateChildren, WaitForOtherParent, plan_children
from leasehold.errors import LeaseLostError, ThrottledError, UnavailableError
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.ports import Clock

# A refused write of ours is put again with the row as it is now. More than a few times in a row means a bug.
_REFUSALS_MAX: Final = 20

_Write = Callable[[Lease], Awaitable[Lease | Contended]]


class HeldLease:
    """A lease that this member owns. Made by the member; handed to the runtime that serves the shard."""

    def __init__(
        self,
        lease: Lease,
        *,
        table: LeaseTable,
        clock: Clock,
        rng: random.Random,
        observe: Observer,
        settings: FleetSettings,
        taken_at_ms: int,
        hear: Callable[[bool], None],
    ) -> None:
        self._lease = lease
        self._table = table
        self._clock = clock
        self._rng = rng
        self._observe = observe
        self._settings = settings
        self._hear = hear  # told with each answer whether another member has left word in the lease
        self._writing = asyncio.Lock()
        self.last_write = LastWrite(taken_at_ms, is_first=True)
        self._progress_ms = clock.now_ms()
        self._counter_at_take_over = lease.counter
        # Taken once, or assigned and begun once, and never by force.
        self.is_first_reading = lease.counter <= 2 and lease.owner_switches == 0
        self._throughput = Throughput(lease.throughput_kbps, clock.now_ms())
        self.draining = asyncio.Event()
        self.lost = asyncio.Event()
        self.stalled = asyncio.Event()
        self.ended = False
        self.has_progressed = False
        # A parent was read to its end by this fleet, and its row is still there.
        self.follows_parent = False
        self._given_back = False
        self.is_beating = False  # a heartbeat is on its way
        # Stores what is done and not stored yet, and says whether there was any: then it was the heartbeat.
        self.write_pending_checkpoint: Callable[[], Awaitable[bool]] | None = None

    @property
    def lease(self) -> Lease:
        """The lease as this member last wrote or read it."""
        return self._lease

    @property
    def shard(self) -> ShardId:
        """The shard that it is the lease of."""
        return self._lease.shard_id

    @property
    def fencing_token(self) -> str:
        """Names this holding; rises with every change of owner, so a sink can refuse the older of two."""
        return f"{self._lease.key}:{self._counter_at_take_over}"

    @property
    def idle_ms(self) -> int:
        """How long the shard has made no progress."""
        return self._clock.now_ms() - self._progress_ms

    @property
    def is_writing(self) -> bool:
        """Whether a write is on its way, which is as good as a heartbeat."""
        return self._writing.locked()

    @property
    def renew_ms(self) -> int:
        """How far heartbeats are apart."""
        return milliseconds(self._settings.renew_every)

    def is_valid(self) -> bool:
        """Whether the lease is surely ours at this moment, judged by our own clock alone."""
        gone = self._given_back or self.lost.is_set()
        return not gone and self._clock.now_ms() < self._proven_until_ms

    @property
    def _proven_until_ms(self) -> int:
        return self.last_write.at_ms + milliseconds(self._settings.lease_valid_for)

    def note_progress(self) -> None:
        """The shard is alive. A lease is renewed only while something says so."""
        self._progress_ms = self._clock.now_ms()
        self.has_progressed = True

    def note_delivered(self, size_bytes: int) -> None:
        """So many bytes of records were handed on; a leader balances by it."""
        self._throughput.note(size_bytes)

    async def wait_for_parents(self) -> None:
        """Return once every parent has ended. A parent without a lease was trimmed, or finished and cleaned away."""
        while running := await self._running_parents():
            self._observe(ShardBlockedOnParents(self.shard, running))
            self.note_progress()
            await self._clock.sleep_ms(milliseconds(self._settings.check_parents_every))

    async def renew(self) -> None:
        """The heartbeat. Does nothing while another write is under way, since every write is one, or after the last."""
        if self._writing.locked() or self._given_back:
            return
        if self.write_pending_checkpoint is not None and await self.write_pending_checkpoint():
            return
        kbps = self._throughput.average_kbps(self._clock.now_ms())
        await self._write(lambda lease: self._table.renew(lease, kbps))

    async def checkpoint(self, at: Position) -> None:
        """Everything up to `at` is done."""
        kbps = self._throughput.average_kbps(self._clock.now_ms())
        await self._write(lambda lease: self._table.checkpoint(lease, at, kbps))

    async def prepare_checkpoint(self, end: Position, state: bytes | None = None) -> None:
        """The first half of a two-phase checkpoint."""
        await self._write(lambda lease: self._table.prepare_checkpoint(lease, end, state))

    async def refresh(self) -> Lease:
        """The lease as it is in the table now, with what other processes of this member have written to it."""
        async with self._writing:
            self._require_proof()
            self._adopt(Contended(await self._table.get(self._lease.key)))
        return self._lease

    async def promote(self, end: Position) -> None:
        """The batch that is pinned up to `end` is done. Another pin, or none, is left as it is."""

        async def promote(lease: Lease) -> Lease | Contended:
            is_pinned = lease.pin is not None and lease.pin.end == end
            return await self._table.promote(lease) if is_pinned else lease

        await self._write(promote)

    async def finish(self, children: Sequence[ChildShard]) -> None:
        """The shard is done to its end: write that, together with the leases of its children.

        A merged child needs the leases of both its parents; if the other one has none yet, this waits for it.
        """
        plan = await self._children_to_create(children)
        await self._write(lambda lease: self._table.finish(lease, plan))
        self.ended = True
        self._observe(ShardEnded(self.shard, tuple(child.id for child in children)))

    async def decline_handoff(self) -> None:
        """Keep the lease for now, although another member has asked for it: what is in hand takes longer."""
        await self._write(self._table.decline_handoff)

    async def release(self, next_owner: WorkerId | None = None) -> WorkerId | None:
        """Give the lease back in good order, to `heir` if there is one; returns the next owner if one is named.

        One that waits for the lease goes before the heir. A lost lease is nobody's to give.
        """
        if next_owner is None:
            await self._write(self._table.release)
        else:
            await self._write(lambda lease: self._table.release_to(lease, next_owner))
        self._given_back = True
        return self._lease.owner

    def mark_lost(self, holder: WorkerId | None, reason: str) -> None:
        """The lease is no longer ours. Told once; whoever serves the shard is stopped by the member."""
        if not self.lost.is_set():
            self.lost.set()
            self._observe(LeaseLost(self._lease.key, self.shard, holder, reason))

    async def wait_for_expiry(self) -> None:
        """Return, with the lease lost, once nothing has proven it for too long."""
        while (left_ms := self._proven_until_ms - self._clock.now_ms()) > 0:
            await self._clock.sleep_ms(left_ms)
        self.mark_lost(None, "could not be renewed in time")

    async def _running_parents(self) -> tuple[ShardId, ...]:
        parents = sorted(self._lease.parents)
        # One after the other: when a read of several at once fails, the others run on behind our back.
        leases = [await self._table.get(lease_key(parent, self._lease.stream)) for parent in parents]
        self.follows_parent = any(lease is not None and lease.checkpoint.is_shard_end for lease in leases)
        return tuple(
            parent
            for parent, lease in zip(parents, leases, strict=True)
            if lease is not None and not lease.checkpoint.is_shard_end
        )

    async def _children_to_create(self, children: Sequence[ChildShard]) -> CreateChildren:
        while True:
            plan = plan_children(
                self._lease, children, await self._leased_family(children), draw=self._rng.random()
            )
            if not isinstance(plan, WaitForOtherParent):
                return plan
            if plan.give_up:
                raise UnavailableError(
                    f"shard {self.shard} ended in a merge, but its other parent {plan.parent} has no lease yet: "
                    "letting go, so that a shard sync can create it"
                )
            self.note_progress()
            await self._clock.sleep_ms(milliseconds(self._settings.check_parents_every))

    async def _leased_family(self, children: Sequence[ChildShard]) -> set[LeaseKey]:
        """Which of the children and their parents have a lease."""
        shards = {shard for child in children for shard in (child.id, *child.parents)}
        keys = sorted(lease_key(shard, self._lease.stream) for shard in shards)
        leases = [await self._table.get(key) for key in keys]
        return {lease.key for lease in leases if lease is not None}

    async def _write(self, write: _Write) -> None:
        """Put a write until it is answered, for as long as the lease is ours."""
        async with self._writing:
            for attempt in range(_REFUSALS_MAX):
                began_ms = self._require_proof()
                try:
                    outcome = await write(self._lease)
                except (ThrottledError, UnavailableError):
                    await self._clock.sleep_ms(backoff_ms(attempt, self._rng.random()))
                    continue
                if outcome is self._lease:
                    return  # there was nothing to write
                if isinstance(outcome, Lease):
                    self._go_on_with(outcome)
                    self.last_write = LastWrite(began_ms, is_first=False)
                    return
                self._adopt(outcome)
            raise UnavailableError(
                f"lease {self._lease.key}: not written in {_REFUSALS_MAX} attempts; try again"
            )

    def _go_on_with(self, lease: Lease) -> None:
        before, self._lease = self._lease, lease
        self._hear(lease.nudge != before.nudge)
        # A write whose answer was lost is settled by reading the row, which may show a handoff that came after it.
        if lease.checkpoint_owner is not None and lease.owner is not None and not before.is_in_handoff:
            self._observe(HandoffRequested(lease.key, lease.checkpoint_owner, lease.owner))
            self.draining.set()

    def _require_proof(self) -> int:
        now_ms = self._clock.now_ms()
        if self._given_back:
            raise LeaseLostError(
                f"lease {self._lease.key} was given back: nothing more can be written with it"
            )
        if not self.is_valid():
            self.mark_lost(None, "could not be renewed in time")
            raise LeaseLostError(
                f"lease {self._lease.key} could not be renewed in time and may be another's by now: stop reading; "
                f"records after {self._lease.checkpoint} will be read again by its next owner"
            )
        return now_ms

    def _adopt(self, refused: Contended) -> None:
        """Go on with the row as it is now, if it is still ours."""
        meaning = interpret_failed_renewal(self._lease, refused.current)
        if isinstance(meaning, Lost):
            self.mark_lost(meaning.holder, "another member has it")
            raise LeaseLostError(
                f"lease {self._lease.key} now belongs to {meaning.holder or 'nobody'}: stop reading; "
                f"records after {self._lease.checkpoint} will be read again by its next owner"
            )
        self._go_on_with(meaning.lease)
