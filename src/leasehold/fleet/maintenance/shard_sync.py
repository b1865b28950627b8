"""Leases for shards: makes those that are missing and removes those that are done with. The plans are `core`'s; any
member may carry them out at any time, because every creation and deletion is conditional.

While a row that may be of the stream cannot be read, nothing is created or deleted: it might be a parent, a child, or
the lease that seems to be missing, and to act as if it were not there would be a guess. `RowRejected` tells the
operator which row to repair.

What a look at the table was a reason to create may be created, read, finished and deleted by others in the meantime. So
a look is good for a while only (`snapshot_max_age`), and finished leases stay for longer than that (`keep_finished_for`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.backoff import backoff_ms
from leasehold.core.events import LeaseDeleted, Observer, ShardsSynced
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import Lease
from leasehold.core.position import LATEST
from leasehold.core.shards.lease_audit import Sightings, audit_leases
from leasehold.core.shards.lease_cleanup import EndedSince, next_ended_since, plan_cleanup
from leasehold.core.shards.lease_creation import (
    initial_shard_filter,
    plan_first_leases,
    plan_missing_leases,
    refuse_mixed_streams,
)
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import NotFoundError, ShardListError, ThrottledError, UnavailableError
from leasehold.fleet.streams import TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable, list_leases
from leasehold.ports import Clock

# A list that was read while the stream was resharded contradicts itself for a moment.
LIST_ATTEMPTS_MAX: Final = 3
LIST_AGAIN_AFTER_MS: Final = 1_000
WAVE_SIZE_MAX: Final = 25  # more would only wait for connections
FRUITLESS_ROUNDS_MAX: Final = 4  # in which not a single lease could be created


@dataclass(frozen=True, slots=True)
class ShardSync:
    """Keeps the lease table in step with the shards of one stream."""

    table: LeaseTable
    tracked: TrackedStream
    settings: FleetSettings
    clock: Clock
    rng: random.Random
    observe: Observer

    async def bootstrap(self) -> None:
        """Create the first leases if there are none. Members that start together may all do so.

        Raises UnavailableError where rows that cannot be read may be those leases, in a table of several streams: the
        stream must be tried again, as no leader may know it whose audit would find that it has none.
        """
        seen_ms = self.clock.now_ms()
        listing = await self._listing()
        refuse_mixed_streams(listing.leases, is_multi_stream=self.tracked.id is not None)
        if any(lease.stream == self.tracked.id for lease in listing.leases) or self._is_blocked(listing):
            return
        for attempt in range(1, LIST_ATTEMPTS_MAX + 1):
            listed = await self.tracked.stream.list_shards(initial_shard_filter(self.tracked.initial))
            if not listed:
                raise NotFoundError(f"stream {self.tracked.name} has no shards; is it still being created?")
            try:
                new = plan_first_leases(
                    shard_graph(listed),
                    self.tracked.initial,
                    stream=self.tracked.id,
                    ignore_unexpected_children=self.settings.ignore_unexpected_child_shards,
                )
            except ShardListError:
                if attempt == LIST_ATTEMPTS_MAX:
                    raise
                await self.clock.sleep_ms(LIST_AGAIN_AFTER_MS)
            else:
                if await self._create(new, len(listed), seen_ms) < len(new):
                    await self.sync()  # half of the first leases would pass for all of them
                return

    def _is_blocked(self, listing: LeaseListing) -> bool:
        unreadable = listing.unreadable_of(self.tracked.id)
        if unreadable and self.tracked.id is not None:
            raise UnavailableError(
                f"the leases of stream {self.tracked.name} are not created: {unreadable[0]}, and may be one of them; "
                "repair or delete it"
            )
        return bool(unreadable)

    async def audit(self, before: Sightings, listing: LeaseListing) -> Sightings:
        """Look for hash keys that nobody reads; list the shards and create what is missing if there are some."""
        if listing.unreadable_of(self.tracked.id):
            return before
        began_ms = self.clock.now_ms()
        shards = await self.tracked.stream.list_shards()
        self.observe(ShardsSynced(len(shards), 0, self.clock.now_ms() - began_ms))
        audit = audit_leases(
            listing.leases,
            before,
            stream=self.tracked.id,
            known_ranges={shard.id: shard.hash_range for shard in shards},
            sightings_needed=self.settings.audit_confirmations,
        )
        for lease in audit.found_ranges:
            assert lease.hash_range is not None
            await self.table.set_hash_range(lease, lease.hash_range)
        if audit.sync_now:
            await self.sync()
        return audit.sightings

    async def sync(self) -> None:
        """Compare leases and shards, and create what is missing; again, if that took too long to be still right."""
        fruitless = 0
        while fruitless < FRUITLESS_ROUNDS_MAX:
            seen_ms = self.clock.now_ms()
            listing = await self._listing()
            if listing.unreadable_of(self.tracked.id):
                return
            shards = shard_graph(await self.tracked.stream.list_shards())
            new = plan_missing_leases(
                shards,
                listing.leases,
                self.tracked.initial,
                stream=self.tracked.id,
                ignore_unexpected_children=self.settings.ignore_unexpected_child_shards,
            )
            settled = await self._create(new, len(shards.shards), seen_ms)
            if settled == len(new):
                return
            fruitless = 0 if settled else fruitless + 1
        raise UnavailableError(
            f"the leases of stream {self.tracked.name}: none could be created in {FRUITLESS_ROUNDS_MAX} rounds of "
            f"{self.settings.snapshot_max_age}; is the lease table throttled?"
        )

    async def clean_up(self, before: EndedSince, listing: LeaseListing, seen_ms: int) -> EndedSince:
        """Delete leases that have been finished for a while and whose children are being read, oldest first.

        Takes and returns what is remembered of finished leases. `seen_ms` is from before the leases were listed.
        """
        ours = [lease for lease in listing.leases if lease.stream == self.tracked.id]
        ended = next_ended_since(before, ours, seen_ms)
        if ended and not listing.unreadable_of(self.tracked.id):
            await self._delete_finished(listing, ended, seen_ms)
        return ended

    async def _delete_finished(self, listing: LeaseListing, ended: EndedSince, now_ms: int) -> None:
        shards = shard_graph(await self.tracked.stream.list_shards())
        young_ms = milliseconds(self.settings.keep_finished_for)
        just_finished = {key for key, since_ms in ended.items() if now_ms - since_ms < young_ms}
        plan = plan_cleanup(listing.leases, shards, stream=self.tracked.id, just_finished=just_finished)
        leases = {lease.key: lease for lease in listing.leases}
        for lease in plan.found_children:
            await self.table.set_children(leases[lease.key], lease.children)
        for deleted in plan.delete:
            if await self.table.delete(leases[deleted.key]):
                self.observe(LeaseDeleted(deleted.key))

    async def _create(self, new: tuple[Lease, ...], shards: int, seen_ms: int) -> int:
        """Create leases for as long as what was seen is a reason to. Returns how many of them are there now."""
        outcomes: list[bool] = []
        began_ms = self.clock.now_ms()
        for wave in creation_waves(new):
            created = await self._create_together(
                wave, seen_ms + milliseconds(self.settings.snapshot_max_age)
            )
            outcomes += [outcome for outcome in created if outcome is not None]
            if None in created:
                break
        self.observe(ShardsSynced(shards, sum(outcomes), self.clock.now_ms() - began_ms))
        return len(outcomes)

    async def _create_together(self, leases: Sequence[Lease], until_ms: int) -> list[bool | None]:
        tries = (self._create_one(lease, until_ms) for lease in leases)
        created: list[bool | None] = []
        # All are waited for, whatever one of them raises: none may run on behind our back.
        for outcome in await asyncio.gather(*tries, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            created.append(outcome)
        return created

    async def _create_one(self, lease: Lease, until_ms: int) -> bool | None:
        """Try until it is answered, or until the time is over (None)."""
        attempt = 0
        while self.clock.now_ms() < until_ms:
            try:
                return await self.table.create(self._dated(lease))
            except (ThrottledError, UnavailableError):
                await self.clock.sleep_ms(backoff_ms(attempt, self.rng.random()))
                attempt += 1
        return None

    def _dated(self, lease: Lease) -> Lease:
        return replace(lease, latest_at_ms=self.clock.wall_ms()) if lease.checkpoint == LATEST else lease

    async def _listing(self) -> LeaseListing:
        return await list_leases(self.table, self.observe)


def creation_waves(leases: Sequence[Lease]) -> Iterator[list[Lease]]:
    """Leases that may be created at the same time, wave by wave. The order of age is kept between parent and child, so
    that a crash half-way is harmless; to each other, the leases of a wave are strangers.
    """
    wave: list[Lease] = []
    for lease in leases:
        if len(wave) == WAVE_SIZE_MAX or not lease.parents.isdisjoint(each.shard_id for each in wave):
            yield wave
            wave = []
        wave.append(lease)
    if wave:
        yield wave
