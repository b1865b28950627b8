"""A model of Spark's driver: it plans, logs, runs and commits one batch after the other, as the JVM does.

The order of the calls and of the entries in the logs is Spark's: the end of a batch is logged before its tasks run,
and its commit after the sink has committed. A restarted driver repeats a batch that is logged and not committed. Tasks
are retried, copied if they are slow, and left behind if the driver ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from leasehold.core.exactly_once.query_offset import offset_from_json
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.errors import LeaseholdError
from leasehold.simulation.environment.process import Role, SimulatedProcess
from leasehold.simulation.environment.query_history import (
    BoundedRun,
    CommittedBatch,
    DeliveredSlice,
    PlannedBatch,
)
from leasehold.simulation.spark.checkpoint_location import CheckpointLocation, ConcurrentRunError
from leasehold.simulation.spark.executor import Executor, FlakyTaskError, executor_main
from leasehold.simulation.spark.process_calls import ProcessDiedError, call_in
from leasehold.simulation.spark.reader import Reader
from leasehold.simulation.world import World
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.tasks import all_of, cancel_and_wait

TASK_FAILURES_MAX: Final = 4
# What may end a query: errors of the source, of user code, of processes, and of another run with the same log.
QueryError = LeaseholdError | FlakyTaskError | ProcessDiedError | ConcurrentRunError
QUERY_ERRORS: Final = (LeaseholdError, FlakyTaskError, ProcessDiedError, ConcurrentRunError)


class Trigger(Enum):
    """When a run of a query ends."""

    CONTINUOUS = "continuous"  # never by itself
    AVAILABLE_NOW = "availableNow"  # when every shard has been read to its tip
    ONCE = "once"  # after one batch


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """The settings of Spark itself."""

    executors: int
    poll_ms: int  # between two plans of an idle query
    copy_after_ms: int | None  # a slow task is copied after this time; None: speculation is off
    zombie_share: float  # of the executors that outlive their driver
    has_pipeline: bool  # `leasehold pipeline` watches the query and records the end of each batch
    trigger: Trigger = Trigger.CONTINUOUS


class SparkDriver:
    """One run of a query, in a process of its own. `error` is what ended it, if it failed."""

    def __init__(
        self,
        world: World,
        location: CheckpointLocation,
        options: SourceOptions,
        settings: DriverSettings,
    ) -> None:
        self.error: QueryError | None = None
        self.options = options
        self.location = location
        self._world = world
        self._settings = settings
        self._reader = Reader(world, options, is_available_now=settings.trigger is Trigger.AVAILABLE_NOW)
        self._executors: list[Executor] = []
        self._rng: random.Random
        self.process: SimulatedProcess

    def start(self) -> None:
        """Start the process of the driver and its reader."""
        produced = {shard: len(each.keys) for shard, each in self._world.ledger.shards.items()}
        self._reader.start()
        self.process = self._world.start_process(self._main, role=Role.DRIVER)
        self._rng = self._world.spec.rng_for(f"{self.process.name}:driver")
        self.process.on_exit.append(self._end_others)
        began_ms = self._world.now_ms()
        self._bounded_run = BoundedRun(self.process, self._reader.process, began_ms, produced)

    async def _main(self, _world: World, process: SimulatedProcess) -> None:
        try:
            await self._run_batches()
        except QUERY_ERRORS as error:
            self.error = error
            self._world.trace.add(process.name, "query fails", "", f"{type(error).__name__}: {error}"[:300])

    def _end_others(self) -> None:
        """The reader notices the end of its driver. Executors end, at once or later."""
        self._reader.process.stop.set()
        later = self._world.services.network.call_later
        for executor in self._executors:
            if self._rng.random() < self._settings.zombie_share:
                later(self._rng.randint(1_000, 30_000), executor.process.kill)
            else:
                executor.process.kill()

    # -- batches -----------------------------------------------------------------------------------------------

    async def _run_batches(self) -> None:
        batch, trigger = self.location.last_batch, self._settings.trigger
        if batch >= 0 and batch not in self.location.commits:
            await self._run_batch(batch, self.location.offset(batch - 1), self.location.offset(batch))
            if trigger is Trigger.ONCE:
                return
        # From here on the driver does not read the log: another driver may write to it.
        committed = self.location.offset(batch)
        while not self.process.is_stopping:
            end = await self._unless_stopped(self._plan(committed))
            if end is not None and end != committed:
                batch += 1
                await self._log_and_run(batch, committed, end)
                committed = end
            elif trigger is Trigger.CONTINUOUS or end is None:
                await self._pause()
            else:
                if trigger is Trigger.AVAILABLE_NOW:
                    self._world.bounded_run_ended(self._bounded_run)
                return
            if trigger is Trigger.ONCE:
                return

    def _plan(self, committed: Mapping[str, Any]) -> asyncio.Future[Mapping[str, Any]]:
        is_once = self._settings.trigger is Trigger.ONCE
        limits = BatchLimits() if is_once else self.options.limits
        return self._reader.plan(committed, limits, wait_for_all=is_once)

    async def _log_and_run(self, batch: int, start: Mapping[str, Any], end: Mapping[str, Any]) -> None:
        await self._wait_for_storage()
        self.location.log_offset(batch, end)
        planned = offset_from_json(end)
        assert planned is not None
        self._world.batch_planned(
            PlannedBatch(self.process, batch, planned.generation_id, self.location.offsets[batch])
        )
        await self._run_batch(batch, start, end)

    async def _run_batch(self, batch: int, start: Mapping[str, Any], end: Mapping[str, Any]) -> None:
        tasks = await self._unless_stopped(self._reader.slices(start, end))
        if tasks is None:
            return
        delivered = await self._unless_stopped(asyncio.ensure_future(self._run_tasks(tasks)))
        if delivered is None:
            return
        planned = offset_from_json(end)
        assert planned is not None
        slices = tuple(each for task in delivered for each in task)
        await self._wait_for_storage()
        self._world.batch_committed(CommittedBatch(self.process, batch, planned.generation_id, slices))
        await self._wait_for_storage()
        self.location.log_commit(batch)
        if self._settings.has_pipeline:
            self._reader.ends.committed = planned.generation_id
            self._reader.ends.ended_ms = self.process.clock.wall_ms()

    async def _unless_stopped(self, work: asyncio.Future[Any]) -> Any:
        """Wait for a result. Returns None if the query is stopped first, as Spark interrupts its thread."""
        stopping = asyncio.ensure_future(self.process.stop.wait())
        try:
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(stopping)
        if work.done():
            return work.result()
        await cancel_and_wait(work)
        return None

    async def _wait_for_storage(self) -> None:
        await self.process.clock.sleep_ms(self._rng.randint(1, 60))

    async def _pause(self) -> None:
        await self.process.clock.sleep_ms(self._settings.poll_ms)

    # -- tasks -------------------------------------------------------------------------------------------------

    async def _run_tasks(self, tasks: Sequence[Sequence[SlicePlan]]) -> list[tuple[DeliveredSlice, ...]]:
        return await all_of(*(self._run_task(plans) for plans in tasks))

    async def _run_task(self, plans: Sequence[SlicePlan]) -> tuple[DeliveredSlice, ...]:
        for failures in range(1, TASK_FAILURES_MAX + 1):
            try:
                return await self._attempt_with_copy(plans)
            except QUERY_ERRORS:
                if failures == TASK_FAILURES_MAX:
                    raise
        raise AssertionError("unreachable")

    async def _attempt_with_copy(self, plans: Sequence[SlicePlan]) -> tuple[DeliveredSlice, ...]:
        """Run an attempt. If it is slow, run a copy too: the first that succeeds wins, and the other goes on."""
        first = self._attempt(plans)
        after_ms = self._settings.copy_after_ms
        if after_ms is None:
            return await first
        await asyncio.wait({first}, timeout=after_ms / 1000)
        if first.done():
            return first.result()
        attempts = [first, self._attempt(plans)]
        await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
        ended = [each for each in attempts if each.done()]
        won = next((each for each in ended if each.exception() is None), None)
        return await (won or next((each for each in attempts if not each.done()), ended[0]))

    def _attempt(self, plans: Sequence[SlicePlan]) -> asyncio.Future[tuple[DeliveredSlice, ...]]:
        executor = self._pick_executor()
        return call_in(executor.process, lambda: executor.run_attempt(plans), self._world.context)

    def _pick_executor(self) -> Executor:
        alive = [each for each in self._executors if each.process.is_alive and not each.process.is_stopping]
        if len(alive) < self._settings.executors:
            process = self._world.start_process(
                executor_main, role=Role.EXECUTOR, runs_for=self._reader.process
            )
            started = Executor.of(self._world, process, self.options)
            self._executors.append(started)
            alive.append(started)
        return self._rng.choice(alive)
