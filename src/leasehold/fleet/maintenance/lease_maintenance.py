"""Maintains the leases of all streams of a member: creates the first leases, audits them, deletes finished ones.

Each stream is maintained by itself. A failure with one stream is reported and retried, and does not affect the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.events import LeaseDeleted, OperationFailed
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import Shard
from leasehold.core.observing.explain.facts import StreamFacts
from leasehold.core.shards.followed_streams import UnusedLeases, leases_to_delete, next_unused
from leasehold.core.shards.lease_audit import Sightings
from leasehold.core.shards.lease_cleanup import EndedSince
from leasehold.core.shards.lease_creation import refuse_mixed_streams
from leasehold.errors import (
    BlockedLeasesError,
    ConfigError,
    LeaseholdError,
    NotFoundError,
    RecreatedStreamError,
)
from leasehold.fleet.maintenance.shard_sync import ShardSync
from leasehold.fleet.maintenance.stream_identity import StreamIdentity
from leasehold.fleet.operations import Operations
from leasehold.fleet.rare_facts import RareFacts
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable, list_leases
from leasehold.tasks import first_of

# How often a member tries again to join a stream that it could not join at its start.
JOIN_RETRY_MS: Final = 30_000
CHECK_KEY_FORMAT: Final = "check that all lease keys have one format"
DELETE_FORMER: Final = "delete leases of former streams"
AUDITS_KNOWN_FOR: Final = 2.5  # times the interval of audits, so one that fails ends no finding
# About so many members run each audit and clean-up, chosen by chance.
_MAINTAINERS_WANTED: Final = 2


@dataclass(slots=True)
class _MaintainedStream:
    """One stream, and what is remembered of its leases."""

    sync: ShardSync
    identity: StreamIdentity
    is_complete: bool = (
        True  # False while rows that cannot be parsed keep some of its first leases from being created
    )
    sightings: Sightings = field(default_factory=Sightings)
    ended_since: EndedSince = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Listing:
    """All leases, and when the read began."""

    leases: LeaseListing
    began_ms: int


class LeaseMaintenance:
    """The leases of all streams of one member."""

    def __init__(
        self,
        table: LeaseTable,
        streams: Streams,
        settings: FleetSettings,
        operations: Operations,
        rare: RareFacts | None = None,
    ) -> None:
        self._table = table
        self._streams = streams
        self._settings = settings
        self._operations = operations
        self._rare = rare
        self._maintained: dict[str, _MaintainedStream] = {}
        self._unused: UnusedLeases = {}

    async def join(self) -> None:
        """Create the first leases of every stream. Raises only if this failed for all streams."""
        failures: dict[str, LeaseholdError] = {}
        for tracked in self._not_joined():
            try:
                await self._join(tracked)
            except (ConfigError, RecreatedStreamError):
                raise
            except LeaseholdError as error:
                failures[tracked.name] = error
        if failures and not self._maintained:
            raise next(iter(failures.values()))
        for name, failure in failures.items():
            self._operations.report_failure(f"join stream {name}", failure)

    async def join_rest(self) -> None:
        """Join the streams that could not be joined at the start and those that are discovered, until cancelled."""
        while True:
            waits: list[Coroutine[Any, Any, object]] = [self._streams.changed.wait()]
            if self._not_joined() or self._incomplete():
                waits.append(self._operations.clock.sleep_ms(JOIN_RETRY_MS))
            await first_of(*waits)
            self._streams.changed.clear()
            for tracked in self._not_joined():
                await self._operations.attempt(f"join stream {tracked.name}", partial(self._join, tracked))
            for name, each in self._incomplete().items():
                each.is_complete = await self._operations.attempt(
                    f"join stream {name}", each.sync.create_blocked
                )

    async def audit(self, maintainers: int) -> None:
        """Find shards that no member reads. Of `maintainers` members, chance picks about two each time."""
        if (listing := await self._list("audit", maintainers)) is not None:
            self._report_mixed_streams(listing.leases)
            await self._for_each_stream("audit", partial(self._audit, listing))

    async def check_identities(self) -> None:
        """Check whether streams were deleted and created again. Raises RecreatedStreamError if the settings say so."""
        if (listing := await self._list("check streams", 1)) is not None:
            await self._for_each_stream("check streams", partial(self._check_identity, listing))

    async def clean_up(self, maintainers: int) -> None:
        """Delete leases of finished shards. Of `maintainers` members, chance picks about two each time."""
        if (listing := await self._list("clean up", maintainers)) is not None:
            if self._settings.clean_up:
                await self._for_each_stream("clean up", partial(self._clean_up, listing))
            await self._operations.attempt(DELETE_FORMER, partial(self._delete_former, listing))

    def _not_joined(self) -> list[TrackedStream]:
        self._maintained = {
            name: each for name, each in self._maintained.items() if self._streams.has(each.sync.tracked)
        }
        return [each for each in self._streams.tracked if each.name not in self._maintained]

    def _incomplete(self) -> dict[str, _MaintainedStream]:
        return {name: each for name, each in self._maintained.items() if not each.is_complete}

    async def _join(self, tracked: TrackedStream) -> None:
        tracked = await self._streams.identify(tracked)
        operations = self._operations.for_stream(tracked.id)
        sync = ShardSync(self._table, tracked, self._settings, operations)
        identity = StreamIdentity(self._table, tracked, self._settings, operations)
        await self._operations.attempt(f"check stream {tracked.name}", partial(self._check_first, identity))
        is_complete = True
        try:
            await sync.bootstrap()
        except BlockedLeasesError as error:
            is_complete = False  # the other leases exist, and are read meanwhile
            self._operations.report_failure(f"join stream {tracked.name}", error)
        self._maintained[tracked.name] = _MaintainedStream(sync, identity, is_complete)

    async def _check_first(self, identity: StreamIdentity) -> None:
        await identity.check(await list_leases(self._table, self._operations.observe), is_start=True)

    async def _list(self, name: str, maintainers: int) -> _Listing | None:
        """Read the leases once for all streams. None if it is the turn of other members, or if the read fails."""
        is_crowded = maintainers > _MAINTAINERS_WANTED
        if not maintainers:
            return None
        if is_crowded and self._operations.rng.random() > _MAINTAINERS_WANTED / maintainers:
            return None
        began_ms = self._operations.clock.now_ms()
        try:
            return _Listing(await list_leases(self._table, self._operations.observe), began_ms)
        except LeaseholdError as error:
            self._operations.report_failure(name, error)
            return None

    async def _for_each_stream(
        self, name: str, maintain: Callable[[_MaintainedStream], Awaitable[None]]
    ) -> None:
        for each in list(self._maintained.values()):  # a copy: `join_rest` may add streams meanwhile
            if self._streams.has(each.sync.tracked):
                await self._operations.attempt(name, partial(maintain, each))

    def _report_mixed_streams(self, leases: LeaseListing) -> None:
        """Report lease keys of both formats: those of one stream and those of several.

        Members of both kinds that start together on an empty table do not see each other's leases. A running fleet is
        not stopped for that, because a single stray row would be enough, but every audit reports it.
        """
        try:
            refuse_mixed_streams(leases.leases, is_multi_stream=self._streams.is_multi_stream)
        except ConfigError as error:
            self._operations.observe(OperationFailed(CHECK_KEY_FORMAT, str(error)))

    async def _check_identity(self, listing: _Listing, stream: _MaintainedStream) -> None:
        await stream.identity.check(listing.leases)

    async def _audit(self, listing: _Listing, stream: _MaintainedStream) -> None:
        try:
            shards = await stream.sync.list_shards()
        except NotFoundError:
            self._note_list(stream.sync.tracked, listing, None)
            raise
        self._note_list(stream.sync.tracked, listing, shards)
        await stream.identity.check(listing.leases, shards)
        stream.sightings = await stream.sync.audit(stream.sightings, listing.leases, shards)

    def _note_list(self, tracked: TrackedStream, listing: _Listing, shards: Sequence[Shard] | None) -> None:
        """Keep the list for the findings of this member until two more audits should have been made."""
        if self._rare is None:
            return
        facts = StreamFacts(
            name=tracked.name,
            shards=None if shards is None else tuple(shards),
            is_missing=shards is None,
            leases_at_list=tuple(listing.leases.leases),
        )
        known_for_ms = int(AUDITS_KNOWN_FOR * milliseconds(self._settings.audit_every))
        self._rare.note_stream(tracked.id, facts, known_for_ms=known_for_ms)

    async def _delete_former(self, listing: _Listing) -> None:
        """Delete leases of streams that are not followed, if the settings say so and no member writes to them."""
        wait = self._settings.delete_former_streams_after
        # A stream that is not identified yet is unknown, so its leases would seem to be those of a former stream.
        if wait is None or not self._streams.is_multi_stream or self._not_joined():
            return
        leases = listing.leases.leases
        self._unused = next_unused(self._unused, leases, self._streams.identifiers, listing.began_ms)
        for lease in leases_to_delete(self._unused, leases, listing.began_ms, milliseconds(wait)):
            if await self._table.delete_unused(lease):
                self._operations.observe(LeaseDeleted(lease.key))

    async def _clean_up(self, listing: _Listing, stream: _MaintainedStream) -> None:
        stream.ended_since = await stream.sync.clean_up(stream.ended_since, listing.leases, listing.began_ms)
