"""The leases that this member serves: begins them, keeps them with heartbeats, and gives them back.

Knows neither how leases are shared out (see `peer_mode`, `leader_mode`) nor what is done with them: `serve` does
something with a lease until it returns, or until it is cancelled because the lease was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, KeysView, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.events import (
    LeaseReleased,
    LeasesRenewed,
    LeaseTaken,
    OperationFailed,
    ShardStalled,
    with_stream,
)
from leasehold.core.leases.heartbeats import leases_to_renew, tick_ms
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId, parent_keys
from leasehold.errors import LeaseholdError, LeaseLostError
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.fleet.tasks import cancel_and_wait, first_of, wait_for

Serve = Callable[[HeldLease], Awaitable[None]]
Tell = Callable[[WorkerId], Awaitable[None]]

# A shard from which nothing was read at all for so long is given up, however patient the settings are with a handler.
FIRST_PROGRESS_MS: Final = 60_000
# So long a member looks often after word was left for it: what it is about may take a moment to happen.
ALERT_MS: Final = 3_000
# A member that cannot read is no help: it leaves the leases to others, each time longer, up to this.
AILING_MAX_MS: Final = 120_000


@dataclass(slots=True)
class _Serving:
    """A lease and the task that serves it."""

    held: HeldLease
    task: asyncio.Task[None]


@dataclass(slots=True)
class _Round:
    """What is told of the heartbeats of one interval."""

    began_ms: int
    failed: int = 0
    time_ms: int = 0


@dataclass(slots=True)
class _Memory:
    """What is remembered of leases that are no longer served. All of it is this process's own."""

    resting_until_ms: dict[LeaseKey, int] = field(default_factory=dict)
    ended: set[LeaseKey] = field(default_factory=set)
    released: int = 0
    ailments: int = 0
    ailing_until_ms: int = 0
    last_response_ms: int = 0
    alert_until_ms: int = 0


class HeldLeases:
    """What one member holds. Lives inside the task group of the member."""

    def __init__(
        self,
        *,
        table: LeaseTable,
        worker: WorkerId,
        serve: Serve,
        settings: FleetSettings,
        operations: Operations,
        group: asyncio.TaskGroup,
    ) -> None:
        self._table = table
        self._worker = worker
        self._serve = serve
        self._settings = settings
        self._operations = operations
        self._group = group
        self._clock, self._observe, self._rng = operations.clock, operations.observe, operations.rng
        self._serving: dict[LeaseKey, _Serving] = {}
        self._memory = _Memory()
        self._is_stopping = False
        self._heirs: Mapping[LeaseKey, WorkerId] = {}
        self._tell: Tell | None = None
        self._round = _Round(self._clock.now_ms())
        self.refresh_soon = asyncio.Event()

    # -- what the ways of sharing out ask ----------------------------------------------------------------------

    @property
    def keys(self) -> KeysView[LeaseKey]:
        """The leases that are served now."""
        return self._serving.keys()

    @property
    def cooling_down(self) -> AbstractSet[LeaseKey]:
        """Leases that were given up a moment ago, and are left to others for a while."""
        return self._memory.resting_until_ms.keys()

    @property
    def ended(self) -> AbstractSet[LeaseKey]:
        """Leases of shards that were finished here, and whose children are not all read yet."""
        return self._memory.ended

    @property
    def released(self) -> int:
        """How many leases were given back in good order."""
        return self._memory.released

    @property
    def may_take(self) -> bool:
        """Whether this member is well enough to serve more."""
        return self._clock.now_ms() >= self._memory.ailing_until_ms

    @property
    def leases_max(self) -> int | None:
        """How many leases this member may have. One shard is enough to find out whether reading works again."""
        return 1 if self._memory.ailments else self._settings.max_leases

    @property
    def is_healthy(self) -> bool:
        """Whether leases can be given to this member: it can read, and its heartbeats get through."""
        unheard_ms = self._clock.now_ms() - self._memory.last_response_ms if self._serving else 0
        return self.may_take and unheard_ms <= milliseconds(self._settings.failover_after)

    @property
    def last_response_ms(self) -> int:
        """When the table last answered one of our heartbeats."""
        return self._memory.last_response_ms

    @property
    def was_nudged(self) -> bool:
        """Whether word was left for us a moment ago."""
        return self._clock.now_ms() < self._memory.alert_until_ms

    def note_look(self, leases: Iterable[Lease]) -> None:
        """Forget what a look at all leases has made obsolete."""
        memory, now_ms = self._memory, self._clock.now_ms()
        if any(each.held.has_progressed for each in self._serving.values()):
            memory.ailments = 0
        memory.ended &= {parent for lease in leases for parent in parent_keys(lease)}
        self.forget_rest(now_ms)

    def forget_rest(self, now_ms: int) -> None:
        """Leases whose rest is over may be served again."""
        cooling_down = self._memory.resting_until_ms
        for key in [key for key, until_ms in cooling_down.items() if until_ms <= now_ms]:
            del cooling_down[key]

    def notice_handoffs(self, leases: Iterable[Lease]) -> None:
        """A look may show that one of our leases is wanted; its heartbeat, put now, finds out for certain."""
        for lease in leases:
            serving = self._serving.get(lease.key)
            if serving and lease.checkpoint_owner == self._worker and not serving.held.draining.is_set():
                self._group.create_task(self._renew_one(serving.held))

    # -- beginning and ending ----------------------------------------------------------------------------------

    async def begin(
        self,
        seen: Lease,
        write: Callable[[LeaseSessionId], Awaitable[Lease | Contended]],
        *,
        silent_ms: int | None,
    ) -> bool:
        """Make a lease ours by a write that may lose its race, and start to serve it. Says whether it is ours."""
        began_ms = self._clock.now_ms()
        try:
            lease = await write(LeaseSessionId(f"{self._rng.getrandbits(128):032x}"))
        except LeaseholdError as error:
            self._observe(OperationFailed(f"take {seen.key}", str(error)))
            return False
        if not isinstance(lease, Lease):
            return False
        self._hear(lease.nudge != seen.nudge)
        self._observe(
            LeaseTaken(lease.key, lease.shard_id, seen.owner, silent_ms, lease.counter, lease.checkpoint)
        )
        held = HeldLease(
            lease,
            table=self._table,
            clock=self._clock,
            rng=self._rng,
            observe=with_stream(lease.stream, self._observe),
            settings=self._settings,
            taken_at_ms=began_ms,
            hear=self._hear,
        )
        task = self._group.create_task(self._serve_to_the_end(held), name=f"serve {lease.key}")
        self._serving[lease.key] = _Serving(held, task)
        return True

    async def _serve_to_the_end(self, held: HeldLease) -> None:
        """Serve one lease until its shard has ended, it is wanted back, it is lost, it stalls, or serving it fails."""
        is_over = held.lease.checkpoint.is_shard_end
        serving = asyncio.ensure_future(self._keep(held) if is_over else self._serve(held))
        try:
            await first_of(
                wait_for(serving),
                held.lost.wait(),
                held.wait_for_expiry(),
                held.stalled.wait(),
                self._overdue_drain(held),
            )
            await cancel_and_wait(serving)
            self._judge(held, serving)
            await self._give_back(held)
        finally:
            await cancel_and_wait(serving)
            del self._serving[held.lease.key]

    async def _keep(self, held: HeldLease) -> None:
        """Hold the lease of a finished shard, which a Java leader assigns like any other, until it is cleaned away."""
        while not held.draining.is_set():
            held.note_progress()
            pause_ms = milliseconds(self._settings.renew_every)
            await first_of(held.draining.wait(), self._clock.sleep_ms(pause_ms))

    async def _overdue_drain(self, held: HeldLease) -> None:
        """Ends when we are stopping and a shard has not finished in time.

        A lease that another member asked for is not torn from a shard that is alive: its records would be handled
        twice. The handoff is declined, so that the asker does not lose patience, and the shard lets go when it can.
        """
        await held.draining.wait()
        while True:
            await self._clock.sleep_ms(milliseconds(self._settings.handoff_timeout))
            if self._is_stopping:
                return
            if held.lease.is_in_handoff:
                await self._operations.attempt(f"decline handoff of {held.lease.key}", held.decline_handoff)

    def _judge(self, held: HeldLease, serving: asyncio.Future[None]) -> None:
        """Remember what the end of serving a lease means for the next looks."""
        error = None if serving.cancelled() else serving.exception()
        if held.ended:
            self._memory.ended.add(held.lease.key)
            self.refresh_soon.set()
            return
        if error is not None and not isinstance(error, LeaseLostError):
            self._observe(OperationFailed(f"serve {held.lease.key}", _brief(error)))
        if not held.draining.is_set():
            rest_ms = milliseconds(self._settings.cooldown_after_failure)
            self._memory.resting_until_ms[held.lease.key] = self._clock.now_ms() + rest_ms
            self._note_ailment(held, rest_ms)

    def _note_ailment(self, held: HeldLease, rest_ms: int) -> None:
        """A shard that was given up without a single page says more about this member than about the shard."""
        memory = self._memory
        memory.ailments = 0 if held.has_progressed else memory.ailments + 1
        pause_ms = min(AILING_MAX_MS, rest_ms << min(memory.ailments, 10)) if memory.ailments else 0
        memory.ailing_until_ms = self._clock.now_ms() + pause_ms

    async def _give_back(self, held: HeldLease) -> None:
        if held.lost.is_set():
            return
        try:
            to = await held.release(None if held.ended else self._heirs.get(held.lease.key))
        except LeaseholdError as error:
            self._observe(OperationFailed(f"release {held.lease.key}", str(error)))
            return
        self._memory.released += 1
        self._observe(LeaseReleased(held.lease.key, held.shard, to))
        if to is not None and self._tell is not None:
            await self._tell(to)

    async def drain(self, next_owners: Mapping[LeaseKey, WorkerId], tell: Tell) -> None:
        """For a stop: ask every shard to finish what it has in hand, and wait until all have.

        Leases go to `heirs`; each of them is told when it has come into one.
        """
        self._is_stopping = True
        self._heirs, self._tell = next_owners, tell
        tasks = [each.task for each in self._serving.values()]
        for each in self._serving.values():
            each.held.draining.set()
        if tasks:
            await asyncio.wait(tasks)

    # -- keeping -----------------------------------------------------------------------------------------------

    async def renew_for_ever(self) -> None:
        """Put heartbeats until cancelled, one lease after the other."""
        renew_ms = milliseconds(self._settings.renew_every)
        while True:
            await self._clock.sleep_ms(tick_ms(len(self._serving), renew_ms))
            now_ms = self._clock.now_ms()
            cooling_down = {key: each.held for key, each in self._serving.items() if _may_beat(each.held)}
            writes = {key: held.last_write for key, held in cooling_down.items()}
            for key in leases_to_renew(writes, now_ms, renew_ms):
                self._group.create_task(self._beat(cooling_down[key]))
            if now_ms - self._round.began_ms >= renew_ms:
                self._tell_round(now_ms)

    def _tell_round(self, now_ms: int) -> None:
        over, self._round = self._round, _Round(now_ms)
        renewed = max(0, len(self._serving) - over.failed)
        self._observe(LeasesRenewed(renewed, over.failed, over.time_ms))

    async def _beat(self, held: HeldLease) -> None:
        """Put one heartbeat. One that does not get through is not waited for: it must not cost the others theirs."""
        began_ms = self._clock.now_ms()
        held.is_beating = True
        try:
            is_renewed = await self._renew_one(held)
        finally:
            held.is_beating = False
        self._round.failed += not is_renewed
        self._round.time_ms = max(self._round.time_ms, self._clock.now_ms() - began_ms)

    def _hear(self, has_word: bool) -> None:
        now_ms = self._clock.now_ms()
        self._memory.last_response_ms = now_ms
        if has_word:
            self._memory.alert_until_ms = now_ms + ALERT_MS
            self.refresh_soon.set()

    async def _renew_one(self, held: HeldLease) -> bool:
        """Put one heartbeat, unless nothing shows that the shard is alive."""
        patience_ms = milliseconds(self._settings.stalled_after)
        if held.idle_ms > (patience_ms if held.has_progressed else min(patience_ms, FIRST_PROGRESS_MS)):
            self._observe(ShardStalled(held.lease.key, held.shard, held.idle_ms))
            held.stalled.set()
            return False
        try:
            await held.renew()
        except LeaseLostError:
            return False
        except LeaseholdError as error:
            self._observe(OperationFailed(f"renew {held.lease.key}", str(error)))
            return False
        return True


def _may_beat(held: HeldLease) -> bool:
    """Whether a heartbeat would be put: none is on its way, and the lease is still to be kept."""
    is_given_up = held.lost.is_set() or held.stalled.is_set()
    return not (held.is_beating or held.is_writing or is_given_up)


def _brief(error: BaseException) -> str:
    """Type of a stranger's error; its text may hold what must not be told. Ours say nothing secret."""
    return str(error) if isinstance(error, LeaseholdError) else type(error).__name__
