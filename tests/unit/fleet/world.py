"""A world for tests of members: a lease table in memory, a stream that can be listed, and a virtual clock."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings, Mode
from leasehold.core.assignment.leader_assignment import Decide, plan_assignment
from leasehold.core.events import Event, LeadershipTaken, LeaseTaken
from leasehold.core.model import (
    HASH_KEY_MAX,
    HashRange,
    InitialPosition,
    Shard,
    ShardId,
    StreamIdentifier,
    WorkerId,
    stream_identifier,
)
from leasehold.core.observing.health import HealthLimits
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.fleet.finding_watch import FindingWatch
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.member import Member, MemberPorts
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import LoadMeter, Page, Stream
from leasehold.simulation.virtual_time import VirtualClock

TICK_MS = 100
SETTINGS = FleetSettings(mode=Mode.PEER)
LEADER_SETTINGS = FleetSettings(mode=Mode.LEADER)


class ListedStream(Stream):
    """A stream that only lists its shards."""

    def __init__(self, shards: Sequence[Shard], name: str = "orders") -> None:
        self.name = name
        self.shards = list(shards)
        self.listed = 0

    async def get_identifier(self) -> StreamIdentifier:
        return stream_identifier("000000000000", self.name, 1_700_000_000)

    async def get_retention_ms(self) -> int:
        return 24 * 3_600_000

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        self.listed += 1
        return [shard for shard in self.shards if shard_filter is None or not shard.parents]

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        raise AssertionError("members do not read")

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        raise AssertionError("members do not read")

    async def close(self) -> None:
        pass


def even_shards(number: int) -> list[Shard]:
    """Open shards that divide the hash keys evenly."""
    width = (HASH_KEY_MAX + 1) // number
    ends = [*(width * (index + 1) - 1 for index in range(number - 1)), HASH_KEY_MAX]
    return [
        Shard(ShardId(f"shardId-{index:012d}"), HashRange(width * index, end), str(index + 1))
        for index, end in enumerate(ends)
    ]


Serve = Callable[["World", WorkerId, HeldLease], Awaitable[None]]


async def deliver(world: "World", worker: WorkerId, held: HeldLease) -> None:
    """Deliver something every tick while the lease is valid. Stop when the lease is to be released."""
    while not held.draining.is_set():
        if held.is_valid():
            held.note_progress()
            world.deliveries[held.shard].append((world.clock.now_ms(), worker))
        await world.clock.sleep_ms(TICK_MS)


@dataclass
class World:
    """Members with one table."""

    shards: list[Shard]
    serve: Serve = deliver
    settings: FleetSettings = SETTINGS
    decide: Decide = plan_assignment
    meter: LoadMeter | None = None
    clock: VirtualClock = field(default_factory=VirtualClock)
    events: dict[WorkerId, list[tuple[int, Event]]] = field(default_factory=lambda: defaultdict(list))
    deliveries: dict[ShardId, list[tuple[int, WorkerId]]] = field(default_factory=lambda: defaultdict(list))
    cut_off: set[WorkerId] = field(default_factory=set)
    unwritable: set[ShardId] = field(default_factory=set)
    has_watches: bool = False  # whether members report findings
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rows = MemoryRows()
        self.coordinator: MemoryRows | None = None  # the tables of KCL 3.0 to 3.4, where a fleet has them
        self.metrics: MemoryRows | None = None
        self.table = LeaseTable(self.rows)
        self.stream = ListedStream(self.shards)
        self._stops: dict[WorkerId, asyncio.Event] = {}
        self._tasks: dict[WorkerId, asyncio.Task[None]] = {}

    def start(self, name: str) -> WorkerId:
        """Start a member."""
        worker = WorkerId(name)
        rows = FaultyRows(self.rows, lambda call, key: self._fault_for(worker, call, key))
        streams = Streams.single(self.stream, "orders", InitialPosition(TRIM_HORIZON))
        failover_ms = self.settings.failover_after // timedelta(milliseconds=1)
        limits = HealthLimits(failover_ms=failover_ms, stuck_after_ms=300_000)
        watch = FindingWatch(worker, streams, limits, self.clock, has_progress=False)
        member = Member(
            MemberPorts(
                table=LeaseTable(rows, coordinator=self.coordinator, metrics=self.metrics),
                streams=streams,
                clock=self.clock,
                rng=random.Random(name),
                observe=watch.then(lambda event: self.events[worker].append((self.clock.now_ms(), event))),
                load=self.meter,
                watch=watch if self.has_watches else None,
            ),
            application="billing",
            worker=worker,
            serve=lambda held: self.serve(self, worker, held),
            settings=self.settings,
            decide=self.decide,
        )
        self._stops[worker] = asyncio.Event()
        self._tasks[worker] = asyncio.create_task(member.run(self._stops[worker]))
        return worker

    def _fault_for(self, worker: WorkerId, call: str, key: str) -> StoreFault | None:
        self.calls[worker, call] += 1
        if worker in self.cut_off:
            return StoreFault.REQUEST_LOST
        return StoreFault.THROTTLED if call == "write" and key in self.unwritable else None

    async def stop(self, worker: WorkerId, *, at_once: bool = True) -> None:
        """Stop a member cleanly, or wait until it ends by itself."""
        if at_once:
            self._stops[worker].set()
        await self._tasks.pop(worker)

    async def kill(self, worker: WorkerId) -> None:
        """End a member without giving it the chance to write anything."""
        self.cut_off.add(worker)
        task = self._tasks.pop(worker)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop_all(self) -> None:
        """Stop every member that still runs."""
        for worker in list(self._tasks):
            await self.stop(worker)

    async def until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Let virtual time pass until a condition holds. Fail if it does not hold within so many seconds."""
        deadline_ms = self.clock.now_ms() + int(within_s * 1000)
        while not condition():
            assert self.clock.now_ms() < deadline_ms, "did not happen in time"
            await self.clock.sleep_ms(50)

    def readers(self) -> dict[ShardId, WorkerId]:
        """The worker that delivered last from each shard, if it did so in the last two ticks."""
        since_ms = self.clock.now_ms() - 2 * TICK_MS
        recent = {
            shard: [each for each in log if each[0] >= since_ms] for shard, log in self.deliveries.items()
        }
        return {shard: log[-1][1] for shard, log in recent.items() if log}

    def shares(self) -> list[int]:
        """How many shards each reader reads, smallest first."""
        readers = list(self.readers().values())
        return sorted(readers.count(worker) for worker in set(readers))

    def events_of(self, kind: type[Event] | tuple[type[Event], ...]) -> list[Event]:
        """Every event of a kind, of all members."""
        return [event for log in self.events.values() for _, event in log if isinstance(event, kind)]


def assert_never_interleaved(world: World) -> None:
    """Once a second member has begun to read a shard, the first one delivers nothing more from its lease session."""
    for shard, log in world.deliveries.items():
        ownerships = [
            worker for index, (_, worker) in enumerate(log) if index == 0 or log[index - 1][1] != worker
        ]
        taken = sum(
            isinstance(event, LeaseTaken) and event.shard == shard
            for events in world.events.values()
            for _, event in events
        )
        assert len(ownerships) <= taken, f"{shard} went back and forth without being taken"


def leaders(world: World) -> list[WorkerId]:
    """The leaders, in order."""
    taken = [
        (at_ms, worker)
        for worker, log in world.events.items()
        for at_ms, event in log
        if isinstance(event, LeadershipTaken)
    ]
    return [worker for _, worker in sorted(taken)]
