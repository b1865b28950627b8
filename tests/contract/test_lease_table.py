"""The contract of the lease table beside its writes: listing, the index, lost responses, foreign rows."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows, TableSettings
from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.core.coordinator import leader_lock
from leasehold.core.coordinator.fleet_mode import FleetMode
from leasehold.core.coordinator.fleet_mode import TableLayout as RowPlace
from leasehold.core.coordinator.worker_metrics import LoadSamples, cpu_report
from leasehold.core.leases import lease_rules
from leasehold.core.leases.lease_row import lease_to_row
from leasehold.core.leases.row_writes import PutRow, Row
from leasehold.core.model import (
    Lease,
    LeaseKey,
    LeaseSessionId,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
)
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.shards.lease_creation import CreateChildren
from leasehold.errors import (
    ConfigError,
    MalformedRowError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.fleet.table.write_and_confirm import WRITE_ATTEMPTS_MAX
from leasehold.ports import Refused
from tests.contract.lease_stores import ALL, SERVERS, TableLocation, create_filled, new_location
from tests.proxy import run_proxy
from tests.servers import Server

A, B = WorkerId("worker-a"), WorkerId("worker-b")
H1, H2 = LeaseSessionId("hold-1"), LeaseSessionId("hold-2")
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


@pytest.fixture(params=ALL)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> TableLocation:
    """A new table on each kind of store."""
    return new_location(request, request.param, tmp_path)


@pytest.fixture(params=SERVERS)
def on_server(request: pytest.FixtureRequest, tmp_path: Path) -> TableLocation:
    """A new table on each DynamoDB server."""
    return new_location(request, request.param, tmp_path)


def new_lease(number: int, stream: str | None = None) -> Lease:
    """A free lease of shard `number`."""
    shard = ShardId(f"shardId-{number:012d}")
    identifier = StreamIdentifier(stream) if stream else None
    return Lease(key=lease_key(shard, identifier), shard_id=shard, checkpoint=TRIM_HORIZON, stream=identifier)


def with_child(number: int) -> CreateChildren:
    """The plan for a shard that ended with one child."""
    return CreateChildren((new_lease(number),), frozenset({new_lease(number).shard_id}))


def held(outcome: Lease | Contended) -> Lease:
    """The lease, if the write was applied."""
    assert isinstance(outcome, Lease), outcome
    return outcome


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


def test_a_worker_finds_its_own_leases(location: TableLocation) -> None:
    """The leases whose owner is the worker, also those in a handoff to it, without those that it already knows."""

    async def scenario() -> None:
        table = LeaseTable(await create_filled(location.open, ()))
        leases = [new_lease(number) for number in range(5)]
        for lease in leases:
            await table.create(lease)
        for lease in leases[:3]:
            held(await table.assign(lease, A))
        held(await table.assign(leases[3], B))
        moving = held(await table.take(held(await table.assign(leases[4], B)), B, H2))
        held(await table.request_handoff(moving, A))  # the owner is A, but B still serves it
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
        mode = FleetMode(has_leader=True, reports=True)
        assert await coordinator_rows.write_lock(
            MAIN, leader_lock.acquire(None, me, "v1", 15_000, "leaseKey")
        )
        assert not await coordinator_rows.write_lock(
            MAIN, leader_lock.acquire(None, me, "v2", 15_000, "leaseKey")
        )
        assert await coordinator_rows.write_lock(MAIN, leader_lock.heartbeat(me, "v1", "v3", 15_000))
        for second in (7, 8):
            await coordinator_rows.report(MAIN, cpu_report(me, LoadSamples((), (12.5,)), second))
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


def test_own_leases_are_found_without_an_index(on_server: TableLocation) -> None:
    """By a scan. After the index was added, the same leases are found."""

    async def scenario() -> None:
        bare = on_server.open(TableSettings(with_index=False))
        table = LeaseTable(await create_filled(lambda: bare, ()))
        await table.create(new_lease(1))
        held(await table.assign(new_lease(1), A))
        assert await bare.keys_owned_by(A) is None
        assert [lease.key for lease in (await table.list_owned_by(A)).leases] == [new_lease(1).key]

        indexed = on_server.open()
        await asyncio.gather(*(indexed.prepare() for _ in range(4)))  # several members start at the same time
        async with asyncio.timeout(120):
            while await indexed.keys_owned_by(A) != [new_lease(1).key]:
                assert [lease.key for lease in (await LeaseTable(indexed).list_owned_by(A)).leases]
                await asyncio.sleep(0.05)
        await table.close()
        await indexed.close()

    asyncio.run(scenario())


def test_the_index_is_added_to_a_table_without_one(location: TableLocation) -> None:
    """Several members create it at the same time, and again; then each finds its leases through it."""

    async def scenario() -> None:
        store = await create_filled(lambda: location.open(TableSettings(with_index=False)), ())
        table = LeaseTable(store)
        await table.create(new_lease(1))
        held(await table.assign(new_lease(1), A))
        await asyncio.gather(*(store.create_owner_index() for _ in range(4)))
        await store.create_owner_index()
        async with asyncio.timeout(120):
            while (keys := await store.keys_owned_by(A)) != [new_lease(1).key]:
                assert keys is None or location.kind in SERVERS
                await asyncio.sleep(0.05)
        await store.create_owner_index()
        assert await store.keys_owned_by(B) == []
        await store.close()

    asyncio.run(scenario())


class BuildingIndexClient:
    """A DynamoDB client for which the index is still being built. Counts the requests to create another one."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.is_building = True
        self.updates = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def describe_table(self, **request: Any) -> Any:
        """The index has the status CREATING, for minutes on a large table."""
        answer = self._client.describe_table(**request)
        for index in answer["Table"].get("GlobalSecondaryIndexes", []) if self.is_building else []:
            index["IndexStatus"] = "CREATING"
        return answer

    def update_table(self, **request: Any) -> Any:
        self.updates += 1
        return self._client.update_table(**request)


def test_an_index_that_is_being_built_is_not_used(on_server: TableLocation) -> None:
    """It is neither read nor created again; it is used once it is active."""

    async def scenario() -> None:
        client = BuildingIndexClient(Server(on_server.kind, on_server.url, Path()).client("dynamodb"))
        store = DynamoDbRows(client, on_server.table)
        table = LeaseTable(await create_filled(lambda: store, ()))
        await table.create(new_lease(1))
        held(await table.assign(new_lease(1), A))
        await store.create_owner_index()
        assert client.updates == 0
        assert await store.keys_owned_by(A) is None
        assert [lease.key for lease in (await table.list_owned_by(A)).leases] == [new_lease(1).key]
        client.is_building = False
        assert await store.keys_owned_by(A) == [new_lease(1).key]
        await store.close()

    asyncio.run(scenario())


def test_members_that_start_together_create_one_table(location: TableLocation) -> None:
    """Concurrent creation works for all of them."""

    async def scenario() -> None:
        stores = [location.open() for _ in range(3)] if location.kind != "memory" else [location.open()]
        await asyncio.gather(*(store.prepare() for store in stores))
        assert await LeaseTable(stores[0]).create(new_lease(1))
        assert (await LeaseTable(stores[-1]).list()).leases == (new_lease(1),)
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_table_settings_are_applied(ministack: Server, tmp_path: Path) -> None:
    """Capacity, deletion protection, tags and point-in-time recovery."""

    async def scenario() -> None:
        location = TableLocation("ministack", ministack.url, f"leases-{time.monotonic_ns()}")
        settings = TableSettings(
            read_capacity=3,
            write_capacity=4,
            deletion_protection=True,
            point_in_time_recovery=True,
            tags={"team": "data"},
        )
        store = location.open(settings)
        await store.prepare()
        client = ministack.client("dynamodb")
        table = client.describe_table(TableName=location.table)["Table"]
        assert table["ProvisionedThroughput"]["ReadCapacityUnits"] == 3
        assert table["DeletionProtectionEnabled"] is True
        tags = client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"]
        assert tags == [{"Key": "team", "Value": "data"}]
        backups = client.describe_continuous_backups(TableName=location.table)["ContinuousBackupsDescription"]
        assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"
        await store.close()

    asyncio.run(scenario())


def test_incomplete_capacity_is_refused() -> None:
    """The error says what to set, before anything is created."""
    with pytest.raises(ConfigError, match="both read_capacity and write_capacity"):
        TableSettings(read_capacity=5)


def test_a_missing_table_is_named_in_the_error(on_server: TableLocation) -> None:
    """Reading from a table that does not exist says which one."""

    async def scenario() -> None:
        store = on_server.open()
        with pytest.raises(NotFoundError, match=on_server.table):
            await store.get("shardId-1")
        await store.close()

    asyncio.run(scenario())


# -- lost responses --------------------------------------------------------------------------------------------


def once(operation: str, fault: StoreFault, times: int = 1) -> Callable[[str, str], StoreFault | None]:
    """Faults for the first calls of an operation."""
    left = [times]

    def fault_for(called: str, _key: str) -> StoreFault | None:
        if called != operation or left[0] == 0:
            return None
        left[0] -= 1
        return fault

    return fault_for


async def open_faulty(
    location: TableLocation, fault_for: Callable[[str, str], StoreFault | None]
) -> tuple[LeaseTable, LeaseTable]:
    """A table with one free lease, and the same table with faults."""
    store = await create_filled(location.open, ())
    table = LeaseTable(store)
    await table.create(new_lease(1))
    return table, LeaseTable(FaultyRows(store, fault_for))


@pytest.mark.parametrize("fault", [StoreFault.RESPONSE_LOST, StoreFault.REQUEST_LOST])
def test_a_write_without_a_response_is_confirmed(location: TableLocation, fault: StoreFault) -> None:
    """Whether the request or the response was lost, the caller gets the lease, and the counter increased once per
    write.
    """

    async def scenario() -> None:
        _, after_take = await open_faulty(location, once("write", fault))
        lease = held(await after_take.take(new_lease(1), A, H1))
        store = after_take._rows
        moves: tuple[Callable[[LeaseTable, Lease], Awaitable[Lease | Contended]], ...] = (
            lambda table, lease: table.renew(lease),
            lambda table, lease: table.checkpoint(lease, Position("100")),
            lambda table, lease: table.prepare_checkpoint(lease, Position("150"), b"note"),
            lambda table, lease: table.checkpoint(lease, Position("150")),
            lambda table, lease: table.pin(lease, Position("200")),
            lambda table, lease: table.repin(lease, b"ours"),
            lambda table, lease: table.promote(lease),
            lambda table, lease: table.request_handoff(lease, B),
            lambda table, lease: table.renew(lease),
            lambda table, lease: table.complete_handoff(lease),
            lambda table, lease: table.begin_session(lease, B, H2),
            lambda table, lease: table.finish(lease, with_child(2)),
            lambda table, lease: table.release(lease),
        )
        for move in moves:
            before = lease
            lease = held(await move(LeaseTable(FaultyRows(store, once("write", fault))), lease))
            assert lease.counter == before.counter + (
                0 if lease.checkpoint_owner and not before.checkpoint_owner else 1
            )
            assert await LeaseTable(store).get(lease.key) == lease
        assert await LeaseTable(store).get(new_lease(2).key) == new_lease(2)
        deleting = LeaseTable(FaultyRows(store, once("write", fault)))
        assert await deleting.delete(lease)
        assert await deleting.get(lease.key) is None
        await after_take.close()

    asyncio.run(scenario())


def test_a_lost_request_does_not_hide_a_lost_race(location: TableLocation) -> None:
    """If another member took the lease in between, the result is Contended."""

    async def scenario() -> None:
        table, _ = await open_faulty(location, lambda *_: None)
        seen = new_lease(1)
        winner = held(await table.take(seen, B, H2))
        loser = LeaseTable(FaultyRows(table._rows, once("write", StoreFault.REQUEST_LOST)))
        assert await loser.take(seen, A, H1) == Contended(winner)
        await table.close()

    asyncio.run(scenario())


def test_a_lasting_failure_is_raised(location: TableLocation) -> None:
    """After a few attempts, and nothing was written."""

    async def scenario() -> None:
        silent = once("write", StoreFault.REQUEST_LOST, times=WRITE_ATTEMPTS_MAX)
        table, behind = await open_faulty(location, silent)
        with pytest.raises(UnavailableError):
            await behind.take(new_lease(1), A, H1)
        assert await table.get(new_lease(1).key) == new_lease(1)
        await table.close()

    asyncio.run(scenario())


def test_throttling_is_raised_at_once(location: TableLocation) -> None:
    """A throttled write was not applied; the caller decides when to retry."""

    async def scenario() -> None:
        table, behind = await open_faulty(location, once("write", StoreFault.THROTTLED))
        with pytest.raises(ThrottledError):
            await behind.take(new_lease(1), A, H1)
        assert await table.get(new_lease(1).key) == new_lease(1)
        await table.close()

    asyncio.run(scenario())


def test_a_connection_cut_before_the_response_is_handled(on_server: TableLocation, tmp_path: Path) -> None:
    """On a real connection: the server applied the write, the connection was cut, boto3 retried, and the lease is
    ours.
    """

    async def scenario() -> None:
        direct = LeaseTable(await create_filled(on_server.open, ()))
        await direct.create(new_lease(1))
        with run_proxy(on_server.url) as proxy:
            client = Server(on_server.kind, proxy.url, tmp_path).client("dynamodb")
            behind = LeaseTable(DynamoDbRows(client, on_server.table))
            lease = held(await behind.take(new_lease(1), A, H1))
            for step in range(1, 6):
                proxy.responses_to_cut = 1
                lease = held(await behind.checkpoint(lease, Position(str(step * 100))))
                assert lease.counter == step + 1
            assert proxy.injected == 5
            await behind.close()
        assert await direct.get(lease.key) == lease
        await direct.close()

    asyncio.run(scenario())


def test_every_write_of_a_previous_owner_is_refused(location: TableLocation) -> None:
    """The row keeps the values of the new owner."""

    async def scenario() -> None:
        table = LeaseTable(await create_filled(location.open, ()))
        await table.create(new_lease(1))
        zombie = held(await table.take(new_lease(1), A, H1))
        owner = held(await table.take(zombie, B, H2))
        owner = held(await table.checkpoint(owner, Position("500")))
        # Even if it knows the counter from a scan, its session id is outdated.
        for stale in (zombie, replace(zombie, counter=owner.counter)):
            for write in _owner_writes(table, stale):
                assert await write() == Contended(owner)
        assert await table.get(owner.key) == owner
        assert await table.get(new_lease(2).key) is None
        await table.close()

    asyncio.run(scenario())


def _owner_writes(table: LeaseTable, lease: Lease) -> Iterable[Callable[[], Awaitable[object]]]:
    pinned = replace(lease, pin=None)
    return (
        lambda: table.renew(lease),
        lambda: table.checkpoint(lease, Position("900")),
        lambda: table.prepare_checkpoint(lease, Position("900")),
        lambda: table.pin(pinned, Position("900")),
        lambda: table.finish(lease, with_child(2)),
        lambda: table.release(lease),
    )


# -- SQLite ----------------------------------------------------------------------------------------------------


def test_sqlite_leases_are_durable(tmp_path: Path) -> None:
    """A second connection reads the rows of the first, with bytes and unknown attributes."""

    async def scenario() -> None:
        path = tmp_path / "leases.sqlite"
        row: Row = {
            "leaseKey": {"S": "x"},
            "entityType": {"S": "NEW"},
            "state": {"B": b"\x00\xff"},
            "nested": {"M": {"list": {"L": [{"B": b"\x01"}, {"NULL": True}]}, "set": {"BS": [b"\x02"]}}},
        }
        first = await create_filled(lambda: SqliteRows(path), [row])
        await first.close()
        second = SqliteRows(path)
        assert await second.get("x") == row
        await second.close()

    asyncio.run(scenario())


def test_sqlite_refuses_other_files(tmp_path: Path) -> None:
    """Another file format, and a missing table, are different errors that name the file."""

    async def scenario() -> None:
        other = tmp_path / "notes.txt"
        other.write_text("not a database, but long enough to be mistaken for one " * 20)
        store = SqliteRows(other)
        with pytest.raises(ConfigError, match=r"notes\.txt"):
            await store.prepare()
        await store.close()
        empty = SqliteRows(tmp_path / "empty.sqlite")
        with pytest.raises(NotFoundError, match="prepare"):
            await empty.get("x")
        await empty.close()

    asyncio.run(scenario())
    with pytest.raises(ConfigError, match="file"):
        SqliteRows(":memory:")


DAMAGED = (
    "[]",
    "{",
    '{"leaseCounter": 7}',
    '{"leaseKey": {"S": "shardId-bad"}, "checkpoint": {"B": "?"}}',
    '{"leaseKey": {"S": "shardId-bad"}, "x": {"N": 1}}',
    '{"leaseKey": {"S": "shardId-bad"}, "x": ' + '{"L":[' * 3000 + "]}" * 3000 + "}",
    "[" * 100_000,
    '{"leaseKey": {"S": "shardId-000000000001"}, "checkpoint": {"S": "SHARD_END"}}',  # the key of another row
)


@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
def test_sqlite_reports_a_damaged_row(tmp_path: Path, damage: str) -> None:
    """A row that is not in DynamoDB's JSON format is rejected by name; the others are read."""

    async def scenario() -> None:
        store = SqliteRows(tmp_path / "leases.sqlite")
        table = LeaseTable(await create_filled(lambda: store, ()))
        await table.create(new_lease(1))
        store._open().execute("INSERT INTO rows VALUES ('shardId-bad', NULL, ?)", (damage,))
        listing = await table.list()
        assert listing.leases == (new_lease(1),)
        assert [error.key for error in listing.rejected] == ["shardId-bad"]
        with pytest.raises(MalformedRowError, match="shardId-bad"):
            await table.get(LeaseKey("shardId-bad"))
        await table.close()

    asyncio.run(scenario())


def test_an_invalid_number_satisfies_no_condition(tmp_path: Path) -> None:
    """A damaged file may hold numbers that DynamoDB would refuse; nothing crashes."""

    async def scenario() -> None:
        for counter in ("sNaN", "Infinity", "one"):
            row: Row = {**lease_to_row(new_lease(1)), "leaseCounter": {"N": counter}}
            store = await create_filled(lambda: SqliteRows(tmp_path / f"{counter}.sqlite"), [row])  # noqa: B023 - used at once
            assert isinstance(await store.write(lease_rules.take(new_lease(1), A, H1)), Refused)
            assert (await LeaseTable(store).list()).rejected
            await store.close()

    asyncio.run(scenario())
