"""A world for tests of workers with several streams, which share one lease table."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from leasehold.adapters.memory.directory import MemoryDirectory
from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.memory.stream import MemoryFanOut, MemoryStream
from leasehold.core.events import Event
from leasehold.core.model import (
    HASH_KEY_MAX,
    WHOLE_HASH_RANGE,
    InitialPosition,
    Lease,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
)
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.simulation.virtual_time import START_WALL_MS, VirtualClock, run_in_virtual_time
from leasehold.worker.batch import Batch
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.delivery.shard_consumer import HandlerKind
from leasehold.worker.engine.run_worker import WorkerPorts, run_worker
from leasehold.worker.options import consumer_settings
from leasehold.worker.settings import StreamsFunction
from leasehold.worker.user_code.handler_runners import InlineRunners
from tests.unit.worker.worker_world import wait_until

ORDERS, RETURNS = "orders", "returns"
BOTH = (ORDERS, RETURNS)
FIRST, SECOND = ShardId("shardId-000000000000"), ShardId("shardId-000000000001")
FROM_OLDEST = InitialPosition(TRIM_HORIZON)
MIDDLE = (HASH_KEY_MAX + 1) // 2
UNKNOWN = StreamIdentifier("000000000000:unknown:1600000000")
OPTIONS: Mapping[str, Any] = {
    "application": "billing",
    "clean_up_every": "5s",
    "first_audit_after": "5s",
    "audit_every": "5s",
}
NAMING = {"stream", "streams", "streams_with_prefix", "streams_with_tag"}
MODES = pytest.mark.parametrize("mode", ["peer", "leader"])


def identifier(stream: str) -> StreamIdentifier:
    """Return the KCL's identifier of a stream in this world."""
    return StreamIdentifier(f"000000000000:{stream}:{START_WALL_MS // 1000}")


@dataclass
class Handled:
    """One record that one worker handled."""

    worker: WorkerId
    batch: Batch
    data: str


@dataclass
class MultiStreamWorld:
    """Two streams with shards of the same names. Create it while a virtual loop runs."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    handled: list[Handled] = field(default_factory=list)
    events: dict[WorkerId, list[Event]] = field(default_factory=dict)
    records_put: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.service = KinesisModel()
        for name in BOTH:
            self.service.create_stream(START_WALL_MS, name, shard_count=2)
        self.rows = MemoryRows()
        self.table = LeaseTable(self.rows)
        self.tasks: dict[WorkerId, asyncio.Task[BaseException | None]] = {}
        self._stops: dict[WorkerId, asyncio.Event] = {}
        self._crashed: set[WorkerId] = set()

    def put(self, number: int, *streams: str) -> None:
        """Put records into each stream, spread over its open shards."""
        for stream in streams or BOTH:
            for _ in range(number):
                count = self.records_put.get(stream, 0)
                self.records_put[stream] = count + 1
                hash_key = (HASH_KEY_MAX + 1) // 8 * (count % 8)
                entry = PutRequest("key", f"{stream} {count}".encode(), hash_key)
                self.service.put_record(self.clock.wall_ms(), stream, entry)

    def start(
        self,
        name: str,
        streams: Sequence[str] | Mapping[str, str] | StreamsFunction = BOTH,
        handler: HandlerKind | None = None,
        **options: Any,
    ) -> WorkerId:
        """Start a worker of these streams, or of those that the options name."""
        worker = WorkerId(name)
        named = {} if options.keys() & NAMING else {"streams": streams}
        settings = consumer_settings({**OPTIONS, **named, **options}, {})
        log = self.events.setdefault(worker, [])
        ports = WorkerPorts(
            worker=worker,
            table=LeaseTable(FaultyRows(self.rows, lambda *_: self._fault_for(worker))),
            streams={
                each: MemoryStream(self.service, each, self.clock)
                for each in settings.identity.initial_positions
            },
            dead_letters=None,
            clock=self.clock,
            rng=random.Random(name),
            observe=log.append,
            directory=MemoryDirectory(self.service, self.clock),
            open_fan_out=lambda stream: MemoryFanOut(self.service, stream, self.clock),
        )

        def handle(batch: Batch) -> None:
            self.handled += [Handled(worker, batch, record.data.decode()) for record in batch]

        stop = self._stops[worker] = asyncio.Event()
        running = run_worker(settings, handler or BatchHandler(handle), ports, InlineRunners(), stop)
        self.tasks[worker] = asyncio.ensure_future(running)
        return worker

    def _fault_for(self, worker: WorkerId) -> StoreFault | None:
        return StoreFault.REQUEST_LOST if worker in self._crashed else None

    async def crash(self, worker: WorkerId) -> None:
        """Crash a worker: its further writes are lost, and it ends."""
        self._crashed.add(worker)
        task = self.tasks.pop(worker)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop_all(self) -> None:
        """Stop all running workers cleanly."""
        for worker in list(self.tasks):
            self._stops[worker].set()
            assert await self.tasks.pop(worker) is None

    async def until(self, condition: Callable[[], bool], within_s: float = 120) -> None:
        """Let virtual time pass until a condition holds."""
        await wait_until(self.clock, condition, within_s=within_s)

    async def until_leases(self, condition: Callable[[int], bool], within_s: float = 120) -> None:
        """Let virtual time pass until the number of leases fulfils a condition."""
        deadline_ms = self.clock.now_ms() + int(within_s * 1000)
        while not condition(len((await self.table.list()).leases)):
            assert self.clock.now_ms() < deadline_ms, f"the condition does not hold after {within_s} s"
            await self.clock.sleep_ms(50)

    def all_handled(self, *streams: str) -> bool:
        """Return whether all records that were put are handled."""
        seen = {each.data for each in self.handled}
        return all(
            f"{stream} {number}" in seen
            for stream in streams or BOTH
            for number in range(self.records_put[stream])
        )

    def readers(self, stream: str) -> set[WorkerId]:
        """Return the workers that have handled records of a stream."""
        return {each.worker for each in self.handled if each.batch.stream == stream}


def run_scenario(scenario: Callable[[MultiStreamWorld], Awaitable[None]]) -> MultiStreamWorld:
    """Run a scenario in a new world, and stop all workers that still run."""

    async def run() -> MultiStreamWorld:
        world = MultiStreamWorld()
        await scenario(world)
        await world.stop_all()
        return world

    return run_in_virtual_time(run())


def unknown_lease(**values: Any) -> Lease:
    """A lease of a stream that no worker of the test knows."""
    lease = Lease(
        key=lease_key(FIRST, UNKNOWN),
        shard_id=FIRST,
        stream=UNKNOWN,
        checkpoint=TRIM_HORIZON,
        hash_range=WHOLE_HASH_RANGE,
    )
    return replace(lease, **values)
