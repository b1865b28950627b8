"""Reads the facts from which `explain_fleet` makes sentences: the tables twice, the streams, the lags, `/health`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from leasehold.config.settings import Mode
from leasehold.core.coordinator.fleet_mode import FleetMode, FleetRows, resolve_mode
from leasehold.core.model import Lease, LeaseKey, StreamIdentifier
from leasehold.core.observing.explain.facts import FleetFacts, LagRead, StreamFacts, TableRead
from leasehold.errors import NotFoundError, ServiceError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.inspection.lag_probe import ShardLag, measure_lags
from leasehold.ports import Clock, Stream
from leasehold.tasks import all_of


class InspectedStream(Stream, Protocol):
    """A stream that also tells how long it keeps its records."""

    async def get_retention_ms(self) -> int:
        """The retention of the stream."""
        ...


@dataclass(frozen=True, slots=True)
class NamedStream:
    """A stream and its name."""

    name: str
    stream: InspectedStream


Streams = Mapping[StreamIdentifier | None, NamedStream]


async def read_facts(
    table: LeaseTable,
    streams: Streams,
    clock: Clock,
    *,
    watch_ms: int,
    application: str,
    worker_problems: Mapping[str, tuple[str, ...]] | None = None,
) -> FleetFacts:
    """Read the fleet twice, `watch_ms` apart."""
    found = await table.coordinator_rows.find(must_know=False)
    mode = resolve_mode(found, Mode.AUTO, application)
    before = await _read_table(table, mode, clock)
    first = await _read_lags(before.leases, streams, clock)
    await clock.sleep_ms(max(0, watch_ms - (clock.now_ms() - before.at_ms)))
    after = await _read_table(table, mode, clock)
    second = await _read_lags(after.leases, streams, clock)
    return FleetFacts(
        before=before,
        after=after,
        wall_s=clock.wall_ms() // 1000,
        has_leader=mode.has_leader and _has_rows_of_leader(found),
        has_index=await table.coordinator_rows.has_index() if mode.has_leader else True,
        has_two_layouts=found.has_coordinator_table and found.has_reports_in_lease_table,
        streams={key: await _describe(stream) for key, stream in streams.items()},
        lags={key: (*first.get(key, ()), *reads) for key, reads in second.items()},
        worker_problems=worker_problems or {},
    )


def _has_rows_of_leader(found: FleetRows) -> bool:
    """Whether a member has written such rows. Without them, the mode is only what a first member would choose."""
    return found.has_lock or found.has_reports or found.has_coordinator_table or found.migration is not None


async def _read_table(table: LeaseTable, mode: FleetMode, clock: Clock) -> TableRead:
    at_ms = clock.now_ms()
    snapshot = await table.coordinator_rows.read_snapshot(mode)
    return TableRead(
        at_ms=at_ms,
        leases=tuple(snapshot.leases.leases),
        rejected=tuple(snapshot.leases.rejected),
        lock=snapshot.lock,
        reports=snapshot.reports.reports,
    )


async def _read_lags(
    leases: Sequence[Lease], streams: Streams, clock: Clock
) -> Mapping[LeaseKey, tuple[LagRead, ...]]:
    parts = await all_of(*(_read_lags_of(key, leases, streams[key].stream, clock) for key in streams))
    return {key: read for part in parts for key, read in part.items()}


async def _read_lags_of(
    stream: StreamIdentifier | None, leases: Sequence[Lease], opened: Stream, clock: Clock
) -> Mapping[LeaseKey, tuple[LagRead, ...]]:
    here = [lease for lease in leases if lease.stream == stream and not lease.checkpoint.is_shard_end]
    try:
        lags = await measure_lags(opened, here)
    except NotFoundError:
        return {}  # the shard list shows whether the stream or the shards are gone
    except ServiceError as error:
        return {lease.key: (LagRead(at_ms=clock.now_ms(), problem=str(error)),) for lease in here}
    return {lag.lease.key: (_lag_read(lag, clock.now_ms()),) for lag in lags}


def _lag_read(lag: ShardLag, at_ms: int) -> LagRead:
    return LagRead(
        at_ms=at_ms,
        behind_ms=lag.millis_behind,
        is_trimmed=lag.is_trimmed,
        is_throttled=lag.is_throttled,
        problem=lag.note,
    )


async def _describe(named: NamedStream) -> StreamFacts:
    # The list must be read after the leases: an older one could miss the shards of newer leases.
    try:
        shards = tuple(await named.stream.list_shards())
        return StreamFacts(name=named.name, shards=shards, retention_ms=await named.stream.get_retention_ms())
    except NotFoundError:
        return StreamFacts(name=named.name, shards=None)
