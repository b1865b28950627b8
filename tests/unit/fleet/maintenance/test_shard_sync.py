"""Creating and deleting leases when a member is slow, and its decision is out of date when it acts."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.leases.row_writes import DeleteRow, PutRow, RowWrite
from leasehold.core.model import (
    HASH_KEY_MAX,
    HashRange,
    InitialPosition,
    Lease,
    Shard,
    ShardId,
    StreamIdentifier,
    lease_key,
)
from leasehold.core.position import LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.archived_shards import ArchivedShard, plan_archived_leases
from leasehold.core.shards.lease_audit import Sightings
from leasehold.core.shards.lease_cleanup import EndedSince
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import BlockedLeasesError, UnavailableError
from leasehold.fleet.maintenance.shard_sync import WAVE_SIZE_MAX, ShardSync, creation_waves
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Applied, Refused, RowStore
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from tests.unit.fleet.world import ListedStream, even_shards

SETTINGS = FleetSettings()
STAY_MS = milliseconds(SETTINGS.finished_age_min)
(PARENT,) = even_shards(1)
CHILDREN = [
    replace(PARENT, id=ShardId(f"shardId-00000000000{number}"), hash_range=keys, parents=(PARENT.id,))
    for number, keys in ((1, HashRange(0, 99)), (2, HashRange(100, HASH_KEY_MAX)))
]
ORDERS, RETURNS = (StreamIdentifier(f"000000000000:{name}:1700000000") for name in ("orders", "returns"))
AFTER_THE_SPLIT = [replace(PARENT, ending_sequence_number="900"), *CHILDREN]


class _HeldUp(ListedStream):
    """A stream whose first listing takes very long. In that time others finish the shard and clean up."""

    def __init__(self, rows: RowStore, clock: VirtualClock) -> None:
        super().__init__([PARENT])
        self._table = LeaseTable(rows)
        self._clock = clock

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        listed = await super().list_shards(shard_filter)
        if self.listed == 1:
            await self._clock.sleep_ms(STAY_MS)
            self.shards = list(AFTER_THE_SPLIT)
            for child in CHILDREN:
                await self._table.create(_lease(child, Position("1000")))
        return listed


class _SlowRows(MemoryRows):
    """A store whose writes take some time."""

    under_way = 0
    under_way_max = 0

    async def write(self, write: RowWrite) -> Applied | Refused:
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        await asyncio.sleep(0.02)
        self.under_way -= 1
        return await super().write(write)


def _sync(
    rows: RowStore, stream: ListedStream, clock: VirtualClock, *, one_of: StreamIdentifier | None = None
) -> ShardSync:
    return ShardSync(
        table=LeaseTable(rows),
        tracked=TrackedStream("orders", stream, InitialPosition(TRIM_HORIZON), one_of),
        settings=SETTINGS,
        operations=Operations(clock, random.Random(1), lambda _: None),
    )


async def _cleaned_up(sync: ShardSync, before: EndedSince) -> EndedSince:
    return await sync.clean_up(before, await sync.table.list(), sync.operations.clock.now_ms())


def _lease(shard: Shard, at: Position, children: Sequence[Shard] = ()) -> Lease:
    return Lease(
        key=lease_key(shard.id),
        shard_id=shard.id,
        checkpoint=at,
        parents=frozenset(shard.parents),
        children=frozenset(child.id for child in children),
        hash_range=shard.hash_range,
    )


async def _shards_with_lease(table: LeaseTable) -> set[ShardId]:
    return {lease.shard_id for lease in (await table.list()).leases}


def test_a_delayed_member_does_not_recreate_the_lease_of_a_finished_shard() -> None:
    """It saw an empty table and one shard. Before it can write, others have read that shard to its end."""

    async def scenario() -> None:
        rows, clock = MemoryRows(), VirtualClock()
        sync = _sync(rows, _HeldUp(rows, clock), clock)
        await sync.bootstrap()
        assert await _shards_with_lease(sync.table) == {child.id for child in CHILDREN}

    run_in_virtual_time(scenario())


def test_a_create_without_responses_is_not_retried_for_ever() -> None:
    """Each attempt reads the table again. When no attempt succeeds, the caller gets an error."""

    async def scenario() -> None:
        clock = VirtualClock()
        lost = FaultyRows(MemoryRows(), lambda call, _: StoreFault.REQUEST_LOST if call == "write" else None)
        stream = ListedStream([PARENT])
        with pytest.raises(UnavailableError, match="none could be created in 4 rounds"):
            await _sync(lost, stream, clock).sync()
        assert stream.listed == 4

    run_in_virtual_time(scenario())


def test_a_finished_lease_is_kept_for_a_while() -> None:
    """Although its children are being read, a member deletes it only some time after it first saw it finished."""

    async def scenario() -> None:
        rows, clock = MemoryRows(), VirtualClock()
        sync = _sync(rows, ListedStream(AFTER_THE_SPLIT), clock)
        await sync.table.create(_lease(PARENT, SHARD_END, CHILDREN))
        for child in CHILDREN:
            await sync.table.create(_lease(child, Position("1000")))
        ended = await _cleaned_up(sync, {})
        await clock.sleep_ms(STAY_MS - 1)
        ended = await _cleaned_up(sync, ended)
        assert PARENT.id in await _shards_with_lease(sync.table)
        await clock.sleep_ms(1)
        await _cleaned_up(sync, ended)
        assert PARENT.id not in await _shards_with_lease(sync.table)

    run_in_virtual_time(scenario())


def test_first_leases_are_created_in_parallel_up_to_a_limit() -> None:
    """The leases of a large stream are created neither one by one nor all at once."""

    async def scenario() -> None:
        rows, clock = _SlowRows(), VirtualClock()
        shards = even_shards(3 * WAVE_SIZE_MAX)
        sync = _sync(rows, ListedStream(shards), clock)
        await sync.bootstrap()
        assert await _shards_with_lease(sync.table) == {shard.id for shard in shards}
        assert rows.under_way_max == WAVE_SIZE_MAX

    run_in_virtual_time(scenario())


def _unreadable(stream: StreamIdentifier | None) -> PutRow:
    """A row that contains only its stream."""
    key = lease_key(ShardId("shardId-000000000009"), stream)
    return PutRow(key, {"leaseKey": {"S": key}})


def test_an_unreadable_row_of_another_stream_blocks_nothing() -> None:
    """Leases are created, audited and cleaned up as if it did not exist."""

    async def scenario() -> None:
        rows, clock = MemoryRows(), VirtualClock()
        stream = ListedStream([PARENT])
        sync = _sync(rows, stream, clock, one_of=ORDERS)
        await rows.write(_unreadable(RETURNS))
        await sync.bootstrap()
        (parent,) = (await sync.table.list()).leases
        stream.shards = list(AFTER_THE_SPLIT)
        for child in CHILDREN:
            key = lease_key(child.id, ORDERS)
            await sync.table.create(replace(_lease(child, Position("1000")), key=key, stream=ORDERS))
        await rows.write(DeleteRow(key=parent.key, when=()))
        ended = replace(parent, checkpoint=SHARD_END, children=frozenset(child.id for child in CHILDREN))
        await sync.table.create(ended)
        seen = await _cleaned_up(sync, {})
        await clock.sleep_ms(STAY_MS)
        await _cleaned_up(sync, seen)
        assert await _shards_with_lease(sync.table) == {child.id for child in CHILDREN}
        await rows.write(DeleteRow(key=lease_key(CHILDREN[0].id, ORDERS), when=()))
        found = Sightings()
        for _ in range(SETTINGS.audit_confirmations):
            found = await sync.audit(found, await sync.table.list(), await sync.list_shards())
        # The other child has a lease, so their parent is not read again.
        assert await _shards_with_lease(sync.table) == {child.id for child in CHILDREN}

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("stream", [ORDERS, None], ids=["several streams", "a single stream"])
def test_an_unreadable_row_blocks_only_the_lease_that_it_names(stream: StreamIdentifier | None) -> None:
    """The other first leases are created. The blocked one is created by a retry, once the row was deleted."""

    async def scenario() -> None:
        rows, clock = MemoryRows(), VirtualClock()
        shards = even_shards(3)
        sync = _sync(rows, ListedStream(shards), clock, one_of=stream)
        key = lease_key(shards[1].id, stream)
        await rows.write(PutRow(key, {"leaseKey": {"S": key}}))
        with pytest.raises(BlockedLeasesError, match=f"{shards[1].id}.* repair or delete these rows"):
            await sync.bootstrap()
        assert await _shards_with_lease(sync.table) == {shards[0].id, shards[2].id}
        await rows.write(DeleteRow(key=key, when=()))
        await sync.create_blocked()
        assert await _shards_with_lease(sync.table) == {shard.id for shard in shards}

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("key", ["note", "shardId-000000000009", f"{RETURNS}:shardId-000000000000"])
def test_an_unreadable_row_of_no_listed_shard_blocks_nothing(key: str) -> None:
    """Neither a note of an operator, nor a row that names a shard which this stream does not have."""

    async def scenario() -> None:
        rows, clock = MemoryRows(), VirtualClock()
        shards = even_shards(3)
        sync = _sync(rows, ListedStream(shards), clock)
        await rows.write(PutRow(key, {"leaseKey": {"S": key}}))
        await sync.bootstrap()
        assert await _shards_with_lease(sync.table) == {shard.id for shard in shards}

    run_in_virtual_time(scenario())


def test_a_child_is_created_after_its_parent() -> None:
    """After a crash in between, the child must not be the only one with a lease."""
    parent, *children = (_lease(shard, TRIM_HORIZON) for shard in (PARENT, *CHILDREN))
    assert list(creation_waves([parent, *children])) == [[parent], children]


def test_a_lease_at_latest_contains_the_wall_clock_time_of_its_creation() -> None:
    """A later reader starts at this time. A monotonic time would be in the year 1970, and every record would come."""

    async def scenario() -> None:
        clock, rows = VirtualClock(), MemoryRows()
        sync = ShardSync(
            table=LeaseTable(rows),
            tracked=TrackedStream("orders", ListedStream(even_shards(2)), InitialPosition(LATEST), None),
            settings=SETTINGS,
            operations=Operations(clock, random.Random(1), lambda _: None),
        )
        await clock.sleep_ms(5_000)
        await sync.bootstrap()
        leases = (await sync.table.list()).leases
        assert [lease.latest_at_ms for lease in leases] == [clock.wall_ms()] * 2

    run_in_virtual_time(scenario())


def test_first_leases_that_are_created_late_are_first_leases() -> None:
    """One of two could not be created in time. Nothing was read yet, so it also begins at the tip."""

    async def scenario() -> None:
        clock, shards = VirtualClock(), even_shards(2)
        until_ms = milliseconds(SETTINGS.snapshot_max_age)

        def fault(call: str, key: str) -> StoreFault | None:
            is_late = call == "write" and key == shards[1].id and clock.now_ms() < until_ms
            return StoreFault.THROTTLED if is_late else None

        sync = ShardSync(
            table=LeaseTable(FaultyRows(MemoryRows(), fault)),
            tracked=TrackedStream("orders", ListedStream(shards), InitialPosition(LATEST), None),
            settings=SETTINGS,
            operations=Operations(clock, random.Random(1), lambda _: None),
        )
        await sync.bootstrap()
        first, second = sorted((await sync.table.list()).leases, key=lambda lease: lease.key)
        assert (first.checkpoint, second.checkpoint) == (LATEST, LATEST)
        assert (first.owner_switches, second.owner_switches) == (0, 0)
        assert first.latest_at_ms is not None
        assert second.latest_at_ms is not None
        assert second.latest_at_ms - first.latest_at_ms >= until_ms

    run_in_virtual_time(scenario())


class _Archived(ListedStream):
    """A stream with an archive, which also has shards that have left the stream."""

    archived = (
        ArchivedShard(ShardId("shardId-000000000007"), 1, 10),
        ArchivedShard(ShardId("shardId-000000000008"), 11, 20),
        ArchivedShard(PARENT.id, 21, 30),
    )

    async def list_archived(self, from_ms: int | None = None) -> Sequence[ArchivedShard]:
        return self.archived if from_ms is None else ()


@pytest.mark.parametrize("created_before", [0, 1, 2])
def test_shards_that_only_the_archive_has_get_leases_first(created_before: int) -> None:
    """A member that was killed while it created them has left the rest to the next one."""

    async def scenario() -> None:
        rows = MemoryRows()
        sync = _sync(rows, _Archived([PARENT]), VirtualClock())
        gone = _Archived.archived[:2]
        for each in plan_archived_leases(gone[:created_before], [], InitialPosition(TRIM_HORIZON)):
            await sync.table.create(each)
        await sync.bootstrap()
        leases = {lease.shard_id: lease for lease in (await sync.table.list()).leases}
        assert leases.keys() == {PARENT.id, *(each.id for each in gone)}
        assert leases[gone[1].id].parents == {gone[0].id}
        assert leases[PARENT.id].hash_range == PARENT.hash_range

    run_in_virtual_time(scenario())


def test_leases_of_the_stream_show_that_the_archived_shards_had_theirs() -> None:
    """They were read and deleted since, so they are not created again."""

    async def scenario() -> None:
        rows = MemoryRows()
        sync = _sync(rows, _Archived([PARENT]), VirtualClock())
        await sync.table.create(_lease(PARENT, Position("25")))
        await sync.bootstrap()
        assert await _shards_with_lease(sync.table) == {PARENT.id}

    run_in_virtual_time(scenario())


class _ListedForAWhile(_Archived):
    """A stream that still lists a closed shard, although its last record was trimmed."""

    trimmed = replace(
        PARENT,
        id=_Archived.archived[1].id,
        starting_sequence_number="11",
        ending_sequence_number="20",
    )
    open = replace(PARENT, starting_sequence_number="21", parents=(trimmed.id,))

    def __init__(self) -> None:
        super().__init__([self.trimmed, self.open])

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        self.listed += 1
        return [self.open] if shard_filter is not None else self.shards


def test_an_archived_shard_that_the_stream_lists_without_records_gets_a_lease() -> None:
    async def scenario() -> None:
        sync = _sync(MemoryRows(), _ListedForAWhile(), VirtualClock())
        await sync.bootstrap()
        leases = {lease.shard_id: lease for lease in (await sync.table.list()).leases}
        assert leases.keys() == {each.id for each in _Archived.archived}
        assert leases[PARENT.id].parents == {_Archived.archived[1].id}

    run_in_virtual_time(scenario())


def test_archived_shards_get_their_leases_also_beside_an_unreadable_row() -> None:
    async def scenario() -> None:
        rows, shards = MemoryRows(), even_shards(3)
        sync = _sync(rows, _Archived(shards), VirtualClock())
        key = lease_key(shards[1].id)
        await rows.write(PutRow(key, {"leaseKey": {"S": key}}))
        gone = {each.id for each in _Archived.archived[:2]}
        with pytest.raises(BlockedLeasesError):
            await sync.bootstrap()
        assert await _shards_with_lease(sync.table) == {shards[0].id, shards[2].id, *gone}
        for lease in (await sync.table.list()).leases:
            if lease.shard_id in gone:  # they were read, and deleted
                await rows.write(DeleteRow(key=lease.key, when=()))
        await rows.write(DeleteRow(key=key, when=()))
        await sync.create_blocked()
        assert await _shards_with_lease(sync.table) == {shard.id for shard in shards}

    run_in_virtual_time(scenario())


class _WithoutFilter(_Archived):
    """A stream whose shards have parents that have left it."""

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        return self.shards


@pytest.mark.parametrize("is_blocked", [False, True])
def test_a_shard_waits_for_archived_shards_behind_a_parent_without_records(is_blocked: bool) -> None:
    async def scenario() -> None:
        rows = MemoryRows()
        parent = ShardId("shardId-000000000005")
        shards = [replace(each, starting_sequence_number="21", parents=(parent,)) for each in even_shards(2)]
        sync = _sync(rows, _WithoutFilter(shards), VirtualClock())
        if is_blocked:
            await rows.write(_unreadable(None))  # of no listed shard
        await sync.bootstrap()
        leases = {lease.shard_id: lease for lease in (await sync.table.list()).leases}
        assert {leases[each.id].parents for each in shards} == {frozenset({parent, _Archived.archived[1].id})}

    run_in_virtual_time(scenario())
