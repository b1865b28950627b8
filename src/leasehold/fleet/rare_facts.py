"""What a member learns rarely: from the lists of shards that audits make, from the rows that show the mode, and from a
few reads of its own.

These reads, each reported as a failed operation if it fails:

* the index of owners, by the leader only: one query every ten minutes, one a minute while it is not ready;
* the retention of a stream, if a shard is so far behind that records may be lost soon: every ten minutes at most;
* shards of which no event shows how far they are, at their checkpoint (`core.observing.rare_reads`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from leasehold.core.coordinator.fleet_mode import FleetRows
from leasehold.core.model import Lease, LeaseKey, StreamIdentifier
from leasehold.core.observing.explain.facts import LagRead, StreamFacts
from leasehold.core.observing.own_view import KnownTables
from leasehold.core.observing.rare_reads import UnmovedCheckpoint, leases_to_probe, next_unmoved
from leasehold.errors import NotFoundError, ThrottledError
from leasehold.fleet.operations import Operations
from leasehold.fleet.reading.checkpoint_probe import lag_read, probe_checkpoint
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.ports import Clock, Stream

RETENTION_KNOWN_FOR_MS: Final = 600_000
INDEX_KNOWN_FOR_MS: Final = 600_000
INDEX_CHECKED_AGAIN_MS: Final = 60_000  # while it is not ready


@dataclass(frozen=True, slots=True)
class _Listed:
    facts: StreamFacts
    until_ms: int


@dataclass(frozen=True, slots=True)
class _Retention:
    retention_ms: int
    read_ms: int


class RareFacts:
    """What one member has learned, and when."""

    def __init__(self, streams: Streams, clock: Clock) -> None:
        self._streams = streams
        self._clock = clock
        self._listed: dict[StreamIdentifier | None, _Listed] = {}
        self._retentions: dict[StreamIdentifier | None, _Retention] = {}
        self._unmoved: Mapping[LeaseKey, UnmovedCheckpoint] = {}
        self._probes: dict[LeaseKey, LagRead] = {}
        self._index_checked_ms: int | None = None
        self.tables = KnownTables()

    def note_stream(self, stream: StreamIdentifier | None, facts: StreamFacts, *, known_for_ms: int) -> None:
        """An audit has listed the shards of a stream, or has found that the stream is missing."""
        self._listed[stream] = _Listed(facts, self._clock.now_ms() + known_for_ms)

    def note_rows(self, found: FleetRows) -> None:
        """The member has read the rows that show the mode of its fleet."""
        has_two_layouts = found.has_coordinator_table and found.has_reports_in_lease_table
        self.tables = replace(self.tables, has_two_layouts=has_two_layouts)

    def streams(self, now_ms: int) -> Mapping[StreamIdentifier | None, StreamFacts]:
        """The streams, as far as something is known about them."""
        self._listed = {
            key: each
            for key, each in self._listed.items()
            if each.until_ms > now_ms and self._streams.knows(key)
        }
        found = {key: each.facts for key, each in self._listed.items()}
        for key, retention in self._retentions.items():
            known = found.get(key) or StreamFacts(name="", shards=None)
            found[key] = replace(known, retention_ms=retention.retention_ms)
        return found

    @property
    def probes(self) -> Mapping[LeaseKey, LagRead]:
        """What the reads at checkpoints have shown, while these checkpoints stand still."""
        return self._probes

    async def check_index(self, rows: CoordinatorRows, operations: Operations) -> None:
        """As the leader: find out whether the index of owners can be read."""
        now_ms = self._clock.now_ms()
        known_for_ms = INDEX_KNOWN_FOR_MS if self.tables.has_index else INDEX_CHECKED_AGAIN_MS
        if self._index_checked_ms is None or now_ms - self._index_checked_ms >= known_for_ms:
            self._index_checked_ms = now_ms
            await operations.attempt("check the index of owners", partial(self._check_index, rows))

    async def read_retentions(self, far_behind: Iterable[Lease], operations: Operations) -> None:
        """Read the retention of the streams of these leases."""
        now_ms = self._clock.now_ms()
        for lease in far_behind:
            known, stream = self._retentions.get(lease.stream), self._streams.of(lease)
            is_known = known is not None and now_ms - known.read_ms < RETENTION_KNOWN_FOR_MS
            if stream is not None and not is_known:
                read = partial(self._read_retention, lease.stream, stream)
                await operations.attempt(f"read the retention of {stream.name}", read)

    async def probe(self, unread: Sequence[Lease], operations: Operations) -> None:
        """Read some of these shards at their checkpoint. `unread`: all of which nobody knows how far they are."""
        now_ms = self._clock.now_ms()
        unmoved = next_unmoved(self._unmoved, unread, now_ms)
        for lease in leases_to_probe(unmoved, unread, now_ms):
            unmoved[lease.key] = replace(unmoved[lease.key], probed_ms=now_ms)
            if (tracked := self._streams.of(lease)) is not None:
                read = partial(self._probe, tracked.stream, lease)
                await operations.attempt(f"read {lease.key} at its checkpoint", read)
        self._unmoved = unmoved
        self._probes = {key: read for key, read in self._probes.items() if _is_of(unmoved.get(key), read)}

    async def _check_index(self, rows: CoordinatorRows) -> None:
        self.tables = replace(self.tables, has_index=await rows.has_index())

    async def _read_retention(self, key: StreamIdentifier | None, stream: TrackedStream) -> None:
        retention_ms = await stream.stream.get_retention_ms()
        self._retentions[key] = _Retention(retention_ms, self._clock.now_ms())

    async def _probe(self, stream: Stream, lease: Lease) -> None:
        try:
            lag = await probe_checkpoint(stream, lease, self._clock)
        except (NotFoundError, ThrottledError):
            return  # gone: the list of shards shows it; throttled: a later read succeeds
        self._probes[lease.key] = lag_read(lag, self._clock.now_ms())


def _is_of(unmoved: UnmovedCheckpoint | None, read: LagRead) -> bool:
    """Whether a read was made at the checkpoint that still stands."""
    return unmoved is not None and read.at_ms >= unmoved.since_ms
