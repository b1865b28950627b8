"""Leases for shards: makes those that are missing and removes those that are done with. The plans are `core`'s; any
member may carry them out at any time, because every creation and deletion is conditional.

While a row cannot be read, nothing is created or deleted: it might be a parent, a child, or the lease that seems to be
missing, and to act as if it were not there would be a guess. `RowRejected` tells the operator which row to repair.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from leasehold.core.backoff import backoff_ms
from leasehold.core.events import LeaseDeleted, Observe, RowRejected, ShardsSynced
from leasehold.core.lease_audit import Sightings, audit_leases
from leasehold.core.lease_cleanup import plan_cleanup
from leasehold.core.lease_creation import first_shard_filter, plan_first_leases, plan_missing_leases
from leasehold.core.lease_row import LeaseListing
from leasehold.core.model import InitialPosition, Lease
from leasehold.core.position import LATEST
from leasehold.core.shard_graph import shard_graph
from leasehold.errors import NotFoundError, ShardListError, ThrottledError, UnavailableError
from leasehold.fleet.lease_table import LeaseTable
from leasehold.ports import Clock, Stream
from leasehold.settings import FleetSettings

# A list that was read while the stream was resharded contradicts itself for a moment.
LIST_ATTEMPTS_MAX: Final = 3
LIST_AGAIN_AFTER_MS: Final = 1_000
CREATE_ATTEMPTS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class ShardSync:
    """Keeps the lease table in step with the shards of one stream."""

    table: LeaseTable
    stream: Stream
    stream_name: str
    initial: InitialPosition
    settings: FleetSettings
    clock: Clock
    rng: random.Random
    observe: Observe

    async def bootstrap(self) -> None:
        """Create the first leases if there are none. Members that start together may all do so."""
        listing = await self._listing()
        if listing.leases or listing.rejected:
            return
        for attempt in range(1, LIST_ATTEMPTS_MAX + 1):
            listed = await self.stream.list_shards(first_shard_filter(self.initial))
            if not listed:
                raise NotFoundError(f"stream {self.stream_name} has no shards; is it still being created?")
            try:
                new = plan_first_leases(
                    shard_graph(listed),
                    self.initial,
                    ignore_unexpected_children=self.settings.ignore_unexpected_child_shards,
                )
            except ShardListError:
                if attempt == LIST_ATTEMPTS_MAX:
                    raise
                await self.clock.sleep_ms(LIST_AGAIN_AFTER_MS)
            else:
                await self._create(new, len(listed))
                return

    async def audit(self, before: Sightings, *, workers: int) -> Sightings:
        """Look for hash keys that nobody reads; list the shards and create what is missing if there are some.

        In a fleet of many, about two members do this each time; which ones is left to chance.
        """
        if workers > 2 and self.rng.random() > 2 / workers:
            return before
        listing = await self._listing()
        if listing.rejected:
            return before
        began_ms = self.clock.now_ms()
        shards = await self.stream.list_shards()
        self.observe(ShardsSynced(len(shards), 0, self.clock.now_ms() - began_ms))
        audit = audit_leases(
            listing.leases,
            before,
            known_ranges={shard.id: shard.hash_range for shard in shards},
            sightings_needed=self.settings.audit_sightings,
        )
        for lease in audit.filled:
            assert lease.hash_range is not None
            await self.table.set_hash_range(lease, lease.hash_range)
        if audit.sync_now:
            await self.sync()
        return audit.sightings

    async def sync(self) -> None:
        """Compare leases and shards, and create what is missing."""
        listing = await self._listing()
        if listing.rejected:
            return
        leases = listing.leases
        shards = shard_graph(await self.stream.list_shards())
        new = plan_missing_leases(
            shards,
            leases,
            self.initial,
            ignore_unexpected_children=self.settings.ignore_unexpected_child_shards,
        )
        await self._create(new, len(shards.shards))

    async def clean_up(self, *, workers: int) -> None:
        """Delete finished leases whose children are being read, oldest first."""
        if workers > 2 and self.rng.random() > 2 / workers:
            return
        listing = await self._listing()
        if listing.rejected or not any(lease.checkpoint.is_shard_end for lease in listing.leases):
            return
        shards = shard_graph(await self.stream.list_shards())
        plan = plan_cleanup(listing.leases, shards)
        leases = {lease.key: lease for lease in listing.leases}
        for lease in plan.learned:
            await self.table.set_children(leases[lease.key], lease.children)
        for deleted in plan.delete:
            if await self.table.delete(leases[deleted.key]):
                self.observe(LeaseDeleted(deleted.key))

    async def _create(self, new: tuple[Lease, ...], shards: int) -> None:
        created, began_ms = 0, self.clock.now_ms()
        for lease in new:  # one after the other: the order makes a crash half-way harmless
            created += await self._create_one(lease)
        self.observe(ShardsSynced(shards, created, self.clock.now_ms() - began_ms))

    async def _create_one(self, lease: Lease) -> bool:
        """Until it is answered: half of the first leases would pass for all of them, and the rest go unread."""
        for attempt in count():
            try:
                return await self.table.create(self._dated(lease))
            except (ThrottledError, UnavailableError):
                if attempt == CREATE_ATTEMPTS_MAX:
                    raise
                await self.clock.sleep_ms(backoff_ms(attempt, self.rng.random()))
        raise AssertionError("unreachable: counting does not end")

    def _dated(self, lease: Lease) -> Lease:
        return replace(lease, latest_at_ms=self.clock.wall_ms()) if lease.checkpoint == LATEST else lease

    async def _listing(self) -> LeaseListing:
        listing = await self.table.list()
        for error in listing.rejected:
            self.observe(RowRejected(error.key, error.problem))
        return listing
