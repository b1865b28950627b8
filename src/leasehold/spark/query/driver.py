"""The driver's half of a query: a member of the fleet in a thread of its own, behind plain calls.

Spark calls from one thread, and may end the process at any time; the member goes on renewing its leases meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from leasehold.adapters.logs import LogObserver
from leasehold.adapters.system_clock import SystemClock
from leasehold.core.events import Event, FleetRefreshed
from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import QueryOffset, offset_from_json
from leasehold.core.exactly_once.slice_limits import BatchLimits, deal_round_robin
from leasehold.core.model import WorkerId
from leasehold.errors import ConfigError, NotFoundError
from leasehold.fleet.member import Member
from leasehold.fleet.streams import Streams
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.batch_load import BatchLoad, batch_end_file
from leasehold.spark.query.batch_planner import Generations
from leasehold.spark.query.driver_lock import DriverLock
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.spark.query.task_resources import LoopThread, open_stream, open_table, rng

# How long the first plan waits for leases: a fleet of one has them at once, in a full fleet there may be none for us.
FIRST_LEASES_WAIT: Final = timedelta(seconds=8)
STOP_WAIT_S: Final = 20.0
_CHECK_MS: Final = 50
_AWAIT_MS: Final = 250  # between two looks at the whole table, for leases that may still come


class QueryDriver:
    """One query's member, from the first plan to the stop."""

    def __init__(self, options: SourceOptions) -> None:
        options.require_application()
        self._options = options
        self._running: _Running | None = None
        self._epoch: str | None = None
        self._planned: tuple[GenerationId, list[SlicePlan]] | None = None
        self._reads_what_there_is = False

    def read_available_now(self) -> None:
        """From now on, each shard is read to its tip once."""
        self._reads_what_there_is = True
        if self._running is not None:
            self._running.generations.is_available_now = True

    def plan(self, start: Mapping[str, Any], limits: BatchLimits, *, wait_for_all: bool) -> Mapping[str, Any]:
        """The offset after `start`, which is committed; `start` itself if nothing is new."""
        logged = offset_from_json(start) or QueryOffset(GenerationId(self._own_epoch(), 0), {})
        running = self._member_of(logged)
        planned = running.loop.run(
            running.plan(logged, limits, wait_for_all=wait_for_all or self._reads_what_there_is)
        )
        if planned is None:
            return start
        offset, plans = planned
        self._planned = (offset.generation_id, plans)
        return offset.to_json()

    def slices(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[SlicePlan]]:
        """What the tasks of a generation read: one list for each task."""
        planned = offset_from_json(end)
        if planned is None:
            return []
        before = offset_from_json(start)
        if planned.generation_id.generation != (before.generation_id.generation if before else 0) + 1:
            raise ConfigError(
                f"Spark asks for generations {before.generation_id.generation + 1 if before else 1} to "
                f"{planned.generation_id.generation} in one batch, as it does with asynchronous progress tracking: turn that "
                "off"
            )
        running = self._member_of(planned)
        if self._planned is not None and self._planned[0] == planned.generation_id:
            plans = self._planned[1]
        else:
            plans = running.loop.run(running.replay(planned))
        return deal_round_robin(plans, self._options.partitions or os.cpu_count() or 1)

    def report(self) -> dict[str, Any] | None:
        """How the shards stand."""
        return None if self._running is None else self._running.generations.report()

    def stop(self) -> None:
        """Give the leases back, and end. May be called more than once."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _own_epoch(self) -> str:
        self._epoch = self._epoch or secrets.token_hex(8)
        return self._epoch

    def _member_of(self, logged: QueryOffset) -> _Running:
        """The member. It is named after the query's epoch, so that it finds its leases again after a crash."""
        if self._running is None:
            self._running = _Running(self._options, logged)
            self._running.generations.is_available_now = self._reads_what_there_is
        self._running.raise_failure()
        return self._running


class _Running:
    """A member that is running."""

    def __init__(self, options: SourceOptions, logged: QueryOffset) -> None:
        self._claim = DriverLock(options.application, str(options.connection))
        self._claim.acquire()
        self._options = options
        self._clock = SystemClock()
        self._log = LogObserver(self._clock.now_ms)
        self._looks: list[FleetRefreshed] = []
        self._load = BatchLoad(self._clock, batch_end_file(os.getppid()))
        self.loop = LoopThread("leasehold-member")
        self.generations: Generations = self.loop.run(
            self._open(WorkerId(f"spark-{logged.generation_id.query_id}"))
        )
        if logged.generation_id.generation:
            self.loop.run(self._take_over(logged))
        self._stop: asyncio.Event = self.loop.run(_event())
        self._life: Future[None] = self.loop.submit(self._member.run(self._stop))

    async def _open(self, worker: WorkerId) -> Generations:
        options = self._options
        table, stream = open_table(options), open_stream(options)
        generations = Generations(
            worker=worker,
            table=table,
            stream=stream,
            settings=options.query,
            clock=self._clock,
            rng=rng(),
        )
        self._member = Member(
            table=table,
            streams=Streams.single(stream, options.stream, options.query.initial),
            application=options.application,
            worker=worker,
            serve=generations.serve,
            settings=options.fleet,
            clock=self._clock,
            rng=rng(),
            observe=self._observe,
            load=self._load,
        )
        return generations

    async def plan(
        self, logged: QueryOffset, limits: BatchLimits, *, wait_for_all: bool
    ) -> tuple[QueryOffset, list[SlicePlan]] | None:
        """Plan the next generation. A bounded run waits for what is still to come; the first plan, for leases."""
        self._load.end()
        await self._until(self._has_leases, FIRST_LEASES_WAIT)
        while True:
            planned = await self.generations.plan(logged, limits)
            if planned is not None:
                self._load.begin()
                return planned
            if not wait_for_all or await self.generations.has_read_all_available():
                return None
            self.raise_failure()
            await self._clock.sleep_ms(_AWAIT_MS)

    async def replay(self, logged: QueryOffset) -> list[SlicePlan]:
        """Plan a logged generation once more."""
        await self._until(self._has_leases, FIRST_LEASES_WAIT)
        self._load.begin()
        return await self.generations.replay(logged)

    async def _take_over(self, logged: QueryOffset) -> None:
        with suppress(NotFoundError):  # the table is gone: the plan will say what that means
            await self.generations.release_leases_of_earlier_run(logged)

    def raise_failure(self) -> None:
        """A member that has ended by itself has something to say."""
        if self._life.done():
            self._life.result()
            raise ConfigError("the member of the fleet has stopped; restart the query")

    def stop(self) -> None:
        """Let the member give everything back, and wait until it has."""
        self.loop.loop.call_soon_threadsafe(self._begin_to_stop)
        try:
            self._life.result(STOP_WAIT_S)
        except Exception:  # noqa: BLE001 - a member that cannot give back lets its leases expire
            self._life.cancel()
        self._claim.release()

    def _begin_to_stop(self) -> None:
        self.generations.stop(self._load.ends.committed())
        self._stop.set()

    def _observe(self, event: Event) -> None:
        self._log(event)
        if isinstance(event, FleetRefreshed):
            self._looks.append(event)
            del self._looks[:-2]

    def _has_leases(self) -> bool:
        """Whether the member has had time to take what it should have."""
        if self._life.done():
            return True
        if not self._looks:
            return False
        seen, holding = self._looks[-1], self.generations.shards
        return holding >= seen.leases > 0 or (seen.unclaimed == 0 and holding >= seen.mine)

    async def _until(self, condition: Callable[[], bool], patience: timedelta) -> None:
        until_ms = self._clock.now_ms() + patience // timedelta(milliseconds=1)
        while not condition() and self._clock.now_ms() < until_ms:
            await self._clock.sleep_ms(_CHECK_MS)


async def _event() -> asyncio.Event:
    return asyncio.Event()
