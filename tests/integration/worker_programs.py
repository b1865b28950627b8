"""Small consumers as users write them, for tests that run them in a process of their own.

Run as a module with three arguments: the name of a program, the consumer's settings as JSON, and a folder. Each
program appends a line to `handled` in that folder for every record, when its handling ends.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasehold import (
    Batch,
    Consumer,
    ProcessRecordsInput,
    RecordProcessor,
    ShutdownRequestedInput,
)


def record_handled(folder: Path, batch: Batch, prefix: str = "") -> None:
    """Append one line per record, in one write."""
    lines = "".join(f"{batch.shard} {prefix}{record.data.decode()}\n" for record in batch)
    file = os.open(folder / "handled", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, lines.encode())
    os.close(file)


def handles_everything(consumer: Consumer, folder: Path) -> None:
    """Handles everything."""

    @consumer.batch(max_wait="200ms")
    def save(batch: Batch) -> None:
        record_handled(folder, batch)

    consumer.run()


def handles_several_streams(consumer: Consumer, folder: Path) -> None:
    """Handles everything, and writes the stream before the data."""

    @consumer.batch(max_wait="200ms")
    def save(batch: Batch) -> None:
        record_handled(folder, batch, f"{batch.stream} ")

    consumer.run()


def raises_on_poison(consumer: Consumer, folder: Path) -> None:
    """Fails on every batch with the record "poison"."""

    @consumer.batch(max_records=500, max_wait="200ms", retries=2, retry_initial_wait="10ms")
    def save(batch: Batch) -> None:
        if any(record.data == b"poison" for record in batch):
            raise ValueError("this one cannot be read")
        record_handled(folder, batch)

    consumer.run()


def sleeps_on_slow(consumer: Consumer, folder: Path) -> None:
    """Blocks its thread for 7 seconds on a record "slow 7", then handles it."""

    @consumer.batch(max_records=1, max_wait=0)
    def save(batch: Batch) -> None:
        (record,) = batch
        if record.data.startswith(b"slow"):
            (folder / "began").touch()
            time.sleep(float(record.data.split()[1]))
        record_handled(folder, batch)

    consumer.run()


def async_blocks_its_loop(consumer: Consumer, folder: Path) -> None:
    """An async handler that blocks its event loop, which it should not."""

    @consumer.batch(max_records=1, max_wait=0)
    async def save(batch: Batch) -> None:
        (record,) = batch
        if record.data.startswith(b"slow"):
            (folder / "began").touch()
            time.sleep(float(record.data.split()[1]))  # noqa: ASYNC251 - the very mistake
        record_handled(folder, batch)

    consumer.run()


def checkpoints_in_two_phases(consumer: Consumer, folder: Path) -> None:
    """Plain code with manual checkpoints in two phases."""

    @consumer.batch(max_records=10, max_wait="100ms", checkpoint="manual")
    def save(batch: Batch) -> None:
        prepared = batch.prepare(b"about to")
        record_handled(folder, batch)
        prepared.commit()

    consumer.run()


def uses_a_processor(consumer: Consumer, folder: Path) -> None:
    """A processor class in plain Python."""

    @consumer.processor(max_wait="100ms")
    class Save(RecordProcessor):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            record_handled(folder, process_records_input.batch)

        def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
            shutdown_requested_input.checkpointer.checkpoint()

    consumer.run()


def serves_in_its_own_loop(consumer: Consumer, folder: Path) -> None:
    """A program with its own event loop, which runs its handler."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(15, consumer.stop)

        @consumer.batch(max_wait="100ms", checkpoint_every=0)
        async def save(batch: Batch) -> None:
            assert asyncio.get_running_loop() is loop
            await batch.checkpoint(batch.records[0])
            record_handled(folder, batch)

        await consumer.serve()

    asyncio.run(main())


def iterates_over_shards(consumer: Consumer, folder: Path) -> None:
    """A program with one task per shard."""

    async def work(shard: Any) -> None:
        async for batch in shard:
            record_handled(folder, batch)
            await batch.done()

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(15, consumer.stop)
        async with asyncio.TaskGroup() as group:
            async for shard in consumer.shards(max_records=7, max_wait="100ms"):
                group.create_task(work(shard))

    asyncio.run(main())


if __name__ == "__main__":
    program: Callable[[Consumer, Path], None] = globals()[sys.argv[1]]
    program(Consumer(**json.loads(sys.argv[2])), Path(sys.argv[3]))
