"""For tests of programs that use a `Consumer`: runs it on a stream in memory, with a virtual clock.

    from leasehold.testing import consume

    def test_saves_every_order() -> None:
        run = consume(consumer, [b'{"id": 1}', b'{"id": 2}', b"not json"])
        assert run.is_done
        assert [letter.record.data for letter in run.dead_letters] == [b"not json"]

The engine is the real one, and handlers run on threads and loops as in production. Only the stream, the lease table and
the clock differ. While no user code runs and only time has to pass (the wait before a retry, the interval of
checkpoints), the clock jumps ahead. While user code runs, the clock runs in real time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.memory.stream import MemoryFanOut, MemoryStream
from leasehold.config.settings import milliseconds
from leasehold.config.values import duration
from leasehold.core.events import BatchHandled, Event
from leasehold.core.model import HASH_KEY_MAX, ShardId, WorkerId
from leasehold.core.position import Position
from leasehold.core.record import PutEntry
from leasehold.errors import ConfigError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.loop_thread import LoopThread
from leasehold.simulation.virtual_time import START_WALL_MS, VirtualClock, VirtualLoop
from leasehold.worker.consumer import Consumer
from leasehold.worker.dead_letters import DeadLetter, DeadLetters
from leasehold.worker.engine.run_worker import WorkerPorts
from leasehold.worker.user_code.handler_runners import (
    Function,
    HandlerRunner,
    HandlerRunners,
    Outcome,
    ThreadedRunners,
)

_CHECK_EVERY_MS: Final = 100
_CLOSE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ConsumerRun:
    """The result of a run."""

    is_done: bool  # every record was handled, dead-lettered or skipped, and its position is stored
    stopped_by: BaseException | None  # the error that made the consumer stop by itself
    checkpoints: Mapping[ShardId, Position]
    dead_letters: tuple[DeadLetter, ...]
    events: tuple[Event, ...]

    @property
    def handled(self) -> int:
        """The number of records that the handler has handled."""
        return sum(event.records for event in self.events if isinstance(event, BatchHandled))


def consume(
    consumer: Consumer,
    records: Iterable[bytes | PutEntry],
    *,
    shards: int = 1,
    end_shards: bool = False,
    limit: str | float | timedelta = "10m",
) -> ConsumerRun:
    """Run a consumer until all records are done, or until `limit` has passed on its clock.

    Plain bytes are spread over the shards; a `PutEntry` goes to the shard of its key. With `end_shards` each shard is
    split after the last record, so that it ends. The result contains the dead letters, unless they go to a function.
    """
    run = _Run(consumer, list(records), shards=shards, end_shards=end_shards)
    # On a thread of its own, so that async tests can call it as well.
    with ThreadPoolExecutor(1, thread_name_prefix="leasehold-engine") as engine:
        return engine.submit(run.execute, milliseconds(duration(limit))).result()


class _Run:
    def __init__(
        self, consumer: Consumer, records: list[bytes | PutEntry], *, shards: int, end_shards: bool
    ) -> None:
        self._consumer = consumer
        self._stream_name = consumer.settings.identity.stream
        if not self._stream_name:
            raise ConfigError(
                "consume() cannot run a consumer of several streams: test the handler with a consumer of one stream"
            )
        self._end_shards = end_shards
        self._clock = VirtualClock()
        self._service = KinesisModel()
        self._service.create_stream(START_WALL_MS, self._stream_name, shard_count=shards)
        self._table = LeaseTable(MemoryRows())
        self._dead_letters = _MemoryDeadLetters()
        self._events: list[Event] = []
        self._last_positions = self._put(records)
        if end_shards:
            self._split(shards)

    def execute(self, limit_ms: int) -> ConsumerRun:
        handler_loop = LoopThread("leasehold-handlers")
        runners = _CountingRunners(ThreadedRunners(handler_loop.loop))
        try:
            with asyncio.Runner(loop_factory=lambda: VirtualLoop(lambda: runners.running > 0)) as engine:
                return engine.run(self._execute(runners, limit_ms))
        finally:
            handler_loop.close(timeout_s=_CLOSE_TIMEOUT_S)

    async def _execute(self, runners: HandlerRunners, limit_ms: int) -> ConsumerRun:
        stop = asyncio.Event()
        ports = WorkerPorts(
            worker=WorkerId("under-test"),
            table=self._table,
            streams={self._stream_name: MemoryStream(self._service, self._stream_name, self._clock)},
            dead_letters=self._dead_letters,
            clock=self._clock,
            rng=random.Random(0),  # noqa: S311 - the same run every time
            observe=self._events.append,
            open_fan_out=lambda name: MemoryFanOut(self._service, name, self._clock),
        )
        worker = asyncio.ensure_future(self._consumer.run_with_ports(ports, runners, stop))
        while not (worker.done() or self._clock.now_ms() > limit_ms or await self._is_done()):
            await asyncio.wait({worker}, timeout=_CHECK_EVERY_MS / 1000)
        stop.set()
        stopped_by = await worker
        return ConsumerRun(
            await self._is_done(),
            stopped_by,
            await self._checkpoints(),
            tuple(self._dead_letters.letters),
            tuple(self._events),
        )

    async def _is_done(self) -> bool:
        """Return whether every shard is done up to its last record, or to its end."""
        stored = await self._checkpoints()
        return all(
            shard in stored and (stored[shard].is_shard_end if self._end_shards else stored[shard] >= last)
            for shard, last in self._last_positions.items()
        )

    async def _checkpoints(self) -> dict[ShardId, Position]:
        return {lease.shard_id: lease.checkpoint for lease in (await self._table.list()).leases}

    def _put(self, records: list[bytes | PutEntry]) -> dict[ShardId, Position]:
        """Put the records into the stream, and return the last position of each shard."""
        last: dict[ShardId, Position] = {}
        for number, record in enumerate(records):
            entry = record if isinstance(record, PutEntry) else PutEntry(record, f"key-{number}")
            stored = self._service.put_record(
                START_WALL_MS,
                self._stream_name,
                PutRequest(entry.partition_key, entry.data, entry.explicit_hash_key),
            )
            last[stored.shard_id] = Position(str(stored.number))
        return last

    def _split(self, shards: int) -> None:
        width = (HASH_KEY_MAX + 1) // shards
        for number in range(shards):
            middle = width * number + width // 2
            self._service.split_shard(START_WALL_MS, self._stream_name, f"shardId-{number:012d}", middle)


class _MemoryDeadLetters(DeadLetters):
    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []

    async def put(self, letter: DeadLetter) -> None:
        self.letters.append(letter)


class _CountingRunners(HandlerRunners):
    """Counts the calls of user code that are running."""

    def __init__(self, inner: HandlerRunners) -> None:
        self._inner = inner
        self.running = 0

    def runner_for(self, name: str, concurrency: int = 1) -> HandlerRunner:
        return _CountingRunner(self._inner.runner_for(name, concurrency), self)


class _CountingRunner(HandlerRunner):
    def __init__(self, inner: HandlerRunner, counter: _CountingRunners) -> None:
        self._inner = inner
        self._counter = counter

    async def call(self, function: Function, *arguments: object) -> Outcome:
        self._counter.running += 1
        try:
            return await self._inner.call(function, *arguments)
        finally:
            self._counter.running -= 1

    def post(self, function: Function, *arguments: object) -> None:
        self._inner.post(function, *arguments)

    def close(self) -> None:
        self._inner.close()
