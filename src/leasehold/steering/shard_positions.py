"""Finds where a target lies in a shard, by reading it: the last record before a time, the newest one, a given one.

A lease contains a position, not a time. So a time becomes the last record before it, or `TRIM_HORIZON` if the shard
retains none. Kinesis cannot be read backwards: the search reads a short time before the target, and a longer time if
that contained no record.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from leasehold.core.model import Lease, LeaseKey, Shard, ShardId
from leasehold.core.position import Position
from leasehold.core.record import Record
from leasehold.core.records.deaggregation import deaggregate
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.core.steering.reset_plan import OLDEST, ShardStart
from leasehold.core.steering.reset_target import ResetTarget, ToLatest, ToOldest, ToRecord, ToTime
from leasehold.errors import InvalidArgumentError, NotFoundError
from leasehold.ports import Clock, Page, Stream
from leasehold.tasks import all_of, retry

CONCURRENT_READS_MAX: Final = 16
FIRST_SEARCH_MS: Final = 10_000
SEARCH_GROWTH: Final = 8
PAGE_RECORDS: Final = 10_000
_ATTEMPTS_MAX: Final = 12
_EMPTY_PAGES_MAX: Final = 100  # in a row, far from the tip

T = TypeVar("T")


class _Reached(Enum):
    """Where a search for the last record before a time has ended."""

    TIME = "a record that arrived at the time or later"
    TIP = "the newest record of an open shard"
    END = "the end of a closed shard"
    UNKNOWN = "too many empty pages"


@dataclass(frozen=True, slots=True)
class CheckpointArrivals:
    """When the records at checkpoints arrived; None if that is not known any more.

    `foreign` are the leases whose checkpoint Kinesis refuses: it belongs to another shard or stream.
    """

    arrived_ms: Mapping[LeaseKey, int | None]
    foreign: frozenset[LeaseKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPositions:
    """Reads the shards of one stream."""

    stream: Stream
    clock: Clock
    rng: random.Random
    retention_ms: int

    async def find_starts(
        self, shards: Iterable[Shard], target: ResetTarget, tell: Callable[[int], None] = lambda _: None
    ) -> Mapping[ShardId, ShardStart]:
        """Where the target lies in each shard. `tell` gets the number of shards that are done."""
        found: dict[ShardId, ShardStart] = {}

        async def find(shard: Shard) -> None:
            found[shard.id] = await self._find_start(shard, target)
            tell(len(found))

        await _at_most(CONCURRENT_READS_MAX, (find(shard) for shard in shards))
        return found

    async def find_arrivals(self, leases: Iterable[Lease]) -> CheckpointArrivals:
        """When the records at the checkpoints of these leases arrived."""
        arrived_ms: dict[LeaseKey, int | None] = {}
        foreign: set[LeaseKey] = set()

        async def find(lease: Lease) -> None:
            arrived_ms[lease.key] = None
            try:
                record = await self._read_at(lease.shard_id, lease.checkpoint)
            except InvalidArgumentError:
                foreign.add(lease.key)
                return
            arrived_ms[lease.key] = None if record is None else record.arrival_ms

        await _at_most(CONCURRENT_READS_MAX, (find(lease) for lease in leases if lease.checkpoint.is_record))
        return CheckpointArrivals(arrived_ms, frozenset(foreign))

    async def _find_start(self, shard: Shard, target: ResetTarget) -> ShardStart:
        match target:
            case ToOldest():
                return OLDEST
            case ToRecord(position):
                return await self._require_record(shard.id, position)
            case ToTime(at_ms):
                return await self._find_before(shard, at_ms)
            case ToLatest():
                return await self._find_before(shard, None)

    async def _require_record(self, shard: ShardId, position: Position) -> ShardStart:
        try:
            record = await self._read_at(shard, position)
        except InvalidArgumentError:
            record = None
        if record is None:
            raise NotFoundError(
                f"shard {shard} has no record {position}: it was trimmed, belongs to another shard or stream, or never "
                "existed; use the sequence number of a record of this shard, a time, or trim-horizon"
            )
        last = _last_position(record)
        if position > last:
            raise NotFoundError(
                f"shard {shard}: record {position.sequence_number} has no user record "
                f"{position.sub_sequence_number}; its last one is {last.sub_sequence_number}"
            )
        return ShardStart(position, arrival_ms=record.arrival_ms)

    async def _find_before(self, shard: Shard, at_ms: int | None) -> ShardStart:
        """The last record before a time, or the newest one."""
        now_ms = self.clock.wall_ms()
        search_ms = FIRST_SEARCH_MS
        while True:
            from_ms = (now_ms if at_ms is None else at_ms) - search_ms
            is_whole = from_ms <= now_ms - self.retention_ms
            start = (
                IteratorStart(IteratorKind.TRIM_HORIZON)
                if is_whole
                else IteratorStart(IteratorKind.AT_TIMESTAMP, timestamp_ms=from_ms)
            )
            last, reached = await self._read_until(shard, start, at_ms)
            if last is not None or is_whole:
                return ShardStart(
                    OLDEST.position if last is None else _last_position(last),
                    is_at_end=reached is _Reached.END,
                    is_newest=reached is _Reached.TIP,
                    arrival_ms=None if last is None else last.arrival_ms,
                )
            search_ms *= SEARCH_GROWTH

    async def _read_until(
        self, shard: Shard, start: IteratorStart, at_ms: int | None
    ) -> tuple[Record | None, _Reached]:
        """The last record before a time, and what comes after it."""
        last: Record | None = None
        empty = 0
        iterator: str | None = await self._retry(lambda: self.stream.get_iterator(shard.id, start))
        while iterator is not None and empty < _EMPTY_PAGES_MAX:
            page = await self._read_page(iterator, PAGE_RECORDS)
            for record in page.records:
                if at_ms is not None and record.arrival_ms is not None and record.arrival_ms >= at_ms:
                    return last, _Reached.TIME
                last = record
            empty = 0 if page.records else empty + 1
            if shard.is_open and not page.millis_behind and page.next_iterator is not None:
                return last, _Reached.TIP
            iterator = page.next_iterator
        return last, _Reached.END if iterator is None else _Reached.UNKNOWN

    async def _read_at(self, shard: ShardId, position: Position) -> Record | None:
        """The record with this sequence number, if it is retained. Raises InvalidArgumentError if Kinesis refuses the
        number: it belongs to another shard or stream.
        """
        start = IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=position.sequence_number)
        iterator: str | None = await self._retry(lambda: self.stream.get_iterator(shard, start))
        for _ in range(_EMPTY_PAGES_MAX):
            if iterator is None:
                return None
            page = await self._read_page(iterator, 1)
            if page.records:
                first = page.records[0]
                return first if int(first.sequence_number) == position.number else None
            if not page.millis_behind:
                return None
            iterator = page.next_iterator
        return None

    async def _read_page(self, iterator: str, limit: int) -> Page:
        return await self._retry(lambda: self.stream.get_records(iterator, limit=limit))

    async def _retry(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await retry(call, clock=self.clock, rng=self.rng, attempts_max=_ATTEMPTS_MAX)


def _last_position(record: Record) -> Position:
    """The position at which the whole record is done: that of its last user record."""
    records = deaggregate(record).records
    return records[-1].position if records else Position(record.sequence_number)


async def _at_most(number: int, calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines, at most so many at a time."""
    semaphore = asyncio.Semaphore(number)

    async def run(call: Coroutine[Any, Any, None]) -> None:
        async with semaphore:
            await call

    await all_of(*(run(call) for call in calls))
