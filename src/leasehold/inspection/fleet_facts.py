"""Reads the facts from which `explain_fleet` makes sentences: the tables twice, the streams, the lags, `/health`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leasehold.config.settings import Mode
from leasehold.core.coordinator.fleet_mode import FleetMode, FleetRows, resolve_mode
from leasehold.core.finding import Finding
from leasehold.core.model import Lease, LeaseKey, StreamIdentifier
from leasehold.core.observing.explain.facts import FleetFacts, LagRead, StreamFacts, TableRead
from leasehold.errors import NotFoundError, ServiceError
from leasehold.fleet.reading.checkpoint_probe import lag_read
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.inspection.lag_probe import measure_lags
from leasehold.ports import Clock, Stream
from leasehold.tasks import all_of


@dataclass(frozen=True, slots=True)
class NamedStream:
    """A stream and its name."""

    name: str
    stream: Stream


Streams = Mapping[StreamIdentifier | None, NamedStream]


@dataclass(frozen=True, slots=True)
class FleetLayout:
    """How the fleet is led, and in which tables its rows are."""

    mode: FleetMode
    has_leader: bool
    has_two_layouts: bool

    def has_begun(self, read: TableRead) -> bool:
        """Whether a newer read shows the first rows of a leader: then this layout is out of date."""
        return self.mode.has_leader and not self.has_leader and bool(read.lock or read.reports)


async def read_facts(
    table: LeaseTable,
    streams: Streams,
    clock: Clock,
    *,
    watch_ms: int,
    application: str,
    worker_findings: Mapping[str, tuple[Finding, ...]] | None = None,
    worker_idle_ms: Mapping[str, int] | None = None,
) -> FleetFacts:
    """Read the fleet twice, `watch_ms` apart."""
    layout = await find_layout(table, application)
    before = await read_table(table, layout.mode, clock)
    first = await read_lags(before.leases, streams, clock)
    await clock.sleep_ms(max(0, watch_ms - (clock.now_ms() - before.at_ms)))
    after = await read_table(table, layout.mode, clock)
    second = await read_lags(after.leases, streams, clock)
    return FleetFacts(
        before=before,
        after=after,
        wall_s=clock.wall_ms() // 1000,
        has_leader=layout.has_leader,
        has_index=await table.coordinator_rows.has_index() if layout.mode.has_leader else True,
        has_two_layouts=layout.has_two_layouts,
        streams={key: await describe_stream(stream) for key, stream in streams.items()},
        lags={key: (first[key], read) if key in first else (read,) for key, read in second.items()},
        worker_findings=worker_findings or {},
        worker_idle_ms=worker_idle_ms,
    )


async def find_layout(table: LeaseTable, application: str) -> FleetLayout:
    """Find out how the fleet is led. Scans the table once. Raises ConfigError for rows that no KCL writes."""
    found = await table.coordinator_rows.find(must_know=False)
    mode = resolve_mode(found, Mode.AUTO, application)
    return FleetLayout(
        mode=mode,
        has_leader=mode.has_leader and _has_rows_of_leader(found),
        has_two_layouts=found.has_coordinator_table and found.has_reports_in_lease_table,
    )


def _has_rows_of_leader(found: FleetRows) -> bool:
    """Whether a member has written such rows. Without them, the mode is only what a first member would choose."""
    return found.has_lock or found.has_reports or found.has_coordinator_table or found.migration is not None


async def read_table(table: LeaseTable, mode: FleetMode, clock: Clock) -> TableRead:
    """Read all rows of the fleet once."""
    at_ms = clock.now_ms()
    snapshot = await table.coordinator_rows.read_snapshot(mode)
    return TableRead(
        at_ms=at_ms,
        leases=tuple(snapshot.leases.leases),
        rejected=tuple(snapshot.leases.rejected),
        lock=snapshot.lock,
        reports=snapshot.reports.reports,
    )


async def read_lags(leases: Sequence[Lease], streams: Streams, clock: Clock) -> Mapping[LeaseKey, LagRead]:
    """Measure the lag of each of these leases once, as far as its stream is known."""
    parts = await all_of(*(_read_lags_of(key, leases, streams[key].stream, clock) for key in streams))
    return {key: read for part in parts for key, read in part.items()}


async def _read_lags_of(
    stream: StreamIdentifier | None, leases: Sequence[Lease], opened: Stream, clock: Clock
) -> Mapping[LeaseKey, LagRead]:
    here = [lease for lease in leases if lease.stream == stream and not lease.checkpoint.is_shard_end]
    try:
        lags = await measure_lags(opened, here, clock)
    except NotFoundError:
        return {}  # the shard list shows whether the stream or the shards are gone
    except ServiceError as error:
        return {lease.key: LagRead(at_ms=clock.now_ms(), problem=str(error)) for lease in here}
    return {lag.lease.key: lag_read(lag, clock.now_ms()) for lag in lags}


async def describe_stream(named: NamedStream) -> StreamFacts:
    """List the shards of a stream.

    The list must be read after the leases: an older one could miss the shards of newer leases.
    """
    try:
        shards = tuple(await named.stream.list_shards())
        return StreamFacts(name=named.name, shards=shards, retention_ms=await named.stream.get_retention_ms())
    except NotFoundError:
        return StreamFacts(name=named.name, shards=None, is_missing=True)
