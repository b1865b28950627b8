"""The contract of the lease table beside its writes: listing leases, coordinator rows, foreign rows."""

import asyncio
from dataclasses import replace

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.core.coordinator import leader_lock
from leasehold.core.coordinator.fleet_mode import FleetMode
from leasehold.core.coordinator.fleet_mode import TableLayout as RowPlace
from leasehold.core.coordinator.worker_metrics import LoadSamples, cpu_report
from leasehold.core.leases import lease_rules
from leasehold.core.leases.row_writes import PutRow, Row
from leasehold.core.model import (
    StreamIdentifier,
    WorkerId,
)
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.errors import (
    ServiceError,
)
from leasehold.fleet.table.lease_table import LeaseTable
from tests.contract.lease_samples import S2, A, B, applied_lease, new_lease
from tests.contract.lease_stores import TableLocation, create_filled

MAIN = RowPlace.SINGLE_TABLE

NON_LEASES: tuple[Row, ...] = (
    {
        "leaseKey": {"S": "Leader"},
        "entityType": {"S": "LEADER"},
        "ownerName": {"S": "worker-a"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": {"S": "7f3c1a52-9a0e-4f7e-8d57-5f1b7f6c2a10"},
    },
    {
        "leaseKey": {"S": "Migration3.0"},
        "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
        "cv": {"S": "CLIENT_VERSION_3X"},
        "h": {"L": [{"M": {"mts": {"N": "1790000000050"}}}]},
    },
    {
        "leaseKey": {"S": "worker-py-1"},
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "sts": {"M": {"C": {"L": [{"N": "12.5"}]}}},
    },
)


def test_listing_returns_leases_and_skips_other_rows(location: TableLocation) -> None:
    """Also by stream; lock, migration and metrics rows are neither leases nor errors."""

    async def scenario() -> None:
        store = await create_filled(location.open, NON_LEASES)
        table = LeaseTable(store)
        stream = "123456789012:orders:1700000000"
        leases = [new_lease(1), new_lease(2), new_lease(3, stream)]
        for lease in leases:
            assert await table.create(lease)
        listing = await table.list()
        assert sorted(listing.leases, key=lambda lease: lease.key) == sorted(
            leases, key=lambda lease: lease.key
        )
        assert listing.rejected == ()
        assert (await table.list(stream=StreamIdentifier(stream))).leases == (leases[2],)
        assert await table.list(is_consistent=True) == listing
        rows = {row["leaseKey"]["S"]: row for row in await store.scan()}
        assert [rows[row["leaseKey"]["S"]] for row in NON_LEASES] == list(NON_LEASES)
        await table.close()

    asyncio.run(scenario())


def test_a_bad_row_is_reported_and_the_others_are_read(location: TableLocation) -> None:
    """One malformed row does not affect the other leases."""

    async def scenario() -> None:
        bad: Row = {
            "leaseKey": {"S": "shardId-bad"},
            "leaseCounter": {"S": "seven"},
            "checkpoint": {"S": "0"},
        }
        table = LeaseTable(await create_filled(location.open, [bad]))
        await table.create(new_lease(1))
        listing = await table.list()
        assert listing.leases == (new_lease(1),)
        assert [error.key for error in listing.rejected] == ["shardId-bad"]
        await table.close()

    asyncio.run(scenario())


def test_a_transaction_is_applied_as_a_whole_or_not_at_all(location: TableLocation) -> None:
    """Whichever of its writes is refused, nothing is written."""

    async def scenario() -> None:
        store = await create_filled(location.open, [])
        present, first, second = (lease_rules.create(new_lease(number)) for number in (1, 2, 3))
        assert await store.write_transaction([present])
        for writes in ([present, first], [first, present], [first, second, present]):
            assert not await store.write_transaction(writes)
            assert len(await store.scan(is_consistent=True)) == 1
        assert await store.write_transaction([first, second])
        assert len(await store.scan(is_consistent=True)) == 3
        await store.close()

    asyncio.run(scenario())


def test_a_worker_finds_its_own_leases(location: TableLocation) -> None:
    """The leases whose owner is the worker, also those in a handoff to it, without those that it already knows."""

    async def scenario() -> None:
        table = LeaseTable(await create_filled(location.open, ()))
        leases = [new_lease(number) for number in range(5)]
        for lease in leases:
            await table.create(lease)
        for lease in leases[:3]:
            applied_lease(await table.assign(lease, A))
        applied_lease(await table.assign(leases[3], B))
        moving = applied_lease(await table.take(applied_lease(await table.assign(leases[4], B)), B, S2))
        applied_lease(await table.request_handoff(moving, A))  # the owner is A, but B still serves it
        async with asyncio.timeout(60):
            while True:
                found = await table.list_owned_by(A, known=[leases[0].key])
                if {lease.key for lease in found.leases} == {leases[1].key, leases[2].key, moving.key}:
                    break
                await asyncio.sleep(0.05)  # the index may lag
        await table.close()

    asyncio.run(scenario())


def test_the_kcl_version_is_found_in_either_table(location: TableLocation) -> None:
    """In the lease table, or in the coordinator's own table."""

    async def scenario() -> None:
        store = await create_filled(location.open, ())
        assert (await LeaseTable(store).coordinator_rows.find()).migration is None
        row: Row = {"leaseKey": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_3X"}}
        await store.write(PutRow("Migration3.0", row))
        assert (await LeaseTable(store).coordinator_rows.find()).migration == row
        found = await LeaseTable(MemoryRows(), coordinator=store).coordinator_rows.find()
        assert found.has_coordinator_table
        assert found.migration == row
        await store.close()

    asyncio.run(scenario())


def test_a_missing_coordinator_table_is_not_an_error(on_server: TableLocation) -> None:
    """Fleets that never ran KCL 3.0 to 3.4 have none."""

    async def scenario() -> None:
        coordinator = on_server.open()
        found = await LeaseTable(MemoryRows(), coordinator=coordinator).coordinator_rows.find()
        assert not found.has_coordinator_table
        await coordinator.close()

    asyncio.run(scenario())


class _Denied(MemoryRows):
    """A table that this role may not read."""

    async def get(self, key: str) -> Row | None:
        raise ServiceError("AccessDeniedException")


def test_a_denied_coordinator_table_is_an_error() -> None:
    """If it counted as missing, the fleet would be split in two."""

    async def scenario() -> None:
        coordinator_rows = LeaseTable(MemoryRows(), coordinator=_Denied()).coordinator_rows
        with pytest.raises(ServiceError, match="mode='leader'"):
            await coordinator_rows.find()
        with pytest.raises(ServiceError, match="mode='leader'"):
            await coordinator_rows.find_changes()
        assert not (await coordinator_rows.find(must_know=False)).has_coordinator_table

    asyncio.run(scenario())


def test_the_leader_lock_and_reports_work_on_every_store(location: TableLocation) -> None:
    """The lock is taken once, renewed and released; a report is written, renewed, read and deleted."""

    async def scenario() -> None:
        store = await create_filled(location.open, ())
        coordinator_rows, me = LeaseTable(store).coordinator_rows, WorkerId("w-1")
        mode = FleetMode(has_leader=True, sends_reports=True)
        assert await coordinator_rows.write_lock(
            MAIN, leader_lock.acquire(None, me, "v1", 15_000, "leaseKey")
        )
        assert not await coordinator_rows.write_lock(
            MAIN, leader_lock.acquire(None, me, "v2", 15_000, "leaseKey")
        )
        assert await coordinator_rows.write_lock(MAIN, leader_lock.heartbeat(me, "v1", "v3", 15_000))
        for second in (7, 8):
            await coordinator_rows.write_report(MAIN, cpu_report(me, LoadSamples((), (12.5,)), second))
        snapshot = await coordinator_rows.read_snapshot(mode)
        assert snapshot.lock is not None
        assert (snapshot.lock.owner, snapshot.lock.version) == (me, {"S": "v3"})
        assert [(report.worker, report.updated_s) for report in snapshot.reports.reports] == [(me, 8)]
        await coordinator_rows.withdraw_report(MAIN, snapshot.reports.reports[0])
        assert await coordinator_rows.write_lock(MAIN, leader_lock.release(me, "v3"))
        assert (await coordinator_rows.read_snapshot(mode)).rows == 0
        await store.close()

    asyncio.run(scenario())


def test_a_large_table_is_read_completely(on_server: TableLocation) -> None:
    """Pages and parallel segments lose no row and repeat none."""

    async def scenario() -> None:
        padding = {"S": "x" * 200_000}
        rows: list[Row] = [
            {
                "leaseKey": {"S": f"shardId-{number:012d}"},
                "leaseCounter": {"N": "0"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
                "checkpoint": {"S": "TRIM_HORIZON"},
                "padding": padding,
            }
            for number in range(12)
        ]
        table = LeaseTable(await create_filled(on_server.open, rows))
        for segments in (1, 4):
            listing = await table.list(segments=segments)
            assert sorted(lease.key for lease in listing.leases) == sorted(
                row["leaseKey"]["S"] for row in rows
            )
        await table.close()

    asyncio.run(scenario())


def test_a_family_is_reset_as_a_whole_or_not_at_all(location: TableLocation) -> None:
    """A lease that was lost, or exists already, leaves all rows as they are."""

    async def scenario() -> None:
        table = LeaseTable(await create_filled(location.open, ()))
        held = []
        for number in (1, 2):
            assert await table.create(new_lease(number))
            held.append(applied_lease(await table.take(new_lease(number), A, S2)))
        stale = replace(held[1], counter=held[1].counter - 1)
        to = Position("495900", 3)
        assert not await table.reset_family([new_lease(3), (held[0], to), (stale, to)])
        assert not await table.reset_family([new_lease(2), (held[0], to)])
        assert await table.get(held[0].key) == held[0]
        assert await table.get(new_lease(3).key) is None
        assert await table.reset_family([new_lease(3), (held[0], to), (held[1], TRIM_HORIZON)])
        found = [await table.get(new_lease(number).key) for number in (1, 2, 3)]
        assert [each and (each.checkpoint, each.owner) for each in found] == [
            (to, None),
            (TRIM_HORIZON, None),
            (new_lease(3).checkpoint, None),
        ]
        await table.close()

    asyncio.run(scenario())
