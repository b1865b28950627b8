"""A stretch of a stream as a table: everything that arrived between two times. No leases, nothing is written.

Arrival times rise from record to record, but not strictly: where they cross, a record may come a little after a later
one. So reading goes on for a while beyond the end before it stops.
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
from leasehold.core.exactly_once.slice_limits import deal_round_robin
from leasehold.core.model import HashRange, ShardId
from leasehold.core.position import AT_TIMESTAMP, TRIM_HORIZON
from leasehold.core.record import UserRecord
from leasehold.fleet.reading.shard_reader import ByteBudget, read_shard
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.task_resources import open_stream, rng, task_loop, task_stream

# Arrival times are the service's, accurate to well below this.
BEYOND_END_MS: Final = 60_000
_PIECES_AHEAD: Final = 4


@dataclass(frozen=True, slots=True)
class ShardTimeRange:
    """One shard's part of a stretch: what arrived from `start` on and before `end_ms`."""

    shard: ShardId
    hash_range: HashRange
    start: ReadStart
    end_ms: int

    def holds(self, record: UserRecord) -> bool:
        """Whether a record arrived within."""
        return record.arrival_ms is None or (self.start.timestamp_ms or 0) <= record.arrival_ms < self.end_ms


async def list_time_ranges(options: SourceOptions, now_ms: int) -> list[ShardTimeRange]:
    """The parts of the stretch that the options name, one a shard that is still retained."""
    stream = open_stream(options)
    try:
        shards = await stream.list_shards()
    finally:
        await stream.close()
    start = ReadStart(TRIM_HORIZON)
    if options.starting_ms is not None:
        start = ReadStart(AT_TIMESTAMP, options.starting_ms)
    end_ms = now_ms if options.ending_ms is None else options.ending_ms
    return [ShardTimeRange(shard.id, shard.hash_range, start, end_ms) for shard in shards]


def grouped(parts: list[ShardTimeRange], tasks: int) -> list[list[ShardTimeRange]]:
    """What each task reads."""
    return deal_round_robin(parts, tasks)


def read_time_ranges(parts: list[ShardTimeRange], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a task, shard after shard."""
    for part in parts:
        for records in _pieces(part, options):
            yield from record_batches(
                records, stream=options.stream, shard=part.shard, columns=options.columns, session=0
            )


def _pieces(part: ShardTimeRange, options: SourceOptions) -> Iterator[list[UserRecord]]:
    """What the loop reads ahead, piece by piece."""
    loop = task_loop()
    ready: asyncio.Queue[list[UserRecord] | None] = loop.run(_queue())

    async def fill() -> None:
        try:
            async for piece in _read(part, options):
                await ready.put(piece)
        finally:
            await ready.put(None)

    filling = loop.submit(fill())
    try:
        while (piece := loop.run(ready.get())) is not None:
            if piece:
                yield piece
        filling.result()
    finally:
        filling.cancel()


async def _queue() -> asyncio.Queue[list[UserRecord] | None]:
    return asyncio.Queue(_PIECES_AHEAD)


async def _read(part: ShardTimeRange, options: SourceOptions) -> AsyncIterator[list[UserRecord]]:
    budget, clock = ByteBudget(options.read.buffer_bytes), SystemClock()
    reading = read_shard(
        task_stream(options),
        part.shard,
        start=part.start.position,
        initial=part.start.initial,
        hash_range=part.hash_range,
        settings=options.read,
        deaggregation=options.deaggregation,
        budget=budget,
        clock=clock,
        rng=rng(),
        observe=LogObserver(clock.now_ms),
    )
    async with reading as slices:
        async for piece in slices:
            budget.release(piece.size_bytes)
            yield [record for record in piece.records if part.holds(record)]
            last_ms = piece.records[-1].arrival_ms if piece.records else None
            is_beyond = last_ms is not None and last_ms >= part.end_ms + BEYOND_END_MS
            is_at_tip = piece.ends_page and not piece.millis_behind and clock.wall_ms() >= part.end_ms
            if is_beyond or is_at_tip:
                return
