"""One member of a fleet: joins it, serves its leases, takes part in lease maintenance, and leaves it.

An assignment strategy (`assignment.peer_strategy`, `assignment.leader_strategy`) decides which leases are ours;
`held_leases` serves and renews them. The loops here are linear code around plans of `core`. A failed operation is
reported (`OperationFailed`) and retried. A programming error ends the member, and its leases expire.

A member reaches the outside only through its ports. It knows neither handlers nor Spark: the `serve` function does
something with a lease until it returns, or until it is cancelled because the lease was lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from leasehold.config.settings import FleetSettings, Mode, milliseconds
from leasehold.core.assignment.leader_assignment import Decide, plan_assignment
from leasehold.core.coordinator.fleet_mode import PEERS, FleetMode, resolve_mode
from leasehold.core.events import MemberStarted, MemberStopped, Observer
from leasehold.core.model import WorkerId
from leasehold.errors import RecreatedStreamError
from leasehold.fleet.assignment.fleet_search import find_fleet
from leasehold.fleet.assignment.leader_strategy import LeaderStrategy
from leasehold.fleet.assignment.peer_strategy import PeerStrategy
from leasehold.fleet.assignment.strategy import AssignmentContext, AssignmentStrategy
from leasehold.fleet.assignment.worker_reporter import WorkerReporter
from leasehold.fleet.finding_watch import FindingWatch
from leasehold.fleet.held_leases import HeldLeases, Serve
from leasehold.fleet.maintenance.lease_maintenance import LeaseMaintenance
from leasehold.fleet.maintenance.upgrade import UpgradeWatch
from leasehold.fleet.operations import Operations
from leasehold.fleet.stream_discovery import StreamDiscovery
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock, LoadMeter
from leasehold.tasks import cancel_and_wait, first_of

# The pause after a refresh that could not take all the leases it wanted, and after the end of a shard.
REFRESH_AGAIN_AFTER_MS: Final = 300
REFRESH_PAUSE_MIN_MS: Final = 100  # even if refreshes fail, or take longer than their interval
# A fleet changes between KCL versions once in its life. The Java KCL checks at the same interval.
MODE_CHECK_EVERY_MS: Final = 60_000
TABLE_CHECK_EVERY_MS: Final = 300_000
IDENTITY_CHECK_PAUSE_MS: Final = 5_000  # between two checks after refused reads


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPorts:
    """Everything that a member uses outside of itself. Without a `load` meter, the member reports no CPU load."""

    table: LeaseTable
    streams: Streams
    clock: Clock
    rng: random.Random
    observe: Observer
    load: LoadMeter | None = None
    discovery: StreamDiscovery | None = None  # None: the streams never change
    watch: FindingWatch | None = None  # None: the member reports no findings


@dataclass(slots=True)
class _Participation:
    """The current strategy of this member, and the tasks that run for it."""

    mode: FleetMode
    strategy: AssignmentStrategy
    reporter: WorkerReporter | None
    tasks: list[asyncio.Task[None]]


class Member:
    """A process's part in its fleet. `run` is its whole life."""

    def __init__(
        self,
        ports: MemberPorts,
        *,
        application: str,
        worker: WorkerId,
        serve: Serve,
        settings: FleetSettings,
        decide: Decide = plan_assignment,
    ) -> None:
        self._ports = ports
        self._application = application
        self._worker = worker
        self._serve = serve
        self._settings = settings
        self._decide = decide
        self._operations = Operations(ports.clock, ports.rng, ports.observe)
        rare = None if ports.watch is None else ports.watch.rare
        self._maintenance = LeaseMaintenance(ports.table, ports.streams, settings, self._operations, rare)
        self._mode = PEERS
        self._failure: RecreatedStreamError | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Take part in the fleet until `stop` is set; then let every shard finish, and release everything.

        Sets `stop` itself, and raises RecreatedStreamError at the end, if a stream was deleted and created again and
        the settings say to stop then.
        """
        observe, streams = self._ports.observe, self._ports.streams
        observe(MemberStarted(self._worker, self._application, ",".join(streams.names)))
        released = 0
        try:
            await self._operations.retry_until_success("start", self._start, stop)
            async with asyncio.TaskGroup() as group:
                held_leases = HeldLeases(
                    table=self._ports.table,
                    serve=self._serve,
                    settings=self._settings,
                    operations=self._operations,
                    group=group,
                )
                try:
                    await self._participate(held_leases, group, stop)
                finally:
                    released = held_leases.released
        finally:
            observe(MemberStopped(self._worker, released))
        if self._failure is not None:
            raise self._failure

    async def _start(self) -> None:
        await self._ports.table.prepare()
        if self._ports.discovery is not None:
            await self._ports.discovery.update(self._ports.observe)
        self._mode = await self._resolve_mode()
        await self._maintenance.join()

    async def _resolve_mode(self) -> FleetMode:
        rows = self._ports.table.coordinator_rows
        found = await find_fleet(rows, self._mode, self._settings, self._ports.clock)
        if self._ports.watch is not None:
            self._ports.watch.rare.note_rows(found)
        return resolve_mode(found, self._settings.mode, self._application)

    async def _participate(
        self, held_leases: HeldLeases, group: asyncio.TaskGroup, stop: asyncio.Event
    ) -> None:
        current = self._begin(self._mode, held_leases, group)
        tasks = [
            group.create_task(held_leases.renew()),
            group.create_task(self._stop_if_recreated(partial(self._audit_loop, current, held_leases), stop)),
            group.create_task(self._stop_if_recreated(self._maintenance.join_rest, stop)),
            group.create_task(self._stop_if_recreated(partial(self._check_refused_reads, held_leases), stop)),
            group.create_task(self._clean_up_loop(current)),
        ]
        if self._ports.discovery is not None:
            tasks.append(group.create_task(self._ports.discovery.run(held_leases, self._operations)))
        if self._ports.watch is not None:
            tasks.append(group.create_task(self._watch_findings(held_leases, self._ports.watch)))
        mode_checks = group.create_task(self._mode_check_loop(current, held_leases, group))
        await self._refresh_loop(current, held_leases, stop)
        # Invariant: our report and our leadership end before the leases are released. No member assigns leases to us
        # any more, and the next leader can see which leases become free.
        await cancel_and_wait(mode_checks)
        await self._end(current)
        await held_leases.drain(await current.strategy.next_owners(), current.strategy.nudge_next_owner)
        await self._operations.attempt("release the rest", current.strategy.release_remaining)
        # The heartbeats run until the last lease is released.
        await cancel_and_wait(*tasks)

    # -- the assignment strategy -------------------------------------------------------------------------------

    def _begin(self, mode: FleetMode, held_leases: HeldLeases, group: asyncio.TaskGroup) -> _Participation:
        strategy = self._strategy(mode, held_leases)
        tasks = [group.create_task(strategy.run())]
        rows = self._ports.table.coordinator_rows
        reporter = None
        if mode.sends_reports:
            reporter = WorkerReporter(
                coordinator_rows=rows,
                layout=mode.reports_layout,
                worker=self._worker,
                meter=self._ports.load,
                held_leases=held_leases,
                operations=self._operations,
                range_percent=self._settings.max_utilisation,
            )
            tasks.append(group.create_task(reporter.run()))
        if mode.is_upgrading:
            watch = UpgradeWatch(
                coordinator_rows=rows, mode=mode, worker=self._worker, operations=self._operations
            )
            tasks.append(group.create_task(watch.run()))
        return _Participation(mode, strategy, reporter, tasks)

    def _strategy(self, mode: FleetMode, held_leases: HeldLeases) -> AssignmentStrategy:
        context = AssignmentContext(
            table=self._ports.table,
            streams=self._ports.streams,
            held_leases=held_leases,
            worker=self._worker,
            settings=self._settings,
            operations=self._operations,
            watch=self._ports.watch,
        )
        return LeaderStrategy(context, mode, self._decide) if mode.has_leader else PeerStrategy(context)

    async def _end(self, current: _Participation) -> None:
        if current.reporter is not None:
            await current.reporter.finish_write()
        await cancel_and_wait(*current.tasks)
        if current.reporter is not None:
            await self._operations.attempt("withdraw the report", current.reporter.withdraw)
        await current.strategy.leave()

    async def _mode_check_loop(
        self, current: _Participation, held_leases: HeldLeases, group: asyncio.TaskGroup
    ) -> None:
        """Follow the fleet when it changes: from peers to a leader or back, or from three tables to one."""
        clock = self._ports.clock
        checked_ms = clock.now_ms()
        while self._settings.mode is not Mode.PEER:
            await clock.sleep_ms(MODE_CHECK_EVERY_MS)
            now_ms = clock.now_ms()
            # A refresh shows every change except one: another member has created the tables of KCL 3.0 to 3.4.
            is_table_check_due = now_ms - checked_ms >= TABLE_CHECK_EVERY_MS
            if is_table_check_due or not current.strategy.is_mode_current():
                check = partial(self._check_mode, current, held_leases, group)
                await self._operations.attempt("check the mode", check)
                checked_ms = now_ms

    async def _check_mode(
        self, current: _Participation, held_leases: HeldLeases, group: asyncio.TaskGroup
    ) -> None:
        mode = await self._resolve_mode()
        if mode == current.mode:
            current.strategy.confirm_mode(mode)
            return
        await self._end(current)
        self._mode, new = mode, self._begin(mode, held_leases, group)
        current.mode, current.strategy, current.reporter, current.tasks = (
            new.mode,
            new.strategy,
            new.reporter,
            new.tasks,
        )

    # -- loops -------------------------------------------------------------------------------------------------

    async def _refresh_loop(
        self, current: _Participation, held_leases: HeldLeases, stop: asyncio.Event
    ) -> None:
        """Refresh until `stop` is set. A refresh that has begun is finished: the leases that it takes are served."""
        contact = held_leases.contact
        while not stop.is_set():
            await self._operations.attempt("refresh", current.strategy.refresh)
            await first_of(stop.wait(), contact.refresh_soon.wait(), self._wait_for_refresh(current))
            if contact.refresh_soon.is_set():
                contact.refresh_soon.clear()
                # A nudge announces a change that has happened. The end of a shard shows in the table a moment later.
                pause_ms = 0 if contact.was_nudged else REFRESH_AGAIN_AFTER_MS
                await first_of(stop.wait(), self._ports.clock.sleep_ms(pause_ms))

    async def _wait_for_refresh(self, current: _Participation) -> None:
        clock = self._ports.clock
        await clock.sleep_ms(REFRESH_PAUSE_MIN_MS)
        # Responses to heartbeats may put the next refresh off, so its time is computed again after each wait.
        while (wait_ms := current.strategy.next_refresh_ms() - clock.now_ms()) > 0:
            await clock.sleep_ms(wait_ms)

    async def _stop_if_recreated(
        self, maintain: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event
    ) -> None:
        # A function, not a coroutine: a task that is cancelled before it starts would never await it.
        try:
            await maintain()
        except RecreatedStreamError as error:
            self._failure = error
            stop.set()

    async def _check_refused_reads(self, held_leases: HeldLeases) -> None:
        """Find out whether a stream was recreated as soon as a read is refused, and not only by the next audit."""
        while True:
            await held_leases.read_refused.wait()
            held_leases.read_refused.clear()
            await self._discover(held_leases)
            await self._maintenance.check_identities()
            await self._ports.clock.sleep_ms(IDENTITY_CHECK_PAUSE_MS)

    async def _discover(self, held_leases: HeldLeases) -> None:
        """Before streams are compared with their leases: a listing shows that one was deleted and created again."""
        if self._ports.discovery is not None:
            await self._ports.discovery.update_and_release(held_leases, self._operations)

    async def _audit_loop(self, current: _Participation, held_leases: HeldLeases) -> None:
        clock = self._ports.clock
        await clock.sleep_ms(milliseconds(self._settings.first_audit_after))
        while True:
            await self._discover(held_leases)
            await self._maintenance.audit(current.strategy.maintainers)
            await clock.sleep_ms(milliseconds(self._settings.audit_every))

    async def _watch_findings(self, held_leases: HeldLeases, watch: FindingWatch) -> None:
        await watch.run(held_leases, self._ports.table.coordinator_rows, self._operations)

    async def _clean_up_loop(self, current: _Participation) -> None:
        while True:
            await self._ports.clock.sleep_ms(milliseconds(self._settings.clean_up_every))
            await self._maintenance.clean_up(current.strategy.maintainers)
