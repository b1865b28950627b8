"""A small world for a worker: a stream and a lease table in memory, a virtual clock, and user code on the same loop."""

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
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.dead_letters import DeadLetter, DeadLetters
from leasehold.worker.delivery.shard_consumer import HandlerKind
from leasehold.worker.engine.run_worker import WorkerPorts, run_worker
from leasehold.worker.options import consumer_settings
from leasehold.worker.user_code.handler_runners import Function, InlineRunners

E = TypeVar("E")

SHARD = ShardId("shardId-000000000000")
ORDERS = "orders"


def pause_process(seconds: float) -> None:
    """Time passes, and nothing on the loop gets a turn."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.advance_clock(seconds)


class KeptLetters(DeadLetters):
    """Dead letters in a list; the first few may not be taken."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []
        self.refusals = 0

    async def put(self, letter: DeadLetter) -> None:
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("the letter box is full")
        self.letters.append(letter)


@dataclass
class Running:
    """A worker in the world."""

    task: asyncio.Task[BaseException | None]
    stop: asyncio.Event
    events: list[Event]

    async def stopped(self) -> BaseException | None:
        """Stop it, and say what made it stop before, if anything did."""
        self.stop.set()
        return await self.task

    def told(self, kind: type[E]) -> list[E]:
        """Its events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class WorkerWorld:
    """To be made while a virtual loop runs."""

    shards: int = 1
    clock: VirtualClock = field(default_factory=VirtualClock)
    letters: KeptLetters = field(default_factory=KeptLetters)

    def __post_init__(self) -> None:
        self.service = KinesisModel()
        self.service.create_stream(self.clock.wall_ms(), ORDERS, shard_count=self.shards)
        self.rows = MemoryRows()
        self.table = LeaseTable(self.rows)
        self.sequence_numbers: dict[bytes, str] = {}
        self._workers = 0

    def put(self, *data: bytes | str | int, shard: int = 0) -> None:
        """Put records into one shard, in this order."""
        for each in data:
            content = each if isinstance(each, bytes) else str(each).encode()
            hash_key = (HASH_KEY_MAX + 1) // self.shards * shard
            stored = self.service.put_record(
                self.clock.wall_ms(), ORDERS, PutRequest("key", content, hash_key)
            )
            self.sequence_numbers[content] = str(stored.number)

    def start(self, code: Function | HandlerKind, **options: Any) -> Running:
        """A worker with a handler, or with another form of user code."""
        self._workers += 1
        keep_letters = options.get("dead_letters") == "kept"
        settings = consumer_settings({"stream": ORDERS, "application": "billing", **options}, {})
        events: list[Event] = []
        ports = WorkerPorts(
            worker=WorkerId(f"worker-{self._workers}"),
            table=self.table,
            streams={ORDERS: MemoryStream(self.service, ORDERS, self.clock)},
            dead_letters=self.letters if keep_letters else None,
            clock=self.clock,
            rng=random.Random(self._workers),
            observe=events.append,
        )
        form = BatchHandler(code) if callable(code) else code
        stop = asyncio.Event()
        running = run_worker(settings, form, ports, InlineRunners(), stop)
        return Running(asyncio.ensure_future(running), stop, events)

    async def lease(self, shard: ShardId = SHARD) -> Lease:
        """The lease of a shard as it is now."""
        lease = await self.table.get(LeaseKey(shard))
        assert lease is not None
        return lease

    async def checkpoint(self, shard: ShardId = SHARD) -> str:
        """The data of the record at the checkpoint, or the sentinel that stands there."""
        position = (await self.lease(shard)).checkpoint
        names = {number: data.decode() for data, number in self.sequence_numbers.items()}
        return names.get(position.sequence_number, position.sequence_number)

    def delay_writes(self, delay_ms: int) -> None:
        """From now on the lease table takes its time, as all tables do."""
        write_at_once = self.rows.write

        async def write_slowly(write: RowWrite) -> Applied | Refused:
            await self.clock.sleep_ms(delay_ms)
            return await write_at_once(write)

        self.rows.write = write_slowly  # type: ignore[method-assign]

    async def take_away(self, shard: ShardId = SHARD) -> None:
        """Someone else takes the lease by force, and from now on keeps it alive."""
        taken = await self.table.take(await self.lease(shard), WorkerId("thief"), LeaseSessionId("theirs"))
        assert isinstance(taken, Lease)
        self._thief = asyncio.ensure_future(self._keep(taken))

    async def _keep(self, lease: Lease) -> None:
        while True:
            await self.clock.sleep_ms(2_000)
            renewed = await self.table.renew(lease)
            assert isinstance(renewed, Lease)
            lease = renewed

    async def until(self, condition: Callable[[], bool], *, within_s: float = 60) -> None:
        """Let virtual time pass until something is so."""
        deadline_ms = self.clock.now_ms() + within_s * 1000
        while not condition():
            assert self.clock.now_ms() < deadline_ms, "it did not happen"
            await self.clock.sleep_ms(10)
