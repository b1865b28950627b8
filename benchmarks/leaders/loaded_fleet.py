"""A simulated fleet under load: the shipped members on one lease table, with a leader that assigns leases by load.

No records are read. Each shard delivers at a rate with some noise. The CPU use of a worker follows from the shards that
it serves, from its slowness, and from noise. The deciding strategy (ours or Java's) can be changed during the run.
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
from leasehold.simulation.environment.network import Network, NetworkConditions
from leasehold.simulation.environment.process import ProcessState, SimulatedLoop, SimulatedProcess
from leasehold.simulation.environment.table import ProcessRows, SimulatedTable

# The allowed excess over the mean load. Both strategies aim at 10 % and work with noisy figures.
EVEN_WITHIN: Final = 0.12
_KBPS: Final = 100.0
_POLL_MS: Final = 1_000
_POLL_GROUPS: Final = 4  # the shards of a worker are polled in groups
_DRAIN_MS_MAX: Final = 1_000  # to finish the records in progress
_BASE_PERCENT: Final = 2.0
_MEAN_PERCENT: Final = 40.0
_NOISE_PERCENT: Final = 1.0  # of a report
_REPORT_MS: Final = 30_000
_START_WITHIN_MS: Final = 1_500


@dataclass(slots=True, eq=False)
class LoadedWorker(LoadMeter):
    """One process of the fleet and its shards. With `slowness` 2 it uses twice the CPU for the same throughput."""

    fleet: LoadedFleet
    process: SimulatedProcess
    rng: random.Random
    java: JavaLeader
    slowness: float = 1.0
    serving: dict[ShardId, HeldLease] = field(default_factory=dict)
    _noise: tuple[int, float] = (-1, 0.0)

    @property
    def remains(self) -> bool:
        """Whether it runs and was not asked to stop."""
        return self.process.state is ProcessState.RUNNING and not self.process.stop.is_set()

    @property
    def load(self) -> float:
        """Its load, in kilobytes per second of a worker with slowness 1."""
        return self.slowness * sum(self.fleet.kbps[shard] for shard in self.serving)

    async def percent(self) -> float | None:
        """Return its CPU use. The noise differs for each report."""
        number = self.process.clock.now_ms() // _REPORT_MS
        if self._noise[0] != number:
            self._noise = number, self.rng.gauss(0, _NOISE_PERCENT)
        percent = _BASE_PERCENT + self.load * self.fleet.percent_per_kbps + self._noise[1]
        return max(0.0, min(100.0, percent))

    def decide(self, view: LeaderView, limits: LeaderLimits) -> LeaderPlan:
        """Plan with the current strategy. Ours always runs, so that its memory is current when it takes over."""
        ours = plan_assignment(view, limits)
        if not self.fleet.uses_java_strategy:
            return ours
        return replace(self.java(view, limits), memory=replace(ours.memory, moved={}))

    def observe(self, event: Event) -> None:
        """Follow changes of leadership and moves of leases."""
        if isinstance(event, LeadershipTaken | LeadershipEnded):
            self.fleet.leadership_changed(self, isinstance(event, LeadershipTaken))
        elif isinstance(event, LeaseTaken) and self.process.is_alive:
            self.fleet.record_taken(event.shard, self.process.worker)

    async def run(self, member: Member) -> None:
        """Run the member and poll its shards."""
        reading = asyncio.ensure_future(self._read())
        try:
            await member.run(self.process.stop)
        finally:
            reading.cancel()

    async def serve(self, held: HeldLease) -> None:
        """Serve a shard until its lease must be released."""
        self.serving[held.shard] = held
        held.note_progress()
        try:
            await held.draining.wait()
            await self.process.clock.sleep_ms(self.rng.randrange(_DRAIN_MS_MAX))
        finally:
            del self.serving[held.shard]

    async def _read(self) -> None:
        """Poll each shard once a second; the groups take turns."""
        for turn in count():
            await self.process.clock.sleep_ms(_POLL_MS // _POLL_GROUPS)
            for index, (shard, held) in enumerate(self.serving.items()):
                if (index + turn) % _POLL_GROUPS == 0:
                    kilobytes = self.fleet.kbps[shard] * _POLL_MS / 1000
                    held.note_progress()
                    held.note_delivered(round(kilobytes * 1024 * self.rng.uniform(0.8, 1.2)))


class LoadedFleet:
    """The workers, the lease table and the load of one run.

    It has more than 12 attributes because it is the whole environment of a run: network, table, stream, load and moves.
    """

    def __init__(self, loop: SimulatedLoop, *, seed: int, workers: int, shards: int) -> None:
        self._loop = loop
        self._seed = seed
        self.rng = random.Random(f"{seed}:fleet")
        self.network = Network(loop, NetworkConditions(random.Random(f"{seed}:weather")))
        self.workers: list[LoadedWorker] = []
        self.moves: list[tuple[int, ShardId]] = []
        self.uses_java_strategy = False
        self._table = SimulatedTable(self.now_ms, self.rng)
        self._settings = FleetSettings(mode=Mode.LEADER, refresh_every=timedelta(seconds=3))
        listed = even_shards(shards)
        self._stream = ListedStream(listed)
        self.kbps = {shard.id: _KBPS * self.rng.uniform(0.5, 1.5) for shard in listed}
        self.percent_per_kbps = _MEAN_PERCENT / (sum(self.kbps.values()) / workers)
        self._owners: dict[ShardId, WorkerId] = {}
        self._leader: LoadedWorker | None = None

    def now_ms(self) -> int:
        """Return the time since the start."""
        return round(self._loop.time() * 1000)

    async def start(self, number: int) -> None:
        """Start workers within a second and a half."""
        for _ in range(number):
            await asyncio.sleep(self.rng.uniform(0, _START_WITHIN_MS / number) / 1000)
            self._start_one()

    def change_strategy(self, *, to_java: bool) -> None:
        """Switch the strategy of the leader. The Java strategy starts with an empty memory."""
        self.uses_java_strategy = to_java
        for worker in self.workers:
            worker.java.set_leading(is_leading=worker is self._leader)

    def leadership_changed(self, worker: LoadedWorker, is_leading: bool) -> None:
        """A worker became the leader, or stopped to lead."""
        worker.java.set_leading(is_leading=is_leading)
        self._leader = worker if is_leading else None if self._leader is worker else self._leader

    def record_taken(self, shard: ShardId, by: WorkerId) -> None:
        """Record that a worker took a lease. It is a move if another worker had the lease before."""
        if self._owners.get(shard) not in {None, by}:
            self.moves.append((self.now_ms(), shard))
        self._owners[shard] = by

    def raise_errors(self) -> None:
        """Raise the error of a process that has failed."""
        for worker in self.workers:
            if worker.process.main is not None and worker.process.main.done():
                worker.process.main.result()

    def remaining(self) -> list[LoadedWorker]:
        """Return the workers that run and were not asked to stop."""
        return [worker for worker in self.workers if worker.remains]

    def is_even(self) -> bool:
        """Return whether remaining workers serve every shard, and no load exceeds the mean by more than 12 %."""
        remaining = self.remaining()
        served = sum(len(worker.serving) for worker in remaining)
        heaviest = max((worker.load for worker in remaining), default=0.0)
        return served == len(self.kbps) and heaviest <= (1 + EVEN_WITHIN) * self.even_load()

    def even_load(self) -> float:
        """Return the load of each worker if the load were even."""
        return sum(self.kbps.values()) / sum(1 / worker.slowness for worker in self.remaining())

    def _start_one(self) -> None:
        number = len(self.workers)
        process = SimulatedProcess(f"p{number}", WorkerId(f"w-{number:02}"), self._loop)
        worker = LoadedWorker(
            self, process, self._rng_for(f"{number}:load"), JavaLeader(self._rng_for("java"))
        )
        self.workers.append(worker)
        member = Member(
            MemberPorts(
                table=LeaseTable(ProcessRows(self._table, self.network, process)),
                streams=Streams.single(self._stream, "orders", InitialPosition(TRIM_HORIZON)),
                clock=process.clock,
                rng=self._rng_for(f"{number}:engine"),
                observe=worker.observe,
                load=worker,
            ),
            application="billing",
            worker=process.worker,
            serve=worker.serve,
            settings=self._settings,
            decide=worker.decide,
        )
        process.start(lambda: worker.run(member))

    def _rng_for(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed}:{purpose}")
