"""The public API in programs of users, for `mypy --strict`. Each `type: ignore` marks a mistake that it must find.

This code is checked and never run.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_type

from leasehold import (
    Batch,
    CheckpointRejectedError,
    Consumer,
    DeadLetter,
    DeliveredRecord,
    InitializeInput,
    LeaseLostError,
    LeaseLostInput,
    Pin,
    Position,
    PreparedCheckpoint,
    ProcessRecordsInput,
    RecordProcessor,
    ShardBatches,
    ShardEndedInput,
    ShardId,
    ShutdownRequestedInput,
    UserRecord,
)


def store(data: bytes) -> None: ...


def plain_handlers(consumer: Consumer) -> None:
    @consumer.batch(max_records=500, max_wait="1s")
    def save(batch: Batch) -> None:
        for record in batch:
            assert_type(record, UserRecord)
            store(record.data)

    @consumer.batch
    def save_with_defaults(batch: Batch) -> None:
        assert_type(batch.records, tuple[UserRecord, ...])
        assert_type(batch.start, Position)
        assert_type(batch.shard, ShardId)
        assert_type(batch.fencing_token, str)
        assert_type(batch.millis_behind, int | None)
        assert_type(batch.pending, Pin | None)
        assert_type(len(batch), int)

    @consumer.batch(checkpoint="manual", retries=3)
    def save_with_manual_checkpoints(batch: Batch) -> None:
        prepared = batch.prepare(b"state")
        assert_type(prepared, PreparedCheckpoint)
        prepared.commit()
        try:
            batch.checkpoint(batch.records[-1])
            batch.checkpoint(batch.end)
        except (LeaseLostError, CheckpointRejectedError):
            batch.still_working()

    # The decorated function is unchanged, so that it can be called and tested.
    assert_type(save(Batch.__new__(Batch)), None)


def async_handlers(consumer: Consumer) -> None:
    @consumer.batch(max_wait=timedelta(milliseconds=200), dead_letters=Path("letters.jsonl"))
    async def save_async(batch: Batch) -> None:
        prepared = await batch.prepare()
        assert_type(prepared, PreparedCheckpoint)
        await prepared.commit()
        await batch.checkpoint()
        await batch.done()

    async def store_letter(letter: DeadLetter) -> None:
        store(letter.record.data)

    @consumer.batch(dead_letters=store_letter, on_poison="dead_letter")
    async def save_with_letters(batch: Batch) -> None: ...


def settings(consumer: Consumer) -> None:
    Consumer(
        stream="orders",
        application="billing",
        config=Path("worker.toml"),
        observe=print,
        initial_position=datetime(2026, 1, 1, tzinfo=UTC),
        leases="sqlite:///leases.sqlite",
        failover_after="20s",
        max_leases=None,
        grace=30,
    )
    Consumer(streams=["orders", "returns"], application="billing")
    Consumer(streams={"orders": "latest", "returns": None}, application="billing")
    Consumer(stream="orders", application="billing", max_record=5)  # type: ignore[call-arg]
    Consumer(stream="orders", application="billing", max_records="5")  # type: ignore[arg-type]
    consumer.batch(max_leases=5)  # type: ignore[call-overload]

    @consumer.batch()  # type: ignore[type-var]
    def wrong(batch: int) -> None: ...


def loops(consumer: Consumer) -> None:
    async def work(shard: ShardBatches) -> None:
        async for batch in shard:
            assert_type(batch, Batch)
            await batch.done()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            async for shard in consumer.shards(max_records=100):
                group.create_task(work(shard))
        await consumer.serve()
        consumer.stop()


def record_handlers(consumer: Consumer) -> None:
    @consumer.record(concurrency=16, retries=3)
    async def save(record: DeliveredRecord) -> None:
        assert_type(record.data, bytes)
        assert_type(record.partition_key, str)

    @consumer.record
    def save_plain(record: DeliveredRecord) -> int:
        return len(record.data)

    @consumer.record()  # type: ignore[type-var]
    def save_batch(batch: Batch) -> None: ...


def processors(consumer: Consumer) -> None:
    @consumer.processor
    class Plain(RecordProcessor):
        def initialize(self, initialize_input: InitializeInput) -> None:
            assert_type(initialize_input.pending_state, bytes | None)

        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            for record in process_records_input.records:
                store(record.data)
                process_records_input.checkpointer.checkpoint(
                    record.sequence_number, record.sub_sequence_number
                )
            prepared = process_records_input.checkpointer.prepare_checkpoint(state=b"x")
            prepared.commit()

        def lease_lost(self, lease_lost_input: LeaseLostInput) -> None: ...

        def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
            shard_ended_input.checkpointer.checkpoint()

        def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
            shutdown_requested_input.checkpointer.checkpoint()

    @consumer.processor(max_records=1000)
    class Async(RecordProcessor):
        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            await process_records_input.checkpointer.checkpoint()

    consumer.processor(lambda: Plain())  # noqa: PLW0108 - a factory as users write it
