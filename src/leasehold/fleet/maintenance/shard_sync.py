"""Keeps the lease table in step with the shards of one stream: creates missing leases and deletes finished ones.

The plans are made in `core.shards`. Any member may execute them at any time, because every creation and deletion is
conditional.

A row that cannot be parsed counts as the lease of the shard that its key names. It does not show whether that shard was
read to its end, so no lease is created for the shard and its descendants. All other shards are maintained as usual.
`RowRejected` names the row to repair.

A lease that is missing from a listing may be created, read, finished and deleted by other members meanwhile. So a
listing is used only for a while (`snapshot_max_age`), and finished leases stay for longer than that
(`finished_age_min`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.events import LeaseDeleted, ShardsSynced
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import InitialPosition, Lease, Shard, ShardId, have_same_stream_name
from leasehold.core.position import LATEST, TRIM_HORIZON
from leasehold.core.shards.archived_shards import ArchivedShard, plan_archived_leases, wait_for_archived
from leasehold.core.shards.lease_audit import Sightings, audit_leases
from leasehold.core.shards.lease_cleanup import EndedSince, next_ended_since, plan_cleanup
from leasehold.core.shards.lease_creation import (
    blocked_shards,
    initial_shard_filter,
    plan_first_leases,
    plan_missing_leases,
    refuse_mixed_streams,
    shards_of_leases,
)
from leasehold.core.shards.shard_graph import ShardGraph, format_shard_ids, shard_graph
from leasehold.errors import BlockedLeasesError, NotFoundError, ShardListError, UnavailableError
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable, list_leases
from leasehold.tasks import TRANSIENT_ERRORS, all_of, retry

T = TypeVar("T")

# A list that was read during a reshard may contradict itself for a moment.
LIST_ATTEMPTS_MAX: Final = 3
LIST_RETRY_MS: Final = 1_000
WAVE_SIZE_MAX: Final = 25  # more concurrent writes would only wait for connections
FAILED_ROUNDS_MAX: Final = 4  # in a row, without a single created lease


@dataclass(frozen=True, slots=True)
class ShardSync:
    """The leases of one stream."""

    table: LeaseTable
    tracked: TrackedStream
    settings: FleetSettings
    operations: Operations

    async def bootstrap(self) -> None:
        """Create the first leases if there are none. Members that start together may all do so.

        Raises BlockedLeasesError if rows that cannot be parsed keep some of them from being created; the others exist
        then. The caller must retry `create_blocked`, because the leader may not know the stream, and then no audit
        would find the missing leases.
        """
        began_ms = self.operations.clock.now_ms()
        listing = await self._list()
        refuse_mixed_streams(listing.leases, is_multi_stream=self.tracked.id is not None)
        ours = [lease for lease in listing.leases if lease.stream == self.tracked.id]
        if self._has_first_leases(listing) or (ours and not await self._list_archived()):
            return
        if listing.unreadable_shards(self.tracked.id):
            await self.create_blocked()
            return
        sync = self._from_oldest_record() if self._has_earlier_stream(listing) else self
        await sync.create_first(began_ms)

    async def create_first(self, listed_ms: int) -> None:
        """Create the first leases of a stream that had none at `listed_ms`, or only those of archived shards."""
        new, shards = await self._list_again_if_wrong(self._plan_first_leases)
        await self._create_archived(listed_ms, new)
        if await self._create(new, shards, listed_ms) < len(new):
            # Some of the first leases would otherwise count as all of them. Nothing was read yet, so nothing is lost.
            await self.sync(repair=False)

    async def _list_again_if_wrong(self, operation: Callable[[], Awaitable[T]]) -> T:
        return await retry(
            operation,
            clock=self.operations.clock,
            rng=self.operations.rng,
            errors=(ShardListError,),
            attempts_max=LIST_ATTEMPTS_MAX,
            pause_ms=LIST_RETRY_MS,
        )

    def _has_first_leases(self, listing: LeaseListing) -> bool:
        """Whether leases were created that show that those of archived shards were created before."""
        ours = (lease for lease in listing.leases if lease.stream == self.tracked.id)
        return any(lease.hash_range is not None for lease in ours)

    async def _create_archived(self, listed_ms: int, first: Sequence[Lease] | None = None) -> None:
        """Create the leases of shards that an archive still has, and that the stream no longer leads to.

        These are the shards that are neither of the first leases nor descend from one: a shard may be in the list of
        the stream for a while after its last record was trimmed. Without `first`, every listed shard gets its lease.

        Invariant: no other lease is created before all of them exist. So if others exist, none of these is missing.
        """
        archived = await self._list_archived()
        if not archived:
            return
        graph = await self._list_again_if_wrong(self._list_graph)
        others = graph.shards.keys() if first is None else shards_of_leases(graph, first)
        new = plan_archived_leases(archived, others, self.tracked.initial, stream=self.tracked.id)
        if await self._create(new, len(graph.shards), listed_ms) < len(new):
            raise UnavailableError(
                f"the leases of {len(new)} archived shards of stream {self.tracked.name} were not created in "
                f"{self.settings.snapshot_max_age}; is the lease table throttled?"
            )

    async def _list_graph(self) -> ShardGraph:
        return shard_graph(await self.tracked.stream.list_shards())

    async def _after_archived(self, new: tuple[Lease, ...], graph: ShardGraph) -> tuple[Lease, ...]:
        return wait_for_archived(new, graph, await self._list_archived()) if new else new

    async def _list_archived(self) -> Sequence[ArchivedShard]:
        initial = self.tracked.initial
        if initial.sentinel == LATEST:
            return ()
        return await self.tracked.stream.list_archived(initial.timestamp_ms)

    async def list_shards(self) -> Sequence[Shard]:
        """List the shards of the stream, and report it."""
        clock = self.operations.clock
        began_ms = clock.now_ms()
        shards = await self.tracked.stream.list_shards()
        self.operations.observe(ShardsSynced(len(shards), 0, clock.now_ms() - began_ms))
        return shards

    async def audit(self, before: Sightings, listing: LeaseListing, shards: Sequence[Shard]) -> Sightings:
        """Find hash keys that no lease covers. If there are some, create the missing leases."""
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

    def _has_earlier_stream(self, listing: LeaseListing) -> bool:
        """Whether the table has leases of an earlier stream with this name: the stream was deleted and created again.

        In a table of a single stream the keys do not show that; `StreamIdentity` does.
        """
        own = self.tracked.id
        return own is not None and any(
            lease.stream is not None and have_same_stream_name(lease.stream, own) for lease in listing.leases
        )

    def _from_oldest_record(self) -> ShardSync:
        """The same for a recreated stream: this fleet has read the stream until now, so it skips no record."""
        return replace(self, tracked=replace(self.tracked, initial=InitialPosition(TRIM_HORIZON)))

    async def create_blocked(self) -> None:
        """Create the missing leases. Raises BlockedLeasesError while rows that cannot be parsed block some of them."""
        began_ms = self.operations.clock.now_ms()
        if not self._has_first_leases(await self._list()):
            await self._create_archived(began_ms)
        if blocked := await self.sync():
            raise BlockedLeasesError(
                f"the leases of {len(blocked)} shards of stream {self.tracked.name} "
                f"({format_shard_ids(sorted(blocked))}) are not created: rows of the lease table cannot be read, and "
                "are their leases or those of their ancestors; repair or delete these rows (`leasehold leases` lists "
                "them)"
            )

    async def sync(self, *, repair: bool = True) -> frozenset[ShardId]:
        """Compare leases and shards, and create missing leases. Repeat it if that took too long to be still right.

        Return the shards for which rows that cannot be parsed forbid it.
        """
        failed_rounds = 0
        while failed_rounds < FAILED_ROUNDS_MAX:
            began_ms = self.operations.clock.now_ms()
            listing = await self._list()
            unreadable = listing.unreadable_shards(self.tracked.id)
            shards = await self._list_graph()
            missing = plan_missing_leases(
                shards,
                listing.leases,
                self.tracked.initial,
                stream=self.tracked.id,
                ignore_unexpected_children=self.settings.ignore_unexpected_child_shards,
                unreadable=unreadable,
                repair=repair,
            )
            new = await self._after_archived(missing, shards)
            present = await self._create(new, len(shards.shards), began_ms)
            if present == len(new):
                return blocked_shards(shards, unreadable)
            failed_rounds = 0 if present else failed_rounds + 1
        raise UnavailableError(
            f"the leases of stream {self.tracked.name}: none could be created in {FAILED_ROUNDS_MAX} rounds of "
            f"{self.settings.snapshot_max_age}; is the lease table throttled?"
        )

    async def clean_up(self, before: EndedSince, listing: LeaseListing, began_ms: int) -> EndedSince:
        """Delete leases that have been finished for a while and whose children are being read, oldest first.

        Takes and returns since when each finished lease is known. `began_ms` is from before the leases were listed.
        """
        ours = [lease for lease in listing.leases if lease.stream == self.tracked.id]
        ended = next_ended_since(before, ours, began_ms)
        if ended:
            await self._delete_finished(listing, ended, began_ms)
        return ended

    async def _plan_first_leases(self) -> tuple[tuple[Lease, ...], int]:
        """List the shards and plan their first leases. Return the plan and the number of shards."""
        listed = await self.tracked.stream.list_shards(initial_shard_filter(self.tracked.initial))
        if not listed:
            raise NotFoundError(f"stream {self.tracked.name} has no shards; is it still being created?")
        graph = shard_graph(listed)
        new = plan_first_leases(
            graph,
            self.tracked.initial,
            stream=self.tracked.id,
            ignore_unexpected_children=self.settings.ignore_unexpected_child_shards,
        )
        return await self._after_archived(new, graph), len(listed)

    async def _delete_finished(self, listing: LeaseListing, ended: EndedSince, now_ms: int) -> None:
        shards = await self._list_graph()
        keep_ms = milliseconds(self.settings.finished_age_min)
        just_finished = {key for key, since_ms in ended.items() if now_ms - since_ms < keep_ms}
        plan = plan_cleanup(
            listing.leases,
            shards,
            stream=self.tracked.id,
            just_finished=just_finished,
            unreadable=listing.unreadable_shards(self.tracked.id),
        )
        leases = {lease.key: lease for lease in listing.leases}
        for lease in plan.found_children:
            await self.table.set_children(leases[lease.key], lease.children)
        for deleted in plan.delete:
            if await self.table.delete(leases[deleted.key]):
                self.operations.observe(LeaseDeleted(deleted.key))

    async def _create(self, new: tuple[Lease, ...], shards: int, listed_ms: int) -> int:
        """Create leases until the listing is too old. Return how many of the leases exist now."""
        outcomes: list[bool] = []
        clock = self.operations.clock
        began_ms = clock.now_ms()
        until_ms = listed_ms + milliseconds(self.settings.snapshot_max_age)
        for wave in creation_waves(new):
            created = await self._create_together(wave, until_ms)
            outcomes += [outcome for outcome in created if outcome is not None]
            if None in created:
                break
        self.operations.observe(ShardsSynced(shards, sum(outcomes), clock.now_ms() - began_ms))
        return len(outcomes)

    async def _create_together(self, leases: Sequence[Lease], until_ms: int) -> list[bool | None]:
        return await all_of(*(self._create_one(lease, until_ms) for lease in leases))

    async def _create_one(self, lease: Lease, until_ms: int) -> bool | None:
        """Retry until the table responds. Return None if the time is over."""
        clock = self.operations.clock
        if clock.now_ms() >= until_ms:
            return None
        create = partial(self._create_now, lease)
        try:
            return await retry(create, clock=clock, rng=self.operations.rng, until_ms=until_ms)
        except TRANSIENT_ERRORS:
            return None

    async def _create_now(self, lease: Lease) -> bool:
        """Send one creation. A first lease at LATEST carries the time of its creation."""
        if lease.checkpoint == LATEST and lease.latest_at_ms is None:
            lease = replace(lease, latest_at_ms=self.operations.clock.wall_ms())
        return await self.table.create(lease)

    async def _list(self) -> LeaseListing:
        return await list_leases(self.table, self.operations.observe)


def creation_waves(leases: Sequence[Lease]) -> Iterator[list[Lease]]:
    """Split leases into waves that are created one after the other. No lease in a wave is the parent of another.

    Parents are created before their children, so that a crash in between is harmless.
    """
    wave: list[Lease] = []
    for lease in leases:
        if len(wave) == WAVE_SIZE_MAX or not lease.parents.isdisjoint(each.shard_id for each in wave):
            yield wave
            wave = []
        wave.append(lease)
    if wave:
        yield wave
