"""Reads the records that arrived in a time range, as one table (`spark.read`). Uses no leases and writes nothing.

Arrival times mostly rise from record to record, but a record may follow one that arrived slightly later. So reading
continues for a while beyond the end of the range.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from leasehold.adapters.logs import LogObserver
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.columns import record_batches
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.model import WHOLE_HASH_RANGE, HashRange, ShardId
from leasehold.core.position import AT_TIMESTAMP, TRIM_HORIZON
from leasehold.core.records.record_columns import UserRecordSequence, as_user_records
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.shard_reader import read_shard
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.ports import Stream
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.task_resources import open_source_streams, task_loop, task_stream
from leasehold.wiring import new_rng

# Kinesis sets the arrival times. Their error is well below this.
BEYOND_END_MS: Final = 60_000
_CHUNKS_AHEAD: Final = 4


@dataclass(frozen=True, slots=True)
class ShardTimeRange:
    """The records of one shard that arrived from `start` on and before `end_ms`."""

    stream: str  # its name in the options
    shard: ShardId
    hash_range: HashRange
    start: ReadStart
    end_ms: int

    def records_within(self, records: UserRecordSequence) -> UserRecordSequence:
        """The records that arrived in the range. A record without an arrival time counts as one of them."""
        start_ms, arrivals_ms = self.start.timestamp_ms or 0, records.arrivals_ms()
        within = [
            index for index, each in enumerate(arrivals_ms) if each is None or start_ms <= each < self.end_ms
        ]
        return records if len(within) == len(records) else records.take(within)


async def list_time_ranges(options: SourceOptions, now_ms: int) -> list[ShardTimeRange]:
    """List the time range of the options, once for each shard that the streams or their archive still have."""
    opened = open_source_streams(options)
    try:
        return await list_in_streams(opened, options, now_ms)
    finally:
        for stream in opened.values():
            await stream.close()


async def list_in_streams(
    opened: Mapping[str, Stream], options: SourceOptions, now_ms: int
) -> list[ShardTimeRange]:
    """List the time range in each of these streams, by their names. Raises ConfigError if two are the same stream."""
    tracked = [TrackedStream(name, stream, options.query.initial) for name, stream in opened.items()]
    streams = Streams(tracked, is_multi_stream=options.is_multi_stream)
    for each in tracked:
        await streams.identify(each)
    listed = [await _list_stream(name, stream, options, now_ms) for name, stream in opened.items()]
    return [each for ranges in listed for each in ranges]


async def _list_stream(
    name: str, stream: Stream, options: SourceOptions, now_ms: int
) -> list[ShardTimeRange]:
    shards = await stream.list_shards()
    archived = await stream.list_archived(options.time_range.start_ms)
    start = ReadStart(TRIM_HORIZON)
    if options.time_range.start_ms is not None:
        start = ReadStart(AT_TIMESTAMP, options.time_range.start_ms)
    end_ms = now_ms if options.time_range.end_ms is None else options.time_range.end_ms
    ranges = {shard.id: shard.hash_range for shard in shards}
    # Archived records are user records already, so nobody needs the hash range of a shard that has left the stream.
    ranges |= {each.id: WHOLE_HASH_RANGE for each in archived if each.id not in ranges}
    return [ShardTimeRange(name, shard, hash_range, start, end_ms) for shard, hash_range in ranges.items()]


def read_time_ranges(parts: list[ShardTimeRange], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, shard after shard."""
    for part in parts:
        for records in _read_ahead(part, options):
            yield from record_batches(
                records, stream=part.stream, shard=part.shard, columns=options.columns, session=0
            )


def _read_ahead(part: ShardTimeRange, options: SourceOptions) -> Iterator[UserRecordSequence]:
    """Yield the records of a shard, while the loop thread reads some chunks ahead."""
    loop = task_loop()
    ready: asyncio.Queue[UserRecordSequence | None] = loop.run(_queue())

    async def fill() -> None:
        try:
            async with aclosing(_read(part, options)) as chunks:
                async for chunk in chunks:
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


async def _queue() -> asyncio.Queue[UserRecordSequence | None]:
    return asyncio.Queue(_CHUNKS_AHEAD)


async def _read(part: ShardTimeRange, options: SourceOptions) -> AsyncGenerator[UserRecordSequence, None]:
    budget, clock = ByteBudget(options.read.buffer_bytes), SystemClock()
    reading = read_shard(
        ReadRequest(
            shard=part.shard,
            start=part.start.position,
            initial=part.start.initial,
            hash_range=part.hash_range,
        ),
        ReadContext(
            stream=task_stream(options, part.stream),
            settings=options.read,
            deaggregation=options.deaggregation,
            budget=budget,
            clock=clock,
            rng=new_rng(),
            observe=LogObserver(clock.now_ms),
            subscribes_once=False,
        ),
    )
    async with reading as chunks:
        async for chunk in chunks:
            budget.release(chunk.size_bytes)
            records = as_user_records(chunk.records)
            yield part.records_within(records)
            last_ms = records[-1].arrival_ms if records else None
            is_beyond = last_ms is not None and last_ms >= part.end_ms + BEYOND_END_MS
            is_at_tip = chunk.ends_page and not chunk.millis_behind and clock.wall_ms() >= part.end_ms
            if is_beyond or is_at_tip:
                return
