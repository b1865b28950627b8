"""One member of a fleet: joins it in the way that it finds, serves what is its own, and leaves in good order.

The loops are linear code around plans of `core`. Which leases are ours is the business of a way of sharing out
(`peer_mode`, `leader_mode`); to keep and serve them, of `holdings`. A step that the world makes fail is told
(`OperationFailed`) and tried again. A bug is not survived: it ends the member, and its leases expire.

Reaches the outside only through ports, a clock and a random source that are passed in. Knows neither handlers nor
Spark: `serve` does something with a lease until it returns, or until it is cancelled because the lease was lost.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from leasehold.config.settings import FleetSettings, Mode, milliseconds
from leasehold.core.assignment.leader_assignment import Decide, plan_assignment
from leasehold.core.coordinator.fleet_mode import PEERS, FleetMode, TableLayout, resolve_mode
from leasehold.core.events import MemberStarted, MemberStopped, Observer
from leasehold.core.model import WorkerId
from leasehold.fleet.assignment.leader_election import LeaderElection
from leasehold.fleet.assignment.leader_strategy import LeaderStrategy
from leasehold.fleet.assignment.peer_strategy import PeerStrategy
from leasehold.fleet.assignment.strategy import AssignmentStrategy
from leasehold.fleet.assignment.worker_reporter import WorkerReporter
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.held_leases import Serve as Serve
from leasehold.fleet.maintenance.lease_maintenance import LeaseMaintenance
from leasehold.fleet.maintenance.upgrade import UpgradeWatch
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.fleet.tasks import cancel_and_wait, first_of
from leasehold.ports import Clock, LoadMeter

# After a look that could not take all it wanted, and after the end of a shard, the next look is this far away.
LOOK_AGAIN_AFTER_MS: Final = 300
LOOK_PAUSE_MIN_MS: Final = 100  # even when looks fail, or take longer than they are apart
# A fleet changes over between generations of the KCL once in its life; Java looks for that as often.
MODE_CHECK_EVERY_MS: Final = 60_000
LOOK_FOR_TABLES_EVERY_MS: Final = 300_000


@dataclass(slots=True)
class _Part:
    """How this member takes part at the moment, and what runs for it."""

    mode: FleetMode
    sharing: AssignmentStrategy
    reporter: WorkerReporter | None
    tasks: list[asyncio.Task[None]]


class Member:
    """A process's part in its fleet. `run` is its whole life."""

    def __init__(
        self,
        *,
        table: LeaseTable,
        streams: Streams,
        application: str,
        worker: WorkerId,
        serve: Serve,
        settings: FleetSettings,
        clock: Clock,
        rng: random.Random,
        observe: Observer,
        load: LoadMeter | None = None,
        decide: Decide = plan_assignment,
    ) -> None:
        self._table = table
        self._application = application
        self._streams = streams
        self._worker = worker
        self._serve = serve
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._observe = observe
        self._load = load
        self._decide = decide
        self._operations = Operations(clock, rng, observe)
        self._tending = LeaseMaintenance(table, streams, settings, self._operations)
        self._mode = PEERS

    async def run(self, stop: asyncio.Event) -> None:
        """Live until `stop` is set; then let every shard finish what it has in hand, and give everything back."""
        self._observe(MemberStarted(self._worker, self._application, ",".join(self._streams.names)))
        released = 0
        try:
            await self._operations.retry_until_success("start", self._start, stop)
            async with asyncio.TaskGroup() as group:
                held_leases = HeldLeases(
                    table=self._table,
                    worker=self._worker,
                    serve=self._serve,
                    settings=self._settings,
                    operations=self._operations,
                    group=group,
                )
                try:
                    await self._take_part(held_leases, group, stop)
                finally:
                    released = held_leases.released
        finally:
            self._observe(MemberStopped(self._worker, released))

    async def _start(self) -> None:
        await self._table.prepare()
        self._mode = await self._found_mode()
        await self._tending.join()

    async def _found_mode(self) -> FleetMode:
        coordinator_rows, was_led = self._table.coordinator_rows, self._mode.has_leader
        must_know = self._settings.mode is Mode.AUTO or self._mode.lock_layout is TableLayout.SEPARATE_TABLES
        find = coordinator_rows.find_changes if was_led else coordinator_rows.find
        found = await find(must_know=must_know)
        # A fleet that had a leader a moment ago has one still, though its lock may just be free.
        found = replace(found, has_lock=found.has_lock or was_led)
        return resolve_mode(found, self._settings.mode, self._application)

    async def _take_part(
        self, held_leases: HeldLeases, group: asyncio.TaskGroup, stop: asyncio.Event
    ) -> None:
        part = self._begin_part(self._mode, held_leases, group)
        keeping = [
            group.create_task(held_leases.renew_for_ever()),
            group.create_task(self._audit_loop(part)),
            group.create_task(self._clean_up_loop(part)),
            group.create_task(self._tending.join_rest()),
            group.create_task(self._change_over_loop(part, held_leases, group)),
        ]
        await self._look_loop(part, held_leases, stop)
        # First of all nobody should count on us any more; the leases are given back while others look already.
        await cancel_and_wait(keeping.pop())
        await self._end_part(part)
        await held_leases.drain(await part.sharing.next_owners(), part.sharing.nudge_next_owner)
        await self._operations.attempt("give back the rest", part.sharing.release_remaining)
        await cancel_and_wait(*keeping)

    # -- ways of sharing out -----------------------------------------------------------------------------------

    def _begin_part(self, mode: FleetMode, held_leases: HeldLeases, group: asyncio.TaskGroup) -> _Part:
        sharing = self._led(mode, held_leases) if mode.has_leader else self._among_peers(held_leases)
        tasks = [group.create_task(sharing.run())]
        reporter = None
        if mode.reports:
            reporter = WorkerReporter(
                coordinator_rows=self._table.coordinator_rows,
                place=mode.reports_layout,
                worker=self._worker,
                meter=self._load,
                held_leases=held_leases,
                operations=self._operations,
            )
            tasks.append(group.create_task(reporter.run()))
        if mode.is_upgrading:
            watch = UpgradeWatch(
                coordinator_rows=self._table.coordinator_rows,
                mode=mode,
                worker=self._worker,
                operations=self._operations,
            )
            tasks.append(group.create_task(watch.run()))
        return _Part(mode, sharing, reporter, tasks)

    def _among_peers(self, held_leases: HeldLeases) -> AssignmentStrategy:
        return PeerStrategy(
            table=self._table,
            streams=self._streams,
            held_leases=held_leases,
            worker=self._worker,
            settings=self._settings,
            clock=self._clock,
            rng=self._rng,
            observe=self._observe,
        )

    def _led(self, mode: FleetMode, held_leases: HeldLeases) -> AssignmentStrategy:
        coordinator_rows = self._table.coordinator_rows
        return LeaderStrategy(
            table=self._table,
            streams=self._streams,
            held_leases=held_leases,
            mode=mode,
            leadership=LeaderElection(
                coordinator_rows, mode.lock_layout, self._worker, self._settings, self._operations
            ),
            worker=self._worker,
            settings=self._settings,
            operations=self._operations,
            decide=self._decide,
        )

    async def _end_part(self, part: _Part) -> None:
        await cancel_and_wait(*part.tasks)
        if part.reporter is not None:
            await self._operations.attempt("withdraw the report", part.reporter.withdraw)
        await part.sharing.leave()

    async def _change_over_loop(self, part: _Part, held_leases: HeldLeases, group: asyncio.TaskGroup) -> None:
        """Follow the fleet when it changes over, from peers to a leader or back, or from three tables to one."""
        checked_ms = self._clock.now_ms()
        while self._settings.mode is not Mode.PEER:
            await self._clock.sleep_ms(MODE_CHECK_EVERY_MS)
            now_ms = self._clock.now_ms()
            # Looks show everything but whether somebody has made tables of KCL 3.0 to 3.4 since.
            if not part.sharing.is_mode_current() or now_ms - checked_ms >= LOOK_FOR_TABLES_EVERY_MS:
                await self._operations.attempt(
                    "change over", partial(self._change_over, part, held_leases, group)
                )
                checked_ms = now_ms

    async def _change_over(self, part: _Part, held_leases: HeldLeases, group: asyncio.TaskGroup) -> None:
        mode = await self._found_mode()
        if mode == part.mode:
            part.sharing.confirm_mode(mode)
        else:
            await self._end_part(part)
            self._mode, begun = mode, self._begin_part(mode, held_leases, group)
            part.mode, part.sharing, part.reporter, part.tasks = (
                mode,
                begun.sharing,
                begun.reporter,
                begun.tasks,
            )

    # -- looking -----------------------------------------------------------------------------------------------

    async def _look_loop(self, part: _Part, held_leases: HeldLeases, stop: asyncio.Event) -> None:
        """Look again and again until told to stop. A look that has begun is finished: what it takes is served."""
        refresh_soon = held_leases.refresh_soon
        while not stop.is_set():
            await self._operations.attempt("look", part.sharing.look)
            await first_of(stop.wait(), refresh_soon.wait(), self._time_to_look(part))
            if refresh_soon.is_set():
                refresh_soon.clear()
                # Word that was left is about something that has happened; an end is seen a moment later.
                pause_ms = 0 if held_leases.was_nudged else LOOK_AGAIN_AFTER_MS
                await first_of(stop.wait(), self._clock.sleep_ms(pause_ms))

    async def _time_to_look(self, part: _Part) -> None:
        # What comes in meanwhile may put the next look off, so the time is asked for again when it has come.
        await self._clock.sleep_ms(LOOK_PAUSE_MIN_MS)
        while (wait_ms := part.sharing.next_refresh_ms() - self._clock.now_ms()) > 0:
            await self._clock.sleep_ms(wait_ms)

    # -- shards ------------------------------------------------------------------------------------------------

    async def _audit_loop(self, part: _Part) -> None:
        await self._clock.sleep_ms(milliseconds(self._settings.first_audit_after))
        while True:
            await self._tending.audit(part.sharing.maintainers)
            await self._clock.sleep_ms(milliseconds(self._settings.audit_every))

    async def _clean_up_loop(self, part: _Part) -> None:
        while True:
            await self._clock.sleep_ms(milliseconds(self._settings.clean_up_every))
            await self._tending.clean_up(part.sharing.maintainers)
