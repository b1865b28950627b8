"""Looks after the leases of all streams of a member: sees that each stream has some, audits them, cleans up.

Each stream is tended by itself: what fails with one is told, tried again, and no matter to the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from leasehold.config.settings import FleetSettings
from leasehold.core.events import Observer, OperationFailed, with_stream
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.shards.lease_audit import Sightings
from leasehold.core.shards.lease_cleanup import EndedSince
from leasehold.core.shards.lease_creation import refuse_mixed_streams
from leasehold.errors import ConfigError, LeaseholdError
from leasehold.fleet.maintenance.shard_sync import ShardSync
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable, list_leases

# A stream that could not be found at the start is looked for again this often.
JOIN_RETRY_MS: Final = 30_000
CHECK_KEY_FORMAT: Final = "see that all leases are of one kind"


@dataclass(slots=True)
class _Tended:
    """One stream, and what is remembered of its leases."""

    sync: ShardSync
    audited: Sightings = field(default_factory=Sightings)
    ended: EndedSince = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A look at the table, and when it began."""

    listing: LeaseListing
    seen_ms: int


class LeaseMaintenance:
    """The leases of all streams of one member."""

    def __init__(
        self, table: LeaseTable, streams: Streams, settings: FleetSettings, operations: Operations
    ) -> None:
        self._table = table
        self._streams = streams
        self._settings = settings
        self._operations = operations
        self._tended: dict[str, _Tended] = {}

    async def join(self) -> None:
        """See that every stream has leases. Raises only if there is none for which that worked."""
        failures: dict[str, LeaseholdError] = {}
        for tracked in self._waiting():
            try:
                await self._join(tracked)
            except ConfigError:
                raise
            except LeaseholdError as error:
                failures[tracked.name] = error
        if failures and not self._tended:
            raise next(iter(failures.values()))
        for name, failure in failures.items():
            self._operations.observe(OperationFailed(f"join stream {name}", str(failure)))

    async def join_rest(self) -> None:
        """Go on looking for streams that could not be found at the start, until there are no more."""
        while self._waiting():
            await self._operations.clock.sleep_ms(JOIN_RETRY_MS)
            for tracked in self._waiting():
                await self._operations.attempt(f"join stream {tracked.name}", partial(self._join, tracked))

    async def audit(self, maintainers: int) -> None:
        """Look for shards that nobody reads. Of `tenders` members, about two do this each time, by chance."""
        if (seen := await self._look("audit", maintainers)) is not None:
            self._tell_of_mixture(seen.listing)
            await self._tend("audit", partial(self._audit, seen))

    async def clean_up(self, maintainers: int) -> None:
        """Delete leases that are done with. Of `tenders` members, about two do this each time, by chance."""
        if (seen := await self._look("clean up", maintainers)) is not None:
            await self._tend("clean up", partial(self._clean_up, seen))

    def _waiting(self) -> list[TrackedStream]:
        return [each for each in self._streams.tracked if each.name not in self._tended]

    async def _join(self, tracked: TrackedStream) -> None:
        tracked = await self._streams.identify(tracked)
        operations, observe = self._operations, self._observe_of(tracked)
        sync = ShardSync(self._table, tracked, self._settings, operations.clock, operations.rng, observe)
        await sync.bootstrap()
        self._tended[tracked.name] = _Tended(sync)

    def _observe_of(self, tracked: TrackedStream) -> Observer:
        return with_stream(tracked.id, self._operations.observe)

    async def _look(self, name: str, maintainers: int) -> _Seen | None:
        """One look at the table for all streams; None if it is the turn of others, or fails."""
        if not maintainers or (maintainers > 2 and self._operations.rng.random() > 2 / maintainers):
            return None
        seen_ms = self._operations.clock.now_ms()
        try:
            return _Seen(await list_leases(self._table, self._operations.observe), seen_ms)
        except LeaseholdError as error:
            self._operations.observe(OperationFailed(name, str(error)))
            return None

    async def _tend(self, name: str, tend: Callable[[_Tended], Awaitable[None]]) -> None:
        for each in list(self._tended.values()):  # others may join meanwhile
            await self._operations.attempt(name, partial(tend, each))

    def _tell_of_mixture(self, listing: LeaseListing) -> None:
        """Members of both kinds that start together on an empty table do not see each other's leases.

        A fleet that works is not stopped for that, since a stray row would do, but it is told with every audit.
        """
        try:
            refuse_mixed_streams(listing.leases, is_multi_stream=self._streams.is_multi_stream)
        except ConfigError as error:
            self._operations.observe(OperationFailed(CHECK_KEY_FORMAT, str(error)))

    async def _audit(self, seen: _Seen, tended: _Tended) -> None:
        tended.audited = await tended.sync.audit(tended.audited, seen.listing)

    async def _clean_up(self, seen: _Seen, tended: _Tended) -> None:
        tended.ended = await tended.sync.clean_up(tended.ended, seen.listing, seen.seen_ms)
