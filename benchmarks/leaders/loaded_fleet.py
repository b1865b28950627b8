"""A fleet under load, in virtual time: whole members on one lease table, of which one leads and assigns by load.

Nobody reads records. Each shard delivers at a rate, with some noise; how busy a worker is follows from what it serves,
from how slow it is, and from noise of its own. Which leader decides can be changed while it runs.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from typing import Final

from benchmarks.fleet_stubs import ListedStream, even_shards
from benchmarks.leaders.java_leader import JavaLeader
from leasehold.config.settings import FleetSettings, Mode
from leasehold.core.assignment.leader_assignment import LeaderLimits, LeaderPlan, LeaderView, plan_assignment
from leasehold.core.events import Event, LeadershipEnded, LeadershipTaken, LeaseTaken
from leasehold.core.model import InitialPosition, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.member import Member, MemberPorts
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import LoadMeter
from leasehold.simulation.network import Network, NetworkConditions
from leasehold.simulation.process import ProcessState, SimulatedLoop, SimulatedProcess
from leasehold.simulation.table import ProcessRows, SimulatedTable

# Of what each would have if all were even. Both leaders want 10 %, and go by figures that are a little off.
EVEN_WITHIN: Final = 0.12
_KBPS: Final = 100.0
_POLL_MS: Final = 1_000
_TURNS: Final = 4  # in which the shards of a worker are polled
_LETTING_GO_MS: Final = 1_000  # at most, for what is in hand
_BASE_PERCENT: Final = 2.0
_MEAN_PERCENT: Final = 40.0
_NOISE_PERCENT: Final = 1.0  # of a report
_REPORT_MS: Final = 30_000
_START_WITHIN_MS: Final = 1_500


@dataclass(slots=True, eq=False)
class LoadedWorker(LoadMeter):
    """One process of the fleet, and what it serves. `slowness` 2 pays twice for the same throughput."""

    fleet: LoadedFleet
    process: SimulatedProcess
    rng: random.Random
    java: JavaLeader
    slowness: float = 1.0
    serving: dict[ShardId, HeldLease] = field(default_factory=dict)
    _noise: tuple[int, float] = (-1, 0.0)

    @property
    def is_staying(self) -> bool:
        """It runs, and was not told to stop."""
        return self.process.state is ProcessState.RUNNING and not self.process.stop.is_set()

    @property
    def load(self) -> float:
        """What it is loaded with, in kilobytes a second of a worker that is not slow."""
        return self.slowness * sum(self.fleet.kbps[shard] for shard in self.serving)

    async def percent(self) -> float | None:
        """Its processor use; the noise is another one for each report."""
        number = self.process.clock.now_ms() // _REPORT_MS
        if self._noise[0] != number:
            self._noise = number, self.rng.gauss(0, _NOISE_PERCENT)
        percent = _BASE_PERCENT + self.load * self.fleet.percent_per_kbps + self._noise[1]
        return max(0.0, min(100.0, percent))

    def decide(self, view: LeaderView, limits: LeaderLimits) -> LeaderPlan:
        """As the leader does that the fleet has at the moment. Those of ours who stand by keep their memory."""
        ours = plan_assignment(view, limits)
        if not self.fleet.is_led_by_java:
            return ours
        return replace(self.java(view, limits), memory=replace(ours.memory, moved_ms={}))

    def observe(self, event: Event) -> None:
        """Follow who leads and what moves."""
        if isinstance(event, LeadershipTaken | LeadershipEnded):
            self.fleet.leads(self, isinstance(event, LeadershipTaken))
        elif isinstance(event, LeaseTaken) and self.process.is_alive:
            self.fleet.record_taken(event.shard, self.process.worker)

    async def live(self, member: Member) -> None:
        """Be a member, and read."""
        reading = asyncio.ensure_future(self._read())
        try:
            await member.run(self.process.stop)
        finally:
            reading.cancel()

    async def serve(self, held: HeldLease) -> None:
        """Serve a shard until it is wanted back."""
        self.serving[held.shard] = held
        held.note_progress()
        try:
            await held.draining.wait()
            await self.process.clock.sleep_ms(self.rng.randrange(_LETTING_GO_MS))
        finally:
            del self.serving[held.shard]

    async def _read(self) -> None:
        """Poll each shard at its own moment of the second."""
        for turn in count():
            await self.process.clock.sleep_ms(_POLL_MS // _TURNS)
            for place, (shard, held) in enumerate(self.serving.items()):
                if (place + turn) % _TURNS == 0:
                    kilobytes = self.fleet.kbps[shard] * _POLL_MS / 1000
                    held.note_progress()
                    held.note_delivered(round(kilobytes * 1024 * self.rng.uniform(0.8, 1.2)))


class LoadedFleet:
    """The world of one comparison."""

    def __init__(self, loop: SimulatedLoop, *, seed: int, workers: int, shards: int) -> None:
        self._loop = loop
        self._seed = seed
        self.rng = random.Random(f"{seed}:fleet")
        self.network = Network(loop, NetworkConditions(random.Random(f"{seed}:weather")))
        self.workers: list[LoadedWorker] = []
        self.moves: list[tuple[int, ShardId]] = []
        self.is_led_by_java = False
        self._table = SimulatedTable(self.now_ms, self.rng)
        self._settings = FleetSettings(mode=Mode.LEADER, refresh_every=timedelta(seconds=3))
        listed = even_shards(shards)
        self._stream = ListedStream(listed)
        self.kbps = {shard.id: _KBPS * self.rng.uniform(0.5, 1.5) for shard in listed}
        self.percent_per_kbps = _MEAN_PERCENT / (sum(self.kbps.values()) / workers)
        self._holders: dict[ShardId, WorkerId] = {}
        self._leader: LoadedWorker | None = None

    def now_ms(self) -> int:
        """On the one clock of the world."""
        return round(self._loop.time() * 1000)

    async def start(self, number: int) -> None:
        """Start more workers, one after the other within a moment."""
        for _ in range(number):
            await asyncio.sleep(self.rng.uniform(0, _START_WITHIN_MS / number) / 1000)
            self._start_one()

    def change_leader(self, *, to_java: bool) -> None:
        """Whoever leads decides in the other way from now on, and begins anew with that."""
        self.is_led_by_java = to_java
        for worker in self.workers:
            worker.java.lead(is_leading=worker is self._leader)

    def leads(self, worker: LoadedWorker, is_leading: bool) -> None:
        """One took the lead, or lost it."""
        worker.java.lead(is_leading=is_leading)
        self._leader = worker if is_leading else None if self._leader is worker else self._leader

    def record_taken(self, shard: ShardId, by: WorkerId) -> None:
        """A worker began to serve a shard. It is a move if another had it before."""
        if self._holders.get(shard) not in {None, by}:
            self.moves.append((self.now_ms(), shard))
        self._holders[shard] = by

    def raise_bugs(self) -> None:
        """A process that ended by an error of ours ends the comparison."""
        for worker in self.workers:
            if worker.process.main is not None and worker.process.main.done():
                worker.process.main.result()

    def staying(self) -> list[LoadedWorker]:
        """Those that run, and were not told to stop."""
        return [worker for worker in self.workers if worker.is_staying]

    def is_even(self) -> bool:
        """Every shard is served by one who stays, and nobody has much more to do than if all were even."""
        staying = self.staying()
        served = sum(len(worker.serving) for worker in staying)
        heaviest = max((worker.load for worker in staying), default=0.0)
        return served == len(self.kbps) and heaviest <= (1 + EVEN_WITHIN) * self.even_load()

    def even_load(self) -> float:
        """What each would be loaded with if all were even."""
        return sum(self.kbps.values()) / sum(1 / worker.slowness for worker in self.staying())

    def _start_one(self) -> None:
        number = len(self.workers)
        process = SimulatedProcess(f"p{number}", WorkerId(f"w-{number:02}"), self._loop)
        worker = LoadedWorker(self, process, self._dice(f"{number}:load"), JavaLeader(self._dice("java")))
        self.workers.append(worker)
        member = Member(
            MemberPorts(
                table=LeaseTable(ProcessRows(self._table, self.network, process)),
                streams=Streams.single(self._stream, "orders", InitialPosition(TRIM_HORIZON)),
                clock=process.clock,
                rng=self._dice(f"{number}:engine"),
                observe=worker.observe,
                load=worker,
            ),
            application="billing",
            worker=process.worker,
            serve=worker.serve,
            settings=self._settings,
            decide=worker.decide,
        )
        process.start(lambda: worker.live(member))

    def _dice(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed}:{purpose}")
