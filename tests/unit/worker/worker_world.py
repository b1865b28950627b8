"""A world for tests of a worker: a stream and a lease table in memory, a virtual clock, user code on the same loop."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.events import Event
from leasehold.core.leases.row_writes import RowWrite
from leasehold.core.model import HASH_KEY_MAX, Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.errors import UnavailableError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import VirtualClock, VirtualLoop
from leasehold.worker.batch import Batch
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.dead_letters import DeadLetter, DeadLetters
from leasehold.worker.delivery.shard_consumer import HandlerKind
from leasehold.worker.engine.run_worker import WorkerPorts, run_worker
from leasehold.worker.options import consumer_settings
from leasehold.worker.user_code.handler_runners import Function, HandlerRunners, InlineRunners

E = TypeVar("E")

SHARD = ShardId("shardId-000000000000")
LEFT, RIGHT = ShardId("shardId-000000000001"), ShardId("shardId-000000000002")  # the children of a split
ORDERS = "orders"


def pause_process(seconds: float) -> None:
    """Advance the clock without running the loop, as when the process is suspended."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.advance_clock(seconds)


async def wait_until(clock: VirtualClock, condition: Callable[[], bool], *, within_s: float = 60) -> None:
    """Let virtual time pass until a condition holds."""
    deadline_ms = clock.now_ms() + within_s * 1000
    while not condition():
        assert clock.now_ms() < deadline_ms, f"the condition does not hold after {within_s} s"
        await clock.sleep_ms(10)


def texts(batch: Batch) -> list[str]:
    """Return the data of the records."""
    return [record.data.decode() for record in batch]


class RecordingHandler:
    """An async handler that records its calls, and fails on batches with a poison record."""

    def __init__(self, *poison: str) -> None:
        self.poison = set(poison)
        self.calls: list[list[str]] = []
        self.handled: list[str] = []

    async def __call__(self, batch: Batch) -> None:
        data = texts(batch)
        self.calls.append(data)
        if self.poison & set(data):
            raise ValueError("cannot read this")
        self.handled += data


class MemoryDeadLetters(DeadLetters):
    """Keeps dead letters in a list. The first `failures` calls fail."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []
        self.failures = 0

    async def put(self, letter: DeadLetter) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("no space for dead letters")
        self.letters.append(letter)


@dataclass
class RunningWorker:
    """A worker in the world."""

    task: asyncio.Task[BaseException | None]
    stop: asyncio.Event
    events: list[Event]

    async def stop_and_wait(self) -> BaseException | None:
        """Stop the worker. Returns the error that made it stop before, if there was one."""
        self.stop.set()
        return await self.task

    def events_of(self, kind: type[E]) -> list[E]:
        """Return the worker's events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class WorkerWorld:
    """One stream, its lease table, and workers. Create it while a virtual loop runs."""

    shards: int = 1
    clock: VirtualClock = field(default_factory=VirtualClock)
    dead_letters: MemoryDeadLetters = field(default_factory=MemoryDeadLetters)
    runners: HandlerRunners = field(default_factory=InlineRunners)

    def __post_init__(self) -> None:
        self.service = KinesisModel()
        self.service.create_stream(self.clock.wall_ms(), ORDERS, shard_count=self.shards)
        self.rows = MemoryRows()
        self.table = LeaseTable(self.rows)
        self.sequence_numbers: dict[bytes, str] = {}
        self._workers = 0

    def put(self, *data: bytes | str | int, shard: int = 0, key: str = "key") -> None:
        """Put records with one partition key into one shard, in this order."""
        for each in data:
            content = each if isinstance(each, bytes) else str(each).encode()
            hash_key = (HASH_KEY_MAX + 1) // self.shards * shard
            stored = self.service.put_record(self.clock.wall_ms(), ORDERS, PutRequest(key, content, hash_key))
            self.sequence_numbers[content] = str(stored.number)

    def split(self) -> None:
        """Split the first shard into LEFT and RIGHT."""
        self.service.split_shard(self.clock.wall_ms(), ORDERS, SHARD, 2**127)

    def start(self, code: Function | HandlerKind, **options: Any) -> RunningWorker:
        """Start a worker with a handler function or another kind of handler.

        With dead_letters="memory" its dead letters are kept in `dead_letters`.
        """
        self._workers += 1
        keep_letters = options.get("dead_letters") == "memory"
        settings = consumer_settings({"stream": ORDERS, "application": "billing", **options}, {})
        events: list[Event] = []
        ports = WorkerPorts(
            worker=WorkerId(f"worker-{self._workers}"),
            table=self.table,
            streams={ORDERS: MemoryStream(self.service, ORDERS, self.clock)},
            dead_letters=self.dead_letters if keep_letters else None,
            clock=self.clock,
            rng=random.Random(self._workers),
            observe=events.append,
        )
        handler = BatchHandler(code) if callable(code) else code
        stop = asyncio.Event()
        worker = run_worker(settings, handler, ports, self.runners, stop)
        return RunningWorker(asyncio.ensure_future(worker), stop, events)

    async def lease(self, shard: ShardId = SHARD) -> Lease:
        """Return the current lease of a shard."""
        lease = await self.table.get(LeaseKey(shard))
        assert lease is not None
        return lease

    async def checkpoint(self, shard: ShardId = SHARD) -> str:
        """Return the data of the record at the checkpoint, or the checkpoint's sentinel."""
        position = (await self.lease(shard)).checkpoint
        names = {number: data.decode() for data, number in self.sequence_numbers.items()}
        return names.get(position.sequence_number, position.sequence_number)

    def delay_writes(self, delay_ms: int) -> None:
        """Make all later writes to the lease table take some time."""
        write_at_once = self.rows.write

        async def write_slowly(write: RowWrite) -> Applied | Refused:
            await self.clock.sleep_ms(delay_ms)
            return await write_at_once(write)

        self.rows.write = write_slowly  # type: ignore[method-assign]

    async def steal_lease(self, shard: ShardId = SHARD) -> None:
        """Let another member take the lease by force and renew it from then on."""
        taken = await self.table.take(
            await self.lease(shard), WorkerId("other-worker"), LeaseSessionId("other-session")
        )
        assert isinstance(taken, Lease)
        self._other_member = asyncio.ensure_future(self._renew_for_ever(taken))

    async def _renew_for_ever(self, lease: Lease) -> None:
        while True:
            await self.clock.sleep_ms(2_000)
            renewed = await self.table.renew(lease)
            assert isinstance(renewed, Lease)
            lease = renewed

    async def until(self, condition: Callable[[], bool], *, within_s: float = 60) -> None:
        """Let virtual time pass until a condition holds."""
        await wait_until(self.clock, condition, within_s=within_s)
