"""Creation of the lease table and of its index of owners."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows, TableSettings
from leasehold.config.connection import ConnectionSettings
from leasehold.core.coordinator.fleet_mode import FleetMode, FleetRows, TableLayout
from leasehold.core.leases.row_writes import text
from leasehold.errors import (
    ConfigError,
    NotFoundError,
)
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.wiring import open_lease_table
from leasehold.worker.options import consumer_settings
from tests.contract.lease_samples import A, B, applied_lease, new_lease
from tests.contract.lease_stores import SERVERS, TableLocation, create_filled
from tests.servers import Server

SEPARATE = FleetMode(
    has_leader=True,
    sends_reports=True,
    lock_layout=TableLayout.SEPARATE_TABLES,
    reports_layout=TableLayout.SEPARATE_TABLES,
)


def test_own_leases_are_found_without_an_index(on_server: TableLocation) -> None:
    """By a scan. After the index was added, the same leases are found."""

    async def scenario() -> None:
        bare = on_server.open(TableSettings(with_index=False))
        table = LeaseTable(await create_filled(lambda: bare, ()))
        await table.create(new_lease(1))
        applied_lease(await table.assign(new_lease(1), A))
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
        applied_lease(await table.assign(new_lease(1), A))
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
        response = self._client.describe_table(**request)
        for index in response["Table"].get("GlobalSecondaryIndexes", []) if self.is_building else []:
            index["IndexStatus"] = "CREATING"
        return response

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
        applied_lease(await table.assign(new_lease(1), A))
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


@pytest.mark.parametrize("kind", ["ministack", "dynamodb_local"])
def test_the_settings_of_a_consumer_reach_a_new_table(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capacity, deletion protection, tags and point-in-time recovery. DynamoDB Local shows only the capacity."""
    server: Server = request.getfixturevalue(kind)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    name = f"leases-{uuid.uuid4().hex}"
    given = {
        "LEASEHOLD_TABLE_READ_CAPACITY": "3",
        "LEASEHOLD_TABLE_WRITE_CAPACITY": "4",
        "LEASEHOLD_TABLE_DELETION_PROTECTION": "true",
        "LEASEHOLD_TABLE_POINT_IN_TIME_RECOVERY": "true" if kind == "ministack" else "false",
        "LEASEHOLD_TABLE_TAGS": "team=data, stage=prod",
        "LEASEHOLD_SCAN_SEGMENTS": "3",
        "LEASEHOLD_DYNAMODB_ENDPOINT": server.url,
        "LEASEHOLD_REGION": "us-east-1",
    }
    connection = consumer_settings({"stream": "orders", "application": name}, given).connection

    async def scenario() -> None:
        table = open_lease_table(connection, name)
        await table.prepare()
        for number in range(20):
            await table.create(new_lease(number))
        assert len((await table.list()).leases) == 20  # of all three segments
        await table.close()

    asyncio.run(scenario())
    client = server.client("dynamodb")
    created = client.describe_table(TableName=name)["Table"]
    capacity = created["ProvisionedThroughput"]
    assert (capacity["ReadCapacityUnits"], capacity["WriteCapacityUnits"]) == (3, 4)
    if kind == "ministack":
        tags = client.list_tags_of_resource(ResourceArn=created["TableArn"])["Tags"]
        assert {each["Key"]: each["Value"] for each in tags} == {"team": "data", "stage": "prod"}
        assert created["DeletionProtectionEnabled"] is True
        backups = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
        assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


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


def test_the_separate_tables_of_a_fleet_are_found_by_their_configured_names(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KCL 3.0 to 3.4 may give the coordinator table and the table of worker reports other names."""
    server: Server = request.getfixturevalue("dynamodb_local")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    unique = uuid.uuid4().hex
    names = {"coordinator_table": f"locks-{unique}", "worker_metrics_table": f"loads-{unique}"}
    for table, key in zip(names.values(), ("key", "wid"), strict=True):
        server.client("dynamodb").create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        )
    lock = {"key": text("Leader"), "ownerName": text("java-1"), "leaseDuration": text("120000")}
    server.client("dynamodb").put_item(
        TableName=names["coordinator_table"], Item={**lock, "recordVersionNumber": text("1")}
    )

    async def find(**tables: Any) -> FleetRows:
        connection = ConnectionSettings(dynamodb_endpoint=server.url, region="us-east-1", **tables)
        table = open_lease_table(connection, f"billing-{unique}")
        try:
            await table.prepare()
            found = await table.coordinator_rows.find()
            if found.has_coordinator_table:
                assert not (await table.coordinator_rows.read_snapshot(SEPARATE)).reports.reports
            return found
        finally:
            await table.close()

    assert not asyncio.run(find()).has_coordinator_table
    assert asyncio.run(find(**names)).has_lock
