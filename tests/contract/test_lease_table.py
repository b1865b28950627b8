"""What every lease table promises beside its writes: listing, the index, lost answers, foreign rows."""

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
from tests.contract.lease_stores import ALL, SERVERS, TableLocation, filled, place
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
def where(request: pytest.FixtureRequest, tmp_path: Path) -> TableLocation:
    """A fresh table on each kind of store."""
    return place(request, request.param, tmp_path)


@pytest.fixture(params=SERVERS)
def on_server(request: pytest.FixtureRequest, tmp_path: Path) -> TableLocation:
    """A fresh table on each DynamoDB server."""
    return place(request, request.param, tmp_path)


def new_lease(number: int, stream: str | None = None) -> Lease:
    """A free lease of shard `number`."""
    shard = ShardId(f"shardId-{number:012d}")
    identifier = StreamIdentifier(stream) if stream else None
    return Lease(key=lease_key(shard, identifier), shard_id=shard, checkpoint=TRIM_HORIZON, stream=identifier)


def with_child(number: int) -> CreateChildren:
    """The plan for a shard that ended with one child."""
    return CreateChildren((new_lease(number),), frozenset({new_lease(number).shard_id}))


def held(outcome: Lease | Contended) -> Lease:
    """The lease, if the write was ours."""
    assert isinstance(outcome, Lease), outcome
    return outcome


def test_listing_finds_leases_and_passes_over_other_rows(where: TableLocation) -> None:
    """Leases are listed, also by stream; lock, migration and metrics rows are neither leases nor errors."""

    async def scenario() -> None:
        store = await filled(where.open, NON_LEASES)
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


def test_a_bad_row_is_reported_and_the_others_are_read(where: TableLocation) -> None:
    """One hostile row costs nobody else's lease."""

    async def scenario() -> None:
        bad: Row = {
            "leaseKey": {"S": "shardId-bad"},
            "leaseCounter": {"S": "seven"},
            "checkpoint": {"S": "0"},
        }
        table = LeaseTable(await filled(where.open, [bad]))
        await table.create(new_lease(1))
        listing = await table.list()
        assert listing.leases == (new_lease(1),)
        assert [error.key for error in listing.rejected] == ["shardId-bad"]
        await table.close()

    asyncio.run(scenario())


def test_a_worker_finds_its_own_leases(where: TableLocation) -> None:
    """Found are the leases that name the worker, also those on their way to it, without those it knows."""

    async def scenario() -> None:
        table = LeaseTable(await filled(where.open, ()))
        leases = [new_lease(number) for number in range(5)]
        for lease in leases:
            await table.create(lease)
        for lease in leases[:3]:
            held(await table.assign(lease, A))
        held(await table.assign(leases[3], B))
        moving = held(await table.take(held(await table.assign(leases[4], B)), B, H2))
        held(await table.request_handoff(moving, A))  # names A, but B still serves it
        async with asyncio.timeout(60):
            while True:
                found = await table.list_owned_by(A, known=[leases[0].key])
                if {lease.key for lease in found.leases} == {leases[1].key, leases[2].key, moving.key}:
                    break
                await asyncio.sleep(0.05)  # the index may be behind
        await table.close()

    asyncio.run(scenario())


def test_the_state_of_a_fleet_is_found_in_either_table(where: TableLocation) -> None:
    """The generation of the KCL that a fleet runs is read from the lease table, or from the coordinator's own."""

    async def scenario() -> None:
        store = await filled(where.open, ())
        assert (await LeaseTable(store).coordinator_rows.find()).migration is None
        row: Row = {"leaseKey": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_3X"}}
        await store.write(PutRow("Migration3.0", row))
        assert (await LeaseTable(store).coordinator_rows.find()).migration == row
        found = await LeaseTable(MemoryRows(), coordinator=store).coordinator_rows.find()
        assert found.has_coordinator_table
        assert found.migration == row
        await store.close()

    asyncio.run(scenario())


def test_a_missing_coordinator_table_is_no_error(on_server: TableLocation) -> None:
    """Fleets that never ran KCL 3.0 to 3.4 have no such table."""

    async def scenario() -> None:
        coordinator = on_server.open()
        found = await LeaseTable(MemoryRows(), coordinator=coordinator).coordinator_rows.find()
        assert not found.has_coordinator_table
        await coordinator.close()

    asyncio.run(scenario())


class _Denied(MemoryRows):
    """A table that our role may not read."""

    async def get(self, key: str) -> Row | None:
        raise ServiceError("AccessDeniedException")


def test_a_coordinator_table_that_may_not_be_read_is_not_missing() -> None:
    """Its fleet would be split in two. Who was told that there is none believes it."""

    async def scenario() -> None:
        coordinator_rows = LeaseTable(MemoryRows(), coordinator=_Denied()).coordinator_rows
        with pytest.raises(ServiceError, match="mode='leader'"):
            await coordinator_rows.find()
        with pytest.raises(ServiceError, match="mode='leader'"):
            await coordinator_rows.find_changes()
        assert not (await coordinator_rows.find(must_know=False)).has_coordinator_table

    asyncio.run(scenario())


def test_lock_and_reports_live_on_every_store(where: TableLocation) -> None:
    """The lock is taken once, beaten and released; a report is made, renewed, seen in a look and taken back."""

    async def scenario() -> None:
        store = await filled(where.open, ())
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


def test_a_large_table_is_read_whole(on_server: TableLocation) -> None:
    """Pages and parallel lanes lose no row and repeat none."""

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
        table = LeaseTable(await filled(on_server.open, rows))
        for segments in (1, 4):
            listing = await table.list(segments=segments)
            assert sorted(lease.key for lease in listing.leases) == sorted(
                row["leaseKey"]["S"] for row in rows
            )
        await table.close()

    asyncio.run(scenario())


def test_own_leases_are_found_before_there_is_an_index(on_server: TableLocation) -> None:
    """Without an index a scan answers; an index added later takes over, and the same leases are found."""

    async def scenario() -> None:
        bare = on_server.open(TableSettings(with_index=False))
        table = LeaseTable(await filled(lambda: bare, ()))
        await table.create(new_lease(1))
        held(await table.assign(new_lease(1), A))
        assert await bare.keys_owned_by(A) is None
        assert [lease.key for lease in (await table.list_owned_by(A)).leases] == [new_lease(1).key]

        indexed = on_server.open()
        await asyncio.gather(*(indexed.prepare() for _ in range(4)))  # members that start together
        async with asyncio.timeout(120):
            while await indexed.keys_owned_by(A) != [new_lease(1).key]:
                assert [lease.key for lease in (await LeaseTable(indexed).list_owned_by(A)).leases]
                await asyncio.sleep(0.05)
        await table.close()
        await indexed.close()

    asyncio.run(scenario())


def test_an_index_is_made_for_a_table_without_one(where: TableLocation) -> None:
    """Members ask for it together, and again; in the end each finds its leases by it."""

    async def scenario() -> None:
        store = await filled(lambda: where.open(TableSettings(with_index=False)), ())
        table = LeaseTable(store)
        await table.create(new_lease(1))
        held(await table.assign(new_lease(1), A))
        await asyncio.gather(*(store.create_owner_index() for _ in range(4)))
        await store.create_owner_index()
        async with asyncio.timeout(120):
            while (keys := await store.keys_owned_by(A)) != [new_lease(1).key]:
                assert keys is None or where.kind in SERVERS
                await asyncio.sleep(0.05)
        await store.create_owner_index()
        assert await store.keys_owned_by(B) == []
        await store.close()

    asyncio.run(scenario())


class StillBuilding:
    """A DynamoDB client that is told that an index is being filled, and counts who wants another one."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.is_building = True
        self.updates = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def describe_table(self, **request: Any) -> Any:
        """What DynamoDB says for minutes on a large table."""
        answer = self._client.describe_table(**request)
        for index in answer["Table"].get("GlobalSecondaryIndexes", []) if self.is_building else []:
            index["IndexStatus"] = "CREATING"
        return answer

    def update_table(self, **request: Any) -> Any:
        """Counted."""
        self.updates += 1
        return self._client.update_table(**request)


def test_an_index_that_is_being_built_is_left_alone(on_server: TableLocation) -> None:
    """While it is filled nobody reads it or asks for a second one; when it is there, it is used."""

    async def scenario() -> None:
        client = StillBuilding(Server(on_server.kind, on_server.url, Path()).client("dynamodb"))
        store = DynamoDbRows(client, on_server.table)
        table = LeaseTable(await filled(lambda: store, ()))
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


def test_members_that_start_together_share_one_table(where: TableLocation) -> None:
    """Creating the table at once from several members works for all of them."""

    async def scenario() -> None:
        stores = [where.open() for _ in range(3)] if where.kind != "memory" else [where.open()]
        await asyncio.gather(*(store.prepare() for store in stores))
        assert await LeaseTable(stores[0]).create(new_lease(1))
        assert (await LeaseTable(stores[-1]).list()).leases == (new_lease(1),)
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_table_settings_reach_the_table(ministack: Server, tmp_path: Path) -> None:
    """Capacity, deletion protection, tags and point-in-time recovery are set as asked."""

    async def scenario() -> None:
        where = TableLocation("ministack", ministack.url, f"leases-{time.monotonic_ns()}")
        settings = TableSettings(
            read_capacity=3,
            write_capacity=4,
            deletion_protection=True,
            point_in_time_recovery=True,
            tags={"team": "data"},
        )
        store = where.open(settings)
        await store.prepare()
        client = ministack.client("dynamodb")
        table = client.describe_table(TableName=where.table)["Table"]
        assert table["ProvisionedThroughput"]["ReadCapacityUnits"] == 3
        assert table["DeletionProtectionEnabled"] is True
        tags = client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"]
        assert tags == [{"Key": "team", "Value": "data"}]
        backups = client.describe_continuous_backups(TableName=where.table)["ContinuousBackupsDescription"]
        assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"
        await store.close()

    asyncio.run(scenario())


def test_half_a_capacity_is_refused() -> None:
    """A setting that cannot work is refused with the remedy, before anything is created."""
    with pytest.raises(ConfigError, match="both read_capacity and write_capacity"):
        TableSettings(read_capacity=5)


def test_a_missing_table_is_named(on_server: TableLocation) -> None:
    """Reading from a table that does not exist says which one."""

    async def scenario() -> None:
        store = on_server.open()
        with pytest.raises(NotFoundError, match=on_server.table):
            await store.get("shardId-1")
        await store.close()

    asyncio.run(scenario())


# -- lost answers ----------------------------------------------------------------------------------------------


def once(operation: str, trouble: StoreFault, times: int = 1) -> Callable[[str, str], StoreFault | None]:
    """Trouble for the first calls of an operation."""
    left = [times]

    def fault_for(called: str, _key: str) -> StoreFault | None:
        if called != operation or left[0] == 0:
            return None
        left[0] -= 1
        return trouble

    return fault_for


async def troubled(
    where: TableLocation, fault_for: Callable[[str, str], StoreFault | None]
) -> tuple[LeaseTable, LeaseTable]:
    """A table with one free lease, and the same table behind trouble."""
    store = await filled(where.open, ())
    table = LeaseTable(store)
    await table.create(new_lease(1))
    return table, LeaseTable(FaultyRows(store, fault_for))


@pytest.mark.parametrize("trouble", [StoreFault.RESPONSE_LOST, StoreFault.REQUEST_LOST])
def test_a_write_without_an_answer_is_settled(where: TableLocation, trouble: StoreFault) -> None:
    """Whether the write or its answer was lost, the caller gets the lease, and the counter moved once a write."""

    async def scenario() -> None:
        _, after_take = await troubled(where, once("write", trouble))
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
            lease = held(await move(LeaseTable(FaultyRows(store, once("write", trouble))), lease))
            assert lease.counter == before.counter + (
                0 if lease.checkpoint_owner and not before.checkpoint_owner else 1
            )
            assert await LeaseTable(store).get(lease.key) == lease
        assert await LeaseTable(store).get(new_lease(2).key) == new_lease(2)
        deleting = LeaseTable(FaultyRows(store, once("write", trouble)))
        assert await deleting.delete(lease)
        assert await deleting.get(lease.key) is None
        await after_take.close()

    asyncio.run(scenario())


def test_a_lost_answer_does_not_hide_a_lost_race(where: TableLocation) -> None:
    """If the request was lost and someone else took the lease meanwhile, the answer is Contended."""

    async def scenario() -> None:
        table, _ = await troubled(where, lambda *_: None)
        seen = new_lease(1)
        winner = held(await table.take(seen, B, H2))
        loser = LeaseTable(FaultyRows(table._rows, once("write", StoreFault.REQUEST_LOST)))
        assert await loser.take(seen, A, H1) == Contended(winner)
        await table.close()

    asyncio.run(scenario())


def test_lasting_silence_is_the_callers_to_bear(where: TableLocation) -> None:
    """After a few attempts the trouble is raised, and nothing was written."""

    async def scenario() -> None:
        silent = once("write", StoreFault.REQUEST_LOST, times=WRITE_ATTEMPTS_MAX)
        table, behind = await troubled(where, silent)
        with pytest.raises(UnavailableError):
            await behind.take(new_lease(1), A, H1)
        assert await table.get(new_lease(1).key) == new_lease(1)
        await table.close()

    asyncio.run(scenario())


def test_throttling_is_raised_at_once(where: TableLocation) -> None:
    """Throttling means that nothing happened; when to try again is the caller's decision."""

    async def scenario() -> None:
        table, behind = await troubled(where, once("write", StoreFault.THROTTLED))
        with pytest.raises(ThrottledError):
            await behind.take(new_lease(1), A, H1)
        assert await table.get(new_lease(1).key) == new_lease(1)
        await table.close()

    asyncio.run(scenario())


def test_a_line_cut_before_the_answer_is_settled(on_server: TableLocation, tmp_path: Path) -> None:
    """On a real connection: the server applied the write, the line was cut, boto3 tried again, the lease is ours."""

    async def scenario() -> None:
        direct = LeaseTable(await filled(on_server.open, ()))
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


def test_a_zombie_gets_nothing_through(where: TableLocation) -> None:
    """After losing a lease, every write of the old holder is refused, and the row is the new owner's."""

    async def scenario() -> None:
        table = LeaseTable(await filled(where.open, ()))
        await table.create(new_lease(1))
        zombie = held(await table.take(new_lease(1), A, H1))
        owner = held(await table.take(zombie, B, H2))
        owner = held(await table.checkpoint(owner, Position("500")))
        # It may even learn the counter, say from a scan: the holding still gives it away.
        for stale in (zombie, replace(zombie, counter=owner.counter)):
            for write in _holders_writes(table, stale):
                assert await write() == Contended(owner)
        assert await table.get(owner.key) == owner
        assert await table.get(new_lease(2).key) is None
        await table.close()

    asyncio.run(scenario())


def _holders_writes(table: LeaseTable, lease: Lease) -> Iterable[Callable[[], Awaitable[object]]]:
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


def test_sqlite_leases_survive_the_process(tmp_path: Path) -> None:
    """A second opening of the file sees what the first wrote, bytes and unknown attributes included."""

    async def scenario() -> None:
        path = tmp_path / "leases.sqlite"
        row: Row = {
            "leaseKey": {"S": "x"},
            "entityType": {"S": "NEW"},
            "state": {"B": b"\x00\xff"},
            "nested": {"M": {"list": {"L": [{"B": b"\x01"}, {"NULL": True}]}, "set": {"BS": [b"\x02"]}}},
        }
        first = await filled(lambda: SqliteRows(path), [row])
        await first.close()
        second = SqliteRows(path)
        assert await second.get("x") == row
        await second.close()

    asyncio.run(scenario())


def test_sqlite_refuses_what_is_not_its_file(tmp_path: Path) -> None:
    """A file of another kind, and a table that was never prepared, are told apart and named."""

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
    '{"leaseKey": {"S": "shardId-000000000001"}, "checkpoint": {"S": "SHARD_END"}}',  # another row's name
)


@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
def test_sqlite_reports_a_damaged_row(tmp_path: Path, damage: str) -> None:
    """A row that is not in DynamoDB's JSON form is rejected by name; the others are read."""

    async def scenario() -> None:
        store = SqliteRows(tmp_path / "leases.sqlite")
        table = LeaseTable(await filled(lambda: store, ()))
        await table.create(new_lease(1))
        store._open().execute("INSERT INTO rows VALUES ('shardId-bad', NULL, ?)", (damage,))
        listing = await table.list()
        assert listing.leases == (new_lease(1),)
        assert [error.key for error in listing.rejected] == ["shardId-bad"]
        with pytest.raises(MalformedRowError, match="shardId-bad"):
            await table.get(LeaseKey("shardId-bad"))
        await table.close()

    asyncio.run(scenario())


def test_numbers_that_are_none_are_equal_to_nothing(tmp_path: Path) -> None:
    """A hostile file may hold what DynamoDB would not: no condition on it holds, and nothing crashes."""

    async def scenario() -> None:
        for counter in ("sNaN", "Infinity", "one"):
            row: Row = {**lease_to_row(new_lease(1)), "leaseCounter": {"N": counter}}
            store = await filled(lambda: SqliteRows(tmp_path / f"{counter}.sqlite"), [row])  # noqa: B023 - used at once
            assert isinstance(await store.write(lease_rules.take(new_lease(1), A, H1)), Refused)
            assert (await LeaseTable(store).list()).rejected
            await store.close()

    asyncio.run(scenario())
