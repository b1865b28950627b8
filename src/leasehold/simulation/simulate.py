"""Runs one seed: a phase with faults, recovery, a steady state, and a clean stop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from leasehold.config.settings import BalanceBy, FanOutSettings, Mode, Retrieval
from leasehold.simulation.checkers.balance import is_balanced
from leasehold.simulation.checkers.base import BrokenPromise
from leasehold.simulation.checkers.former_streams import has_former_leases
from leasehold.simulation.checkers.hash_coverage import find_holes
from leasehold.simulation.environment.load import LoadPlan
from leasehold.simulation.environment.process import Role, SimulatedLoop
from leasehold.simulation.environment.streams import ONE_STREAM, StreamChoice, StreamPlan
from leasehold.simulation.environment.trace import WORLD
from leasehold.simulation.fault_injection import FaultInjector, RestartedQuery
from leasehold.simulation.faults import Fault, FaultMix, draw_fan_out_mix, draw_fault_mix, without_poison
from leasehold.simulation.loads import hold_load
from leasehold.simulation.producing import Producing
from leasehold.simulation.runtime import Runtime, draw_runtime
from leasehold.simulation.starts import Start, draw_start
from leasehold.simulation.wide_worlds import (
    draw_concurrency,
    draw_load_plan,
    draw_stream_plan,
    failing_lists,
    with_concurrency,
    with_streams,
    with_wide_faults,
)
from leasehold.simulation.worker_process import worker_main, worker_settings
from leasehold.simulation.world import MakeMain, World, WorldSpec
from leasehold.worker.settings import ConsumerSettings

TICK_MS: Final = 500
STEADY_REFRESHES: Final = 100
_REFRESH_MS: Final = 1_500
# For movements that were decided before: requested handoffs, and the cleanup of finished shards.
_BEFORE_STEADY_STATE_MS: Final = 30_000
_STOP_BOUND_MS: Final = 60_000
_LOAD_DONE_BOUND_MS: Final = 120_000
# Longer than every bound of the checkers, so that a checker with a more precise message reports first.
_RECOVERY_BOUND_MS: Final = 1_500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """The options of a run. The seed decides on options that are None.

    It has more than 12 attributes because each option of the command is one.
    """

    seed: int
    workers: int | None = None
    shards: int | None = None
    faults: frozenset[Fault] | None = None
    faults_ms: int = 60_000
    steady_refreshes: int = STEADY_REFRESHES
    mode: Mode = Mode.PEER
    runtime: Runtime | None = None
    retrieval: Retrieval | None = None
    start: Start | None = None  # drawn only if the faults are drawn as well
    is_wide: bool = False  # also draw what `wide_worlds` adds
    load: bool | None = None  # unequal loads; drawn only in a wide run
    concurrency: bool | None = None  # handlers get single records, concurrently; drawn only in a wide run
    streams: StreamChoice | None = None  # drawn only in a wide run; otherwise one stream
    has_compaction: bool = False  # of the archive; only with workers that archive


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The result of a run."""

    options: SimulationOptions
    mix: str
    broken: tuple[BrokenPromise, ...]
    simulated_ms: int
    produced: int
    digest: str
    fault_counts: Mapping[str, int] = field(default_factory=dict)
    trace: Sequence[str] = ()

    @property
    def has_passed(self) -> bool:
        """Whether every promise was kept."""
        return not self.broken


def simulate(
    options: SimulationOptions,
    *,
    show: Callable[[str], object] | None = None,
) -> SimulationOutcome:
    """Run one seed to its end, or to the first broken promise. The same options give the same trace."""
    loop = SimulatedLoop()
    run = _Run(loop, options, show)
    try:
        loop.run_until_complete(run.run())
    except AssertionError as error:
        run.world.promises.report("no-deadlock", str(error))
    finally:
        outcome = run.outcome()
        loop.set_exception_handler(lambda *_: None)
        loop.run_until_complete(run.world.close_processes())
        loop.close()
    return outcome


def _settings_and_main(
    runtime: Runtime, mix: FaultMix, start: Start, options: SimulationOptions
) -> tuple[ConsumerSettings, MakeMain]:
    rng = random.Random(f"{options.seed}:batches")  # noqa: S311 - no secret
    if runtime is Runtime.WORKER:
        return worker_settings(mix, options.mode, start.initial, rng), worker_main
    # Imported here: a simulation of plain workers runs without pyarrow.
    from leasehold.simulation import archiving_worker as archiving  # noqa: PLC0415

    settings = archiving.archiving_settings(mix, options.mode, start.initial, rng)
    return settings, archiving.archiving_worker_main


def _draw_load(
    options: SimulationOptions, runtime: Runtime, streams: StreamPlan, mix: FaultMix
) -> LoadPlan | None:
    """Draw unequal loads. Only workers of one stream with a leader have them."""
    if runtime is not Runtime.WORKER or options.mode is not Mode.LEADER or streams is not ONE_STREAM:
        return None
    rng = random.Random(f"{options.seed}:load")  # noqa: S311
    return draw_load_plan(rng, options.load, mix, is_wide=options.is_wide, seed=options.seed)


def _draw_concurrency(options: SimulationOptions, runtime: Runtime) -> tuple[int, int]:
    """Draw whether handlers get single records. Only plain workers have such handlers."""
    if runtime is not Runtime.WORKER:
        return 1, 1
    rng = random.Random(f"{options.seed}:concurrency")  # noqa: S311 - no secret
    return draw_concurrency(rng, options.concurrency, is_wide=options.is_wide)


def _draw_start(mix: FaultMix, options: SimulationOptions) -> Start:
    if options.start is not None or options.faults is not None:
        return options.start or Start.OLDEST
    return draw_start(random.Random(f"{options.seed}:start"), mix)  # noqa: S311 - no secret


def _create_query(world: World) -> RestartedQuery | None:
    if world.spec.runtime is not Runtime.SPARK:
        return None
    from leasehold.simulation.spark.operated_query import OperatedQuery  # noqa: PLC0415 - needs pyarrow

    world.query.has_query = True
    world.query.has_archive = world.spec.rng_for("sink").random() < 0.6
    return OperatedQuery(world)


class _Run:
    def __init__(
        self,
        loop: SimulatedLoop,
        options: SimulationOptions,
        show: Callable[[str], object] | None,
    ) -> None:
        self.options = options
        self.world: World
        self._is_stopping = asyncio.Event()
        self._loop = loop
        self._show = show

    async def run(self) -> None:
        """Run all phases, or until a promise is broken."""
        self._create_world()
        phases = asyncio.ensure_future(self._run_phases())
        broken = asyncio.Event()
        self.world.promises.on_broken = broken.set
        waiting = asyncio.ensure_future(broken.wait())
        await asyncio.wait({phases, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not phases.done():
            phases.cancel()
        await asyncio.gather(phases, return_exceptions=True)
        waiting.cancel()
        if not phases.cancelled() and (error := phases.exception()):
            raise error

    def outcome(self) -> SimulationOutcome:
        """Return the result so far."""
        world = self.world
        return SimulationOutcome(
            self.options,
            str(world.spec.mix),
            tuple(world.promises.broken),
            world.now_ms(),
            world.ledger.produced,
            world.trace.digest(),
            dict(self._injector.counts),
            world.trace.lines,
        )

    def _create_world(self) -> None:
        options = self.options
        # The texts after the seed are part of what a seed means: another text would change every run.
        mix = draw_fault_mix(random.Random(f"{options.seed}:mix"), options.faults)  # noqa: S311 - no secret
        sizes = random.Random(f"{options.seed}:sizes")  # noqa: S311
        # Always draw both, so that a given number of workers does not change the number of shards.
        workers, shards = sizes.randint(1, 5), sizes.randint(1, 8)
        self._workers, shards = options.workers or workers, options.shards or shards
        runtime = draw_runtime(random.Random(f"{options.seed}:runtime"))  # noqa: S311
        runtime = options.runtime or runtime
        if runtime is not Runtime.WORKER:
            mix = without_poison(mix)
        self._start = _draw_start(mix, options)
        settings, make_main = _settings_and_main(runtime, mix, self._start, options)
        rng = random.Random(f"{options.seed}:fan-out")  # noqa: S311
        self._fan_out = draw_fan_out_mix(rng, mix, options.retrieval)
        settings = replace(settings, fan_out=FanOutSettings(retrieval=self._fan_out.retrieval))
        rng = random.Random(f"{options.seed}:wide")  # noqa: S311
        plan = draw_stream_plan(
            rng, runtime=runtime, is_wide=options.is_wide, choice=options.streams, mix=mix
        )
        if options.faults is None:
            mix = with_wide_faults(rng, mix, plan, is_wide=options.is_wide, runtime=runtime)
        settings = with_streams(settings, plan, self._list_streams)
        mix, settings = with_concurrency(mix, settings, *_draw_concurrency(options, runtime))
        load = _draw_load(options, runtime, plan, mix)
        if load is not None:
            settings = replace(settings, fleet=replace(settings.fleet, balance_by=BalanceBy.LOAD))
        spec = WorldSpec(
            seed=options.seed,
            shards=shards,
            mix=mix,
            settings=settings,
            runtime=runtime,
            streams=plan,
            load=load,
            has_compaction=options.has_compaction and runtime is Runtime.ARCHIVE,
        )
        world = self.world = World(self._loop, spec, make_main, self._show)
        self._loop.set_exception_handler(lambda _, context: world.unhandled_error(context))
        self._query = _create_query(world)
        if self._query is not None:
            # The query is a member. Workers share its stream only if both write to the archive of one stream.
            has_workers = world.is_archived and plan is ONE_STREAM
            self._workers = self._workers - 1 if has_workers else 0
            world.query.is_alone = self._workers == 0
        self._injector = FaultInjector(
            world, workers=self._workers, shards_max=2 * shards + 4, query=self._query
        )
        self._trace_beginning(shards)

    def _list_streams(self) -> Sequence[str]:
        return self.world.services.streams.list_names()

    def _trace_beginning(self, shards: int) -> None:
        spec = self.world.spec
        reading = f"{self._fan_out.retrieval.value} from {self._start.value}"
        begins = f"{spec.runtime.value}, {reading}, {self._workers} workers, {shards} shards; {spec.mix}"
        if spec.streams.choice is not StreamChoice.ONE:
            begins += f"; {spec.streams.choice.value} streams, {spec.streams.more_shards} more shards"
        if spec.load is not None:
            begins += "; unequal loads" + (", a slow worker" if spec.load.has_slow_worker else "")
        if (concurrency := spec.settings.handling.records.concurrency) > 1:
            begins += f"; {concurrency} records of a shard at a time, {spec.mix.workload.partition_keys} keys"
        if spec.has_compaction:
            begins += "; the archive is compacted and read"
        self.world.trace.add(WORLD, "begins", "", begins)

    async def _run_phases(self) -> None:
        world = self.world
        ticking = asyncio.ensure_future(self._tick())
        try:
            await self._inject_faults()
            await self._wait_for_recovery()
            if world.spec.load is None:
                await self._hold_steady_state()
            else:
                await self._hold_load(world.spec.load)
            await self._stop()
        finally:
            ticking.cancel()
        world.promises.notify(lambda checker: checker.all_stopped())
        world.trace.add(WORLD, "over", "", f"{world.ledger.produced} records, nothing broken")

    async def _inject_faults(self) -> None:
        """Start the workers, produce records and inject faults."""
        world, mix = self.world, self.world.spec.mix
        producing = Producing(world, self._start)
        await producing.produce_old_records()
        until_ms = world.now_ms() + self.options.faults_ms
        for _ in range(self._workers):
            world.start()
        if self._query is not None:
            self._query.start()
        services = world.services
        if world.spec.has_compaction:
            self._start_compaction()
        producing.begin()
        services.network.conditions.chances = mix.chances
        services.network.conditions.slow_share = mix.slow_share
        services.table.stale_chance = mix.stale_chance
        services.objects.conflict_chance = mix.conflict_chance
        services.streams.failing_lists = failing_lists(mix)
        services.quirks.expired_chance = mix.expired_chance
        services.quirks.empty_chance = mix.empty_chance
        services.fan_out_quirks.chances = self._fan_out.chances
        services.fan_out_quirks.in_use_chance = self._fan_out.in_use_chance
        while world.now_ms() < until_ms:
            await world.clock.sleep_ms(round(self._injector.rng.expovariate(1 / mix.inject_every_ms)))
            self._injector.inject_one()
        self._injector.end_all()
        world.promises.notify(lambda checker: checker.faults_ended())
        await world.clock.sleep_ms(TICK_MS)
        producing.stop()

    def _start_compaction(self) -> None:
        # Imported here: a simulation of plain workers runs without pyarrow.
        from leasehold.simulation.compacting import keep_processes  # noqa: PLC0415

        self._compaction = asyncio.ensure_future(keep_processes(self.world, self._is_stopping))

    async def _wait_for_recovery(self) -> None:
        """Wait until all records are done, closed shards have ended, and the shards are balanced and have leases."""
        await self._wait_until(self._has_recovered, _RECOVERY_BOUND_MS)

    def _has_recovered(self) -> bool:
        world = self.world
        return (
            not world.ledger.open_records
            and is_balanced(world)
            and not find_holes(world)
            and not has_former_leases(world)
            and not world.services.has_shards_to_end()
        )

    async def _hold_steady_state(self) -> None:
        """Wait for some time in which no lease may move."""
        await self.world.clock.sleep_ms(_BEFORE_STEADY_STATE_MS)
        await self._wait_for_recovery()
        self.world.promises.notify(lambda checker: checker.steady_state_began())
        await self.world.clock.sleep_ms(self.options.steady_refreshes * _REFRESH_MS)
        self.world.promises.notify(lambda checker: checker.steady_state_ended())

    async def _hold_load(self, plan: LoadPlan) -> None:
        """Let some shards deliver more than others. The leader must even that out."""
        self.world.promises.notify(lambda checker: checker.load_began())
        await hold_load(self.world, plan)
        self.world.promises.notify(lambda checker: checker.load_ended())
        await self._wait_until(lambda: not self.world.ledger.open_records, _LOAD_DONE_BOUND_MS)

    async def _stop(self) -> None:
        if self._query is not None:
            self._query.is_held = True
        self._is_stopping.set()
        for process in self.world.running:
            if process.role not in {Role.READER, Role.EXECUTOR}:
                self.world.stop(process)
        await self._wait_until(
            lambda: not any(each.is_alive for each in self.world.processes), _STOP_BOUND_MS
        )

    async def _tick(self) -> None:
        while True:
            await self.world.clock.sleep_ms(TICK_MS)
            self.world.promises.notify(lambda checker: checker.time_passed())

    async def _wait_until(self, condition: Callable[[], bool], within_ms: int) -> None:
        deadline_ms = self.world.now_ms() + within_ms
        while not condition():
            if self.world.now_ms() > deadline_ms:
                self.world.promises.report("reaches-steady-state", f"not within {within_ms} ms")
                return
            await self.world.clock.sleep_ms(TICK_MS)
