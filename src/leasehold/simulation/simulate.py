"""One run of a world: a phase in which faults happen and safety must hold, then healing, calm, and a clean stop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from leasehold.config.settings import Mode
from leasehold.simulation.checkers.balance import is_balanced
from leasehold.simulation.checkers.base import BrokenPromise
from leasehold.simulation.checkers.hash_coverage import find_hole
from leasehold.simulation.fault_injection import FaultInjector
from leasehold.simulation.faults import Fault, FaultMix, draw_fault_mix
from leasehold.simulation.process import SimulatedLoop
from leasehold.simulation.producer import Producer
from leasehold.simulation.trace import WORLD
from leasehold.simulation.worker_process import worker_main, worker_settings
from leasehold.simulation.world import STREAM, MakeMain, World

TICK_MS: Final = 500
STEADY_REFRESHES: Final = 100
_STOP_BOUND_MS: Final = 60_000
# Beyond any bound of the checkers: it is they who should complain.
_PATIENCE_MS: Final = 1_500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """What a run can be told; what is None is drawn from the seed."""

    seed: int
    workers: int | None = None
    shards: int | None = None
    faults: frozenset[Fault] | None = None
    faults_ms: int = 60_000
    steady_refreshes: int = STEADY_REFRESHES
    mode: Mode = Mode.PEER


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """What became of a run."""

    options: SimulationOptions
    mix: str
    broken: tuple[BrokenPromise, ...]
    simulated_ms: int
    produced: int
    digest: str
    acts: Mapping[str, int] = field(default_factory=dict)
    trace: Sequence[str] = ()

    @property
    def has_passed(self) -> bool:
        """Whether every promise was kept."""
        return not self.broken


def simulate(
    options: SimulationOptions,
    *,
    show: Callable[[str], object] | None = None,
    make_main: MakeMain = worker_main,
) -> SimulationOutcome:
    """Run one seed to its end, or to the first broken promise. The same options give the same trace."""
    loop = SimulatedLoop()
    run = _Run(loop, options, show, make_main)
    try:
        loop.run_until_complete(run.live())
    except AssertionError as error:
        run.world.report_broken_promise("no-deadlock", str(error))
    finally:
        outcome = run.outcome()
        loop.set_exception_handler(lambda *_: None)
        loop.run_until_complete(run.world.close_processes())
        loop.close()
    return outcome


def _dice(seed: int) -> Callable[[str], random.Random]:
    return lambda purpose: random.Random(f"{seed}:{purpose}")  # noqa: S311 - a world is no secret


class _Run:
    def __init__(
        self,
        loop: SimulatedLoop,
        options: SimulationOptions,
        show: Callable[[str], object] | None,
        make_main: MakeMain,
    ) -> None:
        self.options = options
        self.world: World
        self._loop = loop
        self._show = show
        self._make_main = make_main

    async def live(self) -> None:
        """Everything, until it is over or something is broken."""
        self._create()
        life = asyncio.ensure_future(self._phases())
        broken = asyncio.Event()
        self.world.on_broken_promise = broken.set
        watch = asyncio.ensure_future(broken.wait())
        await asyncio.wait({life, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not life.done():
            life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        watch.cancel()
        if not life.cancelled() and (error := life.exception()):
            raise error

    def outcome(self) -> SimulationOutcome:
        """What became of it."""
        world = self.world
        return SimulationOutcome(
            self.options,
            str(world.mix),
            tuple(world.broken),
            world.now_ms(),
            world.ledger.produced,
            world.trace.digest(),
            dict(self._acts.counts),
            world.trace.lines,
        )

    def _create(self) -> None:
        world_dice = _dice(self.options.seed)
        mix: FaultMix = draw_fault_mix(world_dice("mix"), self.options.faults)
        sizes = world_dice("sizes")
        workers = sizes.randint(1, 5)
        shards = sizes.randint(1, 8)
        self._workers = self.options.workers or workers
        shards = self.options.shards or shards
        self.world = World(
            self._loop,
            seed=self.options.seed,
            shards=shards,
            mix=mix,
            settings=worker_settings(mix, self.options.mode),
            make_main=self._make_main,
            show=self._show,
        )
        world = self.world
        self._loop.set_exception_handler(lambda _, context: world.report_unhandled_error(context))
        self._acts = FaultInjector(world, workers=self._workers, shards_max=2 * shards + 4)
        self._producer = Producer(
            world.service, STREAM, world.ledger, mix.workload, world.rng_for("producer")
        )
        world.trace.add(WORLD, "begins", "", f"{self._workers} workers, {shards} shards; {mix}")

    async def _phases(self) -> None:
        world = self.world
        ticking = asyncio.ensure_future(self._tick())
        try:
            await self._trouble()
            await self._heal()
            await self._calm()
            await self._stop()
        finally:
            ticking.cancel()
        world.tell(lambda checker: checker.all_stopped())
        world.trace.add(WORLD, "over", "", f"{world.ledger.produced} records, nothing broken")

    async def _trouble(self) -> None:
        """Faults happen, and records are produced."""
        world, mix = self.world, self.world.mix
        for _ in range(self._workers):
            world.start()
        producing = asyncio.ensure_future(self._produce())
        conditions = world.network.conditions
        conditions.chances = mix.chances
        conditions.slow_share = mix.slow_share
        world.table.stale_chance = mix.stale_chance
        world.quirks.expired_chance = mix.expired_chance
        world.quirks.empty_chance = mix.empty_chance
        while world.now_ms() < self.options.faults_ms:
            await world.clock.sleep_ms(round(self._acts.rng.expovariate(1 / mix.acts_every_ms)))
            self._acts.act()
        self._acts.heal()
        world.tell(lambda checker: checker.faults_ended())
        await world.clock.sleep_ms(TICK_MS)
        producing.cancel()

    async def _heal(self) -> None:
        """Until everything is read and balanced, and what was deleted is there again."""
        await self._until(self._is_well, _PATIENCE_MS)

    def _is_well(self) -> bool:
        world = self.world
        return not world.ledger.open_records and is_balanced(world) and find_hole(world) is None

    async def _calm(self) -> None:
        """A hundred rounds in which nothing may move."""
        # What moves now was decided before: handoffs that were asked for, finished shards that are cleaned away.
        await self.world.clock.sleep_ms(self._settling_ms)
        await self._heal()
        self.world.tell(lambda checker: checker.steady_state_began())
        await self.world.clock.sleep_ms(self.options.steady_refreshes * 1_500)
        self.world.tell(lambda checker: checker.steady_state_ended())

    @property
    def _settling_ms(self) -> int:
        return 30_000

    async def _stop(self) -> None:
        for process in self.world.running:
            self.world.stop(process)
        await self._until(lambda: not any(each.is_alive for each in self.world.processes), _STOP_BOUND_MS)

    async def _produce(self) -> None:
        world = self.world
        while True:
            self._producer.produce(world.clock.wall_ms())
            await world.clock.sleep_ms(world.mix.workload.every_ms)

    async def _tick(self) -> None:
        while True:
            await self.world.clock.sleep_ms(TICK_MS)
            self.world.tell(lambda checker: checker.time_passed())

    async def _until(self, condition: Callable[[], bool], within_ms: int) -> None:
        deadline_ms = self.world.now_ms() + within_ms
        while not condition():
            if self.world.now_ms() > deadline_ms:
                self.world.report_broken_promise("comes-to-rest", f"not within {within_ms} ms")
                return
            await self.world.clock.sleep_ms(TICK_MS)
