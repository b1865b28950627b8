"""Runs the fleet member of a query on a thread of its own, together with its lease server and its batch planner."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Final

from leasehold.adapters.logs import LogObserver
from leasehold.adapters.system_clock import SystemClock
from leasehold.core.events import Event, FleetRefreshed
from leasehold.core.exactly_once.query_offset import QueryOffset
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.model import WorkerId
from leasehold.errors import ConfigError, LeaseholdError, NotFoundError
from leasehold.fleet.member import Member, MemberPorts
from leasehold.fleet.streams import Streams
from leasehold.loop_thread import LoopThread
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.batch_load import BatchLoad, batch_end_file
from leasehold.spark.query.batch_planner import BatchPlanner
from leasehold.spark.query.driver_lock import DriverLock
from leasehold.spark.query.lease_server import LeaseServer
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.tasks import retry
from leasehold.wiring import new_rng, open_lease_table, open_stream

# The longest wait of the first plan for leases. A lone member takes them at once; in a full fleet it may get none.
FIRST_LEASES_WAIT: Final = timedelta(seconds=8)
STOP_WAIT_S: Final = 20.0
_CHECK_MS: Final = 50
_ATTEMPTS_MAX: Final = 11
_LIST_MS: Final = 250  # between two reads of the whole lease table, while a bounded run waits for leases


class QueryMember:
    """A running fleet member. Only one exists in a driver for each application."""

    def __init__(self, options: SourceOptions, logged: QueryOffset) -> None:
        self._clock = SystemClock()
        options.query.require_past_start(self._clock.wall_ms())
        self._lock = DriverLock(options.application, str(options.connection))
        self._lock.acquire()
        self._log = LogObserver(self._clock.now_ms)
        self._refreshed: FleetRefreshed | None = None
        self._load = BatchLoad(self._clock, batch_end_file(os.getppid()))
        self.loop = LoopThread("leasehold-member")
        worker = WorkerId(f"spark-{logged.generation_id.query_id}")
        is_new = logged.generation_id.number == 0
        try:
            self.server, self.planner, member = self.loop.run(self._open(options, worker, is_new=is_new))
            # Before the member starts: a task of an earlier run could otherwise still pin.
            if not is_new:
                self.loop.run(self._release_leases_of_earlier_run(logged))
        except LeaseholdError:
            self._lock.release()
            raise
        self._stop: asyncio.Event = self.loop.run(_event())
        self._running: Future[None] = self.loop.submit(member.run(self._stop))

    async def _open(
        self, options: SourceOptions, worker: WorkerId, *, is_new: bool
    ) -> tuple[LeaseServer, BatchPlanner, Member]:
        connection = options.connection
        table = open_lease_table(connection, options.application)
        stream = open_stream(connection, options.stream)
        if is_new and options.query.starting:
            # Later on, a shard that the options name may have been trimmed.
            shards = await retry(
                stream.list_shards, clock=self._clock, rng=new_rng(), attempts_max=_ATTEMPTS_MAX
            )
            options.query.require_known_shards({shard.id for shard in shards})
        server = LeaseServer(stream, options.query.poll_every, self._clock, new_rng())
        planner = BatchPlanner(
            worker=worker,
            table=table,
            server=server,
            settings=options.query,
            clock=self._clock,
            rng=new_rng(),
        )
        member = Member(
            MemberPorts(
                table=table,
                streams=Streams.single(stream, options.stream, options.query.initial),
                clock=self._clock,
                rng=new_rng(),
                observe=self._observe,
                load=self._load,
            ),
            application=options.application,
            worker=worker,
            serve=server.serve,
            settings=options.fleet,
        )
        return server, planner, member

    async def plan(
        self, logged: QueryOffset, limits: BatchLimits, *, wait_for_all: bool
    ) -> tuple[QueryOffset, list[SlicePlan]] | None:
        """Plan the next generation. The first plan waits for leases; a bounded run waits for all available records."""
        self._load.end()
        await self._wait_until(self._has_leases, FIRST_LEASES_WAIT)
        while True:
            planned = await self.planner.plan(logged, limits)
            if planned is not None:
                self._load.begin()
                return planned
            if not wait_for_all or await self.planner.has_read_all_available():
                return None
            self.raise_failure()
            await self._clock.sleep_ms(_LIST_MS)

    async def replay(self, logged: QueryOffset) -> list[SlicePlan]:
        """Plan a logged generation again."""
        await self._wait_until(self._has_leases, FIRST_LEASES_WAIT)
        self._load.begin()
        return await self.planner.replay(logged)

    def raise_failure(self) -> None:
        """Raise the error that ended the member, if it has ended."""
        if self._running.done():
            self._running.result()
            raise ConfigError("the fleet member of this query has stopped: restart the query")

    def stop(self) -> None:
        """Stop the member, and wait until it has released its leases."""
        self.loop.loop.call_soon_threadsafe(self._begin_stop)
        try:
            self._running.result(STOP_WAIT_S)
        except Exception:  # noqa: BLE001 - the leases of a member that cannot release them expire
            self._running.cancel()
        self._lock.release()

    def _begin_stop(self) -> None:
        self.server.stop(self._load.ends.last_committed())
        self._stop.set()

    async def _release_leases_of_earlier_run(self, logged: QueryOffset) -> None:
        with suppress(NotFoundError):  # the table does not exist: the plan reports what that means
            await self.planner.release_leases_of_earlier_run(logged)

    def _observe(self, event: Event) -> None:
        self._log(event)
        if isinstance(event, FleetRefreshed):
            self._refreshed = event

    def _has_leases(self) -> bool:
        """True if the member has had time to take its share of the leases, or has failed."""
        if self._running.done():
            return True
        if self._refreshed is None:
            return False
        fleet, held = self._refreshed, len(self.server.shards)
        return held >= fleet.leases > 0 or (fleet.unclaimed == 0 and held >= fleet.mine)

    async def _wait_until(self, condition: Callable[[], bool], patience: timedelta) -> None:
        until_ms = self._clock.now_ms() + patience // timedelta(milliseconds=1)
        while not condition() and self._clock.now_ms() < until_ms:
            await self._clock.sleep_ms(_CHECK_MS)


async def _event() -> asyncio.Event:
    return asyncio.Event()
