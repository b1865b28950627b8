"""Reads the records that arrived in a time range, as one table (`spark.read`). Uses no leases and writes nothing.

Arrival times mostly rise from record to record, but a record may follow one that arrived slightly later. So reading
continues for a while beyond the end of the range.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from leasehold.adapters.logs import LogObserver
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.columns import record_batches
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.model import HashRange, ShardId
from leasehold.core.position import AT_TIMESTAMP, TRIM_HORIZON
from leasehold.core.record import UserRecord
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.shard_reader import read_shard
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.task_resources import task_loop, task_stream
from leasehold.wiring import new_rng, open_stream

# Kinesis sets the arrival times. Their error is well below this.
BEYOND_END_MS: Final = 60_000
_CHUNKS_AHEAD: Final = 4


@dataclass(frozen=True, slots=True)
class ShardTimeRange:
    """The records of one shard that arrived from `start` on and before `end_ms`."""

    shard: ShardId
    hash_range: HashRange
    start: ReadStart
    end_ms: int

    def contains(self, record: UserRecord) -> bool:
        """True if the record arrived in the range."""
        return record.arrival_ms is None or (self.start.timestamp_ms or 0) <= record.arrival_ms < self.end_ms


async def list_time_ranges(options: SourceOptions, now_ms: int) -> list[ShardTimeRange]:
    """List the time range of the options, once for each shard that the stream still retains."""
    stream = open_stream(options.connection, options.stream)
    try:
        shards = await stream.list_shards()
    finally:
        await stream.close()
    start = ReadStart(TRIM_HORIZON)
    if options.time_range.start_ms is not None:
        start = ReadStart(AT_TIMESTAMP, options.time_range.start_ms)
    end_ms = now_ms if options.time_range.end_ms is None else options.time_range.end_ms
    return [ShardTimeRange(shard.id, shard.hash_range, start, end_ms) for shard in shards]


def read_time_ranges(parts: list[ShardTimeRange], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, shard after shard."""
    for part in parts:
        for records in _read_ahead(part, options):
            yield from record_batches(
                records, stream=options.stream, shard=part.shard, columns=options.columns, session=0
            )


def _read_ahead(part: ShardTimeRange, options: SourceOptions) -> Iterator[list[UserRecord]]:
    """Yield the records of a shard, while the loop thread reads some chunks ahead."""
    loop = task_loop()
    ready: asyncio.Queue[list[UserRecord] | None] = loop.run(_queue())

    async def fill() -> None:
        try:
            async for chunk in _read(part, options):
                await ready.put(chunk)
        finally:
            await ready.put(None)

    filling = loop.submit(fill())
    try:
        while (chunk := loop.run(ready.get())) is not None:
            if chunk:
                yield chunk
        filling.result()
    finally:
        filling.cancel()


async def _queue() -> asyncio.Queue[list[UserRecord] | None]:
    return asyncio.Queue(_CHUNKS_AHEAD)


async def _read(part: ShardTimeRange, options: SourceOptions) -> AsyncIterator[list[UserRecord]]:
    budget, clock = ByteBudget(options.read.buffer_bytes), SystemClock()
    reading = read_shard(
        ReadRequest(
            shard=part.shard,
            start=part.start.position,
            initial=part.start.initial,
            hash_range=part.hash_range,
        ),
        ReadContext(
            stream=task_stream(options),
            settings=options.read,
            deaggregation=options.deaggregation,
            budget=budget,
            clock=clock,
            rng=new_rng(),
            observe=LogObserver(clock.now_ms),
        ),
    )
    async with reading as chunks:
        async for chunk in chunks:
            budget.release(chunk.size_bytes)
            yield [record for record in chunk.records if part.contains(record)]
            last_ms = chunk.records[-1].arrival_ms if chunk.records else None
            is_beyond = last_ms is not None and last_ms >= part.end_ms + BEYOND_END_MS
            is_at_tip = chunk.ends_page and not chunk.millis_behind and clock.wall_ms() >= part.end_ms
            if is_beyond or is_at_tip:
                return
