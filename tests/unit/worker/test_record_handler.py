"""Record handlers: records of one key in order, of different keys at the same time, with the guarantees of batches."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from leasehold import Consumer
from leasehold.core.events import BatchHandled, HandlerFailed, LeaseReleased, RecordSkipped
from leasehold.core.position import SHARD_END
from leasehold.errors import ConfigError, HandlerError
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.delivered_record import DeliveredRecord
from leasehold.worker.record_handler import BATCHES_MAX, RecordHandler
from tests.unit.worker.worker_world import LEFT, RIGHT, RunningWorker, WorkerWorld


class Handler:
    """Records what runs. A record whose data is in `gates` waits until its gate is opened."""

    def __init__(self, *gates: str, poison: str = "") -> None:
        self.gates = {data: asyncio.Event() for data in gates}
        self.poison = set(poison.split())
        self.running: list[str] = []
        self.most_running = 0
        self.done: list[str] = []
        self.attempts: dict[str, int] = defaultdict(int)

    async def __call__(self, record: DeliveredRecord) -> None:
        data = record.data.decode()
        self.attempts[data] += 1
        assert record.attempt == self.attempts[data]
        self.running.append(data)
        self.most_running = max(self.most_running, len(self.running))
        try:
            if data in self.gates:
                await self.gates[data].wait()
            if data in self.poison:
                raise ValueError("cannot read this")
        finally:
            self.running.remove(data)
        self.done.append(data)


def start(world: WorkerWorld, handler: Handler, **options: Any) -> RunningWorker:
    defaults = {"concurrency": 16, "max_wait": 0, "retries": 2, "checkpoint_every": 0}
    return world.start(RecordHandler(handler), **defaults | options)


def put(world: WorkerWorld, *names: str) -> None:
    """Put records whose partition key is the first letter of their data."""
    for name in names:
        world.put(name, key=name[0])


def test_keys_run_at_the_same_time_and_each_key_in_order() -> None:
    """The checkpoint stays before the slow record, and passes everything when it is done."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), Handler("a1")
        put(world, "b0", "a1", "b1", "a2", "c1", "b2")
        worker = start(world, handler)
        await world.until(lambda: sorted(handler.done) == ["b0", "b1", "b2", "c1"])
        assert [each for each in handler.done if each != "c1"] == ["b0", "b1", "b2"]
        await world.clock.sleep_ms(30_000)
        assert handler.running == ["a1"]
        assert await world.checkpoint() == "b0"
        handler.gates["a1"].set()
        await world.until(lambda: handler.done[-2:] == ["a1", "a2"])
        assert [event.records for event in worker.events_of(BatchHandled)] == [6]
        await worker.stop_and_wait()
        assert await world.checkpoint() == "b2"

    run_in_virtual_time(scenario())


def test_at_most_so_many_records_run_at_one_time() -> None:
    """Also if there are more keys."""

    async def scenario() -> None:
        names = [f"{letter}1" for letter in "abcdefgh"]
        world, handler = WorkerWorld(), Handler(*names)
        put(world, *names)
        worker = start(world, handler, concurrency=3)
        await world.until(lambda: handler.running == ["a1", "b1", "c1"])
        for gate in handler.gates.values():
            gate.set()
        await world.until(lambda: len(handler.done) == 8)
        assert handler.most_running == 3
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_crash_repeats_only_records_after_the_first_unfinished_one() -> None:
    """The next owner begins there."""

    async def scenario() -> None:
        world, handler, second = WorkerWorld(), Handler("a1"), Handler()
        put(world, "b0", "a1", "b1", "a2")
        worker = start(world, handler)
        await world.until(lambda: handler.done == ["b0", "b1"])
        await world.clock.sleep_ms(5_000)
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)
        start(world, second)
        await world.until(lambda: sorted(second.done) == ["a1", "a2", "b1"])

    run_in_virtual_time(scenario())


def test_a_stop_handles_what_is_before_the_last_started_record() -> None:
    """No record that is done is repeated, and later records are left to the next owner."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), Handler("a1", "c1")
        put(world, "a1", "a2", "b1", "c1", "d1", "e1")
        worker = start(world, handler, concurrency=2)
        await world.until(lambda: handler.running == ["a1", "c1"])
        assert handler.done == ["b1"]
        worker.stop.set()
        await world.clock.sleep_ms(1_000)
        handler.gates["c1"].set()
        handler.gates["a1"].set()
        await worker.stop_and_wait()
        assert sorted(handler.done) == ["a1", "a2", "b1", "c1"]
        assert await world.checkpoint() == "c1"
        assert len(worker.events_of(LeaseReleased)) == 1

    run_in_virtual_time(scenario())


def test_a_stop_does_not_wait_for_retries() -> None:
    """As with batches: the record is left to the next owner."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), Handler(poison="a1")
        put(world, "b0", "a1", "b1")
        worker = start(world, handler)
        await world.until(lambda: handler.attempts["a1"] > 3 and len(handler.done) == 2)
        await worker.stop_and_wait()
        assert await world.checkpoint() == "b0"

    run_in_virtual_time(scenario())


def test_a_failing_record_holds_its_key_and_nothing_else() -> None:
    """It is retried for ever by default. A limited number of batches follows."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), Handler(poison="a1")
        put(world, "a1", "a2", *(f"b{number}" for number in range(100)))
        worker = start(world, handler, max_records=10)
        await world.until(lambda: handler.attempts["a1"] == 10)
        assert len(handler.done) == BATCHES_MAX * 10 - 2
        assert "a2" not in handler.attempts
        assert all(event.records == 1 for event in worker.events_of(HandlerFailed))
        handler.poison.clear()
        await world.until(lambda: len(handler.done) == 102)
        assert [each for each in handler.done if each.startswith("b")] == [
            f"b{number}" for number in range(100)
        ]
        await worker.stop_and_wait()
        assert await world.checkpoint() == "b99"

    run_in_virtual_time(scenario())


def test_a_dead_letter_waits_until_all_records_before_it_are_done() -> None:
    """Its pin would otherwise cover records that are not poison. Meanwhile other keys go on."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), Handler("a1", poison="b1 c1")
        put(world, "a1", "b1", "b2", "c1", "d1")
        worker = start(world, handler, dead_letters="memory")
        await world.until(lambda: handler.attempts["b1"] == 3 and handler.attempts["c1"] == 3)
        await world.clock.sleep_ms(5_000)
        assert world.dead_letters.letters == []
        assert (await world.lease()).pin is None
        assert handler.done == ["d1"]
        handler.gates["a1"].set()
        await world.until(lambda: handler.done == ["d1", "a1", "b2"] and len(world.dead_letters.letters) == 2)
        assert [letter.record.data for letter in world.dead_letters.letters] == [b"b1", b"c1"]
        assert [letter.attempts for letter in world.dead_letters.letters] == [3, 3]
        await worker.stop_and_wait()
        assert await world.checkpoint() == "d1"

    run_in_virtual_time(scenario())


def test_an_interrupted_dead_letter_is_stored_by_the_next_owner() -> None:
    """The handler does not get the record again."""

    async def scenario() -> None:
        world, handler, second = WorkerWorld(), Handler(poison="b1"), Handler()
        world.dead_letters.failures = 1_000
        put(world, "a1", "b1", "c1")
        worker = start(world, handler, dead_letters="memory")
        await world.until(lambda: handler.attempts["b1"] == 3)
        await world.clock.sleep_ms(5_000)
        assert (await world.lease()).pin is not None
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)
        world.dead_letters.failures = 0
        start(world, second, dead_letters="memory")
        await world.until(lambda: second.done == ["c1"])
        assert [letter.record.data for letter in world.dead_letters.letters] == [b"b1"]

    run_in_virtual_time(scenario())


def test_poison_records_may_be_skipped_or_stop_the_worker() -> None:
    """An error that must end the session ends it while the shard is idle, too."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), Handler(poison="a1")
        put(world, "a1", "a2")
        worker = start(world, handler, on_poison="skip")
        await world.until(lambda: handler.done == ["a2"])
        assert len(worker.events_of(RecordSkipped)) == 1
        await worker.stop_and_wait()
        put(world, "b1")
        handler.poison = {"b1"}
        stopping = start(world, handler, on_poison="stop_worker")
        reason = await stopping.task
        assert isinstance(reason, HandlerError)
        assert "failed 3 times" in str(reason)
        assert await world.checkpoint() == "a2"

    run_in_virtual_time(scenario())


def test_the_end_of_a_shard_waits_for_all_records() -> None:
    """Only then may its children be read."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), Handler("a1")
        put(world, "a1", "b1")
        world.split()
        worker = start(world, handler)
        await world.until(lambda: handler.done == ["b1"])
        await world.clock.sleep_ms(10_000)
        assert (await world.lease()).checkpoint != SHARD_END
        handler.gates["a1"].set()
        await world.until(lambda: "a1" in handler.done)
        await world.clock.sleep_ms(5_000)
        assert (await world.lease()).checkpoint == SHARD_END
        assert {(await world.lease(each)).owner for each in (LEFT, RIGHT)} == {"worker-1"}
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_lost_lease_cancels_what_runs() -> None:
    """Nothing is stored afterwards."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), Handler("a1", "b1")
        put(world, "a1", "b1")
        worker = start(world, handler)
        await world.until(lambda: handler.running == ["a1", "b1"])
        await world.steal_lease()
        await world.until(lambda: not handler.running)
        assert handler.done == []
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def make_consumer(**options: Any) -> Consumer:
    return Consumer(stream="orders", application="billing", **options)


def test_concurrency_needs_a_record_handler() -> None:
    """A batch, a processor and an iteration have an order of their own."""
    with pytest.raises(ConfigError, match=r"consumer.batch with concurrency=16: .* use @consumer.record"):
        make_consumer().batch(concurrency=16)(print)
    with pytest.raises(ConfigError, match=r"consumer.batch with concurrency=2"):
        make_consumer(concurrency=2).batch(print)
    with pytest.raises(ConfigError, match="expected 1 to 1000"):
        make_consumer(concurrency=0)


def test_a_record_handler_has_no_manual_checkpoints() -> None:
    """They would pass unfinished records."""
    with pytest.raises(ConfigError, match=r"use @consumer\.batch for manual checkpoints"):
        make_consumer().record(checkpoint="manual")(print)
