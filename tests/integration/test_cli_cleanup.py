"""`leasehold cleanup` on DynamoDB Local."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows
from leasehold.cli.command import leasehold
from leasehold.core.leases.lease_row import lease_to_row
from leasehold.core.leases.row_writes import PutRow, Row, text
from leasehold.core.model import Lease, LeaseKey, ShardId
from leasehold.core.position import TRIM_HORIZON
from tests.servers import Server

LEASE = lease_to_row(Lease(key=LeaseKey("s-0"), shard_id=ShardId("s-0"), checkpoint=TRIM_HORIZON))


def test_unused_tables_are_listed_and_only_they_are_deleted(
    dynamodb_local: Server, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that changes while it is watched, or has a row of another program, stays."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    prefix, client = unique_name("cleanup"), dynamodb_local.client("dynamodb")
    note: Row = {"leaseKey": text("note"), "text": text("keep")}
    for name, rows in (("busy", [LEASE]), ("foreign", [LEASE, note]), ("unused", [LEASE])):
        asyncio.run(create_table(client, f"{prefix}-{name}", rows))

    def clean_up(*arguments: str) -> Any:
        where = ("--dynamodb-endpoint-url", dynamodb_local.url, "--region", "us-east-1")
        return CliRunner().invoke(leasehold, ["cleanup", *where, "--watch", "3", *arguments])

    with Heartbeats(client, f"{prefix}-busy"):
        listed = json.loads(clean_up("--prefix", prefix, "--json").stdout)["applications"]
        assert [(each["application"].rpartition("-")[2], each["usage"]) for each in listed] == [
            ("busy", "in use"),
            ("foreign", "not a lease table"),
            ("unused", "unused, age unknown"),
        ]
        assert clean_up("--delete", f"{prefix}-busy", "--yes").exit_code == 1
    assert clean_up("--delete", f"{prefix}-foreign", "--yes").exit_code == 1
    assert clean_up("--delete", f"{prefix}-unused").exit_code == 2  # no terminal, no --yes
    deleted = clean_up("--delete", f"{prefix}-unused", "--yes")
    assert deleted.exit_code == 0, deleted.output
    assert deleted.stdout.strip() == f"deleted {prefix}-unused"
    names = [name for name in client.list_tables()["TableNames"] if name.startswith(prefix)]
    assert names == [f"{prefix}-busy", f"{prefix}-foreign"]
    where = ("--dynamodb-endpoint-url", dynamodb_local.url, "--region", "us-east-1")
    without_table = CliRunner().invoke(
        leasehold, ["release", "--all", "--application", f"{prefix}-unused", *where]
    )
    assert (without_table.exit_code, f"table {prefix}-unused" in without_table.output) == (1, True)


async def create_table(client: Any, name: str, rows: list[Row]) -> None:
    store = DynamoDbRows(client, name)
    await store.prepare()
    for row in rows:
        await store.write(PutRow(row["leaseKey"]["S"], row))
    await store.close()


class Heartbeats:
    """Renews the lease of a table until the end of the block."""

    def __init__(self, client: Any, table: str) -> None:
        self._client, self._table = client, table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self._client.update_item(
                TableName=self._table,
                Key={"leaseKey": text("s-0")},
                UpdateExpression="ADD leaseCounter :one",
                ExpressionAttributeValues={":one": {"N": "1"}},
            )
