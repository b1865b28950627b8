"""Reads a running fleet again and again, and keeps what `explain_fleet` needs of earlier reads.

A fleet may have ten thousand shards. So each read measures only a part of the lags, those that were measured longest
ago first, and the shards are listed only when a new lease appears or half a minute has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from leasehold.core.finding import Finding
from leasehold.core.model import Lease, LeaseKey, Shard, ShardId, StreamIdentifier
from leasehold.core.observing.explain.facts import FleetFacts, LagRead, StreamFacts, TableRead
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.core.shards.shard_graph import unfinished_parents
from leasehold.errors import ServiceError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.inspection.fleet_facts import (
    FleetLayout,
    NamedStream,
    describe_stream,
    find_layout,
    read_lags,
    read_table,
)
from leasehold.ports import Clock, Page, Stream

PROBES_PER_READ_MIN: Final = 250
PROBES_PER_S: Final = 50
LAGS_KEPT: Final = 4
LIST_EVERY_MS: Final = 30_000
LAYOUT_EVERY_MS: Final = 60_000

OpenStream = Callable[[str], Stream]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRead:
    """What one read has shown. `problems` are sentences about parts that could not be read.

    `table_reads` and `kinesis_calls` count the calls of this watch since it began.
    """

    facts: FleetFacts
    problems: tuple[str, ...]
    table_reads: int
    kinesis_calls: int


@dataclass(slots=True)
class CallCount:
    """The number of calls to Kinesis."""

    calls: int = 0


class CountedStream(Stream):
    """A stream whose calls are counted. A list counts as one call for each thousand shards, which is its page."""

    def __init__(self, stream: Stream, count: CallCount) -> None:
        self._stream = stream
        self._count = count

    async def get_identifier(self) -> StreamIdentifier:
        self._count.calls += 1
        return await self._stream.get_identifier()

    async def get_retention_ms(self) -> int:
        self._count.calls += 1
        return await self._stream.get_retention_ms()

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        shards = await self._stream.list_shards(shard_filter)
        self._count.calls += 1 + len(shards) // 1000
        return shards

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        self._count.calls += 1
        return await self._stream.get_iterator(shard, start)

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        self._count.calls += 1
        return await self._stream.get_records(iterator, limit=limit)

    async def close(self) -> None:
        await self._stream.close()


@dataclass(slots=True)
class _Listing:
    facts: StreamFacts
    at_ms: int


@dataclass(slots=True)
class _Layout:
    found: FleetLayout
    has_index: bool
    at_ms: int


@dataclass(slots=True)
class _Memory:
    """What the watch keeps of earlier reads."""

    reads: deque[TableRead] = field(default_factory=deque)
    lags: dict[LeaseKey, deque[LagRead]] = field(default_factory=dict)
    streams: dict[StreamIdentifier | None, NamedStream] = field(default_factory=dict)
    listings: dict[StreamIdentifier | None, _Listing] = field(default_factory=dict)
    layout: _Layout | None = None
    table_reads: int = 0


class FleetWatch:
    """Reads one fleet repeatedly. Each read is compared with one that is at least `watch_ms` older."""

    def __init__(
        self,
        table: LeaseTable,
        open_stream: OpenStream,
        clock: Clock,
        *,
        watch_ms: int,
        application: str,
        stream: str | None = None,
    ) -> None:
        self._table = table
        self._open_stream = open_stream
        self._clock = clock
        self._watch_ms = watch_ms
        self._application = application
        self._stream = stream
        self._count = CallCount()
        self._memory = _Memory()

    async def read(
        self,
        worker_findings: Mapping[str, tuple[Finding, ...]] | None = None,
        worker_idle_ms: Mapping[str, int] | None = None,
    ) -> FleetRead:
        """Read the fleet once. Raises a LeaseholdError if the lease table cannot be read."""
        memory, problems = self._memory, list[str]()
        layout = await self._find_layout()
        after = await read_table(self._table, layout.found.mode, self._clock)
        if layout.found.has_begun(after):
            memory.layout = None
            layout = await self._find_layout()
        # Whole seconds: otherwise every sentence about ten thousand silent leases would differ from the last one.
        after = replace(after, at_ms=round(after.at_ms, -3))
        memory.table_reads += 1
        memory.reads.append(after)
        self._open_streams(after.leases)
        chosen = choose_probes(
            after, {key: reads[-1].at_ms for key, reads in memory.lags.items()}, limit=self._probes_max()
        )
        self._keep_lags(after, await read_lags(chosen, memory.streams, self._clock))
        for key, named in memory.streams.items():
            try:
                await self._list_shards(key, named, after.leases)
            except ServiceError as error:
                problems.append(f"stream {named.name} cannot be described: {error}")
        facts = FleetFacts(
            before=forget_old_reads(memory.reads, self._watch_ms),
            after=after,
            wall_s=self._clock.wall_ms() // 1000,
            has_leader=layout.found.has_leader,
            has_index=layout.has_index,
            has_two_layouts=layout.found.has_two_layouts,
            streams={key: listing.facts for key, listing in memory.listings.items()},
            lags={key: tuple(reads) for key, reads in memory.lags.items()},
            worker_findings=worker_findings or {},
            worker_idle_ms=worker_idle_ms,
        )
        return FleetRead(
            facts=facts,
            problems=tuple(problems),
            table_reads=memory.table_reads,
            kinesis_calls=self._count.calls,
        )

    async def close(self) -> None:
        """Close the streams."""
        for named in self._memory.streams.values():
            await named.stream.close()

    def _probes_max(self) -> int:
        """The same number of probes a second, however often the table is read."""
        reads = self._memory.reads
        elapsed_ms = reads[-1].at_ms - reads[-2].at_ms if len(reads) > 1 else 0
        return max(PROBES_PER_READ_MIN, PROBES_PER_S * elapsed_ms // 1000)

    async def _find_layout(self) -> _Layout:
        known, now_ms = self._memory.layout, self._clock.now_ms()
        if known is not None and now_ms - known.at_ms < LAYOUT_EVERY_MS:
            return known
        found = await find_layout(self._table, self._application)
        has_index = await self._table.coordinator_rows.has_index() if found.mode.has_leader else True
        self._memory.table_reads += 2 if found.mode.has_leader else 1
        self._memory.layout = _Layout(found, has_index, now_ms)
        return self._memory.layout

    def _open_streams(self, leases: Iterable[Lease]) -> None:
        opened = self._memory.streams
        for key in {lease.stream for lease in leases} - opened.keys():
            name = self._stream if key is None else key.split(":")[1]
            if name is not None and (key is None or self._is_wanted(key)):
                opened[key] = NamedStream(name, CountedStream(self._open_stream(name), self._count))
        if not opened and self._stream is not None and not leases:
            stream = CountedStream(self._open_stream(self._stream), self._count)
            opened[None] = NamedStream(self._stream, stream)

    def _is_wanted(self, key: StreamIdentifier) -> bool:
        return (
            self._stream is None
            or self._stream == key
            or self._stream.rpartition("/")[2] == key.split(":")[1]
        )

    def _keep_lags(self, after: TableRead, read: Mapping[LeaseKey, LagRead]) -> None:
        lags = self._memory.lags
        for key in [
            key for key in lags if key not in after.by_key or after.by_key[key].checkpoint.is_shard_end
        ]:
            del lags[key]
        for key, lag in read.items():
            lags.setdefault(key, deque(maxlen=LAGS_KEPT)).append(lag)

    async def _list_shards(
        self, key: StreamIdentifier | None, named: NamedStream, leases: Iterable[Lease]
    ) -> None:
        known, now_ms = self._memory.listings.get(key), self._clock.now_ms()
        is_fresh = known is not None and now_ms - known.at_ms < LIST_EVERY_MS
        if known is not None and is_fresh and not _has_unlisted(leases, key, known.facts):
            return
        self._memory.listings[key] = _Listing(await describe_stream(named), now_ms)


def choose_probes(
    read: TableRead, measured_ms: Mapping[LeaseKey, int], *, limit: int = PROBES_PER_READ_MIN
) -> Sequence[Lease]:
    """The leases whose lag is measured next: those that may be read now, measured longest ago first."""
    may_be_read = [
        lease
        for lease in read.leases
        if not lease.checkpoint.is_shard_end and not unfinished_parents(lease, read.by_key)
    ]
    return sorted(may_be_read, key=lambda lease: measured_ms.get(lease.key, -1))[:limit]


def forget_old_reads(reads: deque[TableRead], watch_ms: int) -> TableRead:
    """Drop the reads that are older than needed. The first one left is `watch_ms` older than the last, if any is."""
    while len(reads) > 1 and reads[-1].at_ms - reads[1].at_ms >= watch_ms:
        reads.popleft()
    return reads[0]


def _has_unlisted(leases: Iterable[Lease], stream: StreamIdentifier | None, listed: StreamFacts) -> bool:
    """Whether a lease is of a shard that the list does not have: then the list may be too old."""
    return any(
        lease.stream == stream
        and lease.shard_id not in listed.shard_ids
        and not lease.checkpoint.is_shard_end
        for lease in leases
    )
