"""For the tests of programs that consume: run a consumer on a stream in memory, in moments.

    from leasehold.testing import consume

    def test_saves_every_order() -> None:
        run = consume(consumer, [b'{"id": 1}', b'{"id": 2}', b"not json"])
        assert run.is_done
        assert [letter.record.data for letter in run.dead_letters] == [b"not json"]

It is the real engine, with the handlers on threads and loops as in production; only the stream, the lease table and the
clock are others. While nothing but time has to pass (a wait between two tries, the interval of checkpoints), the clock
jumps. While user code runs, it goes as all clocks do.
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
from leasehold.adapters.memory.stream import MemoryStream
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

_LOOK_EVERY_MS: Final = 100
_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ConsumerRun:
    """What became of the records."""

    is_done: bool  # every record was handled, or put aside or skipped as told, and the table knows it
    stopped_by: BaseException | None  # what made the consumer stop by itself
    checkpoints: Mapping[ShardId, Position]
    dead_letters: tuple[DeadLetter, ...]
    events: tuple[Event, ...]

    @property
    def handled(self) -> int:
        """How many records the handler has handled."""
        return sum(event.records for event in self.events if isinstance(event, BatchHandled))


def consume(
    consumer: Consumer,
    records: Iterable[bytes | PutEntry],
    *,
    shards: int = 1,
    end_shards: bool = False,
    limit: str | float | timedelta = "10m",
) -> ConsumerRun:
    """Give records to a consumer until all are done, or until `limit` has passed on its clock.

    Plain bytes are spread over the shards; a `PutEntry` goes where its key says. With `end_shards` the shards are split
    behind the records, so that each of them ends. Dead letters are collected here, unless they go to a function.
    """
    trial = _Trial(consumer, list(records), shards=shards, end_shards=end_shards)
    # A thread of its own, so that it can be called from async tests as well.
    with ThreadPoolExecutor(1, thread_name_prefix="leasehold-engine") as engine:
        return engine.submit(trial.run, milliseconds(duration(limit))).result()


class _Trial:
    def __init__(
        self, consumer: Consumer, records: list[bytes | PutEntry], *, shards: int, end_shards: bool
    ) -> None:
        self._consumer = consumer
        self._stream_name = consumer.settings.identity.stream
        if not self._stream_name:
            raise ConfigError(
                "a consumer of several streams cannot be tried out here: give the handler to one with a single stream"
            )
        self._end_shards = end_shards
        self._clock = VirtualClock()
        self._service = KinesisModel()
        self._service.create_stream(START_WALL_MS, self._stream_name, shard_count=shards)
        self._table = LeaseTable(MemoryRows())
        self._letters = _KeptLetters()
        self._events: list[Event] = []
        self._expected = self._put(records)
        if end_shards:
            self._split(shards)

    def run(self, limit_ms: int) -> ConsumerRun:
        handlers = LoopThread("leasehold-handlers")
        user_code = _NotedUserCode(ThreadedRunners(handlers.loop))
        try:
            with asyncio.Runner(loop_factory=lambda: VirtualLoop(lambda: user_code.calls > 0)) as runner:
                return runner.run(self._run(user_code, limit_ms))
        finally:
            handlers.close(timeout_s=_PATIENCE_S)

    async def _run(self, user_code: HandlerRunners, limit_ms: int) -> ConsumerRun:
        stop = asyncio.Event()
        ports = WorkerPorts(
            worker=WorkerId("under-test"),
            table=self._table,
            streams={self._stream_name: MemoryStream(self._service, self._stream_name, self._clock)},
            dead_letters=self._letters,
            clock=self._clock,
            rng=random.Random(0),  # noqa: S311 - the same run every time
            observe=self._events.append,
        )
        running = asyncio.ensure_future(self._consumer.run_with_ports(ports, user_code, stop))
        while not (running.done() or self._clock.now_ms() > limit_ms or await self._is_done()):
            await asyncio.wait({running}, timeout=_LOOK_EVERY_MS / 1000)
        stop.set()
        stopped_by = await running
        leases = (await self._table.list()).leases
        return ConsumerRun(
            await self._is_done(),
            stopped_by,
            {lease.shard_id: lease.checkpoint for lease in leases},
            tuple(self._letters.kept),
            tuple(self._events),
        )

    async def _is_done(self) -> bool:
        """Whether every shard is done up to the last record that was put into it, or to its end."""
        stored = {lease.shard_id: lease.checkpoint for lease in (await self._table.list()).leases}
        return all(
            shard in stored and (stored[shard].is_shard_end if self._end_shards else stored[shard] >= last)
            for shard, last in self._expected.items()
        )

    def _put(self, records: list[bytes | PutEntry]) -> dict[ShardId, Position]:
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


class _KeptLetters(DeadLetters):
    def __init__(self) -> None:
        self.kept: list[DeadLetter] = []

    async def put(self, letter: DeadLetter) -> None:
        self.kept.append(letter)


class _NotedUserCode(HandlerRunners):
    """Knows whether user code runs."""

    def __init__(self, inner: HandlerRunners) -> None:
        self._inner = inner
        self.calls = 0

    def runner(self, name: str) -> HandlerRunner:
        return _NotedLane(self._inner.runner(name), self)


class _NotedLane(HandlerRunner):
    def __init__(self, inner: HandlerRunner, noted: _NotedUserCode) -> None:
        self._inner = inner
        self._noted = noted

    async def call(self, function: Function, *arguments: object) -> Outcome:
        self._noted.calls += 1
        try:
            return await self._inner.call(function, *arguments)
        finally:
            self._noted.calls -= 1

    def post(self, function: Function, *arguments: object) -> None:
        self._inner.post(function, *arguments)

    def close(self) -> None:
        self._inner.close()
