"""One member of a fleet, in peer mode: looks at the lease table, takes what it should have, keeps it, gives it back.

The loops are linear code around plans of `core`: `look` (who has what, what should I have), `renew` (heartbeats),
`audit` and `clean up` (leases for shards). Each loop survives what the world does to it: a step that fails is told
(`StepFailed`) and tried again. A bug is not survived: it ends the member, and its leases expire.

Reaches the outside only through ports, a clock and a random source that are passed in. Knows neither handlers nor
Spark: `serve` does something with a lease until it returns, or until it is cancelled because the lease was lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from leasehold.core.backoff import backoff_ms
from leasehold.core.events import (
    FleetSeen,
    HandoffAsked,
    LeaseReleased,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    Observe,
    RowRejected,
    ShardStalled,
    StepFailed,
)
from leasehold.core.lease_audit import Sightings
from leasehold.core.lease_observations import Observations, next_observations, unchanged_for_ms
from leasehold.core.model import HoldingId, InitialPosition, Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.peer_assignment import PeerLimits, PeerPlan, PeerView, plan_peer
from leasehold.errors import ConfigError, LeaseholdError, LeaseLostError
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.lease_table import Contended, LeaseTable
from leasehold.fleet.shard_sync import ShardSync
from leasehold.ports import Clock, Stream
from leasehold.settings import FleetSettings, milliseconds

Serve = Callable[[HeldLease], Awaitable[None]]

# After a look that could not take all it wanted, and after the end of a shard, the next look is this far away.
LOOK_AGAIN_AFTER_MS: Final = 300
# A shard from which nothing was read at all for so long is given up, however patient the settings are with a handler.
FIRST_PROGRESS_MS: Final = 60_000
# A member that cannot read is no help: it leaves the leases to others, each time longer, up to this.
AILING_MAX_MS: Final = 120_000


@dataclass(slots=True)
class _Serving:
    """A lease and the task that serves it."""

    held: HeldLease
    task: asyncio.Task[None]


@dataclass(slots=True)
class _Memory:
    """What a member remembers between looks. All of it is this process's own; none of it is in the table."""

    observations: Observations = field(default_factory=dict)
    audited: Sightings = field(default_factory=Sightings)
    resting_until_ms: dict[LeaseKey, int] = field(default_factory=dict)
    asked: dict[LeaseKey, HoldingId | None] = field(default_factory=dict)
    ended: set[ShardId] = field(default_factory=set)
    workers: int = 1
    released: int = 0
    ailments: int = 0
    ailing_until_ms: int = 0


class Member:
    """A process's part in its fleet. `run` is its whole life."""

    def __init__(
        self,
        *,
        table: LeaseTable,
        stream: Stream,
        stream_name: str,
        application: str,
        worker: WorkerId,
        initial: InitialPosition,
        serve: Serve,
        settings: FleetSettings,
        clock: Clock,
        rng: random.Random,
        observe: Observe,
    ) -> None:
        self._table = table
        self._application = application
        self._stream_name = stream_name
        self._worker = worker
        self._serve = serve
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._observe = observe
        self._sync = ShardSync(table, stream, stream_name, initial, settings, clock, rng, observe)
        self._serving: dict[LeaseKey, _Serving] = {}
        self._memory = _Memory()
        self._look_soon = asyncio.Event()
        self._is_stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Live until `stop` is set; then let every shard finish what it has in hand, and give everything back."""
        self._observe(MemberStarted(self._worker, self._application, self._stream_name))
        try:
            await self._until_it_works("start", self._start, stop)
            async with asyncio.TaskGroup() as group:
                keeping = [
                    group.create_task(self._renew_loop(group)),
                    group.create_task(self._audit_loop()),
                    group.create_task(self._clean_up_loop()),
                ]
                await self._look_loop(group, stop)
                self._is_stopping = True
                await self._drain()
                for loop in keeping:
                    loop.cancel()
        finally:
            self._observe(MemberStopped(self._worker, self._memory.released))

    async def _start(self) -> None:
        await self._table.prepare()
        if await self._table.is_led():
            raise ConfigError(
                f"application {self._application!r} is led by a KCL 3.x worker, which assigns the leases: this member "
                "takes leases by itself, and the two would fight; use another application name, or run the KCL in its "
                "2.x-compatible mode"
            )
        await self._sync.bootstrap()

    # -- looking and taking ------------------------------------------------------------------------------------

    async def _look_loop(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        """Look again and again until told to stop. A look that has begun is finished: what it takes is served."""
        while not stop.is_set():
            await self._step("look", partial(self._look, group))
            # Members that started together must not keep looking together.
            pause_ms = int(milliseconds(self._settings.look_every) * (0.75 + self._rng.random() / 2))
            await self._first_of(stop.wait(), self._look_soon.wait(), self._clock.sleep_ms(pause_ms))
            if self._look_soon.is_set():
                self._look_soon.clear()
                await self._first_of(stop.wait(), self._clock.sleep_ms(LOOK_AGAIN_AFTER_MS))

    async def _look(self, group: asyncio.TaskGroup) -> None:
        began_ms = self._clock.now_ms()
        listing = await self._table.list()
        for error in listing.rejected:
            self._observe(RowRejected(error.key, error.problem))
        memory, now_ms = self._memory, self._clock.now_ms()
        memory.observations = next_observations(memory.observations, listing.leases, now_ms)
        if any(each.held.has_progressed for each in self._serving.values()):
            memory.ailments = 0
        memory.ended &= {parent for lease in listing.leases for parent in lease.parents}
        memory.resting_until_ms = {
            key: until_ms for key, until_ms in memory.resting_until_ms.items() if until_ms > now_ms
        }
        plan = plan_peer(
            PeerView(
                me=self._worker,
                now_ms=now_ms,
                leases=listing.leases,
                observations=memory.observations,
                held=self._serving.keys(),
                resting=memory.resting_until_ms.keys(),
                asked=memory.asked,
                ended=memory.ended,
                unreadable={LeaseKey(error.key) for error in listing.rejected},
                may_take=now_ms >= memory.ailing_until_ms,
                salt=self._rng.getrandbits(32),
            ),
            self._limits(),
        )
        memory.workers = plan.workers
        seen = FleetSeen(
            len(listing.leases), plan.unclaimed, len(self._serving), plan.workers, now_ms - began_ms
        )
        self._observe(seen)
        self._notice_handoffs(listing.leases, group)
        await self._carry_out(plan, group)

    async def _carry_out(self, plan: PeerPlan, group: asyncio.TaskGroup) -> None:
        """Try every line of a plan; each is a race that may be lost without harm."""
        hold = (
            self._begin(group, lease, partial(self._table.hold, lease, self._worker)) for lease in plan.hold
        )
        take = (
            self._begin(group, lease, partial(self._table.take, lease, self._worker)) for lease in plan.take
        )
        ask = (self._ask_for(lease) for lease in plan.ask)
        await asyncio.gather(*hold, *take, *ask)
        if plan.crowded:
            self._look_soon.set()

    async def _begin(
        self,
        group: asyncio.TaskGroup,
        seen: Lease,
        write: Callable[[HoldingId], Awaitable[Lease | Contended]],
    ) -> None:
        """Make a lease ours and start to serve it."""
        began_ms = self._clock.now_ms()
        try:
            lease = await write(HoldingId(f"{self._rng.getrandbits(128):032x}"))
        except LeaseholdError as error:
            self._observe(StepFailed(f"take {seen.key}", str(error)))
            return
        if not isinstance(lease, Lease):
            return
        self._memory.asked.pop(lease.key, None)
        silent_ms = unchanged_for_ms(self._memory.observations, lease.key, began_ms) if seen.owner else None
        self._observe(
            LeaseTaken(lease.key, lease.shard_id, seen.owner, silent_ms, lease.counter, lease.checkpoint)
        )
        held = HeldLease(
            lease,
            table=self._table,
            clock=self._clock,
            rng=self._rng,
            observe=self._observe,
            settings=self._settings,
            taken_at_ms=began_ms,
        )
        task = group.create_task(self._serve_to_the_end(held), name=f"serve {lease.key}")
        self._serving[lease.key] = _Serving(held, task)

    async def _ask_for(self, lease: Lease) -> None:
        """Ask a richer member for a lease."""
        try:
            answer = await self._table.request_handoff(lease, self._worker)
        except LeaseholdError as error:
            self._observe(StepFailed(f"ask for {lease.key}", str(error)))
            return
        if isinstance(answer, Lease) and answer.checkpoint_owner is not None:
            self._memory.asked[lease.key] = answer.holding
            self._observe(HandoffAsked(lease.key, answer.checkpoint_owner, self._worker))

    def _notice_handoffs(self, leases: tuple[Lease, ...], group: asyncio.TaskGroup) -> None:
        """A look may show that one of our leases is wanted; its heartbeat, put now, finds out for certain."""
        for lease in leases:
            serving = self._serving.get(lease.key)
            if serving and lease.checkpoint_owner == self._worker and not serving.held.draining.is_set():
                group.create_task(self._renew_one(serving.held))

    # -- serving -----------------------------------------------------------------------------------------------

    async def _serve_to_the_end(self, held: HeldLease) -> None:
        """Serve one lease until its shard has ended, it is wanted back, it is lost, it stalls, or serving it fails."""
        serving = asyncio.ensure_future(self._serve(held))
        try:
            await self._first_of(
                _ended(serving),
                held.lost.wait(),
                held.proof_lapsed(),
                held.stalled.wait(),
                self._overdue_drain(held),
            )
            await _cancelled(serving)
            self._judge(held, serving)
            await self._give_back(held)
        finally:
            await _cancelled(serving)
            del self._serving[held.lease.key]

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
                await self._step(f"decline handoff of {held.lease.key}", held.decline_handoff)

    def _judge(self, held: HeldLease, serving: asyncio.Future[None]) -> None:
        """Remember what the end of serving a lease means for the next looks."""
        error = None if serving.cancelled() else serving.exception()
        if held.ended:
            self._memory.ended.add(held.shard)
            self._look_soon.set()
            return
        if error is not None and not isinstance(error, LeaseLostError):
            self._observe(StepFailed(f"serve {held.lease.key}", _brief(error)))
        if not held.draining.is_set():
            rest_ms = milliseconds(self._settings.rest_after_failure)
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
            to = await held.let_go()
        except LeaseholdError as error:
            self._observe(StepFailed(f"release {held.lease.key}", str(error)))
            return
        self._memory.released += 1
        self._observe(LeaseReleased(held.lease.key, held.shard, to))

    async def _drain(self) -> None:
        """Ask every shard to finish what it has in hand, and wait until all have."""
        tasks = [each.task for each in self._serving.values()]
        for each in self._serving.values():
            each.held.draining.set()
        if tasks:
            await asyncio.wait(tasks)

    # -- keeping -----------------------------------------------------------------------------------------------

    async def _renew_loop(self, group: asyncio.TaskGroup) -> None:
        while True:
            await self._clock.sleep_ms(milliseconds(self._settings.renew_every))
            await self._renew_all(group)

    async def _renew_all(self, group: asyncio.TaskGroup) -> None:
        """Put every heartbeat. One that does not get through is not waited for: it must not cost the others theirs."""
        began_ms = self._clock.now_ms()
        beats = [group.create_task(self._renew_one(each.held)) for each in self._serving.values()]
        if beats:
            most_ms = milliseconds(self._settings.renew_every) // 2
            await self._first_of(_all_ended(beats), self._clock.sleep_ms(most_ms))
        renewed = sum(beat.done() and beat.result() for beat in beats)
        self._observe(LeasesRenewed(renewed, len(beats) - renewed, self._clock.now_ms() - began_ms))

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
            self._observe(StepFailed(f"renew {held.lease.key}", str(error)))
            return False
        return True

    # -- shards ------------------------------------------------------------------------------------------------

    async def _audit_loop(self) -> None:
        await self._clock.sleep_ms(milliseconds(self._settings.first_audit_after))
        while True:
            await self._step("audit", self._audit)
            await self._clock.sleep_ms(milliseconds(self._settings.audit_every))

    async def _audit(self) -> None:
        self._memory.audited = await self._sync.audit(self._memory.audited, workers=self._memory.workers)

    async def _clean_up_loop(self) -> None:
        while True:
            await self._clock.sleep_ms(milliseconds(self._settings.clean_up_every))
            await self._step("clean up", self._clean_up)

    async def _clean_up(self) -> None:
        await self._sync.clean_up(workers=self._memory.workers)

    # -- steps -------------------------------------------------------------------------------------------------

    async def _step(self, name: str, step: Callable[[], Awaitable[None]]) -> bool:
        """Do one step; a failure of the world is told and survived."""
        try:
            await step()
        except LeaseholdError as error:
            self._observe(StepFailed(name, str(error)))
            return False
        return True

    async def _until_it_works(
        self, name: str, step: Callable[[], Awaitable[None]], stop: asyncio.Event
    ) -> None:
        """Try a step until it works or we are told to stop. What the configuration got wrong is not tried again."""
        attempt = 0
        while not stop.is_set():
            try:
                await step()
            except ConfigError:
                raise
            except LeaseholdError as error:
                self._observe(StepFailed(name, str(error)))
                pause_ms = backoff_ms(attempt, self._rng.random())
                await self._first_of(stop.wait(), self._clock.sleep_ms(pause_ms))
                attempt += 1
            else:
                return

    async def _first_of(self, *waits: Coroutine[Any, Any, object]) -> None:
        """Wait until one of several things has happened; stop waiting for the others."""
        tasks = [asyncio.create_task(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(*tasks)

    def _limits(self) -> PeerLimits:
        return PeerLimits(
            failover_ms=milliseconds(self._settings.failover_after),
            handoff_timeout_ms=milliseconds(self._settings.handoff_timeout),
            # One shard is enough to find out whether reading works again.
            leases_max=1 if self._memory.ailments else self._settings.max_leases,
            takes_per_look_max=self._settings.leases_to_acquire,
        )


async def _ended(task: asyncio.Future[None]) -> None:
    """Wait for the end of a task without taking part in it: neither its error nor our cancellation passes."""
    await asyncio.wait({task})


async def _all_ended(tasks: list[asyncio.Task[bool]]) -> None:
    """Wait for the end of tasks without taking part in them."""
    await asyncio.wait(tasks)


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks that still run, and wait until they have ended. What they raised is for whoever asks them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _brief(error: BaseException) -> str:
    """Type of a stranger's error; its text may hold what must not be told. Ours say nothing secret."""
    return str(error) if isinstance(error, LeaseholdError) else type(error).__name__
