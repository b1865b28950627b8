"""`consume` runs real consumers on a stream in memory and returns the outcome of every record."""

import asyncio
from typing import Any

import pytest

from leasehold import (
    Batch,
    ConfigError,
    Consumer,
    DeliveredRecord,
    HandlerError,
    ProcessRecordsInput,
    RecordProcessor,
    ShardEndedInput,
)
from leasehold.core.events import Subscribed
from leasehold.core.record import PutEntry
from leasehold.testing import consume


def make(**options: Any) -> Consumer:
    return Consumer(stream="orders", application="billing", **options)


def test_every_record_is_delivered() -> None:
    """To plain and async handlers, over several shards. The run has the checkpoint of each shard."""
    seen: list[bytes] = []

    def save(batch: Batch) -> None:
        seen.extend(record.data for record in batch)

    async def save_async(batch: Batch) -> None:
        await asyncio.sleep(0)
        save(batch)

    records = [b"%d" % number for number in range(100)]
    for handler in (save, save_async):
        seen.clear()
        consumer = make()
        consumer.batch(handler)
        run = consume(consumer, records, shards=3)
        assert run.is_done
        assert sorted(seen) == sorted(records)
        assert run.handled == 100
        assert len(run.checkpoints) == 3
        assert run.stopped_by is None


def test_single_records_are_delivered_in_the_order_of_their_keys() -> None:
    """To plain handlers on several threads and to async ones, while others run."""
    seen: dict[str, list[bytes]] = {}

    def save(record: DeliveredRecord) -> None:
        seen.setdefault(record.partition_key, []).append(record.data)

    async def save_async(record: DeliveredRecord) -> None:
        await asyncio.sleep(0)
        save(record)

    records = [PutEntry(b"%d" % number, f"key-{number % 7}") for number in range(100)]
    for handler in (save, save_async):
        seen.clear()
        consumer = make()
        consumer.record(concurrency=4, max_records=10)(handler)
        run = consume(consumer, records, shards=2)
        assert run.is_done
        assert run.handled == 100
        assert {key: [int(data) for data in found] for key, found in seen.items()} == {
            f"key-{key}": list(range(key, 100, 7)) for key in range(7)
        }


def test_waits_between_retries_take_no_real_time() -> None:
    """A handler is retried for an hour of virtual time, and the test ends at once."""
    consumer = make()
    attempts: list[int] = []

    @consumer.batch
    def fail(batch: Batch) -> None:
        attempts.append(batch.attempt)
        raise ValueError

    run = consume(consumer, [b"x"], limit="1h")
    assert not run.is_done
    assert run.handled == 0
    assert len(attempts) > 100


def test_dead_letters_are_collected() -> None:
    """They are in the run, wherever they would go in production, unless the program has a function for them."""
    consumer = make(dead_letters="s3://bucket/letters", retries=1)

    @consumer.batch
    def picky(batch: Batch) -> None:
        for record in batch:
            record.data.decode("ascii")

    run = consume(consumer, [b"good", b"\xff", b"fine"])
    assert run.is_done
    assert [(letter.record.data, letter.error_type) for letter in run.dead_letters] == [
        (b"\xff", "UnicodeDecodeError")
    ]
    assert run.handled == 2


def test_the_run_contains_the_error_that_stopped_the_consumer() -> None:
    """With on_poison="stop_worker" the run ends early."""
    consumer = make(on_poison="stop_worker", retries=0)

    @consumer.batch
    def fail(batch: Batch) -> None:
        raise ValueError

    run = consume(consumer, [b"x"])
    assert isinstance(run.stopped_by, HandlerError)
    assert not run.is_done


def test_manual_checkpoints_work_in_plain_code() -> None:
    """They return when the position is stored, as in production."""
    consumer = make(checkpoint="manual")

    @consumer.batch(max_records=2)
    def save(batch: Batch) -> None:
        prepared = batch.prepare(b"state")
        prepared.commit()

    assert consume(consumer, [b"a", b"b", b"c"]).is_done


def test_shards_can_end() -> None:
    """With `end_shards` a processor gets the end of each shard, and its checkpoint counts."""
    consumer = make()
    ends: list[str] = []

    @consumer.processor
    class Save(RecordProcessor):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            self.seen = process_records_input.records

        def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
            ends.append(self.seen[-1].data.decode())
            shard_ended_input.checkpointer.checkpoint()

    run = consume(
        consumer, [PutEntry(b"a", "k", 0), PutEntry(b"b", "k", 2**128 - 1)], shards=2, end_shards=True
    )
    assert run.is_done
    assert sorted(ends) == ["a", "b"]


def test_consume_can_be_called_from_async_tests() -> None:
    """It works although an event loop is running."""
    consumer = make()
    consumer.batch(len)

    async def test() -> None:
        assert consume(consumer, [b"x"]).is_done

    asyncio.run(test())


def test_a_consumer_with_fan_out_is_tested_the_same_way() -> None:
    """The records arrive by subscriptions, and the shards end."""
    consumer = make(retrieval="fan_out")
    consumer.batch(lambda batch: None)
    run = consume(consumer, [b"%d" % number for number in range(50)], shards=2, end_shards=True)
    assert (run.is_done, run.handled) == (True, 50)
    assert len([event for event in run.events if isinstance(event, Subscribed)]) >= 2


def test_a_columnar_handler_gets_arrow_batches() -> None:
    """Plain or async, with the same guarantees: a batch on which it fails is delivered again."""
    seen: list[bytes] = []
    failures = [ValueError("once")]
    schemas = []

    def save(batch: Any) -> None:
        if failures:
            raise failures.pop()
        schemas.append(batch.schema.names)
        seen.extend(batch.column("data").to_pylist())

    async def save_async(batch: Any) -> None:
        await asyncio.sleep(0)
        save(batch)

    records = [b"%d" % number for number in range(100)]
    for handler in (save, save_async):
        seen.clear()
        consumer = make()
        consumer.batch(arrow=True)(handler)
        run = consume(consumer, records, shards=2)
        assert run.is_done
        assert sorted(seen) == sorted(records)
    assert set(schemas[0]) >= {"data", "partitionKey", "shardId", "sequenceNumber", "subSequenceNumber"}


def test_an_arrow_batch_has_no_manual_checkpoint() -> None:
    """The message names what to do instead."""
    with pytest.raises(ConfigError, match=r"batch\.to_arrow\(\)"):
        make(checkpoint="manual").batch(arrow=True)(print)
